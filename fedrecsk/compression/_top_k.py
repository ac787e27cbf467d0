"""Top-K: send only the coordinates of the largest size."""

from __future__ import annotations

from numbers import Real
from typing import ClassVar, Literal

import numpy as np

from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk._utils.user_warnings import warn
from fedrecsk.compression._base import BlockCompressor, Compressor, Lengths, check_array

topk_kernels: LazyModule = LazyModule("fedrecsk.compression._top_k_kernels")


class TopK(BlockCompressor):
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

    def _n_kept(self, size):
        """How many of `size` numbers to send, for one array or for many."""
        wanted = np.floor(self.ratio * np.asarray(size) + 0.5).astype(np.int64)
        return np.where(np.asarray(size) > 0, np.maximum(wanted, 1), 0)

    def _lengths(self, n_rows, width):
        k = self._n_kept(n_rows * width)
        return Lengths(k, k, n_indices=k)

    def _encoded(self, received, step):
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

    def _received(self, rows, matrix, generators):
        n_kept, kept = self._n_kept(rows.rows_sent * rows.spec.width), np.zeros(matrix.shape)
        indptr = rows.indptr * rows.spec.width
        topk_kernels.keep_largest(indptr, matrix.ravel(), n_kept, rows.finite(), kept.ravel())
        return kept, None
