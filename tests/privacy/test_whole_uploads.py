"""Uploads that are clipped and protected as one vector, against loops."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone

from fedrecsk import Federation, RFRec
from fedrecsk.audit._membership import _lower_bound
from fedrecsk.federated.rfrec import RFRecAlgorithm
from fedrecsk.privacy import (
    CentralDP,
    GaussianMechanism,
    LaplaceMechanism,
    PrivacyReport,
    SphereMechanism,
)
from fedrecsk.updates import FieldSpec, SparseRows
from tests.conftest import draw_each, make_toy
from tests.updates.making import updates_of

N_CLIENTS, N_ITEMS, WIDTH = 4, 6, 2
FORMS = {
    "items": FieldSpec((N_ITEMS, WIDTH)),
    "matrix": FieldSpec((3, 3)),
    "weights": FieldSpec((N_ITEMS,), learned=False),
}
QUIET = GaussianMechanism(0.8, 1e-12)


def make_updates(specs=FORMS, **changed):
    """Three fields: rows with a default and a center, a small matrix, and counts."""
    rng = np.random.default_rng(0)
    rows = [np.sort(rng.choice(N_ITEMS, n, replace=False)) for n in (2, 3, 0, 1)]
    indptr, rows = np.concatenate([[0], np.cumsum([len(one) for one in rows])]), np.hstack(rows)
    default, center = rng.standard_normal((2, N_ITEMS, WIDTH))
    numbers, sizes = rng.standard_normal((len(rows), WIDTH)), np.array([0.5, 0.5, 0, 5])
    fields = {
        "items": SparseRows(indptr, rows, numbers, default=default, center=center),
        # The third client's upload is zero, and the last one's is large.
        "matrix": SparseRows.stacked(sizes[:, None, None] * rng.standard_normal((4, 3, 3))),
        "weights": SparseRows(indptr, rows, rng.random(len(rows))),
    }
    return updates_of(fields | changed, specs)


def naively_clipped(updates, clip):
    """Each client's fields, with loops over all that it sends."""
    clipped = []
    for client in range(N_CLIENTS):
        apart, bases, square = {}, {}, 0.0
        for name, rows in updates.fields.items():
            change = rows.whole()[client]
            bases[name] = np.zeros(change.shape) if rows.default is None else rows.default
            apart[name] = change - bases[name]
            square += sum(number**2 for number in apart[name].ravel())
        factor = min(1.0, clip / square**0.5) if square else 1.0
        clipped.append({name: factor * apart[name] + bases[name] for name in FORMS})
    return clipped


def protected(mechanism, updates, *, each, seed=0):
    seeds = np.random.default_rng(seed).integers(2**63, size=N_CLIENTS, dtype=np.uint64)
    return mechanism._protect(updates, lambda purpose: seeds, each=each)


