"""Noise and uploads on a grid, against attacks on the last digits of floating-point numbers.

A sum of a value and noise in floating point shows in its last digits which values it can come from
(Mironov, "On significance of the least significant bits for differential privacy", CCS 2012). Here
the value and the noise are both whole multiples of a power of two before they are added. Such sums
are exact, and rounding the noise is the same as rounding the sum of the value and the unrounded
noise: something that anybody may do to a private number.
"""

from __future__ import annotations

import math

import numpy as np

# Steps of the grid in one unit of the noise, as a power of two. Fine enough not to matter for
# accuracy, and coarse enough that each step holds many floating-point numbers.
BITS = 20


def step_of(scale: float, bits: int = BITS) -> float:
    """The grid's step for noise of this scale: a power of two, at most ``scale / 2**bits``."""
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - bits)


def rounded(numbers: np.ndarray, step: float) -> np.ndarray:
    """The nearest multiples of a step, which is a power of two; in place."""
    numbers /= step
    np.rint(numbers, out=numbers)
    numbers *= step
    return numbers


def towards_zero(numbers: np.ndarray, step: float) -> np.ndarray:
    """The multiples of a step next to the numbers that are not larger in size; in place.

    So no bound on the size of a number or on a norm is exceeded.
    """
    numbers /= step
    np.trunc(numbers, out=numbers)
    numbers *= step
    return numbers
