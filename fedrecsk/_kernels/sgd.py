"""One epoch of stochastic gradient descent for rating factorisations.

Vectors are rows of C-ordered matrices whose width is a multiple of `LANES`; columns beyond
the factors are zero and stay so. All arrays of one call have one dtype, float32 or float64.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from fedrecsk._kernels._jit import intrinsic, kernel, part

LANES = 8
_FAST = ("reassoc", "contract", "nsz")
_INT32 = ir.IntType(32)

# Left to itself LLVM vectorises only loops of 32 and more, or unrolls short ones into scalars:
# at 20 factors that is half as fast as these functions.


def _vectors(context, builder, signature, args):
    """Data pointers of the first two arguments, their length and the vector type."""
    p, q = (context.make_array(signature.args[j])(context, builder, args[j]) for j in (0, 1))
    vector = ir.VectorType(context.get_value_type(signature.args[0].dtype), LANES)
    return p.data, q.data, cgutils.unpack_tuple(builder, p.shape)[0], vector


def _every_lane_block(builder, n):
    zero, step = ir.Constant(n.type, 0), ir.Constant(n.type, LANES)
    return cgutils.for_range_slice(builder, zero, n, step, inc=True)


def _load(builder, data, k, vector):
    place = builder.bitcast(builder.gep(data, [k]), vector.as_pointer())
    value = builder.load(place, typ=vector)
    value.align = 4
    return place, value


def dot_plain(p, q):
    """p . q for two vectors of one dtype."""
    return p @ q


@intrinsic(dot_plain)
def dot(typingctx, p, q):
    """p . q for two vectors of one dtype."""

    def codegen(context, builder, signature, args):
        p, q, n, vector = _vectors(context, builder, signature, args)
        total = cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * LANES))
        with _every_lane_block(builder, n) as (k, _):
            product = builder.fmul(
                _load(builder, p, k, vector)[1], _load(builder, q, k, vector)[1], flags=_FAST
            )
            so_far = builder.load(total, typ=vector)
            builder.store(builder.fadd(so_far, product, flags=_FAST), total)
        lanes, width = builder.load(total, typ=vector), LANES
        while width > 1:
            width //= 2
            mask = ir.VectorType(_INT32, width)
            low, high = (
                builder.shuffle_vector(lanes, lanes, ir.Constant(mask, list(range(s, s + width))))
                for s in (0, width)
            )
            lanes = builder.fadd(low, high, flags=_FAST)
        return builder.extract_element(lanes, ir.Constant(_INT32, 0))

    return p.dtype(p, q), codegen


def _spread(builder, number, vector):
    """`number` in every lane."""
    lane = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(_INT32, 0))
    first = ir.Constant(ir.VectorType(_INT32, LANES), [0] * LANES)
    return builder.shuffle_vector(lane, lane, first)


def add_plain(y, x, keep):
    """y = keep * y + x."""
    y[:] = keep * y + x


@intrinsic(add_plain)
def add(typingctx, y, x, keep):
    """y = keep * y + x."""

    def codegen(context, builder, signature, args):
        y, x, n, vector = _vectors(context, builder, signature, args)
        keep = _spread(builder, args[2], vector)
        with _every_lane_block(builder, n) as (k, _):
            place, old = _load(builder, y, k, vector)
            kept = builder.fmul(keep, old, flags=_FAST)
            new = builder.fadd(kept, _load(builder, x, k, vector)[1], flags=_FAST)
            builder.store(new, place).align = 4
        return context.get_dummy_value()

    return types.void(y, x, y.dtype), codegen


def _store_updated(context, builder, signature, args):
    """Code of `update` and, with four more arguments, of `update_towards`."""
    p, q, n, vector = _vectors(context, builder, signature, args)

    def combined(*terms):
        total = None
        for number, values in terms:
            product = builder.fmul(number, values, flags=_FAST)
            total = product if total is None else builder.fadd(total, product, flags=_FAST)
        return total

    numbers = args[2 : 7 if len(args) > 5 else 5]
    keep_p, keep_q, a, *pulls = (_spread(builder, number, vector) for number in numbers)
    with _every_lane_block(builder, n) as (k, _):
        place_p, old_p = _load(builder, p, k, vector)
        place_q, old_q = _load(builder, q, k, vector)
        terms_p, terms_q = [(keep_p, old_p), (a, old_q)], [(keep_q, old_q), (a, old_p)]
        for terms, pull, j in zip((terms_p, terms_q), pulls, (7, 8), strict=False):
            goal = context.make_array(signature.args[j])(context, builder, args[j])
            terms.append((pull, _load(builder, goal.data, k, vector)[1]))
        builder.store(combined(*terms_p), place_p).align = 4
        builder.store(combined(*terms_q), place_q).align = 4
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
