"""What a network is trained on: rows of X, each with drawn negatives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedrecsk import _kernels
from fedrecsk.simulation.keys import Key


class Examples(NamedTuple):
    """Rows of X in the order of their users.

    Attributes
    ----------
    users, items : ndarray of shape (n_rows,), dtype int32
    targets, weights : ndarray of shape (n_rows,), dtype float32
    indptr, seen : ndarray
        Items ``seen[indptr[u]:indptr[u + 1]]`` are no negatives of user u; ascending.
    n_items : int
    n_negatives : int
        Number of negatives of each row.
    """

    users: np.ndarray
    items: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    indptr: np.ndarray
    seen: np.ndarray
    n_items: int
    n_negatives: int

    @property
    def are_negatives_weighted(self) -> np.ndarray:
        """Whether negatives count, by row: only those of positives whose user has some."""
        n_unseen = self.n_items - np.diff(self.indptr)
        return (self.targets > 0) & (n_unseen[self.users] > 0)

    @property
    def total(self) -> float:
        """Sum of the weights of all examples."""
        n_each = 1.0 + self.n_negatives * self.are_negatives_weighted
        return float(n_each @ self.weights)

    def draw(self, rows: np.ndarray, key: Key) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The examples of these rows: first the row itself, then its negatives.

        A row's negatives depend on its number and the key, and on no other row.

        Returns
        -------
        items, targets, weights : ndarray of shape (len(rows), 1 + n_negatives)
        """
        shape = len(rows), 1 + self.n_negatives
        items, targets = np.empty(shape, np.int32), np.zeros(shape, self.targets.dtype)
        items[:, 0], targets[:, 0] = self.items[rows], self.targets[rows]
        weights = np.repeat(self.weights[rows, None], shape[1], axis=1)
        if self.n_negatives:
            users, seed = self.users[rows], key.hashed("negatives")
            have = self.targets[rows] > 0
            have &= (self.indptr[users + 1] - self.indptr[users]) < self.n_items
            weights[~have, 1:] = 0
            _kernels.ncf.draw_negatives(
                rows, users, self.indptr, self.seen, self.n_items, seed, items
            )
        return items, targets, weights
