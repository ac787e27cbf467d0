"""Rows that push an item towards the popular ones harder than its senders explain."""

from __future__ import annotations

from numbers import Real
from typing import ClassVar

import numpy as np

from fedrecsk._sklearn import Interval
from fedrecsk.aggregation._base import InBlocks, forms_of
from fedrecsk.aggregation._norm_clipping import clipped_sum
from fedrecsk.aggregation._rows import (
    item_fields,
    lengths,
    row_bound,
    row_chunks,
    row_clipped,
    row_totals,
    scaled_rows,
)


class PopularityFilter(InBlocks):
    """Leave out rows that push an unpopular item towards the popular ones too hard.

    Examples
    --------
    >>> from fedrecsk.aggregation import PopularityFilter
    >>> PopularityFilter(tolerance=2.0)
    PopularityFilter(tolerance=2.0)
    """

    _parameter_constraints: ClassVar[dict] = {
        "tolerance": [Interval(Real, 0, None, closed="left")],
        "popular": [Interval(Real, 0, 1, closed="neither")],
    }

    def __init__(self, tolerance: float = 3.0, *, popular: float = 0.1):
        self.tolerance = tolerance
        self.popular = popular

    def _combined(self, batches):
        forms = forms_of(batches)
        by_item = item_fields(forms)
        return {
            name: clipped_sum(
                self._filtered(batches, name) if name in by_item else batches, name, "median", 1.0
            )
            for name in forms
        }

    def _filtered(self, batches, name):
        """The same batches with one field, without the rows that push too hard."""
        direction, limits, bound = self._limits(batches, name)
        pushed, n_senders = np.zeros((2, len(limits)))
        for rows, change, counts in row_chunks(batches, name):
            push = counts * (change @ direction)
            pushed += np.bincount(rows, push, minlength=len(limits))
            n_senders += np.bincount(rows, counts * change.any(axis=1), minlength=len(limits))
        suspicious = pushed > limits * n_senders

        def factor(rows, change):
            return np.where(suspicious[rows] & (change @ direction > limits[rows]), 0.0, 1.0)

        return scaled_rows(batches, name, factor)

    def _limits(self, batches, name):
        """Direction of the popular items, and how far a sender may push each item on average."""
        bound = row_bound(batches, name, "median", 1.0)
        clipped = row_clipped(batches, name, bound)
        totals, n_senders = row_totals(clipped, name)
        weight = np.zeros(len(totals))
        for rows, change, counts in row_chunks(clipped, name):
            weight += np.bincount(rows, counts * lengths(change), minlength=len(weight))
        n_popular = max(1, round(self.popular * np.count_nonzero(n_senders)))
        popular = np.argsort(-weight, kind="stable")[:n_popular]
        direction = totals[popular].sum(axis=0)
        direction /= np.linalg.norm(direction) or 1.0
        pushes, squares, n = 0.0, 0.0, n_senders[popular].sum()
        is_popular = np.zeros(len(totals), dtype=bool)
        is_popular[popular] = True
        for rows, change, counts in row_chunks(clipped, name):
            push = change @ direction
            squares += (counts * is_popular[rows]) @ push**2
        means = (totals @ direction) / np.maximum(n_senders, 1)
        mean = (totals[popular] @ direction).sum() / n
        spread = np.sqrt(max(squares / n - mean**2, 0.0))
        highest = means[popular].max()
        return (
            direction,
            highest + self.tolerance * spread / np.sqrt(np.maximum(n_senders, 1)),
            bound,
        )
