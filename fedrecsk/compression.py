"""Compression of messages: Top-K, low rank, and quantisation.

Each says what the receiver gets and what it costs. They are for messages of real numbers;
counts and indices stay as they are.

A compressor of your own has one method, `_compress`, for one array. For uploads, the built-in ones
also compress all clients of a block at once, without writing down what any of them sends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from typing import Literal, NamedTuple

import numpy as np
from scipy import linalg
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from fedrecsk import _kernels
from fedrecsk.uploads import INDEX_BYTES, Changes, Common, Listed, Ragged, Update

__all__ = ["Compressed", "Compressor", "LowRank", "Quantization", "TopK"]

# A scale in a message, as float32.
_SCALE_BYTES = 4
_LARGEST_FLOAT16 = 65504.0


@dataclass(frozen=True, eq=False)
class Compressed:
    """An array after compression.

    Attributes
    ----------
    values : ndarray
        What the receiver reconstructs, of the shape and dtype of the array.
    n_coordinates : int
        Numbers in the message.
    n_payload : int
        Those of them that papers count: without the second factor of a low-rank array.
    n_indices : int
        Positions in the message.
    n_scales : int
        Scales in the message.
    itemsize : int or None
        Bytes of a number. None: as without compression.
    """

    values: np.ndarray
    n_coordinates: int
    n_payload: int
    n_indices: int = 0
    n_scales: int = 0
    itemsize: int | None = None

    def nbytes(self, wire_itemsize=4):
        """Bytes of the message, where an uncompressed number has `wire_itemsize`."""
        numbers = self.n_coordinates * (self.itemsize or wire_itemsize)
        return numbers + self.n_indices * INDEX_BYTES + self.n_scales * _SCALE_BYTES

    def payload_nbytes(self, wire_itemsize=4):
        """Bytes as CoLR's Table 2 counts them: Top-K's positions, not a second factor."""
        return self.n_payload * (self.itemsize or wire_itemsize) + self.n_indices * INDEX_BYTES


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

    def _compress_uploads(self, changes, form, sends, seeds, itemsize, summed):
        """Compress one field of the uploads of a block, client by client.

        Parameters
        ----------
        changes : Changes
        form : Form
            Of a matrix of real numbers.
        sends : ndarray of shape (n_clients,), dtype bool
            The clients that send something.
        seeds : ndarray of shape (n_clients,), dtype uint64
            Where each client's draws begin.
        itemsize : int
            Bytes of a number without compression.
        summed : bool
            Nobody looks at single uploads afterwards, so that draws may be made once for their
            sum, with the same distribution.

        Returns
        -------
        Packed
        """
        updates, nbytes, payload = [None] * len(sends), *np.zeros((2, len(sends)), dtype=np.int64)
        for client in np.flatnonzero(sends):
            rows, change = changes.update(client)
            sent = self._sent(change, np.random.default_rng(int(seeds[client])))
            updates[client] = Update(rows, np.asarray(sent.values, dtype=np.float64))
            nbytes[client] = sent.nbytes(itemsize) + _row_number_bytes(form, len(change))
            payload[client] = sent.payload_nbytes(itemsize)
        return Packed(Listed(updates, form), nbytes, payload)

    def _sent(self, change, generator):
        """What a client sends; a change that the server will reject anyway stays as it is."""
        if not np.isfinite(change).all():
            return _untouched(change)
        sent = self.compress(change, generator)
        _check_compressed(self, change, sent)
        return sent


class Packed(NamedTuple):
    """One field of a block's uploads after compression.

    Attributes
    ----------
    changes : Changes
        What the server reconstructs.
    nbytes, payload : ndarray of shape (n_clients,), dtype int64
        Bytes of each client's message, and those that papers count; 0 for who sends nothing.
    """

    changes: Changes
    nbytes: np.ndarray
    payload: np.ndarray


def _check_compressed(compressor, change, sent):
    name = type(compressor).__name__
    if not isinstance(sent, Compressed):
        raise TypeError(
            f"{name}.compress must return a Compressed, but for a field of shape {change.shape} "
            f"it returned {type(sent).__name__}."
        )
    if np.shape(sent.values) != change.shape:
        raise ValueError(
            f"{name}.compress must keep the shape, but for a field of shape {change.shape} it "
            f"returned values of shape {np.shape(sent.values)}."
        )


def _row_number_bytes(form, n_rows):
    return n_rows * INDEX_BYTES if form.rows == "chosen" else 0


class _Shortener(Compressor):
    """What the built-in compressors share: the length of a message follows from its shape."""

    @abstractmethod
    def _lengths(self, n_rows, width):
        """A Compressed without values, for one message or for arrays of them."""

    @abstractmethod
    def _compressed(self, changes, form, sends, seeds, summed):
        """The changes after compression, a Changes."""

    @property
    def _is_changed(self):
        """Whether a user's subclass compresses in another way."""
        methods = type(self).compress, type(self)._compress
        return any(method.__module__ != __name__ for method in methods)

    def _compress_uploads(self, changes, form, sends, seeds, itemsize, summed):
        if self._is_changed:
            return super()._compress_uploads(changes, form, sends, seeds, itemsize, summed)
        n_rows = np.where(sends, _n_rows(changes, form, sends), 0)
        lengths = self._lengths(n_rows, form.width)
        nbytes = lengths.nbytes(itemsize) + _row_number_bytes(form, n_rows)
        return Packed(
            self._compressed(changes, form, sends, seeds, summed),
            np.where(sends, nbytes, 0),
            np.where(sends, lengths.payload_nbytes(itemsize), 0),
        )


