"""The parameter `item_features`: a prior of the items' vectors, and new items by `add_items`.

The prior is a Bayesian ridge regression of the vectors on the features, of strength learned.
"""

from __future__ import annotations

import copy
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from fedrecsk._utils.constraints import ArrayLike, SparseMatrix
from fedrecsk.data import item_features as reading
from fedrecsk.data.ids import named

# Most directions of the features that are used; all, if there are no more columns.
RANK = 256
# Steps by which they are found, if there are more.
POWER_STEPS = 4
# Directions whose singular value is below this share of the largest are rounding.
ROUNDING = 1e-6
# Ratios of the variance of what features do not explain to that of a coefficient, as shares of the
# mean squared singular value: among these the most likely one is chosen.
RATIOS = np.logspace(-4, 6, 61)
# Numbers of ratings at which an item counts half of one with very many: for the prior of known
# items; and for what new items are like, whose ratings are mostly of popular ones, in mean numbers
# of ratings. See user_guide/content.md.
HALF_OF_KNOWN, HALF_OF_NEW = 20.0, 10.0
# Number of ratings at which a penalty towards 0 halves an item's vector.
SHRINKAGE = 10.0


@dataclass(eq=False, repr=False)
class ItemContent:
    """`item_features` and `add_items`: the ItemPrior of a fit becomes its attribute `_content`."""

    _: KW_ONLY
    item_features: ArrayLike | SparseMatrix | None = None

    # Whether features must be in [0, 1].
    _bounds_features = False
    # Arrays with a row for each item (`_rows_of_items`) that features predict, and those that are 0
    # for an item without ratings.
    _predicted: ClassVar[tuple[str, ...]] = ("item_factors_", "item_bias_")
    _absent: ClassVar[tuple[str, ...]] = ()

    def add_items(self: Any, features: ArrayLike, items: ArrayLike | None = None) -> Self:
        """Add items that were not in fit, by their features, without retraining.

        Their vectors are predicted from their features. They are scored and recommended at once,
        and `fold_in` accepts their rows. Clients send nothing, and nothing else in the model
        changes.

        Parameters
        ----------
        features : DataFrame, array or sparse matrix of shape (n_new_items, n_features)
            The columns of `item_features`. The index of a DataFrame (polars: the first column)
            holds the item ids.
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
                f"This {type(self).__name__} was fitted without item_features, so it cannot score "
                "new items; fit it with item_features."
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
        self._take_items(self._items.followed_by(ids), self._with_items(rows))
        parts = getattr(self, "_parts", None)
        if parts is not None:
            self._parts = parts.after(_with_new_items, features, items)
        return self

    # --------------------------------------------------------------- what a method may change

    def _knows_content(self):
        """Return whether features predict anything."""
        return getattr(self, "_content", None) is not None

    def _with_items(self: Any, rows):
        """Return the fitted attributes that change if items with these features are added."""
        longer = {}
        for name, old in self._rows_of_items().items():
            if name in (*self._predicted, *self._absent):
                new = self._new_rows(old, rows, name in self._predicted)
                longer[name] = np.concatenate([old, new])
        return self._with_rows_of_items(longer)

    # ------------------------------------------------------------------------ what it needs

    def _new_rows(self, old, rows, predict=True):
        """Return rows of an array by items, for items with these features."""
        if not predict:
            return np.zeros((rows.shape[0], *old.shape[1:]), old.dtype)
        known = old[: len(self._content.n_ratings)]
        new = self._content.predicted(known.reshape(len(known), -1), rows)
        return new.reshape(-1, *old.shape[1:]).astype(old.dtype)

    @property
    def _item_content(self: Any):
        return ItemFeatures(self.item_features, self.items)

    def _with_content(self, attributes, n_ratings, shrunk=True):
        """Return a centralised model's attributes with what features say of its items."""
        prior = self._item_content.prior(n_ratings)
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


def _with_new_items(model, features, items):
    """Return a copy of a model to which items have been added."""
    return copy.copy(model).add_items(features, items)


