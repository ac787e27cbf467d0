"""What clients upload: the declared form of each field, and uploads client by client.

A block of clients returns the sum of its clients' uploads. If something needs single uploads (an
adversary, compression, a robust aggregator, an audit), it returns the uploads client by client in
ragged form: the rows of the client's own items, and one common change for all other rows.
:class:`Changes` is the view of one field that attacks, compressors and aggregators work on;
:class:`Batch` has all fields of a block.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedrecsk import _kernels

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import ArrayLike, NDArray

# Bytes of a row's number in a message: int32.
INDEX_BYTES = 4
# Largest integer that an attacker may send, so that a sum of them still fits into 64 bits.
LARGEST_INTEGER = 2.0**53


class Update(NamedTuple):
    """One field of one client's upload.

    Attributes
    ----------
    rows : ndarray of shape (n_rows,) or slice
        Rows of the field that the client sends.
    change : ndarray of shape (n_rows, ...), dtype float64 or int64
        Difference of these rows from what a client that has learned nothing would send.
    """

    rows: np.ndarray | slice
    change: np.ndarray


@dataclass(frozen=True)
class Form:
    """What clients send in one field. A method declares it before the first upload.

    Parameters
    ----------
    shape : tuple of int
        Shape of the whole field.
    rows : {"all", "held", "chosen"}, default="all"
        Rows that a client sends. "all": all rows. "held": the rows of the items that it holds,
        which the server knows from the set-up. "chosen": rows that the client chooses; it sends
        their indices, too.
    dtype : str or None, default=None
        Data type in the message. None: the federation's `wire_dtype`.
    learned : bool, default=True
        Whether the numbers of the field are learned. Counts and weights are not: attacks do not
        forge them, compressors do not compress them, and aggregators do not clip them.
    compressible : bool, default=True
        Whether the field may be compressed if it is a matrix of real numbers.
    clip : float or None, default=None
        Bound to which every client has clipped each number: [-clip, clip]. None: not clipped.
    bits : bool, default=False
        Whether every number is +1 or -1 and takes one bit. Each row is padded to words of 64
        bits.
    """

    shape: tuple[int, ...]
    rows: Literal["all", "held", "chosen"] = "all"
    dtype: str | None = None
    learned: bool = True
    compressible: bool = True
    clip: float | None = None
    bits: bool = False

    @property
    def width(self) -> int:
        """Number of columns in a row."""
        return int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def is_integer(self) -> bool:
        """Whether the numbers are integers, which add up exactly in int64."""
        return self.bits or (self.dtype is not None and np.dtype(self.dtype).kind in "iub")

    @property
    def limits(self) -> tuple[float, float]:
        """Smallest and largest integer that an attacker may send."""
        dtype = np.dtype(self.dtype)
        if dtype.kind == "b":
            return 0.0, 1.0
        info = np.iinfo(dtype.name)
        return max(float(info.min), -LARGEST_INTEGER), min(float(info.max), LARGEST_INTEGER)

    @property
    def sum_dtype(self) -> type[np.int64] | type[np.float64]:
        """Data type of the sum over clients."""
        return np.int64 if self.is_integer else np.float64

    def coordinates(self, n_rows: ArrayLike, n_columns: ArrayLike | None = None) -> Any:
        """How many numbers clients send, given how many rows and columns each of them sends."""
        return self._rows_sent(n_rows) * (self.width if n_columns is None else n_columns)

    def nbytes(self, wire_dtype: str, n_rows: ArrayLike, n_columns: ArrayLike | None = None) -> Any:
        """Bytes of the field with the indices of chosen rows; has the shape of `n_rows`."""
        numbers = np.asarray(n_rows) * INDEX_BYTES if self.rows == "chosen" else 0
        return self._value_bytes(wire_dtype, n_rows, n_columns) + numbers

    def payload_nbytes(
        self, wire_dtype: str, n_rows: ArrayLike, n_columns: ArrayLike | None = None
    ) -> Any:
        """Bytes of the learned numbers, as papers count them: without the rows' indices."""
        return self._value_bytes(wire_dtype, n_rows, n_columns) * self.learned

    def _rows_sent(self, n_rows):
        n_rows = np.asarray(n_rows)
        return np.full_like(n_rows, self.shape[0]) if self.rows == "all" else n_rows

    def _value_bytes(self, wire_dtype, n_rows, n_columns):
        if self.bits:
            return self._rows_sent(n_rows) * 8 * -(-self.width // 64)
        itemsize = np.dtype(self.dtype or wire_dtype).itemsize
        return self.coordinates(n_rows, n_columns) * itemsize


class Common:
    """The change of all rows that are not a client's own, shared by all clients that have it.

    Parameters
    ----------
    change : ndarray of shape (n_rows, width), dtype float64
    """

    def __init__(self, change: ArrayLike) -> None:
        self.change: NDArray[np.float64] = np.ascontiguousarray(change, dtype=np.float64)

    @cached_property
    def row_squares(self) -> NDArray[np.float64]:
        """Squared length of each row."""
        return np.einsum("if,if->i", self.change, self.change)

    @cached_property
    def square(self) -> float:
        """Squared length of the whole change."""
        return float(self.row_squares.sum())

    @cached_property
    def is_finite(self) -> bool:
        """Whether all numbers are finite."""
        return bool(np.isfinite(self.change).all())

    @cached_property
    def descending(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Nonzero sizes in descending order: their places, the sizes, and each place's rank."""
        sizes = np.abs(self.change).ravel()
        n_other = np.count_nonzero(sizes)
        order = np.argsort(-sizes)[:n_other]
        if (np.diff(sizes[order]) == 0).any():
            # Slower, but stable: equal sizes keep their order.
            order = np.argsort(-sizes, kind="stable")[:n_other]
        order = order.astype(np.int32)
        rank = np.full(sizes.size, sizes.size, dtype=np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        return order, sizes[order], rank.reshape(self.change.shape)

    def scaled(self, factor: float) -> Common:
        """The change times `factor`."""
        return Common(factor * self.change)


class Changes(ABC):
    """One field of a block's uploads, client by client, as changes.

    Subclasses implement `update`. The other methods call it for one client after the other, and
    subclasses override those that are faster for all clients at once. `mask` selects the
    clients to compute something for; the results of the others are not used.
    """

    shape: tuple[int, ...]
    n_clients: int
    is_integer: bool = False

    @abstractmethod
    def update(self, client: int) -> Update:
        """The change of one client (its number in the block)."""

    def whole(self, client: int) -> np.ndarray:
        """The change of one client as an array of the field's whole shape."""
        rows, change = self.update(client)
        array = np.zeros(self.shape, dtype=np.int64 if self.is_integer else np.float64)
        array[rows] = change
        return array

    def norms(self, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Euclidean norm of each change, shape (n_clients,)."""
        norms = np.zeros(self.n_clients)
        for client in np.flatnonzero(mask):
            norms[client] = np.linalg.norm(self.update(client).change)
        return norms

    def products(self, other: np.ndarray, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Inner product of each change with an array of the field's shape, shape (n_clients,)."""
        products = np.zeros(self.n_clients)
        for client in np.flatnonzero(mask):
            rows, change = self.update(client)
            products[client] = np.vdot(other[rows], change)
        return products

    def largest(self, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Largest absolute number in each change, shape (n_clients,)."""
        sizes = np.zeros(self.n_clients)
        for client in np.flatnonzero(mask):
            sizes[client] = np.abs(self.update(client).change).max(initial=0)
        return sizes

    def finite(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether all numbers of each change are finite, shape (n_clients,), dtype bool."""
        finite = np.ones(self.n_clients, dtype=bool)
        for client in np.flatnonzero(mask):
            finite[client] = np.isfinite(self.update(client).change).all()
        return finite

    def add_to(self, sums: np.ndarray, weights: np.ndarray) -> None:
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
        Where each client's rows begin and end.
    rows : ndarray of shape (n_own,)
        Rows of all clients. Client c's are ``rows[indptr[c]:indptr[c + 1]]``, in ascending order
        and without repetition.
    values : ndarray of shape (n_own, ...)
        Values in these rows.
    origin : ndarray of shape (n_rows, ...) or None
        What to subtract from the values to get the changes. None: zero.
    common : Common or None
        Change of all other rows. None: zero.
    center : ndarray of shape (n_rows, ...) or None
        Added once for each accepted client, after all stages have changed the uploads. None: zero.
    columns : ndarray of shape (n_clients, width), dtype bool, or None
        Mask of the columns that each client sends. None: all.
    form : Form or None
        Form of the field, which the round loop sets.
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
    def stacked(
        cls,
        values: np.ndarray,
        *,
        origin: np.ndarray | None = None,
        center: np.ndarray | None = None,
    ) -> Self:
        """One small array per client, sent with all its rows; the first axis is the client."""
        n_clients, n_rows = values.shape[:2]
        rows = np.tile(np.arange(n_rows, dtype=np.int32), n_clients)
        indptr = np.arange(n_clients + 1) * n_rows
        values = values.reshape(n_clients * n_rows, *values.shape[2:])
        return cls(indptr, rows, values, origin=origin, center=center)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._form.shape

    @property
    def n_clients(self) -> int:
        return len(self.indptr) - 1

    @property
    def is_integer(self) -> bool:
        return self._form.is_integer

    @property
    def _form(self) -> Form:
        if self.form is None:
            raise RuntimeError("The form of these changes is not set; the round loop sets it.")
        return self.form

    @property
    def n_rows(self) -> np.ndarray:
        """Number of own rows of each client, shape (n_clients,)."""
        return np.diff(self.indptr)

    @property
    def n_columns(self) -> np.ndarray | None:
        """Number of columns that each client sends, shape (n_clients,), or None for all."""
        return None if self.columns is None else self.columns.sum(axis=1)

    @property
    def _matrix(self):
        """The own rows as the kernels take them."""
        origin = None if self.origin is None else _as_matrix(self.origin)
        return self.indptr, self.rows, _as_matrix(self.values), origin

    def own(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """A client's own rows, and its changes in these rows."""
        span = slice(self.indptr[client], self.indptr[client + 1])
        rows = self.rows[span]
        change = self.values[span].astype(np.int64 if self.is_integer else np.float64)
        return rows, change if self.origin is None else change - self.origin[rows]

    def update(self, client: int) -> Update:
        rows, change = self.own(client)
        if self._form.rows != "all":
            return Update(rows, change)
        if self.common is None:
            whole = np.zeros(self.shape, dtype=change.dtype)
        else:
            whole = self.common.change.reshape(self.shape).copy()
        whole[rows] = change
        return Update(slice(None), whole)

    def norms(self, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
        squares = np.zeros(self.n_clients)
        common = (
            (None, 0.0) if self.common is None else (self.common.row_squares, self.common.square)
        )
        _kernels.ragged.squared_norms(*self._matrix, *common, mask, squares)
        return np.sqrt(np.maximum(squares, 0))

    def products(self, other: np.ndarray, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
        products = np.zeros(self.n_clients)
        vectors = np.ascontiguousarray(_as_matrix(other), dtype=np.float64)
        common = None, 0.0
        if self.common is not None:
            by_row = np.einsum("if,if->i", self.common.change, vectors)
            common = by_row, float(by_row.sum())
        _kernels.ragged.products(*self._matrix, vectors, *common, mask, products)
        return products

    def largest(self, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
        sizes = np.zeros(self.n_clients)
        _kernels.ragged.largest(*self._matrix, mask, sizes)
        if self.common is not None:
            # Too large for clients whose own rows include the largest common number: a bound.
            sizes = np.maximum(sizes, np.abs(self.common.change).max(initial=0) * mask)
        return sizes

    def finite(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        finite = np.ones(self.n_clients, dtype=bool)
        if self.values.dtype.kind == "f":
            _kernels.ragged.finite(self.indptr, _as_matrix(self.values), mask, finite)
        if self.common is not None and not self.common.is_finite:
            finite &= ~mask
        return finite

    def add_to(self, sums: np.ndarray, weights: np.ndarray) -> None:
        held = np.zeros(self.shape[0], dtype=sums.dtype)
        matrix = _as_matrix(sums)
        _kernels.ragged.add(*self._matrix, weights, matrix, held)
        if self.common is not None:
            matrix += (weights.sum() - held)[:, None] * self.common.change

    def scaled(self, factor: float) -> Ragged:
        """The changes times `factor`; integers are rounded to what the field can hold."""
        values = self.values.astype(np.float64)
        if self.origin is not None:
            values = values - self.origin[self.rows]
        values *= factor
        if self.is_integer:
            values = as_integers(values, self.form)
        common = None if self.common is None else self.common.scaled(factor)
        return replace(self, values=values, origin=None, common=common)


class Listed(Changes):
    """Changes stored client by client, for attacks and compressors that users write.

    Parameters
    ----------
    updates : list of Update or None
        One per client; None for clients that send nothing.
    form : Form
    """

    def __init__(self, updates: list[Update | None], form: Form) -> None:
        self.updates = updates
        self.form = form

    @property
    def shape(self) -> tuple[int, ...]:
        return self.form.shape

    @property
    def n_clients(self) -> int:
        return len(self.updates)

    @property
    def is_integer(self) -> bool:
        return self.form.is_integer

    def update(self, client: int) -> Update:
        update = self.updates[client]
        if update is None:
            raise ValueError(f"Client {client} of this block sends nothing.")
        return update


class Scaled(Changes):
    """Changes times a weight for each client, as real numbers.

    Parameters
    ----------
    honest : Changes
    weights : ndarray of shape (n_clients,)
    """

    def __init__(self, honest: Changes, weights: np.ndarray) -> None:
        self.honest = honest
        self.weights = weights
        self.shape: tuple[int, ...] = honest.shape
        self.n_clients: int = honest.n_clients

    def update(self, client: int) -> Update:
        rows, change = self.honest.update(client)
        return Update(rows, self.weights[client] * change)

    def add_to(self, sums: np.ndarray, weights: np.ndarray) -> None:
        self.honest.add_to(sums, weights * self.weights)

    def finite(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return self.honest.finite(mask)


def client_generator(seed: int | np.uint64, name: str, *purpose: int) -> np.random.Generator:
    """Generator of one client's random numbers for one field.

    Parameters
    ----------
    seed : int
        Seed of the client, the same for all fields.
    name : str
        Name of the field.
    *purpose : int
        Tells draws for the same field apart.
    """
    return np.random.default_rng([int(seed), zlib.crc32(name.encode()), *purpose])


def as_integers(numbers: ArrayLike, form: Form) -> np.ndarray:
    """Round to the nearest integers that the field can hold and whose sum fits into 64 bits.

    Where a number takes one bit, it becomes its sign, +1 for 0. NaN and infinity stay as they are.
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
    """Sizes of uploads.

    Attributes
    ----------
    nbytes : ndarray of shape (n_clients,)
        Bytes of the message.
    payload : ndarray of shape (n_clients,)
        Bytes of what was learned.
    coordinates : ndarray of shape (n_clients,)
        How many numbers the message has.
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
        Codes of the clients.
    sends, arrives, accepted : ndarray of shape (n_clients,), dtype bool
        Clients that send something; clients whose upload arrives; and clients whose upload
        arrives and is well-formed.
    forms : dict of {str: Form}
        Form of each field.
    changes : dict of {str: Changes}
        Fields that hold what was learned.
    counts : dict of {str: Changes}
        The other fields, which are only added up.
    centers : dict of {str: ndarray}
        What is added to a field once for each accepted client.
    sizes : Sizes
        Sizes of the uploads.
    lacks_noise : bool
        Whether the clients' local noise is to be drawn for the sum of all uploads.
    """

    clients: np.ndarray
    sends: np.ndarray
    arrives: np.ndarray
    accepted: np.ndarray
    forms: dict[str, Form]
    changes: dict[str, Changes]
    counts: dict[str, Changes]
    centers: dict[str, np.ndarray] = field(default_factory=dict)
    sizes: Sizes | None = None
    lacks_noise: bool = False

    @property
    def n_accepted(self) -> int:
        return int(self.accepted.sum())

    def upload(self, client: int) -> dict[str, Update]:
        """The learned fields of one client: a dict of Update, as attacks and aggregators get it."""
        return {name: changes.update(client) for name, changes in self.changes.items()}

    def all_fields(self, client: int) -> dict[str, Update]:
        """All that one client sends, counts included: a dict of Update."""
        everything = self.changes | self.counts
        return {name: changes.update(client) for name, changes in everything.items()}

    def whole(self, client: int) -> dict[str, np.ndarray]:
        """All fields of one client as arrays of their whole shape, as they are encrypted."""
        wholes = {}
        for name in self.forms:
            if name in self.counts:
                wholes[name] = self.counts[name].whole(client)
                continue
            wholes[name] = self.changes[name].whole(client)
            if name in self.centers:
                wholes[name] = wholes[name] + self.centers[name]
        return wholes

    def sum_of_changes(self, name: str, weights: np.ndarray | None = None) -> np.ndarray:
        """Sum of one field's changes over the accepted clients, weighted if there are weights.

        Without weights, integers stay integers.
        """
        changes = self.changes[name]
        exact = changes.is_integer and weights is None
        sums = np.zeros(changes.shape, dtype=np.int64 if exact else np.float64)
        weights = np.ones(len(self.clients)) if weights is None else weights
        changes.add_to(sums, np.where(self.accepted, weights, 0).astype(sums.dtype))
        return sums

    def sum_of_rest(self) -> dict[str, np.ndarray]:
        """Sums of the counts and of the centres over the accepted clients: a dict of arrays."""
        sums = {}
        accepted = self.accepted.astype(np.float64)
        for name, counts in self.counts.items():
            dtype = np.int64 if counts.is_integer else np.float64
            sums[name] = np.zeros(counts.shape, dtype=dtype)
            counts.add_to(sums[name], accepted.astype(sums[name].dtype))
        for name, center in self.centers.items():
            sums[name] = self.n_accepted * center.astype(np.float64)
        return sums


class SingleUploads(Sequence):
    """Uploads of single clients, each computed on access: a sequence of dict of {str: Update}.

    Parameters
    ----------
    places : list of (Batch, int)
        The clients, in this order: a batch, and the client's number in it.
    """

    def __init__(self, places: list[tuple[Batch, int]]) -> None:
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [batch.upload(client) for batch, client in self._places[number]]
        batch, client = self._places[number]
        return batch.upload(client)


def all_finite(values: np.ndarray) -> bool:
    """Whether all numbers of an array are finite, computed without a mask."""
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.isfinite(values.sum()))


def add_sums(totals: dict[str, np.ndarray], sums: dict[str, np.ndarray]) -> None:
    """Add a dict of arrays to another, in place."""
    for name, values in sums.items():
        if name not in totals:
            # A copy, because the caller may still use the array.
            totals[name] = np.array(values)
        elif totals[name].dtype == np.result_type(totals[name], values):
            totals[name] += values
        else:
            totals[name] = totals[name] + values
