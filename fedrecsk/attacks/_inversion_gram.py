"""FedEASE, FedSpectral: from one client's pairs of items to its user's items."""

from __future__ import annotations

import numpy as np

from fedrecsk.attacks._guesses import Guess, one_by_one


@one_by_one
def gram(model, message, upload, n_items):
    """An item's pair with itself is the square of the user's weight for it."""
    rows, change = upload["gram"]
    diagonal, squares = np.arange(n_items), np.zeros(n_items)
    numbers = diagonal * (diagonal + 3) // 2
    if isinstance(rows, slice):
        squares[:] = change[numbers]
    else:
        _, theirs, places = np.intersect1d(numbers, rows, return_indices=True)
        squares[theirs] = change[places]
    return Guess(np.sqrt(np.maximum(squares, 0)), np.flatnonzero(squares > 0))
