"""What all compressors have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

from fedrecsk._sklearn import StrOptions
from fedrecsk.uploads import INDEX_BYTES, Changes, Listed, Ragged, Update

# A scale in a message, as float32.
_SCALE_BYTES = 4


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

    def nbytes(self, wire_itemsize: int = 4) -> int:
        """Bytes of the message, where an uncompressed number has `wire_itemsize`."""
        numbers = self.n_coordinates * (self.itemsize or wire_itemsize)
        return numbers + self.n_indices * INDEX_BYTES + self.n_scales * _SCALE_BYTES

    def payload_nbytes(self, wire_itemsize: int = 4) -> int:
        """Bytes as CoLR's Table 2 counts them: Top-K's positions, not a second factor."""
        return self.n_payload * (self.itemsize or wire_itemsize) + self.n_indices * INDEX_BYTES


class Compressor(BaseEstimator, ABC):
    """Base class: what ``Federation(compression=...)`` takes."""

    _parameter_constraints: ClassVar[dict] = {"direction": [StrOptions({"both", "up", "down"})]}

    @property
    def up(self) -> bool:
        """Whether clients compress what they send."""
        return self.direction != "down"

    @property
    def down(self) -> bool:
        """Whether the server compresses what it sends."""
        return self.direction != "up"

    def compress(self, values: ArrayLike, generator: np.random.Generator | None) -> Compressed:
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

        Raises
        ------
        TypeError
            If the values are not real numbers.
        ValueError
            If a value is NaN or infinite, or a parameter of the compressor is invalid.
        """
        self._validate_params()
        values = np.asarray(values)
        if values.dtype.kind != "f":
            raise TypeError(
                f"{type(self).__name__} compresses real numbers, but got {values.dtype}; send "
                "counts and indices as they are."
            )
        finite = np.isfinite(values)
        if not finite.all():
            place = tuple(int(i) for i in np.argwhere(~finite)[0])
            raise ValueError(
                f"{type(self).__name__} compresses finite numbers, but got {values[place]} at "
                f"position {place}; replace it, or find out why it is there."
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
            nbytes[client] = sent.nbytes(itemsize) + row_number_bytes(form, len(change))
            payload[client] = sent.payload_nbytes(itemsize)
        return Packed(Listed(updates, form), nbytes, payload)

    def _sent(self, change, generator):
        """What a client sends; a change that the server will reject anyway stays as it is."""
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


def row_number_bytes(form, n_rows):
    """Bytes of the rows' numbers, where clients choose their rows."""
    return n_rows * INDEX_BYTES if form.rows == "chosen" else 0


class Shortener(Compressor):
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
        return any(not method.__module__.startswith(__package__) for method in methods)

    def _compress_uploads(self, changes, form, sends, seeds, itemsize, summed):
        if self._is_changed:
            return super()._compress_uploads(changes, form, sends, seeds, itemsize, summed)
        n_rows = np.where(sends, rows_sent(changes, form, sends), 0)
        lengths = self._lengths(n_rows, form.width)
        nbytes = lengths.nbytes(itemsize) + row_number_bytes(form, n_rows)
        return Packed(
            self._compressed(changes, form, sends, seeds, summed),
            np.where(sends, nbytes, 0),
            np.where(sends, lengths.payload_nbytes(itemsize), 0),
        )


def rows_sent(changes, form, sends):
    """Rows that each client sends, shape (n_clients,)."""
    if form.rows == "all":
        return np.full(len(sends), form.shape[0])
    if isinstance(changes, Ragged):
        return changes.n_rows
    n_rows = np.zeros(len(sends), dtype=np.int64)
    for client in np.flatnonzero(sends):
        n_rows[client] = len(changes.update(client).change)
    return n_rows


def untouched(values):
    """An array that is sent as it is."""
    return Compressed(values, values.size, values.size)


class After(Changes):
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


class OneByOne(After):
    """Top-K or low rank of changes of any other kind."""


class AfterRagged(After):
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
