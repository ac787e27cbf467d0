"""Day effects: by how much a user rates higher on a day than its vector says, on its device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array

from fedrecsk.data import _times

if TYPE_CHECKING:
    from fedrecsk.protocol.blocks import Block

# How many ratings the prior of an effect is worth.
PRIOR = 10.0


def effects_of_days(block: Block, expected: np.ndarray, dtype: type[np.floating]) -> object:
    """Return the effects of users' days, given the expected ratings of the block's rows."""
    shape = block.n_users, _times.N_DAYS
    if block.times is None:
        return csr_array(shape, dtype=dtype)
    known = ~np.isnan(block.times)
    users = block.rating_users[known]
    places = users, block.times[known].astype(np.int64)
    weights = block.weights[known]
    # Rows of the same user and day are added up.
    sums = csr_array((weights * (block.values - expected)[known], places), shape)
    counts = csr_array((weights, places), shape)
    sums.sum_duplicates()
    counts.sum_duplicates()
    sums.data /= counts.data + PRIOR
    return sums.astype(dtype)
