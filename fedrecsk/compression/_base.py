"""What all compressors share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from fedrecsk._utils.parameters import PlainParameters
from fedrecsk._utils.sklearn_compat import StrOptions
from fedrecsk.updates import INDEX_BYTES, SparseRows, Update

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# Bytes of a scale in a message: float32.
_SCALE_BYTES = 4


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
        Bytes per number. None: as without compression.
    step : float or None
        Step of the integers that are sent in place of the numbers. None: numbers are sent.
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
    direction: str = "both"
    # Numbers beyond it become infinite; None: there is no such limit.
    _largest_number: float | None = None
    _parameter_constraints: ClassVar[dict] = {"direction": [StrOptions({"both", "up", "down"})]}

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
        """Compress one field of a block, a matrix of real numbers, with a seed for each client.

        `itemsize` is how many bytes an uncompressed number has.
        """
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
            nbytes.append(sent.nbytes(itemsize) + row_number_bytes(rows.spec, len(change)))
            payload.append(sent.payload_nbytes(itemsize))
        received = SparseRows.listed(updates, rows.spec, center=rows.center)
        return Packed(received, np.array(nbytes), np.array(payload))


class Packed(NamedTuple):
    """One field of a block as the server reconstructs it, and the bytes of each client's message.

    `payload` has the bytes that papers count.
    """

    rows: SparseRows
    nbytes: np.ndarray
    payload: np.ndarray


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


def row_number_bytes(spec, n_rows):
    """Return the bytes of the rows' indices, if clients choose their rows."""
    return n_rows * INDEX_BYTES if spec.rows == "chosen" else 0


def untouched(values):
    """Return an array that is sent without compression."""
    return Compressed(values, values.size, values.size)


class BlockCompressor(Compressor):
    """A compressor of the clients of a block at once, whose messages have lengths by shape."""

    # Whether decompression gives exactly what `compress` returns.
    _is_exact: ClassVar[bool] = True

    @abstractmethod
    def _lengths(self, n_rows: ArrayLike, width: int) -> dict[str, Any]:
        """Return the counts of a Compressed for one message, or arrays for many."""

    @abstractmethod
    def _receive(
        self,
        indptr: np.ndarray,
        n_rows: np.ndarray,
        matrix: np.ndarray,
        is_finite: np.ndarray,
        generators: Iterable[np.random.Generator],
    ) -> np.ndarray | None:
        """Put what the server reconstructs in the place of the changes, client by client.

        Client c has the rows ``indptr[c]:indptr[c + 1]`` of `matrix`, and sends `n_rows[c]`, of
        which others are zero. Others than `is_finite` need not change. Return each client's step
        of integers, or None.
        """

    @abstractmethod
    def _encoded(self, received, step):
        """Return the numbers of the message for a received matrix, and what else it has or None."""

    @abstractmethod
    def _decoded(self, values, extra, shape):
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
        message = Compressed(np.empty(0), **self._lengths(n_rows, spec.width))
        nbytes = message.nbytes(itemsize) + row_number_bytes(spec, n_rows)
        return nbytes, message.payload_nbytes(itemsize)

    @property
    def _is_changed(self):
        """Whether a subclass outside this package compresses in another way."""
        methods = type(self).compress, type(self)._compress
        return any(not method.__module__.startswith("fedrecsk.compression") for method in methods)

    def _compress_rows(self, rows, seeds, itemsize):
        if self._is_changed:
            return super()._compress_rows(rows, seeds, itemsize)
        sizes = self._sizes_of_upload(rows.spec, rows.rows_sent, itemsize)
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
