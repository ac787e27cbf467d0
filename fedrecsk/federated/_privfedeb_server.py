"""PrivFedEB's server: what it makes of noisy sums whose noise it knows.

The sums of a round are ``h (x - x_now)`` plus noise, for an item's parameter x and a curvature h
that follows from the first release. With a normal prior of x, the best step is the posterior mean,
a fraction of the sum that is small for items about which the noise hides nearly everything.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Variances of items' biases about their prior mean, and of the numbers of their vectors, in units.
BIAS_VARIANCE, VECTOR_VARIANCE = 0.25, 0.02
# Precision of a rating.
ALPHA = 1.3
# Mean square of the numbers of users' vectors, as far as their ratings determine them.
USER_SQUARE = 0.35
# Factor of the gradient in vectors, whose numbers are smaller than those in biases.
EMPHASIS = 1.4
# An item's rows are weighted by 1 / (N_i + half the mean)^power, for fewer rated items.
POWER = 0.25
# Factors: none if a round's step is less reliable than this, else one for each multiple of it and
# one more, at most `MOST`.
RELIABLE, MOST = 0.125, 6
TINY = np.finfo(float).tiny


class Release(NamedTuple):
    """What the set-up has published.

    Attributes
    ----------
    counts : (n_items,), N_i, noisy and at least 0
    residuals : (n_items,), B_i, noisy
    noise_std : float, of both
    rating_weight : float, by how much a typical rating counts in the sums
    """

    counts: np.ndarray
    residuals: np.ndarray
    noise_std: float
    rating_weight: float

    @classmethod
    def of(cls, sums, noise_std, squares):
        """From sums of counts and residuals (n_items, 2), and of squared counts."""
        counts = np.maximum(sums[:, 0], 0)
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

    def biases(self):
        """First estimates of b_i, and their variances.

        Their prior mean is a line in log N_i, fitted to all items: popular items are often
        better ones.
        """
        h = self.counts
        noise = self.noise(h, 1.0, self.noise_std)
        prior = self._line(noise)
        gain = gains(np.full(len(h), BIAS_VARIANCE), h, noise)
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
        """How many factors the noise allows, given the share of clients in a round."""
        a = self.row_weights()
        # Squares of noisy counts are too large by the variance of the noise.
        counts = np.sqrt(np.maximum(self.counts**2 - self.noise_std**2, 0))
        curvature = share * counts * a
        noise = self.noise(curvature, a, self.noise_std)
        h = USER_SQUARE * EMPHASIS * curvature
        ratio = VECTOR_VARIANCE * h**2 / np.maximum(noise, TINY)
        total = counts.sum()
        reliability = counts @ (ratio / (1 + ratio)) / total if total > 0 else 0.0
        return min(MOST, 1 + int(reliability / RELIABLE)) if reliability >= RELIABLE else 0


def gains(variance, curvature, noise):
    """Fractions of sums ``h (x - x_now) + noise`` that make x_now the posterior mean of x."""
    return variance * curvature / np.maximum(variance * curvature**2 + noise, TINY)
