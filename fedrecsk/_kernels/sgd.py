"""One epoch of stochastic gradient descent for rating factorisations.

Vectors are rows of C-ordered matrices whose width is a multiple of `LANES`; columns beyond
the factors are zero and stay so. All arrays of one call have one dtype, float32 or float64.
"""

import numpy as np
from numba import types
from numba.core import cgutils

from fedrecsk._kernels._jit import intrinsic, kernel, part
from fedrecsk._kernels._lanes import Lanes, Sum, loop, word

LANES = 8

# Left to itself LLVM vectorises only loops of 32 and more, or unrolls short ones into scalars:
# at 20 factors that is half as fast as these functions. They are of whole vectors, not of rows,
# and all chunks are alike, so that a rating's steps need no calls.


def _vectors(context, builder, signature, args):
    """Where the vectors among the arguments begin, with their length and their lanes."""
    arrays = [
        context.make_array(kind)(context, builder, value)
        for kind, value in zip(signature.args, args, strict=True)
        if isinstance(kind, types.Array)
    ]
    lanes = Lanes(builder, context.get_value_type(signature.args[0].dtype), LANES)
    return (
        [array.data for array in arrays],
        cgutils.unpack_tuple(builder, arrays[0].shape)[0],
        lanes,
    )


def _every_block(builder, n):
    return loop(builder, word(0), n, word(LANES))


def dot_plain(p, q):
    """p . q for two vectors of one dtype."""
    return p @ q


@intrinsic(dot_plain)
def dot(typingctx, p, q):
    """p . q for two vectors of one dtype."""

    def codegen(context, builder, signature, args):
        (p, q), n, lanes = _vectors(context, builder, signature, args)
        total = Sum(lanes)
        with _every_block(builder, n) as k:
            total.join(lanes.add, lanes.times(lanes.load(p, k), lanes.load(q, k)))
        return lanes.folded(total.get(), lanes.add)

    return p.dtype(p, q), codegen


def add_plain(y, x, keep):
    """y = keep * y + x."""
    y[:] = keep * y + x


@intrinsic(add_plain)
def add(typingctx, y, x, keep):
    """y = keep * y + x."""

    def codegen(context, builder, signature, args):
        (y, x), n, lanes = _vectors(context, builder, signature, args)
        keep = lanes.splat(args[2])
        with _every_block(builder, n) as k:
            kept = lanes.times(keep, lanes.load(y, k))
            lanes.store(lanes.add(kept, lanes.load(x, k)), y, k)
        return context.get_dummy_value()

    return types.void(y, x, y.dtype), codegen


def _store_updated(context, builder, signature, args):
    """Code of `update` and, with four more arguments, of `update_towards`."""
    (p, q, *goals), n, lanes = _vectors(context, builder, signature, args)
    numbers = args[2 : 7 if goals else 5]
    keep_p, keep_q, a, *pulls = map(lanes.splat, numbers)
    with _every_block(builder, n) as k:
        old_p, old_q = lanes.load(p, k), lanes.load(q, k)
        new_p = lanes.add(lanes.times(keep_p, old_p), lanes.times(a, old_q))
        new_q = lanes.add(lanes.times(keep_q, old_q), lanes.times(a, old_p))
        if goals:
            towards_p, towards_q = (
                lanes.times(pull, lanes.load(goal, k))
                for pull, goal in zip(pulls, goals, strict=True)
            )
            new_p, new_q = lanes.add(new_p, towards_p), lanes.add(new_q, towards_q)
        lanes.store(new_p, p, k)
        lanes.store(new_q, q, k)
    return context.get_dummy_value()


def update_plain(p, q, keep_p, keep_q, a):
    """p, q = keep_p * p + a * q, keep_q * q + a * p, both from the old values."""
    p[:], q[:] = keep_p * p + a * q, keep_q * q + a * p


