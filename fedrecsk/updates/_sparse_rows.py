"""What clients send in one field: its declared form, and the rows of a block of clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

# Bytes of a row's number in a message: int32.
INDEX_BYTES = 4
# Largest integer that a client may send, so that a sum of them still fits into 64 bits.
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
class FieldSpec:
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
    sparse : bool, default=False
        Whether sums over clients are kept as a csc_array, for a column of many rows of which few
        are ever sent.
    """

    shape: tuple[int, ...]
    rows: Literal["all", "held", "chosen"] = "all"
    dtype: str | None = None
    learned: bool = True
    compressible: bool = True
    clip: float | None = None
    bits: bool = False
    sparse: bool = False

    @cached_property
    def width(self) -> int:
        """Number of columns in a row."""
        return int(np.prod(self.shape[1:], dtype=np.int64))

    @cached_property
    def size(self) -> int:
        """Number of numbers in the whole field."""
        return int(np.prod(self.shape, dtype=np.int64))

    @cached_property
    def is_integer(self) -> bool:
        """Whether the numbers are integers, which add up exactly in int64."""
        return self.bits or (self.dtype is not None and np.dtype(self.dtype).kind in "iub")

    @property
    def real(self) -> FieldSpec:
        """The field after its integers have become real numbers."""
        return replace(self, dtype=None, bits=False) if self.is_integer else self

    @property
    def limits(self) -> tuple[float, float]:
        """Smallest and largest integer that a client may send."""
        if self.bits:
            return -1.0, 1.0
        dtype = np.dtype(self.dtype)
        if dtype.kind == "b":
            return 0.0, 1.0
        info = np.iinfo(dtype.name)
        return max(float(info.min), -LARGEST_INTEGER), min(float(info.max), LARGEST_INTEGER)

    @cached_property
    def sum_dtype(self) -> type[np.int64] | type[np.float64]:
        """Data type of the sum over clients."""
        return np.int64 if self.is_integer else np.float64

    def itemsize(self, wire_dtype: str) -> int:
        """Return the bytes of a number in the message."""
        return np.dtype(self.dtype or wire_dtype).itemsize

    def rows_sent(self, n_rows: ArrayLike) -> NDArray[np.int64]:
        """Return how many rows each client sends, given its number of own rows."""
        return np.full_like(n_rows, self.shape[0]) if self.rows == "all" else np.asarray(n_rows)

    def index_bytes(self, n_rows: Any) -> Any:
        """Return the bytes of the rows' indices, which are sent if clients choose their rows."""
        return n_rows * INDEX_BYTES if self.rows == "chosen" else 0

    def sizes(
        self, wire_dtype: str, n_rows: ArrayLike, n_columns: ArrayLike | None = None
    ) -> NDArray[np.int64]:
        """Return what clients send, by how many rows and columns: three numbers for each.

        Bytes with the indices of chosen rows; bytes of what is learned, as papers count them; how
        many numbers.
        """
        n_rows = self.rows_sent(n_rows)
        n_numbers: Any = n_rows * np.asarray(self.width if n_columns is None else n_columns)
        if self.bits:
            nbytes = n_rows * 8 * -(-self.width // 64)
        else:
            nbytes = n_numbers * self.itemsize(wire_dtype)
        return np.array([nbytes + self.index_bytes(n_rows), nbytes * self.learned, n_numbers])


def split_fields(vector: np.ndarray, specs: Mapping[str, FieldSpec]) -> dict[str, np.ndarray]:
    """Cut a vector with the numbers of all fields, one after the other, into these fields."""
    ends = np.cumsum([spec.size for spec in specs.values()])
    parts = zip(specs.items(), np.split(vector, ends[:-1]), strict=True)
    return {name: part.reshape(spec.shape) for (name, spec), part in parts}


def as_integers(numbers: ArrayLike, spec: FieldSpec) -> np.ndarray:
    """Round to the nearest integers that the field can hold and whose sum fits into 64 bits.

    Where a number takes one bit, it becomes its sign, +1 for 0. NaN and infinity stay as they are.
    """
    numbers = np.asarray(numbers)
    if spec.bits:
        integers = np.where(numbers < 0, -1.0, 1.0)
    else:
        integers = np.rint(np.clip(numbers, *spec.limits))
    finite = np.isfinite(numbers)
    return integers.astype(np.int64) if finite.all() else np.where(finite, integers, numbers)


def all_finite(values: np.ndarray) -> bool:
    """Return whether all numbers of an array are finite, computed without a mask."""
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.isfinite(values.sum()))