def _n_rows(changes, form, sends):
    """Rows that each client sends, shape (n_clients,)."""
    if form.rows == "all":
        return np.full(len(sends), form.shape[0])
    if isinstance(changes, Ragged):
        return changes.n_rows
    n_rows = np.zeros(len(sends), dtype=np.int64)
    for client in np.flatnonzero(sends):
        n_rows[client] = len(changes.update(client).change)
    return n_rows


def _untouched(values):
    return Compressed(values, values.size, values.size)


class TopK(_Shortener):
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
        k = int(self._n_kept(values.size))
        kept = _largest(np.abs(values).ravel(), k)
        received = np.zeros_like(values).ravel()
        received[kept] = values.ravel()[kept]
        return Compressed(received.reshape(values.shape), k, k, n_indices=k)

    def _n_kept(self, size):
        """How many of so many numbers to send; arrays pass through."""
        wanted = np.floor(self.ratio * np.asarray(size) + 0.5).astype(np.int64)
        return np.where(np.asarray(size) > 0, np.maximum(wanted, 1), 0)

    def _lengths(self, n_rows, width):
        k = self._n_kept(n_rows * width)
        return Compressed(None, k, k, n_indices=k)

    def _compressed(self, changes, form, sends, seeds, summed):
        if not isinstance(changes, Ragged):
            return _OneByOne(changes, self)
        n_rows = _n_rows(changes, form, sends)
        return _Largest(changes, self, sends, self._n_kept(n_rows * form.width))


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


class _After(Changes):
    """Changes after compression, of which none is written down.

    Parameters
    ----------
    changes : Changes
        Before it.
    compressor : Compressor
    """

    def __init__(self, changes, compressor):
        self.changes = changes
        self.compressor = compressor

    @property
    def shape(self):
        return self.changes.shape

    @property
    def n_clients(self):
        return self.changes.n_clients

    def update(self, client):
        rows, change = self.changes.update(client)
        return Update(rows, self.compressor._sent(change, None).values)


class _OneByOne(_After):
    """Top-K or low rank of changes of any other kind."""


class _AfterRagged(_After):
    """Compressed Ragged changes; `common` is the change of the rows that are not a client's own."""

    @property
    def common(self):
        return self.changes.common if self.changes.form.rows == "all" else None

    @property
    def _change(self):
        """The common change as the kernels take it."""
        return None if self.common is None else self.common.change

    def finite(self, whom):
        return self.changes.finite(whom)


