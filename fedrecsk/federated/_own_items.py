"""Prediction with the clients' own item matrices instead of the server's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, eq=False)
class OwnItems:
    """The item vectors of clients; those that a client has not rated are stored once per block.

    Attributes
    ----------
    n_items : int
    users : ndarray of shape (n_users,)
        Users' codes, ascending.
    client_of_user, block_of_user : ndarray of shape (n_users,)
        -1 for users who have been forgotten.
    keys : ndarray of shape (n_rows,)
        ``client * n_items + item`` of each own vector, ascending.
    held : ndarray of shape (n_rows, width)
    shared : ndarray of shape (n_blocks, n_items, width)
    """

    n_items: int
    users: np.ndarray
    client_of_user: np.ndarray
    block_of_user: np.ndarray
    keys: np.ndarray
    held: np.ndarray
    shared: np.ndarray

    @classmethod
    def of(cls, block, held, shared):
        """Of one block, given its clients' own vectors and their shared vectors of other items."""
        n_users = np.diff(block.client_indptr)
        order = np.argsort(block.users, kind="stable")
        keys = np.repeat(block.clients, block.row_counts) * block.n_items + block.row_items
        by_key = np.argsort(keys)
        return cls(
            block.n_items,
            block.users[order],
            np.repeat(block.clients, n_users)[order],
            np.zeros(block.n_users, dtype=np.int64),
            keys[by_key],
            held[by_key],
            shared[None],
        )

    @classmethod
    def joined(cls, parts):
        """Put those of several blocks together."""
        users = np.concatenate([part.users for part in parts])
        keys = np.concatenate([part.keys for part in parts])
        order, by_key = np.argsort(users, kind="stable"), np.argsort(keys)
        blocks = np.repeat(np.arange(len(parts)), [len(part.users) for part in parts])
        return cls(
            parts[0].n_items,
            users[order],
            np.concatenate([part.client_of_user for part in parts])[order],
            blocks[order],
            keys[by_key],
            np.concatenate([part.held for part in parts])[by_key],
            np.concatenate([part.shared for part in parts]),
        )

    def without(self, users):
        """The same with these users (codes) forgotten."""
        client_of_user = self.client_of_user.copy()
        client_of_user[np.isin(self.users, users)] = -1
        return replace(self, client_of_user=client_of_user)

    def vectors(self, users, items, default):
        """The item vector of each pair as the user's client has it.

        Parameters
        ----------
        users, items : ndarray of shape (n,), codes, items known
        default : ndarray of shape (n_items, width)
            For users who were not in fit or have been forgotten.

        Returns
        -------
        vectors : ndarray of shape (n, width)
        """
        vectors = default[items]
        places = np.minimum(np.searchsorted(self.users, users), len(self.users) - 1)
        known = (self.users[places] == users) & (self.client_of_user[places] >= 0)
        ours = np.flatnonzero(known)
        places, items = places[ours], items[ours]
        vectors[ours] = self.shared[self.block_of_user[places], items]
        keys = self.client_of_user[places] * self.n_items + items
        position = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        held = self.keys[position] == keys
        vectors[ours[held]] = self.held[position[held]]
        return vectors
