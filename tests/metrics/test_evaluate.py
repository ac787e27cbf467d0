"""evaluate_ranking against loops over users, and what it says of bad input."""

import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from fedrecsk import BiasOnly, Popularity, RandomRecommender
from fedrecsk.metrics import (
    _evaluate,
    _held_out,
    evaluate_ranking,
    exposure,
    make_ranking_scorer,
)
from fedrecsk.model_selection import compare
from tests.conftest import SHARED_DATA, make_toy
from tests.metrics.models import Given, Peer, score
from tests.reference import ranking as reference

METRICS = tuple(reference.METRICS)
# Cases drawn at random may have no meaning.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The model knows 0 of"),
    pytest.mark.filterwarnings("ignore:The model was fitted to the test rows"),
    pytest.mark.filterwarnings("ignore:.*of the relevant test pairs"),
]
MODELS = [Given, Peer]
every_model = pytest.mark.parametrize("Model", MODELS)
# Each of them compares many numbers with loops over users.
few = settings(max_examples=40)


@st.composite
def splits(draw):
    """Training pairs, test rows and test ratings; items 0..6, users 11..14."""
    pairs = st.tuples(st.integers(11, 14), st.integers(0, 6))
    train = draw(st.lists(pairs, min_size=1, max_size=12))
    test = draw(st.lists(pairs, min_size=1, max_size=8, unique=True))
    y = draw(st.lists(st.sampled_from([-1.0, 0.0, 2.0]), min_size=len(test), max_size=len(test)))
    y[0] = 1.0
    return np.array(train), np.array(test), np.array(y)


def known_score(model):
    """The score that `model` gives, by ids."""
    users = set(model.user_ids_.tolist())
    fallback = isinstance(model, Given)
    return lambda user, item: score(user if user in users or not fallback else 0, item)


@every_model
@few
@given(case=splits(), exclude_seen=st.booleans(), threshold=st.sampled_from([None, 0.0, 1.0, 2.0]))
def test_the_whole_catalogue(Model, case, exclude_seen, threshold):
    train, test, y = case
    y[0] = 2.0
    model = Model().fit(train)
    k = min(3, len(model.item_ids_))
    values = evaluate_ranking(
        model, test, y, metrics=METRICS, k=[1, k], exclude_seen=exclude_seen, threshold=threshold
    )
    assert list(values) == list(dict.fromkeys(f"{m}@{n}" for m in METRICS for n in (1, k)))
    for name, value in values.items():
        metric, n = name.split("@")
        expected = reference.evaluate(
            metric,
            int(n),
            known_score(model),
            set(model.item_ids_.tolist()),
            test,
            y,
            seen=set(map(tuple, train.tolist())) if exclude_seen else (),
            threshold=threshold,
        )
        assert value == pytest.approx(expected), name


@every_model
@few
@given(case=splits())
def test_auc_and_what_is_beyond_accuracy(Model, case):
    train, test, y = case
    model = Model().fit(train)
    catalogue = set(model.item_ids_.tolist())
    k = min(3, len(catalogue))
    seen = set(map(tuple, train.tolist()))
    rows = known_score(model), catalogue, test
    relevant = test[np.isin(test[:, 0], test[y > 0, 0])]
    best = reference.lists(k, known_score(model), catalogue, relevant, seen)
    expected = reference.beyond_accuracy(best, catalogue, seen)
    expected |= {"auc": reference.evaluate("auc", None, *rows, y, seen=seen)}
    for name, value in expected.items():
        if (name == "diversity" and k < 2) or np.isnan(value):
            with pytest.raises(ValueError, match=r"k of at least 2|there is no"):
                evaluate_ranking(model, test, y, metrics=name, k=k)
        else:
            (found,) = evaluate_ranking(model, test, y, metrics=name, k=k).values()
            assert found == pytest.approx(value, abs=1e-6), name