class _Largest(_AfterRagged):
    """Top-K of Ragged changes: see `_kernels.topk`.

    Parameters
    ----------
    sends : ndarray of shape (n_clients,), dtype bool
    n_kept : ndarray of shape (n_clients,)
        How many numbers each client sends.
    """

    def __init__(self, changes, compressor, sends, n_kept):
        super().__init__(changes, compressor)
        self.sends = sends
        self.n_kept = n_kept

    @property
    def _descending(self):
        return None if self.common is None else self.common.descending

    @cached_property
    def _cuts(self):
        cut = np.zeros(self.n_clients, dtype=np.int64)
        size, place = np.zeros(self.n_clients), np.zeros(self.n_clients, dtype=np.int64)
        sends = self.sends & (self.common is None or self.common.is_finite)
        _kernels.topk.cuts(
            *self.changes._matrix, self._descending, self.n_kept, sends, cut, size, place
        )
        return cut, size, place

    def largest(self, whom):
        return self.changes.largest(whom)

    def norms(self, whom):
        squares = np.zeros(self.n_clients)
        if self.common is not None:
            kept = np.cumsum(np.square(self._descending[1]))
            squares = np.where(whom, np.append(0.0, kept)[self._cuts[0]], 0.0)
        _kernels.topk.squared_norms(
            *self.changes._matrix, self._change, self._descending, *self._cuts, whom, squares
        )
        return np.sqrt(np.maximum(squares, 0))

    def add_to(self, sums, weights):
        weights = np.asarray(weights, dtype=np.float64)
        if self.common is not None:
            _kernels.topk.add_common(
                self._change, self._descending[2], self._cuts[0], weights, sums
            )
        _kernels.topk.add(
            *self.changes._matrix, self._change, self._descending, *self._cuts, weights, sums
        )


class LowRank(_Shortener):
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
        if not self._shortens(n_rows, width):
            return _untouched(values)
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
        return Compressed(None, sent, np.where(shortens, r * n_rows, n_rows * width))

    def _compressed(self, changes, form, sends, seeds, summed):
        if not isinstance(changes, Ragged):
            return _OneByOne(changes, self)
        shortens = self._shortens(_n_rows(changes, form, sends), form.width)
        return _Projected(changes, self, sends & shortens)


def _leading(matrix, rank):
    """Squares of the largest singular values, ascending, and the right singular vectors."""
    largest = np.abs(matrix).max(initial=0) or 1.0
    scaled, last = matrix / largest, matrix.shape[1] - 1
    squares, basis = linalg.eigh(scaled.T @ scaled, subset_by_index=[last + 1 - rank, last])
    with np.errstate(over="ignore"):
        return np.maximum(squares, 0) * largest**2, basis


class _Projected(_AfterRagged):
    """Low rank of Ragged changes: each client's times a projector. See `_kernels.low_rank`.

    Parameters
    ----------
    shortened : ndarray of shape (n_clients,), dtype bool
        The clients that send factors; the others send their change as it is.
    """

    def __init__(self, changes, compressor, shortened):
        super().__init__(changes, compressor)
        self.shortened = shortened

    @cached_property
    def _factors(self):
        """Leading eigenvectors (n_clients, rank, width), and the squared length that they keep."""
        rank, width = self.compressor.rank, self.shape[1]
        bases, squares = np.zeros((self.n_clients, rank, width)), np.zeros(self.n_clients)
        gram = np.zeros((width, width))
        if self.common is not None:
            gram = self._change.T @ self._change
        _kernels.low_rank.factor(
            *self.changes._matrix, self._change, gram, self.shortened, bases, squares
        )
        for client in np.flatnonzero(np.isnan(squares)):
            bases[client], squares[client] = self._slowly(client)
        return bases, squares

    def _slowly(self, client):
        """The same by LAPACK; NaN if the change is not finite."""
        change = self.changes.update(client).change
        if not np.isfinite(change).all():
            return 0.0, np.nan
        squares, basis = _leading(change, self.compressor.rank)
        return basis.T, squares.sum()

    def norms(self, whom):
        norms = self.changes.norms(whom & ~self.shortened)
        return np.where(whom & self.shortened, np.sqrt(self._factors[1]), norms)

    def largest(self, whom):
        """At most this: no number is larger than the norm."""
        return np.where(self.shortened, self.norms(whom), self.changes.largest(whom))

    def add_to(self, sums, weights):
        weights = np.asarray(weights, dtype=np.float64)
        bases = self._factors[0]
        if self.common is not None:
            factors = np.where(self.shortened, weights, 0)
            stacked = bases.reshape(-1, self.shape[1])
            projectors = stacked.T @ (np.repeat(factors, bases.shape[1])[:, None] * stacked)
            rest = weights[~self.shortened].sum()
            sums += self._change @ (projectors + rest * np.eye(self.shape[1]))
        _kernels.low_rank.add(
            *self.changes._matrix, self._change, bases, self.shortened, weights, sums
        )


