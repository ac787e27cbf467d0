"""`user_features` and `add_users`: what users are like before they rate."""

import pickle
from unittest.mock import patch

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from fedrecsk import FedEB, Federation, LocALS
from fedrecsk.aggregation import Krum, NormClipping
from fedrecsk.attacks import Promotion
from fedrecsk.privacy import CentralDP, SecAggPlus
from tests.conftest import rmse
from tests.reference.fedeb import user_means
from tests.reference.wmf import user_solve

N_OLD, N_NEW, N_ITEMS = 120, 30, 50


def cold_data(seed=0):
    """Return rows, ratings and features of users, whose taste a feature says; the last are new."""
    rng = np.random.default_rng(seed)
    taste, kind = rng.integers(0, 2, N_OLD + N_NEW), np.arange(N_ITEMS) % 2
    users, items = np.nonzero(rng.random((N_OLD + N_NEW, N_ITEMS)) < 0.4)
    likes = taste[users] == kind[items]
    y = np.clip(np.where(likes, 4.2, 2.5) + 0.7 * rng.normal(size=len(users)), 1, 5)
    features = pd.DataFrame({"taste": taste, "noise": rng.random(len(taste))})
    return np.column_stack([users, items]), y, features


X, Y, FEATURES = cold_data()
OLD, NEW = X[:, 0] < N_OLD, X[:, 0] >= N_OLD
OLD_FEATURES, NEW_FEATURES = FEATURES.iloc[:N_OLD], FEATURES.iloc[N_OLD:]


def make(**parameters):
    return FedEB(**{"n_factors": 3, "n_rounds": 40, "random_state": 0} | parameters)


@pytest.fixture(scope="module")
def model():
    return make(user_features=FEATURES).fit(X[OLD], Y[OLD])


