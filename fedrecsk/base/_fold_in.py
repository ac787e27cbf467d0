"""Adding users to a fitted model without retraining."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from fedrecsk._utils.parameters import checked, suggest
from fedrecsk.cluster import _frames
from fedrecsk.data.interactions import id_columns, named

if TYPE_CHECKING:
    from typing import Any, Self

    from numpy.typing import ArrayLike, NDArray


class FoldIn:
    """`fold_in`, which adds users to a fitted model."""

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
