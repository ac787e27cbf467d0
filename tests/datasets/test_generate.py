from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from fedrecsk import BiasedMF, BiasOnly
from fedrecsk.datasets import generate, make_interactions, make_ratings
from tests.conftest import rmse, split


def gini(counts):
    counts = np.sort(counts)
    n = len(counts)
    return (2 * np.arange(1, n + 1) - n - 1) @ counts / (n * counts.sum())


FACTORS = BiasedMF(random_state=0)


def error_of(model, X, y):
    X_train, y_train, X_test, y_test = split(X, y, seed=0)
    return rmse(model.fit(X_train, y_train), X_test, y_test)


@st.composite
def sizes(draw):
    n_users, n_items = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    return n_users, n_items, draw(st.integers(n_users, n_users * n_items))


@given(
    sizes(),
    st.integers(0, 3),
    st.floats(0, 3),
    st.floats(0, 10),
    st.tuples(st.integers(-5, 5), st.integers(1, 10)),
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_any_size(size, n_factors, noise, popularity, scale, timestamps, seed, many):
    n_users, n_items, n_ratings = size
    minimum = 1 + seed % (n_ratings // n_users)
    low, high = scale[0], scale[0] + scale[1]
    with pytest.MonkeyPatch.context() as patch:
        if many:
            patch.setattr(generate, "_RANKED_PAIRS", 0)
        X, y = make_ratings(
            *size,
            n_factors=n_factors,
            noise=noise,
            popularity=popularity,
            rating_scale=(low, high),
            min_ratings_per_user=minimum,
            timestamps=timestamps,
            random_state=seed,
        )
    assert X.dtype == np.int64
    assert y.dtype == np.float64
    assert X.shape == (n_ratings, 2 + timestamps)
    assert y.shape == (n_ratings,)
    assert len(np.unique(X[:, :2], axis=0)) == n_ratings
    assert np.bincount(X[:, 0], minlength=n_users).min() >= minimum
    assert X[:, 1].min() >= 0
    assert X[:, 1].max() < n_items
    assert len(np.unique(X[:, 1])) == n_items or n_ratings < n_items
    assert_array_equal(y, np.round(y))
    assert low <= y.min()
    assert y.max() <= high


def interactions(*size, **parameters):
    """Interactions as a tuple, like ratings."""
    return (make_interactions(*size, **parameters),)


every_maker = pytest.mark.parametrize("make", [make_ratings, interactions])


@every_maker
def test_same_seed_same_data(make):
    first, second, other = (make(30, 40, 300, random_state=seed) for seed in (7, 7, 8))
    for a, b, c in zip(first, second, other, strict=True):
        assert_array_equal(a, b)
        assert not np.array_equal(a, c)


def test_the_size_of_blocks_changes_nothing(monkeypatch):
    whole = make_ratings(30, 40, 300, random_state=7)
    monkeypatch.setattr(generate, "_BLOCK", 7 * 40)
    for a, b in zip(whole, make_ratings(30, 40, 300, random_state=7), strict=True):
        assert_array_equal(a, b)


def test_items_drawn_one_by_one_are_as_popular_and_as_liked(monkeypatch):
    popularity = 2.0 * np.arange(50) / 50
    users, items = generate._draw_taste(np.random.RandomState(0), 4, 50, 3, 1.0)
    # Every user 5000 times, so that the frequencies are close to the probabilities.
    users, n_per_user = np.tile(users, (5000, 1)), np.tile([1, 5, 20, 50], 5000)

    def shares(choose):
        chosen = choose(np.random.RandomState(1), n_per_user, popularity, users, items)
        person = np.repeat(np.tile(np.arange(4), 5000), n_per_user)
        counts = np.zeros((4, 50))
        np.add.at(counts, (person, chosen), 1)
        rows = np.repeat(np.arange(20_000), n_per_user)
        assert len(np.unique(rows * 50 + chosen)) == len(chosen)
        return counts / 5000

    one_by_one = shares(generate._draw_items)
    assert_array_equal(one_by_one[3], np.ones(50))
    # Four standard deviations of the difference of two shares.
    assert np.abs(one_by_one - shares(generate._rank_items)).max() < 4 * np.sqrt(0.5 / 5000)


def test_default_resembles_movielens_100k():
    # On the right of each: what MovieLens-100k has.
    X, y = make_ratings(random_state=0)
    per_user, per_item = np.bincount(X[:, 0]), np.bincount(X[:, 1])
    assert (len(per_user), len(per_item), len(y)) == (943, 1682, 100_000)
    assert gini(per_item) == pytest.approx(0.629, abs=0.02)
    assert gini(per_user) == pytest.approx(0.472, abs=0.02)
    assert per_user.min() == 20
    assert np.median(per_user) == pytest.approx(65, abs=8)
    assert per_user.max() == pytest.approx(737, rel=0.2)
    assert np.median(per_item) == pytest.approx(27, abs=6)
    assert per_item.max() == pytest.approx(583, rel=0.15)
    shares = np.bincount(y.astype(int), minlength=6)[1:] / len(y)
    assert shares == pytest.approx([0.0611, 0.1137, 0.2715, 0.3417, 0.2120], abs=1e-3)
    assert y.mean() == pytest.approx(3.530, abs=0.005)
    assert (np.bincount(X[:, 0], y) / per_user).std() == pytest.approx(0.445, abs=0.04)
    often = per_item >= 20
    item_means = np.bincount(X[:, 1], y)[often] / per_item[often]
    correlation = np.corrcoef(np.log(per_item[often]), item_means)[0, 1]
    assert correlation == pytest.approx(0.47, abs=0.08)


def test_default_is_as_hard_as_movielens_100k():
    # On the right of each: what they have on MovieLens-100k.
    errors = [error_of(model, *make_ratings(random_state=0)) for model in (BiasOnly(), FACTORS)]
    assert errors[0] == pytest.approx(0.940, abs=0.015)
    assert errors[0] - errors[1] == pytest.approx(0.036, abs=0.008)


@pytest.mark.parametrize(
    ("parameter", "values", "of"),
    [
        ("noise", (0, 0.8, 3), lambda X, y: error_of(BiasOnly(), X, y)),
        ("popularity", (0, 2, 5), lambda X, y: gini(np.bincount(X[:, 1]))),
    ],
)
def test_noise_makes_it_harder_and_popularity_is_the_skew(parameter, values, of):
    found = [of(*make_ratings(200, 300, 12_000, **{parameter: v}, random_state=0)) for v in values]
    assert found[0] + 0.1 < found[1] < found[2] - 0.1


@pytest.mark.parametrize("make", [make_ratings, partial(interactions, drift=1.0)])
def test_timestamps_are_sessions_in_random_order(make):
    X, *y = make(random_state=0)
    times = X[:, 2]
    order = np.lexsort((times, X[:, 0]))
    gaps = np.diff(times[order])[np.diff(X[order, 0]) == 0]
    assert np.median(gaps) < 60
    assert 0.01 < np.mean(gaps > 86_400) < 0.03
    firsts = np.array([times[X[:, 0] == user].min() for user in range(943)])
    assert firsts.min() >= np.datetime64("2020-01-01", "s").astype(int)
    assert 150 < np.ptp(firsts) / 86_400 < 215
    assert abs(np.corrcoef(np.arange(len(X)), times)[0, 1]) < 0.02
    assert all(abs(np.corrcoef(times, one)[0, 1]) < 0.1 for one in y)


@every_maker
def test_as_frame(make):
    X, *y = make(20, 15, 80, random_state=0)
    frame, *series = make(20, 15, 80, random_state=0, as_frame=True)
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == ["user", "item", "timestamp"]
    assert_array_equal(frame.to_numpy(), X)
    for one, values in zip(series, y, strict=True):
        assert one.name == "rating"
        assert_array_equal(one.to_numpy(), values)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_users": 3, "n_items": 4, "n_ratings": 13}, "number of pairs, n_users . n_items = 12"),
        ({"n_users": 10, "n_items": 4, "n_ratings": 9}, "less than n_users . min_ratings_per_us"),
        ({"min_ratings_per_user": 1683}, "more than n_items=1682"),
        ({"min_ratings_per_user": 107}, "= 943 . 107 = 100901"),
        ({"n_users": 0}, "n_users"),
        ({"noise": -0.1}, "noise"),
        ({"popularity": float("inf")}, "popularity"),
        ({"rating_scale": (5, 1)}, "lowest first"),
        ({"rating_scale": (0.5, 5)}, "whole numbers"),
    ],
)
def test_bad_parameters_are_refused_before_any_work(parameters, message, monkeypatch):
    monkeypatch.setattr(generate, "check_random_state", None)
    with pytest.raises(ValueError, match=message):
        make_ratings(**parameters)


def test_features_show_the_factors_and_change_nothing_else():
    X, y = make_ratings(80, 300, 3000, random_state=0)
    with_features = make_ratings(80, 300, 3000, item_features=11, random_state=0)
    np.testing.assert_array_equal(X, with_features[0])
    np.testing.assert_array_equal(y, with_features[1])
    features = with_features[2]
    assert features.shape == (300, 11)
    # Columns 0 and 10 show the same factor with the correlation .7 each.
    correlations = features.corr().to_numpy()
    assert correlations[0, 10] == pytest.approx(0.49, abs=0.12)
    assert abs(correlations[0, 1:10]).max() < 0.25
    rows, features = make_interactions(80, 300, 3000, item_features=2, random_state=0)
    np.testing.assert_array_equal(rows, make_interactions(80, 300, 3000, random_state=0))
    assert features.shape == (300, 2)
