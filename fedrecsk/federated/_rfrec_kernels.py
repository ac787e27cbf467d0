"""RFRec's local step, for a block of clients.

Vectors have `width` columns. With biases, column 0 of an item is its bias (met by a 1 on the
user's side) and column 0 of a user is the user's bias (met by a 1 on the item's side).
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._utils.jit import inline, kernel
from fedrecsk._utils.shared_kernels import add_row, dot_rows, fill_row, solve_positive


class Vectors(NamedTuple):
    """Vectors of shape (n, width), and their Adam moments; None for plain gradient descent."""

    now: np.ndarray
    mean: np.ndarray | None
    square: np.ndarray | None


class Objective(NamedTuple):
    """How scores become ratings, and the penalties.

    offset : float; sigmoid, biases : bool
    pull : float, lambda
    reg_item, reg_item_bias : (n_items,), penalties on items and on their column 0
    reg_user, reg_user_bias : (n_users,), penalties on users and on their column 0
    """

    offset: float
    sigmoid: bool
    biases: bool
    pull: float
    reg_item: np.ndarray
    reg_item_bias: np.ndarray
    reg_user: np.ndarray
    reg_user_bias: np.ndarray


class Rule(NamedTuple):
    """Adam's step; plain gradient descent, where vectors have no moments, uses `rate` alone.

    Where all clients step at once, `rate` and `debias` are arrays, (n_clients,): they have the
    corrections of Adam's first and second moment, which depend on a client's number of steps.
    """

    rate: float
    beta1: float
    beta2: float
    epsilon: float
    debias: float


class Totals(NamedTuple):
    """Where uploads are added up.

    senders : (n_clients,) bool
    clip : float, or None for no clipping
    origin : (n_items, width), what each number is counted from
    sums : (n_items, width) float64, receives the senders' own vectors less their origin
    """

    senders: np.ndarray
    clip: float | None
    origin: np.ndarray
    sums: np.ndarray


class Scratch(NamedTuple):
    """Scratch of :func:`step`.

    slopes : (longest,), derivatives of a user's errors by their scores
    partner, gradient : (1, width), what a user multiplies items with; the user's gradient
    items : (most, width), gradients of a client's items
    """

    slopes: np.ndarray
    partner: np.ndarray
    gradient: np.ndarray
    items: np.ndarray


def scratch(layout, held):
    """Return scratch for any client of the layout."""
    width, dtype = held.now.shape[1], held.now.dtype
    longest = int(np.diff(layout.indptr).max(initial=0))
    most = int(np.diff(layout.row_indptr).max(initial=0))
    return Scratch(
        np.zeros(longest, dtype),
        *np.zeros((2, 1, width), dtype),
        np.zeros((most, width), dtype),
    )


@inline
def link(score, sigmoid, one):
    """Estimate and slope at `score`: the logistic function, or the identity.

    `one` is 1 in the type to compute in.
    """
    if sigmoid:
        estimate = one / (one + np.exp(-score))
        return estimate, estimate * (one - estimate)
    return score, one


@inline
def descend(now, mean, square, first, n, gradient, rate, debias, rule):
    """Step n rows of the vectors, from the first on, along the first n rows of the gradient."""
    # All rows as one: a loop over a single row is too short for vector instructions.
    x, g = now[first : first + n].reshape(-1), gradient[:n].reshape(-1)
    # Constants of their own type: a float64 among float32 would halve the vector width.
    real = now.dtype.type
    rate = real(rate)
    if mean is None:
        for k in range(len(x)):
            x[k] -= rate * g[k]
        return
    m, s = mean[first : first + n].reshape(-1), square[first : first + n].reshape(-1)
    beta1, beta2 = real(rule.beta1), real(rule.beta2)
    new1, new2 = real(1 - rule.beta1), real(1 - rule.beta2)
    epsilon, debias = real(rule.epsilon), real(debias)
    for k in range(len(x)):
        first_moment = beta1 * m[k] + new1 * g[k]
        second_moment = beta2 * s[k] + new2 * g[k] * g[k]
        m[k], s[k] = first_moment, second_moment
        x[k] -= rate * first_moment / (np.sqrt(second_moment * debias) + epsilon)


@inline
def slopes_of(u, layout, values, weights, users, held, objective, work):
    """Find the derivatives of user u's squared errors by their scores, and set its partner.

    Returns
    -------
    loss, weight, slope : sums of w (r - estimate)^2, of w and of the derivatives
    """
    real, width = held.now.dtype.type, users.now.shape[1]
    start, stop = layout.indptr[u], layout.indptr[u + 1]
    level = real(objective.offset)
    for f in range(width):
        work.partner[0, f] = users.now[u, f]
    if objective.biases:
        work.partner[0, 0] = 1
        level += users.now[u, 0]
    # Loops that add up store nothing: see the test of what depends on where arrays lie in memory.
    for k in range(start, stop):
        score = level + dot_rows(work.partner, 0, held.now, layout.rows[k], width)
        work.slopes[k - start] = link(score, objective.sigmoid, real(1))[0]
    loss, weight, total = 0.0, 0.0, real(0)
    for k in range(start, stop):
        error = values[k] - work.slopes[k - start]
        loss += weights[k] * error * error
        weight += weights[k]
    for k in range(start, stop):
        estimate = work.slopes[k - start]
        slope = estimate * (real(1) - estimate) if objective.sigmoid else real(1)
        work.slopes[k - start] = real(-2) * weights[k] * (values[k] - estimate) * slope
    for k in range(stop - start):
        total += work.slopes[k]
    return loss, weight, total


@inline
def differentiate(u, first, alone, layout, weights, held, broadcast, objective, work):
    """Add user u's share to its gradient and to its client's items', the first in row `first`.

    Where it is the client's only user, its items' gradients are complete after that.
    """
    real, width, start = held.now.dtype.type, held.now.shape[1], layout.indptr[u]
    pull = real(objective.pull)
    for k in range(start, layout.indptr[u + 1]):
        row, g, shrink = layout.rows[k], work.slopes[k - start], real(2) * weights[k]
        i, r = layout.row_items[row], row - first
        own, own_bias = shrink * objective.reg_item[i], shrink * objective.reg_item_bias[i]
        if alone:
            for f in range(width):
                x = held.now[row, f]
                work.gradient[0, f] += g * x
                # The difference first: it is exactly zero at the broadcast.
                away = x - broadcast[i, f]
                work.items[r, f] = own * x + g * work.partner[0, f] + pull * away
        else:
            for f in range(width):
                x = held.now[row, f]
                work.gradient[0, f] += g * x
                work.items[r, f] += own * x + g * work.partner[0, f]
        work.items[r, 0] += (own_bias - own) * held.now[row, 0]


@inline
def step_user(u, users, objective, slope, work, rate, debias, rule):
    """Step user u, whose gradient is complete but for penalties; `slope` is its bias's."""
    real = users.now.dtype.type
    reg, reg_bias = real(2) * objective.reg_user[u], real(2) * objective.reg_user_bias[u]
    add_row(work.gradient, 0, reg, users.now, u, users.now.shape[1])
    if objective.biases:
        work.gradient[0, 0] = slope + reg_bias * users.now[u, 0]
    descend(users.now, users.mean, users.square, u, 1, work.gradient, rate, debias, rule)


