import datetime
import itertools
import pickle
import warnings
from collections import Counter, defaultdict

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

from fedrecsk import BiasOnly
from fedrecsk.model_selection import (
    ColdItemHoldout,
    LeaveLastOut,
    RollingOrigin,
    TemporalHoldout,
    UserHoldout,
    UserKFold,
    WarmStartKFold,
)
from tests.conftest import make_toy

SPLITTERS = [
    LeaveLastOut(),
    LeaveLastOut(2, timestamps="row_order"),
    UserHoldout(0.3, random_state=0),
    UserHoldout(2, n_splits=3, random_state=0),
    UserKFold(3),
    UserKFold(2, shuffle=True, random_state=0),
    WarmStartKFold(3),
    WarmStartKFold(2, shuffle=True, random_state=0),
    TemporalHoldout(),
    TemporalHoldout(0.2, validation_size=0.2, per_user=True),
]
ORDER = ("train", "validation", "test")
DATE = datetime.datetime(2020, 1, 1)
CLASSES = [LeaveLastOut, UserHoldout, UserKFold, WarmStartKFold, TemporalHoldout]

every_splitter = pytest.mark.parametrize("splitter", SPLITTERS, ids=repr)
# One of each base class: what it shares with the others is tested once.
some_splitters = pytest.mark.parametrize("splitter", [SPLITTERS[i] for i in (0, 5, 9)], ids=repr)
every_class = pytest.mark.parametrize("Class", CLASSES)

# Few users, items and times, so that single rows, repeated pairs and equal times abound.
TABLES = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=40
).map(np.array)
SEEDS = st.one_of(st.none(), st.integers(0, 2**31))


@pytest.fixture
def timed():
    """(X, y) of 12 users with the rows in random order and the time as column 2."""
    X, y = make_toy()
    return np.column_stack([X, np.random.default_rng(1).permutation(len(X))]), y


def rows_of(ids):
    """Row numbers of each id, the naive way."""
    rows = defaultdict(list)
    for row, name in enumerate(ids.tolist()):
        rows[name].append(row)
    return rows


def splits_or_reason(splitter, X):
    """The splits, or the message of the ValueError."""
    try:
        return list(splitter.split(X)), None
    except ValueError as error:
        return [], str(error)


def assert_partition(X, *parts):
    assert all(len(part) and (np.diff(part) > 0).all() for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(X)))


# --------------------------------------------------------------------------- guarantees


@given(
    TABLES, st.integers(1, 3), st.booleans(), st.sampled_from([None, "row_order", "train", "test"])
)
def test_leave_last_out_holds_out_the_last_rows_of_each_user(X, n_last, row_order, ties):
    splitter = LeaveLastOut(n_last, timestamps="row_order" if row_order else 2, ties=ties)
    times = np.arange(len(X)) if row_order else X[:, 2]
    users = [rows for rows in rows_of(X[:, 0]).values() if len(rows) > n_last]
    parts = [last_rows(rows, times, n_last, ties) for rows in users]
    expected = [row for late, _ in parts for row in late]
    n_tied = sum(is_tied for _, is_tied in parts)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        splits, reason = splits_or_reason(splitter, X)
    texts = [text for one in caught if "times do not determine" in (text := str(one.message))]
    if splits:
        [(train, test)] = splits
        assert test.tolist() == sorted(expected)
        assert len(texts) == (ties is None and n_tied > 0)
        assert all(f"For {n_tied} of {len(users)} users" in text for text in texts)
        assert_partition(X, train, test)
        assert set(X[train, 0]) == set(X[:, 0])
    elif "all equal" in reason:
        assert len(set(times)) == 1
    else:
        assert ("lower n_last" if not users else f"ties={ties!r} leaves") in reason
        assert not expected


