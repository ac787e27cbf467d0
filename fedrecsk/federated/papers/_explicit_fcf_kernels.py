"""Federated collaborative filtering of ratings: exact users, and gradients of the items.

Vectors have `width` columns. With biases, column 0 of a user is the user's bias, and column 0 of
an item is 1; the item's own bias is left out of the ratings.

What the kernels share:

    indptr : (n_users + 1,), ratings of each user
    ratings : wmf.Ratings, by item: `extra` is the weight w, `pull` is w times the rating
    items : (n_items, width), what the clients have received
    penalties : (n_users, width), on the square of each number of each user's vector
    work : wmf.Workspace
    users : (n_users, width), replaced by the new vectors
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._utils.jit import inline, kernel
from fedrecsk._utils.shared_kernels import add_row, dot_rows, factor, fill_row, solve
from fedrecsk.federated._wmf_kernels import collect, send


class Ratings(NamedTuple):
    """The item of each rating, its value less the level, and its weight."""

    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray


@kernel
def rating_gradients(layout, ratings, values, biases, active, items, penalties, work, users, out):
    """Fit the active clients' users exactly, and send sums of w (score - rating) (1, p) by item.

    Returns the sums of w (score - rating)^2 and of w.
    """
    width, gradient = users.shape[1], work.rows
    loss, weight = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        first = layout.row_indptr[c]
        for row in range(layout.row_indptr[c + 1] - first):
            fill_row(gradient, row, users.dtype.type(0), width)
        for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
            start, stop = layout.indptr[u], layout.indptr[u + 1]
            fit_rater(start, stop, ratings, items, penalties, work, users, u)
            for k in range(start, stop):
                row = layout.rows[k] - first
                error = dot_rows(users, u, items, ratings.chosen[k], width) - values[k]
                step = ratings.extra[k] * error
                loss += step * error
                weight += ratings.extra[k]
                by_bias = gradient[row, 0] + step
                add_row(gradient, row, step, users, u, width)
                if biases:
                    gradient[row, 0] = by_bias
        if out.senders[c]:
            send(c, layout, gradient, work.follow, False, out)
    return loss, weight


@kernel
def fit_raters(indptr, ratings, items, penalties, work, users):
    """Find every user's exact vector given the server's items."""
    for u in range(len(users)):
        fit_rater(indptr[u], indptr[u + 1], ratings, items, penalties, work, users, u)


@inline
def fit_rater(start, stop, ratings, items, penalties, work, users, u):
    """Ridge regression of ratings[start:stop] into ``users[u]``; work.base stays diagonal."""
    real, d = users.dtype.type, users.shape[1]
    fill_row(users, u, real(0), d)
    if start == stop:
        return
    for f in range(d):
        work.base[f, f] = penalties[u, f]
    fill_row(work.target, 0, real(0), d)
    collect(items, ratings, start, stop, work)
    solve(factor(work.matrix), d, work.target, users, u)