@kernel
def step(layout, values, weights, active, users, held, broadcast, objective, rule, totals, work):
    """Step every active client's users and rated items, in place, and add up the uploads.

    The objective of a client is sum_r w [(r - link(offset + b_u + b_i + p.q))^2
    + reg_item |q_i|^2 + reg_item_bias b_i^2] + sum_u [reg_user |p_u|^2 + reg_user_bias b_u^2]
    + pull / 2 |V - broadcast|^2, and all its gradients are taken at the same point.

    Parameters
    ----------
    layout : shared.Layout
    values, weights : (n_ratings,)
    active : (n_clients,) bool
    users, held : Vectors, of the users and of the clients' own items
    broadcast : (n_items, width), the server's item vectors
    objective : Objective
    rule : Rule, with arrays
    totals : Totals
        As for :func:`upload`, which adds without a step; here a client's vectors are added
        while they are still in the cache, finite or not.
    work : Scratch

    Returns
    -------
    loss, weight : sums of w (r - estimate)^2 and of w before the step
    """
    pull, width = held.now.dtype.type(objective.pull), held.now.shape[1]
    loss, mass = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        rate, debias = rule.rate[c], rule.debias[c]
        first, last = layout.row_indptr[c], layout.row_indptr[c + 1]
        users_of = layout.client_indptr[c], layout.client_indptr[c + 1]
        alone = users_of[1] - users_of[0] == 1
        if not alone:
            for row in range(first, last):
                i, r = layout.row_items[row], row - first
                for f in range(width):
                    work.items[r, f] = pull * (held.now[row, f] - broadcast[i, f])
        for u in range(users_of[0], users_of[1]):
            fill_row(work.gradient, 0, held.now.dtype.type(0), width)
            squares, weight, slope = slopes_of(
                u, layout, values, weights, users, held, objective, work
            )
            loss += squares
            mass += weight
            differentiate(u, first, alone, layout, weights, held, broadcast, objective, work)
            step_user(u, users, objective, slope, work, rate, debias, rule)
        descend(
            held.now, held.mean, held.square, first, last - first, work.items, rate, debias, rule
        )
        if totals.senders[c]:
            add_held(first, last, layout.row_items, held.now, totals.clip, totals)
    return loss, mass