@intrinsic(update_plain)
def update(typingctx, p, q, keep_p, keep_q, a):
    """p, q = keep_p * p + a * q, keep_q * q + a * p, both from the old values."""
    return types.void(p, q, *[p.dtype] * 3), _store_updated


def update_towards_plain(p, q, keep_p, keep_q, a, pull_p, pull_q, goal_p, goal_q):
    """The same plus pull_p * goal_p and pull_q * goal_q, with vectors as goals."""
    update_plain(p, q, keep_p, keep_q, a)
    p += pull_p * goal_p
    q += pull_q * goal_q


@intrinsic(update_towards_plain)
def update_towards(typingctx, p, q, keep_p, keep_q, a, pull_p, pull_q, goal_p, goal_q):
    """The same plus pull_p * goal_p and pull_q * goal_q, with vectors as goals."""
    return types.void(p, q, *[p.dtype] * 5, goal_p, goal_q), _store_updated


@part
def step_size(rate, weight):
    """rate * weight / (1 + 2 rate weight): however heavy the rating, at most 1/2."""
    # A step of 1/2 on both biases removes the whole error; a longer one would overshoot.
    x = rate * weight
    return x / (x + x + type(x)(1))


@kernel
def pmf(
    start,
    stop,
    loss,
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
    """A piece of a pass of PMF over the ratings in their order; P and Q change in place.

    Parameters
    ----------
    start, stop : the piece is the ratings start:stop
    loss : float, that of the pieces before
    users, items : (n,) int32
    targets, weights : (n,) what p_u . q_i is to be, and the weight of each rating
    rate : learning rate
    P, Q : (n_users, width) and (n_items, width)
    reg_user, reg_item : (n_users,) and (n_items,) pull to the prior mean per rating
    mean_user, mean_item : (width,) prior means of P's and Q's rows

    Returns
    -------
    loss : float, with the sum of weighted squared errors, each before its update
    """
    one = type(rate)(1)
    for k in range(start, stop):
        u, i = users[k], items[k]
        p, q = P[u], Q[i]
        error = targets[k] - dot(p, q)
        loss += weights[k] * error * error
        step = step_size(rate, weights[k])
        pull_p, pull_q = step * reg_user[u], step * reg_item[i]
        update_towards(
            p, q, one - pull_p, one - pull_q, step * error, pull_p, pull_q, mean_user, mean_item
        )
    return loss


@kernel
def biased_mf(
    start,
    stop,
    loss,
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
    """A piece of a pass of biased MF over the ratings in their order; biases and vectors in place.

    Parameters
    ----------
    As in `pmf`, with targets for b_u + b_i + p_u . q_i, and
    user_bias, item_bias : (n_users,) and (n_items,)
    reg_user_bias, reg_item_bias : likewise, pull of the biases to 0 per rating

    Returns
    -------
    loss : float, with the sum of weighted squared errors, each before its update
    """
    one = type(rate)(1)
    for k in range(start, stop):
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
    start,
    stop,
    loss,
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
    """A piece of a pass of SVD++, user by user; biases and vectors change in place.

    During a user's ratings its whole vector x_u = p_u + |R_u|^-1/2 sum_j y_j moves. At the
    end p_u and, times |R_u|^-1/2, each y_j move as far as it did: that is the sum of their
    gradients, and O(d) a rating. Then their decay over these ratings is applied at once.

    Parameters
    ----------
    start, stop : the piece is the users order[start:stop]
    loss : float, that of the pieces before
    order : (n_users,) in which users are visited
    indptr : (n_users + 1,); user u's ratings are indptr[u]:indptr[u + 1]
    Y : (n_items, width) implicit vectors y_j
    reg_implicit : decay of y_j per rating of a user that has rated j
    x, origin : (width,), scratch
    The others as in `biased_mf`.

    Returns
    -------
    loss : float, with the sum of weighted squared errors, each before its update
    """
    one = type(rate)(1)
    for visit in range(start, stop):
        u = order[visit]
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
