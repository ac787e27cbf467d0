"""Weighted matrix factorisation on clients: the steps of LocALS, LocSGD and GlobSGD.

What the kernels share:

    layout : shared.Layout, whose users and items are whose
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

from fedrecsk._kernels._jit import kernel, part
from fedrecsk._kernels._lapack import solve_positive
from fedrecsk._kernels.shared import all_finite

LANES = 8


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
    left, right : (longest, width), for the ratings of a user or of a held row
    matrix : (width, width)
    target : (d,)
    integers : (5,) int32
    before, after : (most, d), a client's own items
    """

    left: np.ndarray
    right: np.ndarray
    matrix: np.ndarray
    target: np.ndarray
    integers: np.ndarray
    before: np.ndarray
    after: np.ndarray


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
    sound : (n_clients,) bool
        Becomes False for senders whose upload is not finite.
    keeps_broken : bool
        Whether such an upload is written all the same.
    """

    senders: np.ndarray
    rows: np.ndarray
    slots: np.ndarray
    squares: np.ndarray
    square_slots: np.ndarray
    sound: np.ndarray
    keeps_broken: bool


def workspace(layout, users, row_sizes=None):
    """Scratch for any user, held row and client of the layout, with `users` (n_users, d)."""
    d, dtype = users.shape[1], users.dtype
    longest = np.diff(layout.indptr).max(initial=1)
    if row_sizes is not None:
        longest = row_sizes.max(initial=longest)
    # Matrix products are faster on whole vector registers; the columns beyond d stay zero.
    width = -(-d // LANES) * LANES
    left, right = np.zeros((2, longest, width), dtype=dtype)
    before, after = np.empty((2, np.diff(layout.row_indptr).max(initial=0), d), dtype=dtype)
    matrix, target = np.zeros((width, width), dtype=dtype), np.zeros(d, dtype=dtype)
    return Workspace(left, right, matrix, target, np.zeros(5, np.int32), before, after)


# ------------------------------------------------------------------------------- rounds


@kernel
def local_als_of_one(layout, feedback, active, broadcast, problem, n_steps, work, users, out):
    """:func:`local_als` of clients with one user, in the full form and one epoch.

    All that such a client sends is made of its user's vector, so that its own items need not
    be written down.
    """
    real = users.dtype.type
    reg_user, mu = real(problem.reg_user), real(problem.mu)
    tie = real(problem.reg_item) + mu
    base = with_diagonal(broadcast.gram, reg_user)
    multiples = np.empty(len(work.before), users.dtype)
    loss, mass = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        u = layout.client_indptr[c]
        first = layout.row_indptr[c]
        items = layout.row_items[first : layout.row_indptr[c + 1]]
        ratings = slice(layout.indptr[u], layout.indptr[u + 1])
        extra, pull, p = feedback.extra[ratings], feedback.pull[ratings], users[u]
        share = fit_user(
            broadcast.items, items, np.int64(0), extra, pull, base, reg_user, n_steps, work, p
        )
        loss += share[0]
        mass += share[1]
        if out.senders[c]:
            rows_of_one(broadcast.items, items, p, extra, pull, tie, mu / tie, multiples)
            send_multiples(c, first, len(items), multiples, p, tie, mu / tie, out)
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
    start = with_diagonal(broadcast.gram, reg_user)
    nothing = np.zeros_like(start)
    loss, mass = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        first, n = layout.row_indptr[c], layout.row_indptr[c + 1] - layout.row_indptr[c]
        before, after = work.before[:n], work.after[:n]
        gather(broadcast.items, layout.row_items[first : first + n], before)
        gather(broadcast.items, layout.row_items[first : first + n], after)
        own = slice(layout.client_indptr[c], layout.client_indptr[c + 1])
        mine = users[own]
        base, follow = start, start
        for epoch in range(n_epochs):
            if epoch > 0:
                base = base_of(broadcast.gram, before, after, follow, problem.full, reg_user)
            share = fit_client(c, layout, feedback, after, base, reg_user, n_steps, work, users)
            if epoch == 0:
                loss += share[0]
                mass += share[1]
            if len(mine) == 1:
                ratings = slice(layout.indptr[own.start], layout.indptr[own.stop])
                extra, pull = feedback.extra[ratings], feedback.pull[ratings]
                items_of_one(before, mine[0], extra, pull, tie, mu / tie, after)
                follow = nothing.copy()
                add_follow_of_one(mine[0], tie, mu / tie, follow)
            else:
                square = with_diagonal(nothing, tie)
                add_squares(mine, real(1), square)
                items_of_many(c, layout, by_row, before, users, square, mu, work, after)
                follow = with_diagonal(nothing, mu)
                solve_positive(square, follow, work.integers)
        if out.senders[c]:
            subtract(before, follow, problem.full, after)
            send(c, first, after, follow, problem.full, out)
    return loss, mass


@kernel
def local_sgd(
    layout, feedback, active, broadcast, problem, n_epochs, n_sweeps, rate, work, users, out
):
    """LocSGD: each client fits its users exactly and its items by sweeps of gradient steps."""
    real = users.dtype.type
    reg_user = real(problem.reg_user)
    start = with_diagonal(broadcast.gram, reg_user)
    nothing = np.zeros_like(start)
    most = len(work.after)
    dense = Feedback(np.zeros(most, users.dtype), np.zeros(most, users.dtype))
    loss, mass = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        first, n = layout.row_indptr[c], layout.row_indptr[c + 1] - layout.row_indptr[c]
        before, after = work.before[:n], work.after[:n]
        gather(broadcast.items, layout.row_items[first : first + n], before)
        gather(broadcast.items, layout.row_items[first : first + n], after)
        base, follow = start, with_diagonal(nothing, real(1))
        for epoch in range(n_epochs):
            if epoch > 0:
                base = base_of(broadcast.gram, before, after, follow, problem.full, reg_user)
            share = fit_client(c, layout, feedback, after, base, reg_user, None, work, users)
            if epoch == 0:
                loss += share[0]
                mass += share[1]
            for _ in range(n_sweeps):
                sweep(c, layout, feedback, problem, rate, users, dense, before, after, follow)
        if out.senders[c]:
            subtract(before, follow, problem.full, after)
            send(c, first, after, follow, problem.full, out)
    return loss, mass


@kernel
def item_gradients(layout, feedback, active, broadcast, problem, work, users, out):
    """GlobSGD: each client fits its users exactly and makes the items' half gradients.

    In the full form, F is P'P and a row is what the gradient differs from F q.
    """
    real = users.dtype.type
    reg_user = real(problem.reg_user)
    background = real(0) if problem.full else real(1)
    base = with_diagonal(broadcast.gram, reg_user)
    loss, mass = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        first, n = layout.row_indptr[c], layout.row_indptr[c + 1] - layout.row_indptr[c]
        before, gradient = work.before[:n], work.after[:n]
        gather(broadcast.items, layout.row_items[first : first + n], before)
        share = fit_client(c, layout, feedback, before, base, reg_user, None, work, users)
        loss += share[0]
        mass += share[1]
        if not out.senders[c]:
            continue
        for row in range(len(gradient)):
            for f in range(gradient.shape[1]):
                gradient[row, f] = 0
        for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
            p = users[u]
            for k in range(layout.indptr[u], layout.indptr[u + 1]):
                row = layout.rows[k] - first
                confidence = feedback.extra[k] + background
                step = confidence * dot(p, before[row]) - feedback.pull[k]
                total = gradient[row]
                for f in range(len(p)):
                    total[f] += step * p[f]
        mine = users[layout.client_indptr[c] : layout.client_indptr[c + 1]]
        square = np.zeros_like(base)
        add_squares(mine, real(1), square)
        send(c, first, gradient, square, problem.full, out)
    return loss, mass


@kernel
def fit_users(indptr, items, feedback, broadcast, reg_user, work, users):
    """Find every user's exact vector given the server's items."""
    reg = users.dtype.type(reg_user)
    base = with_diagonal(broadcast.gram, reg)
    for u in range(len(users)):
        own = slice(indptr[u], indptr[u + 1])
        fit_user(
            broadcast.items, items[own], np.int64(0), feedback.extra[own], feedback.pull[own],
            base, reg, None, work, users[u],
        )  # fmt: skip


# --------------------------------------------------------------------------------- users


@part
def fit_client(c, layout, feedback, vectors, base, reg, n_steps, work, users):
    """Find the vectors of client c's users given its own item vectors."""
    loss, mass = 0.0, 0.0
    for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
        own = slice(layout.indptr[u], layout.indptr[u + 1])
        share = fit_user(
            vectors, layout.rows[own], layout.row_indptr[c], feedback.extra[own],
            feedback.pull[own], base, reg, n_steps, work, users[u],
        )  # fmt: skip
        loss += share[0]
        mass += share[1]
    return loss, mass