@kernel
def follow(shared, broadcast, pull, rule, gradient):
    """The same step for the vector that every client keeps of an item it has not rated."""
    pull = broadcast.dtype.type(pull)
    for i in range(broadcast.shape[0]):
        for f in range(broadcast.shape[1]):
            gradient[i, f] = pull * (shared.now[i, f] - broadcast[i, f])
    n = len(broadcast)
    descend(
        shared.now, shared.mean, shared.square, 0, n, gradient, rule.rate, rule.debias, rule
    )  # fmt: skip


@kernel
def upload(row_indptr, row_items, held, totals):
    """Add up the clipped own item vectors of the senders."""
    for c in range(len(totals.senders)):
        if totals.senders[c]:
            add_held(row_indptr[c], row_indptr[c + 1], row_items, held, totals.clip, totals)


@inline
def add_held(first, last, row_items, held, clip, totals):
    """Add the clipped own item vectors of a client, its rows first to last, less the origin."""
    sums, origin, width = totals.sums, totals.origin, held.shape[1]
    for row in range(first, last):
        i = row_items[row]
        if clip is None:
            for f in range(width):
                sums[i, f] += np.float64(held[row, f]) - np.float64(origin[i, f])
        else:
            most = held.dtype.type(clip)
            for f in range(width):
                x = min(max(held[row, f], -most), most)
                sums[i, f] += np.float64(x) - np.float64(origin[i, f])


@kernel
def sound_clients(row_indptr, held, client_indptr, users, is_finite):
    """Whether each client's own vectors are all finite, into `is_finite` (n_clients,) bool."""
    for c in range(len(is_finite)):
        n_broken = count_broken(held, row_indptr[c], row_indptr[c + 1])
        n_broken += count_broken(users, client_indptr[c], client_indptr[c + 1])
        is_finite[c] = n_broken == 0


@inline
def count_broken(matrix, first, last):
    """How many numbers of some rows are NaN or infinite."""
    n_broken = 0
    for row in range(first, last):
        for f in range(matrix.shape[1]):
            # A comparison, because `reassoc` folds x - x whether or not x is NaN.
            n_broken += not abs(matrix[row, f]) < np.inf
    return n_broken


