"""Uploads of trained clients: their sum, or each one's own."""

from __future__ import annotations

import numpy as np
import torch

from fedrecsk.neural._layout import Layout
from fedrecsk.neural._training import Trained
from fedrecsk.uploads import Ragged

VISITS = "n_visits"


class Sums:
    """Adds up the changes of the clients whose uploads arrive.

    Parameters
    ----------
    layout : Layout
    n_items : int
    device : str
    """

    def __init__(self, layout: Layout, n_items: int, device: str) -> None:
        self.layout = layout
        self.n_visits = np.zeros((n_items, 1), dtype=np.int64)
        self.sums = {
            name: torch.zeros(
                layout.matrix_shape(name, n_items), dtype=torch.float64, device=device
            )
            for name in layout.sent
        }

    def add(self, trained: Trained, sends: np.ndarray) -> None:
        """Add the clients of a mask."""
        mask = torch.from_numpy(sends).to(trained.items.device)
        rows = trained.is_row & mask[:, None]
        items = trained.items[rows]
        for name, total in self.sums.items():
            change = trained.after[name] - trained.before[name]
            if self.layout.parts[name].kind == "item":
                total.index_add_(0, items, change[rows].reshape(len(items), -1).double())
            else:
                total += change[mask].double().sum(0).reshape(total.shape)
        self.n_visits += np.bincount(items.cpu(), minlength=len(self.n_visits))[:, None]

    def fields(self) -> dict[str, np.ndarray]:
        """The sums by the names of the parameters, and how many clients visited each item."""
        return {name: total.cpu().numpy() for name, total in self.sums.items()} | {
            VISITS: self.n_visits
        }


class Single:
    """Keeps each client's changes.

    Parameters
    ----------
    layout : Layout
    n_items, n_clients : int
        Of the block.
    """

    def __init__(self, layout: Layout, n_items: int, n_clients: int) -> None:
        self.layout = layout
        self.n_clients = n_clients
        self._n_items = n_items
        self._clients, self._items = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        self._rows = {name: [] for name in layout.named("item")}
        self._wholes = {
            name: np.zeros((n_clients, *layout.matrix_shape(name, n_items)))
            for name in layout.named("shared")
        }

    def add(self, trained: Trained, sends: np.ndarray) -> None:
        """Keep the changes of all clients of a chunk; whoever reads them knows who sends."""
        is_row = trained.is_row
        self._clients.append(np.repeat(trained.clients, is_row.sum(1).cpu().numpy()))
        self._items.append(trained.items[is_row].cpu().numpy().astype(np.int32))
        for name, rows in self._rows.items():
            change = (trained.after[name] - trained.before[name])[is_row]
            rows.append(change.reshape(len(change), -1).cpu().numpy())
        for name, wholes in self._wholes.items():
            change = (trained.after[name] - trained.before[name]).cpu().numpy()
            wholes[trained.clients] = change.reshape(-1, *wholes.shape[1:])

    def fields(self) -> dict[str, Ragged]:
        """The changes by the names of the parameters, and a one for each visited item."""
        clients, items = np.concatenate(self._clients), np.concatenate(self._items)
        # Stable, so that a client's items stay in ascending order.
        order = np.argsort(clients, kind="stable")
        counts = np.bincount(clients, minlength=self.n_clients)
        indptr, items = np.concatenate([[0], np.cumsum(counts)]), items[order]
        fields = {name: Ragged.stacked(whole) for name, whole in self._wholes.items()}
        for name, rows in self._rows.items():
            empty = np.empty((0, self.layout.parts[name].width))
            fields[name] = Ragged(indptr, items, np.concatenate([empty, *rows])[order])
        return fields | {VISITS: Ragged(indptr, items, np.ones((len(items), 1), np.uint8))}
