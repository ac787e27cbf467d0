"""Weighted matrix factorisation on clients: the steps of LocALS, LocSGD and GlobSGD.

What the kernels share:

    layout : shared.Layout, the users and items of each client
    feedback : Feedback, how much each rating says
    active : (n_clients,) bool, clients that update
    broadcast : Broadcast, what they have received
    problem : Problem, the weights of the objective
    work : Workspace, from :func:`workspace`
    users : (n_users, d), replaced by the new vectors of the active clients' users
    out : Uploads, receives what clients send, added up or client by client

An upload is a row for each item the client holds, and a matrix F. In the full form F makes the
client's version F q of every item it does not hold, and a row is what the client's own version
of an item differs from that; otherwise F is not sent and a row is the change of the item.

The kernels of a round return the loss of the active clients' users when first fitted, and its
mass (see :func:`fit_user`).
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._utils.jit import inline, kernel
from fedrecsk._utils.shared_kernels import (
    add_row,
    copy_row,
    dot_rows,
    factor,
    fill_row,
    is_finite_row,
    scale_row,
    solve,
)


class Feedback(NamedTuple):
    """Confidence c and preference r of each rating; pairs without one have c = 1 and r = 0.

    Attributes
    ----------
    extra : (n_ratings,), c - 1
    pull : (n_ratings,), c r
    """

    extra: np.ndarray
    pull: np.ndarray


class ByRow(NamedTuple):
    """The ratings once more, ordered by held row.

    Attributes
    ----------
    sizes : (n_rows,), ratings of each held row
    users, extra, pull : (n_ratings,)
    """

    sizes: np.ndarray
    users: np.ndarray
    extra: np.ndarray
    pull: np.ndarray


class Broadcast(NamedTuple):
    """The server's item vectors (n_items, d), and the sum of q q' over all of them (d, d)."""

    items: np.ndarray
    gram: np.ndarray


class Problem(NamedTuple):
    """The weights of a client's objective.

    Attributes
    ----------
    reg_user, reg_item : penalty on its users' vectors, and on its own item vectors
    mu : tie between its item vectors and the server's
    full : whether items that it does not hold are part of it (bool)
    """

    reg_user: float
    reg_item: float
    mu: float
    full: bool


class Workspace(NamedTuple):
    """Scratch arrays.

    Attributes
    ----------
    left, right : (longest, d), the vectors of a user's items; the same times their weights
    multiples : (longest,)
    matrix, start, base, square, follow, outside, half : (d, d)
    target : (1, d), the right-hand side of a user's equations
    residuals : (3, d), residual, direction and image of conjugate gradients
    before, after : (most, d), a client's own items
    dense : Feedback of a user on all of a client's items, (most,); zero between uses
    """

    left: np.ndarray
    right: np.ndarray
    multiples: np.ndarray
    matrix: np.ndarray
    start: np.ndarray
    base: np.ndarray
    square: np.ndarray
    target: np.ndarray
    follow: np.ndarray
    outside: np.ndarray
    half: np.ndarray
    residuals: np.ndarray
    before: np.ndarray
    after: np.ndarray
    dense: Feedback


class Uploads(NamedTuple):
    """Where uploads go.

    Attributes
    ----------
    senders : (n_clients,) bool
        Of the active clients, those whose uploads are wanted.
    rows : (n, d)
        The row that a client sends for held row k is added to ``rows[slots[k]]``: item numbers
        make sums by item, and 0, 1, 2, ... keep clients apart.
    slots : (n_rows,)
    squares : (n, d, d)
        Client c's matrix F is added to ``squares[square_slots[c]]``.
    square_slots : (n_clients,)
    is_finite : (n_clients,) bool
        Becomes False for senders whose upload is not finite.
    keeps_broken : bool
        Whether such an upload is written all the same.
    """

    senders: np.ndarray
    rows: np.ndarray
    slots: np.ndarray
    squares: np.ndarray
    square_slots: np.ndarray
    is_finite: np.ndarray
    keeps_broken: bool


def workspace(layout, users, row_sizes=None):
    """Scratch for any user, held row and client of the layout, with `users` (n_users, d)."""
    d, dtype = users.shape[1], users.dtype
    longest = np.diff(layout.indptr).max(initial=1)
    if row_sizes is not None:
        longest = row_sizes.max(initial=longest)
    most = np.diff(layout.row_indptr).max(initial=0)
    matrix, start, base, square, follow, outside, half = np.zeros((7, d, d), dtype)
    return Workspace(
        *np.zeros((2, longest, d), dtype),
        np.zeros(longest, dtype),
        matrix,
        start,
        base,
        square,
        np.zeros((1, d), dtype),
        follow,
        outside,
        half,
        np.zeros((3, d), dtype),
        *np.empty((2, most, d), dtype),
        Feedback(*np.zeros((2, most), dtype)),
    )


# ------------------------------------------------------------------------------- rounds


@kernel
def local_als_of_one(layout, feedback, active, broadcast, problem, n_steps, work, users, out):
    """:func:`local_als` of clients with one user, in the full form and one epoch.

    All that such a client sends follows from its user's vector, so that its own items need not
    be written down.
    """
    real = users.dtype.type
    reg_user, mu = real(problem.reg_user), real(problem.mu)
    tie = real(problem.reg_item) + mu
    with_diagonal(broadcast.gram, reg_user, work.start)
    loss, mass = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        u, first = layout.client_indptr[c], layout.row_indptr[c]
        share = fit_user(
            broadcast.items, layout.row_items, first, np.int64(0), feedback, layout.indptr[u],
            layout.indptr[u + 1], work.start, reg_user, n_steps, work, users, u,
        )  # fmt: skip
        loss += share[0]
        mass += share[1]
        if out.senders[c]:
            send_of_one(c, layout, feedback, users, tie, mu / tie, work, out)
    return loss, mass


@kernel
def local_als(
    layout, feedback, by_row, active, broadcast, problem, n_epochs, n_steps, work, users, out
):
    """LocALS: each client alternates between its users and its items, which it finds exactly.

    `n_steps` is as in :func:`fit_user`.
    """
    real = users.dtype.type
    reg_user, mu = real(problem.reg_user), real(problem.mu)
    tie = real(problem.reg_item) + mu
    with_diagonal(broadcast.gram, reg_user, work.start)
    loss, mass = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        n = gather(c, layout, broadcast.items, work.before)
        gather(c, layout, broadcast.items, work.after)
        base = work.start
        for epoch in range(n_epochs):
            if epoch > 0:
                base = base_of(broadcast.gram, n, problem.full, reg_user, work)
            share = fit_client(
                c, layout, feedback, work.after, base, reg_user, n_steps, work, users
            )
            if epoch == 0:
                loss += share[0]
                mass += share[1]
            if layout.client_indptr[c + 1] - layout.client_indptr[c] == 1:
                items_of_one(c, n, layout, feedback, users, tie, mu / tie, work)
            else:
                items_of_many(c, n, layout, by_row, users, tie, mu, work)
        if out.senders[c]:
            subtract(n, problem.full, work)
            send(c, layout, work.after, work.follow, problem.full, out)
    return loss, mass


@kernel
def local_sgd(
    layout, feedback, active, broadcast, problem, n_epochs, n_sweeps, rate, work, users, out
):
    """LocSGD: each client fits its users exactly and its items by sweeps of gradient steps."""
    real = users.dtype.type
    reg_user = real(problem.reg_user)
    with_diagonal(broadcast.gram, reg_user, work.start)
    loss, mass = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        n = gather(c, layout, broadcast.items, work.before)
        gather(c, layout, broadcast.items, work.after)
        identity(users.shape[1], real(1), work.follow)
        base = work.start
        for epoch in range(n_epochs):
            if epoch > 0:
                base = base_of(broadcast.gram, n, problem.full, reg_user, work)
            share = fit_client(c, layout, feedback, work.after, base, reg_user, None, work, users)
            if epoch == 0:
                loss += share[0]
                mass += share[1]
            for _ in range(n_sweeps):
                sweep(c, n, layout, feedback, problem, real(rate), users, work)
        if out.senders[c]:
            subtract(n, problem.full, work)
            send(c, layout, work.after, work.follow, problem.full, out)
    return loss, mass


@kernel
def item_gradients(layout, feedback, active, broadcast, problem, work, users, out):
    """GlobSGD: each client fits its users exactly and makes the items' half gradients.

    In the full form, F is P'P and a row is what the gradient differs from F q.
    """
    real, d = users.dtype.type, users.shape[1]
    reg_user = real(problem.reg_user)
    background = real(0) if problem.full else real(1)
    with_diagonal(broadcast.gram, reg_user, work.start)
    before, gradient = work.before, work.after
    loss, mass = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        n, first = gather(c, layout, broadcast.items, before), layout.row_indptr[c]
        share = fit_client(c, layout, feedback, before, work.start, reg_user, None, work, users)
        loss += share[0]
        mass += share[1]
        if not out.senders[c]:
            continue
        for row in range(n):
            fill_row(gradient, row, real(0), d)
        identity(d, real(0), work.follow)
        for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
            for k in range(layout.indptr[u], layout.indptr[u + 1]):
                row = layout.rows[k] - first
                confidence = feedback.extra[k] + background
                step = confidence * dot_rows(users, u, before, row, d) - feedback.pull[k]
                add_row(gradient, row, step, users, u, d)
            add_square(users, u, real(1), work.follow)
        send(c, layout, gradient, work.follow, problem.full, out)
    return loss, mass


@kernel
def fit_users(indptr, items, feedback, broadcast, reg_user, work, users):
    """Find every user's exact vector given the server's items."""
    reg = users.dtype.type(reg_user)
    with_diagonal(broadcast.gram, reg, work.start)
    for u in range(len(users)):
        fit_user(
            broadcast.items, items, indptr[u], np.int64(0), feedback, indptr[u], indptr[u + 1],
            work.start, reg, None, work, users, u,
        )  # fmt: skip


# --------------------------------------------------------------------------------- users


@inline
def fit_client(c, layout, feedback, vectors, base, reg, n_steps, work, users):
    """Find the vectors of client c's users given its own item vectors."""
    loss, mass = 0.0, 0.0
    for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
        start = layout.indptr[u]
        share = fit_user(
            vectors, layout.rows, start, layout.row_indptr[c], feedback, start,
            layout.indptr[u + 1], base, reg, n_steps, work, users, u,
        )  # fmt: skip
        loss += share[0]
        mass += share[1]
    return loss, mass


