"""Ranking metrics from scores, ties in expectation."""

from __future__ import annotations

import numpy as np


def top_k(scores, k):
    """Columns of the k largest scores of each row, best first, ties by column order.

    Parameters
    ----------
    scores : ndarray of shape (n_rows, n_columns), n_columns >= k
    k : int

    Returns
    -------
    columns : ndarray of shape (n_rows, k), dtype int64
    """
    n_columns = scores.shape[1]
    if k < n_columns:
        threshold = -np.partition(-scores, k - 1, axis=1)[:, k - 1 : k]
        above = scores > threshold
        # Of the columns that tie at the threshold, the first ones fill the remaining places.
        level = scores == threshold
        places = k - above.sum(axis=1, keepdims=True)
        chosen = above | (level & (np.cumsum(level, axis=1) <= places))
        columns = np.nonzero(chosen)[1].reshape(len(scores), k)
    else:
        columns = np.broadcast_to(np.arange(n_columns), scores.shape)
    order = np.argsort(-np.take_along_axis(scores, columns, axis=1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1)


def ndcg(scores, rows, columns, gains, k=10):
    """Normalised discounted cumulative gain at k of each row.

    Items of equal score share the discounts of the places they fill together, which is the
    expectation over a random order among them.

    Parameters
    ----------
    scores : ndarray of shape (n_rows, n_columns)
        Scores of all candidates; -inf takes one out of the ranking.
    rows, columns : ndarray of shape (n_relevant,)
        The judged pairs; column -1 is an item outside the catalogue, which is never found.
    gains : ndarray of shape (n_relevant,)
        Their relevance, 0 for none.
    k : int, default=10

    Returns
    -------
    ndcg : ndarray of shape (n_rows,)
        In [0, 1]; NaN for rows without relevant pairs.
    """
    discount_sums = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, k + 2)))])
    judged = (gains > 0) & (columns >= 0)
    r, c, g = rows[judged], columns[judged], gains[judged]
    mine = scores[r, c]
    ahead = np.array([np.sum(scores[i] > s) for i, s in zip(r, mine, strict=True)], dtype=int)
    tied = np.array([np.sum(scores[i] == s) for i, s in zip(r, mine, strict=True)], dtype=int)
    shared = discount_sums[np.minimum(ahead + tied, k)] - discount_sums[np.minimum(ahead, k)]
    dcg = np.bincount(r, g * shared / tied, minlength=len(scores))

    ideal_order = np.lexsort((-gains, rows))
    counts = np.bincount(rows, minlength=len(scores))
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    weights = np.where(place < k, 1 / np.log2(place + 2), 0.0)
    ideal = np.bincount(rows[ideal_order], gains[ideal_order] * weights, minlength=len(scores))
    with np.errstate(invalid="ignore"):
        return np.where(ideal > 0, dcg / ideal, np.nan)
