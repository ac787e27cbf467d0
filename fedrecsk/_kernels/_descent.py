"""RFRec's steps of descent on rows; see :mod:`~fedrecsk._kernels._lanes`.

They are inlined in their callers, each of which calls them once or twice.
"""

import numpy as np
from llvmlite import ir
from numba import types

from fedrecsk._kernels._jit import intrinsic
from fedrecsk._kernels._lanes import INT32, PLACE, Lanes, Row, chunks, operation, plain_row


def descend_row_plain(x, k, mean, m, square, s, centre, i, partner, p, factors, rule, n):
    """One step of a row on the gradient ``own x[k] + pull (x[k] - centre[i]) + g partner[p]``.

    Parameters
    ----------
    x, k : matrix and row, replaced
    mean, m, square, s : matrices and rows of Adam's moments, replaced; None for the matrices for
        plain gradient descent
    centre, i : matrix and row, or None and anything for zero
    partner, p : matrix and row
    factors : own, the same for column 0, pull, g
    rule : rate, beta_1, 1 - beta_1, beta_2, 1 - beta_2, epsilon, debias
    n : how many numbers of each row count
    """
    own, first, pull, g = factors
    rate, beta_1, new_1, beta_2, new_2, epsilon, debias = rule
    x, partner = plain_row(x, k, n), plain_row(partner, p, n)
    gradient = own * x + g * partner
    gradient[0] = first * x[0] + g * partner[0]
    if centre is not None:
        gradient += pull * (x - plain_row(centre, i, n))
    if mean is None:
        x -= rate * gradient
        return
    mean, square = plain_row(mean, m, n), plain_row(square, s, n)
    mean[:] = beta_1 * mean + new_1 * gradient
    square[:] = beta_2 * square + new_2 * gradient * gradient
    x -= rate * mean / (np.sqrt(square * debias) + epsilon)


@intrinsic(descend_row_plain)
def descend_row(_, x, k, mean, m, square, s, centre, i, partner, p, factors, rule, n):
    """One step of a row on the gradient ``own x[k] + pull (x[k] - centre[i]) + g partner[p]``.

    As :func:`descend_row_plain` says.
    """

    def build(builder, x, mean, square, centre, partner, factors, rule, n):
        for lanes, f in chunks(builder, n, x.type.pointee):
            _descend(lanes, f, x, mean, square, centre, partner, factors, rule)

    kinds = *map(Row, (x, mean, square, centre, partner)), *_numbers(x), PLACE
    return operation("descend_row", types.void, kinds, build, shared=False)


def _numbers(x):
    """Types of `factors` and `rule`."""
    return (types.UniTuple(x.dtype, n) for n in (4, 7))


def _descend(lanes, f, x, mean, square, centre, partner, factors, rule):
    """The step on one chunk of the row, which begins with number f; its new numbers."""
    own, first, pull, g = factors
    times, add, builder = lanes.times, lanes.add, lanes.builder
    old = lanes.load(x, f)
    at_start = builder.icmp_signed("==", f, f.type(0))
    lead = builder.insert_element(
        lanes.splat(own), builder.select(at_start, first, own), ir.Constant(INT32, 0)
    )
    gradient = add(times(lead, old), times(lanes.splat(g), lanes.load(partner, f)))
    if centre is not None:
        # The difference first: it is exactly zero at the centre, and Adam blows up rounding.
        away = lanes.subtract(old, lanes.load(centre, f))
        gradient = add(gradient, times(lanes.splat(pull), away))
    rate, beta_1, new_1, beta_2, new_2, epsilon, debias = map(lanes.splat, rule)
    step = times(rate, gradient)
    if mean is not None:
        first_moment = add(times(beta_1, lanes.load(mean, f)), times(new_1, gradient))
        newest = times(new_2, times(gradient, gradient))
        second_moment = add(times(beta_2, lanes.load(square, f)), newest)
        lanes.store(first_moment, mean, f)
        lanes.store(second_moment, square, f)
        size = add(lanes.root(times(second_moment, debias)), epsilon)
        step = lanes.over(times(rate, first_moment), size)
    new = lanes.subtract(old, step)
    lanes.store(new, x, f)
    return new


