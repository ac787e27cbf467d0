"""RFRec: regularised federated recommendation (Liu et al., CIKM 2024, algorithm 1)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from scipy.special import expit, logit

from fedrecsk._utils.constraints import AtLeast1, NotNegative, Positive, RatingRange
from fedrecsk._utils.docs import documented
from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.parameters import constant
from fedrecsk.base import RatingMixin
from fedrecsk.base._item_prior import ItemContent, ItemFeatures, ItemPrior
from fedrecsk.data._checks import scale_of
from fedrecsk.federated import _ratings
from fedrecsk.federated._optimizers import Moments, adam
from fedrecsk.federated._ratings import ColumnAlgorithm, Scale
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.models import Factors
from fedrecsk.models._model import linear_scores
from fedrecsk.models._own_items import OwnFactors, OwnItems
from fedrecsk.protocol.algorithm import SharesHistory, Traits
from fedrecsk.protocol.messages import Dense, Form, Message
from fedrecsk.protocol.states import Axis, Kept, PerClient, PerItem, PerRow
from fedrecsk.updates import FieldSpec, SparseRows, Updates

__all__ = ["RFRec"]

rfrec_kernels: LazyModule = LazyModule("fedrecsk.federated._rfrec_kernels")
wmf_kernels: LazyModule = LazyModule("fedrecsk.federated._wmf_kernels")

DENSE_LIMIT = 2 * 2**30
OF_HOLDERS = (
    "aggregation='holders' needs the number of holders of each item, which noise does not protect; "
    'set aggregation="clients".'
)
# Gauss-Newton steps for users that were in no round, and how often each of them is halved.
SOLVER_STEPS, HALVINGS = 10, 8
# Added to penalties that may be zero, and the least slope of the link.
TINY = 1e-9
# Interval in which the bias of unknown users is searched, and how often it is halved.
FARTHEST, BISECTIONS = 20.0, 60
# Items with fewer than FEW_RATINGS / ITEMS_NEED ratings are shrunk more.
ITEMS_NEED = 3


@dataclass(frozen=True)
class RFRecServer:
    """What the server knows: the mean of the clients' items, and sums of the set-up."""

    items: Kept[PerItem]
    scale: Scale
    n_clients: int
    # Of each item: its ratings, None if unknown, and the clients that have rated it, which only
    # averages of clients do without.
    n_ratings: np.ndarray | None
    n_holders: Any
    prior: ItemPrior | None


@dataclass(frozen=True)
class Common:
    """The item matrix of clients of equal history, but for the items that they have rated."""

    items: np.ndarray
    # The same, clipped.
    sent: np.ndarray
    # Adam's, None before the first step and for plain gradient descent.
    moments: Moments | None = None


@dataclass
class RFRecClients:
    """What the clients of a block know: their users' vectors, and those of rated items."""

    scale: Scale
    # By rating, the values scaled to [0, 1].
    values: np.ndarray
    weights: np.ndarray
    # How scores become ratings, and the penalties; an Objective of the kernels.
    objective: Any
    # Vectors, as in the kernels.
    users: Kept[Annotated[Any, Axis("users")]]
    held: Kept[Annotated[Any, Axis("rows")]]
    # Whether the vector has come from the server.
    joined: Kept[PerRow]
    n_steps: Kept[PerClient]
    common: Common | None = None


@dataclass(eq=False, repr=False)
class RFRecParameters:
    """Parameters of RFRec."""

    n_factors: AtLeast1 = 19
    _: KW_ONLY
    biases: bool = True
    prox: NotNegative = 0.1
    reg_user: NotNegative = 0.04
    reg_item: NotNegative = 0.04
    reg_bias: NotNegative = 0.07
    learning_rate: Positive = 0.1
    optimizer: Literal["adam", "gd"] = "adam"
    aggregation: Literal["clients", "holders"] = "clients"
    predict_with: Literal["global", "local"] = "global"
    rating_scale: RatingRange = None
    INIT_STD: float = constant(0.1)  # standard deviation of the initial vectors
    REG_POWER: float = constant(0.5)  # how fast penalties grow with the number of ratings
    # With n < FEW_RATINGS, a user's penalties count FEW_RATINGS / n times.
    FEW_RATINGS: float = constant(15.0)
    # From score to scaled rating; "identity" is clipped.
    LINK: Literal["sigmoid", "identity"] = constant("sigmoid")
    BETA_1: float = constant(0.9)
    BETA_2: float = constant(0.9)
    EPSILON: float = constant(1e-8)


