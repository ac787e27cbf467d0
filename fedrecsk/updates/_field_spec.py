"""The declared form of what clients send in one field."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
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

    @cached_property
    def sum_dtype(self) -> type[np.int64] | type[np.float64]:
        """Data type of the sum over clients."""
        return np.int64 if self.is_integer else np.float64

    def sizes(
        self, wire_dtype: str, n_rows: ArrayLike, n_columns: ArrayLike | None = None
    ) -> NDArray[np.int64]:
        """Return what clients send, by how many rows and columns: three numbers for each.

        Bytes with the indices of chosen rows; bytes of what is learned, as papers count them; how
        many numbers.
        """
        indices = np.asarray(n_rows) * INDEX_BYTES if self.rows == "chosen" else 0
        n_rows = np.asarray(n_rows) if self.rows != "all" else np.full_like(n_rows, self.shape[0])
        n_numbers: Any = n_rows * np.asarray(self.width if n_columns is None else n_columns)
        if self.bits:
            nbytes = n_rows * 8 * -(-self.width // 64)
        else:
            nbytes = n_numbers * np.dtype(self.dtype or wire_dtype).itemsize
        return np.array([nbytes + indices, nbytes * self.learned, n_numbers])


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
