import numpy as np
import pandas as pd
import pytest

from benchmarks._variants import with_constants
from fedrecsk.centralized import PMF, BayesianSVDpp, BiasedMF, BiasOnly, SVDpp, _sgd
from fedrecsk.data.interactions import encode
from fedrecsk.protocol.keys import Key
from tests.conftest import make_toy, rmse, split
from tests.reference import mf as reference
from tests.test_contract import assert_same_fit

every_method = pytest.mark.parametrize("Estimator", [PMF, BiasedMF, SVDpp])
every_rating_method = pytest.mark.parametrize("Estimator", [PMF, BiasedMF, SVDpp, BayesianSVDpp])

PENALTIES = (
    "reg",
    "shrinkage",
    "few_ratings",
    "reg_bias",
    "shrinkage_bias",
    "reg_implicit",
    "prior_mean",
)


def weighted_toy(seed=0):
    X, y = make_toy(12, 9, seed=seed)
    return X, y, np.random.default_rng(seed).choice([0.3, 1.0, 2.0, 50.0], len(y))


def by_the_reference(model, X, y, weights):
    """Epochs of the naive loops from the model's own start: their state and losses."""
    rows = _sgd.Rows.of(encode(X, y, sample_weight=weights))
    key = Key(int(np.random.RandomState(model.random_state).randint(2**31 - 1)))
    state = {name: value.copy() for name, value in model._start(rows, key).items()}
    given = {name: value for name, value in model.get_params().items() if name in PENALTIES}
    order = []
    if isinstance(model, SVDpp):
        order = [key.generator("order of users").permutation(rows.n_users)]
        epoch = reference.svdpp_epoch
    else:
        rows = _sgd.shuffled(rows, key)
        epoch = reference.pmf_epoch if isinstance(model, PMF) else reference.biased_mf_epoch
    targets = (rows.values - model._center(rows)) / rows.scale
    ratings = list(zip(rows.users, rows.items, targets, rows.weights, strict=True))
    losses = []
    for t in range(model.n_epochs):
        rate = model.learning_rate * model.learning_rate_decay**t
        loss = epoch(
            ratings, *order, *state.values(), rate=rate, learning_rate=model.learning_rate, **given
        )
        losses.append(loss / len(ratings) * rows.scale**2)
    return rows, state, losses


# ------------------------------------------------------------------------- the papers' lines


@every_method
@pytest.mark.parametrize("n_factors", [2, 11])
def test_equals_the_naive_reference(Estimator, n_factors, monkeypatch):
    monkeypatch.setattr(_sgd, "DTYPE", np.float64)
    X, y, weights = weighted_toy()
    model = with_constants(Estimator, INIT_STD=0.3)(
        n_factors, n_epochs=3, learning_rate=0.1, random_state=3
    )
    model.fit(X, y, sample_weight=weights)
    rows, state, losses = by_the_reference(model, X, y, weights)
    assert model.loss_curve_ == pytest.approx(losses, rel=1e-9)
    users = state["P"]
    if Estimator is SVDpp:
        users = users.copy()
        for u in range(rows.n_users):
            rated = rows.items[rows.users == u]
            users[u] += state["Y"][rated].sum(axis=0) / np.sqrt(len(rated))
        expected = np.sqrt(rows.scale) * state["Y"][:, :n_factors]
        assert model.implicit_factors_ == pytest.approx(expected, rel=1e-9)
    biases = [state.get(name, np.zeros(100)) for name in ("user_bias", "item_bias")]
    predicted = [
        reference.predict(
            model.global_bias_,
            rows.scale,
            users[u],
            state["Q"][i],
            user_bias=biases[0][u],
            item_bias=biases[1][i],
        )
        for u, i in zip(rows.users, rows.items, strict=True)
    ]
    pairs = np.stack([model.user_ids_[rows.users], model.item_ids_[rows.items]], axis=1)
    assert model.predict(pairs) == pytest.approx(np.clip(predicted, 1, 5), rel=1e-9)


# ---------------------------------------------------------------------- what fit promises