@inline
def fit_user(vectors, chosen, at, first, feedback, start, stop, base, reg, n_steps, work, users, u):
    """Find a user's vector given those of its items; `base` is sum q q' + reg I, all items.

    Rating ``start + k`` is of item ``vectors[chosen[at + k] - first]``, which becomes row k of
    work.left. `n_steps` of conjugate gradients from where it is, or exactly if that is None.

    Returns
    -------
    loss : sum of c (r - p.q)^2 over all items
    mass : sum of c - 1 over the rated ones
    """
    real, d, n = users.dtype.type, users.shape[1], stop - start
    fill_row(work.target, 0, real(0), d)
    total, mass = real(0), real(0)
    for k in range(start, stop):
        total += feedback.pull[k]
        mass += feedback.extra[k]
    if n_steps is None:
        collect(
            vectors, chosen, at, first, feedback.extra, start, feedback.pull, start, n, base, work
        )
        fitted = solve_collected(work, users, u)
    else:
        weigh_rows(
            vectors, chosen, at, first, feedback.extra, start, feedback.pull, start, n, work
        )  # fmt: skip
        fitted = descend_conjugate(feedback.extra, start, n, base, work, n_steps, users, u)
    # With M p = t - e, p'(M - reg I) p - 2 p.t = -p.(t + e) - reg |p|^2.
    return total - fitted - reg * dot_rows(users, u, users, u, d), mass


