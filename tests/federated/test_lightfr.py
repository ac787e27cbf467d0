"""LightFR: equal to its reference bit for bit, searched as it says, honest in its ledger."""

import copy
import warnings

import numpy as np
import pytest
from sklearn.base import clone

from benchmarks._variants import variant
from fedrecsk import Federation
from fedrecsk._utils.kernels import LazyModule
from fedrecsk.data.interactions import encode
from fedrecsk.datasets import make_ratings
from fedrecsk.federated import LightFR, pack_codes, unpack_codes
from fedrecsk.models import Scores
from fedrecsk.models._codes import n_words, random_codes
from fedrecsk.privacy import CKKS, Paillier, SecAggPlus
from fedrecsk.protocol import blocks
from fedrecsk.protocol.keys import Key, Keys
from fedrecsk.protocol.messages import Message
from tests.conftest import BLOCK_SIZES, fits_in_blocks, make_toy
from tests.federated.turns import SETTINGS, crossed, key_of, two_fits
from tests.reference import lightfr as reference

lightfr_kernels = LazyModule("fedrecsk.federated._lightfr_kernels")


def make(**parameters):
    """Small enough for the reference."""
    defaults = {"n_bits": 6, "n_rounds": 3, "n_negatives": 2, "random_state": 0}
    return variant(LightFR, **defaults | {"user_bits": 2, "client_fraction": 1.0} | parameters)


def first_message(model, data):
    """The server's first state, and what clients have when they have received it."""
    algorithm, key = model._algorithm(), key_of(model)
    server = algorithm.begin(Catalogue(data), None, key)
    message = Message(**algorithm.announce(server), **algorithm.broadcast(server, key))
    return server, algorithm.decode(message, key)


def first_codes(model, data):
    """Items' and users' first codes, unpacked."""
    server, message = first_message(model, data)
    block = blocks.cut(data, max_ratings=10**9)[0]
    keys = Keys(key_of(model).at(0), key_of(model).at(0))
    users = model._algorithm().enter(block, message, keys).codes
    ordered = np.empty_like(users)
    ordered[block.users] = users
    return unpack_codes(server.codes, model.n_bits), vectors(ordered, model.n_bits)


class Catalogue:
    def __init__(self, data):
        self.n_items, self.n_clients = data.n_items, data.n_clients
        self.rating_range = data.values.min(), data.values.max()


def vectors(planes, n_bits):
    """Users' odd integers from their planes."""
    signs = unpack_codes(planes, n_bits).astype(int)
    return sum(2**p * signs[:, p] for p in range(signs.shape[1]))


def assert_equals_reference(model, X, y=None, block_sizes=BLOCK_SIZES[:1], **fit_params):
    data = encode(X, y, **fit_params)
    values, weights = np.zeros((2, data.n_users, data.n_items))
    values[data.users, data.items] = data.values
    weights[data.users, data.items] = data.weights
    clients = [list(range(*data.client_indptr[c : c + 2])) for c in range(data.n_clients)]
    items, users = first_codes(model, data)
    scale = model.rating_scale or (data.values.min(), data.values.max())
    naive = reference.LightFR(model, clients, values, weights, scale, items, users)
    key, sampling = key_of(model), model._plan().sampling
    for t in range(model.n_rounds):
        turn = sampling.draw(data.n_clients, key.at(t))
        naive.round(turn, key.at(t))
    final_users = naive.final_users(key.at(model.n_rounds))
    for fitted in fits_in_blocks(model, X, y, block_sizes=block_sizes, **fit_params):
        np.testing.assert_array_equal(fitted.item_factors_, naive.items)
        np.testing.assert_array_equal(fitted.user_factors_, final_users)
        assert (fitted.item_factors_ != items).any() == model._trains_items


