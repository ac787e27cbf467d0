"""Attacks on the last digits of noisy numbers (Mironov, CCS 2012)."""

import numpy as np
import pytest
from scipy import stats

from fedrecsk.privacy import GaussianMechanism, LaplaceMechanism, SphereMechanism
from fedrecsk.privacy._grid import rounded, step_of, towards_zero
from fedrecsk.updates import FieldSpec, SparseRows
from tests.updates.making import updates_of

N = 20_000
CLIP = 1.0
LAPLACE = LaplaceMechanism(CLIP, 2.0)
GAUSSIAN = GaussianMechanism(CLIP * np.sqrt(N), 2.0 / np.sqrt(N))
SPHERE = SphereMechanism(CLIP * np.sqrt(N), 5.0)
ADDED = [LAPLACE, GAUSSIAN]


def sent(mechanism, value, seed=0):
    """What a client sends that has the same number everywhere."""
    spec = FieldSpec((N, 1), clip=mechanism.number_clip)
    updates = updates_of({"x": SparseRows.stacked(np.full((1, N, 1), value))}, {"x": spec})
    seeds = np.random.default_rng(seed).integers(2**63, size=1, dtype=np.uint64)
    return mechanism._protect(updates, lambda purpose: seeds, each=True).fields["x"].whole().ravel()


def only_from_zero(numbers):
    """The attack: which of these sums of a value and noise cannot come from the value 1.

    Floats next to -1 are multiples of 2**-53, hence so is their sum with 1 if that is small.
    Noise itself has finer digits.
    """
    near = np.abs(numbers) < 0.25
    return near & (numbers * 2.0**53 != np.rint(numbers * 2.0**53))


@pytest.mark.parametrize("kind", ["laplace", "normal"])
def test_naive_sums_show_the_value_they_come_from(kind):
    noise = getattr(np.random.default_rng(0), kind)(0, 2.0, (2, N))
    from_zero, from_one = 0.0 + noise[0], 1.0 + noise[1]
    # An event of a tenth of the outcomes under one value that is impossible under the other.
    assert only_from_zero(from_zero).mean() > 0.06
    assert only_from_zero(from_one).mean() == 0


@pytest.mark.parametrize("mechanism", ADDED, ids=lambda one: one.name)
def test_what_clients_send_does_not_show_it(mechanism):
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
