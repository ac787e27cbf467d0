"""Weighted matrix factorisation: what LocALS, LocSGD, GlobSGD, FCF and FedSpectral share."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import ClassVar, Literal

import numpy as np

from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.sklearn_compat import Interval, StrOptions
from fedrecsk.base import RankingMixin, check_likes
from fedrecsk.base._fading import FadingHistory
from fedrecsk.base._item_weights import fades_of
from fedrecsk.federated._features import FederatedContent
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.portable import Ridge
from fedrecsk.protocol.messages import Dense, Derived, Message, Rows
from fedrecsk.updates import FieldSpec, SparseRows, Updates

wmf_kernels: LazyModule = LazyModule("fedrecsk.federated._wmf_kernels")

# Directions in which clients contribute less than this share of the largest do not change.
RESOLUTION = 1e-6


class WMFUsers(FadingHistory):
    """The clients' half: users, given the server's items.

    A method has the parameters `n_factors`, `alpha` and `reg_user`; its message has
    `item_factors`, and `gram` where not all of them are sent.
    """

    _dtype = np.float32
    _user_width = "n_factors"
    # A parameter of LocALS and FCF.
    reg_exponent = 0.0

    def _decode_broadcast(self, message, key):
        if "gram" in message or "item_factors" not in message:
            return message
        return Message(**message, gram=Derived(self._gram(message["item_factors"].values)))

    def _init_clients(self, block, message, key):
        state = self._preferences(block)
        state["penalties"] = self._user_penalties(block, state["extra"])
        return state | {"users": np.zeros((block.n_users, self.n_factors), dtype=self._dtype)}

    def _personalize(self, block, state, message, turn, key):
        # Users start afresh: only their own data count.
        part = block.part(turn.active)
        state = self._faded(part, self._preferences(part))
        state["penalties"] = self._user_penalties(part, state["extra"])
        state["users"] = np.empty((part.n_users, self.n_factors), dtype=self._dtype)
        self._fit_users(part, state, np.ones(part.n_clients, dtype=bool), *self._received(message))
        return {"users": block.spread(state["users"], turn.active)}

    def _fit_users(self, block, state, active, items, gram, chosen=None, n_steps=None):
        """Fit the active clients' users to items; return loss and weight over all their pairs."""
        chosen, users = block.items if chosen is None else chosen, state["users"]
        ratings = wmf_kernels.Ratings(chosen, state["extra"], state["pull"])
        grams, work = gram.reshape(-1, *gram.shape[-2:]), wmf_kernels.workspace(block, users)
        given = block.client_indptr, block.indptr, active, ratings, items, grams
        loss, weight = wmf_kernels.fit_users(*given, state["penalties"], n_steps, work, users)
        n_users = np.diff(block.client_indptr)[active].sum()
        return loss, weight + n_users * block.n_items

    def _server_attributes(self, message):
        return {"item_factors_": message["item_factors"].values}

    def _public_half(self):
        items = self.item_factors_.astype(float)
        return Ridge.of(
            self.item_factors_,
            items.T @ items,
            reg=float(self.reg_user),
            reg_exponent=float(self.reg_exponent),
            n_items=len(items),
            rates=False,
            confidence=float(self.alpha),
        )

    def _scores_of_unknown_users(self):
        # Popular items have long vectors, and much in common: this ranks like popularity.
        scores = self.item_factors_ @ self.item_factors_.mean(axis=0)
        return scores / max(scores.max(), np.finfo(scores.dtype).tiny)

    def _user_attributes(self, block, state):
        return {"user_factors_": state["users"]}

    def _preferences(self, block):
        """Return c - 1 and c r of each rating."""
        positive = block.values > 0
        extra = np.where(positive, self.alpha * block.weights, 0.0)
        return {
            "extra": extra.astype(self._dtype),
            "pull": np.where(positive, 1 + extra, 0.0).astype(self._dtype),
        }

    def _user_penalties(self, block, extra):
        """Return reg_user times the mean confidence of each user's pairs, to reg_exponent."""
        users = np.repeat(np.arange(block.n_users), np.diff(block.indptr))
        confidence = 1 + np.bincount(users, extra, block.n_users) / block.n_items
        return (self.reg_user * confidence**self.reg_exponent).astype(self._dtype)

    def _faded(self, block, preferences):
        """Return c - 1 and c r of rows that have faded; those of 0 are as if there were none."""
        if not self._fades or block.times is None:
            return preferences
        fades = fades_of(block, self.history_half_life)
        return {name: (one * fades).astype(self._dtype) for name, one in preferences.items()}

    def _gram(self, items):
        items = items.astype(np.float64)
        # If clients diverge, the server raises an error in the next round.
        with np.errstate(over="ignore", invalid="ignore"):
            return (items.T @ items).astype(self._dtype)

    def _received(self, message):
        """Return the item vectors (a client reads only its own) and the sum of all q q'."""
        names = "item_factors", "gram"
        return tuple(message[name].values.astype(self._dtype, copy=False) for name in names)

    def _validation_losses(self, held_out):
        """Return the objective on held-out rows, which share the items without a row."""
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


