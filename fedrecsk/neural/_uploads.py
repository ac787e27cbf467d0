"""Uploads of trained clients: their sum, or each one's own."""

from __future__ import annotations

import numpy as np

from fedrecsk._utils.kernels import LazyModule
from fedrecsk.neural._layout import Layout
from fedrecsk.neural._training import Trained
from fedrecsk.updates import SparseRows

neural_kernels: LazyModule = LazyModule("fedrecsk.neural._kernels")

VISITS = "n_visits"
Matrices = dict[str, np.ndarray]


class Sums:
    """Adds up the changes of the clients whose uploads arrive.

    Parameters
    ----------
    layout : Layout
    received : dict of str to ndarray
        What clients have received, as matrices.
    n_items : int
    """

    def __init__(self, layout: Layout, received: Matrices, n_items: int) -> None:
        self.layout = layout
        self.received = received
        self.n_visits = np.zeros((n_items, 1), dtype=np.int64)
        self.sums = {name: np.zeros(value.shape) for name, value in received.items()}

    def add(self, trained: Trained, sends: np.ndarray) -> None:
        """Add the clients of a mask."""
        for name, total in self.sums.items():
            after, before = trained.after[name], self.received[name]
            if self.layout.parts[name].kind == "item":
                after = after.reshape(*trained.items.shape, -1)
                rows = sends, trained.items, trained.n_items
                neural_kernels.add_changes(*rows, after, before, total)
            else:
                change = after.reshape(-1, *before.shape)[sends] - before
                total += change.sum(axis=0, dtype=np.float64)
        items = trained.items[trained.is_row & sends[:, None]]
        self.n_visits += np.bincount(items, minlength=len(self.n_visits))[:, None]

    def fields(self) -> Matrices:
        """The sums by the names of the parameters, and how many clients visited each item."""
        return self.sums | {VISITS: self.n_visits}


class Single:
    """Keeps each client's changes.

    Parameters
    ----------
    layout : Layout
    received : dict of str to ndarray
        What clients have received, as matrices.
    n_clients : int
        Of the block.
    """

    def __init__(self, layout: Layout, received: Matrices, n_clients: int) -> None:
        self.received = received
        self.n_clients = n_clients
        self._clients, self._items = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        self._rows = {n: [np.empty((0, received[n].shape[1]))] for n in layout.named("item")}
        self._wholes = {
            name: np.zeros((n_clients, *received[name].shape)) for name in layout.named("shared")
        }

    def add(self, trained: Trained, sends: np.ndarray) -> None:
        """Keep the changes of all clients of a chunk; whoever reads them knows who sends."""
        is_row = trained.is_row
        items = trained.items[is_row]
        self._clients.append(np.repeat(trained.clients, trained.n_items))
        self._items.append(items.astype(np.int32))
        for name, rows in self._rows.items():
            after = trained.after[name][is_row].reshape(len(items), rows[0].shape[1])
            rows.append(after - self.received[name][items])
        for name, wholes in self._wholes.items():
            after = trained.after[name].reshape(-1, *wholes.shape[1:])
            wholes[trained.clients] = after - self.received[name]

    def fields(self) -> dict[str, SparseRows]:
        """The changes by the names of the parameters, and a one for each visited item."""
        clients, items = np.concatenate(self._clients), np.concatenate(self._items)
        # Stable, so that a client's items stay in ascending order.
        order = np.argsort(clients, kind="stable")
        counts = np.bincount(clients, minlength=self.n_clients)
        indptr, items = np.concatenate([[0], np.cumsum(counts)]), items[order]
        fields = {name: SparseRows.stacked(whole) for name, whole in self._wholes.items()}
        for name, rows in self._rows.items():
            fields[name] = SparseRows(indptr, items, np.concatenate(rows)[order])
        return fields | {VISITS: SparseRows(indptr, items, np.ones((len(items), 1), np.uint8))}
