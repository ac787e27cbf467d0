"""Ranking metrics of arrays of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse
from sklearn.utils import check_array

from fedrecsk._utils.kernels import LazyModule
from fedrecsk.metrics._metrics import METRICS, Ranking, RankingSpec, check_cutoffs

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

ranking_kernels: LazyModule = LazyModule("fedrecsk.metrics._ranking_kernels")


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


def hit_rate_at_k(
    y_true: ArrayLike, y_score: ArrayLike, *, k: int = 10, average: str | None = "macro"
) -> float | NDArray[np.float64]:
    """Share of users with a relevant item among the first k places.

    With ties it is the expected share over random orders of the tied items.

    Parameters
    ----------
    y_true : array-like or sparse matrix of shape (n_users, n_candidates)
        Candidates with a value above 0 are relevant.
    y_score, k, average
        As in :func:`ndcg_at_k`.

    Returns
    -------
    hit_rate : float or ndarray of shape (n_users,), dtype float64
        In [0, 1].

    Raises
    ------
    ValueError
        As in :func:`ndcg_at_k`.

    Examples
    --------
    >>> from fedrecsk.metrics import hit_rate_at_k
    >>> hit_rate_at_k([[0, 0, 1], [0, 0, 1]], [[3.0, 2.0, 1.0], [1.0, 2.0, 2.0]], k=1)
    0.25
    """
    return _metric("hit_rate", y_true, y_score, k, average)


def precision_at_k(
    y_true: ArrayLike, y_score: ArrayLike, *, k: int = 10, average: str | None = "macro"
) -> float | NDArray[np.float64]:
    """Share of relevant items among the first k places.

    The divisor is k even for users with fewer relevant items. With ties it is the expected
    share over random orders of the tied items.

    Parameters
    ----------
    y_true : array-like or sparse matrix of shape (n_users, n_candidates)
        Candidates with a value above 0 are relevant.
    y_score, k, average
        As in :func:`ndcg_at_k`.

    Returns
    -------
    precision : float or ndarray of shape (n_users,), dtype float64
        In [0, 1].

    Raises
    ------
    ValueError
        As in :func:`ndcg_at_k`.

    Examples
    --------
    >>> from fedrecsk.metrics import precision_at_k
    >>> precision_at_k([[1, 0, 1, 0]], [[4.0, 3.0, 2.0, 1.0]], k=2)
    0.5
    """
    return _metric("precision", y_true, y_score, k, average)


def recall_at_k(
    y_true: ArrayLike, y_score: ArrayLike, *, k: int = 10, average: str | None = "macro"
) -> float | NDArray[np.float64]:
    """Share of a user's relevant items that are among the first k places.

    The divisor is the number of relevant items, so a user with more than k of them cannot
    reach 1. With ties it is the expected share over random orders of the tied items.

    Parameters
    ----------
    y_true : array-like or sparse matrix of shape (n_users, n_candidates)
        Candidates with a value above 0 are relevant.
    y_score, k, average
        As in :func:`ndcg_at_k`.

    Returns
    -------
    recall : float or ndarray of shape (n_users,), dtype float64
        In [0, 1].

    Raises
    ------
    ValueError
        As in :func:`ndcg_at_k`.

    Examples
    --------
    >>> from fedrecsk.metrics import recall_at_k
    >>> recall_at_k([[1, 0, 1, 0]], [[4.0, 3.0, 2.0, 1.0]], k=2)
    0.5
    """
    return _metric("recall", y_true, y_score, k, average)


def reciprocal_rank_at_k(
    y_true: ArrayLike, y_score: ArrayLike, *, k: int = 10, average: str | None = "macro"
) -> float | NDArray[np.float64]:
    """Mean reciprocal rank (MRR): 1 / place of the first relevant item, or 0 beyond place k.

    With ties it is the expectation over random orders of the tied items.

    Parameters
    ----------
    y_true : array-like or sparse matrix of shape (n_users, n_candidates)
        Candidates with a value above 0 are relevant.
    y_score, k, average
        As in :func:`ndcg_at_k`.

    Returns
    -------
    reciprocal_rank : float or ndarray of shape (n_users,), dtype float64
        In [0, 1].

    Raises
    ------
    ValueError
        As in :func:`ndcg_at_k`.

    Examples
    --------
    >>> from fedrecsk.metrics import reciprocal_rank_at_k
    >>> reciprocal_rank_at_k([[0, 1, 1, 0]], [[4.0, 3.0, 2.0, 1.0]], k=3)
    0.5
    """
    return _metric("mrr", y_true, y_score, k, average)


def average_precision_at_k(
    y_true: ArrayLike, y_score: ArrayLike, *, k: int = 10, average: str | None = "macro"
) -> float | NDArray[np.float64]:
    """Mean average precision (MAP): the mean precision at the places of relevant items.

    For each relevant item among the first k places, take the precision up to its place. The sum
    of these is divided by k, or by the number of relevant items if that is smaller. With ties it
    is the expectation over random orders of the tied items.

    Parameters
    ----------
    y_true : array-like or sparse matrix of shape (n_users, n_candidates)
        Candidates with a value above 0 are relevant.
    y_score, k, average
        As in :func:`ndcg_at_k`.

    Returns
    -------
    average_precision : float or ndarray of shape (n_users,), dtype float64
        In [0, 1].

    Raises
    ------
    ValueError
        As in :func:`ndcg_at_k`.

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
