"""What all compressors share, and the built-in ones: Top-K, low rank, and quantisation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrecsk._utils.constraints import Above0To1, AtLeast1
from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.parameters import PlainParameters
from fedrecsk._utils.user_warnings import warn
from fedrecsk.updates import INDEX_BYTES, SparseRows, Update

# Bytes of a scale in a message: float32.
_SCALE_BYTES = 4
rounding_kernels: LazyModule = LazyModule("fedrecsk.compression._rounding_kernels")
# Numbers of the Gram matrices that are decomposed at once.
GRAM_NUMBERS = 2**19


@dataclass(frozen=True, eq=False)
class Compressed:
    """An array after compression.

    Attributes
    ----------
    values : ndarray
        What the receiver reconstructs, with the shape and dtype of the array.
    n_coordinates : int
        How many numbers the message has.
    n_payload : int
        How many of them papers count: all but the second factor of a low-rank array.
    n_indices : int
        How many positions the message has.
    n_scales : int
        How many scales the message has.
    itemsize : int or None
        Bytes per number. If None, as without compression.
    step : float or None
        Step of the integers sent in place of the numbers. If None, numbers are sent.
    """

    values: np.ndarray
    n_coordinates: int
    n_payload: int
    n_indices: int = 0
    n_scales: int = 0
    itemsize: int | None = None
    step: float | None = None

    def nbytes(self, wire_itemsize: int = 4) -> int:
        """Return the bytes of the message if an uncompressed number has `wire_itemsize` bytes."""
        numbers = self.n_coordinates * (self.itemsize or wire_itemsize)
        return numbers + self.n_indices * INDEX_BYTES + self.n_scales * _SCALE_BYTES

    def payload_nbytes(self, wire_itemsize: int = 4) -> int:
        """Return the bytes as CoLR's Table 2 counts them: Top-K's positions, one factor."""
        return self.n_payload * (self.itemsize or wire_itemsize) + self.n_indices * INDEX_BYTES


class Compressor(PlainParameters, ABC):
    """Base class of compressors: what ``Federation(compression=...)`` takes."""

    # Compressors without a parameter `direction` compress in both directions.
    direction: Literal["both", "down", "up"] = "both"
    # Numbers beyond it become infinite; None: there is no such limit.
    _largest_number: float | None = None

    @property
    def up(self) -> bool:
        """Whether clients compress their uploads."""
        return self.direction != "down"

    @property
    def down(self) -> bool:
        """Whether the server compresses its messages."""
        return self.direction != "up"

    def compress(self, values: ArrayLike, generator: np.random.Generator | None) -> Compressed:
        """Compress an array.

        Parameters
        ----------
        values : ndarray of any shape, dtype float32 or float64
            Finite numbers.
        generator : numpy.random.Generator or None
            Generator for stochastic rounding, which `Quantization` needs.

        Returns
        -------
        Compressed

        Raises
        ------
        TypeError
            If the values are not real numbers.
        ValueError
            If a value is NaN or infinite, or a parameter of the compressor is invalid.
        """
        super()._validate_params()
        values = np.asarray(values)
        if values.dtype.kind != "f":
            raise TypeError(
                f"{type(self).__name__} compresses real numbers, but got {values.dtype}; convert "
                "them to floating point, or send counts and indices as they are."
            )
        finite = np.isfinite(values)
        if not finite.all():
            place = tuple(int(i) for i in np.argwhere(~finite)[0])
            raise ValueError(
                f"{type(self).__name__} compresses finite numbers, but got {values[place]} at "
                f"position {place}; replace it, or find where it comes from."
            )
        return self._compress(values, generator)

    @abstractmethod
    def _compress(self, values: np.ndarray, generator: np.random.Generator | None) -> Compressed:
        """Like `compress`, for an array of finite real numbers."""

    def _compress_rows(self, rows: SparseRows, seeds: NDArray[np.uint64], itemsize: int) -> Packed:
        """Compress a matrix of a block, with a seed for each client; `itemsize`: uncompressed."""
        updates, nbytes, payload = [], [], []
        for client in range(rows.n_clients):
            numbers, change = rows.update(client)
            if np.isfinite(change).all():
                sent = self.compress(change, np.random.default_rng(int(seeds[client])))
                _check_compressed(type(self).__name__, change, sent)
            else:
                # The server rejects it.
                sent = untouched(change)
            updates.append(Update(numbers, np.asarray(sent.values, dtype=np.float64)))
            nbytes.append(sent.nbytes(itemsize) + rows.spec.index_bytes(len(change)))
            payload.append(sent.payload_nbytes(itemsize))
        received = SparseRows.listed(updates, rows.spec, center=rows.center)
        return Packed(received, np.array(nbytes), np.array(payload))


class Packed(NamedTuple):
    """One field of a block as the server reconstructs it, and the sizes of clients' messages."""

    rows: SparseRows
    nbytes: np.ndarray
    payload: np.ndarray  # bytes that papers count


