"""Participation: which clients take part in a round, and whose uploads are lost."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

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
    """

    receives: np.ndarray
    active: np.ndarray
    delivers: np.ndarray
    dropped: np.ndarray

    @classmethod
    def full(cls, n_clients: int) -> Participation:
        """Participation of all clients, with no upload lost."""
        everyone = np.ones(n_clients, dtype=bool)
        return cls(everyone, everyone, everyone, ~everyone)

    def of(self, clients: NDArray[np.int64]) -> Participation:
        """Participation of some clients (codes)."""
        return Participation(
            self.receives[clients],
            self.active[clients],
            self.delivers[clients],
            self.dropped[clients],
        )


class RoundMasks(NamedTuple):
    """What a method's `_client_update` must know of a round.

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


def draw_participation(
    n_clients: int,
    client_fraction: float,
    federation: Federation,
    key: Key,
    *,
    prefers_rotation: bool = False,
    cohort: NDArray[np.bool_] | None = None,
) -> Participation:
    """Draw the participation of a key's round, unless the `cohort` is given, and who drops out.

    `prefers_rotation` is what "auto" means.
    """
    if cohort is None:
        if client_fraction == 1:
            cohort = np.ones(n_clients, dtype=bool)
        elif is_rotating(federation, prefers_rotation):
            cohorts = rotation(n_clients, client_fraction, key)
            cohort = cohorts == key.round % (cohorts.max() + 1)
        elif federation.sampling == "poisson":
            cohort = key.uniform("cohort", np.arange(n_clients)) < client_fraction
        else:
            size = cohort_size(n_clients, client_fraction)
            cohort = _smallest(key.hashed("cohort", np.arange(n_clients)), size)
    dropped = np.zeros(n_clients, dtype=bool)
    if federation.dropout > 0:
        dropped[cohort] = key.uniform("dropout", np.flatnonzero(cohort)) < federation.dropout
    connected = cohort & ~dropped
    match federation.dropout_mode:
        case "upload":
            return Participation(cohort, cohort, connected, dropped)
        case "stale":
            return Participation(connected, cohort, connected, dropped)
        case "offline":
            return Participation(connected, connected, connected, dropped)


def _smallest(numbers, n):
    """Mask of the n smallest numbers; of equal numbers the first are taken."""
    largest = np.partition(numbers, n - 1)[n - 1]
    mask = numbers < largest
    mask[np.flatnonzero(numbers == largest)[: n - mask.sum()]] = True
    return mask


def cohort_size(n_clients: int, client_fraction: float) -> int:
    """Number of clients in a cohort that is drawn at random."""
    return max(1, round(client_fraction * n_clients))


def smallest_cohort(
    n_clients: int,
    client_fraction: float,
    federation: Federation,
    *,
    prefers_rotation: bool = False,
) -> int:
    """Smallest number of clients in a cohort, before any of them drops out."""
    if client_fraction < 1 and is_rotating(federation, prefers_rotation):
        return n_clients // n_rotating(n_clients, client_fraction)
    return cohort_size(n_clients, client_fraction)


def n_rotating(n_clients: int, client_fraction: float) -> int:
    """Number of rotating cohorts."""
    return min(n_clients, max(1, round(1 / client_fraction)))


def rotation(n_clients: int, client_fraction: float, key: Key) -> np.ndarray:
    """Return each client's cohort: a shuffled list cut into about 1 / client_fraction parts."""
    return _rotation(n_clients, client_fraction, key.at(-1))


@lru_cache(maxsize=4)
def _rotation(n_clients, client_fraction, key):
    # Cached, because it is the same in every round of a fit.
    n_cohorts = n_rotating(n_clients, client_fraction)
    rank = np.empty(n_clients, dtype=np.int64)
    rank[np.argsort(key.hashed("rotation", np.arange(n_clients)), kind="stable")] = np.arange(
        n_clients
    )
    cohorts = rank * n_cohorts // n_clients
    cohorts.setflags(write=False)
    return cohorts


def is_rotating(federation: Federation, prefers_rotation: bool) -> bool:
    """Return whether cohorts rotate instead of being drawn at random each round."""
    if federation.sampling == "auto":
        return prefers_rotation
    return federation.sampling == "rotating"


def histories(
    n_clients: int,
    client_fraction: float,
    federation: Federation,
    key: Key,
    *,
    prefers_rotation: bool = False,
) -> NDArray[np.int64]:
    """Number groups of clients that receive, update in and miss the same rounds, (n_clients,)."""
    alike = federation.dropout == 0 or federation.dropout_mode == "upload"
    if alike and client_fraction == 1:
        return np.zeros(n_clients, dtype=np.int64)
    if alike and is_rotating(federation, prefers_rotation):
        return rotation(n_clients, client_fraction, key)
    return np.arange(n_clients)
