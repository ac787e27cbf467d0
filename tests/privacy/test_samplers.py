"""Mean, variance and tails of all noise, in the range that parameters allow."""

import numpy as np
import pytest
from scipy import stats

from fedrecsk.privacy import GaussianMechanism, LaplaceMechanism
from fedrecsk.privacy._sphere import _cosine, best_cap
from fedrecsk.privacy.central_dp import LARGEST_MEAN, noisy_sum, skellam
from fedrecsk.updates import FieldSpec, SparseRows
from tests.updates.making import updates_of

N = 100_000
# In standard errors: exceeded by chance once in 16,000 tests.
MOST = 4.0


def check(draws, symmetric):
    """Compare mean, variance and tails with those of a symmetric distribution."""
    variance, kurtosis = symmetric.stats(moments="vk")
    std, errors = np.sqrt(variance), {}
    errors["mean"] = draws.mean() / std * np.sqrt(N)
    errors["variance"] = ((draws / std) ** 2 - 1).mean() / np.sqrt((kurtosis + 2) / N)
    for bound in np.array([0.5, 2, 3, 3.5]) * std:
        expected = symmetric.sf(bound)
        for sign in (1, -1):
            excess = (sign * draws > bound).mean() - expected
            errors[sign * bound / std] = excess / np.sqrt(expected / N)
    assert {name: error for name, error in errors.items() if not abs(error) < MOST} == {}


@pytest.mark.parametrize("variance", [0.3, 30.0, 1e5])
def test_small_skellam_noise(variance):
    check(skellam(variance, N, np.random.default_rng(0)), stats.skellam(variance / 2, variance / 2))


@pytest.mark.parametrize(
    "variance", [1e9, 1e12, 2 * LARGEST_MEAN, 3e12, 1e13, 1e14, 1e15, 1e16, 1e18, 1e24]
)
def test_large_skellam_noise(variance):
    # Of such variances it is normal, but for far less than a test can see.
    draws = skellam(variance, N, np.random.default_rng(0))
    assert (draws == np.rint(draws)).all()
    check(draws, stats.norm(scale=np.sqrt(variance)))


@pytest.mark.parametrize("variance", [10.0, 1e3, 1e5])
def test_rounded_normal_draws_come_close_to_skellam_noise_as_variances_grow(variance):
    width = int(12 * np.sqrt(variance)) + 20
    numbers = np.arange(-width, width + 1)
    exact = stats.skellam.pmf(numbers, variance / 2, variance / 2)
    ends = np.append(numbers - 0.5, width + 0.5)
    rounded = np.diff(stats.norm.cdf(ends, scale=np.sqrt(variance)))
    assert 0.05 / variance < np.abs(exact - rounded).sum() / 2 < 0.1 / variance


@pytest.mark.parametrize("clip", [1e-30, 0.5, 1e30])
@pytest.mark.parametrize("noise_multiplier", [1e-6, 3.0, 1e6])
def test_noise_on_sums(clip, noise_multiplier):
    noise, std = noisy_sum(np.zeros(N), clip, noise_multiplier, 1, np.random.default_rng(0))
    assert std == pytest.approx(noise_multiplier * clip, rel=0.1)
    check(noise, stats.norm(scale=std))


def test_rounding_of_sums_is_made_up_for():
    # So many numbers that rounding each of them to the grid moves the sum by as much as the clip.
    size = 2**48
    _, std = noisy_sum(np.zeros(1), 1.0, 1.0, size, np.random.default_rng(0))
    assert std == 1.0 + np.sqrt(size) / 2**24 == 2.0


SCALES = [1e-30, 0.7, 1e30]
CLIENTS = [1, 30, 10**7]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("n_clients", CLIENTS)
def test_sums_of_laplace_noise(scale, n_clients):
    noise = LaplaceMechanism(1.0, scale).summed_noise(n_clients, (N,), np.random.default_rng(0))
    check(noise / scale, SumOfLaplace(n_clients))


class SumOfLaplace:
    """The distribution of a sum of n Laplace draws of scale 1."""

    def __init__(self, n):
        self.n = n

    def stats(self, moments):
        return 2.0 * self.n, 3.0 / self.n

    def sf(self, bound):
        if self.n > 100:
            return stats.norm.sf(bound, scale=np.sqrt(2 * self.n))
        # It is a difference of two Gamma draws: the one is larger than the other plus the bound.
        other = stats.gamma(self.n).ppf((np.arange(20_000) + 0.5) / 20_000)
        return stats.gamma.sf(bound + other, self.n).mean()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("n_clients", CLIENTS)
def test_sums_of_gaussian_noise(scale, n_clients):
    noise = GaussianMechanism(1.0, scale).summed_noise(n_clients, (N,), np.random.default_rng(0))
    check(noise / scale, stats.norm(scale=np.sqrt(n_clients)))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("mechanism", "distribution"), [(LaplaceMechanism, "laplace"), (GaussianMechanism, "norm")]
)
def test_the_noise_of_one_client(mechanism, distribution, scale):
    mechanism = mechanism(1.0, scale)
    spec = FieldSpec((N, 1), clip=mechanism.number_clip)
    updates = updates_of({"x": SparseRows.stacked(np.zeros((1, N, 1)))}, {"x": spec})
    seeds = np.array([3], dtype=np.uint64)
    noised = mechanism._protect(updates, lambda purpose: seeds, each=True).fields["x"]
    check(noised.whole().ravel() / scale, getattr(stats, distribution)())


@pytest.mark.parametrize("dimension", [2, 3, 100, 10**6])
@pytest.mark.parametrize("epsilon", [1e-9, 0.1, 1.0, 8.0])
def test_directions_on_a_sphere(dimension, epsilon):
    n, rng, cap = 8000, np.random.default_rng(0), best_cap(dimension, epsilon)
    cosines = np.array([_cosine(cap, dimension, rng) for _ in range(n)])
    n_within = (cosines >= cap.height).sum()
    # The densities in the cap and outside it differ by a factor of exp(epsilon).
    inside, outside = cap.chance / cap.share, (1 - cap.chance) / (1 - cap.share)
    assert np.log(inside / outside) == pytest.approx(epsilon, rel=1e-6)
    chance = cap.chance
    assert abs(n_within - n * chance) < MOST * np.sqrt(n * chance * (1 - chance))
    assert abs(cosines.mean() - cap.mean) < MOST * cosines.std() / np.sqrt(n)
    # Elsewhere in the cap and outside it all directions are as likely.
    half = (dimension - 1) / 2
    uniform = stats.beta(half, half, loc=-1, scale=2)
    ranks, edge = uniform.cdf(cosines), uniform.cdf(cap.height)
    within = (ranks[ranks >= edge] - edge) / (1 - edge)
    outside = ranks[ranks < edge] / edge
    for part in (within, outside):
        assert stats.kstest(part, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("dimension", [100, 10**6])
@pytest.mark.parametrize("epsilon", [20.0, 100.0, 500.0])
def test_directions_in_a_small_cap(dimension, epsilon):
    n, rng, cap = 8000, np.random.default_rng(0), best_cap(dimension, epsilon)
    cosines = np.array([_cosine(cap, dimension, rng) for _ in range(n)])
    within = cosines >= cap.height * (1 - 1e-12)
    assert abs(within.sum() - n * cap.chance) < MOST * np.sqrt(n * cap.chance * (1 - cap.chance))
    # The share of the cap that is nearer to the upload's direction than an answer.
    nearer = stats.beta.cdf(1 - cosines[within] ** 2, (dimension - 1) / 2, 0.5) / 2 / cap.share
    assert stats.kstest(nearer, "uniform").pvalue > 1e-3
