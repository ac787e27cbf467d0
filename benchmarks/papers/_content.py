"""DCF and DDL as the papers' tables need them: item features, and negatives for rankings."""

from __future__ import annotations

import numpy as np
from sklearn.base import BaseEstimator, clone

from benchmarks.ddl import RANKING, audience, genres, with_negatives


class Coded(BaseEstimator):
    """A code model with item features, or with unrated items as negatives.

    Parameters
    ----------
    model : DCF or DDL
    content : {None, "audience", "genres 1m", "genres 100k"}, default=None
        Features of DDL, as in :mod:`benchmarks.ddl`.
    negatives : bool, default=False
        Whether it is fitted to all rows as 1 and as many unrated items as 0, instead of ratings.
    random_state : int, default=0
    """

    def __init__(self, model, content=None, negatives=False, random_state=0):
        self.model = model
        self.content = content
        self.negatives = negatives
        self.random_state = random_state

    def __sklearn_tags__(self):
        tags = self.model.__sklearn_tags__()
        tags.target_tags.required = not self.negatives
        return tags

    def fit(self, X, y=None):
        """Fit the model to ratings, or to positives and negatives."""
        items = np.unique(X[:, 1])
        inner = clone(self.model).set_params(random_state=self.random_state, items=items)
        if self.content is not None:
            inner.set_params(item_features=self._features(X, items))
        if self.negatives:
            X, y = with_negatives(X, self.random_state)
            inner.set_params(**RANKING)
        self.fitted_ = inner.fit(X, y)
        self.user_ids_, self.item_ids_ = inner.user_ids_, inner.item_ids_
        return self

    def _features(self, X, items):
        if self.content == "audience":
            return audience(X, items)
        return genres(self.content.removeprefix("genres "), items)

    def predict(self, X):
        """What the model predicts; for unknown items, less than for any other."""
        unknown = ~np.isin(X[:, 1], self.item_ids_)
        low, high = self.fitted_.rating_scale_
        return np.where(unknown, low - (high - low), self.fitted_.predict(X))