def test_users_without_rows_are_known_by_their_features(model):
    unknown = rmse(model, X[NEW], Y[NEW])
    grown = pickle.loads(pickle.dumps(model)).add_users(NEW_FEATURES)
    assert rmse(grown, X[NEW], Y[NEW]) < unknown - 0.1
    assert grown.user_ids_.tolist() == list(range(N_OLD + N_NEW))
    # Nobody else has changed, and new users' lists leave nothing out.
    np.testing.assert_array_equal(grown.predict(X[OLD]), model.predict(X[OLD]))
    assert grown.recommend([N_OLD], n_recommendations=N_ITEMS)[0].shape == (1, N_ITEMS)
    mean, std = grown.predict(X[NEW], return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


def test_a_user_who_has_a_few_rows_is_folded_in_with_features(model):
    few = NEW & (pd.Series(X[:, 0]).groupby(X[:, 0]).cumcount() < 2)
    rest = NEW & ~few
    plain = make().fit(X[OLD], Y[OLD]).fold_in(X[few], Y[few])
    folded = pickle.loads(pickle.dumps(model)).fold_in(X[few], Y[few])
    assert rmse(folded, X[rest], Y[rest]) < rmse(plain, X[rest], Y[rest]) - 0.03
    again = make(user_features=OLD_FEATURES).fit(X[OLD], Y[OLD]).add_users(NEW_FEATURES)
    again.fold_in(X[few], Y[few], replace=True)
    np.testing.assert_allclose(again.predict(X[rest]), folded.predict(X[rest]), rtol=1e-6)


def test_only_sums_are_sent_and_they_are_counted(model):
    plain = make().fit(X[OLD], Y[OLD])
    ours, others = model.communication_, plain.communication_
    n_setup, n_round, n_final = 4 * 3, 4 * 6, 3 * 6
    for one, other in zip(ours.entries, others.entries, strict=True):
        more = {"setup": n_setup, "round": n_round}.get(one["phase"], 0) * 4 * N_OLD
        assert one["bytes_up"] - other["bytes_up"] == more
    assert ours.entries[-1]["bytes_down"] - others.entries[-1]["bytes_down"] == 4 * n_final * N_OLD
    # The rounds are those without features.
    np.testing.assert_array_equal(model.item_factors_, plain.item_factors_)


def test_search_and_warm_start(model):
    for frame in (FEATURES.astype(pd.SparseDtype(float)), FEATURES.convert_dtypes()):
        same = make(user_features=frame).fit(X[OLD], Y[OLD])
        np.testing.assert_array_equal(same.predict(X[OLD]), model.predict(X[OLD]))
    refit = make(user_features=FEATURES, n_rounds=20, warm_start=True).fit(X[OLD], Y[OLD])
    refit.set_params(n_rounds=40).fit(X[OLD], Y[OLD])
    np.testing.assert_array_equal(refit.predict(X[OLD]), model.predict(X[OLD]))
    with pytest.raises(ValueError, match="user_features"):
        refit.set_params(n_rounds=50, user_features=1 - FEATURES).fit(X[OLD], Y[OLD])
    grid = {"user_features": [None, FEATURES]}
    search = GridSearchCV(make(n_rounds=5), grid, cv=2, scoring="neg_root_mean_squared_error")
    assert search.fit(X, Y).best_params_["user_features"] is not None


# ------------------------------------------------------------------------------- of LocALS

LIKED = X[Y >= 4]


def make_wmf(**parameters):
    start = {"n_factors": 4, "n_rounds": 6, "reg_user": 3.0, "random_state": 0}
    return LocALS(**start | parameters)


def likes_above_others(model, rows):
    """Mean score of liked items less that of all items, of the rows' users, per typical score."""
    users = np.unique(rows[:, 0])
    everything = np.column_stack([np.repeat(users, N_ITEMS), np.tile(range(N_ITEMS), len(users))])
    scores = model.predict(everything)
    return (model.predict(rows).mean() - scores.mean()) / scores.std()


@pytest.fixture(scope="module")
def wmf():
    return make_wmf(user_features=FEATURES).fit(LIKED[LIKED[:, 0] < N_OLD])


def test_rankings_of_users_without_rows_and_with_few(wmf):
    plain = make_wmf().fit(LIKED[LIKED[:, 0] < N_OLD])
    new = LIKED[LIKED[:, 0] >= N_OLD]
    few = pd.Series(new[:, 0]).groupby(new[:, 0]).cumcount().to_numpy() < 1
    grown = pickle.loads(pickle.dumps(wmf)).add_users(NEW_FEATURES)
    assert likes_above_others(grown, new) > likes_above_others(plain, new) + 0.2
    np.testing.assert_array_equal(grown.item_factors_, plain.item_factors_)
    folded = pickle.loads(pickle.dumps(wmf)).fold_in(new[few])
    bold, found = pickle.loads(pickle.dumps(plain)), likes_above_others(folded, new[~few])
    with patch("fedrecsk.federated._wmf.short_histories", lambda gram, n: (0 * n, 0 * n)):
        bold.fold_in(new[few])
    assert found > likes_above_others(bold, new[~few]) + 0.1
    assert found > likes_above_others(plain.fold_in(new[few]), new[~few])
    # Users with many rows are hardly moved.
    old = LIKED[LIKED[:, 0] < N_OLD]
    assert abs(likes_above_others(wmf, old) - likes_above_others(plain, old)) < 0.05


def solved(model, rows):
    """The vectors of users as in a round."""
    r = np.zeros((model.n_users_, model.n_items_))
    r[rows[:, 0], np.searchsorted(model.item_ids_, rows[:, 1])] = 1
    own = model.item_factors_.astype(float), model.reg_user
    return np.array([user_solve(1 + model.alpha * one, one, *own) for one in r])


def test_rankings_equal_the_naive_reference(wmf):
    old = LIKED[LIKED[:, 0] < N_OLD]
    plain, before = make_wmf().fit(old), make_wmf(n_rounds=5).fit(old)
    # Users of a round are fitted to the items of the round before.
    vectors, features = solved(before, old), OLD_FEATURES.to_numpy()
    n = np.bincount(old[:, 0])
    w = n / (n + 20)
    x = np.column_stack([np.ones(N_OLD), features])
    sums = x.T @ (w[:, None] * vectors), w @ vectors**2
    means = user_means(features, n[:, None], *sums, half=20)
    # Users whose features are known do not lean on popular items.
    expected = solved(plain, old) + (1 / (n + 1))[:, None] * (x @ means)
    np.testing.assert_allclose(wmf.user_factors_, expected, atol=1e-4)


def test_settings_change_no_rankings(wmf):
    old = LIKED[LIKED[:, 0] < N_OLD]
    more = N_OLD * 4 * (4 * 3 + 6 * 4 * 4)
    assert wmf.communication_.bytes_up == make_wmf().fit(old).communication_.bytes_up + more
    held = Federation(aggregator=NormClipping(1e9))
    other = make_wmf(user_features=FEATURES, n_jobs=2, federation=held).fit(old)
    np.testing.assert_allclose(other.user_factors_, wmf.user_factors_, atol=1e-4)
    open_ = make_wmf(user_features=FEATURES, upload="all", n_rounds=2).fit(old)
    masked = Federation(secure_aggregation=SecAggPlus(max_abs=1e3))
    secret = clone(open_).set_params(federation=masked).fit(old)
    np.testing.assert_allclose(secret.user_factors_, open_.user_factors_, atol=0.01)


WITHOUT_SOME = FEATURES.assign(constant=0.5).drop(range(10, 40))


@pytest.mark.parametrize(
    "parameters",
    [
        {"client_fraction": 0.3, "n_rounds": 30},
        {"federation": Federation(dropout=0.3), "n_rounds": 12},
        {"early_stopping": True, "n_rounds": 12},
        {"aggregation": "clients", "local_epochs": 2, "n_rounds": 30},
        {"user_features": WITHOUT_SOME},
        {"n_silos": 3},
    ],
    ids=lambda one: " ".join(one),
)
def test_new_users_are_ranked_for_in_any_setting(parameters):
    old, new = LIKED[LIKED[:, 0] < N_OLD], LIKED[LIKED[:, 0] >= N_OLD]
    parameters = {"user_features": FEATURES} | parameters
    clients = old[:, 0] % parameters.pop("n_silos", N_OLD)
    model = make_wmf(**parameters).fit(old, clients=clients)
    plain = clone(model).set_params(user_features=None).fit(old, clients=clients)
    rows = NEW_FEATURES.assign(constant=0.5) if "constant" in model.user_features else NEW_FEATURES
    grown = model.add_users(rows)
    assert likes_above_others(grown, new) > likes_above_others(plain, new) + 0.15


def test_a_user_without_likes_has_what_features_say():
    # Users 0 to 4 like nothing.
    y = np.where(X[OLD, 0] < 5, 0.0, Y[OLD] >= 4)
    model = make_wmf(user_features=FEATURES, warm_start=True).fit(X[OLD], y)
    means = model._final_message["user_means"].values
    expected = np.column_stack([np.ones(5), FEATURES.iloc[:5]]) @ means
    np.testing.assert_allclose(model.user_factors_[:5], expected, rtol=1e-5)
    # They say nothing about others, and are not among the users of the sums.
    assert model._run.server.state.user_sums.squares[-1, 0] == N_OLD - 5
    rest = X[OLD, 0] >= 5
    other = make_wmf(user_features=FEATURES, items=range(N_ITEMS)).fit(X[OLD][rest], y[rest])
    sizes = np.abs(means).max(), np.abs(other._final_message["user_means"].values).max()
    assert sizes[0] == pytest.approx(sizes[1], rel=0.3)


@pytest.mark.parametrize("make_one", [make, make_wmf])
def test_added_users_come_and_go(make_one):
    x, y = (X, Y) if make_one is make else (LIKED, None)
    model = make_one(warm_start=True, n_rounds=6)

    def part(who):
        return x[who], None if y is None else y[who]

    old, some = x[:, 0] < N_OLD, x[:, 0] == N_OLD
    # Features may come with an update.
    model.fit(*part(old)).set_params(user_features=OLD_FEATURES)
    model.partial_fit(*part(x[:, 0] == 3), n_rounds=2).add_users(NEW_FEATURES)
    model.partial_fit(*part(some), n_rounds=2)
    assert model.n_users_ == N_OLD + 1
    model.add_users(NEW_FEATURES.drop(N_OLD))
    model.fold_in(*part(x[:, 0] == N_OLD + 1), replace=True)
    model.forget([N_OLD])
    assert N_OLD not in model._added.index
    assert model._added.index.is_unique


# ------------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("features", "error", "what"),
    [
        (FEATURES.to_numpy(), TypeError, "should be a DataFrame with the users' ids"),
        (FEATURES.assign(age=30), ValueError, "column 'age' of user_features reaches beyond"),
        (FEATURES.assign(job="baker"), ValueError, "column 'job' of user_features does not hold"),
        (FEATURES[[]], ValueError, "user_features has no columns"),
        (FEATURES.replace(1, np.nan), ValueError, "user_features contains NaN"),
        (pd.concat([FEATURES, FEATURES.iloc[:1]]), ValueError, "user 0 more than once"),
        (FEATURES.rename(index=str), ValueError, "those of user_features are strings"),
    ],
)
def test_wrong_features_are_named(features, error, what):
    with pytest.raises(error, match=what):
        make(user_features=features).fit(X, Y)


