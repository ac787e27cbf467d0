"""What every federated method shares: the hooks, and the one round loop."""

from __future__ import annotations

import copy
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
from fedrecsk.federated._early_stopping import EarlyStopping, hold_out
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

    def _init_server(self, catalogue, enrolment, key):
        """Server: its first state, from the catalogue and the summed enrolment."""
        raise NotImplementedError

    def _announce(self, server):
        """Server: what it tells every client once, in reply to enrolment. A Message; pure.

        Its fields are part of the message that `_init_clients` gets.
        """
        return Message()

    def _model(self, server):
        """Server: the model as clients receive it. A Message; pure."""
        raise NotImplementedError

    def _broadcast(self, server, key):
        """Server: what this round sends down. A Message, or None; pure."""
        return self._model(server)

    def _init_clients(self, block, message, key):
        """Clients: their private state, from the first broadcast and the announcement."""
        raise NotImplementedError

    def _client_update(self, block, state, message, key):
        """Clients: one local update. Returns the state and a Message or None.

        The Message holds sums over the clients in ``block.delivers``; clients outside
        ``block.active`` must be left as they are. ``state["training_loss"]``, if set to a sum
        of losses and a sum of weights, is read by the simulator alone, for `loss_curve_`.
        """
        raise NotImplementedError

    def _aggregate(self, server, message, upload, key):
        """Server: its step on the round's Upload (None if none came). Returns its state."""
        raise NotImplementedError

    def _personalize(self, block, state, message, key):
        """Clients: their step on the final model; pure.

        `state` is None for newcomers, whose message has the announcement's fields too.
        """
        return self._init_clients(block, message, key) if state is None else state

    def _attributes(self, server, states):
        """Fitted attributes as a dict; pure. Names of per-user arrays begin with ``user_``."""
        raise NotImplementedError

    # ------------------------------------------------------------------------ the machinery

    def _n_tasks(self):
        return self.n_rounds

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
        federation = self._world()
        clients = clone(self)
        run = self._resumed(data) or Run.new(self.random_state, data, federation)
        training, held_out = data, None
        if self.early_stopping:
            training, held_out = hold_out(data, self.validation_fraction, run.key)
        blocks = self._cut(training, federation, run.key)
        self._check_world(federation, training, blocks)
        run.keep_blocks(blocks)
        with (
            _get_threadpool_controller().limit(limits=1, user_api="blas"),
            Parallel(n_jobs=self.n_jobs, require="sharedmem") as parallel,
        ):
            if run.server is None:
                catalogue = Catalogue(
                    data.n_items, data.n_clients, (data.values.min(), data.values.max())
                )
                run.server = self._enrolled(clients, run, catalogue, parallel)
            while run.n_rounds < self.n_rounds and not run.stopping.stopped:
                close = report.step("round")
                self._round(clients, run, parallel)
                if held_out is not None:
                    self._validate(clients, run, held_out, report, parallel)
                if close(lambda: self._finished(clients, run, parallel)):
                    break
            attributes = run.stopping.best or self._finished(clients, run, parallel)
        self._run = run if self.warm_start else None
        return attributes | self._account(run)

    def _round(self, clients, run, parallel):
        """One round of the protocol."""
        key = run.key.at(run.n_rounds)
        turn = participation.draw(run.n_clients, self.client_fraction, run.federation, key)
        run.ledger.open("round", run.n_rounds)
        run.ledger.count(participants=turn.active.sum(), dropped=turn.dropped.sum())

        announced = self._announce(run.server)
        message = self._broadcast(run.server, key)
        run.transport.down(run.blocks, message, turn.hears)
        results = parallel(
            delayed(_update)(clients, block, state, heard, message, announced, turn, key)
            for block, state, heard in zip(run.blocks, run.states, run.heard, strict=True)
        )
        states, uploads, run.heard = map(list, zip(*results, strict=True))
        run.states = _blocks.ClientStates(run.blocks, states)
        upload = run.transport.up(run.blocks, uploads, turn.active, turn.delivers, key)
        run.server = self._aggregate(run.server, message, upload, key)
        run.record(turn)

    def _enrolled(self, clients, run, catalogue, parallel):
        everyone = np.ones(run.n_clients, dtype=bool)
        run.ledger.open("enrolment")
        parts = parallel(delayed(clients._enrol)(block) for block in run.blocks)
        enrolment = run.transport.up(run.blocks, parts, everyone, everyone, run.key)
        server = self._init_server(catalogue, enrolment, run.key)
        run.transport.down(run.blocks, self._announce(server), everyone)
        return server

    def _validate(self, clients, run, held_out, report, parallel):
        attributes = self._finished(clients, run, parallel)
        model = copy.copy(self)
        vars(model).update(report.static | attributes)
        run.history[-1]["validation_loss"] = run.stopping.update(
            model, attributes, held_out, run, tol=self.tol, patience=self.n_iter_no_change
        )

    def _finished(self, clients, run, parallel):
        """Fitted attributes as if the rounds ended here, leaving the run as it is."""
        message = Message(**self._announce(run.server), **self._model(run.server))
        states = parallel(
            delayed(clients._personalize)(block, state, message, run.key.at(run.n_rounds))
            for block, state in zip(run.blocks, run.states, strict=True)
        )
        return self._attributes(run.server, _blocks.ClientStates(run.blocks, states)) | {
            "_server": run.server
        }

    def _account(self, run):
        transport = copy.deepcopy(run.transport)
        transport.ledger.open("final", run.n_rounds)
        everyone = np.ones(run.n_clients, dtype=bool)
        transport.down(run.blocks, self._model(run.server), everyone)
        best = {"best_round_": run.stopping.best_round} if self.early_stopping else {}
        return best | {
            "n_rounds_": run.n_rounds,
            "history_": copy.deepcopy(run.history),
            "loss_curve_": [row["loss"] for row in run.history],
            "communication_": transport.ledger,
            "privacy_": transport.privacy_report(),
        }

    def _cut(self, data, federation, key):
        if self._shares_state or federation.dropout_mode == "stale":
            groups = participation.histories(data.n_clients, self.client_fraction, federation, key)
            return _blocks.cut(data, groups)
        return _blocks.cut(data)

    def _resumed(self, data):
        run = getattr(self, "_run", None) if self.warm_start else None
        # Blocks update in place: a fit that fails half-way must not be continued.
        self._run = None
        if run is None:
            return None
        if run.fingerprint != data.fingerprint():
            raise ValueError(
                "warm_start continues the rounds of the last fit, but X, y, clients or "
                "sample_weight have changed since; fit with warm_start=False, or use fold_in to "
                "add users."
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


@dataclass(eq=False)
class Run:
    """A fit in progress: all that warm_start needs to go on exactly where it ended."""

    key: Key
    federation: Federation
    transport: Transport
    n_clients: int
    fingerprint: bytes
    server: dict | None = None
    blocks: list = field(default_factory=list)
    states: list = field(default_factory=list)
    heard: list = field(default_factory=list)
    history: list = field(default_factory=list)
    stopping: EarlyStopping = field(default_factory=EarlyStopping)

    @classmethod
    def new(cls, random_state, data, federation):
        """Before enrolment."""
        seed = check_random_state(random_state).randint(2**31 - 1)
        transport = Transport(clone(federation), data.client_ids)
        return cls(
            Key(int(seed)), transport.federation, transport, data.n_clients, data.fingerprint()
        )

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
            self.states = [None] * len(blocks)
            self.heard = [None] * len(blocks)

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


def _update(clients, block, state, heard, message, announced, turn, key):
    """One block's part in a round, on the clients' side."""
    block.active, block.delivers = turn.active[block.clients], turn.delivers[block.clients]
    if not block.active.any():
        return state, None, heard
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
