"""Rows of interactions as plain integers; shared by filters and splitters."""

import numpy as np

from fedrecsk.data._mistakes import warn_about_columns
from fedrecsk.data.interactions import as_table, factorized, id_columns


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
    ids : ndarray of shape (n,), as :func:`fedrecsk.data.interactions.id_array` gives it

    Returns
    -------
    codes : ndarray of shape (n,), dtype int64
    n_ids : int
    """
    codes, values = factorized(ids)
    return codes, len(values)
