"""Uploads client by client: own rows, and one matrix for all the others.

What the kernels share:

    indptr (n_clients + 1,), rows (n_own,), values (n_own, width)
        client c's own rows ``rows[indptr[c]:indptr[c + 1]]`` of the field, and what it sends there
    origin : (n_rows, width) or None
        subtracted from the values: what a client that changed nothing would send there
    weights : (n_clients,)
        factor of each client's change; clients of weight 0 are skipped
    whom : (n_clients,) bool
        the clients to look at

A client's change is ``values[k] - origin[rows[k]]`` in its own rows, and one common matrix
elsewhere, which these kernels know by the squared lengths of its rows at most.
"""

from fedrecsk._kernels._jit import kernel
from fedrecsk._kernels.shared import all_finite, own_change


@kernel
def add(indptr, rows, values, origin, weights, sums, held):
    """Add the own rows' changes to `sums` (n_rows, width), and the weights to `held` (n_rows,)."""
    real = sums.dtype.type
    width = values.shape[1]
    for c in range(len(indptr) - 1):
        weight = real(weights[c])
        if weight == 0:
            continue
        for k in range(indptr[c], indptr[c + 1]):
            i = rows[k]
            held[i] += weight
            for f in range(width):
                if origin is None:
                    sums[i, f] += weight * real(values[k, f])
                else:
                    sums[i, f] += weight * (real(values[k, f]) - real(origin[i, f]))


@kernel
def squared_norms(indptr, rows, values, origin, common_squares, common_square, whom, out):
    """Squared length of each change; `common_*` is that of the common part by row, and in all."""
    width = values.shape[1]
    for c in range(len(indptr) - 1):
        if not whom[c]:
            continue
        total = common_square
        for k in range(indptr[c], indptr[c + 1]):
            i = rows[k]
            own = 0.0
            for f in range(width):
                x = own_change(values, origin, k, i, f)
                own += x * x
            if common_squares is not None:
                own -= common_squares[i]
            total += own
        out[c] = total


@kernel
def products(indptr, rows, values, origin, vectors, common_products, common_product, whom, out):
    """Inner product of each change with `vectors` (n_rows, width); `common_*` as above."""
    width = values.shape[1]
    for c in range(len(indptr) - 1):
        if not whom[c]:
            continue
        total = common_product
        for k in range(indptr[c], indptr[c + 1]):
            i = rows[k]
            own = 0.0
            for f in range(width):
                own += own_change(values, origin, k, i, f) * vectors[i, f]
            if common_products is not None:
                own -= common_products[i]
            total += own
        out[c] = total


@kernel
def largest(indptr, rows, values, origin, whom, out):
    """Largest absolute change in each client's own rows; NaN is not looked for."""
    width = values.shape[1]
    for c in range(len(indptr) - 1):
        if not whom[c]:
            continue
        most = 0.0
        for k in range(indptr[c], indptr[c + 1]):
            i = rows[k]
            for f in range(width):
                x = own_change(values, origin, k, i, f)
                most = max(most, abs(x))
        out[c] = most


@kernel
def finite(indptr, values, whom, out):
    """Whether no value of the client is NaN or infinite, (n_clients,) bool."""
    for c in range(len(indptr) - 1):
        if whom[c]:
            out[c] = all_finite(values[indptr[c] : indptr[c + 1]])
