"""LAPACK inside kernels.

SciPy exports its LAPACK as C function pointers. They are registered here under names of our
own, because a cached kernel can hold a symbol's name but not a pointer.
"""

import llvmlite.binding
import numpy as np
from numba import types
from numba.extending import get_cython_function_address, overload
from scipy.linalg import get_lapack_funcs

from fedrecsk._kernels._jit import part

LOWER = ord("L")


def _posv(letter):
    name = f"fedrecsk_{letter}posv"
    address = get_cython_function_address("scipy.linalg.cython_lapack", f"{letter}posv")
    llvmlite.binding.add_symbol(name, address)
    return types.ExternalFunction(name, types.void(*[types.uintp] * 8))


_sposv, _dposv = _posv("s"), _posv("d")


def _call_posv(integers, matrix, right):
    """What the compiled call does, for NUMBA_DISABLE_JIT=1."""
    d = right.shape[1]
    leading = matrix[:d, :d]
    (posv,) = get_lapack_funcs(("posv",), (matrix,))
    leading.T[:], right.T[:], integers[4] = posv(leading.T, right.T, lower=True)


@overload(_call_posv)
def _overload_call_posv(integers, matrix, right):
    posv = _sposv if matrix.dtype is types.float32 else _dposv

    def call(integers, matrix, right):
        at = integers.ctypes.data
        size = integers.itemsize
        posv(
            at,
            at + size,
            at + 2 * size,
            matrix.ctypes.data,
            at + 3 * size,
            right.ctypes.data,
            at + size,
            at + 4 * size,
        )

    return call


@part
def solve_positive(matrix, right, integers):
    """Solve matrix x = right by Cholesky, each row of `right` in place.

    Parameters
    ----------
    matrix : (m, m) symmetric, of which the leading (d, d) part counts
        Its upper triangle becomes U with U'U = matrix, the rest is destroyed.
    right : (n, d), replaced by the solutions, or by NaN if the matrix is not positive definite
    integers : (5,) int32, scratch
    """
    integers[0] = LOWER
    integers[1] = right.shape[1]
    integers[2] = right.shape[0]
    integers[3] = matrix.shape[1]
    _call_posv(integers, matrix, right)
    if integers[4] != 0:
        for k in range(right.shape[0]):
            for f in range(right.shape[1]):
                right[k, f] = np.nan
