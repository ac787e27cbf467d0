"""Warnings about tables that probably contain a mistake.

The tests are strict enough not to warn about correct tables.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from fedrecsk._utils.user_warnings import warn
from fedrecsk.data.ids import Ids

# In order of preference, as `plain_name` gives them.
USUAL_NAMES = {
    "user": "user userid uid userno users customer customerid reviewerid member memberid visitorid",
    "item": "item itemid iid itemno items movie movieid film filmid product productid asin book "
    "bookid isbn song songid track trackid artist artistid business businessid anime animeid",
    "rating": "rating ratings score stars preference overall grade value",
    "timestamp": "timestamp ts time unixtime unixreviewtime datetime date ratedat reviewtime",
}
USUAL_NAMES = {role: names.split() for role, names in USUAL_NAMES.items()}
ROLES = tuple(USUAL_NAMES)
# Strings that stand for missing values in files, or that .astype(str) makes of missing values.
_MISSING = (
    *("nan", "NaN", "<NA>", "NaT", "NA", "N/A", "n/a", "#N/A", "None", "none", "NULL", "null"),
    *("(null)", "\\N", "nil", "Nil", "NIL", "undefined", "unknown", "Unknown", "UNKNOWN"),
    *("-", "--", "?"),
)
# What users do with items, in columns of logs.
EVENTS = (
    "view views viewed pageview page_view product_view detail pv click clicks clicked impression "
    "cart addtocart add_to_cart add-to-cart remove_from_cart purchase purchased buy order ordered "
    "transaction checkout like liked dislike fav favorite favourite wishlist rate rated review "
    "play played watch watched listen skip download install share search"
)
EVENTS = set(EVENTS.split())
DATE = re.compile(
    r"(19|20)\d\d([-/.])\d\d?\2\d\d?([ T].*)?|\d\d?([-/.])\d\d?\4(19|20)\d\d([ T].*)?", re.ASCII
)
# So many ids are looked at, to see whether all are dates.
_N_DATES = 20
# Ratings that stand for "seen, but not rated"; fewer of them may be ratings.
_NOT_RATED, _MANY_NOT_RATED = (0, -1), 0.1
# A matrix has one column per item; tables of interactions rarely have ten.
_WIDE = 10
_MAX_RATINGS = 25
_N_ROWS = 1000
# With more items of one user each, the ids are hardly those of items.
_LONE_SHARE = 0.95
# Fewer rows may look like stars, or like another column, by chance.
_FEWEST_ROWS = 100
# Stars have at most ten steps and are at most 10.
_MAX_STEPS = 10
# Unix times of 1990 to 2035, of at least a month, so that numbers in a row are none.
EPOCH = (631_152_000, 2_051_222_400)
_MONTH = 30 * 86_400
# With fewer unknown ids in test rows, those are probably new ones.
_MANY_UNKNOWN = 0.1
_ALL_SWAPPED = (
    "All users (column 0 of X) and items (column 1) are unknown, but all users are known items and "
    "all items known users. Are the columns swapped? Put the user's id in column 0."
)


def plain_name(name: Any) -> str:
    """Reduce `User_ID`, `userId` and RecBole's `user_id:token` to `userid`."""
    return "".join(letter for letter in str(name).split(":")[0].lower() if letter.isalnum())


def role_of(name: Any) -> str | None:
    """Return the role of a column of that name, or None if the name is unusual."""
    return next((role for role, names in USUAL_NAMES.items() if plain_name(name) in names), None)


def warn_about_columns(X: Any) -> None:
    """Warn if names or values suggest that X is not a table of users and items."""
    _warn_about_names(X)
    _warn_about_matrix(X)


def _warn_about_names(X: Any) -> None:
    names = getattr(X, "columns", ())
    if len(names) < 2:
        return
    found = list(map(role_of, names[:2]))
    if _is_row(*names[:2]):
        warn(
            f"The first two columns of X are named {names[0]!r} and {names[1]!r}, like a row. If "
            "the file has no header, read it with header=None, or its first row is lost."
        )
        return
    if found == ["item", "user"]:
        hint = f"Swap them: X[[{names[1]!r}, {names[0]!r}]] and then the other columns."
    elif set(found) & {"rating", "timestamp"}:
        hint = "Put the columns in the order user, item, and then the others."
    else:
        return
    warn(
        f"The first two columns of X are named {names[0]!r} and {names[1]!r}, but column 0 is read "
        f"as the user's id and column 1 as the item's id. {hint}"
    )


