import numpy as np
import pytest
from scipy import stats

from fedrecsk import Federation
from fedrecsk.privacy import LaplaceMechanism, PrivacyReport


@pytest.mark.parametrize("n_clients", [1, 3, 50])
def test_summed_noise_is_a_sum_of_laplace_draws(n_clients):
    mechanism = LaplaceMechanism(clip=1.0, scale=0.3)
    rng = np.random.default_rng(0)
    fast = mechanism.summed_noise(n_clients, (4000,), rng)
    slow = rng.laplace(0, 0.3, (n_clients, 4000)).sum(axis=0)
    assert stats.ks_2samp(fast, slow).pvalue > 1e-3


def test_epsilon_is_two_clip_over_scale():
    assert LaplaceMechanism(clip=0.2, scale=0.04).epsilon == pytest.approx(10)


def test_the_report_composes_over_coordinates():
    mechanism = LaplaceMechanism(clip=0.2, scale=0.04)
    report = PrivacyReport.of(mechanism, np.array([3, 5]), np.array([300, 500]))
    assert report.epsilon_per_coordinate == pytest.approx(10)
    assert report.epsilon == pytest.approx(5000)
    assert (report.n_uploads, report.n_coordinates) == (5, 500)


def test_plaintext_promises_nothing():
    assert PrivacyReport.of(None, np.array([3]), np.array([300])).epsilon == float("inf")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"clip": 0.2}, "a clip but no scale"),
        ({"scale": 0.2}, "'clip' parameter"),
        ({"clip": -1, "scale": 0.2}, "'clip' parameter"),
        ({"clip": 1, "scale": 0}, "'scale' parameter"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        Federation(local_dp=LaplaceMechanism(**parameters))._validate_params()
