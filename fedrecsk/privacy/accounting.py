"""Accounting: what noisy sums cost together, and what uploads with local noise cost together.

Sums are accounted by Google's library dp-accounting, and local noise in closed form. The
neighbouring relation of the latter is any other data of the same client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize_scalar, root_scalar
from scipy.special import log_ndtr
from scipy.stats import binom

from fedrecsk._utils.constraints import AtLeast1, Between0And1, Positive
from fedrecsk._utils.extras import require
from fedrecsk._utils.parameters import checked, limits_of
from fedrecsk.privacy._grid import sensitivity

# From this epsilon on, the bound by RDP is reported: the exact one takes minutes, and neither is
# worth anything.
HOPELESS = 100.0
# Relative accuracy of the noise that is found for an epsilon by RDP, and how far below the epsilon
# the noise may stay that is found by the privacy loss distribution.
TOLERANCE, SHORT_OF = 1e-4, 2e-3
# Noise for an epsilon stays below it by this share and by four times the absolute accuracy of
# dp-accounting, so that a report, which adds up in another order, is never above it.
SAFETY, SOLVED_TO = 1e-8, 1e-12
# How far the search for the noise goes below the bound by RDP, as a logarithm.
FARTHEST = 6
# Step in which privacy losses are rounded up; epsilons are accurate to about a tenth of it.
LOSS_STEP = 1e-3
# Orders of the Renyi divergence: integers, for which all mechanisms have a bound.
ORDERS = [*range(2, 65), 128, 256]
CALLER = "Accounting for differential privacy"


class Event(NamedTuple):
    """Noisy sums with the same noise, to which one client contributes.

    Attributes
    ----------
    mechanism : {"gaussian", "skellam"}
        "gaussian": Gaussian noise. "skellam": integer noise, the sum of the clients' shares.
    noise_multiplier : float
        Standard deviation of the noise, divided by the most that one client can change (z).
    count : int
        How many sums.
    probability : float
        Probability with which the client joins each of them, independently and without anyone else
        knowing. 1: it joins all.
    size : int
        Numbers in one sum; "skellam" needs it.
    """

    mechanism: str
    noise_multiplier: float
    count: int = 1
    probability: float = 1.0
    size: int = 1


def epsilon_of(events: Sequence[Event], delta: float, *, accountant: str = "pld") -> float:
    """Compute the total epsilon of events that compose.

    Parameters
    ----------
    events : list of Event
    delta : float in [0, 1)
    accountant : {"pld", "rdp"}, default="pld"
        "pld": the privacy loss distribution, exact up to rounding; for Gaussian noise without
        sampling its closed form (Balle and Wang, ICML 2018). "rdp": Renyi differential privacy, an
        upper bound. Skellam noise is always accounted by "rdp".

    Returns
    -------
    epsilon : float
        For adding or removing one client.

    Raises
    ------
    ImportError
        If dp-accounting is missing.

    Examples
    --------
    >>> from fedrecsk.privacy import Event, epsilon_of
    >>> round(epsilon_of([Event("gaussian", 10.0, count=100)], delta=1e-5), 2)
    4.38
    >>> round(epsilon_of([Event("gaussian", 1.0, count=50, probability=0.6)], delta=1e-5), 1)
    31.2
    """
    events = [event for event in events if event.count]
    if not events:
        return 0.0
    if delta == 0 or any(event.noise_multiplier == 0 for event in events):
        return float("inf")
    if accountant == "rdp" or any(event.mechanism == "skellam" for event in events):
        return _by_rdp(events, delta)
    if is_one_gaussian(events):
        dp_accounting = require("dp_accounting", CALLER)
        return float(dp_accounting.get_epsilon_gaussian(_as_one(events), delta))
    bound = _by_rdp(events, delta)
    return bound if bound > HOPELESS else min(bound, _by_pld(tuple(events), delta))


def noise_for(events: Sequence[Event], epsilon: float, delta: float) -> float:
    """Return the least factor on all noise multipliers that keeps the events within `epsilon`."""
    within = max(epsilon / 2, (1 - SAFETY) * epsilon - 4 * SOLVED_TO)
    return _noise_for(tuple(events), float(within), float(delta))


def shuffled_epsilon(epsilon: Positive, n_clients: AtLeast1, delta: Between0And1) -> float:
    """Bound the epsilon of one round if a shuffler hides who sent which upload.

    A client's upload is then hidden among those of the others. The theorem needs all of this:

    - A shuffler trusted by all parties removes everything that identifies the senders (names,
      addresses, times) and mixes the uploads. Nothing in this package does so.
    - Each of `n_clients` clients sends exactly one upload, with the same mechanism and parameters,
      which is `epsilon`-differentially private as a whole, with delta 0 (not Gaussian noise).
    - Clients that drop out do not count, so use the number that surely sends.

    Several rounds compose: the epsilons add up, and so do the deltas.

    Parameters
    ----------
    epsilon : float
        Epsilon of one client's upload, positive and at most
        ``log(n_clients / (16 log(2 / delta)))``.
    n_clients : int
        Number of clients whose uploads are shuffled together.
    delta : float in (0, 1)
        Probability, roughly, with which the bound may fail.

    Returns
    -------
    epsilon : float
        For replacing one client's data, together with `delta`. At most the epsilon given. A
        ValueError says where the theorem does not hold.

    Notes
    -----
    This is the closed form of [1]_. The better one of the same authors' later paper is not used,
    because an erratum restricts it to some mechanisms [2]_.

    References
    ----------
    .. [1] V. Feldman, A. McMillan and K. Talwar, "Hiding among the clones: a simple and nearly
       optimal analysis of privacy amplification by shuffling", FOCS 2021, theorem 3.1.
    .. [2] V. Feldman, A. McMillan and K. Talwar, "Stronger privacy amplification by shuffling for
       Renyi and approximate differential privacy", SODA 2023, with the erratum in arXiv:2208.04591.

    Examples
    --------
    >>> from fedrecsk.privacy import shuffled_epsilon
    >>> round(shuffled_epsilon(1.0, n_clients=100_000, delta=1e-6), 3)
    0.073
    """
    given = {"epsilon": epsilon, "n_clients": n_clients, "delta": delta}
    epsilon, n_clients, delta = checked("shuffled_epsilon", limits_of(shuffled_epsilon), **given)
    least = 16 * math.log(2 / delta)
    if epsilon > math.log(n_clients / least):
        needed = math.inf if epsilon > 700 else math.ceil(least * math.exp(epsilon))
        raise ValueError(
            f"Shuffling {n_clients} uploads of epsilon={epsilon:g} has no proven effect at "
            f"delta={delta:g}: the theorem needs {needed:,} clients or more for this epsilon. Use "
            "a smaller epsilon per upload, or do without the shuffler's effect."
        )
    spread = 8 * math.sqrt(math.exp(epsilon) * math.log(4 / delta) / n_clients)
    spread += 8 * math.exp(epsilon) / n_clients
    return min(epsilon, math.log1p(math.tanh(epsilon / 2) * spread))


@lru_cache(maxsize=64)
def _noise_for(events, epsilon, delta):
    if is_one_gaussian(events):
        dp_accounting = require("dp_accounting", CALLER)
        return float(dp_accounting.get_sigma_gaussian(epsilon, delta)) / _as_one(events)

    def spends_too_much(factor):
        return epsilon_of(scaled(events, factor), delta, accountant="rdp") > epsilon

    # The bound by RDP is quick and close.
    low = high = 1.0
    while spends_too_much(high):
        high *= 2
    while not spends_too_much(low):
        low /= 2
    while high > (1 + TOLERANCE) * low:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if spends_too_much(middle) else (low, middle)
    if any(one.mechanism == "skellam" for one in events):
        return high
    return _correct(events, high, epsilon, delta)


def _correct(events, factor, epsilon, delta):
    """Return the factor for the exact epsilon, from one that is a little too large."""

    def excess(log_factor):
        spent = epsilon_of(scaled(events, np.exp(log_factor)), delta)
        spent = max(spent, np.finfo(float).tiny)
        return np.log(spent / ((1 - SHORT_OF / 2) * epsilon))

    low, high = np.log(factor) - 1, np.log(factor)
    while excess(low) < 0 and low > high - FARTHEST:
        low -= 1
    if excess(high) < 0 <= excess(low):
        found = float(np.exp(root_scalar(excess, bracket=(low, high), xtol=TOLERANCE).root))
        if epsilon_of(scaled(events, found), delta) <= epsilon:
            return found
    # The bound by RDP is as good as it gets.
    return float(factor)


def scaled(events: Sequence[Event], factor: float) -> list[Event]:
    """Return the events with noise multipliers times a factor."""
    return [one._replace(noise_multiplier=factor * one.noise_multiplier) for one in events]


def is_one_gaussian(events: Sequence[Event]) -> bool:
    """Return whether the events cost as much as one Gaussian sum."""
    return all(one.mechanism == "gaussian" and one.probability == 1 for one in events)


def _as_one(events):
    """Return the noise multiplier of the one Gaussian sum that costs the same as several."""
    return float(sum(one.count / one.noise_multiplier**2 for one in events) ** -0.5)


@lru_cache(maxsize=256)
def _by_pld(events, delta):
    pld = require("dp_accounting.pld", CALLER)
    return _composed(pld.PLDAccountant(value_discretization_interval=LOSS_STEP), events, delta)


def _by_rdp(events, delta):
    rdp = require("dp_accounting.rdp", CALLER)
    return _composed(rdp.RdpAccountant(orders=ORDERS), events, delta)


def _composed(accountant, events, delta):
    for event in events:
        accountant.compose(_dp_event(event), event.count)
    return float(accountant.get_epsilon(delta))


def _dp_event(event):
    dp_accounting = require("dp_accounting", CALLER)
    if event.mechanism == "skellam":
        xi, rho = _skellam_divergence(event)
        return dp_accounting.ZCDpEvent(rho=rho, xi=xi)
    gaussian = dp_accounting.GaussianDpEvent(event.noise_multiplier)
    if event.probability == 1:
        return gaussian
    return dp_accounting.PoissonSampledDpEvent(event.probability, gaussian)


def _skellam_divergence(event):
    """Return xi and rho: the Renyi divergence of one sum is at most xi + rho order."""
    # Agarwal, Kairouz and Liu, NeurIPS 2021, theorem 3.5, first bound; for integer orders.
    l2 = sensitivity(event.size)
    l1 = min(np.sqrt(event.size) * l2, l2**2)
    variance = (event.noise_multiplier * l2) ** 2
    xi = (6 * l1 - l2**2) / (4 * variance**2)
    rho = l2**2 / (2 * variance) + l2**2 / (2 * variance**2)
    return max(0.0, xi), rho


# ------------------------------------------------------------------- local noise in closed form


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

    return min(n * each, _least(excess, delta))


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
