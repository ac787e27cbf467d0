"""PrivFedEB: what clients send, scaled so that no client sends more than a vector of norm 1.

Everything is in float64. Ratings are counted from the center of the scale, in units. Arguments are
those of FedEB's kernels, without variances of items, implicit parts and precisions of users.
"""

import numpy as np

from fedrecsk._utils.jit import inline, kernel
from fedrecsk._utils.shared_kernels import add_row, dot_rows
from fedrecsk.federated._fedeb_kernels import clear, infer, multiply


@kernel
def first(layout, ratings, shrinkage, largest, share, own, out):
    """Write all clients' first uploads: counts and residuals by item, of norm at most `share`.

    Column 0 of ``out.scales`` receives the sums of squared counts; `own` (most, 2) is scratch.
    """
    for c in range(len(out.senders)):
        start = layout.row_indptr[c]
        n_own, total = layout.row_indptr[c + 1] - start, 0.0
        clear(own, n_own)
        for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
            total += add_first(u, start, layout, ratings, shrinkage, largest, own)
        scale = 1 / max(1.0, np.sqrt(norm_squared(own, n_own)))
        out.scales[c % len(out.scales), 0] += scale * scale * total
        send(c, share * scale, layout, own, out)


@inline
def add_first(u, start, layout, ratings, shrinkage, largest, own):
    """Add a user's counts and residuals, of norm 1, to its client's rows; return squared counts."""
    total, total_weight = 0.0, shrinkage
    for t in range(layout.indptr[u], layout.indptr[u + 1]):
        total += ratings.weights[t] * ratings.values[t]
        total_weight += ratings.weights[t]
    mean, counts, squares = total / total_weight, 0.0, 0.0
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


@kernel
def update(layout, ratings, active, model, row_weights, emphasis, floor, share, work, users, out):
    """Write the active clients' uploads and users' vectors; return squared error and its weight.

    `row_weights` are a_i, `emphasis` is the factor of the gradient in q_i, `floor` the least mean
    square of a user's row that its upload is divided by, and `share` the largest norm of an upload.
    """
    total, total_weight, width, n_sent = 0.0, 0.0, users.shape[1], out.items.shape[1]
    for c in range(len(active)):
        if not active[c]:
            continue
        first_row = layout.row_indptr[c]
        n_own = layout.row_indptr[c + 1] - first_row
        clear(work.items, n_own)
        for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
            start, stop = layout.indptr[u], layout.indptr[u + 1]
            _, _, squares, weight = infer(start, stop, layout, ratings, model, work)
            total += squares
            total_weight += weight
            for k in range(width):
                users[u, k] = work.matrix[k, width]
            if out.senders[c]:
                multiply(stop - start, width, emphasis, work)
                add_user(start, stop, first_row, layout, ratings, row_weights, floor, n_sent, work)
        if out.senders[c]:
            norm = np.sqrt(norm_squared(work.items, n_own))
            send(c, share / max(1.0, norm) if norm < np.inf else norm, layout, work.items, out)
    return total, total_weight


@inline
def add_user(start, stop, first_row, layout, ratings, row_weights, floor, width, work):
    """Add the first columns of a user's gradient, of norm at most 1, to its client's own rows."""
    norm, least = 0.0, 0.0
    for t in range(start, stop):
        size = ratings.weights[t] * row_weights[layout.row_items[layout.rows[t]]]
        norm += size * size * dot_rows(work.products, t - start, work.products, t - start, width)
        least += size * size * floor
    scale = 1 / np.sqrt(max(norm, least)) if norm < np.inf else norm
    for t in range(start, stop):
        size = ratings.weights[t] * row_weights[layout.row_items[layout.rows[t]]]
        row = np.int64(layout.rows[t]) - first_row
        add_row(work.items, row, scale * size, work.products, t - start, width)


@kernel
def project(layout, active, directions, row_weights, position, own, out):
    """Write where the active clients' users stand along `directions`, in the rows of their items.

    User u's position is the sum of its items' rows of `directions`; the upload repeats it for each
    item, times a_i, and has norm 1. `position` and `own` are scratch.
    """
    width = len(position)
    for c in range(len(active)):
        if not (active[c] and out.senders[c]):
            continue
        start = layout.row_indptr[c]
        n_own = layout.row_indptr[c + 1] - start
        clear(own, n_own)
        for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
            position[:] = 0
            squares, length = 0.0, 0.0
            for t in range(layout.indptr[u], layout.indptr[u + 1]):
                i = layout.row_items[layout.rows[t]]
                squares += row_weights[i] ** 2
                for k in range(width):
                    position[k] += directions[i, k]
            for k in range(width):
                length += position[k] ** 2
            norm = np.sqrt(squares * length)
            for t in range(layout.indptr[u], layout.indptr[u + 1]):
                row = layout.rows[t] - start
                size = row_weights[layout.row_items[layout.rows[t]]] / norm if norm > 0 else 0.0
                for k in range(width):
                    own[row, k] += size * position[k]
        norm = np.sqrt(norm_squared(own, n_own))
        send(c, 1 / max(1.0, norm) if norm < np.inf else norm, layout, own, out)


@inline
def norm_squared(matrix, n):
    """Return the sum of the squares of the first n rows."""
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
        add_row(out.items, np.int64(out.slots[start + row]), scale, own, row, out.items.shape[1])
