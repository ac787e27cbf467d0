"""What a curious server receives and infers about a client, and helpers of its inversions."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fedrecsk.simulation.keys import Key
    from fedrecsk.simulation.messages import Message
    from fedrecsk.uploads import Update


class Exchange(NamedTuple):
    """One upload of a client, or of a group of clients, and what it answers.

    Attributes
    ----------
    key : Key
        The round's shared key, which has its number and the coins that all can see.
    message : Message
        The announcement, and the server's last message to the client.
    upload : dict of {str: Update}
        What the server received, as changes.
    """

    key: Key
    message: Message
    upload: dict[str, Update]


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


def one_by_one(invert: Callable[..., Guess]) -> Callable[..., Guess]:
    """An inversion of any number of uploads, from one of a single upload.

    The wrapped function gets the model, the message, the upload and the number of items. The items
    that it finds in all uploads are kept.
    """

    @wraps(invert)
    def of_all(model: Any, exchanges: list[Exchange], n_items: int) -> Guess:
        return agreed([invert(model, one.message, one.upload, n_items) for one in exchanges])

    return of_all


def agreed(guesses: list[Guess]) -> Guess:
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