@pytest.mark.parametrize("clip", [0.8, 3.0, 1e6])
@pytest.mark.parametrize("each", [True, False])
def test_clipping_is_that_of_loops(clip, each):
    expected = naively_clipped(make_updates(), clip)
    updates = protected(GaussianMechanism(clip, 1e-15), make_updates(), each=each)
    assert updates.lacks_noise == (not each)
    for name in FORMS:
        whole = updates.fields[name].whole()
        by_loop = np.stack([one[name] for one in expected])
        np.testing.assert_allclose(whole, by_loop, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(
        updates.fields["items"].center, make_updates().fields["items"].center
    )


def test_no_upload_is_longer_than_the_clip():
    """Rounding must not make it longer, or the guarantee would not hold."""
    rng = np.random.default_rng(1)
    for clip in (0.1, 1 / 3, 7.7):
        values = SparseRows.stacked(rng.standard_normal((N_CLIENTS, 300, 9)))
        updates = make_updates({"matrix": FieldSpec((300, 9))}, matrix=values)
        norms = protected(GaussianMechanism(clip, 1e-12), updates, each=True).fields["matrix"]
        norms = np.linalg.norm(norms.whole().reshape(N_CLIENTS, -1), axis=1)
        # The noise is 1e-12 clip, on each of 2,700 numbers.
        assert max(norms) <= clip
        assert min(norms) > 0.999 * clip


@pytest.mark.parametrize(
    "mechanism",
    [GaussianMechanism(1.0, 3.0), SphereMechanism(1.0, 1.0), LaplaceMechanism(1.0, 0.3)],
    ids=lambda one: one.name,
)
def test_each_client_and_field_has_noise_of_its_own(mechanism):
    spec = FieldSpec((40, 40), clip=mechanism.number_clip)
    zeros = {name: SparseRows.stacked(np.zeros((N_CLIENTS, 40, 40))) for name in "xyz"}
    updates = make_updates(dict.fromkeys("xyz", spec), **zeros)
    noised = [protected(mechanism, updates, each=True).fields[name].whole() for name in "xyz"]
    noise = np.concatenate(noised).reshape(3 * N_CLIENTS, -1)
    # Uploads of zeros: an answer on the sphere turns around some axis, which one number shows.
    if mechanism.name == "laplace":
        expected = stats.laplace(scale=0.3)
    else:
        expected = stats.norm(scale=mechanism.noise_std(3 * 1600))
    assert stats.kstest(noise.ravel()[1:], expected.cdf).pvalue > 1e-3
    assert np.abs(np.corrcoef(noise) - np.eye(len(noise))).max() < 0.12
    alone = updates.take(np.arange(N_CLIENTS) == 2)
    seeds = np.random.default_rng(0).integers(2**63, size=N_CLIENTS, dtype=np.uint64)
    again = mechanism._protect(alone, lambda purpose: seeds[2:3], each=True)
    np.testing.assert_array_equal(again.fields["y"].whole()[0], noised[1][2])


@pytest.mark.parametrize("mechanism", [QUIET, SphereMechanism(1.0, 1.0)], ids=str)
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (FieldSpec((N_ITEMS, WIDTH), rows="held"), "rows='held'"),
        (FieldSpec((N_ITEMS, WIDTH), rows="chosen"), "rows='chosen'"),
        (FieldSpec((N_ITEMS, WIDTH), dtype="int16"), "dtype='int16'"),
    ],
)
def test_what_would_not_be_protected_is_refused(mechanism, spec, message):
    updates = make_updates(FORMS | {"items": spec})
    with pytest.raises(RuntimeError, match=f"'items' would be sent without noise: .*{message}"):
        protected(mechanism, updates, each=True)


def test_columns_of_a_clients_own_are_refused():
    items = make_updates().fields["items"]
    columns = np.ones((N_CLIENTS, WIDTH), dtype=bool)
    updates = make_updates(items=replace(items, columns=columns))
    with pytest.raises(RuntimeError, match="'items' has columns of each client's own"):
        protected(QUIET, updates, each=True)


@pytest.mark.parametrize(
    "mechanism", [QUIET, SphereMechanism(1.0, 1.0), LaplaceMechanism(1.0, 1.0)], ids=str
)
def test_what_is_not_finite_stays_visible(mechanism):
    values = np.ones((N_CLIENTS, 3, 3))
    values[1, 0, 0] = np.inf
    specs = {"matrix": FieldSpec((3, 3), clip=mechanism.number_clip)}
    updates = make_updates(specs, matrix=SparseRows.stacked(values)).without_broken()
    done = protected(mechanism, updates, each=True).without_broken()
    assert done.accepted.tolist() == [True, False, True, True]


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        (GaussianMechanism(1.0), "a clip but no noise_multiplier"),
        (GaussianMechanism(noise_multiplier=1.0), "'clip' parameter of GaussianMechanism"),
        (GaussianMechanism(0, 1.0), "'clip' parameter of GaussianMechanism"),
        (GaussianMechanism(1.0, 1.0, delta=0), "'delta' parameter of GaussianMechanism"),
        (SphereMechanism(epsilon=1.0), "'clip' parameter of SphereMechanism"),
        (SphereMechanism(1.0), "'epsilon' parameter of SphereMechanism"),
        (SphereMechanism(1.0, 501), "'epsilon' parameter of SphereMechanism"),
        (SphereMechanism(1.0, 1e-10), "'epsilon' parameter of SphereMechanism"),
        (LaplaceMechanism(0.2), "a clip but no scale"),
        (LaplaceMechanism(scale=0.2), "'clip' parameter of LaplaceMechanism"),
        (LaplaceMechanism(1.0, 1e-320), "'scale' parameter of LaplaceMechanism"),
    ],
    ids=str,
)
def test_bad_parameters_are_named(mechanism, message):
    with pytest.raises(ValueError, match=message):
        Federation(local_dp=mechanism)._validate_params()


