"""FedRec: ratings hidden among virtual ones (Lin, Liang, Pan and Ming, 2020)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import numpy as np

from fedrecsk._utils.constraints import (
    Above0To1,
    AtLeast0,
    AtLeast1,
    NotNegative,
    Positive,
    RatingRange,
)
from fedrecsk._utils.docs import documented
from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.parameters import constant
from fedrecsk.base import RatingMixin
from fedrecsk.data._checks import scale_of
from fedrecsk.federated._ratings import (
    RATINGS,
    ColumnAlgorithm,
    Scale,
    sums_of_ratings,
)
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.models import Factors
from fedrecsk.protocol.algorithm import Traits
from fedrecsk.protocol.messages import Dense, Form, Message
from fedrecsk.protocol.states import PerItem, PerUser
from fedrecsk.updates import FieldSpec, SparseRows, Summed, Updates

__all__ = ["FedRec"]

fedrec_kernels: LazyModule = LazyModule("fedrecsk.federated.papers._fedrec_kernels")

# Ratings are mapped to this scale, which is that of the paper's data.
LOW, HIGH = 1.0, 5.0
# Items whose summed weight is a smaller share of the largest one are left alone: it may be the
# error of an encrypted zero.
RESOLUTION = 1e-5
NO_LOCAL_DP = (
    "it hides rated items by virtual ratings, without noise. Use RFRec for local differential "
    "privacy."
)


@dataclass(frozen=True)
class FedRecServer:
    """What the server knows: the items, the rating scale, and which share a cohort is."""

    items: PerItem
    scale: Scale
    share: float


@dataclass
class FedRecClients:
    """Users of a block: their vectors, their ratings, and the items that they pretend to rate."""

    users: PerUser
    ratings: tuple[np.ndarray, ...]
    scale: Scale
    share: float
    # Rated and virtual items of the users that have drawn them, if they are fixed.
    examples: Any
    drawn: PerUser


@dataclass(eq=False, repr=False)
class FedRecParameters:
    """Parameters of FedRec."""

    n_factors: AtLeast1 = 20
    _: KW_ONLY
    biases: bool = True
    n_virtual: AtLeast0 = 3
    filling: Literal["hybrid", "average"] = "hybrid"
    virtual_items: Literal["fixed", "redrawn"] = "fixed"
    hybrid_start: AtLeast0 = 10
    user_steps: AtLeast1 = 5
    learning_rate: Positive = 0.8
    learning_rate_decay: Above0To1 = 0.95
    reg: NotNegative | Literal["auto"] = "auto"
    upload: Literal["chosen", "all"] = "chosen"
    rating_scale: RatingRange = None
    HYBRID_STEPS: int = constant(5)  # of the copy that predicts virtual ratings
    INIT_RANGE: float = constant(0.05)  # initial vectors are uniform within it


@dataclass(kw_only=True, eq=False)
class FedRecAlgorithm(FedRecParameters, ColumnAlgorithm[FedRecServer, FedRecClients]):
    """Clients add virtual ratings to their own, and upload the gradients of both."""

    # A number; not "auto".
    reg: float
    client_fraction: float

    @property
    def traits(self):
        return Traits(single_uploads=True, refuses={"local_dp": NO_LOCAL_DP})

    def rounds(self, sampling, n_clients):
        return round(30 / sampling.share(n_clients))

    def downloads(self, n_items):
        return {
            "scale": Form((3,)),
            "share": Form((), bounds=(0.0, 1.0)),
            "item_vectors": Form((n_items, self.width)),
        }

    # --------------------------------------------------------------- before the rounds

    def setup_fields(self, n_items):
        return RATINGS if self.biases else {}

    def answer(self, block, message, key):
        return Updates({"ratings": sums_of_ratings(block)})

    def begin(self, catalogue, sums, key):
        shape = (catalogue.n_items, self.width)
        items = self.INIT_RANGE * key.generator("item vectors").uniform(-1, 1, shape)
        (low, high), level = scale_of(self.rating_scale, catalogue.rating_range), 0.0
        if sums is not None:
            total, weight = sums["ratings"].sum
            level = float(_rescaled(total / weight, low, high))
        share = max(self.client_fraction, 1 / catalogue.n_clients)
        return FedRecServer(self.first_vectors(items), Scale(low, high, level), share)

    def announce(self, server):
        return Message(scale=server.scale.sent(), share=Dense(np.array(server.share)))

    # ---------------------------------------------------------------------- each round

    def broadcast(self, server, key):
        return Message(item_vectors=Dense(server.items))

    def fields(self, n_items):
        rows = "all" if self.upload == "all" else "chosen"
        return {
            "gradients": FieldSpec((n_items, self.width), rows),
            "weights": FieldSpec((n_items,), rows, learned=False),
        }

    def enter(self, block, message, key):
        draws = key.private.at(-1).uniform("user vectors", self.numbers_of_users(block))
        scale = Scale.received(message)
        values = _rescaled(block.values, scale.low, scale.high).astype(self.dtype)
        weights = block.weights.astype(self.dtype)
        return FedRecClients(
            users=self.first_vectors(self.INIT_RANGE * (2 * draws - 1)),
            ratings=fedrec_kernels.Ratings(block.indptr, block.items, values, weights),
            scale=scale,
            share=float(message["share"].values),
            examples=None,
            drawn=np.zeros(block.n_users, dtype=bool),
        )

    def update(self, block, clients, message, turn, key):
        examples = self.list_examples(block, clients, turn.active, key)
        held = replace(block, indptr=examples.indptr, items=examples.items)
        out = self._empty_uploads(held, turn)
        model = self._received(message, clients.scale.level)
        training = self._training(key.round, clients.share)
        given = block.client_indptr, examples, turn.active, clients.users
        work = fedrec_kernels.scratch(*given)
        loss, total_weight = fedrec_kernels.local_round(*given, model, training, work, out)
        fields = {"gradients": out.gradients, "weights": out.masses}
        if turn.separate:
            own = held.row_indptr, held.row_items
            fields = {name: SparseRows(*own, values) for name, values in fields.items()}
        elif self.upload == "chosen":
            fields = {name: Summed(values, held.row_counts) for name, values in fields.items()}
        updates, unit = Updates(fields, is_finite=out.is_finite), clients.scale.unit / (HIGH - LOW)
        return clients, updates, (loss * unit**2, total_weight)

    def step(self, server, upload, key):
        if upload is None:
            return server
        weights, items = upload["weights"].sum, server.items.astype(np.float64)
        moved = weights > RESOLUTION * weights.max()
        mean = upload["gradients"].sum[moved] / weights[moved, None]
        items[moved] -= self.rate(key.round, server.share) * mean
        return replace(server, items=items.astype(self.dtype))

    # ------------------------------------------------------------------------- the end

    def final(self, server):
        return self.broadcast(server, None)

    def personalize(self, block, clients, message, turn, key):
        whom = block.users_of(turn.active)
        if clients is None:
            clients = self.enter(block, message, key)
        else:
            whom = whom & ~np.isfinite(clients.users).all(axis=1)
        users = clients.users.copy()
        for u in np.flatnonzero(whom):
            users[u] = self._solution(u, clients, message)
        return replace(clients, users=users)

    def _solution(self, u, clients, message):
        """Return the vector of least loss on the real ratings of user u, items fixed."""
        own, eye = slice(*clients.ratings.indptr[u : u + 2]), np.eye(self.width)
        _, items, values, weights = clients.ratings
        partners = message["item_vectors"].values[items[own]].astype(np.float64)
        rest = values[own] - clients.scale.level
        if self.biases:
            rest -= partners[:, 0]
            partners[:, 0] = 1
        weighted = partners.T * weights[own]
        ridge = self.reg * weights[own].sum(dtype=np.float64) + 1e-9
        return np.linalg.solve(weighted @ partners + ridge * eye, weighted @ rest)

    # ---------------------------------------------------------------- on the clients

    def rate(self, round, share):
        """Return the learning rate (gamma) of a round, of cohorts of this share."""
        return self.learning_rate * self.learning_rate_decay ** _passes(round, share)

    def _training(self, round, share):
        is_hybrid = self.filling == "hybrid" and _passes(round, share) >= self.hybrid_start
        steps = self.HYBRID_STEPS if is_hybrid and self.n_virtual > 0 else 0
        rate = self.rate(round, share)
        return fedrec_kernels.Training(rate, self.reg, steps, int(self.user_steps))

    def _received(self, message, level):
        items = message["item_vectors"].values.astype(self.dtype, copy=False)
        met = self.without_bias(items)
        squares = np.einsum("if,if->i", met, met) + self.dtype(self.biases)
        return fedrec_kernels.Model(items, squares, level, bool(self.biases))

    def list_examples(self, block, clients, active, key):
        """Return the users' examples, drawn in each round or once in the user's first round."""
        users, key = block.users_of(active), key.private
        if self.virtual_items == "redrawn":
            examples = self._empty_examples(block)
        else:
            users, key = users & ~clients.drawn, key.at(-1)
            clients.drawn |= users
            if clients.examples is None:
                clients.examples = self._empty_examples(block)
            examples = clients.examples
        if users.any():
            seeds = key.hashed("virtual items", block.users)
            fedrec_kernels.list_examples(clients.ratings, block.n_items, users, seeds, examples)
        return examples

    def _empty_examples(self, block):
        """Return arrays for all ratings, and for `n_virtual` times as many virtual ones."""
        n_rated = np.diff(block.indptr)
        n_virtual = np.minimum(self.n_virtual * n_rated, block.n_items - n_rated)
        indptr = np.concatenate([[0], np.cumsum(n_rated + n_virtual)])
        return fedrec_kernels.Examples(
            indptr,
            np.zeros(indptr[-1], dtype=np.int32),
            np.zeros(indptr[-1], dtype=self.dtype),
            np.ones(indptr[-1], dtype=self.dtype),
            np.zeros(indptr[-1], dtype=bool),
        )

    def _empty_uploads(self, held, turn):
        """Return where the kernel writes, by item or by client; `held` is a block of examples."""
        senders, slots, n_slots = turn.active & turn.delivers, held.items, held.n_items
        dtype = np.float64
        if turn.separate:
            senders, slots, n_slots = turn.active, held.rows, len(held.row_items)
            if held.n_users == held.n_clients:
                # These rows are no sums.
                dtype = self.dtype
        return fedrec_kernels.Uploads(
            senders,
            slots,
            np.zeros((n_slots, self.width), dtype),
            np.zeros(n_slots, dtype),
            np.ones(held.n_clients, dtype=bool),
        )

    # ------------------------------------------------------------------------ the model

    def private_vectors(self, clients):
        return self.without_bias(clients.users)

    def model(self, fitted):
        low, high = fitted["rating_scale_"]

        def response(scores):
            return low + (high - low) * np.clip((scores - LOW) / (HIGH - LOW), 0, 1)

        return Factors.of(fitted, response=response)


def _passes(round, share):
    """Return how often every client has taken part before a round, on average."""
    return int(round * share + 1e-9)


def _rescaled(values, low, high):
    """Return the ratings on the model's scale."""
    return LOW + (HIGH - LOW) * (values - low) / ((high - low) or 1)