@dataclass(eq=False, repr=False)
class ImplicitMF(FederatedContent, WMFUsers, RankingMixin, FederatedRecommender):
    """Base class of methods that train item vectors; they have the parameter `upload`."""

    n_factors: int = 20
    _: KW_ONLY
    alpha: float = 1.0
    reg_user: float = 30.0
    reg_item: float = 10.0

    INIT_STD = 0.03

    _parameter_constraints: ClassVar[dict] = (
        FederatedRecommender._parameter_constraints
        | FadingHistory._fading_constraints
        | FederatedContent._content_constraints
        | {
            "n_factors": [Interval(Integral, 1, None, closed="left")],
            "alpha": [Interval(Real, 0, None, closed="left")],
            "reg_user": [Interval(Real, 0, None, closed="neither")],
            "reg_item": [Interval(Real, 0, None, closed="left")],
        }
    )

    # A parameter of FederatedWMF.
    aggregation: ClassVar[str] = "full"

    _single_uploads = True

    _carried = ("item_factors",)
    _predicted_fields = ("item_factors",)

    def _setup_specs(self, n_items):
        if self.upload == "all":
            return {"held_items": FieldSpec((n_items,), dtype="uint8", learned=False)}
        # An int32 for each held item: its index.
        return {"held_items": FieldSpec((n_items,), "held", dtype="int32", learned=False)}

    def _setup_update(self, block, message, key):
        held = np.bincount(block.row_items, minlength=block.n_items)
        return Updates({"held_items": held})

    def _begin(self, catalogue, sums, key):
        shape = (catalogue.n_items, self.n_factors)
        items = self.INIT_STD * key.generator("item factors").standard_normal(shape)
        server = {
            "item_factors": items.astype(self._dtype),
            "n_clients": catalogue.n_clients,
            "reg_item": self.reg_item / catalogue.n_clients,
        }
        if sums is None:
            # Nobody knows which items are held.
            return server | {"content": self._item_prior(np.ones(catalogue.n_items))}
        held = sums["held_items"]
        return server | {"content": self._item_prior(held.sum), "held_share": held.mean[:, None]}

    def _item_penalties(self, server):
        """Return each client's share of the items' penalties, (n_items, 1) if they differ."""
        if not self.reg_exponent:
            return server["reg_item"]
        confidence = 1 + self.alpha * np.maximum(server["held_share"], 0)
        return server["reg_item"] * confidence**self.reg_exponent

    def _model(self, server):
        items = server["item_factors"]
        if self.upload == "all":
            return Message(item_factors=Dense(items))
        return Message(item_factors=Rows(items), gram=Dense(self._gram(items), compressible=False))

    def _upload_specs(self, n_items):
        d, rows = self.n_factors, "all" if self.upload == "all" else "held"
        specs = {"rows": FieldSpec((n_items, d), rows)}
        if self.aggregation == "full":
            specs["others"] = FieldSpec((d, d), compressible=False)
        if self.aggregation == "holders":
            specs["n_holders"] = FieldSpec((n_items,), rows, dtype="uint8", learned=False)
        return specs

    def _gradients(self, block, state, message, turn):
        """Fit the active clients' users; return half their gradients in the items, and the loss."""
        items, gram = self._received(message)
        users, out = state["users"], wmf_kernels.uploads(block, turn, state["users"])
        loss = self._fit_users(block, state, turn.active, items, gram)
        ratings = wmf_kernels.Ratings(block.rows, state["extra"], state["pull"])
        work, full = wmf_kernels.workspace(block, users), self.aggregation == "full"
        wmf_kernels.item_gradients(
            block.layout, ratings, turn.active, items, full, work, users, out
        )
        return out, loss

    def _uploads(self, block, turn, out):
        """Return rows, and matrices or numbers of holders if they are sent."""
        if turn.separate:
            indptr, items, _ = block.own_rows(turn.active)
            idle = self._upload_centers({}).get("others")
            squares = out.squares if idle is None else out.squares - idle
            fields = {
                "rows": SparseRows(indptr, items, out.rows),
                "others": SparseRows.stacked(squares, center=idle),
                "n_holders": SparseRows(indptr, items, np.ones(len(items), dtype=np.uint8)),
            }
        else:
            fields = {"rows": out.rows, "others": out.squares[0]}
            if self.aggregation == "holders":
                sends = np.repeat(out.senders & out.is_finite, block.row_counts)
                held = np.bincount(block.row_items[sends], minlength=block.n_items)
                fields["n_holders"] = held
        sent = self._upload_specs(block.n_items)
        fields = {name: one for name, one in fields.items() if name in sent}
        return Updates(fields, is_finite=out.is_finite)

    def _mean_rows(self, upload):
        """Return each row's mean over the clients, or over its holders (zero without any)."""
        if self.aggregation != "holders":
            return upload["rows"].mean
        return upload["rows"].sum / np.maximum(upload["n_holders"].sum, 1)[:, None]

    def _mean_gradient(self, items, upload):
        """Return the mean of the uploads of :meth:`_gradients`, without penalties."""
        if self.aggregation != "full":
            return self._mean_rows(upload)
        return upload["rows"].mean + items @ upload["others"].mean

    def _upload_of_one(self, vector, items, message):
        """Return what a one-user client with this vector sends for own items of weight 1."""
        scores = items @ vector
        multiples = (1 + self.alpha) * (scores - 1)
        if "others" not in self._upload_specs(1):
            return {"rows": np.outer(multiples, vector)}
        others = np.outer(vector, vector)
        return {"rows": np.outer(multiples - scores, vector), "others": others}

    def _final_model(self, server):
        # To recommend, a client needs the items that it does not hold.
        items, content = server["item_factors"], server["content"]
        return Message(item_factors=Dense(items if content is None else content.filled(items)))

    def _check_setting(self, federation, data, blocks):
        check_likes(data)


