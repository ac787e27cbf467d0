"""Nearest users, held equal to plain loops, and lists by popularity and by chance."""

import numpy as np
import pytest

from fedrecsk import Popularity, RandomRecommender, UserKNN
from tests.conftest import make_toy


def naive(X, weights, n_neighbors, histories):
    """Each history's preferences: the neighbours' votes, by the cosine of the weights."""
    items, users = np.unique(X[:, 1]), np.unique(X[:, 0])
    rows = np.zeros((len(users), len(items)))
    for (user, item), weight in zip(X, weights, strict=True):
        rows[np.searchsorted(users, user), np.searchsorted(items, item)] = weight
    found = {}
    for name, own in histories.items():
        cosines = []
        for other, row in zip(users, rows, strict=True):
            lengths = np.linalg.norm(own) * np.linalg.norm(row)
            cosines.append(0.0 if other == name else own @ row / lengths)
        nearest = sorted(range(len(users)), key=lambda one: -cosines[one])[:n_neighbors]
        total = sum(cosines[one] for one in nearest)
        found[name] = sum(cosines[one] / total * (rows[one] > 0) for one in nearest)
    return found, rows


@pytest.mark.parametrize("n_neighbors", [1, 4, 100])
def test_nearest_users_are_those_of_a_plain_loop(n_neighbors):
    X, _ = make_toy(n_users=13, n_items=12, density=0.4)
    X = X[np.lexsort(X.T[::-1])]
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(X))
    users = np.unique(X[:, 0])
    model = UserKNN(n_neighbors).fit(X, sample_weight=weights)
    _, rows = naive(X, weights, 1, {})
    newcomer = np.zeros(rows.shape[1])
    newcomer[[0, 3, 5]] = 1.0
    expected, _ = naive(
        X, weights, n_neighbors, dict(zip(users, rows, strict=True)) | {-7: newcomer}
    )
    model.fold_in([[-7, model.item_ids_[place]] for place in (0, 3, 5)])
    for user, scores in expected.items():
        pairs = [[user, item] for item in model.item_ids_]
        np.testing.assert_allclose(model.predict(pairs), scores, atol=1e-12)


def test_users_without_neighbours_get_what_is_popular():
    X = [["ann", "tea"], ["bob", "tea"], ["bob", "jam"], ["cat", "oil"]]
    model, popular = UserKNN().fit(X), Popularity().fit(X)
    pairs = [[user, item] for user in ("cat", "zoe") for item in ("tea", "jam", "oil", "ink")]
    np.testing.assert_array_equal(model.predict(pairs), popular.predict(pairs))


def test_lists_by_chance_are_the_floor():
    X, _ = make_toy(n_users=600, n_items=50, density=0.2)
    model = RandomRecommender(random_state=0).fit(X[::2])
    lists = model.recommend(model.user_ids_, 5, exclude_seen=False)[0]
    counts = np.unique(lists, return_counts=True)[1]
    # Every item is on a tenth of the lists, to five standard deviations.
    expected = len(lists) / 10
    assert len(counts) == 50
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)
    scores = np.sort(model.predict(X))
    # Of the distribution function of uniform numbers (Kolmogorov and Smirnov).
    assert np.abs(scores - np.arange(len(X)) / len(X)).max() < 2 / np.sqrt(len(X))


def test_popularity_counts_users_whose_preference_is_positive_by_weight():
    X = np.array([[1, 10], [1, 20], [2, 10], [3, 10], [3, 30], [4, 20]])
    model = Popularity().fit(X, [1, 1, 0, -1, 5, 1], sample_weight=[2, 1, 1, 1, 1, 1])
    assert model.predict([[1, 10], [1, 20], [1, 30]]) == pytest.approx([2 / 4, 2 / 4, 1 / 4])
    assert Popularity().fit(X).predict([[1, 10], [9, 30], [1, 99]]) == pytest.approx(
        [0.75, 0.25, 0]
    )
