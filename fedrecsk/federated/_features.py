"""The parameter `user_features` of federated methods.

Users' features say what users are like before they rate, learned from sums: each client reads the
features of its own users. Users' vectors v, less what is expected of them otherwise, are regressed
on x = (1, features), with weights ``w = n_u / (n_u + h)``: clients send the number of their users
with features and the sums over them of ``w x x'``, ``w x v'`` and ``w v^2``. The coefficients come
with the final model, from which clients infer their users once more.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from fedrecsk._utils.given import check_given
from fedrecsk.base._item_prior import ROUNDING, SHRINKAGE, shrunk
from fedrecsk.data.frames import library_of, make_frame, place_of_ids, with_index
from fedrecsk.data.ids import Ids, id_array, named
from fedrecsk.data.item_features import columns_of, has_ids
from fedrecsk.federated.base import Mixin
from fedrecsk.protocol.messages import Dense, Form
from fedrecsk.updates import FieldSpec, SparseRows

SQUARES, SUMS, MEANS = "user_features", "user_sums", "user_means"
REFUSES = {
    "adversary": "users of an adversary have no user_features; leave one of the two out.",
    "central_dp": "sums over users' features are too small for the noise of central_dp, which "
    "would be added to every user; leave one of the two out.",
    "fit on devices": "user_features are in one DataFrame, which no device has; call fit, or leave "
    "them out.",
    "fit on a cluster": "user_features are in one frame; leave them out, or fit in one process: "
    "X.compute().",
}


class UserSums(NamedTuple):
    """What the server knows of users' features and vectors: sums over users."""

    # Of w x x', and in the last row how many users are in it.
    squares: np.ndarray
    # Of w x v', and in the last row of w v^2.
    vectors: np.ndarray
    # Rounds since the set-up.
    n_rounds: int


@dataclass(frozen=True)
class UserRegression:
    """The regression of users' vectors on their features, by sums over clients."""

    n_features: int
    # Number of rows at which a user counts half of one with very many (h).
    half: float

    @property
    def refuses(self):
        """Return what does not suit users' features, as in Traits."""
        return REFUSES if self.n_features else {}

    def downloads(self, width):
        """Return the form of what the server sends of users' vectors of this width."""
        return {MEANS: Form((self.n_features + 1, width))} if self.n_features else {}

    def setup_fields(self):
        """Return what a client sends of its users' features in the set-up; nothing without any."""
        shape = self.n_features + 2, self.n_features + 1
        return {SQUARES: FieldSpec(shape, learned=False)} if self.n_features else {}

    def answer(self, block, n_rows):
        """Return ``sum w x x'`` over a block's users of `n_rows` and, last, how many are in it."""
        if not self.n_features:
            return {}
        x = design(block.features)
        weights, number = self._weights(n_rows), np.zeros((1, x.shape[1]))
        number[0, 0] = np.count_nonzero(weights * x[:, 0])
        return {SQUARES: np.vstack([(weights[:, None] * x).T @ x, number])}

    def begin(self, sums, width):
        """Return the UserSums before the first round, for vectors of this width; None without."""
        if not self.n_features:
            return None
        return UserSums(sums[SQUARES].sum, np.zeros((self.n_features + 2, width)), 0)

    def fields(self, width):
        """Return what a client sends in a round of users' vectors."""
        shape = self.n_features + 2, width
        return {SUMS: FieldSpec(shape, learned=False)} if self.n_features else {}

    def sums(self, block, n_rows, vectors, turn, sends):
        """Return ``sum w x v'`` and, in the last row, ``sum w v^2`` of the clients that send."""
        who, x = block.users_of(sends), design(block.features)
        weights = np.where(who & (x[:, 0] > 0), self._weights(n_rows), 0.0)
        vectors = np.where(who[:, None], vectors, 0.0).astype(float)
        if not turn.separate:
            weighted = weights[:, None] * vectors
            return {SUMS: np.vstack([x.T @ weighted, (weighted * vectors).sum(axis=0)])}
        each = np.einsum("u,uf,uk->ufk", weights, x, vectors)
        each = np.concatenate([each, (weights[:, None] * vectors**2)[:, None]], axis=1)
        return {SUMS: SparseRows.stacked(np.add.reduceat(each, block.client_indptr[:-1]))}

    def step(self, before, upload, n_clients):
        """Return the sums after a round: averages that follow the latest uploads."""
        if before is None:
            return None
        number, share = before.n_rounds + 1, upload.n_clients / n_clients
        change = upload[SUMS].sum / share - before.vectors
        vectors = before.vectors + max(1 / number, share) * change
        return UserSums(before.squares, vectors, number)

    def final(self, sums):
        """Return the coefficients of users' expected vectors, as a field of the final message."""
        if sums is None:
            return {}
        return {MEANS: Dense(coefficients(sums.squares, sums.vectors), learned=False)}

    @staticmethod
    def expected(block, message):
        """Return the vectors that the features of a block's users predict; None without any."""
        if block.features is None or MEANS not in message:
            return None
        return design(block.features) @ message[MEANS].values

    def _weights(self, n_rows):
        """Return the users' weights (w)."""
        return n_rows / (n_rows + self.half)


