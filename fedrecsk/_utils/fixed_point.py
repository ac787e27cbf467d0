"""Real numbers as integers, whose sums do not depend on their order."""

import numpy as np

# Weights and targets are rounded to multiples of 2**-FRACTION_BITS; the rest is integers.
FRACTION_BITS = 20


def fixed(numbers):
    """Return the nearest integer to each number times 2**FRACTION_BITS."""
    return np.rint(np.asarray(numbers) * 2.0**FRACTION_BITS).astype(np.int64)
