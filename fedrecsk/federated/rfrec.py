"""RFRec: regularised federated recommendation (Liu et al., CIKM 2024, algorithm 1)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import ClassVar, Literal

import numpy as np
from scipy.special import expit, logit

from fedrecsk._utils.docs import documented
from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.sklearn_compat import Interval, StrOptions
from fedrecsk.base import RatingMixin, linear_scores
from fedrecsk.data._checks import scale_of
from fedrecsk.federated._features import FederatedContent
from fedrecsk.federated._feedback import BiasColumn
from fedrecsk.federated._optimizers import adam
from fedrecsk.federated._own_items import OwnItems
from fedrecsk.federated._private import problems_of_scale
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol.messages import Dense, Message
from fedrecsk.updates import FieldSpec, SparseRows, Updates

rfrec_kernels: LazyModule = LazyModule("fedrecsk.federated._rfrec_kernels")
wmf_kernels: LazyModule = LazyModule("fedrecsk.federated._wmf_kernels")

DENSE_LIMIT = 2 * 2**30
# Gauss-Newton steps for users that were in no round, and how often each of them is halved.
SOLVER_STEPS, HALVINGS = 10, 8
# Added to penalties that may be zero, and the least slope of the link.
TINY = 1e-9
# Interval in which the bias of unknown users is searched, and how often it is halved.
FARTHEST, BISECTIONS = 20.0, 60
# Items with this share of `FEW_RATINGS` are no longer shrunk more.
ITEMS_NEED = 3


@documented
@dataclass(eq=False, repr=False)
class RFRec(FederatedContent, BiasColumn, RatingMixin, FederatedRecommender):
    """Regularised federated recommendation: every client has an item matrix of its own.

    Client c has its users' private vectors and its own copy V_c of the whole item matrix, which
    a penalty pulls towards the mean of all clients' copies. Each round every client takes one
    gradient step on both and uploads V_c; the server averages and sends the mean back.

    With ratings scaled to [0, 1], client c minimises::

        sum_r w (y - link(level + b_u + b_i + p_u . q_i))^2
          + sum_u [reg_user n_u^REG_POWER |p_u|^2 + reg_bias b_u^2]
          + sum_i (n_ci / n_i) [reg_item n_i^REG_POWER |q_i|^2 + reg_bias b_i^2]
          + prox / 2 |V_c - mean V|^2

    where n_u and n_i count the ratings of user u and item i, and n_ci those of item i that
    the client has: summed over the clients, items are penalised just as users are.

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
        Weight of the penalty on every user's and item's bias, whatever its number of ratings.
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
        whose uploads arrived (at least 1). It needs the number of holders of each item and is
        refused with local differential privacy.
    predict_with : {"global", "local"}, default="global"
        Whether to predict with the server's item matrix or with the client's own.
    rating_scale : tuple (low, high) or None, default=None
        The ends of the rating scale, assumed to be public. None: the range of y,
        which is refused under local differential privacy because it depends on the data.
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

        set-up  clients send sums and counts of ratings     _setup_update, _begin
        each round
          1  server sends the mean of the V_c               _model
          2  clients step on their users and rated items    _client_update: kernel step
          3  ... and on the items that they have not rated  _update_unrated_items
          4  clients upload clip(V_c)                       kernel step, _upload
          5  server averages                                _aggregate

    *What is sent.* Once, up: each client's sum and number of ratings, its number of ratings of
    each item (a dense vector, so that a secure sum hides which) and, with
    ``aggregation="holders"``, which items it has rated. Once, down: the scale, the level and the
    numbers of ratings of all items. Each round, down: the item matrix. Up: the client's whole
    item matrix (or, with "holders", its change, zero for items it has not rated). At the end,
    down: the final item matrix. The server uses sums over clients only; a single plaintext
    upload reveals what its client has rated, and most of the ratings; two reveal all. With local
    differential privacy there is no set-up: the level is the middle of the scale and items are
    not penalised.

    *Participation.* Lost uploads do little harm. Clients that do nothing for some rounds do more:
    with cohorts (``client_fraction`` below 1) or dropout mode "offline", the mean over all clients
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

    n_factors: int = 19
    _: KW_ONLY
    n_rounds: int = 100
    prox: float = 0.1
    reg_user: float = 0.04
    reg_item: float = 0.04
    reg_bias: float = 0.07
    learning_rate: float = 0.1
    optimizer: Literal["adam", "gd"] = "adam"
    biases: bool = True
    aggregation: Literal["clients", "holders"] = "clients"
    predict_with: Literal["global", "local"] = "global"
    rating_scale: tuple[float, float] | None = None

    INIT_STD = 0.1  # standard deviation of the initial vectors
    REG_POWER = 0.5  # how fast penalties on vectors grow with the number of ratings
    FEW_RATINGS = 15.0  # with n < FEW_RATINGS, a user's penalties count FEW_RATINGS / n times
    LINK = "sigmoid"  # from score to scaled rating; or "identity", clipped
    BETA_1 = 0.9
    BETA_2 = 0.9
    EPSILON = 1e-8

    _parameter_constraints: ClassVar[dict] = FederatedRecommender._parameter_constraints | {
        "n_factors": [Interval(Integral, 1, None, closed="left")],
        "prox": [Interval(Real, 0, None, closed="left")],
        "reg_user": [Interval(Real, 0, None, closed="left")],
        "reg_item": [Interval(Real, 0, None, closed="left")],
        "reg_bias": [Interval(Real, 0, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "optimizer": [StrOptions({"adam", "gd"})],
        "biases": ["boolean"],
        "aggregation": [StrOptions({"clients", "holders"})],
        "predict_with": [StrOptions({"global", "local"})],
        "rating_scale": [tuple, list, None],
        **FederatedContent._content_constraints,
    }

    _predicted_fields = ("item_vectors",)
    _absent_fields = ("n_ratings",)
    _single_uploads = True
    _dtype = np.float32
    _user_width = "n_factors"
    _carried = ("item_vectors",)

    @property
    def _shares_state(self):
        # Otherwise the vectors of items that a client has not rated are not needed.
        return self.aggregation == "clients" or self.predict_with == "local"

    # --------------------------------------------------------------- before the rounds

    def _setup_specs(self, n_items):
        specs, setting = {}, self._setting()
        if setting.local_dp is not None or setting.central_dp is not None:
            return specs
        if self.biases:
            specs["ratings"] = FieldSpec((2,), learned=False)
        if self.biases or self.reg_item > 0:
            specs["n_ratings"] = FieldSpec((n_items,), learned=False)
        if self.aggregation == "holders":
            specs["held_items"] = FieldSpec((n_items,), dtype="uint8", learned=False)
        return specs

    def _begin(self, catalogue, sums, key):
        known = {name: total.sum for name, total in (sums or {}).items()}
        items = self._first_items(catalogue, key)
        low, high = scale_of(self.rating_scale, catalogue.rating_range)
        # The middle of the scale, if the mean rating is not known.
        level = 0.5
        if "ratings" in known:
            total, weight = known.pop("ratings")
            level = (total / weight - low) / ((high - low) or 1)
        # If nobody knows which items are rated, all count alike.
        n_ratings = known.setdefault("n_ratings", None)
        if n_ratings is not None:
            items = np.where((n_ratings > 0)[:, None], items, self._dtype(0))
        return known | {
            "item_vectors": items,
            "rating_scale": (low, high),
            "level": self._level(level),
            "n_clients": catalogue.n_clients,
            "content": self._item_prior(np.ones(len(items)) if n_ratings is None else n_ratings),
        }

    def _initial_broadcast(self, server):
        fields = {"scale": Dense(np.array([*server["rating_scale"], server["level"]]))}
        if server["n_ratings"] is not None:
            fields["n_ratings"] = Dense(server["n_ratings"])
        return Message(**fields)

    def _init_clients(self, block, message, key):
        columns = block.users[:, None] * self._width + np.arange(self._width)
        users = self.INIT_STD * key.private.at(-1).normal("user vectors", columns)
        if self.biases:
            users[:, 0] = 0
        low, high, level = message["scale"].values
        unit = float((high - low) or 1)
        n_of_items = np.zeros(block.n_items)
        if "n_ratings" in message:
            n_of_items = message["n_ratings"].values
        of_rating = np.repeat(np.arange(block.n_users), np.diff(block.indptr))
        n_of_users = np.bincount(of_rating, block.weights, minlength=block.n_users)
        held = np.zeros((len(block.row_items), self._width), dtype=self._dtype)
        return {
            "unit": unit,
            "level": float(level),
            "values": ((block.values - low) / unit).astype(self._dtype),
            "weights": block.weights.astype(self._dtype),
            "penalties": (*self._item_penalties(n_of_items), *self._user_penalties(n_of_users)),
            "users": self._vectors(users.astype(self._dtype)),
            "held": self._vectors(held),
            "joined": np.zeros(len(block.row_items), dtype=bool),
            "steps": np.zeros(block.n_clients, dtype=np.int64),
        }

    def _item_penalties(self, n_ratings):
        """Return the penalties on items and their biases, shared out among their ratings."""
        few = self.FEW_RATINGS / ITEMS_NEED
        return self._penalties(n_ratings, self.reg_item, few, each=n_ratings)

    def _user_penalties(self, n_ratings):
        return self._penalties(n_ratings, self.reg_user, self.FEW_RATINGS)

    def _penalties(self, n_ratings, reg, few, each=1.0):
        """Return the penalties on vectors and biases by numbers of ratings, divided by `each`."""
        more = np.maximum(1.0, few / np.maximum(n_ratings, 1.0))
        each = np.where(np.greater(each, 0), each, np.inf)
        share = more / np.maximum(each, np.finfo(self._dtype).tiny)
        on_vectors = (reg * share * n_ratings**self.REG_POWER).astype(self._dtype)
        on_biases = (self.reg_bias * share).astype(self._dtype)
        return on_vectors, on_biases if self.biases else on_vectors

    # ---------------------------------------------------------------------- each round

    def _model(self, server):
        return Message(item_vectors=Dense(server["item_vectors"]))

    def _update_unrated_items(self, common, message, key):
        broadcast = message["item_vectors"].values
        if common is None:
            common = {"vectors": self._vectors(broadcast.copy()), "step": 0}
        common["step"] += 1
        now, *moments = common["vectors"]
        gradient = self._dtype(self.prox) * (now - broadcast)
        if self.optimizer == "adam":
            gradient, moments = adam(self, moments, common["step"], gradient)
        now = now - self._dtype(self.learning_rate) * gradient
        common["vectors"] = rfrec_kernels.Vectors(now, *moments)
        return common | {"shared": self._clipped(now)}

    def _upload_specs(self, n_items):
        return {"item_vectors": FieldSpec((n_items, self._width), clip=self._clip)}

    def _client_update(self, block, state, message, turn, key):
        broadcast = message["item_vectors"].values
        self._join(block, state, turn.active, broadcast)
        totals = self._totals(broadcast, turn)
        rates = self.prox, self.learning_rate
        loss = self._step(block, state, broadcast, turn.active, *rates, totals)
        return state, self._upload(block, state, broadcast, turn, totals), loss

    def _join(self, block, state, active, broadcast):
        """Let rated items begin as they are received, in the first round of their clients."""
        first = np.repeat(active, block.row_counts) & ~state["joined"]
        if first.any():
            state["held"].now[first] = broadcast[block.row_items[first]]
            state["joined"] |= first

    def _step(self, block, state, broadcast, active, prox, rate, totals=None):
        """Step the active clients' users and rated items along their gradients."""
        state["steps"][active] += 1
        layout = block.layout
        loss = rfrec_kernels.step(
            layout,
            state["values"],
            state["weights"],
            active,
            state["users"],
            state["held"],
            broadcast,
            rfrec_kernels.Objective(
                state["level"],
                self.LINK == "sigmoid",
                bool(self.biases),
                float(prox),
                *state["penalties"],
            ),
            rfrec_kernels.Rule(float(rate), self.BETA_1, self.BETA_2, self.EPSILON),
            np.maximum(state["steps"], 1),
            rfrec_kernels.scratch(layout, state["held"]),
            self._clip,
            totals,
        )
        # In squared ratings, like the validation loss.
        return np.multiply(loss, (state["unit"] ** 2, 1.0))

    @staticmethod
    def _totals(broadcast, turn):
        """Return where the senders' rated items are added up; nowhere if uploads are separate."""
        nobody = np.zeros_like(turn.active)
        return rfrec_kernels.Totals(
            nobody if turn.separate else turn.active & turn.delivers,
            np.ones_like(turn.active),
            np.zeros(broadcast.shape),
            np.zeros(len(broadcast)),
        )

    def _upload(self, block, state, broadcast, turn, totals):
        """Return clip(V_c) of each client, or with "holders" its change where it has rated."""
        sums, is_finite = totals.sums, totals.is_finite
        shared = state["common"]["shared"] if self.aggregation == "clients" else None
        if turn.separate:
            others = {}
            if shared is not None:
                others = {"default": shared.astype(np.float64) - broadcast, "center": broadcast}
            sent = self._clipped(state["held"].now)
            sums = SparseRows.since(broadcast, block.row_indptr, block.row_items, sent, **others)
        elif shared is None:
            sums -= totals.counts[:, None] * broadcast
        else:
            n_senders = np.count_nonzero(totals.senders & is_finite)
            sums += (n_senders - totals.counts)[:, None] * shared
        return Updates({"item_vectors": sums}, is_finite=is_finite)

    def _upload_centers(self, message):
        if self.aggregation != "clients":
            return {}
        return {"item_vectors": message["item_vectors"].values}

    def _aggregate(self, server, upload, key):
        if upload is None:
            return server
        if self.aggregation == "clients":
            items = upload["item_vectors"].mean
        else:
            share = upload.n_clients / server["n_clients"]
            n_holders = np.maximum(server["held_items"] * share, 1)[:, None]
            items = server["item_vectors"] + upload["item_vectors"].sum / n_holders
        return server | {"item_vectors": items.astype(self._dtype)}

    # ------------------------------------------------------------------------- the end

    def _final_model(self, server):
        if server["content"] is None or server["n_ratings"] is None:
            return self._model(server)
        return Message(item_vectors=Dense(server["content"].completed(server["item_vectors"])))

    def _personalize(self, block, state, message, turn, key):
        items, trained = message["item_vectors"].values, state is not None
        if not trained:
            state = self._init_clients(block, message, key)
        users, held = state["users"].now, state["held"].now
        untrained = ~(trained & np.isfinite(users).all(axis=1))
        untrained &= block.users_of(turn.active)
        if untrained.any():
            users = users.copy()
            users[untrained] = self._solved(block, state, untrained, items)
        if self.predict_with == "local":
            own = trained & np.isfinite(held)
            held = np.where(own, held, items[block.row_items])
        common = state.get("common")
        shared = items if common is None else common["vectors"].now
        return {"users": users, "held": held, "shared": shared}

    def _solved(self, block, state, whom, items):
        """Return the vectors that minimise the users' objectives with the items fixed.

        Gauss-Newton steps from zero: each solves a ridge regression and is halved until the
        user's objective falls. With the identity link the first one is the solution.
        """
        n_ratings, taken = np.diff(block.indptr)[whom], np.repeat(whom, np.diff(block.indptr))
        n_users, indptr = len(n_ratings), np.concatenate([[0], np.cumsum(n_ratings)])
        of_rating = np.repeat(np.arange(n_users), n_ratings)
        rated, values = block.items[taken], state["values"][taken].astype(np.float64)
        weights = state["weights"][taken].astype(np.float64)
        _, _, reg_user, reg_bias = state["penalties"]
        penalties = np.repeat(reg_user[whom, None], self._width, axis=1).astype(np.float64)
        partners, item_bias = items.astype(np.float64), np.zeros(len(items))
        if self.biases:
            penalties[:, 0] = reg_bias[whom]
            item_bias, partners[:, 0] = partners[:, 0].copy(), 1

        def evaluate(users):
            linear = state["level"], np.zeros(n_users), item_bias, users, partners
            scores = linear_scores(of_rating, rated, *linear)
            errors = values - self._expected(scores)
            loss = np.bincount(of_rating, weights * errors**2, minlength=n_users)
            return scores, errors, loss + (penalties * users**2).sum(axis=1)

        users, solved = np.zeros((2, n_users, self._width))
        everyone = np.ones(n_users, dtype=bool)
        work = wmf_kernels.workspace(block, users)
        scores, errors, loss = evaluate(users)
        for _ in range(SOLVER_STEPS):
            slopes = np.ones(len(scores))
            if self.LINK == "sigmoid":
                slopes = np.maximum(expit(scores) * expit(-scores), TINY)
            targets = scores - state["level"] - item_bias[rated] + errors / slopes
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

    # ----------------------------------------------------------------- how it predicts

    def _user_attributes(self, block, state):
        attributes = super()._user_attributes(block, state)
        if self.predict_with == "local":
            attributes["_own_items"] = OwnItems.of(block, state["held"], state["shared"])
        return attributes

    def _server_attributes(self, message):
        attributes = super()._server_attributes(message)
        return attributes | {"_mean_user_bias": self._mean_bias(message, attributes)}

    def _mean_bias(self, message, attributes):
        """Return the user bias with which the items' biases alone give the mean rating."""
        if not self.biases or "n_ratings" not in message:
            return 0.0
        weights = np.maximum(message["n_ratings"].values, 0).astype(np.float64)
        if not weights.any():
            return 0.0
        scores = attributes["global_bias_"] + attributes["item_bias_"].astype(np.float64)
        level = self._expected(message["scale"].values[2])
        low, high = -FARTHEST, FARTHEST
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            above = np.average(self._expected(scores + middle), weights=weights) > level
            low, high = (low, middle) if above else (middle, high)
        return (low + high) / 2

    def _expected(self, scores):
        """Return the scaled ratings of scores."""
        return expit(scores) if self.LINK == "sigmoid" else scores

    def _response(self, scores):
        low, high = self.rating_scale_
        if self.LINK == "sigmoid":
            return low + (high - low) * expit(scores)
        return np.clip(low + (high - low) * scores, low, high)

    def _score_pairs(self, users, items):
        if self.predict_with == "global":
            scores = linear_scores(users, items, *self._linear_part())
        else:
            scores = self._own_scores(users, items)
        scores[(users < 0) & (items >= 0)] += self._mean_user_bias
        return self._response(scores)

    def _score_all(self, users):
        if self.predict_with == "global":
            scores = super()._score_all(users)
        else:
            items = np.arange(self.n_items_)
            rows = [self._own_scores(np.full(len(items), user), items) for user in users]
            scores = np.stack(rows)
        scores[users < 0] += self._mean_user_bias
        return scores

    def _own_scores(self, users, items):
        """Return the scores of pairs with the item vectors of the users' clients."""
        level, user_bias, item_bias, user_factors, item_factors = self._linear_part()
        known_user, known_item = (users >= 0)[:, None], (items >= 0)[:, None]
        partners = np.where(known_user, user_factors[users], 0)
        if self.biases:
            item_factors = np.column_stack([item_bias, item_factors])
            partners = np.column_stack([np.ones(len(users)), partners])
        own = self._own_items.vectors(users, np.maximum(items, 0), item_factors)
        scores = level + np.where(users >= 0, user_bias[users], 0)
        return scores + np.sum(np.where(known_item, own, 0) * partners, axis=1)

    def _forget_users(self, users):
        if hasattr(self, "_own_items"):
            self._own_items = self._own_items.without(users)

    # ------------------------------------------------------------------- what it needs

    @property
    def _clip(self):
        local_dp = self._setting().local_dp
        bound = None if local_dp is None else local_dp.number_clip
        return None if bound is None else float(bound)

    def _clipped(self, vectors):
        clip = self._clip
        return vectors if clip is None else np.clip(vectors, -clip, clip)

    def _level(self, mean):
        """Return the score of the mean rating, which is scaled to [0, 1]."""
        if not self.biases:
            return 0.0
        return float(logit(np.clip(mean, 0.01, 0.99)) if self.LINK == "sigmoid" else mean)

    def _vectors(self, now):
        """Return vectors with Adam's moments; plain gradient descent has none."""
        if self.optimizer == "gd":
            return rfrec_kernels.Vectors(now, None, None)
        # Not zeros_like, which writes them: memory is for the clients that have taken part.
        moments = (np.zeros(now.shape, now.dtype) for _ in range(2))
        return rfrec_kernels.Vectors(now, *moments)

    def _private_vectors(self, state):
        return state["users"].now

    def _memory(self, state):
        users, held = ([one for one in state[n] if one is not None] for n in ("users", "held"))
        return {"users": users, "clients": [state["steps"]], "rows": [*held, state["joined"]]}

    def _upload_moving(self, view, rows, moves):
        if self.aggregation == "clients":
            return {"item_vectors": view.n_senders / view.n_own * moves}
        if "n_ratings" in view.message:
            # With weights of 1 these are the numbers of holders.
            share = self._cohort_share(view.data.n_clients)
            n_holders = view.message["n_ratings"].values[rows, None] * share
        else:
            n_holders = view.n_expected("item_vectors")
        return {"item_vectors": np.maximum(n_holders, 1) / view.n_own * moves}

    def _least_bytes(self, data):
        own = np.dtype(self._dtype).itemsize * len(data.items) * self._width
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

    def _private_problems(self, part):
        if part == "local_dp":
            yield from problems_of_scale(self, part)
        if self.aggregation == "holders":
            yield (
                f"aggregation='holders' needs the number of holders of each item, which {part} "
                f'does not protect; set aggregation="clients" with {part}.'
            )

    def _check_setting(self, federation, data, blocks):
        super()._check_setting(federation, data, blocks)
        if not self._shares_state:
            return
        n_vectors = len(blocks) * data.n_items
        copies = (3 if self.optimizer == "adam" else 1) + (self.predict_with == "local")
        nbytes = n_vectors * copies * self._width * np.dtype(self._dtype).itemsize
        # Blocks of clients with equal histories never have many more vectors than ratings.
        if nbytes > DENSE_LIMIT and n_vectors > 2 * (len(data.items) + data.n_items):
            raise ValueError(
                f"Simulating {data.n_clients} clients of unequal history exactly would take "
                f"{nbytes / 2**30:.1f} GiB: each has an item matrix that no other shares. Use "
                'aggregation="holders" with predict_with="global", which need no such matrix, '
                'dropout_mode="upload", client_fraction=1 or sampling="rotating", or group users '
                "into fewer clients."
            )
