"""What several modules of kernels share."""

from typing import NamedTuple

import numpy as np

from fedrecsk._kernels._jit import part


class Layout(NamedTuple):
    """Which users and items belong to which client.

    Attributes
    ----------
    client_indptr : (n_clients + 1,), users of each client
    indptr : (n_users + 1,), ratings of each user
    row_indptr : (n_clients + 1,), held item rows of each client
    rows : (n_ratings,), held row of each rating
    row_items : (n_rows,), item code of each held row
    """

    client_indptr: np.ndarray
    indptr: np.ndarray
    row_indptr: np.ndarray
    rows: np.ndarray
    row_items: np.ndarray


@part
def all_finite(matrix):
    """Whether no entry is NaN or infinite."""
    # A comparison, because `reassoc` folds x - x whether or not x is NaN.
    n_broken = 0
    flat = matrix.ravel()
    for k in range(len(flat)):
        n_broken += not abs(flat[k]) < np.inf
    return n_broken == 0


@part
def own_change(values, origin, k, i, f):
    """By how much a client has changed number f of its k-th own row, row i of the field."""
    x = np.float64(values[k, f])
    if origin is not None:
        x -= np.float64(origin[i, f])
    return x
