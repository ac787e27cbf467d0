"""Where kernels find a block's users and items, and where they write rows of own items."""

from __future__ import annotations

import numpy as np

from fedrecsk import _kernels


def layout_of(block):
    """Whose users and items are whose."""
    return _kernels.shared.Layout(
        block.client_indptr, block.indptr, block.row_indptr, block.rows, block.row_items
    )


def empty_uploads(block, turn, width, dtype):
    """Rows of `width` numbers and square matrices: sums of them, or each client's own."""
    n, n_rows = block.n_clients, len(block.row_items)
    sound = np.ones(n, dtype=bool)
    if turn.separate:
        rows, slots = np.zeros((n_rows, width), dtype), np.arange(n_rows, dtype=np.int32)
        squares, numbers = np.zeros((n, width, width), dtype), np.arange(n, dtype=np.int32)
        return _kernels.wmf.Uploads(turn.active, rows, slots, squares, numbers, sound, True)
    senders, sums = turn.active & turn.delivers, np.zeros((block.n_items, width))
    square, zeros = np.zeros((1, width, width)), np.zeros(n, dtype=np.int32)
    return _kernels.wmf.Uploads(senders, sums, block.row_items, square, zeros, sound, False)
