"""The server of a fit whose clients are devices: it checks what they send, and admits late ones."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrecsk.data.ids import catalogue_ids
from fedrecsk.deployment.client_message import ClientMessage, Numbers, checked, unpacked
from fedrecsk.deployment.deployable import deployable_copy
from fedrecsk.deployment.records import check_registration
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol import refusals
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.messages import (
    ClientCodes,
    Message,
    Registration,
    Upload,
)
from fedrecsk.protocol.participation import Participation
from fedrecsk.protocol.server import Server, catalogue_nbytes
from fedrecsk.updates import ClientUpdates


class DeviceServer(Server):
    """The server of one fit outside the simulator, made by `of`.

    Its methods are those of :class:`~fedrecsk.protocol.Server`, with the messages of
    :class:`Device` objects in place of totals. It checks each upload before it counts.

    Clients may join late, between rounds: call `admit`, then, with ``late=True``, `setup_message`
    and `close_setup`, and `send_announcement`. They take part from their first message on. The
    results of the set-up (counts and means over its clients) do not change, but the server learns
    which items late clients hold. Methods that divide by the number of clients of the set-up scale
    the uploads of a round to that number.

    Examples
    --------
    >>> from fedrecsk import LocALS
    >>> from fedrecsk.deployment import DeviceServer
    >>> server = DeviceServer.of(LocALS(n_factors=4, items=range(40)))
    >>> server.has_setup
    True
    """

    def _leave_out_clients(self):
        super()._leave_out_clients()
        # Items that each client holds, by code, if set-up uploads list them.
        self._held = {}
        self._is_set_up = False
        # Mask of the clients that have joined since the last round; None before any.
        self._joined: NDArray[np.bool_] | None = None

    @classmethod
    def of(
        cls, estimator: FederatedRecommender, key: Key | None = None, secret: Key | None = None
    ) -> Self:
        """Return a server outside the simulator.

        Parameters
        ----------
        estimator : federated estimator
            `items` must be the catalogue, and a rating method needs its `rating_scale`.
        key : Key or None
            The shared key. If None, drawn by the operating system.
        secret : Key or None
            Key of the server's own draws under central privacy: noise, and secret cohorts. If None,
            each comes afresh from the operating system, so that no checkpoint holds it.

        Raises
        ------
        ValueError
            If the estimator or its federation is not one for devices.
        """
        method = deployable_copy(estimator)
        key = Key(secrets.randbits(63)) if key is None else key
        ids = catalogue_ids(method.items).values
        return cls(method._plan(), key, ids, secret=secret)

    def _added(self, registrations):
        for one in registrations:
            check_registration(one, len(self.item_ids))
        return super()._added(registrations)

    # --------------------------------------------------------------------- late clients

    def admit(self, registrations: Sequence[Registration]) -> list[ClientCodes]:
        """Register clients that join late, between rounds, and send them the catalogue.

        Their codes follow those of the others, for whom nothing changes. A client that comes back
        keeps its code.

        Parameters
        ----------
        registrations : list of Registration

        Returns
        -------
        places : list of ClientCodes
            Codes for each registration, in the order of the late clients' ids.

        Raises
        ------
        ValueError
            If a round or the set-up is open; if a client is registered already; or if the
            federation has `central_dp`, or the method stores something for each client, because
            both are made for the clients of the set-up.
        """
        self._check_admission()
        self._check_late_ids(np.concatenate([one.client_ids for one in registrations]))
        first = self.n_clients
        places = self._added(registrations)
        n_new = self.n_clients - first
        self._joined = np.arange(self.n_clients) >= first - self._n_joined
        self.ledger.admit(self.client_ids[first:])
        self.downlink.admit(self.n_held[first:])
        self.uplink.admit(n_new)
        if self.only is not None:
            self.only: NDArray[np.bool_] | None = np.pad(self.only, (0, n_new))
        self.ledger.open("catalogue")
        newest = np.arange(self.n_clients) >= first
        self.downlink.count(catalogue_nbytes(self.item_ids), newest)
        return places

    def repeat_setup(self, codes: ArrayLike) -> None:
        """Begin the set-up of late clients again, whose answers were lost.

        Parameters
        ----------
        codes : array-like of int
            Late clients, which have places already.

        Raises
        ------
        ValueError
            If a round or the set-up is open.
        """
        self._check_admission()
        self._joined = np.isin(np.arange(self.n_clients), codes)

    @property
    def _n_joined(self):
        return 0 if self._joined is None else int(self._joined.sum())

    def _check_admission(self):
        """Raise if no client may join now, or ever."""
        if self._opened is not None:
            raise ValueError(
                f"Round {self.round} is open; admit clients after close_round, before open_round."
            )
        if not self._is_set_up:
            raise ValueError(
                "The set-up is not over; register all clients that are there before it, and admit "
                "late ones after send_announcement()."
            )
        refusals.check("late registration", self.plan)

    def _check_late_ids(self, ids):
        """Raise if ids of late clients are of another type, or known."""
        if (ids.dtype.kind in "iuf") != (self.client_ids.dtype.kind in "iuf"):
            raise ValueError(
                f"The late clients' ids, such as {ids[0]!r}, and those of the others, such as "
                f"{self.client_ids[0]!r}, must all be numbers or all be strings."
            )
        known = np.isin(ids, self.client_ids)
        if known.any():
            name = ids[known][0]
            raise ValueError(
                f"Client {name!s} is registered already; if it has come back, it goes on with the "
                "place that it has, and otherwise give each client its own id."
            )

    def _asked(self, late):
        """Mask of the clients of a set-up exchange."""
        if late and not self._n_joined:
            raise ValueError("No client has joined since the last round; call admit() first.")
        return self._joined if late else self._everyone

    # ------------------------------------------------------------------------- exchanges

    def setup_message(self, *, late: bool = False) -> Message:
        """Return the message to every client in the set-up, or only to late ones."""
        return self._send_setup(self._asked(late))

    def close_setup(
        self, uploads: Iterable[ClientMessage | ClientUpdates], *, late: bool = False
    ) -> None:
        """Make the server's first state from the answers to the set-up message.

        Parameters
        ----------
        uploads : iterable of ClientMessage
            As in `close_round`.
        late : bool, default=False
            Whether these are answers of clients that join late, from which the server only learns
            which items they hold.
        """
        total = self._total(uploads, ("setup", 0), self._asked(late))
        if late:
            n_rejected = total.n_arrived - total.n_accepted
            self.ledger.count(messages_up=total.n_accepted, rejected=n_rejected)
        else:
            super().close_setup(total)

    def send_announcement(self, *, late: bool = False) -> Message:
        """Send the announcement to every client, or only to late ones; count its bytes."""
        message = self._announce(self._asked(late))
        self._is_set_up = True
        return message

    def open_round(self) -> tuple[Participation, Message | None]:
        """Begin a round; return the participation and the message, None if none is sent."""
        self._joined = None
        return super().open_round()

    def close_round(self, uploads: Iterable[ClientMessage | ClientUpdates]) -> Upload | None:
        """Take the server's step of a round, with the uploads that have arrived.

        Uploads that are malformed, or contain NaN or numbers beyond 1e15, are left out and counted
        as rejected.

        Parameters
        ----------
        uploads : iterable of ClientMessage
            Pass them in the order of the clients' codes to get the same sums bit for bit. Of
            :class:`~fedrecsk.protocol.ClientUpdates`, such as those of an unmasked sum, only the
            sender is checked: never accept them over a network.

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
        step, active = ("round", self.round), self.opened[0].active
        return super().close_round(self._total(uploads, step, active))

    def close_validation(
        self, uploads: Iterable[ClientMessage | ClientUpdates], receives: NDArray[np.bool_]
    ) -> bool:
        """Use the clients' validation losses; return whether the model is the best so far.

        Parameters
        ----------
        uploads : iterable of ClientMessage
            As in `close_round`.
        receives : ndarray of shape (n_clients,), dtype bool
            Clients that received it for evaluation.
        """
        total = self._total(uploads, ("validation", self.round), receives)
        return super().close_validation(total, receives)

    def close_evaluation(self, uploads: Iterable[ClientMessage | ClientUpdates]) -> Upload | None:
        """Return the sums of an evaluation of the final model; None if none has arrived.

        Parameters
        ----------
        uploads : iterable of ClientMessage
            As in `close_round`.
        """
        total = self._total(uploads, ("evaluation", self.round), self._everyone)
        return self.uplink.close(total, self.key.at(self.round))

    def _total(self, uploads, step, asked):
        """Add up uploads, all of which are checked before anything is counted."""
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
        specs, client = self._specs((upload.phase, int(upload.round))), int(upload.client)
        uploads = self.plan.uploads(is_apart=self.algorithm.traits.treats_clients_apart)
        one = unpacked(
            upload,
            specs,
            self.federation,
            self.n_held[client],
            held=self._held.get(client),
            centers=self._centers(),
            uploads="single" if upload.phase in ("validation", "evaluation") else uploads,
        )
        named = [name for name, spec in specs.items() if spec.rows == "held"]
        if upload.phase == "setup" and one.n_accepted and named:
            rows = Numbers(*upload.fields[named[0]]).rows
            self._held[client] = np.array(rows, dtype=np.int64)
        return one
