"""From one client's upload to its user's vector and items, method by method."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

# Lengths to try for a user's vector whose direction is known.
LENGTHS = np.geomspace(1e-2, 1e2, 81)
NOISY = 4.0


class Guess(NamedTuple):
    """What the server believes about one client.

    Attributes
    ----------
    vector : ndarray or None
    items : ndarray of shape (n_guessed,)
        Codes of the items that it takes for the user's own.
    values : ndarray of shape (n_guessed,) or None
        Their ratings.
    """

    vector: np.ndarray | None
    items: np.ndarray
    values: np.ndarray | None = None


def of(estimator):
    """The inversion of the method, or of that which it derives from.

    Raises
    ------
    ValueError
        If there is none.
    """
    for cls in type(estimator).__mro__:
        if cls.__name__ in INVERSIONS:
            return INVERSIONS[cls.__name__]
    raise ValueError(
        f"No inversion is known for {type(estimator).__name__}; there are ones for "
        f"{', '.join(INVERSIONS)}."
    )


def agreed(guesses):
    """One guess from those of consecutive rounds: the items that are in all of them."""
    last = guesses[-1]
    kept = np.ones(len(last.items), dtype=bool)
    for guess in guesses[:-1]:
        kept &= np.isin(last.items, guess.items)
    values = None if last.values is None else last.values[kept]
    return Guess(last.vector, last.items[kept], values)


# -------------------------------------------------------------------- weighted factorisation


def wmf(model, message, announced, upload, n_items):
    """LocALS, LocSGD, GlobSGD: rows along p_u, whose length explains their sizes."""
    rows, items = _sent(upload["rows"], n_items)
    received = message["item_factors"].values[items].astype(np.float64)
    reg_item = float(announced["reg_item"].values[0]) if "reg_item" in announced else 0.0
    tie = _tie(model, reg_item)
    direction = _direction(rows - tie * received)

    def misfit(length):
        vector = length * direction
        misfit = _distance(_rows_of(model, vector, received, reg_item, tie), rows)
        if "others" in upload:
            misfit += _distance(_matrix_of(model, vector, reg_item), upload["others"].change)
        return misfit

    candidates = np.concatenate([LENGTHS, -LENGTHS])
    with np.errstate(over="ignore", invalid="ignore"):
        misfits = np.array([misfit(length) for length in candidates])
        best = candidates[np.nanargmin(misfits)]
        ends = sorted((best / 1.2, best * 1.2))
        length = minimize_scalar(misfit, bounds=ends, method="bounded", options={"xatol": 1e-9}).x
    return Guess(length * direction, items)


def _matrix_of(model, vector, reg_item):
    """What a client with this vector sends of the items it does not hold, as a change."""
    outer, eye = np.outer(vector, vector), np.eye(len(vector))
    if not hasattr(model, "mu"):
        return outer
    if not hasattr(model, "n_steps"):
        return model.mu * np.linalg.inv((model.mu + reg_item) * eye + outer) - eye
    follow = eye
    for _ in range(model.n_steps * model.local_epochs):
        step = outer @ follow + reg_item * follow + model.mu * (follow - eye)
        follow = follow - model.learning_rate * step
    return follow - eye


def _tie(model, reg_item):
    """How much of the received item is in a row, whatever the user's vector is."""
    if model.aggregation == "full" or not hasattr(model, "mu"):
        return 0.0
    if not hasattr(model, "n_steps"):
        return model.mu / (model.mu + reg_item) - 1
    kept = 1.0
    for _ in range(model.n_steps * model.local_epochs):
        kept += -model.learning_rate * (reg_item * kept + model.mu * (kept - 1))
    return kept - 1


