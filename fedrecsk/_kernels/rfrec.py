"""RFRec's local step, for a block of clients.

Vectors have `width` columns. With biases, column 0 of an item is its bias (met by a 1 on the
user's side) and column 0 of a user is the user's bias (met by a 1 on the item's side).
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._kernels._descent import add_change, descend_row, step_row
from fedrecsk._kernels._jit import kernel, part
from fedrecsk._kernels._lapack import solve_positive
from fedrecsk._kernels._logistic import logistic, room
from fedrecsk._kernels._rows import add_row, dot_and_fetch, fetch_row

# Of large catalogues, memory is asked for the item that comes so many ratings later.
SOON = 8
# Own rows are taken in turn, and memory is asked for the one that comes so many rows later: the
# processor does not see by itself that another row's numbers go on from here.
AHEAD = 32


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
    """Scratch of :func:`step_lone` and :func:`step_groups`.

    slopes : (room(longest),), derivatives of a user's errors by their scores
    user : (2, width), what a user multiplies items with; its gradient
    nowhere : (1, width) float64, sums that are not read
    items : (most, width), gradients of a client's items but for what follows
    own : (most, 2), factors of the items themselves in their gradients: of all columns; of column 0
    """

    slopes: np.ndarray
    user: np.ndarray
    nowhere: np.ndarray
    items: np.ndarray
    own: np.ndarray


def scratch(layout, held, *, lone):
    """Scratch for any client of the layout, or only for those of one user."""
    width, dtype = held.now.shape[1], held.now.dtype
    longest = int(np.diff(layout.indptr).max(initial=0))
    most = 0 if lone else int(np.diff(layout.row_indptr).max(initial=0))
    return Scratch(
        np.zeros(room(longest), dtype),
        np.zeros((2, width), dtype),
        np.zeros((1, width)),
        np.zeros((most, width), dtype),
        np.zeros((most, 2), dtype),
    )


@part
def link(score, sigmoid, one):
    """Estimate and slope at `score`: the logistic function, or the identity.

    `one` is 1 in the type to compute in.
    """
    if sigmoid:
        estimate = one / (one + np.exp(-score))
        return estimate, estimate * (one - estimate)
    return score, one


@part
def numbers_of(rule, rate, debias, real):
    """A rule as :func:`descend_row` takes it, in the type of the vectors."""
    beta1, beta2 = real(rule.beta1), real(rule.beta2)
    new1, new2 = real(1 - rule.beta1), real(1 - rule.beta2)
    return real(rate), beta1, new1, beta2, new2, real(rule.epsilon), real(debias)


@part
def slopes_of(u, layout, values, weights, users, held, objective, work):
    """The derivatives of user u's squared errors by their scores, left in `work`.

    So is what the user multiplies items with, and 0 as its gradient.

    Returns
    -------
    loss, weight, slope : sums of w (r - estimate)^2, of w and of the derivatives
    """
    real = held.now.dtype.type
    start, stop = layout.indptr[u], layout.indptr[u + 1]
    level = real(objective.offset)
    for f in range(users.now.shape[1]):
        work.user[0, f] = users.now[u, f]
        work.user[1, f] = 0
    if objective.biases:
        work.user[0, 0] = 1
        level += users.now[u, 0]
    width = users.now.shape[1]
    for k in range(start, stop):
        row = layout.rows[k]
        score = dot_and_fetch(work.user, 0, held.now, row, AHEAD, width)
        work.slopes[k - start] = level + score
    sigmoid = objective.sigmoid
    if sigmoid:
        logistic(work.slopes, stop - start)
    # Loops that add up store nothing: see the test of what depends on where arrays lie in memory.
    loss, weight, total = 0.0, 0.0, real(0)
    for k in range(start, stop):
        error = values[k] - work.slopes[k - start]
        loss += weights[k] * error * error
        weight += weights[k]
    for k in range(start, stop):
        estimate = work.slopes[k - start]
        slope = estimate * (real(1) - estimate) if sigmoid else real(1)
        work.slopes[k - start] = real(-2) * weights[k] * (values[k] - estimate) * slope
    for k in range(stop - start):
        total += work.slopes[k]
    return loss, weight, total


@part
def step_user(u, users, objective, slope, work, rule):
    """A user's step, once its gradient is complete but for penalties."""
    real = users.now.dtype.type
    if objective.biases:
        work.user[1, 0] = slope
    own = real(2) * objective.reg_user[u], real(2) * objective.reg_user_bias[u], real(0), real(1)
    descend_row(
        users.now, u, users.mean, u, users.square, u, None, 0, work.user, 1, own, rule,
        users.now.shape[1],
    )  # fmt: skip


