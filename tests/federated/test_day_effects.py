"""Effects of days in FedEB, compared with a plain loop over users and days."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from fedrecsk import FedEB
from fedrecsk.datasets import make_ratings

DAY = 86_400


@pytest.fixture(scope="module")
def rows():
    """Ratings with seconds in column 2, a few days for each user."""
    X, y = make_ratings(n_users=30, n_items=25, n_ratings=400, random_state=0)
    rng = np.random.default_rng(0)
    seconds = 10**9 + DAY * rng.integers(0, 4, len(X)) + rng.integers(0, 3600, len(X))
    return np.column_stack([X[:, :2], seconds]).astype(float), y


def method(**parameters):
    return FedEB(3, n_rounds=5, random_state=0, **parameters)


def naive(plain, X, y, weight, X_test):
    """What a user gives more than expected on a day, with ten ratings of nothing more."""
    expected, result = plain.predict(X), plain.predict(X_test)
    for k, (user, _, second) in enumerate(X_test):
        own = (X[:, 0] == user) & (X[:, 2] // DAY == second // DAY)
        total = (weight * (y - expected))[own].sum()
        result[k] += total / (weight[own].sum() + 10)
    return np.clip(result, 1, 5)


@pytest.mark.parametrize("fraction", [1.0, 0.3])
def test_predictions_are_those_of_a_plain_loop(rows, fraction):
    X, y = rows
    weight = np.random.default_rng(1).random(len(y)) + 0.5
    plain = method(rating_scale=(1, 5), client_fraction=fraction)
    timed = clone(plain).set_params(timestamps=2).fit(X, y, sample_weight=weight)
    plain = plain.fit(X, y, sample_weight=weight)
    # Days that are known, days that are not, and a user who is unknown.
    X_test = np.concatenate([X[:50], np.add(X[:50], [0, 1, 9 * DAY]), [[99, 3, 10**9]]])
    predicted = timed.predict(X_test)
    np.testing.assert_allclose(predicted, naive(plain, X, y, weight, X_test), atol=1e-5)
    np.testing.assert_array_equal(predicted[50:], plain.predict(X_test)[50:])
    assert np.abs(predicted - plain.predict(X_test))[:50].max() > 0.05
    mean, std = timed.predict(X_test, return_std=True)
    np.testing.assert_array_equal(mean, predicted)
    np.testing.assert_array_equal(std, plain.predict(X_test, return_std=True)[1])
    # What is sent, and recommendations, are the same.
    assert timed.communication_.bytes_up == plain.communication_.bytes_up
    np.testing.assert_array_equal(timed.recommend([0, 1])[1], plain.recommend([0, 1])[1])


def test_dates_and_missing_times(rows):
    X, y = rows
    expected = method(timestamps=2).fit(X, y)
    frame = pd.DataFrame(X[:, :2].astype(int), columns=["user", "item"])
    frame["when"] = pd.to_datetime(X[:, 2], unit="s")
    timed = method(timestamps="when").fit(frame, y)
    np.testing.assert_allclose(timed.predict(frame), expected.predict(X), atol=1e-6)
    later = frame.assign(when=pd.NaT)
    later.loc[0, "when"] = frame["when"][0]
    plain = method().fit(frame, y).predict(frame)
    np.testing.assert_allclose(timed.predict(later)[1:], plain[1:], atol=1e-6)
    assert timed.predict(later)[0] != plain[0]


def test_rows_without_any_known_day_or_user_have_no_effect(rows):
    X, y = rows
    timed, plain = method(timestamps=2).fit(X, y), method().fit(X, y).predict(X)
    for missing in (np.nan, np.inf):
        predicted, _ = timed.predict(X * [1, 1, 0] + [0, 0, missing], return_std=True)
        np.testing.assert_allclose(predicted, plain, atol=1e-6)
    strangers = np.add(X, [1000, 0, 0])
    expected = method().fit(X, y).predict(strangers)
    np.testing.assert_allclose(timed.predict(strangers), expected, atol=1e-6)


def test_newcomers_and_updates_have_days_of_their_own(rows):
    X, y = rows
    old = X[:, 0] < 25
    model = method(timestamps=2, warm_start=True).fit(X[old], y[old])
    folded = clone(model).fit(X[old], y[old]).fold_in(X[~old], y[~old])
    elsewhere = X[~old] + [0, 0, 20 * DAY]
    assert not np.allclose(folded.predict(X[~old]), folded.predict(elsewhere), atol=1e-3)
    assert folded.user_days_.shape == (len(folded.user_ids_), 2**16)
    model.partial_fit(X[~old], y[~old])
    assert not np.allclose(model.predict(X[~old]), model.predict(elsewhere), atol=1e-3)
    model.forget([0])
    assert model.user_days_.shape[0] == len(model.user_ids_) == len(np.unique(X[:, 0])) - 1


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (np.arange(400), "dates, or seconds since 1970"),
        (np.full(400, -5.0) - np.arange(400), "one is -5.0"),
        (np.arange(400) + 1e15, "set timestamps=None to leave days out"),
        (np.full(400, np.nan), "are missing in all rows; give another column, or timestamps=None"),
        (None, "X has no timestamps"),
    ],
    ids=["positions", "negative", "late", "missing", "none"],
)
def test_times_that_are_no_days_are_named(rows, times, message):
    X, y = rows
    times = None if times is None else times[: len(X)]
    X = X[:, :2] if times is None else np.column_stack([X[:, :2], times])
    with pytest.raises(ValueError, match=message):
        method(timestamps=2).fit(X, y)
