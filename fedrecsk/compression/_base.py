"""What all compressors share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from fedrecsk._utils.parameters import PlainParameters
from fedrecsk._utils.sklearn_compat import StrOptions
from fedrecsk.updates import INDEX_BYTES, FieldSpec, SparseRows, Update

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# Bytes of a scale in a message: float32.
_SCALE_BYTES = 4


class Lengths(NamedTuple):
    """The lengths of one message, or arrays for many messages; see :class:`Compressed`."""

    n_coordinates: Any
    n_payload: Any
    n_indices: Any = 0
    n_scales: Any = 0
    itemsize: int | None = None

    def nbytes(self, wire_itemsize):
        """Return bytes as in :class:`Compressed`."""
        numbers = self.n_coordinates * (self.itemsize or wire_itemsize)
        return numbers + self.n_indices * INDEX_BYTES + self.n_scales * _SCALE_BYTES

    def payload_nbytes(self, wire_itemsize):
        """Return bytes as in :class:`Compressed`."""
        return self.n_payload * (self.itemsize or wire_itemsize) + self.n_indices * INDEX_BYTES


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
        """Bytes of the message if an uncompressed number has `wire_itemsize` bytes."""
        return self._lengths.nbytes(wire_itemsize)

    def payload_nbytes(self, wire_itemsize: int = 4) -> int:
        """Bytes as CoLR's Table 2 counts them: with Top-K's positions, without a second factor."""
        return self._lengths.payload_nbytes(wire_itemsize)

    @property
    def _lengths(self):
        counts = self.n_coordinates, self.n_payload, self.n_indices, self.n_scales
        return Lengths(*counts, self.itemsize)


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
        """Compress one field of the updates of a block, client by client.

        Parameters
        ----------
        rows : SparseRows
            Of a matrix of real numbers.
        seeds : ndarray of shape (n_clients,), dtype uint64
            Seeds of the clients' draws.
        itemsize : int
            Bytes of a number without compression.

        Returns
        -------
        Packed
        """
        updates, nbytes, payload = [], [], []
        for client in range(rows.n_clients):
            numbers, change = rows.update(client)
            sent = self._sent(change, np.random.default_rng(int(seeds[client])))
            updates.append(Update(numbers, np.asarray(sent.values, dtype=np.float64)))
            nbytes.append(sent.nbytes(itemsize) + row_number_bytes(rows.spec, len(change)))
            payload.append(sent.payload_nbytes(itemsize))
        received = SparseRows.listed(updates, rows.spec, center=rows.center)
        return Packed(received, np.array(nbytes), np.array(payload))

    def _sent(self, change, generator):
        """Compress a change; one that is not finite stays so, and the server rejects it."""
        if not np.isfinite(change).all():
            return untouched(change)
        sent = self.compress(change, generator)
        _check_compressed(self, change, sent)
        return sent


class Packed(NamedTuple):
    """One field of a block's updates after compression.

    Attributes
    ----------
    rows : SparseRows
        What the server reconstructs.
    nbytes, payload : ndarray of shape (n_clients,), dtype int64
        Bytes of each client's message, and the bytes that papers count.
    """

    rows: SparseRows
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
    """What the built-in compressors share: they work on the clients of a block at once.

    The length of a message follows from its shape.
    """

    # Whether decompression gives exactly what `compress` returns.
    _is_exact: ClassVar[bool] = True

    @abstractmethod
    def _lengths(self, n_rows: ArrayLike, width: int) -> Lengths:
        """Return the sizes of one message, or of an array of messages."""

    @abstractmethod
    def _received(
        self, rows: SparseRows, matrix: np.ndarray, generators: Iterable[np.random.Generator]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return what the server reconstructs of the own rows, and steps of integers or None.

        Parameters
        ----------
        rows : SparseRows
            Without a default. Clients whose numbers are not all finite stay as they are.
        matrix : ndarray of shape (n_own, width), dtype float64
            Their changes, which may be changed in place.
        generators : iterable of Generator
            One for each client.

        Returns
        -------
        received : ndarray of shape (n_own, width), dtype float64
        steps : ndarray of shape (n_clients,) or None
        """

    @abstractmethod
    def _encoded(self, received, step):
        """Return the numbers of one message, and an array of what else it has, or None.

        `received` is what the receiver reconstructs, a matrix, and `step` its step of integers.
        """

    @abstractmethod
    def _decoded(self, values, extra, shape):
        """Return what a message of `_encoded` stands for; raise if it is malformed."""

    def _compress(self, values, generator):
        if values.size == 0:
            return untouched(values)
        n_rows = len(values)
        spec = FieldSpec((n_rows, *values.shape[1:]), "held")
        rows = SparseRows(np.array([0, n_rows]), np.arange(n_rows), values, spec=spec)
        received, steps = self._received(rows, rows.matrix.astype(np.float64), [generator])
        lengths = self._lengths(n_rows, spec.width)
        received = received.reshape(values.shape).astype(values.dtype)
        return Compressed(received, *map(_plain, lengths), step=None if steps is None else steps[0])

    def _sizes_of_upload(self, spec, n_rows, itemsize):
        """Return the bytes of a message with these rows, and the bytes that papers count."""
        lengths = self._lengths(n_rows, spec.width)
        nbytes = lengths.nbytes(itemsize) + row_number_bytes(spec, n_rows)
        return nbytes, lengths.payload_nbytes(itemsize)

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
        matrix = own.matrix.astype(np.float64, copy=own is rows)
        generators = (np.random.default_rng(int(seed)) for seed in seeds)
        received, steps = self._received(own, matrix, generators)
        values = received.reshape(own.values.shape)
        return Packed(replace(own, values=values, steps=steps), *sizes)


def _plain(number):
    """Turn a NumPy integer into one of Python."""
    return None if number is None else int(number)


def check_array(values, kinds, shape):
    """Raise if this is not an array of these kinds of numbers and this shape."""
    if type(values) is not np.ndarray or values.dtype.kind not in kinds:
        raise TypeError(f"A compressed upload needs an array of the kinds {kinds!r}.")
    if values.shape != tuple(shape):
        raise ValueError(
            f"A compressed upload has an array of shape {values.shape} instead of {tuple(shape)}."
        )
