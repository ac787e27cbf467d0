from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedrecsk import BiasOnly, Popularity, RFRec
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.model_selection import UserKFold, WarmStartKFold
from fedrecsk.preprocessing import (
    IdEncoder,
    RatingScaler,
    binarize,
    filter_k_core,
    filter_min_ratings,
    split_users,
    to_implicit,
)

PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=50)
FILTERS = [filter_k_core, filter_min_ratings, to_implicit]
every_filter = pytest.mark.parametrize("keep", FILTERS)


@parametrize_with_checks([IdEncoder(), RatingScaler()])
def test_scikit_learn_compatible(estimator, check):
    check(estimator)


# --------------------------------------------------------------------------- IdEncoder


@pytest.mark.parametrize(
    "X",
    [
        np.array([[3, 2**60 + 1], [1, 7], [3, 7]]),
        [[0.5, 2], [1, 7], [0.5, 2]],
        pd.DataFrame({"u": ["bob", "ann"], "i": [7, 2**60 + 1], "t": [0.5, 1.5]}),
        pd.DataFrame({"u": [1, 2], "i": [7, 8], "t": pd.to_datetime(["2020-01-01", "2021-01-01"])}),
        [["ann", 7, "red"], ["bob", 8, "blue"]],
        [[2**60, 7, 0.5], [2**60 + 1, 8, 1.5]],
        np.array([["1", "alien", "977"], ["2", "brazil", "978"]]),
    ],
    ids=["ints", "floats", "frame", "dates", "context", "huge", "text"],
)
def test_ids_come_back(X):
    encoder = IdEncoder()
    codes = encoder.fit_transform(X)
    table = X.to_numpy(dtype=object) if isinstance(X, pd.DataFrame) else np.array(X, dtype=object)
    assert codes.shape == table.shape
    assert np.unique(codes[:, 0].astype(int)).tolist() == list(range(encoder.n_users_))
    assert np.unique(codes[:, 1].astype(int)).tolist() == list(range(encoder.n_items_))
    assert codes[:, 2:].tolist() == table[:, 2:].tolist()
    if isinstance(X, pd.DataFrame):
        codes = pd.DataFrame(codes, columns=X.columns)
    assert encoder.inverse_transform(codes).tolist() == table.tolist()


def test_unknown_ids_are_named():
    encoder = IdEncoder(handle_unknown="error").fit([["bob", 70], ["ann", 50]])
    with pytest.raises(ValueError, match="User cat was not in fit"):
        encoder.transform([["ann", 50], ["cat", 50]])
    with pytest.raises(ValueError, match="Item 51 was not in fit"):
        encoder.transform([["ann", 51]])
    with pytest.raises(ValueError, match="user ids were strings in fit and are numbers here"):
        encoder.transform([[1, 50]])
    with pytest.raises(ValueError, match="-1 is not the code of any user: codes are 0 to 1"):
        encoder.inverse_transform([[-1, 0]])
    with pytest.raises(ValueError, match=r"0.5 is not the code of any item"):
        encoder.inverse_transform([[0, 0.5]])


def test_an_encoder_in_a_pipeline_changes_nothing(toy):
    (X, y), model = toy, BiasOnly()
    names = np.char.add("id", X.astype(str))
    piped = make_pipeline(IdEncoder(), clone(model))
    for cv in (UserKFold(3), WarmStartKFold(2)):
        inside = cross_validate(piped, names, y, cv=cv, error_score="raise")
        bare = cross_validate(clone(model), names, y, cv=cv, error_score="raise")
        assert inside["test_score"] == pytest.approx(bare["test_score"])


# -------------------------------------------------------------------------- ratings


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.floats(-5, 5), st.floats(0.1, 5))
def test_scaled_ratings_come_back(ratings, low, width):
    column = np.array(ratings)[:, None]
    scaler = RatingScaler(feature_range=(low, low + width))
    scaled = scaler.fit_transform(column)
    assert scaled.min() == pytest.approx(low)
    assert scaled.max() == pytest.approx(low + width if np.ptp(ratings) else low)
    assert scaler.inverse_transform(scaled) == pytest.approx(column)


