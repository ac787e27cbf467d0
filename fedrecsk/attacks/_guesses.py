"""What a curious server infers about a client, and helpers that its inversions share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Guess(NamedTuple):
    """What the server believes about one client.

    Attributes
    ----------
    vector : ndarray or None
        The user's private vector.
    items : ndarray of shape (n_guessed,)
        Codes of the items that it believes to be the user's own.
    values : ndarray of shape (n_guessed,) or None
        Ratings of these items.
    """

    vector: np.ndarray | None
    items: np.ndarray
    values: np.ndarray | None = None


def agreed(guesses):
    """Combine the guesses of consecutive rounds: keep the items that are in all of them."""
    last = guesses[-1]
    kept = np.ones(len(last.items), dtype=bool)
    for guess in guesses[:-1]:
        kept &= np.isin(last.items, guess.items)
    values = None if last.values is None else last.values[kept]
    return Guess(last.vector, last.items[kept], values)


def sent_rows(update, n_items):
    """Rows of an update that are not zero, and their items."""
    change = np.asarray(update.change, dtype=np.float64)
    items = np.arange(n_items)[update.rows]
    size = np.abs(change).max(axis=1, initial=0.0)
    nonzero = size > 1e-9 * size.max(initial=0.0)
    return change[nonzero], items[nonzero]


def direction_of(rows):
    """The unit vector along which most of the rows lie."""
    if len(rows) == 0:
        return np.zeros(rows.shape[1])
    return np.linalg.svd(rows, full_matrices=False)[2][0]
