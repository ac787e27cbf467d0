"""Epsilon of noisy sums, against dp-accounting used directly and closed forms."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp
from scipy.stats import norm

from fedrecsk.privacy import Event, epsilon_of
from fedrecsk.privacy.accounting import noise_for

DELTA = 1e-5


def delta_of_gaussian(noise, epsilon):
    """Balle and Wang (ICML 2018), theorem 8, for a sensitivity of 1."""
    return norm.cdf(0.5 / noise - epsilon * noise) - np.exp(epsilon) * norm.cdf(
        -0.5 / noise - epsilon * noise
    )


@pytest.mark.parametrize(("noise", "count"), [(10.0, 100), (1.18, 5)])
def test_sums_of_all_clients(noise, count):
    mine = epsilon_of([Event("gaussian", noise, count)], DELTA)
    accountant = pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(noise), count)
    assert mine == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-3)
    # Several Gaussian sums are worth one with less noise.
    assert delta_of_gaussian(noise / np.sqrt(count), mine) == pytest.approx(DELTA, rel=1e-3)


def test_sums_of_secret_cohorts():
    event = Event("gaussian", 1.0, 50, 0.6)
    mine = epsilon_of([event], DELTA)
    sampled = dp_accounting.PoissonSampledDpEvent(0.6, dp_accounting.GaussianDpEvent(1.0))
    exact = pld.PLDAccountant()
    exact.compose(sampled, 50)
    assert mine == pytest.approx(exact.get_epsilon(DELTA), rel=1e-3)
    bound = rdp.RdpAccountant()
    bound.compose(sampled, 50)
    by_rdp = epsilon_of([event], DELTA, accountant="rdp")
    assert by_rdp == pytest.approx(bound.get_epsilon(DELTA), rel=2e-2)
    assert mine < by_rdp


@pytest.mark.parametrize("size", [1, 30_000])
def test_shares_cost_little_more_than_gaussian_noise(size):
    shares = epsilon_of([Event("skellam", 4.0, 10, size=size)], DELTA)
    gaussian = epsilon_of([Event("gaussian", 4.0, 10)], DELTA)
    by_rdp = epsilon_of([Event("gaussian", 4.0, 10)], DELTA, accountant="rdp")
    assert gaussian < shares == pytest.approx(by_rdp, rel=1e-3)


def test_skellam_divergence_bounds_the_true_one():
    # In one dimension the divergence can be summed up; a coarse grid, so that it matters.
    from scipy.stats import skellam

    from fedrecsk.privacy import accounting

    shift, variance, order = 3, 20.0, 4
    x = np.arange(-150, 151)
    log_p, log_q = (skellam.logpmf(x - s, variance / 2, variance / 2) for s in (shift, 0))
    true = np.log(np.exp(order * log_p - (order - 1) * log_q).sum()) / (order - 1)
    steps = shift - 0.5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounting, "sensitivity", lambda size: steps + 0.5)
        xi, rho = accounting._skellam_divergence(Event("skellam", np.sqrt(variance) / shift))
    assert true <= xi + rho * order <= 1.5 * true


@pytest.mark.parametrize(("size", "l1"), [(1, 3), (2, 3 * np.sqrt(2)), (100, 9)])
def test_skellam_divergence_is_that_of_the_theorem(size, l1, monkeypatch):
    # Agarwal, Kairouz and Liu (2021), theorem 3.5: the integers' L1 norm is at most the square of
    # their L2 norm, here 3.
    from fedrecsk.privacy import accounting

    monkeypatch.setattr(accounting, "sensitivity", lambda size: 3.0)
    event = Event("skellam", np.sqrt(20) / 3, size=size)
    xi, rho = accounting._skellam_divergence(event)
    for order in (2, 16):
        theorem = order * 9 / (2 * 20) + ((2 * order - 1) * 9 + 6 * l1) / (4 * 20**2)
        assert xi + rho * order == pytest.approx(theorem)


def test_nothing_and_no_noise():
    assert epsilon_of([], DELTA) == epsilon_of([Event("gaussian", 1.0, 0)], DELTA) == 0
    assert epsilon_of([Event("gaussian", 0.0)], DELTA) == float("inf")


@pytest.mark.parametrize(
    ("event", "epsilon"),
    [
        (Event("gaussian", 1.0, 20), 0.5),
        (Event("gaussian", 1.0, 40, 0.1), 8.0),
        (Event("skellam", 1.0, 20, size=500), 0.5),
    ],
)
def test_noise_for_an_epsilon(event, epsilon):
    factor = noise_for([event], epsilon, DELTA)
    spent = epsilon_of([event._replace(noise_multiplier=factor)], DELTA)
    assert 0.997 * epsilon < spent <= epsilon


@pytest.mark.parametrize("epsilon", [1e-9, 1e-3, 1.0, 5.0, 300.0])
@pytest.mark.parametrize("count", [1, 7, 49])
def test_sums_that_were_charged_one_by_one_stay_within_the_epsilon(epsilon, count):
    events = [Event("gaussian", 1.7), Event("gaussian", 1.0, count)]
    noise = noise_for(events, epsilon, DELTA)
    spent = (1.7 * noise) ** -2
    for _ in range(count):
        spent += noise**-2
    report = Event("gaussian", np.sqrt((count + 1) / spent), count + 1)
    assert 0.5 * epsilon < epsilon_of([report], DELTA) <= epsilon
