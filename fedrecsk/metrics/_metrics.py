"""Metrics of rankings, ties in expectation.

Items of equal score are in random order, every order as likely as any other. Each metric is
its expectation over these orders, found without drawing any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from fedrecsk._utils.kernels import LazyModule

ranking_kernels: LazyModule = LazyModule("fedrecsk.metrics._ranking_kernels")


# Depth at which all places are exact.
EVERYWHERE = 2**62
# Number of steps per call of the kernel, so that a call ends within a second.
STEPS_PER_CALL = 2**27


class RankingSpec(NamedTuple):
    """The part of a ranking that metrics need."""

    cutoff: int = 1  # largest of the metrics
    whole: bool = False  # whether all places must be exact, as for AUC
    n_listed: int = 0  # length of the lists, 0 for none

    @classmethod
    def of(cls, metrics: Sequence[str], cutoffs: Sequence[int]) -> RankingSpec:
        """Return what these metrics need at these cutoffs."""
        k = max(cutoffs)
        with_cutoff = any(metric != "auc" for metric in metrics)
        of_lists = any(metric in OF_LISTS for metric in metrics)
        return cls(k if with_cutoff else 1, "auc" in metrics, k if of_lists else 0)

    @property
    def depth(self) -> int:
        """Return the place up to which places must be exact."""
        return EVERYWHERE if self.whole else self.cutoff

    def joined(self, other: RankingSpec) -> RankingSpec:
        """Return what both need."""
        return RankingSpec(*map(max, self, other))


@dataclass(frozen=True)
class Ranking:
    """Places of the relevant items of users who have one, and perhaps lists of recommendations."""

    spec: RankingSpec
    indptr: np.ndarray  # relevant items of each user; none is empty
    ahead: np.ndarray  # (n_relevant,) candidates that score higher; spec.depth or more: not found
    tied: np.ndarray  # (n_relevant,) candidates that score the same, including the item
    gains: np.ndarray  # (n_relevant,) relevance, positive, for NDCG
    n_candidates: np.ndarray | None = None  # (n_users,), for AUC
    lists: np.ndarray | None = None  # (n_users, n_listed) item codes, best first, then -1
    seen: tuple[np.ndarray, np.ndarray] | None = None  # (indptr, items) of each user of fit
    n_items: int = 0  # size of the catalogue

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sum a value of each relevant item, by user."""
        return np.add.reduceat(values, self.indptr[:-1])

    @property
    def n_relevant(self) -> np.ndarray:
        """Return the number of relevant items of each user."""
        return np.diff(self.indptr)

    @cached_property
    def best(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Count candidates above, level with and relevant at each user's best relevant item."""
        ahead = np.minimum.reduceat(self.ahead, self.indptr[:-1])
        best = self.ahead == np.repeat(ahead, self.n_relevant)
        members = self.sums(best.astype(np.int64))
        return ahead, self.sums(np.where(best, self.tied, 0)) // members, members

    @cached_property
    def among(self) -> tuple[np.ndarray, np.ndarray]:
        """Count, for each relevant item, the user's relevant items that score higher or equal."""
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

    @cached_property
    def owners(self) -> Any:
        """Return the users of fit by item, a CSR array of ones."""
        indptr, items = self.seen
        ones = np.ones(len(items), dtype=np.int8)
        users = sparse.csr_array((ones, items, indptr), (len(indptr) - 1, self.n_items))
        owners = users.T.tocsr()
        owners.sum_duplicates()
        return owners

    @property
    def n_owners(self) -> np.ndarray:
        """Count the users of fit who have each item."""
        return np.diff(self.owners.indptr)


def precision(ranking, k):
    """Return the expected share of relevant items among the first k."""
    return ranking.sums(_in_top(ranking, k)) / k


def recall(ranking, k):
    """Return the expected share of the relevant items that the first k places hold."""
    return ranking.sums(_in_top(ranking, k)) / ranking.n_relevant


def ndcg(ranking, k):
    """Return the expected discounted gain of the first k over that of the ideal ranking."""
    discounts = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, k + 2)))])
    first, last = _span(ranking, k)
    found = ranking.gains * (discounts[last] - discounts[first]) / ranking.tied
    return ranking.sums(found) / _ideal(ranking, discounts)


def hit_rate(ranking, k):
    """Return the probability that the first k places hold a relevant item."""
    return sum(probability for _, probability in _first_found(ranking, k))


def mrr(ranking, k):
    """Return the expected reciprocal place of the first relevant item, 0 beyond place k."""
    return sum(probability / place for place, probability in _first_found(ranking, k))


def average_precision(ranking, k):
    """Return the expected sum of precisions at relevant items, over min(k, n_relevant)."""
    first, last = _span(ranking, k)
    higher, equal = ranking.among
    inverses = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, k + 1))])
    # An item at place a + j of a group that begins after place a has this many relevant ones up to
    # it: those of higher groups, itself, and each other of its group with probability (j - 1) /
    # (tied - 1). The sum over j is of (c + (j - 1) d) / (a + j).
    others = (equal - 1) / np.maximum(ranking.tied - 1, 1)
    inverse = inverses[last] - inverses[first]
    found = (higher + 1) * inverse + others * (last - first - (ranking.ahead + 1) * inverse)
    return ranking.sums(found / ranking.tied) / np.minimum(ranking.n_relevant, k)


