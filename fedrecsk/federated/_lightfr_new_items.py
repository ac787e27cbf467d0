"""LightFR's items that were not in fit, learned in a few rounds of their own."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedrecsk._utils.sklearn_compat import check_sample_weight
from fedrecsk.base._hamming import random_codes
from fedrecsk.data.interactions import Ids, encode, id_columns
from fedrecsk.protocol.blocks import Block
from fedrecsk.protocol.keys import Key, Keys
from fedrecsk.protocol.messages import Message, Total
from fedrecsk.protocol.participation import RoundMasks

if TYPE_CHECKING:
    from typing import Any, Self

    from numpy.typing import ArrayLike


class NewItems:
    """`fold_in_items` of LightFR."""

    def fold_in_items(
        self: Any,
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
        self._check_rows(new, self.rating_scale_)
        users = self._users.codes(new.user_ids.values)[new.users]
        rows = np.flatnonzero(users >= 0)
        kept, items = np.unique(new.items[rows], return_inverse=True)
        ids = Ids(np.concatenate([self.item_ids_, new.item_ids.values[kept]]), self._items.name)
        given = users[rows], self.n_items_ + items, new.values[rows], new.weights[rows]
        block = self._with_new_rows(*given, len(ids))
        codes = self._fitted_item_codes(block, len(kept), n_rounds)
        vars(self).update(self._with_codes(codes), _items=ids, item_ids_=ids.values)
        self.n_items_, self._seen = len(ids), (block.indptr, block.items)
        return self

    def _rows_of_new_items(self: Any, X, y, sample_weight):
        """Return the rows, encoded, after a check that the model can take them."""
        if y is None and self.targets == "ratings":
            raise ValueError('targets="ratings" needs y; pass the ratings of the new items.')
        X, y = self._checked(X, y)
        if sample_weight is not None:
            sample_weight = check_sample_weight(sample_weight, X)
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

    def _with_new_rows(self: Any, users, items, values, weights, n_items):
        """Return all users' rows, each user a client; of the old ones only the items matter."""
        seen_indptr, seen_items = self._seen
        numbers, n_seen = np.arange(self.n_users_), len(seen_items)
        owners = np.concatenate([np.repeat(numbers, np.diff(seen_indptr)), users])
        order = np.argsort(owners, kind="stable")
        lengths = np.bincount(owners, minlength=self.n_users_)
        return Block(
            clients=numbers,
            users=numbers,
            client_indptr=np.arange(self.n_users_ + 1),
            indptr=np.concatenate([[0], np.cumsum(lengths)]),
            items=np.concatenate([seen_items, items])[order].astype(np.int32),
            values=np.concatenate([np.full(n_seen, self.rating_scale_[1]), values])[order],
            weights=np.concatenate([np.ones(n_seen), weights])[order],
            n_items=n_items,
        )

    def _fitted_item_codes(self: Any, block, n_new, n_rounds):
        """Return all items' codes after rounds in which only the last n_new may change."""
        model = copy.copy(self)
        model.balance_item, n_old = 0.0, block.n_items - n_new
        index = np.arange(n_old, block.n_items)
        fresh = random_codes(Key(0), "item codes", index, 1, self.n_bits)[:, 0]
        mean = np.zeros(self.n_bits)
        if "mean_user" in self._final_message:
            mean = self._final_message["mean_user"].values
        codes = np.concatenate([self.item_codes_, fresh])
        scale = self.rating_scale_
        server = {"item_codes": codes, "rating_scale": scale, "mean_user": mean, "total": 0}
        everyone = np.ones(block.n_clients, dtype=bool)
        turn = RoundMasks(everyone, everyone, False)
        for t in range(n_rounds):
            key = Key(0, t)
            message = Message(**model._initial_broadcast(server), **model._model(server))
            message = model._decode_broadcast(message, key)
            state = {"rows": model._targets(block, message), "codes": self.user_codes_}
            updates, _ = model._step(block, state, message, turn, Keys(key, key), moves=False)
            assert updates is not None
            fields = ((name, getattr(one, "values", one)) for name, one in updates.fields.items())
            upload = {name: Total(one, block.n_clients) for name, one in fields}
            stepped = model._aggregate(server, message, upload, key)
            codes = stepped["item_codes"]
            codes[:n_old] = server["item_codes"][:n_old]
            # Sampled negatives are redrawn in every round.
            ended = self.aggregation == "full" and np.array_equal(codes, server["item_codes"])
            server = stepped
            if ended:
                break
        return server["item_codes"]