def test_lists_have_no_meaning_among_negatives(toy):
    X, _ = toy
    model = Popularity().fit(X)
    for options in ({"n_negatives": 2}, {"negatives": {107: [1000]}}):
        with pytest.raises(ValueError, match="'novelty' is about recommendations from the whole"):
            evaluate_ranking(model, X, metrics=["ndcg", "novelty"], k=2, **options)
        with pytest.raises(ValueError, match="'novelty' is about recommendations from the whole"):
            make_ranking_scorer("novelty", **options)
    with pytest.raises(ValueError, match="pairs of items, so it needs k of at least 2"):
        make_ranking_scorer(["diversity"], k=[1, 5])
    forgetful, test = Peer(remembers=False).fit(TRAIN), [[1, 12]]
    for options in ({}, {"n_negatives": 1}, {"metrics": "novelty", "exclude_seen": False}):
        with pytest.raises(
            ValueError, match=r"Peer does not expose .* X_train .* exclude_seen=Fals"
        ):
            evaluate_ranking(forgetful, test, k=1, **options)
        told, whole = (
            evaluate_ranking(one, test, k=1, X_train=TRAIN, random_state=0, **options)
            for one in (forgetful, Peer().fit(TRAIN))
        )
        assert told == whole
    assert evaluate_ranking(forgetful, test, k=4, exclude_seen=False)["hit_rate@4"] == 1


WHICH = st.sampled_from(["all", "known", "new"])


@few
@given(case=splits(), items=WHICH, users=WHICH)
def test_new_and_known_items_and_users(case, items, users):
    train, test, y = case
    catalogue = np.arange(8)
    model = RandomRecommender(items=catalogue, random_state=0).fit(train)

    def chosen(ids, of_fit, which):
        return (np.isin(ids, of_fit) == (which == "known")) | (which == "all")

    rows = chosen(test[:, 0], train[:, 0], users) & chosen(test[:, 1], train[:, 1], items)
    options = {"items": items, "users": users, "k": 1}
    if not (y[rows] > 0).any():
        with pytest.raises(ValueError, match=r"No test row is"):
            evaluate_ranking(model, test, y, **options)
        return
    expected = reference.evaluate(
        "recall",
        1,
        lambda user, item: model.predict([[user, item]])[0],
        set(catalogue[chosen(catalogue, train[:, 1], items)].tolist()),
        test[rows],
        y[rows],
        seen=set(map(tuple, train.tolist())),
    )
    found = make_ranking_scorer("recall", **options)(model, test, y)
    assert found == pytest.approx(expected)


@pytest.mark.filterwarnings("error")
def test_new_items_that_nothing_tells_apart_are_ranked_by_chance_among_themselves(toy):
    X, y = toy
    model = BiasOnly(items=[*np.unique(X[:, 1]), 1, 2, 3, 4]).fit(X, y)
    test = [[-1, 1], [X[0, 0], 2], [X[0, 0], 3], [X[0, 0], X[0, 1]]]
    found = evaluate_ranking(model, test, items="new", metrics="precision", k=3)
    assert found["precision@3"] == pytest.approx((1 / 4 + 2 / 4) / 2)


@pytest.mark.filterwarnings("ignore:.*given negatives are not negatives")
@every_model
@few
@given(case=splits(), data=st.data())
def test_given_negatives(Model, case, data):
    train, test, y = case
    model = Model().fit(train)
    k = min(2, len(model.item_ids_))
    users = set(test[:, 0].tolist())
    items = st.lists(st.integers(0, 8), min_size=4, max_size=9)
    lists = {user: [*data.draw(items), 9, 10] for user in users}
    pairs = np.array([(u, i) for u, items in lists.items() for i in items])
    for negatives in (lists, pairs, pairs[::-1], pd.DataFrame(pairs)):
        values = evaluate_ranking(model, test, y, metrics=METRICS, k=k, negatives=negatives)
        for metric in METRICS:
            expected = reference.evaluate(
                metric,
                k,
                known_score(model),
                set(model.item_ids_.tolist()),
                test,
                y,
                negatives=lists,
            )
            assert values[f"{metric}@{k}"] == pytest.approx(expected), metric


@every_model
def test_drawn_negatives_are_new_items_and_equally_likely(Model, monkeypatch):
    X, _ = make_toy(n_users=6, n_items=30, density=0.3)
    train, test = X[:-12], X[-12:]
    model = Model().fit(train)
    seen, tested = set(map(tuple, train.tolist())), set(map(tuple, test.tolist()))
    drawn = []
    rank = _evaluate.rank

    def spy(model, held_out, spec, negatives):
        users = np.repeat(held_out.user_ids.values, np.diff(negatives[0]))
        drawn.append(np.stack([users, model.item_ids.values[negatives[1]]], axis=1))
        return rank(model, held_out, spec, negatives=negatives)

    monkeypatch.setattr(_evaluate, "rank", spy)
    for seed in range(100):
        evaluate_ranking(model, test, k=3, n_negatives=4, random_state=seed)
    n_users = len(np.unique(test[:, 0]))
    for pairs in drawn:
        as_set = set(map(tuple, pairs.tolist()))
        assert len(as_set) == len(pairs) == 4 * n_users
        assert not as_set & (seen | tested)
    user = test[0, 0]
    items = np.concatenate([pairs[pairs[:, 0] == user, 1] for pairs in drawn])
    free = [i for i in model.item_ids_ if (user, i) not in seen | tested]
    counts = np.array([np.sum(items == i) for i in free])
    mean = 4 * 100 / len(free)
    # Each count is binomial; five standard deviations either way.
    assert np.all(np.abs(counts - mean) < 5 * np.sqrt(mean))


