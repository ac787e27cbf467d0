"""Numbers on a grid: noise on them cannot be undone by looking at the last bits of a float.

A sum of a value and noise in floating point shows in its last digits which values it can come from
(Mironov, "On significance of the least significant bits for differential privacy", CCS 2012). Here
the value and the noise are whole multiples of a power of two before they are added. Such sums are
exact, and rounding the noise is the same as rounding the sum of the value and the unrounded noise,
which anybody may do to a private number.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import binom

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedrecsk.updates import ClientUpdates

# Steps of the grid in one unit of the noise, as a power of two. Fine enough not to matter for
# accuracy, and coarse enough that each step holds many floating-point numbers.
BITS = 20
# Grid steps within the clip when clients round their uploads.
STEPS = 2**18
# When the server rounds the sum, one standard deviation of the noise has at least 2 to the power of
# this many grid steps.
BITS_OF_NOISE = 24
# Fewer shares of noise than planned arrive with at most this probability per exchange.
RARELY = 1e-3
# Largest mean that NumPy's Poisson draws are used for. From about ten times as much on, its
# variance is too small.
LARGEST_MEAN = 2.0**40


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


def noisy_sum(
    sums: np.ndarray,
    clip: float,
    noise_multiplier: float,
    size: int,
    generator: np.random.Generator,
) -> tuple[np.ndarray, float]:
    """Add Gaussian noise to a sum, both rounded to a grid; return the sum and the noise's std."""
    if noise_multiplier == 0:
        return sums.astype(np.float64), 0.0
    step = step_of(noise_multiplier * clip, BITS_OF_NOISE)
    # Rounding the sum moves every number by half a step at most, with and without a client.
    std = noise_multiplier * (clip + np.sqrt(size) * step)
    noise = rounded(generator.normal(0.0, std, sums.shape), step)
    return rounded(sums.astype(np.float64), step) + noise, std


def share_variance(noise_multiplier: float, size: int, n_shares: int) -> float:
    """Return the variance of the noise that each of `n_shares` clients adds, in squared steps."""
    return (noise_multiplier * sensitivity(size)) ** 2 / n_shares


def skellam(variance: float, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Draw Skellam noise, the difference of two Poisson draws; sums of it are Skellam again."""
    # Where Poisson draws are not exact, round normal draws: the total variation distance of their
    # distribution from Skellam's is below 0.1 / variance, here 1e-13.
    if variance > 2 * LARGEST_MEAN:
        return np.rint(generator.normal(0.0, np.sqrt(variance), shape))
    noise = generator.poisson(variance / 2, shape)
    noise -= generator.poisson(variance / 2, shape)
    return noise


def nearly_always(n_clients: int, probability: float) -> int:
    """Return how many clients send in all but a few exchanges, each with this probability."""
    return n_clients if probability >= 1 else int(binom.ppf(RARELY, n_clients, probability))


def clip_updates(
    updates: ClientUpdates, clip: float, field_weights: dict[str, float]
) -> tuple[ClientUpdates, NDArray[np.bool_]]:
    """Scale updates down to an L2 norm of at most `clip`; return them, and which were shorter."""
    norms = np.sqrt(
        sum(
            (field_weights.get(name, 1.0) * rows.norms()) ** 2
            for name, rows in updates.fields.items()
        )
    )
    factors = np.where(norms > clip, clip / np.maximum(norms, clip), 1.0)
    fields = {
        name: replace(rows.scaled(factors), center=None) for name, rows in updates.fields.items()
    }
    return updates.with_fields(**fields), norms <= clip


def round_updates(
    updates: ClientUpdates, clip: float, field_weights: dict[str, float], variance: float, key: Any
) -> ClientUpdates:
    """Round clipped updates to the grid and add each client's share of the noise."""
    fields = {}
    for name, rows in updates.fields.items():
        step = clip / STEPS / field_weights.get(name, 1.0)
        if not variance:
            rows = rows.written_out()
            fields[name] = rows.with_values(step * np.rint(rows.values / step))
            continue
        # Rows that the client has not changed are as noisy as the others.
        whole = np.rint(rows.whole() / step)
        seeds = key.hashed(f"share of the noise of {name}", updates.clients)
        for one, seed in zip(whole, seeds, strict=True):
            one += skellam(variance, one.shape, np.random.default_rng(int(seed)))
        fields[name] = rows.with_whole(step * whole)
    return updates.with_fields(**fields)