def of_polars(features):
    return pl.DataFrame(features.reset_index(names="person").to_dict("list"))


def test_ids_of_a_polars_frame_are_its_first_column():
    features = of_polars(FEATURES)
    options = {"n_rounds": 2, "warm_start": True}
    ours = make(user_features=features, **options).fit(X[OLD], Y[OLD])
    model = make(user_features=FEATURES, **options).fit(X[OLD], Y[OLD])
    np.testing.assert_array_equal(ours.predict(X), model.predict(X))
    both = [
        one.add_users(new) for one, new in ((ours, of_polars(NEW_FEATURES)), (model, NEW_FEATURES))
    ]
    users = pl.Series(NEW_FEATURES.index)
    found, expected = (one.recommend(users, 3, as_frame=True) for one in both)
    assert found.equals(expected)
    user = int(FEATURES.index[0])
    assert isinstance(ours.forget([user]).user_features, pl.DataFrame)
    assert ours.user_features.equals(features.filter(pl.col("person") != user))
    few = make(user_features=of_polars(FEATURES[:2]), **options).fit(X[OLD], Y[OLD])
    few.forget(FEATURES.index[:2].to_numpy())
    assert few.user_features.columns == features.columns
    assert few.user_features.is_empty()
    few.partial_fit(X[:1], Y[:1])
    with pytest.raises(ValueError, match="The first column of user_features has user 0"):
        make(user_features=features.select(pl.lit(0).alias("person"), "taste")).fit(X, Y)
    with pytest.raises(TypeError, match=r"LazyFrame.*features.collect"):
        ours.add_users(features.lazy())


