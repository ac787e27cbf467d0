"""The contract that every recommender of the package keeps."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.callback import CallbackSupportMixin
from sklearn.utils.validation import check_array, check_is_fitted, check_X_y, validate_data

from fedrecsk import _checks, _kernels, _memory, metrics
from fedrecsk._sklearn import (
    Interval,
    check_sample_weight,
    fit_context,
    safe_indexing,
    validate_parameter_constraints,
)
from fedrecsk.interactions import (
    Ids,
    as_table,
    catalogue_ids,
    encode,
    id_array,
    id_columns,
    missing_id,
    named,
)

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import ArrayLike, NDArray

SCORES_PER_BATCH = 2**22
# Parameters that say how large the model is.
_SIZES = ("n_factors", "n_bits")
# Lists of recommendations that take more than this are checked against the memory there is.
UNCHECKED_BYTES = 2**28


@dataclass(eq=False, repr=False)
class Recommender(CallbackSupportMixin, BaseEstimator, ABC):
    """Base class of all recommenders: parsing, prediction, recommendation.

    A subclass gives `_fit`, and either fitted factors and biases under their usual names
    (any may be missing) or its own `_score_pairs` and `_score_all`. It is decorated with
    ``@dataclass(eq=False, repr=False)``: its annotated names are the constructor's parameters.

    Parameters
    ----------
    items : array-like of shape (n_items,), default=None
        The public catalogue; None takes the items of X.
    """

    _: KW_ONLY
    items: ArrayLike | None = None

    _parameter_constraints: ClassVar[dict] = {"items": ["array-like", None]}

    __metadata_request__fit: ClassVar[dict] = {"clients": True, "sample_weight": True}
    __metadata_request__score: ClassVar[dict] = {"sample_weight": True}

    # ------------------------------------------------------------------ what a model gives

    @abstractmethod
    def _fit(self, data, report):
        """Learn from `data` (Interactions) and return a dict of fitted attributes.

        `report` is the callbacks' context of this fit; see :class:`FitReport`.
        """

    def _n_tasks(self):
        """How many steps `_fit` reports to callbacks at most; 0 for none."""
        return 0

    def _check_before_fit(self):
        """Raise where parameters do not go together."""

    def _least_bytes(self, data):
        """Bytes that a fit to `data` (Interactions) takes at least, by the shapes of its arrays.

        A fit is refused where so much memory is not there, so it must never be too much.
        """
        return 0

    def _response(self, scores):
        """Turn scores into estimated ratings; never reverses their order."""
        return scores

    @abstractmethod
    def _new_user_attributes(self, data):
        """Per-user fitted attributes (a dict of arrays) for the users of `data` alone."""

    def _standard_deviations(self, users, items):
        """Standard deviations of the ratings of pairs of codes, -1 for unknown; shape (n,)."""
        raise ValueError(
            f"{type(self).__name__} has no standard deviations; use return_std=False, or a model "
            "whose users and items are distributions: FedEB or BayesianSVDpp."
        )

    def _forget_users(self, users):
        """Drop what these users (codes) have beside the attributes above, once they are replaced.

        Fitted attributes may be set anew but not written into: copies share them.
        """

    # -------------------------------------------------------------------------- parameters

    @classmethod
    def _get_param_names(cls):
        """Names of the parameters, after a check that none was lost or added by accident."""
        names = super()._get_param_names()
        lost = [name for name in _annotated_parameters(cls) if name not in names]
        if lost:
            raise TypeError(
                f"{cls.__name__} annotates {lost[0]!r}, which did not become a parameter. Decorate "
                f"{cls.__name__} with @dataclass(eq=False, repr=False); annotate what is no "
                "parameter with ClassVar, or not at all."
            )
        odd = [name for name in names if name.startswith("_") or name.endswith("_")]
        if odd:
            raise TypeError(
                f"{cls.__name__} annotates {odd[0]!r}, which became a parameter. Annotate it with "
                "ClassVar, or not at all."
            )
        return names

    # ------------------------------------------------------------------------- fit, score

    @fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        clients: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Fit the model to interactions.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features >= 2)
            One row per interaction: column 0 is the user's id, column 1 the item's id
            (integers, floats or strings). Later columns are ignored, whatever is in them.
        y : array-like of shape (n_samples,), default=None
            Rating or preference of each row. Rating models require it; for ranking models
            None means implicit feedback, every row a 1.
        clients : array-like of shape (n_samples,), default=None
            Id of the client that holds each row. None: each user is a client. Centralised
            models ignore it.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights. Repeated (user, item) rows are merged by weighted mean with
            summed weights; rows of weight zero count as absent.

        Returns
        -------
        self : object
            The fitted model.

        Raises
        ------
        ValueError
            If ids, ratings or weights are NaN, infinite or of mixed types, a user has rows
            on two clients, X has items that are not in `items`, or nothing is left to fit.
        TypeError
            If an id is neither a string nor a number, or X is sparse.
        """
        data = self._prepared(X, y, clients, sample_weight)
        self._require_memory(data)
        report = FitReport(self, X, y, sample_weight, data)
        report.begin()
        attributes = self._fit(data, report)
        _checks.check_fitted(self, data, attributes)
        # What an earlier fit left and this one has not.
        for name in [name for name in vars(self) if name[-1] == "_" and name[0] != "_"]:
            if name not in ("n_features_in_", "feature_names_in_"):
                delattr(self, name)
        for name, value in (report.static | attributes).items():
            setattr(self, name, value)
        report.end()
        return self

    def _require_memory(self, data):
        """Raise, before any work, if there is less memory than the fit takes at least."""
        sizes = [name for name in _SIZES if name in self.get_params(deep=False)]
        given = " with " + ", ".join(f"{n}={getattr(self, n)}" for n in sizes) if sizes else ""
        _memory.require(
            int(self._least_bytes(data)),
            f"The vectors and sums of {type(self).__name__}{given}, for {data.n_users} users, "
            f"{data.n_items} items and {len(data.items)} ratings,",
            f"Lower {' or '.join(sizes)}, or leave out rare users and items."
            if sizes
            else "Leave out rare users and items.",
        )

    def _prepared(self, X, y=None, clients=None, sample_weight=None):
        """Everything before a fit: checks, and the data encoded."""
        catalogue = None if self.items is None else catalogue_ids(self.items)
        _checks.check_parameters(self)
        self._check_before_fit()
        return self._read(X, y, clients, sample_weight, item_ids=catalogue)

    def _read(self, X, y=None, clients=None, sample_weight=None, *, reset=True, item_ids=None):
        """Check the input of fit and its like, and encode it.

        Rows of items that are not in `item_ids` are an error in fit and dropped elsewhere.
        """
        if y is None and self.__sklearn_tags__().target_tags.required:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                "is None."
            )
        X, y = self._checked(X, y, reset=reset)
        if sample_weight is not None:
            sample_weight = check_sample_weight(
                sample_weight,
                X,
                dtype=np.float64,
                ensure_non_negative=True,
                allow_all_zero_weights=True,
            )
        _checks.check_rows(y, sample_weight)
        return encode(
            X,
            y,
            clients=clients,
            sample_weight=sample_weight,
            item_ids=item_ids,
            drop_other_items=not reset,
        )

    def _checked(self, X, y=None, *, reset=False):
        X = as_table(X)
        if y is not None and any(isinstance(one, str) for one in np.asarray(y).ravel()[:1]):
            raise ValueError("y holds strings; ratings must be numbers.")
        required = reset and self.__sklearn_tags__().target_tags.required
        min_features = 2 if reset else 1
        # Only the ids must be finite, and `id_columns` says which are not.
        options = {"dtype": None, "ensure_all_finite": False, "ensure_min_features": min_features}
        if hasattr(X, "columns"):
            # A DataFrame is read column by column, each with its type; later ones are not read.
            validate_data(self, X, skip_check_array=True, reset=reset)
            # Its shape is all that is left to check, and an array of both columns would be large.
            table = np.broadcast_to(np.int8(0), (len(X), min(2, X.shape[1])))
            if y is None and not required:
                check_array(table, input_name="X", estimator=self, **options)
                return X, y
            return X, check_X_y(table, y, y_numeric=True, estimator=self, **options)[1]
        if y is None and not required:
            return validate_data(self, X, reset=reset, **options), y
        return validate_data(self, X, y, y_numeric=True, reset=reset, **options)

    # ------------------------------------------------------------------ predict, recommend

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Estimate the rating or preference of (user, item) pairs.

        An unknown user or item adds nothing to the score: what remains is the other's bias
        and the global level. Without biases that is one number for all; see the Notes of
        `recommend`.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
            As many columns as fit saw; column 0 is the user's id, column 1 the item's.
        return_std : bool, default=False
            Whether to return standard deviations too, which few models have.

        Returns
        -------
        y_pred : ndarray of shape (n_samples,), dtype float64
        y_std : ndarray of shape (n_samples,), dtype float64
            With ``return_std=True``: the standard deviation of what the user would say, whose mean
            is `y_pred` but for clipping.

        Raises
        ------
        ValueError
            With ``return_std=True``, if the model has no standard deviations.
        """
        check_is_fitted(self)
        validate_parameter_constraints(
            {"return_std": ["boolean"]}, {"return_std": return_std}, caller_name="predict"
        )
        X, _ = self._checked(X)
        users, items = id_columns(X)
        codes = self._users.codes(users), self._items.codes(items)
        model = self._serving(codes[0])
        if not return_std:
            return model._score_pairs(*codes)
        deviations = model._standard_deviations(*codes)
        return model._score_pairs(*codes), deviations

    def recommend(
        self,
        users: ArrayLike,
        n_recommendations: int = 10,
        *,
        exclude_seen: bool = True,
        candidates: ArrayLike | None = None,
        interactions: ArrayLike | tuple | None = None,
        exclude_interactions: ArrayLike | None = None,
    ) -> tuple[NDArray, NDArray[np.float64]]:
        """Recommend items to users, best first.

        Parameters
        ----------
        users : array-like of shape (n_users,) or (n_users, n_columns)
            Ids, or a table with the ids in column 0. Unknown users get what the model knows
            without them; see Notes.
        n_recommendations : int, default=10
            Length of the lists, which are never longer than there are items to choose from. A
            user with fewer eligible items gets what there is, and then places that are filled up;
            see `items`.
        exclude_seen : bool, default=True
            Leave out the items of the user's own interactions.
        candidates : array-like of shape (n_candidates,), default=None
            Ids of the items to choose from. None: the whole catalogue, `item_ids_`.
        interactions : array-like or tuple (X, y), default=None
            Whole histories of new or known users, as `fit` takes them. These users are served
            as if by ``fold_in(X, y, replace=True)``, for this call only. Rating models need
            the tuple.
        exclude_interactions : array-like of shape (n_pairs, 2), default=None
            Further (user, item) pairs not to recommend, for example what the user has done
            since fit. Users not asked for and unknown items do not matter.

        Returns
        -------
        items : ndarray of shape (n_users, min(n_recommendations, n_candidates))
            Ids; ties are resolved by the order of `item_ids_`. Places without an item come
            last and hold -1 (the largest number where ids are unsigned), NaN where ids are
            floats, "" where they are strings. `scores` tells them from items for certain.
        scores : ndarray of the same shape, dtype float64
            What `predict` gives for these pairs; -inf in places without an item.

        Raises
        ------
        ValueError
            If a candidate is unknown, if the lists take more memory than there is, or as
            `fold_in` does about `interactions`.

        Notes
        -----
        About an unknown user a model knows its item biases or its mean user, if it has any.
        A model that has neither scores every item alike, and the list is then just the head of
        `item_ids_`. Give the user's ratings as `interactions` or to `fold_in`; for users
        without any, ask :class:`~fedrecsk.Popularity`.

        Examples
        --------
        >>> from fedrecsk import Popularity
        >>> X = [["ann", "tea"], ["ann", "jam"], ["bob", "tea"]]
        >>> items, scores = Popularity().fit(X).recommend(["ann", "bob"], 2)
        >>> items.tolist()
        [['', ''], ['jam', '']]
        >>> [row[found].tolist() for row, found in zip(items, scores > float("-inf"))]
        [[], ['jam']]
        """
        check_is_fitted(self)
        if interactions is not None:
            pair = interactions if isinstance(interactions, tuple) else (interactions, None)
            if len(pair) != 2:
                raise ValueError(f"interactions must be X or (X, y), got {len(pair)} things.")
            served = copy.copy(self).fold_in(*pair, replace=True)
            return served.recommend(
                users,
                n_recommendations,
                exclude_seen=exclude_seen,
                candidates=candidates,
                exclude_interactions=exclude_interactions,
            )
        validate_parameter_constraints(
            {
                "n_recommendations": [Interval(Integral, 1, None, closed="left")],
                "exclude_seen": ["boolean"],
            },
            {"n_recommendations": n_recommendations, "exclude_seen": exclude_seen},
            caller_name="recommend",
        )
        if np.ndim(users) == 2:
            users = safe_indexing(as_table(users), 0, axis=1)
        users = id_array(users, "users")
        codes = self._users.codes(users) if len(users) else np.empty(0, dtype=np.int64)
        model = self._serving(codes)
        eligible = self._eligible(candidates)
        barred_rows, barred_items = self._barred(users, exclude_interactions)
        n_eligible = self.n_items_ if eligible is None else len(eligible)
        n_best = int(min(n_recommendations, n_eligible))
        nbytes = len(codes) * n_best * (16 + self.item_ids_.itemsize)
        if nbytes > UNCHECKED_BYTES:
            _memory.require(
                nbytes,
                f"{n_best} recommendations for each of {len(codes)} users",
                "Ask for fewer recommendations, or for a part of the users at a time.",
            )
        best = np.empty((len(codes), n_best), dtype=np.int64)
        scores = np.empty(best.shape)
        for batch in _batches(len(codes), self.n_items_):
            inside = slice(*np.searchsorted(barred_rows, [batch.start, batch.stop]))
            barred = barred_rows[inside] - batch.start, barred_items[inside]
            if exclude_seen:
                barred = np.concatenate([barred, self._seen_by(codes[batch])], axis=1)
            best[batch], scores[batch] = model._best_items(codes[batch], n_best, eligible, barred)
        found = np.isfinite(scores)
        scores[found] = self._response(scores[found])
        return np.where(found, self.item_ids_[best], missing_id(self.item_ids_.dtype)), scores

    def fold_in(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        clients: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        replace: bool = False,
    ) -> Self:
        """Add users, or compute known ones anew, without retraining.

        Each user's private parameters are found from its own interactions and the fitted
        items, on the user's side. Nothing is uploaded, and nobody else's parameters change.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`. Rows of items unknown to the model are left out, and so is a new user
            who has no other rows: it stays unknown.
        clients : array-like of shape (n_samples,), default=None
            Checked as in `fit`, and of no effect: a user's parameters come from its own rows.
        replace : bool, default=False
            Whether X may hold rows of known users. They are then treated as if they were new:
            give their whole history, old rows too. Whatever else the model had of them is
            forgotten, and `recommend` leaves out the items of the new rows only.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If a user is already known and `replace` is False, or if no new user, or not every
            known one, has a row of an item that the model knows.

        Notes
        -----
        A later `fit`, warm or not, starts from its own X and knows nothing of this.

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
        validate_parameter_constraints(
            {"replace": ["boolean"]}, {"replace": replace}, caller_name="fold_in"
        )
        users, items = id_columns(self._checked(X, y)[0])
        known = self._users.codes(users) >= 0
        if known.any() and not replace:
            raise ValueError(
                f"User {users[known.argmax()]!s} is already known; give its whole history with "
                "replace=True to compute it anew, or drop its rows."
            )
        data = self._read(X, y, clients, sample_weight, reset=False, item_ids=self._items)
        lost = ~np.isin(users, data.user_ids.values) & (known | (data.n_users == 0))
        if lost.any():
            raise ValueError(
                f"There is nothing to learn from about {named('user', users[lost])}: no row has "
                "an item that the model knows and a weight above zero, only "
                f"{named('item', items[lost])}. Give item ids as fit saw them, such as "
                f"{self.item_ids_[0]!s}, or leave these rows out: predict and recommend serve "
                "unknown users too, and known ones as before."
            )
        # Known users keep their place and new ones follow.
        places = self._users.codes(data.user_ids.values)
        new = places < 0
        places[new] = self.n_users_ + np.arange(new.sum())
        self._take_users(self._new_user_attributes(data), places)
        self._forget_users(places[~new])
        indptr, seen_items = self._seen
        starts = _placed(indptr[-1] + data.indptr[:-1], places, indptr[:-1])
        lengths = _placed(np.diff(data.indptr), places, np.diff(indptr))
        seen_items = np.concatenate([seen_items, data.items])
        if not new.all():
            seen_items = seen_items[_runs(starts, lengths)]
        self._seen = np.concatenate([[0], np.cumsum(lengths)]), seen_items
        self._users = self._users.followed_by(data.user_ids.values[new])
        self.user_ids_ = self._users.values.copy()
        self.n_users_ = len(self.user_ids_)
        return self

    def _take_users(self, attributes, places):
        """Take the attributes of users computed anew or added, at these codes."""
        for name, rows in attributes.items():
            setattr(self, name, _placed(rows, places, getattr(self, name)))

    def _serving(self, users):
        """The model with all that it takes to score for these users (codes, -1 for unknown)."""
        return self

    def _seen_by(self, users):
        """Positions in `users` and item codes of all their interactions in fit."""
        indptr, items = self._seen
        lengths = np.where(users >= 0, indptr[users + 1] - indptr[users], 0)
        rows = np.repeat(np.arange(len(users)), lengths)
        return rows, items[_runs(indptr[users], lengths)]

    def _barred(self, users, pairs):
        """Ascending positions in `users`, and item codes, of the pairs that name them."""
        if pairs is None or len(users) == 0:
            return np.empty((2, 0), dtype=np.int64)
        theirs, items = id_columns(as_table(pairs))
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

    def _best_items(self, users, n, eligible, barred):
        """Find the n best items of each user (codes, -1 for unknown).

        `eligible` holds the item codes to choose from in ascending order (None: all), `barred`
        positions in `users` and item codes not to recommend. Returns item codes and scores, best
        first, ties by item code; the last places of a user with too few items score -inf.
        """
        board = self._score_all(users)
        board[barred[0], barred[1]] = -np.inf
        if eligible is not None:
            board = np.take(board, eligible, axis=1)
        top = metrics.top_k(board, n)
        items, scores = top, np.take_along_axis(board, top, axis=1)
        if eligible is not None:
            items = eligible[top]
        return items, np.where(np.isfinite(scores), scores, -np.inf)

    def _score_pairs(self, users, items):
        """Score pairs of codes, -1 for unknown; shape (n,)."""
        return self._response(linear_scores(users, items, *self._linear_part()))

    def _score_all(self, users):
        """Score every item for users (codes, -1 for unknown); shape (n, n_items).

        These are the scores before `_response`, which may make ties of them.
        """
        offset, user_bias, item_bias, user_factors, item_factors = self._linear_part()
        known = users >= 0
        # One product with the biases as two more columns writes the board only once.
        left = np.column_stack(
            [
                np.where(known[:, None], user_factors[users], 0).astype(np.float64),
                np.where(known, user_bias[users], 0) + offset,
                np.ones(len(users)),
            ]
        )
        # Item by item, which is the fast way to write it.
        right = np.empty((len(item_bias), left.shape[1]))
        right[:, :-2], right[:, -2], right[:, -1] = item_factors, 1, item_bias
        return left @ right.T

    def _linear_part(self):
        n_users, n_items = self.n_users_, self.n_items_
        return (
            float(getattr(self, "global_bias_", 0.0)),
            getattr(self, "user_bias_", np.zeros(n_users)),
            getattr(self, "item_bias_", np.zeros(n_items)),
            getattr(self, "user_factors_", np.zeros((n_users, 0))),
            getattr(self, "item_factors_", np.zeros((n_items, 0))),
        )

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        # Strings are welcome as ids. The tag `string` is left off because scikit-learn's
        # checks take it to mean that any object is, and mixed ids are an error here.
        tags.target_tags.required = False
        return tags


class RatingMixin(RegressorMixin):
    """A model of ratings: y is required, and `score` is R^2."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        # Shrinkage is strong by design: with one rating a user and item there is no signal.
        tags.regressor_tags.poor_score = True
        return tags


class RankingMixin:
    """A model of preferences: y is optional, and `score` is NDCG@10."""

    def __sklearn_tags__(self):
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

        For each user of X, all items are ranked except those of its interactions in fit
        that are not in X; the pairs under test are never excluded. Ties count by
        expectation, items unknown to the model as never found.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), default=None
            Relevance; rows with y <= 0 are not relevant. None: every row is.
        sample_weight : array-like of shape (n_samples,), default=None
            Multiplies each row's relevance.

        Returns
        -------
        ndcg : float
            Mean over the users that have a relevant row, in [0, 1].

        Raises
        ------
        ValueError
            If no row is relevant.
        """
        check_is_fitted(self)
        X, y = self._checked(X, y)
        return metrics.catalogue_ndcg(self, X, y, sample_weight)


def linear_scores(users, items, *linear_part):
    """Scores of pairs of codes, -1 for unknown, under `Recommender._linear_part`; shape (n,)."""
    scores = np.empty(len(users))
    # Ctrl-C comes through between two calls of a kernel.
    for batch in _batches(len(users), 1):
        _kernels.scores.pairs(users[batch], items[batch], *linear_part, scores[batch])
    return scores


def check_likes(data):
    """Raise unless somebody likes something.

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
            "or shift y so that what is liked is above 0."
        )


def attributes_of(data):
    """What every fitted model knows of its users and items: a dict of fitted attributes."""
    return {
        "user_ids_": data.user_ids.values.copy(),
        "item_ids_": data.item_ids.values.copy(),
        "n_users_": data.n_users,
        "n_items_": data.n_items,
        "_users": data.user_ids,
        "_items": data.item_ids,
        "_seen": (data.indptr, data.items),
    }


class FitReport:
    """What a running fit tells scikit-learn's callbacks.

    Parameters
    ----------
    estimator : Recommender
    X, y, sample_weight
        As given to fit.
    data : Interactions
    """

    def __init__(self, estimator, X, y, sample_weight, data):
        self.static = attributes_of(data)
        self._estimator = estimator
        # ScoringMonitor stays silent where y is None.
        y = np.ones(len(X)) if y is None and hasattr(X, "__len__") else y
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        self._arguments = {"X": X, "y": y, "metadata": metadata}
        self._context = estimator._init_callback_context(max_subtasks=estimator._n_tasks())

    def begin(self):
        """The fit begins."""
        self._context.call_on_fit_task_begin(estimator=self._estimator, **self._arguments)

    def end(self):
        """The fit has ended and the estimator is fitted."""
        self._context.call_on_fit_task_end(
            estimator=self._estimator,
            **self._arguments,
            reconstruction_attributes=lambda: copy.deepcopy(
                {name: value for name, value in vars(self._estimator).items() if name[-1] == "_"}
            ),
        )

    def step(self, name):
        """Open a step of the fit; returns the function that closes it.

        The closing function takes `attributes`, a function that makes the fitted attributes
        of the moment, called only if some callback asks, and returns True to stop the fit.
        """
        context = self._context.subcontext(task_name=name)
        context.call_on_fit_task_begin(estimator=self._estimator, **self._arguments)

        def close(attributes):
            return context.call_on_fit_task_end(
                estimator=self._estimator,
                **self._arguments,
                reconstruction_attributes=lambda: self.static | attributes(),
            )

        return close


def _annotated_parameters(cls):
    """Public names that a class and its bases annotate, up to one with an ``__init__`` by hand."""
    names = []
    for base in cls.__mro__:
        if "__init__" in vars(base) and "__dataclass_fields__" not in vars(base):
            break
        for name, kind in inspect.get_annotations(base).items():
            if not (name.startswith("_") or name.endswith("_") or "ClassVar" in str(kind)):
                names.append(name)
    return names


def _batches(n_rows, n_columns):
    size = max(1, SCORES_PER_BATCH // max(1, n_columns))
    return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def _placed(rows, places, old):
    """A copy of `old` with `rows` at `places`; those behind its end come in their order."""
    if sparse.issparse(old):
        order = np.arange(max(old.shape[0], places.max(initial=-1) + 1))
        order[places] = old.shape[0] + np.arange(rows.shape[0])
        return sparse.vstack([old, rows], "csr")[order]
    grown = np.concatenate([old, rows[places >= len(old)]])
    grown[places] = rows
    return grown


def _runs(starts, lengths):
    """Runs of consecutive integers, one after the other."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(np.sum(lengths))