def _check_compressed(name, change, sent):
    """Raise if a user's compressor has returned something else than `change`, compressed."""
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
    if np.isnan(sent.values).any():
        raise ValueError(
            f"{name}.compress returned NaN for a field of shape {change.shape} of finite "
            "numbers; look for a division by zero."
        )


def untouched(values):
    """Return an array that is sent without compression."""
    return Compressed(values, values.size, values.size)


@dataclass(eq=False, repr=False)
class BlockCompressor(Compressor):
    """A compressor of the clients of a block at once, whose messages have lengths by shape."""

    _: KW_ONLY
    direction: Literal["both", "up", "down"] = "both"

    # Whether decompression gives exactly what `compress` returns.
    _is_exact: ClassVar[bool] = True

    @abstractmethod
    def _lengths(self, n_rows: ArrayLike, width: int) -> dict[str, Any]:
        """Return the counts of a Compressed for one message, or arrays for many."""

    @abstractmethod
    def _receive(self, indptr, n_rows, matrix, is_finite, generators) -> np.ndarray | None:
        """Put what the server reconstructs in the place of the changes, client by client.

        Client c has the rows ``indptr[c]:indptr[c + 1]`` of `matrix`, and sends `n_rows[c]`, of
        which others are zero. Others than `is_finite` need not change. Return each client's step
        of integers, or None.
        """

    @abstractmethod
    def _encoded(self, received, step) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the numbers of the message for a received matrix, and what else it has or None."""

    @abstractmethod
    def _decoded(self, values, extra, shape) -> np.ndarray:
        """Return the matrix that a message stands for; raise if the message is malformed."""

    def _compress(self, values, generator):
        if values.size == 0:
            return untouched(values)
        n_rows = len(values)
        matrix = values.reshape(n_rows, -1).astype(np.float64, order="C")
        indptr, is_finite = np.array([0, n_rows]), np.ones(1, dtype=bool)
        steps = self._receive(indptr, np.array([n_rows]), matrix, is_finite, [generator])
        received = matrix.reshape(values.shape).astype(values.dtype)
        counts = {name: int(n) for name, n in self._lengths(n_rows, matrix.shape[1]).items()}
        return Compressed(received, **counts, step=None if steps is None else steps[0])

    def _sizes_of_upload(self, spec, n_rows, itemsize):
        """Return the bytes of messages with these rows, and the bytes that papers count."""
        message = Compressed(np.empty(0), **self._lengths(spec.rows_sent(n_rows), spec.width))
        nbytes = message.nbytes(itemsize) + spec.index_bytes(n_rows)
        return nbytes, message.payload_nbytes(itemsize)

    @property
    def _is_changed(self):
        """Whether a subclass outside this package compresses in another way."""
        methods = type(self).compress, type(self)._compress
        return any(not method.__module__.startswith("fedrecsk.compression") for method in methods)

    def _compress_rows(self, rows, seeds, itemsize):
        if self._is_changed:
            return super()._compress_rows(rows, seeds, itemsize)
        sizes = self._sizes_of_upload(rows.spec, rows.n_rows, itemsize)
        own = rows.written_out()
        matrix = own.matrix.astype(np.float64, order="C", copy=own is rows)
        generators = (np.random.default_rng(int(seed)) for seed in seeds)
        # Factors may make finite numbers infinite.
        is_finite = (rows if rows.factors is None else own).finite()
        steps = self._receive(own.indptr, own.rows_sent, matrix, is_finite, generators)
        values = matrix.reshape(own.values.shape)
        return Packed(replace(own, values=values, steps=steps), *sizes)


def check_array(values, kinds, shape):
    """Raise if this is not an array of these kinds of numbers and this shape."""
    if type(values) is not np.ndarray or values.dtype.kind not in kinds:
        raise TypeError(f"A compressed upload needs an array of the kinds {kinds!r}.")
    if values.shape != tuple(shape):
        raise ValueError(
            f"A compressed upload has an array of shape {values.shape} instead of {tuple(shape)}."
        )


@dataclass(eq=False, repr=False)
class TopK(BlockCompressor):
    """Send only the coordinates of the largest size, each with its position.

    Parameters
    ----------
    ratio : float in (0, 1], default=1 / 16
        Share of an array's coordinates to send, rounded to a whole number, at least one.
    direction : {"both", "up", "down"}, default="both"
        Which messages to compress.

    Notes
    -----
    A message has the same length whatever zeros it has. A position costs 4 bytes, so a ratio
    above 1/2 costs more than the whole array in float32; a fit then warns. What is not sent is
    lost, because clients do not store it (there is no error feedback). The positions reveal which
    items a client visited.

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

    ratio: Above0To1 = 1 / 16

    def _validate_params(self):
        super()._validate_params()
        if self.ratio > 1 / 2:
            warn(
                f"{self} makes messages longer: each number is sent with its position, which takes "
                "4 bytes as well. Choose a ratio below 1/2, or compression=None."
            )

    def _n_kept(self, size):
        """Return how many of `size` numbers to send, for one array or for many."""
        wanted = np.floor(self.ratio * np.asarray(size) + 0.5).astype(np.int64)
        return np.where(np.asarray(size) > 0, np.maximum(wanted, 1), 0)

    def _lengths(self, n_rows, width):
        k = self._n_kept(n_rows * width)
        return {"n_coordinates": k, "n_payload": k, "n_indices": k}

    def _encoded(self, received, step):
        flat = received.ravel()
        kept, zeros = np.flatnonzero(flat), np.flatnonzero(flat == 0)
        # Zeros fill the message up, whose length is always the same.
        n_zeros = max(0, int(self._n_kept(flat.size)) - len(kept))
        positions = np.sort(np.concatenate([kept, zeros[:n_zeros]]))
        return flat[positions], positions.astype(np.int32)

    def _decoded(self, values, extra, shape):
        size = int(np.prod(shape))
        k = int(self._n_kept(size))
        check_array(values, "f", (k,))
        check_array(extra, "iu", (k,))
        positions = extra.astype(np.int64)
        if k and not (
            positions[0] >= 0 and positions[-1] < size and (np.diff(positions) > 0).all()
        ):
            raise ValueError("The positions of a Top-K upload do not ascend within its field.")
        received = np.zeros(size)
        received[positions] = values
        return received.reshape(shape)

    def _receive(self, indptr, n_rows, matrix, is_finite, generators):
        flat, indptr = matrix.ravel(), indptr * matrix.shape[1]
        n_kept = self._n_kept(n_rows * matrix.shape[1])
        for client in np.flatnonzero(is_finite & (n_kept < np.diff(indptr))):
            own = flat[indptr[client] : indptr[client + 1]]
            sizes = np.abs(own)
            place = len(own) - n_kept[client]
            threshold = np.partition(sizes, place)[place]
            stays = sizes >= threshold
            n_excess = np.count_nonzero(stays) - n_kept[client]
            if n_excess and threshold:
                # Of equal ones, the first stay.
                stays[np.flatnonzero(sizes == threshold)[-n_excess:]] = False
            own[~stays] = 0


