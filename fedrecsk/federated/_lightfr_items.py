"""Items that are added to a fitted LightFR."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedrecsk._codes import random_codes
from fedrecsk._sklearn import check_sample_weight
from fedrecsk.federated._lightfr_checks import check_rows
from fedrecsk.interactions import Ids, encode, id_columns
from fedrecsk.simulation.blocks import Block
from fedrecsk.simulation.keys import Key, Keys
from fedrecsk.simulation.messages import Message, Summed, Total
from fedrecsk.simulation.participation import Turn

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import ArrayLike


class ItemFoldIn:
    """`fold_in_items`, for LightFR."""

    def fold_in_items(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        n_rounds: int = 20,
    ) -> Self:
        """Add items that were not in fit, without retraining (the paper's section 3.3.3).

        This takes a few rounds with all users, whose codes stay fixed: those that have rows of a
        new item upload what they would in fit, and the server sets only the bits of the new
        items, without a balance term. These rounds are not in `communication_`.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`. Rows of users unknown to the model are left out.
        n_rounds : int, default=20
            Largest number of rounds; they end when no bit changes.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If an item is already known, no row has a user that the model knows, y is required but
            missing or outside the scale, or weights are too large for exact sums.
        """
        check_is_fitted(self)
        new = self._rows_of_new_items(X, y, sample_weight)
        check_rows(self, new, self.rating_scale_)
        users = self._users.codes(new.user_ids.values)[new.users]
        rows = np.flatnonzero(users >= 0)
        kept, items = np.unique(new.items[rows], return_inverse=True)
        ids = np.concatenate([self.item_ids_, new.item_ids.values[kept]])
        items = items + self.n_items_
        block = self._with_new_rows(
            users[rows], items, new.values[rows], new.weights[rows], len(ids)
        )
        self.item_codes_ = self._coded(block, len(kept), n_rounds)
        codes = replace(self._final_message["item_codes"], values=self.item_codes_.copy())
        self._final_message = Message(**self._final_message | {"item_codes": codes})
        self._seen = block.indptr, block.items
        self.item_ids_, self.n_items_ = ids, len(ids)
        self._items = Ids(ids, self._items.name)
        return self

    def _rows_of_new_items(self, X, y, sample_weight):
        """The rows, encoded, after a check that the model can take them."""
        if y is None and self.targets == "ratings":
            raise ValueError('targets="ratings" needs y; pass the ratings of the new items.')
        X, y = self._checked(X, y)
        if sample_weight is not None:
            sample_weight = check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True
            )
        users, items = id_columns(X)
        known = self._items.codes(items) >= 0
        if known.any():
            raise ValueError(
                f"Item {items[known.argmax()]!s} is already known; fold_in_items adds new items "
                "only. Drop its rows, or refit with them."
            )
        if not (self._users.codes(users) >= 0).any():
            raise ValueError(
                "No row of X has a user that the model knows, so there is no data to learn the "
                "items from; fold_in their users first."
            )
        return encode(X, y, sample_weight=sample_weight)

    def _with_new_rows(self, users, items, values, weights, n_items):
        """All users' rows, each user a client; of the old ones only the items matter."""
        seen_indptr, seen_items = self._seen
        owners = np.concatenate([np.repeat(np.arange(self.n_users_), np.diff(seen_indptr)), users])
        order = np.argsort(owners, kind="stable")
        lengths = np.bincount(owners, minlength=self.n_users_)
        old = np.full(len(seen_items), self.rating_scale_[1]), np.ones(len(seen_items))
        return Block(
            clients=np.arange(self.n_users_),
            users=np.arange(self.n_users_),
            client_indptr=np.arange(self.n_users_ + 1),
            indptr=np.concatenate([[0], np.cumsum(lengths)]),
            items=np.concatenate([seen_items, items])[order].astype(np.int32),
            values=np.concatenate([old[0], values])[order],
            weights=np.concatenate([old[1], weights])[order],
            n_items=n_items,
        )

    def _coded(self, block, n_new, n_rounds):
        """Codes of all items after rounds in which only those of the last n_new may change."""
        model = copy.copy(self)
        model.reg_item, n_old = 0.0, block.n_items - n_new
        index = np.arange(n_old, block.n_items)
        fresh = random_codes(Key(0), "item codes", index, 1, self.n_bits)[:, 0]
        server = model._server_of(np.concatenate([self.item_codes_, fresh]))
        everyone = np.ones(block.n_clients, dtype=bool)
        turn = Turn(everyone, everyone, False)
        for t in range(n_rounds):
            key = Key(0, t)
            message = Message(**model._announce(server), **model._model(server))
            message = model._on_receipt(message, key)
            state = model._targets(block, message) | {"codes": self.user_codes_}
            uploads, _ = model._step(block, state, message, turn, Keys(key, key), moves=False)
            stepped = model._aggregate(server, message, _totals(uploads, block.n_clients), key)
            codes = stepped["item_codes"]
            codes[:n_old] = server["item_codes"][:n_old]
            ended = model._settled(codes, server["item_codes"])
            server = stepped
            if ended:
                break
        return server["item_codes"]

    def _server_of(self, item_codes):
        """The server's state with these items, as far as the final model has it."""
        server = {"item_codes": item_codes, "rating_scale": self.rating_scale_}
        if "crowd" in self._final_message:
            server["crowd"] = self._final_message["crowd"].values
        if "mean_user" in self._final_message:
            server["mean_user"] = self._final_message["mean_user"].values
        if self.aggregation != "full":
            server["memory"] = np.zeros((len(item_codes), self.n_bits), dtype=np.int64)
        return server

    def _settled(self, codes, before):
        # Sampled negatives are redrawn in every round.
        return self.aggregation == "full" and np.array_equal(codes, before)


def _totals(uploads, n_clients):
    """What the server gets of one block's sums."""
    sums = {
        name: field.values if isinstance(field, Summed) else field
        for name, field in uploads.items()
    }
    return {name: Total(values, n_clients) for name, values in sums.items()}
