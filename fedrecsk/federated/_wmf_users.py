"""What methods share if their clients fit users to items exactly, with confidences."""

from __future__ import annotations

import numpy as np

from fedrecsk._utils.kernels import LazyModule
from fedrecsk.federated._item_rows import layout_of
from fedrecsk.protocol.messages import Derived, Message

wmf_kernels: LazyModule = LazyModule("fedrecsk.federated._wmf_kernels")


class WMFUsers:
    """The clients' half of weighted matrix factorisation: users, given the server's items.

    A method has the parameters `n_factors`, `alpha` and `reg_user`; its message has
    `item_factors`, and `gram` where not all of them are sent.
    """

    _dtype = np.float32
    _user_width = "n_factors"

    def _decode_broadcast(self, message, key):
        if "gram" in message or "item_factors" not in message:
            return message
        return Message(**message, gram=Derived(self._gram(message["item_factors"].values)))

    def _init_clients(self, block, message, key):
        users = np.zeros((block.n_users, self.n_factors), dtype=self._dtype)
        return self._preferences(block) | {"users": users}

    # ------------------------------------------------------------------------- the end

    def _personalize(self, block, state, message, turn, key):
        # Users start afresh: only their own data count.
        part = block.part(turn.active)
        users = np.empty((part.n_users, self.n_factors), dtype=self._dtype)
        wmf_kernels.fit_users(
            part.indptr,
            part.items,
            self._feedback(self._preferences(part)),
            self._received(message),
            float(self.reg_user),
            wmf_kernels.workspace(self._layout(part), users),
            users,
        )
        return {"users": block.spread(users, turn.active)}

    def _server_attributes(self, message):
        return {"item_factors_": message["item_factors"].values}

    def _user_attributes(self, block, state):
        return {"user_factors_": state["users"]}

    # ---------------------------------------------------------------- confidences, items

    def _preferences(self, block):
        """Confidence and preference of each rating, as the kernels take them."""
        positive = block.values > 0
        extra = np.where(positive, self.alpha * block.weights, 0.0)
        return {
            "extra": extra.astype(self._dtype),
            "pull": np.where(positive, 1 + extra, 0.0).astype(self._dtype),
        }

    def _gram(self, items):
        items = items.astype(np.float64)
        # If clients diverge, the server raises an error in the next round.
        with np.errstate(over="ignore", invalid="ignore"):
            return (items.T @ items).astype(self._dtype)

    def _received(self, message):
        """The item vectors (a client reads only its own) and the sum of all q q'."""
        return wmf_kernels.Broadcast(
            message["item_factors"].values.astype(self._dtype, copy=False),
            message["gram"].values.astype(self._dtype, copy=False),
        )

    _layout = staticmethod(layout_of)

    @staticmethod
    def _feedback(state):
        return wmf_kernels.Feedback(state["extra"], state["pull"])

    # -------------------------------------------------------------------- early stopping

    def _validation_losses(self, held_out):
        """The objective on held-out rows.

        Held-out rows count with their confidence; the items without a row of the user are
        preferences 0 with confidence 1, divided among its held-out rows.
        """
        confidence = 1.0 + self._preferences(held_out)["extra"]
        scores = self._score_pairs(held_out.users, held_out.items)
        users, n_users = held_out.users, held_out.n_users
        everything = np.einsum(
            "ud,de,ue->u", self.user_factors_, self._gram(self.item_factors_), self.user_factors_
        )
        seen_indptr, seen_items = self._seen
        seen_users = np.repeat(np.arange(n_users), np.diff(seen_indptr))
        seen = np.bincount(seen_users, self._score_pairs(seen_users, seen_items) ** 2, n_users)
        unseen = (everything - seen) / np.maximum(np.bincount(users, minlength=n_users), 1)
        return confidence * ((held_out.values > 0) - scores) ** 2 + unseen[users], confidence
