"""Ranking metrics, of arrays of scores and of ranked held-out rows.

Items of equal score are in random order, every order as likely as any other. Each metric is
its expectation over these orders, found without drawing any.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.utils import check_array

from fedrecsk._utils.docs import documented
from fedrecsk._utils.given import check_given
from fedrecsk._utils.kernels import LazyModule

ranking_kernels: LazyModule = LazyModule("fedrecsk.metrics._ranking_kernels")

# Depth at which all places are exact.
EVERYWHERE = 2**62
# So many lists of users are compared in one product of sparse matrices.
LISTS_AT_ONCE = 1000


class RankingSpec(NamedTuple):
    """The part of a ranking that metrics need."""

    cutoff: int = 1  # largest of the metrics
    whole: bool = False  # whether all places must be exact, as for AUC
    n_listed: int = 0  # length of the lists, 0 for none

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
    seen: Any = None  # CSR array of ones, users by items of fit
    users: Any = None  # (n_users,) their ids

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
        return self.seen.T.tocsr()

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
    return np.array([len(np.unique(items[items >= 0])) / ranking.seen.shape[1]])


def novelty(ranking, k):
    """Return the mean self-information of the first k items in bits; NaN for an empty list."""
    bits = np.log2(ranking.owners.shape[1] / np.maximum(ranking.n_owners, 1))
    items = ranking.lists[:, :k]
    found = items >= 0
    sums, n_found = np.where(found, bits[items], 0.0).sum(axis=1), found.sum(axis=1)
    return np.divide(sums, n_found, out=np.full(len(items), np.nan), where=n_found > 0)


def diversity(ranking, k):
    """Return the mean of 1 - cosine over pairs of the first k items; NaN for less than two."""
    items, n_owners = ranking.lists[:, :k], ranking.n_owners
    lengths = np.sqrt(np.maximum(n_owners, 1))
    owners = sparse.diags_array(1 / lengths) @ ranking.owners
    n_found = (items >= 0).sum(axis=1)
    pairs, cosines = n_found * (n_found - 1) / 2, np.empty(len(items))
    for start in range(0, len(items), LISTS_AT_ONCE):
        batch = slice(start, start + LISTS_AT_ONCE)
        own = items[batch][items[batch] >= 0]
        indptr = np.concatenate([[0], np.cumsum(n_found[batch])])
        shape = len(indptr) - 1, owners.shape[0]
        sums = sparse.csr_array((np.ones(len(own)), own, indptr), shape) @ owners
        alone = sparse.csr_array((n_owners[own] > 0, own, indptr), shape).sum(axis=1)
        cosines[batch] = (sums.multiply(sums).sum(axis=1) - alone) / 2
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


# ----------------------------------------------------------------------------- arrays of scores


def ndcg_at_k(
    y_true: ArrayLike, y_score: ArrayLike, *, k: int = 10, average: str | None = "macro"
) -> float | NDArray[np.float64]:
    """Normalised discounted cumulative gain (NDCG) of the first k places.

    The sum of gains, each divided by log2(1 + place) [1]_, over the same sum for the ideal
    ranking. Tied items share the discounts of the places that they fill together, which is the
    expectation over random orders.

    Parameters
    ----------
    y_true : array-like or sparse matrix of shape (n_users, n_candidates)
        Relevance of the candidates, which is their gain. Candidates with 0 or less are not
        relevant.
    y_score : array-like of shape (n_users, n_candidates)
        Scores of the candidates. Candidates with a score of -inf are not ranked: if they are
        relevant, they are never found, but count in the ideal ranking.
    k : int, default=10
        Number of places to look at.
    average : {"macro"} or None, default="macro"
        ``"macro"`` returns the mean over all users with a relevant candidate. None returns each
        user's value, NaN for users without a relevant candidate.

    Returns
    -------
    ndcg : float or ndarray of shape (n_users,), dtype float64
        In [0, 1].

    Raises
    ------
    ValueError
        If shapes differ, a score is NaN, k is below 1 or above `n_candidates`, or no user
        has a relevant candidate to average over.

    References
    ----------
    .. [1] K. Jarvelin and J. Kekalainen, "Cumulated gain-based evaluation of IR
       techniques", TOIS 20(4), 2002; linear gain.

    Examples
    --------
    >>> from fedrecsk.metrics import ndcg_at_k
    >>> ndcg_at_k([[0, 0, 1], [1, 0, 0]], [[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]], k=3)
    0.75...
    """
    return _metric("ndcg", y_true, y_score, k, average)


@documented
def hit_rate_at_k(
    y_true: ArrayLike, y_score: ArrayLike, *, k: int = 10, average: str | None = "macro"
) -> float | NDArray[np.float64]:
    """Share of users with a relevant item among the first k places.

    With ties it is the expected share over random orders of the tied items.

    {of the first k}

    Examples
    --------
    >>> from fedrecsk.metrics import hit_rate_at_k
    >>> hit_rate_at_k([[0, 0, 1], [0, 0, 1]], [[3.0, 2.0, 1.0], [1.0, 2.0, 2.0]], k=1)
    0.25
    """
    return _metric("hit_rate", y_true, y_score, k, average)


@documented
def precision_at_k(
    y_true: ArrayLike, y_score: ArrayLike, *, k: int = 10, average: str | None = "macro"
) -> float | NDArray[np.float64]:
    """Share of relevant items among the first k places.

    The divisor is k even for users with fewer relevant items. With ties it is the expected
    share over random orders of the tied items.

    {of the first k}

    Examples
    --------
    >>> from fedrecsk.metrics import precision_at_k
    >>> precision_at_k([[1, 0, 1, 0]], [[4.0, 3.0, 2.0, 1.0]], k=2)
    0.5
    """
    return _metric("precision", y_true, y_score, k, average)


@documented
def recall_at_k(
    y_true: ArrayLike, y_score: ArrayLike, *, k: int = 10, average: str | None = "macro"
) -> float | NDArray[np.float64]:
    """Share of a user's relevant items that are among the first k places.

    The divisor is the number of relevant items, so a user with more than k of them cannot
    reach 1. With ties it is the expected share over random orders of the tied items.

    {of the first k}

    Examples
    --------
    >>> from fedrecsk.metrics import recall_at_k
    >>> recall_at_k([[1, 0, 1, 0]], [[4.0, 3.0, 2.0, 1.0]], k=2)
    0.5
    """
    return _metric("recall", y_true, y_score, k, average)


@documented
def reciprocal_rank_at_k(
    y_true: ArrayLike, y_score: ArrayLike, *, k: int = 10, average: str | None = "macro"
) -> float | NDArray[np.float64]:
    """Mean reciprocal rank (MRR): 1 / place of the first relevant item, or 0 beyond place k.

    With ties it is the expectation over random orders of the tied items.

    {of the first k}

    Examples
    --------
    >>> from fedrecsk.metrics import reciprocal_rank_at_k
    >>> reciprocal_rank_at_k([[0, 1, 1, 0]], [[4.0, 3.0, 2.0, 1.0]], k=3)
    0.5
    """
    return _metric("mrr", y_true, y_score, k, average)


@documented
def average_precision_at_k(
    y_true: ArrayLike, y_score: ArrayLike, *, k: int = 10, average: str | None = "macro"
) -> float | NDArray[np.float64]:
    """Mean average precision (MAP): the mean precision at the places of relevant items.

    For each relevant item among the first k places, take the precision up to its place. The sum
    of these is divided by k, or by the number of relevant items if that is smaller. With ties it
    is the expectation over random orders of the tied items.

    {of the first k}

    Examples
    --------
    >>> from fedrecsk.metrics import average_precision_at_k
    >>> average_precision_at_k([[1, 0, 1, 0]], [[4.0, 3.0, 2.0, 1.0]], k=3)
    0.833...
    """
    return _metric("map", y_true, y_score, k, average)


def user_auc(
    y_true: ArrayLike, y_score: ArrayLike, *, average: str | None = "macro"
) -> float | NDArray[np.float64]:
    """Area under the ROC curve of each user's ranking.

    This is the probability that a random relevant candidate scores higher than a random
    irrelevant one, where a tie counts one half.

    Parameters
    ----------
    y_true : array-like or sparse matrix of shape (n_users, n_candidates)
        Candidates with a value above 0 are relevant.
    y_score : array-like of shape (n_users, n_candidates)
        Scores of the candidates. Candidates with a score of -inf are not ranked: if they are
        relevant they count as last, and otherwise not at all.
    average : {"macro"} or None, default="macro"
        ``"macro"`` returns the mean over all users with a relevant and an irrelevant candidate.
        None returns each user's value, NaN for other users.

    Returns
    -------
    auc : float or ndarray of shape (n_users,), dtype float64
        In [0, 1]; 0.5 is chance.

    Raises
    ------
    ValueError
        If shapes differ, a score is NaN, or there is no user to average over.

    See Also
    --------
    sklearn.metrics.roc_auc_score : Over the pairs of all users together.

    Examples
    --------
    >>> from fedrecsk.metrics import user_auc
    >>> user_auc([[1, 0, 1, 0]], [[4.0, 3.0, 2.0, 1.0]])
    0.75
    """
    return _metric("auc", y_true, y_score, None, average)


def _metric(name, y_true, y_score, k, average):
    if k is not None:
        (k,) = check_cutoffs([k])
    if average not in ("macro", None):
        raise ValueError(f"average must be 'macro' or None, got {average!r}.")
    relevant, scores = _matrices(y_true, y_score)
    if k is not None and k > scores.shape[1]:
        raise ValueError(f"k={k} is more than the {scores.shape[1]} candidates; lower k.")
    judged = np.diff(relevant.indptr) > 0
    values = np.full(len(scores), np.nan)
    if judged.any():
        spec = RankingSpec(whole=True) if k is None else RankingSpec(k)
        values[judged] = METRICS[name](_rank(relevant, scores, spec), k)
    if average is None:
        return values
    if np.isnan(values).all():
        raise ValueError(
            "No user has a relevant candidate (y_true > 0), so there is nothing to average."
            if k is not None
            else "No user has both a relevant candidate (y_true > 0) and one that is not, so there "
            "is no AUC."
        )
    return float(np.nanmean(values))


def _matrices(y_true, y_score):
    check_given(y_true, "y_true")
    check_given(y_score, "y_score")
    scores = check_array(
        y_score, dtype=[np.float64, np.float32], ensure_all_finite=False, input_name="y_score"
    )
    if np.isnan(scores).any():
        row, column = np.argwhere(np.isnan(scores))[0]
        raise ValueError(f"y_score is NaN for user {row}, candidate {column}; did the fit diverge?")
    y_true = check_array(y_true, accept_sparse="csr", dtype=np.float64, input_name="y_true")
    if y_true.shape != scores.shape:
        raise ValueError(f"y_true has shape {y_true.shape}, but y_score has {scores.shape}.")
    relevant = sparse.csr_array(y_true)
    relevant = relevant.multiply(relevant > 0).tocsr()
    relevant.eliminate_zeros()
    return relevant, np.ascontiguousarray(scores)


def _rank(relevant, scores, spec):
    n_users, n_candidates = scores.shape
    ahead, tied = np.empty((2, relevant.nnz), dtype=np.int64)
    indptr = relevant.indptr.astype(np.int64)
    ranking_kernels.places(
        scores.ravel(),
        np.arange(n_users + 1) * n_candidates,
        indptr,
        relevant.indices.astype(np.int64),
        spec.depth,
        ahead,
        tied,
    )
    n_ranked = (scores > -np.inf).sum(axis=1)[np.diff(indptr) > 0]
    return Ranking(spec, np.unique(indptr), ahead, tied, relevant.data, n_ranked)
