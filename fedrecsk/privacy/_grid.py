"""Numbers on a grid: noise on them cannot be undone by looking at the last bits of a float.

Noise drawn in floating point leaves gaps between the numbers that a noisy value can take, and the
gaps depend on the value (Mironov, CCS 2012). Both ways of adding central noise therefore round to
a grid first, and the rest is exact: sums of integers.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import binom

from fedrecsk.privacy._rounding import rounded, step_of

# Grid steps within the clip when clients round their uploads.
STEPS = 2**18
# When the server rounds the sum, one standard deviation of the noise has at least 2 to the power of
# this many grid steps.
BITS_OF_NOISE = 24
# Fewer shares of noise than planned arrive with at most this probability per exchange.
RARELY = 1e-3


def sensitivity(size: int) -> float:
    """Largest L2 norm of a clipped upload of `size` numbers, rounded by its client, in steps."""
    return STEPS + np.sqrt(size) / 2


def noisy_sum(
    sums: np.ndarray,
    clip: float,
    noise_multiplier: float,
    size: int,
    generator: np.random.Generator,
) -> tuple[np.ndarray, float]:
    """A sum of uploads with Gaussian noise, both rounded to a grid before they are added.

    Parameters
    ----------
    sums : ndarray
        One field of the sum, dtype float64.
    clip : float
        Largest L2 norm of a client's upload (C).
    noise_multiplier : float
        Standard deviation of the noise, divided by what one client can change (z).
    size : int
        Numbers in all fields together.
    generator : numpy.random.Generator

    Returns
    -------
    noisy : ndarray, dtype float64
    std : float
        Standard deviation of the noise.
    """
    if noise_multiplier == 0:
        return sums.astype(np.float64), 0.0
    step = step_of(noise_multiplier * clip, BITS_OF_NOISE)
    # Rounding the sum moves every number by half a step at most, with and without a client.
    std = noise_multiplier * (clip + np.sqrt(size) * step)
    noise = rounded(generator.normal(0.0, std, sums.shape), step)
    return rounded(sums.astype(np.float64), step) + noise, std


def share_variance(noise_multiplier: float, size: int, n_shares: int) -> float:
    """Variance of the noise that each of `n_shares` clients adds, in squared steps."""
    return (noise_multiplier * sensitivity(size)) ** 2 / n_shares


def skellam(variance: float, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Draw Skellam noise, the difference of two Poisson draws; sums of it are Skellam again."""
    noise = generator.poisson(variance / 2, shape)
    noise -= generator.poisson(variance / 2, shape)
    return noise


def nearly_always(n_clients: int, probability: float) -> int:
    """How many clients send in all but a few exchanges, if each does with this probability."""
    return n_clients if probability >= 1 else int(binom.ppf(RARELY, n_clients, probability))
