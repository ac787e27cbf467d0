"""RFRec's local step, for a block of clients.

Vectors have `width` columns. With biases, column 0 of an item is its bias (met by a 1 on the
user's side) and column 0 of a user is the user's bias (met by a 1 on the item's side).
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._utils.jit import inline, inline_early, kernel
from fedrecsk._utils.shared_kernels import ONLY, add_row, all_finite, dot_rows, fill_row


class Vectors(NamedTuple):
    """Vectors of shape (n, width), and their Adam moments; None for plain gradient descent."""

    now: np.ndarray
    mean: np.ndarray | None
    square: np.ndarray | None


class Objective(NamedTuple):
    """How scores become ratings, and the penalties.

    level : float; sigmoid, biases : bool
    prox : float
    reg_item, reg_item_bias : (n_items,), penalties on items and on their column 0
    reg_user, reg_user_bias : (n_users,), penalties on users and on their column 0
    """

    level: float
    sigmoid: bool
    biases: bool
    prox: float
    reg_item: np.ndarray
    reg_item_bias: np.ndarray
    reg_user: np.ndarray
    reg_user_bias: np.ndarray


class Rule(NamedTuple):
    """Adam's step; plain gradient descent, where vectors have no moments, uses `rate` alone.

    debias1, debias2 : (n_clients,), ``1 - beta ** number of steps``
    """

    rate: float
    beta1: float
    beta2: float
    epsilon: float
    debias1: np.ndarray
    debias2: np.ndarray


class Totals(NamedTuple):
    """Where the vectors of rated items are added up.

    senders : (n_clients,) bool
    is_finite : (n_clients,) bool, receives which active clients' vectors are all finite
    sums : (n_items, width) float64, of these senders
    counts : (n_items,) float64, how many of them have rated each item
    """

    senders: np.ndarray
    is_finite: np.ndarray
    sums: np.ndarray
    counts: np.ndarray


class Scratch(NamedTuple):
    """Scratch of :func:`step`.

    estimates, slopes : (longest,), of a user's ratings; derivatives of its errors by their scores
    partner, gradient : (1, width), what a user multiplies items with; the user's gradient
    items : (most, width), gradients of a client's items
    prox : (most,), `prox` for items whose gradient lacks the proximal term
    """

    estimates: np.ndarray
    slopes: np.ndarray
    partner: np.ndarray
    gradient: np.ndarray
    items: np.ndarray
    prox: np.ndarray


def scratch(layout, held):
    """Return scratch for any client of the layout."""
    width, dtype = held.now.shape[1], held.now.dtype
    longest = int(np.diff(layout.indptr).max(initial=0))
    most = int(np.diff(layout.row_indptr).max(initial=0))
    return Scratch(
        *np.zeros((2, longest), dtype),
        *np.zeros((2, 1, width), dtype),
        np.zeros((most, width), dtype),
        np.zeros(most, dtype),
    )


@kernel
def step(
    layout,
    values,
    weights,
    active,
    users,
    held,
    broadcast,
    objective,
    rule,
    work,
    clip,
    totals,
):
    """Step every active client's users and rated items, in place, and add up the senders' items.

    The objective of a client is sum_r w [(r - link(level + b_u + b_i + p.q))^2
    + reg_item |q_i|^2 + reg_item_bias b_i^2] + sum_u [reg_user |p_u|^2 + reg_user_bias b_u^2]
    + prox / 2 |V - broadcast|^2, and all its gradients are taken at the same point. Returns sums of
    w (r - estimate)^2 and of w before the step. Numbers are clipped to `clip`, if any, before they
    are added up, if there are `totals`.
    """
    real, width = held.now.dtype.type, held.now.shape[1]
    loss, total_weight = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        first, n = layout.row_indptr[c], layout.row_indptr[c + 1] - layout.row_indptr[c]
        gradient = work.items[:n].reshape(-1)
        for k in range(n * width):
            gradient[k] = real(0)
        for r in range(n):
            work.prox[r] = real(objective.prox)
        for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
            squares, weight, slope = find_slopes(
                u, layout, values, weights, users, held, objective, work
            )
            loss += squares
            total_weight += weight
            add_gradients(u, first, layout, weights, users, held, broadcast, objective, work)
            if objective.biases:
                bias_penalty = real(2) * objective.reg_user_bias[u]
                work.gradient[0, 0] = slope + bias_penalty * users.now[u, 0]
            descend(users.now, users.mean, users.square, u, u + 1, work.gradient, rule, c)
        descend(held.now, held.mean, held.square, first, first + n, work.items, rule, c)
        if totals is not None:
            add_own(c, layout, users.now, held.now, clip, totals)
    return loss, total_weight


@inline_early
def find_slopes(u, layout, values, weights, users, held, objective, work):
    """Set user u's slopes and partner; return sums of losses, weights and slopes."""
    real, width = held.now.dtype.type, users.now.shape[1]
    start, stop = layout.indptr[u], layout.indptr[u + 1]
    # Slices, because LLVM gathers what begins at a number whose sign it does not know.
    rows, values, weights = layout.rows[start:stop], values[start:stop], weights[start:stop]
    level = real(objective.level)
    for f in range(width):
        work.partner[0, f] = users.now[u, f]
    if objective.biases:
        work.partner[0, 0] = 1
        level += users.now[u, 0]
    for k in range(len(rows)):
        work.estimates[k] = level + dot_rows(work.partner, ONLY, held.now, np.int64(rows[k]), width)
    if objective.sigmoid:
        for k in range(len(rows)):
            work.estimates[k] = real(1) / (real(1) + np.exp(-work.estimates[k]))
    for k in range(len(rows)):
        estimate = work.estimates[k]
        slope = estimate * (real(1) - estimate) if objective.sigmoid else real(1)
        work.slopes[k] = real(-2) * weights[k] * (values[k] - estimate) * slope
    # Loops that add up store nothing: see the test of what depends on where arrays lie in memory.
    loss, weight, total = real(0), real(0), real(0)
    for k in range(len(rows)):
        error = values[k] - work.estimates[k]
        loss += weights[k] * error * error
        weight += weights[k]
        total += work.slopes[k]
    return loss, weight, total