def _is_row(first, second):
    """Return whether the names of two columns are a user's number and an item or an event."""
    if not (isinstance(first, str) and isinstance(second, str) and first.isdecimal()):
        return False
    # Columns may be numbered.
    is_item = second.isdecimal() and int(second) != int(first) + 1
    return is_item or second.lower() in EVENTS


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
            "values. Pass one row per interaction, with the user's id in column 0 and the item's "
            "in column 1. For a matrix M: users, items = np.nonzero(M); "
            "X = np.column_stack([users, items]); y = M[users, items]."
        )


def warn_about_target(name: str, X: Any, y: Any, *, rates: bool) -> None:
    """Warn about times as y, booleans for a rating model, and ratings for a ranking model."""
    if y is not None and _are_times(y):
        warn(
            f"y looks like Unix times, such as {y[0]:.0f}. Pass ratings as y, or leave y out for "
            "implicit feedback; times belong into column 2 of X."
        )
        return
    if y is not None and (column := _same_column(X, y)) is not None:
        warn(
            f"y has the same numbers as column {column} of X, which is read as the "
            f"{ROLES[column]}'s id. Pass ratings as y, or leave y out for implicit feedback."
        )
        return
    if rates:
        if y is not None and y.dtype.kind == "b":
            warn(
                f"y holds True and False, which {name} takes as the ratings 1 and 0. For implicit "
                "feedback, use a ranking model such as LocALS, and leave out the rows that are "
                "False."
            )
        if y is not None:
            _warn_about_not_rated(y)
        return
    cure = f"{name} takes every row with y > 0 as positive, even a bad rating. Keep the good ones: "
    if y is not None and _are_stars(y):
        warn(
            f"y looks like ratings from {y.min():g} to {y.max():g}. {cure}"
            "X, y = preprocessing.to_implicit(X, y, threshold=4)."
        )
    columns = [one for one in list(getattr(X, "columns", ()))[2:] if role_of(one) == "rating"]
    if y is None and columns:
        warn(
            f"X has a column {columns[0]!r}, which is not read. {cure}X, y = "
            f"preprocessing.to_implicit(X, X[{columns[0]!r}], threshold=4). If they are chosen "
            "already, leave the column out."
        )


def warn_about_entries(name: str, entries: np.ndarray) -> None:
    """Warn if entries of a matrix, which are weights, look like ratings."""
    if _are_stars(entries):
        warn(
            f"The entries of X look like ratings from {entries.min():g} to {entries.max():g}. "
            f"{name} takes each one above 0 as the weight of a positive, even a bad rating. Keep "
            "the good ones: X = (X >= 4).astype(float)."
        )


def _warn_about_not_rated(y):
    """Warn about many ratings of 0 or -1 among at least three other ones, all positive."""
    lowest = y.min()
    share = np.mean(y == lowest)
    if lowest not in _NOT_RATED or len(y) < _FEWEST_ROWS or share < _MANY_NOT_RATED:
        return
    others = y[y != lowest]
    n_steps = len(np.unique(others[:_N_ROWS]))
    if 3 <= n_steps <= _MAX_RATINGS and others.min() > 0:
        warn(
            f"{share:.0%} of the ratings are {lowest:g}; the others go from {others.min():g} to "
            f"{others.max():g}. If {lowest:g} means that there is no rating, drop these rows "
            f"first: X, y = X[y != {lowest:g}], y[y != {lowest:g}]."
        )


def _are_stars(y):
    """Return whether y has a few numbers in equal steps, of which the lowest is not the commonest.

    Counts, whose commonest number is the lowest, are none.
    """
    if len(y) < _FEWEST_ROWS:
        return False
    values, counts = np.unique(y[:_N_ROWS], return_counts=True)
    return (
        3 <= len(values) <= _MAX_STEPS
        and 0 < values[0] <= values[-1] / 3
        and values[-1] <= _MAX_STEPS
        and np.ptp(np.diff(values)) == 0
        and counts.argmax() > 0
    )