def test_predictions_are_cut_off_at_the_ends_of_the_scale():
    scaler = RatingScaler((1, 5)).fit([[2.0], [3.0]])
    assert scaler.transform([[2.0], [3.0]]).ravel().tolist() == [0.25, 0.5]
    assert scaler.inverse_transform([[-0.5], [0.5], [1.5]]).ravel().tolist() == [1, 3, 5]
    scaler.set_params(clip=False)
    assert scaler.inverse_transform([[-0.5], [0.5], [1.5]]).ravel().tolist() == [-1, 3, 7]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rating_range": (5, 1)}, "rating_range must be two finite numbers in ascending order"),
        ({"feature_range": (0, "1")}, "feature_range must be two finite numbers"),
        ({"rating_range": (1, 5)}, r"from 0.5 to 5, beyond rating_range=\(1, 5\)"),
        ({"rating_range": (1, np.inf)}, "two finite numbers"),
        ({"ratings": [[1.7e308], [-1.7e308]]}, "too far for a float64"),
    ],
)
def test_bad_scales_are_named(parameters, message):
    ratings = parameters.pop("ratings", [[0.5], [5.0]])
    with pytest.raises(ValueError, match=message):
        RatingScaler(**parameters).fit(ratings)


def test_models_learn_scaled_ratings(toy):
    (X, y), model = toy, RFRec(n_rounds=3, random_state=0)
    scaled = TransformedTargetRegressor(clone(model), transformer=RatingScaler((1, 5)))
    by_hand = clone(model).fit(X, (y - 1) / 4).predict(X)
    predicted = scaled.fit(X, y).predict(X)
    assert predicted == pytest.approx(np.clip(1 + 4 * by_hand, 1, 5))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["good", "bad"], "y holds what is not a number .*'good'"),
        (pd.to_datetime(["2024-01-01"]), "y holds what is not a number .*datetime"),
        ([5, None], "NaN or infinity .first in row 1"),
    ],
)
def test_ratings_that_are_no_numbers(y, message):
    for function in (binarize, lambda y: to_implicit([[1, 2]] * len(y), y)):
        with pytest.raises(ValueError, match=message):
            function(y)


def test_no_rating_that_counts_is_a_warning():
    with pytest.warns(UserWarning, match="No rating reaches threshold=4.0.*largest rating is 1"):
        assert binarize([True, False]).tolist() == [0, 0]


# --------------------------------------------------------------------------- filters


@given(PAIRS, st.integers(1, 4), st.booleans())
def test_the_k_core_is_the_largest(pairs, k, weighted):
    X = np.array(pairs)
    weights = (np.arange(len(X)) % 5 < 4) * 1.0 if weighted else np.ones(len(X))
    kept = set(np.flatnonzero(weights))
    # One row at a time, in another order than the function's.
    while strays := [row for row in kept if min(degrees(X, row, kept)) < k]:
        kept.remove(max(strays))
    y = np.arange(len(X))
    if not kept:
        with pytest.raises(ValueError, match=f"No row of X is in the {k}-core"):
            filter_k_core(X, y, sample_weight=weights, k=k)
        return
    core, y_core, _ = filter_k_core(X, y, sample_weight=weights, k=k)
    assert y_core.tolist() == sorted(kept)
    np.testing.assert_array_equal(core, X[y_core])


def degrees(X, row, rows):
    return [sum(X[other, side] == X[row, side] for other in rows) for side in (0, 1)]


