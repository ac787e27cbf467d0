"""What the arrays of a state are indexed by, and which of them a fit to other rows goes on from.

Fields of a state, a dataclass, are annotated by these types; loops over states read them.
"""

from __future__ import annotations

import copy
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeVar, get_type_hints

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    # Masks of the users, clients or rows that are known, and arrays of those, by what they are of.
    Remembered = dict[str, tuple[NDArray[np.bool_], list[np.ndarray]]]

T = TypeVar("T")


class Axis(NamedTuple):
    """By what the first axis of an array is indexed."""

    by: Literal["items", "users", "clients", "rows"]


# An array with a row for each item of the catalogue, ...
PerItem = Annotated[np.ndarray, Axis("items")]
# ... for each user or each client of a block, ...
PerUser = Annotated[np.ndarray, Axis("users")]
PerClient = Annotated[np.ndarray, Axis("clients")]
# ... or for each item that each client of a block holds, as in ``block.row_items``.
PerRow = Annotated[np.ndarray, Axis("rows")]

KEPT = "kept"
# What was learned, which a fit to other rows goes on from.
Kept = Annotated[T, KEPT]


class _Field(NamedTuple):
    name: str
    by: str | None
    is_kept: bool


@cache
def _fields(cls: type) -> tuple[_Field, ...]:
    """Return the name, the axis and whether it is kept, of each field of a state's class."""
    hints = get_type_hints(cls, include_extras=True)
    result = []
    for one in fields(cls):
        marks = getattr(hints[one.name], "__metadata__", ())
        by = [mark.by for mark in marks if isinstance(mark, Axis)]
        result.append(_Field(one.name, by[0] if by else None, KEPT in marks))
    return tuple(result)


def resumed(now: T, before: T, places: NDArray[np.int64]) -> T:
    """Return the state `now` with what is kept of `before`, whose items have these places now.

    A place of -1 means that the item is no longer in the catalogue.
    """
    changes = {}
    for name, by, is_kept in _fields(type(now)):
        if not is_kept:
            continue
        new, old = getattr(now, name), getattr(before, name)
        if is_dataclass(new) and not isinstance(new, type):
            changes[name] = resumed(new, old, places)
        elif by == "items" and new is not None:
            changes[name], known = np.array(new), places >= 0
            changes[name][places[known]] = old[known]
        else:
            changes[name] = copy.deepcopy(old)
    return replace(now, **changes)


def memory(clients: object) -> dict[str, list[np.ndarray]]:
    """Return the kept arrays of clients' state, by what they are indexed by."""
    found = {}
    for by, one in _kept_arrays(clients):
        found.setdefault(by, []).append(one)
    return found


def recall(clients: object, remembered: Remembered) -> None:
    """Write the rows that clients remember, with the masks of who does, into their state."""
    for by, arrays in memory(clients).items():
        known, before = remembered[by]
        for now, values in zip(arrays, before, strict=True):
            if now.shape[1:] != values.shape[1:]:
                raise ValueError(
                    f"Clients remember arrays of shape {values.shape} from an earlier fit, and now "
                    f"have {now.shape}; begin a new fit, without update=True."
                )
            now[known] = values


def _kept_arrays(state: object) -> Iterator[tuple[str, np.ndarray]]:
    """Yield by what it is indexed, and each kept array of a state, in the order of its fields."""
    for name, by, is_kept in _fields(type(state)):
        value = getattr(state, name)
        # Of a tuple of arrays, each.
        parts = value if isinstance(value, tuple) else (value,)
        if is_kept and is_dataclass(value) and not isinstance(value, type):
            yield from _kept_arrays(value)
        elif is_kept and by is not None:
            yield from ((by, one) for one in parts if one is not None)
