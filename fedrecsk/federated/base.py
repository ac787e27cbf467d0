"""What every federated method shares: the hooks, and the one round loop."""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.parallel import _get_threadpool_controller

from fedrecsk.base import Recommender
from fedrecsk.federated._early_stopping import EarlyStopping, hold_out, losses_by_client
from fedrecsk.simulation import blocks as _blocks
from fedrecsk.simulation import participation
from fedrecsk.simulation.federation import Federation
from fedrecsk.simulation.keys import Key
from fedrecsk.simulation.messages import Message
from fedrecsk.simulation.transport import Transport


class Catalogue(NamedTuple):
    """What the server knows before anybody has sent anything.

    Attributes
    ----------
    n_items : int
        Items on offer.
    n_clients : int
        Clients that have signed up.
    rating_range : tuple of float
        The ends of the form on which users rate. The simulator reads them off y.
    """

    n_items: int
    n_clients: int
    rating_range: tuple


class FederatedRecommender(Recommender):
    """Base class of the federated methods.

    A method gives the hooks below, which read as its paper's algorithm; the loop in `_fit`
    calls them. `server` is the server's state and `state` the private one of a block of
    clients, both dicts of arrays. Only a Message crosses between the two.
    """

    _parameter_constraints: dict = {
        "n_rounds": [Interval(Integral, 1, None, closed="left")],
        "client_fraction": [Interval(Real, 0, 1, closed="right")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "federation": [Federation, None],
    }

    # Whether the clients of a block share memory in a way that is exact only if they have
    # all heard the same broadcasts and updated in the same rounds.
    _shares_state = False

    # ------------------------------------------------------------------------- the method

    def _check_world(self, federation, data, blocks):
        """Raise, before any work, where the method and its world do not go together."""

    def _enrol(self, block):
        """Clients: what they tell before the first round. A Message, or None."""

    @abstractmethod
    def _init_server(self, catalogue, enrolment, key):
        """Server: its first state, from the catalogue and the summed enrolment."""

    def _announce(self, server):
        """Server: what it tells every client once, in reply to enrolment. A Message; pure.

        Its fields are part of the message that `_init_clients` gets.
        """
        return Message()

    @abstractmethod
    def _model(self, server):
        """Server: the model as clients receive it. A Message; pure."""

    def _news(self, server):
        """Server: what a client needs that knows the last model already. A Message; pure.

        None: the whole model.
        """
        return None

    def _broadcast(self, server, key):
        """Server: what this round sends down. A Message, or None; pure."""
        return self._model(server)

    def _on_receipt(self, message):
        """Clients: a broadcast with what all of them would compute of it alike. Pure.

        It is computed once for all, so that simulating many clients costs no more.
        """
        return message

    @abstractmethod
    def _init_clients(self, block, message, key):
        """Clients: their private state, from the first broadcast and the announcement."""

    @abstractmethod
    def _client_update(self, block, state, message, key):
        """Clients: one local update. Returns the state and a Message or None.

        The Message holds sums over the clients in ``block.delivers``; clients outside
        ``block.active`` must be left as they are. ``state["training_loss"]``, if set to a sum
        of losses and a sum of weights, is read by the simulator alone, for `loss_curve_`.
        """

    @abstractmethod
    def _aggregate(self, server, message, upload, key):
        """Server: its step on the round's Upload (None if none came). Returns its state."""

    def _personalize(self, block, state, message, key):
        """Clients: their step on the final model; pure.

        `state` is None for newcomers, whose message has the announcement's fields too.
        """
        return self._init_clients(block, message, key) if state is None else state

    @abstractmethod
    def _attributes(self, server, states):
        """Fitted attributes as a dict; pure. Names of per-user arrays begin with ``user_``."""

    def _validation_losses(self, held_out):
        """Clients: loss and weight of each held-out row under the fitted model, for stopping.

        The loss is multiplied by the weight already; the default is the squared error.
        """
        predicted = self._score_pairs(held_out.users, held_out.items)
        return held_out.weights * (held_out.values - predicted) ** 2, held_out.weights

    # ------------------------------------------------------------------------ the machinery

    @property
    def _sees_ratings(self):
        """Whether it trains on how much users like an item, not on whether."""
        return self.__sklearn_tags__().target_tags.required

    def _n_tasks(self):
        return self.n_rounds

    def set_params(self, **params):
        """Set parameters; ``federation__...`` of a federation that is None makes one.

        Returns
        -------
        self : object
        """
        nested = any(name.startswith("federation__") for name in params)
        if nested and self.federation is None and params.get("federation") is None:
            params["federation"] = Federation()
        return super().set_params(**params)

    def _check_before_fit(self):
        federation = self._world()
        federation._validate_params()
        if self.early_stopping and federation.local_dp is not None:
            raise ValueError(
                "early_stopping uploads validation errors, which local_dp does not protect; use "
                "early_stopping=False under local differential privacy."
            )

    def _world(self):
        return Federation() if self.federation is None else self.federation

    def _fit(self, data, report):
        run = self._resumed(data) or Run.new(self, data, self._world())
        # Blocks update in place: a fit that fails half-way must not be continued.
        self._run = None
        clients = clone(self).set_params(random_state=None).set_callbacks()
        training, held_out = run.trained_on(data), None
        if self.early_stopping:
            training, held_out = hold_out(training, self.validation_fraction, run.key)
        blocks = self._cut(training, run.federation, run.key)
        if run.federation.aggregator is not None:
            cohort = participation.cohort_size(data.n_clients, self.client_fraction)
            run.federation.aggregator._check_clients(training, cohort)
        self._check_world(run.federation, training, blocks)
        run.keep_blocks(blocks)
        with (
            _get_threadpool_controller().limit(limits=1, user_api="blas"),
            Parallel(self.n_jobs, require="sharedmem", return_as="generator") as parallel,
        ):
            world = World(clients, run, held_out, report, parallel)
            if run.server is None:
                catalogue = Catalogue(
                    data.n_items, data.n_clients, (data.values.min(), data.values.max())
                )
                run.server = self._enrolled(world, catalogue)
            while run.n_rounds < self.n_rounds and not run.stopping.stopped:
                close = report.step("round")
                self._round(world)
                if close(lambda: self._finished(world)):
                    break
            attributes = self._ended(world)
        self._run = run if self.warm_start else None
        return attributes

    def _round(self, world):
        """One round of the protocol."""
        run = world.run
        key = run.key.at(run.n_rounds)
        turn = participation.draw(run.n_clients, self.client_fraction, run.federation, key)
        run.ledger.open("round", run.n_rounds)

        announced = self._announce(run.server)
        message = self._broadcast(run.server, key)
        message = run.transport.down(run.blocks, message, turn.hears, self._news(run.server), key)
        message = self._on_receipt(message) if message else message
        if message and run.n_rounds and self.early_stopping:
            self._validate(world, run.stopping, turn.hears, turn.delivers)
            if run.stopping.stopped:
                run.ledger.entries[-1]["phase"] = "stop"
                return

        run.ledger.count(participants=turn.active.sum(), dropped=turn.dropped.sum())
        busy = np.unique(run.block_of_client[turn.active]).tolist()
        arguments = (message, announced, turn, key)
        results = world.parallel(
            delayed(_update)(world.clients, *run.part(b), *arguments) for b in busy
        )
        uploads = run.keep_states(busy, results)
        blocks = [run.blocks[b] for b in busy]
        upload = run.transport.up(blocks, uploads, turn.active, turn.delivers, key, learned=True)
        run.server = self._aggregate(run.server, message, upload, key)
        run.record(turn)
        if self.early_stopping:
            run.history[-1]["validation_loss"] = float("nan")

    def _validate(self, world, stopping, hears, delivers):
        """Clients measure the model that they have just heard on their held-out rows."""
        run, held_out = world.run, world.held_out
        attributes = self._finished(world)
        model = copy.copy(self)
        vars(model).update(world.report.static | attributes)
        losses = losses_by_client(held_out, *model._validation_losses(held_out))
        run.history[-1]["validation_loss"] = stopping.update(
            attributes,
            losses,
            run,
            hears,
            delivers,
            tol=self.tol,
            patience=self.n_iter_no_change,
        )

    def _enrolled(self, world, catalogue):
        run = world.run
        everyone = np.ones(run.n_clients, dtype=bool)
        run.ledger.open("enrolment")
        parts = world.parallel(delayed(world.clients._enrol)(block) for block in run.blocks)
        enrolment = run.transport.up(run.blocks, parts, everyone, everyone, run.key)
        server = self._init_server(catalogue, enrolment, run.key)
        run.transport.announce(run.blocks, self._announce(server))
        return server

    def _finished(self, world):
        """Fitted attributes as if the rounds ended here, leaving the run as it is."""
        run = world.run
        message = Message(**self._announce(run.server), **self._model(run.server))
        states = world.parallel(
            delayed(world.clients._personalize)(block, state, message, run.key.at(run.n_rounds))
            for block, state in zip(run.blocks, run.states, strict=True)
        )
        attributes = self._attributes(run.server, _blocks.ClientStates(run.blocks, states))
        # Copies, so that whoever writes into a fitted array changes no running fit.
        return copy.deepcopy(attributes | {"_server": run.server})

    def _ended(self, world):
        """Everybody gets the final model: fitted attributes and the accounts."""
        run = world.run
        ended = copy.copy(run)
        shared = {id(run.intrusion): run.intrusion}
        ended.transport = copy.deepcopy(run.transport, shared)
        ended.history = copy.deepcopy(run.history)
        stopping = copy.copy(run.stopping)
        ended.ledger.open("final", run.n_rounds)
        everyone = np.ones(run.n_clients, dtype=bool)
        ended.transport.down(run.blocks, self._model(run.server), everyone, self._news(run.server))
        attributes = None
        if self.early_stopping:
            if not stopping.stopped:
                self._validate(world._replace(run=ended), stopping, everyone, everyone)
            attributes = copy.deepcopy(stopping.best) | {"best_round_": stopping.best_round}
        attributes = attributes or self._finished(world)
        if run.intrusion is not None:
            controlled = run.transport.ledger.client_ids[run.intrusion.controlled]
            attributes["compromised_clients_"] = controlled
        if run.transport.channel is not None:
            attributes["encryption_"] = run.transport.channel.report()
        return attributes | {
            "n_rounds_": run.n_rounds,
            "history_": ended.history,
            "loss_curve_": [row["loss"] for row in ended.history],
            "communication_": ended.ledger,
            "privacy_": ended.transport.privacy_report(),
        }

    def _cut(self, data, federation, key):
        if federation.one_by_one:
            return _blocks.cut(data, np.arange(data.n_clients))
        if self._shares_state or federation.dropout_mode == "stale":
            groups = participation.histories(data.n_clients, self.client_fraction, federation, key)
            return _blocks.cut(data, groups)
        return _blocks.cut(data)

    def _resumed(self, data):
        run = getattr(self, "_run", None) if self.warm_start else None
        if run is None:
            return None
        if run.fingerprint != data.fingerprint():
            raise ValueError(
                "warm_start continues the rounds of the last fit, but X, y, clients or "
                "sample_weight have changed since; fit with warm_start=False, or use fold_in to "
                "add users."
            )
        before, now = run.parameters, _parameters_of_a_run(self)
        changed = [n for n in before | now if not np.array_equal(before.get(n), now.get(n))]
        if changed:
            name = min(changed)
            raise ValueError(
                f"warm_start continues the rounds of the last fit, but {name} has changed from "
                f"{before.get(name)!r} to {now.get(name)!r} since; set it back or fit with "
                "warm_start=False."
            )
        if self.n_rounds < run.n_rounds:
            raise ValueError(
                f"n_rounds={self.n_rounds} must be larger or equal to the {run.n_rounds} rounds "
                "already run when warm_start=True."
            )
        return run

    def _new_user_attributes(self, data):
        clients = clone(self)
        blocks = _blocks.cut(data)
        message = Message(**self._announce(self._server), **self._model(self._server))
        with _get_threadpool_controller().limit(limits=1, user_api="blas"):
            states = [clients._personalize(block, None, message, Key(0)) for block in blocks]
        attributes = self._attributes(self._server, _blocks.ClientStates(blocks, states))
        return {name: rows for name, rows in attributes.items() if name.startswith("user_")}


class World(NamedTuple):
    """What the round loop works with.

    Attributes
    ----------
    clients : FederatedRecommender
        The bare copy of the estimator that clients run on: hyperparameters only.
    run : Run
    held_out : Interactions or None
    report : FitReport
    parallel : joblib.Parallel
    """

    clients: FederatedRecommender
    run: Run
    held_out: object
    report: object
    parallel: Parallel


@dataclass(eq=False)
class Run:
    """A fit in progress: all that warm_start needs to go on exactly where it ended."""

    key: Key
    federation: Federation
    transport: Transport
    n_clients: int
    fingerprint: bytes
    parameters: dict
    server: dict | None = None
    blocks: list = field(default_factory=list)
    states: list = field(default_factory=list)
    heard: list = field(default_factory=list)
    block_of_client: np.ndarray | None = None
    history: list = field(default_factory=list)
    stopping: EarlyStopping = field(default_factory=EarlyStopping)

    @classmethod
    def new(cls, estimator, data, federation):
        """Before enrolment."""
        parameters = _parameters_of_a_run(estimator)
        seed = check_random_state(estimator.random_state).randint(2**31 - 1)
        key, federation = Key(int(seed)), clone(federation)
        intrusion = None
        if federation.adversary is not None:
            rates = estimator._sees_ratings
            intrusion = federation.adversary.enter(data, rates, key)
        transport = Transport(federation, data.client_ids, intrusion)
        return cls(
            key,
            transport.federation,
            transport,
            data.n_clients,
            data.fingerprint(),
            parameters,
        )

    @property
    def intrusion(self):
        return self.transport.intrusion

    def trained_on(self, data):
        """What clients train on, some of them perhaps not on what their users did."""
        return data if self.intrusion is None else self.intrusion.data

    @property
    def ledger(self):
        return self.transport.ledger

    @property
    def n_rounds(self):
        """Rounds run so far."""
        return len(self.history)

    def keep_blocks(self, blocks):
        """Take up the blocks; a resumed run goes on with its own."""
        if not self.blocks:
            self.blocks = blocks
            self.states = _blocks.ClientStates(blocks, [None] * len(blocks))
            self.heard = [None] * len(blocks)
            self.block_of_client = np.empty(self.n_clients, dtype=np.int64)
            for b, block in enumerate(blocks):
                self.block_of_client[block.clients] = b

    def part(self, b):
        """A block, its state, and the last broadcast that it heard."""
        return self.blocks[b], self.states[b], self.heard[b]

    def keep_states(self, busy, results):
        """Take the busy blocks' new states as they come, and pass on their uploads."""
        for b, (state, upload, heard) in zip(busy, results, strict=True):
            self.states[b], self.heard[b] = state, heard
            yield upload

    def record(self, turn):
        """Add the round that just ended to the history."""
        losses = [
            state["training_loss"]
            for block, state in zip(self.blocks, self.states, strict=True)
            if state is not None and "training_loss" in state and turn.active[block.clients].any()
        ]
        total, weight = np.sum(losses, axis=0) if losses else (np.nan, 1.0)
        entry = self.ledger.entries[-1]
        self.history.append(
            {
                "round": entry["round"],
                "loss": float(total / weight) if weight else float("nan"),
                "participants": entry["participants"],
                "bytes_down": entry["bytes_down"],
                "bytes_up": entry["bytes_up"],
            }
        )


def _parameters_of_a_run(estimator):
    """The parameters that must not change between the rounds of one run."""
    free = {"n_rounds", "n_jobs", "warm_start", "n_iter_no_change", "tol", "federation"}
    parameters = estimator.get_params() | {
        f"federation__{name}": value for name, value in estimator._world().get_params().items()
    }
    return {
        name: type(value).__name__ if hasattr(value, "get_params") else value
        for name, value in parameters.items()
        if name not in free
    }


def _update(clients, block, state, heard, message, announced, turn, key):
    """One block's part in a round, on the clients' side."""
    block.active, block.delivers = turn.active[block.clients], turn.delivers[block.clients]
    if turn.hears[block.clients].any():
        heard = message or heard
    else:
        message = heard
    if state is None:
        if heard is None:
            return None, None, None
        state = clients._init_clients(block, Message(**announced, **heard), key)
    state, upload = clients._client_update(block, state, message, key)
    return state, upload, heard
