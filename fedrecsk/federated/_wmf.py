"""What LocALS, LocSGD and GlobSGD share: preferences, users, and what crosses the wire."""

from __future__ import annotations

from numbers import Integral, Real

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from fedrecsk import _kernels
from fedrecsk.base import RankingMixin
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.simulation.messages import Dense, Message, Rows

# Directions in which clients say less than this share of the most are left alone.
RESOLUTION = 1e-6


class FederatedWMF(RankingMixin, FederatedRecommender):
    """Base class of the federated methods for weighted matrix factorisation."""

    _parameter_constraints: dict = FederatedRecommender._parameter_constraints | {
        "n_factors": [Interval(Integral, 1, None, closed="left")],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "reg_user": [Interval(Real, 0, None, closed="neither")],
        "reg_item": [Interval(Real, 0, None, closed="left")],
        "aggregation": [StrOptions({"full", "all", "holders"})],
        "preconditioner": ["boolean", StrOptions({"auto"})],
        "download": [StrOptions({"own", "all"})],
        "init_std": [Interval(Real, 0, None, closed="neither")],
    }

    _dtype = np.float32

    # ------------------------------------------------------------------ the common hooks

    def _enrol(self, block):
        held = np.bincount(block.row_items, minlength=block.n_items)
        if self.download == "all":
            return Message(held_items=Dense(held, dtype="uint8"))
        return Message(held_items=Rows(held, dtype="int32"))

    def _init_server(self, catalogue, enrolment, key):
        shape = (catalogue.n_items, self.n_factors)
        items = self.init_std * key.generator("item factors").standard_normal(shape)
        return {
            "item_factors": items.astype(self._dtype),
            "n_clients": catalogue.n_clients,
            "reg_item": self.reg_item / catalogue.n_clients,
            "held_share": enrolment["held_items"].mean[:, None],
        }

    def _announce(self, server):
        return Message(reg_item=Dense(np.array([server["reg_item"]])))

    def _model(self, server):
        items = server["item_factors"]
        if self.download == "all":
            return Message(item_factors=Dense(items))
        return Message(item_factors=Rows(items), gram=Dense(self._gram(items), compressible=False))

    def _init_clients(self, block, message, key):
        state = self._preferences(block)
        state["users"] = np.zeros((block.n_users, self.n_factors), dtype=self._dtype)
        if "reg_item" in message:
            state["reg_item"] = float(message["reg_item"].values[0])
        return state

    def _personalize(self, block, state, message, key):
        state = dict(state or self._init_clients(block, message, key))
        items, gram = self._received(message)
        state["users"] = np.empty_like(state["users"])
        _kernels.wmf.fit_users(
            block.indptr,
            block.items,
            state["extra"],
            state["pull"],
            items,
            gram,
            float(self.reg_user),
            state["users"],
        )
        return state

    def _attributes(self, server, states):
        return {
            "user_factors_": states.by_user("users"),
            "item_factors_": server["item_factors"],
        }

    # ------------------------------------------------------------------- on the clients

    def _preferences(self, block):
        """Confidence and preference of each rating, as the kernels take them."""
        positive = block.values > 0
        extra = np.where(positive, self.alpha * block.weights, 0.0)
        return {
            "extra": extra.astype(self._dtype),
            "pull": np.where(positive, 1 + extra, 0.0).astype(self._dtype),
        }

    def _received(self, message):
        """The item vectors, of which a client reads its own, and the sum of all q q'."""
        items = message["item_factors"].values
        return items, message["gram"].values if "gram" in message else self._gram(items)

    def _gram(self, items):
        items = items.astype(np.float64)
        # Where clients diverge, the transport says so in the next round.
        with np.errstate(over="ignore", invalid="ignore"):
            return (items.T @ items).astype(self._dtype)

    @staticmethod
    def _layout(block):
        return block.client_indptr, block.indptr, block.row_indptr, block.rows, block.row_items

    def _empty_sums(self, block):
        """Where the kernels add up rows by item, matrices, and holders of each item."""
        d = self.n_factors
        return tuple(
            np.zeros(shape, dtype=self._dtype)
            for shape in ((block.n_items, d), (d, d), (block.n_items,))
        )

    def _upload(self, sums, sound):
        """Rows for own items; a matrix in the full form; the holders to divide by, if asked."""
        rows, square, n_holders = sums
        kind = Dense if self.download == "all" else Rows
        fields = {"rows": kind(rows)}
        if self.aggregation == "full":
            fields["others"] = Dense(square, center=self._idle_matrix, compressible=False)
        if self.aggregation == "holders":
            fields["n_holders"] = kind(n_holders, dtype="uint8")
        return Message(sound=sound, **fields)

    @property
    def _idle_matrix(self):
        """The matrix of a client that leaves the items it does not hold as they are."""
        return np.eye(self.n_factors)

    def _loss(self, block, loss, mass):
        """Loss and weight of a round's active clients, over all pairs of user and item."""
        n_users = np.diff(block.client_indptr)[block.active].sum()
        return np.array([loss, mass + n_users * block.n_items])

    # -------------------------------------------------------------------- on the server

    def _mean_items(self, server, upload):
        """The step that averages the clients' item vectors."""
        items = server["item_factors"].astype(np.float64)
        match self.aggregation:
            case "holders":
                change = self._mean_over_holders(upload)
            case "all":
                change = upload["rows"].mean
            case "full":
                others = upload["others"].mean
                change = upload["rows"].mean + items @ others.T - items
                if self._preconditions:
                    change = divide(change, np.eye(self.n_factors) - others.T)
        rate = self.server_learning_rate
        if rate == "auto" and self._preconditions:
            rate = self._cautious(server, upload, np.trace(others) / self.n_factors)
        elif rate == "auto":
            rate = 1.0
        return server | {"item_factors": (items + rate * change).astype(self._dtype)}

    @staticmethod
    def _mean_over_holders(upload):
        """Mean of the rows over those who sent them; zero where nobody did."""
        return upload["rows"].sum / np.maximum(upload["n_holders"].sum, 1)[:, None]

    def _cautious(self, server, upload, lean=1.0):
        """Step of each item that keeps a preconditioned update from overshooting.

        Where few clients are heard, the mean is noisy. Where many hold an item with a large
        alpha, clients move it up to 1 + alpha times as fast as the preconditioner, which
        knows no single item, expects; `lean` says how far their answers depend on the
        server's items at all.
        """
        heard = min(1.0, 2 * upload.n_clients / server["n_clients"])
        return heard / (1 + lean * self.alpha * server["held_share"] / 2)

    @property
    def _preconditions(self):
        if self.preconditioner == "auto":
            return self.aggregation == "full"
        return self.preconditioner

    # ------------------------------------------------------------ checks, early stopping

    def _check_before_fit(self):
        super()._check_before_fit()
        if self._world().local_dp is not None:
            raise ValueError(
                f"{type(self).__name__} has no local_dp: which rows a client asks for and sends "
                "reveals the items it holds, and noise cannot hide that. Use RFRec under local "
                "differential privacy."
            )
        if self._world().secure_aggregation is not None and self.download == "own":
            raise ValueError(
                f"Under secure_aggregation {type(self).__name__} must send whole matrices, because "
                'rows of some items only do not add up encrypted; set download="all".'
            )
        if self.preconditioner is True and self.aggregation != "full":
            raise ValueError(
                f'preconditioner=True needs the matrices that aggregation="full" uploads, but '
                f"aggregation={self.aggregation!r}; change one of them."
            )

    def _check_world(self, federation, data, blocks):
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
        rated = self._preferences(held_out)
        confidence = 1.0 + rated["extra"]
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


def divide(change, matrix):
    """change matrix^-1, leaving alone the directions that the matrix does not resolve."""
    return change @ np.linalg.pinv(matrix, rcond=RESOLUTION)
