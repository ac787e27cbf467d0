"""Metrics of lists of recommendations: coverage, novelty and diversity."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse

from fedrecsk import _kernels

# Number of steps per call of the kernel, so that a call ends within a second.
STEPS_PER_CALL = 2**27


@dataclass(frozen=True)
class Lists:
    """The first items of each user's ranking, and which users have which items in fit.

    Attributes
    ----------
    items : ndarray of shape (n_users, depth)
        Item codes, best first and ties by code; -1 in the last places of a short list.
    seen : tuple (indptr, items) or None
        Item codes of each user of fit.
    n_items : int
        Size of the catalogue.
    """

    items: np.ndarray
    seen: tuple[np.ndarray, np.ndarray] | None
    n_items: int

    @cached_property
    def owners(self) -> Any:
        """Users of fit by item, a CSR array of ones."""
        indptr, items = self.seen
        ones = np.ones(len(items), dtype=np.int8)
        users = sparse.csr_array((ones, items, indptr), (len(indptr) - 1, self.n_items))
        owners = users.T.tocsr()
        owners.sum_duplicates()
        return owners

    @property
    def n_owners(self) -> np.ndarray:
        """Number of users of fit who have each item."""
        return np.diff(self.owners.indptr)


def coverage(lists, k):
    """Share of the catalogue that is in at least one user's first k places."""
    items = lists.items[:, :k]
    return len(np.unique(items[items >= 0])) / lists.n_items


def novelty(lists, k):
    """Mean self-information of each user's first k items, in bits; NaN for an empty list."""
    bits = np.log2(lists.owners.shape[1] / np.maximum(lists.n_owners, 1))
    items = lists.items[:, :k]
    found = items >= 0
    sums, n_found = np.where(found, bits[items], 0.0).sum(axis=1), found.sum(axis=1)
    return np.divide(sums, n_found, out=np.full(len(items), np.nan), where=n_found > 0)


def diversity(lists, k):
    """Mean of 1 - cosine over pairs of each user's first k items; NaN for less than two items."""
    items, owners = np.ascontiguousarray(lists.items[:, :k]), lists.owners
    n_owners = lists.n_owners
    inverse_lengths = np.where(n_owners > 0, 1 / np.sqrt(np.maximum(n_owners, 1)), 0.0)
    # Always the same types, so that the kernel is compiled only once.
    indptr, indices = owners.indptr.astype(np.int64), owners.indices.astype(np.int32)
    weight, cosines = np.zeros(owners.shape[1]), np.empty(len(items))
    work = np.cumsum(np.where(items >= 0, n_owners[items], 0).sum(axis=1))
    parts = np.searchsorted(work, np.arange(STEPS_PER_CALL, work[-1], STEPS_PER_CALL))
    for start, stop in pairwise([0, *parts, len(items)]):
        _kernels.ranking.list_cosines(
            items[start:stop],
            indptr,
            indices,
            inverse_lengths,
            weight,
            cosines[start:stop],
        )
    n_found = (items >= 0).sum(axis=1)
    pairs = n_found * (n_found - 1) / 2
    return np.divide(pairs - cosines, pairs, out=np.full(len(items), np.nan), where=pairs > 0)
