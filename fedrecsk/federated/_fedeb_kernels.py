"""FedEB: a user's posterior given the items, what clients send of it, and the server's step.

A user's numbers are phi = (b_u, p_u), and item i is x_i = (1, q_i) to them; rows of `items` have
b_i in front of q_i. Sums run over the user's ratings, each with its weight w.
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._utils.jit import inline, kernel
from fedrecsk._utils.shared_kernels import (
    add_row,
    copy_row,
    dot_rows,
    fill_row,
    is_finite_row,
    scale_row,
)

# Matrix products are faster on rows of whole vector registers.
LANES = 8


class Ratings(NamedTuple):
    """Ratings less the mean rating, and their weights; both (n_ratings,)."""

    values: np.ndarray
    weights: np.ndarray


class Model(NamedTuple):
    """What a client has received.

    Attributes
    ----------
    items : (n_items, d + 1), b_i and q_i
    implicit : (n_items, d), y_i; (n_items, 0) if there is no implicit part
    n_ratings : (n_items,), total weight of each item's ratings
    reg : (1, d + 1), precision of items given their prior (R)
    prior : (d + 1,), precision of users given theirs (the diagonal of Lambda)
    alpha : precision of a rating, of a typical user
    nu : how many ratings the prior of a user's precision is worth; 0 if all users have alpha
    uncertain : whether users and items have variances (bool); points otherwise
    """

    items: np.ndarray
    implicit: np.ndarray
    n_ratings: np.ndarray
    reg: np.ndarray
    prior: np.ndarray
    alpha: float
    nu: float
    uncertain: bool


class Workspace(NamedTuple):
    """Scratch arrays; what :func:`infer` leaves there of a user is named after its symbol.

    Rows are padded, and have at least d + 2 columns.

    Attributes
    ----------
    rows, weighted, turned : (longest, wide), the x_i and in column d + 1 ``y - x_i . phi``; both
        times w; what a client sends of its items, but for w and alpha
    matrix : (wide, wide), S in the first d + 1 rows and columns
    square : (wide, wide)
    column : (wide,)
    minus : (1, wide)
    phi : (1, d + 1)
    center, told : (1, d) if there is an implicit part, else (1, 0); m_u; what a user sends of y
    variance : (1, d + 1), sum of w V_i
    items, implicit : (most, d + 1) and (most, d), what a client sends of its own items
    scales : (4,) float64
    """

    rows: np.ndarray
    weighted: np.ndarray
    turned: np.ndarray
    matrix: np.ndarray
    square: np.ndarray
    column: np.ndarray
    minus: np.ndarray
    phi: np.ndarray
    center: np.ndarray
    told: np.ndarray
    variance: np.ndarray
    items: np.ndarray
    implicit: np.ndarray
    scales: np.ndarray


class Uploads(NamedTuple):
    """Where uploads go.

    Attributes
    ----------
    senders : (n_clients,) bool
        Of the active clients, those whose uploads are wanted.
    items, implicit : (n, d + 1) and (n, d)
        What a client sends of its own row k is added to row ``slots[k]``: item numbers make sums by
        item, and 0, 1, 2, ... keep clients apart.
    slots : (n_rows,)
    scales : (n, 4)
        Added to row ``scale_slots[c]`` for client c.
    scale_slots : (n_clients,)
    is_finite : (n_clients,) bool
        Becomes False for senders whose upload is not finite.
    keeps_broken : bool
        Whether such an upload is written all the same.
    """

    senders: np.ndarray
    items: np.ndarray
    implicit: np.ndarray
    slots: np.ndarray
    scales: np.ndarray
    scale_slots: np.ndarray
    is_finite: np.ndarray
    keeps_broken: bool


class Posterior(NamedTuple):
    """Users' posteriors.

    Attributes
    ----------
    users : (n_users, d + 1), phi
    precisions : (n_users,), alpha_u; or (0,), if it is not wanted
    covariances : (n_users (d + 1), d + 1), S; or (0, d + 1)
    """

    users: np.ndarray
    precisions: np.ndarray
    covariances: np.ndarray

    @classmethod
    def of(cls, n_users, width, dtype, *, whole=True):
        """Space for it; if not `whole`, for phi only."""
        n = n_users if whole else 0
        return cls(
            np.zeros((n_users, width), dtype),
            np.zeros(n, dtype),
            np.zeros((n * width, width), dtype),
        )


def workspace(layout, model):
    """Scratch for any user and client of the layout."""
    width, dtype, n_implicit = model.items.shape[1], model.items.dtype, model.implicit.shape[1]
    longest = np.diff(layout.indptr).max(initial=1)
    most = np.diff(layout.row_indptr).max(initial=1)
    wide = padded(width + 1)
    rows, weighted, turned = np.zeros((3, longest, wide), dtype)
    matrix, square = np.zeros((2, wide, wide), dtype)
    center, told = np.zeros((2, 1, n_implicit), dtype)
    phi, variance = np.zeros((2, 1, width), dtype)
    return Workspace(
        rows,
        weighted,
        turned,
        matrix,
        square,
        np.zeros(wide, dtype),
        np.zeros((1, wide), dtype),
        phi,
        center,
        told,
        variance,
        np.zeros((most, width), dtype),
        np.zeros((most, n_implicit), dtype),
        np.zeros(4),
    )


def padded(width):
    """Return the width of rows with at least so many columns."""
    return -(-width // LANES) * LANES


# ------------------------------------------------------------------------------- clients


@kernel
def update(layout, ratings, active, model, work, posterior, out):
    """The active clients' uploads, and their users' posteriors; squared error and its weight.

    The four numbers of `scales` are sums over a client's users: ``(phi_0 - m_0)^2 + S_00`` and 1,
    ``alpha_u / alpha E`` and the weight of the ratings.
    """
    loss, mass, scales = 0.0, 0.0, work.scales
    for c in range(len(active)):
        if not active[c]:
            continue
        first = layout.row_indptr[c]
        n_own = layout.row_indptr[c + 1] - first
        clear_rows(work.items, n_own)
        clear_rows(work.implicit, n_own)
        for k in range(len(scales)):
            scales[k] = 0
        for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
            start, stop = layout.indptr[u], layout.indptr[u + 1]
            alpha, spread, squares, weight = infer(start, stop, layout, ratings, model, work)
            keep(u, alpha, work, posterior)
            loss += squares
            mass += weight
            scales[0] += work.phi[0, 0] * work.phi[0, 0] + work.matrix[0, 0]
            scales[1] += 1
            scales[2] += alpha / model.alpha * spread
            scales[3] += weight
            if out.senders[c]:
                add_user(start, stop, first, layout, ratings, model, alpha, work)
        if out.senders[c]:
            send(c, first, n_own, work, out)
    return loss, mass


@inline
def keep(u, alpha, work, posterior):
    """Write down user u's posterior."""
    width = work.phi.shape[1]
    copy_row(posterior.users, u, work.phi, 0, width)
    if len(posterior.precisions) > 0:
        posterior.precisions[u] = alpha
        for k in range(width):
            copy_row(posterior.covariances, u * width + k, work.matrix, k, width)


