"""The one loop that simulates all methods: a Server, and Clients in threads."""

from __future__ import annotations

import copy
import hashlib
import secrets
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from fedrecsk._utils.kernels import seconds_compiling
from fedrecsk._utils.sklearn_compat import get_threadpool_controller
from fedrecsk._utils.threads import Threads
from fedrecsk._utils.user_warnings import warn
from fedrecsk.attacks import View
from fedrecsk.base._recommender import check_resumable
from fedrecsk.data._checks import Diverged, hint
from fedrecsk.data.item_features import columns_of, fingerprint
from fedrecsk.protocol import blocks as _blocks
from fedrecsk.protocol.clients import Clients, Group
from fedrecsk.protocol.early_stopping import hold_out
from fedrecsk.protocol.keys import Key, Keys
from fedrecsk.protocol.messages import deliver
from fedrecsk.protocol.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fedrecsk.protocol.messages import Message, Upload
    from fedrecsk.updates import HeldUpdates


def fit(estimator, data, report):
    """Run the rounds; returns the fitted attributes."""
    run = _resumed(estimator, data) or Run.new(estimator, data)
    run.settle(estimator)
    attributes = _completed(estimator, run, data, report)
    estimator._run = run if estimator.warm_start else None
    return attributes


def update(estimator, data, report, n_rounds, changed):
    """Go on from the last fit with other rows of these clients (ids); return the attributes."""
    before = estimator._run
    run = before.followed_by(estimator, data, n_rounds)
    # Of a copy, so that nothing is taken back if what follows fails.
    attributes = _completed(estimator, run, data, report, before.at_its_end(), changed)
    estimator._run = run
    return attributes


def _completed(estimator, run, data, report, before=None, changed=None):
    """Run the rounds that are left, after those of a run before, if any, and end the fit."""
    # Clients update in place: a fit that fails half-way must not be continued.
    estimator._run = None
    try:
        attributes = _rounds_of(estimator, run, report, before, changed)
    except Diverged as error:
        raise ValueError(f"{error.what} {hint(estimator, data)}") from error
    _warn_of_empty_rounds(run.server, is_fit=before is None)
    _warn_of_lost_shares(run.server, attributes["privacy_"].epsilon)
    return attributes


def _rounds_of(estimator, run, report, before, changed):
    """Run the rounds; return the fitted attributes."""
    server = run.server
    with (
        get_threadpool_controller().limit(limits=1, user_api="blas"),
        Threads(estimator.n_jobs) as run.parallel,
    ):
        if server.state is None:
            run.begin(before, changed)
        n_rounds = server.method._rounds(server.n_clients)
        while server.round < n_rounds and not server.stopping.stopped:
            close = report.step("round")
            run.round()
            if close(run.attributes_now):
                break
        return run.at_its_end().end()