@part
def fit_user(vectors, chosen, first, extra, pull, base, reg, n_steps, work, user):
    """Find a user's vector given vectors[chosen - first]; `base` is sum q q' + reg I, all items.

    `n_steps` of conjugate gradients from where it is, or exactly if that is None.

    Returns
    -------
    loss : sum of c (r - p.q)^2 over all items
    mass : sum of c - 1 over the rated ones
    """
    real = user.dtype.type
    if n_steps is None:
        for f in range(len(user)):
            user[f] = 0
        ridge(vectors, chosen, first, extra, pull, base, work, user)
    else:
        ridge_cg(vectors, chosen, first, extra, pull, base, work, n_steps, user)
    total, mass = real(0), real(0)
    for k in range(len(chosen)):
        total += pull[k]
        mass += extra[k]
    # With M p = t - e, p'(M - reg I) p - 2 p.t = -p.(t + e) - reg |p|^2.
    return total - dot(work.target, user) - reg * dot(user, user), mass


@part
def ridge(vectors, chosen, first, extra, pull, base, work, x):
    """Solve (base + sum extra v v') x = x + sum pull v over v = vectors[chosen - first].

    Leaves the right-hand side in work.target.
    """
    d, n = len(x), len(chosen)
    for k in range(n):
        v, a, b = vectors[chosen[k] - first], work.left[k], work.right[k]
        e, r = extra[k], pull[k]
        for f in range(d):
            a[f] = v[f]
            b[f] = e * v[f]
            x[f] += r * v[f]
    np.dot(work.left[:n].T, work.right[:n], work.matrix)
    for f in range(d):
        work.target[f] = x[f]
        for g in range(d):
            work.matrix[f, g] += base[f, g]
    solve_positive(work.matrix, x.reshape(1, d), work.integers)


