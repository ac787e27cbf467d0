"""DCF and DDL against loops over bits in Python's integers, and what they refuse."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone

from benchmarks._variants import with_constants
from fedrecsk import DCF, DDL
from fedrecsk._utils.kernels import LazyModule
from fedrecsk.centralized._sgd import Rows
from fedrecsk.centralized.ddl import _DeepBeliefNet
from fedrecsk.protocol.keys import Key
from tests.conftest import split
from tests.reference import dcf as reference

dcf_kernels = LazyModule("fedrecsk.centralized._dcf_kernels")


def problem_of(X, y, weight=None, items=None, n_bits=7):
    data = DCF(items=items)._prepared(X, y, sample_weight=weight)
    rows = Rows.of(data)
    return dcf_kernels.Problem.of(rows, (1.0, 5.0), n_bits), rows


def listed(rows, n_bits):
    """(user, item, weight, target in bits) of each rating, by hand."""
    return [
        (int(u), int(i), float(w), n_bits * (2 * (v - 1.0) / 4.0 - 1))
        for u, i, w, v in zip(rows.users, rows.items, rows.weights, rows.values, strict=True)
    ]


@pytest.fixture
def ratings(toy):
    X, _ = toy
    rng = np.random.default_rng(3)
    return X, rng.uniform(1, 5, len(X)).round(2), rng.uniform(0.2, 3, len(X)).round(2)


# --------------------------------------------------------------- equal to the reference


@pytest.mark.parametrize(("n_bits", "n_sweeps"), [(1, 5), (7, 1), (70, 5)])
def test_codes_equal_the_reference_exactly(n_bits, n_sweeps, ratings):
    X, y, weight = ratings
    items = [*np.unique(X[:, 1]), 777]
    model = DCF(
        n_bits,
        n_epochs=4,
        n_sweeps=n_sweeps,
        balance_user=0.7 if n_bits == 7 else 0.0,
        balance_item=0.3 if n_bits == 7 else 0.0,
        init="random",
        rating_scale=(1, 5),
        items=items,
        random_state=0,
    )
    problem, rows = problem_of(X, y, weight, items, n_bits)
    key = Key(int(np.random.RandomState(0).randint(2**31 - 1)))
    start = model._start(problem, key)
    users, codes = (start[side].tolist() for side in ("users", "items"))
    expected = reference.fit(
        users,
        codes,
        listed(rows, n_bits),
        model.balance_user,
        model.balance_item,
        model.n_epochs,
        n_sweeps,
    )
    model.fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(model.user_factors_, users)
    np.testing.assert_array_equal(model.item_factors_, codes)
    assert model.n_epochs_ == len(expected)
    errors = np.array(expected) / weight.sum() * (2 / n_bits) ** 2
    # Weights and targets are rounded to 2^-20.
    np.testing.assert_allclose(model.loss_curve_, errors, rtol=1e-5)
    predicted = model.predict(X)
    loss = np.average((y - predicted) ** 2, weights=weight)
    assert model.loss_curve_[-1] == pytest.approx(loss, rel=1e-5)
    mean = np.average(y, weights=weight)
    assert model.predict([[-5, X[0, 1]], [X[0, 0], -5]]) == pytest.approx([mean] * 2)


def test_the_relaxed_step_equals_the_reference(ratings):
    X, y, weight = ratings
    problem, rows = problem_of(X, y, weight)
    rng = np.random.default_rng(0)
    P, Q = (rng.normal(size=(n, 7)) for n in (rows.n_users, rows.n_items))
    linear = rng.normal(size=Q.shape)
    expected = [
        reference.relaxed(
            Q[i], [(P[u], w, t) for u, j, w, t in listed(rows, 7) if j == i], linear[i], 0.8
        )
        for i in range(len(Q))
    ]
    dcf_kernels.relax(problem.items, P, linear, 0.8, Q)
    np.testing.assert_allclose(Q, expected, rtol=1e-9, atol=1e-12)


def test_delegates_are_balanced_decorrelated_and_nearest():
    rng = np.random.default_rng(0)
    B = np.sign(rng.normal(size=(50, 6)))
    X = dcf_kernels.delegate(B, rng)
    np.testing.assert_allclose(X, reference.delegate(B), atol=1e-10)
    # Two equal bits and a constant one leave directions to be filled.
    B[:, 1], B[:, 2] = B[:, 0], 1
    full, small = dcf_kernels.delegate(B, rng), dcf_kernels.delegate(B[:4], rng)
    for X, n, rank in ((full, 50, 6), (small, 4, 3)):
        np.testing.assert_allclose(X.mean(axis=0), 0, atol=1e-10)
        values = np.linalg.eigvalsh(X.T @ X)
        np.testing.assert_allclose(values, n * (np.arange(6) >= 6 - rank), atol=1e-8)
    # No other such matrix is nearer: tr(B'X) is the sum of the singular values.
    centred = B - B.mean(axis=0)
    most = np.sqrt(50) * np.linalg.svd(centred, compute_uv=False).sum()
    assert np.sum(B * full) == pytest.approx(most)


class Content:
    """The features' part of DDL in the reference: the same network, asked item by item."""

    def __init__(self, model, features, key):
        self.model, self.features, self.key, self.t = model, features, key, 0
        seed = int(key.hashed("network") >> np.uint64(33))
        sizes = [*model.hidden_layers, model.n_bits]
        self.network = _DeepBeliefNet.pretrained(features, sizes, model.N_PRETRAINING_EPOCHS, seed)

    def pull(self, i):
        weighted = self.model.content_weight * self.network.outputs(self.features)[i]
        return [reference.fixed(x) for x in weighted]

    def learn(self, items, rated):
        codes = np.array([items[i] for i in rated], dtype=float)
        generator = self.key.at(self.t).generator("network")
        self.network.tune(self.features[rated], codes, self.model.learning_rate, generator)
        self.t += 1
        self.code(items, rated)

    def code(self, items, rated):
        for i in set(range(len(items))) - set(rated):
            items[i] = [1 if x > 0 else -1 for x in self.network.outputs(self.features)[i]]


