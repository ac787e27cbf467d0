"""FedEB: a user's posterior given the items, what clients send of it, and the server's step.

A user's numbers are phi = (b_u, p_u, s_u), and item i is x_i = (1, q_i, z_i) to them; rows of
`items` have b_i in front of q_i and z_i, which are d numbers together. Only the first `n_sent`
columns, b_i and q_i, get gradients. Sums run over the user's ratings, each with its
weight w. PrivFedEB's kernels use `infer` too.

Loops are written out, and `infer` is called at one level, because numba compiles a small function
anew for each type of its arguments, and again in every function that it becomes part of.
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._utils.jit import inline, inline_early, kernel
from fedrecsk._utils.shared_kernels import add_row, all_finite

# Matrix products are faster on rows of whole vector registers.
LANES = 8


class Ratings(NamedTuple):
    """Ratings less the mean rating, and their weights; both (n_ratings,)."""

    values: np.ndarray
    weights: np.ndarray


class Model(NamedTuple):
    """What a client has received."""

    items: np.ndarray  # (n_items, d + 1), b_i, q_i and z_i
    # (n_items, at most d), y_i; (n_items, 0) if there is no implicit part
    implicit: np.ndarray
    variances: np.ndarray  # (n_items, d + 1), V_i; (0, d + 1) if items have none
    prior: np.ndarray  # (d + 1,), precision of users given theirs (the diagonal of Lambda)
    alpha: float  # precision of a rating, of a typical user
    # how many ratings the prior of a user's precision is worth; 0 if all users have alpha
    nu: float


class Workspace(NamedTuple):
    """Scratch arrays, with padded rows of at least d + 2 columns."""

    rows: np.ndarray  # (longest, wide), the x_i and in column d + 1 ``y - x_i . phi``
    # (longest, wide), first the rows times alpha w, then the products of :func:`multiply`
    products: np.ndarray
    matrix: np.ndarray  # (wide, wide), S in the first d + 1 columns and phi in the next
    column: np.ndarray  # (wide,)
    center: np.ndarray  # m_u, as wide as y_i
    variance: np.ndarray  # (d + 1,), sum of w V_i
    # items, implicit: (most, n_sent) and as `center`, what a client sends of its own items
    items: np.ndarray
    implicit: np.ndarray
    scales: np.ndarray  # (4,) float64


class Uploads(NamedTuple):
    """Where uploads go."""

    senders: np.ndarray  # (n_clients,) bool. Of the active clients, those whose uploads are wanted.
    # items, implicit: (n, n_sent) and as wide as y_i. What a client sends of its own row k is added
    # to row ``slots[k]``: item numbers make sums by item, and 0, 1, 2, ... keep clients apart.
    items: np.ndarray
    implicit: np.ndarray
    slots: np.ndarray  # (n_rows,)
    scales: np.ndarray  # (n, 4). Client c's are added to row ``c % n``.
    # (n_clients,) bool. Becomes False for senders whose upload is not finite.
    is_finite: np.ndarray
    keeps_broken: bool  # Whether such an upload is written all the same.


class Posterior(NamedTuple):
    """Users' posteriors."""

    users: np.ndarray  # (n_users, d + 1), phi
    precisions: np.ndarray  # (n_users,), alpha_u; or (0,), if it is not wanted
    covariances: np.ndarray  # (n_users, k, k), S of the first k numbers; or (0, k, k)