@part
def ridge_cg(vectors, chosen, first, extra, pull, base, work, n_steps, x):
    """Like :func:`ridge` with nothing on the right, by steps of conjugate gradients from x.

    Leaves the right-hand side plus the last residual in work.target.
    """
    d, n = len(x), len(chosen)
    target = work.target
    residual, direction, image = work.matrix[0], work.matrix[1], work.matrix[2]
    rows = work.left[:n]
    for f in range(d):
        target[f] = 0
        if not abs(x[f]) < np.inf:
            x[f] = 0
    for k in range(n):
        v, a, r = vectors[chosen[k] - first], rows[k], pull[k]
        for f in range(d):
            a[f] = v[f]
            target[f] += r * v[f]
    multiply(rows, extra, base, x, image)
    for f in range(d):
        residual[f] = target[f] - image[f]
        direction[f] = residual[f]
    size = dot(residual[:d], residual[:d])
    for _ in range(n_steps):
        if size == 0:
            break
        multiply(rows, extra, base, direction[:d], image)
        step = size / dot(direction[:d], image[:d])
        for f in range(d):
            x[f] += step * direction[f]
            residual[f] -= step * image[f]
        new_size = dot(residual[:d], residual[:d])
        for f in range(d):
            direction[f] = residual[f] + new_size / size * direction[f]
        size = new_size
    for f in range(d):
        target[f] += residual[f]


