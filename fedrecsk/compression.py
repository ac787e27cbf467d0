"""Compression of what crosses the wire: Top-K, low rank, and quantisation.

Each says what the receiver gets and what it costs. They are for messages of real numbers;
counts and indices stay as they are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

import numpy as np
from scipy import linalg
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

__all__ = ["Compressed", "Compressor", "LowRank", "Quantization", "TopK"]

# A position in an array on the wire, as int32; a scale, as float32.
_INDEX_BYTES = 4
_SCALE_BYTES = 4


@dataclass(frozen=True, eq=False)
class Compressed:
    """An array after compression.

    Attributes
    ----------
    values : ndarray
        What the receiver reconstructs, of the shape and dtype of the array.
    n_coordinates : int
        Numbers on the wire.
    n_payload : int
        Those of them that papers count: without the second factor of a low-rank array.
    n_indices : int
        Positions on the wire.
    n_scales : int
        Scales on the wire.
    itemsize : int or None
        Bytes of a number. None: as on an uncompressed wire.
    """

    values: np.ndarray
    n_coordinates: int
    n_payload: int
    n_indices: int = 0
    n_scales: int = 0
    itemsize: int | None = None

    def nbytes(self, wire_itemsize=4):
        """Bytes on the wire, where an uncompressed number has `wire_itemsize`."""
        numbers = self.n_coordinates * (self.itemsize or wire_itemsize)
        return numbers + self.n_indices * _INDEX_BYTES + self.n_scales * _SCALE_BYTES

    def payload_nbytes(self, wire_itemsize=4):
        """Bytes as CoLR's Table 2 counts them: Top-K's positions, not a second factor."""
        return self.n_payload * (self.itemsize or wire_itemsize) + self.n_indices * _INDEX_BYTES


class Compressor(BaseEstimator, ABC):
    """Base class: what ``Federation(compression=...)`` takes."""

    _parameter_constraints: dict = {"direction": [StrOptions({"both", "up", "down"})]}

    @property
    def up(self):
        """Whether clients compress what they send."""
        return self.direction != "down"

    @property
    def down(self):
        """Whether the server compresses what it sends."""
        return self.direction != "up"

    def compress(self, values, generator):
        """Compress an array.

        Parameters
        ----------
        values : ndarray of any shape, dtype float32 or float64
            Finite.
        generator : numpy.random.Generator
            For stochastic rounding; the others draw nothing.

        Returns
        -------
        Compressed
        """
        values = np.asarray(values)
        if values.dtype.kind != "f":
            raise TypeError(
                f"{type(self).__name__} compresses real numbers, but got {values.dtype}; send "
                "counts and indices as they are."
            )
        return self._compress(values, generator)

    @abstractmethod
    def _compress(self, values, generator):
        """As `compress`, for an array of real numbers."""


def _untouched(values):
    return Compressed(values, values.size, values.size)


class TopK(Compressor):
    """Send the coordinates of largest size only, each with its position.

    Parameters
    ----------
    ratio : float in (0, 1], default=1 / 16
        Share of an array's coordinates to send, rounded to a whole number of at least one.
    direction : {"both", "up", "down"}, default="both"
        Which messages to compress.

    Notes
    -----
    A message always has the same length, whatever its zeros. A position costs 4 bytes, so
    that a ratio above 1/2 costs more than the whole array in float32. What was not sent is
    lost: there is no memory of it (error feedback). The positions tell the server which
    items a client has visited.

    Examples
    --------
    >>> import numpy as np
    >>> from fedrecsk.compression import TopK
    >>> sent = TopK(ratio=0.5).compress(np.array([0.1, -3.0, 2.0, 0.0]), None)
    >>> sent.values
    array([ 0., -3.,  2.,  0.])
    >>> sent.nbytes()
    16
    """

    _parameter_constraints: dict = {
        **Compressor._parameter_constraints,
        "ratio": [Interval(Real, 0, 1, closed="right")],
    }

    def __init__(self, ratio: float = 1 / 16, *, direction: Literal["both", "up", "down"] = "both"):
        self.ratio = ratio
        self.direction = direction

    def _compress(self, values, generator):
        if values.size == 0:
            return _untouched(values)
        k = max(1, math.floor(self.ratio * values.size + 0.5))
        kept = _largest(np.abs(values).ravel(), k)
        received = np.zeros_like(values).ravel()
        received[kept] = values.ravel()[kept]
        return Compressed(received.reshape(values.shape), k, k, n_indices=k)


def _largest(sizes, k):
    """Positions of the k largest, the first ones among equals; without those that are 0."""
    # Most items of a client's upload are often 0, and equals make np.partition slow.
    other = np.flatnonzero(sizes)
    if len(other) <= k:
        return other
    sizes = sizes[other]
    threshold = np.partition(sizes, len(sizes) - k)[len(sizes) - k]
    above = np.flatnonzero(sizes > threshold)
    return other[np.concatenate([above, np.flatnonzero(sizes == threshold)[: k - len(above)]])]


class LowRank(Compressor):
    """Send the best approximation of a matrix by one of low rank, as two factors.

    The "SVD" of CoLR's comparison. An array that is not a matrix, or that has fewer numbers than
    the factors would, is sent as it is.

    Parameters
    ----------
    rank : int, default=4
        Rank of the approximation (r).
    direction : {"both", "up", "down"}, default="both"
        Which messages to compress.

    Notes
    -----
    An (m, d) matrix crosses as factors of (m, r) and (r, d), singular values multiplied into
    the first; the paper counts the first alone. They come from the eigenvectors of the (d, d)
    Gram matrix, which takes O(m d^2) and loses singular values below 1e-8 of the largest.

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

    _parameter_constraints: dict = {
        **Compressor._parameter_constraints,
        "rank": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(self, rank: int = 4, *, direction: Literal["both", "up", "down"] = "both"):
        self.rank = rank
        self.direction = direction

    def _compress(self, values, generator):
        if values.ndim != 2:
            return _untouched(values)
        n_rows, width = values.shape
        if self.rank * (n_rows + width) >= values.size:
            return _untouched(values)
        received = np.zeros_like(values)
        # Most items of a client's upload are often 0.
        rows = values.any(axis=1)
        matrix = values[rows].astype(np.float64)
        _, basis = linalg.eigh(matrix.T @ matrix, subset_by_index=[width - self.rank, width - 1])
        received[rows] = (matrix @ basis) @ basis.T
        return Compressed(received, self.rank * (n_rows + width), self.rank * n_rows)


class Quantization(Compressor):
    """Send numbers of fewer bits, rounded up or down at random so that the mean is right.

    Parameters
    ----------
    dtype : {"float16", "int8"}, default="int8"
        "float16": 2 bytes a number; beyond 65504 it becomes infinite, and the server rejects
        the upload. "int8": 1 byte a number, in 255 steps between plus and minus the largest
        size in the array, and 4 bytes for that.
    direction : {"both", "up", "down"}, default="both"
        Which messages to compress.

    Notes
    -----
    A number between two that can be sent becomes either, with the chances that make the
    expectation exact (stochastic rounding), so that errors average out over clients. Zeros
    stay zeros.

    Examples
    --------
    >>> import numpy as np
    >>> from fedrecsk.compression import Quantization
    >>> sent = Quantization("int8").compress(np.linspace(-1, 1, 5), np.random.default_rng(0))
    >>> sent.nbytes()
    9
    >>> float(np.abs(sent.values - np.linspace(-1, 1, 5)).max()) < 1 / 127
    True
    """

    _parameter_constraints: dict = {
        **Compressor._parameter_constraints,
        "dtype": [StrOptions({"float16", "int8"})],
    }

    def __init__(
        self,
        dtype: Literal["float16", "int8"] = "int8",
        *,
        direction: Literal["both", "up", "down"] = "both",
    ):
        self.dtype = dtype
        self.direction = direction

    def _compress(self, values, generator):
        received, other = np.zeros_like(values), values != 0
        rounded = {"float16": _to_float16, "int8": _to_int8}[self.dtype]
        numbers = values[other].astype(np.float64)
        received[other] = rounded(numbers, generator.random(numbers.shape))
        itemsize, n_scales = (2, 0) if self.dtype == "float16" else (1, 1)
        return Compressed(received, values.size, values.size, n_scales=n_scales, itemsize=itemsize)


def _to_float16(values, draws):
    most = float(np.finfo(np.float16).max)
    too_large = np.copysign(np.inf, values)
    fits, values = np.abs(values) <= most, np.clip(values, -most, most)
    nearest = values.astype(np.float16)
    above = nearest.astype(np.float64) > values
    with np.errstate(over="ignore"):
        low = np.where(above, np.nextafter(nearest, np.float16(-np.inf)), nearest)
        high = np.nextafter(low, np.float16(np.inf)).astype(np.float64)
    low = low.astype(np.float64)
    rounded = np.where(draws < (values - low) / (high - low), high, low)
    return np.where(fits, rounded, too_large)


def _to_int8(values, draws):
    if len(values) == 0:
        return values
    largest = np.max(np.abs(values))
    # float32 crosses, rounded up so that no number exceeds 127 steps.
    step = np.nextafter(np.float32(largest / 127), np.float32(np.inf)).astype(np.float64)
    return np.floor(values / step + draws) * step