@inline
def collect(vectors, chosen, at, first, weights, start, pulls, begin, n, base, work):
    """Make the equations (base + sum w v v') x = target + sum pull v, as work.matrix and target.

    The k-th of n vectors is ``vectors[chosen[at + k] - first]``, with weight ``weights[start + k]``
    and pull ``pulls[begin + k]``. It becomes row k of work.left.
    """
    d = vectors.shape[1]
    weigh_rows(vectors, chosen, at, first, weights, start, pulls, begin, n, work)
    np.dot(work.left[:n].T, work.right[:n], work.matrix)
    for f in range(d):
        add_row(work.matrix, f, vectors.dtype.type(1), base, f, d)


@inline
def weigh_rows(vectors, chosen, at, first, weights, start, pulls, begin, n, work):
    """Copy n vectors to work.left, and times their weights to work.right; add pulls to target."""
    d = vectors.shape[1]
    for k in range(n):
        v, weight, pull = chosen[at + k] - first, weights[start + k], pulls[begin + k]
        for f in range(d):
            number = vectors[v, f]
            work.left[k, f] = number
            work.right[k, f] = weight * number
            work.target[0, f] += pull * number


@inline
def solve_collected(work, x, i):
    """Solve the equations that have been collected into ``x[i]``; returns target.x."""
    factor(work.matrix, x.shape[1])
    return solve(work.matrix, x.shape[1], work.target, x, i)