@dataclass(frozen=True, eq=False)
class SparseRows:
    """One field of the updates of a block of clients, client by client.

    Parameters
    ----------
    indptr : ndarray of shape (n_clients + 1,)
        Where each client's own rows begin and end.
    rows : ndarray of shape (n_own,)
        Own rows of all clients. Client c's are ``rows[indptr[c]:indptr[c + 1]]``, in ascending
        order and without repetition.
    values : ndarray of shape (n_own, ...)
        Changes of these rows.
    default : ndarray of shape (n_rows, ...) or None
        Change of all other rows, the same for all clients. None: zero.
    factors : ndarray of shape (n_clients,) or None
        What each client's changes, own rows and others, are to be multiplied by. None: 1.
    center : ndarray of shape (n_rows, ...) or None
        What a client without any change sends; added once for each accepted client. None: zero.
    columns : ndarray of shape (n_clients, width), dtype bool, or None
        Mask of the columns that each client sends. None: all.
    steps : ndarray of shape (n_clients,) or None
        Step of the integers that a client sends in place of its numbers. None: it sends numbers.
    spec : FieldSpec or None
        FieldSpec of the field, which the round loop sets.
    """

    indptr: np.ndarray
    rows: np.ndarray
    values: np.ndarray
    default: np.ndarray | None = None
    factors: np.ndarray | None = None
    center: np.ndarray | None = None
    columns: np.ndarray | None = None
    steps: np.ndarray | None = None
    spec: Any = None

    @classmethod
    def since(
        cls,
        origin: np.ndarray,
        indptr: np.ndarray,
        rows: np.ndarray,
        values: np.ndarray,
        **others: Any,
    ) -> Self:
        """Make rows from the values themselves, whose changes are counted from `origin`."""
        changes = np.take(origin.astype(np.float64, copy=False), rows, axis=0)
        np.subtract(values, changes, out=changes)
        return cls(indptr, rows, changes, **others)

    @classmethod
    def stacked(cls, values: np.ndarray, **others: Any) -> Self:
        """Make rows from one small array per client; the first axis is the client."""
        n_clients, n_rows = values.shape[:2]
        rows = np.tile(np.arange(n_rows, dtype=np.int32), n_clients)
        indptr = np.arange(n_clients + 1) * n_rows
        return cls(indptr, rows, values.reshape(n_clients * n_rows, *values.shape[2:]), **others)

    @classmethod
    def listed(cls, updates: Sequence[Update], spec: FieldSpec, **others: Any) -> Self:
        """Make rows from the single updates of clients."""
        everything = np.arange(spec.shape[0])
        numbers = [everything[update.rows] for update in updates]
        sizes = [len(one) for one in numbers]
        rows = np.concatenate([everything[:0], *numbers])
        nothing = np.empty((0, *spec.shape[1:]), dtype=spec.sum_dtype)
        values = np.concatenate([nothing, *(update.change for update in updates)])
        order = np.lexsort((rows, np.repeat(np.arange(len(sizes)), sizes)))
        indptr = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        return cls(indptr, rows[order], values[order], spec=spec, **others)

    @classmethod
    def joined(cls, parts: Sequence[SparseRows]) -> Self:
        """Put the clients of several blocks one after the other, without defaults and factors."""
        ends = np.cumsum([0] + [len(one.rows) for one in parts])
        indptr = [one.indptr[1:] + end for one, end in zip(parts, ends, strict=False)]
        rows, values = ([getattr(one, name) for one in parts] for name in ("rows", "values"))
        return cls(
            np.concatenate([[0], *indptr]),
            np.concatenate(rows),
            np.concatenate(values),
            spec=parts[0].spec,
        )

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return len(self.indptr) - 1

    @property
    def n_rows(self) -> np.ndarray:
        """Number of own rows of each client, shape (n_clients,)."""
        return np.diff(self.indptr)

    @property
    def n_columns(self) -> np.ndarray | None:
        """Number of columns that each client sends, shape (n_clients,), or None for all."""
        return None if self.columns is None else self.columns.sum(axis=1)

    @property
    def rows_sent(self) -> np.ndarray:
        """Number of rows that each client sends, shape (n_clients,)."""
        return self.spec.rows_sent(self.n_rows)

    @cached_property
    def owners(self) -> np.ndarray:
        """Client of each own row, shape (n_own,)."""
        return np.repeat(np.arange(self.n_clients), self.n_rows)

    @property
    def matrix(self) -> np.ndarray:
        """The own rows' changes before `factors`, shape (n_own, width)."""
        return self.values.reshape(len(self.values), self.spec.width)

    @property
    def default_matrix(self) -> np.ndarray | None:
        """The other rows' change before `factors`, shape (n_rows, width), or None for zero."""
        if self.default is None or self.spec.rows != "all":
            return None
        return self.default.reshape(len(self.default), self.spec.width).astype(np.float64)

    # ------------------------------------------------------------------ numbers of each client

    def per_client(self, of_rows: Callable[..., np.ndarray]) -> NDArray[np.float64]:
        """Add up ``of_rows(changes, rows)``, a number for each row, over all rows of a client."""
        sums = np.bincount(self.owners, of_rows(self.matrix, self.rows), self.n_clients)
        sums = sums.astype(np.float64)  # Without own rows, they are integers.
        default = self.default_matrix
        if default is not None:
            by_row = of_rows(default, np.arange(len(default)))
            sums += by_row.sum() - np.bincount(self.owners, by_row[self.rows], self.n_clients)
        return sums

    def per_row(self, of_rows: Callable[..., np.ndarray]) -> NDArray[np.float64]:
        """Add up a number of each row over the clients, shape (n_rows,)."""
        if self.factors is not None:
            return self.written_out().per_row(of_rows)
        n_rows, default = self.spec.shape[0], self.default_matrix
        sums = np.bincount(self.rows, of_rows(self.matrix), n_rows).astype(np.float64)
        if default is not None:
            others = self.n_clients - np.bincount(self.rows, minlength=n_rows)
            sums += others * of_rows(default)
        return sums

    def norms(self) -> NDArray[np.float64]:
        """Euclidean norm of each client's change, shape (n_clients,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.sqrt(np.maximum(self.per_client(lambda rows, _: squared_lengths(rows)), 0))
            return norms if self.factors is None else norms * np.abs(self.factors)

    def products(self, other: np.ndarray) -> NDArray[np.float64]:
        """Inner product of each change with an array of the field's shape, shape (n_clients,)."""
        other = other.reshape(len(other), self.spec.width)
        with np.errstate(over="ignore", invalid="ignore"):
            products = self.per_client(
                lambda rows, numbers: np.einsum("ij,ij->i", rows, other[numbers])
            )
            return products if self.factors is None else products * self.factors

    def largest(self) -> NDArray[np.float64]:
        """Bound on the absolute numbers in each change, shape (n_clients,)."""
        sizes = np.zeros(self.n_clients)
        np.maximum.at(sizes, self.owners, np.abs(self.matrix).max(axis=1, initial=0))
        if self.default_matrix is not None:
            sizes = np.maximum(sizes, np.abs(self.default).max(initial=0))
        return sizes if self.factors is None else sizes * np.abs(self.factors)

    def finite(self) -> NDArray[np.bool_]:
        """Return whether all numbers of each change are finite, shape (n_clients,), dtype bool."""
        finite = np.ones(self.n_clients, dtype=bool)
        if self.values.dtype.kind == "f" and not all_finite(self.values):
            finite[self.owners[~np.isfinite(self.matrix).all(axis=1)]] = False
        if self.default_matrix is not None and not np.isfinite(self.default).all():
            finite[:] = False
        return finite if self.factors is None else finite & np.isfinite(self.factors)

    # ------------------------------------------------------------------------------- sums

    def sum(self, weights: np.ndarray | None = None) -> Any:
        """Add up the changes of all clients, times their weights if there are any.

        An ndarray, or a csc_array if the spec is sparse. Without weights, integers stay integers.
        """
        if weights is not None and not weights.all():
            # What is left out may be NaN.
            return self.take(weights != 0).sum(weights[weights != 0])
        factors = np.ones(self.n_clients) if weights is None else weights
        factors = factors if self.factors is None else factors * self.factors
        is_exact = weights is None and self.factors is None and self.spec.is_integer
        factors = factors.astype(np.int64 if is_exact else np.float64)
        if self.spec.sparse:
            own = factors[self.owners]
            places = self.rows, np.zeros(len(own), dtype=np.int64)
            return sparse.csc_array((own * self.values[:, 0], places), shape=self.spec.shape)
        if len(self.rows) == self.n_clients * self.spec.shape[0]:
            # Every client has all rows.
            shape = self.n_clients, self.spec.shape[0] * self.spec.width
            changes = self.values.reshape(shape).astype(factors.dtype, copy=False)
            return (factors @ changes).reshape(self.spec.shape)
        own = factors[self.owners]
        places = sparse.csr_array(
            (own, self.rows, np.arange(len(own) + 1)), shape=(len(own), self.spec.shape[0])
        )
        total = np.asarray(places.T @ self.matrix.astype(factors.dtype, copy=False))
        default = self.default_matrix
        if default is not None:
            held = np.bincount(self.rows, own, len(default))
            total += (factors.sum() - held)[:, None] * default
        return total.reshape(self.spec.shape)

    # -------------------------------------------------------------------------- other rows

    def take(self, who: NDArray[np.bool_]) -> SparseRows:
        """Take the clients of a mask."""
        if who.all():
            return self
        indptr = np.concatenate([[0], np.cumsum(self.n_rows[who])])
        first, n = int(np.argmax(who)), np.count_nonzero(who)
        if who[first : first + n].all():
            # Neighbours, as in a tile: nothing need be copied.
            clients = slice(first, first + n)
            own = slice(self.indptr[first], self.indptr[first + n])
        else:
            clients, own = who, np.repeat(who, self.n_rows)
        return replace(
            self,
            indptr=indptr,
            rows=self.rows[own],
            values=self.values[own],
            factors=None if self.factors is None else self.factors[clients],
            columns=None if self.columns is None else self.columns[clients],
            steps=None if self.steps is None else self.steps[clients],
        )

    def scaled(self, factors: np.ndarray | float) -> SparseRows:
        """Multiply the changes by a factor, or by one for each client; real numbers."""
        spec = self.spec.real
        # Numbers of clients that have diverged stay broken.
        with np.errstate(invalid="ignore", over="ignore"):
            if np.ndim(factors) == 0:
                default = None if self.default is None else factors * self.default
                return replace(self, values=factors * self.values, default=default, spec=spec)
            if self.default_matrix is None:
                shape = (-1, *(1,) * (self.values.ndim - 1))
                values = self.values * factors[self.owners].reshape(shape)
                return replace(self, values=values, spec=spec)
            factors = factors if self.factors is None else factors * self.factors
            return replace(self, factors=factors, spec=spec)

    def with_values(self, values: np.ndarray) -> SparseRows:
        """Put other changes into the own rows."""
        return replace(self, values=values)

    def scaled_rows(self, factor: Callable[..., np.ndarray]) -> SparseRows:
        """Multiply each row by ``factor(rows, changes)``: one number for each row; real numbers."""
        if self.factors is not None:
            return self.written_out().scaled_rows(factor)
        spec = replace(self.spec, dtype=None, bits=False)
        own, default = self.matrix.astype(np.float64), self.default_matrix
        own *= factor(self.rows, own)[:, None]
        if default is not None:
            default = default * factor(np.arange(len(default)), default)[:, None]
            default = default.reshape(self.spec.shape)
        return replace(self, values=own.reshape(self.values.shape), default=default, spec=spec)

    def whole(self, rows: slice = slice(None)) -> np.ndarray:
        """Write all rows of all clients out, or those of a slice: (n_clients, n_rows, ...)."""
        first, last, _ = rows.indices(self.spec.shape[0])
        dtype = np.float64 if self.factors is not None else self.spec.sum_dtype
        dtype = np.result_type(dtype, self.values)
        whole = np.empty((self.n_clients, last - first, self.spec.width), dtype=dtype)
        whole[:] = 0 if self.default_matrix is None else self.default_matrix[rows]
        inside = (self.rows >= first) & (self.rows < last)
        whole[self.owners[inside], self.rows[inside] - first] = self.matrix[inside]
        if self.factors is not None:
            whole *= self.factors[:, None, None]
        return whole.reshape(self.n_clients, last - first, *self.spec.shape[1:])

    def written_out(self) -> SparseRows:
        """Make all rows every client's own, so that there is no default."""
        if self.default_matrix is None and self.factors is None:
            return self
        return self.with_whole(self.whole())

    def with_whole(self, values: np.ndarray) -> SparseRows:
        """Put whole arrays, shape (n_clients, n_rows, ...), in the place of all rows."""
        others = {"center": self.center, "columns": self.columns, "spec": self.spec}
        return SparseRows.stacked(values, **others)

    # ----------------------------------------------------------------------- single clients

    def update(self, client: int) -> Update:
        """Return one client's Update."""
        span = slice(self.indptr[client], self.indptr[client + 1])
        rows, change = self.rows[span], self.values[span].astype(self.spec.sum_dtype)
        if self.spec.rows == "all":
            default, width = self.default_matrix, self.spec.width
            whole = np.zeros((self.spec.shape[0], width), dtype=change.dtype)
            if default is not None:
                whole = default.copy()
            whole[rows] = change.reshape(len(rows), width)
            rows, change = slice(None), whole.reshape(self.spec.shape)
        if self.factors is not None:
            change = change * self.factors[client]
        return Update(rows, change)


def squared_lengths(matrix: np.ndarray) -> NDArray[np.float64]:
    """Squared Euclidean length of each row."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64)
