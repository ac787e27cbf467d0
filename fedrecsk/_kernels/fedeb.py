"""FedEB: a user's posterior given the items, what clients send of it, and the server's step.

A user's numbers are phi = (b_u, p_u), and item i is x_i = (1, q_i) to them; rows of `items` have
b_i in front of q_i. Sums run over the user's ratings, each with its weight w.
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._kernels._jit import kernel, part
from fedrecsk._kernels._lapack import solve_positive

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
    reg : (d + 1,), precision of items given their prior (R)
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

    Attributes
    ----------
    rows, weighted, turned : (longest, width), the x_i; w x_i; S x_i
    rest : (longest,), y - X phi
    matrix, square : (width, width), X'WX + ... ; S, zero beyond d + 1
    inverse : (d + 1, d + 1), S
    phi, center, right : (d + 1,); phi; (0, m_u)
    variance : (d + 1,), sum of w V_i
    integers : (5,) int32
    items, implicit : (most, d + 1) and (most, d), what a client sends of its own items
    """

    rows: np.ndarray
    weighted: np.ndarray
    turned: np.ndarray
    rest: np.ndarray
    matrix: np.ndarray
    square: np.ndarray
    inverse: np.ndarray
    phi: np.ndarray
    center: np.ndarray
    right: np.ndarray
    variance: np.ndarray
    integers: np.ndarray
    items: np.ndarray
    implicit: np.ndarray


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
    sound : (n_clients,) bool
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
    sound: np.ndarray
    keeps_broken: bool