@inline
def descend_conjugate(extra, start, n, base, work, n_steps, x, u):
    """Steps of conjugate gradients from ``x[u]`` for n rows of work.left; see :func:`collect`.

    Returns (target + last residual).x.
    """
    real, d, rows = x.dtype.type, x.shape[1], work.residuals
    residual, direction, image = 0, 1, 2
    for f in range(d):
        if not abs(x[u, f]) < np.inf:
            x[u, f] = 0
    multiply(extra, start, n, base, x, u, work, image)
    copy_row(rows, residual, work.target, 0, d)
    add_row(rows, residual, real(-1), rows, image, d)
    copy_row(rows, direction, rows, residual, d)
    size = dot_rows(rows, residual, rows, residual, d)
    for _ in range(n_steps):
        if size == 0:
            break
        multiply(extra, start, n, base, rows, direction, work, image)
        step = size / dot_rows(rows, direction, rows, image, d)
        add_row(x, u, step, rows, direction, d)
        add_row(rows, residual, -step, rows, image, d)
        new_size = dot_rows(rows, residual, rows, residual, d)
        scale_row(rows, direction, new_size / size, rows, direction, d)
        add_row(rows, direction, real(1), rows, residual, d)
        size = new_size
    return dot_rows(work.target, 0, x, u, d) + dot_rows(rows, residual, x, u, d)


@inline
def multiply(extra, start, n, base, x, u, work, image):
    """Row `image` of work.residuals becomes (base + sum extra v v') x over n rows of work.left."""
    rows, d = work.residuals, work.residuals.shape[1]
    for f in range(d):
        rows[image, f] = dot_rows(base, f, x, u, d)
    for k in range(n):
        score = extra[start + k] * dot_rows(work.left, k, x, u, d)
        add_row(rows, image, score, work.left, k, d)


# ------------------------------------------------------------------------ a client's items


@inline
def items_of_one(c, n, layout, feedback, users, tie, share, work):
    """Exact items of a client with one user: share q + s p with share = mu / tie; and its F."""
    d, u = users.shape[1], layout.client_indptr[c]
    norm, start = dot_rows(users, u, users, u, d), layout.indptr[u]
    for k in range(n):
        confidence = 1 + feedback.extra[start + k]
        score = share * dot_rows(users, u, work.before, k, d)
        s = (feedback.pull[start + k] - confidence * score) / (tie + confidence * norm)
        scale_row(work.after, k, share, work.before, k, d)
        add_row(work.after, k, s, users, u, d)
    identity(d, share, work.follow)
    add_square(users, u, -share / (tie + norm), work.follow)