@dataclass(eq=False, repr=False)
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

    rank: AtLeast1 = 4

    # Factors are rounded before they are multiplied.
    _is_exact: ClassVar[bool] = False

    def _shortens(self, n_rows, width):
        return self.rank * (n_rows + width) < n_rows * width

    def _lengths(self, n_rows, width):
        shortens, r = self._shortens(n_rows, width), self.rank
        sent = np.where(shortens, r * (n_rows + width), n_rows * width)
        paid = np.where(shortens, r * n_rows, n_rows * width)
        return {"n_coordinates": sent, "n_payload": paid}

    def _encoded(self, received, step):
        if not self._shortens(*received.shape) or not np.isfinite(received).all():
            return received, None
        (basis,) = _leading([received], self.rank)
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

    def _receive(self, indptr, n_rows, matrix, is_finite, generators):
        clients = np.flatnonzero(self._shortens(n_rows, matrix.shape[1]) & is_finite)
        step = max(1, GRAM_NUMBERS // matrix.shape[1] ** 2)
        for start in range(0, len(clients), step):
            some = clients[start : start + step]
            matrices = [matrix[indptr[client] : indptr[client + 1]] for client in some]
            for own, basis in zip(matrices, _leading(matrices, self.rank), strict=True):
                np.matmul(own @ basis, basis.T, out=own)


def _leading(matrices, rank):
    """Return each matrix's right singular vectors of the largest singular values, as columns."""
    with np.errstate(over="ignore"):
        grams = np.stack([matrix.T @ matrix for matrix in matrices])
    traces = np.trace(grams, axis1=1, axis2=2)
    for place in np.flatnonzero(~((traces > 1e-200) & (traces < 1e200))):
        # Squares would be zero or infinite.
        scaled = matrices[place] / (np.abs(matrices[place]).max(initial=0) or 1.0)
        grams[place] = scaled.T @ scaled
    return np.linalg.eigh(grams)[1][:, :, -int(rank) :]


@dataclass(eq=False, repr=False)
class Quantization(BlockCompressor):
    """Send numbers of fewer bits, rounded up or down at random, without bias.

    Parameters
    ----------
    dtype : {"float16", "int8"}, default="int8"
        "float16": 2 bytes per number. Numbers beyond 65504 become infinite, and the server
        rejects the upload. "int8": 1 byte per number, in 255 steps between plus and minus the
        largest size in the array, and 4 bytes for the step.
    direction : {"both", "up", "down"}, default="both"
        Which messages to compress.

    Notes
    -----
    A number between two that can be sent becomes either of them, with probabilities that make
    its expectation exact, up to 2**-16 of their distance (stochastic rounding), so errors average
    out over clients. Zeros stay zeros.

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

    dtype: Literal["float16", "int8"] = "int8"

    @property
    def _largest_number(self):
        return float(np.finfo(np.float16).max) if self.dtype == "float16" else None

    def _compress(self, values, generator):
        if not isinstance(generator, np.random.Generator):
            raise TypeError(
                "Quantization rounds at random and needs a numpy.random.Generator, such as "
                f"np.random.default_rng(0), but got {type(generator).__name__}."
            )
        largest = np.abs(values).max(initial=0)
        if self.dtype == "int8" and largest > np.finfo(np.float32).max:
            raise ValueError(
                "Quantization(dtype='int8') sends its scale as float32, but the largest number is "
                f"{largest:.3g} in size; scale the numbers down to at most 3.4e38."
            )
        return super()._compress(values, generator)

    def _receive(self, indptr, n_rows, matrix, is_finite, generators):
        indptr = indptr * matrix.shape[1]
        draws = np.empty(matrix.size, dtype=np.uint16)
        for client, generator in enumerate(generators):
            own = draws[indptr[client] : indptr[client + 1]]
            # A draw for each number, so that zeros do not change the other draws; four are a word.
            words = generator.integers(2**64, size=-(-len(own) // 4), dtype=np.uint64)
            own[:] = words.view(np.uint16)[: len(own)]
        # What is next to a number that can be sent becomes that number.
        draws |= np.uint16(1)
        if self.dtype == "float16":
            rounding_kernels.to_float16(matrix.ravel(), draws)
            return None
        steps = np.empty(len(indptr) - 1)
        rounding_kernels.to_int8(indptr, matrix.ravel(), draws, steps)
        return steps

    def _lengths(self, n_rows, width):
        itemsize, n_scales = (2, 0) if self.dtype == "float16" else (1, 1)
        counts = dict.fromkeys(("n_coordinates", "n_payload"), n_rows * width)
        return counts | {"n_scales": n_scales, "itemsize": itemsize}

    def _encoded(self, received, step):
        if self.dtype == "float16":
            return received.astype(np.float16), None
        step = 1.0 if step is None else step
        codes = np.rint(received / step).astype(np.int8)
        return codes, np.array([step], dtype=np.float32)

    def _decoded(self, values, extra, shape):
        if self.dtype == "float16":
            check_array(values, "f", shape)
            if extra is not None:
                raise ValueError("An upload in float16 has a scale, but needs none.")
            return values.astype(np.float64)
        check_array(values, "i", shape)
        check_array(extra, "f", (1,))
        if values.dtype != np.int8 or not (np.isfinite(extra[0]) and extra[0] > 0):
            raise ValueError("An upload in int8 needs codes of that type and a positive scale.")
        return values * np.float64(extra[0])
