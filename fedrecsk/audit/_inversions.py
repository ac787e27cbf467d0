"""Inversions of single uploads, of all methods but RFRec: what a client's numbers say about it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit
from sklearn.base import clone

from fedrecsk.audit._server_view import (
    Reconstruction,
    any_order,
    direction_of,
    keep_common,
    one_by_one,
    sent_rows,
)
from fedrecsk.federated.papers.locsgd import LocSGD

# LocALS, LocSGD, GlobSGD: lengths to try for a vector whose direction is known, and how often to
# find the direction again once the length is known.
LENGTHS = np.geomspace(1e-2, 1e2, 81)
PASSES = 4
# FCF: relative rounding error of float32 numbers.
ROUNDING = 1e-3
# FedMF, CoLR: uncertainty of a replayed visit, whose batches are unknown, as a share of what it
# changes; and least uncertainty of what an upload shows, as a share of its squared size.
SHARE_UNKNOWN, INEXACT = 0.03, 1e-3
# FedRec: an error that virtual ratings leave at most, as a share of the largest; the least share of
# virtual items to find; and iterations that turn least squares into least absolute errors.
EXPLAINED, MOST, REWEIGHTINGS = 1e-3, 0.8, 60
# SemiDFEGL: shifts to try for all ratings of a user.
SHIFTS = np.linspace(-2, 2, 401)

# ------------------------------------------------------------------- LocALS, LocSGD, GlobSGD


@one_by_one
def wmf(model, message, upload, n_items):
    """Find the direction of the rows, and the length and sign that fit the upload."""
    rows, items = sent_rows(upload["rows"], n_items)
    received = message["item_factors"].values[items].astype(np.float64)
    if isinstance(model, LocSGD):
        # Its steps depend on how many items the user has.
        (rate,) = model._algorithm().rates(n_items, np.array([len(items)]))
        model = clone(model).set_params(learning_rate=rate)

    def misfit(vector):
        expected = _of_one_user(model, vector, received, message)
        misfit = _distance(expected["rows"], rows)
        if "others" in expected and "others" in upload:
            misfit += _distance(expected["others"], upload["others"].change)
        return misfit

    vector = np.zeros(rows.shape[1])
    for _ in range(PASSES):
        # The share of the received item in a row depends on the length of p_u at most.
        share = _share_of_received(model, message, vector)
        direction = direction_of(rows - share * received)
        vector = best_length(lambda length, d=direction: misfit(length * d)) * direction
        if share == _share_of_received(model, message, vector):
            break
    return Reconstruction(vector, items)


def _of_one_user(model, vector, items, message):
    """Return what a one-user client with this vector sends for own items of weight 1."""
    name = next(one.__name__ for one in type(model).__mro__ if one.__name__ in ONE_USER)
    return ONE_USER[name](model, vector, items, message)


def _one_locals(model, vector, items, message):
    """Return the upload of LocALS."""
    reg_item = float(message["reg_item"].values[0])
    tie, square, confidence = model.prox + reg_item, vector @ vector, 1 + model.alpha
    share = model.prox / tie
    scores = share * (items @ vector)
    multiples = confidence * (1 - scores) / (tie + confidence * square)
    if model.aggregation != "full":
        return {"rows": np.outer(multiples, vector) + (share - 1) * items}
    eye = np.eye(len(vector))
    others = model.prox * np.linalg.inv(tie * eye + np.outer(vector, vector)) - eye
    return {"rows": np.outer(multiples + scores / (tie + square), vector), "others": others}


def _one_locsgd(model, vector, items, message):
    """Return the upload of LocSGD."""
    prox, penalty = model.prox, float(message["reg_item"].values[0]) + model.prox
    square, scores = vector @ vector, items @ vector
    own, other = (
        min(model.learning_rate, 1 / max(confidence * square + penalty, 1e-300))
        for confidence in (1 + model.alpha, 1)
    )
    eye, outer = np.eye(len(vector)), np.outer(vector, vector)
    # An own item is kept q + along p, one without a row follow q.
    along, kept, follow = np.zeros(len(items)), 1.0, eye
    for _ in range(model.n_steps * model.local_epochs):
        step = (1 + model.alpha) * (kept * scores + along * square - 1)
        along = (1 - own * penalty) * along - own * step
        kept = (1 - own * penalty) * kept + own * prox
        follow = follow - other * ((outer + penalty * eye) @ follow - prox * eye)
    versions = np.outer(along, vector) + kept * items
    if model.aggregation == "full":
        return {"rows": versions - items @ follow, "others": follow - eye}
    return {"rows": versions - items}


def _one_gradient(model, vector, items, message):
    """Return the upload of GlobSGD, and of FCF with own rows."""
    scores = items @ vector
    multiples = (1 + model.alpha) * (scores - 1)
    if "others" not in model._algorithm().fields(1):
        return {"rows": np.outer(multiples, vector)}
    others = np.outer(vector, vector)
    return {"rows": np.outer(multiples - scores, vector), "others": others}


ONE_USER = {
    "LocALS": _one_locals,
    "LocSGD": _one_locsgd,
    "GlobSGD": _one_gradient,
    "FCF": _one_gradient,
}


def _share_of_received(model, message, vector):
    """Return the share of the received item in a row, apart from multiples of this vector."""
    # An item at right angles to the vector shows this share alone.
    item = np.zeros(len(vector))
    item[np.abs(vector).argmin()] = 1
    item -= (item @ vector) / max(vector @ vector, 1e-300) * vector
    if item @ item < 1e-12:
        return 0.0
    row = _of_one_user(model, vector, item[None], message)["rows"][0]
    return float(row @ item / (item @ item))


def best_length(misfit):
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
    rows = rows * model._algorithm().rate_and_length()[1]
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
    algorithm = model._algorithm()
    n_examples = max(int(visit.is_own.sum() * (1 + algorithm.config().n_negatives)), 1)
    decay = max(model.reg, model.shrinkage / n_examples)
    n_batches = -(-n_examples // model.batch_size)
    rate = algorithm.rate_and_length()[0] / n_batches
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


# ------------------------------------------------------------------------------------ FedEB


@one_by_one
def fedeb(model, message, upload, n_items):
    """Solve the client's equations for the posterior mean phi, then for the ratings."""
    # alpha_u follows from n_u and alpha_u / alpha E; it turns the rows of b_i into residuals. At
    # the posterior mean these and Lambda (phi - m_u) balance. All ratings weigh n_u / n_rows.
    rows, items = sent_rows(upload["items"], n_items)
    n = max(len(items), 1)
    n_ratings = float(upload["scales"].change[3])
    weight = n_ratings / n or 1.0
    received, scale = model._algorithm().received(message)
    alpha, lambda_0, *reg = message["scales"].values
    precision = alpha
    if model.user_noise:
        nu = model.NU
        precision = alpha * (nu + n_ratings - alpha * upload["scales"].change[2]) / nu
    # Times their weights.
    residuals = rows[:, 0] / (precision or 1)
    received, width = received[items].astype(np.float64), 1 + model.n_factors
    x = np.column_stack([np.ones(len(items)), received[:, 1:]])
    center, prior = np.zeros(x.shape[1]), np.ones(x.shape[1])
    prior[0] = lambda_0
    if model.implicit:
        center[1:width] = message["implicit"].values[items].sum(axis=0) / np.sqrt(n)
    pull = np.zeros(x.shape[1])
    known = alpha * message["n_ratings"].values[items, None]
    pull[:width] = alpha * weight * (1 / (np.array(reg) + known)).sum(axis=0)
    pull[0] = 0
    phi = (alpha * residuals @ x + prior * center) / (prior + pull)
    ratings = scale.level + scale.unit * (received[:, 0] + x @ phi + residuals / weight)
    return Reconstruction(phi, items, ratings)


