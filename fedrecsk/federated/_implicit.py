"""What methods for weighted matrix factorisation share: preferences, users, messages down."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import ClassVar

import numpy as np
from sklearn.utils._param_validation import Interval

from fedrecsk import _kernels
from fedrecsk.base import RankingMixin
from fedrecsk.federated._item_rows import empty_uploads, layout_of
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.simulation.messages import Dense, Derived, Message, Rows, Uploads
from fedrecsk.uploads import Form


@dataclass(eq=False, repr=False)
class ImplicitMF(RankingMixin, FederatedRecommender):
    """Base class of methods whose clients solve exactly for vectors of weighted preferences."""

    n_factors: int = 20
    _: KW_ONLY
    alpha: float = 1.0
    reg_user: float = 30.0
    reg_item: float = 10.0
    init_std: float = 0.03

    _parameter_constraints: ClassVar[dict] = FederatedRecommender._parameter_constraints | {
        "n_factors": [Interval(Integral, 1, None, closed="left")],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "reg_user": [Interval(Real, 0, None, closed="neither")],
        "reg_item": [Interval(Real, 0, None, closed="left")],
        "init_std": [Interval(Real, 0, None, closed="neither")],
    }

    _single_uploads = True
    _dtype = np.float32

    @property
    @abstractmethod
    def _sends_all(self):
        """Whether rows of all items are sent, instead of those that the client holds."""

    # --------------------------------------------------------------- before the rounds

    def _init_server(self, catalogue, key):
        shape = (catalogue.n_items, self.n_factors)
        items = self.init_std * key.generator("item factors").standard_normal(shape)
        return {
            "item_factors": items.astype(self._dtype),
            "n_clients": catalogue.n_clients,
            "reg_item": self.reg_item / catalogue.n_clients,
        }

    def _setup_forms(self, n_items, step):
        if self._sends_all:
            return {"held_items": Form((n_items,), dtype="uint8", learned=False)}
        # An int32 for each held item: its number.
        return {"held_items": Form((n_items,), "held", dtype="int32", learned=False)}

    def _setup_update(self, block, message, step, key):
        return Uploads(held_items=np.bincount(block.row_items, minlength=block.n_items))

    # ---------------------------------------------------------------------- each round

    def _model(self, server):
        items = server["item_factors"]
        if self._sends_all:
            return Message(item_factors=Dense(items))
        return Message(item_factors=Rows(items), gram=Dense(self._gram(items), compressible=False))

    def _on_receipt(self, message, key):
        if "gram" in message:
            return message
        return Message(**message, gram=Derived(self._gram(message["item_factors"].values)))

    def _init_clients(self, block, message, key):
        users = np.zeros((block.n_users, self.n_factors), dtype=self._dtype)
        return self._preferences(block) | {"users": users}

    # ------------------------------------------------------------------------- the end

    def _final_model(self, server):
        # To recommend, a client needs the items that it does not hold.
        return Message(item_factors=Dense(server["item_factors"]))

    def _personalize(self, block, state, message, key):
        state = state or self._init_clients(block, message, key)
        users = np.empty_like(state["users"])
        _kernels.wmf.fit_users(
            block.indptr,
            block.items,
            self._feedback(state),
            self._received(message),
            float(self.reg_user),
            _kernels.wmf.workspace(self._layout(block), users),
            users,
        )
        return {"users": users}

    def _server_attributes(self, message):
        return {"item_factors_": message["item_factors"].values}

    def _user_attributes(self, block, state):
        return {"user_factors_": state["users"]}

    # ------------------------------------------------------------------- on the clients

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
        # Where clients diverge, the server says so in the next round.
        with np.errstate(over="ignore", invalid="ignore"):
            return (items.T @ items).astype(self._dtype)

    def _received(self, message):
        """The item vectors, of which a client reads its own, and the sum of all q q'."""
        return _kernels.wmf.Broadcast(
            message["item_factors"].values.astype(self._dtype, copy=False),
            message["gram"].values.astype(self._dtype, copy=False),
        )

    _layout = staticmethod(layout_of)

    @staticmethod
    def _feedback(state):
        return _kernels.wmf.Feedback(state["extra"], state["pull"])

    def _gradients(self, block, state, message, turn, *, full):
        """Fit the active clients' users and make half their gradients in the items.

        Returns
        -------
        out : what the clients send: rows of own items and, if `full`, P'P for all the others
        loss : tuple of float
        """
        layout, users = self._layout(block), state["users"]
        out = self._empty_uploads(block, turn)
        loss = _kernels.wmf.item_gradients(
            layout,
            self._feedback(state),
            turn.active,
            self._received(message),
            _kernels.wmf.Problem(float(self.reg_user), 0.0, 0.0, full),
            _kernels.wmf.workspace(layout, users),
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

    # ------------------------------------------------------------ checks, early stopping

    def _check_setting(self, federation, data, blocks):
        if not (data.values > 0).any():
            raise ValueError(
                "No row of X has y > 0, so nobody likes anything. Pass y=None to count every row, "
                "or shift y so that what is liked is above 0."
            )

    def _validation_losses(self, held_out):
        """The objective on what a client did not train on.

        Held-out rows count with their confidence; the items that the user has no row of are
        preferences 0 with confidence 1, shared out over its held-out rows.
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
