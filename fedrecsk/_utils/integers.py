"""Integers that are the same everywhere: splitmix64's hash, and fixed-point numbers."""

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Numbers whose sums must not depend on their order are rounded to multiples of 2**-FRACTION_BITS.
FRACTION_BITS = 20


def mix(x):
    """Return a uint64 of which every bit depends on every bit of the uint64 x, for kernels too."""
    # Steele, Lea and Flood 2014.
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fixed(numbers):
    """Return the nearest integer to each number times 2**FRACTION_BITS."""
    return np.rint(np.asarray(numbers) * 2.0**FRACTION_BITS).astype(np.int64)
