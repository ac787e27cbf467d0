"""Recommend items to users, known or added without retraining, and find similar items and users."""

from __future__ import annotations

import copy
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from fedrecsk import metrics
from fedrecsk._utils import memory
from fedrecsk._utils.memory import batches
from fedrecsk._utils.parameters import checked, suggest
from fedrecsk._utils.sklearn_compat import Interval, safe_indexing
from fedrecsk._utils.user_warnings import warn
from fedrecsk.cluster import _frames
from fedrecsk.data.frames import library_of, make_frame
from fedrecsk.data.ids import Ids, id_array, missing_id, named
from fedrecsk.data.interactions import as_table, id_columns, runs

if TYPE_CHECKING:
    from pandas import DataFrame

# Lists that take more bytes than this are checked against the available memory.
UNCHECKED_BYTES = 2**28
KINDS = {
    "n_recommendations": [Interval(Integral, 1, None, closed="left")],
    "exclude_seen": ["boolean"],
    "as_frame": ["boolean"],
}
NEIGHBOUR_KINDS = {"n": [Interval(Integral, 1, None, closed="left")], "as_frame": ["boolean"]}


def require_room(n_rows, n_columns, itemsize, what, hint):
    """Raise if lists of ids (of `itemsize` bytes each) and scores do not fit into memory."""
    nbytes = n_rows * n_columns * (16 + itemsize)
    if nbytes > UNCHECKED_BYTES:
        memory.require(nbytes, what, hint)


def tidy(owners, ids, scores, names, library):
    """Return a table with one row per id whose score is not -inf: owner, id, score and rank."""
    rows, places = np.nonzero(scores > -np.inf)
    columns = owners[rows], ids[rows, places], scores[rows, places], places + 1
    return make_frame(dict(zip((*names, "score", "rank"), columns, strict=True)), library)


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


