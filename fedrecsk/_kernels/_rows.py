"""Operations on the first n numbers of rows; see :mod:`~fedrecsk._kernels._lanes`."""

import numpy as np
from llvmlite import ir
from numba import types

from fedrecsk._kernels._jit import intrinsic
from fedrecsk._kernels._lanes import (
    FAST,
    PLACE,
    Lanes,
    Row,
    chunks,
    loop,
    operation,
    plain_row,
    word,
)

# --------------------------------------------------------------------------------- memory


def fetch_row_plain(x, k, n):
    """Ask memory for ``x[k]``, which will be needed soon; x may be None, and k no row of it."""


@intrinsic(fetch_row_plain)
def fetch_row(_, x, k, n):
    """Ask memory for ``x[k]``, which will be needed soon; x may be None, and k no row of it."""

    def build(builder, x, n):
        if x is None:
            return
        # Once in each line of a cache.
        step = word(16 if x.type.pointee == ir.FloatType() else 8)
        with loop(builder, word(0), n, step) as f:
            Lanes(builder, x.type.pointee, 1).fetch(x, f)

    # A call would be longer than it.
    return operation("fetch_row", types.void, (Row(x), PLACE), build, shared=False)


def copy_row_plain(out, i, x, k, n):
    """``out[i] = x[k]``."""
    plain_row(out, i, n)[:] = plain_row(x, k, n)


@intrinsic(copy_row_plain)
def copy_row(_, out, i, x, k, n):
    """``out[i] = x[k]``."""

    def build(builder, out, x, n):
        for lanes, f in chunks(builder, n, x.type.pointee):
            lanes.store(lanes.load(x, f), out, f)

    return operation("copy_row", types.void, (Row(out), Row(x), PLACE), build)


def fill_row_plain(out, i, number, n):
    """``out[i] = number``."""
    plain_row(out, i, n)[:] = number


@intrinsic(fill_row_plain)
def fill_row(_, out, i, number, n):
    """``out[i] = number``."""

    def build(builder, out, number, n):
        for lanes, f in chunks(builder, n, number.type):
            lanes.store(lanes.splat(number), out, f)

    return operation("fill_row", types.void, (Row(out), out.dtype, PLACE), build)


def is_finite_row_plain(x, k, n):
    """Whether no number of ``x[k]`` is NaN or infinite."""
    return bool(np.isfinite(plain_row(x, k, n)).all())


@intrinsic(is_finite_row_plain)
def is_finite_row(_, x, k, n):
    """Whether no number of ``x[k]`` is NaN or infinite."""

    def build(builder, x, n):
        lane = x.type.pointee
        bits, exponent = (32, 0x7F800000) if lane == ir.FloatType() else (64, 0x7FF << 52)
        # A number is NaN or infinite if all bits of its exponent are 1.
        broken, total = [], ir.IntType(bits)(0)
        for lanes, f in chunks(builder, n, total.type, broken):
            ones = lanes.constant(exponent)
            number = Lanes(builder, lane, lanes.n).load(x, f)
            seen = builder.and_(builder.bitcast(number, lanes.vector), ones)
            is_broken = builder.zext(builder.icmp_unsigned("==", seen, ones), lanes.vector)
            broken[-1].join(builder.or_, is_broken)
        for part in broken:
            total = builder.or_(total, part.lanes.folded(part.get(), builder.or_))
        return builder.icmp_unsigned("==", total, total.type(0))

    return operation("is_finite_row", types.boolean, (Row(x), PLACE), build)


# ------------------------------------------------------------------------------- products


def dot_rows_plain(x, k, y, i, n):
    """``x[k] . y[i]``, of one type."""
    return plain_row(x, k, n) @ plain_row(y, i, n)


@intrinsic(dot_rows_plain)
def dot_rows(_, x, k, y, i, n):
    """``x[k] . y[i]``, of one type."""

    return operation("dot_rows", x.dtype, (Row(x), Row(y), PLACE), _dot)


def dot_and_fetch_plain(x, k, y, i, ahead, n):
    """``x[k] . y[i]``, of one type; asks memory for ``y[i + ahead]``, a row of it or not."""
    return dot_rows_plain(x, k, y, i, n)