METHODS = {
    "full": {},
    "full, alpha 4": {"alpha": 4.0},
    "full, one bit": {"user_bits": 1, "POSITIVE_TARGET": 1.0},
    "full, balanced": {"balance_user": 0.002, "balance_item": 0.003, "NEGATIVE_TARGET": 0.45},
    "full, one sweep": {"N_SWEEPS": 1, "n_bits": 3},
    "full, shrunk": {"N_SWEEPS": None, "reg_user": 4.5, "SPARSE_REG": 0.0},
    "full, few rows shrunk more": {"reg_user": 0.5, "SPARSE_REG": 12.5},
    "full, shrunk to zero": {"reg_user": 4.5, "MEAN_PRIOR": False},
    "gradient": {"aggregation": "gradient", "user_bits": 1, "NEGATIVE_TARGET": 0.4},
    "gradient, no memory": {"aggregation": "gradient", "user_bits": 1, "SERVER_DECAY": 1},
    "gradient, several bits": {"aggregation": "gradient", "balance_user": 0.01, "N_SWEEPS": 2},
    "parameter": {"aggregation": "parameter", "user_bits": 1, "balance_item": 0.01},
    "parameter, several bits": {"aggregation": "parameter", "SERVER_DECAY": 1},
    "ratings": {"targets": "ratings", "rating_scale": (0, 6)},
    "ratings, literal": {
        "aggregation": "gradient",
        "targets": "ratings",
        "user_bits": 1,
        "n_negatives": 0,
        "SERVER_DECAY": 1,
        "balance_user": 0.02,
        "balance_item": 0.02,
        "N_SWEEPS": 1,
    },
    "items stay": {"_trains_items": False},
}


@pytest.mark.parametrize("parameters", METHODS.values(), ids=METHODS)
def test_equals_the_naive_reference(parameters):
    shift = 0 if parameters.get("targets") == "ratings" else 2
    for arguments, options in two_fits(*make_toy(9, 7), shift=shift):
        assert_equals_reference(make(**parameters), *arguments, **options)


@pytest.mark.parametrize(("parameters", "setting"), crossed(list(METHODS.values()), SETTINGS, 1))
def test_equals_the_naive_reference_in_any_setting(parameters, setting):
    X, y = make_toy(9, 7)
    model = make(**parameters, **setting, n_rounds=4)
    assert_equals_reference(model, X, y)
    assert_equals_reference(clone(model), X, y, clients=X[:, 0] % 5)


# ----------------------------------------------------------------------------- the codes


@pytest.mark.parametrize("n_bits", [1, 2, 63, 64, 65, 200])
def test_codes_are_packed_and_unpacked(n_bits):
    signs = np.where(np.random.default_rng(0).random((5, n_bits)) < 0.5, -1, 1)
    codes = pack_codes(signs)
    assert codes.dtype == np.uint64
    assert codes.shape == (5, n_words(n_bits))
    np.testing.assert_array_equal(unpack_codes(codes, n_bits), signs)
    for wrong, n, message in (
        (codes, n_bits + 64, "pass the n_bits that"),
        (pack_codes(np.ones((2, 40))), 20, "bit set after the first n_bits=20"),
        (codes.astype(float), n_bits, f"Codes of n_bits={n_bits} are uint64 arrays"),
    ):
        with pytest.raises(ValueError, match=message):
            unpack_codes(wrong, n)


