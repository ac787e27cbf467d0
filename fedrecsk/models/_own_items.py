"""Models of clients that keep item vectors of their own, as RFRec's may."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedrecsk.models._model import Factors, Floats, Integers


@dataclass(frozen=True, eq=False)
class OwnItems:
    """The clients' own item vectors; those that a client has not rated are stored once per block.

    users : (n_users,), codes, ascending
    clients, blocks : (n_users,), of each user; clients are -1 for users who have been forgotten
    keys : (n_rows,), ``client * n_items + item`` of each own vector, ascending
    held : (n_rows, width), own vectors
    shared : (n_blocks, n_items, width)
    """

    n_items: int
    users: np.ndarray
    clients: np.ndarray
    blocks: np.ndarray
    keys: np.ndarray
    held: np.ndarray
    shared: np.ndarray

    @classmethod
    def of(cls, block, held, shared):
        """Return those of one block."""
        clients = np.repeat(block.clients, np.diff(block.client_indptr))
        keys = np.repeat(block.clients, block.row_counts) * block.n_items + block.row_items
        blocks = np.zeros_like(clients)
        whole = cls(block.n_items, block.users, clients, blocks, keys, held, shared[None])
        return cls.joined([whole])

    @classmethod
    def joined(cls, parts):
        """Return those of several blocks."""
        names = ("users", "clients", "keys", "held", "shared")
        users, clients, keys, held, shared = (
            np.concatenate([getattr(part, name) for part in parts]) for name in names
        )
        blocks = np.repeat(np.arange(len(parts)), [len(part.users) for part in parts])
        order, by_key = np.argsort(users, kind="stable"), np.argsort(keys)
        return cls(
            parts[0].n_items,
            users[order],
            clients[order],
            blocks[order],
            keys[by_key],
            held[by_key],
            shared,
        )

    def without(self, users):
        """Return the same with the users of these codes forgotten."""
        return replace(self, clients=np.where(np.isin(self.users, users), -1, self.clients))

    def vectors(self, users, items, default):
        """Return items' vectors as users' clients have them; unknown users get the `default`."""
        vectors = default[items]
        places = np.minimum(np.searchsorted(self.users, users), len(self.users) - 1)
        ours = np.flatnonzero((self.users[places] == users) & (self.clients[places] >= 0))
        places, items = places[ours], items[ours]
        vectors[ours] = self.shared[self.blocks[places], items]
        keys = self.clients[places] * self.n_items + items
        rows = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        held = self.keys[rows] == keys
        vectors[ours[held]] = self.held[rows[held]]
        return vectors


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnFactors(Factors):
    """Scores by the item vectors of the users' own clients."""

    own: OwnItems

    def score_pairs(self, users: Integers, items: Integers) -> Floats:
        known_user, known_item = (users >= 0)[:, None], (items >= 0)[:, None]
        partners, default = np.where(known_user, self.users[users], 0), self.items
        # With a bias of the item, as first number.
        if self.own.held.shape[1] > default.shape[1]:
            default = np.column_stack([self.item_bias, default])
            partners = np.column_stack([np.ones(len(users)), partners])
        own = self.own.vectors(users, np.maximum(items, 0), default)
        scores = self.level + np.where(users >= 0, self.user_bias[users], 0)
        scores = scores + np.sum(np.where(known_item, own, 0) * partners, axis=1)
        return self._with_unknown(scores, users, items)

    def score_all(self, users: Integers) -> Floats:
        items = np.arange(self.n_items)
        rows = [self.score_pairs(np.full(len(items), user), items) for user in users]
        return np.stack(rows)
