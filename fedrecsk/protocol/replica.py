"""The server's state on a client, where the server sees nothing but ciphertexts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from sklearn.base import clone

from fedrecsk.data.interactions import catalogue_ids
from fedrecsk.protocol.clients import Registration
from fedrecsk.protocol.server import Server
from fedrecsk.protocol.uplink import aligned_size, fields_of
from fedrecsk.updates import ClientUpdates, Counts

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from fedrecsk.privacy import Party
    from fedrecsk.protocol.encryption import EncryptedSum
    from fedrecsk.protocol.keys import Key
    from fedrecsk.protocol.messages import Message
    from fedrecsk.protocol.participation import Participation


class Replica:
    """Takes the server's steps from decrypted sums, as every client does.

    All replicas of a fit are equal, because they get the same sums and share a key. The messages
    that clients would receive from a server that sees sums are made here.

    Parameters
    ----------
    method : FederatedRecommender
        A copy of the estimator with hyperparameters only.
    key : Key
        The shared key.
    n_clients : int
        Clients of the fit.
    """

    def __init__(self, method: Any, key: Key, n_clients: int) -> None:
        federation = clone(method._setting()).set_params(secure_aggregation=None)
        items = catalogue_ids(method.items).values
        self.server: Server = Server(method, federation, key, items)
        ones, codes = np.ones(n_clients, dtype=np.int64), np.arange(n_clients)
        self.server.register([Registration(codes, ones, 0 * ones)])
        # The exchange that is open, with its message and, in a round, its participation.
        self._open: tuple[Any, ...] | None = None
        # Exchanges that have ended.
        self.n_taken: int = 0

    def open(self, phase: str, round: int) -> tuple[Message | None, Participation | None]:
        """Message and participation of the next exchange; may be called again.

        Raises
        ------
        ValueError
            If another exchange is next.
        """
        if self._open is None:
            due = self._due
            if due != (phase, round):
                raise ValueError(
                    f"The exchange {phase} {round} is not next, but {due[0]} {due[1]}; pass all "
                    "steps that have ended to take() first."
                )
            if phase == "setup":
                self._open = due, self.server.setup_message(round), None
            else:
                turn, message = self.server.open_round()
                self._open = due, message, turn
        return self._open[1:]

    @property
    def _due(self):
        """Phase and number of the next exchange."""
        n_setups = self.server.n_setups
        return ("setup", self.n_taken) if self.n_taken < n_setups else ("round", self.server.round)

    def take(self, step: EncryptedSum, party: Party) -> None:
        """Take the server's step of an exchange that has ended.

        Parameters
        ----------
        step : EncryptedSum
        party : Party
            The clients' side of the keys.
        """
        self.open(step.phase, step.round)
        uploads = [] if step.total is None else [self._summed(step, party.decrypt(step.total))]
        if step.phase == "setup":
            self.server.close_setup(step.round, uploads, trusted=True)
        else:
            self.server.close_round(uploads, trusted=True)
        self._open, self.n_taken = None, self.n_taken + 1

    def _summed(self, step: EncryptedSum, total: NDArray[np.float64]) -> ClientUpdates:
        """Return the sum as ClientUpdates of all senders, whose noise is in it already."""
        specs = self.server._specs((step.phase, step.round))
        n_clients = len(step.clients)
        assert step.total is not None
        got, wanted = (len(total), step.total.n_clients), (aligned_size(specs), n_clients)
        if got != wanted:
            raise ValueError(
                f"The sum of {step.phase} {step.round} has {got[0]} numbers of {got[1]} clients "
                f"instead of {wanted[0]} of {wanted[1]}; the server is at fault."
            )
        everyone, nothing = np.ones(n_clients, dtype=bool), np.zeros(n_clients, dtype=np.int64)
        return ClientUpdates(
            fields_of(total, specs),
            phase=step.phase,
            round=step.round,
            clients=step.clients,
            sends=everyone,
            arrives=everyone,
            accepted=everyone,
            specs=specs,
            sizes=np.stack([nothing] * 3),
            counts=Counts(n_shares=n_clients),
        )
