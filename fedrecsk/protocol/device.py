"""A client outside the simulator, on its own machine."""

from __future__ import annotations

import copy
import secrets
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from sklearn.base import clone

from fedrecsk.base import attributes_of
from fedrecsk.data._checks import check_fitted
from fedrecsk.data.interactions import catalogue_ids
from fedrecsk.privacy.central_dp import steps_of
from fedrecsk.protocol.blocks import of_clients
from fedrecsk.protocol.checks import bare, check_keys
from fedrecsk.protocol.client_message import ClientMessage, packed
from fedrecsk.protocol.clients import Clients
from fedrecsk.protocol.early_stopping import VALIDATION, hold_out
from fedrecsk.protocol.keys import Key, Keys
from fedrecsk.protocol.messages import Registration
from fedrecsk.protocol.protection import TERMS
from fedrecsk.protocol.secure_sums import aligned_size, as_vector, fields_of, integers_of, units_of
from fedrecsk.protocol.server import Server
from fedrecsk.updates import ClientUpdates

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike, NDArray

    from fedrecsk.data.interactions import Interactions
    from fedrecsk.privacy import Party
    from fedrecsk.protocol.messages import ClientCodes, EncryptedSum, EncryptedSums, Message
    from fedrecsk.protocol.participation import Participation

NOBODY = np.zeros(1, dtype=np.int64)


