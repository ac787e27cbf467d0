"""Mixins for the two kinds of models: of ratings and of preferences."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from fedrecsk import metrics
from fedrecsk._utils.sklearn_compat import safe_indexing
from fedrecsk.cluster import _frames
from fedrecsk.data import _checks
from fedrecsk.data.interactions import id_columns

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from sklearn.utils import Tags

    from fedrecsk.data.interactions import Interactions

# Number of rows of a score that are looked at for known users and items before all others.
ROWS_LOOKED_AT = 1000


class RatingMixin(RegressorMixin):
    """A model of ratings: y is required, and `score` is R^2."""

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Coefficient of determination R^2 of the predicted ratings.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Ratings.
        sample_weight : array-like of shape (n_samples,), default=None

        Returns
        -------
        r2 : float
            1 at best; 0 for a model that predicts the mean of y for all pairs.

        Raises
        ------
        ValueError
            If a rating or a weight is NaN, infinite or larger than 1e15.

        Warns
        -----
        UserWarning
            If the model knows at most a twentieth of the users, or of the items.
        """
        check_is_fitted(self)
        if _frames.is_frame(X):
            return _frames.on_workers(self, "score", X, y, sample_weight=sample_weight)
        table, ratings = self._checked(X, y)
        _checks.check_rows(ratings, None if sample_weight is None else np.asarray(sample_weight))
        known = SimpleNamespace(user_ids=self._users, item_ids=self._items)
        # As a rule the first rows have a known user and item, and all rows need not be read twice.
        for rows in (safe_indexing(table, slice(ROWS_LOOKED_AT), axis=0), table):
            users, items = id_columns(rows)
            codes = self._users.codes(users), self._items.codes(items)
            if all(map(metrics.are_known, codes)):
                break
        else:
            metrics.warn_if_unknown(known, users, codes[0], items, codes[1])
        return super().score(X, y, sample_weight)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # Shrinkage is strong by design: with one rating a user and item there is no signal.
        tags.regressor_tags.poor_score = True
        return tags


class RankingMixin:
    """A model of preferences: y is optional, and `score` is NDCG@10."""

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "recommender"
        return tags

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """NDCG@10 over the full catalogue, `item_ids_`.

        For each user of X, all items are ranked except those that the user had in fit; items of
        X are always ranked. Tied items count with the expectation over a random order, and
        unknown items as never found.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), default=None
            Relevance. Rows with y <= 0 are not relevant. None: all rows are.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, by which the relevance of the rows is multiplied.

        Returns
        -------
        ndcg : float
            Mean over all users with a relevant row, in [0, 1].

        Raises
        ------
        ValueError
            If no row is relevant.
        """
        check_is_fitted(self)
        if _frames.is_frame(X):
            return _frames.on_workers(self, "score", X, y, sample_weight=sample_weight)
        X, y = self._checked(X, y)
        return metrics.catalogue_ndcg(self, X, y, sample_weight)


def check_likes(data: Interactions) -> None:
    """Raise if there are no positives.

    Parameters
    ----------
    data : Interactions

    Raises
    ------
    ValueError
        If no row has y > 0.
    """
    if not (data.values > 0).any():
        raise ValueError(
            "No row of X has y > 0, so there are no positives. Pass y=None to count every row, "
            "or shift y so that positives are above 0."
        )
