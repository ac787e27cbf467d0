"""Whole uploads as vectors: norms and inner products over all fields together."""

from __future__ import annotations

import numpy as np

from fedrecsk.aggregation._base import float_sum, forms_of


class WholeUploads:
    """The uploads of all batches, each client's fields taken together as one vector.

    The clients are in the order of the batches; those that are not accepted are included, and
    their numbers mean nothing.

    Parameters
    ----------
    batches : list of Batch
    """

    def __init__(self, batches):
        self.batches = batches
        self.accepted = np.concatenate([batch.accepted for batch in batches])
        self.norms = {
            name: self._joined(lambda b, name=name: b.changes[name].norms(b.accepted))
            for name in forms_of(batches)
        }

    def _joined(self, of_batch):
        return np.concatenate([of_batch(batch) for batch in self.batches])

    def split(self, numbers):
        """Numbers of all clients, cut into one array for each batch."""
        ends = np.cumsum([len(batch.clients) for batch in self.batches])
        return np.split(numbers, ends[:-1])

    def mean(self, shares):
        """Mean of the uploads with these shares of the clients; a dict of arrays, float64."""
        weights = self.split(shares)
        return {name: float_sum(self.batches, name, weights) for name in self.norms}

    def squares(self, units):
        """Squared norm of each upload, each field divided by its unit; infinite if too large."""
        with np.errstate(over="ignore"):
            return sum((self.norms[name] / unit) ** 2 for name, unit in units.items())

    def products(self, other, units):
        """Inner product of each upload with `other`, each field divided by its unit."""
        products = np.zeros(len(self.accepted))
        for name, unit in units.items():
            scaled = np.asarray(other[name], dtype=np.float64) / unit**2
            products += self._joined(
                lambda b, name=name, scaled=scaled: b.changes[name].products(scaled, b.accepted)
            )
        return products