def test_codes_with_features_equal_the_reference_exactly(ratings):
    X, y, weight = ratings
    items = np.array([*np.unique(X[:, 1]), 5000])
    # No bit's sum is so close to 0 that LAPACK's rounding decides it.
    features = np.random.default_rng(7).uniform(size=(len(items), 4))
    model = with_constants(DDL, N_TUNING_EPOCHS=1)(
        7,
        n_epochs=5,
        hidden_layers=(6, 5),
        content_weight=8.0,
        learning_rate=0.05,
        balance_user=0.7,
        balance_item=0.3,
        init="random",
        rating_scale=(1, 5),
        items=items,
        item_features=features,
        random_state=3,
    )
    problem, rows = problem_of(X, y, weight, items)
    key = Key(int(np.random.RandomState(3).randint(2**31 - 1)))
    start = model._start(problem, key)
    users, codes = (start[side].tolist() for side in ("users", "items"))
    content = Content(model, features, key)
    content.code(codes, sorted(set(rows.items.tolist())))
    reference.fit(users, codes, listed(rows, 7), 0.7, 0.3, 5, 5, content)
    model.fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(model.user_factors_, users)
    np.testing.assert_array_equal(model.item_factors_, codes)
    np.testing.assert_array_equal(model.coefs_[0], content.network.coefs[0])
    assert not np.array_equal(
        model.item_factors_, clone(model).set_params(item_features=None).fit(X, y).item_factors_
    )


# ------------------------------------------------------------------------- the network


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_gradients_are_those_of_the_squared_distance(convert):
    rng = np.random.default_rng(0)
    features = convert(np.round(rng.uniform(size=(7, 5)) * (rng.uniform(size=(7, 5)) < 0.5), 1))
    targets = np.sign(rng.normal(size=(7, 3)))
    shapes = [(5, 4), (4, 3)]
    network = _DeepBeliefNet(
        [rng.normal(size=shape) for shape in shapes], [rng.normal(size=s[1]) for s in shapes]
    )

    def loss():
        return np.sum((network.outputs(features) - targets) ** 2) / 2 / len(targets)

    found = network.gradients(features, targets)
    for parameter, gradient in zip(network.coefs + network.intercepts, found, strict=True):
        assert gradient.shape == parameter.shape
        for place in np.ndindex(*parameter.shape):
            kept, sides = parameter[place], []
            for step in (1e-6, -1e-6):
                parameter[place] = kept + step
                sides.append(loss())
            parameter[place] = kept
            assert gradient[place] == pytest.approx(np.subtract(*sides) / 2e-6, abs=1e-7)


