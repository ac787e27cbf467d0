"""PrivFedEB: what clients send, scaled so that no client sends more than a vector of norm 1.

Everything is in float64. Ratings are counted from the center of the scale, in units.
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._utils.jit import inline, kernel
from fedrecsk._utils.shared_kernels import add_row, copy_row, dot_rows, scale_row
from fedrecsk.federated._fedeb_kernels import clear_rows, invert_positive, padded


class Model(NamedTuple):
    """What a client has received, and the constants of the model.

    Attributes
    ----------
    items : (n_items, d + 1), b_i and q_i
    row_weights : (n_items,), a_i
    prior : (d + 1,), precision of users (the diagonal of Lambda)
    alpha : precision of a rating
    emphasis : factor of the gradient in q_i (gamma)
    floor : least mean square of a user's row that its upload is divided by
    """

    items: np.ndarray
    row_weights: np.ndarray
    prior: np.ndarray
    alpha: float
    emphasis: float
    floor: float


class Workspace(NamedTuple):
    """Scratch arrays, with padded rows of at least d + 2 columns.

    Attributes
    ----------
    rows, weighted, turned : (longest, wide), the x_i and in column d + 1 the error; both times
        alpha w; a user's gradient
    matrix : (wide, wide), S in the first d + 1 rows and columns
    square : (wide, wide)
    column : (wide,)
    minus : (1, wide)
    own : (most, width), what a client sends of its own items
    """

    rows: np.ndarray
    weighted: np.ndarray
    turned: np.ndarray
    matrix: np.ndarray
    square: np.ndarray
    column: np.ndarray
    minus: np.ndarray
    own: np.ndarray


class Uploads(NamedTuple):
    """Where uploads go.

    Attributes
    ----------
    senders : (n_clients,) bool
        Of the active clients, those whose uploads are wanted.
    items : (n, width)
        What a client sends of its own row k is added to row ``slots[k]``: item numbers make sums by
        item, and 0, 1, 2, ... keep clients apart.
    slots : (n_rows,)
    is_finite : (n_clients,) bool
        Becomes False for senders whose upload is not finite.
    keeps_broken : bool
        Whether such an upload is written all the same.
    """

    senders: np.ndarray
    items: np.ndarray
    slots: np.ndarray
    is_finite: np.ndarray
    keeps_broken: bool


def workspace(layout, width):
    """Scratch for any user and client of the layout, and vectors of `width` numbers."""
    longest, wide = np.diff(layout.indptr).max(initial=1), padded(width + 1)
    rows, weighted, turned = np.zeros((3, longest, wide))
    matrix, square = np.zeros((2, wide, wide))
    most = np.diff(layout.row_indptr).max(initial=1)
    own = np.zeros((most, width))
    return Workspace(
        rows, weighted, turned, matrix, square, np.zeros(wide), np.zeros((1, wide)), own
    )


# -------------------------------------------------------------------------------- set-up


@kernel
def first(layout, ratings, shrinkage, largest, share, work, out, squares):
    """All clients' first uploads: counts and residuals by item, of norm at most `share`.

    Parameters
    ----------
    shrinkage : how many ratings at the center a user's mean is shrunk by
    largest : bound of a residual
    squares : (n,), client c's sum of squared counts is added to entry ``c % n``
    """
    for c in range(len(out.senders)):
        start = layout.row_indptr[c]
        n_own, total = layout.row_indptr[c + 1] - start, 0.0
        clear_rows(work.own, n_own)
        for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
            total += add_first(u, start, layout, ratings, shrinkage, largest, work.own)
        scale = 1 / max(1.0, np.sqrt(norm_squared(work.own, n_own)))
        squares[c % len(squares)] += scale * scale * total
        send(c, share * scale, layout, work.own, out)


@inline
def add_first(u, start, layout, ratings, shrinkage, largest, own):
    """Add a user's counts and residuals, of norm 1, to its client's rows; its squared counts."""
    total, mass = 0.0, shrinkage
    for t in range(layout.indptr[u], layout.indptr[u + 1]):
        total += ratings.weights[t] * ratings.values[t]
        mass += ratings.weights[t]
    mean, counts, squares = total / mass, 0.0, 0.0
    for t in range(layout.indptr[u], layout.indptr[u + 1]):
        w, residual = ratings.weights[t], min(max(ratings.values[t] - mean, -largest), largest)
        counts += w * w
        squares += w * w * (1 + residual * residual)
    scale = 1 / np.sqrt(squares)
    for t in range(layout.indptr[u], layout.indptr[u + 1]):
        w, residual = ratings.weights[t], min(max(ratings.values[t] - mean, -largest), largest)
        row = layout.rows[t] - start
        own[row, 0] += scale * w
        own[row, 1] += scale * w * residual
    return scale * scale * counts


# ---------------------------------------------------------------------------- each round


@kernel
def update(layout, ratings, active, model, work, users, out):
    """The active clients' uploads, and their users' vectors; squared error and its weight."""
    loss, mass = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        start = layout.row_indptr[c]
        n_own = layout.row_indptr[c + 1] - start
        clear_rows(work.own, n_own)
        for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
            squares, weight = infer(u, layout, ratings, model, work)
            loss += squares
            mass += weight
            for k in range(users.shape[1]):
                users[u, k] = work.matrix[k, users.shape[1]]
            if out.senders[c]:
                add_user(u, start, layout, ratings, model, work)
        if out.senders[c]:
            norm = np.sqrt(norm_squared(work.own, n_own))
            send(c, 1 / max(1.0, norm) if norm < np.inf else norm, layout, work.own, out)
    return loss, mass


@inline
def infer(u, layout, ratings, model, work):
    """The posterior of user u: S is left in `matrix`, its mean in the column after that.

    Returns
    -------
    squares : sum of w (y - x_i . phi)^2
    weight : sum of w
    """
    start, stop = layout.indptr[u], layout.indptr[u + 1]
    width, wide = model.items.shape[1], work.matrix.shape[1]
    for t in range(start, stop):
        a, i = t - start, layout.row_items[layout.rows[t]]
        rest, precision = ratings.values[t] - model.items[i, 0], model.alpha * ratings.weights[t]
        copy_row(work.rows, a, model.items, i, width)
        scale_row(work.weighted, a, precision, model.items, i, width)
        work.rows[a, 0], work.weighted[a, 0] = 1.0, precision
        work.rows[a, width], work.weighted[a, width] = rest, precision * rest
    n = stop - start
    np.dot(work.rows[:n].T, work.weighted[:n], work.matrix)
    for k in range(width):
        work.matrix[k, k] += model.prior[k]
    invert_positive(work.matrix, width, work.column)
    for k in range(width):
        work.minus[0, k] = -work.matrix[k, width]
    work.minus[0, width] = 1.0
    squares, weight = 0.0, 0.0
    for t in range(start, stop):
        error = dot_rows(work.minus, 0, work.rows, t - start, wide)
        work.rows[t - start, width] = error
        squares += ratings.weights[t] * error * error
        weight += ratings.weights[t]
    return squares, weight


@inline
def add_user(u, first_row, layout, ratings, model, work):
    """Add user u's gradient, of norm at most 1, to its client's own rows."""
    start, stop, width = layout.indptr[u], layout.indptr[u + 1], model.items.shape[1]
    # Products of the rows with it are gamma (e p - S x), and e in front.
    for k in range(1, width):
        for other in range(width):
            work.square[other, k] = -model.emphasis * work.matrix[other, k]
        work.square[width, k] = model.emphasis * work.matrix[k, width]
    work.square[width, 0] = 1.0
    n = stop - start
    np.dot(work.rows[:n], work.square, work.turned[:n])
    norm, least = 0.0, 0.0
    for t in range(start, stop):
        size = ratings.weights[t] * model.row_weights[layout.row_items[layout.rows[t]]]
        norm += size * size * dot_rows(work.turned, t - start, work.turned, t - start, width)
        least += size * size * model.floor
    scale = 1 / np.sqrt(max(norm, least)) if norm < np.inf else norm
    for t in range(start, stop):
        size = ratings.weights[t] * model.row_weights[layout.row_items[layout.rows[t]]]
        add_row(work.own, layout.rows[t] - first_row, scale * size, work.turned, t - start, width)


@inline
def norm_squared(matrix, n):
    """Sum of the squares of the first n rows."""
    total = 0.0
    for row in range(n):
        total += dot_rows(matrix, row, matrix, row, matrix.shape[1])
    return total


@inline
def send(c, scale, layout, own, out):
    """Write down `scale` times what client c has in its own rows, unless it is not finite."""
    if not scale < np.inf:
        out.is_finite[c] = False
        if not out.keeps_broken:
            return
    start = layout.row_indptr[c]
    for row in range(layout.row_indptr[c + 1] - start):
        add_row(out.items, out.slots[start + row], scale, own, row, own.shape[1])
