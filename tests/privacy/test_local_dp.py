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


def test_reports_of_several_fits_to_the_same_data_compose():
    one = PrivacyReport("laplace", 5.0, 1, 10, 50.0, "single uploads")
    other = PrivacyReport("laplace", 2.0, 3, 30, 60.0, "encrypted sums")
    for both in ([one, other], [other, one]):
        joined = PrivacyReport.joined(both)
        assert joined == PrivacyReport("laplace", 5.0, 4, 40, 110.0, "single uploads")
    without = PrivacyReport("none", float("inf"), 1, 10, float("inf"), "sums")
    joined = PrivacyReport.joined([other, without])
    assert joined == PrivacyReport("none", float("inf"), 4, 40, float("inf"), "sums")


def test_plaintext_promises_nothing():
    assert PrivacyReport.of(None, np.array([3]), np.array([300])).epsilon == float("inf")
    # Where nothing has been sent, nothing can be learned.
    assert PrivacyReport.of(None, np.array([0]), np.array([0])).epsilon == 0


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
