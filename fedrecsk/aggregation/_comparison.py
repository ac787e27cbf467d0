"""Aggregators that compare clients number by number."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from fedrecsk.aggregation._base import InBlocks, as_sum, forms_of
from fedrecsk.aggregation._tiles import tiles


class Comparison(InBlocks):
    """An aggregator that compares clients number by number; numbers not sent count as 0."""

    def _check_clients(self, data, n_clients):
        pairs = np.unique(data.clients * data.n_items + data.items)
        holders = np.bincount(pairs % data.n_items, minlength=data.n_items)
        if np.median(2 * holders[data.items]) < data.n_clients:
            raise ValueError(
                f"{type(self).__name__} compares clients number by number, but most rows of X have "
                f"items that fewer than half of the {data.n_clients} clients hold, so it would "
                "mostly compare zeros. Group the users into silos by fit(..., clients=...), or "
                "use NormClipping."
            )


class OrderStatistic(Comparison):
    """A robust mean of each number over the clients."""

    def _combined(self, batches):
        n_clients = sum(batch.n_accepted for batch in batches)
        totals = {}
        for name, form in forms_of(batches).items():
            total = np.empty((form.shape[0], form.width))
            for rows, stack in tiles(batches, name):
                total[rows] = n_clients * self._mean(stack)
            totals[name] = as_sum(total.reshape(form.shape), form)
        return totals

    @abstractmethod
    def _mean(self, changes):
        """Mean over the first axis."""
