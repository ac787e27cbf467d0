"""`explain`: parts of a score that belong to a user's own rows, and add up to it."""

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import fedrecsk
from fedrecsk import EASE, FedEB, ItemKNN, LocALS, base
from fedrecsk.base._public_half import LINEAR
from fedrecsk.models import _model
from tests.conftest import make_toy
from tests.reference.wmf import final_user
from tests.test_contract import ESTIMATORS, make

NAMES = re.findall(r"\b[A-Z]\w+", LINEAR)
linear = pytest.mark.parametrize("name", NAMES)


def fitted(name, **parameters):
    X, y = make_toy()
    return make(getattr(fedrecsk, name)).set_params(**parameters).fit(X, y), X, y


def is_rater(model):
    return isinstance(model, base.RatingMixin)


def raw_score(model, user, item):
    """The score before it is clipped."""
    codes = [
        np.flatnonzero(ids == one)
        for ids, one in ((model.user_ids_, user), (model.item_ids_, item))
    ]
    return model._model().score_all(codes[0])[0, codes[1][0]]


def ridge_by_hand(model, items, values, weights):
    """A user's scores before clipping, by the formulas in the docstrings of the methods."""
    name, m = type(model).__name__, model.n_items_
    codes = [int(np.flatnonzero(model.item_ids_ == item)[0]) for item in items]
    if name in ("EASE", "FedEASE", "ItemKNN", "FedItemKNN"):
        row = np.zeros(m)
        for i, y, w in zip(codes, values, weights, strict=True):
            row[i] = w * (y > 0)
        return row @ model.item_weights_
    if name == "BiasOnly":
        rest = values - model.global_bias_ - model.item_bias_[codes]
        bias = (weights * rest).sum() / (weights.sum() + model.reg_user)
        return model.global_bias_ + model.item_bias_ + bias
    Q = model.item_factors_.astype(float)
    d = Q.shape[1]
    if not is_rater(model):
        c, t = np.ones(m), np.zeros(m)
        for i, y, w in zip(codes, values, weights, strict=True):
            if y > 0:
                c[i] = model.alpha * w * y if name == "ImplicitALS" else 1 + model.alpha * w
                t[i] = 1
        reg = model.reg if name == "ImplicitALS" else model.reg_user
        pivot = getattr(model, "REG_PIVOT", None) or m
        reg *= (1 + np.sum(c - 1) / pivot) ** getattr(model, "reg_exponent", 0)
        if name != "ImplicitALS":
            return Q @ final_user(c, t, reg, weights[values > 0].sum(), Q)
        p = np.linalg.inv(Q.T @ np.diag(c) @ Q + reg * np.eye(d)) @ Q.T @ (c * t)
        return Q @ p + getattr(model, "item_bias_", 0)
    X = np.column_stack([np.ones(m), Q])
    rest = values - model.global_bias_ - model.item_bias_[codes]
    own, center = X[codes], np.zeros(d + 1)
    if name == "ExplicitFCF":
        penalty = np.r_[model.reg_bias, np.full(d, model.reg_user * weights.sum() ** 0.5)]
        alpha, prior = 1.0, np.diag(penalty)
    elif name == "PrivFedEB":
        unit = (model.rating_scale_[1] - model.rating_scale_[0]) / 4
        alpha, prior = 1.3 / unit**2, np.diag(np.r_[6.0 / unit**2, np.ones(d)])
    else:
        alpha, prior = model.noise_std_**-2, np.diag(np.r_[model.bias_std_**-2, np.ones(d)])
        implicit = model.implicit_factors_[codes].sum(axis=0) / np.sqrt(len(codes))
        center[1 : 1 + len(implicit)] = implicit
    gram = own.T @ np.diag(weights) @ own
    if name == "FedEB":
        gram += np.diag(np.r_[0, weights @ model.item_variance_[codes][:, 1:]])
    p = np.linalg.inv(alpha * gram + prior) @ (alpha * own.T @ (weights * rest) + prior @ center)
    return model.global_bias_ + model.item_bias_ + X @ p


