"""Negatives, among which a user's test items are ranked: drawn or given."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from sklearn.utils import check_random_state

from fedrecsk import _kernels
from fedrecsk._sklearn import safe_indexing
from fedrecsk._warnings import warn
from fedrecsk.interactions import as_table, id_array, id_columns

# Published files of negatives contain a few rated items; a larger share is a mistake.
TOLERATED_SHARE_RATED = 0.01
# Items that one call of the kernel looks through, so that it ends within a second.
ITEMS_PER_CALL = 2**27


def drawn(model, held_out, n_negatives, random_state):
    """Draw `n_negatives` items per user, from those neither seen in fit nor in the test rows.

    Returns
    -------
    indptr : ndarray of shape (n_users + 1,)
    items : ndarray of shape (n_users * n_negatives,)
        The recommender's codes.

    Raises
    ------
    ValueError
        If a user has fewer such items.
    """
    generator, n_items = check_random_state(random_state), len(model.item_ids)
    items = np.empty((held_out.n_users, n_negatives), dtype=np.int64)
    uniform = generator.random_sample(items.shape)
    left, taken = np.empty(n_items, dtype=np.int64), np.empty(n_items, dtype=bool)
    n_each = max(1, ITEMS_PER_CALL // n_items)
    for start in range(0, held_out.n_users, n_each):
        batch = slice(start, start + n_each)
        row, n_left = _kernels.ranking.draw(
            uniform[batch],
            held_out.users[batch],
            *model.seen,
            held_out.indptr[start : start + n_each + 1],
            held_out.items,
            left,
            taken,
            items[batch],
        )
        if row >= 0:
            user = held_out.user_ids.values[start + row]
            raise ValueError(
                f"n_negatives={n_negatives}, but user {user!s} has only {n_left} items that are "
                "neither seen in fit nor in the test rows; lower n_negatives."
            )
    return np.arange(held_out.n_users + 1) * n_negatives, items.ravel()


def read(negatives):
    """Users and items of given negatives, one pair each.

    Raises
    ------
    ValueError
        If the negatives are empty, or a table of fewer than two columns.
    """
    if isinstance(negatives, Mapping):
        lists = [id_array(items, "negatives") for items in negatives.values()]
        users = np.repeat(id_array(list(negatives), "users of negatives"), list(map(len, lists)))
        items = np.concatenate(lists) if lists else np.array([])
    else:
        table = negatives if hasattr(negatives, "columns") else np.asarray(as_table(negatives))
        if table.ndim != 2 or table.shape[1] < 2:
            raise ValueError(
                "negatives must be a mapping from user to items, or a table whose rows are a user "
                f"and one or more negatives; got shape {table.shape}."
            )
        width = table.shape[1] - 1
        users = np.repeat(id_array(safe_indexing(table, 0, axis=1), "users of negatives"), width)
        columns = safe_indexing(table, list(range(1, width + 1)), axis=1)
        items = id_array(np.asarray(columns).ravel(), "negatives")
    if len(users) == 0:
        raise ValueError("negatives is empty; pass at least one for each user of X.")
    return users, items


def transformed(users, items, X, transformers):
    """The pairs as a pipeline's recommender sees them; those of users not in X are left out.

    Each pair goes through the transformers as a row of X of the same user with another item.
    """
    if not transformers:
        return users, items
    known, first = np.unique(id_columns(X)[0], return_index=True)
    inside = np.isin(users, known)
    users, items = users[inside], items[inside]
    rows = safe_indexing(X, first[np.searchsorted(known, users)], axis=0)
    if hasattr(rows, "columns"):
        table = rows.copy()
        table[table.columns[1]] = items
    else:
        table = rows.astype(np.result_type(rows, items))
        table[:, 1] = items
    for transformer in transformers:
        table = transformer.transform(table)
    return id_columns(table)


def given(model, held_out, users, items):
    """Group given negatives by test user.

    Returns
    -------
    indptr : ndarray of shape (n_users + 1,)
    items : ndarray of shape (n_negatives,)
        The recommender's codes, -1 for unknown items; each item once per user, without the
        user's test items.

    Raises
    ------
    ValueError
        If a user has none.

    Warns
    -----
    UserWarning
        If more than 1 % of them were seen in fit or are in the test rows, or if the model knows
        none of them.
    """
    rows = held_out.user_ids.codes(users)
    asked = rows >= 0
    rows, items = rows[asked], items[asked]
    missing = np.bincount(rows, minlength=held_out.n_users) == 0
    if missing.any():
        raise ValueError(
            f"User {held_out.user_ids.values[missing.argmax()]!s} is in X but has no "
            "negatives; add some, or leave the user's rows out."
        )
    tested = _under_test(held_out, rows, items)
    n_codes = len(model.item_ids) + 1
    pairs = np.sort((rows * n_codes + model.item_ids.codes(items) + 1)[~tested])
    rows, codes = np.divmod(pairs[np.diff(pairs, prepend=-1) > 0], n_codes)
    indptr = np.searchsorted(rows, np.arange(held_out.n_users + 1))
    if not codes.any():
        warn(
            "The model knows none of the given negatives, so test items have nothing to be ranked "
            f"among. Give item ids as in fit, such as {model.item_ids.values[0]!s}.",
        )
    n_rated = tested.sum() + _n_seen(model, held_out, rows, codes - 1)
    if n_rated > TOLERATED_SHARE_RATED * len(items):
        warn(
            f"{n_rated} of the {len(items)} given negatives are not negatives: their users have "
            "seen them in fit, or they are in the test rows.",
        )
    return indptr, codes - 1


def _under_test(held_out, rows, items):
    n_items = len(held_out.item_ids)
    codes = held_out.item_ids.codes(items)
    tested = np.repeat(np.arange(held_out.n_users), held_out.n_rows) * n_items + held_out.own_items
    return (codes >= 0) & _among(rows * n_items + codes, tested)


def _n_seen(model, held_out, rows, items):
    if model.seen is None:
        return 0
    indptr, seen_items = model.seen
    users = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    n_items = len(model.item_ids)
    known = (held_out.users[rows] >= 0) & (items >= 0)
    pairs = (held_out.users[rows] * n_items + items)[known]
    return int(_among(pairs, users * n_items + seen_items).sum())


def _among(values, others):
    # np.isin takes a second for a million values, and this none.
    others = np.sort(others)
    position = np.minimum(np.searchsorted(others, values), len(others) - 1)
    return others[position] == values
