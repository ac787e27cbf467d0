"""Short lists, new users, and known users computed anew: what all estimators share."""

import copy
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import is_regressor

import fedrecsk
from fedrecsk import LightFR, Popularity, RFRec, RFRecF, base
from fedrecsk.data.interactions import Interactions
from fedrecsk.datasets import make_ratings
from fedrecsk.metrics import evaluate_ranking
from tests.conftest import make_toy
from tests.test_contract import (
    assert_same_fit,
    every_estimator,
    every_federated,
    federated_representatives,
    fitted_arrays,
    make,
    one_of_each_kind,
    representatives,
)


def own_items(X):
    """Items of each user, the naive way."""
    return {user: set(X[X[:, 0] == user, 1].tolist()) for user in np.unique(X[:, 0])}


def never_seen(model, users):
    """Items left for each user, as `recommend` has it."""
    items, scores = model.recommend(users, model.n_items_)
    return [set(row[kept].tolist()) for row, kept in zip(items, np.isfinite(scores), strict=True)]


def halves(X, y, users):
    """First rows of these users, and all of their rows with other ratings."""
    theirs = np.flatnonzero(np.isin(X[:, 0], users))
    first = np.concatenate([theirs[X[theirs, 0] == user][:2] for user in users])
    late = np.setdiff1d(theirs, first)
    return np.delete(np.arange(len(X)), late), X[theirs], 6 - y[theirs]


# ------------------------------------------------------------------------- short lists


@one_of_each_kind
def test_short_lists_hold_what_is_left(Estimator, toy, monkeypatch):
    X, y = toy
    model = make(Estimator).fit(X, y)
    users, seen = [*model.user_ids_, -1], own_items(X)
    found = {n: model.recommend(users, n) for n in (3, 9, 10**9)}
    for n, (items, scores) in found.items():
        assert items.shape == scores.shape == (13, min(n, model.n_items_))
        for user, its, values in zip(users, items, scores, strict=True):
            left = np.array([i for i in model.item_ids_ if i not in seen.get(user, ())])
            predicted = model.predict([[user, item] for item in left])
            n_left = min(n, len(left))
            assert values[:n_left] == pytest.approx(np.sort(predicted)[::-1][:n_left], abs=1e-6)
            assert len(set(its[:n_left]) & set(left)) == n_left
            assert (its[n_left:] == -1).all()
            assert (values[n_left:] == -np.inf).all()
    # Few candidates, of which one is given twice and one has been seen.
    user = users[0]
    left = np.setdiff1d(model.item_ids_, [*seen[user]])[:2].tolist()
    asked = [min(seen[user]), left[0], *left]
    items, scores = model.recommend([user], 5, candidates=asked)
    assert sorted(items[0]) == [-1, *left]
    assert np.isfinite(scores[0]).tolist() == [True, True, False]
    monkeypatch.setattr(base._recommend.memory, "SCORES_PER_BATCH", 20)
    for n, (items, scores) in found.items():
        in_batches = model.recommend(users, n)
        np.testing.assert_array_equal(in_batches[0], items)
        assert in_batches[1] == pytest.approx(scores, abs=1e-6)


def test_lists_that_memory_cannot_hold_are_refused(toy, monkeypatch):
    X, y = toy
    model = Popularity().fit(X, y)
    monkeypatch.setattr(base._recommend, "UNCHECKED_BYTES", 1000)
    # An id, a score and a place of 8 bytes each.
    monkeypatch.setattr(base._recommend.memory, "available", lambda: 20 * 9 * 3 * 8)
    assert model.recommend([1] * 20, 9)[0].shape == (20, 9)
    with pytest.raises(ValueError, match="9 recommendations for each of 21 users take about"):
        model.recommend([1] * 21, 9)


@pytest.mark.parametrize(
    ("ids", "missing"),
    [
        (np.array([3, 4], dtype=np.int8), -1),
        (np.array([3, 4], dtype=np.uint8), 255),
        (np.array([0.5, 4.0]), np.nan),
        (np.array(["jam", "tea"]), ""),
        (np.array([2**70, 2**71], dtype=object), -1),
    ],
)
def test_the_filler_has_the_type_of_the_ids(ids, missing):
    X = pd.DataFrame({"user": [1, 1, 2], "item": ids[[0, 1, 1]]})
    items, scores = Popularity().fit(X).recommend([1, 2], 2)
    assert items.dtype == ids.dtype
    assert scores.tolist() == [[-np.inf, -np.inf], [0.5, -np.inf]]
    assert items[1, 0] == ids[0]
    np.testing.assert_array_equal(
        items[[0, 0, 1], [0, 1, 1]], np.full(3, missing, dtype=items.dtype)
    )


# ------------------------------------------------------- known users are computed anew


