"""One epoch of stochastic gradient descent for rating factorisations.

All arrays of one call have one dtype, float32 or float64.
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
def pmf(
    users,
    items,
    targets,
    weights,
    rate,
    P,
    Q,
    reg_user,
    reg_item,
    mean_user,
    mean_item,
):
    """Pass over the ratings in their order by PMF, changing P and Q in place.

    Parameters
    ----------
    users, items : (n,) int32
    targets, weights : (n,) what p_u . q_i is to be, and the weight of each rating
    rate : learning rate
    P, Q : (n_users, width) and (n_items, width)
    reg_user, reg_item : (n_users,) and (n_items,) pull to the prior mean per rating
    mean_user, mean_item : (width,) prior means of P's and Q's rows

    Returns
    -------
    loss : float, the sum of weighted squared errors, each before its update
    """
    one, loss = type(rate)(1), 0.0
    for k in range(len(users)):
        u, i = users[k], items[k]
        p, q = P[u], Q[i]
        error = targets[k] - dot(p, q)
        loss += weights[k] * error * error
        step = step_size(rate, weights[k])
        pull_p, pull_q = step * reg_user[u], step * reg_item[i]
        update(p, q, one - pull_p, one - pull_q, step * error)
        for f in range(len(p)):
            p[f] += pull_p * mean_user[f]
            q[f] += pull_q * mean_item[f]
    return loss


@kernel
def biased_mf(
    users,
    items,
    targets,
    weights,
    rate,
    user_bias,
    item_bias,
    P,
    Q,
    reg_user,
    reg_item,
    reg_user_bias,
    reg_item_bias,
):
    """Pass over the ratings in their order, changing biases and vectors in place.

    Parameters
    ----------
    As in `pmf`, with targets for b_u + b_i + p_u . q_i, and
    user_bias, item_bias : (n_users,) and (n_items,)
    reg_user_bias, reg_item_bias : likewise, pull of the biases to 0 per rating

    Returns
    -------
    loss : float, the sum of weighted squared errors, each before its update
    """
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
def svdpp(
    order,
    indptr,
    items,
    targets,
    weights,
    rate,
    user_bias,
    item_bias,
    P,
    Q,
    Y,
    reg_user,
    reg_item,
    reg_user_bias,
    reg_item_bias,
    reg_implicit,
    x,
    origin,
):
    """Pass over the ratings user by user, changing biases and vectors in place.

    During a user's ratings its whole vector x_u = p_u + |R_u|^-1/2 sum_j y_j moves. At the
    end p_u and, times |R_u|^-1/2, each y_j move as far as it did: that is the sum of their
    gradients, and O(d) a rating. Then their decay over these ratings is applied at once.

    Parameters
    ----------
    order : (n_users,) in which users are visited
    indptr : (n_users + 1,); user u's ratings are indptr[u]:indptr[u + 1]
    Y : (n_items, width) implicit vectors y_j
    reg_implicit : decay of y_j per rating of a user that has rated j
    x, origin : (width,), scratch
    The others as in `biased_mf`.

    Returns
    -------
    loss : float, the sum of weighted squared errors, each before its update
    """
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


@kernel
def implicit_sums(indptr, items, Y, sums):
    """sums[u] = |R_u|^-1/2 sum_{j in R_u} y_j; 0 for a user without ratings."""
    for u in range(len(sums)):
        first, last = indptr[u], indptr[u + 1]
        for f in range(Y.shape[1]):
            sums[u, f] = 0
        for k in range(first, last):
            for f in range(Y.shape[1]):
                sums[u, f] += Y[items[k], f]
        if last > first:
            root = np.sqrt(last - first)
            for f in range(Y.shape[1]):
                sums[u, f] /= root