@dataclass(eq=False, repr=False)
class WeightsContent(ItemContent):
    """`item_features` of weights between items: those to and from new items are predicted."""

    def _with_items(self: Any, rows):
        weights = self.item_weights_
        weights = np.hstack([weights, self._new_rows(weights.T, rows).T])
        weights = np.vstack([weights, self._new_rows(weights, rows)])
        np.fill_diagonal(weights, 0)
        known = self._popularity
        new = np.clip(self._new_rows(known, rows), 0, 1)
        attributes = {"item_weights_": weights, "_popularity": np.concatenate([known, new])}
        return attributes | longer_histories(self, len(weights))


def longer_histories(model: Any, n_items: int) -> dict[str, Any]:
    """Return the attribute `user_history_` with room for new items, if the users are here."""
    if not hasattr(model, "user_history_"):  # they are on a cluster
        return {}
    history = model.user_history_
    content = history.data, history.indices, history.indptr
    return {"user_history_": sparse.csr_array(content, shape=(history.shape[0], n_items))}


def filled_weights(prior: ItemPrior, weights: Any) -> Any:
    """Return weights with those of items without ratings as features predict them."""
    weights = prior.filled(prior.filled(weights.T).T)
    np.fill_diagonal(weights, 0)
    return weights


# ------------------------------------------------------------------------------ the prior


class ItemFeatures(NamedTuple):
    """`item_features` as given, and the catalogue, if it is given too."""

    features: Any
    items: Any

    def prior(self, n_ratings: Any) -> ItemPrior | None:
        """Return the prior of items' vectors, by their numbers of ratings; None without any."""
        if self.features is None:
            return None
        return ItemPrior(reading.aligned(self.features, self.items), n_ratings)


class ItemPrior:
    """What items' features say about their vectors, of known items and of new ones."""

    def __init__(self, features: Any, n_ratings: Any) -> None:
        # Numbers of ratings, or their total weight; with 0, nothing is known of a vector.
        self.n_ratings: NDArray[np.float64] = np.maximum(np.asarray(n_ratings, dtype=float), 0)
        self.scaling: tuple[Any, Any] = scaling(features)
        design = scaled(features, *self.scaling)
        # Every known item has the prior; new items are met as often as they are popular.
        mean = self.n_ratings.sum() / max(np.count_nonzero(self.n_ratings), 1) or 1.0
        self._of_known, self._of_new = (
            Regression(design, self.n_ratings / (self.n_ratings + half))
            for half in (HALF_OF_KNOWN, HALF_OF_NEW * mean)
        )

    def means(self, vectors: Any) -> NDArray[np.float64]:
        """Return the prior means of all items' vectors, given the vectors."""
        return self._of_known.means(vectors)

    def lost(self, vectors: Any) -> NDArray[np.float64]:
        """Return the share of the prior means that a penalty towards 0 takes from the vectors."""
        return (SHRINKAGE / (self.n_ratings + SHRINKAGE))[:, None] * self.means(vectors)

    def predicted(self, vectors: Any, features: Any) -> NDArray[np.float64]:
        """Return what to expect of vectors of new items with these features."""
        return self._of_new.means(vectors, scaled(features, *self.scaling))

    def directions(self, most: int) -> NDArray[np.float64]:
        """Return items' coordinates in the main directions of the features, of mean square 1."""
        kind = self._of_known
        right = kind._directions[2][:most].T
        found = kind.design @ right - kind._mean @ right
        share = self.n_ratings / (self.n_ratings.sum() or 1)
        return found / np.sqrt(max(share @ (found**2).sum(axis=1), ROUNDING))

    def completed(self, vectors: Any) -> Any:
        """Return vectors that were shrunk to 0 as if to their prior means, and of new items too.

        A penalty that shrinks an item of n ratings to 0 by s / (n + s), would shrink it
        to its prior mean by as much: the sum of both.
        """
        wide = vectors.reshape(len(vectors), -1)
        return self.filled(wide + self.lost(wide)).astype(vectors.dtype).reshape(vectors.shape)

    def filled(self, vectors: Any) -> Any:
        """Return the vectors with those of items without ratings as if these were new."""
        wide, unknown = vectors.reshape(len(vectors), -1), (self.n_ratings == 0)[:, None]
        filled = np.where(unknown, self._of_new.means(wide), wide)
        return filled.astype(vectors.dtype).reshape(vectors.shape)


