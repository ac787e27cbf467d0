"""FedMF, CoLR, SCoLR: from one client's uploads to its positives and its user's vector.

In one upload visited items move along p_u (along B p_u), positives one way and negatives the
other. The server knows the items that it has sent, and so can train a user's vector on what it
has found, as the client does; each upload then corrects the result in the directions that
show in it. As B is drawn anew in each round, these are all directions in the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import expit

from fedrecsk.attacks._guesses import Guess, agreed, direction_of, sent_rows

# How uncertain a replayed visit is, as a share of what it changes; a client's batches are unknown.
SHARE_UNKNOWN = 0.03
# How inexact an upload's measurement is at least, as a share of its squared size.
INEXACT = 1e-3


class Visit(NamedTuple):
    """What one upload shows.

    Attributes
    ----------
    items : ndarray of shape (n_visited,)
    is_own : ndarray of shape (n_visited,), dtype bool
        Positives, as opposed to sampled negatives.
    received : ndarray of shape (n_visited, n_factors)
        The items' vectors before the visit.
    basis : ndarray of shape (n_directions, n_factors)
        Orthonormal rows along which the items could move.
    moved : ndarray of shape (n_visited, n_directions)
        How far they did.
    direction : ndarray of shape (n_directions,)
        Along which they moved, positives forwards.
    """

    items: np.ndarray
    is_own: np.ndarray
    received: np.ndarray
    basis: np.ndarray
    moved: np.ndarray
    direction: np.ndarray


def sampled(model, exchanges, n_items):
    """Find the positives in each upload, and follow the user's vector over all of them."""
    visits = [_visit(model, one.message, one.upload, n_items) for one in exchanges]
    own = agreed([Guess(None, visit.items[visit.is_own]) for visit in visits])
    last = visits[-1]
    if model._sees_ratings or len(last.items) == 0:
        return own._replace(vector=_in_common(visits))
    return own._replace(vector=_followed(model, visits))


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
    along = rows @ direction
    # Most visited items are sampled negatives, if there are any.
    has_negatives = model.loss == "bce" and model.n_negatives > 0
    positive = along > 0
    if (2 * positive.sum() > len(items)) == has_negatives:
        positive, direction = ~positive, -direction
    own = positive if has_negatives else np.ones(len(items), dtype=bool)
    received = message["item_factors"].values[items].astype(np.float64)
    return Visit(items, own, received, basis, rows, direction)


def _in_common(visits):
    """The direction whose parts within each upload's basis lie along what moved in it."""
    last = visits[-1]
    if len(visits) == 1:
        return last.basis.T @ last.direction
    across = np.zeros((last.basis.shape[1], last.basis.shape[1]))
    for visit in visits:
        beside = visit.basis - np.outer(visit.direction, visit.direction @ visit.basis)
        across += beside.T @ beside
    found = np.linalg.eigh(across)[1][:, 0]
    return found * np.sign(found @ (last.basis.T @ last.direction) or 1.0)


def _followed(model, visits):
    """The user's vector after the last visit: a Kalman filter on the client's own training."""
    d = model.n_factors
    user, spread = np.zeros(d), np.eye(d) * model.init_std**2
    for visit in visits:
        _, expected, pushes = _trained(model, visit, user)
        if pushes @ pushes > 0:
            left = visit.moved - expected
            seen = pushes @ left / (pushes @ pushes)
            noise = ((left - np.outer(pushes, seen)) ** 2).mean() / (pushes @ pushes)
            noise += INEXACT * (seen @ seen) / len(seen) + 1e-12
            within = visit.basis @ spread
            total = within @ visit.basis.T + noise * np.eye(len(seen))
            gain = np.linalg.solve(total, within).T
            user, spread = user + gain @ seen, spread - gain @ within
        trained, _, _ = _trained(model, visit, user)
        unknown = SHARE_UNKNOWN * ((trained - user) ** 2).sum() / d
        user, spread = trained, spread + unknown * np.eye(d)
    return user


def _trained(model, visit, user):
    """A client's visit from this vector, with all examples in every batch.

    Returns
    -------
    user : the vector afterwards
    moved : ndarray of shape (n_visited, n_directions), how far the items move
    pushes : ndarray of shape (n_visited,), how far they do per length of the user's vector
    """
    n_examples = max(int(visit.is_own.sum() * (1 + model._config().n_negatives)), 1)
    decay = max(model.weight_decay, model._least_penalty / n_examples)
    n_batches = -(-n_examples // model.batch_size)
    rate = model._rate_and_length()[0] / n_batches
    items, first = visit.received, visit.received @ visit.basis.T
    pushes = np.zeros(len(items))
    for _ in range(n_batches * model.local_epochs):
        slopes = expit(items @ user) - visit.is_own
        part = visit.basis @ user
        now = items @ visit.basis.T
        change = 2 * rate * decay * now + rate * np.outer(slopes, part)
        down = slopes @ items / len(items)
        items = items - change @ visit.basis
        user = (1 - 2 * model.learning_rate * decay) * user - model.learning_rate * down
        pushes -= rate * slopes
    return user, items @ visit.basis.T - first, pushes