class Quantization(_Shortener):
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
        rounded = {"float16": _to_float16, "int8": _to_int8}[self.dtype]
        # A draw for each number, zeros too: which of them are zeros must not change the others.
        received = rounded(values.astype(np.float64), generator.random(values.shape))
        return replace(self._lengths(values.size, 1), values=received.astype(values.dtype))

    def _lengths(self, n_rows, width):
        itemsize, n_scales = (2, 0) if self.dtype == "float16" else (1, 1)
        size = n_rows * width
        return Compressed(None, size, size, n_scales=n_scales, itemsize=itemsize)

    def _compressed(self, changes, form, sends, seeds, summed):
        seeds = (seeds ^ (seeds >> np.uint64(32))).astype(np.uint32)
        if not isinstance(changes, Ragged):
            kind = {"float16": _Float16, "int8": _Int8}[self.dtype]
            return kind(changes, self, seeds)
        if self.dtype == "int8":
            return _Int8Ragged(changes, self, seeds)
        return _Float16Ragged(changes, self, seeds, summed)


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
    step = np.float64(_int8_step(np.abs(values).max(initial=0)))
    return np.floor(values / step + draws) * step


def _int8_step(largest):
    """The step of numbers up to `largest`: float32, so large that none exceeds 127 steps."""
    with np.errstate(over="ignore"):
        step = np.float32(largest / 127 * (1 + 2.0**-21))
    return np.maximum(step, np.finfo(np.float32).smallest_subnormal)


# Stochastic rounding of uploads: each draw is a counter, the client's seed and the number's place.
# Unlike a generator's, such draws can be made for all clients at once, and made again.


def _draws(seed, rows, width):
    """24 random bits for each number in these rows of the field; as in `_kernels.rounding`."""
    places = (np.asarray(rows)[:, None] * width + np.arange(width)).astype(np.uint32)
    x = places * np.uint32(0x9E3779B1) + seed
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return (x >> np.uint32(8)).astype(np.int32)


def _float16_grid(values):
    """Distance of the float16 neighbours of each number, and the lower one in such distances."""
    exponents = np.frexp(values)[1] - 1
    grid = np.exp2(np.maximum(np.where(values == 0, -14, exponents), -14) - 10.0)
    return grid, np.floor(values / grid)


def _scales(largest):
    """Of int8: each client's step, and 2^24 of its inverse, float32, as the kernels take it."""
    # A step so small that its inverse is infinite would not round numbers but lose them.
    steps = np.maximum(_int8_step(largest), np.float32(2.0**-100))
    with np.errstate(divide="ignore"):
        return steps, np.float32(2.0**24) / steps


class _Quantized(_After):
    """Changes of any kind, rounded by counters.

    Parameters
    ----------
    seeds : ndarray of shape (n_clients,), dtype uint32
    """

    deferred = None

    def __init__(self, changes, compressor, seeds):
        super().__init__(changes, compressor)
        self.seeds = seeds

    def update(self, client):
        rows, change = self.changes.update(client)
        numbers = np.arange(self.shape[0])[rows] if isinstance(rows, slice) else rows
        draws = _draws(self.seeds[client], numbers, self.shape[1])
        return Update(rows, self._rounded(change, draws))


class _Float16(_Quantized):
    def _rounded(self, change, draws):
        grid, _ = _float16_grid(change)
        rounded = grid * np.floor(change / grid + draws * 2.0**-24)
        return np.where(np.abs(change) <= _LARGEST_FLOAT16, rounded, np.copysign(np.inf, change))


class _Int8(_Quantized):
    def _rounded(self, change, draws):
        if not np.abs(change).max(initial=0) <= np.finfo(np.float32).max:
            return np.full_like(change, np.nan)
        step, inverse = _scales(np.abs(change).max(initial=0))
        fixed = (change.astype(np.float32) * inverse).astype(np.int32)
        return ((fixed + draws) >> 24) * np.float64(step)


class _QuantizedRagged(_AfterRagged, _Quantized):
    """Ragged changes, rounded by counters: see `_kernels.rounding`."""

    _limit: float

    @cached_property
    def _sizes(self):
        """Largest number of each change before rounding; exactly, unlike `Ragged.largest`.

        NaN or infinite where a number is.
        """
        sizes, common = np.zeros(self.n_clients), None
        if self.common is not None:
            by_row = np.abs(self._change).max(axis=1)
            order = np.argsort(-by_row, kind="stable")
            common = order, by_row[order]
        everybody = np.ones(self.n_clients, dtype=bool)
        _kernels.rounding.largest(*self.changes._matrix, common, everybody, sizes)
        return sizes

    def finite(self, whom):
        finite = self._sizes <= self._limit
        if self.common is not None and not self.common.is_finite:
            finite[:] = False
        return finite | ~whom

    def _groups(self, *arrays):
        """These arrays of the clients for kernels that take four at a time."""
        return [np.append(array, np.zeros(-len(array) % 4, array.dtype)) for array in arrays]