def _rows_of(model, vector, items, reg_item, tie):
    """The rows that a client with this vector sends for its items, all of weight 1."""
    confidence, dots = 1 + model.alpha, items @ vector
    full = model.aggregation == "full"
    if not hasattr(model, "mu"):
        return np.outer(confidence * (dots - 1) - full * dots, vector)
    square = vector @ vector
    if hasattr(model, "n_steps"):
        along, idle = np.zeros((2, len(items)))
        kept = 1.0
        for _ in range(model.n_steps * model.local_epochs):
            shrunk = 1 - model.learning_rate * (reg_item + model.mu)
            pull = confidence * (kept * dots + along * square - 1)
            along = shrunk * along - model.learning_rate * pull
            idle = shrunk * idle - model.learning_rate * (kept * dots + idle * square)
            kept = shrunk * kept + model.learning_rate * model.mu
        return np.outer(along - full * idle, vector) + tie * items
    k = model.mu + reg_item
    share = model.mu / k
    along = confidence * (1 - share * dots) / (k + confidence * square)
    along = along + full * share * dots / (k + square)
    return np.outer(along, vector) + tie * items


# ------------------------------------------------------------------------ FedMF, CoLR, SCoLR


def sampled(model, message, announced, upload, n_items):
    """FedMF and its like: visited items move along p_u, positives against negatives."""
    rows, items = _sent(upload["updates"], n_items)
    direction = _direction(rows)
    along = rows @ direction
    # Most visited items are sampled negatives, if there are any.
    has_negatives = model.loss == "bce" and model.n_negatives > 0
    positive = along > 0
    if (2 * positive.sum() > len(items)) == has_negatives:
        positive, direction = ~positive, -direction
    if "basis" in message:
        # Rows lie along B p, which says of p what the rows of B span.
        direction = np.linalg.pinv(message["basis"].values) @ direction
    return Guess(direction, items[positive] if has_negatives else items)


# ---------------------------------------------------------------------------------- LightFR


def lightfr(model, message, announced, upload, n_items):
    """The code from its product with itself or from one row; targets by subtraction."""
    if model.aggregation == "parameter":
        return Guess(None, _sent(upload["rows"], n_items)[1])
    if model.aggregation == "full":
        return _lightfr_full(model, message, announced, upload, n_items)
    rows, items = _sent(upload["rows"], n_items)
    rows = rows / 2.0**20
    signs = message["item_signs"].values[items].astype(np.float64)
    limit = 2**model.user_bits - 1
    entries = np.arange(-limit, limit + 1, 2)
    # rows[:, k] = residual * a_k + a_k^2 signs[:, k], with the same residual for every bit k.
    best = None
    for first in entries[entries > 0]:
        residual = rows[:, 0] / first - first * signs[:, 0]
        expected = residual[:, None, None] * entries + entries**2 * signs[:, :, None]
        misfit = np.abs(rows[:, :, None] - expected).sum(axis=0)
        total = misfit.min(axis=1).sum()
        if best is None or total < best[0]:
            best = total, entries[misfit.argmin(axis=1)], residual
    _, code, residual = best
    targets = residual + signs @ code
    return _lightfr_guess(model, announced, code, targets, items)


def _lightfr_full(model, message, announced, upload, n_items):
    gram = np.asarray(upload["gram"].change, dtype=np.float64)
    code = np.sign(gram[0]) * np.sqrt(np.diag(gram))
    rows, items = _sent(upload["rows"], n_items)
    rows, mass = rows[:, :-1] / 2.0**20, rows[:, -1] / 2.0**20
    signs = message["item_signs"].values[items].astype(np.float64)
    along = rows @ code / (code @ code)
    base = (2 * model.negative_target - 1) * _top(model)
    # along = w aim - base - (w - 1) dot, where mass = w - 1.
    guesses = [
        ((sign * along + base + mass * (signs @ (sign * code))) / (1 + mass), sign)
        for sign in (1, -1)
    ]
    misfits = [_strangeness(model, announced, targets) for targets, _ in guesses]
    targets, sign = guesses[int(np.argmin(misfits))]
    return Guess(sign * code, items, _ratings(model, announced, targets))