@part
def multiply(rows, extra, base, x, out):
    """out = (base + sum extra v v') x."""
    d = len(x)
    for f in range(d):
        out[f] = dot(base[f], x)
    for k in range(len(rows)):
        v = rows[k]
        score = x.dtype.type(0)
        for f in range(d):
            score += v[f] * x[f]
        score *= extra[k]
        for f in range(d):
            out[f] += score * v[f]


# ------------------------------------------------------------------------ a client's items


@part
def items_of_one(before, p, extra, pull, tie, share, after):
    """Exact items of a client whose only user is p: share q + s p with share = mu / tie."""
    norm = dot(p, p)
    for k in range(len(before)):
        c = 1 + extra[k]
        q, x = before[k], after[k]
        s = (pull[k] - c * share * dot(p, q)) / (tie + c * norm)
        for f in range(len(p)):
            x[f] = share * q[f] + s * p[f]


@part
def add_follow_of_one(p, tie, share, square):
    """Add to `square` the matrix F = mu (tie I + p p')^-1 of such a client."""
    shrink = share / (tie + dot(p, p))
    for f in range(len(p)):
        row, step = square[f], shrink * p[f]
        for g in range(len(p)):
            row[g] -= step * p[g]
        row[f] += share


@part
def rows_of_one(vectors, items, p, extra, pull, tie, share, multiples):
    """The rows of such a client in the full form, as multiples of p."""
    norm = dot(p, p)
    shrink = 1 / (tie + norm)
    for k in range(len(items)):
        c = 1 + extra[k]
        score = share * dot(p, vectors[items[k]])
        multiples[k] = (pull[k] - c * score) / (tie + c * norm) + score * shrink


@part
def items_of_many(c, layout, by_row, before, users, base, mu, work, after):
    """Exact items of client c; `base` is sum p p' over its users plus (reg_item + mu) I."""
    start = layout.indptr[layout.client_indptr[c]]
    for k in range(len(before)):
        stop = start + by_row.sizes[layout.row_indptr[c] + k]
        for f in range(before.shape[1]):
            after[k, f] = mu * before[k, f]
        ridge(
            users, by_row.users[start:stop], np.int64(0), by_row.extra[start:stop],
            by_row.pull[start:stop], base, work, after[k],
        )  # fmt: skip
        start = stop


@part
def sweep(c, layout, feedback, problem, rate, users, dense, before, after, follow):
    """One gradient step of client c's items on each pair, user after user, in place.

    The pairs are its ratings; in the full form, all pairs of its users and its items, and
    `follow` takes the steps of the items that it does not hold. `dense` is scratch: zeros, for
    one user's feedback on all of the client's items.
    """
    real = users.dtype.type
    reg_item, mu, rate = real(problem.reg_item), real(problem.mu), real(rate)
    first = layout.row_indptr[c]
    for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
        p, start, stop = users[u], layout.indptr[u], layout.indptr[u + 1]
        for k in range(start, stop):
            row = layout.rows[k] - first
            dense.extra[row], dense.pull[row] = feedback.extra[k], feedback.pull[k]
        for k in range(len(after) if problem.full else stop - start):
            row = k if problem.full else layout.rows[start + k] - first
            descend(
                after[row], before[row], p, dense.extra[row], dense.pull[row], reg_item, mu, rate
            )
            dense.extra[row], dense.pull[row] = 0, 0
        if problem.full:
            descend_follow(follow, p, reg_item, mu, rate)


@part
def descend(q, centre, p, extra, pull, reg, mu, rate):
    """One gradient step of an item on one user's pair, in place."""
    g = (1 + extra) * dot(p, q) - pull
    for f in range(len(q)):
        q[f] -= rate * (g * p[f] + reg * q[f] + mu * (q[f] - centre[f]))


