"""Weighted matrix factorisation: what LocALS, LocSGD, GlobSGD and FCF share."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from fedrecsk._utils.constraints import AtLeast1, NotNegative, Positive
from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.parameters import constant
from fedrecsk.base import RankingMixin, check_likes
from fedrecsk.base._fading import FadingHistory
from fedrecsk.base._item_prior import ItemContent, ItemFeatures, ItemPrior
from fedrecsk.base._item_weights import fades_of
from fedrecsk.federated._features import UserSums
from fedrecsk.federated._ratings import held_items, numbers_of_holders
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.models import Factors
from fedrecsk.portable import Ridge, short_histories
from fedrecsk.protocol.algorithm import Algorithm, C, S, Traits
from fedrecsk.protocol.messages import Dense, Derived, Form, Message, Rows
from fedrecsk.protocol.states import Kept, PerItem, PerUser
from fedrecsk.updates import FieldSpec, SparseRows, Updates

wmf_kernels: LazyModule = LazyModule("fedrecsk.federated._wmf_kernels")

# Directions in which clients contribute less than this share of the largest do not change.
RESOLUTION = 1e-6
Aggregation = Literal["full", "clients", "holders"]
HIDES_NOTHING = (
    "which rows a client requests and sends reveals the items it holds, and noise cannot hide "
    "that. Use RFRec under local differential privacy."
)


# ---------------------------------------------------------------------------------- users


@dataclass
class WMFClients:
    """Users of a block: their ratings as confidence and preference, and their vectors."""

    # By rating: c - 1 and c r.
    extra: np.ndarray
    pull: np.ndarray
    # What multiplies |p_u|^2.
    penalties: PerUser
    users: Kept[PerUser]
    # Each client's penalty on its own items.
    reg_item: float = 0.0
    # The ratings by item, and where each row's begin, for clients of several users.
    raters: np.ndarray | None = None
    starts: np.ndarray | None = None


@dataclass(eq=False, repr=False)
class UserParameters:
    """Parameters of methods that find users by weighted least squares."""

    n_factors: AtLeast1 = 20
    _: KW_ONLY
    alpha: NotNegative = 1.0
    reg_user: Positive = 30.0
    # A parameter of LocALS and FCF.
    reg_exponent: float = constant(0.0)
    # Positives from which on a user's penalty grows; None: as many as there are items, as in iALS.
    REG_PIVOT: int | None = constant(None)


@dataclass(kw_only=True, eq=False)
class UserAlgorithm(UserParameters, Algorithm[S, C]):
    """Clients find their users by weighted least squares, given the items."""

    history_half_life: float | Literal["auto"] | None
    dtype: type[np.floating] = np.float32

    def first_users(self, block) -> WMFClients:
        """Return users whose vectors are zero."""
        extra, pull = self.preferences(block)
        users = np.zeros((block.n_users, self.n_factors), dtype=self.dtype)
        return WMFClients(extra, pull, self.penalties(block, extra), users)

    def preferences(self, block):
        """Return c - 1 and c r of each rating."""
        positive = block.values > 0
        extra = np.where(positive, self.alpha * block.weights, 0.0)
        pull = np.where(positive, 1 + extra, 0.0)
        return extra.astype(self.dtype), pull.astype(self.dtype)

    def penalties(self, block, extra):
        """Return reg_user times what grows with each user's positives, to reg_exponent."""
        users = block.rating_users
        pivot = self.REG_PIVOT or block.n_items
        growth = 1 + np.bincount(users, extra, block.n_users) / pivot
        return (self.reg_user * growth**self.reg_exponent).astype(self.dtype)

    def fit_users(self, block, clients, active, items, gram, chosen=None, n_steps=None):
        """Fit the active clients' users to items; return loss and weight over all their pairs."""
        chosen, users = block.items if chosen is None else chosen, clients.users
        ratings = wmf_kernels.Ratings(chosen, clients.extra, clients.pull)
        grams, work = gram.reshape(-1, *gram.shape[-2:]), wmf_kernels.workspace(block, users)
        given = block.client_indptr, block.indptr, active, ratings, items, grams
        loss, weight = wmf_kernels.fit_users(*given, clients.penalties, n_steps, work, users)
        n_users = np.diff(block.client_indptr)[active].sum()
        return loss, weight + n_users * block.n_items

    def personalized(self, block, active, items, gram, known=None) -> WMFClients:
        """Fit the active clients' users afresh, with histories that have faded.

        Users with few likes lean on popular items, except those in the mask `known`.
        """
        # Only their own data count.
        part = block.part(active)
        clients = self.first_users(part)
        if self.history_half_life is not None and part.times is not None:
            # Rows of 0 are as if there were none.
            fades = fades_of(part, self.history_half_life)
            extra, pull = (
                (one * fades).astype(self.dtype) for one in (clients.extra, clients.pull)
            )
            clients = WMFClients(extra, pull, self.penalties(part, extra), clients.users)
        everyone, n = np.ones(part.n_clients, dtype=bool), n_likes(part)
        if known is not None:
            n = np.where(known[block.users_of(active)], np.inf, n)
        # Attackers may have sent anything.
        with np.errstate(over="ignore", invalid="ignore"):
            penalties, shares = short_histories(gram.astype(np.float64), n)
            clients.penalties += penalties.astype(self.dtype)
            self.fit_users(part, clients, everyone, items, gram)
            clients.users += (shares[:, None] * (clients.users @ gram)).astype(self.dtype)
        return replace(clients, users=block.spread(clients.users, active))

    def personalize(self, block, clients, message, turn, key):
        return self.personalized(block, turn.active, *self.received(message))

    def losses(self, model: Any, held_out, seen):
        """Return the objective on held-out rows, which share the items without a row."""
        confidence = 1.0 + self.preferences(held_out)[0]
        scores = model.score_pairs(held_out.users, held_out.items)
        users, n_users = held_out.users, held_out.n_users
        everything = np.einsum("ud,de,ue->u", model.users, self.gram_of(model.items), model.users)
        seen_indptr, seen_items = seen
        seen_users = np.repeat(np.arange(n_users), np.diff(seen_indptr))
        squares = model.score_pairs(seen_users, seen_items) ** 2
        others = everything - np.bincount(seen_users, squares, n_users)
        unseen = others / np.maximum(np.bincount(users, minlength=n_users), 1)
        return confidence * ((held_out.values > 0) - scores) ** 2 + unseen[users], confidence

    def received(self, message):
        """Return the item vectors (a client reads only its own) and the sum of all q q'."""
        names = "item_factors", "gram"
        return tuple(message[name].values.astype(self.dtype, copy=False) for name in names)

    def decode(self, message, key):
        """Return a message with the sum of q q', which clients compute if they get all items."""
        if "gram" in message or "item_factors" not in message:
            return message
        return Message(**message, gram=Derived(self.gram_of(message["item_factors"].values)))

    def gram_of(self, items):
        """Return the sum of q q' over all items."""
        items = items.astype(np.float64)
        # If clients diverge, the server raises an error in the next round.
        with np.errstate(over="ignore", invalid="ignore"):
            return (items.T @ items).astype(self.dtype)

    # ------------------------------------------------------------------------ the model

    def server_attributes(self, message):
        return {"item_factors_": message["item_factors"].values}

    def user_attributes(self, block, clients: Any):
        return {"user_factors_": clients.users}

    def model(self, fitted):
        factors = fitted["item_factors_"]

        def popular_directions():
            # Popular items have long vectors, and much in common: this ranks like popularity.
            scores = factors @ factors.mean(axis=0)
            return scores / max(scores.max(), np.finfo(scores.dtype).tiny)

        def rule():
            items = factors.astype(float)
            return Ridge.of(
                factors,
                items.T @ items,
                reg=float(self.reg_user),
                reg_exponent=float(self.reg_exponent),
                n_items=self.REG_PIVOT or len(items),
                rates=False,
                confidence=float(self.alpha),
                is_cautious=True,
            )

        return Factors.of(fitted, unknown=popular_directions, make_rule=rule)


