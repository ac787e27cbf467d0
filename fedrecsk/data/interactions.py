"""From (X, y, clients, sample_weight) to encoded ids and a CSR matrix sorted by client.

Nothing else in the package parses X.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.utils.validation import check_consistent_length

from fedrecsk._utils.given import check_given
from fedrecsk._utils.sklearn_compat import safe_indexing
from fedrecsk.data._mistakes import warn_about_columns, warn_about_ids
from fedrecsk.data.ids import NO_ID, OF_ROWS, Ids, are_strings, factorized, id_array, named

ROLES = ("user", "item")


def as_table(X: Any, name: str = "X") -> Any:
    """Turn a list of rows into an array of objects, so that each column keeps its own type."""
    if sparse.issparse(X):
        raise TypeError(
            "Sparse data was passed: X is a sparse matrix, but should have one row per "
            "interaction. For a matrix M of users by items: M = M.tocoo(), "
            "X = np.column_stack([M.row, M.col]), y = M.data. Only fit of a ranking model takes M "
            "itself, without y."
        )
    check_given(X, name)
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
        raise ValueError("The sparse matrix X has no non-zero entries, so there are no positives.")
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


def coded_ids(ids: Any, name: str) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Read ids as :func:`id_array` does; return sorted distinct ids and the position of each."""
    check_given(ids, name)
    if not hasattr(ids, "factorize"):
        ids = np.array(ids, dtype=object) if isinstance(ids, list | tuple) else np.asarray(ids)
    try:
        codes, values = factorized(ids)
    except (TypeError, ValueError):
        # Lists or tables: the error of the other function says what is wrong.
        codes, values = factorized(id_array(ids, name))
    if len(codes) and codes.min() < 0:
        values = np.asarray(ids)[codes < 0]  # missing, which is an error
    values = id_array(values, name, getattr(ids, "name", None))
    values, ranks = np.unique(values, return_inverse=True)
    return values, ranks.astype(np.int32)[codes]


@dataclass(frozen=True)
class Population(ABC):
    """Whose ratings a fit learns from, and of which items; the ratings may be elsewhere."""

    user_ids: Ids  # client by client, sorted within each client
    item_ids: Ids
    client_ids: np.ndarray
    client_indptr: np.ndarray  # int64: users client_indptr[c]:client_indptr[c + 1] are client c's

    @property
    def n_users(self) -> int:
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        return len(self.item_ids)

    @property
    def n_clients(self) -> int:
        return len(self.client_ids)

    @abstractmethod
    def fingerprint(self) -> bytes:
        """Return a digest of all data, by which the same data can be recognised."""

    @abstractmethod
    def value_range(self) -> tuple[float, float]:
        """Return the lowest and the highest rating."""

    @abstractmethod
    def heaviest(self) -> float:
        """Return the largest weight."""

    @abstractmethod
    def seen(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return indptr and indices of the users' rated items, as far as they are here."""


@dataclass(frozen=True)
class Interactions(Population):
    """Ratings sorted by user and users sorted by client: a CSR matrix of users by items."""

    indptr: np.ndarray  # int64: ratings indptr[u]:indptr[u + 1] are user u's
    items: np.ndarray  # int32 codes, ascending within a user
    values: np.ndarray  # float64 ratings or preferences
    weights: np.ndarray  # float64 sample weights, positive
    times: np.ndarray | None = None  # float64, NaN where missing; None: the model does not use it
    features: np.ndarray | None = None  # of users, NaN where missing; None: the model uses none

    @classmethod
    def empty(cls, item_ids: Ids) -> Interactions:
        """Return no rows, of no users, with these items."""
        none = np.zeros(0, dtype=np.int64)
        ids, start = Ids(none, "user ids"), np.zeros(1, dtype=np.int64)
        rows = none.astype(np.int32), none.astype(float), none.astype(float)
        return cls(ids, item_ids, none, start, start, *rows)

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
        return taken(self, mask)

    def fingerprint(self) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        ids = self.user_ids.values, self.item_ids.values, self.client_ids, self.client_indptr
        rows = self.indptr, self.items, self.values, self.weights
        for array in (*ids, *rows, *(() if self.times is None else (self.times,))):
            if array.dtype == object:
                array = array.astype(str)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        return digest.digest()

    def value_range(self) -> tuple[float, float]:
        return float(self.values.min()), float(self.values.max())

    def heaviest(self) -> float:
        return float(self.weights.max())

    def seen(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        return self.indptr, self.items


def taken(rows: Any, mask: NDArray[np.bool_]) -> Any:
    """Return interactions or a block with the ratings of a mask, and all users and items."""
    kept = np.concatenate([[0], np.cumsum(mask)])
    return replace(
        rows,
        indptr=kept[rows.indptr],
        items=rows.items[mask],
        values=rows.values[mask],
        weights=rows.weights[mask],
        times=None if rows.times is None else rows.times[mask],
    )


def runs(starts: NDArray[Any], lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return runs of consecutive integers, one after the other."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(np.sum(lengths))


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
        if values.dtype.kind == "U" and len(values) and not values[0].strip():
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

    columns = [None if y is None else np.asarray(y), sample_weight, times]
    present = item_codes >= 0
    if not present.all():
        user_codes, item_codes = user_codes[present], item_codes[present]
        columns = [None if one is None else one[present] for one in columns]

    # Users without any row left are dropped, and so are their clients.
    kept_users = np.flatnonzero(np.bincount(user_codes, minlength=len(user_values)))
    order = kept_users[np.argsort(client_of_user[kept_users], kind="stable")]
    rank = np.full(len(user_values), -1, dtype=np.int32)
    rank[order] = np.arange(len(order))
    kept_clients, users_per_client = np.unique(client_of_user[order], return_counts=True)

    indptr, items, values, weights, times = _merge(
        rank[user_codes], item_codes, *columns, (len(order), len(item_ids))
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
    theirs, ours = ("strings" if are_strings(one) else "numbers" for one in (items, item_ids))
    if theirs != ours:
        raise ValueError(
            f"The item ids of X are {theirs} and those of {item_ids.source} are {ours}; convert "
            f"one of them to the type of the other.{hint}"
        )
    missing = np.unique(items[item_ids.codes(items) < 0])
    if len(missing) and item_ids.source != Ids.source:
        raise ValueError(
            f"item_features has no row for {named('item', missing)} of X; give it one "
            "(of zeros if nothing is known), or leave these rows of X out."
        )
    if len(missing):
        raise ValueError(
            f"X has {named('item', missing)} that {'is' if len(missing) == 1 else 'are'} not in "
            "`items`; add what is missing to `items`, leave these rows out, or use items=None to "
            f"take the items of X.{hint}"
        )


def _share_known(ids, item_ids):
    """Return the share of ids that are in the catalogue, 0 if they are of another type."""
    same = are_strings(ids) == are_strings(item_ids)
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
            f"{other!s} and {one!s}; give the user one client, or a separate id on each: "
            "X, origins = fedrecsk.preprocessing.split_users(X, clients)."
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
    values = np.ones(len(order)) if values is None else np.asarray(values, dtype=np.float64)
    weights = np.ones(len(order)) if weights is None else weights
    if not repeats.any():
        times = None if times is None else times[order]
        return indptr, sorted_items, values[order], weights[order], times
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
    sides = []
    for column, ids in enumerate(id_columns(as_rows(X))):
        codes, values = factorized(ids)
        warn_about_ids(values, codes, f"{ROLES[column]} ids (column {column} of X)")
        sides.append((codes, len(values)))
    return tuple(sides)


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
