"""Simulate a fit in one process: a Server, and Clients in threads."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from fedrecsk._utils.kernels import seconds_compiling
from fedrecsk._utils.sklearn_compat import get_threadpool_controller
from fedrecsk._utils.threads import Threads
from fedrecsk._utils.user_warnings import warn
from fedrecsk.attacks import View
from fedrecsk.base._item_prior import ItemContent
from fedrecsk.base._recommender import check_resumable
from fedrecsk.data._checks import Diverged, hint
from fedrecsk.data.item_features import columns_of
from fedrecsk.protocol import blocks as _blocks
from fedrecsk.protocol import refusals
from fedrecsk.protocol.clients import ClientGroup
from fedrecsk.protocol.early_stopping import hold_out
from fedrecsk.protocol.links import StepTotal
from fedrecsk.protocol.loop import Loop
from fedrecsk.protocol.messages import deliver
from fedrecsk.protocol.schedules import Asynchronous
from fedrecsk.protocol.server import Server
from fedrecsk.simulation import both_sides
from fedrecsk.updates import weighted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from fedrecsk.attacks._base import ActiveAttack
    from fedrecsk.base import FitReport
    from fedrecsk.data.interactions import Interactions, Population
    from fedrecsk.federated.base import FederatedRecommender
    from fedrecsk.protocol.blocks import Attributes
    from fedrecsk.protocol.messages import Message, Registration, Upload
    from fedrecsk.protocol.participation import Participation
    from fedrecsk.updates import ClientUpdates, HeldUpdates

    # Updates, sums of training losses and of their weights, and seconds.
    Trained = tuple[list[ClientUpdates], NDArray[np.float64], float]


def fit(estimator: FederatedRecommender, data: Interactions, report: FitReport) -> Attributes:
    """Run the rounds; returns the fitted attributes."""
    run = _resumed(estimator, data) or Run.new(estimator, data)
    run.settle(estimator)
    attributes = complete(estimator, run, data, report)
    estimator._run = run if estimator.warm_start else None
    return attributes


def complete(
    estimator: FederatedRecommender,
    run: Run,
    data: Population,
    report: FitReport,
    begin: Callable[[], None] | None = None,
) -> Attributes:
    """Run the rounds that are left, and end the fit; `begin` does the set-up, None: as usual."""
    # Clients update in place: a fit that fails half-way must not be continued.
    estimator._run = None
    try:
        attributes = _run_rounds(estimator, run, report, begin or run.set_up)
    except Diverged as error:
        raise ValueError(f"{error.what} {hint(estimator, data)}") from error
    _warn_of_empty_rounds(run.server, is_fit=begin is None)
    _warn_of_lost_shares(run.server, attributes["privacy_"])
    return attributes


def _run_rounds(estimator, run, report, begin):
    """Run the rounds; return the fitted attributes."""
    with (
        get_threadpool_controller().limit(limits=1, user_api="blas"),
        Threads(estimator.n_jobs) as run.parallel,
    ):
        if run.server.state is None:
            begin()
        while not run.is_over:
            close = report.step("round")
            run.round()
            if close(run.attributes_now):
                break
        return run.fork().end()


@dataclass(eq=False, repr=False)
class Run(Loop[StepTotal, "Seen"]):
    """A fit in progress, both halves of it: what warm_start continues exactly where it ended."""

    server: Server
    clients: list[ClientGroup]
    # An ActiveAttack, or None.
    attack: ActiveAttack | None
    # Of the data; only where the fit can be continued.
    fingerprint: bytes | None
    # Those that must not change between the rounds of one run.
    parameters: dict[str, object]
    # All rows.
    data: Population
    # The estimator's copy for this fit.
    method: FederatedRecommender
    # Runs the clients' tasks, in threads while rounds are run.
    parallel: Threads = field(default=Threads(1), init=False)
    # Of asynchronous rounds: uploads on their way, with the rounds in which they began, by the
    # round in which they arrive.
    kept: dict[int, list[tuple[int, ClientUpdates]]] = field(default_factory=dict, init=False)

    @classmethod
    def new(cls, estimator: FederatedRecommender, data: Interactions, **changed: Any) -> Self:
        """Before the set-up; `changed` are fields of the plan other than the estimator's."""
        key, method = both_sides.fresh(estimator)
        plan = replace(method._plan(), **changed)
        federation = plan.federation
        attack, training, held_out = None, data, None
        if federation.adversary is not None:
            federation.adversary._check_method(method)
            attack = federation.adversary.enter(data, estimator._sees_ratings, key)
            training = attack.data
        codes = both_sides.user_codes_of(plan, data)
        if plan.holds_out is not None:
            training, held_out = hold_out(training, plan.holds_out, key, codes)
        both_sides.check_aggregator(plan, training)
        if federation.aggregator is not None and attack is not None:
            federation.aggregator._check_adversary(data.client_ids[attack.controlled])
        histories = both_sides.histories_of(plan, data.n_clients, key)
        forger = attack if attack is not None and attack.adversary.forges else None
        groups = both_sides.groups_of(plan, histories, forger)
        blocks = _blocks.cut(training, groups, share=plan.sampling.fraction)
        method._check_setting(plan, training, blocks)
        server = both_sides.server_of(estimator, plan, data, key)
        server.clock = both_sides.clock_of(federation, data, key)
        others = {"shared": {}, "held_out": held_out, "forger": forger, "user_codes": codes}
        keys = both_sides.keys_of(server)
        clients = both_sides.clients_of(plan, blocks, keys, data.client_ids, histories, **others)
        fingerprint = data.fingerprint() if estimator.warm_start else None
        parameters = both_sides.parameters_of_a_run(estimator)
        return cls(server, clients, attack, fingerprint, parameters, data, method)

    @cached_property
    def _block_of_client(self):
        """Position in `clients` of the object that simulates each client."""
        positions = np.empty(self.data.n_clients, dtype=np.int64)
        for position, one in enumerate(self.clients):
            positions[one.block.clients] = position
        return positions

    # ------------------------------------------------------------ the protocol's steps

    def each(
        self, clients: list[ClientGroup], function: Callable[..., object], *args: object
    ) -> Iterator[Any]:
        """Yield the results of a function of Clients for these, or their sums, in their order."""
        return self.parallel(function, clients, *args)

    def trained(self, clients: list[ClientGroup], round: int) -> Iterator[Trained]:
        """Yield the results of the local update of these clients, or their sums."""
        return self.each(clients, timed, round)

    def tell(
        self, clients: list[ClientGroup], function: Callable[..., None], *args: object
    ) -> None:
        """Call a function of ClientGroup, which returns nothing, for each of these."""
        for one in clients:
            function(one, *args)

    def set_up(self) -> None:
        """Register all clients, and do everything else that comes before the first round."""
        self.server.register(self.registrations())
        super().set_up()

    def registrations(self) -> list[Registration]:
        """Return the clients' Registrations."""
        return [one.register() for one in self.clients]

    def ask_setup(self, message: Message) -> StepTotal:
        """Return the clients' answers to the message of the set-up."""
        return self._total("setup", self.each(self.clients, ClientGroup.setup, message))

    def announce(self, message: Message) -> None:
        """Send all clients the announcement."""
        self.tell(self.clients, ClientGroup.announce, message)

    def ask_round(self, participation: Participation, message: Message | None) -> Seen:
        """Let clients update, and close the round; return what a curious server sees, a Seen."""
        server, attack, round = self.server, self.attack, self.server.round
        received = None
        if message:
            # Once, as each client would.
            received = server.algorithm.decode(message, server.key.at(round))
        busy = self._involved(participation.active)
        self.tell(busy, ClientGroup.receive, round, received, participation)
        for step in range(server.algorithm.traits.n_exchanges):
            self._exchange(busy, step)
        if attack is not None and attack.adversary.forges:
            self._show_adversary(attack, busy, received, participation)
        total, seconds = server.new_total(), -seconds_compiling()
        for answer, loss, its_seconds in self.trained(busy, round):
            total.loss += loss
            seconds += its_seconds
            for updates in answer:
                if participation.arrivals is None:
                    total.add(updates)
                else:
                    self._keep(updates, participation.arrivals)
        if participation.arrivals is not None:
            self._add_arrived(total)
        server.ledger.work(max(0.0, seconds + seconds_compiling()))
        upload = server.close_round(total)
        if attack is not None:
            attack.look(None)
        return Seen(received, total.held, upload)

    def _keep(self, updates, arrivals):
        """Keep updates until the steps in which they arrive."""
        steps = arrivals[updates.clients]
        for step in np.unique(steps[updates.sends]).tolist():
            # A sum is of clients that arrive together.
            own = updates if updates.is_sum else updates.take(steps == step)
            self.kept.setdefault(step, []).append((self.server.round, own))

    def _add_arrived(self, total):
        """Add what has arrived in the open round, by how many steps ago it began."""
        server = self.server
        kept = self.kept.pop(server.round, [])
        if not kept:
            return
        schedule = server.federation.schedule
        assert isinstance(schedule, Asynchronous)
        weights = [schedule.weight(server.round - began) for began, _ in kept]
        parts = [updates for _, updates in kept]
        total.weight = sum(w * part.n_accepted for w, part in zip(weights, parts, strict=True))
        total.add(weighted(parts, weights))

    def ask_validation(self, participation: Participation, message: Message) -> StepTotal:
        """Return the sums of the losses on the clients' held-out rows."""
        round, asked = self.server.round, self._involved(participation.receives)
        message = self.server.algorithm.decode(message, self.server.key.at(round))
        answers = self.each(asked, ClientGroup.validate, round, message, participation)
        return self._total("validation", answers)

    def keep_best(self, who: NDArray[np.bool_]) -> None:
        """Let clients keep what they have evaluated last, and no other what it kept."""
        self.tell(self.clients, ClientGroup.forget_kept)
        self.tell(self._involved(who), ClientGroup.keep_measured)

    def _total(self, phase, answers):
        """Add up answers."""
        total = self.server.new_total(phase)
        for answer in answers:
            total.add(answer)
        return total

    def _involved(self, who):
        """Return the Clients that have some of the clients of a mask."""
        return [self.clients[b] for b in np.unique(self._block_of_client[who])]

    def _exchange(self, clients, step):
        """Let devices send something to the others of their groups, without the server."""
        server = self.server
        messages = list(self.each(clients, ClientGroup.exchange, server.round, step))
        codes, dtype = [one.block.clients for one in clients], server.federation.wire_dtype
        means = deliver(messages, codes, server.n_clients, server.ledger, dtype)
        for one, received in zip(clients, means, strict=True):
            if received is not None:
                one.end_exchange(step, received)

    def _show_adversary(self, attack, busy, received, participation):
        """Show an adversary that forges uploads what its clients have received and computed."""
        server = self.server
        if received is not None and (participation.receives & attack.controlled).any():
            attack.message = received
        ours = [one for one in busy if one.forge is not None]
        found = self.each(ours, ClientGroup.honest, server.round)
        honest = [updates for one in found for updates in one if len(updates.clients)]
        if not honest:
            return
        codes = np.concatenate([updates.clients for updates in honest])
        message = (server.announcement() | attack.message).of(codes)
        attack.look(
            View(
                method=self.method,
                round=server.round,
                message=message,
                n_senders=int(participation.active.sum()),
                data=attack.own_data,
                updates=honest,
                memory=attack.memory,
            )
        )

    def attributes_now(self) -> Attributes:
        """Fitted attributes as if the rounds ended here; changes nothing."""
        attributes = self._attributes(self.server.current_message(), kept=False)
        return attributes | {"history_": list(self.server.history)}

    def end(self) -> Attributes:
        """Send all clients the final model; returns fitted attributes and reports."""
        server, message = self.server, self.final_message()
        server.ledger.close()
        attributes = self._attributes(message, kept=True)
        if server.plan.early_stopping:
            attributes["best_round_"] = server.stopping.best_round
        if self.attack is not None:
            attributes["compromised_clients_"] = self.data.client_ids[self.attack.controlled]
        channel = server.uplink.masks or server.uplink.channel
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
            fitted = partial(ClientGroup.fitted, kept=kept)
            parts = self.parallel(fitted, clients, received, self.server.round)
            return _blocks.by_user([one.block.users for one in clients], list(parts))

        return fitted_attributes(self.method, self.server, message, users)

    def settle(self, estimator: FederatedRecommender) -> None:
        """Take the parameters that may change between the rounds of one run."""
        server, now = self.server, estimator._plan()
        given = {"n_rounds": now.rounds(now.units(self.data)), "tol": now.tol}
        server.plan = replace(server.plan, **given, patience=now.patience)
        server.stopping.tol = now.tol
        server.stopping.be_patient(now.patience)

    def fork(self) -> Self:
        """Return a copy in which the fit may end; this one can go on."""
        ended = copy.copy(self)
        ended.server, ended.clients = self.server.fork(), [copy.copy(one) for one in self.clients]
        return ended


