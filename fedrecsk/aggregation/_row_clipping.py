"""Clipping of single rows of uploads."""

from __future__ import annotations

from numbers import Real
from typing import ClassVar, Literal

import numpy as np

from fedrecsk._sklearn import Interval, StrOptions
from fedrecsk.aggregation._base import InBlocks, forms_of, weighted_sum
from fedrecsk.aggregation._norm_clipping import clipped_sum
from fedrecsk.aggregation._rows import item_fields, row_bound, row_clipped


class RowClipping(InBlocks):
    """Scale down every row of every upload whose norm exceeds a bound, then clip whole uploads.

    :class:`NormClipping` bounds a client's whole upload, so an attacker may spend its whole
    allowance on the row of the one item that it promotes. Here it moves no item further than an
    ordinary client that has the item.

    Examples
    --------
    >>> from fedrecsk.aggregation import RowClipping
    >>> RowClipping(multiple=2.0)
    RowClipping(multiple=2.0)
    """

    _parameter_constraints: ClassVar[dict] = {
        "max_norm": [Interval(Real, 0, None, closed="neither"), StrOptions({"median"})],
        "multiple": [Interval(Real, 0, None, closed="neither")],
        "whole": ["boolean"],
    }

    def __init__(
        self,
        max_norm: float | Literal["median"] = "median",
        *,
        multiple: float = 1.0,
        whole: bool = True,
    ):
        self.max_norm = max_norm
        self.multiple = multiple
        self.whole = whole

    def _combined(self, batches):
        forms = forms_of(batches)
        by_item = item_fields(forms)
        return {name: self._total(batches, name, name in by_item) for name in forms}

    def _total(self, batches, name, is_by_item):
        if is_by_item:
            bound = row_bound(batches, name, self.max_norm, self.multiple)
            batches = row_clipped(batches, name, bound)
            if not self.whole:
                return weighted_sum(batches, name, [np.ones(len(b.clients)) for b in batches])
        return clipped_sum(batches, name, self.max_norm, self.multiple)
