"""The server of a fit under encryption outside the simulator, which never has the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.protocol.client_message import checked
from fedrecsk.protocol.encryption import EncryptedTotals
from fedrecsk.protocol.keys import setup_round
from fedrecsk.protocol.links import aligned_size
from fedrecsk.protocol.server import Server
from fedrecsk.updates import Counts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Self

    from fedrecsk.privacy import Party
    from fedrecsk.protocol.client_message import ClientMessage
    from fedrecsk.protocol.encryption import EncryptedSums
    from fedrecsk.protocol.keys import Key
    from fedrecsk.protocol.participation import Participation
    from fedrecsk.protocol.registration import ClientCodes, Registration


class EncryptedServer(Server):
    """The server of one fit under CKKS or Paillier, made by `of`.

    It draws cohorts and adds ciphertexts. Every message is the
    :class:`~fedrecsk.protocol.encryption.EncryptedSums` of the exchanges that have ended, from
    which the clients compute the model. Its keys, which are public, are in its pickle. Its methods
    are those of :class:`Server`, with :class:`ClientMessage` as uploads.
    """

    # What it knows in the place of a state.
    totals: EncryptedTotals

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
        server.totals = EncryptedTotals(party)
        return server

    def register(self, registrations: Sequence[Registration]) -> list[ClientCodes]:
        """Register clients, and send them the catalogue; see :class:`Server`."""
        n_clients = sum(len(one.client_ids) for one in registrations)
        if n_clients > self.totals.party.n_clients:
            raise ValueError(
                f"{n_clients} clients have registered, but the keys are for sums over at most "
                f"{self.totals.party.n_clients}; make keys with "
                f"generate_keys(n_clients={n_clients})."
            )
        return super().register(registrations)

    def _first_state(self):
        """Return no state, which only the clients have."""

    def setup_message(self, step: int, *, late: bool = False) -> EncryptedSums:
        """Return the message to every client in a set-up exchange."""
        self.ledger.open("setup", step)
        return self.totals.message

    def close_setup(
        self, step: int, uploads: Iterable[ClientMessage], *, late: bool = False
    ) -> None:
        """Add up the answers to a set-up exchange."""
        everyone = np.ones(self.n_clients, dtype=bool)
        if not self._add(uploads, ("setup", step), everyone):
            raise self._no_answer(step)

    def send_announcement(self, *, late: bool = False) -> EncryptedSums:
        """End the set-up; returns the sums so far."""
        self._is_set_up = True
        return self.totals.message

    def open_round(self) -> tuple[Participation, EncryptedSums]:
        """Begin a round; returns the participation and the sums so far."""
        self._participation = self._drawn(self.key.at(self.round))
        self.ledger.open("round", self.round)
        return self._participation, self.totals.message

    def close_round(
        self, uploads: Iterable[ClientMessage], loss: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        """Add up the uploads of a round that have arrived; those that are malformed are left out.

        Parameters
        ----------
        uploads : iterable of ClientMessage
        loss : tuple of float
            Sums of the training losses and of their weights.
        """
        turn = self._turn()
        self._add(uploads, ("round", self.round), turn.active)
        self.ledger.count(participants=turn.active.sum(), dropped=turn.dropped.sum())
        self._end_round(loss)

    def send_final(self) -> EncryptedSums:
        """Return the sums of all rounds."""
        return self.totals.message

    def _add(self, uploads, step, asked):
        """Add up ciphertexts, and count what crosses; return how many were accepted."""
        assert self.channel is not None
        n_values = aligned_size(self._specs(step))
        uploads = checked(uploads, step, asked, self.client_ids)
        accepted = {
            int(one.client): one.encrypted
            for one in uploads
            if self.totals.check(one.encrypted, n_values)
        }
        clients, nbytes = np.array(sorted(accepted), dtype=np.int64), self.channel.nbytes(n_values)
        self.uplink.count_encrypted(clients, n_values, nbytes)
        self.ledger.count(messages_up=len(accepted), rejected=len(uploads) - len(accepted))
        if self.releases is not None and accepted:
            key = self.key.at(setup_round(step[1]) if step[0] == "setup" else step[1])
            self.releases.charge([clients], key, Counts(n_shares=len(clients)))
        self.totals.add(*step, accepted)
        if accepted:
            # The sum, which goes to all clients.
            self.downlink.count(nbytes)
        return len(accepted)
