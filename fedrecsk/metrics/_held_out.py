"""Test rows, encoded for the recommender that is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.validation import check_consistent_length

from fedrecsk._utils.sklearn_compat import check_sample_weight
from fedrecsk._utils.user_warnings import warn
from fedrecsk.data._mistakes import check_order
from fedrecsk.data.interactions import Ids, as_table, encode

if TYPE_CHECKING:
    from typing import Any


# Number of users whose test rows are compared with what they saw in fit.
USERS_LOOKED_AT = 100


@dataclass(frozen=True)
class HeldOut:
    """Test rows of all users who have at least one relevant row."""

    user_ids: Ids
    item_ids: Ids  # all items of the test rows, known to the recommender or not
    users: np.ndarray  # the recommender's codes, -1 for unknown users
    indptr: np.ndarray  # rows of each user
    own_items: np.ndarray  # of each row, as a code of `item_ids`
    items: np.ndarray  # of each row, as the recommender's code or -1
    relevant: np.ndarray  # of each row, bool
    weights: np.ndarray  # of each row

    @property
    def n_users(self):
        return len(self.users)

    @property
    def n_rows(self):
        """Return the number of rows of each user."""
        return np.diff(self.indptr)


@np.errstate(invalid="ignore", over="ignore")
def check_rows(X, y=None, sample_weight=None):
    """Return X as a table, y and the weights as arrays or None; raise if they are invalid."""
    X = as_table(X)
    checked = check_array(X, dtype=None, ensure_all_finite=False, ensure_min_features=2)
    # Later columns of X may hold anything; its ids are checked where they are encoded.
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
    """Encode test rows for `model`; raise if none is relevant or the columns are swapped."""
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
    if model.user_ids is not None:
        known = model.user_ids, model.item_ids
        check_order(user_ids.values, test.item_ids.values, (users, codes), known)
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
    """Warn if the model knows no test user or no test item; codes are -1 for unknown."""
    if model.user_ids is None:
        return
    for role, known, asked, codes, effect in (
        ("user", model.user_ids, user_ids, users, "all are treated as one unknown user"),
        ("item", model.item_ids, item_ids, items, "they all have the same score"),
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
        "The model was fitted to the test rows, so this does not measure prediction. "
        "Evaluate held-out rows: see fedrecsk.model_selection.",
    )