# ----------------------------------------------------------------------------------- FedRec


@one_by_one
def fedrec(model, message, upload, n_items):
    """Take rows for multiples of (1, p_u) or p_u, and find those of virtual ratings."""
    # Virtual ratings are all equal, or scores w . (1, b_i, q_i) with the same w, which fits most of
    # the rows. Weights are assumed to be 1, and ratings one apart.
    items = message["item_vectors"].values.astype(np.float64)
    rows, sent = sent_rows(upload["gradients"], n_items)
    received = items[sent]
    rows = rows - model._reg * received
    if not model.biases:
        direction = direction_of(rows)
        return Reconstruction(direction, sent[~_virtual(model, -rows @ direction, received)])
    slopes = rows[:, 0]
    vector = slopes @ rows[:, 1:] / max(slopes @ slopes, 1e-300)
    low, high, level = message["scale"].values
    # Ratings without the user's bias.
    shown = level + received[:, 0] + received[:, 1:] @ vector - slopes
    rated = ~_virtual(model, shown, received)
    unit = (high - low) / 4
    ratings = _whole_ratings(low + unit * (shown[rated] - 1), low, high)
    return Reconstruction(vector, sent[rated], ratings)


def _virtual(model, shown, received):
    """Return a mask of the items whose ratings are all equal or linear in the items, if enough."""
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
    """Return residuals of a fit with least absolute errors, by reweighted least squares."""
    left = shown
    for _ in range(REWEIGHTINGS):
        root = 1 / np.sqrt(np.abs(left) + 1e-3 * EXPLAINED * size)
        left = shown - design @ np.linalg.lstsq(root[:, None] * design, root * shown)[0]
    return left


