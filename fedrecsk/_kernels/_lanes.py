"""Rows of numbers as LLVM vectors: sixteen neighbours at once, then four, then one by one.

Rows have some 20 numbers. A compiler that does not know whether two rows overlap checks it before
every such loop, which costs as much as the loop; these functions promise that they do not. All
arrays are C-contiguous, and matrices of one call equally wide. Each function has a plain twin,
`..._plain`, that says what it does.
"""

from contextlib import contextmanager

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from fedrecsk._kernels._jit import intrinsic

WIDE = 16
# Where rows are taken in turn, memory is asked for the one that comes so many rows later: the
# processor does not see by itself that another row's numbers go on from here.
AHEAD = 32
CHUNKS = WIDE, 4, 1
FAST = "reassoc", "contract", "nsz"
INT32, INT64 = ir.IntType(32), ir.IntType(64)


# ------------------------------------------------------------------------ building blocks


class Lanes:
    """So many lanes of one type in a builder."""

    def __init__(self, builder, lane, n):
        self.builder = builder
        self.vector = ir.VectorType(lane, n)
        self.n = n

    def load(self, row, f):
        """Numbers f, f + 1, ... of a row, as lanes of this type."""
        source = ir.VectorType(row.type.pointee, self.n)
        place = self.builder.bitcast(self.builder.gep(row, [f]), source.as_pointer())
        vector = self.builder.load(place, typ=source)
        vector.align = 4
        return self.widened(vector)

    def widened(self, vector):
        """A vector of a narrower type, or of this one, as one of this type."""
        return vector if vector.type == self.vector else self.builder.fpext(vector, self.vector)

    def store(self, vector, row, f):
        place = self.builder.bitcast(self.builder.gep(row, [f]), self.vector.as_pointer())
        self.builder.store(vector, place).align = 4

    def fetch(self, row, f, distance):
        """Ask memory for what is so many numbers further on, because it is needed soon."""
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, INT32, INT32, INT32])
        declared = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        place = self.builder.gep(row, [self.builder.add(f, distance)])
        # To read, into all caches, data.
        how = [ir.Constant(INT32, n) for n in (0, 3, 1)]
        self.builder.call(declared, [self.builder.bitcast(place, byte), *how])

    def splat(self, number):
        """The number, of a narrower type or of this one, in every lane."""
        if number.type != self.vector.element:
            number = self.builder.fpext(number, self.vector.element)
        first = self.builder.insert_element(
            ir.Constant(self.vector, ir.Undefined), number, ir.Constant(INT32, 0)
        )
        nobody = ir.Constant(ir.VectorType(INT32, self.n), [0] * self.n)
        return self.builder.shuffle_vector(first, first, nobody)

    def constant(self, number):
        return ir.Constant(self.vector, [number] * self.n)

    def add(self, x, y):
        return self.builder.fadd(x, y, flags=FAST)

    def subtract(self, x, y):
        return self.builder.fsub(x, y, flags=FAST)

    def times(self, x, y):
        return self.builder.fmul(x, y, flags=FAST)

    def root(self, x):
        return self.call("llvm.sqrt", x)

    def call(self, name, *vectors):
        """One of LLVM's intrinsics."""
        kind = ir.FunctionType(self.vector, [self.vector] * len(vectors))
        suffix = f"v{self.n}{self.vector.element.intrinsic_name}"
        declared = cgutils.get_or_insert_function(self.builder.module, kind, f"{name}.{suffix}")
        return self.builder.call(declared, vectors)

    def sum(self, vector):
        """Of all lanes."""
        n = self.n
        while n > 1:
            n //= 2
            mask = ir.VectorType(INT32, n)
            low, high = (
                self.builder.shuffle_vector(
                    vector, vector, ir.Constant(mask, list(range(start, start + n)))
                )
                for start in (0, n)
            )
            vector = self.add(low, high)
        return self.builder.extract_element(vector, ir.Constant(INT32, 0))


