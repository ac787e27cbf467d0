"""Rows of interactions as plain integers; shared by filters and splitters."""

import numpy as np

from fedrecsk._mistakes import warn_about_columns
from fedrecsk.interactions import as_table, id_columns


def coded_rows(X):
    """Read the ids of X as codes, see :func:`appearance_codes`.

    Parameters
    ----------
    X : array-like or DataFrame of shape (n_samples, n_features >= 2)

    Returns
    -------
    (users, n_users), (items, n_items)
    """
    return tuple(map(appearance_codes, id_columns(as_rows(X))))


def as_rows(X):
    """Return X as an ndarray or DataFrame with two columns of ids, or raise."""
    X = as_table(X)
    X = X if hasattr(X, "shape") else np.asarray(X)
    if len(X.shape) != 2 or X.shape[1] < 2 or not X.shape[0]:
        raise ValueError(
            "X should have one row per interaction, with the user's id in column 0 and the item's "
            f"id in column 1; its shape is {tuple(X.shape)}."
        )
    warn_about_columns(X)
    return X


def appearance_codes(ids):
    """Number ids 0, 1, ... in the order of their first appearance.

    The numbers depend only on which rows share an id, not on the type of the ids.

    Parameters
    ----------
    ids : ndarray of shape (n,), as :func:`fedrecsk.interactions.id_array` gives it

    Returns
    -------
    codes : ndarray of shape (n,), dtype int64
    n_ids : int
    """
    offsets, first = _lookup(ids) if _is_compact(ids) else _sorted(ids)
    present = np.flatnonzero(first < len(ids))
    code_of = np.empty(len(first), dtype=np.int64)
    code_of[present[np.argsort(first[present])]] = np.arange(len(present))
    return code_of[offsets], len(present)


def _is_compact(ids):
    if ids.dtype.kind not in "iu" or not len(ids):
        return False
    low, high = int(ids.min()), int(ids.max())
    return high < 2**63 and high - low < 4 * len(ids)


def _lookup(ids):
    offsets = ids.astype(np.int64) - int(ids.min())
    first = np.full(int(offsets.max()) + 1, len(ids), dtype=np.int64)
    # The last of repeated assignments wins; in reverse order that is the first appearance.
    first[offsets[::-1]] = np.arange(len(ids))[::-1]
    return offsets, first


def _sorted(ids):
    _, first, offsets = np.unique(ids, return_index=True, return_inverse=True)
    return offsets, first