class Recommends:
    """`recommend`, `fold_in`, `similar_items` and `similar_users`."""

    # A model whose items are compared in another way has its own `_item_likeness`.
    _has_item_vectors = True
    _has_user_vectors = True

    if TYPE_CHECKING:
        # What `fit` sets.
        user_ids_: np.ndarray
        item_ids_: np.ndarray
        n_users_: int
        n_items_: int
        n_features_in_: int
        _users: Ids
        _items: Ids
        _seen: tuple[np.ndarray, np.ndarray]
        # Of models of factors and biases.
        user_factors_: np.ndarray
        item_factors_: np.ndarray
        user_bias_: np.ndarray
        item_bias_: np.ndarray
        global_bias_: float
        rating_scale_: tuple[float, float]

        @overload
        def recommend(
            self,
            users: ArrayLike,
            n_recommendations: int = 10,
            *,
            exclude_seen: bool = True,
            candidates: ArrayLike | None = None,
            interactions: ArrayLike | tuple[Any, ...] | None = None,
            exclude_interactions: ArrayLike | None = None,
            as_frame: Literal[False] = False,
        ) -> tuple[NDArray[Any], NDArray[np.float64]]: ...
        @overload
        def recommend(
            self,
            users: ArrayLike,
            n_recommendations: int = 10,
            *,
            exclude_seen: bool = True,
            candidates: ArrayLike | None = None,
            interactions: ArrayLike | tuple[Any, ...] | None = None,
            exclude_interactions: ArrayLike | None = None,
            as_frame: Literal[True],
        ) -> DataFrame: ...

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

    @suggest
    def recommend(
        self,
        users: ArrayLike,
        n_recommendations: int = 10,
        *,
        exclude_seen: bool = True,
        candidates: ArrayLike | None = None,
        interactions: ArrayLike | tuple[Any, ...] | None = None,
        exclude_interactions: ArrayLike | None = None,
        as_frame: bool = False,
    ) -> tuple[NDArray[Any], NDArray[np.float64]] | DataFrame:
        """Recommend items to users, best first.

        Parameters
        ----------
        users : array-like of shape (n_users,) or (n_users, n_columns)
            Ids, or a table with the ids in column 0. For unknown users see Notes.
        n_recommendations : int, default=10
            Number of recommendations per user, at most the number of items to choose from. If a
            user has fewer items left, the rest is filled up as described under `items`.
        exclude_seen : bool, default=True
            Whether to leave out the items of the user's own interactions.
        candidates : array-like of shape (n_candidates,), default=None
            Ids of the items to choose from. If None, the whole catalogue, `item_ids_`.
        interactions : array-like or tuple (X, y), default=None
            Whole histories of new or known users, in the form that `fit` takes. For this call only,
            these users are added as by ``fold_in(X, y, replace=True)``. Rating models need the
            tuple.
        exclude_interactions : array-like of shape (n_pairs, 2), default=None
            Further (user, item) pairs that must not be recommended, such as interactions since
            fit. Pairs with other users or unknown items are ignored.
        as_frame : bool, default=False
            Whether to return a DataFrame: of polars if `users` are a DataFrame or Series of
            polars, otherwise of pandas.

        Returns
        -------
        items : ndarray of shape (n_users, min(n_recommendations, n_candidates))
            Ids; ties are resolved by the order of `item_ids_`. Empty places come last. They hold
            -1 if ids are integers (the largest number if these are unsigned), NaN if ids are
            floats and "" if they are strings. To recognise them for certain, look for -inf in
            `scores`.
        scores : ndarray of the same shape, dtype float64
            The values of `predict` for these pairs; -inf in empty places. Items are ranked before
            scores are clipped to the rating scale, so items may tie at its end.
        frame : DataFrame
            With ``as_frame=True``, instead of the two arrays: one row per recommendation, with
            columns `user`, `item`, `score` and `rank`, which begins at 1. A user with fewer items
            has fewer rows.

        Raises
        ------
        ValueError
            If a candidate is unknown, if `exclude_interactions` has fewer than two columns, if the
            result does not fit into memory, or if `fold_in` rejects `interactions`.

        Warns
        -----
        UserWarning
            If all items have the same score for an unknown user.

        Notes
        -----
        For unknown users, items are ranked by item biases, by the mean user's or the mean item's
        vector (which rank much like popularity), or, if the model contains it, by popularity.
        Methods without any of these give all items the same score and recommend the first of
        `item_ids_`, with a warning. Instead, pass the users' ratings as `interactions` or to
        `fold_in`. For users without any ratings, use :class:`~fedrecsk.Popularity`.

        Examples
        --------
        >>> from fedrecsk import Popularity
        >>> X = [["ann", "tea"], ["ann", "jam"], ["bob", "tea"]]
        >>> items, scores = Popularity().fit(X).recommend(["ann", "bob"], 2)
        >>> items.tolist()
        [['', ''], ['jam', '']]
        >>> [row[found].tolist() for row, found in zip(items, scores > float("-inf"))]
        [[], ['jam']]
        >>> Popularity().fit(X).recommend(["ann", "bob", "zoe"], 2, as_frame=True)
          user item  score  rank
        0  bob  jam    0.5     1
        1  zoe  tea    1.0     1
        2  zoe  jam    0.5     2
        """
        check_is_fitted(self)
        options: dict[str, Any] = {
            "n_recommendations": n_recommendations,
            "exclude_seen": exclude_seen,
        }
        checked("recommend", KINDS, **options, as_frame=as_frame)
        options |= {"candidates": candidates, "exclude_interactions": exclude_interactions}
        if _frames.is_frame(users):
            return _frames.on_workers(
                self, "recommend", users, interactions=interactions, **options
            )
        if interactions is not None:
            served, _ = self._with_users_of(interactions)
            return served.recommend(users, **options, as_frame=as_frame)
        library = library_of(users)
        if np.ndim(users) == 2:
            users = safe_indexing(as_table(users, "users"), 0, axis=1)
        users = id_array(users, "users")
        codes = self._users.codes(users) if len(users) else np.empty(0, dtype=np.int64)
        eligible = self._eligible(candidates)
        barred_rows, barred_items = self._barred(users, exclude_interactions)
        n_eligible = self.n_items_ if eligible is None else len(eligible)
        n_best = int(min(n_recommendations, n_eligible))
        require_room(
            len(codes),
            n_best,
            self.item_ids_.itemsize,
            f"{n_best} recommendations for each of {len(codes)} users",
            "Lower n_recommendations, or pass a part of the users at a time.",
        )
        best = np.empty((len(codes), n_best), dtype=np.int64)
        scores = np.empty(best.shape)
        model = self._model()
        for batch in batches(len(codes), self.n_items_):
            inside = slice(*np.searchsorted(barred_rows, [batch.start, batch.stop]))
            barred = barred_rows[inside] - batch.start, barred_items[inside]
            if exclude_seen:
                barred = np.concatenate([barred, self._seen_by(codes[batch])], axis=1)
            best[batch], scores[batch] = model.best(codes[batch], n_best, eligible, barred)
        found = np.isfinite(scores)
        self._warn_of_ties(users, codes, scores)
        scores[found] = model.response(scores[found])
        items = np.where(found, self.item_ids_[best], missing_id(self.item_ids_.dtype))
        if not as_frame:
            return items, scores
        return tidy(users, items, scores, ("user", "item"), library)

    def _warn_of_ties(self, users, codes, scores):
        """Warn if the lists of unknown users are in no order."""
        tied = (codes < 0) & (scores == scores[:, :1]).all(axis=1) & np.isfinite(scores).all(axis=1)
        if tied.any() and scores.shape[1] > 1:
            warn(
                f"User {users[tied.argmax()]!s} is unknown, and {type(self).__name__} has the same "
                "score for all items then, so the first of item_ids_ are recommended. Pass its "
                "history as interactions=..., or use Popularity for users without one."
            )

    def _seen_by(self, users):
        """Return the pairs seen in fit, as positions in `users` and item codes."""
        indptr, items = self._seen
        lengths = np.where(users >= 0, indptr[users + 1] - indptr[users], 0)
        rows = np.repeat(np.arange(len(users)), lengths)
        return rows, items[runs(indptr[users], lengths)]

    def _barred(self, users, pairs):
        """Return pairs of these users, as ascending positions in `users` and item codes."""
        if pairs is None or len(users) == 0:
            return np.empty((2, 0), dtype=np.int64)
        pairs = as_table(pairs, "exclude_interactions")
        if len(pairs) == 0:
            return np.empty((2, 0), dtype=np.int64)
        if np.ndim(pairs) != 2 or np.shape(pairs)[1] < 2:
            raise ValueError(
                "exclude_interactions must have the user's id in column 0 and the item's id in "
                f"column 1; its shape is {np.shape(pairs)}."
            )
        theirs, items = id_columns(pairs)
        distinct, rows = np.unique(users, return_inverse=True)
        owners, items = Ids(distinct, "users").codes(theirs), self._items.codes(items)
        kept = (owners >= 0) & (items >= 0)
        match = sparse.csr_array(
            (np.ones(kept.sum()), (owners[kept], items[kept])), (len(distinct), self.n_items_)
        )[rows]
        return match.nonzero()

    def _eligible(self, candidates):
        if candidates is None:
            return None
        candidates = id_array(candidates, "candidates")
        if len(candidates) == 0:
            raise ValueError("candidates is empty; pass None to choose from all items.")
        codes = self._items.codes(candidates)
        if (codes < 0).any():
            raise ValueError(
                f"Candidate {candidates[codes.argmin()]!s} is not an item that the model knows; "
                "leave unknown items out."
            )
        return np.unique(codes)

    # ------------------------------------------------------------------------- adding users

    @suggest
    def fold_in(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        clients: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        replace: bool = False,
    ) -> Self:
        """Add new users, or update known ones, without retraining.

        Each user's private parameters are computed from its own interactions and the fitted item
        parameters, as on its own device. Nothing is uploaded, and the parameters of
        other users do not change.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`. Rows with unknown items are ignored. A new user with no other rows stays
            unknown.
        clients : array-like of shape (n_samples,), default=None
            Checked as in `fit`, but without effect: a user's parameters depend on its own rows
            only.
        replace : bool, default=False
            Whether X may have rows of known users. They are then treated as new users, so X must
            have their whole history, including old rows. Their earlier rows are forgotten, and
            `recommend` leaves out only the items in X.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If a user is already known and `replace` is False, or if no new user, or not every
            known user, has a row with an item that the model knows.

        Notes
        -----
        A later `fit`, with or without warm start, learns from its own X and forgets these users.

        Examples
        --------
        >>> from fedrecsk import BiasOnly
        >>> X, y = [["ann", "tea"], ["ann", "jam"], ["bob", "tea"]], [5, 4, 1]
        >>> model = BiasOnly().fit(X, y)
        >>> before = model.predict([["ann", "jam"], ["bob", "jam"]])
        >>> model = model.fold_in([["bob", "tea"], ["bob", "jam"]], [5, 5], replace=True)
        >>> (model.predict([["ann", "jam"], ["bob", "jam"]]) > before).tolist()
        [False, True]
        """
        check_is_fitted(self)
        checked("fold_in", {"replace": ["boolean"]}, replace=replace)
        self._require_y(y)
        if _frames.is_frame(X):
            others = {"clients": clients, "sample_weight": sample_weight}
            return _frames.on_workers(self, "fold_in", X, y, replace=replace, **others)
        X, y = self._checked(X, y)
        users, items = id_columns(X)
        known = self._users.codes(users) >= 0
        if known.any() and not replace:
            raise ValueError(
                f"User {users[known.argmax()]!s} is already known; give its whole history with "
                "replace=True to recompute it, or drop its rows."
            )
        data = self._encoded(X, y, clients, sample_weight, item_ids=self._items)
        lost = ~np.isin(users, data.user_ids.values) & (known | (data.n_users == 0))
        if lost.any():
            raise ValueError(
                f"There is nothing to learn about {named('user', users[lost])}: no row has "
                "an item that the model knows and a weight above zero, only "
                f"{named('item', items[lost])}. Give item ids as in fit, such as "
                f"{self.item_ids_[0]!s}, or leave these rows out."
            )
        data = self._with_features(data, fitted=True)
        attributes = self._new_user_attributes(data)
        self._take_users(data.user_ids.values, data.indptr, data.items, attributes)
        return self

    def _take_users(self: Any, ids, indptr, items, attributes):
        """Take users with these rows and attributes: known ones keep their place, others follow."""
        places = self._users.codes(ids)
        new = places < 0
        places[new] = self.n_users_ + np.arange(new.sum())
        for name, rows in attributes.items():
            setattr(self, name, _placed(rows, places, getattr(self, name)))
        self._forget_users(places[~new])
        old_indptr, seen_items = self._seen
        starts = _placed(old_indptr[-1] + indptr[:-1], places, old_indptr[:-1])
        lengths = _placed(np.diff(indptr), places, np.diff(old_indptr))
        seen_items = np.concatenate([seen_items, items])
        if not new.all():
            seen_items = seen_items[runs(starts, lengths)]
        self._seen = np.concatenate([[0], np.cumsum(lengths)]), seen_items
        self._users = self._users.followed_by(ids[new])
        self.user_ids_: NDArray[Any] = self._users.values.copy()
        self.n_users_: int = len(self.user_ids_)

    def _take_items(self: Any, ids, attributes):
        """Take new items beside the old ones (Ids), with the attributes that change by them."""
        vars(self).update(attributes, _items=ids, item_ids_=ids.values.copy(), n_items_=len(ids))

    def _with_users_of(self: Any, interactions):
        """Return a copy that has folded in `interactions`, which are X or (X, y), and (X, y)."""
        pair = interactions if isinstance(interactions, tuple) else (interactions, None)
        if len(pair) != 2:
            raise ValueError(f"interactions must be X or (X, y), got a tuple of {len(pair)}.")
        return copy.copy(self).fold_in(*pair, replace=True), pair

    # ------------------------------------------------------------------------- neighbours

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
        checked("similar_items", NEIGHBOUR_KINDS, n=n, as_frame=as_frame)
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
        checked("similar_users", NEIGHBOUR_KINDS, n=n, as_frame=as_frame)
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


def _placed(rows, places, old) -> Any:
    """Return a copy of `old` with `rows` at `places`; those beyond its end are appended."""
    if sparse.issparse(old):
        order = np.arange(max(old.shape[0], places.max(initial=-1) + 1))
        order[places] = old.shape[0] + np.arange(rows.shape[0])
        return sparse.vstack([old, rows], "csr")[order]
    grown = np.concatenate([old, rows[places >= len(old)]])
    grown[places] = rows
    return grown


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
