"""Rows of arrays as LLVM vectors: sixteen neighbours at once, then four, then one by one.

Rows have some 20 to 64 numbers. A compiler that does not know whether two rows overlap checks it
before every such loop, which costs as much as the loop and takes long to compile; these functions
promise that it does not matter. Arrays are C-contiguous. The k-th row of a matrix, or of a stack
of them, counted through, begins at its first column, and that of a flat array with number k; `n`
is how many numbers count. Each function stands below its plain Python.
"""

from contextlib import contextmanager

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError

from fedrecsk._kernels._jit import intrinsic

CHUNKS = 16, 4, 1
# Shape of a tile of an outer product: rows, and the bytes of its columns.
TILE, TILE_BYTES = 8, 64
PLACE = types.intp
_FAST = "reassoc", "contract", "nsz"
_INT32 = ir.IntType(32)


# ------------------------------------------------------------------------ building blocks


class Lanes:
    """So many lanes of one type in a builder."""

    def __init__(self, builder, lane, n):
        self.builder, self.lane, self.n = builder, lane, n
        self.vector = ir.VectorType(lane, n)

    def load(self, row, f):
        """Numbers f, f + 1, ... of a row, as lanes of this type."""
        stored = ir.VectorType(row.type.pointee, self.n)
        vector = self.builder.load(self._place(row, f, stored))
        vector.align = 4
        return vector if stored == self.vector else self.builder.fpext(vector, self.vector)

    def store(self, vector, row, f):
        """The inverse."""
        self.builder.store(vector, self._place(row, f, self.vector)).align = 4

    def _place(self, row, f, vector):
        return self.builder.bitcast(self.builder.gep(row, [f]), vector.as_pointer())

    def splat(self, number):
        """The number in every lane."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, number, ir.Constant(_INT32, 0))
        zeros = ir.Constant(ir.VectorType(_INT32, self.n), [0] * self.n)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def constant(self, number):
        """The same in every lane, known here."""
        return ir.Constant(self.vector, [number] * self.n)

    def add(self, x, y):
        """The sum, lane by lane."""
        return self.builder.fadd(x, y, flags=_FAST)

    def subtract(self, x, y):
        """The difference, lane by lane."""
        return self.builder.fsub(x, y, flags=_FAST)

    def times(self, x, y):
        """The product, lane by lane."""
        return self.builder.fmul(x, y, flags=_FAST)

    def folded(self, vector, join):
        """All lanes joined to one."""
        n = self.n
        while n > 1:
            n //= 2
            halves = (list(range(start, start + n)) for start in (0, n))
            low, high = (
                self.builder.shuffle_vector(
                    vector, vector, ir.Constant(ir.VectorType(_INT32, n), half)
                )
                for half in halves
            )
            vector = join(low, high)
        return self.builder.extract_element(vector, ir.Constant(_INT32, 0))


@contextmanager
def _loop(builder, start, stop, step):
    """What is built inside is run for each place."""
    before = builder.basic_block
    body, end = builder.append_basic_block("rows"), builder.append_basic_block("rows.end")
    builder.cbranch(builder.icmp_signed("<", start, stop), body, end)
    builder.position_at_end(body)
    place = builder.phi(start.type)
    place.add_incoming(start, before)
    yield place
    following = builder.add(place, step)
    place.add_incoming(following, builder.basic_block)
    builder.cbranch(builder.icmp_signed("<", following, stop), body, end)
    builder.position_at_end(end)


def _chunks(builder, n, lane, sums=None):
    """Yields (Lanes, place) of each chunk of a row; what the caller builds is the loops' body.

    `sums` receives what may be added up: for each size of chunk a place that is zero before.
    """
    start = n.type(0)
    for size in CHUNKS:
        stop, lanes = builder.and_(n, n.type(-size)), Lanes(builder, lane, size)
        if sums is not None:
            sums.append((lanes, cgutils.alloca_once_value(builder, lanes.constant(0))))
        with _loop(builder, start, stop, n.type(size)) as f:
            yield lanes, f
        start = stop


def _of_rows(name, returns, kinds, build):
    """What an intrinsic has to return: its signature, and how to call what `build` builds.

    ``build(builder, *arguments)`` is called once for all calls on the same types, so that they
    share the code. Its arguments are those of the intrinsic, with a pointer to a row instead of a
    matrix and the row's number.
    """
    for kind in kinds:
        if isinstance(kind, types.Array) and kind.layout != "C":
            raise TypingError(f"rows are those of C-contiguous arrays, not of {kind}")

    def generate(context, builder, signature, values):
        arguments, rest = [], zip(signature.args, values, strict=True)
        for kind, value in rest:
            if isinstance(kind, types.Array):
                matrix = context.make_array(kind)(context, builder, value)
                place = next(rest)[1]
                if kind.ndim > 1:
                    width = cgutils.unpack_tuple(builder, matrix.shape)[-1]
                    place = builder.mul(place, width)
                value = builder.gep(matrix.data, [place])
            arguments.append(value)
        function = _shared(context, builder, name, returns, arguments, build)
        result = builder.call(function, arguments)
        return context.get_dummy_value() if returns is types.void else result

    return returns(*kinds), generate


def _shared(context, builder, name, returns, arguments, build):
    """The function of this name for arguments of these types."""
    result = ir.VoidType() if returns is types.void else context.get_value_type(returns)
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    whole = "_".join(["fedrecsk", name, *(str(argument.type) for argument in arguments)])
    function = cgutils.get_or_insert_function(builder.module, kind, whole.replace("*", "s"))
    if function.is_declaration:
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        inner = ir.IRBuilder(function.append_basic_block("entry"))
        answer = build(inner, *function.args)
        inner.ret_void() if answer is None else inner.ret(answer)
    return function


def _plain(stack, k, n):
    """The row as plain Python sees it."""
    width = 1 if stack.ndim == 1 else stack.shape[-1]
    # A narrow integer of NumPy would overflow.
    return stack.reshape(-1)[int(k) * width :][:n]


# ------------------------------------------------------------------------------- one row


def _dot_rows(x, k, y, i, n):
    """``x[k] . y[i]``, of one type."""
    return _plain(x, k, n) @ _plain(y, i, n)


@intrinsic(_dot_rows)
def dot_rows(_, x, k, y, i, n):
    """``x[k] . y[i]``, of one type."""

    def build(builder, x, y, n):
        lane, sums = x.type.pointee, []
        for lanes, f in _chunks(builder, n, lane, sums):
            place = sums[-1][1]
            product = lanes.times(lanes.load(x, f), lanes.load(y, f))
            builder.store(lanes.add(builder.load(place), product), place)
        total = lane(0.0)
        for lanes, place in sums:
            part = lanes.folded(builder.load(place), lanes.add)
            total = builder.fadd(total, part, flags=_FAST)
        return total

    return _of_rows("dot_rows", x.dtype, (x, PLACE, y, PLACE, PLACE), build)


def _add_row(total, i, number, x, k, n):
    """``total[i] += number x[k]``; the total may be of the wider type."""
    _plain(total, i, n)[:] += number * _plain(x, k, n)


@intrinsic(_add_row)
def add_row(_, total, i, number, x, k, n):
    """``total[i] += number x[k]``; the total may be of the wider type."""

    def build(builder, total, number, x, n):
        wide = total.type.pointee
        for lanes, f in _chunks(builder, n, x.type.pointee):
            product = lanes.times(lanes.splat(number), lanes.load(x, f))
            if wide != lanes.lane:
                lanes = Lanes(builder, wide, lanes.n)
                product = builder.fpext(product, lanes.vector)
            lanes.store(lanes.add(lanes.load(total, f), product), total, f)

    return _of_rows("add_row", types.void, (total, PLACE, x.dtype, x, PLACE, PLACE), build)


def _scale_row(out, i, number, x, k, n):
    """``out[i] = number x[k]``."""
    _plain(out, i, n)[:] = number * _plain(x, k, n)


@intrinsic(_scale_row)
def scale_row(_, out, i, number, x, k, n):
    """``out[i] = number x[k]``."""

    def build(builder, out, number, x, n):
        for lanes, f in _chunks(builder, n, x.type.pointee):
            lanes.store(lanes.times(lanes.splat(number), lanes.load(x, f)), out, f)

    return _of_rows("scale_row", types.void, (out, PLACE, x.dtype, x, PLACE, PLACE), build)


def _copy_row(out, i, x, k, n):
    """``out[i] = x[k]``."""
    _plain(out, i, n)[:] = _plain(x, k, n)


@intrinsic(_copy_row)
def copy_row(_, out, i, x, k, n):
    """``out[i] = x[k]``."""

    def build(builder, out, x, n):
        for lanes, f in _chunks(builder, n, x.type.pointee):
            lanes.store(lanes.load(x, f), out, f)

    return _of_rows("copy_row", types.void, (out, PLACE, x, PLACE, PLACE), build)


def _fill_row(out, i, number, n):
    """``out[i] = number``."""
    _plain(out, i, n)[:] = number


@intrinsic(_fill_row)
def fill_row(_, out, i, number, n):
    """``out[i] = number``."""

    def build(builder, out, number, n):
        for lanes, f in _chunks(builder, n, number.type):
            lanes.store(lanes.splat(number), out, f)

    return _of_rows("fill_row", types.void, (out, PLACE, out.dtype, PLACE), build)


def _is_finite_row(x, k, n):
    """Whether no number of ``x[k]`` is NaN or infinite."""
    return bool(np.isfinite(_plain(x, k, n)).all())


@intrinsic(_is_finite_row)
def is_finite_row(_, x, k, n):
    """Whether no number of ``x[k]`` is NaN or infinite."""

    def build(builder, x, n):
        lane = x.type.pointee
        bits, exponent = (32, 0x7F800000) if lane == ir.FloatType() else (64, 0x7FF << 52)
        # A number is broken whose exponent is all ones.
        broken, total = [], ir.IntType(bits)(0)
        for lanes, f in _chunks(builder, n, total.type, broken):
            place, ones = broken[-1][1], lanes.constant(exponent)
            number = Lanes(builder, lane, lanes.n).load(x, f)
            seen = builder.and_(builder.bitcast(number, lanes.vector), ones)
            is_broken = builder.zext(builder.icmp_unsigned("==", seen, ones), lanes.vector)
            builder.store(builder.or_(builder.load(place), is_broken), place)
        for lanes, place in broken:
            total = builder.or_(total, lanes.folded(builder.load(place), builder.or_))
        return builder.icmp_unsigned("==", total, total.type(0))

    return _of_rows("is_finite_row", types.boolean, (x, PLACE, PLACE), build)


# ----------------------------------------------------------------------------- many rows


def _weigh_row(left, i, right, j, total, t, x, k, weight, pull, n):
    """``left[i] = x[k]``, ``right[j] = weight x[k]``, ``total[t] += pull x[k]``, of one type."""
    row = _plain(x, k, n)
    _plain(left, i, n)[:] = row
    _plain(right, j, n)[:] = weight * row
    _plain(total, t, n)[:] += pull * row


@intrinsic(_weigh_row)
def weigh_row(_, left, i, right, j, total, t, x, k, weight, pull, n):
    """``left[i] = x[k]``, ``right[j] = weight x[k]``, ``total[t] += pull x[k]``, of one type."""

    def build(builder, left, right, total, x, weight, pull, n):
        for lanes, f in _chunks(builder, n, x.type.pointee):
            row = lanes.load(x, f)
            lanes.store(row, left, f)
            lanes.store(lanes.times(lanes.splat(weight), row), right, f)
            more = lanes.times(lanes.splat(pull), row)
            lanes.store(lanes.add(lanes.load(total, f), more), total, f)

    kinds = left, PLACE, right, PLACE, total, PLACE, x, PLACE, x.dtype, x.dtype, PLACE
    return _of_rows("weigh_row", types.void, kinds, build)


def _product_of_tile(left, a, right, b, n, r, c, width):
    """Columns from r of n rows of `left` times columns from c of `right`, and the tile's places."""
    rows = (_plain(matrix, k, n * width).reshape(n, width) for matrix, k in ((left, a), (right, b)))
    left, right = rows
    size = TILE_BYTES // left.itemsize
    places = np.arange(TILE)[:, None] * width + c + np.arange(size)
    return left[:, r : r + TILE].T @ right[:, c : c + size], places