def last_rows(rows, times, n_last, ties):
    """The rows of a user to hold out, the naive way, and whether equal times leave a choice."""
    rows = sorted(rows, key=lambda row: (times[row], row))
    late, time = rows[-n_last:], times[rows[-n_last]]
    is_tied = times[rows[-n_last - 1]] == time
    if is_tied and ties == "train":
        late = [row for row in rows if times[row] > time]
    elif is_tied and ties == "test":
        late = [row for row in rows if times[row] >= time]
    return late if len(late) < len(rows) else [], is_tied


@pytest.mark.parametrize("n_last", [1, 2])
def test_ties_away_from_the_cut_are_no_reason_to_warn(n_last):
    times = [1, 1, 2, 3, 4, 4, 4, 5] if n_last == 1 else [1, 1, 2, 3, 4, 5, 6, 6]
    X = [[1, item, time] for item, time in enumerate(times)] + [[2, 1, 7]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert LeaveLastOut(n_last).fit(X).test_indices_.tolist() == [6, 7][-n_last:]


@pytest.mark.parametrize(
    "splitter", [TemporalHoldout(), TemporalHoldout(per_user=True), RollingOrigin()], ids=repr
)
def test_other_splits_by_time_do_not_depend_on_the_order_of_rows(splitter, timed):
    X = timed[0]
    X[:, 2] = 100 + X[:, 2] // 5
    order = np.random.default_rng(0).permutation(len(X))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        splits = list(splitter.split(X))
        shuffled = list(splitter.split(X[order]))
    for parts, others in zip(splits, shuffled, strict=True):
        for rows, other in zip(parts, others, strict=True):
            assert rows.tolist() == sorted(order[other])


@given(TABLES, st.one_of(st.integers(1, 3), st.floats(0.05, 0.95)), st.integers(1, 3), SEEDS)
def test_cold_items_have_no_training_rows(X, test_size, n_splits, seed):
    splitter = ColdItemHoldout(test_size, n_splits=n_splits, random_state=seed)
    splits, reason = splits_or_reason(splitter, X)
    n_items = len(set(X[:, 1]))
    n_test = test_size if isinstance(test_size, int) else max(1, int(test_size * n_items + 0.5))
    if not splits:
        assert n_test >= n_items or "No user of a held-out item" in reason
        return
    assert len(splits) == n_splits
    for train, test in splits:
        assert not set(X[train, 1]) & set(X[test, 1])
        assert len(set(X[:, 1])) - len(set(X[train, 1])) == n_test
        known = np.isin(X[:, 0], X[train, 0])
        cold = ~np.isin(X[:, 1], X[train, 1])
        np.testing.assert_array_equal(test, np.flatnonzero(cold & known))


@given(TABLES, st.one_of(st.integers(1, 3), st.floats(0.05, 0.95)), st.integers(1, 3), SEEDS)
def test_user_holdout_takes_its_share_of_each_user(X, test_size, n_splits, seed):
    splitter = UserHoldout(test_size, n_splits=n_splits, random_state=seed)
    shares = {}
    for user, rows in rows_of(X[:, 0]).items():
        if isinstance(test_size, int):
            shares[user] = test_size if len(rows) > test_size else 0
        else:
            shares[user] = min(int(test_size * len(rows) + 0.5), len(rows) - 1)
    splits, reason = splits_or_reason(splitter, X)
    assert len(splits) == (n_splits if any(shares.values()) else 0)
    assert bool(reason) != bool(splits)
    for train, test in splits:
        assert_partition(X, train, test)
        assert Counter(X[test, 0].tolist()) == Counter(shares)
        assert set(X[train, 0]) == set(X[:, 0])


@given(TABLES, st.integers(2, 5), SEEDS)
def test_user_kfold_tests_each_row_once_and_spreads_users(X, n_splits, seed):
    splitter = UserKFold(n_splits, shuffle=seed is not None, random_state=seed)
    users = rows_of(X[:, 0])
    testable = [row for rows in users.values() if len(rows) > 1 for row in rows]
    splits, reason = splits_or_reason(splitter, X)
    assert len(splits) == (n_splits if len(testable) >= n_splits else 0)
    assert bool(reason) != bool(splits)
    for train, test in splits:
        assert_partition(X, train, test)
        assert set(X[train, 0]) == set(X[:, 0])
    if splits:
        tests = [test for _, test in splits]
        assert sorted(np.concatenate(tests)) == sorted(testable)
        assert np.ptp([len(test) for test in tests]) <= 1
        for rows in users.values():
            if len(rows) > 1:
                assert np.ptp([np.isin(rows, test).sum() for test in tests]) <= 1


@given(TABLES, st.integers(2, 5), SEEDS)
def test_warm_start_kfold_tests_every_row_it_can(X, n_splits, seed):
    check_warm_start(X, WarmStartKFold(n_splits, shuffle=seed is not None, random_state=seed))


def check_warm_start(X, splitter):
    """Assert what the docstring guarantees; return the sizes of the folds."""
    counts = [Counter(X[:, side].tolist()) for side in (0, 1)]
    testable = [
        row for row, (user, item, *_) in enumerate(X) if min(counts[0][user], counts[1][item]) > 1
    ]
    splits, reason = splits_or_reason(splitter, X)
    assert len(splits) == (splitter.n_splits if len(testable) >= splitter.n_splits else 0)
    assert bool(reason) != bool(splits)
    for train, test in splits:
        assert_partition(X, train, test)
        for side in (0, 1):
            assert set(X[train, side]) == set(X[:, side])
    if splits:
        assert sorted(np.concatenate([test for _, test in splits])) == testable
    return [len(test) for _, test in splits]


@pytest.mark.parametrize("n_splits", [2, 3, 5])
@pytest.mark.parametrize("length", [1, 2, 3, 8])
def test_warm_start_kfold_deals_rings(length, n_splits):
    # User u has items u and u + 1, round three rings of this length: all rows are linked.
    X = np.array(
        [
            (100 * ring + user, 100 * ring + (user + step) % length)
            for ring in range(3)
            for user in range(length)
            for step in (0, 1)
        ]
    )
    sizes = check_warm_start(X, WarmStartKFold(n_splits))
    assert np.ptp(sizes) <= 1 + 2 * 3
    check_warm_start(X, WarmStartKFold(n_splits, shuffle=True, random_state=0))


@given(
    TABLES,
    st.one_of(st.integers(1, 5), st.floats(0.05, 0.45)),
    st.one_of(st.none(), st.integers(1, 5), st.floats(0.05, 0.45)),
    st.booleans(),
)
def test_temporal_holdout_cuts_at_the_nearest_change_of_time(X, test_size, validation_size, alone):
    splitter = TemporalHoldout(test_size, validation_size=validation_size, per_user=alone)
    sizes = {"test": test_size, "validation": validation_size}
    sizes = {name: size for name, size in sizes.items() if size is not None}
    expected = {"train": []} | {name: [] for name in sizes}
    groups = rows_of(X[:, 0]).values() if alone else [range(len(X))]
    for group in groups:
        rows = sorted(group, key=lambda row: X[row, 2])
        count = len(rows)
        for name, size in sizes.items():
            place = place_of_cut(X[rows, 2], size, count)
            expected[name] += rows[place:]
            rows = rows[:place]
        expected["train"] += rows

    parts, reason = parts_or_reason(splitter, X)
    if reason:
        assert parts is None
        assert not all(expected[name] for name in sizes) or len(set(X[:, 2])) == 1
        return
    for name, rows in expected.items():
        assert parts[name].tolist() == sorted(rows)
    assert_partition(X, *parts.values())
    if alone:
        assert set(X[parts["train"], 0]) == set(X[:, 0])
    for group in groups:
        times = [X[np.intersect1d(parts.get(name, []), group).astype(int), 2] for name in ORDER]
        times = [moments for moments in times if len(moments)]
        assert all(one.max() < other.min() for one, other in itertools.pairwise(times))
    second = "test" if validation_size is None else "validation"
    [(train, held_out)] = splitter.split(X)
    np.testing.assert_array_equal(train, parts["train"])
    np.testing.assert_array_equal(held_out, parts[second])


def place_of_cut(times, size, count):
    """Where to cut ascending times, by trying every place where the time changes."""
    if isinstance(size, int):
        n_late = size if len(times) > size else 0
    else:
        n_late = min(int(size * count + 0.5), len(times) - 1)
    places = [place for place in range(1, len(times)) if times[place - 1] != times[place]]
    if not n_late or not places:
        return len(times)
    wish = len(times) - n_late
    return min(places, key=lambda place: (abs(place - wish), -place))


def parts_or_reason(splitter, X):
    try:
        fitted = clone(splitter).fit(X)
    except ValueError as error:
        return None, str(error)
    return {
        name: getattr(fitted, f"{name}_indices_")
        for name in ORDER
        if hasattr(fitted, f"{name}_indices_")
    }, None


# --------------------------------------------------------------------------------- input


def test_times_are_numbers_or_dates():
    days = [datetime.datetime(2020, 1, day, tzinfo=None) for day in (3, 1, 2)]
    zoned = [
        datetime.datetime(2020, 1, 1, hour, tzinfo=datetime.timezone(datetime.timedelta(hours=h)))
        for hour, h in ((9, 0), (10, 5), (11, 4))
    ]
    columns = [
        [0.3, -0.1, 0.2],
        [True, False, False],
        [day.date() for day in days],
        zoned,
        pd.to_datetime(days).tz_localize("Asia/Tokyo"),
        np.array(["3.5", "-1", "2e-1"]),
        pd.array([3, 1, 2], dtype="Int64"),
    ]
    for column in columns:
        frame = pd.DataFrame({"u": [1, 1, 1], "i": [1, 2, 3], "t": column})
        for X in (frame, frame.astype({"t": object}), frame.to_numpy(dtype=object)):
            [(_, test)] = LeaveLastOut().split(X)
            assert test.tolist() == [0], column


@pytest.mark.parametrize("Class", [LeaveLastOut, TemporalHoldout])
@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1, 1, 1], r"timestamps \(column 2 of X\) are all equal to 1"),
        ([np.inf, 1.0, 2.0], "missing or infinite in 1 rows, first in row 0"),
        ([1, None, 2], "missing or infinite in 1 rows, first in row 1"),
        (pd.to_datetime(["2020-01-01", None, "2021-01-01"]), "missing or infinite in 1 rows"),
        (
            ["2020-01-01", "soon", "later"],
            "are strings, and 'soon' is not an ISO.*pandas.to_datetime",
        ),
        ([1j, 2j, 3j], "neither numbers nor dates; the first is .*1j"),
        ([DATE, DATE.replace(tzinfo=datetime.UTC), DATE], "neither numbers nor dates"),
    ],
)
def test_bad_times_are_named(Class, column, message):
    X = pd.DataFrame({"u": [1, 1, 1], "i": [1, 2, 3], "t": column})
    with pytest.raises(ValueError, match=message):
        Class().split(X)
    with pytest.raises(ValueError, match=message):
        Class().split(X.to_numpy(dtype=object))