@inline
def items_of_many(c, n, layout, by_row, users, tie, mu, work):
    """Exact items of client c, and its F = mu (tie I + P'P)^-1."""
    real, d = users.dtype.type, users.shape[1]
    first, square = layout.row_indptr[c], work.square
    identity(d, tie, square)
    for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
        add_square(users, u, real(1), square)
    start = layout.indptr[layout.client_indptr[c]]
    for row in range(n):
        size = by_row.sizes[first + row]
        scale_row(work.target, 0, mu, work.before, row, d)
        collect(
            users, by_row.users, start, np.int64(0), by_row.extra, start, by_row.pull, start, size,
            square, work,
        )  # fmt: skip
        solve_collected(work, work.after, row)
        start += size
    factor(square, d)
    for f in range(d):
        fill_row(work.target, 0, real(0), d)
        work.target[0, f] = mu
        solve(square, d, work.target, work.follow, f)


@inline
def sweep(c, n, layout, feedback, problem, rate, users, work):
    """One gradient step of client c's items on each pair, user after user, in place.

    The pairs are its ratings; in the full form, all pairs of its users and its items, and
    work.follow takes the steps of the items that it does not hold. A step has the size `rate`,
    or the inverse of the pair's curvature if that is smaller. work.dense is zero before and
    after.
    """
    real, d = users.dtype.type, users.shape[1]
    reg_item, mu = real(problem.reg_item), real(problem.mu)
    first, dense = layout.row_indptr[c], work.dense
    for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
        start, stop = layout.indptr[u], layout.indptr[u + 1]
        norm = dot_rows(users, u, users, u, d)
        for k in range(start, stop):
            row = layout.rows[k] - first
            dense.extra[row], dense.pull[row] = feedback.extra[k], feedback.pull[k]
        for k in range(n if problem.full else stop - start):
            row = k if problem.full else layout.rows[start + k] - first
            descend(row, users, u, norm, reg_item, mu, rate, work)
        if problem.full:
            descend_follow(users, u, norm, reg_item, mu, rate, work)


@inline
def descend(row, users, u, norm, reg, mu, rate, work):
    """One gradient step of an own item on one user's pair, in place; `norm` is |p_u|^2."""
    real, d, dense = users.dtype.type, users.shape[1], work.dense
    confidence = real(1) + dense.extra[row]
    rate = min(rate, real(1) / (confidence * norm + reg + mu))
    score = dot_rows(users, u, work.after, row, d)
    step = confidence * score - dense.pull[row]
    dense.extra[row], dense.pull[row] = 0, 0
    scale_row(work.after, row, real(1) - rate * (reg + mu), work.after, row, d)
    add_row(work.after, row, rate * mu, work.before, row, d)
    add_row(work.after, row, -rate * step, users, u, d)


@inline
def descend_follow(users, u, norm, reg, mu, rate, work):
    """The same step of every item that the client does not hold, as a map of the broadcast."""
    real, d, follow = users.dtype.type, users.shape[1], work.follow
    rate = min(rate, real(1) / (norm + reg + mu))
    fill_row(work.target, 0, real(0), d)
    for f in range(d):
        add_row(work.target, 0, users[u, f], follow, f, d)
    for f in range(d):
        scale_row(follow, f, real(1) - rate * (reg + mu), follow, f, d)
        add_row(follow, f, -rate * users[u, f], work.target, 0, d)
        follow[f, f] += rate * mu


@inline
def base_of(gram, n, full, reg, work):
    """Sum of q q' over all items as a client has them after an epoch, plus reg I."""
    real, d = gram.dtype.type, len(gram)
    outside, half, base = work.outside, work.half, work.base
    for f in range(d):
        copy_row(outside, f, gram, f, d)
    for k in range(n):
        add_square(work.before, k, real(-1), outside)
    if full:
        for f in range(d):
            for g in range(d):
                half[f, g] = dot_rows(work.follow, f, outside, g, d)
        for f in range(d):
            for g in range(d):
                outside[f, g] = dot_rows(half, f, work.follow, g, d)
    for k in range(n):
        add_square(work.after, k, real(1), outside)
    with_diagonal(outside, reg, base)
    return base


