"""SemiDFEGL: from one client's upload to its user's embedding, items and ratings."""

from __future__ import annotations

import numpy as np

from fedrecsk.attacks._guesses import Guess, one_by_one, sent_rows

SHIFTS = np.linspace(-2, 2, 401)


@one_by_one
def semidfegl(model, message, upload, n_items):
    """The embedding is in the upload; rows are errors times it, plus one vector for all rows.

    The server knows its items, so errors give the ratings up to the user's bias.
    """
    rows, items = sent_rows(upload["gradient"], n_items)
    vector = np.asarray(upload["embedding"].change, dtype=np.float64)
    received = message["item_vectors"].values[items].astype(np.float64)
    low, high, level = message["scale"].values
    if model.biases:
        errors, scores = rows[:, 0], received[:, 0] + received[:, 1:] @ vector
    else:
        scores = received @ vector
        errors = _errors(model, rows, received, vector, _common(upload))
    ratings = level + scores - errors
    # Of the shifts that make whole numbers on the scale, the smallest.
    shifted = ratings + SHIFTS[:, None]
    away = np.abs(shifted - np.clip(np.round(shifted), low, high)).mean(axis=1)
    best = SHIFTS[np.lexsort((np.abs(SHIFTS), np.round(away, 2)))[0]]
    return Guess(vector, items, ratings + best)


def _common(upload):
    return upload["common"].change if "common" in upload else None


def _errors(model, rows, received, vector, common):
    """Errors along the embedding, without biases: less what all rows have in common."""
    square = max(vector @ vector, 1e-300)
    along = rows @ vector / square
    if common is not None and common.any():
        return along - common @ vector / square
    # On its own, the device has sent it in no other field, but it is a sum of errors, too.
    share = (model.n_layers - 1) / (model.n_layers + 1) / np.sqrt(len(rows)) / square
    scores = received @ vector
    return along - share * (along @ scores) / (1 + share * scores.sum())