def _whole_ratings(shown, low, high):
    """Return whole ratings that differ from these by a constant, closest to the scale's middle."""
    if len(shown) == 0:
        return shown
    turns = np.exp(2j * np.pi * (shown - low)).mean()
    nearest = np.rint(shown - low - np.angle(turns) / (2 * np.pi)) + low
    shifts = np.arange(low - nearest.max(), high - nearest.min() + 1)
    inside = [s for s in shifts if low <= nearest.min() + s and nearest.max() + s <= high]
    middle = (low + high) / 2
    return nearest + min(inside or shifts, key=lambda s: abs(nearest.mean() + s - middle))


# -------------------------------------------------------------------------------- SemiDFEGL


@one_by_one
def semidfegl(model, message, upload, n_items):
    """Read the uploaded embedding; rows are errors times it, plus a common vector."""
    rows, items = sent_rows(upload["gradient"], n_items)
    vector = np.asarray(upload["embedding"].change, dtype=np.float64)
    received = message["item_vectors"].values[items].astype(np.float64)
    low, high, level = message["scale"].values
    if model.biases:
        errors, scores = rows[:, 0], received[:, 0] + received[:, 1:] @ vector
    else:
        scores = received @ vector
        common = upload["common"].change if "common" in upload else np.zeros(len(vector))
        errors = _errors(model, rows, scores, vector, common)
    ratings = level + scores - errors
    # Of the shifts that make whole numbers on the scale, the smallest.
    shifted = ratings + SHIFTS[:, None]
    away = np.abs(shifted - np.clip(np.round(shifted), low, high)).mean(axis=1)
    best = SHIFTS[np.lexsort((np.abs(SHIFTS), np.round(away, 2)))[0]]
    return Reconstruction(vector, items, ratings + best)


def _errors(model, rows, scores, vector, common):
    """Return errors along the embedding, without biases, less the common vector of all rows."""
    square = max(vector @ vector, 1e-300)
    along = rows @ vector / square
    if common.any():
        return along - common @ vector / square
    # A device on its own sends it in no other field, but it is a sum of errors, too.
    share = (model.n_layers - 1) / (model.n_layers + 1) / np.sqrt(len(rows)) / square
    return along - share * (along @ scores) / (1 + share * scores.sum())


# ---------------------------------------------------------------------- FedEASE, FedSpectral


@one_by_one
def gram(model, message, upload, n_items):
    """Read the pair of each item with itself: the square of the user's weight for it."""
    rows, change = upload["gram"]
    diagonal, squares = np.arange(n_items), np.zeros(n_items)
    numbers = diagonal * (diagonal + 3) // 2
    if isinstance(rows, slice):
        squares += any_order(upload["gram"], n_items)[numbers]
    else:
        _, theirs, places = np.intersect1d(numbers, rows, return_indices=True)
        squares[theirs] = np.ravel(change)[places]
    return Reconstruction(np.sqrt(np.maximum(squares, 0)), np.flatnonzero(squares > 0))


# ---------------------------------------------------------------------------------- LightFR


