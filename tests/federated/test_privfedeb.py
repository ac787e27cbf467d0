"""PrivFedEB: the algorithm against loops, the norm of uploads, and steps on noisy sums."""

import numpy as np
import pytest
from scipy.integrate import quad

from benchmarks._variants import variant
from fedrecsk import BiasOnly, Federation, PrivFedEB
from fedrecsk.data.interactions import encode
from fedrecsk.datasets import make_ratings
from fedrecsk.federated import _privfedeb_server as server
from fedrecsk.privacy import CentralDP
from fedrecsk.protocol import blocks
from fedrecsk.protocol.keys import SETUP
from fedrecsk.protocol.messages import Catalogue, Dense, Total
from fedrecsk.protocol.participation import RoundMasks
from tests.conftest import fits_in_blocks, make_toy, rmse, split
from tests.federated.turns import IDLE, key_of, turns_of, two_fits
from tests.reference import privfedeb as reference


def make(**parameters):
    defaults = {"n_factors": 2, "n_rounds": 6, "INIT_STD": 0.3, "random_state": 0}
    return variant(PrivFedEB, **defaults | parameters)


def dense(data, low, high, center=0.625):
    """Ratings from the center, in quarters of the scale, and weights, as matrices."""
    ratings, weights = np.zeros((2, data.n_users, data.n_items))
    middle = low + center * (high - low)
    ratings[data.users, data.items] = (data.values - middle) / ((high - low) / 4)
    weights[data.users, data.items] = data.weights
    return ratings, weights


def assert_equals_reference(model, X, y, block_sizes, **fit_params):
    data = encode(X, y, **fit_params)
    low, high = model.rating_scale or (y.min(), y.max())
    ratings, weights = dense(data, low, high, model.center)
    clients = [range(*data.client_indptr[c : c + 2]) for c in range(data.n_clients)]
    at_setup = key_of(model).at(SETUP).generator("item factors")
    start = model.INIT_STD * at_setup.standard_normal((data.n_items, model.n_factors))
    turns, random, more = turns_of(model, data.n_clients), None, ()
    if model.audiences is True:
        random = key_of(model).at(SETUP).generator("audiences")
        random = random.standard_normal((data.n_items, model.n_factors + 1))
    final, unit = reference.run(ratings, weights, clients, start, turns, random), (high - low) / 4
    if random is not None:
        more = final.audiences(), final.coefficients
    vectors = reference.rows(final.average, final.a, *more[:1])
    rows = zip(ratings, weights, strict=True)
    users = np.array([reference.posterior(final.average, final.a, *row, *more)[1] for row in rows])
    for fitted in fits_in_blocks(model, X, y, block_sizes=block_sizes, **fit_params):
        np.testing.assert_allclose(fitted.item_bias_, unit * final.average[:, 0], atol=1e-9)
        np.testing.assert_allclose(fitted.item_factors_, unit * vectors[:, 1:], atol=1e-9)
        np.testing.assert_allclose(fitted.user_bias_, unit * users[:, 0], atol=1e-9)
        np.testing.assert_allclose(fitted.user_factors_, users[:, 1:], atol=1e-9)
        assert np.abs(final.average[:, 1:] - start).max(initial=1) > 1e-3


SETTINGS = [
    {},
    {"n_factors": 0},
    {"audiences": True},
    {"audiences": True, "federation": Federation(dropout=0.4)},
    {"rating_scale": (0, 10), "center": 0.4},
    {"federation": Federation(dropout=0.4)},
    {"federation": Federation(dropout=0.4, dropout_mode="stale")},
    {"client_fraction": 0.4, "federation": Federation(sampling="random", dropout=0.2)},
    {"client_fraction": 0.4, "federation": Federation(aggregator=IDLE, dropout=0.3)},
]


@pytest.mark.filterwarnings("ignore:In . of 6 rounds every upload was lost")
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_equals_the_naive_reference(setting, toy, float64):
    for arguments, options in two_fits(*toy):
        assert_equals_reference(make(**setting), *arguments, **options)


# --------------------------------------------------------------------- the norm of uploads


