"""LocALS, LocSGD, GlobSGD: from one client's upload to its user's vector and items."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar

from fedrecsk.attacks._guesses import Guess, direction_of, one_by_one, sent_rows

# Lengths to try for a user's vector whose direction is known.
LENGTHS = np.geomspace(1e-2, 1e2, 81)
# How often the direction is found again once the length is known.
PASSES = 4


@one_by_one
def wmf(model, message, upload, n_items):
    """Rows lie along p_u; its length and sign are those that explain the upload best.

    ``model._upload_of_one`` computes the upload of a client whose only user has a given vector.
    """
    rows, items = sent_rows(upload["rows"], n_items)
    received = message["item_factors"].values[items].astype(np.float64)

    def misfit(vector):
        expected = model._upload_of_one(vector, received, message)
        misfit = _distance(expected["rows"], rows)
        if "others" in expected and "others" in upload:
            misfit += _distance(expected["others"], upload["others"].change)
        return misfit

    vector = np.zeros(rows.shape[1])
    for _ in range(PASSES):
        # What a row has of the item that was received depends on the length of p_u at most.
        share = _share_of_received(model, message, vector)
        direction = direction_of(rows - share * received)
        vector = _best(lambda length, d=direction: misfit(length * d)) * direction
        if share == _share_of_received(model, message, vector):
            break
    return Guess(vector, items)


def _share_of_received(model, message, vector):
    """What a row has of the item that was received, beside what lies along this vector."""
    # An item at right angles to it shows the share alone.
    item = np.zeros(len(vector))
    item[np.abs(vector).argmin()] = 1
    item -= (item @ vector) / max(vector @ vector, 1e-300) * vector
    if item @ item < 1e-12:
        return 0.0
    row = model._upload_of_one(vector, item[None], message)["rows"][0]
    return float(row @ item / (item @ item))


def _best(misfit):
    """The length with the least misfit; a negative length reverses the vector."""
    candidates = np.concatenate([LENGTHS, -LENGTHS])
    with np.errstate(over="ignore", invalid="ignore"):
        misfits = np.array([misfit(length) for length in candidates])
        best = candidates[np.nanargmin(misfits)]
        ends = sorted((best / 1.2, best * 1.2))
        return minimize_scalar(misfit, bounds=ends, method="bounded", options={"xatol": 1e-9}).x


def _distance(guess, truth):
    """Squared distance, relative to the squared length of the truth."""
    return np.sum((guess - truth) ** 2) / max(np.sum(truth**2), 1e-300)
