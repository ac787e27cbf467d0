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
from fedrecsk.data._rating_scale import scale_of
from fedrecsk.federated._own_items import OwnItems
from fedrecsk.federated._ratings import BiasColumn
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol.messages import Dense, Message
from fedrecsk.updates import ClientUpdates, FieldSpec, SparseRows, all_finite

rfrec_kernels: LazyModule = LazyModule("fedrecsk.federated._rfrec_kernels")
shared_kernels: LazyModule = LazyModule("fedrecsk._utils.shared_kernels")

DENSE_LIMIT = 2 * 2**30
SOLVER_STEPS = 10


# Interval in which the bias of unknown users is searched, and how often it is halved.
FARTHEST, BISECTIONS = 20.0, 60
# Items with this share of `FEW_RATINGS` are no longer shrunk more.
ITEMS_NEED = 3


def caution(n_ratings: np.ndarray, few: float) -> np.ndarray:
    """Factors on the penalties of users or items with these numbers of ratings."""
    return np.maximum(1.0, few / np.maximum(n_ratings, 1.0))


@documented
@dataclass(eq=False, repr=False)
class RFRec(BiasColumn, RatingMixin, FederatedRecommender):
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

        set-up  clients send sums and counts of ratings     _setup_update, _setup_aggregate
        each round
          1  server sends the mean of the V_c               _model
          2  clients step on their users and rated items    _client_update: kernel local_step
          3  ... and on the items that they have not rated  _follow: kernel follow
          4  clients upload clip(V_c)                       _upload
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

    *Participation.* Lost uploads do little harm, even nine in ten; so do clients without a
    connection ("stale") if half of the clients have one. If nine in ten have none, the model ends
    worse than biases alone on ML-100k with "clients", and slightly better with "holders". Clients
    that do nothing for some rounds do more harm: with cohorts (``client_fraction`` below 1) or
    dropout mode "offline", the mean over all clients includes outdated copies of unrated items and
    the model ends worse than biases alone. ``aggregation="holders"`` helps while half of the
    clients take part; with a tenth of them no parameters that we tried beat biases
    (``python -m benchmarks.rfrec participation``).

    *Simulation.* Clients that have received the same broadcasts and updated in the same rounds
    have equal vectors for all items that they have not rated, so they share one copy. This
    is exact. With "holders" and global prediction these vectors are not needed, and any
    participation costs the same; with "clients" or local prediction, every client with a history of
    its own has such a matrix, and the fit raises an error if these take more than 2 GiB.

    *Constants*, which only a subclass can change: ``INIT_STD = 0.1``, the standard deviation of
    the initial vectors; ``REG_POWER = 0.5``, how fast the penalties on vectors grow with the number
    of ratings (0: not at all; 1: in proportion); ``FEW_RATINGS = 15``, the number of ratings below
    which penalties grow, because the data say little: those of a user with n ratings, also on its
    bias, are multiplied by ``FEW_RATINGS / n`` if that is more than 1, and those of an item by a
    third of that; ``LINK = "sigmoid"``, from score to scaled rating (with "identity" predictions
    are clipped to the scale); Adam's ``BETA_1 = BETA_2 = 0.9`` and ``EPSILON = 1e-8``.

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

    INIT_STD = 0.1
    REG_POWER = 0.5
    FEW_RATINGS = 15.0
    LINK = "sigmoid"
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
    }

    _single_uploads = True
    _dtype = np.float32
    _user_width = "n_factors"

    @property
    def _shares_state(self):
        # Otherwise the vectors of items that a client has not rated are not needed.
        return self.aggregation == "clients" or self.predict_with == "local"

    # --------------------------------------------------------------- before the rounds

    def _init_server(self, catalogue, key):
        server = {
            "item_vectors": self._first_items(catalogue, key),
            "rating_scale": scale_of(self.rating_scale, catalogue.rating_range),
            "n_ratings": None,
            "n_clients": catalogue.n_clients,
        }
        # The middle of the scale, if the mean rating is not known.
        return server | {"level": self._level(0.5)}

    @property
    def _n_setups(self):
        return int(bool(self._setup_specs(1, 0)))

    def _setup_specs(self, n_items, step):
        specs = {}
        if self._private_by is not None:
            return specs
        if self.biases:
            specs["ratings"] = FieldSpec((2,), learned=False)
        if self.biases or self.reg_item > 0:
            specs["n_ratings"] = FieldSpec((n_items,), learned=False)
        if self.aggregation == "holders":
            specs["held_items"] = FieldSpec((n_items,), dtype="uint8", learned=False)
        return specs

    def _setup_aggregate(self, server, upload, step, key):
        sums = {name: total.sum for name, total in upload.items()}
        server = server | sums
        if "ratings" in sums:
            low, high = server["rating_scale"]
            total, weight = server.pop("ratings")
            server["level"] = self._level((total / weight - low) / ((high - low) or 1))
        if "n_ratings" in sums:
            rated = (sums["n_ratings"] > 0)[:, None]
            server["item_vectors"] = np.where(rated, server["item_vectors"], self._dtype(0))
        return server

    def _initial_broadcast(self, server):
        fields = {"scale": Dense(np.array([*server["rating_scale"], server["level"]]))}
        if server["n_ratings"] is not None:
            fields["n_ratings"] = Dense(server["n_ratings"])
        return Message(**fields)

    # ---------------------------------------------------------------------- each round

    def _model(self, server):
        return Message(item_vectors=Dense(server["item_vectors"]))

    def _update_unrated_items(self, common, message, key):
        broadcast = message["item_vectors"].values
        if common is None:
            common = {"vectors": self._vectors(broadcast.copy()), "step": 0}
        common["step"] += 1
        rule = self._rule(common["step"], self.learning_rate)
        rule = rule._replace(rate=float(rule.rate), debias=float(rule.debias))
        gradient = np.empty_like(broadcast)
        rfrec_kernels.follow(common["vectors"], broadcast, self.prox, rule, gradient)
        return self._to_upload(common, broadcast)

    def _init_clients(self, block, message, key):
        columns = block.users[:, None] * self._width + np.arange(self._width)
        users = self.INIT_STD * key.private.at(-1).normal("user vectors", columns)
        if self.biases:
            users[:, 0] = 0
        held = np.zeros((len(block.row_items), self._width), dtype=self._dtype)
        return self._private_data(block, message) | {
            "users": self._vectors(users.astype(self._dtype)),
            "held": self._vectors(held),
            "joined": np.zeros(block.n_clients, dtype=bool),
            "steps": np.zeros(block.n_clients, dtype=np.int64),
        }

    def _least_bytes(self, data):
        own = np.dtype(self._dtype).itemsize * len(data.items) * self._width
        everybody = self.client_fraction == 1 and not self.early_stopping
        return super()._least_bytes(data) + (own if everybody else 0)

    def _upload_specs(self, n_items):
        return {"item_vectors": FieldSpec((n_items, self._width), clip=self._clip)}

    def _client_update(self, block, state, message, turn, key):
        broadcast = message["item_vectors"].values
        self._join(block, state, turn.active, broadcast)
        totals = self._totals(block, state, broadcast, turn)
        loss = self._step(block, state, broadcast, turn, self.prox, self.learning_rate, totals)
        return state, self._upload(block, state, broadcast, turn, totals), loss

    def _upload_centers(self, message):
        if self.aggregation != "clients":
            return {}
        return {"item_vectors": message["item_vectors"].values}

    def _aggregate(self, server, message, upload, key):
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

    def _personalize(self, block, state, message, turn, key):
        items, trained = message["item_vectors"].values, state is not None
        if not trained:
            state = self._init_clients(block, message, key)
        users, held = state["users"].now, state["held"].now
        untrained = ~(trained & np.isfinite(users).all(axis=1))
        untrained = np.flatnonzero(block.users_of(turn.active) & untrained)
        if len(untrained):
            users = self._solved(block, state, untrained, items)
        if self.predict_with == "local":
            own = trained & np.isfinite(held)
            held = np.where(own, held, items[block.row_items])
        common = state.get("common")
        shared = items if common is None else common["vectors"].now
        return {"users": users, "held": held, "shared": shared}

    def _user_attributes(self, block, state):
        attributes = super()._user_attributes(block, state)
        if self.predict_with == "local":
            attributes["_own_items"] = OwnItems.of(block, state["held"], state["shared"])
        return attributes

    def _steps_of(self, key):
        """What a client does in a round, as a curious server replays it; see `attacks`."""
        return [("step", self.learning_rate, self.prox), ("send",)]

    def _private_vectors(self, state):
        return state["users"].now

    # ------------------------------------------------------------------- on the clients

    @property
    def _local_dp(self):
        return self._setting().local_dp

    @property
    def _private_by(self):
        """The federation's part that makes uploads private, if there is one."""
        parts = {"local_dp": self._local_dp, "central_dp": self._setting().central_dp}
        return next((name for name, part in parts.items() if part is not None), None)

    @property
    def _clip(self):
        bound = None if self._local_dp is None else self._local_dp.number_clip
        return None if bound is None else float(bound)

    def _level(self, mean):
        """Score of the mean rating, which is scaled to [0, 1]."""
        if not self.biases:
            return 0.0
        return float(logit(np.clip(mean, 0.01, 0.99)) if self.LINK == "sigmoid" else mean)

    def _vectors(self, now):
        """Vectors with Adam's moments; plain gradient descent has none."""
        if self.optimizer == "gd":
            return rfrec_kernels.Vectors(now, None, None)
        # Not zeros_like, which writes them: memory is for the clients that have taken part.
        moments = (np.zeros(now.shape, now.dtype) for _ in range(2))
        return rfrec_kernels.Vectors(now, *moments)

    def _private_data(self, block, message):
        """Scaled ratings and the weights of the penalties."""
        real = self._dtype
        low, high, level = message["scale"].values
        counts = np.zeros(block.n_items)
        if "n_ratings" in message:
            counts = message["n_ratings"].values
        users = np.repeat(np.arange(block.n_users), np.diff(block.indptr))
        mass = np.bincount(users, block.weights, minlength=block.n_users)
        reg_item, reg_item_bias = self._penalties_on_items(counts)
        reg_user, reg_user_bias = self._penalties_on_users(mass)
        unit = (high - low) or 1
        return {
            "unit": float(unit),
            "values": ((block.values - low) / unit).astype(real),
            "weights": block.weights.astype(real),
            "level": float(level),
            "reg_item": reg_item,
            "reg_item_bias": reg_item_bias,
            "reg_user": reg_user,
            "reg_user_bias": reg_user_bias,
        }

    def _penalties_on_items(self, counts):
        """Weights of the penalties on each rating's item, and on its bias, by items' ratings."""
        real = self._dtype
        reg_item, reg_item_bias = np.zeros((2, len(counts)), dtype=real)
        rated = counts > 0
        n_rated = np.maximum(counts, np.finfo(real).tiny)[rated]
        share = caution(n_rated, self.FEW_RATINGS / ITEMS_NEED) / n_rated
        reg_item[rated] = self.reg_item * share * n_rated**self.REG_POWER
        reg_item_bias[rated] = self.reg_bias * share
        return reg_item, reg_item_bias if self.biases else reg_item

    def _penalties_on_users(self, mass):
        """Weights of the penalties on users, and on their biases, by their numbers of ratings."""
        real = self._dtype
        more = caution(mass, self.FEW_RATINGS).astype(real)
        reg_user = (more * self.reg_user * mass**self.REG_POWER).astype(real)
        return reg_user, more * real(self.reg_bias) if self.biases else reg_user

    def _join(self, block, state, active, broadcast):
        """Clients in their first round begin with the items that they have received."""
        for c in np.flatnonzero(active & ~state["joined"]):
            rows = slice(block.row_indptr[c], block.row_indptr[c + 1])
            state["held"].now[rows] = broadcast[block.row_items[rows]]
        state["joined"] |= active

    def _step(self, block, state, broadcast, turn, pull, rate, totals):
        """The active clients' gradient step, with the senders' own vectors added to the totals."""
        state["steps"][turn.active] += 1
        layout, held, rfrec = self._layout(block), state["held"], rfrec_kernels
        rule = self._rule(np.maximum(state["steps"], 1), rate)
        loss = rfrec.step(
            layout,
            state["values"],
            state["weights"],
            turn.active,
            state["users"],
            held,
            broadcast,
            self._penalties(state, pull),
            rule,
            totals,
            rfrec.scratch(layout, held),
        )
        # In squared ratings, like the validation loss.
        return np.multiply(loss, (state["unit"] ** 2, 1.0))

    @staticmethod
    def _layout(block):
        return shared_kernels.Layout(
            block.client_indptr, block.indptr, block.row_indptr, block.rows, block.row_items
        )

    def _penalties(self, state, pull=0.0):
        return rfrec_kernels.Objective(
            state["level"],
            self.LINK == "sigmoid",
            bool(self.biases),
            float(pull),
            state["reg_item"],
            state["reg_item_bias"],
            state["reg_user"],
            state["reg_user_bias"],
        )

    def _rule(self, steps, rate):
        """Return the kernels' rule for clients that take their `steps`-th step, from 1."""
        if self.optimizer == "gd":
            rate = np.broadcast_to(float(rate), np.shape(steps)).copy()
            return rfrec_kernels.Rule(rate, 0.0, 0.0, 0.0, rate)
        return rfrec_kernels.Rule(
            rate / (1 - self.BETA_1**steps),
            float(self.BETA_1),
            float(self.BETA_2),
            float(self.EPSILON),
            1 / (1 - self.BETA_2**steps),
        )

    def _to_upload(self, common, broadcast):
        """With what clients upload for the items that they have not rated."""
        shared = common["vectors"].now
        if (clip := self._clip) is not None:
            shared = np.clip(shared, -clip, clip)
        return common | {"shared": shared, "broadcast": broadcast}

    def _upload(self, block, state, broadcast, turn, totals):
        """clip(V_c) of each client, or with "holders" its change where it has rated."""
        if turn.separate:
            return self._single(block, state, broadcast)
        is_finite = None
        if not all_finite(totals.sums):
            # Once more without the clients that have diverged.
            is_finite = self._sound(block, state)
            turn = turn._replace(delivers=turn.delivers & is_finite)
            totals = self._totals(block, state, broadcast, turn)
            self._add_held(block, state, totals)
        return ClientUpdates({"item_vectors": totals.sums}, is_finite=is_finite)

    def _single(self, block, state, broadcast):
        held = state["held"].now
        if (clip := self._clip) is not None:
            held = np.clip(held, -clip, clip)
        others = {}
        if self.aggregation == "clients":
            default = state["common"]["shared"].astype(np.float64) - broadcast
            others = {"default": default, "center": broadcast}
        rows = SparseRows.since(broadcast, block.row_indptr, block.row_items, held, **others)
        return ClientUpdates({"item_vectors": rows}, is_finite=self._sound(block, state))

    def _sound(self, block, state):
        is_finite = np.empty(block.n_clients, dtype=bool)
        rfrec_kernels.sound_clients(
            block.row_indptr, state["held"].now, block.client_indptr, state["users"].now, is_finite
        )
        return is_finite

    def _totals(self, block, state, broadcast, turn):
        """Where the kernels add up uploads: what all send alike, to which they add changes of it.

        If single uploads are sent, no client is added.
        """
        shape, senders = (block.n_items, self._width), turn.active & turn.delivers
        origin = broadcast
        if turn.separate:
            sums, senders = np.zeros((0, self._width)), np.zeros_like(senders)
        elif self.aggregation == "clients":
            origin, n_senders = state["common"]["shared"], np.count_nonzero(senders)
            sums = np.multiply(origin, n_senders, dtype=np.float64)
        else:
            sums = np.zeros(shape)
        return rfrec_kernels.Totals(senders, self._clip, origin, sums)

    def _add_held(self, block, state, totals):
        """Add the senders' own vectors to the totals."""
        layout = self._layout(block)
        rfrec_kernels.upload(layout.row_indptr, layout.row_items, state["held"].now, totals)

    def _solved(self, block, state, whom, items):
        """Users' vectors, some of them fitted from zero with the items fixed."""
        penalties = np.repeat(state["reg_user"][:, None], self._width, axis=1)
        if self.biases:
            penalties[:, 0] = state["reg_user_bias"]
        users = state["users"].now.copy()
        users[whom] = 0
        rfrec_kernels.solve_users(
            self._layout(block),
            state["values"],
            state["weights"],
            whom,
            users,
            items,
            self._penalties(state),
            penalties,
            SOLVER_STEPS,
            rfrec_kernels.Newton.of(self._width),
        )
        return users

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

    # ---------------------------------------------------------------- checks, predictions

    def _check_before_fit(self):
        super()._check_before_fit()
        part = self._private_by
        if part is None:
            return
        if self.aggregation == "holders":
            raise ValueError(
                f"aggregation='holders' needs the number of holders of each item, which {part} "
                f'does not protect; set aggregation="clients" with {part}.'
            )
        if self.rating_scale is None:
            raise ValueError(
                f"With {part} the rating scale must be public instead of derived from the data; "
                "set rating_scale=(low, high), for example (1, 5)."
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

    def _forget_users(self, users):
        if hasattr(self, "_own_items"):
            self._own_items = self._own_items.without(users)

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

    def _server_attributes(self, message):
        attributes = super()._server_attributes(message)
        return attributes | {"_mean_user_bias": self._bias_of_strangers(message, attributes)}

    def _bias_of_strangers(self, message, attributes):
        """The user bias with which the items' biases alone give the mean rating, by bisection.

        It is about the mean of the users' biases, which the server does not know.
        """
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
        """Scaled ratings of scores."""
        return expit(scores) if self.LINK == "sigmoid" else scores

    def _own_scores(self, users, items):
        level, user_bias, item_bias, user_factors, item_factors = self._linear_part()
        known_user, known_item = (users >= 0)[:, None], (items >= 0)[:, None]
        partners = np.where(known_user, user_factors[users], 0)
        if self.biases:
            item_factors = np.column_stack([item_bias, item_factors])
            partners = np.column_stack([np.ones(len(users)), partners])
        own = self._own_items.vectors(users, np.maximum(items, 0), item_factors)
        scores = level + np.where(users >= 0, user_bias[users], 0)
        return scores + np.sum(np.where(known_item, own, 0) * partners, axis=1)
