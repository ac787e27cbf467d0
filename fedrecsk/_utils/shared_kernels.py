"""What several modules of kernels share."""

import numpy as np

from fedrecsk._utils import integers
from fedrecsk._utils.jit import inline

mix = inline(integers.mix)


@inline
def all_finite(matrix, first, last):
    """Return whether no entry of some rows is NaN or infinite."""
    n_broken = 0
    for k in range(first, last):
        n_broken += not is_finite_row(matrix, k, matrix.shape[1])
    return n_broken == 0


# ------------------------------------------------------------------------- random numbers


@inline
def uniform(state):
    """Return the output of splitmix64 in a state, scaled to [0, 1)."""
    return np.float64(mix(state) >> np.uint64(11)) * 2.0**-53


@inline
def unseen_item(rank, items, first, last):
    """Return item number `rank` (from 0) of those not in ``items[first:last]``, which ascend."""
    # items[first + j] - j unseen items come before items[first + j]. No branch to mispredict.
    low, n = np.int64(0), last - first
    while n > 0:
        half = (n + 1) >> 1
        middle = low + half - 1
        low += half * (items[first + middle] - middle <= rank)
        n -= half
    return rank + low


# ------------------------------------------------------- the first n numbers of rows of matrices

# The only row, and not 0: numba compiles functions once more for a literal. For the same reason,
# indices of rows are int64 everywhere.
ONLY = np.int64(0)

# A loop adds up or stores, never both: LLVM checks at run time whether what is stored overlaps
# with what is read, and would add up in one order or another, by where arrays lie in memory.


@inline
def dot_rows(x, k, y, i, n):
    """Return ``x[k] . y[i]``."""
    total = x.dtype.type(0)
    for f in range(n):
        total += x[k, f] * y[i, f]
    return total


@inline
def add_row(total, i, number, x, k, n):
    """``total[i] += number x[k]``; the total may be of the wider type."""
    for f in range(n):
        total[i, f] += number * x[k, f]


@inline
def scale_row(out, i, number, x, k, n):
    """``out[i] = number x[k]``; one may be the other."""
    for f in range(n):
        out[i, f] = number * x[k, f]


@inline
def copy_row(out, i, x, k, n):
    """``out[i] = x[k]``."""
    for f in range(n):
        out[i, f] = x[k, f]


@inline
def fill_row(out, i, number, n):
    """``out[i] = number``."""
    for f in range(n):
        out[i, f] = number


@inline
def is_finite_row(x, k, n):
    """Return whether no number of ``x[k]`` is NaN or infinite."""
    # A comparison, because `reassoc` folds x - x whether or not x is NaN.
    n_broken = 0
    for f in range(n):
        n_broken += not abs(x[k, f]) < np.inf
    return n_broken == 0


# -------------------------------------------------------------- positive definite linear equations


@inline
def factor(matrix):
    """Return L with LL' = matrix, of which the upper triangle is read; destroys it.

    L is NaN if there is none.
    """
    try:
        return np.linalg.cholesky(matrix.T)
    except Exception:  # LinAlgError, which numba cannot name: not positive definite or finite
        for f in range(len(matrix)):
            for g in range(len(matrix)):
                matrix[f, g] = np.nan
        return matrix


@inline
def solve(lower, d, right, x, i):
    """``x[i] = (LL')^-1 right[0]``; return right[0].x[i]. Destroys the right, which x may be."""
    for f in range(d):
        right[0, f] /= lower[f, f]
        number = right[0, f]
        for g in range(f + 1, d):
            right[0, g] -= number * lower[g, f]
    square = dot_rows(right, ONLY, right, ONLY, d)
    for f in range(d - 1, -1, -1):
        known = lower.dtype.type(0)
        for g in range(f + 1, d):
            known += lower[g, f] * x[i, g]
        x[i, f] = (right[0, f] - known) / lower[f, f]
    return square