def workspace(layout, model):
    """Scratch for any user and client of the layout."""
    width, dtype = model.items.shape[1], model.items.dtype
    longest = np.diff(layout.indptr).max(initial=1)
    most = np.diff(layout.row_indptr).max(initial=1)
    # Matrix products are faster on whole vector registers; the columns beyond d + 1 stay zero.
    padded = -(-width // LANES) * LANES
    rows, weighted, turned = np.zeros((3, longest, padded), dtype)
    matrix, square = np.zeros((2, padded, padded), dtype)
    phi, center, right, variance = np.zeros((4, width), dtype)
    return Workspace(
        rows,
        weighted,
        turned,
        np.zeros(longest, dtype),
        matrix,
        square,
        np.zeros((width, width), dtype),
        phi,
        center,
        right,
        variance,
        np.zeros(5, np.int32),
        np.zeros((most, width), dtype),
        np.zeros((most, model.implicit.shape[1]), dtype),
    )


# ------------------------------------------------------------------------------- clients


@kernel
def update(layout, ratings, active, model, work, users, out):
    """The active clients' uploads, and their users' phi; returns squared error and its weight.

    The four numbers of `scales` are sums over a client's users: ``(phi_0 - m_0)^2 + S_00`` and 1,
    ``alpha_u / alpha E`` and the weight of the ratings.
    """
    loss, mass = 0.0, 0.0
    scales = np.empty(4)
    for c in range(len(active)):
        if not active[c]:
            continue
        first = layout.row_indptr[c]
        n_own = layout.row_indptr[c + 1] - first
        clear(work.items, n_own)
        clear(work.implicit, n_own)
        for k in range(len(scales)):
            scales[k] = 0
        for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
            start, stop = layout.indptr[u], layout.indptr[u + 1]
            alpha, spread, squares, weight = infer(start, stop, layout, ratings, model, work)
            for k in range(users.shape[1]):
                users[u, k] = work.phi[k]
            loss += squares
            mass += weight
            scales[0] += work.phi[0] * work.phi[0] + work.inverse[0, 0]
            scales[1] += 1
            scales[2] += alpha / model.alpha * spread
            scales[3] += weight
            if out.senders[c]:
                add_user(start, stop, first, layout, ratings, model, alpha, work)
        if out.senders[c]:
            send(c, first, n_own, scales, work, out)
    return loss, mass


@kernel
def fit_users(layout, ratings, model, work, users, precisions, covariances):
    """Every user's phi (n_users, d + 1), alpha_u (n_users,) and S (n_users, d + 1, d + 1)."""
    for u in range(len(users)):
        start, stop = layout.indptr[u], layout.indptr[u + 1]
        precisions[u] = infer(start, stop, layout, ratings, model, work)[0]
        for k in range(users.shape[1]):
            users[u, k] = work.phi[k]
            for other in range(users.shape[1]):
                covariances[u, k, other] = work.inverse[k, other]


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


@part
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
    n, width = stop - start, len(work.phi)
    alpha, weight, offset = real(model.alpha), real(0), real(0)
    for k in range(width):
        work.center[k], work.right[k], work.variance[k] = 0, 0, 0
    for a in range(n):
        i, w = layout.row_items[layout.rows[start + a]], ratings.weights[start + a]
        q, x, wx, y = model.items[i], work.rows[a], work.weighted[a], model.implicit[i]
        rest = ratings.values[start + a] - q[0]
        work.rest[a] = rest
        weight += w
        x[0], wx[0] = 1, w
        work.right[0] += w * rest
        for k in range(1, width):
            x[k] = q[k]
            wx[k] = w * q[k]
            work.right[k] += w * rest * q[k]
        for k in range(len(y)):
            work.center[k + 1] += y[k]
        if model.uncertain:
            known = alpha * model.n_ratings[i]
            for k in range(width):
                work.variance[k] += w / (model.reg[k] + known)
    np.dot(work.rows[:n].T, work.weighted[:n], work.matrix)
    share = 1 / np.sqrt(real(n))
    for k in range(width):
        work.center[k] *= share
        work.right[k] = alpha * work.right[k] + model.prior[k] * work.center[k]
        for other in range(width):
            work.matrix[k, other] *= alpha
            work.inverse[k, other] = 0
        work.matrix[k, k] += model.prior[k]
        if k > 0:
            work.matrix[k, k] += alpha * work.variance[k]
        work.inverse[k, k] = 1
    solve_positive(work.matrix, work.inverse)
    trace = real(width)
    for k in range(width):
        total = real(0)
        for other in range(width):
            total += work.inverse[k, other] * work.right[other]
            work.square[k, other] = work.inverse[k, other]
        work.phi[k] = total
        # tr(S G), because S (alpha G + Lambda) = I.
        trace -= model.prior[k] * work.inverse[k, k]
        if k > 0:
            offset += work.variance[k] * total * total
    offset += work.variance[0]
    squares = real(0)
    for a in range(n):
        x, score = work.rows[a], real(0)
        for k in range(width):
            score += x[k] * work.phi[k]
        work.rest[a] -= score
        squares += ratings.weights[start + a] * work.rest[a] * work.rest[a]
    spread = squares
    if model.uncertain:
        spread += trace / alpha + offset
    else:
        for k in range(width):
            for other in range(width):
                work.inverse[k, other], work.square[k, other] = 0, 0
    if model.nu > 0:
        alpha = (real(model.nu) + weight) / (real(model.nu) / alpha + spread)
    return alpha, spread, squares, weight


@part
def add_user(start, stop, first, layout, ratings, model, alpha, work):
    """Add what a user sends to its client's own rows."""
    n, width = stop - start, len(work.phi)
    share = 1 / np.sqrt(work.phi.dtype.type(n))
    np.dot(work.rows[:n], work.square, work.turned[:n])
    for a in range(n):
        row = layout.rows[start + a] - first
        precision = alpha * ratings.weights[start + a]
        error, turned = precision * work.rest[a], work.turned[a]
        item, implicit = work.items[row], work.implicit[row]
        item[0] += error
        for k in range(1, width):
            item[k] += error * work.phi[k] - precision * turned[k]
        for k in range(len(implicit)):
            implicit[k] += share * (work.phi[k + 1] - work.center[k + 1])


@part
def send(c, first, n_own, scales, work, out):
    """Write down what client c sends, unless it is not finite."""
    n_broken = count_broken(work.items, n_own) + count_broken(work.implicit, n_own)
    for k in range(len(scales)):
        n_broken += not abs(scales[k]) < np.inf
    if n_broken > 0:
        out.sound[c] = False
        if not out.keeps_broken:
            return
    for row in range(n_own):
        slot = out.slots[first + row]
        item, implicit = out.items[slot], out.implicit[slot]
        for k in range(len(item)):
            item[k] += work.items[row, k]
        for k in range(len(implicit)):
            implicit[k] += work.implicit[row, k]
    for k in range(len(scales)):
        out.scales[out.scale_slots[c], k] += scales[k]


@part
def clear(matrix, n):
    """Set the first n rows to zero."""
    for row in range(n):
        for k in range(matrix.shape[1]):
            matrix[row, k] = 0


@part
def count_broken(matrix, n):
    """How many numbers of the first n rows are NaN or infinite."""
    n_broken = 0
    for row in range(n):
        for k in range(matrix.shape[1]):
            n_broken += not abs(matrix[row, k]) < np.inf
    return n_broken


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
    center : (n, width), or None for zero
    adam : Adam
    """
    real = values.dtype.type
    for i in range(values.shape[0]):
        for k in range(values.shape[1]):
            x = values[i, k]
            away = x if center is None else x - center[i, k]
            g = real(scale * sums[i, k] - reg[k] * away)
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
    center : (n, width), or None for zero
    reg : (width,)
    mass : (n,), precision that the ratings give to a row
    squares, variances : (width,) float64, receive ``sum_i (x_i - c_i)^2`` and
        ``sum_i 1 / (reg + mass_i)``
    """
    for k in range(len(squares)):
        squares[k], variances[k] = 0, 0
    for i in range(values.shape[0]):
        for k in range(values.shape[1]):
            away = values[i, k] if center is None else values[i, k] - center[i, k]
            squares[k] += away * away
            variances[k] += 1 / (reg[k] + mass[i])
