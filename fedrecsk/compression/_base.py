"""What all compressors share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

from fedrecsk._sklearn import StrOptions
from fedrecsk.uploads import INDEX_BYTES, Changes, Listed, Ragged, Update

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

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
        """As in :class:`Compressed`."""
        numbers = self.n_coordinates * (self.itemsize or wire_itemsize)
        return numbers + self.n_indices * INDEX_BYTES + self.n_scales * _SCALE_BYTES

    def payload_nbytes(self, wire_itemsize):
        """As in :class:`Compressed`."""
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
    """

    values: np.ndarray
    n_coordinates: int
    n_payload: int
    n_indices: int = 0
    n_scales: int = 0
    itemsize: int | None = None

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


class Compressor(BaseEstimator, ABC):
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

    def _compress_uploads(self, changes, form, sends, seeds, itemsize, summed):
        """Compress one field of the uploads of a block, client by client.

        Parameters
        ----------
        changes : Changes
        form : Form
            Form of a matrix of real numbers.
        sends : ndarray of shape (n_clients,), dtype bool
            Mask of the clients that send something.
        seeds : ndarray of shape (n_clients,), dtype uint64
            Seeds of the clients' draws.
        itemsize : int
            Bytes of a number without compression.
        summed : bool
            Whether only the sum of the uploads will be used, so that one draw for the sum, with
            the same distribution, is enough.

        Returns
        -------
        Packed
        """
        updates: list[Update | None] = [None] * len(sends)
        nbytes, payload = np.zeros((2, len(sends)), dtype=np.int64)
        for client in np.flatnonzero(sends):
            rows, change = changes.update(client)
            sent = self._sent(change, np.random.default_rng(int(seeds[client])))
            updates[client] = Update(rows, np.asarray(sent.values, dtype=np.float64))
            nbytes[client] = sent.nbytes(itemsize) + row_number_bytes(form, len(change))
            payload[client] = sent.payload_nbytes(itemsize)
        return Packed(Listed(updates, form), nbytes, payload)

    def _sent(self, change, generator):
        """What a client sends; changes that are not finite stay so, and the server rejects them."""
        if not np.isfinite(change).all():
            return untouched(change)
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
        Bytes of each client's message, and the bytes that papers count; 0 for clients that send
        nothing.
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
    if np.isnan(sent.values).any():
        raise ValueError(
            f"{name}.compress returned NaN for a field of shape {change.shape} of finite "
            "numbers; look for a division by zero."
        )


def row_number_bytes(form, n_rows):
    """Bytes of the rows' indices, if clients choose their rows."""
    return n_rows * INDEX_BYTES if form.rows == "chosen" else 0


class Shortener(Compressor):
    """What the built-in compressors share: the length of a message follows from its shape."""

    # Whether the numbers of a message give what `compress` returns, and not only nearly.
    _is_exact: ClassVar[bool] = True

    @abstractmethod
    def _lengths(self, n_rows: ArrayLike, width: int) -> Lengths:
        """Sizes of one message, or of an array of messages."""

    @abstractmethod
    def _compressed(self, changes, form, sends, seeds, summed):
        """The changes after compression, as a Changes."""

    @abstractmethod
    def _encoded(self, change, received):
        """The numbers of one message, and an array of what else it has, or None.

        `received` is what the receiver reconstructs from the matrix `change`.
        """

    @abstractmethod
    def _decoded(self, values, extra, shape):
        """What a message of `_encoded` stands for; raises if it is malformed."""

    def _sizes_of_upload(self, form, n_rows, itemsize):
        """Bytes of a message with these rows of a field, and the bytes that papers count."""
        lengths = self._lengths(n_rows, form.width)
        nbytes = lengths.nbytes(itemsize) + row_number_bytes(form, n_rows)
        return nbytes, lengths.payload_nbytes(itemsize)

    @property
    def _is_changed(self):
        """Whether a subclass outside this package compresses in another way."""
        methods = type(self).compress, type(self)._compress
        return any(not method.__module__.startswith("fedrecsk.compression") for method in methods)

    def _compress_uploads(self, changes, form, sends, seeds, itemsize, summed):
        if self._is_changed:
            return super()._compress_uploads(changes, form, sends, seeds, itemsize, summed)
        n_rows = np.where(sends, rows_sent(changes, form, sends), 0)
        nbytes, payload = self._sizes_of_upload(form, n_rows, itemsize)
        return Packed(
            self._compressed(changes, form, sends, seeds, summed),
            np.where(sends, nbytes, 0),
            np.where(sends, payload, 0),
        )


def check_array(values, kinds, shape):
    """Raise if this is not an array of these kinds of numbers and this shape."""
    if type(values) is not np.ndarray or values.dtype.kind not in kinds:
        raise TypeError(f"A compressed upload needs an array of the kinds {kinds!r}.")
    if values.shape != tuple(shape):
        raise ValueError(
            f"A compressed upload has an array of shape {values.shape} instead of {tuple(shape)}."
        )


def rows_sent(changes, form, sends):
    """Number of rows that each client sends, shape (n_clients,)."""
    if form.rows == "all":
        return np.full(len(sends), form.shape[0])
    if isinstance(changes, Ragged):
        return changes.n_rows
    n_rows = np.zeros(len(sends), dtype=np.int64)
    for client in np.flatnonzero(sends):
        n_rows[client] = len(changes.update(client).change)
    return n_rows


def untouched(values):
    """An array that is sent without compression."""
    return Compressed(values, values.size, values.size)


class After(Changes):
    """Changes after compression, computed on access.

    Parameters
    ----------
    changes : Changes
        The changes before compression.
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


class OneByOne(After):
    """Top-K or low rank of changes that are not Ragged."""


class AfterRagged(After):
    """Compressed Ragged changes; `common` is the change of all rows that are not a client's own."""

    @property
    def common(self):
        return self.changes.common if self.changes.form.rows == "all" else None

    @property
    def _change(self):
        """The common change as the kernels take it."""
        return None if self.common is None else self.common.change

    def finite(self, mask):
        return self.changes.finite(mask)