class UserFeatures(Mixin):
    """`user_features` and `add_users` of a method whose users have vectors.

    Its algorithm has a `UserRegression`, and the estimator `_prior_attributes`.
    """

    # Features of users whom `add_users` has added; and the columns in fit.
    _added = None
    _user_columns = None
    # Number of rows at which a user counts half of one with very many (h).
    HALF_OF_USERS = 20.0

    def add_users(self: Any, features: pd.DataFrame) -> Self:
        """Add users who have no rows yet, by their features, without retraining.

        Their vectors are predicted from their features. Nothing is sent: each vector is computed on
        the user's own device. Later, pass their rows to `fold_in` with ``replace=True``.

        Parameters
        ----------
        features : DataFrame of shape (n_new_users, n_features)
            The columns of `user_features`, in the same order, and user ids in the index (polars:
            in the first column).

        Returns
        -------
        self : object
            With these users at the end of `user_ids_`. `fit` and `partial_fit` forget those without
            rows.

        Raises
        ------
        ValueError
            If the model was fitted without `user_features`, a user is known already, columns are
            not those of fit, or features are not as `user_features` must be.
        TypeError
            If features are not a DataFrame.

        Examples
        --------
        >>> import pandas as pd
        >>> from fedrecsk import FedEB
        >>> from fedrecsk.datasets import make_ratings
        >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
        >>> features = pd.DataFrame({"young": [0, 1] * 30}, index=range(60))
        >>> model = FedEB(n_factors=4, n_rounds=20, user_features=features, random_state=0)
        >>> model = model.fit(X, y).add_users(pd.DataFrame({"young": [1]}, index=[77]))
        >>> model.recommend([77], n_recommendations=3)[0].shape
        (1, 3)
        """
        check_is_fitted(self)
        if MEANS not in self._final_message:
            raise ValueError(
                f"This {type(self).__name__} was fitted without user_features, so it predicts "
                "nothing for users without rows; fit it with user_features, or fold_in some rows."
            )
        ids, rows = read(features, "features")
        self._check_columns(features, "features")
        known = self._users.codes(ids.values) >= 0
        if known.any():
            raise ValueError(
                f"The model knows {named('user', ids.values[known])} already; add_users takes new "
                "users only, so leave these rows out."
            )
        means = self._final_message[MEANS].values
        attributes = self._prior_attributes(design(rows) @ means)
        nothing = np.zeros(len(ids) + 1, np.int64), np.empty(0, np.int32)
        self._take_users(ids.values, *nothing, attributes)
        added = with_index(features)
        if self._added is not None:
            # They may have been added, and forgotten by partial_fit, before.
            added = pd.concat([without(self._added, ids.values), added])
        self._added = added
        return self

    def _with_features(self, data, *, fitted):
        """Return data with the features of its users, NaN for users who have none."""
        frames = [self.user_features, self._added if fitted else None]
        frames = [with_index(frame) for frame in frames if frame is not None]
        if not frames:
            return data
        if fitted and self.user_features is not None and self._user_columns is not None:
            self._check_columns(self.user_features, "user_features")
        features = np.full((data.n_users, frames[0].shape[1]), np.nan)
        for frame in frames:
            ids, rows = read(frame)
            codes = _codes_of(data.user_ids, ids.values)
            if not fitted and len(codes) and (codes < 0).all():
                raise ValueError(
                    f"The {place_of_ids(self.user_features)} of user_features has none of the "
                    "users of X; let it hold the users' ids, or leave user_features out."
                )
            features[codes[codes >= 0]] = rows[codes >= 0]
        return replace(data, features=features)

    def _check_columns(self, features, name):
        """Raise unless these are the columns of the fit."""
        given = columns_of(features)
        if given != self._user_columns:
            raise ValueError(
                f"{name} has the columns {reprlib.repr(given)}, but user_features in fit had "
                f"{reprlib.repr(self._user_columns)}; give the same columns in the same order."
            )

    def _learn(self, data, report, fit):
        super()._learn(data, report, fit)
        given = self.user_features
        self._user_columns = None if given is None else columns_of(given)
        return self

    def _forget_features(self, users):
        if self.user_features is not None:
            self.user_features = without(self.user_features, users)
        if self._added is not None:
            self._added = without(self._added, users)

    def _fit(self, data, report):
        report.static |= {"_added": None}
        return super()._fit(data, report)

    @property
    def _regression(self):
        n_features = 0 if self.user_features is None else len(columns_of(self.user_features))
        return UserRegression(n_features, self.HALF_OF_USERS)

    def _check_before_fit(self):
        if self.user_features is not None:
            read(self.user_features)
        super()._check_before_fit()

    def _rule(self, item=None):
        if item is not None and MEANS in self._final_message:
            raise ValueError(
                "With user_features a score is not a sum over the user's rows; explain a model "
                "fitted without them."
            )
        return super()._rule(item)


