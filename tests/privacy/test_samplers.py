"""Mean, variance and tails of all noise, in the range that parameters allow; PrivUnit's cap."""

import math

import numpy as np
import pytest
from scipy import stats

from fedrecsk.privacy import GaussianMechanism, LaplaceMechanism, SphereMechanism
from fedrecsk.privacy._grid import rounded, step_of, towards_zero
from fedrecsk.privacy.central_dp import LARGEST_MEAN, noisy_sum, skellam
from fedrecsk.privacy.local_dp import _cap, _cosine, best_cap
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


@pytest.mark.parametrize("variance", [1e9, 2 * LARGEST_MEAN, 3 * LARGEST_MEAN, 1e16, 1e24])
def test_large_skellam_noise(variance):
    # Of such variances it is normal, but for far less than a test can see.
    draws = skellam(variance, N, np.random.default_rng(0))
    assert (draws == np.rint(draws)).all()
    check(draws, stats.norm(scale=np.sqrt(variance)))


@pytest.mark.parametrize(
    ("clip", "noise_multiplier"), [(1e-30, 1e6), (0.5, 3.0), (1e30, 1e-6), (1e30, 1e6)]
)
def test_noise_on_sums(clip, noise_multiplier):
    sums = np.full(N, 0.1 * clip)
    noisy, std = noisy_sum(sums, clip, noise_multiplier, 1, np.random.default_rng(0))
    # A grid of 2**-24 of so much noise is coarse next to the clip.
    close = 0.1 if noise_multiplier > 1e3 else 1e-3
    assert std == pytest.approx(noise_multiplier * clip, rel=close)
    check(noisy - sums, stats.norm(scale=std))
    assert (noisy % 2.0 ** np.floor(np.log2(noise_multiplier * clip / 2**24)) == 0).all()
    assert (noisy_sum(sums, clip, 0.0, 1, None)[0] == sums).all()


def test_rounding_of_sums_is_made_up_for():
    # So many numbers that rounding each of them to the grid moves the sum by as much as the clip.
    size = 2**48
    _, std = noisy_sum(np.zeros(1), 1.0, 1.0, size, np.random.default_rng(0))
    assert std == 1.0 + np.sqrt(size) / 2**24 == 2.0


SCALES = [1e-30, 0.7, 1e30]


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


@pytest.mark.parametrize(("scale", "n_clients"), [(1e-30, 10**7), (0.7, 1), (0.7, 30), (1e30, 1)])
def test_noise_of_the_sum_of_clients(scale, n_clients):
    for mechanism, distribution in (
        (LaplaceMechanism(1.0, scale), SumOfLaplace(n_clients)),
        (GaussianMechanism(1.0, scale), stats.norm(scale=np.sqrt(n_clients))),
    ):
        noise = mechanism.summed_noise(n_clients, (N,), np.random.default_rng(0))
        check(noise / scale, distribution)


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


@pytest.mark.parametrize(
    ("dimension", "epsilon"), [(2, 1.0), (3, 8.0), (100, 0.1), (10**6, 1e-9), (10**6, 8.0)]
)
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


@pytest.mark.parametrize(("dimension", "epsilon"), [(100, 20.0), (100, 500.0), (10**6, 100.0)])
def test_directions_in_a_small_cap(dimension, epsilon):
    n, rng, cap = 8000, np.random.default_rng(0), best_cap(dimension, epsilon)
    cosines = np.array([_cosine(cap, dimension, rng) for _ in range(n)])
    within = cosines >= cap.height * (1 - 1e-12)
    assert abs(within.sum() - n * cap.chance) < MOST * np.sqrt(n * cap.chance * (1 - cap.chance))
    # The share of the cap that is nearer to the upload's direction than an answer.
    nearer = stats.beta.cdf(1 - cosines[within] ** 2, (dimension - 1) / 2, 0.5) / 2 / cap.share
    assert stats.kstest(nearer, "uniform").pvalue > 1e-3


# ------------------------------------------------- attacks on the last digits (Mironov, CCS 2012)


N_SENT = 20_000
CLIP = 1.0
LAPLACE = LaplaceMechanism(CLIP, 2.0)
GAUSSIAN = GaussianMechanism(CLIP * np.sqrt(N_SENT), 2.0 / np.sqrt(N_SENT))
SPHERE = SphereMechanism(CLIP * np.sqrt(N_SENT), 5.0)
ADDED = [LAPLACE, GAUSSIAN]


def sent(mechanism, value, seed=0):
    """What a client sends that has the same number everywhere."""
    spec = FieldSpec((N_SENT, 1), clip=mechanism.number_clip)
    updates = updates_of({"x": SparseRows.stacked(np.full((1, N_SENT, 1), value))}, {"x": spec})
    seeds = np.random.default_rng(seed).integers(2**63, size=1, dtype=np.uint64)
    return mechanism._protect(updates, lambda purpose: seeds, each=True).fields["x"].whole().ravel()


def only_from_zero(numbers):
    """The attack: which of these sums of a value and noise cannot come from the value 1.

    Floats next to -1 are multiples of 2**-53, hence so is their sum with 1 if that is small.
    Noise itself has finer digits.
    """
    near = np.abs(numbers) < 0.25
    return near & (numbers * 2.0**53 != np.rint(numbers * 2.0**53))