@part
def descend_follow(follow, p, reg, mu, rate):
    """The same step of every item that the client does not hold, as a map of the broadcast."""
    scores = np.zeros_like(p)
    for f in range(len(p)):
        for g in range(len(p)):
            scores[g] += p[f] * follow[f, g]
    for f in range(len(p)):
        for g in range(len(p)):
            follow[f, g] -= rate * (p[f] * scores[g] + (reg + mu) * follow[f, g])
        follow[f, f] += rate * mu


@part
def base_of(gram, before, after, follow, full, reg):
    """Sum of q q' over all items as a client has them after an epoch, plus reg I."""
    real = gram.dtype.type
    outside = gram.copy()
    add_squares(before, real(-1), outside)
    base = with_diagonal(outside, reg)
    if full:
        half, base = np.zeros_like(outside), with_diagonal(np.zeros_like(outside), reg)
        add_products(follow, outside, real(1), half)
        add_products(half, follow, real(1), base)
    add_squares(after, real(1), base)
    return base


@part
def subtract(before, follow, full, after):
    """From own items to uploaded rows, in place."""
    minus = after.dtype.type(-1)
    if full:
        add_products(before, follow, minus, after)
    else:
        add(before, minus, after)


# ------------------------------------------------------------------------------- uploads


@part
def send(c, first, rows, matrix, full, out):
    """Write client c's upload, whose held rows begin at `first`."""
    out.sound[c] = all_finite(rows) and (not full or all_finite(matrix))
    if not (out.sound[c] or out.keeps_broken):
        return
    for k in range(len(rows)):
        row, total = rows[k], out.rows[out.slots[first + k]]
        for f in range(len(row)):
            total[f] += row[f]
    if full:
        add(matrix, matrix.dtype.type(1), out.squares[out.square_slots[c]])


@part
def send_multiples(c, first, n, multiples, p, tie, share, out):
    """:func:`send` for a client with one user in the full form, with rows multiples of p."""
    longest = p.dtype.type(0)
    n_broken = 0
    for f in range(len(p)):
        n_broken += not abs(p[f]) < np.inf
        longest = max(longest, abs(p[f]))
    for k in range(n):
        n_broken += not abs(multiples[k] * longest) < np.inf
    out.sound[c] = n_broken == 0
    if not (out.sound[c] or out.keeps_broken):
        return
    for k in range(n):
        total, multiple = out.rows[out.slots[first + k]], multiples[k]
        for f in range(len(p)):
            total[f] += multiple * p[f]
    add_follow_of_one(p, tie, share, out.squares[out.square_slots[c]])


# ------------------------------------------------------------------------------ arithmetic


@part
def gather(vectors, items, out):
    """Copy the items' vectors."""
    for k in range(len(items)):
        v, x = vectors[items[k]], out[k]
        for f in range(len(x)):
            x[f] = v[f]


@part
def dot(x, y):
    """Inner product."""
    total = x.dtype.type(0)
    for f in range(len(x)):
        total += x[f] * y[f]
    return total


@part
def add(matrix, sign, out):
    """Add `sign` times the matrix to `out`."""
    for k in range(matrix.shape[0]):
        for f in range(matrix.shape[1]):
            out[k, f] += sign * matrix[k, f]


@part
def add_products(left, right, sign, out):
    """Add `sign` times left right' to `out`."""
    for k in range(left.shape[0]):
        for f in range(right.shape[0]):
            out[k, f] += sign * dot(left[k], right[f])


@part
def add_squares(vectors, sign, out):
    """Add `sign` times the sum of v v' over the vectors to `out`."""
    for k in range(vectors.shape[0]):
        v = vectors[k]
        for f in range(len(v)):
            step, row = sign * v[f], out[f]
            for g in range(len(v)):
                row[g] += step * v[g]


@part
def with_diagonal(matrix, value):
    """A copy of the matrix with `value` added to its diagonal."""
    out = matrix.copy()
    for f in range(len(out)):
        out[f, f] += value
    return out