def _add_tile(out, i, base, j, left, a, right, b, n, r, c, width):
    """A tile of ``out = base + left' right``.

    It is in rows i of `out` and j of `base` and the following, from column c on, and made of the
    columns from r and from c of n rows of `left` and `right`, which begin with rows a and b. All
    are of one type and `width`, and the tile is within it.
    """
    product, places = _product_of_tile(left, a, right, b, n, r, c, width)
    size = TILE * width
    _plain(out, i, size)[places] = _plain(base, j, size)[places] + product


def _subtract_tile(out, i, base, j, left, a, right, b, n, r, c, width):
    """The same of ``out = base - left' right``."""
    product, places = _product_of_tile(left, a, right, b, n, r, c, width)
    size = TILE * width
    _plain(out, i, size)[places] = _plain(base, j, size)[places] - product


@intrinsic(_add_tile)
def add_tile(_, out, i, base, j, left, a, right, b, n, r, c, width):
    """A tile of a product of matrices: see :func:`_add_tile`."""
    return _of_tile("add_tile", out, base, left, right, Lanes.add)


@intrinsic(_subtract_tile)
def subtract_tile(_, out, i, base, j, left, a, right, b, n, r, c, width):
    """A tile less a product of matrices: see :func:`_subtract_tile`."""
    return _of_tile("subtract_tile", out, base, left, right, Lanes.subtract)


def _of_tile(name, out, base, left, right, join):

    def build(builder, out, base, left, right, n, r, c, width):
        lane = out.type.pointee
        lanes = Lanes(builder, lane, TILE_BYTES // (4 if lane == ir.FloatType() else 8))
        lines = [builder.mul(width, width.type(j)) for j in range(TILE)]
        places = [
            cgutils.alloca_once_value(builder, lanes.load(builder.gep(base, [line]), c))
            for line in lines
        ]
        with _loop(builder, n.type(0), n, n.type(1)) as k:
            start = builder.mul(k, width)
            numbers, row = builder.gep(left, [builder.add(start, r)]), builder.gep(right, [start])
            vector = lanes.load(row, c)
            for j, place in enumerate(places):
                number = builder.load(builder.gep(numbers, [n.type(j)]))
                product = lanes.times(lanes.splat(number), vector)
                builder.store(join(lanes, builder.load(place), product), place)
        for line, place in zip(lines, places, strict=True):
            lanes.store(builder.load(place), builder.gep(out, [line]), c)

    matrices = (kind for matrix in (out, base, left, right) for kind in (matrix, PLACE))
    return _of_rows(name, types.void, (*matrices, *[PLACE] * 4), build)
