"""Fits that are worse than what costs nothing say so."""

import warnings

import pytest
from sklearn.exceptions import ConvergenceWarning

from fedrecsk import Federation, LocALS, RFRec
from fedrecsk.attacks import SignFlip
from fedrecsk.datasets import make_ratings


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
        LocALS(n_rounds=1, reg_item=1e9, random_state=0).fit(X)
    with warnings.catch_warnings(action="error", category=ConvergenceWarning):
        LocALS(random_state=0).fit(X)