def n_likes(block):
    """Return the total weight of each user's positives, however old."""
    users = block.rating_users
    return np.bincount(users, np.where(block.values > 0, block.weights, 0), block.n_users)


# ------------------------------------------------------------------------------ the algorithm


@dataclass(frozen=True)
class WMFServer:
    """What the server knows: the items, and which share of the clients holds each of them."""

    items: Kept[PerItem]
    n_clients: int
    # (n_items, 1), from the set-up; None without one.
    held_share: np.ndarray | None
    prior: ItemPrior | None
    # Sums over users with features, of LocALS.
    user_sums: UserSums | None = None

    def with_items(self, items) -> Self:
        """Return the state with other items, in their type."""
        return replace(self, items=items.astype(self.items.dtype))


@dataclass(eq=False, repr=False)
class ImplicitParameters(UserParameters):
    """Parameters of LocALS, LocSGD, GlobSGD and FCF."""

    _: KW_ONLY
    reg_item: NotNegative = 10.0
    upload: Literal["local", "all"] = "local"
    # A parameter of all but FCF.
    aggregation: Literal["full", "clients", "holders"] = constant("full")
    # Standard deviation of the first item vectors.
    INIT_STD: float = constant(0.03)


@dataclass(kw_only=True, eq=False)
class ImplicitAlgorithm(ImplicitParameters, UserAlgorithm[Any, WMFClients]):
    """The server's items and the clients' users of implicit feedback."""

    item_content: ItemFeatures

    @property
    def traits(self):
        refuses = {"local_dp": HIDES_NOTHING}
        return Traits(single_uploads=True, goes_on=True, takes_stale=True, refuses=refuses)

    def downloads(self, n_items):
        d = self.n_factors
        return {"item_factors": Form((n_items, d)), "gram": Form((d, d))}

    # --------------------------------------------------------------- before the rounds

    def setup_fields(self, n_items):
        if self.upload == "all":
            return {"held_items": FieldSpec((n_items,), dtype="uint8", learned=False)}
        return held_items(n_items)

    def answer(self, block, message, key):
        return Updates({"held_items": numbers_of_holders(block)})

    def begin(self, catalogue, sums, key):
        shape = (catalogue.n_items, self.n_factors)
        items = self.INIT_STD * key.generator("item factors").standard_normal(shape)
        items, n_clients = items.astype(self.dtype), catalogue.n_clients
        if sums is None:
            # Nobody knows which items are held.
            return WMFServer(items, n_clients, None, self.item_content.prior(np.ones(len(items))))
        held = sums["held_items"]
        return WMFServer(items, n_clients, held.mean[:, None], self.item_content.prior(held.sum))

    # ---------------------------------------------------------------------- each round

    def broadcast(self, server, key):
        items = server.items
        if self.upload == "all":
            return Message(item_factors=Dense(items))
        gram = Dense(self.gram_of(items), compressible=False)
        return Message(item_factors=Rows(items), gram=gram)

    def fields(self, n_items):
        d, rows = self.n_factors, "all" if self.upload == "all" else "held"
        specs = {"rows": FieldSpec((n_items, d), rows)}
        if self.aggregation == "full":
            specs["others"] = FieldSpec((d, d), compressible=False)
        if self.aggregation == "holders":
            specs["n_holders"] = FieldSpec((n_items,), rows, dtype="uint8", learned=False)
        return specs

    def enter(self, block, message, key):
        return self.first_users(block)

    def gradients(self, block, clients, message, turn):
        """Fit the active clients' users; return half their gradients in the items, and the loss."""
        items, gram = self.received(message)
        out = wmf_kernels.uploads(block, turn, clients.users)
        loss = self.fit_users(block, clients, turn.active, items, gram)
        ratings = wmf_kernels.Ratings(block.rows, clients.extra, clients.pull)
        work = wmf_kernels.workspace(block, clients.users)
        is_full = self.aggregation == "full"
        given = block.layout, ratings, turn.active, items, is_full, work, clients.users, out
        wmf_kernels.item_gradients(*given)
        return out, loss

    def sent(self, block, turn, out):
        """Return rows, and matrices or numbers of holders if they are sent, as Updates."""
        if turn.separate:
            indptr, items = block.own_rows(turn.active)
            idle = self.centers(Message()).get("others")
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
        specs = self.fields(block.n_items)
        fields = {name: one for name, one in fields.items() if name in specs}
        return Updates(fields, is_finite=out.is_finite)

    # ------------------------------------------------------------------------- the end

    def final(self, server):
        # To recommend, a client needs the items that it does not hold.
        items, prior = server.items, server.prior
        return Message(item_factors=Dense(items if prior is None else prior.filled(items)))

    # ------------------------------------------------------------------- on the server

    def mean_rows(self, upload):
        """Return each row's mean over the clients, or over its holders (zero without any)."""
        if self.aggregation != "holders":
            return upload["rows"].mean
        return upload["rows"].sum / np.maximum(upload["n_holders"].sum, 1)[:, None]

    def mean_gradient(self, items, upload):
        """Return the mean of the uploads of `gradients`, without penalties."""
        if self.aggregation != "full":
            return self.mean_rows(upload)
        return upload["rows"].mean + items @ upload["others"].mean

    def item_penalties(self, server):
        """Return each client's share of the items' penalties, (n_items, 1) if they differ."""
        reg_item = self.reg_item / server.n_clients
        if not self.reg_exponent:
            return reg_item
        shares = np.maximum(server.held_share, 0)
        if self.REG_PIVOT is not None:
            shares = shares / np.mean(shares, where=shares > 0)
        return reg_item * (1 + self.alpha * shares) ** self.reg_exponent

    def cautious(self, server, upload, lean=1.0):
        """Return the step of each item that keeps a preconditioned update from overshooting.

        If few clients take part, the mean is noisy; and many holders with a large alpha move an
        item up to 1 + alpha times as fast as expected, as far as they `lean` on the server's.
        """
        share = min(1.0, 2 * upload.n_clients / server.n_clients)
        return share / (1 + lean * self.alpha * server.held_share / 2)


