"""LightFR's steps as calls of its kernels, in pieces of bounded time."""

from __future__ import annotations

import numpy as np

from fedrecsk import _kernels
from fedrecsk._codes import n_words, unpack_codes
from fedrecsk._pieces import pieces

# How often a number is processed: in the sweeps over users' bits, and to add them up.
SWEEPS = 32
SUMS = 2


class Listing:
    """The users of a block's active clients, cut into pieces, with room for their visits.

    Parameters
    ----------
    block : Block
    active : ndarray of shape (n_clients,), dtype bool
    visits_per_row : int
        Visits of a row, its negatives included.
    n_bits : int

    Attributes
    ----------
    clients : ndarray
        The active clients.
    users : ndarray
        Their users, client by client.
    """

    def __init__(self, block, active, visits_per_row, n_bits):
        self.clients = np.flatnonzero(active)
        counts = np.diff(block.client_indptr)[self.clients]
        self._indptr = np.concatenate([[0], np.cumsum(counts)])
        shift = block.client_indptr[self.clients] - self._indptr[:-1]
        self.users = np.arange(self._indptr[-1]) + np.repeat(shift, counts)
        self._most = np.diff(block.indptr)[self.users] * visits_per_row
        self._ends = np.concatenate([[0], np.cumsum(self._most)])
        self._n_bits = n_bits

    def pieces(self):
        """Yield runs of active clients, the places of their users, and runs of these users.

        A run of clients has as many visits as one call should add up, or is a single client; its
        runs of users, places from its first user's, as many as one call should fit to, or are
        a single user.
        """
        for first, last in self._runs(self._ends[self._indptr], SUMS):
            indptr = self._indptr[first : last + 1]
            users = slice(indptr[0], indptr[-1])
            ends = self._ends[users.start : users.stop + 1]
            yield slice(first, last), indptr - indptr[0], users, self._runs(ends, SWEEPS)

    def _runs(self, ends, n_times):
        """Cut what ends there into runs."""
        return pieces(np.diff(ends), n_times * self._n_bits)

    def room(self):
        """Arrays for the visits of any run of clients, and scratch for any of its users."""
        kernels = _kernels.lightfr
        spans = [users for _, _, users, _ in self.pieces()]
        n_visits = max((self._ends[s.stop] - self._ends[s.start] for s in spans), default=0)
        n_users = max((s.stop - s.start for s in spans), default=0)
        most = self._most.max(initial=0)
        visits = kernels.Visits(
            np.zeros(n_users + 1, dtype=np.int64),
            *np.empty((4, n_visits), dtype=np.int64),
            np.empty((n_users, self._n_bits), dtype=np.int32),
        )
        scratch = kernels.Scratch(
            np.empty((n_words(self._n_bits), most), dtype=np.uint64),
            np.empty(most, dtype=np.int64),
            np.empty(self._n_bits, dtype=np.int64),
        )
        return visits, scratch

    @property
    def most_rows(self):
        """The most visits of each active client."""
        return np.diff(self._ends[self._indptr])


def by_curvature(codes, n_bits, sums, rule):
    """The server's step if users have sent a a' and a; changes the codes.

    Parameters
    ----------
    codes : ndarray of shape (n_items, n_words), dtype uint64
    n_bits : int
    sums : dict of ndarray
        The fields of an upload, summed.
    rule : _kernels.lightfr.ServerRule
    """
    signs, rows, gram = unpack_codes(codes, n_bits), sums["rows"], sums["gram"]
    pulls = rows[:, :n_bits] + (rule.base_pull * sums["total"] - rule.base * _product(signs, gram))
    curvatures = rule.base + rows[:, n_bits] // max(int(sums["n_users"][0]), 1)
    counts = signs.sum(axis=0, dtype=np.int64)
    for piece in pieces(np.ones(len(codes), dtype=bool), SWEEPS * n_bits):
        _kernels.lightfr.step_by_curvature(
            *piece,
            codes,
            signs,
            pulls,
            curvatures,
            gram,
            counts,
            rule,
        )


def _product(signs, gram):
    """Signs times a matrix of integers, by BLAS where float64 holds all sums exactly."""
    exact = np.abs(gram.astype(np.float64)).sum(axis=0).max(initial=0) < 2.0**53
    if not exact:
        return signs.astype(np.int64) @ gram
    return (signs.astype(np.float64) @ gram.astype(np.float64)).astype(np.int64)


def by_sign(codes, n_bits, memory, rule):
    """The server's step of the paper, the sign of the memory; changes the codes."""
    signs = unpack_codes(codes, n_bits)
    counts = signs.sum(axis=0, dtype=np.int64)
    _kernels.lightfr.step_by_sign(codes, signs, memory, counts, rule)
