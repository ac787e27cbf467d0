"""Least squares of a few dozen unknowns: sums of outer products, and Cholesky's solution.

Matrices of d unknowns are flat, one row of `width` numbers after the other. Only the upper
triangle counts; numbers beyond the unknowns are zero.
"""

import numpy as np

from fedrecsk._kernels._jit import part
from fedrecsk._kernels._rows import add_row, dot_rows, fill_row, scale_row
from fedrecsk._kernels._tiles import TILE, TILE_BYTES, add_tile, subtract_tile


def width_of(d, dtype):
    """Width of rows of d numbers that consist of whole tiles."""
    tile = max(TILE, TILE_BYTES // np.dtype(dtype).itemsize)
    return -(-d // tile) * tile


@part
def add_products(matrix, base, left, first, right, n, d):
    """``matrix = base + left[first : first + n]' right[:n]``; left and right are `width` wide."""
    step, width = TILE_BYTES // matrix.itemsize, left.shape[1]
    for r in range(0, d, TILE):
        for c in range(r // step * step, d, step):
            add_tile(matrix, r * width, base, r * width, left, first, right, 0, n, r, c, width)


@part
def factor(matrix, d, width):
    """Replace the matrix by U with U'U = matrix; by NaN from where it is not positive definite."""
    step = TILE_BYTES // matrix.itemsize
    for r in range(0, d, TILE):
        left, last = r // step * step, min(r + TILE, d)
        for c in range(left, d, step):
            subtract_tile(
                matrix, r * width, matrix, r * width, matrix, 0, matrix, 0, r, r, c, width
            )
        for j in range(r, last):
            row, square = j * width + left, matrix[j * width + j]
            share = 1 / np.sqrt(square) if square > 0 else np.nan
            scale_row(matrix, row, share, matrix, row, width - left)
            for i in range(j + 1, last):
                number = -matrix[j * width + i]
                add_row(matrix, i * width + left, number, matrix, row, width - left)


@part
def solve(upper, d, width, right, x, i):
    """``x[i] = (U'U)^-1 right``; returns right.x. `right` is flat, and destroyed."""
    step, square = TILE_BYTES // upper.itemsize, upper.dtype.type(0)
    for f in range(d):
        left = f // step * step
        x[i, f] = right[f] / upper[f * width + f]
        square += x[i, f] * x[i, f]
        add_row(right, left, -x[i, f], upper, f * width + left, width - left)
    # From here on `right` has the solution, and what comes before f is zero.
    fill_row(right, 0, upper.dtype.type(0), width)
    for f in range(d - 1, -1, -1):
        left = f // step * step
        known = dot_rows(upper, f * width + left, right, left, width - left)
        right[f] = (x[i, f] - known) / upper[f * width + f]
        x[i, f] = right[f]
    return square
