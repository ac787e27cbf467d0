"""Inversions of methods whose uploaded rows are multiples of the user's vector."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit

from fedrecsk.attacks._server_view import (
    Reconstruction,
    direction_of,
    keep_common,
    one_by_one,
    sent_rows,
)

# LocALS, LocSGD, GlobSGD: lengths to try for a vector whose direction is known, and how often to
# find the direction again once the length is known.
LENGTHS = np.geomspace(1e-2, 1e2, 81)
PASSES = 4
# FCF: relative rounding error of float32 numbers.
ROUNDING = 1e-3
# FedMF, CoLR: uncertainty of a replayed visit, whose batches are unknown, as a share of what it
# changes; and least uncertainty of what an upload shows, as a share of its squared size.
SHARE_UNKNOWN, INEXACT = 0.03, 1e-3

# ------------------------------------------------------------------- LocALS, LocSGD, GlobSGD


@one_by_one
def wmf(model, message, upload, n_items):
    """Find the direction of the rows, and the length and sign with which `_upload_of_one` fits."""
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
        # The share of the received item in a row depends on the length of p_u at most.
        share = _share_of_received(model, message, vector)
        direction = direction_of(rows - share * received)
        vector = _best(lambda length, d=direction: misfit(length * d)) * direction
        if share == _share_of_received(model, message, vector):
            break
    return Reconstruction(vector, items)


def _share_of_received(model, message, vector):
    """Return the share of the received item in a row, apart from multiples of this vector."""
    # An item at right angles to the vector shows this share alone.
    item = np.zeros(len(vector))
    item[np.abs(vector).argmin()] = 1
    item -= (item @ vector) / max(vector @ vector, 1e-300) * vector
    if item @ item < 1e-12:
        return 0.0
    row = model._upload_of_one(vector, item[None], message)["rows"][0]
    return float(row @ item / (item @ item))


def _best(misfit):
    """Return the length with the least misfit; a negative one reverses the vector."""
    candidates = np.concatenate([LENGTHS, -LENGTHS])
    with np.errstate(over="ignore", invalid="ignore"):
        misfits = np.array([misfit(length) for length in candidates])
        best = candidates[np.nanargmin(misfits)]
        ends = sorted((best / 1.2, best * 1.2))
        return minimize_scalar(misfit, bounds=ends, method="bounded", options={"xatol": 1e-9}).x


def _distance(guess, truth):
    """Return the squared distance, relative to the squared length of the truth."""
    return np.sum((guess - truth) ** 2) / max(np.sum(truth**2), 1e-300)


# ------------------------------------------------------------------------- FCF, ExplicitFCF


@one_by_one
def fcf(model, message, upload, n_items):
    """Use the rows of items without an interaction, (p.q) p, which give p up to its sign."""
    if model.upload == "local":
        return wmf.__wrapped__(model, message, upload, n_items)
    rows = np.asarray(upload["gradient"].change, dtype=np.float64)
    items = message["item_factors"].values.astype(np.float64)
    direction = direction_of(rows)
    along, scores = rows @ direction, items @ direction
    usable = np.abs(scores) > 1e-2 * np.abs(scores).max(initial=0.0)
    # |p|^2 for items that the user does not have; different numbers for own items.
    square = _most_common(along[usable] / scores[usable])
    length = np.sqrt(max(square, 0.0))
    own = np.abs(along - square * scores) > ROUNDING * np.abs(along).max(initial=0.0)
    # Own items pull p towards them: their rows are (1 + alpha) (p.q - 1) p.
    expected = (1 + model.alpha) * (length * scores[own] - 1) * length
    turned = (1 + model.alpha) * (length * scores[own] + 1) * length
    if np.abs(along[own] - turned).sum() < np.abs(along[own] - expected).sum():
        length = -length
    return Reconstruction(length * direction, np.flatnonzero(own))


def _most_common(numbers):
    """Return the most common positive number, up to rounding; 0 if there are none."""
    numbers = np.sort(numbers[numbers > 0])
    if not len(numbers):
        return 0.0
    n_equal = np.searchsorted(numbers, numbers * (1 + ROUNDING)) - np.arange(len(numbers))
    first = n_equal.argmax()
    return float(np.median(numbers[first : first + n_equal[first]]))


@one_by_one
def explicit_fcf(model, message, upload, n_items):
    """Take rows for errors times (1, p); the user's ridge regression gives the rest."""
    rows, items = sent_rows(upload["gradient"], n_items)
    received = message["item_vectors"].values[items].astype(np.float64)
    low, high, level = message["scale"].values
    if model.biases:
        errors, received_bias = rows[:, 0], received[:, 0].copy()
        vector = errors @ rows / max(errors @ errors, 1e-300)
        # The penalty and the errors are in balance.
        vector[0] = -errors.sum() / model.reg_bias
        received[:, 0] = 1
        return Reconstruction(vector, items, level + received_bias + received @ vector - errors)
    direction = direction_of(rows)
    along = rows @ direction
    square = -(along @ received @ direction) / (model.reg_user * len(items) ** model.REG_POWER)
    vector = np.sqrt(max(square, 1e-300)) * direction
    ratings = received @ vector - along / np.sqrt(max(square, 1e-300))
    # The opposite vector fits as well, with the ratings' signs turned.
    if np.abs(ratings - (low + high) / 2).sum() > np.abs(-ratings - (low + high) / 2).sum():
        vector, ratings = -vector, -ratings
    return Reconstruction(vector, items, level + ratings)


