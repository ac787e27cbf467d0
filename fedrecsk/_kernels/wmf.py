"""Weighted matrix factorisation on clients: the steps of LocALS, LocSGD and GlobSGD.

Every rating k carries ``extra[k]`` = c - 1 and ``pull[k]`` = c r, where c is its confidence and
r its preference; pairs without a rating have c = 1 and r = 0. What the kernels share:

    layout = (client_indptr, indptr, row_indptr, rows, row_items)
        users of each client, ratings of each user, held item rows of each client, held row of
        each rating, and item code of each held row
    by_row = (row_sizes, rating_users, extra, pull)
        ratings of each held row, then three arrays over the ratings ordered by row
    turn = (active, senders), each (n_clients,) bool
        clients that update, and those whose upload arrives
    broadcast : (n_items, d), the server's item vectors
    gram : (d, d), the sum of q q' over all of them
    users : (n_users, d), replaced by the new vectors of the active clients' users
    out = (sums, square, holders)
        receive the sums over the senders: of rows by item (n_items, d), of matrices (d, d) and
        of the number of clients that hold each item (n_items,)

An upload is a row for each item the client holds, and a matrix F. In the full form F makes the
client's version F q of every item it does not hold, and a row is what the client's own version
of an item differs from that; otherwise F is zero and a row is the change of the item.

The kernels of a round return the loss of the active clients' users when first fitted, its mass
(see :func:`fit_user`), and whether each client's upload was finite, (n_clients,) bool.
"""

import numpy as np

from fedrecsk._kernels._jit import kernel
from fedrecsk._kernels._lapack import solve_positive
from fedrecsk._kernels.rfrec import is_finite

LANES = 8


# --------------------------------------------------------------------------------- users


