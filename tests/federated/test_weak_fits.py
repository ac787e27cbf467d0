"""Fits that are worse than what costs nothing say so."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from fedrecsk import BiasOnly, Federation, LocALS, RFRec
from fedrecsk.attacks import SignFlip
from fedrecsk.data.interactions import encode
from fedrecsk.datasets import make_ratings
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.simulation.weak_fits import _areas, _errors, warn_if_weak


@pytest.fixture(scope="module")
def many():
    X, y = make_ratings(n_users=300, n_items=200, n_ratings=20_000, random_state=0)
    return X[:, :2], y


def test_too_few_rounds_are_worse_than_biases(many):
    X, y = many
    with pytest.warns(ConvergenceWarning, match="RFRec predicts .* worse than biases alone"):
        RFRec(n_rounds=2, random_state=0).fit(X, y)
    with warnings.catch_warnings(action="error", category=ConvergenceWarning):
        RFRec(random_state=0).fit(X, y)
        RFRec(n_rounds=2, random_state=0).fit(X[:5000], y[:5000])
        # In a study of attacks the reason is known.
        attacked = Federation(adversary=SignFlip(0.1))
        RFRec(n_rounds=2, federation=attacked, random_state=0).fit(X, y)


def test_a_useless_ranking_is_worse_than_popularity(many):
    X, _ = many
    with pytest.warns(ConvergenceWarning, match="LocALS predicts .* worse than popularity alone"):
        LocALS(20, n_rounds=1, reg_item=1e9, random_state=0).fit(X)
    with warnings.catch_warnings(action="error", category=ConvergenceWarning):
        LocALS(random_state=0).fit(X)


def test_the_numbers_are_those_of_sums_that_one_can_check(many):
    X, y = many
    data = encode(X, y)
    owners, users = np.repeat(np.arange(data.n_users), np.diff(data.indptr)), np.arange(50)
    rows = np.flatnonzero(owners < 50)
    model = RFRec(n_rounds=3, random_state=0).fit(X, y)
    ours, simple = _errors(model, data, owners, rows)
    pairs = np.column_stack([data.user_ids.values[owners], data.item_ids.values[data.items]])[rows]
    wrong = model.predict(pairs) - data.values[rows]
    np.testing.assert_allclose(ours, np.sqrt(np.mean(wrong**2)))
    wrong = BiasOnly().fit(X, y).predict(pairs) - data.values[rows]
    np.testing.assert_allclose(simple, np.sqrt(np.mean(wrong**2)), rtol=0.05)
    ranker = LocALS(random_state=0).fit(X)
    ours, _ = _areas(ranker, encode(X), users, owners, rows)
    with warnings.catch_warnings(action="ignore"):
        expected = evaluate_ranking(ranker, pairs, metrics="auc", exclude_seen=False)["auc"]
    np.testing.assert_allclose(ours, expected)
    assert warn_if_weak(ranker, encode(X)) is None
