"""Half-lives of pairs and of histories, against loops over users and pairs."""

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from fedrecsk import (
    EASE,
    FCF,
    FedEASE,
    Federation,
    FedItemKNN,
    FedSpectral,
    GlobSGD,
    ImplicitALS,
    ItemKNN,
    LocALS,
    LocSGD,
    Popularity,
    portable,
)
from fedrecsk.attacks import Promotion
from fedrecsk.base import _item_weights
from fedrecsk.ensemble import RankingEnsemble
from fedrecsk.federated._gram import FederatedGram
from fedrecsk.federated._wmf import ImplicitMF
from fedrecsk.privacy import CentralDP, SecAggPlus
from tests.conftest import fits_in_blocks, make_toy
from tests.deployment.in_process import coordinator, make_nodes
from tests.reference import ease as ease_reference
from tests.reference import time as reference

DIRECTED = [
    ItemKNN(4, backward_weight=0.25),
    FedItemKNN(4, backward_weight=0.25, history_power=0.6),
]
LEARNED = FedItemKNN(4, pair_half_life="auto", history_half_life="auto")
SUMS = [
    EASE(3.0),
    ItemKNN(),
    FedEASE(3.0),
    FedItemKNN(),
    FedSpectral(4, alpha=2.0, reg_user=0.7, random_state=0),
]
FEDERATED_SUMS = SUMS[2:]
FACTORS = [
    LocALS(3, n_rounds=2, random_state=0),
    LocSGD(3, n_rounds=2, random_state=0),
    GlobSGD(3, n_rounds=2, random_state=0),
    FCF(3, n_rounds=2, random_state=0),
    ImplicitALS(3, n_epochs=2, random_state=0),
]
HALF_LIVES = [(None, 2.0), (1.5, None), (1.5, 2.0), ("auto", "auto")]
KNN = (ItemKNN, FedItemKNN)
# What "auto" stands for where it is no power of the number of rows.
AUTO_LIVES = {"pair_half_life": 8.0, "history_half_life": 2.0}


def named(model):
    """Return the name of a test of a model."""
    backward = model.get_params().get("backward_weight", "auto")
    what = "learned" if model is LEARNED else backward
    return type(model).__name__ + ("" if what == "auto" else f"-{what}")


every_sum = pytest.mark.parametrize("model", SUMS, ids=lambda model: type(model).__name__)
every_federated_sum = pytest.mark.parametrize(
    "model", [*FEDERATED_SUMS, DIRECTED[1], LEARNED], ids=named
)
every_model = pytest.mark.parametrize("model", [*SUMS, *FACTORS, *DIRECTED, LEARNED], ids=named)


@pytest.fixture(autouse=True)
def float64(monkeypatch):
    for owner in (EASE, ItemKNN, FederatedGram, ImplicitMF):
        monkeypatch.setattr(owner, "_dtype", np.float64)


def timed(seed=0):
    """Rows with times of which some are equal; X, y and sample weights."""
    X, y = make_toy(30, 9, seed=seed)
    rng = np.random.default_rng(seed)
    times = 100 + rng.integers(0, 8, len(X))
    return np.column_stack([X, times]), y - 2, rng.uniform(0.2, 2, len(y))


def histories(X, y, weight):
    """For each user the list of its (item, time, weight) with y > 0; users and items in order."""
    users, items = np.unique(X[:, 0]), np.unique(X[:, 1]).tolist()
    rows = [
        [
            (items.index(item), None if time != time else time, w)
            for (user, item, time), rating, w in zip(X.tolist(), y, weight, strict=True)
            if user == one and rating > 0
        ]
        for one in users
    ]
    return users, rows, len(items)


