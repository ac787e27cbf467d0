"""One epoch of stochastic gradient descent for rating factorisations.

All floats of one call have one dtype, float32 or float64. The targets of ratings are what scores
should be; `decays` are strengths per rating, of each user and of each item. Epochs return the sum
of weighted squared errors, each before its update.
"""

import numpy as np

from fedrecsk._utils.jit import inline, kernel


@inline
def dot(p, q):
    """Return p . q."""
    total = p.dtype.type(0)
    for f in range(len(p)):
        total += p[f] * q[f]
    return total


@inline
def add(y, x, keep):
    """y = keep * y + x."""
    for f in range(len(y)):
        y[f] = keep * y[f] + x[f]


@inline
def update(p, q, keep_p, keep_q, a):
    """p, q = keep_p * p + a * q, keep_q * q + a * p, both from the old values."""
    for f in range(len(p)):
        old_p, old_q = p[f], q[f]
        p[f] = keep_p * old_p + a * old_q
        q[f] = keep_q * old_q + a * old_p


@inline
def step_size(rate, weight):
    """rate * weight / (1 + 2 rate weight): however heavy the rating, at most 1/2."""
    # A step of 1/2 on both biases removes the whole error; a longer one would overshoot.
    x = rate * weight
    return x / (x + x + type(x)(1))


@kernel
def pmf(ratings, rate, P, Q, decays, prior_mean):
    """Pass over the ratings by PMF, changing P and Q, whose vectors decay to their prior means.

    These are `prior_mean` in the first number of users and the second of items, and 0 elsewhere.
    """
    users, items, targets, weights = ratings
    reg_user, reg_item = decays
    one, loss, second = type(rate)(1), 0.0, min(1, P.shape[1] - 1)
    for k in range(len(users)):
        u, i = users[k], items[k]
        p, q = P[u], Q[i]
        error = targets[k] - dot(p, q)
        loss += weights[k] * error * error
        step = step_size(rate, weights[k])
        pull_p, pull_q = step * reg_user[u], step * reg_item[i]
        update(p, q, one - pull_p, one - pull_q, step * error)
        p[0] += pull_p * prior_mean
        q[second] += pull_q * prior_mean
    return loss


@kernel
def biased_mf(ratings, rate, state, decays):
    """Pass over the ratings by biased MF, changing biases and vectors."""
    users, items, targets, weights = ratings
    user_bias, item_bias, P, Q = state
    reg_user, reg_item, reg_user_bias, reg_item_bias = decays
    one, loss = type(rate)(1), 0.0
    for k in range(len(users)):
        u, i = users[k], items[k]
        p, q = P[u], Q[i]
        error = targets[k] - user_bias[u] - item_bias[i] - dot(p, q)
        loss += weights[k] * error * error
        step = step_size(rate, weights[k])
        user_bias[u] += step * (error - reg_user_bias[u] * user_bias[u])
        item_bias[i] += step * (error - reg_item_bias[i] * item_bias[i])
        update(p, q, one - step * reg_user[u], one - step * reg_item[i], step * error)
    return loss


@kernel
def svdpp(order, indptr, ratings, rate, state, decays, reg_implicit):
    """Pass over the users in this order by SVD++, changing biases and vectors.

    During a user's ratings ``indptr[u]:indptr[u + 1]`` its whole vector
    x_u = p_u + |R_u|^-1/2 sum_j y_j moves. At the end p_u and, times |R_u|^-1/2, each y_j move as
    far as it did: that is the sum of their gradients, and O(d) a rating. Then their decay over
    these ratings is applied at once.
    """
    items, targets, weights = ratings
    user_bias, item_bias, P, Q, Y = state
    reg_user, reg_item, reg_user_bias, reg_item_bias = decays
    x, origin = np.empty_like(P[0]), np.empty_like(P[0])
    one, loss = type(rate)(1), 0.0
    for u in order:
        first, last = indptr[u], indptr[u + 1]
        if first == last:
            continue
        scale = one / np.sqrt(type(rate)(last - first))
        for f in range(len(x)):
            x[f] = 0
        for k in range(first, last):
            add(x, Y[items[k]], one)
        for f in range(len(x)):
            x[f] = P[u, f] + scale * x[f]
            origin[f] = x[f]
        steps = type(rate)(0)
        for k in range(first, last):
            i = items[k]
            q = Q[i]
            error = targets[k] - user_bias[u] - item_bias[i] - dot(x, q)
            loss += weights[k] * error * error
            step = step_size(rate, weights[k])
            steps += step
            user_bias[u] += step * (error - reg_user_bias[u] * user_bias[u])
            item_bias[i] += step * (error - reg_item_bias[i] * item_bias[i])
            update(x, q, one, one - step * reg_item[i], step * error)
        keep = np.exp(-steps * reg_user[u])
        for f in range(len(x)):
            x[f] -= origin[f]
            P[u, f] = keep * P[u, f] + x[f]
            x[f] *= scale
        keep = np.exp(-steps * reg_implicit)
        for k in range(first, last):
            add(Y[items[k]], x, keep)
    return loss
