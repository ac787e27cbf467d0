"""Who takes part in a round, and whose message is lost."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np


class Participation(NamedTuple):
    """The clients' part in one round; boolean masks of shape (n_clients,).

    Attributes
    ----------
    receives : receives the server's message
    active : runs its local update
    delivers : its upload, if it sends one, arrives
    dropped : was meant to take part in full and could not
    """

    receives: np.ndarray
    active: np.ndarray
    delivers: np.ndarray
    dropped: np.ndarray

    @classmethod
    def full(cls, n_clients):
        """Everybody takes part, and nothing is lost."""
        everyone = np.ones(n_clients, dtype=bool)
        return cls(everyone, everyone, everyone, ~everyone)

    def of(self, clients):
        """The part of some clients (codes)."""
        return Participation(*(mask[clients] for mask in self))


class Turn(NamedTuple):
    """What a method's `_client_update` must know of a round.

    Attributes
    ----------
    active : ndarray of shape (n_clients of the block,), dtype bool
        Clients that update.
    delivers : ndarray of the same shape and dtype
        Clients whose upload arrives. A client does not know it: the simulator adds uploads up
        where they are made.
    separate : bool
        Whether uploads are handed over client by client instead of as a sum.
    """

    active: np.ndarray
    delivers: np.ndarray
    separate: bool


def draw(n_clients, client_fraction, federation, key, *, prefers_rotation=False):
    """Draw one round's participation.

    Parameters
    ----------
    n_clients : int
    client_fraction : float in (0, 1]
        Share of the clients in a round's cohort.
    federation : Federation
        Gives `sampling`, `dropout` and `dropout_mode`.
    key : Key
        Of the round.
    prefers_rotation : bool, default=False
        Whether ``sampling="auto"`` means "rotating" for the method.

    Returns
    -------
    Participation
    """
    if client_fraction == 1:
        cohort = np.ones(n_clients, dtype=bool)
    elif is_rotating(federation, prefers_rotation):
        cohorts = rotation(n_clients, client_fraction, key)
        cohort = cohorts == key.round % (cohorts.max() + 1)
    else:
        size = cohort_size(n_clients, client_fraction)
        cohort = _smallest(key.hashed("cohort", np.arange(n_clients)), size)
    return of_cohort(cohort, federation, key)


def of_cohort(cohort, federation, key):
    """One round's participation of a cohort (a mask), some of which may fail."""
    dropped = np.zeros(len(cohort), dtype=bool)
    dropped[cohort] = key.uniform("dropout", cohort.nonzero()[0]) < federation.dropout
    connected = cohort & ~dropped
    match federation.dropout_mode:
        case "upload":
            return Participation(cohort, cohort, connected, dropped)
        case "stale":
            return Participation(connected, cohort, connected, dropped)
        case "offline":
            return Participation(connected, connected, connected, dropped)


def _smallest(numbers, n):
    """Mask of the n smallest numbers, of equal ones the first."""
    largest = np.partition(numbers, n - 1)[n - 1]
    mask = numbers < largest
    mask[np.flatnonzero(numbers == largest)[: n - mask.sum()]] = True
    return mask


def cohort_size(n_clients, client_fraction):
    """Clients in a cohort that is drawn anew for its round."""
    return max(1, round(client_fraction * n_clients))


def smallest_cohort(n_clients, client_fraction, federation, *, prefers_rotation=False):
    """The least number of clients in a round's cohort, before any of them fails."""
    if client_fraction < 1 and is_rotating(federation, prefers_rotation):
        return n_clients // n_rotating(n_clients, client_fraction)
    return cohort_size(n_clients, client_fraction)


def n_rotating(n_clients, client_fraction):
    """How many cohorts take turns."""
    return min(n_clients, max(1, round(1 / client_fraction)))


def rotation(n_clients, client_fraction, key):
    """Cohort number of each client: a shuffled list cut into about 1 / client_fraction parts."""
    return _rotation(n_clients, client_fraction, key.at(-1))


@lru_cache(maxsize=4)
def _rotation(n_clients, client_fraction, key):
    # The same in every round of a fit.
    n_cohorts = n_rotating(n_clients, client_fraction)
    rank = np.empty(n_clients, dtype=np.int64)
    rank[np.argsort(key.hashed("rotation", np.arange(n_clients)), kind="stable")] = np.arange(
        n_clients
    )
    cohorts = rank * n_cohorts // n_clients
    cohorts.setflags(write=False)
    return cohorts


def is_rotating(federation, prefers_rotation):
    """Whether cohorts take turns instead of being drawn anew each round."""
    if federation.sampling == "auto":
        return prefers_rotation
    return federation.sampling == "rotating"


def histories(n_clients, client_fraction, federation, key, *, prefers_rotation=False):
    """Group clients that always receive, update and miss the same rounds.

    Returns
    -------
    groups : ndarray of shape (n_clients,), dtype int64
        Equal numbers mean equal histories, whatever uploads get lost on the way.
    """
    alike = federation.dropout == 0 or federation.dropout_mode == "upload"
    if alike and client_fraction == 1:
        return np.zeros(n_clients, dtype=np.int64)
    if alike and is_rotating(federation, prefers_rotation):
        return rotation(n_clients, client_fraction, key)
    return np.arange(n_clients)