class _Int8Ragged(_QuantizedRagged, _Int8):
    _limit = float(np.finfo(np.float32).max)

    @cached_property
    def _steps(self):
        # Who sends larger numbers is not finite, and the server rejects it.
        return _scales(np.where(self._sizes <= self._limit, self._sizes, 0))

    @property
    def _change32(self):
        with np.errstate(over="ignore"):
            return None if self.common is None else self._change.astype(np.float32)

    def largest(self, whom):
        """At most this: 127 steps."""
        return np.where(whom, 127 * self._steps[0].astype(np.float64), 0)

    def norms(self, whom):
        squares, (steps, inverses) = np.zeros(self.n_clients), self._steps
        _kernels.rounding.int8_squares(
            *self.changes._matrix, self._change32, self.seeds, inverses, whom, squares
        )
        return steps * np.sqrt(squares)

    def add_to(self, sums, weights):
        steps, inverses = self._steps
        factors, change = weights * steps.astype(np.float64), self._change32
        if change is not None:
            here = weights != 0
            groups = self._groups(self.seeds[here], inverses[here], factors[here])
            _kernels.rounding.add_int8_common(change.ravel(), *groups, sums.reshape(-1))
        _kernels.rounding.add_int8_own(
            *self.changes._matrix, change, self.seeds, inverses, factors, sums
        )


@dataclass(eq=False)
class Deferred:
    """The common change of clients that round it to float16, each for itself, still to be added.

    Attributes
    ----------
    common : Common
        What they round.
    counts : ndarray of shape (n_rows,), dtype int64
        How many of them send each row.
    """

    common: Common
    counts: np.ndarray

    def merged(self, other):
        """Both together; they have the same common change."""
        return Deferred(self.common, self.counts + other.counts)

    def total(self, generator):
        """The sum over the clients, with its distribution: n * low + Binomial(n, chance) steps."""
        change, n = self.common.change, self.counts[:, None]
        if not self.counts.any():
            return np.zeros_like(change)
        grid, low = _float16_grid(change)
        return grid * (n * low + generator.binomial(n, change / grid - low))


class _Float16Ragged(_QuantizedRagged, _Float16):
    _limit = _LARGEST_FLOAT16

    def __init__(self, changes, compressor, seeds, summed):
        super().__init__(changes, compressor, seeds)
        self.summed = summed

    def largest(self, whom):
        """At most this: its next larger float16."""
        grid, _ = _float16_grid(self._sizes)
        rounded = grid * np.ceil(self._sizes / grid)
        return np.where(whom, np.where(self._sizes <= self._limit, rounded, np.inf), 0)

    def _ups(self):
        """From which draw on the common numbers are rounded up; steps; numbers rounded down."""
        grid, low = _float16_grid(self._change)
        # Infinity and NaN have no limits, and the server rejects them.
        with np.errstate(invalid="ignore"):
            limits = np.ceil((1 - (self._change / grid - low)) * 2.0**24).astype(np.int32)
        return limits, grid, grid * low

    def norms(self, whom):
        squares, common = np.zeros(self.n_clients), None
        if self.common is not None:
            limits, grid, low = self._ups()
            common = limits, (low + grid) ** 2 - low**2, np.einsum("if,if->i", low, low)
        _kernels.rounding.float16_squares(*self.changes._matrix, common, self.seeds, whom, squares)
        return np.sqrt(np.maximum(squares, 0))

    def add_to(self, sums, weights):
        weights, held = np.asarray(weights, dtype=np.float64), np.zeros(self.shape[0])
        _kernels.rounding.add_float16_own(*self.changes._matrix, self.seeds, weights, sums, held)
        if self.common is None:
            return
        others = weights.sum() - held
        if self.summed:
            self.deferred = Deferred(self.common, np.rint(others).astype(np.int64))
        else:
            self._add_common(sums, weights, others)

    def _add_common(self, sums, weights, others):
        limits, grid, low = self._ups()
        ups, here = np.zeros(self.shape), weights != 0
        groups = self._groups(self.seeds[here], weights[here])
        _kernels.rounding.count_ups(limits.ravel(), *groups, ups.reshape(-1))
        indptr, rows, *_ = self.changes._matrix
        _kernels.rounding.take_back_ups(indptr, rows, limits, self.seeds, weights, ups)
        sums += others[:, None] * low + ups * grid
