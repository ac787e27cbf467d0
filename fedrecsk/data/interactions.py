"""From (X, y, clients, sample_weight) to encoded ids and a CSR matrix sorted by client.

Nothing else in the package parses X.
"""

from __future__ import annotations

import hashlib
import reprlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.utils.validation import check_consistent_length

from fedrecsk._utils.sklearn_compat import safe_indexing
from fedrecsk.data._checks import check_resolution
from fedrecsk.data._mistakes import warn_about_columns, warn_about_ids

ROLES = ("user", "item")
_MANY_IDS = 2**20  # strings that are Python strings at a time
NO_ID = "drop these or give them an id first."
# The source of item ids that come with rows, so that they are not public.
OF_ROWS = "the rows of X"


def as_table(X: Any) -> Any:
    """Turn a list of rows into an array of objects, so that each column keeps its own type."""
    if sparse.issparse(X):
        raise TypeError(
            "Sparse data was passed: X is a sparse matrix, but should have one row per "
            "interaction. For a matrix M of users by items: M = M.tocoo(), "
            "X = np.column_stack([M.row, M.col]), y = M.data. Only fit of a model of likes takes "
            "M itself, without y."
        )
    if type(X).__name__ == "LazyFrame":
        raise TypeError("X is a LazyFrame, which has no rows yet; pass X.collect().")
    if np.ma.is_masked(X):
        raise ValueError("X has masked values; drop their rows first.")
    # NumPy would turn [["alice", 7]] into strings, and a large item id beside a float into another.
    return np.array(X, dtype=object) if isinstance(X, list | tuple) else X


def shape_of_ids(frame: Any) -> NDArray[np.int8]:
    """Return zeros in the shape of a frame's ids, for checks of the shape alone."""
    # One array of all columns would be large, and there is none of integers beside dates.
    return np.broadcast_to(np.int8(0), (len(frame), min(2, frame.shape[1])))


def matrix_rows(matrix: Any, clients: Any, sample_weight: Any) -> tuple[Any, ...]:
    """Return X, y, clients and weights of the entries of a sparse matrix, and its columns' ids."""
    if sample_weight is not None:
        raise TypeError(
            "Sparse data was passed: its entries are the weights; leave sample_weight out."
        )
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise TypeError(
            "Sparse data was passed: X should be a matrix of numbers, users by items, got shape "
            f"{matrix.shape} and dtype {matrix.dtype}."
        )
    entries = matrix.tocoo()
    values = entries.data.astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError(
            "The sparse matrix X has entries that are NaN or infinite; leave them out."
        )
    if not values.any():
        raise ValueError("The sparse matrix X has no entry other than 0, so nobody likes anything.")
    users, items = (numbers.astype(np.int64) for numbers in (entries.row, entries.col))
    if clients is not None:
        clients = np.asarray(clients)
        if clients.shape != (matrix.shape[0],):
            raise ValueError(
                f"clients has shape {clients.shape}; with a sparse matrix X it has the client of "
                f"each of its {matrix.shape[0]} rows."
            )
        clients = clients[users]
    catalogue = Ids(np.arange(matrix.shape[1]), "item ids", "the columns of X")
    return np.column_stack([users, items]), np.sign(values), clients, abs(values), catalogue