# ---------------------------------------------------------------------------------- FedFast


@one_by_one
def fedfast(model, message, upload, n_items):
    """Read the vector, which is uploaded; items that moved along it are positives."""
    vector = message["client_vector"].values[0] + upload["client_vector"].change
    rows, items = sent_rows(upload["updates"], n_items)
    has_negatives = model.loss == "bce" and model.n_negatives > 0
    return Reconstruction(vector, items[rows @ vector > 0] if has_negatives else items)


# ----------------------------------------------------------------------- FedMF, CoLR, SCoLR


class Visit(NamedTuple):
    """One upload: visited items, the positives among them, and how far all items moved."""

    items: np.ndarray
    is_own: np.ndarray
    received: np.ndarray
    basis: np.ndarray  # orthonormal rows along which items can move
    moved: np.ndarray  # in the basis
    direction: np.ndarray  # of the positives' moves, in the basis


def fedmf(model, exchanges, n_items):
    """Find the positives in each upload, and filter the user's vector over all of them."""
    # Positives move along B p_u, negatives the other way; the basis B is drawn anew in each round.
    visits = [_visit(model, one.message, one.upload, n_items) for one in exchanges]

    own = keep_common([Reconstruction(None, visit.items[visit.is_own]) for visit in visits])
    if model._sees_ratings or len(visits[-1].items) == 0:
        return own._replace(vector=_common_direction(visits))
    return own._replace(vector=_filter(model, visits))


def _visit(model, message, upload, n_items):
    rows, items = sent_rows(upload["updates"], n_items)
    basis = np.eye(model.n_factors)
    if "directions" in message:
        basis = message["directions"].values[: model.rank].astype(np.float64)
    if "rows_of_basis" in upload:
        trained = np.asarray(upload["rows_of_basis"].change, dtype=bool)
        basis, rows = basis[trained], rows[:, trained]
    rows = rows * model._rate_and_length()[1]
    if "data_size" in upload:
        rows = rows / upload["data_size"].change[0]
    direction = direction_of(rows)
    # Most visited items are sampled negatives, if there are any.
    has_negatives = model.loss == "bce" and model.n_negatives > 0
    positive = rows @ direction > 0
    if (2 * positive.sum() > len(items)) == has_negatives:
        positive, direction = ~positive, -direction
    own = positive if has_negatives else np.ones(len(items), dtype=bool)
    received = message["item_factors"].values[items].astype(np.float64)
    return Visit(items, own, received, basis, rows, direction)


def _common_direction(visits):
    """Return the direction that looks, in each upload's basis, like what moved in it."""
    last = visits[-1]
    if len(visits) == 1:
        return last.basis.T @ last.direction
    across = np.zeros((last.basis.shape[1], last.basis.shape[1]))
    for visit in visits:
        beside = visit.basis - np.outer(visit.direction, visit.direction @ visit.basis)
        across += beside.T @ beside
    found = np.linalg.eigh(across)[1][:, 0]
    return found * np.sign(found @ (last.basis.T @ last.direction) or 1.0)


def _filter(model, visits):
    """Return the user's vector after the last visit, by a Kalman filter on the training."""
    d = model.n_factors
    user, spread = np.zeros(d), np.eye(d) * model.INIT_STD**2
    for visit in visits:
        _, expected, pushes = _train(model, visit, user)
        if pushes @ pushes > 0:
            left = visit.moved - expected
            seen = pushes @ left / (pushes @ pushes)
            noise = ((left - np.outer(pushes, seen)) ** 2).mean() / (pushes @ pushes)
            noise += INEXACT * (seen @ seen) / len(seen) + 1e-12
            within = visit.basis @ spread
            total = within @ visit.basis.T + noise * np.eye(len(seen))
            gain = np.linalg.solve(total, within).T
            user, spread = user + gain @ seen, spread - gain @ within
        trained, _, _ = _train(model, visit, user)
        unknown = SHARE_UNKNOWN * ((trained - user) ** 2).sum() / d
        user, spread = trained, spread + unknown * np.eye(d)
    return user


def _train(model, visit, user):
    """Train from a vector with all examples in every batch: vector, moves, moves per length."""
    n_examples = max(int(visit.is_own.sum() * (1 + model._config().n_negatives)), 1)
    decay = max(model.reg, model.shrinkage / n_examples)
    n_batches = -(-n_examples // model.batch_size)
    rate = model._rate_and_length()[0] / n_batches
    items, first = visit.received, visit.received @ visit.basis.T
    pushes = np.zeros(len(items))
    for _ in range(n_batches * model.local_epochs):
        slopes = expit(items @ user) - visit.is_own
        change = 2 * rate * decay * items @ visit.basis.T
        change += rate * np.outer(slopes, visit.basis @ user)
        down = slopes @ items / len(items)
        items = items - change @ visit.basis
        user = (1 - 2 * model.learning_rate * decay) * user - model.learning_rate * down
        pushes -= rate * slopes
    return user, items @ visit.basis.T - first, pushes