def test_wrong_uses_are_named(model):
    with pytest.raises(ValueError, match="was fitted without user_features"):
        make(n_rounds=2).fit(X, Y).add_users(FEATURES)
    with pytest.raises(ValueError, match="knows users 0, 1, 2 and 117 more already"):
        model.add_users(FEATURES)
    with pytest.raises(ValueError, match="give the same columns in the same order"):
        model.add_users(NEW_FEATURES[["noise", "taste"]])
    adversary = Federation(adversary=Promotion(item=1))
    with pytest.raises(ValueError, match="users of an adversary have no user_features"):
        make(user_features=FEATURES, federation=adversary).fit(X, Y)
    private = Federation(central_dp=CentralDP(epsilon=10))
    with pytest.raises(ValueError, match=r"FedEB has no central_dp.*Use PrivFedEB"):
        make(user_features=FEATURES, federation=private).fit(X, Y)
    with pytest.raises(ValueError, match="too small for the noise of central_dp"):
        make_wmf(user_features=FEATURES, federation=private).fit(LIKED)
    with pytest.raises(ValueError, match="not a sum over the user's rows"):
        model.explain(0, 1, interactions=(X[:9], Y[:9]))


def test_a_refused_fit_does_not_forget_added_users():
    model = make(n_rounds=3, user_features=OLD_FEATURES).fit(X[OLD], Y[OLD])
    model.add_users(NEW_FEATURES)
    expected = clone(model).fit(X[OLD], Y[OLD]).add_users(NEW_FEATURES)
    with pytest.raises(ValueError, match="Krum"):
        model.set_params(federation=Federation(aggregator=Krum(500))).fit(X[OLD], Y[OLD])
    model.set_params(federation=None)
    rows = np.array([[N_OLD, 0], [N_OLD, 1]])
    for one in (model, expected):
        one.fold_in(rows, [5.0, 1.0], replace=True)
    np.testing.assert_array_equal(model.predict(X), expected.predict(X))