@dataclass(eq=False, repr=False)
class FederatedWMF(ImplicitMF):
    """Base class of LocALS, LocSGD and GlobSGD."""

    _: KW_ONLY
    aggregation: Literal["full", "clients", "holders"] = "full"
    upload: Literal["local", "all"] = "local"

    _parameter_constraints: ClassVar[dict] = ImplicitMF._parameter_constraints | {
        "aggregation": [StrOptions({"full", "clients", "holders"})],
        "upload": [StrOptions({"local", "all"})],
    }

    _no_local_dp = (
        "which rows a client requests and sends reveals the items it holds, and noise cannot hide "
        "that. Use RFRec under local differential privacy."
    )

    def _cautious(self, server, upload, lean=1.0):
        """Return the step of each item that keeps a preconditioned update from overshooting.

        If few clients take part, the mean is noisy; and many holders with a large alpha move an
        item up to 1 + alpha times as fast as expected, as far as they `lean` on the server's.
        """
        share = min(1.0, 2 * upload.n_clients / server["n_clients"])
        return share / (1 + lean * self.alpha * server["held_share"] / 2)

    def _factor_of_mean(self, view):
        """Return the factor of the adversary's rows that makes the server's mean equal to them."""
        if self.aggregation != "holders":
            return view.n_senders / view.n_own
        return view.n_expected("rows") / view.n_own

    def _others_of(self, view):
        """Return the mean of `others` over all clients, the adversary's own learning nothing."""
        return (1 - view.n_own / view.n_senders) * view.mean("others")

    def _share_of_step(self, view):
        """Return the share of a preconditioned step that the server takes on items of few."""
        return min(1.0, 2 * self._cohort_share(view.data.n_clients))


