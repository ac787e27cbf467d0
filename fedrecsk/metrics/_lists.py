"""From lists of recommendations to metrics beyond accuracy: of the catalogue and of variety."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

# Numbers of a batch's sums over users of fit.
NUMBERS_PER_BATCH = 2**22


@dataclass(frozen=True)
class Lists:
    """The first items of each user's ranking, ties by item code, and who has which item in fit.

    Attributes
    ----------
    items : ndarray of shape (n_users, depth)
        Item codes, best first; -1 in the last places of a user with too few items.
    seen : tuple (indptr, items) or None
        Item codes of each user of fit.
    n_items : int
        Size of the catalogue.
    """

    items: np.ndarray
    seen: tuple[np.ndarray, np.ndarray] | None
    n_items: int

    @cached_property
    def owners(self):
        """Users of fit by item, each item's row brought to length 1; a CSR array."""
        indptr, items = self.seen
        ones = np.ones(len(items), dtype=np.float32)
        users = sparse.csr_array((ones, items, indptr), (len(indptr) - 1, self.n_items))
        users.sum_duplicates()
        users.data[:] = 1
        owners = users.T.tocsr()
        lengths = np.sqrt(np.maximum(np.diff(owners.indptr), 1))
        owners.data /= np.repeat(lengths, np.diff(owners.indptr)).astype(np.float32)
        return owners


def coverage(lists, k):
    """Share of the catalogue that is in somebody's first k places."""
    items = lists.items[:, :k]
    return len(np.unique(items[items >= 0])) / lists.n_items


def novelty(lists, k):
    """Mean self-information of each user's first k items, in bits; NaN for an empty list."""
    n_owners = np.diff(lists.owners.indptr)
    bits = np.log2(lists.owners.shape[1] / np.maximum(n_owners, 1))
    items = lists.items[:, :k]
    found = items >= 0
    sums, n_found = np.where(found, bits[items], 0.0).sum(axis=1), found.sum(axis=1)
    return np.divide(sums, n_found, out=np.full(len(items), np.nan), where=n_found > 0)


def diversity(lists, k):
    """Mean of 1 - cosine over pairs of each user's first k items; NaN for less than two items."""
    items, owners = lists.items[:, :k], lists.owners
    values = np.full(len(items), np.nan)
    known = np.diff(owners.indptr) > 0
    size = max(1, NUMBERS_PER_BATCH // max(1, owners.shape[1]))
    for start in range(0, len(items), size):
        some = items[start : start + size]
        found = some >= 0
        n = found.sum(axis=1)
        indptr = np.concatenate([[0], np.cumsum(n)])
        listed = sparse.csr_array(
            (np.ones(indptr[-1], dtype=np.float32), some[found], indptr),
            (len(some), lists.n_items),
        )
        # |sum of unit vectors|^2 is their number and twice the sum of the cosines of all pairs.
        squares = (listed @ owners).power(2).sum(axis=1)
        cosines = (squares - (found & known[some]).sum(axis=1)) / 2
        pairs = n * (n - 1) / 2
        of_some = values[start : start + size]
        np.divide(pairs - cosines, pairs, out=of_some, where=pairs > 0)
    return values
