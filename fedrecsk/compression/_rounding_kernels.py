"""Stochastic rounding: each number becomes a multiple of a step, next below or above it.

The draws are odd numbers below 2**16, one for each number: which of the two it becomes.
"""

import numpy as np

from fedrecsk._utils.jit import inline, kernel

N_DRAWS = 2.0**16
LARGEST_FLOAT16 = float(np.finfo(np.float16).max)
EXPONENT_BITS = np.float64(np.inf).view(np.int64)
SIZE_BITS = np.int64(2**63 - 1)
SMALLEST_FLOAT32 = np.finfo(np.float32).smallest_subnormal


@inline
def round_to(value, step, draw):
    """Return the multiple of the step next below or above, as the draw decides."""
    return np.floor((value * (N_DRAWS / step) + draw) * (1 / N_DRAWS)) * step


@kernel
def to_float16(values, draws):
    """Round to numbers of float16; those beyond become infinite or NaN."""
    bits = values.view(np.int64)
    for k in range(len(values)):
        # Powers of two: that of the number, or the least of float16, times 2**-10.
        step = max(np.int64(bits[k] & EXPONENT_BITS).view(np.float64), 2.0**-14) * 2.0**-10
        number = values[k]
        is_larger = abs(number) > LARGEST_FLOAT16
        values[k] = number * np.inf if is_larger else round_to(number, step, draws[k])


@kernel
def to_int8(indptr, values, draws, steps):
    """Round to integers up to 127 times a step, which is written down for each client.

    Numbers beyond float32 become NaN, and the server rejects the upload.
    """
    bits_of_steps = steps.view(np.int64)
    for c in range(len(steps)):
        own, most = values[indptr[c] : indptr[c + 1]], np.int64(0)
        own_draws, bits = draws[indptr[c] : indptr[c + 1]], own.view(np.int64)
        for k in range(len(own)):
            # By their bits, because LLVM does not vectorise a maximum of what may be NaN.
            most = max(most, bits[k] & SIZE_BITS)
        bits_of_steps[c] = most
        largest = steps[c]
        # float32, so that no number exceeds 127 steps.
        step = max(np.float32(largest / 127 * (1 + 2.0**-21)), SMALLEST_FLOAT32)
        if 127 * np.float64(step) < largest < np.inf:
            # A number so small that it has been rounded down.
            step = np.nextafter(step, np.float32(1))
        steps[c] = width = np.float64(step)
        for k in range(len(own)):
            own[k] = round_to(own[k], width, own_draws[k])
