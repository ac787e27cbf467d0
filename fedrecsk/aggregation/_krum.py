"""Krum and Multi-Krum."""

from __future__ import annotations

from numbers import Integral
from typing import ClassVar

import numpy as np

from fedrecsk._sklearn import Interval
from fedrecsk.aggregation._base import forms_of, places_of, weighted_sum
from fedrecsk.aggregation._comparison import Comparison
from fedrecsk.aggregation._tiles import products


class Krum(Comparison):
    """Keep the uploads that are closest to their neighbours (Blanchard et al., NeurIPS 2017).

    The score of an upload is the sum of the squared distances to its n - f - 2 nearest
    neighbours. The `n_selected` uploads with the lowest scores are averaged. For silos, where
    most clients hold most items.

    Parameters
    ----------
    n_attackers : int, default=1
        Number of attackers per round to withstand (f). A round needs 2 f + 3 uploads. If it
        receives fewer because of dropout, it changes nothing.
    n_selected : int, default=1
        Number of uploads to average. More than 1 is Multi-Krum.

    Examples
    --------
    >>> from fedrecsk.aggregation import Krum
    >>> Krum(n_attackers=2, n_selected=3)
    Krum(n_attackers=2, n_selected=3)
    """

    _parameter_constraints: ClassVar[dict] = {
        "n_attackers": [Interval(Integral, 0, None, closed="left")],
        "n_selected": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(self, n_attackers: int = 1, *, n_selected: int = 1):
        self.n_attackers = n_attackers
        self.n_selected = n_selected

    @property
    def _n_needed(self):
        return max(2 * self.n_attackers + 3, self.n_attackers + 2 + self.n_selected)

    def _check_clients(self, data, n_clients):
        super()._check_clients(data, n_clients)
        if n_clients < self._n_needed:
            raise ValueError(
                f"Krum(n_attackers={self.n_attackers}, n_selected={self.n_selected}) needs "
                f"{self._n_needed} clients per round, but there are {n_clients}; lower n_attackers "
                "or n_selected, or raise client_fraction."
            )

    def _combined(self, batches):
        n_clients = sum(batch.n_accepted for batch in batches)
        if n_clients < self._n_needed:
            return None
        chosen = np.argsort(self._scores(products(batches)), kind="stable")[: self.n_selected]
        shares = np.zeros(n_clients + 1)
        shares[chosen] = n_clients / self.n_selected
        # Clients that are not accepted have place -1, where the share is 0.
        weights = [shares[places] for places in places_of(batches)]
        return {name: weighted_sum(batches, name, weights) for name in forms_of(batches)}

    def _scores(self, products):
        """Sums of the squared distances to the nearest neighbours, from all inner products."""
        squares = products.diagonal()
        # Attackers can send numbers so large that distances to them are infinite or NaN.
        with np.errstate(invalid="ignore", over="ignore"):
            distances = squares[:, None] + squares - 2 * products
        np.fill_diagonal(distances, np.inf)
        nearest = np.sort(distances, axis=1)[:, : len(products) - self.n_attackers - 2]
        return nearest.sum(axis=1)