@pytest.mark.parametrize("Class", [LeaveLastOut, TemporalHoldout])
def test_a_missing_column_of_times_is_named(Class, timed):
    X, _ = timed
    frame = pd.DataFrame(X, columns=["u", "i", "t"])
    with pytest.raises(ValueError, match=r"X has no timestamps: timestamps=2, .*'row_order'"):
        Class().split(X[:, :2])
    with pytest.raises(ValueError, match=r"'when' is not a column of X, which has \['u', 'i'"):
        Class(timestamps="when").split(frame)
    with pytest.raises(ValueError, match="'t' names a column, but X has no column names"):
        Class(timestamps="t").split(X)
    with pytest.raises(ValueError, match="'timestamps' parameter"):
        Class(timestamps=1).split(X)
    assert list(Class(timestamps="row_order").split(X[:, :2]))


@some_splitters
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X: X[:, 0], "one row per interaction"),
        (lambda X: X[:0], "one row per interaction"),
        (lambda X: np.where(X[0, 0] == X, np.nan, X), "user ids .* contain NaN"),
    ],
)
def test_bad_input_is_named_before_the_first_split(splitter, timed, change, message):
    with pytest.raises(ValueError, match=message):
        splitter.split(change(timed[0]))


@pytest.mark.parametrize(
    ("splitter", "X", "message"),
    [
        (LeaveLastOut(2), [[1, 1, 1], [1, 2, 2]], r"more than n_last=2 rows \(the most is 2\)"),
        (UserHoldout(0.1), [[1, 1], [1, 2]], "test_size=0.1 holds out no row"),
        (UserKFold(3), [[1, 1], [1, 2], [2, 1]], "Only 2 rows .* n_splits=3"),
        (WarmStartKFold(2), [[1, 1], [1, 2], [2, 3]], "Only 0 rows .*filter_k_core"),
        (TemporalHoldout(5), [[1, 1, 1], [1, 2, 2]], "test_size=5 leaves the test set empty: X"),
        (
            TemporalHoldout(0.3, validation_size=0.3),
            [[1, 1, 1], [1, 2, 2], [1, 3, 2]],
            "validation_size=0.3 leaves the validation set empty",
        ),
        (TemporalHoldout(per_user=True), [[1, 1, 1], [2, 2, 2]], "the test set empty: no user has"),
        (TemporalHoldout(0.5, validation_size=0.5), [[1, 1, 1]], "leave no training rows"),
    ],
    ids=repr,
)
def test_empty_sets_are_errors(splitter, X, message):
    for call in (splitter.split, clone(splitter).fit, splitter.train_test_split):
        with pytest.raises(ValueError, match=message):
            call(X)


