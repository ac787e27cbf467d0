"""FCF and ExplicitFCF: from one client's upload to its user's vector, items and ratings."""

from __future__ import annotations

import numpy as np

from fedrecsk.attacks._guesses import Guess, direction_of, one_by_one, sent_rows
from fedrecsk.attacks._inversion_wmf import wmf

# Tolerated relative rounding error of float32 numbers.
ROUNDING = 1e-3


@one_by_one
def fcf(model, message, upload, n_items):
    """Rows of items without an interaction are (p.q) p, which gives p up to its sign."""
    if model.upload == "own":
        return wmf.__wrapped__(model, message, upload, n_items)
    rows = np.asarray(upload["gradient"].change, dtype=np.float64)
    items = message["item_factors"].values.astype(np.float64)
    direction = direction_of(rows)
    along, scores = rows @ direction, items @ direction
    usable = np.abs(scores) > 1e-2 * np.abs(scores).max(initial=0.0)
    # Of an item that the user does not have, this is |p|^2; own items' all differ.
    square = _commonest(along[usable] / scores[usable])
    length = np.sqrt(max(square, 0.0))
    own = np.abs(along - square * scores) > ROUNDING * np.abs(along).max(initial=0.0)
    # Own items pull p towards them: their rows are (1 + alpha) (p.q - 1) p.
    expected = (1 + model.alpha) * (length * scores[own] - 1) * length
    turned = (1 + model.alpha) * (length * scores[own] + 1) * length
    if np.abs(along[own] - turned).sum() < np.abs(along[own] - expected).sum():
        length = -length
    return Guess(length * direction, np.flatnonzero(own))


def _commonest(numbers):
    """The most common number, up to rounding; 0 if there are none."""
    numbers = np.sort(numbers[numbers > 0])
    if not len(numbers):
        return 0.0
    n_equal = np.searchsorted(numbers, numbers * (1 + ROUNDING)) - np.arange(len(numbers))
    first = n_equal.argmax()
    return float(np.median(numbers[first : first + n_equal[first]]))


@one_by_one
def explicit_fcf(model, message, upload, n_items):
    """Rows are errors times (1, p); the user's ridge regression gives the rest."""
    rows, items = sent_rows(upload["gradient"], n_items)
    received = message["item_vectors"].values[items].astype(np.float64)
    low, high, level = message["scale"].values
    if model.biases:
        errors, received_bias = rows[:, 0], received[:, 0].copy()
        vector = errors @ rows / max(errors @ errors, 1e-300)
        # The length at which the penalty and the errors are in balance.
        vector[0] = -errors.sum() / model.reg_bias
        received[:, 0] = 1
        return Guess(vector, items, level + received_bias + received @ vector - errors)
    direction = direction_of(rows)
    along = rows @ direction
    square = -(along @ received @ direction) / (model.reg_user * len(items) ** model.reg_power)
    vector = np.sqrt(max(square, 1e-300)) * direction
    ratings = received @ vector - along / np.sqrt(max(square, 1e-300))
    # The opposite vector fits as well, with the ratings' signs turned.
    if np.abs(ratings - (low + high) / 2).sum() > np.abs(-ratings - (low + high) / 2).sum():
        vector, ratings = -vector, -ratings
    return Guess(vector, items, level + ratings)
