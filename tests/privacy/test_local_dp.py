from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedrecsk.privacy import LaplaceMechanism, PrivacyReport
from fedrecsk.updates import FieldSpec, SparseRows
from tests.updates.making import updates_of


@pytest.mark.parametrize("n_clients", [1, 3, 50])
def test_summed_noise_is_a_sum_of_laplace_draws(n_clients):
    mechanism = LaplaceMechanism(clip=1.0, scale=0.3)
    rng = np.random.default_rng(0)
    fast = mechanism.summed_noise(n_clients, (4000,), rng)
    slow = rng.laplace(0, 0.3, (n_clients, 4000)).sum(axis=0)
    assert stats.ks_2samp(fast, slow).pvalue > 1e-3


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
    without = PrivacyReport("none", float("inf"), 1, 10, float("inf"), "exact sums")
    joined = PrivacyReport.joined([other, without])
    assert joined == PrivacyReport("none", float("inf"), 4, 40, float("inf"), "exact sums")


def test_plaintext_promises_nothing():
    assert PrivacyReport.of(None, np.array([3]), np.array([300])).epsilon == float("inf")
    # Where nothing has been sent, nothing can be learned.
    assert PrivacyReport.of(None, np.array([0]), np.array([0])).epsilon == 0


# ---------------------------------------------------------------- noise of single clients


def with_noise(mechanism, rows, spec, name="x"):
    """What clients send in place of rows, with seeds 5, 6, ..."""
    seeds = np.arange(5, 5 + rows.n_clients, dtype=np.uint64)
    updates = updates_of({name: rows}, {name: spec})
    return mechanism._protect(updates, lambda purpose: seeds, each=True).fields[name]


def test_each_client_has_laplace_noise_of_its_own():
    spec = FieldSpec((400, 5), clip=0.5)
    rows = SparseRows(np.array([0, 1, 1, 2]), np.array([3, 7]), np.full((2, 5), 0.5))
    mechanism = LaplaceMechanism(clip=0.5, scale=0.3)
    noised = with_noise(mechanism, rows, spec)
    noise = noised.whole() - replace(rows, spec=spec).whole()
    for sample in noise:
        assert stats.kstest(sample.ravel(), stats.laplace(scale=0.3).cdf).pvalue > 1e-3
    assert np.abs(np.corrcoef(noise.reshape(3, -1)) - np.eye(3)).max() < 0.1
    again = with_noise(mechanism, replace(rows, spec=spec).take(np.arange(3) == 0), spec)
    np.testing.assert_array_equal(again.whole()[0], noised.whole()[0])
    assert (with_noise(mechanism, rows, spec, "others").whole()[1] != noised.whole()[1]).any()


def test_noise_keeps_to_the_columns_and_to_integers():
    columns = np.array([[True, False, True]])
    none = SparseRows(np.zeros(2, int), np.zeros(0, int), np.zeros((0, 3)), columns=columns)
    mechanism = LaplaceMechanism(clip=1.0, scale=5.0)
    noised = with_noise(mechanism, none, FieldSpec((50, 3), clip=1.0))
    np.testing.assert_array_equal(noised.whole()[0].any(axis=0), columns[0])
    counts = SparseRows.stacked(np.ones((1, 50, 3), dtype=np.int64))
    noised = with_noise(mechanism, counts, FieldSpec((50, 3), clip=1.0, dtype="int16"))
    assert noised.values.dtype == np.int64
    assert noised.values.std() > 2


def test_noise_does_not_hide_what_is_not_finite():
    values = np.ones((2, 3, 2))
    values[1, 0, 0] = np.nan
    mechanism = LaplaceMechanism(clip=1.0, scale=1.0)
    noised = with_noise(mechanism, SparseRows.stacked(values), FieldSpec((3, 2), clip=1.0))
    assert noised.finite().tolist() == [True, False]