@kernel
def variances(users, items, user_factors, covariances, noise, item_factors, item_variance, out):
    """Variances of ratings: noise, what is unknown of the users, and of the items."""
    for n in range(len(out)):
        u, i = users[n], items[n]
        p, q, v = user_factors[u], item_factors[i], item_variance[i]
        total = np.float64(noise[u]) * noise[u] + covariances[u, 0, 0] + v[0]
        for k in range(len(p)):
            row = covariances[u, k + 1]
            turned = 2 * row[0]
            for other in range(len(p)):
                turned += row[other + 1] * q[other]
            total += q[k] * turned + v[k + 1] * (p[k] * p[k] + row[k + 1])
        out[n] = total


@inline
def infer(start, stop, layout, ratings, model, work):
    """The posterior of a user with these ratings, left in `work`.

    Returns
    -------
    alpha_u : the user's precision of a rating
    spread : expected sum of squared errors (E)
    squares : sum of w (y - x_i.phi)^2
    weight : sum of w
    """
    real = work.phi.dtype.type
    n, width, one = stop - start, work.phi.shape[1], real(1)
    wide, n_implicit = work.matrix.shape[1], work.center.shape[1]
    alpha, weight = real(model.alpha), real(0)
    clear_rows(work.center, 1)
    clear_rows(work.variance, 1)
    for a in range(n):
        i, w = layout.row_items[layout.rows[start + a]], ratings.weights[start + a]
        rest, precision = ratings.values[start + a] - model.items[i, 0], alpha * w
        copy_row(work.rows, a, model.items, i, width)
        scale_row(work.weighted, a, precision, model.items, i, width)
        work.rows[a, 0], work.weighted[a, 0] = one, precision
        work.rows[a, width], work.weighted[a, width] = rest, precision * rest
        weight += w
        add_row(work.center, 0, one, model.implicit, i, n_implicit)
        if model.uncertain:
            known = alpha * model.n_ratings[i]
            for k in range(width):
                work.variance[0, k] += w / (model.reg[0, k] + known)
    np.dot(work.rows[:n].T, work.weighted[:n], work.matrix)
    scale_row(work.center, 0, one / np.sqrt(real(n)), work.center, 0, n_implicit)
    for k in range(width):
        work.matrix[k, k] += model.prior[k]
        if k > 0:
            work.matrix[k, k] += alpha * work.variance[0, k]
    for k in range(n_implicit):
        work.matrix[k + 1, width] += model.prior[k + 1] * work.center[0, k]
    invert_positive(work.matrix, width, work.column)
    trace, offset = real(width), work.variance[0, 0]
    for k in range(width):
        # tr(S G), because S (alpha G + Lambda) = I.
        trace -= model.prior[k] * work.matrix[k, k]
        if k > 0:
            offset += work.variance[0, k] * work.matrix[k, width] * work.matrix[k, width]
    for k in range(width):
        work.phi[0, k], work.minus[0, k] = work.matrix[k, width], -work.matrix[k, width]
    work.minus[0, width] = one
    squares = real(0)
    for a in range(n):
        rest = dot_rows(work.minus, 0, work.rows, a, wide)
        work.rows[a, width] = rest
        squares += ratings.weights[start + a] * rest * rest
    spread = squares
    if model.uncertain:
        spread += trace / alpha + offset
    else:
        clear_rows(work.matrix, width)
    if model.nu > 0:
        alpha = (real(model.nu) + weight) / (real(model.nu) / alpha + spread)
    return alpha, spread, squares, weight