def _lightfr_guess(model, announced, code, targets, items):
    """The sign of the code under which the targets make sense, and the own items."""
    if _strangeness(model, announced, -targets) < _strangeness(model, announced, targets):
        code, targets = -code, -targets
    similarity = (1 + targets / _top(model)) / 2
    if model.targets == "implicit":
        middle = (model.positive_target + model.negative_target) / 2
        own = (similarity > middle) == (model.positive_target > model.negative_target)
    else:
        levels = _levels(announced)
        own = np.abs(similarity[:, None] - levels).min(axis=1) < 1e-4
        if model.n_negatives:
            own &= np.abs(similarity - model.negative_target) > 1e-4
    return Guess(code, items[own], _ratings(model, announced, targets[own]))


def _strangeness(model, announced, targets):
    """How far the targets are from those that the method can have, given half stars."""
    similarity = (1 + targets / _top(model)) / 2
    if model.targets == "implicit":
        levels = np.array([model.positive_target, model.negative_target])
        return np.abs(similarity[:, None] - levels).min(axis=1).sum()
    levels = _levels(announced)
    if model.aggregation != "full" and model.n_negatives:
        levels = np.append(levels, model.negative_target)
    misfit = np.abs(similarity[:, None] - levels).min(axis=1).sum()
    # A mirrored scale fits as well; people rate above its middle more often than below.
    return misfit + 1e-3 * (similarity.mean() < 0.5)


def _levels(announced):
    low, high = announced["form"].values
    return (np.arange(low, high + 0.25, 0.5) - low) / (high - low)


def _ratings(model, announced, targets):
    if model.targets == "implicit":
        return None
    low, high = announced["form"].values
    return low + (high - low) * (1 + targets / _top(model)) / 2


def _top(model):
    return model.n_bits * (2**model.user_bits - 1)


# ------------------------------------------------------------------------------------ RFRec


def rfrec(model, message, announced, upload, n_items):
    """RFRec: a client leaves the vectors of what it has not rated where they were."""
    noise = model._world().local_dp
    change = upload["item_vectors"].change
    size = (change**2).sum(axis=1)
    if noise is None:
        return Guess(None, np.flatnonzero(size > 1e-12 * size.max(initial=0.0)))
    # Squared length of a row of noise: its mean, and some standard deviations.
    width = change.shape[1]
    usual = noise.scale**2 * (2 * width + NOISY * np.sqrt(20 * width))
    return Guess(None, np.flatnonzero(size > usual))


# ----------------------------------------------------------------------------------- shared


def _distance(guess, truth):
    """Squared, relative to the size of the truth."""
    return np.sum((guess - truth) ** 2) / max(np.sum(truth**2), 1e-300)


def _sent(update, n_items):
    """The rows that say something, and their items."""
    change = np.asarray(update.change, dtype=np.float64)
    items = np.arange(n_items)[update.rows]
    size = np.abs(change).max(axis=1, initial=0.0)
    told = size > 1e-9 * size.max(initial=0.0)
    return change[told], items[told]


def _direction(rows):
    """The unit vector along which most of the rows lie."""
    if len(rows) == 0:
        return np.zeros(rows.shape[1])
    return np.linalg.svd(rows, full_matrices=False)[2][0]


def private_vector(model, state):
    """A one-user client's own vector, from its state; for keeping the score."""
    if "codes" not in state:
        return state["users"][0].astype(np.float64)
    planes = np.unpackbits(state["codes"][0].view(np.uint8), bitorder="little", axis=-1)
    planes = 2.0 * planes[..., : model.n_bits] - 1
    return planes if planes.ndim == 1 else 2.0 ** np.arange(len(planes)) @ planes


INVERSIONS = {
    "LocALS": wmf,
    "LocSGD": wmf,
    "GlobSGD": wmf,
    "FedMF": sampled,
    "CoLR": sampled,
    "SCoLR": sampled,
    "LightFR": lightfr,
    "RFRec": rfrec,
}
