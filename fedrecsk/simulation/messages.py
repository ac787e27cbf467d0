"""What crosses between clients and server: a Message, and nothing that is not in one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrecsk.compression import Compressed

# An item's number on the wire, as int32.
INDEX_BYTES = 4


@dataclass(frozen=True, eq=False)
class Dense:
    """A field of which every client receives or sends the whole array.

    Parameters
    ----------
    values : ndarray
        Down: the array. Up: its sum over the block's clients that deliver.
    dtype : str or None
        Type on the wire, which need not be the type computed with. None: the
        federation's `wire_dtype`.
    clip : float or None
        Every client has clipped each of its coordinates to [-clip, clip] before the sum.
    center : ndarray or None
        Up: what a client that changed nothing would send; what it has learned is the
        difference. None: zero.
    learned : bool or None
        Whether it says what was learned, instead of counting or weighing things. None: unless
        it crosses as unsigned integers.
    compressible : bool
        Whether compression may touch it, if it is a matrix of real numbers.
    n_coordinates : ndarray of shape (n_clients of the block,) or None
        How many coordinates each client puts on the wire, if not all of them.
    packed : Compressed or None
        How it crosses instead of as it is.
    """

    values: np.ndarray
    dtype: str | None = None
    clip: float | None = None
    center: np.ndarray | None = None
    learned: bool | None = None
    compressible: bool = True
    n_coordinates: np.ndarray | None = None
    packed: Compressed | None = None

    @property
    def wide(self):
        """The values as a server adds them: integers exactly, everything else in float64."""
        values = np.asarray(self.values)
        return values.astype(np.int64 if values.dtype.kind in "iub" else np.float64)

    def sizes(self, block):
        """Coordinates that each client puts on the wire or takes from it, shape (n_clients,)."""
        if self.n_coordinates is not None:
            return self.n_coordinates
        return np.full(block.n_clients, np.size(self.values))

    def rows_of(self, block):
        """The rows that a one-client block puts on the wire."""
        return slice(None)

    @property
    def is_uniform(self):
        """Whether every client puts as much of it on the wire as any other."""
        return self.n_coordinates is None

    @property
    def is_count(self):
        """Whether it counts or weighs things instead of saying what was learned."""
        if self.learned is not None:
            return not self.learned
        return self.dtype is not None and np.dtype(self.dtype).kind == "u"

    def nbytes(self, block, wire_dtype):
        """Bytes of the field for each client, shape (n_clients,)."""
        itemsize = np.dtype(self.dtype or wire_dtype).itemsize
        if self.packed is not None:
            return np.full(block.n_clients, self.packed.nbytes(itemsize))
        return self.sizes(block) * itemsize

    def payload_nbytes(self, block, wire_dtype):
        """Those bytes that say what was learned, as papers count, shape (n_clients,)."""
        itemsize = np.dtype(self.dtype or wire_dtype).itemsize
        if self.packed is not None:
            return np.full(block.n_clients, self.packed.payload_nbytes(itemsize))
        return self.sizes(block) * (0 if self.is_count else itemsize)


@dataclass(frozen=True, eq=False)
class Derived(Dense):
    """A field that the receiver computes from what it has: nothing crosses."""

    def sizes(self, block):
        """No coordinates, shape (n_clients,)."""
        return np.zeros(block.n_clients, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Rows(Dense):
    """A field of which every client receives or sends the rows of some items only.

    Parameters
    ----------
    values : ndarray of shape (n_items, ...)
        Down: all rows, of which a client gets its own. Up: their sum by item over the
        block's clients that deliver, zero where nobody sends the item.
    dtype, clip, center
        As in :class:`Dense`.
    n_rows : ndarray of shape (n_clients of the block,) or None
        How many rows each client sends, each along with the item's number. None: those of the
        items it holds. Which these are has to cross once, as a field of its own, in the
        enrolment.
    """

    n_rows: np.ndarray | None = None
    is_uniform = False

    def sizes(self, block):
        """Coordinates that each client puts on the wire, shape (n_clients,)."""
        n_rows = block.row_counts if self.n_rows is None else self.n_rows
        return n_rows * (np.size(self.values) // max(1, len(self.values)))

    def rows_of(self, block):
        """The rows that a one-client block puts on the wire."""
        if self.n_rows is None:
            return block.row_items
        return np.flatnonzero(self.values.reshape(len(self.values), -1).any(axis=1))

    def nbytes(self, block, wire_dtype):
        """Bytes of the field for each client, the items' numbers included."""
        numbers = 0 if self.n_rows is None else self.n_rows * INDEX_BYTES
        return super().nbytes(block, wire_dtype) + numbers


class Message(dict):
    """Named fields; what is not in it does not cross.

    Parameters
    ----------
    sound : ndarray of shape (n_clients of the block,), dtype bool, or None
        Uploads only: clients whose values are all finite. The sums leave the others out, as
        a server that checks what it receives would. None: all of them.
    **fields : Dense or Rows
    """

    def __init__(self, *, sound=None, **fields):
        super().__init__(fields)
        self.sound = sound

    def numbers(self, shapes):
        """What the server adds of every field, as a dict of arrays."""
        return {name: self[name].wide for name in shapes}

    def sizes(self, block):
        """Coordinates of the message for each client of the block."""
        nothing = np.zeros(block.n_clients, dtype=np.int64)
        return sum((field.sizes(block) for field in self.values()), nothing)

    def nbytes(self, block, wire_dtype):
        """Bytes of the message for each client of the block."""
        nothing = np.zeros(block.n_clients, dtype=np.int64)
        return sum((field.nbytes(block, wire_dtype) for field in self.values()), nothing)

    def payload_nbytes(self, block, wire_dtype):
        """Those of them that say what was learned."""
        nothing = np.zeros(block.n_clients, dtype=np.int64)
        return sum((field.payload_nbytes(block, wire_dtype) for field in self.values()), nothing)


@dataclass(frozen=True, eq=False)
class Total:
    """A field of a round's upload, added up over the clients whose message arrived.

    Parameters
    ----------
    sum : ndarray, dtype float64, or int64 if the clients sent integers
    n_clients : int
        How many clients the sum is over.
    """

    sum: np.ndarray
    n_clients: int

    @property
    def mean(self):
        """The mean over those clients."""
        return self.sum / self.n_clients


class Upload(dict):
    """What the server gets to see of a round: a :class:`Total` for each field.

    Parameters
    ----------
    n_clients : int
        How many clients' messages arrived.
    **totals : Total
    """

    def __init__(self, n_clients, **totals):
        super().__init__(totals)
        self.n_clients = n_clients
