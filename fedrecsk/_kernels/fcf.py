"""Federated collaborative filtering of ratings: exact users, and gradients of the items.

Vectors have `width` columns. With biases, column 0 of an item is its bias (met by a 1 on the
user's side) and column 0 of a user is the user's bias (met by a 1 on the item's side).

What the kernels share:

    indptr : (n_users + 1,), ratings of each user
    ratings : Ratings
    model : Model, what the clients have received
    penalties : (n_users, width), on the square of each number of each user's vector
    work : wmf.Workspace
    users : (n_users, width), replaced by the new vectors
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._kernels._jit import kernel, part
from fedrecsk._kernels.wmf import dot, ridge, send


class Ratings(NamedTuple):
    """The item of each rating, its value less the level, and its weight."""

    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray


class Model(NamedTuple):
    """The server's items.

    Attributes
    ----------
    bias : (n_items,), what an item adds whoever rates it
    partners : (n_items, width), what a user's vector is multiplied with
    has_bias : whether the first number of a user meets a 1, which is no variable of the item's
    """

    bias: np.ndarray
    partners: np.ndarray
    has_bias: bool


@kernel
def rating_gradients(layout, ratings, active, model, penalties, work, users, out):
    """Each active client fits its users exactly and makes the items' half gradients.

    A row is the sum over the client's users of w (score - rating) (1, p), the 1 with biases.

    Parameters
    ----------
    layout : shared.Layout
    active : (n_clients,) bool
    out : wmf.Uploads, receives the rows of own items
    ratings, model, penalties, work, users
        See above.

    Returns
    -------
    loss, mass : sums of w (score - rating)^2 and of w
    """
    pull, errors = np.empty_like(work.left[:, 0]), np.empty_like(work.left[:, 0])
    base = np.zeros((users.shape[1], users.shape[1]), users.dtype)
    loss, mass = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        first, n = layout.row_indptr[c], layout.row_indptr[c + 1] - layout.row_indptr[c]
        gradient = work.after[:n]
        for row in range(n):
            for f in range(gradient.shape[1]):
                gradient[row, f] = 0
        for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
            start, stop = layout.indptr[u], layout.indptr[u + 1]
            fit_user(start, stop, ratings, model, penalties[u], base, work, pull, users[u])
            errors_of(start, stop, ratings, model, users[u], errors)
            for k in range(start, stop):
                error, weight = errors[k - start], ratings.weights[k]
                loss += weight * error * error
                mass += weight
                add_gradient(
                    weight * error, users[u], model.has_bias, gradient[layout.rows[k] - first]
                )
        if out.senders[c]:
            send(c, first, gradient, base, False, out)
    return loss, mass


@kernel
def fit_raters(indptr, ratings, model, penalties, work, users):
    """Find every user's exact vector given the server's items."""
    pull = np.empty_like(work.left[:, 0])
    base = np.zeros((users.shape[1], users.shape[1]), users.dtype)
    for u in range(len(users)):
        fit_user(indptr[u], indptr[u + 1], ratings, model, penalties[u], base, work, pull, users[u])


@part
def fit_user(start, stop, ratings, model, penalty, base, work, pull, x):
    """Ridge regression of ratings[start:stop] into x; `base` is zero off its diagonal."""
    for f in range(len(x)):
        base[f, f] = penalty[f]
        x[f] = 0
    if start == stop:
        return
    chosen, weights = ratings.items[start:stop], ratings.weights[start:stop]
    for k in range(len(chosen)):
        pull[k] = weights[k] * (ratings.values[start + k] - model.bias[chosen[k]])
    ridge(model.partners, chosen, np.int64(0), weights, pull, base, work, x)


@part
def errors_of(start, stop, ratings, model, x, errors):
    """Score less rating of ratings[start:stop]."""
    for k in range(start, stop):
        i = ratings.items[k]
        errors[k - start] = dot(x, model.partners[i]) + model.bias[i] - ratings.values[k]


@part
def add_gradient(step, x, has_bias, out):
    """Add `step` times what an item's numbers are multiplied with."""
    out[0] += step if has_bias else step * x[0]
    for f in range(1, len(x)):
        out[f] += step * x[f]
