"""Products of matrices by tiles: a few rows of a product, and some of its columns."""

import numpy as np
from llvmlite import ir
from numba import types

from fedrecsk._kernels._jit import intrinsic
from fedrecsk._kernels._lanes import (
    PLACE,
    WIDE,
    Lanes,
    Row,
    Sum,
    chunks,
    loop,
    operation,
    plain_row,
    word,
)

# Rows of a tile, and the bytes of its columns where a function makes a single one.
TILE, TILE_BYTES = 8, 64


class _Tile:
    """Rows of a product, as many columns as there are lanes.

    ``starts`` are what they begin with; the k-th row's numbers on the left are `row_step` apart.
    """

    def __init__(self, lanes, left, row_step, starts):
        self.lanes, builder = lanes, lanes.builder
        self.sums = [Sum(lanes, start) for start in starts]
        steps = [builder.mul(row_step, word(j)) for j in range(TILE)]
        self.rows = [builder.gep(left, [step]) for step in steps]

    def join(self, join, offset, vector):
        """One inner number: add or subtract that of each row times the vector."""
        lanes, builder = self.lanes, self.lanes.builder
        for total, row in zip(self.sums, self.rows, strict=True):
            number = builder.load(builder.gep(row, [offset]), typ=lanes.lane)
            total.join(join, lanes.times(lanes.splat(number), vector))


# --------------------------------------------------------------------- a tile of a product


def _product_of_tile(left, a, right, b, n, r, c, width):
    """Columns from r of n rows of `left` times columns from c of `right`, and the tile's places."""
    n, r, c, width = (int(number) for number in (n, r, c, width))
    left = plain_row(left, a, n * width).reshape(n, width)
    right = plain_row(right, b, n * width).reshape(n, width)
    size = TILE_BYTES // left.itemsize
    places = np.arange(TILE)[:, None] * width + c + np.arange(size)
    return left[:, r : r + TILE].T @ right[:, c : c + size], places


def add_tile_plain(out, i, base, j, left, a, right, b, n, r, c, width):
    """A tile of ``out = base + left' right``.

    It is in rows i of `out` and j of `base` and the following, from column c on, and made of the
    columns from r and from c of n rows of `left` and `right`, which begin with rows a and b. All
    are of one type and `width`, and the tile is within it.
    """
    product, places = _product_of_tile(left, a, right, b, n, r, c, width)
    size = TILE * int(width)
    plain_row(out, i, size)[places] = plain_row(base, j, size)[places] + product


def subtract_tile_plain(out, i, base, j, left, a, right, b, n, r, c, width):
    """The same of ``out = base - left' right``."""
    product, places = _product_of_tile(left, a, right, b, n, r, c, width)
    size = TILE * int(width)
    plain_row(out, i, size)[places] = plain_row(base, j, size)[places] - product


@intrinsic(add_tile_plain)
def add_tile(_, out, i, base, j, left, a, right, b, n, r, c, width):
    """A tile of a product of matrices: see :func:`add_tile_plain`."""
    return _of_tile("add_tile", out, base, left, right, Lanes.add)


@intrinsic(subtract_tile_plain)
def subtract_tile(_, out, i, base, j, left, a, right, b, n, r, c, width):
    """A tile less a product of matrices: see :func:`subtract_tile_plain`."""
    return _of_tile("subtract_tile", out, base, left, right, Lanes.subtract)