@inline
def invert_positive(matrix, n, column):
    """Invert the first n rows and columns in place; columns beyond become its products with them.

    Gauss and Jordan's elimination needs no pivots where a matrix is positive definite. If it is
    not, all numbers become NaN.
    """
    one, width = matrix.dtype.type(1), matrix.shape[1]
    for k in range(n):
        pivot = matrix[k, k]
        if not pivot > 0:
            pivot *= np.nan
        for i in range(n):
            column[i], matrix[i, k] = -matrix[i, k], 0
        column[k], matrix[k, k] = 0, 1
        scale_row(matrix, k, one / pivot, matrix, k, width)
        for i in range(n):
            add_row(matrix, i, column[i], matrix, k, width)


@inline
def clear_rows(matrix, n):
    """Make the first n rows zero."""
    for row in range(n):
        fill_row(matrix, row, matrix.dtype.type(0), matrix.shape[1])


@inline
def add_user(start, stop, first, layout, ratings, model, alpha, work):
    """Add what a user sends to its client's own rows."""
    n, width, one = stop - start, work.phi.shape[1], work.phi.dtype.type(1)
    n_implicit = work.center.shape[1]
    # Products of the rows with it are e phi - S x, and e in front, where e is y - x . phi.
    for k in range(1, width):
        for other in range(width):
            work.square[other, k] = -work.matrix[other, k]
        work.square[width, k] = work.phi[0, k]
    work.square[width, 0] = one
    np.dot(work.rows[:n], work.square, work.turned[:n])
    share = one / np.sqrt(work.phi.dtype.type(n))
    for k in range(n_implicit):
        work.told[0, k] = share * (work.phi[0, k + 1] - work.center[0, k])
    for a in range(n):
        row = layout.rows[start + a] - first
        add_row(work.items, row, alpha * ratings.weights[start + a], work.turned, a, width)
        add_row(work.implicit, row, one, work.told, 0, n_implicit)


