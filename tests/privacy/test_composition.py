"""The total epsilon of many uploads, against enumeration and dp-accounting."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fedrecsk.privacy import (
    Event,
    GaussianMechanism,
    LaplaceMechanism,
    PrivacyReport,
    SphereMechanism,
    epsilon_of,
    shuffled_epsilon,
)
from fedrecsk.privacy.accounting import (
    gaussian_epsilon,
    laplace_epsilon,
    pure_epsilon,
)

DELTA = 1e-5


@pytest.mark.parametrize("mu", [1e-2, 0.1, 1, 5, 100])
def test_gaussian_epsilon_is_that_of_dp_accounting(mu):
    dp_accounting = pytest.importorskip("dp_accounting", reason="needs fedrecsk[privacy]")
    expected = dp_accounting.get_epsilon_gaussian(1 / mu, DELTA)
    assert gaussian_epsilon(mu, DELTA) == pytest.approx(expected, rel=1e-7)


def naive_pure_delta(each, n, epsilon):
    """Randomised response, all its answers one by one."""
    right = math.exp(each) / (1 + math.exp(each))
    total = 0.0
    for answers in itertools.product([True, False], repeat=n):
        p = math.prod(right if answer else 1 - right for answer in answers)
        q = math.prod(1 - right if answer else right for answer in answers)
        total += max(0.0, p - math.exp(epsilon) * q)
    return total


@pytest.mark.parametrize(("each", "n"), [(0.3, 9), (1.0, 6), (0.1, 1)])
def test_pure_epsilon_is_that_of_randomised_response(each, n):
    epsilon = pure_epsilon(each, n, 1e-3)
    assert naive_pure_delta(each, n, epsilon) == pytest.approx(1e-3, rel=1e-4)
    assert epsilon <= n * each
    assert pure_epsilon(each, n, 0.0) == n * each


def composed(distribution, n):
    return distribution.self_compose(n).get_epsilon_for_delta(DELTA)


@pytest.mark.parametrize(("each", "n"), [(0.1, 100), (1.0, 100), (0.1, 1000), (10.0, 100)])
def test_laplace_epsilon_is_a_close_bound(each, n):
    pld = pytest.importorskip("dp_accounting.pld", reason="needs fedrecsk[privacy]")
    one = pld.privacy_loss_distribution.from_laplace_mechanism(
        1 / each, value_discretization_interval=each / 1000
    )
    exact = composed(one, n)
    assert exact <= laplace_epsilon(each, n, DELTA) <= 1.04 * exact
    assert laplace_epsilon(each, n, DELTA) < n * each


def test_one_laplace_number_costs_no_less_than_its_area():
    """Its delta is 1 - exp((epsilon - each) / 2)."""
    exact = 2.0 + 2 * math.log1p(-0.1)
    assert exact <= laplace_epsilon(2.0, 1, 0.1) <= 2.0


def test_millions_of_numbers_take_no_time():
    total = laplace_epsilon(1e-4, 3_364_000, DELTA)
    assert total < 0.01 * 336.4
    # Large epsilons add up almost as in basic composition.
    assert 0.88 < laplace_epsilon(10.0, 3_364_000, DELTA) / 33_640_000 < 1


@pytest.mark.parametrize(("epsilon", "n_uploads"), [(0.5, 100), (10.0, 1), (200.0, 7), (4.9, 49)])
def test_mechanisms_are_found_for_an_epsilon(epsilon, n_uploads):
    for found in (
        GaussianMechanism.for_epsilon(epsilon, n_uploads, clip=3.0),
        SphereMechanism.for_epsilon(epsilon, n_uploads, clip=3.0, delta=DELTA),
        SphereMechanism.for_epsilon(epsilon, n_uploads, clip=3.0),
    ):
        assert found.clip == 3.0
        assert found.total_epsilon(n_uploads) == pytest.approx(epsilon, rel=1e-4)
        assert found.total_epsilon(n_uploads) <= epsilon


WRONG = [("epsilon", 0), ("epsilon", float("inf")), ("epsilon", "1")]
WRONG += [("n_uploads", 0), ("n_uploads", 1.5), ("delta", 1.0), ("clip", -1.0)]


@pytest.mark.parametrize("Mechanism", [GaussianMechanism, SphereMechanism, LaplaceMechanism])
def test_wrong_numbers_are_named_and_small_types_are_plain_numbers(Mechanism):
    one, owner = Mechanism(1.0, 1.0), Mechanism.__name__
    assert one.total_epsilon(np.int8(100), 10) == one.total_epsilon(100, 10)
    for wrong in (-1, 0.5, float("nan"), "1", None):
        with pytest.raises(ValueError, match=f"'n_uploads' parameter of {owner}.total_epsilon "):
            one.total_epsilon(wrong, 10)
    if Mechanism is LaplaceMechanism:
        return
    found = Mechanism.for_epsilon(np.float16(2), np.int8(100), delta=np.float32(0.25))
    assert found.get_params() == Mechanism.for_epsilon(2.0, 100, delta=0.25).get_params()
    for name, value in WRONG:
        with pytest.raises(ValueError, match=f"The '{name}' parameter of {owner}"):
            Mechanism.for_epsilon(**{"epsilon": 1.0, "n_uploads": 3, name: value})


def test_laplace_noise_composes_over_numbers_by_delta():
    pure = LaplaceMechanism(clip=0.5, scale=10.0)
    loose = LaplaceMechanism(clip=0.5, scale=10.0, delta=DELTA)
    assert pure.total_epsilon(1, 1000) == pytest.approx(100)
    assert loose.total_epsilon(1, 1000) == laplace_epsilon(0.1, 1000, DELTA)
    with pytest.raises(ValueError, match="total_epsilon needs n_coordinates"):
        pure.total_epsilon(1)


# ---------------------------------------------------------------------- uploads that are shuffled


def delta_of_clones(epsilon0, n, epsilon):
    """Feldman, McMillan and Talwar 2021, theorem 3.2: numbers of clones of either kind.

    Of n - 1 others, C are clones, A of which look like the client's first data set. The client
    itself is the clone of its own data set with probability e^eps0 / (1 + e^eps0).
    """
    own = math.exp(epsilon0) / (1 + math.exp(epsilon0))
    clones = stats.binom(n - 1, math.exp(-epsilon0))
    total = 0.0
    for c in range(int(clones.ppf(1e-12)), int(clones.ppf(1 - 1e-12)) + 1):
        first = np.arange(c + 2)
        stays, moves = stats.binom.pmf(first, c, 0.5), stats.binom.pmf(first - 1, c, 0.5)
        p, q = own * moves + (1 - own) * stays, (1 - own) * moves + own * stays
        total += clones.pmf(c) * np.maximum(0, p - math.exp(epsilon) * q).sum()
    return total


@pytest.mark.parametrize(("epsilon0", "n"), [(0.2, 284), (1.0, 632), (2.0, 1716)])
def test_the_closed_form_is_a_bound(epsilon0, n):
    delta = 1e-6
    epsilon = shuffled_epsilon(epsilon0, n, delta)
    # So few clients that the theorem only just holds.
    assert delta_of_clones(epsilon0, n, epsilon) <= delta
    # But not one that anything would meet.
    assert delta_of_clones(epsilon0, n, epsilon / 8) > delta


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5.0, 943, 1e-6), "needs 34,453 clients or more"),
        ((1000.0, 943, 1e-6), "needs inf clients"),
        ((1.0, 1, 1e-6), "no proven effect"),
        ((1.0, 0, 1e-6), "'n_clients' parameter of shuffled_epsilon must be an int"),
        ((0.0, 943, 1e-6), "'epsilon' parameter of shuffled_epsilon must be a float"),
        (("1", 943, 1e-6), "'epsilon' parameter of shuffled_epsilon must be a float"),
        ((1.0, 943, 0.0), "'delta' parameter of shuffled_epsilon must be a float"),
    ],
)
def test_where_the_theorem_does_not_hold_it_says_so(arguments, message):
    with pytest.raises(ValueError, match=message):
        shuffled_epsilon(*arguments)


def test_the_bound_in_numbers():
    # log(1 + (e - 1) / (e + 1) (8 sqrt(e log(4e6)) / sqrt(1e4) + 8 e / 1e4)).
    assert shuffled_epsilon(1.0, 10_000, 1e-6) == pytest.approx(0.214026, abs=1e-6)


# ------------------------------------------------------- one person on several clients


def central(*events):
    epsilon = epsilon_of(events, DELTA)
    return PrivacyReport("central noise", epsilon, 1, 1, epsilon, delta=DELTA, events=events)


def test_a_group_on_sums_with_gaussian_noise_shifts_them_by_so_much_more():
    pytest.importorskip("dp_accounting", reason="needs fedrecsk[privacy]")
    report = central(Event("gaussian", 8.0, count=9), Event("gaussian", 20.0))
    assert report.for_group(1) == (report.epsilon, DELTA)
    epsilon, delta = report.for_group(3)
    assert delta == DELTA
    shift = 3 * math.sqrt(9 / 8**2 + 1 / 20**2)
    tails = (stats.norm.cdf(side * shift / 2 - epsilon / shift) for side in (1, -1))
    right, wrong = tails
    assert right - math.exp(epsilon) * wrong == pytest.approx(DELTA, rel=1e-4)
    # Three times as much for the same delta would be wrong.
    assert epsilon > 3 * report.epsilon


def test_a_group_of_sampled_clients_has_what_group_privacy_gives():
    pytest.importorskip("dp_accounting", reason="needs fedrecsk[privacy]")
    report = central(Event("gaussian", 8.0, count=9, probability=0.5))
    epsilon, delta = report.for_group(3)
    each = math.exp(report.epsilon)
    assert epsilon == 3 * report.epsilon
    assert delta == pytest.approx(DELTA * (1 + each + each**2))
    assert delta < 3 * each**2 * DELTA
    assert report.for_group(1000) == (math.inf, 1.0)


def test_a_group_whose_clients_add_noise_each_spends_the_sum():
    laplace = PrivacyReport.of(LaplaceMechanism(1.0, 0.5), [2], [10])
    assert laplace.for_group(4) == (4 * laplace.epsilon, 0.0)
    gaussian = PrivacyReport.of(GaussianMechanism(1.0, 3.0, delta=DELTA), [2], [10])
    assert gaussian.for_group(2) == (2 * gaussian.epsilon, 2 * gaussian.delta)
    assert PrivacyReport.of(None, [2], [10]).for_group(2)[0] == math.inf
    assert gaussian.for_group(200_000) == (math.inf, 1.0)
    with pytest.raises(ValueError, match="'n_clients' parameter of for_group must be"):
        laplace.for_group(0)


def test_a_group_has_no_guarantee_where_one_client_has_none():
    pytest.importorskip("dp_accounting", reason="needs fedrecsk[privacy]")
    unprotected = PrivacyReport.of(None, [2], [10])
    report = PrivacyReport.joined([central(Event("gaussian", 8.0)), unprotected])
    with np.errstate(all="raise"):
        assert report.for_group(2) == (math.inf, 2 * DELTA)
    assert report.for_group(200_000) == (math.inf, 1.0)