@pytest.mark.parametrize(
    ("mechanism", "cure"),
    [(GaussianMechanism(1.0, 5.0), "noise_multiplier"), (SphereMechanism(1.0, 0.1), "clip")],
)
def test_an_error_about_divergence_names_what_to_lower(mechanism, cure):
    assert f"lower its {cure}." in Federation(local_dp=mechanism)._suspect()


def test_a_delta_that_would_allow_to_publish_somebodys_data_is_warned_of():
    X, y = make_toy()
    central = Federation(central_dp=CentralDP(1.0, noise_multiplier=1.0, delta=0.5))
    for name, model in (
        ("GaussianMechanism", make(GaussianMechanism(1.0, 1.0, delta=0.5))),
        ("CentralDP", make(None).set_params(federation=central, aggregation="clients")),
    ):
        message = rf"{name}\(delta=0.5\) is above one divided by the number of clients, 12"
        with pytest.warns(UserWarning, match=message):
            model.fit(X, y)


# ----------------------------------------------------------------------------------- audits

N_AUDITED = 2000


def projections(mechanism, sign, seed):
    """What the best attacker looks at: answers to an upload, or its opposite, along it."""
    upload = sign * np.full((N_AUDITED, 2, 1), 9.0)
    if mechanism.number_clip is not None:
        upload = np.clip(upload, -mechanism.number_clip, mechanism.number_clip)
    spec = FieldSpec((2, 1), clip=mechanism.number_clip)
    updates = updates_of({"x": SparseRows.stacked(upload)}, {"x": spec})
    seeds = np.random.default_rng(seed).integers(2**63, size=N_AUDITED, dtype=np.uint64)
    done = mechanism._protect(updates, lambda purpose: seeds, each=True)
    return done.fields["x"].whole().sum(axis=(1, 2))


@pytest.mark.parametrize(
    "mechanism",
    [
        GaussianMechanism(1.0, 2.0),
        SphereMechanism(1.0, 1.0),
        LaplaceMechanism(1.0, 2.0),
    ],
    ids=str,
)
def test_an_audit_proves_less_than_is_promised_and_not_much_less(mechanism):
    promised = mechanism.total_epsilon(1, 2)

    def proven_of(mechanism, seed):
        positives, negatives = (projections(mechanism, s, seed + s) for s in (1, -1))
        return _lower_bound(positives, negatives, 1e-5, 1e-3)[0]

    proven = proven_of(mechanism, 1)
    assert 0.15 * promised < proven < promised
    # With noise that is too small for the promise, the audit shows it.
    louder = clone(mechanism)
    if mechanism.name == "sphere":
        louder.set_params(epsilon=6.0)
    else:
        name = "scale" if mechanism.name == "laplace" else "noise_multiplier"
        louder.set_params(**{name: 0.2})
    assert proven_of(louder, 3) > promised


# ------------------------------------------------------------------------------- whole fits

MECHANISMS = [
    GaussianMechanism(1.0, 0.5),
    SphereMechanism(1.0, 4.0),
    LaplaceMechanism(0.2, 0.1),
]
by_name = pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda one: one.name)


def make(mechanism, **setting):
    X, _ = make_toy()
    return RFRec(
        3,
        n_rounds=4,
        rating_scale=(1, 5),
        items=np.unique(X[:, 1]),
        federation=Federation(local_dp=mechanism, **setting),
        random_state=0,
    )


@by_name
def test_the_report_has_the_mechanisms_total(mechanism):
    X, y = make_toy()
    report = make(mechanism).fit(X, y).privacy_
    n_coordinates = 4 * 9 * 4
    assert (report.n_uploads, report.n_coordinates) == (4, n_coordinates)
    assert report.mechanism == mechanism.name
    assert report.epsilon == mechanism.total_epsilon(4, n_coordinates)
    assert report.delta == mechanism.delta
    assert report.epsilon_per_coordinate == mechanism.total_epsilon(1, 1)


def test_without_noise_the_sum_is_that_of_single_uploads(monkeypatch):
    """The quick path, which clips by weights, and each client's own upload."""
    X, y = make_toy()
    quick = make(GaussianMechanism(0.5, 1e-9)).fit(X, y)
    draw_each(monkeypatch)
    slow = make(GaussianMechanism(0.5, 1e-9)).fit(X, y)
    np.testing.assert_allclose(quick.item_factors_, slow.item_factors_, atol=1e-5)
    loose = make(GaussianMechanism(1e6, 1e-15)).fit(X, y)
    assert np.abs(loose.item_factors_ - slow.item_factors_).max() > 1e-3
    # With a clip that nobody reaches, it is the fit without it, but for the set-up.
    rough = make(LaplaceMechanism(1e6, 1e-12)).fit(X, y)
    np.testing.assert_allclose(loose.item_factors_, rough.item_factors_, atol=1e-4)