@pytest.mark.parametrize(("n_bits", "user_bits"), [(1, 3), (20, 1), (64, 3), (100, 1)])
def test_predictions_are_similarities(n_bits, user_bits):
    X, y = make_toy()
    model = make(n_bits=n_bits, user_bits=user_bits).fit(X, y)
    dots = model.user_factors_ @ model.item_factors_.T.astype(int)
    expected = 0.5 + dots / (2 * n_bits * (2**user_bits - 1))
    users, items = (a.ravel() for a in np.meshgrid(range(12), range(9), indexing="ij"))
    pairs = np.column_stack([model.user_ids_[users], model.item_ids_[items]])
    np.testing.assert_allclose(model.predict(pairs).reshape(12, 9), expected)
    assert model.predict([[-1, X[0, 1]], [X[0, 0], -1]]).tolist() == [0.5, 0.5]
    report = model.size_report()
    assert report["item_codes"] == 9 * 8 * n_words(n_bits)
    assert report["user_code"] == 8 * n_words(n_bits) * user_bits
    assert report["item_factors_float32"] == report["download_float32"] == 4 * 9 * n_bits
    rated = make(n_bits=n_bits, user_bits=user_bits, targets="ratings").fit(X, y)
    dots = rated.user_factors_ @ rated.item_factors_.T.astype(int)
    expected = 1 + 4 * (0.5 + dots / (2 * n_bits * (2**user_bits - 1)))
    np.testing.assert_allclose(rated.predict(pairs).reshape(12, 9), expected)


@pytest.mark.parametrize(("n_bits", "user_bits"), [(3, 4), (64, 1), (130, 4)])
@pytest.mark.parametrize("asked", ["all", "candidates", "barred", "unknown user"])
def test_the_packed_search_finds_what_the_scores_say(n_bits, user_bits, asked):
    """With many ties, over several of the search's blocks, against the base class's way."""
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.integers(0, 6, 1500), np.arange(1500)])
    model = make(n_bits=n_bits, user_bits=user_bits, n_rounds=1).fit(X)
    naive = copy.copy(model)
    codes = model._model()
    plain = Scores(
        **{name: getattr(codes, name) for name in ("n_items", "response")},
        pairs=codes.score_pairs,
        board=codes.score_all,
    )
    naive._model = lambda: plain
    users, options = np.arange(6), {}
    if asked == "candidates":
        options["candidates"] = rng.permutation(1500)[:700]
    if asked == "barred":
        options["exclude_interactions"] = np.column_stack(
            [rng.integers(0, 6, 900), rng.integers(0, 1500, 900)]
        )
    if asked == "unknown user":
        users = np.append(users, -1)
    for exclude_seen in (True, False):
        for n in (1, 10, 300):
            one, other = (
                m.recommend(users, n, exclude_seen=exclude_seen, **options) for m in (model, naive)
            )
            np.testing.assert_array_equal(one[0], other[0])
            np.testing.assert_array_equal(one[1], other[1])


# ------------------------------------------------------------------------- what is sent


def test_the_ledger_counts_codes_down_and_integers_up():
    X, y = make_toy()
    n_rows, n, f = len(X), 12, 20
    up = {
        "full": n_rows * (8 * (f + 1) + 4) + n * (8 * (f * f + f) + 4),
        "gradient": n_rows * (8 * f + 4),
        "parameter": n_rows * (8 + 4),
    }
    for aggregation, nbytes in up.items():
        model = make(n_bits=f, aggregation=aggregation, n_negatives=0).fit(X, y)
        catalogue, *rounds, final = model.communication_.entries
        assert catalogue["bytes_up"] == 0
        assert catalogue["bytes_down"] == n * 9 * 8
        # Codes, and the mean of users' vectors.
        nbytes_down = n * (9 * 8 + (aggregation == "full") * 4 * f)
        assert {e["bytes_down"] for e in (*rounds, final)} == {nbytes_down}
        assert {e["bytes_up"] for e in rounds} == {nbytes}
    model = make(n_bits=f, aggregation="gradient", upload="all").fit(X, y)
    assert {row["bytes_up"] for row in model.history_} == {n * 9 * f * 8}
    with pytest.raises(ValueError, match='use upload="visited"'):
        make(aggregation="parameter", upload="all").fit(X, y)


# ------------------------------------------------------------------------ single uploads


