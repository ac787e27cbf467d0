"""Top-K: send only the coordinates of the largest size."""

from __future__ import annotations

from functools import cached_property
from numbers import Real
from typing import ClassVar, Literal

import numpy as np

from fedrecsk import _kernels
from fedrecsk._sklearn import Interval
from fedrecsk._warnings import warn
from fedrecsk.compression._base import (
    AfterRagged,
    Compressed,
    Compressor,
    Lengths,
    OneByOne,
    Shortener,
    check_array,
    rows_sent,
    untouched,
)
from fedrecsk.uploads import Ragged


class TopK(Shortener):
    """Send only the coordinates of the largest size, each with its position.

    Parameters
    ----------
    ratio : float in (0, 1], default=1 / 16
        Share of an array's coordinates to send, rounded to a whole number, at least one.
    direction : {"both", "up", "down"}, default="both"
        Which messages to compress.

    Notes
    -----
    A message has the same length whatever zeros it has. A position costs 4 bytes, so a ratio
    above 1/2 costs more than the whole array in float32; a fit then warns. What is not sent is
    lost, because clients do not remember it (there is no error feedback). The positions reveal
    which items a client has visited.

    Examples
    --------
    >>> import numpy as np
    >>> from fedrecsk.compression import TopK
    >>> sent = TopK(ratio=0.5).compress(np.array([0.1, -3.0, 2.0, 0.0]), None)
    >>> sent.values
    array([ 0., -3.,  2.,  0.])
    >>> sent.nbytes()
    16
    """

    _parameter_constraints: ClassVar[dict] = {
        **Compressor._parameter_constraints,
        "ratio": [Interval(Real, 0, 1, closed="right")],
    }

    def __init__(self, ratio: float = 1 / 16, *, direction: Literal["both", "up", "down"] = "both"):
        self.ratio = ratio
        self.direction = direction

    def _validate_params(self):
        super()._validate_params()
        if self.ratio > 1 / 2:
            warn(
                f"{self} makes messages longer: each number is sent with its position, which takes "
                "4 bytes as well. Choose a ratio below 1/2, or compression=None.",
            )

    def _compress(self, values, generator):
        if values.size == 0:
            return untouched(values)
        k = int(self._n_kept(values.size))
        kept = _largest(np.abs(values).ravel(), k)
        received = np.zeros_like(values).ravel()
        received[kept] = values.ravel()[kept]
        return Compressed(received.reshape(values.shape), k, k, n_indices=k)

    def _n_kept(self, size):
        """How many of `size` numbers to send, for one array or for many."""
        wanted = np.floor(self.ratio * np.asarray(size) + 0.5).astype(np.int64)
        return np.where(np.asarray(size) > 0, np.maximum(wanted, 1), 0)

    def _lengths(self, n_rows, width):
        k = self._n_kept(n_rows * width)
        return Lengths(k, k, n_indices=k)

    def _encoded(self, change, received):
        flat = received.ravel()
        kept, zeros = np.flatnonzero(flat), np.flatnonzero(flat == 0)
        # Zeros fill the message up, whose length is always the same.
        n_zeros = max(0, int(self._n_kept(flat.size)) - len(kept))
        positions = np.sort(np.concatenate([kept, zeros[:n_zeros]]))
        return flat[positions], positions.astype(np.int32)

    def _decoded(self, values, extra, shape):
        size = int(np.prod(shape))
        k = int(self._n_kept(size))
        check_array(values, "f", (k,))
        check_array(extra, "iu", (k,))
        positions = extra.astype(np.int64)
        if k and not (
            positions[0] >= 0 and positions[-1] < size and (np.diff(positions) > 0).all()
        ):
            raise ValueError("The positions of a Top-K upload do not ascend within its field.")
        received = np.zeros(size)
        received[positions] = values
        return received.reshape(shape)

    def _compressed(self, changes, form, sends, seeds, summed):
        if not isinstance(changes, Ragged):
            return OneByOne(changes, self)
        n_rows = rows_sent(changes, form, sends)
        return _Largest(changes, self, sends, self._n_kept(n_rows * form.width))


def _largest(sizes, k):
    """Positions of the k largest sizes, without zeros; among equal sizes, the first ones."""
    # Most rows of a client's upload are often 0, and equal numbers make np.partition slow.
    other = np.flatnonzero(sizes)
    if len(other) <= k:
        return other
    sizes = sizes[other]
    threshold = np.partition(sizes, len(sizes) - k)[len(sizes) - k]
    above = np.flatnonzero(sizes > threshold)
    return other[np.concatenate([above, np.flatnonzero(sizes == threshold)[: k - len(above)]])]


class _Largest(AfterRagged):
    """Top-K of Ragged changes, computed in `_kernels.topk`.

    Parameters
    ----------
    sends : ndarray of shape (n_clients,), dtype bool
        Mask of the clients that send something.
    n_kept : ndarray of shape (n_clients,)
        How many numbers each client sends.
    """

    def __init__(self, changes, compressor, sends, n_kept):
        super().__init__(changes, compressor)
        self.sends = sends
        self.n_kept = n_kept

    @property
    def _descending(self):
        return None if self.common is None else self.common.descending

    @cached_property
    def _cuts(self):
        cut = np.zeros(self.n_clients, dtype=np.int64)
        size, place = np.zeros(self.n_clients), np.zeros(self.n_clients, dtype=np.int64)
        sends = self.sends & (self.common is None or self.common.is_finite)
        _kernels.topk.cuts(
            *self.changes._matrix, self._descending, self.n_kept, sends, cut, size, place
        )
        return cut, size, place

    def largest(self, mask):
        return self.changes.largest(mask)

    def norms(self, mask):
        squares = np.zeros(self.n_clients)
        if self._descending is not None:
            kept = np.cumsum(np.square(self._descending[1]))
            squares = np.where(mask, np.append(0.0, kept)[self._cuts[0]], 0.0)
        _kernels.topk.squared_norms(
            *self.changes._matrix, self._change, self._descending, *self._cuts, mask, squares
        )
        return np.sqrt(np.maximum(squares, 0))

    def add_to(self, sums, weights):
        weights = np.asarray(weights, dtype=np.float64)
        if self._descending is not None:
            _kernels.topk.add_common(
                self._change, self._descending[2], self._cuts[0], weights, sums
            )
        _kernels.topk.add(
            *self.changes._matrix, self._change, self._descending, *self._cuts, weights, sums
        )
