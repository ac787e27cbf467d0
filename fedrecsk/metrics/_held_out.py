"""Test rows, encoded for the recommender that is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.validation import check_consistent_length

from fedrecsk._sklearn import check_sample_weight
from fedrecsk._warnings import warn
from fedrecsk.interactions import Ids, as_table, encode

if TYPE_CHECKING:
    from typing import Any


# Number of users whose test rows are compared with what they saw in fit.
USERS_LOOKED_AT = 100


@dataclass(frozen=True)
class HeldOut:
    """Test rows of all users who have at least one relevant row.

    Attributes
    ----------
    user_ids : Ids of n_users
    item_ids : Ids
        All items of the test rows, whether or not the recommender knows them.
    users : ndarray of shape (n_users,)
        The recommender's codes, -1 for users it does not know.
    indptr : ndarray of shape (n_users + 1,)
        Rows of each user.
    own_items : ndarray of shape (n_rows,)
        Item of each row, a code of `item_ids`.
    items : ndarray of shape (n_rows,)
        Item of each row, the recommender's code or -1.
    relevant : ndarray of shape (n_rows,), dtype bool
    weights : ndarray of shape (n_rows,)
    """

    user_ids: Ids
    item_ids: Ids
    users: np.ndarray
    indptr: np.ndarray
    own_items: np.ndarray
    items: np.ndarray
    relevant: np.ndarray
    weights: np.ndarray

    @property
    def n_users(self):
        return len(self.users)

    @property
    def n_rows(self):
        """Rows of each user."""
        return np.diff(self.indptr)


def check_rows(X, y=None, sample_weight=None):
    """Check what a scorer is given; X comes back as a table, the others as arrays or None.

    Later columns of X may hold anything; its ids are checked where they are encoded.

    Raises
    ------
    ValueError
        If X has fewer than two columns or no rows, lengths differ, or y or a weight is NaN.
    """
    X = as_table(X)
    checked = check_array(X, dtype=None, ensure_all_finite=False, ensure_min_features=2)
    table = X if hasattr(X, "columns") else checked
    if y is not None:
        if any(isinstance(one, str) for one in np.asarray(y).ravel()[:1]):
            raise ValueError("y holds strings; ratings must be numbers.")
        y = check_array(column_or_1d(y), ensure_2d=False, dtype=np.float64, input_name="y")
        check_consistent_length(table, y)
    if sample_weight is not None:
        sample_weight = check_sample_weight(
            sample_weight, table, dtype=np.float64, ensure_non_negative=True
        )
    return table, y, sample_weight


def hold_out(model, X, y, sample_weight, relevant_above):
    """Encode test rows for `model`.

    Raises
    ------
    ValueError
        If no row is relevant.
    """
    test = encode(X, y, sample_weight=sample_weight)
    relevant = test.values > relevant_above
    kept = np.add.reduceat(relevant, test.indptr[:-1], dtype=np.int64) > 0
    if not kept.any():
        raise ValueError(
            f"No test row is relevant (y > {relevant_above:g}), so there is nothing to evaluate; "
            "check y, or change relevant_above."
        )
    user_ids, items = test.user_ids, test.items
    indptr, rows = test.indptr, slice(None)
    if not kept.all():
        rows = np.repeat(kept, np.diff(test.indptr))
        indptr = np.concatenate([[0], np.cumsum(np.diff(test.indptr)[kept])])
        user_ids = Ids(user_ids.values[kept], user_ids.name)
    users = np.full(len(user_ids), -1)
    if model.user_ids is not None:
        users = model.user_ids.codes(user_ids.values)
    own_items = items[rows]
    codes = model.item_ids.codes(test.item_ids.values)
    warn_if_unknown(model, user_ids.values, users, test.item_ids.values, codes)
    return HeldOut(
        user_ids=user_ids,
        item_ids=test.item_ids,
        users=users,
        indptr=indptr,
        own_items=own_items,
        items=codes[own_items],
        relevant=relevant[rows],
        weights=test.weights[rows],
    )


def warn_if_unknown(
    model: Any, user_ids: np.ndarray, users: np.ndarray, item_ids: np.ndarray, items: np.ndarray
) -> None:
    """Warn if the model knows none of the test users, or none of the test items.

    Parameters
    ----------
    model
        It has `user_ids`, an Ids or None, and `item_ids`, an Ids.
    user_ids, item_ids : ndarray
        Ids of the test rows.
    users, items : ndarray
        Their codes, -1 for unknown.
    """
    if model.user_ids is None:
        return
    for role, known, asked, codes, effect in (
        ("user", model.user_ids, user_ids, users, "all are treated as one unknown user"),
        ("item", model.item_ids, item_ids, items, "it cannot tell them apart"),
    ):
        if (codes >= 0).any():
            continue
        n_asked = len(np.unique(asked))
        warn(
            f"The model knows none of the {n_asked} {role}s in the test rows, so {effect}. Unless "
            "that is what you want to measure, check that column 0 of X holds users and column 1 "
            f"items, with ids as in fit: X has {role} {asked[0]!s}, and the model knows {role} "
            f"{known.values[0]!s}."
        )


def warn_if_seen(model, held_out):
    """Warn if the first test users have seen all their test items in fit."""
    if model.seen is None:
        return
    indptr, items = model.seen
    for user in range(min(held_out.n_users, USERS_LOOKED_AT)):
        own = held_out.items[held_out.indptr[user] : held_out.indptr[user + 1]]
        code = held_out.users[user]
        if code < 0 or not np.isin(own, items[indptr[code] : indptr[code + 1]]).all():
            return
    warn(
        "The model was fitted to the test rows, so this measures memory and not prediction. "
        "Evaluate held-out rows: see fedrecsk.model_selection.",
    )