def test_features_that_say_nothing_change_little():
    plain = make().fit(X[OLD], Y[OLD])
    noise = np.random.default_rng(0).random((N_OLD + N_NEW, 8))
    noise = pd.DataFrame(noise, columns=[f"noise {k}" for k in range(8)])
    frames = FEATURES.assign(taste=1, noise=0.5), FEATURES.iloc[:0], noise.iloc[:1], noise.iloc[:12]
    for frame in frames:
        model = make(user_features=frame).fit(X[OLD], Y[OLD])
        np.testing.assert_allclose(model.predict(X[OLD]), plain.predict(X[OLD]), atol=0.3)
        rows = FEATURES if "taste" in frame else noise
        model.add_users(rows.iloc[N_OLD:])
        assert rmse(model, X[NEW], Y[NEW]) < rmse(plain, X[NEW], Y[NEW]) + 0.05


def test_new_users_bring_their_features_and_forgotten_ones_take_theirs():
    model = make(user_features=OLD_FEATURES, warm_start=True).fit(X[OLD][:1000], Y[OLD][:1000])
    model.set_params(user_features=FEATURES).partial_fit(X[OLD][1000:], Y[OLD][1000:], n_rounds=1)
    fresh = make(user_features=FEATURES).fit(X[OLD], Y[OLD])
    grown, fresh = model.add_users(NEW_FEATURES), fresh.add_users(NEW_FEATURES)
    assert rmse(grown, X[NEW], Y[NEW]) < rmse(fresh, X[NEW], Y[NEW]) + 0.05
    model.forget([7])
    assert 7 not in model.user_features.index
    assert 8 in model.user_features.index


@pytest.mark.parametrize("kind", [">i8", "<i4", str, object])
def test_ids_of_every_kind_can_be_forgotten_and_added_again(kind):
    names = np.arange(N_OLD + N_NEW).astype(kind)
    rows = pd.DataFrame({"user": np.array(names.tolist())[X[OLD, 0]], "item": X[OLD, 1]})
    features = FEATURES.set_axis(names)
    old, new = features.iloc[:N_OLD], features.iloc[N_OLD:]
    model = make(n_rounds=3, user_features=old, warm_start=True).fit(rows, Y[OLD])
    model.add_users(new).forget(names[:2]).add_users(new)
    assert len(model.user_features) == N_OLD - 2
    assert len(model.user_ids_) == N_OLD - 2 + N_NEW


def test_features_of_other_users_are_refused():
    others = OLD_FEATURES.set_axis(range(10_000, 10_000 + N_OLD))
    with pytest.raises(ValueError, match="has none of the users of X; let it hold the users' ids"):
        make(user_features=others).fit(X[OLD], Y[OLD])
