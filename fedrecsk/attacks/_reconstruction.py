"""What a curious server infers about a client, and helpers of inversions."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fedrecsk.attacks._server_view import Exchange


class Reconstruction(NamedTuple):
    """What a curious server infers about one client.

    Attributes
    ----------
    vector : ndarray or None
        The user's private vector.
    items : ndarray of shape (n_inferred,)
        Codes of the user's own items.
    values : ndarray of shape (n_inferred,) or None
        Ratings of these items.
    """

    vector: np.ndarray | None
    items: np.ndarray
    values: np.ndarray | None = None


def one_by_one(invert: Callable[..., Reconstruction]) -> Callable[..., Reconstruction]:
    """Turn an inversion of one upload into one of many, which keeps the items of all of them."""

    @wraps(invert)
    def of_all(model: Any, exchanges: list[Exchange], n_items: int) -> Reconstruction:
        return keep_common([invert(model, one.message, one.upload, n_items) for one in exchanges])

    return of_all


def keep_common(guesses: list[Reconstruction]) -> Reconstruction:
    """Return the last round's reconstruction, of the items that are in those of all rounds."""
    last = guesses[-1]
    kept = np.ones(len(last.items), dtype=bool)
    for guess in guesses[:-1]:
        kept &= np.isin(last.items, guess.items)
    values = None if last.values is None else last.values[kept]
    return Reconstruction(last.vector, last.items[kept], values)


def sent_rows(update, n_items):
    """Return the rows of an update that are not zero, and their items."""
    change = np.asarray(update.change, dtype=np.float64)
    items = np.arange(n_items)[update.rows]
    size = np.abs(change).max(axis=1, initial=0.0)
    nonzero = size > 1e-9 * size.max(initial=0.0)
    return change[nonzero], items[nonzero]


def direction_of(rows):
    """Return the unit vector along which most of the rows lie."""
    if len(rows) == 0:
        return np.zeros(rows.shape[1])
    return np.linalg.svd(rows, full_matrices=False)[2][0]
