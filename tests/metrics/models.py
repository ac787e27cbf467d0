"""Recommenders whose scores are given, so that tests know them."""

from typing import ClassVar

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator

from fedrecsk.base import RankingMixin, Recommender
from fedrecsk.models import Scores


def score(user, item):
    """A score in 0..3 with many ties, of numeric ids."""
    return float((7 * int(user) + 3 * int(item) + int(user) * int(item)) % 4)


class Given(RankingMixin, Recommender):
    """Ours: scores pairs by :func:`score`, unknown users as user 0."""

    _parameter_constraints: ClassVar[dict] = {}

    def __init__(self, offset=0.0):
        self.offset = offset

    def _fit(self, data, report):
        return {}

    def _new_user_attributes(self, data):
        return {}

    def _model(self):
        scores = {"pairs": self._score_pairs, "board": self._score_all}
        return Scores(n_items=self.n_items_, **scores)

    def _score_all(self, users):
        table = [
            [score(self.user_ids_[u] if u >= 0 else 0, i) for i in self.item_ids_] for u in users
        ]
        return np.array(table).reshape(len(users), self.n_items_) + self.offset

    def _score_pairs(self, users, items):
        return self._score_all(users)[np.arange(len(users)), items]


class Peer(BaseEstimator):
    """Another library's: the public convention and nothing else, items in an order of its own."""

    def __init__(self, remembers=True):
        self.remembers = remembers

    def fit(self, X, y=None):
        X = np.asarray(X)
        self.user_ids_, users = np.unique(X[:, 0], return_inverse=True)
        items, first, codes = np.unique(X[:, 1], return_index=True, return_inverse=True)
        order = np.argsort(first)
        self.item_ids_ = items[order]
        if self.remembers:
            ones = np.ones(len(X))
            self.interactions_ = sparse.csr_array((ones, (users, np.argsort(order)[codes])))
        return self

    def predict(self, X):
        return np.array([score(user, item) for user, item in X])

    def recommend(self, users, n_recommendations=10, *, candidates=None, exclude_seen=True):
        raise AssertionError("scorers rank by predict")