@inline_early
def add_gradients(u, first, layout, weights, users, held, broadcast, objective, work):
    """Set user u's gradient, and add its share to those of its client's items."""
    real, width, start = held.now.dtype.type, held.now.shape[1], layout.indptr[u]
    fill_row(work.gradient, ONLY, real(0), width)
    add_row(work.gradient, ONLY, real(2) * objective.reg_user[u], users.now, u, width)
    for k in range(start, layout.indptr[u + 1]):
        row, slope = np.int64(layout.rows[k]), work.slopes[k - start]
        add_row(work.gradient, ONLY, slope, held.now, row, width)
        i, r = layout.row_items[row], row - first
        reg, prox = real(2) * weights[k] * objective.reg_item[i], work.prox[r]
        for f in range(width):
            x = held.now[row, f]
            # The difference first: it is exactly zero at the broadcast.
            away = x - broadcast[i, f]
            work.items[r, f] += slope * work.partner[0, f] + reg * x + prox * away
        bias_reg = real(2) * weights[k] * objective.reg_item_bias[i]
        work.items[r, 0] += (bias_reg - reg) * held.now[row, 0]
        work.prox[r] = real(0)


@inline
def descend(now, mean, square, first, last, gradient, rule, c):
    """Step some rows of client c's vectors along the first rows of the gradient."""
    # All rows as one: a loop over a single row is too short for vector instructions.
    x, g = now[first:last].reshape(-1), gradient[: last - first].reshape(-1)
    # Constants of their own type: a float64 among float32 would halve the vector width.
    real = x.dtype.type
    if mean is None:
        rate = real(rule.rate)
        for k in range(len(x)):
            x[k] -= rate * g[k]
        return
    m, s = mean[first:last].reshape(-1), square[first:last].reshape(-1)
    rate, debias = real(rule.rate / rule.debias1[c]), real(1 / rule.debias2[c])
    beta1, beta2 = real(rule.beta1), real(rule.beta2)
    new1, new2 = real(1 - rule.beta1), real(1 - rule.beta2)
    epsilon = real(rule.epsilon)
    for k in range(len(x)):
        first_moment = beta1 * m[k] + new1 * g[k]
        second_moment = beta2 * s[k] + new2 * g[k] * g[k]
        m[k], s[k] = first_moment, second_moment
        x[k] -= rate * first_moment / (np.sqrt(second_moment * debias) + epsilon)


@kernel
def add_up(layout, active, users, held, clip, totals):
    """Add up the senders' items, of the active clients."""
    for c in range(len(active)):
        if active[c]:
            add_own(c, layout, users, held, clip, totals)


@inline_early
def add_own(c, layout, users, held, clip, totals):
    """Add client c's rated items, clipped, if it sends and its vectors are all finite."""
    first, last = layout.row_indptr[c], layout.row_indptr[c + 1]
    user, end = layout.client_indptr[c], layout.client_indptr[c + 1]
    totals.is_finite[c] = all_finite(held, first, last) and all_finite(users, user, end)
    if not (totals.senders[c] and totals.is_finite[c]):
        return
    for row in range(first, last):
        i = np.int64(layout.row_items[row])
        totals.counts[i] += 1
        if clip is None:
            add_row(totals.sums, i, held.dtype.type(1), held, row, held.shape[1])
        else:
            most = held.dtype.type(clip)
            for f in range(held.shape[1]):
                totals.sums[i, f] += min(max(held[row, f], -most), most)