@every_model
def test_neither_the_order_of_rows_nor_batches_matter_but_the_seed_does(Model, monkeypatch):
    X, _ = make_toy(n_users=20, n_items=40, density=0.3)
    train, test = X[:-60], X[-60:]
    model, reordered = Model().fit(train), Model().fit(train[::-1])
    options = {"metrics": METRICS, "k": [1, 3]}
    drawn = options | {"n_negatives": 5, "random_state": 3}
    whole, values = (evaluate_ranking(model, test, **one) for one in (options, drawn))
    assert values == evaluate_ranking(model, test[::-1], **drawn)
    assert values == evaluate_ranking(reordered, test, **drawn)
    assert values != evaluate_ranking(model, test, **drawn | {"random_state": 4})
    side = _held_out.Own if Model is Given else _held_out._Peer
    monkeypatch.setattr(side, "scores_per_batch", 90)
    assert evaluate_ranking(model, test, **options) == pytest.approx(whole)
    assert evaluate_ranking(model, test, **drawn) == pytest.approx(values)


def test_the_model_score_is_ndcg_at_10():
    X, y = make_toy(30, 25, density=0.4)
    model = Popularity().fit(X[:-80], y[:-80])
    assert model.score(X[-80:]) == evaluate_ranking(model, X[-80:], metrics="ndcg")["ndcg@10"]
    small, _ = make_toy()
    assert 0 < Popularity().fit(small).score(small) <= 1


def test_weights_are_gains_and_zero_is_absence():
    X = np.array([[1, 10], [1, 11], [1, 12], [2, 11], [2, 10], [3, 12]])
    model = Given().fit(np.array([[1, 20], *X, [2, 20], [3, 20]]))
    weights = np.array([3.0, 1.0, 0.5, 2.0, 1.0, 0.0])
    values = evaluate_ranking(model, X, metrics=METRICS, k=2, sample_weight=weights)
    for size in (1e-300, 1e308):
        again = evaluate_ranking(model, X, k=2, sample_weight=weights / 3 * size)
        assert again["ndcg@2"] == pytest.approx(values["ndcg@2"])
    for metric in METRICS:
        expected = reference.evaluate(
            metric,
            2,
            score,
            set(model.item_ids_.tolist()),
            X[:-1],
            seen=[(u, 20) for u in (1, 2, 3)],
            weights=weights[:-1],
        )
        assert values[f"{metric}@2"] == pytest.approx(expected), metric


# --------------------------------------------------------------------------- bad input