class Arguments:
    """An intrinsic's arguments: rows of matrices, and how wide they are."""

    def __init__(self, context, builder, signature, values):
        self.context, self.builder = context, builder
        self.types, self.values = signature.args, values

    def _array(self, k):
        return self.context.make_array(self.types[k])(self.context, self.builder, self.values[k])

    def is_none(self, k):
        return isinstance(self.types[k], types.NoneType)

    def width(self, k):
        """Columns of the k-th argument."""
        return cgutils.unpack_tuple(self.builder, self._array(k).shape)[1]

    def row(self, k, number):
        """A row of the k-th argument, of the number that is another argument; None if that is."""
        if self.is_none(k):
            return None
        start = self.builder.mul(self.values[number], self.width(k))
        return self.builder.gep(self.first_row(k), [start])

    def ahead(self, k):
        """How many numbers further on the row is that is asked for."""
        return self.builder.mul(self.width(k), _word(AHEAD))

    def first_row(self, k):
        """Where the numbers of the k-th argument begin."""
        return self._array(k).data

    def numbers(self, k):
        """Those in the k-th argument, a tuple."""
        return cgutils.unpack_tuple(self.builder, self.values[k])

    def lane(self, k):
        """Type of the numbers of the k-th argument."""
        return self.context.get_value_type(self.types[k].dtype)


@contextmanager
def loop(builder, start, stop, step):
    """A loop that LLVM leaves as it is: it would unroll it, which costs half a kernel's time to
    compile and gains nothing.
    """
    with cgutils.for_range_slice(builder, start, stop, step, inc=True) as (k, _):
        yield k
        last = builder.basic_block
    module = builder.module
    hint = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    itself = module.add_metadata([hint, ir.MetaDataString(module, f"loop {id(last)}")])
    # LLVM wants a loop's description to begin with itself.
    itself.operands = (itself, hint)
    last.terminator.set_metadata("llvm.loop", itself)


def every_chunk(builder, width, lane):
    """Yields (Lanes, place) of each chunk of a row; what the caller builds is the loops' body."""
    start = ir.Constant(width.type, 0)
    for n in CHUNKS:
        step = ir.Constant(width.type, n)
        stop = builder.and_(width, ir.Constant(width.type, -n))
        with loop(builder, start, stop, step) as f:
            yield Lanes(builder, lane, n), f
        start = stop


# --------------------------------------------------------------------------------- memory


def fetch_row_plain(x, k):
    """Ask memory for ``x[k]``, which will be needed soon; k may be no row of x."""


