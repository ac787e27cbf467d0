"""RFRec: regularised federated recommendation (Liu et al., CIKM 2024, algorithm 1)."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.special import expit, logit
from sklearn.utils._param_validation import Interval, StrOptions

from fedrecsk import _kernels
from fedrecsk.base import RatingMixin
from fedrecsk.federated import _own_items
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.simulation.messages import Dense, Message

if TYPE_CHECKING:
    from fedrecsk.simulation.federation import Federation

DENSE_LIMIT = 2 * 2**30
SOLVER_STEPS = 10


class RFRec(RatingMixin, FederatedRecommender):
    """Regularised federated recommendation: every client has an item matrix of its own.

    Client c holds its users' private vectors and its own copy V_c of the whole item matrix,
    which a penalty ties to the mean of all clients' copies. Each round every client takes one
    gradient step on both and uploads V_c; the server averages and sends the mean back.

    With ratings scaled to [0, 1], client c minimises::

        sum_r w (y - link(level + b_u + b_i + p_u . q_i))^2
          + sum_u [reg_user n_u^reg_power |p_u|^2 + reg_bias b_u^2]
          + sum_i (n_ci / n_i) [reg_item n_i^reg_power |q_i|^2 + reg_bias b_i^2]
          + coupling / 2 |V_c - mean V|^2

    where n_u and n_i count the ratings of user u and item i, and n_ci those of item i that
    the client has: summed over the clients, items are penalised just as users are.

    Parameters
    ----------
    n_factors : int, default=19
        Length of p_u and q_i (d). With the bias, 20 numbers an item.
    n_rounds : int, default=100
        Rounds in total (K).
    coupling : float, default=0.1
        Weight of the tie between a client's item matrix and the mean (lambda).
    reg_user, reg_item : float, default=0.04
        Weights of the penalties on user vectors (lambda_u) and item vectors.
    reg_bias : float, default=0.07
        Weight of the penalty on every user's and item's bias, however many ratings it has.
    reg_power : float, default=0.5
        How the penalties on vectors grow with the number of ratings: 0 not at all, 1 in
        proportion.
    learning_rate : float, default=0.1
        Step size (alpha).
    optimizer : {"adam", "gd"}, default="adam"
        Adam (each client keeps its moments) or plain gradient descent.
    beta_1, beta_2 : float in [0, 1), default=0.9
        Decay of Adam's first and second moments.
    epsilon : float, default=1e-8
        Adam's term against division by zero.
    link : {"sigmoid", "identity"}, default="sigmoid"
        From score to scaled rating. With "identity", predictions are clipped to the scale.
    biases : bool, default=True
        Whether to have a global level (fixed at the mean rating) and biases of users and
        items.
    aggregation : {"all", "holders"}, default="all"
        What the server's matrix becomes. "all", the paper's: the mean of all clients'
        matrices, most of which have not rated a given item and only followed earlier means.
        "holders", a larger server step: an item moves by the sum of its changes at the
        clients that have rated it, over how many of these are expected among the clients
        heard from (at least 1). It needs the number of holders of each item and is refused
        under local differential privacy.
    predict_with : {"global", "local"}, default="global"
        Predict with the server's item matrix or with the client's own.
    rating_scale : tuple (low, high) or None, default=None
        The ends of the rating form, which everybody is taken to know. None: the range of y,
        which is refused under local differential privacy because it depends on the data.
    init_std : float, default=0.1
        Standard deviation of the initial vectors, which the server sends.
    client_fraction : float in (0, 1], default=1.0
        Share of the clients in a round's cohort.
    early_stopping : bool, default=False
        Stop when the clients' own held-out rows stop improving, and keep the best round's
        model.
    validation_fraction : float in (0, 1), default=0.1
        Share of its rows that each client holds out under early stopping.
    n_iter_no_change : int, default=10
        Rounds without improvement that end the fit.
    tol : float, default=1e-4
        What counts as an improvement of the held-out mean squared error, in squared rating
        units.
    warm_start : bool, default=False
        Go on with the last fit's rounds until `n_rounds` in total; keeps the private state.
    n_jobs : int or None, default=None
        Threads. The fitted model does not depend on it.
    random_state : int, RandomState instance or None, default=None
        Seeds everything: initial vectors, cohorts, dropout, noise, held-out rows.
    federation : Federation or None, default=None
        The world the method runs in. None: a perfect one.

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
    user_ids_, item_ids_ : ndarray of shape (n_users,) and (n_items,)
        Ids in the order of the vectors.
    n_users_, n_items_ : int
    n_rounds_ : int
        Rounds run.
    best_round_ : int
        The round whose model was kept; only with early stopping.
    loss_curve_ : list of float
        Mean squared error, in [0, 1] units, of each round's training rows before its step.
        For the researcher: it crosses no wire.
    history_ : list of dict
        A row a round: `round`, `loss`, `participants`, `bytes_down`, `bytes_up`, and
        `validation_loss` under early stopping.
    communication_ : Ledger
        Every byte that crossed.
    privacy_ : PrivacyReport
        What local differential privacy promises, by coordinate and in total.

    Raises
    ------
    ValueError
        By fit: if ratings lie outside `rating_scale`; if parameters and federation do not
        go together; if the clients diverge; if exact simulation needs too much memory.

    Notes
    -----
    *What crosses the wire.* Up, once, from every client whatever the dropout: its sum and
    number of ratings, its number of ratings of each item (a dense vector, so that a secure
    sum hides which) and, with ``aggregation="holders"``, which items it has rated. Down,
    once: the scale, the level and the numbers of ratings of all items. Each round down: the
    item matrix. Up: the client's whole item matrix (or, with "holders", its change, zero for
    items it has not rated). At the end, down: the final item matrix. Only sums over clients
    are used; alone, an upload of unrated items equals what the server expects, so in
    plaintext it reveals what a client has rated. Under local differential privacy nothing is
    enrolled: the level is the middle of the scale and items are not penalised.

    *Participation.* Lost uploads and clients without a connection ("stale") do little harm.
    Clients that do nothing for some rounds do: with cohorts (``client_fraction`` below 1) or
    dropout mode "offline", the mean over all clients includes outdated copies of unrated
    items and the model ends worse than biases alone. ``aggregation="holders"`` helps while
    half of the clients take part; with a tenth of them no setting that we tried beats biases
    (``python -m benchmarks.rfrec participation``).

    *What is ours.* The paper's literal method is ``RFRec(n_factors=20, coupling=10,
    reg_user=0.1, reg_item=0, reg_power=0, learning_rate=0.05, optimizer="gd",
    link="identity", biases=False, init_std=0.01)``. Adam and the sigmoid link are in the
    authors' code; the biases and the penalties that grow with the number of ratings are
    ours, chosen on validation data (``benchmarks/rfrec.py`` has the numbers). The problem is
    not convex, as the paper has it: the objective is the same at (p, q) and (-p, -q).

    *Simulation.* Clients that have heard the same broadcasts and updated in the same rounds
    hold equal vectors of all items they have not rated, so a block of such clients keeps one
    copy: (ratings + blocks x items) vectors instead of clients x items. This is exact. Where
    histories differ (dropout modes "stale" and "offline", random cohorts) every client is
    its own block, and the fit is refused if that takes more than 2 GiB.

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

    _parameter_constraints: dict = FederatedRecommender._parameter_constraints | {
        "n_factors": [Interval(Integral, 1, None, closed="left")],
        "coupling": [Interval(Real, 0, None, closed="left")],
        "reg_user": [Interval(Real, 0, None, closed="left")],
        "reg_item": [Interval(Real, 0, None, closed="left")],
        "reg_bias": [Interval(Real, 0, None, closed="left")],
        "reg_power": [Interval(Real, 0, 1, closed="both")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "optimizer": [StrOptions({"adam", "gd"})],
        "beta_1": [Interval(Real, 0, 1, closed="left")],
        "beta_2": [Interval(Real, 0, 1, closed="left")],
        "epsilon": [Interval(Real, 0, None, closed="neither")],
        "link": [StrOptions({"sigmoid", "identity"})],
        "biases": ["boolean"],
        "aggregation": [StrOptions({"all", "holders"})],
        "predict_with": [StrOptions({"global", "local"})],
        "rating_scale": [tuple, list, None],
        "init_std": [Interval(Real, 0, None, closed="left")],
    }

    _shares_state = True
    _dtype = np.float32

    def __init__(
        self,
        n_factors: int = 19,
        *,
        n_rounds: int = 100,
        coupling: float = 0.1,
        reg_user: float = 0.04,
        reg_item: float = 0.04,
        reg_bias: float = 0.07,
        reg_power: float = 0.5,
        learning_rate: float = 0.1,
        optimizer: Literal["adam", "gd"] = "adam",
        beta_1: float = 0.9,
        beta_2: float = 0.9,
        epsilon: float = 1e-8,
        link: Literal["sigmoid", "identity"] = "sigmoid",
        biases: bool = True,
        aggregation: Literal["all", "holders"] = "all",
        predict_with: Literal["global", "local"] = "global",
        rating_scale: tuple[float, float] | None = None,
        init_std: float = 0.1,
        client_fraction: float = 1.0,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        warm_start: bool = False,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        federation: Federation | None = None,
    ):
        self.n_factors = n_factors
        self.n_rounds = n_rounds
        self.coupling = coupling
        self.reg_user = reg_user
        self.reg_item = reg_item
        self.reg_bias = reg_bias
        self.reg_power = reg_power
        self.learning_rate = learning_rate
        self.optimizer = optimizer
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.link = link
        self.biases = biases
        self.aggregation = aggregation
        self.predict_with = predict_with
        self.rating_scale = rating_scale
        self.init_std = init_std
        self.client_fraction = client_fraction
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.federation = federation

    # ---------------------------------------------------------------------- the algorithm

    def _enrol(self, block):
        if self._local_dp is not None:
            return None
        fields = {}
        if self.biases:
            rating_sum = np.dot(block.weights, block.values)
            fields["ratings"] = Dense(np.array([rating_sum, block.weights.sum()]))
        if self.biases or self.reg_item > 0:
            fields["n_ratings"] = Dense(
                np.bincount(block.items, block.weights, minlength=block.n_items)
            )
        if self.aggregation == "holders":
            held = np.bincount(block.row_items, minlength=block.n_items)
            fields["n_holders"] = Dense(held, dtype="uint8")
        return Message(**fields) if fields else None

    def _init_server(self, catalogue, enrolment, key):
        shape = (catalogue.n_items, self._width)
        vectors = self.init_std * key.generator("item vectors").standard_normal(shape)
        enrolled = {} if enrolment is None else {n: f.sum for n, f in enrolment.items()}
        if self.biases:
            vectors[:, 0] = 0
        if "n_ratings" in enrolled:
            vectors[enrolled["n_ratings"] == 0] = 0
        low, high = self.rating_scale or catalogue.rating_range
        return {
            "item_vectors": vectors.astype(self._dtype),
            "rating_scale": (float(low), float(high)),
            "level": self._level(enrolled.get("ratings"), low, high),
            "n_ratings": enrolled.get("n_ratings"),
            "n_holders": enrolled.get("n_holders"),
            "n_clients": catalogue.n_clients,
        }

    def _announce(self, server):
        fields = {"form": Dense(np.array([*server["rating_scale"], server["level"]]))}
        if server["n_ratings"] is not None and (self.reg_item > 0 or self.biases):
            fields["n_ratings"] = Dense(server["n_ratings"])
        return Message(**fields)

    def _model(self, server):
        return Message(item_vectors=Dense(server["item_vectors"]))

    def _init_clients(self, block, message, key):
        real, items = self._dtype, message["item_vectors"].values
        columns = block.users[:, None] * self._width + np.arange(self._width)
        users = self.init_std * key.at(-1).normal("user vectors", columns)
        if self.biases:
            users[:, 0] = 0
        state = self._private_data(block, message) | {
            "users": users.astype(real),
            "held": items[block.row_items],
            "shared": items.copy(),
            "step": 0,
        }
        for name in ("users", "held", "shared"):
            # Plain gradient descent has no moments and never touches these.
            for moment in ("mean", "square"):
                vectors = state[name]
                adam = self.optimizer == "adam"
                state[f"{name}_{moment}"] = np.zeros_like(vectors) if adam else vectors
        return state

    def _client_update(self, block, state, message, key):
        broadcast = message["item_vectors"].values
        rule = self._next_rule(state, self.learning_rate)
        _kernels.rfrec.follow(
            state["shared"],
            state["shared_mean"],
            state["shared_square"],
            broadcast,
            self.coupling,
            rule,
        )
        sums = self._step(block, state, broadcast, self.coupling, rule, block.delivers)
        return state, self._upload(block, state, broadcast, sums)

    def _aggregate(self, server, message, upload, key):
        if upload is None:
            return server
        if self.aggregation == "all":
            items = upload["item_vectors"].mean
        else:
            heard_from = upload.n_clients / server["n_clients"]
            n_holders = np.maximum(server["n_holders"] * heard_from, 1)[:, None]
            items = server["item_vectors"] + upload["item_vectors"].sum / n_holders
        return server | {"item_vectors": items.astype(self._dtype)}

    def _personalize(self, block, state, message, key):
        items = message["item_vectors"].values
        if state is None:
            state = self._private_data(block, message) | {
                "users": np.zeros((block.n_users, self._width), dtype=self._dtype),
                "held": items[block.row_items],
                "shared": items,
            }
            return state | {"users": self._solved(block, state, items)}
        broken = ~np.isfinite(state["users"]).all(axis=1)
        if broken.any():
            fresh = state | {"users": np.where(broken[:, None], 0, state["users"])}
            solved = np.where(broken[:, None], self._solved(block, fresh, items), fresh["users"])
            own = np.where(np.isfinite(state["held"]), state["held"], items[block.row_items])
            state = state | {"users": solved, "held": own}
        return state

    def _attributes(self, server, states):
        users, items = states.by_user("users"), server["item_vectors"]
        first = int(self.biases)
        attributes = {
            "user_factors_": users[:, first:],
            "item_factors_": items[:, first:],
            "global_bias_": server["level"],
            "rating_scale_": server["rating_scale"],
        }
        if self.biases:
            attributes |= {"user_bias_": users[:, 0], "item_bias_": items[:, 0]}
        if self.predict_with == "local":
            attributes["_own_items"] = _own_items.OwnItems.of(states)
        return attributes

    # ------------------------------------------------------------------- its single lines

    @property
    def _width(self):
        return self.n_factors + int(self.biases)

    @property
    def _local_dp(self):
        return self._world().local_dp

    def _level(self, ratings, low, high):
        """Score of the mean rating, or of the middle of the scale if nobody told."""
        if not self.biases:
            return 0.0
        mean = 0.5 if ratings is None else (ratings[0] / ratings[1] - low) / ((high - low) or 1)
        return float(logit(np.clip(mean, 0.01, 0.99)) if self.link == "sigmoid" else mean)

    def _private_data(self, block, message):
        """Scaled ratings and the weights of the penalties, on the clients' side."""
        real = self._dtype
        low, high, level = message["form"].values
        reg_item, reg_item_bias = np.zeros((2, block.n_items), dtype=real)
        if "n_ratings" in message:
            n_ratings = np.maximum(message["n_ratings"].values, np.finfo(real).tiny)
            reg_item[:] = self.reg_item * n_ratings ** (self.reg_power - 1)
            reg_item_bias[:] = self.reg_bias / n_ratings
        users = np.repeat(np.arange(block.n_users), np.diff(block.indptr))
        mass = np.bincount(users, block.weights, minlength=block.n_users)
        return {
            "values": ((block.values - low) / ((high - low) or 1)).astype(real),
            "weights": block.weights.astype(real),
            "level": level,
            "reg_item": reg_item,
            "reg_item_bias": reg_item_bias,
            "reg_user": (self.reg_user * mass**self.reg_power).astype(real),
            "reg_user_bias": np.full(block.n_users, self.reg_bias, dtype=real),
        }

    def _next_rule(self, state, rate):
        """The kernels' step rule for the block's next step."""
        state["step"] += 1
        if self.optimizer == "gd":
            return False, float(rate), 0.0, 0.0, 0.0, 0.0
        return (
            True,
            float(rate / (1 - self.beta_1 ** state["step"])),
            float(self.beta_1),
            float(self.beta_2),
            float(self.epsilon),
            float(1 / (1 - self.beta_2 ** state["step"])),
        )

    def _step(self, block, state, broadcast, pull, rule, senders):
        """The clients' gradient step; returns the senders' own vectors, added up and counted."""
        sums = self._empty_sums(block)
        loss, weight = _kernels.rfrec.local_step(
            block.client_indptr,
            block.indptr,
            block.row_indptr,
            block.rows,
            block.row_items,
            state["values"],
            state["weights"],
            block.active,
            state["users"],
            state["users_mean"],
            state["users_square"],
            state["held"],
            state["held_mean"],
            state["held_square"],
            broadcast,
            state["level"],
            self.link == "sigmoid",
            self.biases,
            float(pull),
            state["reg_item"],
            state["reg_item_bias"],
            state["reg_user"],
            state["reg_user_bias"],
            rule,
            senders,
            self._clip,
            *sums,
        )
        state["training_loss"] = np.array([loss, weight])
        return sums

    def _upload(self, block, state, broadcast, sums=None):
        """The sum over the block's clients of clip(V_c), or of its change where rated.

        `sums`, if the step has made them already, are made again without the clients at fault
        if they are not finite.
        """
        sound = np.ones(block.n_clients, dtype=bool)
        if sums is None or not np.isfinite(sums[0]).all():
            sums = self._empty_sums(block)
            sound = _kernels.rfrec.sound_clients(
                block.row_indptr, state["held"], block.client_indptr, state["users"]
            )
            _kernels.rfrec.upload(
                block.row_indptr,
                block.row_items,
                state["held"],
                sound & block.delivers,
                self._clip,
                *sums,
            )
        held, n_holders = (array.astype(np.float64) for array in sums)
        if self.aggregation == "all":
            n_senders = np.sum(sound & block.delivers)
            shared = np.clip(state["shared"], -self._clip, self._clip)
            total = held + (n_senders - n_holders)[:, None] * shared
            field = Dense(total, clip=self._clip, center=broadcast)
        else:
            field = Dense(held - n_holders[:, None] * broadcast, clip=self._clip)
        return Message(item_vectors=field, sound=sound)

    def _empty_sums(self, block):
        shape = (block.n_items, self._width)
        return np.zeros(shape, dtype=self._dtype), np.zeros(block.n_items, dtype=self._dtype)

    @property
    def _clip(self):
        return float("inf") if self._local_dp is None else float(self._local_dp.clip)

    def _solved(self, block, state, items):
        """Users' vectors fitted to their own ratings with the items fixed."""
        penalties = np.repeat(state["reg_user"][:, None], self._width, axis=1)
        if self.biases:
            penalties[:, 0] = state["reg_user_bias"]
        users = state["users"].copy()
        _kernels.rfrec.solve_users(
            block.indptr,
            block.items,
            state["values"],
            state["weights"],
            users,
            items,
            state["level"],
            self.link == "sigmoid",
            self.biases,
            penalties,
            SOLVER_STEPS,
        )
        return users

    # ---------------------------------------------------------------- checks, predictions

    def _check_before_fit(self):
        super()._check_before_fit()
        if self.rating_scale is not None:
            _check_scale(self.rating_scale)
        if self._local_dp is None:
            return
        if self.aggregation == "holders":
            raise ValueError(
                "aggregation='holders' needs the number of holders of each item, which local_dp "
                'does not protect; use aggregation="all" under local differential privacy.'
            )
        if self.rating_scale is None:
            raise ValueError(
                "Under local_dp the rating scale must be public instead of read off the data; set "
                "rating_scale=(low, high), for example (1, 5)."
            )

    def _check_world(self, federation, data, blocks):
        if self.rating_scale is not None:
            _check_ratings(data.values, self.rating_scale)
        n_vectors = len(blocks) * data.n_items
        copies = (3 if self.optimizer == "adam" else 1) + (self.predict_with == "local")
        nbytes = n_vectors * copies * self._width * np.dtype(self._dtype).itemsize
        # Blocks of clients with equal histories never have many more vectors than ratings.
        if nbytes > DENSE_LIMIT and n_vectors > 2 * (len(data.items) + data.n_items):
            if federation.one_by_one:
                how, cure = "one by one, as the federation needs it,", "Group"
            else:
                how = "of unequal history exactly"
                cure = 'Use dropout_mode="upload", client_fraction=1 or sampling="rotating", group'
            raise ValueError(
                f"Simulating {data.n_clients} clients {how} would take {nbytes / 2**30:.1f} GiB: "
                f"each holds an item matrix that no other shares. {cure} users into fewer "
                "clients, or take less data."
            )

    def _new_user_attributes(self, data):
        _check_ratings(data.values, self.rating_scale_)
        return super()._new_user_attributes(data)

    def _forget_users(self, users):
        if hasattr(self, "_own_items"):
            self._own_items = self._own_items.without(users)

    def _response(self, scores):
        low, high = self.rating_scale_
        if self.link == "sigmoid":
            return low + (high - low) * expit(scores)
        return np.clip(low + (high - low) * scores, low, high)

    def _score_pairs(self, users, items):
        if self.predict_with == "global":
            return super()._score_pairs(users, items)
        return self._response(self._own_scores(users, items))

    def _score_all(self, users):
        if self.predict_with == "global":
            return super()._score_all(users)
        items = np.arange(self.n_items_)
        return np.stack([self._own_scores(np.full(len(items), user), items) for user in users])

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


def _check_scale(scale):
    numbers = len(scale) == 2 and all(isinstance(end, Real) for end in scale)
    if not (numbers and np.isfinite(scale).all() and scale[0] < scale[1]):
        raise ValueError(f"rating_scale must be (low, high) with low < high, got {scale!r}.")


def _check_ratings(values, scale):
    low, high = scale
    outside = (values < low) | (values > high)
    if outside.any():
        raise ValueError(
            f"y has the rating {values[outside][0]:g}, outside rating_scale=({low:g}, {high:g})."
        )
