"""RFRec's local step, for a block of clients.

Vectors have `width` columns. With biases, column 0 of an item is its bias (met by a 1 on the
user's side) and column 0 of a user is the user's bias (met by a 1 on the item's side).
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._kernels._jit import kernel, part
from fedrecsk._kernels._lanes import LANES, add_lanes, gradient_lanes
from fedrecsk._kernels.shared import all_finite


class Vectors(NamedTuple):
    """Vectors and their Adam moments, all of shape (n, width)."""

    now: np.ndarray
    mean: np.ndarray
    square: np.ndarray


class Objective(NamedTuple):
    """How scores become ratings, and the penalties.

    offset : float; sigmoid, biases : bool
    pull : float, lambda
    reg_item, reg_item_bias : (n_items,), penalties on items
    reg_user, reg_user_bias : (n_users,), penalties on users
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
    """Plain gradient descent at `rate` if not adam; else Adam.

    Where all clients step at once, `rate` and `debias` are arrays, (n_clients,): they have the
    corrections of Adam's first and second moment, which depend on a client's number of steps.
    """

    adam: bool
    rate: float
    beta1: float
    beta2: float
    epsilon: float
    debias: float


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
def descend(x, gradient, mean, square, rule):
    """One step of the rule on the vector x with its moments, in place."""
    # Constants of x's own type: a float64 among float32 would halve the vector width.
    real = x.dtype.type
    rate = real(rule.rate)
    if rule.adam:
        beta1, beta2 = real(rule.beta1), real(rule.beta2)
        epsilon, debias = real(rule.epsilon), real(rule.debias)
        new1, new2 = real(1 - rule.beta1), real(1 - rule.beta2)
        for f in range(len(x)):
            mean[f] = beta1 * mean[f] + new1 * gradient[f]
            square[f] = beta2 * square[f] + new2 * gradient[f] * gradient[f]
            x[f] -= rate * mean[f] / (np.sqrt(square[f] * debias) + epsilon)
    else:
        for f in range(len(x)):
            x[f] -= rate * gradient[f]


@part
def begin_with_pull(gradient, item, centre, pull):
    """Begin an item's gradient with the pull towards the server's vector."""
    for f in range(len(gradient)):
        gradient[f] = pull * (item[f] - centre[f])


@kernel
def local_step(
    layout,
    values,
    weights,
    active,
    users,
    held,
    broadcast,
    objective,
    rule,
    senders,
    clip,
    sums,
    holders,
):
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
    senders, clip, sums, holders
        As for :func:`upload`, which adds without a step; here a client's vectors are added
        while they are still in the cache, finite or not.

    Returns
    -------
    loss, weight : sums of w (r - estimate)^2 and of w before the step
    """
    width = users.now.shape[1]
    real = held.now.dtype.type
    pull, offset, biases = real(objective.pull), real(objective.offset), objective.biases
    loss, mass = 0.0, 0.0
    largest = 0
    for c in range(len(active)):
        largest = max(largest, layout.row_indptr[c + 1] - layout.row_indptr[c])
    item_gradient = np.empty((largest, width), dtype=held.now.dtype)
    user_gradient = np.empty((1, width), dtype=held.now.dtype)
    partner = np.empty((1, width), dtype=held.now.dtype)
    for c in range(len(active)):
        if not active[c]:
            continue
        first = layout.row_indptr[c]
        n_rows = layout.row_indptr[c + 1] - first
        own_rule = Rule(
            rule.adam, rule.rate[c], rule.beta1, rule.beta2, rule.epsilon, rule.debias[c]
        )
        # A lone user meets each row once, so its pull is added on the way.
        alone = layout.client_indptr[c + 1] - layout.client_indptr[c] == 1
        if not alone:
            for local in range(n_rows):
                centre = broadcast[layout.row_items[first + local]]
                begin_with_pull(item_gradient[local], held.now[first + local], centre, pull)
        for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
            user = users.now[u]
            level = offset
            for f in range(width):
                partner[0, f] = user[f]
                user_gradient[0, f] = 0
            if biases:
                partner[0, 0] = 1
                level += user[0]
            slope_sum = real(0)
            for k in range(layout.indptr[u], layout.indptr[u + 1]):
                item = held.now[layout.rows[k]]
                score = level
                for f in range(width):
                    score += partner[0, f] * item[f]
                estimate, slope = link(score, objective.sigmoid, real(1))
                error = values[k] - estimate
                loss += weights[k] * error * error
                mass += weights[k]
                g = real(-2) * weights[k] * error * slope
                slope_sum += g
                i = layout.row_items[layout.rows[k]]
                shrink = real(2) * weights[k] * objective.reg_item[i]
                r, row = layout.rows[k] - first, layout.rows[k]
                if alone:
                    factors = pull + shrink, pull, g
                    for f in range(0, width - LANES + 1, LANES):
                        gradient_lanes(
                            item_gradient, r, user_gradient, held.now, row, broadcast, i, partner,
                            f, factors,
                        )  # fmt: skip
                    for f in range(width - width % LANES, width):
                        user_gradient[0, f] += g * item[f]
                        own = (pull + shrink) * item[f] - pull * broadcast[i, f]
                        item_gradient[r, f] = own + g * partner[0, f]
                else:
                    for f in range(width):
                        user_gradient[0, f] += g * item[f]
                        item_gradient[r, f] += g * partner[0, f] + shrink * item[f]
                if biases:
                    extra = objective.reg_item_bias[i] - objective.reg_item[i]
                    item_gradient[r, 0] += real(2) * weights[k] * extra * item[0]
            for f in range(width):
                user_gradient[0, f] += real(2) * objective.reg_user[u] * user[f]
            if biases:
                user_gradient[0, 0] = slope_sum + real(2) * objective.reg_user_bias[u] * user[0]
            descend(user, user_gradient[0], users.mean[u], users.square[u], own_rule)
        span = slice(first, first + n_rows)
        descend(
            held.now[span].ravel(),
            item_gradient[:n_rows].ravel(),
            held.mean[span].ravel(),
            held.square[span].ravel(),
            own_rule,
        )
        if senders[c]:
            add_held(layout.row_items[span], held.now[span], clip, sums, holders)
    return loss, mass


@kernel
def follow(shared, broadcast, pull, rule):
    """The same step for the vector that every client keeps of an item it has not rated."""
    real = shared.now.dtype.type
    gradient = real(pull) * (shared.now - broadcast)
    descend(shared.now.ravel(), gradient.ravel(), shared.mean.ravel(), shared.square.ravel(), rule)


@kernel
def upload(row_indptr, row_items, held, senders, clip, sums, holders):
    """Add up the clipped own item vectors of the senders.

    Parameters
    ----------
    senders : (n_clients,) bool
    clip : float, infinity for none
    sums : (n_items, width) float64, receives the sum of the held vectors
    holders : (n_items,) float64, receives how many of the senders hold each item; or empty
    """
    for c in range(len(senders)):
        if senders[c]:
            span = slice(row_indptr[c], row_indptr[c + 1])
            add_held(row_items[span], held[span], clip, sums, holders)


@kernel
def sound_clients(row_indptr, held, client_indptr, users, sound):
    """Whether each client's own vectors are all finite, into `sound` (n_clients,) bool."""
    for c in range(len(sound)):
        sound[c] = all_finite(held[row_indptr[c] : row_indptr[c + 1]]) and all_finite(
            users[client_indptr[c] : client_indptr[c + 1]]
        )


