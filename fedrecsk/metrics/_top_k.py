"""The best columns of each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def top_k(scores: np.ndarray, k: int) -> NDArray[np.int64]:
    """Columns of the k largest scores of each row, best first, ties by column order.

    Scores that are not finite come last.

    Parameters
    ----------
    scores : ndarray of shape (n_rows, n_columns), n_columns >= k
    k : int

    Returns
    -------
    columns : ndarray of shape (n_rows, k), dtype int64
    """
    n_columns = scores.shape[1]
    # With sqrt(n k) groups there are as many maxima as columns in the k best groups.
    n_groups = int(np.sqrt(n_columns * k))
    if len(scores) == 0 or n_columns < 16 * k:
        return _sorted_out(_finite(scores), k)
    n_grouped = n_columns // n_groups * n_groups
    grouped = scores[:, :n_grouped].reshape(len(scores), -1, n_groups)
    peaks = grouped.max(axis=1)
    if not (peaks < np.inf).all() or not (scores[:, n_grouped:] < np.inf).all():
        return _sorted_out(_finite(scores), k)
    # The k best are above the k-th highest peak, so they are in the groups that reach it.
    level = np.partition(peaks, n_groups - k, axis=1)[:, n_groups - k, None]
    n_high = (peaks >= level).sum(axis=1)
    few = n_high <= 2 * k
    best = np.empty((len(scores), k), dtype=np.int64)
    if few.any():
        n = n_high[few].max()
        high = np.sort(np.argpartition(peaks[few], n_groups - n, axis=1)[:, -n:], axis=1)
        starts = np.arange(0, n_grouped, n_groups)
        columns = (starts[:, None] + high[:, None]).reshape(len(high), -1)
        rest = np.arange(n_grouped, n_columns)
        rest = np.broadcast_to(rest, (len(columns), len(rest)))
        columns = np.concatenate([columns, rest], axis=1)
        among = np.take_along_axis(scores if few.all() else scores[few], columns, axis=1)
        best[few] = np.take_along_axis(columns, _sorted_out(among, k), axis=1)
    if not few.all():
        best[~few] = _sorted_out(scores[~few], k)
    return best


def _finite(scores):
    """The scores, with -inf in place of NaN and infinity."""
    if (scores < np.inf).all():
        return scores
    return np.where(np.isfinite(scores), scores, -np.inf)


def _sorted_out(scores, k):
    """The same for scores below infinity, by passes over all of them."""
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
