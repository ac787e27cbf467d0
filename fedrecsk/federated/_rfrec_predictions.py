"""How RFRec predicts: with the server's item matrix or the clients' own, and for unknown users."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

from fedrecsk.base import linear_scores

# Interval in which the bias of unknown users is searched, and how often it is halved.
FARTHEST, BISECTIONS = 20.0, 60


class Predictions:
    """Mixin of RFRec: `predict_with`, and the response to scores."""

    def _user_attributes(self, block, state):
        attributes = super()._user_attributes(block, state)
        if self.predict_with == "local":
            attributes["_own_items"] = OwnItems.of(block, state["held"], state["shared"])
        return attributes

    def _server_attributes(self, message):
        attributes = super()._server_attributes(message)
        return attributes | {"_mean_user_bias": self._mean_bias(message, attributes)}

    def _mean_bias(self, message, attributes):
        """Return the user bias with which the items' biases alone give the mean rating."""
        if not self.biases or "n_ratings" not in message:
            return 0.0
        weights = np.maximum(message["n_ratings"].values, 0).astype(np.float64)
        if not weights.any():
            return 0.0
        scores = attributes["global_bias_"] + attributes["item_bias_"].astype(np.float64)
        level = self._expected(message["scale"].values[2])
        low, high = -FARTHEST, FARTHEST
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            above = np.average(self._expected(scores + middle), weights=weights) > level
            low, high = (low, middle) if above else (middle, high)
        return (low + high) / 2

    def _expected(self, scores):
        """Return the scaled ratings of scores."""
        return expit(scores) if self.LINK == "sigmoid" else scores

    def _response(self, scores):
        low, high = self.rating_scale_
        if self.LINK == "sigmoid":
            return low + (high - low) * expit(scores)
        return np.clip(low + (high - low) * scores, low, high)

    def _score_pairs(self, users, items):
        if self.predict_with == "global":
            scores = linear_scores(users, items, *self._linear_part())
        else:
            scores = self._own_scores(users, items)
        scores[(users < 0) & (items >= 0)] += self._mean_user_bias
        return self._response(scores)

    def _score_all(self, users):
        if self.predict_with == "global":
            scores = super()._score_all(users)
        else:
            items = np.arange(self.n_items_)
            rows = [self._own_scores(np.full(len(items), user), items) for user in users]
            scores = np.stack(rows)
        scores[users < 0] += self._mean_user_bias
        return scores

    def _own_scores(self, users, items):
        """Return the scores of pairs with the item vectors of the users' clients."""
        level, user_bias, item_bias, user_factors, item_factors = self._linear_part()
        known_user, known_item = (users >= 0)[:, None], (items >= 0)[:, None]
        partners = np.where(known_user, user_factors[users], 0)
        if self.biases:
            item_factors = np.column_stack([item_bias, item_factors])
            partners = np.column_stack([np.ones(len(users)), partners])
        own = self._own_items.vectors(users, np.maximum(items, 0), item_factors)
        scores = level + np.where(users >= 0, user_bias[users], 0)
        return scores + np.sum(np.where(known_item, own, 0) * partners, axis=1)

    def _forget_users(self, users):
        if hasattr(self, "_own_items"):
            self._own_items = self._own_items.without(users)


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