class Device(Clients):
    """A client outside the simulator, made from its own rows.

    It receives messages as the server sends them, and returns a :class:`ClientMessage` for each
    upload, with local noise if the federation has any. It can be pickled at any time, and answers
    a repeated request (of the same round, set-up exchange or validation) with the same message.

    Under encryption (CKKS or Paillier) it encrypts its uploads. The server's messages are then
    :class:`~fedrecsk.protocol.messages.EncryptedSums`, which it decrypts to take the server's
    steps itself, so that the model is only on the clients. Its keys are not in its pickle.

    Under ``Federation(secure_aggregation=SecAggPlus())`` its uploads are integers, which whoever
    carries them must mask (``fedrecsk.deployment`` does).

    Parameters
    ----------
    estimator : federated estimator
        An estimator with the same parameters as the server's. `items` must be the catalogue, and
        rating methods need `rating_scale`.
    X, y, sample_weight
        Rows of this client, as in `fit`.
    client_id : int, float or str
        Id of the client, different from all others.
    private : Key or None, default=None
        Seed of what must stay private: users' vectors, negatives, noise, held-out rows. None:
        drawn by the operating system.
    party : Party or None, default=None
        The clients' side of the keys, which the server must not have, if the federation encrypts
        (CKKS or Paillier).

    Raises
    ------
    ValueError
        If `items` is None; if the federation has an `adversary` or a compressor of your own,
        which only the simulator supports; for the reasons of `fit`; if the federation encrypts and
        `party` is not the clients' side, or the method cannot be fitted under secure sums on
        devices (with early stopping, or cohorts chosen from what it has learned).

    Examples
    --------
    >>> from fedrecsk import LocALS
    >>> from fedrecsk.datasets import make_interactions
    >>> from fedrecsk.protocol import Device, Server
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> method = LocALS(n_factors=4, items=range(40))
    >>> server = Server.of(method)
    >>> shops = [Device(method, X[X[:, 0] % 2 == k], client_id=f"shop {k}") for k in (0, 1)]
    >>> for shop, place in zip(shops, server.register([shop.register() for shop in shops])):
    ...     shop.place(place)
    >>> server.n_setups
    1
    """

    def __init__(
        self,
        estimator: Any,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        client_id: float | str,
        sample_weight: ArrayLike | None = None,
        private: Key | None = None,
        party: Party | None = None,
    ) -> None:
        method = bare(estimator)
        check_keys(method, party, "clients")
        self._encrypts: bool = party is not None
        self.party = party
        # Under secure sums: the server's state, which the server does not have.
        self.replica: Replica | None = None
        self._clip = 0.0
        private = Key(secrets.randbits(63)) if private is None else private
        whose = np.full(len(X), client_id)
        catalogue = catalogue_ids(method.items)
        # The last answer to a set-up exchange, and to a validation, with its number.
        self._answers = {}
        self.data: Interactions = method._read(X, y, whose, sample_weight, item_ids=catalogue)
        training, held_out = self.data, None
        if method.early_stopping:
            training, held_out = hold_out(self.data, method.validation_fraction, private)
            held_out = of_clients(held_out, NOBODY)
        block = of_clients(training, NOBODY)
        method._check_setting(method._setting(), training, [block])
        super().__init__(
            method,
            block,
            method._setting(),
            # The server sends the shared key together with the client's code.
            Keys(Key(0), private),
            held_out=held_out,
            client_ids=self.data.client_ids,
            separate=True,
        )

    def __getstate__(self) -> dict[str, Any]:
        # The keys are kept where the operator has put them, and nowhere else.
        return vars(self) | {"party": None}

    @property
    def _codes(self):
        # A device's model has no users but its own.
        return np.arange(self.block.n_users)

    def register(self) -> Registration:
        """Return this client's Registration; under secure sums without the number of its items."""
        registration = super().register()
        if self.federation.secure_aggregation is not None:
            return registration._replace(n_held=np.zeros_like(registration.n_held))
        return registration

    def place(self, place: ClientCodes) -> None:
        """Store the code that the server has assigned to this client."""
        super().place(place.clients, place.first_users)
        self.keys: Keys = self.keys._replace(shared=place.shared)
        if self._encrypts and self.replica is None:
            self.replica = Replica(self.method, place.shared, place.n_clients)
            self._take_announcement(self.replica)

    def setup(self, step: int, message: Message | EncryptedSums | None) -> list[ClientMessage]:
        """Answer a set-up message; returns a list of ClientMessage, which may be empty."""
        specs = self.method._setup_specs(self.block.n_items, step)
        opened = self._opened("setup", step, message)
        self._note_clip(opened)
        return self._once(
            *("setup", step),
            lambda: self._packed(super(Device, self).setup(step, opened), specs),
        )

    def announce(self, message: Message | EncryptedSums) -> None:
        """Store the server's announcement after the set-up."""
        if self._encrypts:
            self.take(message)
        else:
            super().announce(message)

    def receive(self, round: int, message: Message | EncryptedSums | None) -> None:
        """Store a round's message as the server sends it, None if there is none.

        It also takes the step that clients of equal history share.
        """
        message = self._opened("round", round, message)
        self._note_clip(message)
        super().receive(round, self._complete(message, round))

    def _note_clip(self, message):
        """Note the clip of central privacy, on whose grid this client's noise is."""
        if message and TERMS in message:
            self._clip = float(message[TERMS].values[0])

    def update(self, round: int) -> tuple[list[ClientMessage], NDArray[np.float64]]:
        """Run one local update. Repeated calls for the same round return the same answer.

        Returns
        -------
        uploads : list of ClientMessage
            Upload to send to the server; empty if there is none.
        loss : ndarray of shape (2,)
            Sums of the training losses and of their weights. Do not send them.
        """
        return self._once("round", round, lambda: self._updated(round))

    def _updated(self, round):
        """Run one local update, and pack it."""
        updates, loss = super().update(round)
        return [upload for one in updates for upload in self._packed(one, self._specs)], loss

    def validate(self, round: int, message: Message) -> list[ClientMessage]:
        """Evaluate a model on held-out rows; returns a list of one ClientMessage.

        Parameters
        ----------
        round : int
        message : Message
            ``server.send_for_validation(...)``.
        """
        complete = self._complete(message, round)
        return self._once(
            *("validation", round),
            lambda: self._packed(super(Device, self).validate(round, complete), VALIDATION),
        )

    def _once(self, phase, number, answer):
        """Return the answer to a request, made once even if it is repeated after later steps."""
        if self._answers.get(phase, (None,))[0] != number:
            self._answers[phase] = number, answer()
        # Copies: whoever writes into what is sent changes nothing here.
        return copy.deepcopy(self._answers[phase][1])

    def _packed(self, updates, specs):
        if self.federation.secure_aggregation is not None:
            return self._secured(updates, specs)
        told = updates is not None and updates.phase != "setup" and self._has_told
        return packed(updates, specs, numbered=not told, federation=self.federation)

    @property
    def _has_told(self):
        """Whether the server knows from the set-up which items this client holds."""
        n_items, steps = self.block.n_items, range(self.method._n_setups)
        specs = [self.method._setup_specs(n_items, step).values() for step in steps]
        return any(spec.rows == "held" for those in specs for spec in those)

    # ------------------------------------------------------------------- later fits

    def memory(self) -> dict[str, Any]:
        """Return what a fit to other rows goes on from: ids and arrays, by whose they are."""
        if self.method._sends_once:
            return {}
        memory = self.method._memory(self.state)
        return {name: (self._ids(name), arrays) for name, arrays in memory.items()}

    def remember(self, memory: dict[str, Any]) -> None:
        """Go on from the `memory` of an earlier fit."""
        found = {}
        for name, (ids, arrays) in memory.items():
            places = pd.Index(ids).get_indexer(pd.Index(self._ids(name)))
            known = places >= 0
            found[name] = known, [values[places[known]] for values in arrays]
        self.remembered: Any = found or None

    def _ids(self, name):
        """Return the ids of "users", of "clients", or of the items of the "rows"."""
        if name == "rows":
            return self.data.item_ids.values[self.block.row_items]
        return self.data.user_ids.values if name == "users" else self.client_ids

    # ------------------------------------------------------------------- secure sums

    def take(self, message: EncryptedSums) -> None:
        """Take the server's steps of exchanges that have ended, but for those taken before.

        Parameters
        ----------
        message : EncryptedSums

        Raises
        ------
        ValueError
            If there is a gap before these sums.
        """
        replica, party = self._ready()
        if message.first > replica.n_taken:
            raise ValueError(
                f"This client has taken {replica.n_taken} steps and cannot go on from step "
                f"{message.first}; send it all that it lacks."
            )
        for one in message.sums[replica.n_taken - message.first :]:
            replica.take(one, party)
            if one.phase == "setup":
                self._take_announcement(replica)

    def _ready(self):
        """Return the replica and the keys."""
        if self.replica is None:
            raise ValueError("This client has no place yet; call place(place) first.")
        if self.party is None:
            raise ValueError(
                "This client's keys are not in its pickle; set its `party` to the clients' side "
                "of the keys, scheme.load_party(...)."
            )
        return self.replica, self.party

    def _take_announcement(self, replica):
        """Store the replica's announcement when the set-up is over."""
        if replica.n_taken == replica.server.n_setups:
            super().announce(replica.server.send_announcement())

    def _opened(self, phase, number, message):
        """Return the message of an exchange; under secure sums that of the replica."""
        if not self._encrypts:
            return message
        self.take(message)
        message, turn = self._ready()[0].open(phase, number)
        if turn is not None and not turn.active[self.block.clients[0]]:
            raise ValueError(f"This client was not selected in round {number}.")
        return message

    def _secured(self, updates, specs):
        """Return a list of one upload for a secure sum; an empty one if the update has diverged."""
        if updates is None or not updates.accepted[0]:
            return []
        step, client = (updates.phase, updates.round), int(updates.clients[0])
        if self._encrypts:
            content = self._ready()[1].encrypt(as_vector(updates.held.single(0), 0))
            return [ClientMessage(*step, client, encrypted=content)]
        fields = updates.fields if updates.held is None else updates.held.single(0).whole(0)
        central, steps = self.federation.central_dp, {}
        if central is not None and central.noise == "clients" and updates.phase != "validation":
            steps = steps_of(central, self._clip, specs)
        scheme = self.federation.secure_aggregation
        content = integers_of(scheme, fields, units_of(scheme, specs, steps), steps)
        return [ClientMessage(*step, client, integers=content)]

    # ----------------------------------------------------------------------- the end

    def fitted(self, message: Message | EncryptedSums, round: int) -> Any:
        """Return a fitted estimator for this client's users.

        Parameters
        ----------
        message : Message
            Result of ``server.send_final()`` or ``server.send_best()``.
        round : int
            Number of rounds so far.

        Returns
        -------
        model : estimator
            Predicts and recommends for these users, and can fold in others.

        Raises
        ------
        ValueError
            If the model is infinite or NaN. As in `fit`, a model that has exploded warns.
        """
        if self._encrypts:
            self.take(message)
            server = self._ready()[0].server
            message, round = server.send_final(), server.round
        complete = self._complete(message, round)
        users = super().fitted(complete, round)
        model, attributes = copy.copy(self.method), self.method._server_attributes(complete) | users
        check_fitted(model, self.data, attributes)
        vars(model).update(
            attributes_of(self.data) | attributes,
            _final_message=message,
            n_rounds_=round,
        )
        return model

    def _complete(self, message, round):
        """Return the message with the fields that clients derive from it."""
        if not message:
            return None
        return self.method._decode_broadcast(message, self.keys.shared.at(round))


