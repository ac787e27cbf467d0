"""FedEB: the algorithm against loops, its mathematics, its predictions, and what it sends."""

import numpy as np
import pandas as pd
import pytest

from fedrecsk import BiasOnly, FedEB, Federation
from fedrecsk.data.interactions import encode
from fedrecsk.federated import fedeb
from fedrecsk.protocol import blocks
from fedrecsk.protocol.keys import Key
from tests.conftest import BLOCK_SIZES, fits_in_blocks, make_toy, rmse
from tests.federated.turns import SETTINGS, key_of, turns_of, two_fits
from tests.reference import fedeb as reference


def make(**parameters):
    return FedEB(**{"n_factors": 3, "n_rounds": 7, "random_state": 0} | parameters)


def dense(data, scale):
    """Ratings less their mean, in quarters of the scale, and weights, as matrices."""
    ratings, weights = np.zeros((2, data.n_users, data.n_items))
    mean, unit = np.average(data.values, weights=data.weights), (scale[1] - scale[0]) / 4
    ratings[data.users, data.items] = (data.values - mean) / unit
    weights[data.users, data.items] = data.weights
    return ratings, weights, mean, unit


@pytest.fixture(autouse=True)
def some_items_of_toy_have_audiences(monkeypatch):
    for module in (fedeb, reference):
        monkeypatch.setattr(module, "FEWEST_RATERS", 8)


def assert_equals_reference(model, X, y, block_sizes=BLOCK_SIZES[:1], **fit_params):
    data = encode(X, y, **fit_params)
    ratings, weights, mean, unit = dense(data, model.rating_scale or (y.min(), y.max()))
    spans = [range(*data.client_indptr[c : c + 2]) for c in range(data.n_clients)]
    shape = data.n_items, model.n_factors
    start = model.INIT_STD * key_of(model).generator("item factors").standard_normal(shape)
    turns = turns_of(model, data.n_clients)
    features = None
    if model.user_features is not None:
        features = model.user_features.reindex(data.user_ids.values).to_numpy()
    final = reference.run(model, ratings, weights, spans, start, turns, features)
    if features is None:
        posteriors = [reference.infer(final, *row) for row in zip(ratings, weights, strict=True)]
    else:
        rows = zip(ratings, weights, features, strict=True)
        posteriors = [reference.infer_with_features(final, *row) for row in rows]
    phi = np.array([p.phi for p in posteriors])
    users, items = data.users, data.items
    predicted = mean + unit * (
        final.items[items, 0] + np.einsum("nk,nk->n", phi[users], final.x[items])
    )
    stds = [std_of(final, posteriors[u], i) * unit for u, i in zip(users, items, strict=True)]
    for fitted in fits_in_blocks(model, X, y, block_sizes=block_sizes, **fit_params):
        np.testing.assert_allclose(fitted.item_bias_, unit * final.items[:, 0], atol=1e-9)
        # Coordinates of audiences may be turned.
        known, audiences = np.split(fitted.item_factors_ / unit, [model.n_factors + 2], axis=1)
        np.testing.assert_allclose(known, final.x[:, 1 : model.n_factors + 3], atol=1e-9)
        if model.sketch_size:
            expected = final.audiences @ final.audiences.T
            # Of some items.
            assert 0 < (final.audiences != 0).any(axis=1).sum() < len(final.audiences)
            np.testing.assert_allclose(audiences @ audiences.T, expected, atol=1e-9)
        if model.implicit:
            np.testing.assert_allclose(fitted.implicit_factors_, final.implicit, atol=1e-9)
        np.testing.assert_allclose(fitted.user_bias_, unit * phi[:, 0], atol=1e-9)
        own = slice(0, model.n_factors + 2)
        np.testing.assert_allclose(fitted.user_factors_[:, own], phi[:, 1:][:, own], atol=1e-9)
        np.testing.assert_allclose(
            fitted.user_noise_, [unit / np.sqrt(p.alpha) for p in posteriors], atol=1e-9
        )
        np.testing.assert_allclose(
            fitted._model().predict(users, items),
            np.clip(predicted, *fitted.rating_scale_),
            atol=1e-9,
        )
        np.testing.assert_allclose(fitted._model().deviations(users, items), stds, atol=1e-9)
        assert np.abs(final.items[:, 1:] - start).max() > 1e-2


