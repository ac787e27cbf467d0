"""The two servers: one sees sums, the other adds ciphertexts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedrecsk._utils.user_warnings import warn
from fedrecsk.protocol.base_server import BaseServer
from fedrecsk.protocol.client_message import ClientMessage, checked, held_items, unpacked
from fedrecsk.protocol.keys import Key, setup_round
from fedrecsk.protocol.links import StepTotal, matrix_to_compress
from fedrecsk.protocol.messages import (
    Catalogue,
    ClientCodes,
    EncryptedSum,
    EncryptedSums,
    Message,
    Rows,
)
from fedrecsk.protocol.participation import Participation
from fedrecsk.protocol.protection import is_compressed
from fedrecsk.protocol.secure_sums import aligned_size
from fedrecsk.updates import Counts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Self

    from numpy.typing import NDArray

    from fedrecsk.privacy import Party
    from fedrecsk.protocol.federation import Federation
    from fedrecsk.protocol.messages import Registration, Upload
    from fedrecsk.updates import ClientUpdates


class Server(BaseServer):
    """The server of one fit. Pickle it to make a checkpoint.

    Call its methods in this order: `register`; for each set-up exchange `setup_message` and
    `close_setup`; `send_announcement`; for each round `open_round` and `close_round`; `send_final`.

    Clients may join late, between rounds: call `admit`, then, with ``late=True``, `setup_message`
    and `close_setup` for each set-up exchange, and `send_announcement`. They learn from their first
    message on. What the server has learned in the set-up stays as it is (counts and means over the
    clients of the set-up), but it learns which items late clients hold. Methods that divide by the
    number of clients of the set-up scale the uploads of a round to that number.

    Outside the simulator, an :class:`EncryptedServer` serves a fit under encryption.

    Parameters
    ----------
    method : FederatedRecommender
        A copy of the estimator with hyperparameters only.
    federation : Federation
    key : Key
        The shared key, before the first round.
    item_ids : ndarray of shape (n_items,)
        The catalogue, which is sent to all clients.
    rating_range : tuple of float or None
        Lowest and highest rating. None: the method's `rating_scale`, if it has one.
    secret : Key or None
        Of the server's own draws under central privacy: noise, and secret cohorts. None: each
        comes afresh from the operating system, so that no checkpoint holds it.
    """

    # The base class has them, too; without their types here, type checkers would guess.
    state: Any
    n_empty_rounds: int
    n_undecided_rounds: int

    def __init__(
        self,
        method: Any,
        federation: Federation,
        key: Key,
        item_ids: np.ndarray,
        rating_range: tuple[float, float] | None = None,
        secret: Key | None = None,
    ) -> None:
        super().__init__(method, federation, key, item_ids, secret)
        self.rating_range: tuple[float, float] | None = rating_range or getattr(
            method, "rating_scale", None
        )
        # Codes of the clients whose uploads of the last round count.
        self.accepted: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._message: Message | None = None
        # The last message that was sent.
        self._last_message = Message()
        # Items that each client holds, by code, if set-up uploads say so.
        self._held = {}

    @classmethod
    def of(
        cls,
        estimator: Any,
        key: Key | None = None,
        secret: Key | None = None,
    ) -> Self:
        """Return a server outside the simulator.

        Parameters
        ----------
        estimator : federated estimator
            `items` must be the catalogue, and a rating method needs its `rating_scale`.
        key : Key or None
            The shared key. None: drawn by the operating system.
        secret : Key or None
            Of the server's own draws, as above.

        Raises
        ------
        ValueError
            If the estimator or its federation is not one for devices, or if it encrypts; see
            :class:`EncryptedServer`.
        """
        return cls._made(estimator, key, secret)

    # --------------------------------------------------------------- before the rounds

    def _first_state(self):
        catalogue = Catalogue(len(self.item_ids), self.n_clients, self.rating_range)
        return self.method._init_server(catalogue, self.key)

    def setup_message(self, step: int, *, late: bool = False) -> Message | None:
        """Message to every client in a set-up exchange, or only to those that join late."""
        who = self._asked(late)
        self.ledger.open("setup", step)
        message = self.method._setup_broadcast(self.state, step)
        if self.releases is not None:
            message = (message or Message()) | self.releases.terms(self.key.at(setup_round(step)))
        self.downlink.announce(message, who)
        return message

    def _asked(self, late):
        """Mask of the clients of a set-up exchange."""
        if late and not self._n_late:
            raise ValueError("No client has joined since the last round; call admit() first.")
        return self._late if late else self._everyone

    def close_setup(
        self,
        step: int,
        uploads: Iterable[ClientMessage | ClientUpdates] | StepTotal,
        *,
        late: bool = False,
    ) -> None:
        """Take the server's step of a set-up exchange.

        Parameters
        ----------
        step : int
        uploads : iterable of ClientMessage, or StepTotal
            As in `close_round`.
        late : bool, default=False
            Whether these are answers of clients that join late, from which the server only learns
            which items they hold.
        """
        total = self._total(uploads, ("setup", step), self._asked(late))
        if late:
            n_rejected = total.n_arrived - total.n_accepted
            self.ledger.count(messages_up=total.n_accepted, rejected=n_rejected)
            return
        key = self.key.at(setup_round(step))
        upload = self.uplink.close(total, key)
        if upload is None:
            raise self._no_answer(step)
        self.state = self.method._setup_aggregate(self.state, upload, step, key)

    def announcement(self) -> Message:
        """Message to every client after the set-up."""
        self._check_registered()
        return self.method._initial_broadcast(self.state)

    def send_announcement(self, *, late: bool = False) -> Message:
        """Send the announcement, and count its bytes; `late`: only to those that join late."""
        who = self._asked(late)
        message = self.announcement()
        if message and self.ledger.entries[-1]["phase"] != "setup":
            self.ledger.open("setup")
        self.downlink.announce(message, who)
        self._is_set_up = True
        return message

    # --------------------------------------------------------------------- each round

    def open_round(self) -> tuple[Participation, Message | None]:
        """Begin a round; returns the participation and the message, None if none is sent."""
        key = self.key.at(self.round)
        self._late = None
        self._participation = self._drawn(key)
        self.ledger.open("round", self.round)
        message = self.method._broadcast(self.state, key)
        if self.round == 0 and self.federation.compression is not None:
            self._warn_of_idle_compression(message or {})
        receives, delta = self._participation.receives, self.method._model_delta(self.state)
        self._message = self.downlink.send(message, receives, delta, key)
        if not self._message and not self.method._may_be_silent:
            raise TypeError(
                f"{type(self.method).__name__} broadcasts nothing in round {self.round}; a method "
                "whose clients continue with an earlier message must set _may_be_silent = True."
            )
        if self._message and self.releases is not None:
            terms = self.releases.terms(key)
            self.downlink.add(terms, receives)
            self._message = self._message | terms
        if self._message:
            self._has_received |= receives
            self._last_message = self._message
        return self._participation, self._message

    def _warn_of_idle_compression(self, message):
        """Warn if compression has nothing to do in one of its directions."""
        compressor, method = self.federation.compression, type(self.method).__name__
        assert compressor is not None
        specs = self._specs(("round", 0)).values()
        if compressor.down and not any(
            matrix_to_compress(one) is not None for one in message.values()
        ):
            warn(
                f"{compressor} compresses nothing that clients of {method} download in a round, "
                "because rows of a client's own items, vectors and counts are sent as they are; "
                'set direction="up".'
            )
        if compressor.up and not any(is_compressed(self.federation, spec) for spec in specs):
            warn(
                f"{compressor} compresses nothing that clients of {method} upload in a round, "
                "because the method has shortened it already, or sends no matrices of real "
                'numbers; set direction="down" or compression=None.'
            )

    def close_round(
        self,
        uploads: Iterable[ClientMessage | ClientUpdates] | StepTotal,
    ) -> Upload | None:
        """Take the server's step of a round, with the uploads that have arrived.

        Uploads that are malformed, or contain NaN or numbers beyond 1e15, are left out and counted
        as rejected.

        Parameters
        ----------
        uploads : iterable of ClientMessage, or StepTotal
            Pass them in the order of the clients' codes to get the same sums bit for bit; or the
            `new_total` to which updates of your own :class:`Clients` have been added, as the
            simulator does. Of single :class:`ClientUpdates` only the sender is checked: never
            accept them over a network.

        Returns
        -------
        Upload or None
            What the server sees of the uploads.

        Raises
        ------
        ValueError
            If no round is open, or if an upload belongs to another round, comes from an unknown
            client or one that was not selected, or is the client's second one.
        """
        key, turn = self.key.at(self.round), self._turn()
        total = self._total(uploads, ("round", self.round), turn.active)
        self.accepted = np.concatenate([np.zeros(0, dtype=np.int64), *total.accepted])
        updating = turn.active & self._has_received
        self.ledger.count(participants=updating.sum(), dropped=turn.dropped.sum())
        centers = self._centers() if self.releases is not None else None
        upload = self.uplink.close(total, key, centers)
        if upload is None and any(map(len, total.senders)):
            if self.ledger.entries[-1]["messages_up"] > 0:
                self.n_undecided_rounds += 1
            else:
                self.n_empty_rounds += 1
        # What overflows ends the fit, or warns, with its likely cause.
        with np.errstate(over="ignore", invalid="ignore"):
            self.state = self.method._aggregate(self.state, self._message, upload, key)
        self._end_round(total.loss)
        return upload

    def new_total(self, phase: str = "round", number: int = 0) -> StepTotal:
        """Return an empty total of an exchange, to which updates of own clients are added."""
        self._check_registered()
        return StepTotal(self.uplink, self._specs((phase, number)), learned=phase == "round")

    def _total(self, uploads, step, asked):
        """Add up uploads, all of which are checked before anything is counted."""
        if isinstance(uploads, StepTotal):
            return uploads
        total = self.new_total(*step)
        for one in checked(uploads, step, asked, self.client_ids):
            from_device = isinstance(one, ClientMessage)
            total.is_trusted = total.is_trusted and not from_device
            total.add(self.accept(one) if from_device else one)
        return total

    def accept(self, upload: ClientMessage) -> ClientUpdates:
        """Check an upload and return it as ClientUpdates.

        Parameters
        ----------
        upload : ClientMessage
            From a registered client.

        Returns
        -------
        ClientUpdates
            Not accepted if anything in the upload is malformed.
        """
        step, client = (upload.phase, int(upload.round)), int(upload.client)
        apart = self.federation.aggregator is not None or self.method._treats_clients_apart
        is_setup = upload.phase == "setup"
        one = unpacked(
            upload,
            self._specs(step),
            self.n_held[client],
            held=self._held.get(client),
            centers=self._centers(),
            wire_dtype=self.federation.wire_dtype,
            hold=is_setup or (apart and upload.phase == "round"),
            federation=self.federation,
        )
        if is_setup:
            held = held_items(one)
            if held is not None:
                self._held[client] = held
        return one

    def _centers(self):
        """Return what a client without any change would send in a round, unless that is zero."""
        if not self._last_message:
            return {}
        return self.method._upload_centers(self._last_message)

    # ------------------------------------------------------------------ early stopping

    def final_participation(self) -> Participation:
        """Return the clients that evaluate the last model: all, or the next cohort."""
        self._check_registered()
        if self.method.client_fraction == 1:
            return Participation.full(self.n_clients)
        return self._drawn(self.key.at(self.round))

    def close_validation(
        self,
        uploads: Iterable[ClientMessage | ClientUpdates] | StepTotal,
        receives: NDArray[np.bool_],
    ) -> bool:
        """Use the clients' validation losses; returns whether the model is the best so far.

        Parameters
        ----------
        uploads : iterable of ClientMessage, or StepTotal
            As in `close_round`.
        receives : ndarray of shape (n_clients,), dtype bool
            Clients that received it for evaluation.
        """
        key = self.key.at(self.round)
        total = self._total(uploads, ("validation", self.round), receives)
        upload = self.uplink.close(total, key)
        total, weight = (0, 0) if upload is None else upload["validation_loss"].sum
        loss = float(total / weight) if weight else float("nan")
        self.history[-1]["validation_loss"] = loss
        is_best = self.stopping.judge(
            loss,
            self.round - 1,
            self.current_message,
            by_everybody=bool(receives.all()),
            is_last=self.ledger.entries[-1]["phase"] == "final",
        )
        if self.stopping.stopped and self.ledger.entries[-1]["phase"] == "round":
            self.ledger.entries[-1]["phase"] = "stop"
        return is_best

    def send_for_validation(self, receives: NDArray[np.bool_]) -> Message:
        """Send the clients of the mask what they need to evaluate the model.

        If a round's message lacks fields of the final model, has the rows of own items only, or
        has compressed changes, the rest is sent too, and counted.
        """
        sent, model = self.method._model(self.state), self.method._final_model(self.state)
        # The rounds of some methods do not send the model at all.
        if not model.keys() & self._last_message.keys():
            sent = {}
        lacking = {
            name: field
            for name, field in model.items()
            if name not in sent or isinstance(sent[name], Rows) or name in self.downlink.changes
        }
        if lacking and self.ledger.entries[-1]["phase"] != "final":
            self.downlink.add(Message(**lacking), receives)
        return self.current_message()

    # ------------------------------------------------------------------------- the end

    def current_message(self) -> Message:
        """Return the announcement and the current model, as clients need them to recommend."""
        return Message(**self.announcement(), **self.method._final_model(self.state))

    def send_final(self) -> Message:
        """Send all clients the model of the last round; returns it with the announcement."""
        self._check_registered()
        self.ledger.open("final", self.round)
        model, delta = self.method._final_model(self.state), None
        if model.keys() == self.method._model(self.state).keys():
            delta = self.method._model_delta(self.state)
        self.downlink.send(model, self._everyone, delta)
        return self.current_message()

    def send_best(self) -> Message:
        """Send all clients the best model instead; returns it with the announcement.

        Raises
        ------
        ValueError
            If no client has measured a validation loss.
        """
        best = self.stopping.message
        if best is None:
            raise ValueError(
                "There is no best model, because no client has measured a validation loss; use "
                "send_final() instead."
            )
        self.ledger.open("best", self.round)
        announced = self.announcement()
        # The full model, because the latest change does not lead back to an earlier one.
        model = Message(**{n: f for n, f in best.items() if n not in announced})
        self.downlink.send(model, self._everyone)
        return best


class EncryptedServer(BaseServer):
    """The server of one fit under CKKS or Paillier, made by `of`.

    It draws cohorts and adds ciphertexts. Every message is the
    :class:`~fedrecsk.protocol.messages.EncryptedSums` of the exchanges that have ended, from
    which the clients compute the model. Its keys, which are public, are in its pickle. Call its
    methods in the order of those of :class:`Server`, with :class:`ClientMessage` as uploads.
    """

    party: Party
    # What it knows in the place of a state.
    sums: EncryptedSums

    @classmethod
    def of(
        cls,
        estimator: Any,
        key: Key | None = None,
        secret: Key | None = None,
        *,
        party: Party,
    ) -> Self:
        """Return a server outside the simulator.

        Parameters
        ----------
        estimator, key, secret
            As in :meth:`Server.of`.
        party : Party
            The server's side of the keys.

        Raises
        ------
        ValueError
            If the estimator or its federation is not one for devices or does not encrypt, or if
            `party` has the clients' keys.
        """
        server = cls._made(estimator, key, secret, party)
        if not server.federation.encrypts:
            raise ValueError(
                "The federation does not encrypt; set secure_aggregation to CKKS(), for example, "
                "or use Server.of."
            )
        server.party, server.sums = party, EncryptedSums(0, ())
        return server

    def register(self, registrations: Sequence[Registration]) -> list[ClientCodes]:
        """Register clients, and send them the catalogue; see :class:`Server`."""
        n_clients = sum(len(one.client_ids) for one in registrations)
        if n_clients > self.party.n_clients:
            raise ValueError(
                f"{n_clients} clients have registered, but the keys are for sums over at most "
                f"{self.party.n_clients}; make keys with "
                f"generate_keys(n_clients={n_clients})."
            )
        return super().register(registrations)

    def setup_message(self, step: int) -> EncryptedSums:
        """Return the message to every client in a set-up exchange."""
        self._check_registered()
        self.ledger.open("setup", step)
        return self.sums

    def close_setup(self, step: int, uploads: Iterable[ClientMessage]) -> None:
        """Add up the answers to a set-up exchange."""
        if not self._add(uploads, ("setup", step), self._everyone):
            raise self._no_answer(step)

    def send_announcement(self) -> EncryptedSums:
        """End the set-up; returns the sums so far."""
        self._check_registered()
        self._is_set_up = True
        return self.sums

    def open_round(self) -> tuple[Participation, EncryptedSums]:
        """Begin a round; returns the participation and the sums so far."""
        self._participation = self._drawn(self.key.at(self.round))
        self.ledger.open("round", self.round)
        return self._participation, self.sums

    def close_round(self, uploads: Iterable[ClientMessage]) -> None:
        """Add up the uploads of a round that have arrived; those that are malformed are left out.

        Parameters
        ----------
        uploads : iterable of ClientMessage
        """
        turn = self._turn()
        self._add(uploads, ("round", self.round), turn.active)
        self.ledger.count(participants=turn.active.sum(), dropped=turn.dropped.sum())
        self._end_round()

    def send_final(self) -> EncryptedSums:
        """Return the sums of all rounds."""
        self._check_registered()
        return self.sums

    def forget(self, n_taken: int) -> None:
        """Delete sums that all clients have taken, to save memory; call it between rounds.

        Parameters
        ----------
        n_taken : int
            How many of all sums so far to delete, from the first on.
        """
        self.sums = self.sums.since(max(self.sums.first, n_taken))

    def _add(self, uploads, step, asked):
        """Add up ciphertexts, and count what crosses; return how many were accepted."""
        assert self.channel is not None
        n_values = aligned_size(self._specs(step))
        uploads = checked(uploads, step, asked, self.client_ids)
        accepted = {
            int(one.client): one.encrypted
            for one in uploads
            if self.party.accepts(one.encrypted, n_values)
        }
        clients, nbytes = np.array(sorted(accepted), dtype=np.int64), self.channel.nbytes(n_values)
        self.uplink.count_encrypted(clients, n_values, nbytes)
        self.ledger.count(messages_up=len(accepted), rejected=len(uploads) - len(accepted))
        total = None
        if accepted:
            if self.releases is not None:
                key = self.key.at(setup_round(step[1]) if step[0] == "setup" else step[1])
                self.releases.charge([clients], key, Counts(n_shares=len(clients)))
            total = self.party.sum(accepted[one] for one in clients.tolist())
            # The sum, which goes to all clients.
            self.downlink.count(nbytes)
        one = EncryptedSum(*step, clients, total)
        self.sums = EncryptedSums(self.sums.first, (*self.sums.sums, one))
        return len(accepted)
