"""The hash splitmix64 (Steele, Lea and Flood 2014), for NumPy and for kernels."""

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(x):
    """Return a uint64 of which every bit depends on every bit of the uint64 x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
