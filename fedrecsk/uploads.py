"""What clients upload: the declared form of each field, and uploads client by client.

A block of clients hands over either the sum of its clients' uploads or, where something looks at
single uploads (an adversary, compression, a robust aggregator, an audit), each client's own in
ragged form: its own rows, and one common change of all the other rows. :class:`Changes` is what
attacks, compressors and aggregators see of a field; :class:`Batch` has all fields of a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from fedrecsk import _kernels

# Number of a row in a message: int32.
INDEX_BYTES = 4
# Of those that an attacker may send, so that a few still add up in 64 bits.
LARGEST_INTEGER = 2.0**53


class Update(NamedTuple):
    """One field of one client's upload.

    Attributes
    ----------
    rows : ndarray of shape (n_rows,) or slice
        Which rows of the field the client sends.
    change : ndarray of shape (n_rows, ...), dtype float64 or int64
        By how much they differ from what a client that has changed nothing would send.
    """

    rows: np.ndarray | slice
    change: np.ndarray


@dataclass(frozen=True)
class Form:
    """What a client sends in one field, declared by the method before anybody sends anything.

    Parameters
    ----------
    shape : tuple of int
        Of the whole field.
    rows : {"all", "held", "chosen"}, default="all"
        Which rows a client sends: all; those of the items that it holds, which the server knows
        since the set-up; or rows that it chooses, each along with its number.
    dtype : str or None, default=None
        Type in the message. None: the federation's `wire_dtype`.
    learned : bool, default=True
        Whether it says what was learned. Counts and weights are False: no attack forges, no
        compressor shortens and no aggregator clips them.
    compressible : bool, default=True
        Whether compression may touch it, if it is a matrix of real numbers.
    clip : float or None, default=None
        Every client has clipped each number to [-clip, clip].
    bits : bool, default=False
        Every number is +1 or -1 and takes one bit, in words of 64 bits a row.
    """

    shape: tuple[int, ...]
    rows: Literal["all", "held", "chosen"] = "all"
    dtype: str | None = None
    learned: bool = True
    compressible: bool = True
    clip: float | None = None
    bits: bool = False

    @property
    def width(self):
        """Numbers in a row."""
        return int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def is_integer(self):
        """Whether its numbers add up exactly, in int64."""
        return self.bits or (self.dtype is not None and np.dtype(self.dtype).kind in "iub")

    @property
    def limits(self):
        """The least and the largest integer that an attacker may send."""
        if np.dtype(self.dtype).kind == "b":
            return 0.0, 1.0
        info = np.iinfo(self.dtype)
        return max(float(info.min), -LARGEST_INTEGER), min(float(info.max), LARGEST_INTEGER)

    @property
    def sum_dtype(self):
        """Type of the sum over clients."""
        return np.int64 if self.is_integer else np.float64

    def coordinates(self, n_rows, n_columns=None):
        """Numbers that clients send, given how many rows and columns each of them does."""
        n_rows = n_rows * 0 + self.shape[0] if self.rows == "all" else n_rows
        return n_rows * (self.width if n_columns is None else n_columns)

    def nbytes(self, wire_dtype, n_rows, n_columns=None):
        """Bytes of the field, the numbers of chosen rows included; shape of `n_rows`."""
        numbers = n_rows * INDEX_BYTES if self.rows == "chosen" else 0
        return self._value_bytes(wire_dtype, n_rows, n_columns) + numbers

    def payload_nbytes(self, wire_dtype, n_rows, n_columns=None):
        """Those bytes that say what was learned, as papers count."""
        return self._value_bytes(wire_dtype, n_rows, n_columns) * self.learned

    def _value_bytes(self, wire_dtype, n_rows, n_columns):
        n_rows = n_rows * 0 + self.shape[0] if self.rows == "all" else n_rows
        if self.bits:
            return n_rows * 8 * -(-self.width // 64)
        itemsize = np.dtype(self.dtype or wire_dtype).itemsize
        return self.coordinates(n_rows, n_columns) * itemsize


class Common:
    """The change of all rows that are not a client's own; one object for all who share it.

    Parameters
    ----------
    change : ndarray of shape (n_rows, width), dtype float64
    """

    def __init__(self, change):
        self.change = np.ascontiguousarray(change, dtype=np.float64)

    @cached_property
    def row_squares(self):
        """Squared length of each row."""
        return np.einsum("if,if->i", self.change, self.change)

    @cached_property
    def square(self):
        """Squared length of all of it."""
        return float(self.row_squares.sum())

    @cached_property
    def is_finite(self):
        """Whether nothing in it is NaN or infinite."""
        return bool(np.isfinite(self.change).all())

    @cached_property
    def descending(self):
        """The sizes that are not 0 in descending order: places, sizes, and rank of each place."""
        sizes = np.abs(self.change).ravel()
        n_other = np.count_nonzero(sizes)
        order = np.argsort(-sizes)[:n_other]
        if (np.diff(sizes[order]) == 0).any():
            # Slower; of equal ones the first comes first.
            order = np.argsort(-sizes, kind="stable")[:n_other]
        order = order.astype(np.int32)
        rank = np.full(sizes.size, sizes.size, dtype=np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        return order, sizes[order], rank.reshape(self.change.shape)

    def scaled(self, factor):
        """The same times `factor`."""
        return Common(factor * self.change)


class Changes(ABC):
    """One field of a block's uploads, client by client, as changes.

    A subclass gives `update`; the rest follows from it client by client, and is overridden where
    all clients at once are faster. `whom` is always a mask of clients to look at.
    """

    shape: tuple[int, ...]
    n_clients: int
    is_integer: bool = False

    @abstractmethod
    def update(self, client) -> Update:
        """The change of one client (its number in the block)."""

    def whole(self, client):
        """The change of one client as an array of the field's whole shape."""
        rows, change = self.update(client)
        array = np.zeros(self.shape, dtype=np.int64 if self.is_integer else np.float64)
        array[rows] = change
        return array

    def norms(self, whom):
        """Euclidean norm of each change, shape (n_clients,)."""
        norms = np.zeros(self.n_clients)
        for client in np.flatnonzero(whom):
            norms[client] = np.linalg.norm(self.update(client).change)
        return norms

    def largest(self, whom):
        """Largest absolute number in each change, shape (n_clients,)."""
        sizes = np.zeros(self.n_clients)
        for client in np.flatnonzero(whom):
            sizes[client] = np.abs(self.update(client).change).max(initial=0)
        return sizes

    def finite(self, whom):
        """Whether no number of the client is NaN or infinite, shape (n_clients,), dtype bool."""
        finite = np.ones(self.n_clients, dtype=bool)
        for client in np.flatnonzero(whom):
            finite[client] = np.isfinite(self.update(client).change).all()
        return finite

    def add_to(self, sums, weights):
        """Add the changes times the clients' weights to `sums`, of the field's whole shape."""
        for client in np.flatnonzero(weights):
            rows, change = self.update(client)
            sums[rows] += (weights[client] * change).astype(sums.dtype, copy=False)