@linear
def test_contributions_add_up_to_the_score_of_known_users(name):
    model, X, y = fitted(name)
    for user in model.user_ids_[:4]:
        own = X[:, 0] == user
        # What the model itself does not keep, the caller has.
        kept = not is_rater(model) and name != "ImplicitALS"
        rows = None if kept else (X[own], y[own])
        for item in model.item_ids_[:3]:
            frame = model.explain(user, item, n=2, interactions=rows)
            score = model.predict([[user, item]])[0]
            if name == "ImplicitALS":
                score = model.recommend(
                    [user], candidates=[item], exclude_seen=False, interactions=rows
                )[1][0, 0]
            assert np.isclose(frame["contribution"].sum(), score, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ExplicitFCF", "FedEB"])
def test_what_clipping_takes_is_a_row(name):
    model, *_ = fitted(name)
    # Of a narrow scale most scores are outside.
    model.rating_scale_ = (2.9, 3.0)
    rows = [[77, item] for item in model.item_ids_[:4]], [3.0] * 4
    clipped = []
    for item in model.item_ids_:
        frame = model.explain(77, item, interactions=rows)
        score = model.recommend([77], candidates=[item], exclude_seen=False, interactions=rows)[1]
        assert np.isclose(frame["contribution"].sum(), score[0, 0], rtol=1e-5)
        own = frame.loc[frame["source"] == "clipped", "contribution"].to_list()
        assert len(own) == (score[0, 0] in model.rating_scale_)
        clipped += own
    assert min(clipped) < 0


SCALED = [(name, {"reg_exponent": 0.7}) for name in ("LocALS", "FCF", "ImplicitALS")]


@pytest.mark.parametrize(("name", "parameters"), [*((name, {}) for name in NAMES), *SCALED])
def test_newcomers_scores_are_those_of_the_formulas(name, parameters):
    model, *_ = fitted(name, **parameters)
    items, values = model.item_ids_[[1, 4, 6]], np.array([5.0, 2.0, 4.0])
    rows = np.column_stack([np.full(3, 77), items])
    theirs = ridge_by_hand(model, items, values, np.ones(3))
    for code, item in enumerate(model.item_ids_):
        found, parts, rest = model.explain(77, item, as_frame=False, interactions=(rows, values))
        assert set(found) == set(items)
        assert np.isclose(parts.sum() + rest, theirs[code], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["EASE", "LocALS", "ImplicitALS", "BiasOnly", "FedEB"])
def test_a_contribution_is_linear_in_the_row(name):
    """Without the other rows' ratings: only one row moves, and only its part does."""
    model, *_ = fitted(name)
    rows = np.column_stack([np.full(3, 77), model.item_ids_[[1, 4, 6]]])
    parts = [
        model.explain(77, model.item_ids_[0], interactions=(rows, np.array([3.0, one, 4.0])))
        .set_index("item")["contribution"]
        .loc[rows[:, 1]]
        .to_numpy()
        for one in (1.0, 3.0, 5.0)
    ]
    if is_rater(model):
        low, middle, high = parts
        assert np.allclose(low + high, 2 * middle)
        assert np.allclose(np.delete(low, 1), np.delete(high, 1))
        assert not np.isclose(low[1], high[1])
    elif name != "ImplicitALS":
        assert np.array_equal(parts[0], parts[2])


def test_rows_of_unequal_weight_are_asked_for():
    X, y = make_toy()
    weights = np.linspace(1, 9, len(X))
    model = LocALS(n_factors=2, n_rounds=2, random_state=0).fit(X, y, sample_weight=weights)
    user = X[0, 0]
    with pytest.raises(ValueError, match=r"ratings or weights of user .* interactions="):
        model.explain(user, model.item_ids_[0])
    model.set_params(warm_start=True).fit(X, y, sample_weight=weights)
    total = model.explain(user, model.item_ids_[0])["contribution"].sum()
    assert np.isclose(total, raw_score(model, user, model.item_ids_[0]), rtol=1e-4)


def test_ratings_are_kept_by_clients_that_go_on():
    X, y = make_toy()
    model = FedEB(n_factors=2, n_rounds=3, random_state=0).fit(X, y)
    user, item = X[0, 0], model.item_ids_[0]
    with pytest.raises(ValueError, match=r"does not store the user's rows.*\(X, y\)"):
        model.explain(user, item)
    model.set_params(warm_start=True).fit(X, y)
    total = model.explain(user, item)["contribution"].sum()
    assert np.isclose(total, raw_score(model, user, item), rtol=1e-5)
    # Rows that replace the known ones are not those of the run.
    model.fold_in(X[X[:, 0] == user][:1], [1.0], replace=True)
    with pytest.raises(ValueError, match="interactions="):
        model.explain(user, item)


def test_repeated_rows_and_strings():
    X = [["ann", "tea"], ["ann", "tea"], ["ann", "jam"], ["bob", "tea"], ["bob", "egg"]]
    model = EASE(reg=1.0).fit(X)
    frame = model.explain("ann", "egg")
    assert frame["source"].tolist() == ["row", "row", "other rows", "all users"]
    assert frame["item"].tolist()[-2:] == ["", ""]
    assert frame["contribution"].iloc[2:].eq(0).all()
    sizes = frame["contribution"].abs()
    assert sizes[0] >= sizes[1]
    score = model.predict([["ann", "egg"]])[0]
    assert np.isclose(frame["contribution"].sum(), score)
    again = model.explain("zoe", "egg", interactions=pd.DataFrame(X[:3]).replace("ann", "zoe"))
    assert again["contribution"].tolist() == frame["contribution"].tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((999, 1000), "User 999 is unknown.*interactions="),
        ((100, 5), "Item 5 is not an item that the model knows"),
        (([100, 101], 1000), "one user at a time"),
        ((100, 1000, 0), "n"),
        ((100, 1000, 5, "yes"), "as_frame"),
    ],
)
def test_wrong_questions(arguments, message):
    model, X, _ = fitted("EASE")
    with pytest.raises(ValueError, match=message):
        model.explain(*arguments)
    with pytest.raises(ValueError, match="no row of user 999"):
        model.explain(999, X[0, 1], interactions=X[X[:, 0] == X[0, 0]])
    model, X, _ = fitted("RFRec")
    with pytest.raises(ValueError, match=r"RFRec has no formula.*Use one of EASE"):
        model.explain(X[0, 0], X[0, 1])