@given(PAIRS, st.integers(0, 5), st.integers(0, 5), st.booleans())
def test_minima_are_counted_on_the_rows_given(pairs, min_user, min_item, weighted):
    X = np.array(pairs)
    weights = (np.arange(len(X)) % 5 < 4) * 1.0 if weighted else np.ones(len(X))
    rows = np.flatnonzero(weights)
    expected = []
    for row in rows:
        of_user, of_item = degrees(X, row, rows)
        if of_user >= min_user and of_item >= min_item:
            expected.append(row)
    given = {"sample_weight": weights, "min_user": min_user, "min_item": min_item}
    y = np.arange(len(X))
    if expected:
        assert filter_min_ratings(X, y, **given)[1].tolist() == expected
    else:
        with pytest.raises(ValueError, match=f"min_user={min_user}"):
            filter_min_ratings(X, y, **given)


def test_implicit_feedback_is_what_reaches_the_threshold():
    X = [["ann", 1], ["ann", 2], ["bob", 1], ["cat", 3]]
    y = [3.5, 4, 5, 5]
    X_kept, y_kept = to_implicit(X, y)
    assert X_kept == X[1:]
    assert y_kept.tolist() == [1, 1, 1]
    _, _, clients, weights = to_implicit(
        X, y, clients=["a", "a", "b", "c"], sample_weight=[1, 2, 3, 0], threshold=4.5
    )
    assert clients == ["b"]
    assert weights == [3]
    with pytest.raises(ValueError, match=r"threshold=6.0 or more; the largest is 5"):
        to_implicit(X, y, threshold=6.0)


@pytest.mark.parametrize(
    "keep",
    [partial(filter_k_core, k=4), partial(filter_min_ratings, min_user=4, min_item=7), to_implicit],
)
def test_what_was_given_comes_back_in_its_type(keep, toy):
    X, y = toy
    X = np.column_stack([X, np.arange(len(X))])
    frame = pd.DataFrame(X, columns=["u", "i", "t"], index=np.arange(len(X)) + 7)
    series = pd.Series(y, index=frame.index)
    clients, weights = X[:, 0] % 5, np.random.default_rng(0).random(len(X))
    X_kept, y_kept, clients_kept, weights_kept = keep(
        frame, series, clients=clients.tolist(), sample_weight=weights
    )
    rows = X_kept.index - 7
    assert 0 < len(rows) < len(X)
    pd.testing.assert_frame_equal(X_kept, frame.iloc[rows])
    assert y_kept.tolist() == ([1] * len(rows) if keep is to_implicit else y[rows].tolist())
    assert clients_kept == clients[rows].tolist()
    np.testing.assert_array_equal(weights_kept, weights[rows])
    as_strings = np.char.add("id", X.astype(str))
    for table in (X, as_strings, X.tolist()):
        kept, _ = keep(table, y)
        assert isinstance(kept, type(table))
        np.testing.assert_array_equal(kept, np.asarray(table)[rows])


@every_filter
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": [[1], [2]]}, "one row per interaction"),
        ({"clients": [1]}, "inconsistent numbers of samples"),
        ({"sample_weight": [1, -1]}, "[Nn]egative values"),
        ({"sample_weight": [0, 0]}, "non-zero number"),
    ],
)
def test_bad_input_is_named(keep, change, message):
    given = {"X": [[1, 1], [2, 2]], "y": [5, 5]} | change
    with pytest.raises(ValueError, match=message):
        keep(**given)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda X, y: filter_k_core(X, k=0), "k"),
        (lambda X, y: filter_min_ratings(X, min_user=-1), "min_user"),
        (lambda X, y: filter_min_ratings(X, min_item=1.5), "min_item"),
        (lambda X, y: to_implicit(X, None), "y"),
        (lambda X, y: binarize(y, threshold=None), "threshold"),
    ],
)
def test_bad_parameters_are_named(call, name, toy):
    with pytest.raises(ValueError, match=f"The '{name}' parameter"):
        call(*toy)