@pytest.mark.parametrize(
    ("splitter", "name"),
    [
        (LeaveLastOut(0), "n_last"),
        (UserHoldout(1.0), "test_size"),
        (UserKFold(1), "n_splits"),
        (TemporalHoldout(validation_size=0), "validation_size"),
    ],
    ids=repr,
)
def test_bad_parameters_are_named(splitter, name, timed):
    for call in (splitter.split, clone(splitter).fit, splitter.train_test_split):
        with pytest.raises(ValueError, match=f"'{name}' parameter of {type(splitter).__name__}"):
            call(timed[0])


# -------------------------------------------------------------------------------- chance


@pytest.mark.parametrize("Class", [UserKFold, WarmStartKFold])
def test_a_seed_without_shuffling_is_an_error(Class, timed):
    with pytest.raises(ValueError, match="random_state=3 has no effect"):
        Class(random_state=3).split(timed[0])


@pytest.mark.parametrize(
    ("Class", "parameters"),
    [(UserHoldout, {}), (UserKFold, {"shuffle": True}), (WarmStartKFold, {"shuffle": True})],
)
def test_random_state_is_scikit_learns(Class, parameters, timed):
    X, _ = timed

    def tests(splitter):
        return [test.tolist() for _, test in splitter.split(X)]

    one, same, other = (tests(Class(random_state=seed, **parameters)) for seed in (5, 5, 6))
    assert one == same != other
    stateful = Class(random_state=np.random.RandomState(0), **parameters)
    assert tests(stateful) != tests(stateful)
    if Class is UserHoldout:
        first, second = tests(UserHoldout(n_splits=2))
        assert first != second


