"""Clipping of rows, then of each item's total, with sparse updates (after HiCS)."""

from __future__ import annotations

from numbers import Real
from typing import ClassVar

import numpy as np

from fedrecsk._sklearn import Interval
from fedrecsk.aggregation._base import InBlocks, as_sum, forms_of
from fedrecsk.aggregation._norm_clipping import clipped_sum
from fedrecsk.aggregation._rows import item_fields, lengths, row_bound, row_clipped, row_totals


class HierarchicalClipping(InBlocks):
    """Clip every client's rows, then every item's total, and update few items at a time.

    Examples
    --------
    >>> from fedrecsk.aggregation import HierarchicalClipping
    >>> HierarchicalClipping(share=0.5)
    HierarchicalClipping(share=0.5)
    """

    _parameter_constraints: ClassVar[dict] = {
        "multiple": [Interval(Real, 0, None, closed="neither")],
        "total_multiple": [Interval(Real, 0, None, closed="neither")],
        "share": [Interval(Real, 0, 1, closed="right")],
    }

    def __init__(self, *, multiple: float = 1.0, total_multiple: float = 1.0, share: float = 1.0):
        self.multiple = multiple
        self.total_multiple = total_multiple
        self.share = share

    def _combine_batches(self, batches, memory=None):
        if not any(batch.accepted.any() for batch in batches):
            return None
        memory = {} if memory is None else memory
        forms = forms_of(batches)
        by_item = item_fields(forms)
        return {
            name: self._of_items(batches, name, memory)
            if name in by_item
            else clipped_sum(batches, name, "median", self.multiple)
            for name in forms
        }

    def _combined(self, batches):
        return self._combine_batches(batches)

    def _of_items(self, batches, name, memory):
        form = batches[0].forms[name]
        clipped = row_clipped(batches, name, row_bound(batches, name, "median", self.multiple))
        total, n_senders = row_totals(clipped, name)
        held_back = memory.get(name)
        if held_back is not None:
            total += held_back[0]
            n_senders += held_back[1]
        sizes = lengths(total)
        chosen = np.zeros(len(sizes), dtype=bool)
        n_chosen = int(np.ceil(self.share * len(sizes)))
        chosen[np.argsort(-sizes, kind="stable")[:n_chosen]] = True
        memory[name] = np.where(chosen[:, None], 0, total), np.where(chosen, 0, n_senders)
        # The bound on an item's total grows with the number of its senders.
        each = np.divide(sizes, n_senders, out=np.zeros(len(sizes)), where=n_senders > 0)
        bound = self.total_multiple * np.median(each[each > 0]) if (each > 0).any() else 0.0
        factor = np.divide(bound, each, out=np.ones(len(each)), where=each > bound)
        return as_sum((total * (factor * chosen)[:, None]).reshape(form.shape), form)