@part
def add_held(items, vectors, clip, sums, holders):
    """Add the vectors that one client holds of its own."""
    width = vectors.shape[1]
    real = vectors.dtype.type
    for row in range(len(items)):
        i = items[row]
        if len(holders) > 0:
            holders[i] += 1
        if clip < np.inf:
            for f in range(width):
                sums[i, f] += min(max(vectors[row, f], -real(clip)), real(clip))
        else:
            for f in range(0, width - LANES + 1, LANES):
                add_lanes(sums, i, vectors, row, f)
            for f in range(width - width % LANES, width):
                sums[i, f] += vectors[row, f]


@kernel
def solve_users(layout, values, weights, whom, users, items, objective, reg, n_steps):
    """Fit the vectors of these users to their ratings with the items fixed, in place.

    At most `n_steps` Gauss-Newton steps, each halved until the user's objective falls; with
    the identity link the first one is the ridge solution. `whom` has the users' numbers, `reg`
    shape (n_users, width).
    """
    width = users.shape[1]
    partner, x, trial = np.empty(width), np.empty(width), np.empty(width)
    for u in whom:
        for f in range(width):
            x[f] = users[u, f]
        current = user_loss(u, x, layout, values, weights, items, objective, reg, partner)
        for _ in range(n_steps):
            hessian = np.zeros((width, width))
            gradient = np.empty(width)
            for f in range(width):
                hessian[f, f] = reg[u, f] + 1e-9
                gradient[f] = reg[u, f] * x[f]
            for k in range(layout.indptr[u], layout.indptr[u + 1]):
                item = items[layout.row_items[layout.rows[k]]]
                score = user_score(x, item, objective, partner)
                estimate, slope = link(score, objective.sigmoid, 1.0)
                g = -weights[k] * (values[k] - estimate) * slope
                h = weights[k] * slope * slope
                for f in range(width):
                    gradient[f] += g * partner[f]
                    for e in range(width):
                        hessian[f, e] += h * partner[f] * partner[e]
            step = np.linalg.solve(hessian, gradient)
            if np.max(np.abs(step)) < 1e-7:
                break
            for halving in range(8):
                for f in range(width):
                    trial[f] = x[f] - step[f] / 2**halving
                loss = user_loss(u, trial, layout, values, weights, items, objective, reg, partner)
                if loss <= current:
                    for f in range(width):
                        x[f] = trial[f]
                    current = loss
                    break
        for f in range(width):
            users[u, f] = x[f]


@part
def user_score(x, item, objective, partner):
    """Score of an item for user x; `partner` receives the score's gradient in x."""
    score = float(objective.offset)
    for f in range(len(x)):
        partner[f] = item[f]
    if objective.biases:
        score += item[0]
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
        item = items[layout.row_items[layout.rows[k]]]
        score = user_score(x, item, objective, partner)
        estimate = link(score, objective.sigmoid, 1.0)[0]
        loss += weights[k] * (values[k] - estimate) ** 2
    return loss
