"""LAPACK inside kernels.

SciPy exports its LAPACK as C function pointers. They are registered here under names of our
own, because a cached kernel can hold a symbol's name but not a pointer.
"""

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address
from scipy.linalg import get_lapack_funcs

from fedrecsk._kernels._jit import intrinsic, part

LOWER = ord("L")

for letter in "sd":
    llvmlite.binding.add_symbol(
        f"fedrecsk_{letter}posv",
        get_cython_function_address("scipy.linalg.cython_lapack", f"{letter}posv"),
    )


def _plain_posv(matrix, n, right, first, n_right):
    rows = right[first : first + n_right, :n]
    (posv,) = get_lapack_funcs(("posv",), (matrix,))
    matrix[:n, :n], solutions, info = posv(matrix[:n, :n], rows.T)
    rows[:] = solutions.T
    return info


@intrinsic(_plain_posv)
def _posv(_, matrix, n, right, first, n_right):
    """LAPACK's posv on the rows of `right` from `first` on; returns its `info`."""

    def generate(context, builder, signature, values):
        def array(k):
            return context.make_array(signature.args[k])(context, builder, values[k])

        def columns(k):
            return cgutils.unpack_tuple(builder, array(k).shape)[1]

        def noted(number):
            number = builder.trunc(number, ir.IntType(32))
            return cgutils.alloca_once_value(builder, number)

        # Its upper triangle in rows is a lower one in columns.
        side = noted(ir.IntType(64)(LOWER))
        order, n_right, info = noted(values[1]), noted(values[4]), noted(ir.IntType(64)(0))
        rows = builder.gep(array(2).data, [builder.mul(values[3], columns(2))])
        places = (
            side, order, n_right, array(0).data, noted(columns(0)), rows, noted(columns(2)), info,
        )  # fmt: skip
        anything = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [anything] * 8)
        name = f"fedrecsk_{'s' if matrix.dtype is types.float32 else 'd'}posv"
        posv = cgutils.get_or_insert_function(builder.module, kind, name)
        builder.call(posv, [builder.bitcast(place, anything) for place in places])
        return builder.load(info)

    return types.int32(matrix, types.intp, right, types.intp, types.intp), generate


@part
def solve_rows(matrix, n, right, first, n_right):
    """Solve matrix x = b by Cholesky, for each of some rows b of `right` in place.

    Parameters
    ----------
    matrix : (m, m) symmetric, of which the leading (n, n) part counts
        Its upper triangle becomes U with U'U = matrix, the rest is destroyed.
    right : rows of at least n numbers, of which those from `first` to ``first + n_right`` are
        replaced by the solutions, or by NaN if the matrix is not positive definite
    """
    if _posv(matrix, n, right, first, n_right) != 0:
        for k in range(first, first + n_right):
            for f in range(n):
                right[k, f] = np.nan


@part
def solve_positive(matrix, right):
    """:func:`solve_rows` for all of `right`, as wide as the part of the matrix that counts."""
    solve_rows(matrix, right.shape[1], right, 0, right.shape[0])
