"""Low rank: send the best approximation of a matrix as two factors."""

from __future__ import annotations

from functools import cached_property
from numbers import Integral
from typing import ClassVar, Literal

import numpy as np
from scipy import linalg

from fedrecsk import _kernels
from fedrecsk._sklearn import Interval
from fedrecsk.compression._base import (
    AfterRagged,
    Compressed,
    Compressor,
    Lengths,
    OneByOne,
    Shortener,
    check_array,
    rows_sent,
    untouched,
)
from fedrecsk.uploads import Ragged


class LowRank(Shortener):
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

    def _compress(self, values, generator):
        if values.ndim != 2:
            return untouched(values)
        n_rows, width = values.shape
        if not self._shortens(n_rows, width):
            return untouched(values)
        received = np.zeros_like(values)
        # Most items of a client's upload are often 0.
        rows = values.any(axis=1)
        matrix = values[rows].astype(np.float64)
        basis = _leading(matrix, self.rank)[1]
        received[rows] = (matrix @ basis) @ basis.T
        return Compressed(received, self.rank * (n_rows + width), self.rank * n_rows)

    def _shortens(self, n_rows, width):
        return self.rank * (n_rows + width) < n_rows * width

    def _lengths(self, n_rows, width):
        shortens, r = self._shortens(n_rows, width), self.rank
        sent = np.where(shortens, r * (n_rows + width), n_rows * width)
        return Lengths(sent, np.where(shortens, r * n_rows, n_rows * width))

    def _encoded(self, change, received):
        if not self._shortens(*change.shape) or not np.isfinite(change).all():
            return change, None
        basis = _leading(change[change.any(axis=1)], self.rank)[1]
        return change @ basis, basis.T

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

    def _compressed(self, changes, form, sends, seeds, summed):
        if not isinstance(changes, Ragged):
            return OneByOne(changes, self)
        shortens = self._shortens(rows_sent(changes, form, sends), form.width)
        return _Projected(changes, self, sends & shortens)


def _leading(matrix, rank):
    """Squares of the largest singular values, ascending, and their right singular vectors."""
    largest = np.abs(matrix).max(initial=0) or 1.0
    scaled, last = matrix / largest, matrix.shape[1] - 1
    squares, basis = linalg.eigh(scaled.T @ scaled, subset_by_index=[last + 1 - int(rank), last])
    with np.errstate(over="ignore"):
        return np.maximum(squares, 0) * largest**2, basis


class _Projected(AfterRagged):
    """Low rank of Ragged changes: each client's change times a projector (`_kernels.low_rank`).

    Parameters
    ----------
    shortened : ndarray of shape (n_clients,), dtype bool
        Mask of the clients that send factors; the others send their change as it is.
    """

    def __init__(self, changes, compressor, shortened):
        super().__init__(changes, compressor)
        self.shortened = shortened

    @cached_property
    def _factors(self):
        """Leading eigenvectors (n_clients, rank, width), and the squared norms that they keep."""
        rank, width = self.compressor.rank, self.shape[1]
        bases, squares = np.zeros((self.n_clients, rank, width)), np.zeros(self.n_clients)
        gram = np.zeros((width, width))
        if self._change is not None:
            gram = self._change.T @ self._change
        _kernels.low_rank.factor(
            *self.changes._matrix, self._change, gram, self.shortened, bases, squares
        )
        for client in np.flatnonzero(np.isnan(squares)):
            bases[client], squares[client] = self._slowly(client)
        return bases, squares

    def _slowly(self, client):
        """The same for one client by LAPACK; NaN if the change is not finite."""
        change = self.changes.update(client).change
        if not np.isfinite(change).all():
            return 0.0, np.nan
        squares, basis = _leading(change, self.compressor.rank)
        return basis.T, squares.sum()

    def norms(self, mask):
        norms = self.changes.norms(mask & ~self.shortened)
        return np.where(mask & self.shortened, np.sqrt(self._factors[1]), norms)

    def largest(self, mask):
        """An upper bound: no number is larger than the norm."""
        return np.where(self.shortened, self.norms(mask), self.changes.largest(mask))

    def add_to(self, sums, weights):
        weights = np.asarray(weights, dtype=np.float64)
        bases = self._factors[0]
        if self._change is not None:
            factors = np.where(self.shortened, weights, 0)
            stacked = bases.reshape(-1, self.shape[1])
            projectors = stacked.T @ (np.repeat(factors, bases.shape[1])[:, None] * stacked)
            rest = weights[~self.shortened].sum()
            sums += self._change @ (projectors + rest * np.eye(self.shape[1]))
        _kernels.low_rank.add(
            *self.changes._matrix, self._change, bases, self.shortened, weights, sums
        )
