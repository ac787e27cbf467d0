"""The clients' side of the protocol: their data, their private state and their uploads."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedrecsk.simulation import blocks as _blocks
from fedrecsk.simulation.contributions import Contribution, Counts, measured
from fedrecsk.simulation.keys import setup_round
from fedrecsk.simulation.messages import Message, Summed, Uploads
from fedrecsk.simulation.participation import Participation, Turn
from fedrecsk.simulation.protection import add_noise, clip, protect
from fedrecsk.simulation.release import TERMS
from fedrecsk.simulation.stopping import HeldOut
from fedrecsk.uploads import Batch, Form, Ragged

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    from numpy.typing import NDArray

    from fedrecsk.simulation.blocks import Block
    from fedrecsk.simulation.exchange import GroupMessages
    from fedrecsk.simulation.federation import Federation
    from fedrecsk.simulation.keys import Key, Keys


VALIDATION = {"validation_loss": Form((2,), learned=False)}


class ClientFailed(ValueError):
    """A client that cannot go on, whatever the server does.

    Parameters
    ----------
    client : int
        Its number in the block.
    what : str
        What went wrong, and the cure.
    """

    def __init__(self, client: int, what: str) -> None:
        super().__init__(what)
        self.client = client


class Registration(NamedTuple):
    """What the server must know about clients before anything else.

    Attributes
    ----------
    client_ids : ndarray of shape (n_clients,)
    n_users : ndarray of shape (n_clients,)
    n_held : ndarray of shape (n_clients,)
        Number of items that each client holds. The server uses it only if clients also say which
        items these are. 0 under local differential privacy.
    """

    client_ids: np.ndarray
    n_users: np.ndarray
    n_held: np.ndarray


class Group:
    """Computation that clients with equal histories share, done once for all of them.

    Parameters
    ----------
    method : FederatedRecommender
    """

    def __init__(self, method: Any) -> None:
        self.method = method
        self.common = None
        self._round = -1

    def follow(self, message: Message | None, key: Key) -> None:
        """Take the group's step of the round, unless it has been taken."""
        if key.round != self._round:
            self.common: Any = self.method._follow(self.common, message, key)
            self._round = key.round
        return self.common


