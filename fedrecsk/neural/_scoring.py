"""Scores of a fitted module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedrecsk.neural._layout import Layout, one_thread

# Pairs that are scored at once.
PAIRS = 2**16


@dataclass(eq=False)
class Scorer:
    """Scores pairs of users and items."""

    # This thread's own; its parameters are replaced.
    module: nn.Module
    layout: Layout
    # What the server sends, as matrices, and the fixed parameters.
    parameters: dict[str, np.ndarray]
    # Private numbers of users, (n_users, n_private), and of an unknown user.
    users: np.ndarray
    newcomer: np.ndarray
    n_items: int

    def all(self, users: np.ndarray) -> np.ndarray:
        """Return scores of all items for users (codes, -1 for unknown), float64."""
        scores = np.empty((len(users), self.n_items))
        items = np.arange(self.n_items)
        with one_thread(), torch.no_grad():
            for some in _batches(len(users), self.n_items):
                scores[some] = self._scores(users[some], items)
        return scores

    def pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Return scores of pairs of codes (-1 for unknown), shape (n,), float64."""
        scores = np.empty(len(users))
        items = np.where(items < 0, self.n_items, items)
        with one_thread(), torch.no_grad():
            for whom, places, is_pair in _grouped(users):
                scores[places[is_pair]] = self._scores(whom, items[places])[is_pair]
        return scores

    def _scores(self, users, items):
        """Return scores of items of shape (n_users, n) or, if they are the same for all, (n,)."""
        module, common, private = self.module, self._common(), self._own(users)
        codes = torch.from_numpy(items)

        def score(own, codes):
            return functional_call(module, common | own, (torch.zeros_like(codes), codes))

        if not private:
            return np.broadcast_to(score({}, codes).numpy(), (len(users), items.shape[-1]))
        return vmap(score, (0, 0 if items.ndim == 2 else None))(private, codes).numpy()

    def _common(self) -> dict[str, Tensor]:
        """Return what all users have; an unknown item has a row of zeros, the last."""
        common = {}
        for name in self.layout.sent + self.layout.fixed:
            part, values = self.layout.parts[name], self.parameters[name]
            if part.kind in ("item", "fixed item"):
                values = values.reshape(len(values), part.width)
                values = np.concatenate([values, np.zeros_like(values, shape=(1, part.width))])
                common[name] = torch.from_numpy(values).reshape(-1, *part.shape)
            else:
                common[name] = torch.from_numpy(values).reshape(part.shape)
        return common

    def _own(self, users) -> dict[str, Tensor]:
        """Return the users' private parameters, with the user as first axis."""
        rows = np.tile(self.newcomer, (len(users), 1))
        rows[users >= 0] = self.users[users[users >= 0]]
        rows, own = torch.from_numpy(rows), {}
        for name, column in self.layout.columns(self.n_items).items():
            part = self.layout.parts[name]
            values = rows[:, column].to(part.dtype)
            if part.kind == "private item":
                values = torch.nn.functional.pad(values, (0, part.width))
            shape = part.shape if part.kind == "private" else (-1, *part.shape)
            own[name] = values.reshape(len(users), *shape)
        return own


def _batches(n_users: int, n_items: int) -> Iterator[slice]:
    size = max(1, PAIRS // max(1, n_items))
    return (slice(start, start + size) for start in range(0, n_users, size))


def _grouped(users: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Group pairs by user; yields some users, the places of their pairs, and which are none.

    Users with about as many pairs are grouped, because each group is padded.
    """
    order = np.argsort(users, kind="stable")
    whom, starts, counts = np.unique(users[order], return_index=True, return_counts=True)
    by_size = np.argsort(counts, kind="stable")
    start = 0
    while start < len(by_size):
        # The last of a group is the largest.
        padded = counts[by_size[start:]] * np.arange(1, len(by_size) - start + 1)
        stop = start + max(1, int(np.searchsorted(padded, PAIRS, "right")))
        some = by_size[start:stop]
        places = starts[some, None] + np.arange(counts[some].max())
        is_pair = places < (starts + counts)[some, None]
        yield whom[some], order[np.where(is_pair, places, starts[some, None])], is_pair
        start = stop