@dataclass(frozen=True, eq=False)
class Ragged(Changes):
    """Changes as a method's kernels write them: own rows, and one common change elsewhere.

    Parameters
    ----------
    indptr : ndarray of shape (n_clients + 1,)
    rows : ndarray of shape (n_own,)
        Client c's own rows are ``rows[indptr[c]:indptr[c + 1]]``, ascending, each once.
    values : ndarray of shape (n_own, ...)
        What it has there.
    origin : ndarray of shape (n_rows, ...) or None
        What the values are changes from. None: zero.
    common : Common or None
        The change of all other rows. None: zero.
    center : ndarray of shape (n_rows, ...) or None
        Added once for each accepted client, after everything that happens to the changes. None:
        zero.
    columns : ndarray of shape (n_clients, width), dtype bool, or None
        The columns that a client sends. None: all.
    form : Form or None
        Set by the loop.
    """

    indptr: np.ndarray
    rows: np.ndarray
    values: np.ndarray
    origin: np.ndarray | None = None
    common: Common | None = None
    center: np.ndarray | None = None
    columns: np.ndarray | None = None
    form: Form | None = None

    @classmethod
    def stacked(cls, values, *, origin=None, center=None):
        """One small array a client, of which all rows cross; `values` has clients first."""
        n_clients, n_rows = values.shape[:2]
        rows = np.tile(np.arange(n_rows, dtype=np.int32), n_clients)
        indptr = np.arange(n_clients + 1) * n_rows
        values = values.reshape(n_clients * n_rows, *values.shape[2:])
        return cls(indptr, rows, values, origin=origin, center=center)

    @property
    def shape(self):
        return self.form.shape

    @property
    def n_clients(self):
        return len(self.indptr) - 1

    @property
    def is_integer(self):
        return self.form.is_integer

    @property
    def n_rows(self):
        """Own rows of each client, shape (n_clients,)."""
        return np.diff(self.indptr)

    @property
    def n_columns(self):
        """Columns that each client sends, shape (n_clients,), or None for all."""
        return None if self.columns is None else self.columns.sum(axis=1)

    @property
    def _matrix(self):
        """The own rows as the kernels take them."""
        origin = None if self.origin is None else _as_matrix(self.origin)
        return self.indptr, self.rows, _as_matrix(self.values), origin

    def own(self, client):
        """A client's own rows and its change there."""
        span = slice(self.indptr[client], self.indptr[client + 1])
        rows = self.rows[span]
        change = self.values[span].astype(np.int64 if self.is_integer else np.float64)
        return rows, change if self.origin is None else change - self.origin[rows]

    def update(self, client):
        rows, change = self.own(client)
        if self.form.rows != "all":
            return Update(rows, change)
        if self.common is None:
            whole = np.zeros(self.shape, dtype=change.dtype)
        else:
            whole = self.common.change.reshape(self.shape).copy()
        whole[rows] = change
        return Update(slice(None), whole)

    def norms(self, whom):
        squares = np.zeros(self.n_clients)
        common = (
            (None, 0.0) if self.common is None else (self.common.row_squares, self.common.square)
        )
        _kernels.ragged.squared_norms(*self._matrix, *common, whom, squares)
        return np.sqrt(np.maximum(squares, 0))

    def largest(self, whom):
        sizes = np.zeros(self.n_clients)
        _kernels.ragged.largest(*self._matrix, whom, sizes)
        if self.common is not None:
            # Whoever holds the row of the largest common number is looked at too strictly.
            sizes = np.maximum(sizes, np.abs(self.common.change).max(initial=0) * whom)
        return sizes

    def finite(self, whom):
        finite = np.ones(self.n_clients, dtype=bool)
        if self.values.dtype.kind == "f":
            _kernels.ragged.finite(self.indptr, _as_matrix(self.values), whom, finite)
        if self.common is not None and not self.common.is_finite:
            finite &= ~whom
        return finite

    def add_to(self, sums, weights):
        held = np.zeros(self.shape[0], dtype=sums.dtype)
        matrix = _as_matrix(sums)
        _kernels.ragged.add(*self._matrix, weights, matrix, held)
        if self.common is not None:
            matrix += (weights.sum() - held)[:, None] * self.common.change

    def scaled(self, factor):
        """The changes times `factor`; integers become what the field can send."""
        values = self.values.astype(np.float64)
        if self.origin is not None:
            values = values - self.origin[self.rows]
        values *= factor
        if self.is_integer:
            values = as_integers(values, self.form)
        common = None if self.common is None else self.common.scaled(factor)
        return replace(self, values=values, origin=None, common=common)