def read(features, what="user_features"):
    """Return the ids and the rows, float64, of users' features, or raise."""
    check_given(features, what)
    if not has_ids(features):
        raise TypeError(
            f"{what} should be a DataFrame with the users' ids in its index (pandas) or in its "
            f"first column (polars), got a {type(features).__name__}."
        )
    source, features = f"The {place_of_ids(features)} of {what}", with_index(features)
    if not features.shape[1]:
        raise ValueError(f"{what} has no columns; give it some, or leave it out.")
    for name in features.select_dtypes(exclude=["number", "bool"]).columns:
        raise ValueError(
            f"The column {name!r} of {what} does not hold numbers; make columns of 0 and 1 of it, "
            "for example with pandas.get_dummies."
        )
    ids = id_array(np.asarray(features.index), source)
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise ValueError(
            f"{source} has {named('user', values[counts > 1])} more than once; "
            "give each user one row."
        )
    rows = features.to_numpy(dtype=np.float64, na_value=np.nan)
    check_array(rows, input_name=what, ensure_min_samples=0)
    if np.abs(rows).max(initial=0) > 1:
        name = features.columns[np.abs(rows).max(axis=0).argmax()]
        raise ValueError(
            f"The column {name!r} of {what} reaches beyond [-1, 1]. Devices know nothing of "
            "other users, by which they could scale it: divide it by a number that is public, or "
            "make columns of 0 and 1 of ranges."
        )
    return Ids(ids, source), rows


def _codes_of(users, ids):
    """Return the code of each id of user_features among users, -1 if it has none."""
    if not len(ids) or not len(users):
        return np.full(len(ids), -1)
    ours, theirs = (
        "strings" if one.dtype.kind == "U" else "numbers" for one in (ids, users.values)
    )
    if ours != theirs:
        raise ValueError(
            f"The user ids of X are {theirs} and those of user_features are {ours}; "
            "convert one of them to the type of the other."
        )
    return users.codes(ids)


def without(features, users):
    """Leave out the rows of these users."""
    frame, library = with_index(features), library_of(features)
    # DataFrame.drop takes no index of big-endian ids.
    left = frame[~np.isin(id_array(np.asarray(frame.index), "users"), users)]
    return left if library == "pandas" else make_frame(left.reset_index(), library)


def design(features):
    """Return rows (1, features) of users, zeros for those without features."""
    known = ~np.isnan(features).any(axis=1)
    return np.where(known[:, None], np.column_stack([np.ones(len(features)), features]), 0.0)


def coefficients(squares, sums):
    """Return the users' expected vectors as coefficients of (1, features), from sums over users."""
    squares, n_users, sums, rest = squares[:-1], squares[-1, 0], sums[:-1], sums[-1]
    total = squares[0, 0]
    if total <= 0:
        return np.zeros_like(sums)
    mean, average = squares[0, 1:] / total, sums[0] / total
    # A priori it is 0.
    intercept = n_users / (n_users + SHRINKAGE) * average
    sizes, axes = np.linalg.eigh(squares[1:, 1:] - total * np.outer(mean, mean))
    kept = sizes > ROUNDING * total
    if not kept.any():
        return np.vstack([intercept, np.zeros_like(sums[1:])])
    sizes, axes = sizes[kept], axes[:, kept]
    projected = axes.T @ (sums[1:] - total * np.outer(mean, average)) / np.sqrt(sizes)[:, None]
    # Sums over cohorts and roundings may explain more than there is.
    squared = np.maximum(rest - total * average**2, 1.001 * (projected**2).sum(axis=0))
    slopes = axes @ shrunk(np.sqrt(sizes), projected, squared, n_users)
    return np.vstack([intercept - mean @ slopes, slopes])
