"""PrivUnit: its density ratio, its expectation, and the choice of its cap."""

import math

import numpy as np
import pytest

from fedrecsk.privacy import SphereMechanism
from fedrecsk.privacy.local_dp import _cap, best_cap

N = 4000


def drawn(mechanism, upload, n=N, seed=0):
    upload, rng = np.asarray(upload, dtype=float), np.random.default_rng(seed)
    return np.stack([mechanism._draw(upload, np.linalg.norm(upload), rng) for _ in range(n)])


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_on_a_circle_no_direction_is_more_likely_than_epsilon_allows(epsilon):
    mechanism = SphereMechanism(1.0, epsilon)
    counts = []
    for upload in ([1.0, 0.0], [-1.0, 0.0], [0.0, 0.3]):
        answers = drawn(mechanism, upload, 2 * N, seed=len(counts))
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
    error = 4 * answers.std(axis=0) / math.sqrt(N)
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
