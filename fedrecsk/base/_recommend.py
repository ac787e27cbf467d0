"""Recommend items to users, known ones and those who are added without retraining."""

from __future__ import annotations

import copy
from numbers import Integral
from typing import TYPE_CHECKING, Literal, overload

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from fedrecsk._utils import memory
from fedrecsk._utils.memory import batches
from fedrecsk._utils.parameters import checked, suggest
from fedrecsk._utils.sklearn_compat import Interval, safe_indexing
from fedrecsk._utils.user_warnings import warn
from fedrecsk.cluster import _frames
from fedrecsk.data.frames import library_of, make_frame
from fedrecsk.data.ids import Ids, id_array, missing_id, named
from fedrecsk.data.interactions import as_table, id_columns

if TYPE_CHECKING:
    from typing import Any, Self

    from numpy.typing import ArrayLike, NDArray
    from pandas import DataFrame

# Lists that take more bytes than this are checked against the available memory.
UNCHECKED_BYTES = 2**28
KINDS = {
    "n_recommendations": [Interval(Integral, 1, None, closed="left")],
    "exclude_seen": ["boolean"],
    "as_frame": ["boolean"],
}


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


class Recommends:
    """`recommend` and `fold_in`."""

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
        return rows, items[_runs(indptr[users], lengths)]

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
                f"{named('item', items[lost])}. Give item ids as fit saw them, such as "
                f"{self.item_ids_[0]!s}, or leave these rows out: predict and recommend work for "
                "unknown users too, and for known ones as before."
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
            seen_items = seen_items[_runs(starts, lengths)]
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


def _placed(rows, places, old) -> Any:
    """Return a copy of `old` with `rows` at `places`; those beyond its end are appended."""
    if sparse.issparse(old):
        order = np.arange(max(old.shape[0], places.max(initial=-1) + 1))
        order[places] = old.shape[0] + np.arange(rows.shape[0])
        return sparse.vstack([old, rows], "csr")[order]
    grown = np.concatenate([old, rows[places >= len(old)]])
    grown[places] = rows
    return grown


def _runs(starts, lengths):
    """Return the runs of consecutive integers, one after the other."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(np.sum(lengths))