class Replica:
    """Takes the server's steps from decrypted sums, as every client does.

    All replicas of a fit are equal, because they get the same sums and share a key. The messages
    that clients would receive from a server that sees sums are made here.
    """

    def __init__(self, method: Any, key: Key, n_clients: int) -> None:
        federation = clone(method._setting()).set_params(secure_aggregation=None)
        items = catalogue_ids(method.items).values
        self.server: Server = Server(method, federation, key, items)
        ones, codes = np.ones(n_clients, dtype=np.int64), np.arange(n_clients)
        self.server.register([Registration(codes, ones, 0 * ones)])
        # Of the exchange that is open: its message and, in a round, its participation.
        self._open: Any = None
        # Exchanges that have ended.
        self.n_taken: int = 0

    def open(self, phase: str, round: int) -> tuple[Message | None, Participation | None]:
        """Message and participation of an exchange, which must be next; may be called again."""
        server = self.server
        is_setup = self.n_taken < server.n_setups
        due = ("setup", self.n_taken) if is_setup else ("round", server.round)
        if due != (phase, round):
            raise ValueError(
                f"The exchange {phase} {round} is not next, but {due[0]} {due[1]}; pass all "
                "steps that have ended to take() first."
            )
        if self._open is None:
            turn, message = (None, server.setup_message(round)) if is_setup else server.open_round()
            self._open = message, turn
        return self._open

    def take(self, step: EncryptedSum, party: Party) -> None:
        """Take the server's step of an exchange that has ended, by the clients' keys."""
        self.open(step.phase, step.round)
        uploads = [] if step.total is None else [self._summed(step, party.decrypt(step.total))]
        if step.phase == "setup":
            self.server.close_setup(step.round, uploads)
        else:
            self.server.close_round(uploads)
        self._open, self.n_taken = None, self.n_taken + 1

    def _summed(self, step: EncryptedSum, total: NDArray[np.float64]) -> ClientUpdates:
        """Return the sum as ClientUpdates of all senders, whose noise is in it already."""
        number, n_clients = (step.phase, step.round), len(step.clients)
        specs = self.server._specs(number)
        assert step.total is not None
        got, wanted = (len(total), step.total.n_clients), (aligned_size(specs), n_clients)
        if got != wanted:
            raise ValueError(
                f"The sum of {step.phase} {step.round} has {got[0]} numbers of {got[1]} clients "
                f"instead of {wanted[0]} of {wanted[1]}; the server is at fault."
            )
        return ClientUpdates.of_sum(fields_of(total, specs), number, step.clients, specs)
