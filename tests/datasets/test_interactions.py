import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import sparse

from fedrecsk.datasets import generate, make_interactions, make_ratings
from tests.datasets.test_generate import gini, sizes

FIRST_SECOND = np.datetime64("2020-01-01", "s").astype(int)


def last_fifth(X, turns):
    """Mark the last fifth of each user's rows in order of `turns`."""
    order = np.lexsort((turns, X[:, 0]))
    n_per_user = np.bincount(X[:, 0])
    rank = np.empty(len(X))
    rank[order] = np.arange(len(X)) - np.repeat(np.cumsum(n_per_user) - n_per_user, n_per_user)
    return rank >= np.round(0.8 * n_per_user[X[:, 0]])


def precision_at_10(X, test, n_factors=20, n_sweeps=8):
    """Return the precision of recommending by popularity, and by implicit ALS."""
    users, items = X[:, 0], X[:, 1]
    shape = users.max() + 1, items.max() + 1
    train = sparse.csr_array((np.ones(sum(~test)), (users[~test], items[~test])), shape)
    held_out = sparse.csr_array((np.ones(sum(test)), (users[test], items[test])), shape).toarray()

    def solve(positives, fixed):
        # A positive counts twice, everything else once.
        gram = fixed.T @ fixed + 0.1 * np.eye(n_factors)
        outer = (fixed[:, :, None] * fixed[:, None, :]).reshape(len(fixed), -1)
        weights = gram + (positives @ outer).reshape(-1, n_factors, n_factors)
        return np.linalg.solve(weights, 2 * (positives @ fixed)[:, :, None])[:, :, 0]

    item_factors = 0.01 * np.random.RandomState(0).standard_normal((shape[1], n_factors))
    for _ in range(n_sweeps):
        user_factors = solve(train, item_factors)
        item_factors = solve(train.T, user_factors)

    def precision(scores):
        scores = np.where(train.toarray() > 0, -np.inf, scores)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :10]
        return np.take_along_axis(held_out, best, axis=1).mean()

    return precision(train.sum(axis=0)), precision(user_factors @ item_factors.T)


@given(
    sizes(),
    st.integers(0, 3),
    st.floats(0, 5),
    st.floats(0, 10),
    st.floats(0, 10),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_any_size(size, n_factors, taste, popularity, drift, timestamps, seed):
    n_users, n_items, n_interactions = size
    X = make_interactions(
        *size,
        n_factors=n_factors,
        taste=taste,
        popularity=popularity,
        drift=drift if timestamps else 0.0,
        timestamps=timestamps,
        random_state=seed,
    )
    assert X.dtype == np.int64
    assert X.shape == (n_interactions, 2 + timestamps)
    assert len(np.unique(X[:, :2], axis=0)) == n_interactions
    assert_array_equal(np.unique(X[:, 0]), np.arange(n_users))
    assert X[:, 1].min() >= 0
    assert X[:, 1].max() < n_items
    assert len(np.unique(X[:, 1])) == n_items or n_interactions < n_items
    if timestamps:
        assert X[:, 2].min() >= FIRST_SECOND


def test_default_resembles_movielens_100k():
    # On the right of each: what MovieLens-100k has.
    # Users are as active as in make_ratings.
    X, (ratings, _) = make_interactions(random_state=0), make_ratings(random_state=0)
    per_user, per_item = (np.bincount(column) for column in X.T[:2])
    assert len(per_item) == 1682
    assert_array_equal(np.sort(per_user), np.sort(np.bincount(ratings[:, 0])))
    assert gini(per_item) == pytest.approx(0.629, abs=0.025)
    assert np.median(per_item) == pytest.approx(27, abs=6)
    assert per_item.max() == pytest.approx(583, rel=0.15)


def test_default_ranks_as_movielens_100k_does():
    X = make_interactions(random_state=0)
    popular, als = precision_at_10(X, last_fifth(X, np.random.RandomState(0).random(len(X))))
    assert popular == pytest.approx(0.193, abs=0.03)
    assert als == pytest.approx(0.360, abs=0.03)


@pytest.mark.full
def test_time_is_decoration_without_drift_and_matters_with_it():
    popular, als = {}, {}
    for drift in (0.0, 1.0, 2.0):
        X = make_interactions(drift=drift, random_state=0)
        popular[drift], als[drift] = precision_at_10(X, last_fifth(X, X[:, 2]))
    assert popular[0.0] == pytest.approx(0.179, abs=0.02)
    assert als[0.0] == pytest.approx(0.357, abs=0.02)
    assert popular[0.0] - 0.05 > popular[1.0] > popular[2.0] + 0.02
    assert als[0.0] - 0.05 > als[1.0] > als[2.0] + 0.05


def test_drift_moves_popularity_between_users_and_within_them():
    def change(X, early):
        """Return how far the distributions of items differ between `early` and the rest."""
        shares = [np.bincount(X[rows, 1], minlength=300) / sum(rows) for rows in (early, ~early)]
        return abs(shares[0] - shares[1]).sum()

    between, within = [], []
    for drift in (0.0, 2.0):
        X = make_interactions(300, 300, 20_000, drift=drift, random_state=0)
        arrival = np.full(300, np.iinfo(np.int64).max)
        np.minimum.at(arrival, X[:, 0], X[:, 2])
        between.append(change(X, arrival[X[:, 0]] < np.median(arrival)))
        within.append(change(X, ~last_fifth(X, X[:, 2])))
    assert between[1] > 1.5 * between[0]
    assert within[1] > 1.5 * within[0]


@pytest.mark.full
def test_taste_is_what_a_factor_model_gains_by():
    gains = []
    for taste in (0.0, 1.0, 2.0):
        X = make_interactions(taste=taste, random_state=0)
        test = last_fifth(X, np.random.RandomState(0).random(len(X)))
        popular, als = precision_at_10(X, test)
        gains.append(als - popular)
    assert gains[0] < 0 < gains[1] - 0.03 < gains[2] - 0.1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_users": 3, "n_items": 4, "n_interactions": 13}, "n_interactions=13 is more than"),
        ({"n_users": 10, "n_items": 4, "n_interactions": 9}, "n_users . min_interactions_per_us"),
        ({"min_interactions_per_user": 1683}, "min_interactions_per_user=1683 is more than"),
        ({"drift": 1.0, "timestamps": False}, "drift=1.0 needs timestamps"),
        ({"n_users": 0}, "n_users"),
        ({"n_factors": -1}, "n_factors"),
        ({"taste": -0.1}, "taste"),
        ({"drift": float("nan")}, "drift"),
        ({"popularity": float("inf")}, "popularity"),
        ({"random_state": "seed"}, "random_state"),
    ],
)
def test_bad_parameters_are_refused_before_any_work(parameters, message, monkeypatch):
    monkeypatch.setattr(generate, "check_random_state", None)
    with pytest.raises(ValueError, match=message):
        make_interactions(**parameters)