def test_user_holdout_draws_every_row_alike():
    X = np.column_stack([np.repeat([3, 1], [6, 2]), np.arange(8)])
    tests = [test for _, test in UserHoldout(0.5, n_splits=1000, random_state=0).split(X)]
    assert np.bincount(np.concatenate(tests)) / 1000 == pytest.approx(np.full(8, 0.5), abs=0.06)


# --------------------------------------------------------------------------- transformer


@every_splitter
def test_a_splitter_is_a_transformer(splitter, timed):
    X, y = timed
    splitter = clone(splitter)
    train, test = next(splitter.split(X))
    assert splitter.fit_transform(X, y) is not None
    np.testing.assert_array_equal(splitter.train_indices_, train)
    np.testing.assert_array_equal(splitter.fit_transform(X), X[train])
    np.testing.assert_array_equal(splitter.held_out_, X[splitter.test_indices_])
    frame = pd.DataFrame(X, columns=["u", "i", "t"], index=np.arange(len(X)) + 7)
    pd.testing.assert_frame_equal(splitter.fit_transform(frame), frame.iloc[train])
    pd.testing.assert_frame_equal(splitter.held_out_, frame.iloc[splitter.test_indices_])
    assert splitter.feature_names_in_.tolist() == ["u", "i", "t"]
    assert splitter.n_features_in_ == 3
    parts = [splitter.train_indices_, splitter.test_indices_]
    again = pickle.loads(pickle.dumps(splitter))
    pd.testing.assert_frame_equal(again.held_out_, splitter.held_out_)
    if getattr(splitter, "validation_size", None) is None:
        np.testing.assert_array_equal(splitter.test_indices_, test)
    else:
        parts.insert(1, splitter.validation_indices_)
        np.testing.assert_array_equal(splitter.validation_indices_, test)
        assert not hasattr(again.set_params(validation_size=None).fit(X), "validation_indices_")

    clients = [f"c{user}" for user in X[:, 0]]
    pieces = clone(splitter).train_test_split(frame, y, clients)
    assert len(pieces) == 3 * len(parts)
    for i, rows in enumerate(parts):
        pd.testing.assert_frame_equal(pieces[i], frame.iloc[rows])
        np.testing.assert_array_equal(pieces[len(parts) + i], y[rows])
        assert pieces[2 * len(parts) + i] == [clients[row] for row in rows]