def _of_tile(name, out, base, left, right, join):

    def build(builder, out, base, left, right, n, r, c, width):
        lane = out.type.pointee
        lanes = Lanes(builder, lane, TILE_BYTES // (4 if lane == ir.FloatType() else 8))
        lines = [builder.mul(width, word(j)) for j in range(TILE)]
        starts = [lanes.load(builder.gep(base, [line]), c) for line in lines]
        tile = _Tile(lanes, builder.gep(left, [r]), word(1), starts)
        with loop(builder, word(0), n, word(1)) as k:
            start = builder.mul(k, width)
            vector = lanes.load(builder.gep(right, [start]), c)
            tile.join(lambda x, y: join(lanes, x, y), start, vector)
        for line, total in zip(lines, tile.sums, strict=True):
            lanes.store(total.get(), builder.gep(out, [line]), c)

    kinds = *(Row(matrix) for matrix in (out, base, left, right)), *[PLACE] * 4
    return operation(name, types.void, kinds, build)


# ---------------------------------------------------------------------- a product as a whole

# Not loops over the functions above: a tile here is of 16 columns or of 8, so that matrices may
# be narrower than a multiple of 16.


def multiply_plain(product, left, right, n_rows, n_inner, width):
    """``product[:n_rows] = left[:n_rows, :n_inner] @ right[:n_inner]``.

    All are of this `width`, a multiple of 8; rows are replaced up to the next multiple of 8.
    """
    n_rows = -(-n_rows // TILE) * TILE
    product[:n_rows] = left[:n_rows, :n_inner] @ right[:n_inner]


@intrinsic(multiply_plain)
def multiply(_, product, left, right, n_rows, n_inner, width):
    """``product[:n_rows] = left[:n_rows, :n_inner] @ right[:n_inner]``, in groups of 8 rows."""

    def build(builder, product, left, right, n_rows, n_inner, width):
        _multiply(builder, product, left, right, width, n_rows, n_inner, width, word(1))

    kinds = product, left, right, PLACE, PLACE, PLACE
    return operation("multiply", types.void, kinds, build)


def multiply_turned_plain(product, left, right, n_inner, width):
    """``product = left[:n_inner].T @ right[:n_inner]``; of this `width`, a multiple of 8."""
    product[:] = left[:n_inner].T @ right[:n_inner]


@intrinsic(multiply_turned_plain)
def multiply_turned(_, product, left, right, n_inner, width):
    """``product = left[:n_inner].T @ right[:n_inner]``; of this `width`, a multiple of 8."""

    def build(builder, product, left, right, n_inner, width):
        _multiply(builder, product, left, right, width, width, n_inner, word(1), width)

    return operation("multiply_turned", types.void, (product, left, right, PLACE, PLACE), build)


def _multiply(builder, product, left, right, width, n_rows, n_inner, row_step, inner_step):
    """A product with the matrix whose number (r, k) is at ``r row_step + k inner_step``."""
    start = word(0)
    for n in (WIDE, TILE):
        lanes = Lanes(builder, product.type.pointee, n)
        stop = builder.and_(width, word(-n))
        with (
            loop(builder, start, stop, word(n)) as f,
            loop(builder, word(0), n_rows, word(TILE)) as r,
        ):
            place = builder.gep(left, [builder.mul(r, row_step)])
            tile = _Tile(lanes, place, row_step, [None] * TILE)
            with loop(builder, word(0), n_inner, word(1)) as k:
                vector = lanes.load(builder.gep(right, [builder.mul(k, width)]), f)
                tile.join(lanes.add, builder.mul(k, inner_step), vector)
            for j, total in enumerate(tile.sums):
                line = builder.mul(builder.add(r, word(j)), width)
                lanes.store(total.get(), builder.gep(product, [line]), f)
        start = stop


# ------------------------------------------------------------------ products of two vectors


def add_outer_plain(total, numbers, rows, x, k, width):
    """``total[i] += numbers[i] x[k]`` for i below `rows`; all are of this width.

    x may be the total if ``numbers[k]`` is 0.
    """
    total[:rows] += numbers[:rows, None] * x[k]


@intrinsic(add_outer_plain)
def add_outer(_, total, numbers, rows, x, k, width):
    """``total[i] += numbers[i] x[k]`` for i below `rows`; x may be the total if numbers[k] is 0."""

    def build(builder, total, numbers, rows, x, width):
        # Chunks outside: each is loaded once for all rows.
        for lanes, f in chunks(builder, width, x.type.pointee):
            row = lanes.load(x, f)
            with loop(builder, word(0), rows, word(1)) as i:
                number = builder.load(builder.gep(numbers, [i]), typ=lanes.lane)
                place = builder.gep(total, [builder.mul(i, width)])
                product = lanes.times(lanes.splat(number), row)
                lanes.store(lanes.add(lanes.load(place, f), product), place, f)

    kinds = total, numbers, PLACE, Row(x), PLACE
    return operation("add_outer", types.void, kinds, build)
