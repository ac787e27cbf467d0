"""Rows that stand out from noise."""

from __future__ import annotations

import numpy as np
from scipy.stats import norm

# Rows that are looked at first for the direction that they have in common.
FIRST = 30
# Thresholds to try, in standard deviations.
THRESHOLDS = np.linspace(1.0, 6.0, 26)


def standing_out(rows, spread):
    """Rows that are likely to be more than noise.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, width)
        Most of them noise; the others lie, with noise, along one direction.
    spread : float
        Standard deviation of each number's noise.

    Returns
    -------
    places : ndarray of shape (n_found,)
    """
    size = (rows**2).sum(axis=1)
    first = np.argsort(-size)[:FIRST]
    direction = np.linalg.svd(rows[first], full_matrices=False)[2][0]
    score = np.abs(rows @ direction) / spread
    # The threshold with the largest expected share of claims that are right or missed.
    n_claimed = (score[:, None] > THRESHOLDS).sum(axis=0)
    n_wrong = len(rows) * 2 * norm.sf(THRESHOLDS)
    n_right = np.maximum(n_claimed - n_wrong, 0)
    share = n_right / (n_right.max() + np.maximum(n_claimed - n_right, 0) + 1e-9)
    return np.flatnonzero(score > THRESHOLDS[share.argmax()])