@kernel
def workspace(indptr, row_sizes, like):
    """Scratch arrays for :func:`ridge`, long enough for any user and any held row."""
    longest = 1
    for u in range(len(indptr) - 1):
        longest = max(longest, indptr[u + 1] - indptr[u])
    for n in row_sizes:
        longest = max(longest, n)
    # Matrix products are faster on whole vector registers; the columns beyond d stay zero.
    width = -(-like.shape[1] // LANES) * LANES
    left = np.zeros((longest, width), dtype=like.dtype)
    right = np.zeros((longest, width), dtype=like.dtype)
    matrix = np.empty((width, width), dtype=like.dtype)
    target = np.empty(like.shape[1], dtype=like.dtype)
    return left, right, matrix, target, np.empty(5, dtype=np.int32)


@kernel
def ridge(vectors, chosen, first, extra, pull, base, work, x):
    """Solve (base + sum extra v v') x = x + sum pull v over v = vectors[chosen - first]."""
    left, right, matrix, target, integers = work
    d, n = len(x), len(chosen)
    for k in range(n):
        v, a, b = vectors[chosen[k] - first], left[k], right[k]
        e, r = extra[k], pull[k]
        for f in range(d):
            a[f] = v[f]
            b[f] = e * v[f]
            x[f] += r * v[f]
    np.dot(left[:n].T, right[:n], matrix)
    for f in range(d):
        target[f] = x[f]
        for g in range(d):
            matrix[f, g] += base[f, g]
    solve_positive(matrix, x.reshape(1, d), integers)


@kernel
def ridge_cg(vectors, chosen, first, extra, pull, base, work, n_steps, x):
    """Like :func:`ridge` with nothing on the right, by steps of conjugate gradients from x.

    Leaves the right-hand side plus the last residual in work[3].
    """
    left, _, matrix, target, _ = work
    d, n = len(x), len(chosen)
    residual, direction, image = matrix[0], matrix[1], matrix[2]
    rows = left[:n]
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


@kernel
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


@kernel
def fit_user(vectors, chosen, first, extra, pull, base, reg, n_steps, work, user):
    """Find a user's vector given the items; `base` is sum q q' + reg I over all items.

    `n_steps` of conjugate gradients from where it is, or exactly if that is 0.

    Returns
    -------
    loss : sum of c (r - p.q)^2 over all items
    mass : sum of c - 1 over the rated ones
    """
    real = user.dtype.type
    if n_steps > 0:
        ridge_cg(vectors, chosen, first, extra, pull, base, work, n_steps, user)
    else:
        user[:] = 0
        ridge(vectors, chosen, first, extra, pull, base, work, user)
    total, mass = real(0), real(0)
    for k in range(len(chosen)):
        total += pull[k]
        mass += extra[k]
    # With M p = t - e, p'(M - reg I) p - 2 p.t = -p.(t + e) - reg |p|^2.
    return total - dot(work[3], user) - reg * dot(user, user), mass


@kernel
def fit_users(indptr, items, extra, pull, broadcast, gram, reg, users):
    """Find every user's exact vector given the server's items."""
    reg = users.dtype.type(reg)
    base = with_diagonal(gram, reg)
    work = workspace(indptr, np.empty(0, dtype=np.int64), broadcast)
    for u in range(len(users)):
        span = slice(indptr[u], indptr[u + 1])
        fit_user(broadcast, items[span], 0, extra[span], pull[span], base, reg, 0, work, users[u])


@kernel
def fit_client(c, layout, extra, pull, vectors, base, reg, n_steps, work, users):
    """Find the vectors of client c's users given its own item vectors."""
    client_indptr, indptr, row_indptr, rows, row_items = layout
    loss, mass = 0.0, 0.0
    for u in range(client_indptr[c], client_indptr[c + 1]):
        span = slice(indptr[u], indptr[u + 1])
        share = fit_user(
            vectors, rows[span], row_indptr[c], extra[span], pull[span], base, reg, n_steps, work,
            users[u],
        )  # fmt: skip
        loss += share[0]
        mass += share[1]
    return loss, mass


# ------------------------------------------------------------------------------- rounds


@kernel
def local_als(
    layout, by_row, extra, pull, turn, broadcast, gram, reg, mu, n_epochs, n_steps, full, users, out
):
    """LocALS: each client alternates between users and exact items.

    `n_steps` is as in :func:`fit_user`, and `reg` is the pair of the users' penalty and of one
    client's penalty on items.
    """
    client_indptr, indptr, row_indptr, rows, row_items = layout
    active, senders = turn
    real = users.dtype.type
    reg_user, reg_item, mu = real(reg[0]), real(reg[1]), real(mu)
    tie = reg_item + mu
    start = with_diagonal(gram, reg_user)
    work = workspace(indptr, by_row[0], broadcast)
    old, new = row_buffers(row_indptr, broadcast)
    multiples = np.empty(len(old), dtype=users.dtype)
    sound = np.ones(len(active), dtype=np.bool_)
    loss, mass = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        items = row_items[row_indptr[c] : row_indptr[c + 1]]
        ratings = slice(indptr[client_indptr[c]], indptr[client_indptr[c + 1]])
        mine = users[client_indptr[c] : client_indptr[c + 1]]
        alone = len(mine) == 1
        if alone and full and n_epochs == 1:
            # All that such a client sends is made of its user's vector, so that its own
            # items need not be written down.
            share = fit_user(
                broadcast, items, 0, extra[ratings], pull[ratings], start, reg_user, n_steps, work,
                mine[0],
            )  # fmt: skip
            loss += share[0]
            mass += share[1]
            if senders[c]:
                sound[c] = add_upload_of_one(
                    broadcast, items, mine[0], extra[ratings], pull[ratings], tie, mu / tie,
                    multiples, out,
                )  # fmt: skip
            continue

        before, after = old[: len(items)], new[: len(items)]
        gather(broadcast, items, before)
        share = fit_client(c, layout, extra, pull, before, start, reg_user, n_steps, work, users)
        loss += share[0]
        mass += share[1]
        follow = start
        for epoch in range(n_epochs):
            if epoch > 0:
                base = base_of(gram, before, after, follow, full, reg_user)
                fit_client(c, layout, extra, pull, after, base, reg_user, n_steps, work, users)
            if alone:
                items_of_one(before, mine[0], extra[ratings], pull[ratings], tie, mu / tie, after)
                follow = np.zeros_like(gram)
                add_follow_of_one(mine[0], tie, mu / tie, follow)
            else:
                base = with_diagonal(np.dot(mine.T, mine), tie)
                items_of_many(c, layout, by_row, before, users, base, mu, work, after)
                follow = with_diagonal(np.zeros_like(gram), mu)
                solve_positive(base, follow, work[4])
        if senders[c]:
            subtract(before, follow, full, after)
            sound[c] = add_upload(items, after, follow, full, out)
    return loss, mass, sound


@kernel
def local_sgd(
    layout, extra, pull, turn, broadcast, gram, reg, mu, n_epochs, n_steps, rate, full, users, out
):
    """LocSGD: each client fits its users exactly and its items by gradient steps."""
    client_indptr, indptr, row_indptr, rows, row_items = layout
    active, senders = turn
    real = users.dtype.type
    reg_user, reg_item, mu, rate = real(reg[0]), real(reg[1]), real(mu), real(rate)
    start = with_diagonal(gram, reg_user)
    work = workspace(indptr, np.empty(0, dtype=np.int64), broadcast)
    old, new = row_buffers(row_indptr, broadcast)
    extra_of_user, pull_of_user = np.zeros(len(new), real), np.zeros(len(new), real)
    sound = np.ones(len(active), dtype=np.bool_)
    loss, mass = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        first, items = row_indptr[c], row_items[row_indptr[c] : row_indptr[c + 1]]
        before, after = old[: len(items)], new[: len(items)]
        gather(broadcast, items, before)
        after[:] = before
        follow = with_diagonal(np.zeros_like(gram), real(1))

        share = fit_client(c, layout, extra, pull, before, start, reg_user, 0, work, users)
        loss += share[0]
        mass += share[1]
        for epoch in range(n_epochs):
            if epoch > 0:
                base = base_of(gram, before, after, follow, full, reg_user)
                fit_client(c, layout, extra, pull, after, base, reg_user, 0, work, users)
            for _ in range(n_steps):
                for u in range(client_indptr[c], client_indptr[c + 1]):
                    p = users[u]
                    for k in range(indptr[u], indptr[u + 1]):
                        row = rows[k] - first
                        if full:
                            extra_of_user[row], pull_of_user[row] = extra[k], pull[k]
                        else:
                            descend(
                                after[row], before[row], p, extra[k], pull[k], reg_item, mu, rate
                            )
                    if full:
                        for row in range(len(items)):
                            e, r = extra_of_user[row], pull_of_user[row]
                            descend(after[row], before[row], p, e, r, reg_item, mu, rate)
                            extra_of_user[row], pull_of_user[row] = 0, 0
                        descend_follow(follow, p, reg_item, mu, rate)
        if senders[c]:
            subtract(before, follow, full, after)
            sound[c] = add_upload(items, after, follow, full, out)
    return loss, mass, sound


@kernel
def item_gradients(layout, extra, pull, turn, broadcast, gram, reg_user, full, users, out):
    """GlobSGD: each client fits its users exactly and makes the items' half gradients.

    In the full form, F is P'P and a row is what the gradient differs from F q.
    """
    client_indptr, indptr, row_indptr, rows, row_items = layout
    active, senders = turn
    real = users.dtype.type
    reg_user = real(reg_user)
    background = real(0) if full else real(1)
    start = with_diagonal(gram, reg_user)
    work = workspace(indptr, np.empty(0, dtype=np.int64), broadcast)
    old, new = row_buffers(row_indptr, broadcast)
    sound = np.ones(len(active), dtype=np.bool_)
    loss, mass = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        first, items = row_indptr[c], row_items[row_indptr[c] : row_indptr[c + 1]]
        before, gradient = old[: len(items)], new[: len(items)]
        gather(broadcast, items, before)

        share = fit_client(c, layout, extra, pull, before, start, reg_user, 0, work, users)
        loss += share[0]
        mass += share[1]
        if not senders[c]:
            continue
        gradient[:] = 0
        for u in range(client_indptr[c], client_indptr[c + 1]):
            p = users[u]
            for k in range(indptr[u], indptr[u + 1]):
                row = rows[k] - first
                g = (extra[k] + background) * dot(p, before[row]) - pull[k]
                total = gradient[row]
                for f in range(len(p)):
                    total[f] += g * p[f]
        mine = users[client_indptr[c] : client_indptr[c + 1]]
        sound[c] = add_upload(items, gradient, np.dot(mine.T, mine), full, out)
    return loss, mass, sound


# ------------------------------------------------------------------------ a client's items


@kernel
def items_of_one(before, p, extra, pull, tie, share, after):
    """Exact items of a client whose only user is p: share q + s p with share = mu / tie."""
    norm = dot(p, p)
    for k in range(len(before)):
        c = 1 + extra[k]
        q, x = before[k], after[k]
        s = (pull[k] - c * share * dot(p, q)) / (tie + c * norm)
        for f in range(len(p)):
            x[f] = share * q[f] + s * p[f]


@kernel
def add_follow_of_one(p, tie, share, square):
    """Add to `square` the matrix F = mu (tie I + p p')^-1 of such a client."""
    shrink = share / (tie + dot(p, p))
    for f in range(len(p)):
        row, step = square[f], shrink * p[f]
        for g in range(len(p)):
            row[g] -= step * p[g]
        row[f] += share


@kernel
def add_upload_of_one(broadcast, items, p, extra, pull, tie, share, multiples, out):
    """:func:`add_upload` of such a client in the full form, where every row is a multiple of p."""
    sums, square, holders = out
    norm = dot(p, p)
    shrink = 1 / (tie + norm)
    for k in range(len(items)):
        c = 1 + extra[k]
        score = share * dot(p, broadcast[items[k]])
        multiples[k] = (pull[k] - c * score) / (tie + c * norm) + score * shrink
    if not (is_finite(p) and is_finite(multiples[: len(items)])):
        return False
    for k in range(len(items)):
        total, multiple = sums[items[k]], multiples[k]
        holders[items[k]] += 1
        for f in range(len(p)):
            total[f] += multiple * p[f]
    add_follow_of_one(p, tie, share, square)
    return True


@kernel
def items_of_many(c, layout, by_row, before, users, base, mu, work, after):
    """Exact items of client c; `base` is sum p p' over its users plus (reg_item + mu) I."""
    client_indptr, indptr, row_indptr, rows, row_items = layout
    row_sizes, rating_users, extra, pull = by_row
    start = indptr[client_indptr[c]]
    for k in range(len(before)):
        stop = start + row_sizes[row_indptr[c] + k]
        for f in range(before.shape[1]):
            after[k, f] = mu * before[k, f]
        ridge(
            users, rating_users[start:stop], 0, extra[start:stop], pull[start:stop], base, work,
            after[k],
        )  # fmt: skip
        start = stop


@kernel
def descend(q, centre, p, extra, pull, reg, mu, rate):
    """One gradient step of an item on one user's pair, in place."""
    g = (1 + extra) * dot(p, q) - pull
    for f in range(len(q)):
        q[f] -= rate * (g * p[f] + reg * q[f] + mu * (q[f] - centre[f]))


@kernel
def descend_follow(follow, p, reg, mu, rate):
    """The same step of every item that the client does not hold, as a map of the broadcast."""
    scores = np.dot(p, follow)
    for f in range(len(p)):
        for g in range(len(p)):
            follow[f, g] -= rate * (p[f] * scores[g] + (reg + mu) * follow[f, g])
        follow[f, f] += rate * mu


@kernel
def base_of(gram, before, after, follow, full, reg):
    """Sum of q q' over all items as a client has them after an epoch, plus reg I."""
    outside = gram - np.dot(before.T, before)
    if full:
        outside = np.dot(np.dot(follow, outside), follow.T)
    return with_diagonal(outside + np.dot(after.T, after), reg)


@kernel
def subtract(before, follow, full, after):
    """From own items to uploaded rows, in place."""
    if full:
        after -= np.dot(before, follow.T)
    else:
        after -= before


@kernel
def add_upload(items, rows, matrix, full, out):
    """Add one client's upload unless it is broken; returns whether all of it was finite."""
    sums, square, holders = out
    if not (is_finite(rows) and is_finite(matrix)):
        return False
    for k in range(len(items)):
        row, total = rows[k], sums[items[k]]
        holders[items[k]] += 1
        for f in range(len(row)):
            total[f] += row[f]
    if full:
        square += matrix
    return True


# ------------------------------------------------------------------------------ arithmetic


@kernel
def row_buffers(row_indptr, like):
    """Two arrays of as many vectors as any client holds."""
    most = 0
    for c in range(len(row_indptr) - 1):
        most = max(most, row_indptr[c + 1] - row_indptr[c])
    shape = (most, like.shape[1])
    return np.empty(shape, dtype=like.dtype), np.empty(shape, dtype=like.dtype)


@kernel
def gather(vectors, items, out):
    """Copy the items' vectors."""
    for k in range(len(items)):
        v, x = vectors[items[k]], out[k]
        for f in range(len(x)):
            x[f] = v[f]


@kernel
def dot(x, y):
    """Inner product."""
    total = x.dtype.type(0)
    for f in range(len(x)):
        total += x[f] * y[f]
    return total


@kernel
def with_diagonal(matrix, value):
    """A copy of the matrix with `value` added to its diagonal."""
    out = matrix.copy()
    for f in range(len(out)):
        out[f, f] += value
    return out