@pytest.mark.parametrize("seed", range(6))
def test_no_upload_is_longer_than_one(seed):
    """Of users, silos and any weights, at any items that a server may send; and it is right."""
    rng = np.random.default_rng(seed)
    X, y = make_toy(15, 11, density=rng.uniform(0.1, 0.9), seed=seed)
    weight = rng.choice([1.0, 10 ** rng.uniform(-5, 5)], len(y))
    groups = X[:, 0] % rng.integers(2, 20)
    dp = Federation(central_dp=CentralDP(noise_multiplier=1.0))
    method = make(federation=dp, rating_scale=(1, 5), n_factors=3)
    data = encode(X, y, clients=groups, sample_weight=weight)
    (block,) = blocks.cut(data)
    algorithm = method._algorithm()
    scale = algorithm.request(Catalogue(data.n_items, block.n_clients, None))
    answer = algorithm.answer(block, scale, None).fields
    first, squares = answer["first"], answer["squares"]
    for c in range(block.n_clients):
        own = first.values[first.indptr[c] : first.indptr[c + 1]]
        assert np.hypot(np.linalg.norm(own), squares.values[c]) <= 1 + 1e-12
        assert squares.values[c] > 0
    items = rng.normal(0, 10 ** rng.uniform(-3, 3), (data.n_items, 4))
    a = 10 ** rng.uniform(-2, 2, data.n_items)
    features = rng.normal(size=(data.n_items, 3)) if seed % 2 else None
    message = scale | {
        "row_weights": Dense(a),
        "items": Dense(items),
    }
    if features is not None:
        message["features"] = Dense(features)
    everybody = np.ones(block.n_clients, dtype=bool)
    turn = RoundMasks(everybody, everybody, separate=True)
    clients = algorithm.enter(block, message, None)
    _, answer, _ = algorithm.update(block, clients, message, turn, None)
    rows = answer.fields["items"]
    norms = [
        np.linalg.norm(rows.values[slice(*rows.indptr[c : c + 2])]) for c in range(block.n_clients)
    ]
    assert max(norms) <= 1 + 1e-12
    assert min(norms) > 0
    ratings, weights = dense(data, 1.0, 5.0)
    for c in range(block.n_clients):
        users, own = range(*data.client_indptr[c : c + 2]), slice(*rows.indptr[c : c + 2])
        found = np.zeros(items.shape)
        found[rows.rows[own]] = rows.values[own]
        expected = reference.upload(users, items, a, ratings, weights, features)
        # Weights of 1e5 at long vectors cost digits.
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_no_upload_with_audiences_is_longer_than_one(seed):
    """All fields together, of silos too, whatever the server sends; and they are right."""
    rng = np.random.default_rng(seed)
    X, y = make_toy(15, 11, density=rng.uniform(0.1, 0.9), seed=seed)
    data = encode(X, y, clients=X[:, 0] % rng.integers(4, 20))
    (block,) = blocks.cut(data)
    dp = Federation(central_dp=CentralDP(noise_multiplier=1.0))
    method = make(federation=dp, rating_scale=(1, 5), audiences=True)
    algorithm, size = method._algorithm(), 10 ** rng.uniform(-3, 3)
    ratings, weights = dense(data, 1.0, 5.0)
    n, a = algorithm._n_explaining, 10 ** rng.uniform(-2, 2, data.n_items)
    directions, items, audiences = (rng.normal(0, size, (data.n_items, 3)) for _ in range(3))
    coefficients = rng.normal(0, size, (n, n))
    public = algorithm.request(Catalogue(data.n_items, block.n_clients, None)) | {
        "row_weights": Dense(a)
    }
    later = {"items": items, "audiences": audiences, "coefficients": coefficients}
    for fields in ({"directions": directions}, later):
        message = public | {name: Dense(one) for name, one in fields.items()}
        everybody = np.ones(block.n_clients, dtype=bool)
        found = {}
        for separate in (True, False):
            turn = RoundMasks(everybody, everybody, separate=separate)
            clients = algorithm.enter(block, message, None)
            found[separate] = algorithm.update(block, clients, message, turn, None)[1].fields
        sums = 0.0
        for c in range(block.n_clients):
            users = range(*data.client_indptr[c : c + 2])
            uploads = {}
            for name, shape in (("items", items.shape), ("users", (n, 2 * n))):
                rows, uploads[name] = found[True][name], np.zeros(shape)
                own = slice(*rows.indptr[c : c + 2])
                uploads[name][rows.rows[own]] = rows.values[own]
            squares = [(one**2).sum() for one in uploads.values()]
            assert 0 < sum(squares) <= 1 + 1e-12
            if "directions" in fields:
                expected = reference.position(users, directions, a, weights), np.zeros((n, 2 * n))
            else:
                given = users, items, a, ratings, weights, audiences, coefficients
                expected = reference.upload(*given), reference.products(*given)
            for one, right in zip(uploads.values(), expected, strict=True):
                # Long vectors cost digits.
                np.testing.assert_allclose(one, right, atol=1e-4)
            sums = sums + uploads["items"]
        np.testing.assert_allclose(found[False]["items"], sums, atol=1e-9)
        users = found[True]["users"].values.reshape(-1, n, 2 * n).sum(axis=0)
        np.testing.assert_allclose(found[False]["users"], users, atol=1e-9)