def test_a_server_given_matrices_without_symmetry_comes_to_an_end():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2**63, (5, 1)).astype(np.uint64)
    shapes = {"rows": (5, 65), "gram": (64, 64), "total": 64}
    sums = {name: rng.integers(-(2**53), 2**53, shape) for name, shape in shapes.items()}
    before, signs = codes.copy(), unpack_codes(codes, 64)
    model = LightFR(64)._algorithm().quadratic_model(signs, sums | {"n_users": np.array([3])})
    lightfr_kernels.step_by_curvature(codes, signs, *model, sums["gram"], 0)
    assert (codes != before).any()


# ---------------------------------------------------------------------------- cold start


def test_new_users_are_fitted_without_balance():
    X, y = make_toy(12, 9, seed=3)
    mine = X[:, 0] == X[0, 0]
    model = make(balance_user=0.5, N_SWEEPS=None).fit(X[~mine], y[~mine])
    model.fold_in(X[mine], y[mine])
    naive = reference.LightFR(
        clone(model).set_params(balance_user=0.0),
        [[0]],
        np.ones((1, model.n_items_)),
        np.isin(model.item_ids_, X[mine, 1])[None].astype(float),
        (1, 5),
        model.item_factors_,
        first_codes(model, encode(X[mine], y[mine]))[1] * 0 + folded_start(model),
    )
    mean = model._final_message["mean_user"].values
    naive.fit_user(0, naive.items, mean, Key(0), balanced=False)
    np.testing.assert_array_equal(model.user_factors_[-1], naive.users[0])


def folded_start(model):
    """The first code of the first user that is folded in."""
    planes = random_codes(Key(0), "user codes", np.array([0]), model.user_bits, model.n_bits)
    return vectors(planes, model.n_bits)


@pytest.mark.parametrize("aggregation", ["full", "gradient", "parameter"])
def test_new_items_are_folded_in(aggregation):
    X, y = make_toy(40, 20, density=0.4, seed=2)
    new = np.isin(X[:, 1], np.unique(X[:, 1])[:3])
    model = make(n_bits=32, aggregation=aggregation, MEAN_PRIOR=False, n_rounds=10)
    model.fit(X[~new], y[~new])
    old, users = model.item_codes_.copy(), model.user_codes_.copy()
    before = model.predict(X[~new])
    model.fold_in_items(X[new], y[new])
    assert model.n_items_ == len(model.item_ids_) == len(model.item_codes_) == 20
    np.testing.assert_array_equal(model.item_codes_[:17], old)
    np.testing.assert_array_equal(model.user_codes_, users)
    np.testing.assert_array_equal(model.predict(X[~new]), before)
    added = model.item_ids_[17:]
    everyone = np.unique(X[:, 0])
    liked = {tuple(pair) for pair in X[new].tolist()}
    rated, others = [], []
    for user in everyone:
        for item in added:
            (rated if (user, item) in liked else others).append([user, item])
    margin = 0.0 if aggregation == "parameter" else 0.01
    assert model.predict(rated).mean() > model.predict(others).mean() + margin
    items, _ = model.recommend(everyone, 4)
    seen = set(map(tuple, X.tolist()))
    assert not any((u, i) in seen for u, row in zip(everyone, items, strict=True) for i in row)
    stranger = [[-5, added[0]], [-5, X[~new][0, 1]]]
    assert np.isfinite(model.fold_in(stranger).predict(stranger)).all()


def test_bad_new_items_are_named():
    X, y = make_toy()
    model = make().fit(X, y)
    with pytest.raises(ValueError, match=f"Item {X[0, 1]} is already known"):
        model.fold_in_items(X[:1])
    with pytest.raises(ValueError, match="No row of X has a user that the model knows"):
        model.fold_in_items([[-4, 5]])
    with pytest.raises(ValueError, match='targets="ratings" needs y'):
        make(targets="ratings").fit(X, y).fold_in_items([[X[0, 0], 5]])


# -------------------------------------------------------------------------------- input