@dataclass(kw_only=True, eq=False)
class ClientItemsAlgorithm(ImplicitAlgorithm):
    """The clients move the items, and the server averages: LocALS and LocSGD."""

    prox: NotNegative
    local_epochs: AtLeast1

    def centers(self, message):
        # The matrix of a client that does not change the items that it does not hold.
        return {"others": np.eye(self.n_factors)} if self.aggregation == "full" else {}

    def downloads(self, n_items):
        return super().downloads(n_items) | {"reg_item": Form((1,))}

    def announce(self, server):
        # Penalties that differ are the server's.
        reg_item = 0.0 if self.reg_exponent else self.reg_item / server.n_clients
        return Message(reg_item=Dense(np.array([reg_item])))

    def enter(self, block, message, key):
        reg_item = float(message["reg_item"].values[0])
        return replace(super().enter(block, message, key), reg_item=reg_item)

    def item_problem(self, clients):
        """Return the weights of the clients' problem in their items, for kernels."""
        full = self.aggregation == "full"
        return wmf_kernels.Problem(clients.reg_item, float(self.prox), full)

    def own_grams(self, block, active, message, versions, follows):
        """Return the sum of q q' over all items as each active client has them after an epoch."""
        (items, gram), grams = self.received(message), np.zeros_like(follows)
        for c in np.flatnonzero(active):
            rows = slice(*block.row_indptr[c : c + 2])
            before, after = items[block.row_items[rows]], versions[rows]
            others = gram - before.T @ before
            if self.aggregation == "full":
                others = follows[c] @ others @ follows[c].T
            grams[c] = others + after.T @ after
        return grams

    def step(self, server, upload, key):
        if upload is None:
            return server
        items = server.items.astype(np.float64)
        full = self.aggregation == "full"
        others = upload["others"].mean if full else np.eye(self.n_factors)
        change, penalty = self.mean_rows(upload) + items @ others.T - items, 0.0
        pull = self.item_penalties(server) / self.prox if self.prox else 0.0
        if self.reg_exponent:
            penalty = pull
        change = change - penalty * items
        if server.prior is not None and self.prox:
            # Penalties pull items with few holders to what features say instead of 0.
            means = pull * server.prior.lost(items)
            change = change + (means if self.reg_exponent else means @ others.T)
        if full:
            # Undo how little prox lets each client move.
            change = divide(change, np.eye(self.n_factors) - others.T, penalty)
            change = change * self.cautious(server, upload, np.trace(others) / self.n_factors)
        else:
            change = change / (1 + penalty)
        return server.with_items(items + change)


def divide(change, matrix, shift=0.0):
    """Return change (matrix + shift I)^-1 without the directions that the sum does not resolve.

    A shift of shape (n_rows, 1) has its own number for each row; the matrix is then symmetric, and
    directions that are not resolved are divided by the shift, or a little more.
    """
    if not np.any(shift):
        return change @ np.linalg.pinv(matrix, rcond=RESOLUTION)
    sizes, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    # Small shifts must not enlarge what the sum does not resolve.
    divisors = np.maximum(np.maximum(sizes, 0) + shift, RESOLUTION * sizes.max())
    return (change @ vectors / divisors) @ vectors.T


# ------------------------------------------------------------------------------ the estimator


@dataclass(eq=False, repr=False)
class ImplicitMF(
    ImplicitParameters, ItemContent, FadingHistory, RankingMixin, FederatedRecommender
):
    """Base class of the estimators whose algorithm is an `ImplicitAlgorithm`."""

    _predicted = ("item_factors",)
    _user_width = "n_factors"

    def _check_setting(self, plan, data, blocks):
        check_likes(data)
