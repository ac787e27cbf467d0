"""Participation: which clients take part in a round, and whose uploads are lost."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedrecsk.protocol.federation import Federation
    from fedrecsk.protocol.keys import Key


class Participation(NamedTuple):
    """Participation of the clients in one round, as boolean masks of shape (n_clients,).

    Attributes
    ----------
    receives : clients that receive the server's message, all of them active
    active : clients that run their local update
    delivers : clients whose upload, if they send one, arrives
    dropped : clients that were chosen and dropped out
    arrivals : in asynchronous rounds the round in which the upload of each active client arrives
    """

    receives: np.ndarray
    active: np.ndarray
    delivers: np.ndarray
    dropped: np.ndarray
    arrivals: np.ndarray | None = None

    @classmethod
    def full(cls, n_clients: int) -> Participation:
        """Participation of all clients, with no upload lost."""
        everyone = np.ones(n_clients, dtype=bool)
        return cls(everyone, everyone, everyone, ~everyone)

    def of(self, clients: NDArray[np.int64]) -> Participation:
        """Participation of some clients (codes)."""
        return Participation(*(None if one is None else one[clients] for one in self))


class RoundMasks(NamedTuple):
    """What the function `update` of an algorithm must know of a round.

    Attributes
    ----------
    active : ndarray of shape (n_clients of the block,), dtype bool
        Clients that update.
    delivers : ndarray of the same shape and dtype
        Clients whose upload arrives. A real client does not know this. It is here because the
        simulator adds uploads up as soon as they are computed.
    separate : bool
        Whether uploads are returned client by client instead of as a sum.
    """

    active: np.ndarray
    delivers: np.ndarray
    separate: bool


class Sampling(NamedTuple):
    """How the clients of a round are drawn, and how many of them drop out.

    Attributes
    ----------
    fraction : share of the clients in a cohort
    scheme : how cohorts are drawn, see :class:`~fedrecsk.Federation`
    dropout : share of a cohort that drops out
    dropout_mode : what clients that drop out miss
    """

    fraction: float = 1.0
    scheme: Literal["random", "rotating", "poisson"] = "random"
    dropout: float = 0.0
    dropout_mode: Literal["upload", "stale", "offline"] = "upload"

    @classmethod
    def of(cls, federation: Federation, fraction: float, *, rotates: bool = False) -> Sampling:
        """Return the sampling of a federation; `rotates`: "auto" means cohorts that take turns."""
        scheme = federation.sampling
        if scheme == "auto":
            scheme = "rotating" if rotates else "random"
        return cls(fraction, scheme, federation.dropout, federation.dropout_mode)

    @property
    def rotates(self) -> bool:
        """Whether cohorts take turns."""
        return self.scheme == "rotating"

    def draw(
        self, n_clients: int, key: Key, cohort: NDArray[np.bool_] | None = None
    ) -> Participation:
        """Draw the cohort of a key's round, unless it is given, and who drops out."""
        if cohort is None:
            cohort = self._cohort(n_clients, key)
        dropped = np.zeros(n_clients, dtype=bool)
        if self.dropout > 0:
            dropped[cohort] = self.loses(key, np.flatnonzero(cohort))
        connected = cohort & ~dropped
        match self.dropout_mode:
            case "upload":
                return Participation(cohort, cohort, connected, dropped)
            case "stale":
                return Participation(connected, cohort, connected, dropped)
            case "offline":
                return Participation(connected, connected, connected, dropped)

    def loses(self, key: Key, clients: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of some clients (codes) drop out of a key's round."""
        return key.uniform("dropout", clients) < self.dropout

    def _cohort(self, n_clients, key):
        """Draw a mask of the clients of a key's round."""
        if self.fraction == 1:
            return np.ones(n_clients, dtype=bool)
        if self.rotates:
            cohorts = _rotation(n_clients, self.n_cohorts(n_clients), key.at(-1))
            return cohorts == key.round % (cohorts.max() + 1)
        if self.scheme == "poisson":
            return key.uniform("cohort", np.arange(n_clients)) < self.fraction
        chance = key.hashed("cohort", np.arange(n_clients))
        return _smallest(chance, self.cohort_size(n_clients))

    def share(self, n_clients: float) -> float:
        """Return the share of the clients in a cohort, of which one client is the smallest."""
        return max(self.fraction, 1 / n_clients)

    def arriving(self, n_clients: float) -> float:
        """Return the share of the clients whose uploads arrive in a round, as planned."""
        return self.share(n_clients) * (1 - self.dropout)

    def cohort_size(self, n_clients: int) -> int:
        """Return the number of clients in a cohort that is drawn at random."""
        return max(1, round(self.fraction * n_clients))

    def smallest_cohort(self, n_clients: int) -> int:
        """Return the smallest number of clients in a cohort, before any of them drops out."""
        if self.fraction < 1 and self.rotates:
            return n_clients // self.n_cohorts(n_clients)
        return self.cohort_size(n_clients)

    def n_cohorts(self, n_clients: int) -> int:
        """Return the number of cohorts that take turns."""
        return min(n_clients, max(1, round(1 / self.fraction)))

    def histories(self, n_clients: int, key: Key) -> NDArray[np.int64]:
        """Number groups of clients that receive, update in and miss the same rounds."""
        alike = self.dropout == 0 or self.dropout_mode == "upload"
        if alike and self.fraction == 1:
            return np.zeros(n_clients, dtype=np.int64)
        if alike and self.rotates:
            return _rotation(n_clients, self.n_cohorts(n_clients), key.at(-1))
        return np.arange(n_clients)


def _smallest(numbers, n):
    """Mask of the n smallest numbers; of equal numbers the first are taken."""
    largest = np.partition(numbers, n - 1)[n - 1]
    mask = numbers < largest
    mask[np.flatnonzero(numbers == largest)[: n - mask.sum()]] = True
    return mask


@lru_cache(maxsize=4)
def _rotation(n_clients, n_cohorts, key):
    """Return each client's cohort: a shuffled list cut into parts."""
    # Cached, because it is the same in every round of a fit.
    rank = np.empty(n_clients, dtype=np.int64)
    rank[np.argsort(key.hashed("rotation", np.arange(n_clients)), kind="stable")] = np.arange(
        n_clients
    )
    cohorts = rank * n_cohorts // n_clients
    cohorts.setflags(write=False)
    return cohorts
