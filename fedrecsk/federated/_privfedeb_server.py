"""PrivFedEB's server: steps on noisy sums, and what it learns beside the items.

The sums of a round are ``h (x - x_now)`` plus noise, for an item's parameter x and a curvature h
that follows from the first release. With a normal prior of x, the best step is the posterior
mean, a fraction of the sum that is small for items about which the noise hides nearly everything.
Clients compute the public columns of x_i too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Precision of a rating.
ALPHA = 1.3
# Share of the average vectors that a round replaces at least.
NEW = 0.5
# Variances of items' biases about their prior mean, and of the numbers of their vectors, in units.
BIAS_VARIANCE, VECTOR_VARIANCE = 0.25, 0.02
# Mean square of the numbers of users' vectors, as far as their ratings determine them.
USER_SQUARE = 0.35
# Factor of the gradient in vectors, whose numbers are smaller than those in biases.
EMPHASIS = 1.4
# An item's rows are weighted by 1 / (N_i + half the mean)^power, for fewer rated items.
POWER = 0.25
# Standard deviations over the ratings of the columns of users' tastes.
TASTE = 0.14
# Of the prior of counts, in standard deviations of the noise: its largest value and its steps; a
# larger count than `CLEAR` stays as it is. Steps by which it is learned.
WIDEST, STEP, CLEAR, PRIOR_STEPS = 8.0, 0.25, 6.0, 50
# Factors: none if a step of all clients is less reliable than this, else one for each multiple of
# it and one more, at most `MOST`.
RELIABLE, MOST = 0.125, 6
TINY = np.finfo(float).tiny
# Columns of x_i that follow from the others: popularity and b_i.
TASTES = 2
# An item's numbers of audiences together have this root mean square.
AUDIENCE = 0.2
# What is added to the sum of squares of users' vectors, in standard deviations of the noise, of
# which there is at least `LEAST_NOISE`.
SHRINK, LEAST_NOISE = 4.0, 0.1


class Release(NamedTuple):
    """What the set-up has published."""

    counts: np.ndarray  # (n_items,), N_i, at least 0
    residuals: np.ndarray  # (n_items,), B_i, noisy
    noise_std: float  # of both
    rating_weight: float  # by how much a typical rating counts in the sums

    @classmethod
    def of(cls, sums, noise_std, squares):
        """Make it from sums of counts and residuals (n_items, 2), and of squared counts."""
        counts = denoised(sums[:, 0], noise_std)
        rating_weight = max(float(squares), 0.0) / max(float(counts.sum()), TINY)
        return cls(counts, sums[:, 1], noise_std, rating_weight)

    @property
    def padded(self):
        """N_i plus half their mean, so that the noise on small ones does not matter."""
        return np.maximum(self.counts + self.counts.mean() / 2, TINY)

    def row_weights(self):
        """a_i: weights of the items' rows in uploads; in the mean over ratings, a_i^2 is 1."""
        weights = (self.padded / self.padded.max()) ** -POWER
        total = self.counts.sum()
        if not total > 0:
            return np.ones(len(weights))
        return weights / np.sqrt(self.counts @ weights**2 / total)

    def noise(self, curvature, row_weights, noise_std):
        """Variance of a round's sums: added noise, and that of the ratings themselves."""
        return noise_std**2 + self.rating_weight * curvature * row_weights / ALPHA

    def biases(self, prior=None):
        """Return first estimates of b_i, and their variances."""
        h = self.counts
        noise = self.noise(h, 1.0, self.noise_std)
        # Popular items are often better ones.
        prior = self._line(noise) if prior is None else prior
        gain = posterior_gains(np.full(len(h), BIAS_VARIANCE), h, noise)
        return prior + gain * (self.residuals - h * prior), BIAS_VARIANCE * (1 - gain * h)

    def _line(self, noise):
        """Weighted least squares of B_i / N_i on log N_i, at all items."""
        x, h = np.log(self.padded), self.counts
        # One over the variance of B_i / N_i about the line, 0 where nothing is known.
        weights = h**2 / np.maximum(BIAS_VARIANCE * h**2 + noise, TINY)
        total = weights.sum()
        if not total > 0:
            return np.zeros(len(h))
        y = self.residuals / np.where(h > 0, h, 1)
        x = x - weights @ x / total
        spread = weights @ x**2
        slope = weights @ (x * y) / spread if spread > 1e-9 * total else 0.0
        return weights @ y / total + slope * x

    def n_factors(self, share):
        """Return how many factors the noise allows, given the share of clients in a round."""
        a = self.row_weights()
        curvature = share * self.counts * a
        noise = self.noise(curvature, a, self.noise_std)
        h = USER_SQUARE * EMPHASIS * curvature
        # Of all rounds in which every client takes part once.
        ratio = VECTOR_VARIANCE * h**2 / np.maximum(noise, TINY) / share
        total = self.counts.sum()
        reliability = self.counts @ (ratio / (1 + ratio)) / total if total > 0 else 0.0
        return min(MOST, 1 + int(reliability / RELIABLE)) if reliability >= RELIABLE else 0


