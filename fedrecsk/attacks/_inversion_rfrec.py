"""RFRec: from one client's upload to the items that it has rated."""

from __future__ import annotations

import numpy as np

from fedrecsk.attacks._guesses import Guess

NOISY = 4.0


def rfrec(model, message, upload, n_items):
    """Only the vectors of rated items change; under noise, rows that stand out are taken."""
    noise = model._setting().local_dp
    change = upload["item_vectors"].change
    size = (change**2).sum(axis=1)
    if noise is None:
        return Guess(None, np.flatnonzero(size > 1e-12 * size.max(initial=0.0)))
    # Squared length of a row of noise: its mean, and some standard deviations more.
    width = change.shape[1]
    usual = noise.scale**2 * (2 * width + NOISY * np.sqrt(20 * width))
    return Guess(None, np.flatnonzero(size > usual))
