"""What crosses between clients and server: a Message, and nothing that is not in one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
    """

    values: np.ndarray
    dtype: str | None = None
    clip: float | None = None

    def sizes(self, block):
        """Coordinates that one client puts on the wire or takes from it."""
        return np.full(block.n_clients, np.size(self.values))


@dataclass(frozen=True, eq=False)
class Rows(Dense):
    """A field of which every client receives or sends only the rows of its own items.

    Parameters
    ----------
    values : ndarray of shape (n_items, ...)
        Down: all rows, of which a client gets its own. Up: their sum by item over the
        block's clients that deliver, zero where nobody holds the item.
    dtype, clip
        As in :class:`Dense`.

    Notes
    -----
    Only the values are counted. That both sides know which rows they are has to cross once,
    as a field of its own, in the enrolment.
    """

    def sizes(self, block):
        """Coordinates that each client puts on the wire, shape (n_clients,)."""
        n_rows = np.diff(block.row_indptr)
        return n_rows * (np.size(self.values) // max(1, len(self.values)))


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

    def sizes(self, block):
        """Coordinates of the message for each client of the block."""
        return sum(field.sizes(block) for field in self.values())

    def nbytes(self, block, wire_dtype):
        """Bytes of the message for each client of the block."""
        return sum(
            field.sizes(block) * np.dtype(field.dtype or wire_dtype).itemsize
            for field in self.values()
        )


@dataclass(frozen=True, eq=False)
class Total:
    """A field of a round's upload, added up over the clients whose message arrived.

    Parameters
    ----------
    sum : ndarray, dtype float64
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