@every_rating_method
def test_ratings_on_another_scale_give_the_same_model(Estimator, toy):
    X, y = toy
    stars = Estimator(4, random_state=0).fit(X, y).predict(X)
    percent = Estimator(4, random_state=0).fit(X, 100 * y - 300).predict(X)
    assert percent == pytest.approx(100 * stars - 300, abs=0.1)


@every_rating_method
def test_extreme_ratings_and_weights(Estimator, toy):
    X, y = toy
    model = Estimator(4, random_state=0).fit(X, np.full(len(y), 4.0))
    np.testing.assert_array_equal(model.predict(X), 4.0)
    X, y, weights = weighted_toy()
    weights[3] = 1e9
    model = Estimator(4, random_state=0).fit(X, y, sample_weight=weights)
    assert model.predict(X[3:4]) == pytest.approx(y[3:4], abs=0.3)


# ------------------------------------------------------------ early stopping, warm starts


@every_method
def test_early_stopping_keeps_the_best_epoch(Estimator):
    X, y = make_toy(60, 20)
    y = np.random.default_rng(0).normal(size=len(y))
    options = {"early_stopping": True, "validation_fraction": 0.3, "random_state": 0}
    options |= {"reg": 0, "shrinkage": 0}
    Wide = with_constants(Estimator, INIT_STD=0.3)
    model = Wide(n_epochs=200, n_iter_no_change=3, **options).fit(X, y)
    curve = model.validation_curve_
    assert model.n_epochs_ < 200
    assert len(curve) == model.n_epochs_ + 1 == len(model.loss_curve_) + 1
    assert model.best_epoch_ == int(np.argmin(curve))
    until = Wide(n_epochs=max(1, model.best_epoch_), **options).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), until.predict(X))


def test_the_validation_curve_is_the_error_on_rows_nobody_learned():
    X, y, weights = weighted_toy()
    options = {"early_stopping": True, "random_state": 2, "n_epochs": 1, "tol": 0}
    model = SVDpp(4, **options).fit(X, y, sample_weight=weights)
    rows = _sgd.Rows.of(encode(X, y, sample_weight=weights))
    key = Key(int(np.random.RandomState(2).randint(2**31 - 1)))
    training, held_out = _sgd.hold_out(rows, 0.1, key)
    assert len(training.values) + len(held_out.values) == len(y)
    pairs = np.stack([model.user_ids_[held_out.users], model.item_ids_[held_out.items]], axis=1)
    squares = (model.predict(pairs) - held_out.values) ** 2
    error = np.average(squares, weights=held_out.weights)
    assert min(model.validation_curve_) == pytest.approx(error)


@every_method
@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_warm_start_goes_on_where_it_ended(Estimator, toy, early_stopping):
    X, y = toy
    options = {"early_stopping": early_stopping, "random_state": 0}
    warm = Estimator(4, n_epochs=2, warm_start=True, **options).fit(X, y)
    warm.item_factors_[:] = 7
    warm.set_params(n_epochs=5).fit(X, y)
    assert_same_fit(warm, Estimator(4, n_epochs=5, **options).fit(X, y))
    with pytest.raises(ValueError, match="n_epochs=2 must be larger"):
        warm.set_params(n_epochs=2).fit(X, y)
    with pytest.raises(ValueError, match="clients, sample_weight or items have changed"):
        warm.set_params(n_epochs=6).fit(X, y + 1)


# --------------------------------------------------------------------- who is not in fit