@inline
def subtract(n, full, work):
    """From own items to uploaded rows, in place."""
    d = work.after.shape[1]
    for k in range(n):
        if full:
            for f in range(d):
                work.after[k, f] -= dot_rows(work.follow, f, work.before, k, d)
        else:
            add_row(work.after, k, work.after.dtype.type(-1), work.before, k, d)


# ------------------------------------------------------------------------------- uploads


@inline
def send(c, layout, rows, matrix, full, out):
    """Write client c's upload."""
    d, first = rows.shape[1], layout.row_indptr[c]
    n, n_broken = layout.row_indptr[c + 1] - first, 0
    for k in range(n):
        n_broken += not is_finite_row(rows, k, d)
    if full:
        for f in range(d):
            n_broken += not is_finite_row(matrix, f, d)
    out.is_finite[c] = n_broken == 0
    if not (out.is_finite[c] or out.keeps_broken):
        return
    one = rows.dtype.type(1)
    for k in range(n):
        add_row(out.rows, out.slots[first + k], one, rows, k, d)
    if full:
        square = out.squares[out.square_slots[c]]
        for f in range(d):
            add_row(square, f, one, matrix, f, d)


@inline
def send_of_one(c, layout, feedback, users, tie, share, work, out):
    """:func:`send` for a client with one user in the full form; work.left has its items.

    Its rows are multiples of p, and F = mu (tie I + p p')^-1 with share = mu / tie.
    """
    real, d = users.dtype.type, users.shape[1]
    u, first = layout.client_indptr[c], layout.row_indptr[c]
    n, start, longest = layout.row_indptr[c + 1] - first, layout.indptr[u], real(0)
    for f in range(d):
        longest = max(longest, abs(users[u, f]))
    norm = dot_rows(users, u, users, u, d)
    shrink = 1 / (tie + norm)
    n_broken = int(not is_finite_row(users, u, d))
    for k in range(n):
        confidence = 1 + feedback.extra[start + k]
        score = share * dot_rows(users, u, work.left, k, d)
        along = (feedback.pull[start + k] - confidence * score) / (tie + confidence * norm)
        work.multiples[k] = along + score * shrink
        n_broken += not abs(work.multiples[k] * longest) < np.inf
    out.is_finite[c] = n_broken == 0
    if not (out.is_finite[c] or out.keeps_broken):
        return
    for k in range(n):
        add_row(out.rows, out.slots[first + k], work.multiples[k], users, u, d)
    square = out.squares[out.square_slots[c]]
    for f in range(d):
        add_row(square, f, -share * shrink * users[u, f], users, u, d)
        square[f, f] += share


# ------------------------------------------------------------------------------ arithmetic


@inline
def gather(c, layout, vectors, out):
    """Copy the vectors of client c's items, and say how many they are."""
    first, last = layout.row_indptr[c], layout.row_indptr[c + 1]
    for k in range(first, last):
        copy_row(out, k - first, vectors, layout.row_items[k], out.shape[1])
    return last - first


@inline
def add_square(vectors, k, number, out):
    """Add `number` times v v' of the k-th vector."""
    d = vectors.shape[1]
    for f in range(d):
        add_row(out, f, number * vectors[k, f], vectors, k, d)


@inline
def identity(d, number, out):
    """Write `number` times the identity."""
    for f in range(d):
        fill_row(out, f, out.dtype.type(0), d)
        out[f, f] = number


@inline
def with_diagonal(matrix, number, out):
    """Write the matrix with `number` added to its diagonal."""
    d = len(matrix)
    for f in range(d):
        copy_row(out, f, matrix, f, d)
        out[f, f] += number