class Users(NamedTuple):
    """Sums over users of g g' and g phi', averages of the last rounds, and coefficients of these.

    g is the sum of a user's x_j divided by the square root of their number, without the constant;
    phi are its numbers that belong to them.
    """

    sums: np.ndarray  # (k, 2 k)
    coefficients: np.ndarray  # (k, k), of phi's prior mean given g
    n_rounds: int

    @classmethod
    def first(cls, width):
        """Return the state before any sum."""
        return cls(np.zeros((width, 2 * width)), np.zeros((width, width)), 0)

    def after(self, upload):
        """Return the state after a round's noisy sums: a ridge regression of phi on g."""
        number = self.n_rounds + 1
        sums = self.sums + max(1 / number, NEW) * (upload.sum - self.sums)
        squares, products = np.hsplit(sums, 2)
        sizes, axes = np.linalg.eigh((squares + squares.T) / 2)
        sizes = np.maximum(sizes, 0) + SHRINK * max(upload.noise_std, LEAST_NOISE)
        return Users(sums, (axes / sizes) @ (axes.T @ products), number)


def posterior_gains(variance, curvature, noise):
    """Return fractions of ``h (x - x_now) + noise`` that make x_now x's posterior mean."""
    return variance * curvature / np.maximum(variance * curvature**2 + noise, TINY)


def denoised(counts, noise_std):
    """Return posterior means of counts given noisy ones, whose prior is learned from them all."""
    clear = counts >= CLEAR * noise_std
    if clear.all() or noise_std == 0:
        return np.maximum(counts, 0)
    grid = np.arange(0, WIDEST + STEP, STEP)
    away = (counts[~clear, None] / noise_std - grid) ** 2
    likelihood = np.exp((away.min(axis=1, keepdims=True) - away) / 2)
    prior = np.full(len(grid), 1 / len(grid))
    for _ in range(PRIOR_STEPS):
        posterior = likelihood * prior
        posterior /= posterior.sum(axis=1, keepdims=True)
        prior = posterior.mean(axis=0)
    result = counts.copy()
    result[~clear] = noise_std * posterior @ grid
    return result


def without_popularity(matrix, release):
    """Return the part of columns by items that is orthogonal to what most users rate."""
    first = np.sqrt(release.counts)
    return matrix - np.outer(first, first @ matrix) / max(first @ first, TINY)


def learned_audiences(sums, noise_std, row_weights, release):
    """Return coordinates of who rates an item, (n_items, k), from sums of its raters' positions.

    Normal priors whose variance is learned take away what the noise may have caused.
    """
    scale = 1 / (row_weights * np.sqrt(release.padded))
    found, noise = scale[:, None] * sums, (scale * noise_std) ** 2
    if noise_std > 0:
        weights = (noise + np.median(noise)) ** -2
        variance = np.maximum(weights @ (found**2 - noise[:, None]) / weights.sum(), TINY)
        found *= variance / (variance + noise[:, None])
    return without_popularity(found, release)


def scaled_audiences(audiences, release):
    """Return audiences as columns of x_i: centred, and of the root mean square `AUDIENCE`."""
    share = release.padded / release.padded.sum()
    audiences = audiences - share @ audiences
    return AUDIENCE * audiences / max(np.sqrt((share @ audiences**2).sum()), TINY)


def tastes(biases, row_weights, *others):
    """Return the columns of x_i that are public: popularity, b_i, and others that are not None."""
    popularity = row_weights ** (-1 / POWER)
    columns = np.column_stack([np.log(popularity), biases])
    share = popularity / popularity.sum()
    columns = columns - share @ columns
    columns *= TASTE / np.maximum(np.sqrt(share @ columns**2), 1e-6)
    return np.column_stack([columns, *(one for one in others if one is not None)])
