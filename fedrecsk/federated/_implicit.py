"""What methods for weighted matrix factorisation share: preferences, users, downloads."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import ClassVar

import numpy as np

from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.base import RankingMixin, check_likes
from fedrecsk.federated._item_rows import empty_uploads
from fedrecsk.federated._wmf_users import WMFUsers
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol.messages import Dense, Message, Rows
from fedrecsk.updates import ClientUpdates, FieldSpec

wmf_kernels: LazyModule = LazyModule("fedrecsk.federated._wmf_kernels")


@dataclass(eq=False, repr=False)
class ImplicitMF(WMFUsers, RankingMixin, FederatedRecommender):
    """Base class of methods whose clients solve exactly for vectors of weighted preferences."""

    n_factors: int = 20
    _: KW_ONLY
    alpha: float = 1.0
    reg_user: float = 30.0
    reg_item: float = 10.0

    INIT_STD = 0.03

    _parameter_constraints: ClassVar[dict] = FederatedRecommender._parameter_constraints | {
        "n_factors": [Interval(Integral, 1, None, closed="left")],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "reg_user": [Interval(Real, 0, None, closed="neither")],
        "reg_item": [Interval(Real, 0, None, closed="left")],
    }

    _single_uploads = True

    @property
    @abstractmethod
    def _sends_all(self):
        """Whether rows of all items are sent, instead of those that the client holds."""

    # --------------------------------------------------------------- before the rounds

    def _init_server(self, catalogue, key):
        shape = (catalogue.n_items, self.n_factors)
        items = self.INIT_STD * key.generator("item factors").standard_normal(shape)
        return {
            "item_factors": items.astype(self._dtype),
            "n_clients": catalogue.n_clients,
            "reg_item": self.reg_item / catalogue.n_clients,
        }

    def _setup_specs(self, n_items, step):
        if self._sends_all:
            return {"held_items": FieldSpec((n_items,), dtype="uint8", learned=False)}
        # An int32 for each held item: its index.
        return {"held_items": FieldSpec((n_items,), "held", dtype="int32", learned=False)}

    def _setup_update(self, block, message, step, key):
        held = np.bincount(block.row_items, minlength=block.n_items)
        return ClientUpdates({"held_items": held})

    # ---------------------------------------------------------------------- each round

    def _model(self, server):
        items = server["item_factors"]
        if self._sends_all:
            return Message(item_factors=Dense(items))
        return Message(item_factors=Rows(items), gram=Dense(self._gram(items), compressible=False))

    # ------------------------------------------------------------------------- the end

    def _final_model(self, server):
        # To recommend, a client needs the items that it does not hold.
        return Message(item_factors=Dense(server["item_factors"]))

    # ------------------------------------------------------------------- on the clients

    def _gradients(self, block, state, message, turn, *, full):
        """Fit the active clients' users and make half their gradients in the items.

        Returns
        -------
        out : what the clients send: rows of own items and, if `full`, P'P for all the others
        loss : tuple of float
        """
        layout, users = self._layout(block), state["users"]
        out = self._empty_uploads(block, turn)
        loss = wmf_kernels.item_gradients(
            layout,
            self._feedback(state),
            turn.active,
            self._received(message),
            wmf_kernels.Problem(float(self.reg_user), 0.0, 0.0, full),
            wmf_kernels.workspace(layout, users),
            users,
            out,
        )
        return out, self._loss(block, turn, *loss)

    def _empty_uploads(self, block, turn):
        """Where the kernels write: sums by item, or rows and a matrix of each client."""
        return empty_uploads(block, turn, self.n_factors, self._dtype)

    def _loss(self, block, turn, loss, mass):
        """Loss and weight of a round's active clients, over all pairs of user and item."""
        n_users = np.diff(block.client_indptr)[turn.active].sum()
        return loss, mass + n_users * block.n_items

    # ------------------------------------------------------------------------------ checks

    def _check_setting(self, federation, data, blocks):
        check_likes(data)