def test_pipelines_refuse_splitters(timed):
    pipeline = make_pipeline(LeaveLastOut(), BiasOnly())
    with pytest.raises(TypeError, match="should be transformers and implement fit and transform"):
        pipeline.fit(*timed)


# ------------------------------------------------------------- scikit-learn's machinery


@every_class
@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_estimator_repr,
        estimator_checks.check_valid_tag_types,
        estimator_checks.check_no_attributes_set_in_init,
        estimator_checks.check_get_params_invariance,
        estimator_checks.check_set_params,
        estimator_checks.check_parameters_default_constructible,
        estimator_checks.check_param_validation,
        estimator_checks.check_do_not_raise_errors_in_init_or_set_params,
    ],
    ids=lambda check: check.__name__,
)
def test_scikit_learn_compatible(Class, check):
    # The checks that fit random X, or expect as many rows as they gave, make no sense here.
    splitter = Class()
    check(Class.__name__, splitter)


@some_splitters
def test_grid_searches_take_splitters(splitter, timed):
    X, y = timed
    model, grid = make_pipeline(FunctionTransformer(), BiasOnly()), {"biasonly__reg_user": [1, 9]}
    # Of one and of several digits: as strings they sort otherwise.
    X = X - [[95, 995, 0]]
    frame = pd.DataFrame({"u": X[:, 0].astype(str), "i": X[:, 1], "t": X[:, 2]})
    scoring = "neg_mean_squared_error"
    scores = []
    for table in (X, frame):
        search = GridSearchCV(model, grid, cv=splitter, scoring=scoring, error_score="raise")
        search.fit(table, y)
        assert search.n_splits_ == splitter.get_n_splits()
        scores.append(search.cv_results_["mean_test_score"])
    assert np.isfinite(scores).all()
    assert scores[0] == pytest.approx(scores[1])
    with config_context(enable_metadata_routing=True):
        search = GridSearchCV(BiasOnly(), {}, cv=splitter, error_score="raise")
        search.fit(X, y, clients=X[:, 0] % 3, sample_weight=np.ones(len(y)))
    assert not splitter.get_metadata_routing().split.requests
    for call in (splitter.split, clone(splitter).fit, splitter.train_test_split):
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            call(X, y[:-1])