@dataclass(kw_only=True, eq=False)
class RFRecAlgorithm(
    RFRecParameters,
    ColumnAlgorithm[RFRecServer, RFRecClients],
    SharesHistory[RFRecClients, Common],
):
    """Every client steps on an item matrix of its own, which is pulled towards their mean."""

    item_content: ItemFeatures
    # Whether sums of the data would break differential privacy.
    is_private: bool = False
    # Bound of the numbers that are sent.
    clip: float | None = None

    @property
    def traits(self):
        # Otherwise the vectors of items that a client has not rated are not needed.
        shares = self.aggregation == "clients" or self.predict_with == "local"
        why = dict.fromkeys(("central_dp", "local_dp"), OF_HOLDERS)
        refuses = why if self.aggregation == "holders" else {}
        return Traits(single_uploads=True, goes_on=True, shares_history=shares, refuses=refuses)

    def downloads(self, n_items):
        return {
            "scale": Form((3,)),
            "n_ratings": Form((n_items,)),
            "item_vectors": Form((n_items, self.width)),
        }

    # --------------------------------------------------------------- before the rounds

    def setup_fields(self, n_items):
        specs = {}
        if self.is_private:
            return specs
        if self.biases:
            specs |= _ratings.RATINGS
        if self.biases or self.reg_item > 0:
            specs["n_ratings"] = FieldSpec((n_items,), learned=False)
        if self.aggregation == "holders":
            specs["held_items"] = FieldSpec((n_items,), dtype="uint8", learned=False)
        return specs

    def answer(self, block, message, key):
        return _ratings.answer(block, self.setup_fields(block.n_items))

    def begin(self, catalogue, sums, key):
        known = {name: total.sum for name, total in (sums or {}).items()}
        items = self.first_items(catalogue.n_items, self.INIT_STD, key)
        low, high = scale_of(self.rating_scale, catalogue.rating_range)
        # The middle of the scale, if the mean rating is not known.
        mean = 0.5
        if "ratings" in known:
            total, weight = known["ratings"]
            mean = (total / weight - low) / ((high - low) or 1)
        n_ratings = known.get("n_ratings")
        # If nobody knows which items are rated, all count alike.
        prior = self.item_content.prior(np.ones(len(items)) if n_ratings is None else n_ratings)
        if n_ratings is not None:
            items = np.where((n_ratings > 0)[:, None], items, self.dtype(0))
        scale = Scale(low, high, self._level(mean))
        return RFRecServer(
            items, scale, catalogue.n_clients, n_ratings, known.get("held_items"), prior
        )

    def _level(self, mean):
        """Return the score of the mean rating, which is scaled to [0, 1]."""
        if not self.biases:
            return 0.0
        return float(logit(np.clip(mean, 0.01, 0.99)) if self.LINK == "sigmoid" else mean)

    def announce(self, server):
        fields = {"scale": server.scale.sent()}
        if server.n_ratings is not None:
            fields["n_ratings"] = Dense(server.n_ratings)
        return Message(**fields)

    # ---------------------------------------------------------------------- each round

    def broadcast(self, server, key):
        return Message(item_vectors=Dense(server.items))

    def fields(self, n_items):
        return {"item_vectors": FieldSpec((n_items, self.width), clip=self.clip)}

    def enter(self, block, message, key):
        draws = key.private.at(-1).normal("user vectors", self.numbers_of_users(block))
        users = self.first_vectors(self.INIT_STD * draws)
        held = np.zeros((len(block.row_items), self.width), dtype=self.dtype)
        scale, n_of_items = Scale.received(message), np.zeros(block.n_items)
        if "n_ratings" in message:
            n_of_items = message["n_ratings"].values
        of_rating = block.rating_users
        n_of_users = np.bincount(of_rating, block.weights, minlength=block.n_users)
        shape = scale.level, self.LINK == "sigmoid", bool(self.biases), 0.0
        penalties = *self.item_penalties(n_of_items), *self.user_penalties(n_of_users)
        return RFRecClients(
            scale=scale,
            values=((block.values - scale.low) / scale.unit).astype(self.dtype),
            weights=block.weights.astype(self.dtype),
            objective=rfrec_kernels.Objective(*shape, *penalties),
            users=self._vectors(users),
            held=self._vectors(held),
            joined=np.zeros(len(block.row_items), dtype=bool),
            n_steps=np.zeros(block.n_clients, dtype=np.int64),
        )

    def _vectors(self, now):
        """Return vectors with Adam's moments; plain gradient descent has none."""
        if self.optimizer == "gd":
            return rfrec_kernels.Vectors(now, None, None)
        # Not zeros_like, which writes them: memory is for the clients that have taken part.
        moments = (np.zeros(now.shape, now.dtype) for _ in range(2))
        return rfrec_kernels.Vectors(now, *moments)

    def item_penalties(self, n_ratings):
        """Return the penalties on items and their biases, shared out among their ratings."""
        few = self.FEW_RATINGS / ITEMS_NEED
        return self._penalties(n_ratings, self.reg_item, few, each=n_ratings)

    def user_penalties(self, n_ratings):
        """Return the penalties on users and their biases."""
        return self._penalties(n_ratings, self.reg_user, self.FEW_RATINGS)

    def _penalties(self, n_ratings, reg, few, each=1.0):
        """Return the penalties on vectors and biases by numbers of ratings, divided by `each`."""
        more = np.maximum(1.0, few / np.maximum(n_ratings, 1.0))
        each = np.where(np.greater(each, 0), each, np.inf)
        share = more / np.maximum(each, np.finfo(self.dtype).tiny)
        on_vectors = (reg * share * n_ratings**self.REG_POWER).astype(self.dtype)
        on_biases = (self.reg_bias * share).astype(self.dtype)
        return on_vectors, on_biases if self.biases else on_vectors

    def share(self, common, message, key):
        mean = message["item_vectors"].values
        now, moments = (mean, None) if common is None else (common.items, common.moments)
        gradient = self.dtype(self.prox) * (now - mean)
        if self.optimizer == "adam":
            n_steps, *before = moments or (0, 0.0, 0.0)
            gradient, after = adam(self, before, n_steps + 1, gradient)
            moments = Moments(n_steps + 1, *after)
        now = now - self.dtype(self.learning_rate) * gradient
        return Common(now, self.clipped(now), moments)

    def with_shared(self, clients, common):
        clients.common = common
        return clients

    def update(self, block, clients, message, turn, key):
        mean = message["item_vectors"].values
        self._join(block, clients, turn.active, mean)
        totals = self._totals(mean, turn)
        rates = self.prox, self.learning_rate
        loss = self._descend(block, clients, mean, turn.active, *rates, totals)
        return clients, self._sent(block, clients, mean, turn, totals), loss

    def _join(self, block, clients, active, mean):
        """Let rated items begin as they are received, in the first round of their clients."""
        first = np.repeat(active, block.row_counts) & ~clients.joined
        if first.any():
            clients.held.now[first] = mean[block.row_items[first]]
            clients.joined |= first

    def _descend(self, block, clients, mean, active, prox, rate, totals=None):
        """Step the active clients' users and rated items along their gradients."""
        clients.n_steps[active] += 1
        n_steps, betas = np.maximum(clients.n_steps, 1), (self.BETA_1, self.BETA_2)
        debias = (1 - np.power(beta, n_steps) for beta in betas)
        layout = block.layout
        loss = rfrec_kernels.step(
            layout,
            clients.values,
            clients.weights,
            active,
            clients.users,
            clients.held,
            mean,
            clients.objective._replace(prox=float(prox)),
            rfrec_kernels.Rule(float(rate), *betas, self.EPSILON, *debias),
            rfrec_kernels.scratch(layout, clients.held),
            self.clip,
            totals,
        )
        # In squared ratings, like the validation loss.
        return np.multiply(loss, (clients.scale.unit**2, 1.0))

    @staticmethod
    def _totals(mean, turn):
        """Return where the senders' rated items are added up; nowhere if uploads are separate."""
        nobody = np.zeros_like(turn.active)
        return rfrec_kernels.Totals(
            nobody if turn.separate else turn.active & turn.delivers,
            np.ones_like(turn.active),
            np.zeros(mean.shape),
            np.zeros(len(mean)),
        )

    def _sent(self, block, clients, mean, turn, totals):
        """Return clip(V_c) of each client, or with "holders" its change where it has rated."""
        sums, is_finite = totals.sums, totals.is_finite
        shared = clients.common.sent if self.aggregation == "clients" else None
        if turn.separate:
            others = {}
            if shared is not None:
                others = {"default": shared.astype(np.float64) - mean, "center": mean}
            sent = self.clipped(clients.held.now)
            sums = SparseRows.since(mean, block.row_indptr, block.row_items, sent, **others)
        elif shared is None:
            sums -= totals.counts[:, None] * mean
        else:
            n_senders = np.count_nonzero(totals.senders & is_finite)
            sums += (n_senders - totals.counts)[:, None] * shared
        return Updates({"item_vectors": sums}, is_finite=is_finite)

    def clipped(self, vectors):
        """Return vectors as they are sent."""
        return vectors if self.clip is None else np.clip(vectors, -self.clip, self.clip)

    def centers(self, message):
        if self.aggregation != "clients":
            return {}
        return {"item_vectors": message["item_vectors"].values}

    def step(self, server, upload, key):
        if upload is None:
            return server
        if self.aggregation == "clients":
            items = upload["item_vectors"].mean
        else:
            share = upload.n_clients / server.n_clients
            n_holders = np.maximum(server.n_holders * share, 1)[:, None]
            items = server.items + upload["item_vectors"].sum / n_holders
        return replace(server, items=items.astype(self.dtype))

    # ------------------------------------------------------------------------- the end

    def final(self, server):
        items = server.items
        if server.prior is not None and server.n_ratings is not None:
            items = server.prior.completed(items)
        return Message(item_vectors=Dense(items))

    def personalize(self, block, clients, message, turn, key):
        items, trained = message["item_vectors"].values, clients is not None
        if clients is None:
            clients = self.enter(block, message, key)
        users, held = clients.users.now, clients.held.now
        untrained = ~(trained & np.isfinite(users).all(axis=1))
        untrained &= block.users_of(turn.active)
        if untrained.any():
            users = users.copy()
            users[untrained] = self._solved(block, clients, untrained, items)
        if self.predict_with == "local":
            own = trained & np.isfinite(held)
            held = np.where(own, held, items[block.row_items])
        users, held = clients.users._replace(now=users), clients.held._replace(now=held)
        common = clients.common or Common(items, items)
        return replace(clients, users=users, held=held, common=common)

    def _solved(self, block, clients, whom, items):
        """Return the vectors that minimise the users' objectives with the items fixed.

        Gauss-Newton steps from zero: each solves a ridge regression and is halved until the
        user's objective falls. With the identity link the first one is the solution.
        """
        width, biases, level = self.width, self.biases, clients.scale.level
        n_ratings, taken = np.diff(block.indptr)[whom], np.repeat(whom, np.diff(block.indptr))
        n_users, indptr = len(n_ratings), np.concatenate([[0], np.cumsum(n_ratings)])
        of_rating = np.repeat(np.arange(n_users), n_ratings)
        rated, values = block.items[taken], clients.values[taken].astype(np.float64)
        weights = clients.weights[taken].astype(np.float64)
        objective = clients.objective
        penalties = np.repeat(objective.reg_user[whom, None], width, axis=1).astype(np.float64)
        partners, item_bias = items.astype(np.float64), np.zeros(len(items))
        if biases:
            penalties[:, 0] = objective.reg_user_bias[whom]
            item_bias, partners[:, 0] = partners[:, 0].copy(), 1

        def evaluate(users):
            linear = level, np.zeros(n_users), item_bias, users, partners
            scores = linear_scores(of_rating, rated, *linear)
            errors = values - expected_ratings(scores, self.LINK)
            loss = np.bincount(of_rating, weights * errors**2, minlength=n_users)
            return scores, errors, loss + (penalties * users**2).sum(axis=1)

        users, solved = np.zeros((2, n_users, width))
        everyone = np.ones(n_users, dtype=bool)
        work = wmf_kernels.workspace(block, users)
        scores, errors, loss = evaluate(users)
        for _ in range(SOLVER_STEPS):
            slopes = np.ones(len(scores))
            if self.LINK == "sigmoid":
                slopes = np.maximum(expit(scores) * expit(-scores), TINY)
            targets = scores - level - item_bias[rated] + errors / slopes
            extra = weights * slopes**2
            ratings = wmf_kernels.Ratings(rated, extra, extra * targets)
            given = ratings, partners, penalties + TINY
            wmf_kernels.fit_raters(indptr, everyone, *given, work, solved)
            step = solved - users
            moving = np.abs(step).max(axis=1) >= 1e-7
            if not moving.any():
                break
            for _ in range(HALVINGS):
                trial = np.where(moving[:, None], users + step, users)
                better = moving & (evaluate(trial)[2] <= loss)
                users[better], moving, step = trial[better], moving & ~better, step / 2
                if not moving.any():
                    break
            scores, errors, loss = evaluate(users)
        return users

    # ------------------------------------------------------------------------ the model

    def server_attributes(self, message):
        attributes = super().server_attributes(message)
        # Those of an earlier fit must not stay; `user_attributes` has this one's.
        no_longer = {"_own_items": None}
        return attributes | no_longer | {"_mean_user_bias": self._mean_bias(message, attributes)}

    def user_attributes(self, block, clients):
        attributes = self.attributes(clients.users.now, "user")
        if self.predict_with == "local":
            its = clients.held.now, clients.common.items
            attributes["_own_items"] = OwnItems.of(block, *its)
        return attributes

    def model(self, fitted):
        low, high = fitted["rating_scale_"]

        def response(scores):
            return np.clip(low + (high - low) * expected_ratings(scores, self.LINK), low, high)

        unknown = partial(np.full, fitted["n_items_"], fitted["_mean_user_bias"])
        parts = {"response": response, "unknown": unknown}
        if self.predict_with == "local":
            if fitted["_own_items"] is None:
                raise ValueError(
                    "predict_with='local' needs the clients' own items, which the last fit did "
                    'not keep; fit again, or set predict_with="global".'
                )
            return OwnFactors.of(fitted, own=fitted["_own_items"], **parts)
        return Factors.of(fitted, **parts)

    def _mean_bias(self, message, attributes):
        """Return the user bias with which the items' biases alone give the mean rating."""
        if not self.biases or "n_ratings" not in message:
            return 0.0
        weights = np.maximum(message["n_ratings"].values, 0).astype(np.float64)
        if not weights.any():
            return 0.0
        scores = attributes["global_bias_"] + attributes["item_bias_"].astype(np.float64)
        level = expected_ratings(attributes["global_bias_"], self.LINK)
        low, high = -FARTHEST, FARTHEST
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            estimates = expected_ratings(scores + middle, self.LINK)
            above = np.average(estimates, weights=weights) > level
            low, high = (low, middle) if above else (middle, high)
        return (low + high) / 2

    def private_vectors(self, clients):
        return clients.users.now


