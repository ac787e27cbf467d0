"""Order statistics of each number over the clients, and what they share with other comparisons."""

from __future__ import annotations

from abc import abstractmethod
from numbers import Real
from typing import ClassVar

import numpy as np

from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.aggregation._base import BlockAggregator, as_sum

# Memory of one stack.
STACK_BYTES = 64 * 2**20


def stacks(updates, name, max_bytes=STACK_BYTES):
    """Cut one field into stacks of some rows of all clients.

    Yields
    ------
    rows : slice
    stack : ndarray of shape (n_clients, n_rows, width), dtype float64
        The clients are in the order of their codes.
    """
    spec, n_clients = updates.specs[name], updates.n_clients
    step = max(1, max_bytes // max(1, 8 * n_clients * spec.width))
    for first in range(0, spec.shape[0], step):
        rows = slice(first, min(first + step, spec.shape[0]))
        stack = np.zeros((n_clients, rows.stop - first, spec.width))
        for places, tile in updates:
            stack[places] = tile.fields[name].whole(rows).reshape(len(places), -1, spec.width)
        yield rows, stack


class Comparison(BlockAggregator):
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

    def _total(self, updates, memory=None):
        n_clients, totals = updates.n_clients, {}
        for name, spec in updates.specs.items():
            total = np.empty((spec.shape[0], spec.width))
            for rows, stack in stacks(updates, name):
                total[rows] = n_clients * self._mean(stack)
            totals[name] = as_sum(total.reshape(spec.shape), spec)
        return totals

    @abstractmethod
    def _mean(self, changes):
        """Mean over the first axis."""


class CoordinateMedian(OrderStatistic):
    """Take the median of every number over the clients (Yin et al., ICML 2018).

    For silos, where most clients hold most items. It withstands attackers as long as they are
    fewer than half of the clients of a round.

    Examples
    --------
    >>> from fedrecsk import Federation, GlobSGD
    >>> from fedrecsk.aggregation import CoordinateMedian
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=20, n_interactions=500, random_state=0)
    >>> federation = Federation(aggregator=CoordinateMedian())
    >>> model = GlobSGD(4, federation=federation, random_state=0).fit(X, clients=X[:, 0] % 5)
    """

    _parameter_constraints: ClassVar[dict] = {}

    def _mean(self, changes):
        return np.median(changes, axis=0)


class TrimmedMean(OrderStatistic):
    """Take the mean of every number without its largest and smallest (Yin et al., ICML 2018).

    For silos, where most clients hold most items.

    Parameters
    ----------
    trim : float in [0, 0.5), default=0.2
        Share of the clients to leave out at each end (beta). Choose more than the share of
        attackers that you expect.

    Examples
    --------
    >>> from fedrecsk.aggregation import TrimmedMean
    >>> TrimmedMean(trim=0.3)
    TrimmedMean(trim=0.3)
    """

    _parameter_constraints: ClassVar[dict] = {"trim": [Interval(Real, 0, 0.5, closed="left")]}

    def __init__(self, trim: float = 0.2):
        self.trim = trim

    def _mean(self, changes):
        n_cut = int(np.ceil(self.trim * len(changes)))
        n_cut = min(n_cut, (len(changes) - 1) // 2)
        return np.sort(changes, axis=0)[n_cut : len(changes) - n_cut].mean(axis=0)
