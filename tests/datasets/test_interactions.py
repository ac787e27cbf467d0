import numpy as np
import pytest
from numpy.testing import assert_array_equal

from fedrecsk import ImplicitALS, Popularity
from fedrecsk.datasets import generate, make_interactions, make_ratings
from fedrecsk.metrics import evaluate_ranking
from tests.datasets.test_generate import gini


def last_fifth(X, turns):
    """Mark the last fifth of each user's rows in order of `turns`."""
    order = np.lexsort((turns, X[:, 0]))
    n_per_user = np.bincount(X[:, 0])
    rank = np.empty(len(X))
    rank[order] = np.arange(len(X)) - np.repeat(np.cumsum(n_per_user) - n_per_user, n_per_user)
    return rank >= np.round(0.8 * n_per_user[X[:, 0]])


def precision_at_10(X, test):
    """Return the precision of recommending by popularity, and by implicit ALS."""
    als = ImplicitALS(20, alpha=2, reg=0.1, n_epochs=8, item_bias=False, random_state=0)
    return [
        evaluate_ranking(model.fit(X[~test]), X[test], metrics="precision")["precision@10"]
        for model in (Popularity(), als)
    ]


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
    for drift in (0.0, 1.0):
        X = make_interactions(drift=drift, random_state=0)
        popular[drift], als[drift] = precision_at_10(X, last_fifth(X, X[:, 2]))
    assert popular[0.0] == pytest.approx(0.179, abs=0.02)
    assert als[0.0] == pytest.approx(0.357, abs=0.02)
    assert popular[0.0] - 0.05 > popular[1.0]
    assert als[0.0] - 0.05 > als[1.0]


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
        ({"drift": 1.0, "timestamps": False}, "drift=1.0 needs timestamps"),
        ({"taste": -0.1}, "taste"),
    ],
)
def test_bad_parameters_are_refused_before_any_work(parameters, message, monkeypatch):
    monkeypatch.setattr(generate, "check_random_state", None)
    with pytest.raises(ValueError, match=message):
        make_interactions(**parameters)