class Regression:
    """Bayesian ridge regression of vectors on features: ``v_i ~ N(a + A' x_i, s / w_i)``.

    Each column of the vectors has coefficients ``A_k ~ N(0, t_k)`` of its own, an intercept without
    a prior, and the ratio ``s_k / t_k`` at which the vectors are most likely (empirical Bayes).
    The items' weights w are 0 for vectors that say nothing.
    """

    def __init__(self, design: Any, weights: Any) -> None:
        self.design: Any = design
        self.weights: NDArray[np.float64] = weights
        self._mean: Any = design.T @ weights / (weights.sum() or 1)
        self._directions: Any = decompose(design, self._mean, np.sqrt(weights))

    def means(self, vectors: Any, design: Any = None) -> NDArray[np.float64]:
        """Return the expected vectors of the items, or of others by their rows of the design."""
        intercepts, coefficients = self.coefficients(np.asarray(vectors, dtype=np.float64))
        return intercepts + (self.design if design is None else design) @ coefficients

    def coefficients(self, vectors: Any) -> tuple[Any, Any]:
        """Return the intercepts (width,) and coefficients (n_features, width)."""
        left, sizes, right = self._directions
        mean = self.weights @ vectors / (self.weights.sum() or 1)
        if not len(sizes):
            return mean, np.zeros((len(self._mean), len(mean)))
        targets = np.sqrt(self.weights)[:, None] * (vectors - mean)
        n = np.count_nonzero(self.weights)
        found = shrunk(sizes, left.T @ targets, (targets**2).sum(axis=0), n)
        coefficients = right.T @ found
        return mean - self._mean @ coefficients, coefficients


def shrunk(sizes: Any, projected: Any, squared: Any, n: float) -> Any:
    """Return ridge coefficients by `n` targets along singular vectors, and their squares' sum."""
    squares = sizes[:, None] ** 2
    # Of columns that are 0 everywhere, any ratio will do.
    rest = np.maximum(squared, np.finfo(float).tiny)
    ratios = RATIOS * squares.mean()
    loss = [
        n * np.log(rest - (projected**2 * (squares / (squares + ratio))).sum(axis=0))
        + np.log1p(squares / ratio).sum()
        for ratio in ratios
    ]
    ratio = ratios[np.argmin(loss, axis=0)]
    return sizes[:, None] / (squares + ratio) * projected


def scaling(features: Any) -> tuple[Any, Any]:
    """Return what is subtracted from columns beyond [-1, 1], and twice their deviation."""
    extremes = abs(features).max(axis=0)
    largest = extremes.toarray().ravel() if sparse.issparse(extremes) else extremes
    wide = np.asarray(largest > 1)
    mean = np.asarray(features.mean(axis=0)).ravel()
    squares = features.multiply(features) if sparse.issparse(features) else features**2
    variance = np.asarray(squares.mean(axis=0)).ravel() - mean**2
    spread = 2 * np.sqrt(np.maximum(variance, 0))
    constant = spread <= ROUNDING * np.maximum(1, largest)
    divisor = np.where(wide & ~constant, spread, np.where(wide, largest, 1))
    return mean * wide, divisor


def scaled(features: Any, mean: Any, divisor: Any) -> Any:
    """Return scaled columns; sparse ones are not shifted."""
    if sparse.issparse(features):
        return features @ sparse.diags_array(1 / divisor)
    return (features - mean) / divisor


def decompose(design: Any, mean: Any, root: Any) -> Any:
    """Return the singular value decomposition of the weighted and centred design, cut off."""

    def times(x):
        return root[:, None] * (design @ x - mean @ x)

    def back(y):
        y = root[:, None] * y
        return design.T @ y - np.outer(mean, y.sum(axis=0))

    if min(design.shape) <= 2 * RANK:
        dense = design.toarray() if sparse.issparse(design) else design
        left, sizes, right = np.linalg.svd(root[:, None] * (dense - mean), full_matrices=False)
    else:
        # Subspace iteration (Halko, Martinsson, Tropp 2011, algorithm 4.4).
        basis = np.random.default_rng(0).standard_normal((design.shape[1], RANK + 10))
        for _ in range(1 + POWER_STEPS):
            image = np.linalg.qr(times(basis))[0]
            basis = np.linalg.qr(back(image))[0]
        turn, sizes, right = np.linalg.svd(back(image).T, full_matrices=False)
        left = image @ turn
    order = np.argsort(-sizes)[:RANK]
    order = order[sizes[order] > ROUNDING * sizes.max(initial=0)]
    return left[:, order], sizes[order], right[order]