@inline
def send(c, first, n_own, work, out):
    """Write down what client c sends, unless it is not finite."""
    n_broken = 0
    for row in range(n_own):
        n_broken += not is_finite_row(work.items, row, work.items.shape[1])
        n_broken += not is_finite_row(work.implicit, row, work.implicit.shape[1])
    for k in range(len(work.scales)):
        n_broken += not abs(work.scales[k]) < np.inf
    if n_broken > 0:
        out.is_finite[c] = False
        if not out.keeps_broken:
            return
    one = work.items.dtype.type(1)
    for row in range(n_own):
        slot = out.slots[first + row]
        add_row(out.items, slot, one, work.items, row, work.items.shape[1])
        add_row(out.implicit, slot, one, work.implicit, row, work.implicit.shape[1])
    for k in range(len(work.scales)):
        out.scales[out.scale_slots[c], k] += work.scales[k]


# -------------------------------------------------------------------------------- server


class Adam(NamedTuple):
    """One bias-corrected step: ``rate (first / debias_1) / (sqrt(second / debias_2) + epsilon)``.

    Attributes
    ----------
    rate, beta_1, beta_2, epsilon, debias_1, debias_2 : float
    """

    rate: float
    beta_1: float
    beta_2: float
    epsilon: float
    debias_1: float
    debias_2: float


@kernel
def ascend(values, sums, scale, reg, center, first, second, adam):
    """One step of Adam upwards, in place, along ``scale sums - reg (values - center)``.

    Parameters
    ----------
    values, first, second : (n, width), replaced
    sums : (n, width), float64
    scale : float
    reg : (width,)
    center : (n, width)
    adam : Adam
    """
    real = values.dtype.type
    for i in range(values.shape[0]):
        for k in range(values.shape[1]):
            x = values[i, k]
            g = real(scale * sums[i, k] - reg[k] * (x - center[i, k]))
            m = real(adam.beta_1) * first[i, k] + real(1 - adam.beta_1) * g
            v = real(adam.beta_2) * second[i, k] + real(1 - adam.beta_2) * g * g
            first[i, k], second[i, k] = m, v
            size = np.sqrt(v / real(adam.debias_2)) + real(adam.epsilon)
            values[i, k] = x + real(adam.rate / adam.debias_1) * m / size


@kernel
def spread(values, center, reg, mass, squares, variances):
    """Squared distances of all rows from the center, and their variances, summed by column.

    Parameters
    ----------
    values : (n, width)
    center : (n, width)
    reg : (width,)
    mass : (n,), precision that the ratings give to a row
    squares, variances : (width,) float64, receive ``sum_i (x_i - c_i)^2`` and
        ``sum_i 1 / (reg + mass_i)``
    """
    for k in range(len(squares)):
        squares[k], variances[k] = 0, 0
    for i in range(values.shape[0]):
        for k in range(values.shape[1]):
            away = values[i, k] - center[i, k]
            squares[k] += away * away
            variances[k] += 1 / (reg[k] + mass[i])
