"""Best approximations of low rank of every client's change, by the eigenvectors of Gram matrices.

The arguments are those of `ragged`, and `change` (n_rows, width): the common change, or None. Each
client's leading eigenvectors come as `bases[c]` (rank, width), one a row.

Leading eigenvectors of a symmetric matrix: Householder's tridiagonal form, all its eigenvalues by
implicit QL, then inverse iteration for a few of them (Golub & Van Loan, "Matrix Computations",
sections 8.3 and 8.2). For four of twenty this takes a fifth of the time of a full decomposition.
"""

import numpy as np

from fedrecsk._kernels._jit import kernel, part
from fedrecsk._kernels.shared import own_change

_EPS = 2.0**-52
# Of an eigenvector's residual, relative to the trace. A caller takes LAPACK beyond.
_TOLERANCE = 1e-12


@kernel
def factor(indptr, rows, values, origin, change, common_gram, whom, bases, squares):
    """Leading eigenvectors of each client's Gram matrix, and the sum of their eigenvalues.

    common_gram : (width, width), of all of `change`
    squares : (n_clients,), NaN where something is not finite, or has not converged
    """
    _rank, width = bases.shape[1:]
    most = 1
    for c in range(len(indptr) - 1):
        most = max(most, indptr[c + 1] - indptr[c])
    block = np.empty((most, width))
    gram = np.empty((width, width))
    work = np.empty((7, width))
    for c in range(len(indptr) - 1):
        if not whom[c]:
            continue
        first, last = indptr[c], indptr[c + 1]
        for a in range(width):
            for b in range(width):
                gram[a, b] = common_gram[a, b]
        for k in range(first, last):
            for f in range(width):
                block[k - first, f] = own_change(values, origin, k, rows[k], f)
        add_gram(block, last - first, 1.0, gram)
        if change is not None:
            for k in range(first, last):
                for f in range(width):
                    block[k - first, f] = change[rows[k], f]
            add_gram(block, last - first, -1.0, gram)
        squares[c] = leading(gram, bases[c], work)


@part
def add_gram(block, n, sign, gram):
    """Add sign X'X of the first n rows to `gram`; four rows at a time."""
    width = block.shape[1]
    whole = n - n % 4
    for k in range(0, whole, 4):
        x0, x1, x2, x3 = block[k], block[k + 1], block[k + 2], block[k + 3]
        for a in range(width):
            y0, y1, y2, y3 = sign * x0[a], sign * x1[a], sign * x2[a], sign * x3[a]
            for b in range(width):
                gram[a, b] += y0 * x0[b] + y1 * x1[b] + y2 * x2[b] + y3 * x3[b]
    for k in range(whole, n):
        for a in range(width):
            y = sign * block[k, a]
            for b in range(width):
                gram[a, b] += y * block[k, b]


@part
def leading(gram, basis, work):
    """Write the leading eigenvectors to the rows of `basis`; sum of their eigenvalues, or NaN.

    gram : (width, width), destroyed
    work : (7, width), scratch
    """
    rank, width = basis.shape
    trace = 0.0
    for a in range(width):
        trace += gram[a, a]
    if not abs(trace) < np.inf:
        return np.nan
    if trace <= 0:
        for r in range(rank):
            for f in range(width):
                basis[r, f] = 1.0 if r == f else 0.0
        return 0.0
    for a in range(width):
        for b in range(width):
            gram[a, b] /= trace
    main, beside, roots, rest = work[0], work[1], work[2], work[3]
    tridiagonalise(gram, main, beside, rest)
    for f in range(width):
        roots[f], rest[f] = main[f], beside[f]
    if not eigenvalues(roots, rest):
        return np.nan
    sort(roots)
    total = 0.0
    for r in range(rank):
        root = roots[width - 1 - r]
        if not inverse_iteration(main, beside, root, basis, r, work):
            return np.nan
        total += max(root, 0.0)
    back(gram, basis)
    return total * trace


@part
def tridiagonalise(matrix, main, beside, product):
    """Householder's reduction; row k of `matrix` then has the k-th reflection from k + 1 on."""
    width = len(matrix)
    for k in range(width - 2):
        v = matrix[k]
        square = 0.0
        for f in range(k + 1, width):
            square += v[f] * v[f]
        main[k] = v[k]
        length = np.sqrt(square)
        pivot = length if v[k + 1] <= 0 else -length
        beside[k] = pivot
        if square == 0:
            continue
        v[k + 1] -= pivot
        # Scaled so that the reflection is 1 - v v'.
        scale = 1 / np.sqrt(length * (length + abs(v[k + 1] + pivot)))
        for f in range(k + 1, width):
            v[f] *= scale
        along = 0.0
        for a in range(k + 1, width):
            dot = 0.0
            for b in range(k + 1, width):
                dot += matrix[a, b] * v[b]
            product[a] = dot
            along += dot * v[a]
        for a in range(k + 1, width):
            product[a] -= 0.5 * along * v[a]
        for a in range(k + 1, width):
            x, y = v[a], product[a]
            for b in range(k + 1, width):
                matrix[a, b] -= x * product[b] + y * v[b]
    if width > 1:
        main[width - 2], beside[width - 2] = (
            matrix[width - 2, width - 2],
            matrix[width - 2, width - 1],
        )
    main[width - 1], beside[width - 1] = matrix[width - 1, width - 1], 0.0