@one_by_one
def lightfr(model, message, upload, n_items):
    """Get the code from its product with itself or from one row; then subtract for the targets."""
    if model.aggregation == "parameter":
        return Reconstruction(None, sent_rows(upload["votes"], n_items)[1])
    rows, items = sent_rows(upload["rows"], n_items)
    rows = rows / 2.0**20
    signs = message["item_signs"].values[items].astype(np.float64)
    if model.aggregation == "full":
        return _from_matrix(model, message, upload["gram"].change, rows, signs, items)
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
    # The opposite code fits as well, with mirrored targets.
    if _strangeness(model, message, -targets) < _strangeness(model, message, targets):
        code, targets = -code, -targets
    similarity = (1 + targets / _top(model)) / 2
    if model.targets == "implicit":
        middle = (model.POSITIVE_TARGET + model.NEGATIVE_TARGET) / 2
        own = (similarity > middle) == (model.POSITIVE_TARGET > model.NEGATIVE_TARGET)
    else:
        own = np.abs(similarity[:, None] - _levels(message)).min(axis=1) < 1e-4
        if model.n_negatives:
            own &= np.abs(similarity - model.NEGATIVE_TARGET) > 1e-4
    return Reconstruction(code, items[own], _ratings(model, message, targets[own]))


def _from_matrix(model, message, products, rows, signs, items):
    """Invert an upload of `aggregation="full"`, which has the code's products with itself."""
    products = np.asarray(products, dtype=np.float64)
    # A difference of two rounds' sums may have negative squares.
    code = np.sign(products[0]) * np.sqrt(np.maximum(np.diag(products), 0))
    rows, mass = rows[:, :-1], rows[:, -1]
    along = rows @ code / max(code @ code, 1e-300)
    base = (2 * model.NEGATIVE_TARGET - 1) * _top(model)
    # along = w aim - base - (w - 1) dot, where mass = w - 1.
    guesses = [
        ((sign * along + base + mass * (signs @ (sign * code))) / (1 + mass), sign * code)
        for sign in (1, -1)
    ]
    targets, code = min(guesses, key=lambda guess: _strangeness(model, message, guess[0]))
    return Reconstruction(code, items, _ratings(model, message, targets))


def _strangeness(model, message, targets):
    """Return the targets' distance from those that are possible with ratings in half stars."""
    similarity = (1 + targets / _top(model)) / 2
    if model.targets == "implicit":
        levels = np.array([model.POSITIVE_TARGET, model.NEGATIVE_TARGET])
        return np.abs(similarity[:, None] - levels).min(axis=1).sum()
    levels = _levels(message)
    if model.aggregation != "full" and model.n_negatives:
        levels = np.append(levels, model.NEGATIVE_TARGET)
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


# --------------------------------------------------------------------------- neural methods


def neural(model, exchanges, n_items):
    """Find the items that are trained in every round and are mostly pulled as positives."""
    # A positive pulls its rows one way, a negative the other way, all along about one line.
    n_negatives = 0 if model._sees_ratings else model.n_negatives
    n_trained, pull = np.zeros(n_items, dtype=int), np.zeros(n_items)
    for one in exchanges:
        rows, items = _read_moves(model, one.upload, n_items)
        n_trained[items] += 1
        pull[items] += _pulls(rows, n_items, n_negatives)
    always = n_trained == len(exchanges)
    return Reconstruction(None, np.flatnonzero(always & (pull > 0) if n_negatives else always))


def _read_moves(model, upload, n_items):
    """Return changes of the items' rows in all tables side by side, and the items."""
    tables = [upload[name] for name in model._module_layout().named("item")]
    whole = []
    for table in tables:
        rows, moved = sent_rows(table, n_items)
        whole.append(np.zeros((n_items, rows.shape[1])))
        whole[-1][moved] = rows
    changes = np.concatenate([np.zeros((n_items, 0)), *whole], axis=1)
    items = np.flatnonzero(changes.any(axis=1))
    return changes[items], items


def _pulls(rows, n_items, n_negatives):
    """Return how far each row has moved along the common line, positives forwards."""
    if len(rows) == 0:
        return np.zeros(0)
    along = rows @ direction_of(rows)
    along /= np.abs(along).mean() or 1.0
    n_forwards, n = (along > 0).sum(), len(along)
    forwards = _misfit(n_forwards, n - n_forwards, n_items, n_negatives)
    backwards = _misfit(n - n_forwards, n_forwards, n_items, n_negatives)
    return along if forwards <= backwards else -along


def _misfit(n_positives, n_others, n_items, n_negatives):
    """Return how unusual so many others are for negatives drawn with replacement."""
    n_unseen = max(1, n_items - n_positives)
    expected = n_unseen * (1 - (1 - 1 / n_unseen) ** (n_negatives * n_positives))
    return abs(n_others - expected)
