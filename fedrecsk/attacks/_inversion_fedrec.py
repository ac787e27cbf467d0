"""FedRec: from one client's upload to its user's vector, its rated items and their ratings."""

from __future__ import annotations

import numpy as np

from fedrecsk.attacks._guesses import Guess, direction_of, one_by_one, sent_rows

# Errors of virtual ratings are explained up to rounding, as a share of the largest error.
EXPLAINED = 1e-3
# Least share of a client's virtual items that must be found.
MOST = 0.8
# Iterations that turn least squares into least absolute errors.
REWEIGHTINGS = 60


@one_by_one
def fedrec(model, message, upload, n_items):
    """Rows are multiples of (1, p_u), or p_u, and virtual ratings are linear in the items.

    They are all equal, or scores w . (1, b_i, q_i) with the same w, which fits most of the rows.
    Assumes weights of 1, and ratings one apart.
    """
    items = message["item_vectors"].values.astype(np.float64)
    rows, sent = sent_rows(upload["gradients"], n_items)
    received = items[sent]
    rows = rows - model._reg * received
    if not model.biases:
        direction = direction_of(rows)
        return Guess(direction, sent[~_virtual(model, -rows @ direction, received)])
    slopes = rows[:, 0]
    vector = slopes @ rows[:, 1:] / max(slopes @ slopes, 1e-300)
    low, high, level = message["scale"].values
    # Ratings without the user's bias.
    shown = level + received[:, 0] + received[:, 1:] @ vector - slopes
    rated = ~_virtual(model, shown, received)
    unit = (high - low) / 4
    return Guess(vector, sent[rated], _ratings(low + unit * (shown[rated] - 1), low, high))


def _virtual(model, shown, received):
    """Mask of the items whose ratings are all equal or linear in the items, if there are enough."""
    n_virtual = len(shown) * model.n_virtual / (1 + model.n_virtual)
    ones = np.ones((len(shown), 1))
    size = np.abs(shown).max(initial=0.0)
    for design in (ones, np.hstack([ones, received])):
        if model.n_virtual and n_virtual >= 2 * design.shape[1]:
            explained = np.abs(_unexplained(design, shown, size)) <= EXPLAINED * size
            if explained.sum() >= MOST * n_virtual:
                return explained
    return np.zeros(len(shown), dtype=bool)


def _unexplained(design, shown, size):
    """Residuals of a fit with least absolute errors, by reweighted least squares."""
    left = shown
    for _ in range(REWEIGHTINGS):
        root = 1 / np.sqrt(np.abs(left) + 1e-3 * EXPLAINED * size)
        left = shown - design @ np.linalg.lstsq(root[:, None] * design, root * shown)[0]
    return left


def _ratings(shown, low, high):
    """Whole ratings that differ from these by a constant, closest to the middle of the scale."""
    if len(shown) == 0:
        return shown
    turns = np.exp(2j * np.pi * (shown - low)).mean()
    nearest = np.rint(shown - low - np.angle(turns) / (2 * np.pi)) + low
    shifts = np.arange(low - nearest.max(), high - nearest.min() + 1)
    inside = [s for s in shifts if low <= nearest.min() + s and nearest.max() + s <= high]
    middle = (low + high) / 2
    best = min(inside or shifts, key=lambda s: abs(nearest.mean() + s - middle))
    return nearest + best