def expected_scores(model, rows, n_items):
    lives = {name: getattr(model, name) for name in AUTO_LIVES}
    if isinstance(model, KNN):
        lives |= {name: AUTO_LIVES[name] for name, life in lives.items() if life == "auto"}
    pair, history = lives.values()
    G = reference.gram(rows, n_items, pair)
    if isinstance(model, KNN):
        backward, to_come, power = model.backward_weight, model.power, model.history_power
        learned = backward == "auto" and model.pair_half_life == "auto"
        if backward == "auto":
            backward = reference.agreement(rows, n_items, pair) ** 2 if learned else 1
        support = reference.support(rows, n_items, pair) if learned else None
        if to_come == "auto":
            to_come = min(max(support / 16, 0.25), 0.5) if learned else 0.25
        if power == "auto":
            power = (2 - backward) * to_come if learned else to_come
        if learned and model.history_half_life == "auto":
            history = 1 + 6 * backward / support**0.5
        G = reference.directed(rows, n_items, pair, backward)
    if isinstance(model, FedSpectral):
        S = ease_reference.spectral(G, model.n_factors)
        e, V = np.linalg.eigh(S)
        items = V * np.sqrt(np.maximum(e, 0))
        own = (model.alpha, model.reg_user, history)
        return np.array([items @ reference.user_vector(one, items, *own) for one in rows])
    x = [reference.history(one, n_items, history) for one in rows]
    if isinstance(model, KNN):
        own = (to_come, model.shrinkage, model.n_neighbors, power)
        return np.array(x) @ ease_reference.nearest(G, *own)
    return np.array(x) @ ease_reference.ease(G, model.reg)


@pytest.mark.parametrize("model", SUMS + DIRECTED, ids=named)
@pytest.mark.parametrize("half_lives", HALF_LIVES, ids=str)
def test_sums_equal_the_naive_reference(model, half_lives):
    X, y, weight = timed()
    pair, history = half_lives
    model = clone(model).set_params(pair_half_life=pair, history_half_life=history)
    users, rows, n_items = histories(X, y, weight)
    for fitted in fits_in_blocks(model, X, y, sample_weight=weight):
        scores = fitted._model().score_all(fitted._users.codes(users))
        np.testing.assert_allclose(scores, expected_scores(model, rows, n_items), atol=1e-9)