# ------------------------------------------------------------------- features and items


def cold_data(seed=0):
    """Users like items of their own kind; the last items have no ratings."""
    rng = np.random.default_rng(seed)
    kind_of_user, kind_of_item = rng.integers(0, 3, 60), np.arange(50) % 3
    users, items = np.nonzero(rng.uniform(size=(60, 40)) < 0.5)
    y = np.where(kind_of_user[users] == kind_of_item[items], 5.0, 1.0)
    features = np.eye(3)[kind_of_item]
    return np.column_stack([users, items]), y, features, kind_of_user, kind_of_item


def test_items_without_ratings_are_coded_by_their_features():
    X, y, features, kind_of_user, kind_of_item = cold_data()
    model = DDL(
        32, items=np.arange(50), item_features=features, learning_rate=0.02, random_state=0
    ).fit(X, y)
    network = _DeepBeliefNet(model.coefs_, model.intercepts_)
    signs = np.where(network.outputs(features) > 0, 1, -1)
    np.testing.assert_array_equal(model.item_factors_[40:], signs[40:])
    new = np.arange(40, 50)
    grid = np.column_stack([np.repeat(np.arange(60), 10), np.tile(new, 60)])
    liked = (kind_of_user[:, None] == kind_of_item[new]).ravel()
    predicted = model.predict(grid)
    assert predicted[liked].mean() > predicted[~liked].mean() + 1.5
    plain = model.set_params(item_features=None).fit(X, y)
    assert not hasattr(plain, "coefs_")
    without = DCF(32, items=np.arange(50), random_state=0).fit(X, y)
    np.testing.assert_array_equal(plain.item_codes_, without.item_codes_)


FRAME = pd.DataFrame(np.eye(50), index=np.arange(50))
BAD = [
    ({"item_features": FRAME.replace({1.0: np.nan})}, r"item 0 has the value nan.*MinMaxScaler"),
    ({"item_features": FRAME - 0.5}, r"item_features of item 0 has the value -0.5"),
    (
        {"item_features": sparse.csr_array(7 * np.eye(50)), "items": np.arange(50)[::-1]},
        r"item_features of item 0 has the value 7",
    ),
    ({"item_features": FRAME.assign(item=FRAME.index)}, "value 2 in the column 'item'.*the index"),
    ({"item_features": FRAME, "hidden_layers": (8, 0)}, r"hidden_layers must hold .*got \[8, 0\]"),
]


@pytest.mark.parametrize(("settings", "message"), BAD, ids=[m for _, m in BAD])
def test_bad_settings_are_named_before_any_work(settings, message, monkeypatch):
    X, y, *_ = cold_data()
    monkeypatch.setattr(_DeepBeliefNet, "pretrained", None)
    monkeypatch.setattr(dcf_kernels, "descend", None)
    monkeypatch.setattr(dcf_kernels, "relax", None)
    with pytest.raises(ValueError, match=message):
        DDL(8, **settings).fit(X, y)


# --------------------------------------------------------------------------- predictions


def test_new_users_are_fitted_to_the_items_codes():
    X, y, *_ = cold_data()
    mine = X[:, 0] < 5
    model = DCF(32, random_state=0).fit(X[~mine], y[~mine])
    model.fold_in(X[mine], y[mine])
    problem, _ = problem_of(X[mine], y[mine], items=model.item_ids_, n_bits=32)
    signs, linear = model.user_factors_[-5:].copy(), np.zeros((5, 32), int)
    side = dcf_kernels.exact(problem.users)
    assert dcf_kernels.descend(side, model.item_factors_, linear, signs, 1)[1] == 0
    np.testing.assert_array_equal(signs, model.user_factors_[-5:])
    assert np.mean((model.predict(X[mine]) - y[mine]) ** 2) < 0.5 * np.var(y[mine])


def test_codes_predict_held_out_ratings(ml100k):
    X_train, y_train, X_test, y_test = split(*ml100k, seed=300)
    model = DCF(random_state=0).fit(X_train, y_train)
    error = np.sqrt(np.mean((model.predict(X_test) - y_test) ** 2))
    assert error < 0.98
