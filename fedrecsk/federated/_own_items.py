"""Prediction with the clients' own item matrices instead of the server's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, eq=False)
class OwnItems:
    """The item vectors of every client, one copy a block of those that nobody in it rated.

    Attributes
    ----------
    n_items : int
    client_of_user, block_of_user : ndarray of shape (n_users,)
        -1 for users who have been forgotten.
    keys : ndarray of shape (n_rows,)
        ``client * n_items + item`` of each own vector, ascending.
    held : ndarray of shape (n_rows, width)
    shared : ndarray of shape (n_blocks, n_items, width)
    """

    n_items: int
    client_of_user: np.ndarray
    block_of_user: np.ndarray
    keys: np.ndarray
    held: np.ndarray
    shared: np.ndarray

    @classmethod
    def of(cls, states):
        """Collect them from the clients' states."""
        blocks = states.blocks
        n_users = sum(block.n_users for block in blocks)
        client_of_user, block_of_user = np.empty((2, n_users), dtype=np.int64)
        keys = []
        for b, block in enumerate(blocks):
            users_each = np.diff(block.client_indptr)
            client_of_user[block.users] = np.repeat(block.clients, users_each)
            block_of_user[block.users] = b
            row_clients = np.repeat(block.clients, block.row_counts)
            keys.append(row_clients * block.n_items + block.row_items)
        keys = np.concatenate(keys)
        order = np.argsort(keys)
        return cls(
            blocks[0].n_items,
            client_of_user,
            block_of_user,
            keys[order],
            np.concatenate([state["held"] for state in states])[order],
            np.stack([state["shared"] for state in states]),
        )

    def without(self, users):
        """The same with these users (codes) forgotten."""
        client_of_user = self.client_of_user.copy()
        client_of_user[users[users < len(client_of_user)]] = -1
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
        ours = np.flatnonzero((users >= 0) & (users < len(self.client_of_user)))
        ours = ours[self.client_of_user[users[ours]] >= 0]
        users, items = users[ours], items[ours]
        vectors[ours] = self.shared[self.block_of_user[users], items]
        keys = self.client_of_user[users] * self.n_items + items
        position = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        held = self.keys[position] == keys
        vectors[ours[held]] = self.held[position[held]]
        return vectors
