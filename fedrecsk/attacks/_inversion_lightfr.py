"""LightFR: from one client's upload to its user's code and its ratings."""

from __future__ import annotations

import numpy as np

from fedrecsk.attacks._guesses import Guess, one_by_one, sent_rows


@one_by_one
def lightfr(model, message, upload, n_items):
    """Get the code from its product with itself or from one row; then subtract for the targets."""
    if model.aggregation == "parameter":
        return Guess(None, sent_rows(upload["votes"], n_items)[1])
    if model.aggregation == "full":
        return _lightfr_full(model, message, upload, n_items)
    rows, items = sent_rows(upload["rows"], n_items)
    rows = rows / 2.0**20
    signs = message["item_signs"].values[items].astype(np.float64)
    limit = 2**model.user_bits - 1
    entries = np.arange(-limit, limit + 1, 2)
    # rows[:, k] = residual * a_k + a_k^2 signs[:, k], with the same residual for every bit k.
    best, code, residual = np.inf, entries[:0], rows[:, 0]
    for first in entries[entries > 0]:
        candidate = rows[:, 0] / first - first * signs[:, 0]
        expected = candidate[:, None, None] * entries + entries**2 * signs[:, :, None]
        misfit = np.abs(rows[:, :, None] - expected).sum(axis=0)
        total = misfit.min(axis=1).sum()
        if total < best:
            best, code, residual = total, entries[misfit.argmin(axis=1)], candidate
    targets = residual + signs @ code
    return _lightfr_guess(model, message, code, targets, items)


def _lightfr_full(model, message, upload, n_items):
    gram = np.asarray(upload["gram"].change, dtype=np.float64)
    code = np.sign(gram[0]) * np.sqrt(np.diag(gram))
    rows, items = sent_rows(upload["rows"], n_items)
    rows, mass = rows[:, :-1] / 2.0**20, rows[:, -1] / 2.0**20
    signs = message["item_signs"].values[items].astype(np.float64)
    along = rows @ code / (code @ code)
    base = (2 * model.negative_target - 1) * _top(model)
    # along = w aim - base - (w - 1) dot, where mass = w - 1.
    guesses = [
        ((sign * along + base + mass * (signs @ (sign * code))) / (1 + mass), sign)
        for sign in (1, -1)
    ]
    misfits = [_strangeness(model, message, targets) for targets, _ in guesses]
    targets, sign = guesses[int(np.argmin(misfits))]
    return Guess(sign * code, items, _ratings(model, message, targets))


def _lightfr_guess(model, message, code, targets, items):
    """Choose the sign of the code for which the targets are plausible; find the own items."""
    if _strangeness(model, message, -targets) < _strangeness(model, message, targets):
        code, targets = -code, -targets
    similarity = (1 + targets / _top(model)) / 2
    if model.targets == "implicit":
        middle = (model.positive_target + model.negative_target) / 2
        own = (similarity > middle) == (model.positive_target > model.negative_target)
    else:
        levels = _levels(message)
        own = np.abs(similarity[:, None] - levels).min(axis=1) < 1e-4
        if model.n_negatives:
            own &= np.abs(similarity - model.negative_target) > 1e-4
    return Guess(code, items[own], _ratings(model, message, targets[own]))


def _strangeness(model, message, targets):
    """Distance of the targets from those that are possible with ratings in half stars."""
    similarity = (1 + targets / _top(model)) / 2
    if model.targets == "implicit":
        levels = np.array([model.positive_target, model.negative_target])
        return np.abs(similarity[:, None] - levels).min(axis=1).sum()
    levels = _levels(message)
    if model.aggregation != "full" and model.n_negatives:
        levels = np.append(levels, model.negative_target)
    misfit = np.abs(similarity[:, None] - levels).min(axis=1).sum()
    # A mirrored scale fits as well; people rate above its middle more often than below.
    return misfit + 1e-3 * (similarity.mean() < 0.5)


def _levels(message):
    low, high = message["scale"].values
    return (np.arange(low, high + 0.25, 0.5) - low) / (high - low)


def _ratings(model, message, targets):
    if model.targets == "implicit":
        return None
    low, high = message["scale"].values
    return low + (high - low) * (1 + targets / _top(model)) / 2


def _top(model):
    return model.n_bits * (2**model.user_bits - 1)