def test_ratings_are_required():
    X, y = make_ratings(n_users=40, n_items=30, n_ratings=500, random_state=0)
    model = make(targets="ratings", rating_scale=(1, 5))
    with pytest.raises(ValueError, match='targets="ratings" needs y'):
        model.fit(X)
    with pytest.raises(ValueError, match='targets="ratings" needs y'):
        model.fit(X, y).fold_in(X[:9] + np.array([100, 0, 0]))


def test_ratings_that_count_as_ratings_are_not_warned_of():
    X, y = make_ratings(n_users=40, n_items=30, n_ratings=500, random_state=0)
    with pytest.warns(UserWarning, match="takes every row with y > 0 as positive"):
        make().fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(targets="ratings").fit(X, y)


def test_ratings_without_a_scale_are_named():
    X, _y = make_toy()
    with pytest.raises(ValueError, match="All ratings are 3, which is no scale"):
        make(targets="ratings").fit(X, np.full(len(X), 3.0))
    scaled = make(targets="ratings", rating_scale=(1, 5)).fit(X, np.full(len(X), 3.0))
    assert np.isfinite(scaled.predict(X)).all()


def test_sums_that_may_overflow_are_refused():
    X, y = make_toy()
    for aggregation in ("full", "gradient"):
        with pytest.raises(ValueError, match="may not fit into 64-bit integers"):
            make(aggregation=aggregation).fit(X, y, sample_weight=np.full(len(y), 1e12))
    # Votes are signs, so that many clients' do not overflow; one client's residuals may.
    weights = np.full(len(y), 5e8)
    votes = make(aggregation="parameter").fit(X, y, sample_weight=weights)
    with pytest.raises(ValueError, match="may not fit into 64-bit integers"):
        clone(votes).fit(X, y, sample_weight=weights, clients=0 * y)
    with pytest.raises(ValueError, match="exact sums of LightFR may not fit"):
        votes.fold_in(X[:2] + np.array([5000, 0]), sample_weight=[1e15, 1])


def test_one_bit_and_users_with_everything():
    X = np.array([[u, i] for u in range(4) for i in range(3)])
    for aggregation in ("full", "gradient", "parameter"):
        model = make(n_bits=1, aggregation=aggregation).fit(X)
        assert set(np.unique(model.item_factors_)) <= {-1, 1}
        assert np.isfinite(model.predict(X)).all()
        assert sorted(model.recommend([0], 4, exclude_seen=False)[0][0]) == [0, 1, 2]
        assert (model.recommend([0, 3], 2)[1] == -np.inf).all()


def test_secure_sums_take_whole_matrices_and_a_scheme_that_holds_the_integers(toy):
    pytest.importorskip("tenseal", reason="needs fedrecsk[privacy]")
    pytest.importorskip("phe", reason="needs fedrecsk[privacy]")
    X, _ = toy
    model = LightFR(8, n_rounds=2, random_state=0, federation=Federation())
    with pytest.raises(ValueError, match=r'whole matrices.*set upload="all"'):
        clone(model).set_params(federation__secure_aggregation=CKKS()).fit(X)
    model.set_params(upload="all")
    with pytest.raises(ValueError, match=r"CKKS\(\) holds .* use SecAggPlus\(.*CKKS\(8192"):
        clone(model).set_params(federation__secure_aggregation=CKKS()).fit(X)
    plain = clone(model).fit(X)
    for scheme in (
        CKKS(8192, (60, 60, 60), audit="all"),
        Paillier(512, 0, allow_weak=True, audit="all"),
        SecAggPlus(max_abs=1e9),
    ):
        secure = clone(model).set_params(federation__secure_aggregation=scheme).fit(X)
        np.testing.assert_array_equal(secure.item_codes_, plain.item_codes_)
    # What docs/methods/lightfr.md recommends, for the parameters that are defaults.
    masked = Federation(secure_aggregation=SecAggPlus(max_abs=2e7))
    LightFR(n_rounds=1, upload="all", federation=masked).fit(X)