class Newton(NamedTuple):
    """Scratch of :func:`solve_users`: float64 of shape (width, width), (1, width) and (width,)."""

    hessian: np.ndarray
    step: np.ndarray
    x: np.ndarray
    trial: np.ndarray
    partner: np.ndarray

    @classmethod
    def of(cls, width):
        """For vectors of this width."""
        rows = np.zeros((4, width))
        return cls(np.zeros((width, width)), rows[:1], *rows[1:].copy())


@kernel
def solve_users(layout, values, weights, whom, users, items, objective, reg, n_steps, work):
    """Fit the vectors of these users to their ratings with the items fixed, in place.

    At most `n_steps` Gauss-Newton steps, each halved until the user's objective falls; with
    the identity link the first one is the ridge solution. `whom` has the users' numbers, `reg`
    shape (n_users, width).
    """
    width, x, trial = users.shape[1], work.x, work.trial
    for n in range(len(whom)):
        u = whom[n]
        for f in range(width):
            x[f] = users[u, f]
        current = user_loss(u, x, layout, values, weights, items, objective, reg, work.partner)
        for _ in range(n_steps):
            newton_step(u, layout, values, weights, items, objective, reg, work)
            longest = 0.0
            for f in range(width):
                longest = max(longest, abs(work.step[0, f]))
            if longest < 1e-7:
                break
            share = 1.0
            for _ in range(8):
                for f in range(width):
                    trial[f] = x[f] - share * work.step[0, f]
                loss = user_loss(
                    u, trial, layout, values, weights, items, objective, reg, work.partner
                )
                if loss <= current:
                    for f in range(width):
                        x[f] = trial[f]
                    current = loss
                    break
                share /= 2
        for f in range(width):
            users[u, f] = x[f]


@inline
def newton_step(u, layout, values, weights, items, objective, reg, work):
    """The Gauss-Newton step of user u, left in ``work.step``."""
    width, x, partner = len(work.x), work.x, work.partner
    for f in range(width):
        work.step[0, f] = reg[u, f] * x[f]
        for e in range(width):
            work.hessian[f, e] = 0
        work.hessian[f, f] = reg[u, f]
    for k in range(layout.indptr[u], layout.indptr[u + 1]):
        score = user_score(x, items, layout.row_items[layout.rows[k]], objective, partner)
        estimate, slope = link(score, objective.sigmoid, 1.0)
        g = -weights[k] * (values[k] - estimate) * slope
        h = weights[k] * slope * slope
        for f in range(width):
            work.step[0, f] += g * partner[f]
            for e in range(width):
                work.hessian[f, e] += h * partner[f] * partner[e]
    largest = 0.0
    for f in range(width):
        largest = max(largest, work.hessian[f, f])
    for f in range(width):
        # Above the rounding of a sum that is not of full rank.
        work.hessian[f, f] += 1e-9 + 1e-14 * largest
    solve_positive(work.hessian, work.step)


@inline
def user_score(x, items, i, objective, partner):
    """Score of item i for user x; `partner` receives the score's gradient in x."""
    score = float(objective.offset)
    for f in range(len(x)):
        partner[f] = items[i, f]
    if objective.biases:
        score += partner[0]
        partner[0] = 1
    for f in range(len(x)):
        score += x[f] * partner[f]
    return score


@inline
def user_loss(u, x, layout, values, weights, items, objective, reg, partner):
    """User u's regularised sum of squared errors at x."""
    loss = 0.0
    for f in range(len(x)):
        loss += reg[u, f] * x[f] * x[f]
    for k in range(layout.indptr[u], layout.indptr[u + 1]):
        score = user_score(x, items, layout.row_items[layout.rows[k]], objective, partner)
        estimate = link(score, objective.sigmoid, 1.0)[0]
        loss += weights[k] * (values[k] - estimate) ** 2
    return loss