@intrinsic(fetch_row_plain)
def fetch_row(_, x, k):
    """Ask memory for ``x[k]``, which will be needed soon; k may be no row of x."""

    def generate(context, builder, signature, values):
        given = Arguments(context, builder, signature, values)
        row, lane = given.row(0, 1), given.lane(0)
        nbytes = context.get_abi_sizeof(lane)
        # Once in each line of a cache.
        step = _word(64 // nbytes)
        with loop(builder, _word(0), given.width(0), step) as f:
            Lanes(builder, lane, 1).fetch(row, f, _word(0))
        return context.get_dummy_value()

    return types.void(x, types.intp), generate


# ------------------------------------------------------------------------------- products


def dot_row_plain(x, k, y, i):
    """``x[k] . y[i]``, of one type; rows of y are taken in turn."""
    return x[k] @ y[i]


@intrinsic(dot_row_plain)
def dot_row(_, x, k, y, i):
    """``x[k] . y[i]``, of one type; rows of y are taken in turn."""

    def generate(context, builder, signature, values):
        given = Arguments(context, builder, signature, values)
        x, y, lane = given.row(0, 1), given.row(2, 3), given.lane(0)
        sums = {}
        for n in CHUNKS:
            zero = Lanes(builder, lane, n).constant(0.0)
            sums[n] = cgutils.alloca_once_value(builder, zero)
        for lanes, f in every_chunk(builder, given.width(0), lane):
            lanes.fetch(y, f, given.ahead(2))
            product = lanes.times(lanes.load(x, f), lanes.load(y, f))
            so_far = builder.load(sums[lanes.n], typ=lanes.vector)
            builder.store(lanes.add(so_far, product), sums[lanes.n])
        total = ir.Constant(lane, 0.0)
        for n, place in sums.items():
            lanes = Lanes(builder, lane, n)
            part = lanes.sum(builder.load(place, typ=lanes.vector))
            total = builder.fadd(total, part, flags=FAST)
        return total

    return x.dtype(x, types.intp, y, types.intp), generate


def add_row_plain(total, i, number, x, k):
    """``total[i] += number x[k]``; the total may be of the wider type."""
    total[i] += number * x[k]


@intrinsic(add_row_plain)
def add_row(_, total, i, number, x, k):
    """``total[i] += number x[k]``; the total may be of the wider type."""

    def generate(context, builder, signature, values):
        given = Arguments(context, builder, signature, values)
        total, x = given.row(0, 1), given.row(3, 4)
        for lanes, f in every_chunk(builder, given.width(0), given.lane(0)):
            product = lanes.times(lanes.splat(values[2]), lanes.load(x, f))
            lanes.store(lanes.add(lanes.load(total, f), product), total, f)
        return context.get_dummy_value()

    return types.void(total, types.intp, total.dtype, x, types.intp), generate


def add_change_plain(total, i, x, k, origin, clip):
    """``total[i] += x[k] - origin[i]`` in the total's type, x clipped first unless clip is None."""
    change = x[k] if clip is None else np.clip(x[k], -clip, clip)
    total[i] += change.astype(total.dtype) - origin[i]


@intrinsic(add_change_plain)
def add_change(_, total, i, x, k, origin, clip):
    """``total[i] += x[k] - origin[i]`` in the total's type, x clipped first unless clip is None."""

    def generate(context, builder, signature, values):
        given = Arguments(context, builder, signature, values)
        total, x, origin = given.row(0, 1), given.row(2, 3), given.row(4, 1)
        clip = None if given.is_none(5) else values[5]
        for lanes, f in every_chunk(builder, given.width(0), given.lane(0)):
            _add_change(lanes, f, lanes.load(x, f), total, origin, clip)
        return context.get_dummy_value()

    limit = clip if isinstance(clip, types.NoneType) else x.dtype
    return types.void(total, types.intp, x, types.intp, origin, limit), generate


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


def add_inverse_plain(total, i, number, x, k, shift):
    """``total[i] += number / (x[k] + shift)``, of one type."""
    total[i] += number / (x[k] + shift)


@intrinsic(add_inverse_plain)
def add_inverse(_, total, i, number, x, k, shift):
    """``total[i] += number / (x[k] + shift)``, of one type."""

    def generate(context, builder, signature, values):
        given = Arguments(context, builder, signature, values)
        total, x = given.row(0, 1), given.row(3, 4)
        for lanes, f in every_chunk(builder, given.width(0), given.lane(0)):
            size = lanes.add(lanes.load(x, f), lanes.splat(values[5]))
            ratio = builder.fdiv(lanes.splat(values[2]), size, flags=FAST)
            lanes.store(lanes.add(lanes.load(total, f), ratio), total, f)
        return context.get_dummy_value()

    number = total.dtype
    return types.void(total, types.intp, number, x, types.intp, number), generate


def add_outer_plain(total, numbers, n, x, k):
    """``total[i] += numbers[i] x[k]`` for i below n; x may be the total if ``numbers[k]`` is 0."""
    total[:n] += numbers[:n, None] * x[k]


@intrinsic(add_outer_plain)
def add_outer(_, total, numbers, n, x, k):
    """``total[i] += numbers[i] x[k]`` for i below n; x may be the total if ``numbers[k]`` is 0."""

    def generate(context, builder, signature, values):
        given = Arguments(context, builder, signature, values)
        total, numbers, x, width = (
            given.first_row(0), given.first_row(1), given.row(3, 4), given.width(0)
        )  # fmt: skip
        for lanes, f in every_chunk(builder, width, given.lane(0)):
            row = lanes.load(x, f)
            with loop(builder, _word(0), values[2], _word(1)) as i:
                number = builder.load(builder.gep(numbers, [i]), typ=given.lane(1))
                place = builder.gep(total, [builder.mul(i, width)])
                product = lanes.times(lanes.splat(number), row)
                lanes.store(lanes.add(lanes.load(place, f), product), place, f)
        return context.get_dummy_value()

    return types.void(total, numbers, types.intp, x, types.intp), generate


def clear_rows_plain(x, n):
    """``x[:n] = 0``"""
    x[:n] = 0


@intrinsic(clear_rows_plain)
def clear_rows(_, x, n):
    """``x[:n] = 0``"""

    def generate(context, builder, signature, values):
        given = Arguments(context, builder, signature, values)
        size = ir.Constant(INT64, context.get_abi_sizeof(given.lane(0)))
        nbytes = builder.mul(builder.mul(values[1], given.width(0)), size)
        cgutils.memset(builder, given.first_row(0), nbytes, 0)
        return context.get_dummy_value()

    return types.void(x, types.intp), generate


def scale_row_plain(copy, i, number, x, k):
    """``copy[i] = number x[k]``, the front of it where x is wider; one may be the other."""
    copy[i] = number * x[k, : copy.shape[1]]


@intrinsic(scale_row_plain)
def scale_row(_, copy, i, number, x, k):
    """``copy[i] = number x[k]``, the front of it where x is wider; one may be the other."""

    def generate(context, builder, signature, values):
        given = Arguments(context, builder, signature, values)
        copy, x = given.row(0, 1), given.row(3, 4)
        for lanes, f in every_chunk(builder, given.width(0), given.lane(0)):
            lanes.store(lanes.times(lanes.splat(values[2]), lanes.load(x, f)), copy, f)
        return context.get_dummy_value()

    return types.void(copy, types.intp, x.dtype, x, types.intp), generate


def copy_row_plain(copy, scaled, a, x, k, number):
    """``copy[a] = x[k]`` and ``scaled[a] = number x[k]``, both in front of wider rows."""
    width = x.shape[1]
    copy[a, :width] = x[k]
    scaled[a, :width] = number * x[k]


@intrinsic(copy_row_plain)
def copy_row(_, copy, scaled, a, x, k, number):
    """``copy[a] = x[k]`` and ``scaled[a] = number x[k]``, both in front of wider rows."""

    def generate(context, builder, signature, values):
        given = Arguments(context, builder, signature, values)
        copy, scaled, x = given.row(0, 2), given.row(1, 2), given.row(3, 4)
        for lanes, f in every_chunk(builder, given.width(3), given.lane(3)):
            row = lanes.load(x, f)
            lanes.store(row, copy, f)
            lanes.store(lanes.times(lanes.splat(values[5]), row), scaled, f)
        return context.get_dummy_value()

    return types.void(copy, scaled, types.intp, x, types.intp, x.dtype), generate


# Rows and columns of a tile of a matrix product.
TILE = 8


def multiply_plain(product, left, right, n_rows, n_inner):
    """``product[:n_rows] = left[:n_rows, :n_inner] @ right[:n_inner]``.

    Widths are multiples of 8; rows are replaced up to the next multiple of 8.
    """
    n_rows = -(-n_rows // TILE) * TILE
    product[:n_rows] = left[:n_rows, :n_inner] @ right[:n_inner]


@intrinsic(multiply_plain)
def multiply(_, product, left, right, n_rows, n_inner):
    """``product[:n_rows] = left[:n_rows, :n_inner] @ right[:n_inner]``, in groups of 8 rows."""

    def generate(context, builder, signature, values):
        given = Arguments(context, builder, signature, values)
        _multiply(given, values[3], values[4], given.width(1), _word(1))
        return context.get_dummy_value()

    return types.void(product, left, right, types.intp, types.intp), generate


def multiply_turned_plain(product, left, right, n_inner):
    """``product = left[:n_inner].T @ right[:n_inner]``; widths are multiples of 8."""
    product[:] = left[:n_inner].T @ right[:n_inner]


@intrinsic(multiply_turned_plain)
def multiply_turned(_, product, left, right, n_inner):
    """``product = left[:n_inner].T @ right[:n_inner]``; widths are multiples of 8."""

    def generate(context, builder, signature, values):
        given = Arguments(context, builder, signature, values)
        _multiply(given, given.width(1), values[3], _word(1), given.width(1))
        return context.get_dummy_value()

    return types.void(product, left, right, types.intp), generate


def _multiply(given, n_rows, n_inner, row_step, inner_step):
    """A product with the matrix whose number (r, k) is at ``r row_step + k inner_step``."""
    builder, lane = given.builder, given.lane(0)
    product, left, right = (given.first_row(k) for k in range(3))
    width, start = given.width(2), _word(0)
    for n in (WIDE, TILE):
        lanes, stop = Lanes(builder, lane, n), builder.and_(width, _word(-n))
        with (
            loop(builder, start, stop, _word(n)) as f,
            loop(builder, _word(0), n_rows, _word(TILE)) as r,
        ):
            tile = _Tile(lanes, builder.gep(left, [builder.mul(r, row_step)]), row_step)
            with loop(builder, _word(0), n_inner, _word(1)) as k:
                row = builder.gep(right, [builder.mul(k, width)])
                tile.add(builder.mul(k, inner_step), lanes.load(row, f))
            for j, place in enumerate(tile.sums):
                row = builder.gep(product, [builder.mul(builder.add(r, _word(j)), width)])
                lanes.store(builder.load(place, typ=lanes.vector), row, f)
        start = stop


def _word(number):
    return ir.Constant(INT64, number)


class _Tile:
    """Eight rows of a product, as many columns as there are lanes."""

    def __init__(self, lanes, left, row_step):
        self.lanes, builder = lanes, lanes.builder
        self.sums = [cgutils.alloca_once(builder, lanes.vector) for _ in range(TILE)]
        for place in self.sums:
            builder.store(lanes.constant(0.0), place)
        steps = [builder.mul(row_step, _word(j)) for j in range(TILE)]
        self.rows = [builder.gep(left, [step]) for step in steps]

    def add(self, offset, vector):
        """One inner number: that of each row times the vector."""
        lanes, builder = self.lanes, self.lanes.builder
        for place, row in zip(self.sums, self.rows, strict=True):
            number = builder.load(builder.gep(row, [offset]), typ=lanes.vector.element)
            so_far = builder.load(place, typ=lanes.vector)
            builder.store(lanes.add(so_far, lanes.times(lanes.splat(number), vector)), place)


# ------------------------------------------------------------------------- steps of descent


def descend_row_plain(x, k, mean, square, centre, i, partner, p, factors, rule):
    """One step of a row on the gradient ``own x[k] + pull (x[k] - centre[i]) + g partner[p]``.

    Parameters
    ----------
    x, k : matrix and row, replaced
    mean, square : matrices of Adam's moments, replaced; None for plain gradient descent
    centre, i : matrix and row, or None and anything for zero
    partner, p : matrix and row
    factors : own, the same for column 0, pull, g
    rule : rate, beta_1, 1 - beta_1, beta_2, 1 - beta_2, epsilon, debias
    """
    own, first, pull, g = factors
    rate, beta_1, new_1, beta_2, new_2, epsilon, debias = rule
    gradient = own * x[k] + g * partner[p]
    gradient[0] = first * x[k, 0] + g * partner[p, 0]
    if centre is not None:
        gradient += pull * (x[k] - centre[i])
    if mean is None:
        x[k] -= rate * gradient
        return
    mean[k] = beta_1 * mean[k] + new_1 * gradient
    square[k] = beta_2 * square[k] + new_2 * gradient * gradient
    x[k] -= rate * mean[k] / (np.sqrt(square[k] * debias) + epsilon)


@intrinsic(descend_row_plain)
def descend_row(_, x, k, mean, square, centre, i, partner, p, factors, rule):
    """One step of a row on the gradient ``own x[k] + pull (x[k] - centre[i]) + g partner[p]``.

    As :func:`descend_row_plain` says.
    """

    def generate(context, builder, signature, values):
        given = Arguments(context, builder, signature, values)
        rows = tuple(given.row(matrix, row) for matrix, row in _ROWS)
        factors, rule = given.numbers(8), given.numbers(9)
        for lanes, f in every_chunk(builder, given.width(0), given.lane(0)):
            _descend(builder, lanes, f, rows, factors, rule)
        return context.get_dummy_value()

    place, numbers = types.intp, (types.UniTuple(x.dtype, n) for n in (4, 7))
    return types.void(x, place, mean, square, centre, place, partner, place, *numbers), generate


# Matrices among the arguments of descend_row, and where their rows' numbers are.
_ROWS = (0, 1), (2, 1), (3, 1), (4, 5), (6, 7)


def step_row_plain(x, k, mean, square, centre, i, user, factors, rule, total, t, origin, clip):
    """:func:`descend_row` on an item with row 0 of `user`, whose gradient is in its row 1.

    Before the step, ``user[1] += g x[k]``; after it, ``total[t] += x[k] - origin[i]`` with x
    clipped unless clip is None.
    """
    user[1] += factors[3] * x[k]
    descend_row_plain(x, k, mean, square, centre, i, user, 0, factors, rule)
    change = x[k] if clip is None else np.clip(x[k], -clip, clip)
    total[t] += change.astype(total.dtype) - origin[i]


@intrinsic(step_row_plain)
def step_row(_, x, k, mean, square, centre, i, user, factors, rule, total, t, origin, clip):
    """:func:`descend_row` on an item with row 0 of `user`, whose gradient is in its row 1.

    As :func:`step_row_plain` says.
    """

    def generate(context, builder, signature, values):
        given = Arguments(context, builder, signature, values)
        partner = given.first_row(6)
        gradient = builder.gep(partner, [given.width(6)])
        rows = given.row(0, 1), given.row(2, 1), given.row(3, 1), given.row(4, 5), partner
        factors, rule = given.numbers(7), given.numbers(8)
        total, origin = given.row(9, 10), given.row(11, 5)
        clip = None if given.is_none(12) else values[12]
        for lanes, f in every_chunk(builder, given.width(0), given.lane(0)):
            if not given.is_none(2):
                lanes.fetch(rows[1], f, given.ahead(2))
                lanes.fetch(rows[2], f, given.ahead(3))
            product = lanes.times(lanes.splat(factors[3]), lanes.load(rows[0], f))
            lanes.store(lanes.add(lanes.load(gradient, f), product), gradient, f)
            new = _descend(builder, lanes, f, rows, factors, rule)
            sums = Lanes(builder, given.lane(9), lanes.n)
            _add_change(sums, f, sums.widened(new), total, origin, clip)
        return context.get_dummy_value()

    place, numbers = types.intp, (types.UniTuple(x.dtype, n) for n in (4, 7))
    limit = clip if isinstance(clip, types.NoneType) else x.dtype
    arrays = x, place, mean, square, centre, place, user
    return types.void(*arrays, *numbers, total, place, origin, limit), generate


def _descend(builder, lanes, f, rows, factors, rule):
    """The step on one chunk of the row; its new numbers."""
    x, mean, square, centre, partner = rows
    own, first, pull, g = factors
    times, add = lanes.times, lanes.add
    old = lanes.load(x, f)
    at_start = builder.icmp_signed("==", f, ir.Constant(f.type, 0))
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
        step = builder.fdiv(times(rate, first_moment), size, flags=FAST)
    new = lanes.subtract(old, step)
    lanes.store(new, x, f)
    return new


# ------------------------------------------------------------------------------- logistic


class _Exponential:
    """The exponential function of numbers from -limit to 0, after Cephes (Moshier 1992).

    With k the whole number next to x / log 2, it is ``2^k exp(x - k log 2)``. The rest x - k log 2
    takes two constants that add up to log 2. Adding `magic` to k leaves it in the lowest bits of
    the sum. Compilers may rearrange sums here, so both go through intrinsics that they leave alone.
    """

    def __init__(self, lanes):
        self.lanes, self.builder = lanes, lanes.builder
        if lanes.vector.element == ir.FloatType():
            self.limit, self.magic, self.digits, self.bias = 87.0, 1.5 * 2**23, 23, 127
            self.high, self.low, self.word = 0.693359375, -2.12194440e-4, INT32
        else:
            self.limit, self.magic, self.digits, self.bias = 708.0, 1.5 * 2**52, 52, 1023
            self.high, self.low, self.word = 6.93145751953125e-1, 1.42860682030941723212e-6, INT64

    def of(self, x):
        """exp(x) of a vector."""
        builder, lanes = self.builder, self.lanes
        k = lanes.call("llvm.rint", lanes.times(x, lanes.constant(1.4426950408889634)))
        rest = lanes.call("llvm.fma", k, lanes.constant(-self.high), x)
        rest = lanes.call("llvm.fma", k, lanes.constant(-self.low), rest)
        words = ir.VectorType(self.word, lanes.n)
        bits = builder.bitcast(lanes.add(k, lanes.constant(self.magic)), words)
        bits = builder.shl(bits, ir.Constant(words, [self.digits] * lanes.n))
        one = ir.Constant(words, [self.bias << self.digits] * lanes.n)
        power = builder.bitcast(builder.add(bits, one), lanes.vector)
        return lanes.times(power, self.near_zero(rest))

    def near_zero(self, x):
        """exp(x) where x is at most log(2) / 2."""
        lanes, builder = self.lanes, self.builder
        square, one = lanes.times(x, x), lanes.constant(1.0)
        if self.word is INT32:
            return lanes.add(one, lanes.add(x, lanes.times(square, self.polynomial(x, _P32))))
        upper = lanes.times(x, self.polynomial(square, _P64))
        lower = lanes.subtract(self.polynomial(square, _Q64), upper)
        ratio = builder.fdiv(upper, lower)
        return lanes.add(one, lanes.times(lanes.constant(2.0), ratio))

    def polynomial(self, x, coefficients):
        """Horner's rule, from the highest power down."""
        lanes, total = self.lanes, self.lanes.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            total = lanes.add(lanes.times(total, x), lanes.constant(coefficient))
        return total


_P32 = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip
_P64 = 1.26177193074810590878e-4, 3.02994407707441961300e-2, 9.99999999999999999910e-1
_Q64 = (
    3.00198505138664455042e-6, 2.52448340349684104192e-3, 2.27265548208155028766e-1,
    2.00000000000000000009e0,
)  # fmt: skip


def room(n):
    """So many numbers that :func:`logistic` can be taken of the first n."""
    return -(-n // WIDE) * WIDE


def logistic_plain(x, n):
    """``1 / (1 + exp(-x))`` of the first n numbers, in place; whole groups of 16 are replaced."""
    from scipy.special import expit

    x[: room(n)] = expit(x[: room(n)])


@intrinsic(logistic_plain)
def logistic(_, x, n):
    """``1 / (1 + exp(-x))`` of the first n numbers, in place; whole groups of 16 are replaced."""

    def generate(context, builder, signature, values):
        given = Arguments(context, builder, signature, values)
        lane, numbers, count = given.lane(0), given.first_row(0), values[1]
        lanes, zero = Lanes(builder, lane, WIDE), ir.Constant(count.type, 0)
        step = ir.Constant(count.type, WIDE)
        with loop(builder, zero, count, step) as k:
            lanes.store(_logistic(lanes, lanes.load(numbers, k)), numbers, k)
        return context.get_dummy_value()

    return types.void(x, types.intp), generate


def _logistic(lanes, x):
    """``e / (1 + e)`` with e = exp(x) below zero, ``1 / (1 + e)`` with e = exp(-x) above."""
    builder, exponential = lanes.builder, _Exponential(lanes)
    negative = builder.fcmp_ordered("<", x, lanes.constant(0.0))
    below = builder.select(negative, x, builder.fsub(lanes.constant(-0.0), x))
    limit = lanes.constant(-exponential.limit)
    outside = builder.fcmp_ordered("<", below, limit)
    e = exponential.of(builder.select(outside, limit, below))
    e = builder.select(outside, lanes.constant(0.0), e)
    one = lanes.constant(1.0)
    return builder.fdiv(builder.select(negative, e, one), builder.fadd(one, e))