# ------------------------------------------------------------------------------ the estimator


@documented
@dataclass(eq=False, repr=False)
class FedRec(FedRecParameters, RatingMixin, FederatedRecommender):
    """Federated matrix factorisation whose clients upload gradients of items they have not rated.

    A client that uploads gradients of its rated items only reveals them to the server. In FedRec
    each user adds some unrated items with virtual ratings: its mean rating ("average", the paper's
    user averaging), or after some rounds its own predictions ("hybrid", the paper's hybrid
    filling), which distort the model less.

    A rating r is estimated by ``global level + b_u + b_i + p_u . q_i``. Each user minimises the
    mean over its rated and virtual items of::

        1/2 (r - estimate)^2 + reg/2 (b_u^2 + |p_u|^2 + b_i^2 + |q_i|^2)

    Parameters
    ----------
    n_factors : int, default=20
        Length of p_u and q_i (d).
    n_rounds : int or "auto", default="auto"
        Number of rounds in total (T). "auto": 30 passes over the clients, 600 rounds of 5%.
    n_virtual : int, default=3
        Number of virtual items per rated item (rho), if the catalogue has enough items. 0:
        only rated items are sent.
    filling : {"hybrid", "average"}, default="hybrid"
        Virtual ratings: the user's mean rating throughout, or from `hybrid_start` on the
        scores of a copy of the user's vector that has been trained on its real ratings alone.
    virtual_items : {"fixed", "redrawn"}, default="fixed"
        Whether a user draws its virtual items once or again in each round, as in the paper. With
        "redrawn", items that are sent in every round are probably rated ones: see Notes.
    hybrid_start : int, default=10
        Number of passes over the clients before the hybrid filling begins (T_start).
    user_steps : int, default=5
        Number of gradient steps of the users' vectors per round, on the client alone; the
        gradients of items are taken before the last of them. The paper takes 1.
    learning_rate : float, default=0.8
        Step of users and of the server (gamma), on a rating scale from 1 to 5.
    learning_rate_decay : float in (0, 1], default=0.95
        Factor on the learning rate after each pass over the clients, which is one round if all
        take part.
    reg : float or "auto", default="auto"
        Weight of the penalties (lambda). "auto": 0.1 / (1 + n_virtual), because virtual
        items weaken the ratings but not the penalties.
    biases : bool, default=True
        Whether to model a global level (fixed at the mean rating) and biases of users and items.
        The paper's model is p_u . q_i alone.
    upload : {"chosen", "all"}, default="chosen"
        Whether clients send the rows of rated and virtual items, each with its index, or whole
        matrices, zero elsewhere, which secure sums need.
    rating_scale : tuple (low, high) or None, default=None
        The ends of the rating scale, assumed to be public. If None, the range of y.
    {shared parameters}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors), dtype float32
        p_u; private to the client.
    item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        The server's q_i.
    user_bias_, item_bias_ : ndarray of shape (n_users,) and (n_items,), dtype float32
        b_u and b_i, on the scale of scores; absent without biases.
    global_bias_ : float
        The level, on the scale of scores, which goes from 1 to 5; 0 without biases.
    rating_scale_ : tuple of float
        The ends of the rating scale.
    {shared attributes}

    Raises
    ------
    ValueError
        By fit: under local differential privacy; under secure aggregation unless
        ``upload="all"``; if ratings lie outside `rating_scale`; if the clients diverge.

    Notes
    -----
    *Algorithm*::

        set-up  clients send sums and counts of ratings      answer
        once    each user draws its virtual items            kernel list_examples
        each round
          1  server sends b_i and q_i of all items           broadcast
          2  users predict their virtual ratings             kernel local_round
          3  ... and take user_steps gradient steps          kernel differentiate
          4  clients upload their items' gradients           kernel send
          5  server steps along the mean gradient, item by   step
             item: q_i -= gamma sum_i / (weight of all who sent i)

    *Step lengths.* A user's step that would overshoot is shortened, and so are its gradients: by
    the factor 2 / gamma over the mean squared length of the vectors that the updated vector is
    multiplied by, if that is below 1. Without this, cohorts of few clients diverge.

    *The paper's parameters* are ``biases=False, n_rounds=100, client_fraction=1.0,
    learning_rate_decay=0.9, reg=0.001, user_steps=1, virtual_items="redrawn"`` with
    ``INIT_RANGE = 0.005`` and ``HYBRID_STEPS = 10``. Its stochastic variant is a cohort of one:
    with n clients, ``client_fraction=1 / n, n_rounds=100 * n,
    federation=Federation(sampling="rotating")``.

    *What is sent.* With biases once, up: the client's sum and number of ratings; once, down: the
    rating scale and the level. Each round, down: all item vectors, so that requests reveal
    nothing. Up: for each of its rated and virtual items the index, the gradient, the index
    again and the weight, by which the server divides; with ``upload="all"`` the same for all items,
    without indices. At the end, down: the item vectors.

    *What it reveals.* A single plaintext upload reveals everything: the gradients of one user are
    multiples of (1, p_u), which yields the errors, and the virtual ones stand out, because they are
    all equal (:func:`fedrecsk.audit.measure_leak`). Only sums over clients are used: with secure
    sums virtual items are not needed, and ``n_virtual=0, upload="all"`` gives the better model.

    *Unknown users and items* have score 0 without biases, which is below the scale.

    References
    ----------
    .. [1] G. Lin, F. Liang, W. Pan and Z. Ming, "FedRec: Federated Recommendation with Explicit
       Feedback", IEEE Intelligent Systems 36(5), 2021.

    Examples
    --------
    >>> from fedrecsk import FedRec
    >>> from fedrecsk.datasets import make_ratings
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=600, random_state=0)
    >>> model = FedRec(n_virtual=1, n_rounds=20, client_fraction=1.0, random_state=0).fit(X, y)
    >>> items, scores = model.recommend(X[:2, 0], n_recommendations=3)
    >>> items.shape
    (2, 3)
    >>> n_sent = sum(min(2 * int(sum(X[:, 0] == user)), 40) for user in model.user_ids_)
    >>> model.communication_.bytes_up == 60 * 4 * 2 + 20 * n_sent * (4 + 4 * 21 + 4 + 4)
    True
    """

    _: KW_ONLY
    n_rounds: AtLeast1 | Literal["auto"] = "auto"
    client_fraction: Above0To1 = 0.05

    _kind = FedRecAlgorithm
    _user_width = "n_factors"

    @property
    def _reg(self):
        return 0.1 / (1 + self.n_virtual) if self.reg == "auto" else float(self.reg)
