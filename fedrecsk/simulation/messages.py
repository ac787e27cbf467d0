"""What crosses between clients and server, and nothing that is not in one of these."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedrecsk.compression import Compressed

# ---------------------------------------------------------------------- from the server


@dataclass(frozen=True, eq=False)
class Dense:
    """A field of which every client receives the whole array.

    Parameters
    ----------
    values : ndarray
    dtype : str or None
        Type in the message, which need not be the type computed with. None: the federation's
        `wire_dtype`.
    learned : bool or None
        Whether it says what was learned, instead of counting or weighing things. None: unless
        it is sent as unsigned integers.
    compressible : bool
        Whether compression may touch it, if it is a matrix of real numbers.
    packed : Compressed or None
        How it is sent instead of as it is; set by the server's compression.
    """

    values: np.ndarray
    dtype: str | None = None
    learned: bool | None = None
    compressible: bool = True
    packed: Compressed | None = None

    @property
    def is_learned(self):
        """Whether it says what was learned."""
        if self.learned is not None:
            return self.learned
        return self.dtype is None or np.dtype(self.dtype).kind != "u"

    def nbytes(self, n_held, wire_dtype):
        """Bytes of the field for clients that hold `n_held` items, an array of its shape."""
        itemsize = np.dtype(self.dtype or wire_dtype).itemsize
        if self.packed is not None:
            return np.full(len(n_held), self.packed.nbytes(itemsize))
        return self._n_values(n_held) * itemsize

    def payload_nbytes(self, n_held, wire_dtype):
        """Those bytes that say what was learned, as papers count."""
        itemsize = np.dtype(self.dtype or wire_dtype).itemsize
        if self.packed is not None:
            return np.full(len(n_held), self.packed.payload_nbytes(itemsize))
        return self._n_values(n_held) * itemsize * self.is_learned

    def _n_values(self, n_held):
        return np.full(len(n_held), np.size(self.values))


@dataclass(frozen=True, eq=False)
class Rows(Dense):
    """A field of which every client receives the rows of the items that it holds.

    Parameters
    ----------
    values : ndarray of shape (n_items, ...)
        All rows. Which ones a client holds the server must know from the set-up.
    dtype, learned, compressible, packed
        As in :class:`Dense`.
    """

    def _n_values(self, n_held):
        return n_held * (np.size(self.values) // max(1, len(self.values)))


@dataclass(frozen=True, eq=False)
class Derived(Dense):
    """A field that the receiver computes from what it has: it is never sent."""

    def _n_values(self, n_held):
        return np.zeros(len(n_held), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class PerClient(Dense):
    """A field of which every client receives its own entry alone.

    For methods that set ``_server_sees = "clients"``.

    Parameters
    ----------
    values : ndarray of shape (n_clients, ...)
        In the order of the clients' codes; what a block of clients gets has its own entries.
    dtype, learned, compressible, packed
        As in :class:`Dense`.
    """

    compressible: bool = False

    def _n_values(self, n_held):
        return np.full(len(n_held), np.size(self.values) // max(1, len(self.values)))


class Message(dict):
    """What the server sends, by name: :class:`Dense`, :class:`Rows` or :class:`PerClient`.

    :class:`Derived` fields come to it on the clients' side.

    Parameters
    ----------
    **fields : Dense
    """

    def __init__(self, **fields):
        super().__init__(fields)

    def of(self, clients):
        """As these clients (codes) receive it: their own entries of `PerClient` fields."""
        if not any(isinstance(field, PerClient) for field in self.values()):
            return self
        own = {
            name: replace(field, values=field.values[clients])
            for name, field in self.items()
            if isinstance(field, PerClient)
        }
        return Message(**(self | own))

    def nbytes(self, n_held, wire_dtype):
        """Bytes of the message for clients that hold `n_held` items, an array of its shape."""
        return self._total("nbytes", n_held, wire_dtype)

    def payload_nbytes(self, n_held, wire_dtype):
        """Those bytes that say what was learned."""
        return self._total("payload_nbytes", n_held, wire_dtype)

    def _total(self, measure, n_held, wire_dtype):
        nothing = np.zeros(len(n_held), dtype=np.int64)
        return sum((getattr(f, measure)(n_held, wire_dtype) for f in self.values()), nothing)


# ------------------------------------------------------------------------- from clients


class Summed(NamedTuple):
    """A field added up over a block's clients, of which each sends rows or columns of its own.

    Attributes
    ----------
    values : ndarray
        The sum over the clients whose uploads arrive and are sound.
    n_rows, n_columns : ndarray of shape (n_clients of the block,) or None
        How many rows and columns each client sends; None: all.
    """

    values: np.ndarray
    n_rows: np.ndarray | None = None
    n_columns: np.ndarray | None = None


class Uploads(dict):
    """What the clients of a block send in one step, by the names that the method declared.

    Parameters
    ----------
    sound : ndarray of shape (n_clients of the block,), dtype bool, or None
        Clients all of whose numbers are finite; sums leave the others out, as a server that
        looks at what it receives would. None: all of them.
    sends : ndarray of shape (n_clients of the block,), dtype bool, or None
        Of the clients that take part in the round, those that have something to send; the others
        send nothing at all. None: all of them.
    **fields : ndarray, Summed or Ragged
        An array or a :class:`Summed` is the sum over the clients that deliver; a
        :class:`~fedrecsk.uploads.Ragged` has each client's own.
    """

    def __init__(self, *, sound=None, sends=None, **fields):
        super().__init__(fields)
        self.sound = sound
        self.sends = sends


@dataclass(frozen=True, eq=False)
class Total:
    """A field of a round's uploads, added up over the clients whose uploads were accepted.

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
    """What the server gets to see of a step: a :class:`Total` for each field.

    Parameters
    ----------
    n_clients : int
        How many clients' uploads were accepted.
    batches : list of Batch
        Single uploads, where the server sees them; for methods with ``_server_sees =
        "clients"``.
    **totals : Total
    """

    def __init__(self, n_clients, batches=(), /, **totals):
        super().__init__(totals)
        self.n_clients = n_clients
        self.batches = batches

    def single(self):
        """Each accepted client's code and its upload, a dict of Update; in order of the codes."""
        places = [
            (int(batch.clients[c]), batch, c)
            for batch in self.batches
            for c in np.flatnonzero(batch.accepted)
        ]
        for code, batch, client in sorted(places, key=lambda place: place[0]):
            yield code, batch.upload(client)
