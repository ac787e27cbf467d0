import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import Federation, GlobSGD, LocALS, LocSGD, RFRec, RFRecF
from fedrecsk.aggregation import CoordinateMedian, Krum, NormClipping, TrimmedMean, Update
from fedrecsk.privacy import LaplaceMechanism
from tests.conftest import make_toy
from tests.reference import aggregation as reference

METHODS = [RFRec, RFRecF, LocALS, LocSGD, GlobSGD]
every_method = pytest.mark.parametrize("Estimator", METHODS)
EVERYTHING = slice(None)


def uploads_of(changes):
    return [{"x": Update(EVERYTHING, change)} for change in changes]


@pytest.fixture
def changes():
    return list(np.random.default_rng(0).standard_normal((9, 4, 3)))


def combined(aggregator, changes):
    return aggregator.combine(uploads_of(changes), {"x": changes[0].shape})["x"]


def test_norm_clipping_equals_the_naive_reference(changes):
    for bound in (0.5, 3.0, 100.0):
        expected = reference.clipped_sum(changes, bound)
        np.testing.assert_allclose(combined(NormClipping(bound), changes), expected)
    bound = 1.5 * np.median([np.linalg.norm(change) for change in changes])
    expected = reference.clipped_sum(changes, bound)
    np.testing.assert_allclose(combined(NormClipping(multiple=1.5), changes), expected)


@pytest.mark.parametrize("n_clients", [1, 2, 8, 9])
def test_order_statistics_equal_the_naive_reference(changes, n_clients):
    changes = changes[:n_clients]
    expected = n_clients * reference.median(changes)
    np.testing.assert_allclose(combined(CoordinateMedian(), changes), expected)
    n_cut = min(int(np.ceil(0.3 * n_clients)), (n_clients - 1) // 2)
    expected = n_clients * reference.trimmed_mean(changes, n_cut)
    np.testing.assert_allclose(combined(TrimmedMean(0.3), changes), expected)


@pytest.mark.parametrize(("f", "n_selected"), [(0, 1), (2, 1), (3, 1), (1, 4)])
def test_krum_equals_the_naive_reference(changes, f, n_selected):
    expected = len(changes) * reference.krum(changes, f, n_selected)
    np.testing.assert_allclose(combined(Krum(f, n_selected=n_selected), changes), expected)


@pytest.mark.parametrize(
    ("aggregator", "n_needed"), [(Krum(2), 7), (Krum(0), 3), (Krum(1, n_selected=4), 7)], ids=str
)
def test_krum_gives_up_with_one_upload_too_few(changes, aggregator, n_needed):
    uploads, shapes = uploads_of(changes), {"x": changes[0].shape}
    assert aggregator.combine(uploads[: n_needed - 1], shapes) is None
    assert aggregator.combine(uploads[:n_needed], shapes) is not None


def test_rows_that_a_client_does_not_send_count_as_unchanged():
    rows = [np.array([0]), np.array([0, 2]), np.array([2])]
    uploads = [{"x": Update(r, np.full((len(r), 2), k + 1.0))} for k, r in enumerate(rows)]
    total = CoordinateMedian().combine(uploads, {"x": (3, 2)})["x"]
    np.testing.assert_array_equal(total, 3 * np.array([[1.0, 1], [0, 0], [2, 2]]))


def attributes_of(model):
    return [model.item_factors_, model.user_factors_]


NEUTRAL = [NormClipping(1e9), TrimmedMean(0.0)]


@every_method
@pytest.mark.parametrize("aggregator", NEUTRAL, ids=str)
@pytest.mark.parametrize("setting", [{}, {"dropout": 0.3}], ids=str)
def test_an_aggregator_that_clips_and_trims_nothing_changes_nothing(
    Estimator, aggregator, setting, monkeypatch
):
    monkeypatch.setattr(Estimator, "_dtype", np.float64)
    X, y = make_toy(n_users=20, density=0.9)
    groups = X[:, 0] % 5
    model = Estimator(n_rounds=4, random_state=0, federation=Federation(**setting))
    plain = clone(model).fit(X, y, clients=groups)
    clipped = model.set_params(federation__aggregator=aggregator).fit(X, y, clients=groups)
    for a, b in zip(attributes_of(plain), attributes_of(clipped), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)
    assert plain.communication_ == clipped.communication_


@every_method
@pytest.mark.parametrize(
    "aggregator", [NormClipping(), CoordinateMedian(), TrimmedMean(), Krum()], ids=str
)
def test_every_aggregator_serves_every_method(Estimator, aggregator):
    X, y = make_toy(n_users=20, density=0.9)
    federation = Federation(aggregator=aggregator)
    model = Estimator(n_rounds=3, random_state=0, federation=federation)
    model.fit(X, y, clients=X[:, 0] % 6)
    assert np.isfinite(model.predict(X)).all()
    again = clone(model).set_params(n_jobs=2).fit(X, y, clients=X[:, 0] % 6)
    for a, b in zip(attributes_of(model), attributes_of(again), strict=True):
        np.testing.assert_array_equal(a, b)


def test_noise_of_local_privacy_comes_before_the_aggregator():
    X, y = make_toy(n_users=20, density=0.9)
    noisy = LaplaceMechanism(clip=0.2, scale=0.1)
    items = {}
    for bound in (1e-9, 1e9):
        federation = Federation(local_dp=noisy, aggregator=NormClipping(bound))
        public = {"rating_scale": (1, 5), "items": np.unique(X[:, 1])}
        model = RFRec(**public, random_state=0, federation=federation)
        items[bound] = [clone(model).set_params(n_rounds=n).fit(X, y).item_factors_ for n in (1, 3)]
    np.testing.assert_allclose(*items[1e-9], atol=1e-6)
    assert np.abs(np.subtract(*items[1e9])).max() > 0.01


@pytest.mark.parametrize("aggregator", [CoordinateMedian(), TrimmedMean(), Krum()], ids=str)
def test_comparisons_are_refused_where_most_clients_are_silent(aggregator):
    X, _ = make_toy(n_users=20, density=0.2)
    with pytest.raises(ValueError, match=r"fewer than half of the 20 clients.*silos.*NormClipping"):
        LocALS(federation=Federation(aggregator=aggregator)).fit(X)


def test_krum_is_refused_with_too_few_clients():
    X, _ = make_toy(n_users=20, density=0.9)
    model = LocALS(federation=Federation(aggregator=Krum(n_attackers=2)))
    with pytest.raises(ValueError, match="needs 7 clients per round, but there are 6"):
        model.fit(X, clients=X[:, 0] % 6)
    with pytest.raises(ValueError, match="needs 7 clients per round, but there are 5"):
        model.set_params(client_fraction=0.25).fit(X)


def test_rounds_with_too_few_uploads_for_krum_change_nothing():
    X, _ = make_toy(n_users=20, density=0.9)
    federation = Federation(dropout=0.95, aggregator=Krum(n_attackers=6))
    model = LocALS(random_state=0, federation=federation)
    a, b = (clone(model).set_params(n_rounds=n).fit(X).item_factors_ for n in (1, 3))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "aggregator", [NormClipping(0), NormClipping("mean"), TrimmedMean(0.5), Krum(-1)], ids=str
)
def test_parameters_are_checked(aggregator):
    X, _ = make_toy()
    with pytest.raises(ValueError, match=f"parameter of {type(aggregator).__name__} must be"):
        LocALS(federation=Federation(aggregator=aggregator)).fit(X)