@pytest.mark.parametrize("noise_std", [0.0, 1.5])
def test_steps_with_audiences_equal_the_reference_with_noise(noise_std):
    rng = np.random.default_rng(0)
    counts, sums = rng.uniform(1, 90, 40), rng.normal(0, 2, (40, 3))
    naive = reference.Server(np.sqrt(0.99) * np.column_stack([counts, 0 * counts]), 1.0, 0 * sums)
    naive.learn_audiences(rng.normal(size=sums.shape))
    naive.step_of_audiences(sums, noise_std)
    release = server.Release(counts, 0 * counts, 0.0, 0.01)
    found = server.learned_audiences(sums, noise_std, release.row_weights(), release)
    np.testing.assert_allclose(server.scaled_audiences(found, release), naive.audiences())
    users = server.Users.first(8)
    for t in range(3):
        naive.t = t
        products = rng.normal(0, 9, (8, 16))
        naive.step_of_users(products, noise_std)
        users = users.after(Total(products, 40, noise_std))
        np.testing.assert_allclose(users.coefficients, naive.coefficients)


def test_rounds_for_audiences_alone_are_refused():
    with pytest.raises(ValueError, match=r"n_rounds=2 is too few; raise n_rounds"):
        PrivFedEB(n_rounds=2, audiences=True).fit([[0, 0], [1, 0], [1, 1]], [1.0, 2.0, 3.0])


def test_audiences_are_learned_where_there_are_enough_clients():
    def n_rounds(n_clients, epsilon=None, noise=None, **parameters):
        dp = CentralDP(epsilon=epsilon, noise_multiplier=noise)
        method = PrivFedEB(federation=Federation(central_dp=dp), **parameters)
        return method._plan().rounds(n_clients)

    assert [n_rounds(n, epsilon=10) for n in (2999, 3000)] == [10, 16]
    assert [n_rounds(n, noise=2.0) for n in (3599, 3600)] == [10, 16]
    assert n_rounds(10**6, epsilon=1) == 5
    assert n_rounds(10**6, epsilon=10, n_factors=0) == 10
    assert n_rounds(10**6, epsilon=10, n_rounds=7) == 7
    assert n_rounds(10**6, epsilon=10, audiences=False) == 10
    assert n_rounds(10**6, epsilon=10, client_fraction=0.25) == 20
    assert n_rounds(100, epsilon=10, client_fraction=0.25, audiences=True) == 32
    assert PrivFedEB()._plan().rounds(10**6) == 20


def test_a_warm_start_runs_as_many_rounds_as_a_fit_with_auto():
    X, y = make_toy(40, 9, seed=0)
    dp = CentralDP(noise_multiplier=0.005, delta=1e-3)
    public = {"items": np.unique(X[:, 1]), "rating_scale": (1, 5), "random_state": 0}
    model = PrivFedEB(n_rounds=3, warm_start=True, federation=Federation(central_dp=dp), **public)
    model.fit(X, y).set_params(n_rounds="auto")
    assert model.fit(X, y).n_rounds_ == model._plan().rounds(40) == 16


# ------------------------------------------------------------------------ the noisy server