@dataclass(eq=False, repr=False)
class Run:
    """A fit in progress, both halves of it: what warm_start continues exactly where it ended."""

    server: Server
    clients: list[Clients]
    client_ids: np.ndarray
    # An ActiveAttack, or None.
    attack: Any
    # Of the data; only where the fit can be continued.
    fingerprint: bytes | None
    # Those that must not change between the rounds of one run.
    parameters: dict
    # Position in `clients` of the object that simulates each client.
    block_of_client: np.ndarray
    # All rows; only where the fit can be continued.
    data: Any = None
    # Runs the clients' tasks, in threads while rounds are run.
    parallel: Any = field(default=Threads(1), init=False)

    @classmethod
    def new(cls, estimator, data, *, is_watched=False):
        """Before the set-up."""
        seed, key, method = fresh(estimator, is_watched=is_watched)
        federation = method.federation
        attack, training, held_out = None, data, None
        if federation.adversary is not None:
            federation.adversary._check_method(method)
            attack = federation.adversary.enter(data, estimator._sees_ratings, key)
            training = attack.data
        if method.early_stopping:
            training, held_out = hold_out(training, method.validation_fraction, key)
        check_aggregator(federation.aggregator, method, training)
        if federation.aggregator is not None and attack is not None:
            federation.aggregator._check_adversary(data.client_ids[attack.controlled])
        histories = _histories(method, data.n_clients, key)
        forger = (
            attack if federation.adversary is not None and federation.adversary.forges else None
        )
        groups = _groups(method, federation, histories, forger)
        blocks = _blocks.cut(training, groups, share=method.client_fraction)
        method._check_setting(federation, training, blocks)
        server = server_of(estimator, method, data, seed, key)
        others = {"groups": {}, "held_out": held_out, "forger": forger}
        keys = keys_of(server)
        clients = clients_of(method, blocks, keys, data.client_ids, histories, **others)
        block_of_client = np.empty(data.n_clients, dtype=np.int64)
        for b, block in enumerate(blocks):
            block_of_client[block.clients] = b
        return cls(
            server,
            clients,
            data.client_ids,
            attack,
            data.fingerprint() if estimator.warm_start else None,
            parameters_of_a_run(estimator),
            block_of_client,
            data if estimator.warm_start else None,
        )

    # ------------------------------------------------------------ the protocol's steps

    def each(self, clients, function, *args):
        """Yield the results of a function of Clients for these, or their sums, in their order."""
        return self.parallel(function, clients, *args)

    def tell(self, clients, function, *args):
        """Call a function of Clients, which returns nothing, for each of these."""
        for one in clients:
            function(one, *args)

    def begin(self, before, changed):
        """Do the set-up, and go on from a run before, if any, with other rows of these clients."""
        taken_back = None
        if before is not None and self.server.algorithm.traits.sends_once:
            before.parallel = self.parallel
            taken_back = before.take_back(changed)
        self.set_up()
        if before is not None:
            self.go_on(before, changed, taken_back)

    def register(self):
        """Register all clients."""
        self.server.register([one.register() for one in self.clients])

    def set_up(self):
        """Do everything that comes before the first round."""
        server, clients = self.server, self.clients
        self.register()
        if server.has_setup:
            message, total = server.setup_message(), server.new_total("setup")
            for answer in self.each(clients, Clients.setup, message):
                total.add(answer)
            server.close_setup(total)
        self.tell(clients, Clients.announce, server.send_announcement())

    def take_back(self, clients):
        """Let these clients (ids) take back uploads; return the ledger before, or None."""
        server = self.server
        server.only = chosen = np.isin(self.client_ids, clients)
        for one in self.clients:
            one.take_back(server.round)
        if not chosen.any():
            return None
        ledger = copy.deepcopy(server.ledger)
        self.round()
        return ledger

    def round(self):
        """Simulate one round; return what a curious server sees of it, a Seen."""
        server, attack, round = self.server, self.attack, self.server.round
        adversary: Any = server.federation.adversary
        turn, message = server.open_round()
        received = None
        if message:
            received = server.algorithm.decode(message, server.key.at(round))
            if round and server.method.early_stopping:
                self._validate(turn)
                if server.stopping.stopped:
                    return None
        busy = self._involved(turn.active)
        self.tell(busy, Clients.receive, round, received, turn)
        for step in range(server.algorithm.traits.n_exchanges):
            self._exchange(busy, step)
        if attack is not None and adversary.forges:
            self._show_adversary(busy, received, turn)
        total, seconds = server.new_total(), -seconds_compiling()
        for answer, loss, its_seconds in self.each(busy, _timed, round):
            total.loss += loss
            seconds += its_seconds
            for updates in answer:
                total.add(updates)
        server.ledger.work(max(0.0, seconds + seconds_compiling()))
        upload = server.close_round(total)
        if attack is not None:
            attack.look(None)
        return Seen(received, total.held, upload)

    def _involved(self, who):
        """Return the Clients that have some of the clients of a mask."""
        return [self.clients[b] for b in np.unique(self.block_of_client[who])]

    def _exchange(self, clients, step):
        """Let devices send something to the others of their groups, without the server."""
        server = self.server
        messages = list(self.each(clients, Clients.exchange, server.round, step))
        means = deliver(
            messages,
            [one.block.clients for one in clients],
            server.n_clients,
            server.ledger,
            server.federation.wire_dtype,
        )
        for one, received in zip(clients, means, strict=True):
            if received is not None:
                one.end_exchange(step, received)

    def _show_adversary(self, busy, received, turn):
        """Show an adversary that forges uploads what its clients have received and computed."""
        server, attack = self.server, self.attack
        if received is not None and (turn.receives & attack.controlled).any():
            attack.message = received
        ours = [one for one in busy if one.forge is not None]
        found = self.each(ours, Clients.honest, server.round)
        honest = [updates for one in found for updates in one if len(updates.clients)]
        if not honest:
            return
        codes = np.concatenate([updates.clients for updates in honest])
        message = (server.announcement() | attack.message).of(codes)
        attack.look(
            View(
                method=server.method,
                round=server.round,
                message=message,
                n_senders=int(turn.active.sum()),
                data=attack.own_data,
                updates=honest,
                memory=attack.memory,
            )
        )

    def _validate(self, turn):
        """Measure the received model on the clients' held-out rows."""
        server = self.server
        key = server.key.at(server.round)
        who = turn.receives
        message = server.algorithm.decode(server.send_for_validation(who), key)
        asked = self._involved(who)
        total = server.new_total("validation")
        for answer in self.each(asked, Clients.validate, server.round, message, turn):
            total.add(answer)
        if server.close_validation(total, who):
            self.tell(self.clients, Clients.forget_kept)
            self.tell(asked, Clients.keep_measured)

    def attributes_now(self):
        """Fitted attributes as if the rounds ended here; changes nothing."""
        attributes = self._attributes(self.server.current_message(), kept=False)
        return attributes | {"history_": list(self.server.history)}

    def end(self):
        """Send all clients the final model; returns fitted attributes and reports."""
        server = self.server
        stopping = server.stopping
        if stopping.stopped:
            message = server.send_best()
        else:
            message = server.send_final()
            if server.method.early_stopping:
                self._validate(server.final_participation())
                if stopping.message is None:
                    warn(
                        "No held-out row counts, so early stopping could judge no model and the "
                        "last one is kept. Raise validation_fraction.",
                        ConvergenceWarning,
                    )
                elif stopping.best_round != server.round - 1:
                    message = server.send_best()
        attributes = self._attributes(message, kept=True)
        if server.method.early_stopping:
            attributes["best_round_"] = stopping.best_round
        if self.attack is not None:
            attributes["compromised_clients_"] = self.client_ids[self.attack.controlled]
        channel = server.uplink.masks or server.channel
        if channel is not None:
            attributes["encryption_"] = channel.report()
        return attributes | {
            "n_rounds_": server.round,
            "history_": server.history,
            "loss_curve_": [row["loss"] for row in server.history],
            "communication_": server.ledger,
            "privacy_": server.privacy_report(),
        }

    def _attributes(self, message, *, kept):
        clients = self.clients

        def users(received, ours):
            fitted = partial(Clients.fitted, kept=kept)
            parts = self.parallel(fitted, clients, received, self.server.round)
            return _blocks.by_user([one.block.users for one in clients], list(parts))

        return fitted_attributes(self.server, message, users)

    # ---------------------------------------------------------- between one fit and the next

    def followed_by(self, estimator, data, n_rounds):
        """Return a run on other data that will go on from this one."""
        seed = estimator.random_state
        if seed is not None:
            # Other draws than those of the rounds that were.
            seed = int(self.server.key.at(-1).hashed("update") >> np.uint64(33))
        method = clone(estimator).set_params(
            n_rounds=n_rounds, random_state=seed, early_stopping=False, warm_start=True
        )
        run = Run.new(method, data)
        run.parameters = self.parameters
        return run

    def go_on(self, before, clients, taken_back):
        """Continue the model of the run before, after the set-up.

        The rows of these clients (ids) are others than before. `taken_back` is the ledger of
        `before` at its end, if clients have taken back uploads since.
        """
        server, algorithm = self.server, self.server.algorithm
        places = self.data.item_ids.codes(before.server.item_ids)
        server.state = algorithm.resume(server.state, before.server.state, places)
        if algorithm.traits.sends_once:
            server.only = changed = np.isin(self.client_ids, clients)
            self._remember_senders(before, changed)
        else:
            self._remember(before)
        if taken_back is not None:
            server.ledger.take_over(before.server.ledger, taken_back)

    def _remember_senders(self, before, changed):
        """Tell clients, except the changed ones, whether the sum has an upload of theirs."""
        sent = [one.client_ids[one.has_sent()] for one in before.clients]
        counted = np.isin(self.client_ids, np.concatenate(sent)) & ~changed
        for one in self.clients:
            one.remembered = counted[one.block.clients]

    def _remember(self, before):
        """Give clients what they, their users and their rows had in the run before."""
        memories = {}
        for one in before.clients:
            if one.state is not None:
                memory = self.server.algorithm.memory(one.state)
                known = {name: (slice(None), arrays) for name, arrays in memory.items()}
            else:
                known = one.remembered or {}
            for name, (mask, arrays) in known.items():
                codes = self._codes(before, one, name)[mask]
                arrays = [values[codes >= 0] for values in arrays]
                memories.setdefault(name, []).append((codes[codes >= 0], *arrays))
        for name, parts in memories.items():
            codes, *arrays = map(np.concatenate, zip(*parts, strict=True))
            codes = pd.Index(codes)
            for one in self.clients:
                places = codes.get_indexer(self._codes(self, one, name))
                found = places >= 0, [values[places[places >= 0]] for values in arrays]
                one.remembered = (one.remembered or {}) | {name: found}

    def _codes(self, run, clients, name):
        """Return numbers in this run of a run's "users", "clients" or "rows" of clients, or -1."""
        block, ours, theirs = clients.block, self.data, run.data
        if name == "users":
            return ours.user_ids.codes(theirs.user_ids.values[block.users])
        codes = pd.Index(self.client_ids).get_indexer(clients.client_ids)
        if name == "clients":
            return codes
        codes = np.repeat(codes, block.row_counts)
        items = ours.item_ids.codes(theirs.item_ids.values[block.row_items])
        return np.where((codes >= 0) & (items >= 0), codes * ours.n_items + items, -1)

    def settle(self, estimator):
        """Take the parameters that may change between the rounds of one run."""
        self.server.method.set_params(n_rounds=estimator.n_rounds, n_jobs=estimator.n_jobs)
        self.server.stopping.tol = estimator.tol
        self.server.stopping.be_patient(estimator.n_iter_no_change)

    def at_its_end(self):
        """Return a copy in which the fit may end; this one can go on."""
        ended, server = copy.copy(self), copy.copy(self.server)
        kept = (server.federation, server.channel, server.ledger.client_ids)
        memo = {id(one): one for one in kept}
        accounts = server.ledger, server.downlink, server.uplink
        server.ledger, server.downlink, server.uplink = copy.deepcopy(accounts, memo)
        server.history = copy.deepcopy(server.history)
        server.stopping = copy.copy(server.stopping)
        ended.server, ended.clients = server, [copy.copy(one) for one in self.clients]
        return ended