@pytest.mark.parametrize("name", sorted({e.__name__ for e in ESTIMATORS} & {*fedrecsk.__all__}))
def test_the_list_of_methods_is_right(name):
    assert (fitted(name)[0]._model().rule(0) is not None) == (name in NAMES)


@pytest.mark.parametrize(
    "model",
    [
        EASE(history_half_life=2),
        ItemKNN(history_half_life=2),
        LocALS(2, n_rounds=2, history_half_life=2, warm_start=True, random_state=0),
    ],
)
def test_rows_that_have_faded_add_up_too(model):
    X, _ = make_toy()
    X = np.column_stack([X, np.arange(len(X))])
    model = clone(model).fit(X)
    user, item = X[0, 0], model.item_ids_[2]
    own = X[X[:, 0] == user]
    for rows in (None, own):
        _, parts, rest = model.explain(user, item, n=2, as_frame=False, interactions=rows)
        assert parts.sum() + rest == pytest.approx(raw_score(model, user, item))


def test_nearest_items_explain_in_any_catalogue_and_export_small_ones(monkeypatch):
    model, X, _ = fitted("ItemKNN")
    before = model.explain(X[0, 0], X[1, 1])
    monkeypatch.setattr(_model, "MOST_ITEMS", 3)
    pd.testing.assert_frame_equal(model.explain(X[0, 0], X[1, 1]), before)
    with pytest.raises(ValueError, match="has 9 items, and export takes at most 3"):
        model.export("unused")