def id_columns(X: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read users (column 0) and items (column 1), each with its own type."""
    users, items = (
        id_array(safe_indexing(X, column, axis=1), f"{role} ids (column {column} of X)")
        for column, role in enumerate(ROLES)
    )
    return users, items


def id_array(ids: ArrayLike, name: str) -> NDArray[Any]:
    """Turn ids into a 1-d array of integers, floats or strings, or raise."""
    if isinstance(ids, list | tuple):
        ids = np.array(ids, dtype=object)
    ids = np.atleast_1d(np.asarray(ids))
    if ids.ndim != 1:
        raise ValueError(f"{name} should be one-dimensional, got an array of shape {ids.shape}.")
    if ids.dtype.kind in "mM":
        raise TypeError(_not_ids(name, ids.dtype.name))
    if ids.dtype.kind not in "biufU":
        ids = _from_objects(ids, name)
    if ids.dtype.kind == "f":
        if not np.isfinite(ids).all():
            raise ValueError(f"{name} contain NaN or infinity; {NO_ID}")
        check_resolution(ids, name, "give them as integers or strings, for example in a DataFrame")
    # pandas takes no other order of bytes.
    return ids.astype(ids.dtype.newbyteorder("="), copy=False)


def catalogue_ids(items: ArrayLike) -> Ids:
    """Return the ids of a public catalogue in ascending order, or raise."""
    if not isinstance(items, list | tuple) and np.ndim(items) == 0:
        raise TypeError(f"items should be a list or an array of ids, got {reprlib.repr(items)}.")
    if len(ids := id_array(items, "items")) == 0:
        raise ValueError("items is empty; pass None to take the items of X.")
    return distinct_items(ids, "items", "give each id once, for example with numpy.unique")


def distinct_items(ids: NDArray[Any], name: str, cure: str, source: str = "`items`") -> Ids:
    """Return ids of items in ascending order; raise if one occurs twice."""
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"{name} has {named('item', values[counts > 1])} more than once; {cure}.")
    return Ids(values, "item ids", source)


def _from_objects(ids, name):
    objects = ids.tolist()
    missing = [one for one in objects if _is_missing(one)]
    if missing:
        is_nan = isinstance(missing[0], float)
        what = "NaN or infinity" if is_nan else f"missing values ({missing[0]})"
        raise ValueError(f"{name} contain {what}; {NO_ID}")
    kinds = set(map(type, objects))
    strange = [k for k in kinds if not issubclass(k, str | int | float | np.number | np.bool_)]
    if strange:
        raise TypeError(_not_ids(name, strange[0].__name__))
    n_strings = sum(issubclass(kind, str) for kind in kinds)
    if kinds and n_strings == len(kinds):
        if any("\0" in one for one in objects):
            raise ValueError(
                f"{name} contain NUL characters, which NumPy drops at the end of a string, so that "
                "two ids would become one. Remove them first, for example with .str.rstrip('\\0')."
            )
        return ids.astype(str)
    if n_strings:
        names = sorted(kind.__name__ for kind in kinds)
        raise ValueError(
            f"{name} mix strings and numbers ({', '.join(names)}), so '1' and 1 would be two ids; "
            "convert the column to one type, for example with .astype(str)."
        )
    if all(issubclass(kind, int) for kind in kinds):
        # NumPy makes floats of integers that neither int64 nor uint64 can hold together.
        numbers = np.array(objects)
        return numbers if numbers.dtype.kind in "biu" else np.array(objects, dtype=object)
    return np.array(objects)


def _is_missing(one):
    """Return whether an object stands for a missing value: None, NaN, or pandas' NaT and NA."""
    return (
        one is None
        or (isinstance(one, float) and one != one)
        or type(one).__name__ in ("NaTType", "NAType")
    )


def _not_ids(name, kind):
    hint = "convert the column, for example with .astype(str)"
    if kind.startswith(("date", "Timestamp")):
        hint = f"if it is the time of the interaction, put it into a later column; otherwise {hint}"
    elif kind == "bytes":
        hint = "decode them, for example with .str.decode('utf-8')"
    return f"{name}: argument must be a string or a number, not {kind!r}; {hint}."


def missing_id(dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the value of this type that stands for "no id": -1, NaN or an empty string."""
    return np.array({"f": np.nan, "U": ""}.get(dtype.kind, -1)).astype(dtype)


def named(role: str, ids: NDArray[Any]) -> str:
    """List a few ids for an error message: "users 3, 5, 8 and 2 more"."""
    ids = np.unique(ids)
    shown = ", ".join(map(str, ids[:3]))
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return f"{role}{'s' if len(ids) > 1 else ''} {shown}{more}"


@dataclass(frozen=True)
class Ids:
    """Distinct known ids in the order of their codes.

    In errors, `name` says what they are, and `source` where a catalogue comes from.
    """

    values: NDArray[Any]
    name: str
    source: str = "`items`"

    def __len__(self) -> int:
        return len(self.values)

    def codes(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """Return the code of each id, -1 if it is not known."""
        if not len(self.values):
            # A model without users knows nobody, and will take any type of ids.
            return np.full(len(ids), -1, dtype=np.int64)
        codes, values = factorized(ids)
        return self._found(values)[codes]

    def _found(self, ids):
        known, asked = self.values, ids
        if _are_strings(known) != _are_strings(asked):
            fitted, given = ("strings", "numbers")[:: 1 if _are_strings(known) else -1]
            raise ValueError(
                f"{self.name} were {fitted} in fit and are {given} here; "
                "convert them to the type that fit saw."
            )
        if known.dtype.kind == "O" or asked.dtype.kind == "O":
            known, asked = known.astype(object), asked.astype(object)
        elif known.dtype.kind != "U":
            asked = asked.astype(known.dtype)
        is_sorted = np.all(known[:-1] <= known[1:])
        order = None if is_sorted else np.argsort(known, kind="stable")
        position = np.searchsorted(known, asked, sorter=order)
        position = np.minimum(position, len(known) - 1)
        codes = position if order is None else order[position]
        return np.where(known[codes] == ids, codes, -1).astype(np.int64)

    def followed_by(self, ids: NDArray[Any]) -> Ids:
        """Return these ids and distinct others, in the type of these if it can hold them."""
        if not len(self.values):
            return Ids(ids, self.name)
        if ids.dtype.kind != "O":
            with np.errstate(invalid="ignore"):
                alike = ids.astype(self.values.dtype)
            ids = alike if np.array_equal(alike, ids) else ids
        both = np.concatenate([self.values, ids])
        if both.dtype.kind == "f" and "i" in self.values.dtype.kind + ids.dtype.kind:
            # Floats hold no integers of 2**53 or more one by one.
            objects = np.concatenate([self.values.astype(object), ids.astype(object)])
            both = both if np.array_equal(both.astype(object), objects) else objects
        return Ids(both, self.name)


def factorized(ids: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Number ids in the order of their first appearance; return the numbers and distinct ids."""
    kind = getattr(ids.dtype, "kind", "O")
    if kind == "f":
        # pandas has no hash table of float16; adding zero makes -0.0 the same as 0.0.
        codes, values = pd.factorize(np.asarray(ids, dtype=np.float64) + 0.0)
        dtype = ids.dtype if isinstance(ids.dtype, np.dtype) else np.float64
        return codes, np.asarray(values).astype(dtype)
    if kind != "U":
        codes, values = pd.factorize(ids)
        return codes, np.asarray(values)
    # A Python string takes ten times the memory of a short NumPy one, so some are made at a time.
    codes = np.empty(len(ids), dtype=np.int64)
    values = np.empty(0, dtype=object)
    for start in range(0, len(ids), _MANY_IDS):
        part = ids[start : start + _MANY_IDS].astype(object)
        # Known ids come first, so they keep their numbers.
        both, known = pd.factorize(np.concatenate([values, part]))
        codes[start : start + _MANY_IDS] = both[len(values) :]
        values = known
    return codes, np.asarray(values).astype(str)


def coded_ids(ids: Any, name: str) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Read ids as :func:`id_array` does; return sorted distinct ids and the position of each."""
    if not hasattr(ids, "factorize"):
        ids = np.array(ids, dtype=object) if isinstance(ids, list | tuple) else np.asarray(ids)
    try:
        codes, values = factorized(ids)
    except (TypeError, ValueError):
        # Lists or tables: the error of the other function says what is wrong.
        codes, values = factorized(id_array(ids, name))
    if len(codes) and codes.min() < 0:
        values = np.asarray(ids)[codes < 0]  # missing, which is an error
    values, ranks = np.unique(id_array(values, name), return_inverse=True)
    return values, ranks.astype(np.int32)[codes]


@dataclass(frozen=True)
class Interactions:
    """Ratings sorted by user and users sorted by client: a CSR matrix of users by items."""

    user_ids: Ids  # client by client, sorted within each client
    item_ids: Ids
    client_ids: np.ndarray
    client_indptr: np.ndarray  # int64: users client_indptr[c]:client_indptr[c + 1] are client c's
    indptr: np.ndarray  # int64: ratings indptr[u]:indptr[u + 1] are user u's
    items: np.ndarray  # int32 codes, ascending within a user
    values: np.ndarray  # float64 ratings or preferences
    weights: np.ndarray  # float64 sample weights, positive
    times: np.ndarray | None = None  # float64, NaN where missing; None: the model does not use it
    features: np.ndarray | None = None  # of users, NaN where missing; None: the model uses none

    @property
    def n_users(self) -> int:
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        return len(self.item_ids)

    @property
    def n_clients(self) -> int:
        return len(self.client_ids)

    @property
    def users(self) -> NDArray[np.int64]:
        """User code of each rating, shape (n_ratings,)."""
        return np.repeat(np.arange(self.n_users), np.diff(self.indptr))

    @property
    def clients(self) -> NDArray[np.int64]:
        """Client code of each rating, shape (n_ratings,)."""
        return np.repeat(np.arange(self.n_clients), np.diff(self.rating_indptr))

    @property
    def rating_indptr(self) -> NDArray[np.int64]:
        """Client c has the ratings ``rating_indptr[c]:rating_indptr[c + 1]``."""
        return self.indptr[self.client_indptr]

    def clients_with(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the codes of the clients that have any of these users (codes)."""
        return np.unique(np.searchsorted(self.client_indptr, users, side="right") - 1)

    def take(self, mask: NDArray[np.bool_]) -> Interactions:
        """Keep the ratings where `mask` is true, and all users, items and clients."""
        kept = np.concatenate([[0], np.cumsum(mask)])
        return replace(
            self,
            indptr=kept[self.indptr],
            items=self.items[mask],
            values=self.values[mask],
            weights=self.weights[mask],
            times=None if self.times is None else self.times[mask],
        )

    def fingerprint(self) -> bytes:
        """Return a digest of all data, by which the same data can be recognised."""
        digest = hashlib.blake2b(digest_size=16)
        ids = self.user_ids.values, self.item_ids.values, self.client_ids, self.client_indptr
        rows = self.indptr, self.items, self.values, self.weights
        for array in (*ids, *rows, *(() if self.times is None else (self.times,))):
            if array.dtype == object:
                array = array.astype(str)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        return digest.digest()


def encode(
    X: Any,
    y: NDArray[Any] | None = None,
    *,
    clients: ArrayLike | None = None,
    sample_weight: NDArray[np.floating] | None = None,
    item_ids: Ids | None = None,
    drop_other_items: bool = True,  # else they are an error, unless their weight is 0
    times: NDArray[np.float64] | None = None,
) -> Interactions:
    """Encode rows client by client, drop those of weight 0, and merge those of equal pairs."""
    warn_about_columns(X)
    coded = []
    for column, role in enumerate(ROLES):
        name = f"{role} ids (column {column} of X)"
        values, codes = coded_ids(safe_indexing(X, column, axis=1), name)
        coded.append((values, codes))
        warn_about_ids(values, codes, name)
        if values.dtype.kind == "U" and "" in values[:1]:
            raise ValueError(f"{name} contain empty strings, which stand for no id; {NO_ID}")
    users, items = coded
    if clients is not None:
        clients = coded_ids(clients, "clients")
        check_consistent_length(users[1], clients[1])
    if sample_weight is not None and not (sample_weight > 0).any():
        raise ValueError(
            "Sample weights must contain at least one non-zero number: rows of weight zero count "
            "as absent, and none are left."
        )
    absent = None if sample_weight is None else ~(sample_weight > 0)
    if item_ids is not None and not drop_other_items:
        present = items[0] if absent is None else items[0][np.unique(items[1][~absent])]
        _check_items(users[0], present, item_ids)
    item_ids, item_codes = _in_catalogue(*items, item_ids, absent)
    user_values, user_codes = users
    client_values, client_of_user = user_values, np.arange(len(user_values))
    if clients is not None:
        client_values, client_of_user = clients[0], _one_client_each(*users, *clients)

    values, weights = None if y is None else np.asarray(y), sample_weight
    present = item_codes >= 0
    if not present.all():
        user_codes, item_codes = user_codes[present], item_codes[present]
        values = None if values is None else values[present]
        weights = None if weights is None else weights[present]
        times = None if times is None else times[present]

    # Users without any row left are dropped, and so are their clients.
    kept_users = np.flatnonzero(np.bincount(user_codes, minlength=len(user_values)))
    order = kept_users[np.argsort(client_of_user[kept_users], kind="stable")]
    rank = np.full(len(user_values), -1, dtype=np.int32)
    rank[order] = np.arange(len(order))
    kept_clients, users_per_client = np.unique(client_of_user[order], return_counts=True)

    indptr, items, values, weights, times = _merge(
        rank[user_codes], item_codes, values, weights, times, (len(order), len(item_ids))
    )
    return Interactions(
        user_ids=Ids(user_values[order], "user ids"),
        item_ids=item_ids,
        client_ids=client_values[kept_clients],
        client_indptr=np.concatenate([[0], np.cumsum(users_per_client)]).astype(np.int64),
        indptr=indptr,
        items=items,
        values=values,
        weights=weights,
        times=times,
    )


def _in_catalogue(values, codes, item_ids, absent):
    """Return the catalogue, and each row's item in it, -1 for absent rows and other items."""
    if absent is not None:
        codes = np.where(absent, -1, codes)
        used = np.bincount(codes[~absent], minlength=len(values)) > 0
    else:
        used = np.ones(len(values), dtype=bool)
    if item_ids is None:
        item_ids = Ids(values[used], "item ids", OF_ROWS)
        places = np.where(used, np.cumsum(used) - 1, -1)
    else:
        places = item_ids.codes(values)
    # The code of an absent row, -1, picks the last place.
    return item_ids, np.append(places, -1).astype(np.int32)[codes]


def _check_items(users, items, item_ids):
    """Raise unless every item is in the catalogue."""
    hint = ""
    if _share_known(users, item_ids) == 1 and _share_known(items, item_ids) < 0.5:
        hint = (
            " All users of X are in `items`, though: are the columns swapped? The user's id "
            "belongs in column 0 and the item's id in column 1."
        )
    theirs, ours = ("strings" if _are_strings(one) else "numbers" for one in (items, item_ids))
    if theirs != ours:
        raise ValueError(
            f"The item ids of X are {theirs} and those of {item_ids.source} are {ours}; convert "
            f"one of them to the type of the other.{hint}"
        )
    missing = np.unique(items[item_ids.codes(items) < 0])
    if len(missing) and item_ids.source != Ids.source:
        raise ValueError(
            f"item_features has no row for {named('item', missing)} of X; add what is missing to "
            "its index (a row of zeros if nothing is known), or leave these rows of X out."
        )
    if len(missing):
        raise ValueError(
            f"X has {named('item', missing)} that {'is' if len(missing) == 1 else 'are'} not in "
            "`items`; add what is missing to `items`, leave these rows out, or use items=None to "
            f"take the items of X.{hint}"
        )


def _are_strings(ids):
    return getattr(ids, "values", ids).dtype.kind == "U"


def _share_known(ids, item_ids):
    """Return the share of ids that are in the catalogue, 0 if they are of another type."""
    same = _are_strings(ids) == _are_strings(item_ids)
    return np.mean(item_ids.codes(ids) >= 0) if same else 0.0


def _one_client_each(user_values, user_codes, client_values, client_codes):
    first = np.empty(len(user_values), dtype=np.int64)
    first[user_codes] = client_codes
    strays = np.flatnonzero(first[user_codes] != client_codes)
    if len(strays):
        user = user_codes[strays[0]]
        one, other = client_values[first[user]], client_values[client_codes[strays[0]]]
        raise ValueError(
            f"A user belongs to one client, but user {user_values[user]!s} has rows on clients "
            f"{other!s} and {one!s}; give the user one client, or a separate id on each."
        )
    return first


def _merge(users, items, values, weights, times, shape):
    """Sort rows by user and item and merge equal pairs: indptr, items, values, weights, times.

    The time of a merged pair is its latest.
    """
    order, sorted_items, indptr = _by_user_and_item(users, items, shape)
    repeats = np.zeros(len(order), dtype=bool)
    np.equal(sorted_items[1:], sorted_items[:-1], out=repeats[1:])
    repeats[indptr[:-1]] = False
    if not repeats.any():
        values = np.ones(len(order)) if values is None else _floats(values)[order]
        weights = np.ones(len(order)) if weights is None else weights[order]
        return indptr, sorted_items, values, weights, None if times is None else times[order]
    values = np.ones(len(order)) if values is None else _floats(values)
    weights = np.ones(len(order)) if weights is None else weights
    # Repeated pairs are sorted by value and weight, so that sums do not depend on row order.
    starts = np.flatnonzero(~repeats)
    several = np.flatnonzero(repeats | np.append(repeats[1:], False))
    pair = np.cumsum(~repeats)[several]
    rows = order[several]
    order[several] = rows[np.lexsort((weights[rows], values[rows], pair))]
    total = np.add.reduceat(weights[order], starts)
    mean = np.add.reduceat((weights * values)[order], starts) / total
    kept = np.append(0, np.cumsum(~repeats))
    # fmax: a missing time says nothing about the others.
    times = None if times is None else np.fmax.reduceat(times[order], starts)
    return kept[indptr], sorted_items[starts], mean, total, times


def _floats(values):
    return np.asarray(values, dtype=np.float64)


def _by_user_and_item(users, items, shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the order of rows by user and item, the sorted items, and where users start."""
    n_users, _n_items = shape
    rows = np.arange(len(users), dtype=np.int32)
    # The columns are row numbers, so that no two entries are added up.
    by_user = sparse.csr_array((items, (users, rows)), shape=(n_users, len(users)))
    both = sparse.csr_array((by_user.indices, by_user.data, by_user.indptr), shape=shape)
    both.sort_indices()
    return both.data, both.indices.astype(np.int32, copy=False), both.indptr.astype(np.int64)


def coded_rows(X: Any) -> Any:
    """Return ((users, n_users), (items, n_items)): the ids of X, numbered as they appear first."""
    factors = map(factorized, id_columns(as_rows(X)))
    return tuple((codes, len(values)) for codes, values in factors)


def as_rows(X: Any) -> Any:
    """Return X as an ndarray or DataFrame with two columns of ids, or raise."""
    X = as_table(X)
    X = X if hasattr(X, "shape") else np.asarray(X)
    if len(X.shape) != 2 or X.shape[1] < 2 or not X.shape[0]:
        raise ValueError(
            "X should have one row per interaction, with the user's id in column 0 and the item's "
            f"id in column 1; its shape is {tuple(X.shape)}."
        )
    warn_about_columns(X)
    return X