@every_estimator
def test_a_replaced_user_is_as_if_new(Estimator):
    X, y = make_toy(14, 10)
    changed = np.unique(X[:, 0])[[1, 6, 12]]
    kept, rows, ratings = halves(X, y, changed)
    model = make(Estimator).fit(X[kept], y[kept], clients=X[kept, 0] % 3)
    twin = copy.copy(model).fold_in(rows + np.array([5000, 0]), ratings)
    before = copy.deepcopy(fitted_arrays(model))
    assert model.fold_in(rows, ratings, replace=True) is model

    codes = np.array([model.user_ids_.tolist().index(user) for user in changed])
    others = np.setdiff1d(np.arange(14), codes)
    for name, after in fitted_arrays(model).items():
        assert getattr(after, "dtype", None) == getattr(before[name], "dtype", None), name
        if name.startswith("user_") and name != "user_ids_":
            np.testing.assert_array_equal(after[others], before[name][others], err_msg=name)
            np.testing.assert_array_equal(after[codes], getattr(twin, name)[14:], err_msg=name)
        elif not isinstance(after, list):
            np.testing.assert_array_equal(after, before[name], err_msg=name)
    for one, other in zip(
        model.recommend(changed, 4), twin.recommend(changed + 5000, 4), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@representatives
def test_new_and_known_users_may_come_together(Estimator):
    X, y = make_toy(14, 10)
    changed, added = np.unique(X[:, 0])[[2, 5]], np.unique(X[:, 0])[[0, 9]]
    kept, rows, ratings = halves(X, y, [*changed, *added])
    kept = kept[~np.isin(X[kept, 0], added)]
    model = make(Estimator).fit(X[kept], y[kept])
    known, apart, late = model.user_ids_.copy(), copy.copy(model), np.isin(rows[:, 0], added)
    apart.fold_in(rows[~late], ratings[~late], replace=True).fold_in(rows[late], ratings[late])
    model.fold_in(rows, ratings, replace=True)
    assert model.user_ids_.tolist() == [*known, *added]
    assert model.n_users_ == 14
    assert model.predict(X) == pytest.approx(apart.predict(X), rel=1e-5, abs=1e-6)
    expected = own_items(np.concatenate([X[kept][~np.isin(X[kept, 0], changed)], rows]))
    everything = set(model.item_ids_.tolist())
    left = never_seen(model, model.user_ids_)
    assert left == [everything - expected[user] for user in model.user_ids_]


@one_of_each_kind
def test_users_are_served_from_what_they_bring(Estimator, toy):
    X, y = toy
    known, new = users = np.unique(X[:, 0])[[3, 8]]
    kept, rows, ratings = halves(X, y, users)
    kept = kept[X[kept, 0] != new]
    model = make(Estimator).fit(X[kept], y[kept])
    before = model.predict(X), never_seen(model, model.user_ids_)
    served = model.recommend(users, 3, interactions=(rows, ratings))
    assert new not in model.user_ids_
    np.testing.assert_array_equal(model.predict(X), before[0])
    assert never_seen(model, model.user_ids_) == before[1]
    model.fold_in(rows, ratings, replace=True)
    assert model.n_users_ == len(model.user_ids_) == 12
    for one, other in zip(model.recommend(users, 3), served, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not set(served[0][0]) & set(rows[rows[:, 0] == known, 1])


@federated_representatives
def test_a_warm_start_goes_on_from_its_own_rows(Estimator, toy):
    X, y = toy
    warm = make(Estimator, n_rounds=3, warm_start=True).fit(X, y)
    warm.fold_in([[X[0, 0], 1006], [-7, 1006]], [4.0, 4.0], replace=True)
    warm.set_params(n_rounds=6).fit(X, y)
    cold = make(Estimator, n_rounds=6).fit(X, y)
    assert_same_fit(warm, cold)
    assert never_seen(warm, warm.user_ids_) == never_seen(cold, cold.user_ids_)


@pytest.mark.parametrize("Estimator", [RFRec, RFRecF])
@pytest.mark.parametrize("silos", [False, True])
def test_a_replaced_user_leaves_its_clients_own_items(Estimator, silos):
    """Its new vector belongs to the server's items, as a new user's does."""
    X, y = make_toy(14, 10)
    user = X[0, 0]
    clients = X[:, 0] % 3 if silos else None
    model = make(Estimator, predict_with="local").fit(X, y, clients=clients)
    rows, ratings = X[X[:, 0] == user], 6 - y[X[:, 0] == user]
    twin = copy.copy(model).fold_in(rows + np.array([5000, 0]), ratings)
    before = model.predict(X), copy.copy(model)
    model.fold_in(rows, ratings, replace=True).fold_in(rows, ratings, replace=True)
    model.fold_in([[-7, 1006]], [3.0]).fold_in([[-7, 1006]], [4.0], replace=True)
    everything = [[user, item] for item in model.item_ids_]
    np.testing.assert_array_equal(
        model.predict(everything), twin.predict(np.add(everything, [[5000, 0]]))
    )
    others = X[:, 0] != user
    np.testing.assert_array_equal(model.predict(X[others]), before[0][others])
    np.testing.assert_array_equal(before[1].predict(X), before[0])


def test_items_can_be_added_after_users_are_replaced():
    X, y = make_toy(20, 12, density=0.4)
    new = X[:, 1] == X[0, 1]
    model = make(LightFR).fit(X[~new], y[~new])
    user = X[new][0, 0]
    model.fold_in([[user, X[~new][0, 1]]], replace=True).fold_in_items(X[new])
    left = set(model.item_ids_.tolist()) - {X[~new][0, 1], X[0, 1]}
    assert never_seen(model, [user]) == [left]


# ----------------------------------------------------------------------- who is refused


@one_of_each_kind
def test_who_cannot_be_folded_in_is_named(Estimator, toy):
    X, y = toy
    model = make(Estimator).fit(X, y)
    before = model.predict(X)
    user, item = X[0]
    with pytest.raises(ValueError, match=f"User {user} is already known.*replace=True"):
        model.fold_in([[-7, item], [user, item]], [3.0, 3.0])
    with pytest.raises(ValueError, match=r"about user -7: .*only item -8. Give .* such as 1000"):
        model.fold_in([[-7, -8]], [3.0])
    with pytest.raises(ValueError, match=f"about user {user}: .*only item -8"):
        model.fold_in([[-7, item], [user, -8]], [3.0, 3.0], replace=True)
    weight = [0.0, 1.0]
    with pytest.raises(ValueError, match=r"users -7, -6: .*a weight above zero"):
        model.fold_in([[-7, item], [-6, -8]], [3.0, 3.0], sample_weight=weight)
    with pytest.raises(ValueError, match="The 'replace' parameter of fold_in"):
        model.fold_in([[-7, item]], [3.0], replace="all")
    if is_regressor(model):
        with pytest.raises(ValueError, match="requires y"):
            model.fold_in([[user, item]], replace=True)
    with pytest.raises(ValueError, match="belongs to one client"):
        model.fold_in([[-7, item], [-7, X[1, 1]]], [3.0, 3.0], clients=[1, 2])
    np.testing.assert_array_equal(model.predict(X), before)
    assert model.n_users_ == 12
    # In company of others, they stay unknown.
    unknown_user = model.recommend([-7], 9)
    model.fold_in([[-7, -8], [-6, item]], [3.0, 3.0])
    assert model.user_ids_[12:].tolist() == [-6]
    for one, other in zip(model.recommend([-7], 9), unknown_user, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["CoLR", "SCoLR", "FedMF", "LightFR"])
def test_models_that_cannot_tell_items_apart_for_strangers_say_so(name, toy):
    """As the user guide says, and so does its cure."""
    X, y = toy
    model = make(getattr(fedrecsk, name)).fit(X, y)
    with pytest.warns(UserWarning, match="User -7 is unknown, and .* has the same score"):
        items, scores = model.recommend([-7], 9)
    assert np.ptp(scores) == 0
    assert items[0].tolist() == model.item_ids_.tolist()
    _, scores = model.recommend(
        [-7], 5, interactions=([[-7, item] for item in items[0, :3]], [5.0] * 3)
    )
    assert np.ptp(scores) > 0


@pytest.mark.full
@pytest.mark.parametrize("name", ["EASE", "FedSpectral", "LocALS", "LocSGD", "FCF", "ImplicitALS"])
def test_strangers_are_ranked_about_as_by_popularity(name):
    X = make_ratings(n_users=300, n_items=60, n_ratings=6000, random_state=0)[0][:, :2]
    new = X[:, 0] < 60
    model = getattr(fedrecsk, name)().fit(X[~new])
    best = evaluate_ranking(Popularity().fit(X[~new]), X[new])["ndcg@10"]
    with warnings.catch_warnings(action="ignore"):
        assert evaluate_ranking(model, X[new])["ndcg@10"] > 0.8 * best
    items, scores = model.recommend([-7], 9)
    np.testing.assert_allclose(scores[0], model.predict([[-7, item] for item in items[0]]))


# -------------------------------------------------------------------- a model without users


@every_federated
def test_nobody_has_attributes_of_the_same_form_as_a_user(Estimator, toy):
    model, (X, y) = make(Estimator, n_rounds=1).fit(*toy), toy
    one = X[:, 0] == X[0, 0]
    user = model._new_user_attributes(model._read(X[one], y[one], item_ids=model._items))
    nobody = model._new_user_attributes(Interactions.empty(model._items))
    assert nobody.keys() == user.keys()
    for name, rows in nobody.items():
        assert (rows.shape, rows.dtype) == ((0, *user[name].shape[1:]), user[name].dtype), name
