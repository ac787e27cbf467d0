"""Accounting: the epsilon of a sequence of noisy sums, by Google's library dp-accounting."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import root_scalar

from fedrecsk._extras import require
from fedrecsk.privacy._grid import sensitivity

if TYPE_CHECKING:
    from collections.abc import Sequence

# From this epsilon on, the bound by RDP is reported: the exact one takes minutes, and neither is
# worth anything.
HOPELESS = 100.0
# Relative accuracy of the noise that is found for an epsilon by RDP, and how far below the epsilon
# the noise may stay that is found by the privacy loss distribution.
TOLERANCE, SHORT_OF = 1e-4, 2e-3
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
    delta : float in (0, 1)
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
    if any(event.noise_multiplier == 0 for event in events):
        return float("inf")
    if accountant == "rdp" or any(event.mechanism == "skellam" for event in events):
        return _by_rdp(events, delta)
    if all(event.probability == 1 for event in events):
        dp_accounting = require("dp_accounting", CALLER)
        return float(dp_accounting.get_epsilon_gaussian(_as_one(events), delta))
    bound = _by_rdp(events, delta)
    return bound if bound > HOPELESS else min(bound, _by_pld(tuple(events), delta))


def noise_for(events: Sequence[Event], epsilon: float, delta: float) -> float:
    """Find the factor by which to multiply all noise so that the events spend `epsilon`.

    Parameters
    ----------
    events : list of Event
        Their noise multipliers count in proportion.
    epsilon : float
    delta : float in (0, 1)

    Returns
    -------
    factor : float
        The smallest such factor; with cohorts in secret, one that leaves at most 0.2 % of
        `epsilon` unspent.

    Raises
    ------
    ImportError
        If dp-accounting is missing.

    Examples
    --------
    >>> from fedrecsk.privacy import Event
    >>> from fedrecsk.privacy.accounting import noise_for
    >>> round(noise_for([Event("gaussian", 1.0, count=5)], epsilon=10, delta=1e-5), 3)
    1.118
    """
    return _noise_for(tuple(events), float(epsilon), float(delta))


@lru_cache(maxsize=64)
def _noise_for(events, epsilon, delta):
    if all(one.mechanism == "gaussian" and one.probability == 1 for one in events):
        dp_accounting = require("dp_accounting", CALLER)
        return float(dp_accounting.get_sigma_gaussian(epsilon, delta)) / _as_one(events)

    def spends_too_much(factor, accountant="pld"):
        scaled = [one._replace(noise_multiplier=factor * one.noise_multiplier) for one in events]
        return epsilon_of(scaled, delta, accountant=accountant) > epsilon

    # The bound by RDP is quick and close.
    high = _bisected(lambda f: spends_too_much(f, "rdp"), *_bracket(spends_too_much))
    if any(one.mechanism == "skellam" for one in events):
        return high
    return _corrected(events, high, epsilon, delta)


def _corrected(events, factor, epsilon, delta):
    """The factor for the exact epsilon, from one that is a little too large."""

    def excess(log_factor):
        factor = np.exp(log_factor)
        scaled = [one._replace(noise_multiplier=factor * one.noise_multiplier) for one in events]
        spent = max(epsilon_of(scaled, delta), np.finfo(float).tiny)
        return np.log(spent / ((1 - SHORT_OF / 2) * epsilon))

    low, high = np.log(factor) - 1, np.log(factor)
    while excess(low) < 0 and low > high - FARTHEST:
        low -= 1
    if excess(high) < 0 <= excess(low):
        found = float(np.exp(root_scalar(excess, bracket=(low, high), xtol=TOLERANCE).root))
        scaled = [one._replace(noise_multiplier=found * one.noise_multiplier) for one in events]
        if epsilon_of(scaled, delta) <= epsilon:
            return found
    # The bound by RDP is as good as it gets.
    return float(factor)


def _bracket(spends_too_much):
    low = high = 1.0
    while spends_too_much(high, "rdp"):
        high *= 2
    while not spends_too_much(low, "rdp"):
        low /= 2
    return low, high


def _bisected(is_too_low, low, high):
    """The least number, from above, of which `is_too_low` is false."""
    while high > (1 + TOLERANCE) * low:
        middle = np.sqrt(low * high)
        low, high = (middle, high) if is_too_low(middle) else (low, middle)
    return float(high)


def _as_one(events):
    """Noise multiplier of the one Gaussian sum that is worth the same as several."""
    return float(sum(one.count / one.noise_multiplier**2 for one in events) ** -0.5)


@lru_cache(maxsize=256)
def _by_pld(events, delta):
    pld = require("dp_accounting.pld", CALLER)
    accountant = pld.PLDAccountant(value_discretization_interval=LOSS_STEP)
    for event in events:
        accountant.compose(_dp_event(event), event.count)
    return float(accountant.get_epsilon(delta))


def _by_rdp(events, delta):
    rdp = require("dp_accounting.rdp", CALLER)
    accountant = rdp.RdpAccountant(orders=ORDERS)
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
    """xi and rho, where the Renyi divergence of one sum is at most xi + rho order.

    Agarwal, Kairouz and Liu, "The Skellam mechanism for differentially private federated
    learning", NeurIPS 2021, theorem 3.5, the first of its two bounds; for integer orders.
    """
    l2 = sensitivity(event.size)
    l1 = min(np.sqrt(event.size) * l2, l2**2)
    variance = (event.noise_multiplier * l2) ** 2
    xi = (6 * l1 - l2**2) / (4 * variance**2)
    rho = l2**2 / (2 * variance) + l2**2 / (2 * variance**2)
    return max(0.0, xi), rho