def fitted_attributes(server: Server, message: Message, users: Callable[..., dict]) -> dict:
    """Return the fitted attributes of the model in a message.

    `users` returns those of the users, or of where they are, from the message as clients read it
    and the server's attributes.
    """
    method = server.method
    received = server.algorithm.decode(message, server.key.at(server.round))
    # Copies, so that writing into a fitted array does not change a running fit.
    ours = copy.deepcopy(method._server_attributes(received))
    ours["_final_message"] = copy.deepcopy(message)
    ours |= method._attributes_of_state(server.state)
    if "_content" in ours:
        ours["_feature_columns"] = columns_of(method.item_features)
    return ours | users(received, ours)


def fresh(estimator, *, is_watched=False):
    """Return the seed and the key of a new fit, and the estimator's copy for it."""
    seed = int(check_random_state(estimator.random_state).randint(2**31 - 1))
    federation = clone(estimator._setting())
    federation.is_watched = is_watched
    method = clone(estimator).set_params(random_state=None, federation=federation)
    return seed, Key(seed), method.set_callbacks()


def check_aggregator(aggregator, method, data):
    """Raise, before any work, if an aggregator does not suit its clients or their uploads."""
    if aggregator is None:
        return
    aggregator._check_clients(data, method._sampling().smallest_cohort(data.n_clients))
    aggregator._check_specs(method._algorithm().fields(data.n_items))