@pytest.mark.parametrize("mechanism", ADDED, ids=lambda one: one.name)
def test_what_clients_send_does_not_show_it(mechanism):
    # The attack works where noise is simply added.
    kind = {"laplace": "laplace", "gaussian": "normal"}[mechanism.name]
    assert only_from_zero(getattr(np.random.default_rng(0), kind)(0, 2.0, N_SENT)).mean() > 0.06
    from_zero, from_one = sent(mechanism, 0.0), sent(mechanism, 1.0, seed=1)
    assert only_from_zero(from_zero).mean() == only_from_zero(from_one).mean() == 0
    # Both are on the same grid, all of it.
    step = step_of(2.0)
    for numbers in (from_zero, from_one):
        steps = numbers / step
        assert (steps == np.rint(steps)).all()
        # Any digits but the first ones are as likely from one value as from the other.
        for n_digits in (1, 4, 8):
            digits = np.bincount(steps.astype(np.int64) % 2**n_digits, minlength=2**n_digits)
            assert stats.chisquare(digits).pvalue > 1e-3


def test_answers_on_the_sphere_are_on_a_grid():
    from_zero, from_one = sent(SPHERE, 0.0), sent(SPHERE, 1.0, seed=1)
    assert only_from_zero(from_zero).mean() == only_from_zero(from_one).mean() == 0
    coarse = 2.0**-20
    for numbers in (from_zero, from_one):
        assert (numbers / coarse == np.rint(numbers / coarse)).all()


@pytest.mark.parametrize("scale", [0.3, 1.0, 1.5, 2.0, 1e30, 1e-30])
def test_the_step_is_a_power_of_two_below_a_millionth(scale):
    step = step_of(scale)
    assert np.frexp(step)[0] == 0.5
    assert scale / 2**21 < step <= scale / 2**20


def test_rounding_is_exact_and_never_lengthens_what_is_clipped():
    numbers = np.random.default_rng(0).standard_normal(1000)
    step = step_of(1.0)
    near, inwards = rounded(numbers.copy(), step), towards_zero(numbers.copy(), step)
    assert np.abs(near - numbers).max() <= step / 2
    assert (np.abs(inwards) <= np.abs(numbers)).all()
    assert np.abs(inwards - numbers).max() < step
    # Adding is exact, so that rounding the noise is rounding the sum.
    noise = np.random.default_rng(1).laplace(0, 1, 1000)
    assert (inwards + rounded(noise.copy(), step) == rounded(inwards + noise, step)).all()


# ------------------------ PrivUnit: its density ratio, its expectation, and the choice of its cap


N_ANSWERS = 4000


def drawn(mechanism, upload, n=N_ANSWERS, seed=0):
    upload, rng = np.asarray(upload, dtype=float), np.random.default_rng(seed)
    return np.stack([mechanism._draw(upload, np.linalg.norm(upload), rng) for _ in range(n)])


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_on_a_circle_no_direction_is_more_likely_than_epsilon_allows(epsilon):
    mechanism = SphereMechanism(1.0, epsilon)
    counts = []
    for upload in ([1.0, 0.0], [-1.0, 0.0], [0.0, 0.3]):
        answers = drawn(mechanism, upload, 2 * N_ANSWERS, seed=len(counts))
        angles = np.arctan2(answers[:, 1], answers[:, 0])
        counts.append(np.histogram(angles, 8, (-np.pi, np.pi))[0])
    for one in counts:
        for other in counts:
            # Three standard deviations of the counts; the most likely of 8 parts.
            slack = 3 * (one**-0.5 + other**-0.5)
            assert (np.log(one / other) <= epsilon + slack).all()
    # It is used up, not stayed below.
    assert np.log(counts[0] / counts[1]).max() > 0.8 * epsilon


@pytest.mark.parametrize("upload", [[0.7, -0.9, 0.2], [0.1, 0, 0], [0, 0, 0], [3, 4, 0], [0.5]])
def test_the_expectation_is_the_clipped_upload(upload):
    answers = drawn(SphereMechanism(2.0, 3.0), upload)
    length = max(np.linalg.norm(upload), 2.0)
    error = 4 * answers.std(axis=0) / math.sqrt(N_ANSWERS)
    assert (np.abs(answers.mean(axis=0) - np.array(upload) * 2.0 / length) < error).all()


@pytest.mark.parametrize(("dimension", "epsilon"), [(3, 1.0), (10, 4.0), (30_000, 10.0)])
def test_no_other_cap_is_better(dimension, epsilon):
    best = best_cap(dimension, epsilon)
    highest = min(0.999, 2 * best.height + 0.01)
    others = [_cap(dimension, epsilon, h).mean for h in np.linspace(0, highest, 2001)]
    assert best.mean >= max(others) * (1 - 1e-9)
    # Where the derivative is zero, the mean is the height.
    assert best.mean == pytest.approx(best.height, rel=1e-4)


def test_noise_std_is_that_of_each_number():
    mechanism, rng = SphereMechanism(2.0, 6.0), np.random.default_rng(0)
    upload = rng.standard_normal(200)
    upload *= 2.0 / np.linalg.norm(upload)
    errors = drawn(mechanism, upload, 400) - upload
    assert np.sqrt((errors**2).mean()) == pytest.approx(mechanism.noise_std(200), rel=0.02)