@dataclass(eq=False, repr=False)
class ClientItemsWMF(FederatedWMF):
    """Base class of LocALS and LocSGD: clients move the items, and the server averages."""

    _: KW_ONLY
    prox: float = 10.0
    local_epochs: int = 1

    _parameter_constraints: ClassVar[dict] = FederatedWMF._parameter_constraints | {
        "prox": [Interval(Real, 0, None, closed="left")],
        "local_epochs": [Interval(Integral, 1, None, closed="left")],
    }

    def _upload_centers(self, message):
        # The matrix of a client that does not change the items that it does not hold.
        return {"others": np.eye(self.n_factors)} if self.aggregation == "full" else {}

    def _initial_broadcast(self, server):
        # Penalties that differ are the server's.
        reg_item = 0.0 if self.reg_exponent else server["reg_item"]
        return Message(reg_item=Dense(np.array([reg_item])))

    def _init_clients(self, block, message, key):
        state = super()._init_clients(block, message, key)
        return state | {"reg_item": float(message["reg_item"].values[0])}

    def _problem(self, state):
        full = self.aggregation == "full"
        return wmf_kernels.Problem(state["reg_item"], float(self.prox), full)

    def _own_grams(self, block, active, message, versions, follows):
        """Return the sum of q q' over all items as each active client has them after an epoch."""
        (items, gram), grams = self._received(message), np.zeros_like(follows)
        for c in np.flatnonzero(active):
            rows = slice(*block.row_indptr[c : c + 2])
            before, after = items[block.row_items[rows]], versions[rows]
            others = gram - before.T @ before
            if self.aggregation == "full":
                others = follows[c] @ others @ follows[c].T
            grams[c] = others + after.T @ after
        return grams

    def _aggregate(self, server, upload, key):
        if upload is None:
            return server
        items = server["item_factors"].astype(np.float64)
        full = self.aggregation == "full"
        others = upload["others"].mean if full else np.eye(self.n_factors)
        change, penalty = self._mean_rows(upload) + items @ others.T - items, 0.0
        content, pull = server["content"], 0.0
        if self.prox:
            pull = self._item_penalties(server) / self.prox
        if self.reg_exponent:
            penalty = pull
        change = change - penalty * items
        if content is not None and self.prox:
            # Penalties pull items with few holders to what features say instead of 0.
            means = pull * content.lost(items)
            change = change + (means if self.reg_exponent else means @ others.T)
        if full:
            # Undo how little prox lets each client move.
            change = divide(change, np.eye(self.n_factors) - others.T, penalty)
            change = change * self._cautious(server, upload, np.trace(others) / self.n_factors)
        else:
            change = change / (1 + penalty)
        return server | {"item_factors": (items + change).astype(self._dtype)}

    def _upload_moving(self, view, rows, moves):
        if self.aggregation == "full":
            # The server also moves every item by its vector times mean A - I.
            moves = moves / self._share_of_step(view) + view.item_vectors[rows]
            moves = moves @ -self._others_of(view).T
        return {"rows": self._factor_of_mean(view) * moves}


def divide(change, matrix, shift=0.0):
    """Return change (matrix + shift I)^-1 without the directions that the matrix does not resolve.

    A shift of shape (n_rows, 1) has its own number for each row; the matrix is then symmetric.
    """
    if not np.any(shift):
        return change @ np.linalg.pinv(matrix, rcond=RESOLUTION)
    sizes, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    kept = sizes > RESOLUTION * sizes.max()
    return (change @ vectors[:, kept] / (sizes[kept] + shift)) @ vectors[:, kept].T