class Listed(Changes):
    """Changes written down one by one, for a user's own classes.

    Parameters
    ----------
    updates : list of Update or None
        None for clients that send nothing.
    form : Form
    """

    def __init__(self, updates, form):
        self.updates = updates
        self.form = form

    @property
    def shape(self):
        return self.form.shape

    @property
    def n_clients(self):
        return len(self.updates)

    @property
    def is_integer(self):
        return self.form.is_integer

    def update(self, client):
        return self.updates[client]


def as_integers(numbers, form):
    """The nearest that an integer field can send, and that still add up in 64 bits.

    Of bits it is the sign, and +1 for 0. NaN and infinity stay what they are.
    """
    numbers = np.asarray(numbers)
    if form.bits:
        integers = np.where(numbers < 0, -1.0, 1.0)
    else:
        integers = np.rint(np.clip(numbers, *form.limits))
    finite = np.isfinite(numbers)
    return integers.astype(np.int64) if finite.all() else np.where(finite, integers, numbers)


def _as_matrix(array):
    return array.reshape(len(array), int(np.prod(array.shape[1:], dtype=np.int64)))


class Sizes(NamedTuple):
    """What uploads weigh; arrays of shape (n_clients,).

    Attributes
    ----------
    nbytes : bytes of the message
    payload : those that say what was learned
    coordinates : numbers in it
    """

    nbytes: np.ndarray
    payload: np.ndarray
    coordinates: np.ndarray