@pytest.mark.parametrize("noise_std", [0.1, 3.0])
def test_a_step_is_the_posterior_mean(noise_std):
    """Of a bias, given a noisy sum, by numerical integration of Bayes' rule."""
    mean, variance, h, total = 0.2, 0.25, 4.0, 1.5
    release = server.Release(np.array([h]), np.zeros(1), 0.0, 0.07)
    noise = release.noise(np.array([h]), np.ones(1), noise_std)
    assert noise == pytest.approx(noise_std**2 + 0.07 * h / 1.3)

    def density(x):
        away, rest = x - mean, total - h * (x - mean)
        return np.exp(-(away**2) / variance / 2 - rest**2 / noise[0] / 2)

    mass = quad(density, -9, 9, limit=200)[0]
    first = quad(lambda x: x * density(x), -9, 9, limit=200)[0]
    (gain,) = server.posterior_gains(np.array([variance]), np.array([h]), noise)
    assert mean + gain * total == pytest.approx(first / mass, abs=1e-8)
    second = quad(lambda x: (x - first / mass) ** 2 * density(x), -9, 9, limit=200)[0]
    assert variance * (1 - gain * h) == pytest.approx(second / mass, abs=1e-8)


@pytest.mark.parametrize(("noise_std", "share"), [(0.0, 1.0), (1.0, 0.9), (5.0, 0.6)])
def test_counts_are_their_posterior_means(noise_std, share):
    rng = np.random.default_rng(0)
    counts = np.exp(rng.normal(0, 2, 400))
    noisy = counts + noise_std * rng.normal(size=400)
    found = server.denoised(noisy, noise_std)
    np.testing.assert_allclose(found, reference.counts(noisy, noise_std), rtol=1e-9, atol=1e-9)
    errors = [np.mean((x - counts) ** 2) for x in (found, np.maximum(noisy, 0))]
    assert errors[0] <= share * errors[1]


@pytest.fixture(scope="module")
def many():
    """A split of ratings by 3,000 users, and the catalogue."""
    X, y = make_ratings(3000, 60, 60_000, random_state=0)
    return *split(X[:, :2], y, 0), np.arange(60)


def test_more_noise_means_fewer_factors_and_rounds_and_larger_errors(many):
    X, y, X_test, y_test, items = many
    errors, widths, n_rounds = [], [], []
    for epsilon in (None, 10, 5, 1, 0.05):
        dp = None if epsilon is None else CentralDP(epsilon=epsilon)
        federation = Federation(central_dp=dp)
        model = PrivFedEB(items=items, rating_scale=(1, 5), federation=federation, random_state=0)
        model.fit(X, y)
        errors.append(rmse(model, X_test, y_test))
        known = server.TASTES + (server.MOST + 1 if hasattr(model, "implicit_factors_") else 0)
        widths.append(model.item_factors_.shape[1] - known)
        n_rounds.append(model.n_rounds_)
        assert model.privacy_.epsilon == pytest.approx(epsilon or np.inf)
    assert errors == sorted(errors)
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == server.MOST
    assert widths[-1] == 0
    assert n_rounds == [20, 16, 10, 5, 5]
    biases = rmse(BiasOnly().fit(X, y), X_test, y_test)
    assert errors[1] < biases
    # What hides everything leaves the users' own means.
    own = PrivFedEB(0, items=items, rating_scale=(1, 5), n_rounds=1, random_state=0).fit(X, y)
    own.item_bias_[:] = 0
    assert errors[-1] < 1.02 * rmse(own, X_test, y_test)


@pytest.mark.parametrize("weight", [1e-20, 1e9])
def test_weights_out_of_all_proportion_are_named(weight, toy):
    X, y = toy
    weights = np.ones(len(y))
    weights[3] = weight
    with pytest.raises(ValueError, match=r"sample_weight 1e.\d+, but weights must be between"):
        make().fit(X, y, sample_weight=weights)


@pytest.mark.parametrize("name", ["clip", "setup_clip"])
def test_a_bound_above_every_upload_gives_a_warning(name):
    private = Federation(central_dp=CentralDP(epsilon=5.0, delta=1e-3, **{name: 2.0}))
    model = make(federation=private, items=1000 + 3 * np.arange(9), rating_scale=(1, 5))
    with pytest.warns(UserWarning, match=rf"CentralDP\({name}=2\) only means more noise"):
        model.fit(*make_toy())