def auc(ranking, k=None):
    """Return the probability that a relevant item is ahead of another; NaN if all are relevant."""
    higher, equal = ranking.among
    found = ranking.ahead < ranking.spec.depth
    n_others = ranking.n_candidates - ranking.sums(found.astype(np.int64))
    per_item = np.repeat(n_others, ranking.n_relevant)
    behind = per_item - (ranking.ahead - higher) - (ranking.tied - equal) / 2
    pairs = ranking.n_relevant * n_others
    correct = ranking.sums(np.where(found, behind, 0.0))
    return np.divide(correct, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)


def _span(ranking, k):
    """Return the places up to k that an item shares: after `first`, up to `last`."""
    return np.minimum(ranking.ahead, k), np.minimum(ranking.ahead + ranking.tied, k)


def _in_top(ranking, k):
    first, last = _span(ranking, k)
    return (last - first) / ranking.tied


def _ideal(ranking, discounts):
    k = len(discounts) - 1
    gains = ranking.gains
    # By far the most common case; sorting would take longer than the ranking.
    if gains.min() == gains.max():
        return gains[0] * discounts[np.minimum(ranking.n_relevant, k)]
    users = np.repeat(np.arange(len(ranking.n_relevant)), ranking.n_relevant)
    order = np.lexsort((-gains, users))
    place = np.arange(len(gains)) - ranking.indptr[users]
    discount = np.where(place < k, np.diff(discounts, append=0)[np.minimum(place, k)], 0.0)
    return ranking.sums(gains[order] * discount)


def _first_found(ranking, k):
    """Yield places up to k and probabilities, by user, that the first relevant item is there."""
    ahead, tied, members = ranking.best
    missed = np.ones(len(ahead))
    for step in range(max(1, np.minimum(tied, k - ahead).max())):
        found = np.where(step < tied, members / np.maximum(tied - step, 1), 0.0)
        place = ahead + step + 1
        yield place, np.where(place <= k, missed * found, 0.0)
        missed = missed * (1 - found)


def coverage(ranking, k):
    """Return the share of the catalogue in at least one user's first k places, shape (1,)."""
    items = ranking.lists[:, :k]
    return np.array([len(np.unique(items[items >= 0])) / ranking.n_items])


def novelty(ranking, k):
    """Return the mean self-information of the first k items in bits; NaN for an empty list."""
    bits = np.log2(ranking.owners.shape[1] / np.maximum(ranking.n_owners, 1))
    items = ranking.lists[:, :k]
    found = items >= 0
    sums, n_found = np.where(found, bits[items], 0.0).sum(axis=1), found.sum(axis=1)
    return np.divide(sums, n_found, out=np.full(len(items), np.nan), where=n_found > 0)


def diversity(ranking, k):
    """Return the mean of 1 - cosine over pairs of the first k items; NaN for less than two."""
    items, owners = np.ascontiguousarray(ranking.lists[:, :k]), ranking.owners
    n_owners = ranking.n_owners
    inverse_lengths = np.where(n_owners > 0, 1 / np.sqrt(np.maximum(n_owners, 1)), 0.0)
    # Always the same types, so that the kernel is compiled only once.
    indptr, indices = owners.indptr.astype(np.int64), owners.indices.astype(np.int32)
    weight, cosines = np.zeros(owners.shape[1]), np.empty(len(items))
    work = np.cumsum(np.where(items >= 0, n_owners[items], 0).sum(axis=1))
    parts = np.searchsorted(work, np.arange(STEPS_PER_CALL, work[-1], STEPS_PER_CALL))
    for start, stop in pairwise([0, *parts, len(items)]):
        ranking_kernels.list_cosines(
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


AT_PLACES = {
    "ndcg": ndcg,
    "hit_rate": hit_rate,
    "precision": precision,
    "recall": recall,
    "mrr": mrr,
    "map": average_precision,
}
OF_LISTS = {"coverage": coverage, "novelty": novelty, "diversity": diversity}
# "auc" has no cutoff.
METRICS = AT_PLACES | {"auc": auc} | OF_LISTS
MISSING = {
    "auc": "a candidate that is not relevant",
    "novelty": "an item to recommend",
    "diversity": "two items to recommend",
}


def key_of(metric, k):
    """Return the name of a metric at a cutoff, as in results."""
    return metric if metric == "auc" else f"{metric}@{k}"


def value(metric, ranking, k):
    """Compute a metric by name: the mean over users, or coverage of all lists together."""
    values = METRICS[metric](ranking, k)
    known = values[~np.isnan(values)]
    if not len(known):
        raise ValueError(f"No user has {MISSING[metric]}, so there is no {metric}.")
    return float(known.mean())


def check_metrics(metrics, name="metrics"):
    """Return one name or several as a list of known names."""
    if not isinstance(metrics, str | Iterable):
        raise TypeError(f"{name} must be a name or several, got {metrics!r}.")
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    if not names:
        raise ValueError(f"{name} is empty; choose from {', '.join(METRICS)}.")
    for metric in names:
        if not isinstance(metric, str) or metric not in METRICS:
            cutoff = "; cutoffs go into k" if "@" in str(metric) else ""
            raise ValueError(
                f"Unknown metric {metric!r}; choose from {', '.join(METRICS)}{cutoff}."
            )
    return names


def check_cutoffs(k):
    """Return one cutoff or several as a list of positive integers."""
    values = [k] if np.ndim(k) == 0 else list(k)
    if not values:
        raise ValueError("k is empty; give at least one cutoff.")
    for value in values:
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(f"k must be an integer of at least 1, or several; got {value!r}.")
    return [int(value) for value in values]
