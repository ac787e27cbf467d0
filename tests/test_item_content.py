"""`item_features` and `add_items`, which all models of items' features share."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from fedrecsk import (
    DDL,
    EASE,
    FCF,
    BayesianSVDpp,
    BiasedMF,
    FedEASE,
    FedEB,
    Federation,
    FedItemKNN,
    ImplicitALS,
    ItemKNN,
    LightFR,
    LocALS,
    PrivFedEB,
    RFRec,
    SVDpp,
)
from fedrecsk.datasets import make_ratings
from fedrecsk.privacy import CentralDP

N_OLD, N_NEW = 60, 12


def cold_data(seed=0):
    """Return rows, ratings, features and what users like; the last items have no rows."""
    rng = np.random.default_rng(seed)
    taste, kind = rng.integers(0, 3, 150), np.arange(N_OLD + N_NEW) % 3
    users, items = np.nonzero(rng.random((150, N_OLD)) < 0.25)
    likes = taste[users] == kind[items]
    y = np.clip(np.where(likes, 4.5, 2.0) + 0.5 * rng.normal(size=len(users)), 1, 5)
    features = np.column_stack([np.eye(3)[kind], rng.random(len(kind)) < 0.5]).astype(float)
    return np.column_stack([users, items]), y, features, taste, kind


X, Y, FEATURES, TASTE, KIND = cold_data()
LIKED = Y > 3
NEW = np.arange(N_OLD, N_OLD + N_NEW)
FRAME = pd.DataFrame(FEATURES, columns=["a", "b", "c", "noise"])
OLD_FRAME, NEW_FRAME = FRAME.iloc[:N_OLD], FRAME.iloc[N_OLD:]

RATINGS = {
    "BayesianSVDpp": BayesianSVDpp(4, n_samples=10, n_burn_in=10, random_state=0),
    "BiasedMF": BiasedMF(4, random_state=0),
    "FedEB": FedEB(4, n_rounds=40, random_state=0),
    "PrivFedEB": PrivFedEB(4, n_rounds=20, random_state=0),
    "RFRec": RFRec(4, random_state=0),
    "SVDpp": SVDpp(4, random_state=0),
}
LIKES = {
    "EASE": EASE(reg=50.0),
    "FCF": FCF(4, upload="local", alpha=5.0, reg_user=3.0, reg_item=1.0, random_state=0),
    "FedEASE": FedEASE(reg=50.0),
    "FedItemKNN": FedItemKNN(),
    "ImplicitALS": ImplicitALS(4, alpha=5.0, reg=1.0, random_state=0),
    "ItemKNN": ItemKNN(),
    "LocALS": LocALS(4, alpha=5.0, reg_user=3.0, reg_item=1.0, random_state=0),
}
MODELS = RATINGS | LIKES
# Of other kinds, which share `add_items` alone.
OTHERS = {
    "DDL": DDL(32, learning_rate=0.02, random_state=0),
    "LightFR": LightFR(32, targets="ratings", random_state=0),
}


def rows_of(name):
    return (X[LIKED], None) if name in LIKES else (X, Y)


def fitted(name, **params):
    return clone((MODELS | OTHERS)[name]).set_params(**params).fit(*rows_of(name))


def lead(model):
    """Return by how much new items that a user likes are ahead of others, in deviations."""
    pairs = np.column_stack([np.repeat(np.arange(150), N_NEW), np.tile(NEW, 150)])
    scores = model.predict(pairs)
    liked = (TASTE[:, None] == KIND[NEW]).ravel()
    return (scores[liked].mean() - scores[~liked].mean()) / max(scores.std(), 1e-12)


@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_new_items_are_ranked_by_their_features(name):
    model = fitted(name, item_features=OLD_FRAME)
    assert lead(model) == 0
    before = model.predict(X)
    assert model.add_items(NEW_FRAME.iloc[:6]) is model
    model.add_items(NEW_FRAME.iloc[6:])
    assert lead(model) > 1
    np.testing.assert_allclose(model.predict(X), before, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(model.item_ids_, np.arange(N_OLD + N_NEW))
    items, _ = model.recommend(np.arange(150), 2, candidates=NEW)
    assert (KIND[items] == TASTE[:, None]).mean() > 0.8
    # They may be in new users' histories.
    mine = NEW[KIND[NEW] == 1]
    rows = np.column_stack([np.full(len(mine), 999), mine])
    model = pickle.loads(pickle.dumps(model)).fold_in(rows, np.full(len(mine), 5.0))
    items, _ = model.recommend([999], 10)
    assert not np.isin(items, mine).any()


@pytest.mark.parametrize("name", [*MODELS, "DDL"])
def test_items_without_rows_are_ranked_by_their_features(name):
    assert lead(fitted(name, item_features=FRAME)) > 1


@pytest.mark.parametrize("name", MODELS)
def test_known_items_lose_nothing_by_useless_features_and_nothing_more_is_sent(name):
    rng = np.random.default_rng(5)
    noise = pd.DataFrame(rng.normal(size=(N_OLD, 3)))
    plain, model = fitted(name, items=np.arange(N_OLD)), fitted(name, item_features=noise)
    assert np.corrcoef(plain.predict(X), model.predict(X))[0, 1] > 0.98
    if hasattr(model, "communication_") and name != "PrivFedEB":
        assert model.communication_.entries == plain.communication_.entries
        assert repr(model.privacy_) == repr(plain.privacy_)


def test_new_items_need_features_of_the_same_kind():
    name, model = "EASE", fitted("EASE", item_features=OLD_FRAME)
    for features, message in (
        (NEW_FRAME[["a", "b"]], "has the columns .* but item_features in fit had"),
        (NEW_FRAME[["b", "a", "c", "noise"]], "same columns in the same order"),
        (NEW_FRAME.rename(index={60: 3}), "knows item 3 already"),
        (NEW_FRAME.replace({1.0: np.nan}), "the value nan in the column"),
        (NEW_FRAME.to_numpy(), "no ids"),
    ):
        with pytest.raises(ValueError, match=message):
            model.add_items(features)
    with pytest.raises(ValueError, match="fitted without item_features"):
        model.set_params(item_features=None).fit(*rows_of(name)).add_items(NEW_FRAME)
    with pytest.raises(ValueError, match=r"no row for items 58, 59 of X"):
        fitted(name, item_features=OLD_FRAME.iloc[:58])


FEDERATED = [name for name in MODELS if hasattr(MODELS[name], "federation")]


@pytest.mark.parametrize("name", FEDERATED)
def test_warm_starts_and_updates_go_on_with_features(name):
    model = fitted(name, item_features=OLD_FRAME, warm_start=True)
    expected = model.predict(X)
    np.testing.assert_array_equal(model.fit(*rows_of(name)).predict(X), expected)
    with pytest.raises(ValueError, match="item_features has changed"):
        model.set_params(item_features=2 * OLD_FRAME).fit(*rows_of(name))
    rows = np.column_stack([np.arange(150), NEW[np.arange(150) % N_NEW]])
    likes = np.where(KIND[rows[:, 1]] == TASTE, 5.0, 1.0)
    if hasattr(model, "partial_fit"):
        model.set_params(item_features=FRAME).partial_fit(rows, likes)
        np.testing.assert_array_equal(model.item_ids_, FRAME.index)
        assert lead(model) > 1 or name in LIKES


def test_public_features_cost_no_privacy_and_are_sent_once():
    private = Federation(central_dp=CentralDP(epsilon=10, delta=1e-4))
    settings = {"items": np.arange(N_OLD), "rating_scale": (1, 5), "federation": private}
    plain = PrivFedEB(0, random_state=0, **settings).fit(X, Y)
    model = PrivFedEB(0, random_state=0, item_features=FEATURES[:N_OLD], **settings).fit(X, Y)
    assert model.privacy_.epsilon == plain.privacy_.epsilon
    sent, plainly = model.communication_, plain.communication_
    np.testing.assert_array_equal(sent.client_bytes_up, plainly.client_bytes_up)
    # Three directions, because indicators add up to 1: in the initial message and the final one.
    more = sent.client_bytes_down - plainly.client_bytes_down
    np.testing.assert_array_equal(more, 2 * 3 * 4 * N_OLD)
    assert model.score(X, Y) > plain.score(X, Y)
    assert np.isfinite(model.add_items(NEW_FRAME.to_numpy(), NEW).predict(X)).all()


@pytest.mark.parametrize("Estimator", [FedEASE, FedItemKNN])
def test_rows_of_added_items_fold_into_models_of_noisy_sums(Estimator):
    private = Federation(central_dp=CentralDP(epsilon=1000, delta=1e-4))
    known = {"items": np.arange(N_OLD), "item_features": OLD_FRAME}
    model = Estimator(**known, federation=private, random_state=0).fit(X[LIKED])
    model.add_items(NEW_FRAME).fold_in([[999, NEW[0]], [999, NEW[1]], [999, 0]])
    scores = model.predict([[999, item] for item in range(N_OLD)])
    assert np.isfinite(scores).all()
    assert np.ptp(scores) > 0


def test_penalties_of_locals_pull_rare_items_to_what_features_say():
    X, _, features = make_ratings(80, 40, 1500, item_features=5, random_state=0)
    features = features.loc[np.unique(X[:, 1])]
    pulls = []
    for reg_item in (10.0, 20.0):
        model = LocALS(4, n_rounds=1, reg_item=reg_item, aggregation="clients", random_state=0)
        plain = model.fit(X).item_factors_.astype(float)
        pulls.append(model.set_params(item_features=features).fit(X).item_factors_ - plain)
    assert abs(pulls[0]).max() > 1e-6
    np.testing.assert_allclose(pulls[1], 2 * pulls[0], atol=1e-7)
    # The vectors of one kind of items are pulled alike, but for how many clients hold them.
    n_held = np.unique(X[:, 1], return_counts=True)[1]
    means = pulls[0] * (n_held + 10)[:, None]
    design = np.column_stack([np.ones(len(features)), features])
    fitted = design @ np.linalg.lstsq(design, means, rcond=None)[0]
    np.testing.assert_allclose(means, fitted, atol=1e-6)