@every_method
def test_fold_in_minimises_the_objective_in_the_new_users_parameters(Estimator, monkeypatch):
    monkeypatch.setattr(_sgd, "DTYPE", np.float64)
    X, y = make_toy(40, 15)
    weights = np.random.default_rng(0).choice([1.0, 2.0], len(y))
    old = X[:, 0] != X[0, 0]
    model = Estimator(3, random_state=0).fit(X[old], y[old], sample_weight=weights[old])
    new_X, new_y, w = X[~old], y[~old], weights[~old]
    model.fold_in(new_X, new_y, sample_weight=w)
    scale, n = model._scale, w.sum()
    Q = model.item_factors_[np.searchsorted(model.item_ids_, new_X[:, 1])]
    item_bias = getattr(model, "item_bias_", np.zeros(15))
    levels = item_bias[np.searchsorted(model.item_ids_, new_X[:, 1])] + model.global_bias_
    implicit, mean = np.zeros(3), np.zeros(3)
    if Estimator is SVDpp:
        Y = model.implicit_factors_[np.searchsorted(model.item_ids_, new_X[:, 1])]
        implicit = Y.sum(axis=0) / np.sqrt(len(Y))
    if Estimator is PMF:
        mean[0] = np.sqrt(scale)

    def objective(p, bias):
        errors = new_y - levels - bias - Q @ (p + implicit)
        shrinkage = model.shrinkage
        if isinstance(model, PMF):
            shrinkage *= max(1, model.few_ratings / n)
        penalty = (model.reg * n + shrinkage) * scale * np.sum((p - mean) ** 2)
        if Estimator is not PMF:
            penalty += (model.reg_bias * n + model.shrinkage_bias) * bias**2
        return np.sum(w * errors**2) + penalty

    p = model.user_factors_[-1] - implicit
    bias = model.user_bias_[-1] if Estimator is not PMF else 0.0
    best = objective(p, bias)
    rng = np.random.default_rng(0)
    for _ in range(50):
        nudge = 1e-3 * rng.normal(size=4)
        assert objective(p + nudge[:3], bias + nudge[3] * (Estimator is not PMF)) > best


# ----------------------------------------------------------------------------- real data


def test_targets_on_movielens_100k(ml100k):
    train_X, train_y, test_X, test_y = split(*ml100k, seed=0)
    for model, target in ((PMF(), 0.928), (BiasedMF(), 0.920), (SVDpp(), 0.910)):
        model.set_params(random_state=0).fit(train_X, train_y)
        assert rmse(model, test_X, test_y) <= target, model


@every_method
def test_never_worse_than_biases_on_sparse_data(Estimator, ml100k):
    train_X, train_y, test_X, test_y = split(*ml100k, seed=0)
    few = pd.Series(train_X[:, 0]).groupby(train_X[:, 0]).cumcount() < 5
    train_X, train_y = train_X[few], train_y[few]
    biases = rmse(BiasOnly().fit(train_X, train_y), test_X, test_y)
    for early_stopping in (False, True):
        model = Estimator(early_stopping=early_stopping, random_state=0).fit(train_X, train_y)
        assert rmse(model, test_X, test_y) <= biases


def test_what_cannot_be_learned_is_named(toy):
    with pytest.raises(ValueError, match="no rows for training and validation among 1"):
        BiasedMF(4, early_stopping=True).fit([["ann", "emma"]], [3.0])
    with pytest.raises(ValueError, match="prior_mean needs a coordinate for users and another"):
        PMF(1).fit(*toy)
    assert PMF(1, prior_mean=0).fit(*toy).item_factors_.shape == (9, 1)


def test_more_patience_continues_a_stopped_fit(toy):
    Estimator = BiasedMF
    options = {"early_stopping": True, "tol": 1.0, "random_state": 0}
    model = Estimator(n_epochs=9, n_iter_no_change=2, warm_start=True, **options).fit(*toy)
    assert model.n_epochs_ == 2
    model.set_params(n_iter_no_change=5).fit(*toy)
    patient = Estimator(n_epochs=9, n_iter_no_change=5, **options).fit(*toy)
    assert model.n_epochs_ == patient.n_epochs_ == 5
    np.testing.assert_array_equal(model.item_factors_, patient.item_factors_)


def test_early_stopping_gets_past_the_slow_start(ml1m):
    X, y = ml1m
    some = np.isin(X[:, 0], np.unique(X[:, 0])[::4])
    train_X, train_y, test_X, test_y = split(X[some], y[some], seed=0)
    biases = rmse(BiasOnly().fit(train_X, train_y), test_X, test_y)
    for Estimator in (PMF, BiasedMF, SVDpp):
        model = Estimator(early_stopping=True, random_state=0).fit(train_X, train_y)
        assert model.best_epoch_ > 20
        assert rmse(model, test_X, test_y) < biases - 0.02