def _timed(clients, round):
    """Run the clients' local update, and return the seconds of this thread as well."""
    start = time.thread_time()
    updates, loss = clients.update(round)
    return updates, loss, time.thread_time() - start


class Seen(NamedTuple):
    """What the server sees of a round: what it has sent, single updates, and their sums."""

    # As `decode` leaves it.
    message: Message | None
    # With secure sums the server does not see them.
    held: list[HeldUpdates]
    upload: Upload | None

    def tiles(self):
        """Yield the accepted single updates, tile by tile."""
        for one in self.held:
            yield from one.tiles()


def watch(estimator, data, n_rounds):
    """Yield, for each round, the Server, the list of Clients, and what a curious server sees."""
    run = Run.new(estimator, data, is_watched=True)
    with (
        get_threadpool_controller().limit(limits=1, user_api="blas"),
        Threads(None) as run.parallel,
    ):
        run.set_up()
        for _ in range(n_rounds):
            seen = run.round()
            yield run.server, run.clients, seen


def _secret(estimator, data, seed):
    """Return the key of a fit's noise, which no fit of other data or parameters shares."""
    # Otherwise the noise of two fits with the same random_state could be subtracted.
    if estimator.random_state is None:
        return Key(secrets.randbits(63))
    parameters = parameters_of_a_run(estimator)
    if estimator._setting().central_dp.epsilon is not None:
        # The noise then depends on the planned rounds.
        parameters["n_rounds"] = estimator._rounds(data.n_clients)
    parameters.pop("random_state", None)
    identity = repr((int(seed), data.fingerprint(), sorted(parameters.items(), key=str)))
    digest = hashlib.blake2b(identity.encode(), digest_size=8).digest()
    return Key(int.from_bytes(digest) >> 1)


