"""Sort by small whole numbers in linear time."""

from __future__ import annotations

import numpy as np
from scipy import sparse


def stable_order(codes: np.ndarray, n_codes: int) -> np.ndarray:
    """Positions that sort `codes`; equal codes keep their order.

    Parameters
    ----------
    codes : ndarray of shape (n,), integers from 0 to `n_codes` - 1
    n_codes : int
        Number of different codes.

    Returns
    -------
    order : ndarray of shape (n,)
    """
    # scipy builds a sparse matrix with one row per code by counting.
    entries = np.ones(len(codes), dtype=bool), (codes, np.arange(len(codes)))
    return sparse.csr_array(entries, shape=(n_codes, len(codes))).indices
