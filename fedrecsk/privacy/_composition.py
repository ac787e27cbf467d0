"""Total epsilon of many uploads with local noise, in closed form.

The neighbouring relation is the local one: any other data of the same client.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_ndtr
from scipy.stats import binom


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return delta of the Gaussian mechanism of sensitivity `mu` standard deviations, exactly."""
    # Balle and Wang, ICML 2018, theorem 8.
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(np.exp(first) * -np.expm1(min(second - first, 0.0)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return epsilon of the Gaussian mechanism of sensitivity `mu` standard deviations, exactly."""
    # n releases with sensitivity m compose to one with sensitivity sqrt(n) m.
    return _least(lambda epsilon: gaussian_delta(mu, epsilon), delta)


def pure_epsilon(each: float, n: int, delta: float) -> float:
    """Return the total epsilon of n releases that are `each`-differentially private, exactly."""
    # Kairouz, Oh and Viswanath, ICML 2015: randomised response is the worst case.
    if delta == 0 or n == 0:
        return n * each
    wrong = np.arange(n + 1)
    loss = (n - 2.0 * wrong) * each
    # exp(-each) / (1 + exp(-each)): no overflow.
    weights = binom.pmf(wrong, n, math.exp(-np.logaddexp(0, each)))

    def excess(epsilon):
        above = loss > epsilon
        return float(weights[above] @ -np.expm1(epsilon - loss[above]))

    return _least(excess, delta)


def laplace_epsilon(each: float, n: int, delta: float) -> float:
    """Bound the total epsilon of n numbers with Laplace noise, of epsilon `each` alone."""
    basic = n * each
    if delta == 0 or n == 0:
        return basic
    # Mironov, CSF 2017, proposition 6; converted as in Canonne, Kamath and Steinke, NeurIPS 2020,
    # proposition 12.
    bounds = [basic, _by_renyi(each, n, delta)]
    if n <= 1_000_000:
        bounds.append(pure_epsilon(each, n, delta))
    return float(min(bounds))


def _by_renyi(each, n, delta):
    """Return the best bound over all orders; the logarithm of order - 1 is searched."""

    def bound(log_excess):
        excess = math.exp(log_excess)
        order = 1 + excess
        divergence = np.logaddexp(
            excess * each + math.log(order / (order + excess)),
            -order * each + math.log(excess / (order + excess)),
        )
        conversion = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / excess
        return n * divergence / excess + conversion

    # About the order that is best for small epsilons, and the neighbourhood of it.
    middle = 0.5 * math.log(-math.log(delta) / n) - math.log(each)
    starts = np.linspace(middle - 8, middle + 8, 65)
    best = starts[np.argmin([bound(start) for start in starts])]
    found = minimize_scalar(bound, bounds=(best - 0.5, best + 0.5), method="bounded")
    return max(0.0, float(found.fun))


def _least(delta_of, delta):
    """Return the least epsilon at which a falling function is at most delta."""
    if delta_of(0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of(high) > delta:
        high *= 2
    root = brentq(lambda epsilon: delta_of(epsilon) - delta, 0.0, high, xtol=1e-12, rtol=1e-12)
    # On the safe side of the solver's tolerance.
    return float(root) * (1 + 1e-9)
