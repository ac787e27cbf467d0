"""Low rank: send the best approximation of a matrix as two factors."""

from __future__ import annotations

from numbers import Integral
from typing import ClassVar, Literal

import numpy as np

from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.compression._base import BlockCompressor, Compressor, Lengths, check_array


class LowRank(BlockCompressor):
    """Send the best low-rank approximation of a matrix, as two factors.

    This is the "SVD" in CoLR's comparison. An array that is not a matrix, or that has fewer
    numbers than its factors, is sent as it is.

    Parameters
    ----------
    rank : int, default=4
        Rank of the approximation (r).
    direction : {"both", "up", "down"}, default="both"
        Which messages to compress.

    Notes
    -----
    An (m, d) matrix is sent as factors of shapes (m, r) and (r, d), with the singular values in
    the first; the paper counts the first factor only. The factors come from the eigenvectors of
    the (d, d) Gram matrix. That takes O(m d^2) operations and loses singular values below 1e-8
    of the largest.

    Examples
    --------
    >>> import numpy as np
    >>> from fedrecsk.compression import LowRank
    >>> sent = LowRank(rank=1).compress(np.array([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]), None)
    >>> sent.values.round(6)
    array([[1., 2.],
           [2., 4.],
           [3., 6.]])
    >>> sent.n_coordinates
    5
    """

    # Factors are rounded before they are multiplied.
    _is_exact: ClassVar[bool] = False
    _parameter_constraints: ClassVar[dict] = {
        **Compressor._parameter_constraints,
        "rank": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(self, rank: int = 4, *, direction: Literal["both", "up", "down"] = "both"):
        self.rank = rank
        self.direction = direction

    def _shortens(self, n_rows, width):
        return self.rank * (n_rows + width) < n_rows * width

    def _lengths(self, n_rows, width):
        shortens, r = self._shortens(n_rows, width), self.rank
        sent = np.where(shortens, r * (n_rows + width), n_rows * width)
        return Lengths(sent, np.where(shortens, r * n_rows, n_rows * width))

    def _encoded(self, received, step):
        if not self._shortens(*received.shape) or not np.isfinite(received).all():
            return received, None
        basis = _leading(received, self.rank)
        return received @ basis, basis.T

    def _decoded(self, values, extra, shape):
        n_rows, width = shape
        if not self._shortens(n_rows, width):
            check_array(values, "f", shape)
            if extra is not None:
                raise ValueError("A low-rank upload has a second factor, but needs none.")
            return values.astype(np.float64)
        check_array(values, "f", (n_rows, self.rank))
        check_array(extra, "f", (self.rank, width))
        return values.astype(np.float64) @ extra.astype(np.float64)

    def _received(self, rows, matrix, generators):
        shortens = self._shortens(rows.rows_sent, rows.spec.width) & rows.finite()
        for client in np.flatnonzero(shortens):
            own = matrix[rows.indptr[client] : rows.indptr[client + 1]]
            basis = _leading(own, self.rank)
            np.matmul(own @ basis, basis.T, out=own)
        return matrix, None


def _leading(matrix, rank):
    """Return the right singular vectors of the largest singular values, as columns."""
    with np.errstate(over="ignore"):
        gram = matrix.T @ matrix
    if not 1e-200 < gram.trace() < 1e200:
        # Squares would be zero or infinite.
        scaled = matrix / (np.abs(matrix).max(initial=0) or 1.0)
        gram = scaled.T @ scaled
    return np.linalg.eigh(gram)[1][:, -int(rank) :]
