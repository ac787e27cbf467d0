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

from fedrecsk._utils.jit import inline, kernel
from fedrecsk._utils.shared_kernels import add_row, dot_rows, fill_row
from fedrecsk.federated._wmf_kernels import collect, send, solve_collected


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
    width, gradient = users.shape[1], work.after
    loss, mass = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        first = layout.row_indptr[c]
        for row in range(layout.row_indptr[c + 1] - first):
            fill_row(gradient, row, users.dtype.type(0), width)
        for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
            start, stop = layout.indptr[u], layout.indptr[u + 1]
            fit_user(start, stop, ratings, model, penalties, work, users, u)
            for k in range(start, stop):
                i, row, weight = ratings.items[k], layout.rows[k] - first, ratings.weights[k]
                score = dot_rows(users, u, model.partners, i, width) + model.bias[i]
                error = score - ratings.values[k]
                loss += weight * error * error
                mass += weight
                # What an item's numbers are multiplied with: users' vectors, or a 1 for a bias.
                bias = gradient[row, 0] + weight * error
                add_row(gradient, row, weight * error, users, u, width)
                if model.has_bias:
                    gradient[row, 0] = bias
        if out.senders[c]:
            send(c, layout, gradient, work.follow, False, out)
    return loss, mass


@kernel
def fit_raters(indptr, ratings, model, penalties, work, users):
    """Find every user's exact vector given the server's items."""
    for u in range(len(users)):
        fit_user(indptr[u], indptr[u + 1], ratings, model, penalties, work, users, u)


@inline
def fit_user(start, stop, ratings, model, penalties, work, users, u):
    """Ridge regression of ratings[start:stop] into ``users[u]``; work.base is diagonal."""
    real, d = users.dtype.type, users.shape[1]
    fill_row(users, u, real(0), d)
    if start == stop:
        return
    for f in range(d):
        work.base[f, f] = penalties[u, f]
    for k in range(start, stop):
        rest = ratings.values[k] - model.bias[ratings.items[k]]
        work.multiples[k - start] = ratings.weights[k] * rest
    fill_row(work.target, 0, real(0), d)
    collect(
        model.partners, ratings.items, start, np.int64(0), ratings.weights, start, work.multiples,
        np.int64(0), stop - start, work.base, work,
    )  # fmt: skip
    solve_collected(work, users, u)