class Clients:
    """One or more clients with their private state.

    The simulator has one object for many clients, a deployed device has one for itself. Both call
    the same methods in this order: `setup` for each set-up exchange; `announce`; in each round
    `receive`, `validate` (under early stopping) and `update`; finally `fitted`.

    Parameters
    ----------
    method : FederatedRecommender
        A copy of the estimator with hyperparameters only.
    block : Block
        The clients' data.
    federation : Federation
    keys : Keys
        The keys before the first round.
    group : Group or None
        Group shared with other clients of equal history. None: a new one.
    held_out : Block or None
        Held-out rows of the same clients, for validation.
    forge : callable or None
        Forges the uploads, if an adversary controls these clients (all of them).
    client_ids : ndarray of shape (n_clients,) or None
        Ids of the clients. None: their codes.
    separate : bool
        Whether to return single uploads, each with its client's own noise, even if the federation
        needs sums only. Deployed clients must do so; the simulator adds up what it can.
    """

    def __init__(
        self,
        method: Any,
        block: Block,
        federation: Federation,
        keys: Keys,
        *,
        group: Group | None = None,
        held_out: Block | None = None,
        forge: Callable[..., Any] | None = None,
        client_ids: np.ndarray | None = None,
        separate: bool = False,
    ) -> None:
        self.method = method
        self.block: Block = block
        self.federation = federation
        self.keys = keys
        self.group: Group = Group(method) if group is None else group
        self.held_out = held_out
        self.forge = forge
        self.separate = separate
        self.client_ids: np.ndarray = block.clients if client_ids is None else client_ids
        self.state: Any = None
        self._announcement = Message()
        # Messages that clients received last, by round, and the round of each client's last one.
        self._messages = {}
        self._last = np.full(block.n_clients, -1)
        # Clients that have ever updated.
        self._has_updated = np.zeros(block.n_clients, dtype=bool)
        self._part = None
        # The clients that took part in the last exchange among devices.
        self._met = None
        self._reply = None
        # The local updates of a round, between `honest` and `update`.
        self._training = None
        # Users' attributes under the model evaluated last, and under the best model.
        self._measured = None
        self._kept = None

    # --------------------------------------------------------------- before the rounds

    def register(self) -> Registration:
        """Return the clients' Registration."""
        n_held = self.block.row_counts
        if self.federation.local_dp is not None or self.federation.central_dp is not None:
            # Under differential privacy it is not sent, because it depends on the data.
            n_held = np.zeros_like(n_held)
        return Registration(self.client_ids, np.diff(self.block.client_indptr), n_held)

    def place(self, codes: NDArray[np.int64], first_users: NDArray[np.int64]) -> Self:
        """Store the codes that the server has assigned to these clients and their users."""
        n_users = np.diff(self.block.client_indptr)
        offsets = np.arange(self.block.n_users) - np.repeat(self.block.client_indptr[:-1], n_users)
        users = np.repeat(first_users, n_users) + offsets
        self.block = replace(self.block, clients=np.asarray(codes), users=users)
        return self

    def setup(self, step: int, message: Message | None) -> Contribution | None:
        """Answer a set-up message: a Contribution, or None."""
        everyone = Participation.full(self.block.n_clients)
        turn = Turn(everyone.active, everyone.delivers, False)
        keys = self.keys.at(setup_round(step))
        forms = self.method._setup_forms(self.block.n_items, step)
        central, local = self.federation.central_dp, self.federation.local_dp
        if central is not None or (local is not None and local.protects_uploads):
            return self._clipped_setup(step, message, forms, turn)
        uploads = self.method._setup_update(self.block, message, step, keys)
        if uploads is None or not self.separate or self.block.n_clients > 1:
            return self._summed(("setup", step), uploads, forms, turn)
        batch = self._batch(self._as_single(uploads, forms), forms, turn)
        add_noise(batch, local, keys.private, each=True)
        return Contribution.of_batch(("setup", step), batch, hold=True)

    def _clipped_setup(self, step, message, forms, turn):
        """Answers to a set-up message, if each client's own must be clipped."""
        keys, method = self.keys.at(setup_round(step)), self.method
        uploads = method._setup_update(self.block, message, step, keys)
        if uploads is None:
            return None
        if not all(isinstance(field, Ragged) for field in uploads.values()):
            numbers = np.arange(self.block.n_clients)
            parts = [self.block.part(numbers == number) for number in numbers]
            uploads = _stacked(
                [method._setup_update(part, message, step, keys) for part in parts], forms
            )
        self._check_names(uploads, forms)
        batch = self._batch(uploads, forms, turn)
        if self.federation.central_dp is not None:
            return self._clipped(("setup", step), batch, message, keys.private)
        add_noise(batch, self.federation.local_dp, keys.private, each=self._draws_each)
        return Contribution.of_batch(("setup", step), batch, hold=self.separate)

    def announce(self, message: Message) -> None:
        """Store the server's announcement after the set-up."""
        self._announcement = message

    # --------------------------------------------------------------------- each round

    def receive(
        self, round: int, message: Message | None, participation: Participation | None = None
    ) -> None:
        """Store the message of a round, None if there is none.

        Parameters
        ----------
        round : int
        message : Message or None
            The message after `_on_receipt`.
        participation : Participation or None
            Participation of all clients of the fit, in the order of their codes. None: all clients
            take part and no upload is lost.
        """
        if self._part is not None and self._part[0] == round:
            return
        if self._part is not None and self._part[0] > round:
            raise ValueError(
                f"These clients are in round {self._part[0]} and cannot go back to round {round}; "
                "send them the message of the next round."
            )
        if participation is None:
            part = Participation.full(self.block.n_clients)
        else:
            part = participation.of(self.block.clients)
        self._part = round, part
        if message is not None:
            self._messages[round] = message.of(self.block.clients)
            self._last[part.receives] = round

    def follow(self, round: int) -> None:
        """Take the step that clients of equal history share, once for all of them.

        `update` does this if needed. The simulator does it before, so that threads only read.
        """
        ready = self._part_in(round).active & (self._last >= 0)
        if self.method._shares_state and ready.any():
            message = self._messages[self._last[ready][0]]
            self.group.follow(message, self.keys.at(round))

    def exchange(self, round: int, step: int) -> GroupMessages | None:
        """Return what these clients send directly to others in a round; None if nothing.

        Parameters
        ----------
        round : int
        step : int
            Number of the exchange within the round.
        """
        part, key = self._part_in(round), self.keys.at(round)
        turn = Turn(part.active & (self._last == round), part.delivers, self._hands_over_single)
        if not turn.active.any():
            return None
        message = self._messages[round]
        self._begin(message, key)
        self.state, messages = self.method._exchange(
            self.block, self.state, message, turn, step, key
        )
        self._met = turn
        return messages

    def end_exchange(self, step: int, means: NDArray[np.float64]) -> None:
        """Store the means over these clients' groups, after an `exchange` that sent something."""
        self.state = self.method._after_exchange(self.block, self.state, means, self._met, step)

    def update(self, round: int) -> tuple[list[Contribution], NDArray[np.float64]]:
        """Run one local update. Repeated calls for the same round return the same answer.

        Returns
        -------
        contributions : list of Contribution
            One for each broadcast that clients start from.
        loss : ndarray of shape (2,)
            Sums of the training losses and of their weights, which are never sent.
        """
        if self._reply is not None and self._reply[0] == round:
            return self._reply[1:]
        steps, total = self._trained(round)
        self._training = None
        key = self.keys.at(round)
        contributions = [self._contribution(round, one, key) for one in steps]
        self._reply = round, [one for one in contributions if one is not None], total
        return self._reply[1:]

    def honest(self, round: int) -> list[Batch]:
        """Train in this round, and return the uploads that an adversary will replace.

        `update` then goes on from here.
        """
        forms = self.method._upload_forms(self.block.n_items)
        steps, _ = self._trained(round)
        return [self._single(one, turn, forms) for one, turn, _ in steps if one is not None]

    def _trained(self, round):
        """The local updates of a round, taken once: uploads, Turn and message, and the loss."""
        if self._training is not None and self._training[0] == round:
            return self._training[1:]
        self.follow(round)
        part, key = self._part_in(round), self.keys.at(round)
        ready = part.active & (self._last >= 0)
        self._has_updated = self._has_updated | ready
        steps, total = [], np.zeros(2)
        for last in np.unique(self._last[ready]).tolist():
            turn = Turn(ready & (self._last == last), part.delivers, self._hands_over_single)
            message = self._messages[last]
            uploads, loss = self._step(message, turn, key)
            total += (0.0, 0.0) if loss is None else loss
            steps.append((uploads, turn, message))
        self._forget_messages()
        self._training = round, steps, total
        return self._training[1:]

    def forget_reply(self) -> None:
        """Delete the copy of the last answer, which cannot be repeated afterwards."""
        self._reply = None

    def _part_in(self, round):
        """These clients' Participation in a round, of which they must have got the message."""
        if self._part is None or self._part[0] != round:
            raise ValueError(
                f"These clients cannot update in round {round}, because they have received no "
                "message of it; call receive(round, message) first."
            )
        return self._part[1]

    def _begin(self, message, key):
        """Make the clients' private state before their first step."""
        if self.state is None:
            first = Message(**self._announcement, **message)
            self.state = self.method._init_clients(self.block, first, key)

    def _step(self, message, turn, key):
        self._begin(message, key)
        if self.method._shares_state:
            self.state["common"] = self.group.common
        try:
            self.state, uploads, loss = self.method._client_update(
                self.block, self.state, message, turn, key
            )
        except ClientFailed as error:
            client = self.client_ids[error.client]
            raise ValueError(f"Client {client!s} in round {key.round}: {error}") from error
        return uploads, loss

    def _forget_messages(self):
        """Delete messages that no client will start from in later rounds."""
        federation = self.federation
        if self.method._may_be_silent or (
            federation.dropout > 0 and federation.dropout_mode == "stale"
        ):
            used = set(np.unique(self._last).tolist())
            self._messages = {t: message for t, message in self._messages.items() if t in used}
        else:
            self._messages = {}

    # ------------------------------------------------------------- from update to upload

    @property
    def _separates(self):
        """Whether these clients' single uploads are needed."""
        return self.separate or self.federation.looks_at_uploads or self.forge is not None

    @property
    def _draws_each(self):
        """Whether each client must draw its own noise."""
        return self.separate or self.federation.draws_each or self.federation.holds_uploads

    @property
    def _holds(self):
        """Whether single uploads are handed over instead of their sum."""
        return self.separate or self.federation.holds_uploads

    @property
    def _hands_over_single(self):
        return self._separates and self.method._single_uploads

    def _contribution(self, round, taken, key):
        uploads, turn, message = taken
        if uploads is None:
            return None
        forms, step = self.method._upload_forms(self.block.n_items), ("round", round)
        if not self._separates:
            return self._summed(step, uploads, forms, _senders(uploads, turn))
        batch = self._single(uploads, turn, forms)
        protect(batch, self.federation, key.private, self.forge, each=self._draws_each)
        if self.federation.central_dp is not None:
            return self._clipped(step, batch, message, key.private)
        return Contribution.of_batch(step, batch, hold=self._holds)

    def _clipped(self, step, batch, message, key):
        """The Contribution of a batch under central privacy, by the terms of the message."""
        mechanism, (bound, variance) = self.federation.central_dp, message[TERMS].values
        assert mechanism is not None
        # Poisoned clients add no noise, and if only the sum matters, its noise is drawn at once.
        each = self._draws_each and self.forge is None
        n_unclipped = clip(batch, mechanism, key, float(bound), float(variance) if each else 0.0)
        if mechanism.quantile is not None and step[0] == "round":
            # Whether the upload was short enough is one bit, which takes a byte.
            batch.sizes.nbytes[:] += 1
            batch.sizes.coordinates[:] += 1
        one = Contribution.of_batch(step, batch, hold=self._holds)
        adds = self.forge is None and mechanism.noise == "clients"
        n_shares = batch.n_accepted if adds else 0
        excess = n_unclipped - batch.n_accepted / 2
        one.counts = Counts(n_shares, 0 if each else n_shares, excess)
        return one

    def _single(self, uploads, turn, forms):
        """A Batch of the uploads, client by client."""
        self._check_names(uploads, forms)
        if not turn.separate:
            uploads = self._as_single(uploads, forms)
        return self._batch(uploads, forms, _senders(uploads, turn))

    def _summed(self, step, uploads, forms, turn):
        """Check the sums that a method returns against their forms, and measure them."""
        if uploads is None:
            return None
        self._check_names(uploads, forms)
        wire_dtype = self.federation.wire_dtype
        sizes = measured(uploads, forms, self.block.row_counts, wire_dtype)
        sums = {}
        for name, form in forms.items():
            field = uploads[name]
            values = np.asarray(field.values if isinstance(field, Summed) else field)
            self._check_shape(name, values.shape, form)
            sums[name] = values.astype(form.sum_dtype, copy=False)
        return Contribution.of_sums(step, self.block.clients, turn, uploads.sound, sums, sizes)

    def _check_names(self, uploads, forms):
        if uploads.keys() != forms.keys():
            raise ValueError(
                f"{type(self.method).__name__} uploads the fields {sorted(uploads)}, but its "
                f"_upload_forms (or _setup_forms) declares {sorted(forms)}; make them agree."
            )

    def _check_shape(self, name, shape, form):
        if tuple(shape) != tuple(form.shape):
            raise ValueError(
                f"{type(self.method).__name__} uploads {name!r} with shape {tuple(shape)}, but its "
                f"form says {tuple(form.shape)}; make them agree."
            )

    def _as_single(self, uploads, forms):
        """Turn the sum over a one-client block into that client's upload."""
        singles = {}
        for name, form in forms.items():
            field = uploads[name]
            values = np.asarray(field.values if isinstance(field, Summed) else field)
            self._check_shape(name, values.shape, form)
            rows = np.arange(len(values))
            if form.rows == "held":
                rows = self.block.row_items
            elif form.rows == "chosen":
                rows = np.flatnonzero(values.reshape(len(values), -1).any(axis=1))
            singles[name] = Ragged(np.array([0, len(rows)]), rows, values[rows])
        return type(uploads)(sound=uploads.sound, sends=uploads.sends, **singles)

    def _batch(self, uploads, forms, turn):
        """Single uploads as the method returns them."""
        wire_dtype = self.federation.wire_dtype
        fields = {name: replace(uploads[name], form=form) for name, form in forms.items()}
        for name, form in forms.items():
            if fields[name].values.shape[1:] != tuple(form.shape[1:]):
                self._check_shape(name, (form.shape[0], *fields[name].values.shape[1:]), form)
        sizes = measured(fields, forms, self.block.row_counts, wire_dtype)
        arrives = turn.active & turn.delivers
        accepted = arrives.copy()
        if uploads.sound is not None:
            accepted &= uploads.sound
        else:
            for ragged in fields.values():
                accepted &= ragged.finite(accepted)
        return Batch(
            self.block.clients,
            turn.active,
            arrives,
            accepted,
            forms,
            {name: ragged for name, ragged in fields.items() if forms[name].learned},
            {name: ragged for name, ragged in fields.items() if not forms[name].learned},
            {name: r.center for name, r in fields.items() if r.center is not None},
            sizes,
        )

    # ------------------------------------------------------------------- the model's end

    def validate(
        self, round: int, message: Message, participation: Participation | None = None
    ) -> Contribution:
        """Evaluate a model on held-out rows; returns sums of losses and weights as a Contribution.

        Parameters
        ----------
        round : int
        message : Message
            The announcement and the model, after `_on_receipt`.
        participation : Participation or None
            Clients that receive it, and clients whose answer arrives. None: all.

        Raises
        ------
        ValueError
            If the clients hold out no rows.
        """
        if self.held_out is None:
            raise ValueError(
                "These clients hold no rows out to evaluate a model on; set early_stopping=True."
            )
        block = self.block
        part = Participation.full(block.n_clients)
        if participation is not None:
            part = participation.of(block.clients)
        asked = part.receives
        ends = list(self._ends(asked, message, self.keys.at(round)))
        losses = self._losses(self.held_out.part(asked), message, ends, asked)
        self._measured = self._joined(ends, block.users, asked), asked
        sums = np.zeros((block.n_clients, 2))
        sums[asked] = losses
        arrives, sound = part.receives & part.delivers, np.isfinite(sums).all(axis=1)
        turn = Turn(part.receives, part.delivers, False)
        sizes = measured(
            {"validation_loss": None}, VALIDATION, block.row_counts, self.federation.wire_dtype
        )
        total = {"validation_loss": sums[arrives & sound].sum(axis=0)}
        return Contribution.of_sums(("validation", round), block.clients, turn, sound, total, sizes)

    def _losses(self, held_out, message, ends, asked):
        """Sums of losses and of weights of each client of a mask, shape (n_asked, 2)."""
        block = self.block.part(asked)
        model = copy.copy(self.method)
        vars(model).update(
            self.method._server_attributes(message.of(block.clients)),
            # Users of these rows are numbered among those of the clients asked.
            **self._joined(ends, _numbers(self.block.users_of(asked)), asked),
            n_users_=block.n_users,
            n_items_=block.n_items,
            _seen=(block.indptr, block.items),
        )
        losses = model._validation_losses(HeldOut.of(held_out))
        clients = np.repeat(np.arange(block.n_clients), np.diff(held_out.rating_indptr))
        sums = [np.bincount(clients, one, minlength=block.n_clients) for one in losses]
        return np.stack(sums, axis=1)

    def keep_measured(self) -> None:
        """Keep the users' state under the model evaluated last, because it is the best so far."""
        self._kept = self._measured

    def forget_kept(self) -> None:
        """Delete the kept state, because a model that they did not evaluate is the best so far."""
        self._kept = None

    def taken_part(self, *, kept: bool = True) -> NDArray[np.bool_]:
        """Mask of the clients that have updated, or have kept their state under the best model."""
        if self._kept is None or not kept:
            return self._has_updated
        return self._has_updated | self._kept[1]

    def fitted(
        self,
        message: Message,
        round: int,
        *,
        kept: bool = True,
        who: NDArray[np.bool_] | None = None,
    ) -> dict[str, Any]:
        """Users' attributes under the final model, as a dict. Does not change the clients.

        Parameters
        ----------
        message : Message
            The announcement and the final model, after `_on_receipt`.
        round : int
            Number of rounds so far.
        kept : bool
            Whether to use the state that clients have kept under the best model.
        who : ndarray of shape (n_clients,), dtype bool, or None
            Clients to include, among them all that have kept a state. None: all.
        """
        who = np.ones(self.block.n_clients, dtype=bool) if who is None else who
        ends = self._ends(who, message, self.keys.at(round))
        attributes = self._joined(list(ends), self.block.users, who)
        if self._kept is None or not kept:
            return attributes
        best, measured_it = self._kept
        users = self.block.users_of(measured_it)[self.block.users_of(who)]
        for name, values in attributes.items():
            if isinstance(values, np.ndarray):
                values[users] = best[name]
            elif users.all():
                attributes[name] = best[name]
        return attributes

    def _ends(self, who, message, key):
        """Results of `_personalize` for the clients of a mask, first those that have updated."""
        block = self.block
        old, new = who & self._has_updated, who & ~self._has_updated
        if old.any():
            turn, places = Turn(old, old, False), np.arange(block.n_users)
            state = self.method._personalize(
                block, self.state, message.of(block.clients), turn, key
            )
            yield End(block, places, block.users_of(old), state)
        if new.any():
            part, places = block.part(new), np.flatnonzero(block.users_of(new))
            state = personalized(self.method, part, message.of(part.clients), key)
            yield End(part, places, np.ones(len(places), dtype=bool), state)

    def _joined(self, ends, names, who):
        """Users' attributes of the clients of a mask, in the order of their users.

        `names` are the codes of the block's users.
        """
        users, attributes = [], []
        numbers = _numbers(self.block.users_of(who))
        for block, places, wanted, state in ends:
            if names is not self.block.users:
                block = replace(block, users=names[places])
            its = self.method._user_attributes(block, state)
            attributes.append({name: _of_users(rows, wanted) for name, rows in its.items()})
            users.append(numbers[places[wanted]])
        return _blocks.by_user(users, attributes)


