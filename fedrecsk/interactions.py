"""From (X, y, clients, sample_weight) to encoded ids and a CSR matrix sorted by client.

Nothing else in the package parses X.
"""

from __future__ import annotations

import hashlib
import reprlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_consistent_length

from fedrecsk import _kernels
from fedrecsk._mistakes import warn_about_columns, warn_about_fractions, warn_about_missing
from fedrecsk._sklearn import safe_indexing

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

ROLES = ("user", "item")
# From this many ids on, they are numbered by a hash table instead of sorting, this many at a time.
_MANY_IDS = 2**18
NO_ID = "drop these or give them an id first."


def as_table(X: Any) -> Any:
    """Turn a list of rows into an array of objects, so that each column keeps its own type.

    NumPy would turn ``[["alice", 7]]`` into strings throughout, and a large item id beside a
    float into another number.

    Raises
    ------
    TypeError
        If X is sparse or lazy.
    ValueError
        If X has masked values.
    """
    if sparse.issparse(X):
        raise TypeError(
            "Sparse data was passed: X is a sparse matrix, but should have one row per "
            "interaction. For a matrix M of users by items: M = M.tocoo(), "
            "X = np.column_stack([M.row, M.col]), y = M.data."
        )
    if type(X).__name__ == "LazyFrame":
        raise TypeError("X is a LazyFrame, which has no rows yet; pass X.collect().")
    if np.ma.is_masked(X):
        raise ValueError("X has masked values; drop their rows first.")
    return np.array(X, dtype=object) if isinstance(X, list | tuple) else X