@pytest.mark.parametrize("mechanism", [GaussianMechanism(1.0, 4.0), LaplaceMechanism(1.0, 2.0)])
def test_noise_of_the_sum_is_distributed_as_that_of_single_uploads(mechanism, monkeypatch):
    X, y = make_toy(n_users=30, n_items=200, density=0.05)
    public = {"rating_scale": (1, 5), "items": np.unique(X[:, 1])}
    model = RFRec(19, n_rounds=1, federation=Federation(local_dp=mechanism), **public)
    quick = model.set_params(random_state=0).fit(X, y).item_factors_
    draw_each(monkeypatch)
    slow = clone(model).set_params(random_state=1).fit(X, y).item_factors_
    assert quick.size > 3000
    assert stats.ks_2samp(quick.ravel(), slow.ravel()).pvalue > 1e-3
    expected = mechanism.noise_std(quick.size) / np.sqrt(30)
    assert quick.std() == pytest.approx(expected, rel=0.1)


class CountingAlgorithm(RFRecAlgorithm):
    """Its clients count their ratings of each item before the first round."""

    def setup_fields(self, n_items):
        return {"n_ratings": FieldSpec((n_items,), learned=False)}


class Counting(RFRec):
    _kind = CountingAlgorithm


@pytest.mark.parametrize("draws_each", [False, True])
def test_answers_to_the_set_up_are_clipped_and_charged(draws_each, monkeypatch):
    X, y = make_toy()
    draw_each(monkeypatch, draws_each)
    found = []
    begin = CountingAlgorithm.begin
    monkeypatch.setattr(
        CountingAlgorithm,
        "begin",
        lambda self, catalogue, sums, key: found.append(sums) or begin(self, catalogue, None, key),
    )
    mechanism = GaussianMechanism(0.1, 1e-9)
    model = Counting(**make(mechanism).get_params(deep=False)).fit(X, y)
    counts = np.stack(
        [np.bincount(X[X[:, 0] == u, 1], minlength=X[:, 1].max() + 1) for u in set(X[:, 0])]
    )
    counts = counts[:, np.unique(X[:, 1])]
    expected = (0.1 * counts / np.linalg.norm(counts, axis=1, keepdims=True)).sum(axis=0)
    np.testing.assert_allclose(found[0]["n_ratings"].sum, expected, rtol=1e-5)
    assert model.privacy_.n_uploads == 5


# ---------------------------------------------------------------- Laplace noise, number by number


def test_the_report_composes_over_coordinates():
    mechanism = LaplaceMechanism(clip=0.2, scale=0.04)
    report = PrivacyReport.of(mechanism, np.array([3, 5]), np.array([300, 500]))
    assert report.epsilon_per_coordinate == pytest.approx(10)
    assert report.epsilon == pytest.approx(5000)
    assert (report.n_uploads, report.n_coordinates) == (5, 500)
    assert PrivacyReport.of(None, [3], [300]).epsilon == float("inf")
    # Where nothing has been sent, nothing can be learned.
    assert PrivacyReport.of(None, [0], [0]).epsilon == 0


def test_reports_of_several_fits_to_the_same_data_compose():
    one = PrivacyReport("laplace", 5.0, 1, 10, 50.0, "single uploads")
    other = PrivacyReport("laplace", 2.0, 3, 30, 60.0, "encrypted sums")
    for both in ([one, other], [other, one]):
        joined = PrivacyReport.joined(both)
        assert joined == PrivacyReport("laplace", 5.0, 4, 40, 110.0, "single uploads")
    without = PrivacyReport("none", float("inf"), 1, 10, float("inf"), "exact sums")
    joined = PrivacyReport.joined([other, without])
    assert joined == PrivacyReport("none", float("inf"), 4, 40, float("inf"), "exact sums")


# ---------------------------------------------------------------- noise of single clients


def with_noise(mechanism, rows, spec, name="x"):
    """What clients send in place of rows, with seeds 5, 6, ..."""
    seeds = np.arange(5, 5 + rows.n_clients, dtype=np.uint64)
    updates = updates_of({name: rows}, {name: spec})
    return mechanism._protect(updates, lambda purpose: seeds, each=True).fields[name]


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
