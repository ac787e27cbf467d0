"""Numbers on a grid: noise on them cannot be undone by looking at the last bits of a float.

A sum of a value and noise in floating point shows in its last digits which values it can come from
(Mironov, "On significance of the least significant bits for differential privacy", CCS 2012). Here
the value and the noise are whole multiples of a power of two before they are added. Such sums are
exact, and rounding the noise is the same as rounding the sum of the value and the unrounded noise,
which any party may do to a private number.
"""

from __future__ import annotations

import math

import numpy as np

# Steps of the grid in one unit of the noise, as a power of two. Fine enough not to matter for
# accuracy, and coarse enough that each step holds many floating-point numbers.
BITS = 20
# Grid steps within the clip when clients round their uploads.
STEPS = 2**18


def step_of(scale: float, bits: int = BITS) -> float:
    """Return the grid's step for noise of this scale, a power of two, at most scale / 2**bits."""
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - bits)


def rounded(numbers: np.ndarray, step: float) -> np.ndarray:
    """Round to the nearest multiples of a step, in place."""
    numbers /= step
    np.rint(numbers, out=numbers)
    numbers *= step
    return numbers


def towards_zero(numbers: np.ndarray, step: float) -> np.ndarray:
    """Round towards zero to multiples of a step, so that no norm grows, in place."""
    numbers /= step
    np.trunc(numbers, out=numbers)
    numbers *= step
    return numbers


def sensitivity(size: int) -> float:
    """Return the largest L2 norm, in steps, of a clipped upload that its client has rounded."""
    return STEPS + np.sqrt(size) / 2