@pytest.mark.parametrize("model", FACTORS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("half_life", [1.5, "auto"])
def test_factors_equal_the_naive_reference(model, half_life):
    """Items are learned from whole histories, and users are solved for from faded ones."""
    X, y, weight = timed()
    y = np.where(y > 0, 1.0, y)
    plain = clone(model).fit(X, y, sample_weight=weight)
    model = clone(model).set_params(history_half_life=half_life).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(model.item_factors_, plain.item_factors_, atol=1e-12)
    users, rows, _ = histories(X, y, weight)
    items = np.asarray(model.item_factors_, dtype=float)
    is_als = isinstance(model, ImplicitALS)
    for user, own in zip(users, rows, strict=True):
        if not own:
            continue
        if is_als:  # The library's confidence is alpha w, and 0 where nothing is left of w.
            fades = np.array(reference.fades(own, half_life)) * [w for _, _, w in own]
            q = items[[item for item, _, _ in own]]
            matrix = items.T @ items + (q.T * (fades - 1)) @ q + model.reg * np.eye(3)
            vector = np.linalg.solve(matrix, fades @ q)
        else:
            vector = reference.user_vector(own, items, model.alpha, model.reg_user, half_life)
        code = model._users.codes(np.array([user]))
        np.testing.assert_allclose(model.user_factors_[code][0], vector, atol=1e-6)


def with_half_lives(model, **parameters):
    model, names = clone(model), model.get_params()
    lives = {"history_half_life": 2.0, "pair_half_life": 1.5} | parameters
    # Those of LEARNED stay.
    unset = {name: one for name, one in lives.items() if names.get(name, "auto") != "auto"}
    return model.set_params(**unset)


@pytest.mark.parametrize("model", [EASE(3.0), SUMS[2], *FACTORS[::4]], ids=str)
def test_only_the_order_in_time_counts(model):
    X, y, _ = timed()
    predicted = with_half_lives(model).fit(X, y).predict(X)
    order = np.random.default_rng(5).permutation(len(X))
    shuffled = with_half_lives(model).fit(X[order], y[order])
    np.testing.assert_array_equal(shuffled.predict(X), predicted)
    later = X.copy()
    later[:, 2] = later[:, 2] ** 3
    np.testing.assert_array_equal(with_half_lives(model).fit(later, y).predict(X), predicted)
    # Without half-lives or timestamps, time is not read.
    plain = clone(model).fit(X[:, :2], y).predict(X[:, :2])
    spoiled = X.astype(object)
    spoiled[:, 2] = "some day"
    for unused in (clone(model), with_half_lives(model, timestamps=None)):
        np.testing.assert_array_equal(unused.fit(spoiled, y).predict(spoiled), plain)
    assert not np.allclose(predicted, plain)


SILOS_OR_NOT = pytest.mark.parametrize("n_silos", [None, 4])


@SILOS_OR_NOT
@pytest.mark.parametrize("many", [1, 10**6], ids=["sparse", "dense"])
@pytest.mark.parametrize("filled", [1, 10**6], ids=["filled", "not filled"])
@pytest.mark.parametrize(
    "model",
    [*DIRECTED, clone(DIRECTED[1]).set_params(upload="all", backward_weight=0.0)],
    ids=["ItemKNN", "FedItemKNN", "FedItemKNN-all"],
)
def test_pairs_with_a_direction_equal_the_naive_reference(
    model, filled, many, n_silos, monkeypatch
):
    monkeypatch.setattr(_item_weights, "MANY_ITEMS", many)
    monkeypatch.setattr(_item_weights, "DENSE_BYTES", filled)
    X, y, weight = timed()
    model = with_half_lives(model)
    users, rows, n_items = histories(X, y, weight)
    clients = None if n_silos is None else X[:, 0] // 7 % n_silos
    for fitted in fits_in_blocks(model, X, y, clients=clients, sample_weight=weight):
        scores = fitted._model().score_all(fitted._users.codes(users))
        np.testing.assert_allclose(scores, expected_scores(model, rows, n_items), atol=1e-9)


def in_order(seed=0):
    """Rows whose items usually come in the order of their ids, so that direction matters."""
    X, y, weight = timed(seed)
    late = np.random.default_rng(seed).normal(0, 7, len(X)).round() + 2 * (X[:, 1] - X[:, 1].min())
    X[:, 2] = late - late.min()
    return X, y, weight


@SILOS_OR_NOT
@pytest.mark.parametrize("many", [1, 10**6], ids=["sparse", "dense"])
@pytest.mark.parametrize(
    "model",
    [ItemKNN(4), FedItemKNN(4), FedItemKNN(4, upload="all")],
    ids=["ItemKNN", "FedItemKNN", "FedItemKNN-all"],
)
def test_the_sum_says_how_much_direction_matters(model, many, n_silos, monkeypatch):
    monkeypatch.setattr(_item_weights, "MANY_ITEMS", many)
    X, y, weight = in_order()
    users, rows, n_items = histories(X, y, weight)
    clients = None if n_silos is None else X[:, 0] // 7 % n_silos
    model = with_half_lives(model, pair_half_life="auto", history_half_life="auto")
    expected = reference.agreement(rows, n_items, 8.0) ** 2
    assert 0.01 < expected < 0.8
    for fitted in fits_in_blocks(model, X, y, clients=clients, sample_weight=weight):
        assert fitted.backward_weight_ == pytest.approx(expected)
        assert fitted.pair_support_ == pytest.approx(reference.support(rows, n_items, 8.0))
        scores = fitted._model().score_all(fitted._users.codes(users))
        np.testing.assert_allclose(scores, expected_scores(model, rows, n_items), atol=1e-9)


@pytest.mark.parametrize("model", [ItemKNN(4), FedItemKNN(4)], ids=named)
def test_histories_fade_by_what_the_sum_says_of_direction(model, tmp_path):
    X, y, _ = in_order()
    fitted = with_half_lives(model, pair_half_life="auto", history_half_life="auto").fit(X, y)
    life = 1 + 6 * fitted.backward_weight_ / fitted.pair_support_**0.5
    same = clone(fitted).set_params(history_half_life=life).fit(X, y)
    np.testing.assert_array_equal(fitted.predict(X), same.predict(X))
    own = (X[:, 0] == X[0, 0]) & (y > 0)
    X_new = X[own][np.argsort(X[own, 2], kind="stable")] + [1000, 0, 0]
    X_new[:, 2] = np.arange(len(X_new))
    folded = fitted.fold_in(X_new).predict(X_new)
    np.testing.assert_array_equal(folded, same.fold_in(X_new).predict(X_new))
    fitted.export(tmp_path / "model.fedrecsk")
    public = portable.load(tmp_path / "model.fedrecsk")
    scores = dict(zip(public.item_ids.tolist(), public.predict(X_new[:, 1]), strict=True))
    np.testing.assert_allclose([scores[item] for item in X_new[:, 1]], folded, atol=1e-6)


@pytest.mark.parametrize("upload", ["local", "all"])
def test_pairs_with_a_direction_take_no_more_numbers(upload):
    """Even if some are at one time; whole squares take twice a triangle, diagonal included."""
    X, y, _ = timed()
    model = with_half_lives(FedItemKNN(upload=upload, backward_weight=1))
    plain = clone(model).fit(X, y).communication_.bytes_up
    ordered = clone(model).set_params(backward_weight=0.25).fit(X, y).communication_.bytes_up
    n_users, n_items = len(np.unique(X[:, 0])), len(np.unique(X[:, 1]))
    more = 0 if upload == "local" else n_users * 4 * n_items * (n_items + 1) // 2
    assert ordered - plain == more
    learns = clone(model).set_params(pair_half_life="auto", backward_weight="auto").fit(X, y)
    assert learns.communication_.bytes_up - ordered == 8 * n_users


def test_users_with_all_rows_at_one_time_have_no_direction():
    X, y, _ = timed()
    X[:, 2] = X[:, 0]
    model = with_half_lives(FedItemKNN(100))
    for weight in (0.0, "auto"):
        lives = {"pair_half_life": "auto"} if weight == "auto" else {}
        directed = clone(model).set_params(backward_weight=weight, **lives).fit(X, y)
        matrix = directed.item_weights_.toarray()
        np.testing.assert_allclose(matrix, matrix.T)
    plain = clone(model).set_params(backward_weight=1).fit(X, y).item_weights_.toarray()
    half = clone(model).set_params(backward_weight=0.0).fit(X, y).item_weights_.toarray()
    np.testing.assert_allclose(2 * half, plain)


@every_sum
def test_rows_without_a_time_are_the_oldest(model):
    X, y, weight = timed()
    X = X.astype(float)
    X[::5, 2] = np.nan
    model = with_half_lives(model).fit(X, y, sample_weight=weight)
    users, rows, n_items = histories(X, y, weight)
    scores = model._model().score_all(model._users.codes(users))
    np.testing.assert_allclose(scores, expected_scores(model, rows, n_items), atol=1e-9)


def test_a_repeated_pair_has_its_latest_time():
    X = np.array([[1, 10, 1], [1, 11, 2], [1, 10, 3], [2, 11, 1], [2, 12, 2]])
    merged = np.array([[1, 10, 3], [1, 11, 2], [2, 11, 1], [2, 12, 2]])
    model = FedEASE(1.0, history_half_life=1.0, pair_half_life=1.0)
    one = clone(model).fit(X)
    other = clone(model).fit(merged, sample_weight=[2, 1, 1, 1])
    np.testing.assert_array_equal(one.predict(merged), other.predict(merged))


def test_times_may_be_dates_of_which_some_are_missing():
    X, y, _ = timed()
    frame = pd.DataFrame(X, columns=["user", "item", "when"])
    frame["when"] = pd.to_datetime("2024-01-01") + pd.to_timedelta(frame["when"] - 100, "D")
    model = FedEASE(3.0, history_half_life=2.0, timestamps="when")
    expected = clone(model).set_params(timestamps=2).fit(X, y).predict(X)
    for table in (frame, frame.assign(when=frame["when"].astype(str))):
        np.testing.assert_array_equal(model.fit(table, y).predict(table), expected)
    frame.loc[::5, "when"] = None
    assert np.isfinite(model.fit(frame, y).predict(frame)).all()


def test_row_order_is_a_time():
    X, y, _ = timed()
    ordered = np.column_stack([X[:, :2], np.arange(len(X))])
    one = FedEASE(3.0, history_half_life=2.0, timestamps="row_order").fit(X[:, :2], y)
    other = FedEASE(3.0, history_half_life=2.0).fit(ordered, y)
    np.testing.assert_array_equal(one.predict(X[:, :2]), other.predict(ordered))


@every_model
def test_fold_in_and_recommend_know_what_came_last(model):
    X, y, _ = timed()
    own = X[:, 0] == X[0, 0]
    model = with_half_lives(model)
    fitted = clone(model).fit(X, y)
    scores = fitted._model().score_all(fitted._users.codes(X[:1, 0]))
    table = X[own].copy()
    table[:, 0] = 9999
    again = fitted.fold_in(table, y[own])
    np.testing.assert_allclose(
        again._model().score_all(again._users.codes(np.array([9999]))), scores, atol=1e-5
    )
    table = table[np.argsort(table[:, 2], kind="stable")]
    table[:, 2] = np.arange(len(table))
    backwards = table.copy()
    backwards[:, 2] = -table[:, 2]
    lists = [
        fitted.recommend([9999], 9, interactions=one, exclude_seen=False)[1]
        for one in (table, backwards)
    ]
    assert not np.allclose(*lists)


@every_sum
@pytest.mark.parametrize("half_life", [None, 1.5])
@pytest.mark.parametrize("many", [1, 5000])
def test_strangers_get_the_most_popular_items(model, half_life, many, monkeypatch):
    monkeypatch.setattr(_item_weights, "MANY_ITEMS", many)
    X, y, _ = timed()
    model = clone(model).set_params(history_half_life=half_life, pair_half_life=half_life)
    shares = Popularity().fit(X, y).item_popularity_
    strangers = model.fit(X, y).recommend([9999], 9, as_frame=True).set_index("item")["score"]
    np.testing.assert_allclose(strangers[np.unique(X[:, 1])], shares / shares.max())


DP = Federation(central_dp=CentralDP(noise_multiplier=0.1, clip=1.5))


@pytest.mark.parametrize(
    "setting", [{}, {"upload": "all"}, {"client_fraction": 0.5}, {"federation": DP}], ids=str
)
def test_ledger_and_privacy_are_those_of_a_fit_without_time(setting):
    X, y, _ = timed()
    setting = {"items": np.unique(X[:, 1]), "random_state": 0} | setting
    plain = FedEASE(3.0).set_params(**setting).fit(X, y)
    faded = with_half_lives(FedEASE(3.0)).set_params(**setting).fit(X, y)
    assert faded.communication_ == plain.communication_
    assert faded.privacy_ == plain.privacy_
    assert faded.history_ == plain.history_ or np.isnan(plain.loss_curve_).all()


@pytest.mark.parametrize(
    "model",
    [SUMS[2], FACTORS[0], DIRECTED[1], FedItemKNN(4, pair_half_life="auto")],
    ids=["FedEASE", "LocALS", "FedItemKNN-0.25", "FedItemKNN-auto"],
)
def test_devices_equal_a_simulated_fit(model, tmp_path):
    X, y, _ = timed()
    model = with_half_lives(model).set_params(items=np.unique(X[:, 1]))
    simulated = clone(model).fit(X, y)
    nodes = make_nodes(model, X, y, X[:, 0], tmp_path)
    served = coordinator(model, nodes, tmp_path).run()
    np.testing.assert_allclose(
        served.recommend(X[:1, 0], 3, interactions=(X, y))[1],
        simulated.recommend(X[:1, 0], 3, interactions=(X, y))[1],
        atol=1e-5,
    )
    np.testing.assert_allclose(served.recommend([9999], 9), simulated.recommend([9999], 9))
    for node in nodes.values():
        own = joblib.load(node.store.folder / "model.joblib")
        for one, other in zip(
            own.recommend(own.user_ids_, 3), simulated.recommend(own.user_ids_, 3), strict=True
        ):
            np.testing.assert_allclose(one, other, atol=1e-5)


@every_federated_sum
@pytest.mark.parametrize("timestamps", [2, "row_order"])
def test_updates_are_exact(model, timestamps):
    X, y, _ = timed()
    # Repeated rows have other times in row order, if they are merged with old ones.
    model = with_half_lives(model).set_params(timestamps=timestamps, warm_start=True)
    updated = clone(model).fit(X[:150], y[:150]).partial_fit(X[150:], y[150:])
    np.testing.assert_allclose(updated.predict(X), clone(model).fit(X, y).predict(X), atol=1e-6)
    gone = X[:, 0] == X[0, 0]
    updated.forget([X[0, 0]])
    refitted = clone(model).set_params(items=np.unique(X[:, 1])).fit(X[~gone], y[~gone])
    np.testing.assert_allclose(updated.predict(X[~gone]), refitted.predict(X[~gone]), atol=1e-6)


SECONDS = np.sort(np.random.default_rng(0).integers(1_600_000_000, 1_640_000_000, 200))
DATES = pd.to_datetime(SECONDS, unit="s")
UNITS = {
    "milliseconds": (SECONDS, 1000 * SECONDS),
    "seconds after milliseconds": (1000 * SECONDS, SECONDS),
    "numbers after dates": (DATES, SECONDS),
    "dates after numbers": (SECONDS, DATES),
    "hours": (SECONDS, SECONDS // 3600),
    "since the first": (SECONDS, SECONDS - SECONDS[0]),
}


@pytest.mark.parametrize(("before", "now"), UNITS.values(), ids=list(UNITS))
@pytest.mark.parametrize("model", FEDERATED_SUMS + FACTORS[:4], ids=lambda m: type(m).__name__)
def test_an_update_has_times_in_the_unit_of_the_fit(model, before, now):
    X = np.random.default_rng(0).integers(0, 15, (200, 2))
    frame = pd.DataFrame(X, columns=["user", "item"])
    tables = [frame.assign(time=times) for times in (before, now)]
    model = clone(model).set_params(history_half_life=2.0, warm_start=True).fit(tables[0][:150])
    with pytest.raises(ValueError, match=r"are about .*the unit of the last fit"):
        model.partial_fit(tables[1][150:])
    late = tables[0][150:].copy()
    if before is SECONDS:
        late.iloc[0, 2] = 0  # a time that is missing
    assert model.partial_fit(late).n_users_ == 15


def test_updates_learn_the_direction_anew():
    X, y, _ = in_order()
    model = FedItemKNN(4, pair_half_life="auto", history_half_life="auto", warm_start=True)
    updated = clone(model).fit(X[:150], y[:150]).partial_fit(X[150:], y[150:])
    whole = clone(model).fit(X, y)
    assert updated.backward_weight_ == pytest.approx(whole.backward_weight_)
    assert updated.pair_support_ == pytest.approx(whole.pair_support_)
    np.testing.assert_allclose(updated.predict(X), whole.predict(X), atol=1e-6)
    gone = X[:, 0] == X[0, 0]
    updated.forget([X[0, 0]])
    refitted = clone(model).set_params(items=np.unique(X[:, 1])).fit(X[~gone], y[~gone])
    assert updated.backward_weight_ == pytest.approx(refitted.backward_weight_)
    assert updated.pair_support_ == pytest.approx(refitted.pair_support_)


@pytest.mark.parametrize("weight", [0.25, "auto"])
def test_masks_hide_what_came_first(weight):
    X, y, _ = in_order()
    model = with_half_lives(FedItemKNN(4, backward_weight=weight), pair_half_life="auto")
    model.set_params(items=np.unique(X[:, 1]), random_state=0)
    masked = clone(model).set_params(federation=Federation(secure_aggregation=SecAggPlus()))
    ours, theirs = (one.fit(X, y).predict(X) for one in (masked, model))
    np.testing.assert_allclose(ours, theirs, atol=1e-2)


def test_what_comes_after_explains_and_is_exported(tmp_path):
    """The portable rule and the explanation read the row of what the user had before."""
    X = [["u", "a", 1], ["u", "b", 2], ["v", "a", 1], ["v", "b", 2], ["w", "b", 1], ["w", "c", 2]]
    X = pd.DataFrame(X, columns=["user", "item", "when"])
    model = FedItemKNN(backward_weight=0, history_half_life=1.0, timestamps="when").fit(X)
    assert model.explain("v", "c", 1, as_frame=False)[0].tolist() == ["b"]
    model.export(tmp_path / "model.fedrecsk")
    public = portable.load(tmp_path / "model.fedrecsk")
    scores = dict(zip(public.item_ids.tolist(), public.predict(["b"]), strict=True))
    assert scores["c"] > 0
    assert scores["a"] == 0
    rows = [["z", "c", 1], ["z", "a", 2]]
    pairs = pd.DataFrame([["z", "a"], ["z", "b"], ["z", "c"]], columns=["user", "item"])
    folded = model.fold_in(pd.DataFrame(rows, columns=["user", "item", "when"]))
    np.testing.assert_allclose(
        folded.predict(pairs.assign(when=0)), public.predict(["c", "a"]), atol=1e-6
    )


@pytest.mark.parametrize("weight", [0, 0.5])
@pytest.mark.parametrize("Estimator", KNN)
def test_a_direction_without_time_is_refused(Estimator, weight):
    X, y, _ = timed()
    model = Estimator(backward_weight=weight)
    for others, cure in (
        ({}, "set pair_half_life and history_half_life, or backward_weight=1"),
        ({"pair_half_life": 2.0, "timestamps": None}, "set timestamps, or backward_weight=1"),
    ):
        with pytest.raises(ValueError, match=cure):
            clone(model).set_params(**others).fit(X, y)
    with pytest.raises(ValueError, match="X has no timestamps"):
        clone(model).set_params(pair_half_life=2.0).fit(X[:, :2], y)
    with pytest.raises(ValueError, match=r"'backward_weight' parameter of .* must be"):
        Estimator(backward_weight=1.5).fit(X, y)


def test_noise_on_the_sum_leaves_no_direction():
    X, y, _ = timed()
    items = np.unique(X[:, 1])
    model = with_half_lives(FedItemKNN(federation=DP, items=items, random_state=0))
    with pytest.raises(ValueError, match=r"hides what came first.*set backward_weight=1"):
        clone(model).set_params(backward_weight=0.5).fit(X, y)
    assert model.set_params(pair_half_life="auto").fit(X, y).backward_weight_ == 1


def test_an_ensemble_hands_times_to_its_parts():
    X, y, _ = timed()
    part = FedEASE(3.0, history_half_life=2.0, pair_half_life=1.5, timestamps="when")
    frame = pd.DataFrame(X, columns=["user", "item", "when"])
    model = RankingEnsemble([("ease", part), ("plain", EASE(5.0))]).fit(frame, y)
    ours, alone = model.estimators_[0], clone(part).fit(frame, y)
    np.testing.assert_array_equal(
        ours._model().score_all(np.arange(9)), alone._model().score_all(np.arange(9))
    )
    others = RankingEnsemble([("a", part), ("b", EASE(history_half_life=1.0))])
    with pytest.raises(ValueError, match="times from different columns"):
        others.fit(frame, y)


def test_promoted_items_come_last():
    X, y, _ = timed()
    federation = Federation(adversary=Promotion(0.2, item=X[0, 1]))
    model = LocALS(3, n_rounds=2, history_half_life=1.0, federation=federation, random_state=0)
    assert np.isfinite(model.fit(X, y).predict(X)).all()


@pytest.mark.parametrize(
    ("parameters", "column", "message"),
    [
        ({}, "a year ago", "are strings, and 'a year ago' is not an ISO date"),
        ({}, np.nan, "are missing in all rows; give another column, or timestamps=None"),
        ({}, 5.0, "are all equal to 5.0"),
        ({"timestamps": 3}, 5.0, "X has no timestamps: timestamps=3, but X has 3 columns"),
        ({"history_half_life": -1.0}, 5.0, "'history_half_life' parameter of .* must be"),
    ],
    ids=str,
)
def test_bad_input_is_named_before_any_work(parameters, column, message, monkeypatch):
    X, y, _ = timed()
    X = X.astype(object)
    X[:, 2] = column
    for model in (SUMS[0], SUMS[2], FACTORS[4]):
        monkeypatch.setattr(type(model), "_fit", None)
        with pytest.raises(ValueError, match=message):
            with_half_lives(model).set_params(**parameters).fit(X, y)