class End(NamedTuple):
    """Personalised users of some clients.

    Attributes
    ----------
    block : Block
        The block that was given.
    places : ndarray of shape (n_users,)
        Positions of its users among those of the whole block.
    wanted : ndarray of shape (n_users,), dtype bool
        The users that `_personalize` was called for.
    state : dict
    """

    block: Block
    places: np.ndarray
    wanted: np.ndarray
    state: dict[str, Any]


def personalized(method: Any, block: Block, message: Message, key: Key) -> dict[str, Any]:
    """The state of clients that have never updated, once they have the final model.

    Parameters
    ----------
    method : FederatedRecommender
    block : Block
    message : Message
        The final model after `_on_receipt`: these clients' own message, or for new users the
        common one.
    key : Keys

    Returns
    -------
    state : dict
    """
    everyone = np.ones(block.n_clients, dtype=bool)
    turn = Turn(everyone, everyone, False)
    return method._personalize(block, None, message, turn, key)


def _stacked(answers, forms):
    """The sums of several one-client blocks as the single uploads of one block."""
    fields = {}
    for name, form in forms.items():
        values = np.stack([np.asarray(answer[name]) for answer in answers])
        fields[name] = Ragged.stacked(values.reshape(len(answers), *form.shape))
    return Uploads(**fields)


def _senders(uploads, turn):
    """The turn without clients that have nothing to send."""
    if uploads.sends is None:
        return turn
    return turn._replace(active=turn.active & uploads.sends)


def _numbers(mask):
    """Number each True of a mask; -1 for the others."""
    return np.where(mask, np.cumsum(mask) - 1, -1)


def _of_users(rows, wanted):
    """Select the rows of some users in dense or sparse arrays; return anything else as it is."""
    return rows[wanted] if hasattr(rows, "shape") and not wanted.all() else rows