def _histories(method, n_clients, key):
    """Equal numbers for clients that must have equal histories to share a block."""
    if not method._algorithm().traits.shares_history:
        return np.zeros(n_clients, dtype=np.int64)
    return method._sampling().histories(n_clients, key)


def _groups(method, federation, histories, forger):
    """Equal numbers for clients that may share a block; `forger` is the attack that forges."""
    traits = method._algorithm().traits
    separate = federation.looks_at_uploads or forger is not None or traits.treats_clients_apart
    if separate and not traits.single_uploads:
        return np.arange(len(histories))
    return histories if forger is None else 2 * histories + forger.controlled


def clients_of(method, blocks, keys, client_ids, histories, *, groups, held_out=None, forger=None):
    """Return one Clients object for each block; `groups` has those of equal history."""
    clients = []
    for block in blocks:
        first, forge, rest = block.clients[0], None, None
        if forger is not None and forger.controlled[first]:
            forge = forger.forge
        if held_out is not None:
            rest = _blocks.of_clients(held_out, block.clients)
        clients.append(
            Clients(
                method,
                block,
                method._setting(),
                keys,
                # Controlled clients compute what honest ones of the same history compute.
                group=groups.setdefault(int(histories[first]), Group()),
                held_out=rest,
                forge=forge,
                client_ids=client_ids[block.clients],
                separate=method._algorithm().traits.treats_clients_apart,
            )
        )
    return clients


def server_of(estimator, method, data, seed, key):
    """Return the server of a new fit."""
    federation = method.federation
    rating_range = float(data.values.min()), float(data.values.max())
    secret = key if federation.central_dp is None else _secret(estimator, data, seed)
    return Server(method, federation, key, data.item_ids.values, rating_range, secret)


def keys_of(server):
    """Return the keys of a server's clients, in a simulation."""
    # Shares of the noise must differ between fits; all else comes from the one key.
    mechanism = server.federation.central_dp
    shares = mechanism is not None and mechanism.noise == "clients"
    return Keys(server.key, server.secret if shares else server.key)


def _resumed(estimator, data):
    run = getattr(estimator, "_run", None) if estimator.warm_start else None
    if run is not None:
        n_rounds = estimator._rounds(run.server.n_clients)
        parameters = parameters_of_a_run(estimator)
        check_resumable(run, data, parameters, "n_rounds", n_rounds, run.server.round)
    return run


def parameters_of_a_run(estimator):
    """Return the parameters that must not change between the rounds of one run."""
    # The fingerprint of the data has the catalogue.
    free = {"n_rounds", "n_jobs", "warm_start", "n_iter_no_change", "tol", "federation", "items"}
    parameters = estimator.get_params() | {
        f"federation__{name}": value for name, value in estimator._setting().get_params().items()
    }
    for name in ("item_features", "user_features"):
        features = parameters.pop(name, None)
        if features is not None:
            parameters[name] = fingerprint(features)
    return {
        name: type(value).__name__ if hasattr(value, "get_params") else value
        for name, value in parameters.items()
        if name not in free
    }


def _warn_of_lost_shares(server, spent):
    mechanism = server.federation.central_dp
    limit = np.inf if mechanism is None or mechanism.epsilon is None else mechanism.epsilon
    if spent > limit * (1 + 1e-6):
        warn(
            f"This fit has spent epsilon {spent:.4g}, more than CentralDP(epsilon={limit:g}), "
            "because fewer clients than planned sent their share of the noise. Do not publish the "
            "model as if it had kept the limit; let all clients take part, lower dropout, or use "
            'noise="server".',
            UserWarning,
        )


def _warn_of_empty_rounds(server, *, is_fit):
    n_empty, n_undecided = server.n_empty_rounds, server.n_undecided_rounds
    why = []
    rounds = [entry for entry in server.ledger.entries if entry["phase"] == "round"]
    if n_empty:
        why.append(f"In {n_empty} of {server.round} rounds every upload was lost")
    elif is_fit and not any(entry["messages_up"] for entry in rounds):
        why.append(f"In {server.round} of {server.round} rounds no client has sent anything")
    if n_undecided:
        aggregator = server.federation.aggregator
        what = "too few clients were left to unmask the sum"
        if aggregator is not None:
            what = f"{type(aggregator).__name__} returned None (too few uploads)"
        why.append(f"In {n_undecided} of {server.round} rounds {what}")
    if why:
        warn(
            f"{'. '.join(why)}; the model did not move in them. Raise client_fraction, or lower "
            "federation.dropout.",
            ConvergenceWarning,
        )
