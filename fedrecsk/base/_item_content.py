"""The parameter `item_features`: a prior of the items' vectors, and new items by `add_items`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from fedrecsk.base._item_prior import ItemPrior
from fedrecsk.data import item_features as reading
from fedrecsk.data.interactions import named

if TYPE_CHECKING:
    from typing import Any, Self

    from numpy.typing import ArrayLike


@dataclass(eq=False, repr=False)
class ItemContent:
    """The parameter `item_features`, and `add_items`.

    A method makes an ItemPrior by `_item_prior`, uses its means where it trains, and returns it as
    the fitted attribute `_content`.
    """

    _: KW_ONLY
    item_features: ArrayLike | None = None

    _content_constraints: ClassVar[dict] = {"item_features": ["array-like", "sparse matrix", None]}

    # Whether features must be in [0, 1].
    _bounds_features = False
    # Fitted attributes with a row for each item that features predict, and those that are 0 for
    # an item without ratings.
    _predicted: ClassVar[tuple[str, ...]] = ("item_factors_", "item_bias_")
    _absent: ClassVar[tuple[str, ...]] = ()

    def add_items(self: Any, features: ArrayLike, items: ArrayLike | None = None) -> Self:
        """Add items that were not in fit, by their features, without retraining.

        Their vectors are what the fitted model expects of items with such features. They are
        predicted and recommended at once, and `fold_in` takes rows of them. Nothing is sent by
        clients, and nothing else in the model changes.

        Parameters
        ----------
        features : DataFrame, array or sparse matrix of shape (n_new_items, n_features)
            The columns of `item_features`. A DataFrame has the items' ids as its index.
        items : array-like of shape (n_new_items,), default=None
            Ids of the rows of an array or a sparse matrix, in their order.

        Returns
        -------
        self : object
            With these items at the end of `item_ids_`.

        Raises
        ------
        ValueError
            If the model was fitted without `item_features`, an item is known already, columns
            are not those of fit, or features are not as `item_features` must be.

        Examples
        --------
        >>> import pandas as pd
        >>> from fedrecsk import FedEB
        >>> from fedrecsk.datasets import make_ratings
        >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
        >>> features = pd.DataFrame({"long": [0, 1] * 20, "year": range(1980, 2020)})
        >>> model = FedEB(n_factors=4, n_rounds=20, item_features=features, random_state=0)
        >>> new = pd.DataFrame({"long": [1], "year": [2020]}, index=[77])
        >>> model = model.fit(X, y).add_items(new)
        >>> model.recommend([3], candidates=[77])[0].tolist()
        [[77]]
        """
        check_is_fitted(self)
        if not self._knows_content():
            raise ValueError(
                f"This {type(self).__name__} was fitted without item_features, so it knows nothing "
                "of new items; fit it with item_features."
            )
        rows = reading.aligned(features, items, bounded=self._bounds_features)
        ids = reading.ids_of(features, items)
        known = self._items.codes(ids) >= 0
        if known.any():
            raise ValueError(
                f"The model knows {named('item', ids[known])} already; add_items takes new items "
                "only, so leave these rows out."
            )
        reading.check_columns_alike(features, self._feature_columns)
        attributes = self._with_items(rows)
        grown = self._items.followed_by(ids)
        vars(self).update(attributes, _items=grown, item_ids_=grown.values.copy())
        self.n_items_ = len(grown)
        return self

    # --------------------------------------------------------------- what a method may change

    def _knows_content(self):
        """Return whether features predict anything."""
        return getattr(self, "_content", None) is not None

    def _with_items(self: Any, rows):
        """Return the fitted attributes that change if items with these features are added."""
        attributes = {}
        for names, predict in ((self._predicted, True), (self._absent, False)):
            for name in names:
                if hasattr(self, name):
                    old = getattr(self, name)
                    attributes[name] = np.concatenate([old, self._new_rows(old, rows, predict)])
        return attributes

    # ------------------------------------------------------------------------ what it needs

    def _new_rows(self, old, rows, predict=True):
        """Return rows of an array by items, for items with these features."""
        if not predict:
            return np.zeros((rows.shape[0], *old.shape[1:]), old.dtype)
        known = old[: len(self._content.n_ratings)]
        new = self._content.predicted(known.reshape(len(known), -1), rows)
        return new.reshape(-1, *old.shape[1:]).astype(old.dtype)

    def _item_prior(self: Any, n_ratings):
        """Return the prior of items' vectors, by their numbers of ratings, or None."""
        if self.item_features is None:
            return None
        features = reading.aligned(self.item_features, self.items)
        return ItemPrior(features, n_ratings)

    def _with_content(self, attributes, n_ratings, shrunk=True):
        """Return a centralised model's attributes with what features say of its items."""
        prior = self._item_prior(n_ratings)
        if prior is None:
            return attributes
        complete = prior.completed if shrunk else prior.filled
        names = [name for name in self._predicted if name in attributes]
        return attributes | {n: complete(attributes[n]) for n in names} | {"_content": prior}

    def _learn(self: Any, data, report, fit):
        vars(self).pop("_content", None)
        super()._learn(data, report, fit)  # pyright: ignore[reportAttributeAccessIssue]
        if self.item_features is not None:
            self._feature_columns = reading.columns_of(self.item_features)
        return self

    def _catalogue(self: Any):
        if self.items is None and reading.has_ids(self.item_features):
            return reading.catalogue_of(self.item_features)
        return super()._catalogue()  # pyright: ignore[reportAttributeAccessIssue]

    def _check_before_fit(self: Any):
        super()._check_before_fit()  # pyright: ignore[reportAttributeAccessIssue]
        if self.item_features is not None:
            reading.aligned(self.item_features, self.items, bounded=self._bounds_features)


@dataclass(eq=False, repr=False)
class WeightsContent(ItemContent):
    """`item_features` of weights between items: those to and from new items are predicted."""

    @staticmethod
    def _filled_weights(prior, weights):
        """Return weights with those of items without ratings as features predict them."""
        weights = prior.filled(prior.filled(weights.T).T)
        np.fill_diagonal(weights, 0)
        return weights

    def _with_items(self: Any, rows):
        weights, history = self.item_weights_, self.user_history_
        weights = np.hstack([weights, self._new_rows(weights.T, rows).T])
        weights = np.vstack([weights, self._new_rows(weights, rows)])
        np.fill_diagonal(weights, 0)
        shape = history.shape[0], len(weights)
        history = sparse.csr_array((history.data, history.indices, history.indptr), shape=shape)
        return {"item_weights_": weights, "user_history_": history}