@dataclass(eq=False)
class Batch:
    """The uploads of a block's clients, client by client.

    Attributes
    ----------
    clients : ndarray of shape (n_clients,)
        Their codes.
    sends, arrives, accepted : ndarray of shape (n_clients,), dtype bool
        Who sends something, whose upload arrives, and whose is taken: arrived, and well-formed.
    forms : dict of {str: Form}
    changes : dict of {str: Changes}
        The fields that say what was learned.
    counts : dict of {str: Changes}
        The others, which only add up.
    centers : dict of {str: ndarray}
        What is added to a field once for each accepted client.
    sizes : Sizes
    """

    clients: np.ndarray
    sends: np.ndarray
    arrives: np.ndarray
    accepted: np.ndarray
    forms: dict
    changes: dict
    counts: dict
    centers: dict = field(default_factory=dict)
    sizes: Sizes | None = None

    @property
    def n_accepted(self):
        return int(self.accepted.sum())

    def upload(self, client):
        """What one client has learned: a dict of Update, as users' own classes get it."""
        return {name: changes.update(client) for name, changes in self.changes.items()}

    def all_fields(self, client):
        """All that one client sends, counts too: a dict of Update."""
        everything = self.changes | self.counts
        return {name: changes.update(client) for name, changes in everything.items()}

    def whole(self, client):
        """All fields of one client as they are encrypted: a dict of arrays."""
        wholes = {}
        for name in self.forms:
            if name in self.counts:
                wholes[name] = self.counts[name].whole(client)
                continue
            wholes[name] = self.changes[name].whole(client)
            if name in self.centers:
                wholes[name] = wholes[name] + self.centers[name]
        return wholes

    def sum_of_changes(self, name, weights=None):
        """Sum over the accepted clients of one field's changes, times their weights if given.

        Integers stay integers unless there are weights.
        """
        changes = self.changes[name]
        exact = changes.is_integer and weights is None
        sums = np.zeros(changes.shape, dtype=np.int64 if exact else np.float64)
        weights = np.ones(len(self.clients)) if weights is None else weights
        changes.add_to(sums, np.where(self.accepted, weights, 0).astype(sums.dtype))
        return sums

    def sum_of_rest(self):
        """Sums over the accepted clients of the counts and of the centres: a dict of arrays."""
        sums = {}
        accepted = self.accepted.astype(np.float64)
        for name, counts in self.counts.items():
            sums[name] = np.zeros(counts.shape, dtype=self.forms[name].sum_dtype)
            counts.add_to(sums[name], accepted.astype(sums[name].dtype))
        for name, center in self.centers.items():
            sums[name] = self.n_accepted * center.astype(np.float64)
        return sums


def all_finite(values):
    """Whether no number of an array is NaN or infinite, in one pass without a mask."""
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.isfinite(values.sum()))


def add_sums(totals, sums):
    """Add a dict of arrays to another, in place."""
    for name, values in sums.items():
        if name not in totals:
            # A copy, because what was handed over may still be somebody's own.
            totals[name] = np.array(values)
        elif totals[name].dtype == np.result_type(totals[name], values):
            totals[name] += values
        else:
            totals[name] = totals[name] + values
