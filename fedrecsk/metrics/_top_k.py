"""The best columns of each row."""

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
