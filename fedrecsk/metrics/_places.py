"""From the places of relevant items to metrics per user, ties in expectation.

Items of equal score are in random order, every order as likely as any other. Each metric is
its expectation over these orders, found without drawing any.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Places:
    """Where relevant items stand in the rankings of users, each of whom has at least one.

    Attributes
    ----------
    indptr : ndarray of shape (n_users + 1,)
        Relevant items of each user; none is empty.
    ahead : ndarray of shape (n_relevant,)
        Number of candidates that score higher; `depth` or more for an item that is never found.
    tied : ndarray of shape (n_relevant,)
        Number of candidates that score the same, including the item.
    gains : ndarray of shape (n_relevant,)
        Relevance, positive. Only NDCG uses it.
    depth : int
        Places are exact up to this one, so cutoffs may not be larger.
    n_candidates : ndarray of shape (n_users,), or None
        Candidates in each user's ranking; only AUC needs it.
    """

    indptr: np.ndarray
    ahead: np.ndarray
    tied: np.ndarray
    gains: np.ndarray
    depth: int
    n_candidates: np.ndarray | None = None

    def sums(self, values):
        """Sum of a value per relevant item, by user."""
        return np.add.reduceat(values, self.indptr[:-1])

    @property
    def n_relevant(self):
        """Relevant items by user."""
        return np.diff(self.indptr)

    @cached_property
    def best(self):
        """The tied candidates that hold each user's best relevant items.

        Number of candidates ahead of them, number of tied candidates, and number of relevant ones
        among these: three arrays of shape (n_users,).
        """
        ahead = np.minimum.reduceat(self.ahead, self.indptr[:-1])
        best = self.ahead == np.repeat(ahead, self.n_relevant)
        members = self.sums(best.astype(np.int64))
        return ahead, self.sums(np.where(best, self.tied, 0)) // members, members

    @cached_property
    def among(self):
        """For each relevant item, how many of the user's relevant items score higher or the same.

        The item itself counts among those that score the same.
        """
        users = np.repeat(np.arange(len(self.n_relevant)), self.n_relevant)
        order = np.lexsort((self.ahead, users))
        keys = np.stack([users[order], self.ahead[order]])
        # Runs of equal keys.
        starts = np.flatnonzero(np.append(True, (np.diff(keys) != 0).any(axis=0)))
        lengths = np.diff(np.append(starts, len(order)))
        higher, equal = np.empty((2, len(order)), dtype=np.int64)
        higher[order] = np.repeat(starts - self.indptr[users[order[starts]]], lengths)
        equal[order] = np.repeat(lengths, lengths)
        return higher, equal


def precision(places, k):
    """Expected share of relevant items among the first k places."""
    return places.sums(_in_top(places, k)) / k


def recall(places, k):
    """Expected share of the relevant items that the first k places hold."""
    return places.sums(_in_top(places, k)) / places.n_relevant


def ndcg(places, k):
    """Expected discounted gain of the first k places over that of the ideal ranking."""
    discounts = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, k + 2)))])
    first, last = _span(places, k)
    found = places.gains * (discounts[last] - discounts[first]) / places.tied
    return places.sums(found) / _ideal(places, discounts)


def hit_rate(places, k):
    """Probability that the first k places hold a relevant item."""
    return sum(probability for _, probability in _first_found(places, k))


def mrr(places, k):
    """Expected reciprocal place of the first relevant item, 0 beyond place k."""
    return sum(probability / place for place, probability in _first_found(places, k))


def average_precision(places, k):
    """Expected mean of the precision at the places of relevant items, over min(k, n_relevant)."""
    first, last = _span(places, k)
    higher, equal = places.among
    inverses = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, k + 1))])
    # An item at place a + j of a group that begins after place a has so many relevant ones up to
    # it: those of higher groups, itself, and each other of its group with probability (j - 1) /
    # (tied - 1). The sum over j is of (c + (j - 1) d) / (a + j).
    others = (equal - 1) / np.maximum(places.tied - 1, 1)
    inverse = inverses[last] - inverses[first]
    found = (higher + 1) * inverse + others * (last - first - (places.ahead + 1) * inverse)
    return places.sums(found / places.tied) / np.minimum(places.n_relevant, k)


def auc(places):
    """Probability that a relevant item is ahead of one that is not; NaN if there is no such."""
    higher, equal = places.among
    found = places.ahead < places.depth
    n_others = places.n_candidates - places.sums(found.astype(np.int64))
    per_item = np.repeat(n_others, places.n_relevant)
    behind = per_item - (places.ahead - higher) - (places.tied - equal) / 2
    pairs = places.n_relevant * n_others
    correct = places.sums(np.where(found, behind, 0.0))
    return np.divide(correct, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)


def _span(places, k):
    """The places up to k that an item shares: those after `first`, up to `last`."""
    return np.minimum(places.ahead, k), np.minimum(places.ahead + places.tied, k)


def _in_top(places, k):
    first, last = _span(places, k)
    return (last - first) / places.tied


def _ideal(places, discounts):
    k = len(discounts) - 1
    gains = places.gains
    # By far the most common case; sorting would take longer than the ranking.
    if gains.min() == gains.max():
        return gains[0] * discounts[np.minimum(places.n_relevant, k)]
    users = np.repeat(np.arange(len(places.n_relevant)), places.n_relevant)
    order = np.lexsort((-gains, users))
    place = np.arange(len(gains)) - places.indptr[users]
    discount = np.where(place < k, np.diff(discounts, append=0)[np.minimum(place, k)], 0.0)
    return places.sums(gains[order] * discount)


def _first_found(places, k):
    """Places up to k and the probabilities, by user, that the first relevant item is there."""
    ahead, tied, members = places.best
    missed = np.ones(len(ahead))
    for step in range(max(1, np.minimum(tied, k - ahead).max())):
        found = np.where(step < tied, members / np.maximum(tied - step, 1), 0.0)
        place = ahead + step + 1
        yield place, np.where(place <= k, missed * found, 0.0)
        missed = missed * (1 - found)
