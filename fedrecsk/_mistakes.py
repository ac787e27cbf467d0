"""Warnings about tables that are probably not what they are meant to be.

Each test is made so that it stays silent on tables that are as they should be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedrecsk._warnings import warn

if TYPE_CHECKING:
    from typing import Protocol

    class Ids(Protocol):
        """What this module needs of :class:`fedrecsk.interactions.Ids`."""

        values: np.ndarray

        def codes(self, ids: np.ndarray) -> np.ndarray: ...


_NAMES = {
    "the user": {"user", "userid", "uid", "users", "customer", "customerid", "reviewerid"},
    "the item": {"item", "itemid", "iid", "items", "movie", "movieid", "product", "productid"},
    "the rating": {"rating", "ratings", "stars", "score"},
    "the time": {"timestamp", "timestamps", "time", "date", "datetime"},
}
_WANTED = ("the user", "the item")
_MISSING = ("nan", "<NA>", "NaT")
# A matrix has one column per item; tables of interactions rarely have ten.
_WIDE = 10
_MAX_RATINGS = 25
_N_ROWS = 1000


def warn_about_columns(X: Any) -> None:
    """Warn if the names of the columns of X, or its values, say that it is no table of users and
    items.

    Parameters
    ----------
    X : ndarray or DataFrame of shape (n_samples, n_features >= 2)
    """
    _warn_about_names(X)
    _warn_about_matrix(X)


def _warn_about_names(X: Any) -> None:
    names = getattr(X, "columns", ())
    if len(names) < 2:
        return
    found = [_role(name) for name in names[:2]]
    if found == [_WANTED[1], _WANTED[0]]:
        cure = f"Swap them: X[[{names[1]!r}, {names[0]!r}]] and then the other columns."
    elif set(found) & {"the rating", "the time"}:
        cure = "Put the columns in the order user, item, and then the others."
    else:
        return
    warn(
        f"The first two columns of X are named {names[0]!r} and {names[1]!r}, but column 0 is read "
        f"as the user's id and column 1 as the item's id. {cure}"
    )


def _role(name: Any) -> str | None:
    plain = "".join(letter for letter in str(name).lower() if letter.isalnum())
    return next((role for role, names in _NAMES.items() if plain in names), None)


def _warn_about_matrix(X: Any) -> None:
    """Warn if the rows of X have few different values and the same first two over and over."""
    if len(X.shape) != 2 or X.shape[1] < _WIDE or X.shape[0] < 2:
        return
    some = np.asarray(X[:_N_ROWS])
    if some.dtype == object:
        cells = some.ravel().tolist()
        if not all(issubclass(kind, int | float | np.number) for kind in set(map(type, cells))):
            return
        some = np.array(some.tolist())  # lists of numbers, or columns of different types
    if some.dtype.kind not in "biuf":
        return
    some = np.nan_to_num(some.astype(np.float64))
    values = np.unique(some[:, 2:])
    pairs = np.unique(some[:, :2], axis=0)
    looks_like_ratings = len(values) <= _MAX_RATINGS and np.isin(pairs, values).all()
    if looks_like_ratings and 4 * len(pairs) <= len(some):
        warn(
            f"X looks like a matrix of users by items: {X.shape[1]} columns with the same few "
            "values. But X should have one row per interaction, with the user's id in column 0 "
            "and the item's in column 1. For a matrix M, with 0 for no rating: "
            "users, items = np.nonzero(M); X = np.column_stack([users, items]); "
            "y = M[users, items]."
        )


def warn_about_fractions(ids: np.ndarray, name: str) -> None:
    """Warn if ids have fractions, which ratings have and ids do not.

    Parameters
    ----------
    ids : ndarray of shape (n_ids,)
        Distinct.
    name : str
        What they are.
    """
    if ids.dtype.kind != "f":
        return
    fractions = ids != np.trunc(ids)
    if fractions.any():
        warn(
            f"{name} have fractions, such as {ids[fractions.argmax()]!s}. Are they ratings or "
            "features? Column 0 of X should be the user's id and column 1 the item's id."
        )


def warn_about_missing(ids: np.ndarray, name: str) -> None:
    """Warn about strings that are what becomes of missing values when they are made strings.

    Parameters
    ----------
    ids : ndarray of shape (n_ids,)
        Distinct.
    name : str
        What they are.
    """
    if ids.dtype.kind != "U":
        return
    found = [text for text in _MISSING if (ids == text).any()]
    if found:
        warn(
            f"{name} include {found[0]!r}, which is what .astype(str) makes of a missing value. It "
            "counts as an id like any other; if it stands for a missing id, drop its rows first."
        )


def warn_about_unknown_pairs(
    users: np.ndarray, items: np.ndarray, codes: tuple[np.ndarray, ...], known: tuple[Ids, Ids]
) -> None:
    """Warn if all users and items are unknown, and known when the columns are swapped.

    Parameters
    ----------
    users, items : ndarray of shape (n,)
    codes : tuple of ndarray of shape (n,)
        -1 for unknown users and items.
    known : tuple of Ids
        The users and the items that fit saw.
    """
    if not len(users) or (codes[0] >= 0).any() or (codes[1] >= 0).any():
        return
    for ids, others in ((users, known[1]), (items, known[0])):
        same_kind = (ids.dtype.kind == "U") == (others.values.dtype.kind == "U")
        if not same_kind or (others.codes(ids) < 0).any():
            return
    warn(
        "All users (column 0 of X) and items (column 1) are unknown, but all users are known items "
        "and all items known users. Are the columns swapped? Put the user's id in column 0."
    )
