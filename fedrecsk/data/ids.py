"""Ids of users, items and clients, and their codes."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from fedrecsk._utils.given import check_given
from fedrecsk.data._checks import check_resolution

_MANY_IDS = 2**20  # strings that are Python strings at a time
NO_ID = "drop these or give them an id first."
# The source of item ids that come with rows, so that they are not public.
OF_ROWS = "the rows of X"


def id_array(ids: ArrayLike, name: str, column: Any = None) -> NDArray[Any]:
    """Turn ids into a 1-d array of integers, floats or strings, or raise.

    Errors say what they are, and the name of their column in a DataFrame, if it is known.
    """
    check_given(ids, name)
    if isinstance(ids, list | tuple):
        ids = np.array(ids, dtype=object)
    column = getattr(ids, "name", column)
    ids = np.atleast_1d(np.asarray(ids))
    if ids.ndim != 1:
        raise ValueError(f"{name} should be one-dimensional, got an array of shape {ids.shape}.")
    if ids.dtype.kind in "mMb":
        raise TypeError(_not_ids(name, ids.dtype.name))
    if ids.dtype.kind not in "iufU":
        ids = _from_objects(ids, name, column)
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


def _from_objects(ids, name, column):
    objects = ids.tolist()
    missing = [one for one in objects if _is_missing(one)]
    if missing:
        is_nan = isinstance(missing[0], float)
        what = "NaN or infinity" if is_nan else f"missing values ({missing[0]})"
        raise ValueError(f"{name} contain {what}; {NO_ID}")
    kinds = set(map(type, objects))
    plain = str | int | float | np.number
    strange = [kind for kind in kinds if kind is bool or not issubclass(kind, plain)]
    if strange:
        raise TypeError(_not_ids(name, strange[0].__name__, column))
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
        return numbers if numbers.dtype.kind in "iu" else np.array(objects, dtype=object)
    return np.array(objects)


def _is_missing(one):
    """Return whether an object stands for a missing value: None, NaN, or pandas' NaT and NA."""
    return (
        one is None
        or (isinstance(one, float) and one != one)
        or type(one).__name__ in ("NaTType", "NAType")
    )


def _not_ids(name, kind, column=None):
    hint = "convert the column, for example with .astype(str)"
    if kind.startswith(("date", "Timestamp")):
        hint = f"if it is the time of the interaction, put it into a later column; otherwise {hint}"
    elif kind in ("list", "tuple", "set", "ndarray"):
        column = name.partition(" ")[0] if column is None else column
        hint = f"give each of its elements a row of its own, for example with X.explode({column!r})"
    elif kind == "bytes":
        hint = "decode them, for example with .str.decode('utf-8')"
    elif kind.startswith("bool"):
        hint = "in place of a mask, give the ids that it selects, such as item_ids_[mask]"
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
            # A model without users takes any type of ids.
            return np.full(len(ids), -1, dtype=np.int64)
        codes, values = factorized(ids)
        return self._found(values)[codes]

    def _found(self, ids):
        known, asked = self.values, ids
        if are_strings(known) != are_strings(asked):
            fitted, given = ("strings", "numbers")[:: 1 if are_strings(known) else -1]
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


def are_strings(ids: Any) -> bool:
    """Return whether ids, an array or Ids, are strings."""
    return getattr(ids, "values", ids).dtype.kind == "U"