def id_columns(X: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read users (column 0) and items (column 1), each with its own type.

    Parameters
    ----------
    X : ndarray or DataFrame of shape (n_samples, n_features >= 2)

    Returns
    -------
    users, items : ndarray of shape (n_samples,)
        Integers, floats or strings.
    """
    users, items = (
        id_array(safe_indexing(X, column, axis=1), f"{role} ids (column {column} of X)")
        for column, role in enumerate(ROLES)
    )
    return users, items


def id_array(ids: ArrayLike, name: str) -> NDArray[Any]:
    """Turn ids into a 1-d array of integers, floats or strings, or raise.

    Parameters
    ----------
    ids : array-like of shape (n_ids,)
    name : str
        What the ids are, for the error messages.

    Raises
    ------
    TypeError
        If an id is neither a string nor a number.
    ValueError
        If strings and numbers are mixed, or an id is missing, NaN, infinite, or a float so large
        that it stands for several integers.
    """
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
        if len(ids) and np.abs(ids).max() >= 2**53:
            raise ValueError(
                f"{name} are floats of 2**53 or more, which stand for several integers each; give "
                "them as integers or strings, for example in a DataFrame."
            )
    return ids


def catalogue_ids(items: ArrayLike) -> Ids:
    """Read a public catalogue, or raise.

    Parameters
    ----------
    items : array-like of shape (n_items,)
        Item ids in any order.

    Returns
    -------
    item_ids : Ids
        The same ids in ascending order.

    Raises
    ------
    TypeError
        If `items` is a set or another object without an order, or an id is neither a string
        nor a number.
    ValueError
        If `items` is empty or not one-dimensional, or an id is repeated, missing, NaN, infinite
        or of another type than the rest.
    """
    if not isinstance(items, list | tuple) and np.ndim(items) == 0:
        raise TypeError(f"items should be a list or an array of ids, got {reprlib.repr(items)}.")
    ids = id_array(items, "items")
    if len(ids) == 0:
        raise ValueError("items is empty; pass None to take the items of X.")
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise ValueError(
            f"items lists {named('item', values[counts > 1])} more than once; give each id once, "
            "for example with numpy.unique."
        )
    return Ids(values, "item ids")


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
    """Whether an object stands for a missing value: None, NaN, or pandas' NaT and NA."""
    return (
        one is None
        or (isinstance(one, float) and one != one)
        or type(one).__name__ in ("NaTType", "NAType")
    )


def _not_ids(name, kind):
    cure = "convert the column, for example with .astype(str)"
    if kind.startswith(("date", "Timestamp")):
        cure = f"if it is the time of the interaction, put it into a later column; otherwise {cure}"
    elif kind == "bytes":
        cure = "decode them, for example with .str.decode('utf-8')"
    return f"{name}: argument must be a string or a number, not {kind!r}; {cure}."


def missing_id(dtype: np.dtype[Any]) -> NDArray[Any]:
    """The value that stands for "no id": -1, NaN or an empty string.

    Parameters
    ----------
    dtype : dtype
        Type of the ids. Unsigned integers have no -1, so it is their largest number.

    Returns
    -------
    missing : ndarray of shape () and that dtype
    """
    return np.array({"f": np.nan, "U": ""}.get(dtype.kind, -1)).astype(dtype)


def named(role: str, ids: NDArray[Any]) -> str:
    """List a few ids for an error message: "users 3, 5, 8 and 2 more".

    Parameters
    ----------
    role : str
        "user" or "item".
    ids : ndarray of shape (n_ids,)
        Repeated ids count once.

    Returns
    -------
    text : str
    """
    ids = np.unique(ids)
    shown = ", ".join(map(str, ids[:3]))
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return f"{role}{'s' if len(ids) > 1 else ''} {shown}{more}"


@dataclass(frozen=True)
class Ids:
    """The known ids in the order of their codes.

    Parameters
    ----------
    values : ndarray of shape (n_ids,)
        Distinct ids; the code of an id is its position here.
    name : str
        What the ids are, for error messages.
    """

    values: NDArray[Any]
    name: str

    def __len__(self) -> int:
        return len(self.values)

    def codes(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """Return the code of each id, -1 if it is not known.

        Parameters
        ----------
        ids : ndarray of shape (n,), as :func:`id_array` gives it

        Returns
        -------
        codes : ndarray of shape (n,), dtype int64
        """
        if not len(self.values):
            # A model without users knows nobody, and will take any type of ids.
            return np.full(len(ids), -1, dtype=np.int64)
        has_table = self.values.dtype.kind in "iu" and _is_narrow(self.values)
        if len(ids) < _MANY_IDS or ids.dtype.kind not in "iufU" or has_table:
            return self._found(ids)
        values, codes = unique_codes(ids)
        return self._found(values)[codes]

    def _found(self, ids):
        known, asked = self.values, ids
        if (known.dtype.kind == "U") != (asked.dtype.kind == "U"):
            fitted, given = ("strings", "numbers")[:: 1 if known.dtype.kind == "U" else -1]
            raise ValueError(
                f"{self.name} were {fitted} in fit and are {given} here; "
                "convert them to the type that fit saw."
            )
        if known.dtype.kind == "O" or asked.dtype.kind == "O":
            known, asked = known.astype(object), asked.astype(object)
        elif known.dtype.kind != "U":
            asked = asked.astype(known.dtype)
        if known.dtype.kind in "iu" and _is_narrow(known):
            low, high = int(known.min()), int(known.max())
            table = np.full(high - low + 1, -1)
            table[_above(known, low)] = np.arange(len(known))
            inside = (asked >= known.min()) & (asked <= known.max()) & (asked == ids)
            return np.where(inside, table[np.where(inside, _above(asked, low), 0)], -1)
        order = None if _is_sorted(known) else np.argsort(known, kind="stable")
        position = np.searchsorted(known, asked, sorter=order)
        position = np.minimum(position, len(known) - 1)
        codes = position if order is None else order[position]
        return np.where(known[codes] == ids, codes, -1).astype(np.int64)

    def followed_by(self, ids: NDArray[Any]) -> Ids:
        """Return these ids followed by others, in the type of these if it can hold the others.

        Parameters
        ----------
        ids : ndarray of shape (n,), distinct and not known

        Returns
        -------
        ids : Ids
        """
        if not len(self.values):
            return Ids(ids, self.name)
        if ids.dtype.kind != "O":
            with np.errstate(invalid="ignore"):
                alike = ids.astype(self.values.dtype)
            ids = alike if np.array_equal(alike, ids) else ids
        return Ids(np.concatenate([self.values, ids]), self.name)


def _is_narrow(integers):
    """Whether a table over their range needs no more memory than a few such arrays."""
    return int(integers.max()) - int(integers.min()) < 10 * len(integers) + 1000


def unique_codes(ids: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.integer]]:
    """Sorted distinct ids and the position of each id among them; takes linear time for long
    arrays and for integers of a narrow range.
    """
    if ids.dtype.kind in "iu" and len(ids) and _is_narrow(ids):
        return _narrow_codes(ids)
    # Only numbers of 64 bits or less are their keys.
    hashable = ids.dtype.kind == "U" or (ids.dtype.kind in "iuf" and ids.dtype.itemsize <= 8)
    if len(ids) < _MANY_IDS or not hashable:
        return np.unique(ids, return_inverse=True)
    keys = _string_keys(ids) if ids.dtype.kind == "U" else _number_keys(ids)
    first, codes = _numbered(next(keys))
    for more in keys:
        both = (codes.astype(np.uint64) << np.uint64(32)) | _numbered(more)[1].astype(np.uint64)
        first, codes = _numbered(both)
    values, ranks = np.unique(ids[first], return_inverse=True)
    return values, ranks.astype(np.int32)[codes]


def _above(integers, low):
    """Integers minus `low`, in a type that holds the difference."""
    return integers - low if integers.dtype.itemsize == 8 else integers.astype(np.int64) - low


def _narrow_codes(ids):
    low, high = int(ids.min()), int(ids.max())
    shifted = _above(ids, low)
    present = np.zeros(high - low + 1, dtype=bool)
    present[shifted] = True
    ranks = np.cumsum(present, dtype=np.int32) - np.int32(1)
    values = np.flatnonzero(present).astype(ids.dtype) + ids.dtype.type(low)
    return values, ranks[shifted]


def _number_keys(numbers):
    """One 64-bit key for each number."""
    if numbers.dtype.kind == "f":
        # Adding zero makes -0.0 the same as 0.0.
        yield (numbers.astype(np.float64) + 0.0).view(np.uint64)
    else:
        yield numbers.astype(np.int64 if numbers.dtype.kind == "i" else np.uint64).view(np.uint64)


def _string_keys(strings):
    """As many 64-bit keys for each string as its characters need."""
    width = strings.dtype.itemsize // 4
    characters = np.ascontiguousarray(strings).view(np.uint32).reshape(-1, width)
    small = characters.max() < 256
    per_key, dtype = (8, np.uint8) if small else (2, np.uint32)
    for start in range(0, width, per_key):
        piece = np.zeros((len(strings), per_key), dtype=dtype)
        part = characters[:, start : start + per_key]
        piece[:, : part.shape[1]] = part
        yield piece.view(np.uint64).ravel()


def _numbered(keys):
    """Where each distinct key appears first, and each key's number among them."""
    size, n_keys = 2**16, len(keys)
    codes = np.empty(n_keys, dtype=np.int32)
    slots, done, n = _table(size), 0, 0
    distinct, first = np.empty(size // 2, dtype=np.uint64), np.empty(size // 2, dtype=np.int64)
    while done < n_keys:
        stop = min(done + _MANY_IDS, n_keys)
        shift = np.uint64(64 - size.bit_length() + 1)
        done, n = _kernels.ids.number(keys, done, stop, n, slots, shift, distinct, first, codes)
        if done < stop:
            # The table is half full: its ids move to a larger one and keep their numbers.
            size *= 8
            slots, known = _table(size), distinct
            distinct, first = np.resize(distinct, size // 2), np.resize(first, size // 2)
            shift = np.uint64(64 - size.bit_length() + 1)
            ours = np.empty(n, dtype=np.int32)
            where = np.empty(len(distinct), dtype=np.int64)
            _kernels.ids.number(known, 0, n, 0, slots, shift, distinct, where, ours)
    return first[:n], codes


def _table(size):
    return np.full(size, -1, dtype=np.int32)


def coded_ids(ids: Any, name: str) -> tuple[NDArray[Any], NDArray[np.integer]]:
    """Sorted distinct ids, and the position of each id among them.

    Like :func:`id_array` followed by :func:`unique_codes`, but strings that Python or pandas can
    number are not copied first.

    Parameters
    ----------
    ids : array-like of shape (n_ids,)
    name : str
        What the ids are, for the error messages.

    Returns
    -------
    values : ndarray of shape (n_values,)
    codes : ndarray of shape (n_ids,)

    Raises
    ------
    TypeError, ValueError
        As :func:`id_array` does.
    """
    numbered = _numbered_by_pandas(ids) or _numbered_strings(ids)
    if numbered is None:
        return unique_codes(id_array(ids, name))
    distinct, codes = numbered
    values, ranks = np.unique(id_array(distinct, name), return_inverse=True)
    return values, ranks.astype(np.int32)[codes]


def _numbered_by_pandas(ids):
    """Distinct ids and codes of a pandas column of strings or categories; None for others."""
    if not hasattr(ids, "factorize") or isinstance(ids.dtype, np.dtype) or not len(ids):
        return None
    codes, distinct = ids.factorize()
    # Missing ids have the code -1; :func:`id_array` will raise.
    return None if codes.min() < 0 else (np.asarray(distinct), codes)


def _numbered_strings(ids):
    """Distinct ids and codes of many string objects; None for others."""
    ids = np.asarray(ids) if hasattr(ids, "dtype") else ids
    if not isinstance(ids, np.ndarray) or ids.dtype != object:
        return None
    if ids.ndim != 1 or len(ids) < _MANY_IDS:
        return None
    parts = [ids[start : start + _MANY_IDS] for start in range(0, len(ids), _MANY_IDS)]
    kinds = set().union(*(set(map(type, part.tolist())) for part in parts))
    if not all(issubclass(kind, str) for kind in kinds):
        return None
    try:
        from pandas import factorize
    except ImportError:
        numbers = _Numbers()
        codes = [np.fromiter(map(numbers.__getitem__, part.tolist()), np.int32) for part in parts]
        return np.array(list(numbers), dtype=object), np.concatenate(codes)
    codes, distinct = factorize(ids)
    return distinct, codes


class _Numbers(dict):
    """Numbers keys in the order in which they are first looked up."""

    def __missing__(self, key):
        self[key] = number = len(self)
        return number


def _is_sorted(values):
    return bool(np.all(values[:-1] <= values[1:]))


@dataclass(frozen=True)
class Interactions:
    """Ratings sorted by user and users sorted by client: a CSR matrix of users by items.

    Attributes
    ----------
    user_ids : Ids
        Users client by client, sorted within each client.
    item_ids : Ids
    client_ids : ndarray of shape (n_clients,)
    client_indptr : ndarray of shape (n_clients + 1,), dtype int64
        Users ``client_indptr[c]:client_indptr[c + 1]`` belong to client c.
    indptr : ndarray of shape (n_users + 1,), dtype int64
        Ratings ``indptr[u]:indptr[u + 1]`` are user u's.
    items : ndarray of shape (n_ratings,), dtype int32
        Item codes, ascending within a user.
    values : ndarray of shape (n_ratings,), dtype float64
        The rating or preference.
    weights : ndarray of shape (n_ratings,), dtype float64
        The sample weight; positive.
    """

    user_ids: Ids
    item_ids: Ids
    client_ids: np.ndarray
    client_indptr: np.ndarray
    indptr: np.ndarray
    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray

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

    def take(self, mask: NDArray[np.bool_]) -> Interactions:
        """Keep the ratings where `mask` is true, and all users, items and clients."""
        kept = np.concatenate([[0], np.cumsum(mask)])
        return replace(
            self,
            indptr=kept[self.indptr],
            items=self.items[mask],
            values=self.values[mask],
            weights=self.weights[mask],
        )

    def fingerprint(self) -> bytes:
        """A digest of all data, by which the same data can be recognised."""
        digest = hashlib.blake2b(digest_size=16)
        for array in (
            self.user_ids.values,
            self.item_ids.values,
            self.client_ids,
            self.client_indptr,
            self.indptr,
            self.items,
            self.values,
            self.weights,
        ):
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
    drop_other_items: bool = True,
) -> Interactions:
    """Encode interactions, merge repeated ones and sort them client by client.

    Rows of weight zero are dropped. Rows of the same (user, item) pair are merged into one, with
    the weighted mean of their y and the sum of their weights. The order of rows does not matter.

    Parameters
    ----------
    X : ndarray or DataFrame of shape (n_samples, n_features >= 2)
    y : ndarray of shape (n_samples,) or None
        None: every interaction counts as 1.
    clients : array-like of shape (n_samples,) or None
        Client that holds each row. None: each user is a client.
    sample_weight : ndarray of shape (n_samples,) or None
    item_ids : Ids or None
        Catalogue to encode with, instead of the items of X.
    drop_other_items : bool
        Whether rows of items that are not in `item_ids` are dropped. If not, they are an error
        (unless their weight is zero).

    Returns
    -------
    Interactions

    Raises
    ------
    ValueError
        If a user has rows on two clients, no row has a positive weight, an item is not in
        `item_ids` (unless `drop_other_items`), or ids are invalid.
    TypeError
        If an id is neither a string nor a number.

    Warns
    -----
    UserWarning
        If X looks like a matrix of users by items, its columns are named in another order, or ids
        have fractions.
    """
    warn_about_columns(X)
    users, items = _coded_columns(X)
    for column, (role, (values, _)) in enumerate(zip(ROLES, (users, items), strict=True)):
        name = f"{role} ids (column {column} of X)"
        warn_about_fractions(values, name)
        warn_about_missing(values, name)
        if values.dtype.kind == "U" and "" in values[:1]:
            raise ValueError(f"{name} contain empty strings, which stand for no id; {NO_ID}")
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

    # Users without any row left are dropped, and so are their clients.
    kept_users = np.flatnonzero(np.bincount(user_codes, minlength=len(user_values)))
    order = kept_users[np.argsort(client_of_user[kept_users], kind="stable")]
    rank = np.full(len(user_values), -1, dtype=np.int32)
    rank[order] = np.arange(len(order))
    kept_clients, users_per_client = np.unique(client_of_user[order], return_counts=True)

    indptr, items, values, weights = _merge(
        rank[user_codes], item_codes, values, weights, (len(order), len(item_ids))
    )
    return Interactions(
        user_ids=Ids(user_values[order], "user ids"),
        item_ids=item_ids,
        client_ids=client_values[kept_clients],
        client_indptr=_indptr(users_per_client),
        indptr=indptr,
        items=items,
        values=values,
        weights=weights,
    )


def _coded_columns(X):
    """Distinct users and their codes, and the same of items."""
    return tuple(
        coded_ids(safe_indexing(X, column, axis=1), f"{role} ids (column {column} of X)")
        for column, role in enumerate(ROLES)
    )


def _in_catalogue(values, codes, item_ids, absent):
    """The catalogue, and each row's item in it: -1 for absent rows and other items."""
    if absent is not None:
        codes = np.where(absent, -1, codes)
        used = np.bincount(codes[~absent], minlength=len(values)) > 0
    else:
        used = np.ones(len(values), dtype=bool)
    if item_ids is None:
        item_ids = Ids(values[used], "item ids")
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
    if _are_strings(items) != _are_strings(item_ids.values):
        theirs, ours = (
            "strings" if _are_strings(ids) else "numbers" for ids in (items, item_ids.values)
        )
        raise ValueError(
            f"The item ids of X are {theirs} and those of `items` are {ours}; convert one of them "
            f"to the type of the other.{hint}"
        )
    missing = np.unique(items[item_ids.codes(items) < 0])
    if len(missing):
        raise ValueError(
            f"X has {named('item', missing)} that {'is' if len(missing) == 1 else 'are'} not in "
            "`items`; add what is missing to `items`, leave these rows out, or use items=None to "
            f"take the items of X.{hint}"
        )


def _are_strings(ids):
    return ids.dtype.kind == "U"


def _share_known(ids, item_ids):
    """The share of ids that are in the catalogue; 0 if they are of another type."""
    if _are_strings(ids) != _are_strings(item_ids.values):
        return 0.0
    return np.mean(item_ids.codes(ids) >= 0)


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


def _merge(users, items, values, weights, shape):
    """Sort rows by user and item and merge equal pairs: indptr, items, values and weights."""
    order, sorted_items, indptr = _by_user_and_item(users, items, shape)
    repeats = np.zeros(len(order), dtype=bool)
    np.equal(sorted_items[1:], sorted_items[:-1], out=repeats[1:])
    repeats[indptr[:-1]] = False
    if not repeats.any():
        values = np.ones(len(order)) if values is None else _floats(values)[order]
        weights = np.ones(len(order)) if weights is None else weights[order]
        return indptr, sorted_items, values, weights
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
    return kept[indptr], sorted_items[starts], mean, total


def _floats(values):
    return np.asarray(values, dtype=np.float64)


def _by_user_and_item(users, items, shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The order of rows by user and item, the items in this order, and where each user begins."""
    n_users, _n_items = shape
    rows = np.arange(len(users), dtype=np.int32)
    # The columns are row numbers, so that no two entries are added up.
    by_user = sparse.csr_array((items, (users, rows)), shape=(n_users, len(users)))
    both = sparse.csr_array((by_user.indices, by_user.data, by_user.indptr), shape=shape)
    both.sort_indices()
    return both.data, both.indices.astype(np.int32, copy=False), both.indptr.astype(np.int64)


def _indptr(counts):
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
