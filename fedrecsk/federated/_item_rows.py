"""Where kernels find a block's users and items, and where they write rows of own items."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedrecsk._utils.kernels import LazyModule

shared_kernels: LazyModule = LazyModule("fedrecsk._utils.shared_kernels")
wmf_kernels: LazyModule = LazyModule("fedrecsk.federated._wmf_kernels")


def layout_of(block):
    """Which users and items belong to which client."""
    return shared_kernels.Layout(
        block.client_indptr, block.indptr, block.row_indptr, block.rows, block.row_items
    )


class OwnRows(NamedTuple):
    """Where the own rows of a round's active clients lie, one after the other.

    Attributes
    ----------
    indptr : ndarray of shape (n_clients + 1,)
        Rows ``indptr[c]:indptr[c + 1]`` are client c's; those that are not active have none.
    items : ndarray of shape (n_rows,), dtype int32
        Item code of each row.
    slots : ndarray of shape (n_rows of the block,), dtype int32
        Place of each of the block's held rows among them.
    """

    indptr: np.ndarray
    items: np.ndarray
    slots: np.ndarray

    @classmethod
    def of(cls, block, active):
        """Those of the clients of a mask."""
        counts = np.where(active, block.row_counts, 0)
        taken = np.repeat(active, block.row_counts)
        slots = np.cumsum(taken, dtype=np.int32) - 1
        return cls(np.r_[0, np.cumsum(counts)], block.row_items[taken], slots)


def empty_uploads(block, turn, width, dtype):
    """Rows of `width` numbers and square matrices: sums of them, or each client's own.

    Those of single clients are OwnRows of the active ones.
    """
    n = block.n_clients
    is_finite = np.ones(n, dtype=bool)
    if turn.separate:
        own = OwnRows.of(block, turn.active)
        rows, slots = np.zeros((len(own.items), width), dtype), own.slots
        squares, numbers = np.zeros((n, width, width), dtype), np.arange(n, dtype=np.int32)
        return wmf_kernels.Uploads(turn.active, rows, slots, squares, numbers, is_finite, True)
    senders, sums = turn.active & turn.delivers, np.zeros((block.n_items, width))
    square, zeros = np.zeros((1, width, width)), np.zeros(n, dtype=np.int32)
    return wmf_kernels.Uploads(senders, sums, block.row_items, square, zeros, is_finite, False)