def fitted_attributes(
    method: FederatedRecommender, server: Server, message: Message, users: Callable[..., dict]
) -> dict:
    """Return the fitted attributes of the model in a message.

    `users` returns those of the users, or of where they are, from the message as clients read it
    and the server's attributes.
    """
    received = server.algorithm.decode(message, server.key.at(server.round))
    # Copies, so that writing into a fitted array does not change a running fit.
    ours = copy.deepcopy(server.algorithm.server_attributes(received))
    ours["_final_message"] = copy.deepcopy(message)
    ours |= server.algorithm.state_attributes(server.state)
    if isinstance(method, ItemContent) and "_content" in ours:
        ours["_feature_columns"] = columns_of(method.item_features)
    return ours | users(received, ours)


def timed(clients: ClientGroup, round: int) -> Trained:
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

    def tiles(self) -> Iterator[ClientUpdates]:
        """Yield the accepted single updates, tile by tile."""
        for one in self.held:
            yield from one.tiles()


def watch(
    estimator: FederatedRecommender, data: Interactions, n_rounds: int
) -> Iterator[tuple[Server, list[ClientGroup], Seen]]:
    """Yield, for each round, the Server, the list of Clients, and what a curious server sees."""
    refusals.check("measurement of leaks", estimator._plan())
    run = Run.new(estimator, data, is_watched=True)
    with (
        get_threadpool_controller().limit(limits=1, user_api="blas"),
        Threads(None) as run.parallel,
    ):
        run.set_up()
        for _ in range(n_rounds):
            seen = run.round()
            # Nothing ends these rounds early.
            assert seen is not None
            yield run.server, run.clients, seen


def _resumed(estimator, data):
    run = getattr(estimator, "_run", None) if estimator.warm_start else None
    if run is not None:
        plan = estimator._plan()
        n_rounds = plan.rounds(plan.units(run.server))
        parameters = both_sides.parameters_of_a_run(estimator)
        check_resumable(run, data, parameters, "n_rounds", n_rounds, run.server.round)
    return run


def _warn_of_lost_shares(server, report):
    mechanism = server.federation.central_dp
    if mechanism is None or mechanism.noise == "server":
        return
    limit, kept = mechanism.epsilon, "CentralDP(epsilon={:g})"
    if limit is None:
        limit, kept = server.releases.planned(report.server_sees).epsilon, "the planned {:.4g}"
    if report.epsilon > limit * (1 + 1e-6):
        warn(
            f"This fit has spent epsilon {report.epsilon:.4g}, more than {kept.format(limit)}, "
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
