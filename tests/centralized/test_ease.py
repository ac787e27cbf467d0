"""EASE against ridge regressions, and what it refuses."""

import numpy as np
import pytest

from fedrecsk import EASE, FedEASE
from fedrecsk._utils import memory
from fedrecsk.base import _item_weights
from fedrecsk.data.interactions import encode
from tests.conftest import make_toy
from tests.reference import ease as reference


@pytest.fixture(autouse=True)
def float64(monkeypatch):
    monkeypatch.setattr(EASE, "_dtype", np.float64)


@pytest.mark.parametrize("reg", [0.01, 1000.0])
def test_each_column_is_a_ridge_regression_on_the_other_items(reg):
    X, y = make_toy(25, 11, seed=3)
    y -= 3
    weight = np.random.default_rng(0).uniform(0, 3, len(y))
    model = EASE(reg).fit(X, y, sample_weight=weight)
    rows = reference.rows_of(encode(X, y, sample_weight=weight))
    expected = reference.ease(rows.T @ rows, reg)
    np.testing.assert_allclose(model.item_weights_, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(model.user_history_.toarray(), rows)
    users, items = np.indices(rows.shape)
    pairs = np.column_stack([model.user_ids_[users.ravel()], model.item_ids_[items.ravel()]])
    np.testing.assert_allclose(model.predict(pairs), (rows @ expected).ravel(), atol=1e-9)


@pytest.mark.parametrize("Estimator", [EASE, FedEASE])
def test_the_penalty_follows_the_rows_of_an_item(Estimator):
    X, y = make_toy(25, 11, seed=3)
    weight = np.random.default_rng(0).uniform(0, 3, len(y))
    rows = reference.rows_of(encode(X, y, sample_weight=weight))
    model = Estimator().fit(X, y, sample_weight=weight)
    given = Estimator(reg=5 * (rows**2).sum(axis=0).mean()).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(model.item_weights_, given.item_weights_, rtol=1e-5, atol=1e-7)


def test_items_without_rows_leave_the_penalty_alone_and_updates_move_it():
    X, _ = make_toy(25, 11, seed=3)
    alone = FedEASE().fit(X)
    more = FedEASE(items=[-1, *np.unique(X[:, 1])], warm_start=True)
    places = more.fit(X[::2]).partial_fit(X[1::2]).item_ids_ >= 0
    weights = more.item_weights_[np.ix_(places, places)]
    np.testing.assert_allclose(weights, alone.item_weights_, rtol=1e-5, atol=1e-7)


def test_known_users_rows_are_replaced_among_those_of_others():
    X, y = make_toy(25, 11, seed=3)
    model, before = EASE(5.0).fit(X, y), EASE(5.0).fit(X, y).user_history_.toarray()
    user, item = X[0, 0], X[0, 1]
    model.fold_in([[-1, item], [user, item]], [1.0, 1.0], replace=True)
    rows = model.user_history_.toarray()
    place = int(np.flatnonzero(model.user_ids_ == user)[0])
    assert rows.shape == (26, 11)
    assert rows[place].sum() == rows[25].sum() == 1
    others = np.arange(25) != place
    np.testing.assert_array_equal(rows[:25][others], before[others])


def test_a_catalogue_too_large_for_the_memory_is_refused(monkeypatch, toy):
    monkeypatch.setattr(memory, "available", lambda: 4 * 8 * 9**2 - 1)
    with pytest.raises(ValueError, match=r"9 by 9 items take about .* GiB, .*available"):
        EASE().fit(*toy)
    monkeypatch.setattr(memory, "available", lambda: 4 * 8 * 9**2)
    EASE().fit(*toy)


def test_disliked_items_are_left_out_and_say_nothing_else(toy):
    X, y = toy
    y = y - 3
    alone, both = EASE(1.0).fit(X[y > 0]), EASE(1.0).fit(X, y)
    shared = np.searchsorted(both.item_ids_, alone.item_ids_)
    np.testing.assert_allclose(
        both.item_weights_[np.ix_(shared, shared)], alone.item_weights_, atol=1e-12
    )
    user = X[0, 0]
    items, _ = both.recommend([user], 9)
    assert not set(items[0]) & set(X[X[:, 0] == user, 1])


@pytest.mark.parametrize("Estimator", [EASE, FedEASE])
def test_weights_beside_which_reg_is_lost_are_named(Estimator):
    X = make_toy(5, 11, seed=3)[0]
    expected = Estimator(1e-3).fit(X).item_weights_
    found = Estimator(1e3).fit(X, sample_weight=np.full(len(X), 1e3)).item_weights_
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for weight in (1e10, 1e14):
        with pytest.raises(ValueError, match=r"reg=1000 is lost in rounding.* lower sample_weight"):
            Estimator(1e3).fit(X, sample_weight=np.full(len(X), weight))


@pytest.mark.parametrize("model", [EASE(), FedEASE(warm_start=True)])
def test_an_inverse_that_takes_long_is_announced(model, toy, monkeypatch):
    monkeypatch.setattr(_item_weights, "OPERATIONS_PER_SECOND", 10)
    X, y = toy
    with pytest.warns(UserWarning, match="inverts a matrix of 9 by 9 items: roughly 73 s.*ItemKNN"):
        model.fit(X, y)
    if isinstance(model, FedEASE):
        with pytest.warns(UserWarning, match="roughly 73 s"):
            model.partial_fit(X[:3], y[:3])