def std_of(model, posterior, i):
    """Of one pair, in units; without the variances of tastes for audiences."""
    n = model.items.shape[1] + 2
    x, covariance = model.x[i, :n], posterior.covariance[:n, :n]
    total = 1 / posterior.alpha + x @ covariance @ x + model.variance[i, 0]
    for k in range(1, len(x)):
        squared = posterior.phi[k] ** 2 + posterior.covariance[k, k]
        total += model.variance[i, k] * squared
    return np.sqrt(total)


# Of the users of `toy`; nothing is known of the first.
AGES = pd.DataFrame(
    {"young": [0.1, 0.9, 0.4, 0.7] * 3, "new": [1, 1, 0, 0, 0, 1] * 2}, 100 + 7 * np.arange(12)
).iloc[1:]

OPTIONS = [
    {},
    {"implicit": False},
    {"sketch_size": 0},
    {"user_noise": False},
    {"implicit": False, "user_noise": False},
    {"learning_rate": 0.2, "rating_scale": (0, 10)},
    {"upload": "all"},
    {"user_features": AGES},
    {"user_features": AGES, "implicit": False, "upload": "all"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda one: "-".join(one))
def test_equals_the_naive_reference(options, toy, float64):
    for arguments, fit in two_fits(*toy):
        assert_equals_reference(make(**options), *arguments, **fit)


# Without a word its cohorts take turns.
RANDOM = {"client_fraction": 0.4, "federation": Federation(sampling="random", dropout=0.2)}


@pytest.mark.filterwarnings("ignore:In . of 12 rounds every upload was lost")
@pytest.mark.parametrize("setting", [*SETTINGS, RANDOM], ids=str)
def test_equals_the_naive_reference_in_any_setting(setting, toy, float64):
    X, y = toy
    assert_equals_reference(make(n_rounds=12, **setting), X, y)
    features = make(n_rounds=12, user_features=AGES, **setting)
    assert_equals_reference(features, X, y, clients=X[:, 0] % 5)


def test_uploads_are_the_gradient_of_the_bound():
    """Those of the naive reference, of one user whose posterior stays as it is."""
    rng = np.random.default_rng(0)
    items, implicit, ratings = rng.normal(size=(6, 4)), rng.normal(size=(6, 3)), rng.normal(size=6)
    weights, n_ratings = np.array([1.0, 0, 2, 1, 0, 1]), np.array([3.0, 9, 4, 1, 2, 7])
    model = reference.Model(items, implicit, n_ratings, np.array([2.0, 3, 5, 4]), 2.5, 1.7)
    posterior, rated = reference.infer(model, ratings, weights), weights > 0

    def bound(both):
        items, implicit = both[:, :4], both[:, 4:]
        phi, covariance = posterior.phi, posterior.covariance
        squares = reference.expected_squares(items, model, phi, covariance, ratings, weights)
        away = phi[model.own] - implicit[rated].sum(axis=0) / np.sqrt(rated.sum())
        return -posterior.alpha / 2 * squares - away @ away / 2

    both, step = np.column_stack([items, implicit]), 1e-6 * np.eye(42).reshape(-1, 6, 7)
    slopes = [(bound(both + one) - bound(both - one)) / 2e-6 for one in step]
    uploads = np.column_stack(reference.upload(model, ratings, weights)[:2])
    np.testing.assert_allclose(uploads.ravel(), slopes, atol=1e-7)


@pytest.mark.parametrize("size", [3, 9, 40])
def test_eigenpairs_of_a_sketch(size):
    """As wide as the catalogue it is exact; narrower, it is Nystroem's approximation."""
    X, y = make_toy(30, 12, density=0.3, seed=2)
    data = encode(X, y, item_ids=None)
    (block,) = blocks.cut(data)
    directions = fedeb.directions(data.n_items, size, Key(3))
    n_users = np.bincount(block.items, minlength=data.n_items)
    prior = fedeb.eigenpairs(fedeb.sketch(block, directions), directions, n_users)
    _, weights, *_ = dense(data, (1, 5))
    kernel = reference.kernel(weights)
    basis = np.linalg.qr(np.sqrt(n_users)[:, None] * directions)[0]
    image = kernel @ basis
    expected = image @ np.linalg.pinv(basis.T @ image) @ image.T
    found = (prior.vectors * prior.values) @ prior.vectors.T
    np.testing.assert_allclose(found, expected, atol=1e-4 if size < 12 else 1e-9)
    assert (size < 12) == (np.abs(expected - kernel).max() > 0.01)


def test_a_sketch_of_items_that_nobody_has_rated(toy):
    X, y = toy
    wider = make(items=np.arange(990, 1040)).fit(X, y)
    assert np.isfinite(wider.predict(X)).all()
    unrated = ~np.isin(wider.item_ids_, X[:, 1])
    # Nothing is known of them but that they have a larger variance.
    variance = wider.item_variance_[:, : wider.n_factors + 1]
    assert (variance[unrated].min(axis=0) > variance[~unrated].max(axis=0)).all()
    assert np.abs(wider.item_bias_[unrated]).max() < 0.1


# --------------------------------------------------------------------------- predictions


@pytest.fixture(scope="module")
def fitted(ml100k):
    X, y = ml100k
    order = np.random.default_rng(300).permutation(len(y))
    test, train = order[: len(y) // 5], order[len(y) // 5 :]
    model = FedEB(client_fraction=0.1, n_jobs=2, random_state=0).fit(X[train], y[train])
    return model, (X[train], y[train]), (X[test], y[test])


def test_accuracy(fitted):
    """The mean of three splits is .880; `benchmarks.fedeb quality` prints more."""
    model, train, test = fitted
    assert rmse(model, *test) < 0.89
    assert rmse(model, *test) < rmse(BiasOnly().fit(*train), *test) - 0.04


def test_standard_deviations_cover(fitted):
    model, _, (X, y) = fitted
    mean, std = model.predict(X, return_std=True)
    covered = np.mean(np.abs(y - mean) <= 1.645 * std)
    assert 0.88 <= covered <= 0.92
    # Where it is less sure it is further off.
    sure = std < np.median(std)
    assert np.mean((y - mean)[sure] ** 2) < 0.8 * np.mean((y - mean)[~sure] ** 2)


def test_newcomers_are_served_exactly(fitted):
    model, (X, y), _ = fitted
    some = np.isin(X[:, 0], model.user_ids_[:20])
    as_known = model.predict(X[some], return_std=True)
    renamed = X[some].copy()
    renamed[:, 0] += 10**6
    grown = model.fold_in(renamed, y[some])
    for known, new in zip(as_known, grown.predict(renamed, return_std=True), strict=True):
        np.testing.assert_allclose(new, known, rtol=1e-5)


def test_unknown_users_and_items(fitted):
    model, (X, _), _ = fitted
    pairs = [[X[0, 0], X[0, 1], 0], [X[0, 0], -1, 0], [-1, X[0, 1], 0], [-1, -1, 0]]
    mean, std = model.predict(pairs, return_std=True)
    assert mean[3] == pytest.approx(model.global_bias_)
    assert std[0] < std[1]
    everybody = [[user, X[0, 1], 0] for user in model.user_ids_]
    assert model.predict(everybody, return_std=True)[1].mean() < std[2]


@pytest.mark.parametrize("weight", [0.01, 1e-4])
def test_small_weights_say_little_and_break_nothing(weight, toy):
    X, y = toy
    model = make(n_rounds=200).fit(X, y, sample_weight=np.full(len(y), weight))
    assert (model.predict(X, return_std=True)[1] < 3).all()


def test_weights_too_large_for_float32_are_refused(toy):
    X, y = toy
    make().fit(X, y, sample_weight=np.full(len(y), 1e5))
    with pytest.raises(ValueError, match=r"add up to .*e.07.*divide sample_weight by its mean"):
        make().fit(X, y, sample_weight=np.full(len(y), 5e6))


# -------------------------------------------------------------------------- what is sent


def test_bytes(toy):
    X, y = toy
    n, m, n_clients = len(y), 9, 12
    own = make(n_rounds=2).fit(X, y).communication_
    setup = n_clients * 4 * 2 + n * 4 * (3 + 9 + 1)
    assert own.bytes_up == setup + 2 * (n * 4 * 7 + n_clients * 4 * 4)
    whole = make(n_rounds=2, upload="all").fit(X, y).communication_
    setup = n_clients * 4 * (2 + m * (3 + 9))
    assert whole.bytes_up == setup + 2 * n_clients * 4 * (m * 7 + 4)


def test_averages_are_counted_where_clients_measure_them(toy):
    X, y = toy
    plain, stopping = (
        make(early_stopping=stops, n_rounds=3, n_iter_no_change=9, upload="all").fit(X, y)
        for stops in (False, True)
    )
    down = [model.communication_.entries[3]["bytes_down"] for model in (plain, stopping)]
    assert down[1] - down[0] == 12 * 4 * 9 * 7
