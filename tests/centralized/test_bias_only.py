import numpy as np
import pytest

from fedrecsk import BiasOnly
from tests.conftest import make_toy, rmse, split


def alternating_ridge(X, y, weights, reg_user, reg_item, n_sweeps):
    """The two updates written out, one user or item after the other."""
    users, items = np.unique(X[:, 0]), np.unique(X[:, 1])
    mean = np.average(y, weights=weights)
    b_u, b_i = dict.fromkeys(users, 0.0), dict.fromkeys(items, 0.0)
    for _ in range(n_sweeps):
        for i in items:
            rows = np.flatnonzero(X[:, 1] == i)
            residual = [y[r] - mean - b_u[X[r, 0]] for r in rows]
            b_i[i] = np.dot(weights[rows], residual) / (weights[rows].sum() + reg_item)
        for u in users:
            rows = np.flatnonzero(X[:, 0] == u)
            residual = [y[r] - mean - b_i[X[r, 1]] for r in rows]
            b_u[u] = np.dot(weights[rows], residual) / (weights[rows].sum() + reg_user)
    return mean, b_u, b_i


def test_equals_the_updates_written_out(toy):
    X, y = toy
    weights = np.random.default_rng(0).uniform(0.5, 2, len(y))
    model = BiasOnly(reg_user=3, reg_item=2, n_sweeps=4).fit(X, y, sample_weight=weights)
    mean, b_u, b_i = alternating_ridge(X, y, weights, 3, 2, 4)
    assert model.global_bias_ == pytest.approx(mean)
    assert dict(zip(model.user_ids_, model.user_bias_, strict=True)) == pytest.approx(b_u)
    assert dict(zip(model.item_ids_, model.item_bias_, strict=True)) == pytest.approx(b_i)
    expected = [mean + b_u[u] + b_i[i] for u, i in X]
    assert model.predict(X) == pytest.approx(expected)


def test_a_new_users_bias_is_its_shrunken_residual():
    X, y = make_toy()
    mine = X[:, 0] == X[0, 0]
    model = BiasOnly(reg_user=4).fit(X[~mine], y[~mine]).fold_in(X[mine], y[mine])
    items = np.searchsorted(model.item_ids_, X[mine, 1])
    residual = y[mine] - model.global_bias_ - model.item_bias_[items]
    assert model.user_bias_[-1] == pytest.approx(residual.sum() / (len(residual) + 4))


def test_reaches_the_known_error_on_movielens(ml100k):
    X_train, y_train, X_test, y_test = split(*ml100k, seed=0)
    model = BiasOnly().fit(X_train, y_train)
    assert rmse(model, X_test, y_test) == pytest.approx(0.9435, abs=0.006)
