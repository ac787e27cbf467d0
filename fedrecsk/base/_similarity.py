"""Neighbours: which items, and which users, have similar vectors."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Literal, overload

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from fedrecsk import metrics
from fedrecsk._utils.memory import batches
from fedrecsk._utils.parameters import checked, suggest
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.base._recommend import require_room, tidy
from fedrecsk.data.frames import library_of
from fedrecsk.data.ids import id_array, named

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike, NDArray
    from pandas import DataFrame


KINDS = {"n": [Interval(Integral, 1, None, closed="left")], "as_frame": ["boolean"]}


def _knows_items(model):
    return model._has_item_vectors or _lacks(model, "items", "ItemKNN, EASE")


def _knows_users(model):
    return model._has_user_vectors or _lacks(model, "users", "ImplicitALS, LocALS")


def _lacks(model, what, others):
    """Raise AttributeError, which says which models can compare."""
    raise AttributeError(
        f"{type(model).__name__} has no vectors of {what} to compare; use {others} or another "
        "model with factors."
    )


class Similarity:
    """`similar_items` and `similar_users`, for models with vectors."""

    # A model whose items are compared in another way has its own `_item_likeness`.
    _has_item_vectors = True
    _has_user_vectors = True

    if TYPE_CHECKING:

        @overload
        def similar_items(
            self, items: ArrayLike, n: int = 10, as_frame: Literal[False] = False
        ) -> tuple[NDArray[Any], NDArray[np.float64]]: ...
        @overload
        def similar_items(
            self, items: ArrayLike, n: int = 10, *, as_frame: Literal[True]
        ) -> DataFrame: ...
        @overload
        def similar_users(
            self, users: ArrayLike, n: int = 10, as_frame: Literal[False] = False
        ) -> tuple[NDArray[Any], NDArray[np.float64]]: ...
        @overload
        def similar_users(
            self, users: ArrayLike, n: int = 10, *, as_frame: Literal[True]
        ) -> DataFrame: ...

    @available_if(_knows_items)
    @suggest
    def similar_items(
        self, items: ArrayLike, n: int = 10, as_frame: bool = False
    ) -> tuple[NDArray[Any], NDArray[np.float64]] | DataFrame:
        """Find the items that are most similar to given ones.

        The similarity of two items is the cosine of their vectors, `item_factors_`, without
        biases and FedEB's last two columns. For binary codes this is 1 - 2 h / n_bits, where h is
        the Hamming distance. EASE and FedEASE have weights B instead of vectors: there it is the
        items' partial correlation given all other items, sign(B_ij) sqrt(B_ij B_ji).

        Parameters
        ----------
        items : array-like of shape (n_items,)
            Ids of items that the model knows.
        n : int, default=10
            Number of similar items to find for each. There are at most `n_items_` - 1, because
            the item itself is left out.
        as_frame : bool, default=False
            Whether to return a DataFrame: of polars if `items` are a Series of polars, otherwise
            of pandas.

        Returns
        -------
        similar : ndarray of shape (n_items, min(n, n_items_ - 1))
            Ids, most similar first; ties are resolved by the order of `item_ids_`.
        scores : ndarray of the same shape, dtype float64
            Similarities, in [-1, 1]. An item whose vector is zero has similarity 0 to all.
        frame : DataFrame
            With ``as_frame=True``, instead of the two arrays: columns `item`, `similar_item`,
            `score` and `rank`, which begins at 1.

        Raises
        ------
        AttributeError
            If the model has no vectors, as Popularity, BiasOnly and ensembles.
        ValueError
            If an item is unknown, n is below 1, the result does not fit into memory, or a vector is
            not finite.

        See Also
        --------
        recommend : Items for users.

        Examples
        --------
        >>> from fedrecsk import EASE
        >>> X = [["ann", "alien"], ["ann", "aliens"], ["bob", "alien"], ["bob", "aliens"],
        ...      ["cat", "emma"], ["cat", "persuasion"], ["dan", "emma"], ["dan", "aliens"]]
        >>> model = EASE(reg=1.0).fit(X)
        >>> items, scores = model.similar_items(["alien", "persuasion"], n=1)
        >>> items.tolist(), scores.round(2).tolist()
        ([['aliens'], ['emma']], [[0.61], [0.44]])
        """
        check_is_fitted(self)
        checked("similar_items", KINDS, n=n, as_frame=as_frame)
        library = library_of(items)
        items, codes = _known(self._items, items, "item", "leave unknown items out")
        found = _nearest(self._item_likeness(), codes, n, self._items, "items")
        return tidy(items, *found, ("item", "similar_item"), library) if as_frame else found

    @available_if(_knows_users)
    @suggest
    def similar_users(
        self, users: ArrayLike, n: int = 10, as_frame: bool = False
    ) -> tuple[NDArray[Any], NDArray[np.float64]] | DataFrame:
        """Find the users that are most similar to given ones. In simulations only.

        The similarity of two users is the cosine of their vectors, `user_factors_`. In a
        deployment each of these vectors stays on its user's client, so no party can compare them;
        FedFast's server is the exception. In a simulation all are in one place.

        Parameters
        ----------
        users : array-like of shape (n_users,)
            Ids of users that the model knows.
        n, as_frame
            As in `similar_items`: at most `n_users_` - 1 others for each.

        Returns
        -------
        similar : ndarray of shape (n_users, min(n, n_users_ - 1))
            Ids, most similar first; ties are resolved by the order of `user_ids_`.
        scores : ndarray of the same shape, dtype float64
            Similarities, in [-1, 1]. A user whose vector is zero has similarity 0 to all.
        frame : DataFrame
            As of `similar_items`, with columns `user` and `similar_user`.

        Raises
        ------
        AttributeError
            If the model has no vectors of users, as EASE, Popularity, BiasOnly and ensembles.
        ValueError
            As by `similar_items`.

        Examples
        --------
        >>> from fedrecsk import ImplicitALS
        >>> X = [["ann", "alien"], ["ann", "aliens"], ["bob", "alien"], ["bob", "aliens"],
        ...      ["cat", "emma"], ["cat", "persuasion"]]
        >>> model = ImplicitALS(n_factors=2, reg=0.1, random_state=0).fit(X)
        >>> model.similar_users(["ann"], n=1)[0].tolist()
        [['bob']]
        """
        check_is_fitted(self)
        checked("similar_users", KINDS, n=n, as_frame=as_frame)
        library = library_of(users)
        users, codes = _known(self._users, users, "user", "add new users by fold_in")
        likeness = _cosines(self._compared("user_factors_"), self._users, "user")
        found = _nearest(likeness, codes, n, self._users, "users")
        return tidy(users, *found, ("user", "similar_user"), library) if as_frame else found

    def _item_likeness(self):
        """Return a function from item codes to their similarities to all items, (n, n_items)."""
        return _cosines(self._compared("item_factors_"), self._items, "item")

    def _compared(self, name):
        vectors = getattr(self, name, None)
        if vectors is None:
            raise AttributeError(
                f"{type(self).__name__} has no {name}, so there are no vectors to compare."
            )
        return vectors


def _known(ids, asked, role, hint):
    """Return the given ids as an array, and their codes."""
    asked = id_array(asked, f"{role}s")
    codes = ids.codes(asked) if len(asked) else np.empty(0, dtype=np.int64)
    unknown = asked[codes < 0]
    if len(unknown):
        raise ValueError(f"The model does not know {named(role, np.unique(unknown))}; {hint}.")
    return asked, codes


def _cosines(vectors, ids, role):
    """Return a function from codes to the cosines with all vectors, (n, n_vectors)."""
    vectors = np.asarray(vectors)
    # Twice, so that squares of very large or very small numbers do not become infinite or 0.
    unit = vectors if vectors.dtype.kind == "f" else vectors.astype(np.float32)
    for order in (np.inf, 2):
        sizes = np.linalg.norm(unit, ord=order, axis=1)
        if not np.isfinite(sizes).all():
            raise ValueError(
                f"The vector of {named(role, ids.values[~np.isfinite(sizes)])} is not finite, so "
                "nothing is similar to it; did the fit diverge?"
            )
        unit = unit / np.where(sizes > 0, sizes, 1)[:, None]

    def likeness(codes):
        return np.clip(unit[codes] @ unit.T, -1, 1)

    return likeness


def _nearest(likeness, codes, n, ids, what):
    """Return ids and similarities of the n nearest others, nearest first."""
    n_nearest = int(min(n, len(ids) - 1))
    require_room(
        len(codes),
        n_nearest,
        ids.values.itemsize,
        f"{n_nearest} similar {what} for each of {len(codes)} {what}",
        f"Lower n, or pass a part of the {what} at a time.",
    )
    nearest = np.empty((len(codes), n_nearest), dtype=np.int64)
    scores = np.empty(nearest.shape)
    for batch in batches(len(codes), len(ids)):
        board = likeness(codes[batch])
        board[np.arange(len(board)), codes[batch]] = -np.inf
        nearest[batch] = metrics.top_k(board, n_nearest) if n_nearest else 0
        scores[batch] = np.take_along_axis(board, nearest[batch], axis=1)
    return ids.values[nearest], scores