def workspace(layout, model, n_sent):
    """Return scratch arrays for any user and client, who sends `n_sent` columns of items."""
    width, dtype, n_implicit = model.items.shape[1], model.items.dtype, model.implicit.shape[1]
    longest = np.diff(layout.indptr).max(initial=1)
    most = np.diff(layout.row_indptr).max(initial=1)
    wide = -(-(width + 1) // LANES) * LANES
    return Workspace(
        rows=np.zeros((longest, wide), dtype),
        products=np.zeros((longest, wide), dtype),
        matrix=np.zeros((wide, wide), dtype),
        column=np.zeros(wide, dtype),
        center=np.zeros(n_implicit, dtype),
        variance=np.zeros(width, dtype),
        items=np.zeros((most, n_sent), dtype),
        implicit=np.zeros((most, n_implicit), dtype),
        scales=np.zeros(4),
    )


# ------------------------------------------------------------------------------- clients


@kernel
def update(layout, ratings, active, model, work, posterior, out):
    """Write the active clients' uploads and posteriors; return squared error and its weight.

    The four numbers of `scales` are sums over a client's users: ``(phi_0 - m_0)^2 + S_00`` and 1,
    ``alpha_u / alpha E`` and the weight of the ratings.
    """
    matrix, scales = work.matrix, work.scales
    width, total, total_weight = len(model.prior), 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        first, sends = layout.row_indptr[c], out.senders[c]
        n_own = layout.row_indptr[c + 1] - first
        clear(work.items, n_own)
        clear(work.implicit, n_own)
        scales[:] = 0
        for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
            start, stop = layout.indptr[u], layout.indptr[u + 1]
            alpha, spread, squares, weight = infer(start, stop, layout, ratings, model, work)
            for k in range(width):
                posterior.users[u, k] = matrix[k, width]
            if len(posterior.precisions) > 0:
                posterior.precisions[u] = alpha
                n_first = posterior.covariances.shape[1]
                for k in range(n_first):
                    for other in range(n_first):
                        posterior.covariances[u, k, other] = matrix[k, other]
            total += squares
            total_weight += weight
            scales[0] += matrix[0, width] * matrix[0, width] + matrix[0, 0]
            scales[1] += 1
            scales[2] += alpha / model.alpha * spread
            scales[3] += weight
            if sends:
                multiply(stop - start, width, work.matrix.dtype.type(1), work)
                add_user(start, stop, first, layout, ratings, width, alpha, work)
        if sends:
            send(c, first, n_own, work, out)
    return total, total_weight


@inline
def infer(start, stop, layout, ratings, model, work):
    """Leave a user's posterior in `work`; return alpha_u, E, sums of squared errors and weights."""
    rows, products, matrix, column = work.rows, work.products, work.matrix, work.column
    center, variance, items, prior = work.center, work.variance, model.items, model.prior
    real = rows.dtype.type
    n, width, wide, n_implicit = stop - start, len(prior), len(column), len(center)
    alpha, weight, one = real(model.alpha), real(0), real(1)
    for k in range(n_implicit):
        center[k] = 0
    for k in range(width):
        variance[k] = 0
    for a in range(n):
        i, w = np.int64(layout.row_items[layout.rows[start + a]]), ratings.weights[start + a]
        rest, precision = ratings.values[start + a] - items[i, 0], alpha * w
        for k in range(width):
            rows[a, k], products[a, k] = items[i, k], precision * items[i, k]
        rows[a, 0], products[a, 0] = one, precision
        rows[a, width], products[a, width] = rest, precision * rest
        weight += w
        for k in range(n_implicit):
            center[k] += model.implicit[i, k]
        if len(model.variances) > 0:
            for k in range(width):
                variance[k] += w * model.variances[i, k]
    np.dot(rows[:n].T, products[:n], matrix)
    for k in range(n_implicit):
        center[k] *= one / np.sqrt(real(n))
        matrix[k + 1, width] += prior[k + 1] * center[k]
    matrix[0, 0] += prior[0]
    for k in range(1, width):
        matrix[k, k] += prior[k] + alpha * variance[k]
    # Gauss and Jordan's elimination makes it S, and column d + 1 phi. It needs no pivots where a
    # matrix is positive definite; if it is not, all numbers become NaN.
    for p in range(width):
        pivot = matrix[p, p]
        if not pivot > 0:
            pivot *= np.nan
        for k in range(width):
            column[k], matrix[k, p] = -matrix[k, p], 0
        column[p], matrix[p, p] = 0, 1
        share = one / pivot
        for k in range(wide):
            matrix[p, k] *= share
        for other in range(width):
            # By a function, because LLVM does not vectorise a loop over two rows of one array.
            add_row(matrix, other, column[other], matrix, p, wide)
    trace, offset = real(width), variance[0]
    for k in range(width):
        # tr(S G), because S (alpha G + Lambda) = I.
        trace -= prior[k] * matrix[k, k]
        if k > 0:
            offset += variance[k] * matrix[k, width] * matrix[k, width]
    for k in range(width):
        column[k] = -matrix[k, width]
    column[width] = one
    squares = real(0)
    for a in range(n):
        rest = real(0)
        for k in range(wide):
            rest += column[k] * rows[a, k]
        rows[a, width] = rest
        squares += ratings.weights[start + a] * rest * rest
    spread = squares + trace / alpha + offset
    if model.nu > 0:
        alpha = (real(model.nu) + weight) / (real(model.nu) / alpha + spread)
    return alpha, spread, squares, weight


@inline_early
def multiply(n, width, emphasis, work):
    """Let `products` be e and ``emphasis (e phi - S x)``, with e = y - x . phi; S is lost."""
    matrix = work.matrix
    for other in range(width):
        matrix[other, 0] = 0
        for k in range(1, width):
            matrix[other, k] *= -emphasis
    for k in range(1, width):
        matrix[width, k] = emphasis * matrix[k, width]
    matrix[width, 0] = 1
    np.dot(work.rows[:n], matrix, work.products[:n])


@inline_early
def add_user(start, stop, first, layout, ratings, width, alpha, work):
    """Add what a user sends to its client's own rows."""
    n, n_sent, n_implicit = stop - start, work.items.shape[1], len(work.center)
    one, center = work.matrix.dtype.type(1), work.center
    share = one / np.sqrt(work.matrix.dtype.type(n))
    for k in range(n_implicit):
        center[k] = share * (work.matrix[k + 1, width] - center[k])
    for a in range(n):
        row, size = np.int64(layout.rows[start + a]) - first, alpha * ratings.weights[start + a]
        for k in range(n_sent):
            work.items[row, k] += size * work.products[a, k]
        for k in range(n_implicit):
            work.implicit[row, k] += center[k]


@inline
def clear(matrix, n):
    """Make the first n rows zero."""
    for row in range(n):
        for k in range(matrix.shape[1]):
            matrix[row, k] = 0


@inline_early
def send(c, first, n_own, work, out):
    """Write down what client c sends, unless it is not finite."""
    scales_are_finite = abs(work.scales[0] + work.scales[2] + work.scales[3]) < np.inf
    rows_are_finite = all_finite(work.items, 0, n_own) and all_finite(work.implicit, 0, n_own)
    if not (rows_are_finite and scales_are_finite):
        out.is_finite[c] = False
        if not out.keeps_broken:
            return
    for row in range(n_own):
        slot = np.int64(out.slots[first + row])
        for k in range(work.items.shape[1]):
            out.items[slot, k] += work.items[row, k]
        for k in range(work.implicit.shape[1]):
            out.implicit[slot, k] += work.implicit[row, k]
    for k in range(len(work.scales)):
        out.scales[c % len(out.scales), k] += work.scales[k]


@kernel
def variances(users, items, user_factors, covariances, noise, item_factors, item_variance, out):
    """Return the variances of ratings: noise, what is unknown of the users, and of the items."""
    n_first = covariances.shape[1] - 1
    for n in range(len(out)):
        u, i = users[n], items[n]
        p, q, v = user_factors[u], item_factors[i], item_variance[i]
        total = np.float64(noise[u]) * noise[u] + covariances[u, 0, 0] + v[0]
        for k in range(n_first):
            row = covariances[u, k + 1]
            turned = 2 * row[0]
            for other in range(n_first):
                turned += row[other + 1] * q[other]
            total += q[k] * turned + v[k + 1] * (p[k] * p[k] + row[k + 1])
        out[n] = total