def _same_column(X, y):
    """Return which of the two columns of ids equals y, or None."""
    if len(y) < _FEWEST_ROWS or len(X.shape) != 2:
        return None
    some = np.asarray(X[:_N_ROWS])
    same = [np.array_equal(some[:, column], y[:_N_ROWS]) for column in range(2)]
    return same.index(True) if any(same) else None


def _are_times(values):
    """Return whether all numbers are Unix times in seconds or milliseconds."""
    if values.dtype.kind not in "iuf" or len(values) < 2:
        return False
    low, high = float(values.min()), float(values.max())
    return any(
        EPOCH[0] * unit <= low and high <= EPOCH[1] * unit and high - low >= _MONTH * unit
        for unit in (1, 1000)
    )


def warn_about_ids(ids: np.ndarray, codes: np.ndarray, name: str) -> None:
    """Warn if distinct ids are times, fractions or events, or strings of missing values."""
    texts = ids[:_N_DATES].tolist() if ids.dtype.kind == "U" else []
    if texts and set(map(str.lower, texts)) <= EVENTS:
        warn(
            f"{name} are kinds of events, such as {texts[0]!r}. Column 0 of X should be the user's "
            "id and column 1 the item's id; keep the rows of one event, and drop its column."
        )
    if texts and all(map(DATE.fullmatch, texts)):
        warn(
            f"{name} look like dates, such as {texts[0]!r}. Column 0 of X should be the user's id "
            "and column 1 the item's id; times belong into column 2."
        )
    if _are_times(ids):
        warn(
            f"{name} look like Unix times, such as {ids[0]!s}. Column 0 of X should be the user's "
            "id and column 1 the item's id; times belong into column 2."
        )
    fractions = ids != np.trunc(ids) if ids.dtype.kind == "f" else np.zeros(1, dtype=bool)
    if fractions.any():
        warn(
            f"{name} have fractions, such as {ids[fractions.argmax()]!s}. Are they ratings or "
            "features? Column 0 of X should be the user's id and column 1 the item's id."
        )
    missing = np.isin(ids, _MISSING) if texts else np.zeros(1, dtype=bool)
    if missing.any():
        share = np.mean(missing[codes])
        warn(
            f"{name} include {str(ids[missing.argmax()])!r}, in {100 * share:.2g}% of the rows, "
            "which often stands for a missing value. It counts as an id like any other; if it "
            "stands for a missing id, drop its rows first."
        )


def warn_about_lone_items(items: np.ndarray, n_users: int) -> None:
    """Warn if nearly all items, given the code of each row, have one user."""
    n_users_each = np.bincount(items)
    n_lone, n_items = np.count_nonzero(n_users_each == 1), np.count_nonzero(n_users_each)
    if len(items) >= _FEWEST_ROWS and n_users > 1 and n_lone > _LONE_SHARE * n_items:
        warn(
            f"{n_lone} of the {n_items} items (column 1 of X) have one user each, so nothing can "
            "be learned from other users. If an id is a list or a text of several items, give each "
            "item a row of its own, for example with X.explode('item')."
        )


def warn_about_unknown_pairs(users: Any, items: Any, codes: Any, known: tuple[Ids, Ids]) -> None:
    """Warn if nobody and nothing is known, but would be if columns were swapped."""
    if not len(users) or (codes[0] >= 0).any() or (codes[1] >= 0).any():
        return
    if _are_known_if_swapped(users, items, known):
        warn(_ALL_SWAPPED)


def check_order(users: Any, items: Any, codes: Any, known: tuple[Ids, Ids]) -> None:
    """Raise if only swapped columns have known ids; warn if they have clearly more."""
    unknown = [float(np.mean(one < 0)) for one in codes]
    if max(unknown) < _MANY_UNKNOWN or not _are_known_if_swapped(users, items, known):
        return
    if min(unknown) == 1:
        raise ValueError(_ALL_SWAPPED)
    warn(
        f"The model does not know {unknown[0]:.0%} of the users (column 0 of X) and "
        f"{unknown[1]:.0%} of the items (column 1), but all users are known items and all items "
        "known users. Are the columns swapped? Put the user's id in column 0."
    )


def _are_known_if_swapped(users, items, known):
    """Return whether all users are known items and all items are known users."""
    for ids, others in ((users, known[1]), (items, known[0])):
        same_kind = (ids.dtype.kind == "U") == (others.values.dtype.kind == "U")
        if not same_kind or (others.codes(ids) < 0).any():
            return False
    return True