@kernel
def step_lone(
    layout, values, weights, active, users, held, broadcast, objective, rule, totals, work
):
    """Step every active client's user and rated items, in place, and add up the uploads.

    The objective of a client is sum_r w [(r - link(offset + b_u + b_i + p.q))^2
    + reg_item |q_i|^2 + reg_item_bias b_i^2] + sum_u [reg_user |p_u|^2 + reg_user_bias b_u^2]
    + pull / 2 |V - broadcast|^2, and all its gradients are taken at the same point.

    Parameters
    ----------
    layout : shared.Layout
    values, weights : (n_ratings,)
    active : (n_clients,) bool, clients of one user
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
    real = held.now.dtype.type
    pull, n_rows, width = real(objective.pull), len(layout.row_items), held.now.shape[1]
    loss, mass = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        numbers = numbers_of(rule, rule.rate[c], rule.debias[c], real)
        u, sends = layout.client_indptr[c], totals.senders[c]
        sums = totals.sums if sends else work.nowhere
        squares, weight, slope = slopes_of(u, layout, values, weights, users, held, objective, work)
        loss += squares
        mass += weight
        start = layout.indptr[u]
        for k in range(start, layout.indptr[u + 1]):
            row, g, shrink = layout.rows[k], work.slopes[k - start], real(2) * weights[k]
            i = layout.row_items[row]
            soon = layout.row_items[min(row + SOON, n_rows - 1)]
            fetch_row(broadcast, soon, width)
            fetch_row(totals.origin, soon, width)
            fetch_row(sums, soon, width)
            own, first = shrink * objective.reg_item[i], shrink * objective.reg_item_bias[i]
            factors = own, first, pull, g
            step_row(
                held.now, row, held.mean, row, held.square, row, broadcast, i, work.user, 0,
                work.user, 1, factors, numbers, sums, i if sends else 0, totals.origin, i,
                totals.clip, AHEAD, width,
            )  # fmt: skip
        step_user(u, users, objective, slope, work, numbers)
    return loss, mass


@kernel
def step_groups(
    layout, values, weights, active, users, held, broadcast, objective, rule, totals, work
):
    """As :func:`step_lone`, for clients of any number of users."""
    real = held.now.dtype.type
    pull, one, width = real(objective.pull), real(1), held.now.shape[1]
    loss, mass = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        numbers = numbers_of(rule, rule.rate[c], rule.debias[c], real)
        first, last = layout.row_indptr[c], layout.row_indptr[c + 1]
        for r in range(last - first):
            for f in range(work.items.shape[1]):
                work.items[r, f] = 0
            work.own[r, 0], work.own[r, 1] = 0, 0
        for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
            squares, weight, slope = slopes_of(
                u, layout, values, weights, users, held, objective, work
            )
            loss += squares
            mass += weight
            start = layout.indptr[u]
            for k in range(start, layout.indptr[u + 1]):
                row, g, shrink = layout.rows[k], work.slopes[k - start], real(2) * weights[k]
                i, r = layout.row_items[row], row - first
                add_row(work.user, 1, g, held.now, row, width)
                add_row(work.items, r, g, work.user, 0, width)
                work.own[r, 0] += shrink * objective.reg_item[i]
                work.own[r, 1] += shrink * objective.reg_item_bias[i]
            step_user(u, users, objective, slope, work, numbers)
        for row in range(first, last):
            i, r = layout.row_items[row], row - first
            own = work.own[r, 0], work.own[r, 1], pull, one
            descend_row(
                held.now, row, held.mean, row, held.square, row, broadcast, i, work.items, r, own,
                numbers, width,
            )  # fmt: skip
            if totals.senders[c]:
                add_change(totals.sums, i, held.now, row, totals.origin, i, totals.clip, width)
    return loss, mass


@kernel
def follow(shared, broadcast, pull, rule):
    """The same step for the vector that every client keeps of an item it has not rated."""
    real = shared.now.dtype.type
    numbers = numbers_of(rule, rule.rate, rule.debias, real)
    tie = real(0), real(0), real(pull), real(0)
    for i in range(len(broadcast)):
        descend_row(
            shared.now, i, shared.mean, i, shared.square, i, broadcast, i, broadcast, i, tie,
            numbers, broadcast.shape[1],
        )  # fmt: skip


@kernel
def upload(row_indptr, row_items, held, totals):
    """Add up the clipped own item vectors of the senders."""
    for c in range(len(totals.senders)):
        if totals.senders[c]:
            for row in range(row_indptr[c], row_indptr[c + 1]):
                i = row_items[row]
                add_change(
                    totals.sums, i, held, row, totals.origin, i, totals.clip, held.shape[1]
                )  # fmt: skip


@kernel
def sound_clients(row_indptr, held, client_indptr, users, sound):
    """Whether each client's own vectors are all finite, into `sound` (n_clients,) bool."""
    for c in range(len(sound)):
        n_broken = count_broken(held, row_indptr[c], row_indptr[c + 1])
        n_broken += count_broken(users, client_indptr[c], client_indptr[c + 1])
        sound[c] = n_broken == 0


@part
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


@part
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


@part
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


@part
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