@intrinsic(dot_and_fetch_plain)
def dot_and_fetch(_, x, k, y, i, ahead, n):
    """``x[k] . y[i]``, of one type; asks memory for ``y[i + ahead]``, a row of it or not."""

    def build(builder, x, y, ahead, n):
        distance = builder.mul(ahead, n)
        return _dot(builder, x, y, n, lambda lanes, f: lanes.fetch(y, builder.add(f, distance)))

    # Within its caller, and in one loop, it takes a third off a round of RFRec.
    kinds = Row(x), Row(y), PLACE, PLACE
    return operation("dot_and_fetch", x.dtype, kinds, build, shared=False)


def _dot(builder, x, y, n, meanwhile=None):
    lane, sums = x.type.pointee, []
    for lanes, f in chunks(builder, n, lane, sums):
        if meanwhile is not None:
            meanwhile(lanes, f)
        sums[-1].join(lanes.add, lanes.times(lanes.load(x, f), lanes.load(y, f)))
    total = lane(0.0)
    for part in sums:
        one = part.lanes.folded(part.get(), part.lanes.add)
        total = builder.fadd(total, one, flags=FAST)
    return total


def scale_row_plain(out, i, number, x, k, n):
    """``out[i] = number x[k]``; one may be the other."""
    plain_row(out, i, n)[:] = number * plain_row(x, k, n)


@intrinsic(scale_row_plain)
def scale_row(_, out, i, number, x, k, n):
    """``out[i] = number x[k]``; one may be the other."""

    def build(builder, out, number, x, n):
        for lanes, f in chunks(builder, n, x.type.pointee):
            lanes.store(lanes.times(lanes.splat(number), lanes.load(x, f)), out, f)

    return operation("scale_row", types.void, (Row(out), x.dtype, Row(x), PLACE), build)


def add_row_plain(total, i, number, x, k, n):
    """``total[i] += number x[k]``; the total may be of the wider type."""
    plain_row(total, i, n)[:] += number * plain_row(x, k, n)


@intrinsic(add_row_plain)
def add_row(_, total, i, number, x, k, n):
    """``total[i] += number x[k]``; the total may be of the wider type."""

    def build(builder, total, number, x, n):
        for lanes, f in chunks(builder, n, x.type.pointee):
            product = lanes.times(lanes.splat(number), lanes.load(x, f))
            wide = Lanes(builder, total.type.pointee, lanes.n)
            wide.store(wide.add(wide.load(total, f), wide.widened(product)), total, f)

    return operation("add_row", types.void, (Row(total), x.dtype, Row(x), PLACE), build)


def weigh_row_plain(left, i, right, j, total, t, x, k, weight, pull, n):
    """``left[i] = x[k]``, ``right[j] = weight x[k]``, ``total[t] += pull x[k]``, of one type."""
    row = plain_row(x, k, n)
    plain_row(left, i, n)[:] = row
    plain_row(right, j, n)[:] = weight * row
    plain_row(total, t, n)[:] += pull * row


@intrinsic(weigh_row_plain)
def weigh_row(_, left, i, right, j, total, t, x, k, weight, pull, n):
    """``left[i] = x[k]``, ``right[j] = weight x[k]``, ``total[t] += pull x[k]``, of one type."""

    def build(builder, left, right, total, x, weight, pull, n):
        for lanes, f in chunks(builder, n, x.type.pointee):
            row = lanes.load(x, f)
            lanes.store(row, left, f)
            lanes.store(lanes.times(lanes.splat(weight), row), right, f)
            more = lanes.times(lanes.splat(pull), row)
            lanes.store(lanes.add(lanes.load(total, f), more), total, f)

    kinds = Row(left), Row(right), Row(total), Row(x), x.dtype, x.dtype, PLACE
    return operation("weigh_row", types.void, kinds, build)


def add_inverse_plain(total, i, number, x, k, shift, n):
    """``total[i] += number / (x[k] + shift)``, of one type."""
    plain_row(total, i, n)[:] += number / (plain_row(x, k, n) + shift)


@intrinsic(add_inverse_plain)
def add_inverse(_, total, i, number, x, k, shift, n):
    """``total[i] += number / (x[k] + shift)``, of one type."""

    def build(builder, total, number, x, shift, n):
        for lanes, f in chunks(builder, n, x.type.pointee):
            size = lanes.add(lanes.load(x, f), lanes.splat(shift))
            ratio = lanes.over(lanes.splat(number), size)
            lanes.store(lanes.add(lanes.load(total, f), ratio), total, f)

    kinds = Row(total), x.dtype, Row(x), x.dtype, PLACE
    return operation("add_inverse", types.void, kinds, build)