def test_a_pipeline_with_codes_ranks_as_the_bare_model_does():
    """Two unknown users, and two unknown items of one user, stay apart."""
    train = [["ann", 1], ["ann", 2], ["bob", 1], ["bob", 3], ["cat", 4]]
    test = [["ann", 3], ["ann", 8], ["ann", 9], ["dan", 1], ["eve", 4], ["eve", 8]]
    bare = Popularity().fit(train)
    piped = make_pipeline(IdEncoder(), Popularity()).fit(train)
    options = {"metrics": ["ndcg", "recall", "hit_rate", "mrr"], "k": 2}
    expected = pytest.approx(evaluate_ranking(bare, test, **options))
    assert evaluate_ranking(piped, test, **options) == expected
    assert piped.score(test) == pytest.approx(bare.score(test))


# ------------------------------------------------------------------------- split_users

ROWS, PLACES = [["ann", 7, "red"], ["ann", 8, "blue"], ["bob", 7, "red"]], ["n", "s", "s"]


@pytest.mark.parametrize("kind", ["list", "array", "text", "pandas", "polars"])
def test_users_have_an_id_at_each_client_and_the_rest_stays(kind):
    X = ROWS
    if kind == "array":
        X = np.array(ROWS, dtype=object)
    elif kind == "text":
        X = np.array(ROWS, dtype=str)
    elif kind == "pandas":
        X = pd.DataFrame(ROWS, columns=["u", "i", "c"], index=[5, 5, 6])
    elif kind == "polars":
        X = pytest.importorskip("polars").DataFrame(ROWS, schema=["u", "i", "c"], orient="row")
    split, origins = split_users(X, PLACES)
    assert type(split) is type(X)
    table = np.array(split, dtype=object) if kind == "list" else np.asarray(split, dtype=object)
    assert table[:, 0].tolist() == ["ann@n", "ann@s", "bob@s"]
    before = np.asarray(X, dtype=object) if kind != "list" else np.array(X, dtype=object)
    assert table[:, 1:].tolist() == before[:, 1:].tolist()
    # The given rows are as they were.
    assert before[:, 0].tolist() == ["ann", "ann", "bob"]
    assert origins == {"ann@n": ("ann", "n"), "ann@s": ("ann", "s"), "bob@s": ("bob", "s")}
    if kind == "pandas":
        assert split.index.tolist() == [5, 5, 6]
        assert split.columns.tolist() == ["u", "i", "c"]


def test_the_cure_of_users_at_several_clients_is_what_the_error_says():
    X, clients = np.array([[1, 5], [1, 6], [2, 5], [2, 6]]), np.array([10, 20, 20, 20])
    with pytest.raises(ValueError, match=r"user 1 has rows on clients .*split_users\(X, clients\)"):
        RFRec(2).fit(X, [1, 2, 3, 5], clients=clients)
    split, origins = split_users(X, clients)
    model = RFRec(2, n_rounds=1, random_state=0).fit(split, [1, 2, 3, 5], clients=clients)
    assert {origins[one] for one in model.user_ids_} == {(1, 10), (1, 20), (2, 20)}


def test_whole_numbers_are_written_alike():
    X, clients = np.array([[1, 5], [2, 5]]), np.array([0, 1])
    assert split_users(X.astype(float), clients.astype(float))[1] == split_users(X, clients)[1]
    assert list(split_users([[0.5, 5]], clients=[0])[1]) == ["0.5@0"]


@pytest.mark.parametrize(
    ("X", "clients", "message"),
    [
        ([["a@b", 1], ["a", 1]], ["c", "b@c"], r"'a@b' on client 'c' .*rename the clients"),
        ([["a", 1], ["b", 1]], ["c"], "inconsistent numbers of samples"),
        ([["a", 1]], [None], "clients contain missing values"),
    ],
)
def test_ids_that_cannot_be_told_apart_are_refused(X, clients, message):
    with pytest.raises(ValueError, match=message):
        split_users(X, clients)