def expected_ratings(scores, link):
    """Return the scaled ratings of scores."""
    return expit(scores) if link == "sigmoid" else scores


@documented
@dataclass(eq=False, repr=False)
class RFRec(RFRecParameters, ItemContent, RatingMixin, FederatedRecommender):
    """Regularised federated recommendation: every client trains its own item matrix.

    Client c holds its users' private vectors and its own copy V_c of the whole item matrix, which a
    penalty pulls towards the mean of all clients' copies. Each round every client takes one
    gradient step on both and uploads V_c; the server averages and sends the mean back.

    With ratings scaled to [0, 1], client c minimises::

        sum_r w (y - link(level + b_u + b_i + p_u . q_i))^2
          + sum_u [reg_user n_u^REG_POWER |p_u|^2 + reg_bias b_u^2]
          + sum_i (n_ci / n_i) [reg_item n_i^REG_POWER |q_i|^2 + reg_bias b_i^2]
          + prox / 2 |V_c - mean V|^2

    where n_u and n_i count the ratings of user u and item i, and n_ci those of item i that
    the client has: summed over the clients, items are penalised just as users are. All
    penalties of a user with fewer than FEW_RATINGS = 15 ratings count FEW_RATINGS / n_u times, and
    those of an item with fewer than 5 ratings 5 / n_i times.

    Parameters
    ----------
    n_factors : int, default=19
        Length of p_u and q_i (d). With the bias, 20 numbers per item.
    n_rounds : int, default=100
        Number of rounds in total (K).
    prox : float, default=0.1
        Weight of the proximal term, which ties a client's item matrix to the mean (lambda).
    reg_user, reg_item : float, default=0.04
        Weights of the penalties on user vectors (lambda_u) and item vectors.
    reg_bias : float, default=0.07
        Weight of the penalty on every user's and item's bias.
    learning_rate : float, default=0.1
        Step size (alpha).
    optimizer : {"adam", "gd"}, default="adam"
        Adam (each client keeps its moments) or plain gradient descent.
    biases : bool, default=True
        Whether to model a global level (fixed at the mean rating) and biases of users and
        items.
    aggregation : {"clients", "holders"}, default="clients"
        What the server's matrix becomes. "clients", the paper's: the mean of all clients'
        matrices, most of which have not rated a given item and only followed earlier means.
        "holders", a larger server step: an item moves by the sum of its changes at the
        clients that have rated it, divided by the expected number of these among the clients
        whose uploads arrived (at least 1). It needs the number of holders of each item, so it
        raises an error under differential privacy.
    predict_with : {"global", "local"}, default="global"
        Whether to predict with the server's item matrix or with the client's own.
    rating_scale : tuple (low, high) or None, default=None
        The ends of the rating scale, assumed to be public. If None, the range of y; under
        differential privacy this raises an error, because it depends on the data.
    {item_features}
    {shared parameters}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors), dtype float32
        p_u; private to the client.
    item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        q_i of the server's mean.
    user_bias_, item_bias_ : ndarray of shape (n_users,) and (n_items,), dtype float32
        b_u and b_i, on the scale of scores; absent without biases.
    global_bias_ : float
        The level, on the scale of scores.
    rating_scale_ : tuple of float
        The ends of the rating scale.
    {shared attributes}

    Raises
    ------
    ValueError
        By fit: if ratings lie outside `rating_scale`; if the federation does not suit the
        parameters; if the clients diverge; if exact simulation needs too much memory.

    Notes
    -----
    *Algorithm*::

        set-up  clients send sums and counts of ratings     answer, begin
        each round
          1  server sends the mean of the V_c               broadcast
          2  clients step on items that they have not rated share
          3  ... and on their users and rated items         update: kernel step
          4  clients upload clip(V_c)                       kernel step, _sent
          5  server averages                                step

    *What is sent.* Once, up: each client's sum and number of ratings, its number of ratings of
    each item (a dense vector, so that a secure sum hides which) and, with
    ``aggregation="holders"``, which items it has rated. Once, down: the scale, the level and the
    numbers of ratings of all items. Each round, down: the item matrix. Up: the client's whole
    item matrix (or, with "holders", its change, zero for items it has not rated). At the end,
    down: the final item matrix. The server uses sums over clients only; a single plaintext
    upload reveals which items its client rated, and most of the ratings; two reveal all. With
    differential privacy there is no set-up: the level is the middle of the scale and items are not
    penalised.

    *Participation.* Lost uploads do little harm. Clients that are idle in some rounds do more: with
    cohorts (``client_fraction`` below 1) or dropout mode "offline", the mean over all clients
    includes outdated copies of unrated items, and the model ends worse than biases alone.
    ``aggregation="holders"`` helps while half of the clients take part. With "clients" or local
    prediction, the simulation keeps a whole item matrix for each client with a history of its own,
    and a fit in which these take more than 2 GiB raises an error.

    *Unknown users* get the user bias with which the items' biases alone give the mean rating. The
    server computes it from the sums of the set-up.

    References
    ----------
    .. [1] L. Liu et al., "Efficient and Robust Regularized Federated Recommendation",
       CIKM 2024, sections 3.2.1 and 3.4, equations 5, 6 and 9, algorithm 1.

    Examples
    --------
    >>> from fedrecsk import RFRec
    >>> from fedrecsk.datasets import make_ratings
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = RFRec(n_rounds=20, random_state=0).fit(X, y)
    >>> items, scores = model.recommend(X[:2, 0], n_recommendations=3)
    >>> items.shape
    (2, 3)
    >>> model.communication_.bytes_up == 60 * 4 * (2 + 40 + 20 * 40 * 20)
    True
    """

    _kind = RFRecAlgorithm
    _predicted = ("item_vectors",)
    _absent = ("n_ratings",)
    _user_width = "n_factors"

    @property
    def _is_private(self):
        return self._setting().local_dp is not None or self._setting().central_dp is not None

    @property
    def _clip(self):
        mechanism = self._setting().local_dp
        clip = None if mechanism is None else mechanism.number_clip
        return None if clip is None else float(clip)

    def _forget_users(self, users):
        if self._own_items is not None:
            self._own_items = self._own_items.without(users)

    # ------------------------------------------------------------------- what it needs

    def _least_bytes(self, data):
        own = np.dtype(self._dtype).itemsize * len(data.items) * self._algorithm().width
        everybody = self.client_fraction == 1 and not self.early_stopping
        return super()._least_bytes(data) + (own if everybody else 0)

    # ------------------------------------------------------------------------------ checks

    def _check_before_fit(self):
        super()._check_before_fit()
        if self.item_features is not None and self.predict_with == "local":
            raise ValueError(
                "item_features are the prior of the server's items, but predict_with='local' "
                'predicts with the clients\' own; set predict_with="global".'
            )

    def _check_setting(self, plan, data, blocks):
        super()._check_setting(plan, data, blocks)
        if not plan.algorithm.traits.shares_history:
            return
        n_vectors = len(blocks) * data.n_items
        copies = (3 if self.optimizer == "adam" else 1) + (self.predict_with == "local")
        nbytes = n_vectors * copies * plan.algorithm.width * np.dtype(self._dtype).itemsize
        # Blocks of clients with equal histories never have many more vectors than ratings.
        if nbytes > DENSE_LIMIT and n_vectors > 2 * (len(data.items) + data.n_items):
            raise ValueError(
                f"Simulating {data.n_clients} clients of unequal history exactly would take "
                f"{nbytes / 2**30:.1f} GiB: each has an item matrix that no other shares. Use "
                'aggregation="holders" with predict_with="global", which need no such matrix, '
                'dropout_mode="upload", client_fraction=1 or sampling="rotating", or group users '
                "into fewer clients."
            )