@part
def back(matrix, basis):
    """Turn eigenvectors of the tridiagonal form into those of the matrix."""
    rank, width = basis.shape
    for k in range(width - 3, -1, -1):
        v = matrix[k]
        for r in range(rank):
            dot = 0.0
            for f in range(k + 1, width):
                dot += v[f] * basis[r, f]
            for f in range(k + 1, width):
                basis[r, f] -= dot * v[f]


@part
def eigenvalues(main, beside):
    """Eigenvalues of a tridiagonal matrix of norm at most 1, in `main`; whether QL converged."""
    width = len(main)
    for start in range(width):
        for step in range(61):
            m = start
            while m < width - 1 and abs(beside[m]) > 0.5 * _EPS:
                m += 1
            if m == start:
                break
            if step == 60:
                return False
            g = (main[start + 1] - main[start]) / (2 * beside[start])
            r = np.sqrt(g * g + 1)
            g = main[m] - main[start] + beside[start] / (g + (r if g >= 0 else -r))
            s, c, p = 1.0, 1.0, 0.0
            i = m - 1
            while i >= start:
                f, b = s * beside[i], c * beside[i]
                r = np.sqrt(f * f + g * g)
                beside[i + 1] = r
                if r == 0:
                    main[i + 1] -= p
                    beside[m] = 0.0
                    break
                s, c = f / r, g / r
                g = main[i + 1] - p
                r = (main[i] - g) * s + 2 * c * b
                p = s * r
                main[i + 1] = g + p
                g = c * r - b
                i -= 1
            if i < start:
                main[start] -= p
                beside[start] = g
                beside[m] = 0.0
    return True


@part
def sort(numbers):
    for j in range(1, len(numbers)):
        x, k = numbers[j], j
        while k > 0 and numbers[k - 1] > x:
            numbers[k] = numbers[k - 1]
            k -= 1
        numbers[k] = x


@part
def inverse_iteration(main, beside, root, basis, r, work):
    """Write a root's eigenvector to basis[r], orthogonal to those before; whether it is one."""
    width = len(main)
    x = basis[r]
    state = np.uint32(12345 + r)
    for f in range(width):
        state = np.uint32(state * np.uint32(1664525) + np.uint32(1013904223))
        x[f] = np.float64(state) * 2.0**-32 + 0.1
    for step in range(6):
        orthonormalise(basis, r)
        if step < 4:
            solve_shifted(main, beside, root, x, work)
    error = 0.0
    for f in range(width):
        y = (main[f] - root) * x[f]
        if f > 0:
            y += beside[f - 1] * x[f - 1]
        if f < width - 1:
            y += beside[f] * x[f + 1]
        error += abs(y)
    return error <= _TOLERANCE


@part
def orthonormalise(basis, r):
    """Make row r orthogonal to those before it, of length 1."""
    x = basis[r]
    for q in range(r):
        dot = 0.0
        for f in range(len(x)):
            dot += basis[q, f] * x[f]
        for f in range(len(x)):
            x[f] -= dot * basis[q, f]
    most = 0.0
    for f in range(len(x)):
        most = max(most, abs(x[f]))
    square = 0.0
    for f in range(len(x)):
        x[f] /= most
        square += x[f] * x[f]
    length = np.sqrt(square)
    for f in range(len(x)):
        x[f] /= length


@part
def solve_shifted(main, beside, root, x, work):
    """Solve (T - root) y = x in place, by elimination with row exchanges."""
    width = len(main)
    first, second, third = work[4], work[5], work[6]
    here, right = main[0] - root, beside[0]
    for f in range(width - 1):
        below, corner = beside[f], main[f + 1] - root
        beyond = beside[f + 1] if f + 2 < width else 0.0
        if abs(here) >= abs(below):
            here = here if here != 0 else _EPS
            ratio = below / here
            first[f], second[f], third[f] = here, right, 0.0
            x[f + 1] -= ratio * x[f]
            here, right = corner - ratio * right, beyond
        else:
            ratio = here / below
            first[f], second[f], third[f] = below, corner, beyond
            x[f], x[f + 1] = x[f + 1], x[f] - ratio * x[f + 1]
            here, right = right - ratio * corner, -ratio * beyond
    first[width - 1] = here if abs(here) > _EPS * _EPS else _EPS * _EPS
    for f in range(width - 1, -1, -1):
        y = x[f]
        if f + 1 < width:
            y -= second[f] * x[f + 1]
        if f + 2 < width:
            y -= third[f] * x[f + 2]
        x[f] = y / first[f]


@kernel
def add(indptr, rows, values, origin, change, bases, shortened, weights, sums):
    """Add the own rows' projections, less what `change` gives there, to `sums` (n_rows, width).

    shortened : (n_clients,) bool, False for clients that send their change as it is
    """
    rank, width = bases.shape[1:]
    x = np.empty(width)
    for c in range(len(indptr) - 1):
        weight, basis = weights[c], bases[c]
        if weight == 0:
            continue
        for k in range(indptr[c], indptr[c + 1]):
            i = rows[k]
            for f in range(width):
                x[f] = own_change(values, origin, k, i, f)
                if change is not None:
                    x[f] -= change[i, f]
            if not shortened[c]:
                for f in range(width):
                    sums[i, f] += weight * x[f]
                continue
            for r in range(rank):
                dot = 0.0
                for f in range(width):
                    dot += basis[r, f] * x[f]
                dot *= weight
                for f in range(width):
                    sums[i, f] += dot * basis[r, f]