TRAIN = np.array([[1, 10], [1, 11], [2, 10], [2, 12], [3, 13]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be an integer of at least 1"),
        ({"k": [1, 5]}, "k=5 is more than the 4 items of the catalogue"),
        ({"k": 4, "n_negatives": 1}, r"k=4 is more than the 2 candidates of user 1"),
        ({"k": 3, "negatives": {1: [13]}}, r"k=3 is more than the 2 candidates of user 1"),
        ({"metrics": "ap"}, "Unknown metric 'ap'; choose from ndcg"),
        ({"metrics": "ndcg@5"}, "Unknown metric 'ndcg@5'; .*cutoffs go into k"),
        ({"n_negatives": 0}, "'n_negatives' parameter of evaluate_ranking"),
        ({"n_negatives": 2}, "n_negatives=2, but user 1 has only 1 items"),
        ({"n_negatives": 1, "negatives": {1: [10]}}, "pass only one"),
        ({"negatives": {2: [11]}}, "User 1 is in X but has no negatives"),
        ({"items": "old"}, "'items' parameter of evaluate_ranking"),
        ({"items": "new"}, "No test row is of users='all' and items='new'"),
        ({"items": "known", "n_negatives": 1}, "ranks all these items; leave out n_negatives"),
        ({"negatives": [1, 2]}, "a mapping from user to items, or a table"),
        ({"threshold": 1.5}, r"No test row is relevant \(y >= 1.5\)"),
        ({"y": [0.0]}, r"No test row is relevant \(y > 0\)"),
        ({"y": [np.nan]}, "y contains NaN"),
        ({"sample_weight": [-1.0]}, "sample_weight"),
        ({"X": [["ann", 12]]}, "user ids were numbers in fit and are strings here"),
    ],
)
def test_bad_input_is_named_before_any_work(options, message, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("scores were asked for")

    model = Given().fit(TRAIN)
    monkeypatch.setattr(Given, "_score_all", refuse)
    options = {"X": [[1, 12]], "k": 1} | options
    with pytest.raises((TypeError, ValueError), match=message):
        evaluate_ranking(model, **options)


def test_not_a_fitted_recommender():
    with pytest.raises(NotFittedError):
        evaluate_ranking(Popularity(), [[1, 2]])
    with pytest.raises(ValueError, match="scores for user 1 contain NaN"):
        evaluate_ranking(Given().fit(TRAIN).set_params(offset=np.nan), [[1, 12]], k=1)
    model = RandomRecommender(random_state=0).fit([[1, 1], [1, 2], [2, 2]])
    with pytest.raises(ValueError, match=r"no item without training rows.* by add_items"):
        evaluate_ranking(model, [[1, 9]], items="new", k=1)
    line = LinearRegression().fit([[1, 2], [2, 3]], [1, 2])
    with pytest.raises(
        TypeError, match=r"LinearRegression is not a recommender: it has no item_ids_. "
    ):
        evaluate_ranking(line, [[1, 2]])
    with pytest.raises(
        TypeError, match=r"object cannot be ranked: it has no predict. To be ranked"
    ):
        evaluate_ranking(object(), [[1, 12]], X_train=TRAIN)


def test_a_model_that_tells_is_asked_and_another_goes_by_the_rows_of_fit():
    nonsense = [[7, 12], [7, 13]]
    for Model in MODELS:
        model = Model().fit(TRAIN)
        told = evaluate_ranking(model, [[1, 12]], k=2, X_train=nonsense)
        assert told == evaluate_ranking(model, [[1, 12]], k=2)

    class Loud:
        def predict(self, X):
            asked.append(X)
            return np.arange(len(X))

    for train, kind in ((TRAIN, np.ndarray), (pd.DataFrame(TRAIN, columns=["u", "i"]), None)):
        asked = []
        evaluate_ranking(Loud(), [[1, 12]], k=1, X_train=train)
        (X,) = asked
        assert isinstance(X, kind or pd.DataFrame)
        assert np.asarray(X).tolist() == [[1, item] for item in np.unique(np.asarray(TRAIN)[:, 1])]
        assert kind or list(X.columns) == ["u", "i"]


@pytest.mark.parametrize(("n_seen", "n_tested"), [(2, 0), (1, 1), (0, 2)])
def test_one_rated_negative_in_a_hundred_is_tolerated_and_two_are_not(n_seen, n_tested):
    model = Popularity().fit([(1, 0), (1, 1), *((2, item) for item in range(200))])
    test, rated = [(1, 2), (1, 3)], [0, 1][:n_seen] + [2, 3][:n_tested]
    new = list(range(50, 150))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate_ranking(model, test, k=1, negatives={1: rated[:1] + new[:99]})
        # Those of both users count together.
        evaluate_ranking(model, [*test, (3, 5)], k=1, negatives={1: rated + new[:98], 3: new})
    with pytest.warns(UserWarning, match="2 of the 100 given negatives are not negatives"):
        evaluate_ranking(model, test, k=1, negatives={1: rated + new[:98]})


# --------------------------------------------------------------------------- real data


@pytest.mark.filterwarnings("error")
def test_the_usual_leave_one_out_file_as_it_is(ml1m):
    files = Path(SHARED_DATA) / "ml-1m"
    if not files.is_dir():
        pytest.skip("needs the leave-one-out files of MovieLens-1M in shared/data")
    X, _y = ml1m
    test = pd.read_csv(files / "leave_one_out_test.csv.gz")
    negatives = pd.read_csv(files / "leave_one_out_negatives.csv.gz")
    pair = X[:, 0] * 10_000 + X[:, 1]
    train = ~np.isin(pair, test["user"].to_numpy() * 10_000 + test["item"].to_numpy())
    model = Popularity().fit(X[train])
    held_out = test[["user", "item"]].to_numpy()
    values = evaluate_ranking(model, held_out, negatives=negatives)
    # He et al. (WWW 2017) plot popularity at HR@10 0.45 and NDCG@10 0.25 on these files.
    assert values["hit_rate@10"] == pytest.approx(0.45, abs=0.01)
    assert values["ndcg@10"] == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(
    ("rows", "options", "messages"),
    [
        (
            lambda X: X + 9000,
            {},
            ["knows 0 of the .* users in the test rows", "knows 0 of the .* items in"],
        ),
        (lambda X: X[:60], {}, ["fitted to the test rows, so this does not measure"]),
        (lambda X: X[-6:], {"negatives": {}}, ["none of the given negatives, so test items"]),
        (lambda X: X[-6:], {}, []),
    ],
)
def test_evaluations_without_meaning_are_reported(rows, options, messages):
    X, y = make_toy(n_users=14, n_items=10)
    model = BiasOnly().fit(X[:-6], y[:-6])
    test = rows(X)
    if options:
        options = {"negatives": {user: [1, 2] for user in test[:, 0].tolist()}}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluate_ranking(model, test, k=1, **options)
    assert len(caught) == len(messages)
    for warning, message in zip(caught, messages, strict=True):
        assert re.search(message, str(warning.message))
        assert warning.category is UserWarning
        assert warning.filename == __file__


def test_a_rating_score_of_strangers_is_reported(toy):
    X, y = toy
    model = BiasOnly().fit(X, y)
    with pytest.warns(UserWarning, match="knows 0 of the 1 users .*X has user -1, and"):
        assert model.score([[-1, X[0, 1]], [-1, X[1, 1]]], [1, 2]) < 1
    assert model.score(X, y) == pytest.approx(r2_score(y, model.predict(X)))


def test_exposure_says_what_it_cannot_do(toy):
    X, _ = toy
    model = Popularity().fit(X)
    with pytest.raises(ValueError, match="users is empty"):
        exposure(model, X[0, 1], [])
    with pytest.raises(ValueError, match="k must be an integer of at least 1"):
        exposure(model, X[0, 1], k=0)
    with pytest.warns(UserWarning, match="none of these 2 users"):
        assert exposure(model, X[0, 1], [-1, -2], k=9) == 1.0


def reported(judge, X, train, test, **options):
    """The warnings of a judge of test rows, which knows the training rows."""
    model, scorer = Popularity().fit(X[train]), make_ranking_scorer(k=3, **options)
    judges = {
        "evaluate_ranking": lambda: evaluate_ranking(model, X[test], k=3, **options),
        "score": lambda: model.score(X[test]),
        "scorer": lambda: scorer(model, X[test]),
        "compare": lambda: compare([Popularity()] * 2, X, cv=[(train, test)] * 2, scoring=scorer),
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # What other tests have left to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        judges[judge]()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("judge", ["evaluate_ranking", "score", "scorer", "compare"])
def test_test_pairs_of_the_training_rows_and_repeated_ones_are_reported_with_their_share(judge):
    # Each of ten users has item 0 in training rows, items 1 and 2 elsewhere; user 99 has all.
    pairs = [[user, item] for user in range(10) for item in (0, 0, 1, 1, 2)]
    X = np.array(pairs + [[99, item] for item in range(12)])
    first, again, one, same, two = np.arange(50).reshape(-1, 5).T
    train = np.append(first, np.arange(50, 62))
    (message,) = reported(judge, X, train, np.append(again, one))
    assert re.search("^50% of the .* training ", message)
    (message,) = reported(judge, X, train, np.concatenate([one, same, two]))
    assert re.search("^33% of the test rows .*repeat a pair", message)
    assert reported(judge, X, train, np.append(one, two)) == []
    if judge != "score":
        assert reported(judge, X, train, np.append(again, one), exclude_seen=False) == []
    if judge in ("score", "scorer"):
        assert reported(judge, X, train, train) == []


def test_integer_ids_beside_dates_are_judged():
    X, _ = make_toy(14, 12)
    dates = pd.to_datetime("2024-01-01") + pd.to_timedelta(np.arange(len(X)), "h")
    frame = pd.DataFrame({"user": X[:, 0], "item": X[:, 1], "time": dates})
    train, test = frame[:-20], frame[-20:]
    model, plain = Popularity().fit(train), Popularity().fit(X[:-20])
    assert model.score(test) == plain.score(X[-20:])
    for model_or_peer in (model, Peer().fit(X[:-20])):
        options = {} if model_or_peer is model else {"X_train": train}
        expected = evaluate_ranking(model_or_peer, X[-20:], k=3)
        assert evaluate_ranking(model_or_peer, test, k=3, **options) == expected
    assert make_ranking_scorer(k=3)(model, test) == make_ranking_scorer(k=3)(plain, X[-20:])