def add_change_plain(total, t, x, k, origin, i, clip, n):
    """``total[t] += x[k] - origin[i]`` in the total's type, x clipped first unless clip is None."""
    change = plain_row(x, k, n)
    if clip is not None:
        change = np.clip(change, -clip, clip)
    plain_row(total, t, n)[:] += change.astype(total.dtype) - plain_row(origin, i, n)


@intrinsic(add_change_plain)
def add_change(_, total, t, x, k, origin, i, clip, n):
    """``total[t] += x[k] - origin[i]`` in the total's type, x clipped first unless clip is None."""

    def build(builder, total, x, origin, clip, n):
        for lanes, f in chunks(builder, n, total.type.pointee):
            _add_change(lanes, f, lanes.load(x, f), total, origin, clip)

    kinds = Row(total), Row(x), Row(origin), _limit(clip, x), PLACE
    return operation("add_change", types.void, kinds, build, shared=False)


def _limit(clip, x):
    """Type of `clip`."""
    return clip if isinstance(clip, types.NoneType) else x.dtype


def _add_change(lanes, f, x, total, origin, clip):
    """The same on one chunk, which begins with number f; its lanes have the total's type."""
    if clip is not None:
        x = _clipped(lanes, x, lanes.splat(clip))
    change = lanes.subtract(x, lanes.load(origin, f))
    lanes.store(lanes.add(lanes.load(total, f), change), total, f)


def _clipped(lanes, x, most):
    """NaN stays."""
    builder, least = lanes.builder, lanes.subtract(lanes.constant(0.0), most)
    x = builder.select(builder.fcmp_ordered("<", x, least), least, x)
    return builder.select(builder.fcmp_ordered(">", x, most), most, x)


def step_row_plain(
    x, k, mean, m, square, s, centre, i, partner, p, gradient, g, factors, rule,
    total, t, origin, o, clip, ahead, n,
):  # fmt: skip
    """:func:`descend_row` and :func:`add_change`, and the partner's gradient.

    Before the step, ``gradient[g] += factors[3] x[k]``. Asks memory for rows ``m + ahead`` and
    ``s + ahead`` of the moments.
    """
    plain_row(gradient, g, n)[:] += factors[3] * plain_row(x, k, n)
    descend_row_plain(x, k, mean, m, square, s, centre, i, partner, p, factors, rule, n)
    add_change_plain(total, t, x, k, origin, o, clip, n)


@intrinsic(step_row_plain)
def step_row(
    _, x, k, mean, m, square, s, centre, i, partner, p, gradient, g, factors, rule,
    total, t, origin, o, clip, ahead, n,
):  # fmt: skip
    """:func:`descend_row` and :func:`add_change`, and the partner's gradient, in one pass.

    As :func:`step_row_plain` says.
    """

    def build(
        builder, x, mean, square, centre, partner, gradient, factors, rule,
        total, origin, clip, ahead, n,
    ):  # fmt: skip
        distance = builder.mul(ahead, n)
        for lanes, f in chunks(builder, n, x.type.pointee):
            if mean is not None:
                lanes.fetch(mean, builder.add(f, distance))
                lanes.fetch(square, builder.add(f, distance))
            product = lanes.times(lanes.splat(factors[3]), lanes.load(x, f))
            lanes.store(lanes.add(lanes.load(gradient, f), product), gradient, f)
            new = _descend(lanes, f, x, mean, square, centre, partner, factors, rule)
            sums = Lanes(builder, total.type.pointee, lanes.n)
            _add_change(sums, f, sums.widened(new), total, origin, clip)

    kinds = (
        *map(Row, (x, mean, square, centre, partner, gradient)),
        *_numbers(x),
        Row(total),
        Row(origin),
        _limit(clip, x),
        PLACE,
        PLACE,
    )
    return operation("step_row", types.void, kinds, build, shared=False)
