"""ExplicitFCF: federated collaborative filtering of ratings, and FedMF (Chai et al., 2020)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from fedrecsk._utils.docs import documented
from fedrecsk._utils.sklearn_compat import Interval, StrOptions
from fedrecsk.base import RatingMixin
from fedrecsk.data._checks import scale_of
from fedrecsk.federated._feedback import BiasColumn
from fedrecsk.federated._optimizers import ServerStep
from fedrecsk.federated._wmf import wmf_kernels
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.portable import Ridge
from fedrecsk.protocol.messages import Dense, Message, Rows
from fedrecsk.updates import FieldSpec, SparseRows, Updates


class Ratings(NamedTuple):
    """The user and the item of each rating, its value less the level, and its weight."""

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray


@dataclass(eq=False, repr=False)
class RatingGradients(ServerStep, BiasColumn, RatingMixin, FederatedRecommender):
    """Base class of ExplicitFCF and SemiDFEGL, whose clients send gradients of rated items."""

    n_factors: int = 20
    _: KW_ONLY
    reg_user: float = 1.3
    reg_item: float = 1.3
    reg_bias: float = 3.0
    biases: bool = True
    rating_scale: tuple[float, float] | None = None

    INIT_STD = 0.1  # standard deviation of the initial item vectors
    # How fast penalties on vectors grow with the number of ratings. With 0, and biases=False, it is
    # the papers' form, which overfits.
    REG_POWER = 0.5

    _parameter_constraints: ClassVar[dict] = (
        FederatedRecommender._parameter_constraints
        | ServerStep._step_constraints
        | {
            "n_factors": [Interval(Integral, 1, None, closed="left")],
            "reg_user": [Interval(Real, 0, None, closed="neither")],
            "reg_item": [Interval(Real, 0, None, closed="left")],
            "reg_bias": [Interval(Real, 0, None, closed="neither")],
            "biases": ["boolean"],
            "rating_scale": [tuple, list, None],
        }
    )

    _single_uploads = True
    _dtype = np.float32
    _user_width = "n_factors"
    _carried = ("item_vectors",)
    # The items whose rows are sent: those that the client has rated.
    _rows = "held"

    def _setup_specs(self, n_items):
        specs = super()._setup_specs(n_items)
        specs["n_ratings"] = FieldSpec((n_items,), self._rows, learned=False)
        if self._rows == "held":
            # An int32 for each rated item: its index.
            specs["held_items"] = FieldSpec((n_items,), "held", dtype="int32", learned=False)
        return specs

    def _begin(self, catalogue, sums, key):
        total, number = sums["ratings"].sum
        # Noise (central_dp) may turn a count negative, and take the mean out of the scale.
        n_ratings = np.maximum(sums["n_ratings"].sum, 0)
        low, high = scale_of(self.rating_scale, catalogue.rating_range)
        level = np.clip(total / number, low, high) if number > 0 else (low + high) / 2
        rated = (n_ratings > 0)[:, None]
        return {
            "item_vectors": np.where(rated, self._first_items(catalogue, key), self._dtype(0)),
            "rating_scale": (low, high),
            "level": float(level) if self.biases else 0.0,
            "n_clients": catalogue.n_clients,
            "penalties": self._penalties(n_ratings, self.reg_item) / catalogue.n_clients,
        }

    def _initial_broadcast(self, server):
        return Message(scale=Dense(np.array([*server["rating_scale"], server["level"]])))

    def _init_clients(self, block, message, key):
        users = np.repeat(np.arange(block.n_users), np.diff(block.indptr))
        n_ratings = np.bincount(users, block.weights, minlength=block.n_users)
        values = block.values - message["scale"].values[2]
        return {
            "ratings": Ratings(
                users, block.items, values.astype(self._dtype), block.weights.astype(self._dtype)
            ),
            "n_ratings": n_ratings,
            "penalties": self._penalties(n_ratings, self.reg_user),
            "users": np.zeros((block.n_users, self._width), dtype=self._dtype),
        }

    def _final_model(self, server):
        # To recommend, a client needs the items that it has not rated.
        return Message(item_vectors=Dense(server["item_vectors"]))

    def _response(self, scores):
        return np.clip(scores, *self.rating_scale_)

    def _penalties(self, n_ratings, reg):
        """Return the penalties on each number of vectors, by their numbers of ratings."""
        penalties = np.repeat((reg * n_ratings**self.REG_POWER)[:, None], self._width, axis=1)
        if self.biases:
            penalties[:, 0] = self.reg_bias
        return penalties

    def _fit_users(self, block, ratings, penalties, items, who, users):
        """Solve exactly for the users of a mask, in place."""
        items, values = items.astype(self._dtype), ratings.values
        if self.biases:
            values = values - items[ratings.items, 0]
            items[:, 0] = 1
        equations = wmf_kernels.Ratings(ratings.items, ratings.weights, ratings.weights * values)
        work, penalties = wmf_kernels.workspace(block, users), penalties.astype(self._dtype)
        wmf_kernels.fit_raters(block.indptr, who, equations, items, penalties, work, users)

    def _with_ones(self, users):
        """Return what items are multiplied by: users' rows with 1 in place of their biases."""
        left = users.copy()
        if self.biases:
            left[:, 0] = 1
        return left

    @staticmethod
    def _rated(block, who):
        """Return the ratings of the clients of a mask, as an index."""
        if who.all():
            return slice(None)
        return np.flatnonzero(np.repeat(block.users_of(who), np.diff(block.indptr)))

    def _errors(self, block, ratings, who, left, user_bias, items):
        """Return w (score - rating) of each rating, 0 for those of clients outside a mask."""
        places, errors = self._rated(block, who), np.zeros(len(block.items), self._dtype)
        users, rated, values, weights = (one[places] for one in ratings)
        # Clients that have diverged are left out of the sums, or report it themselves.
        with np.errstate(over="ignore", invalid="ignore"):
            scores = np.einsum("kf,kf->k", left[users], items[rated]) + user_bias[users]
            errors[places] = weights * (scores - values)
        return errors

    def _loss(self, block, errors, weights, who):
        """Return the sums of w (score - rating)^2 and of w over the clients of a mask."""
        places = self._rated(block, who)
        errors, weights = errors[places].astype(np.float64), weights[places].astype(np.float64)
        positive = weights > 0
        return (errors[positive] ** 2 / weights[positive]).sum(), weights.sum()

    def _by_item(self, block, turn, *terms):
        """Return sums over users of a number of each rating times the user's row, and is_finite.

        `terms` are pairs of numbers and rows. The sums are by item, or client by client.
        """
        broken = ~np.isfinite(sum(numbers for numbers, _ in terms))
        is_finite = np.ones(block.n_clients, dtype=bool)
        owners = np.searchsorted(block.rating_indptr, np.flatnonzero(broken), "right") - 1
        is_finite[owners] = False
        sends = turn.active if turn.separate else turn.active & turn.delivers & is_finite
        columns, n_columns, dtype = block.items, block.n_items, np.float64
        if turn.separate:
            columns, n_columns, dtype = block.rows, len(block.row_items), self._dtype
        senders, shape, total = block.users_of(sends)[:, None], (block.n_users, n_columns), 0
        for numbers, rows in terms:
            numbers = numbers if turn.separate else np.where(broken, 0, numbers)
            matrix = csr_array((numbers, columns, block.indptr), shape)
            total = total + matrix.T @ np.where(senders, rows, 0).astype(dtype)
        if turn.separate:
            own = block.own_rows(sends)
            total = SparseRows(own.indptr, own.items, total[np.repeat(sends, block.row_counts)])
        return total, is_finite

    def _upload_moving(self, view, rows, moves):
        return {"gradient": self._gradient_moving(view, "gradient", moves)}


@documented
@dataclass(eq=False, repr=False)
class ExplicitFCF(RatingGradients):
    """Federated collaborative filtering of ratings: exact users, gradients, Adam on the server.

    Each round every client solves for its users' vectors and biases exactly, given the items
    that they have rated, and uploads the gradient of its squared errors in these items; the
    server adds these up and takes a step of Adam. Together they minimise::

        sum_r w (r - level - b_u - b_i - p_u . q_i)^2
          + sum_u [reg_user n_u^REG_POWER |p_u|^2 + reg_bias b_u^2]
          + sum_i [reg_item n_i^REG_POWER |q_i|^2 + reg_bias b_i^2]

    where n_u and n_i count the ratings of user u and item i (the sum of their weights). Papers on
    ratings use it as a baseline under the name "FCF" and, with ``secure_aggregation``, "FedMF".

    Parameters
    ----------
    n_factors : int, default=20
        Length of p_u and q_i (K).
    n_rounds : int, default=100
        Number of rounds in total.
    reg_user, reg_item : float, default=1.3
        Weights of the penalties on user vectors and item vectors (lambda).
    reg_bias : float, default=3.0
        Weight of the penalty on every user's and item's bias, however many ratings it has.
    learning_rate : float, default=0.03
        Size of the server's step (gamma).
    optimizer : {"adam", "gd"}, default="adam"
        Whether the server uses Adam or plain gradient descent. The objective is divided by the
        number of clients, which makes no difference to Adam.
    biases : bool, default=True
        Whether to model a level (the mean rating) and biases of users and items. The papers do
        not.
    upload : {"local", "all"}, default="local"
        Which items' rows are downloaded and uploaded each round. "local": those that the client has
        rated. "all": all of them, zero where the client has rated nothing, so that a secure sum
        can add them up and hides which these are.
    rating_scale : tuple (low, high) or None, default=None
        The ends of the rating scale, assumed to be public; predictions are clipped
        to them. None: the range of y.
    {shared parameters}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors), dtype float32
        p_u, solved by every client for the final items; private to the client.
    item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        The server's q_i.
    user_bias_, item_bias_ : ndarray of shape (n_users,) and (n_items,), dtype float32
        b_u and b_i; absent without biases.
    global_bias_ : float
        The level; 0 without biases.
    rating_scale_ : tuple of float
        The ends of the rating scale.
    {shared attributes}

    Raises
    ------
    ValueError
        By fit: if ratings lie outside `rating_scale`; with `local_dp`; with
        `secure_aggregation` and ``upload="local"``; if the clients diverge.

    See Also
    --------
    FCF : The same for implicit feedback.

    Notes
    -----
    *Algorithm*::

        set-up  clients send sums and counts of ratings       _setup_update, _begin
        each round
          1  server sends (b_i, q_i), of own items with "local" _model
          2  clients solve for their users                    _fit_users: kernel fit_raters
          3  ... and upload the gradient of rated items       _by_item
          4  server takes a step of Adam                      _aggregate
        end
          5  server sends all items                           _final_model
          6  clients solve for their users once more          _personalize: kernel fit_raters

    *What is sent.* Once, up: the client's sum and number of ratings, and its number of ratings
    of each item; with "local" also which items these are. Once, down: the scale and the level.
    Each round, down: (b_i, q_i). Up: for each rated item ``sum_u w (score - r) (1, p_u)``. At
    the end, down: all items.

    *What it reveals.* The server uses only sums over clients. In plaintext, one upload of a
    one-user client gives p_u, the user's items and all ratings exactly: rows are multiples of
    (1, p_u), the multiples are the errors, and the ridge regression's own equation gives the
    bias (:func:`fedrecsk.attacks.measure_leak`). Chai et al. prove the same for two uploads, and
    encrypt them: set ``upload="all"`` and `secure_aggregation`.

    *Gradients* are sent as half of the derivatives; the server doubles them, and divides a
    cohort's sum by the number of uploads accepted and the penalties by the number of all
    clients.

    References
    ----------
    .. [1] M. Ammad-ud-din et al., "Federated Collaborative Filtering for Privacy-Preserving
       Personalized Recommendation System", arXiv:1901.09888, 2019.
    .. [2] D. Chai, L. Wang, K. Chen and Q. Yang, "Secure Federated Matrix Factorization", IEEE
       Intelligent Systems 36(5), 2021 (arXiv:1906.05108), sections 3 to 5.
    .. [3] L. Liu et al., "Efficient and Robust Regularized Federated Recommendation",
       CIKM 2024, equations 3 and 4.

    Examples
    --------
    >>> from fedrecsk import ExplicitFCF
    >>> from fedrecsk.datasets import make_ratings
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = ExplicitFCF(n_factors=8, n_rounds=20, random_state=0).fit(X, y)
    >>> items, scores = model.recommend(X[:2, 0], n_recommendations=3)
    >>> items.shape
    (2, 3)
    >>> model.communication_.bytes_up == 60 * 4 * 2 + 900 * (4 + 4) + 20 * 900 * 4 * 9
    True
    """

    _: KW_ONLY
    n_rounds: int = 100
    learning_rate: float = 0.03
    upload: Literal["local", "all"] = "local"

    _parameter_constraints: ClassVar[dict] = RatingGradients._parameter_constraints | {
        "upload": [StrOptions({"local", "all"})],
    }

    _no_local_dp = (
        "its set-up counts ratings in plaintext, and its gradients are not clipped. Use RFRec for "
        "local differential privacy."
    )

    @property
    def _rows(self):
        return "held" if self.upload == "local" else "all"

    def _model(self, server):
        rows = Rows if self.upload == "local" else Dense
        return Message(item_vectors=rows(server["item_vectors"]))

    def _upload_specs(self, n_items):
        return {"gradient": FieldSpec((n_items, self._width), self._rows)}

    def _client_update(self, block, state, message, turn, key):
        ratings, users = state["ratings"], state["users"]
        items, who = message["item_vectors"].values.astype(self._dtype), turn.active
        self._fit_users(block, ratings, state["penalties"], items, block.users_of(who), users)
        left = self._with_ones(users)
        bias = users[:, 0] if self.biases else np.zeros(len(users), self._dtype)
        errors = self._errors(block, ratings, who, left, bias, items)
        gradient, is_finite = self._by_item(block, turn, (errors, left))
        loss = self._loss(block, errors, ratings.weights, who)
        return state, Updates({"gradient": gradient}, is_finite=is_finite), loss

    def _aggregate(self, server, upload, key):
        if upload is None:
            return server
        gradient = upload["gradient"].mean + server["penalties"] * server["item_vectors"]
        return self._stepped(server, "item_vectors", 2 * gradient)

    def _public_half(self):
        vectors, offset = self.item_factors_, np.full(self.n_items_, self.global_bias_)
        penalty, power = np.full(self._width, float(self.reg_user)), np.zeros(self._width)
        power[int(self.biases) :] = self.REG_POWER
        if self.biases:
            vectors = np.column_stack([np.ones_like(vectors[:, 0]), vectors])
            offset, penalty[0] = offset + self.item_bias_, self.reg_bias
        return Ridge.of(
            vectors, np.diag(penalty), offset=offset, power=power, rates=True, confidence=1.0
        )

    def _personalize(self, block, state, message, turn, key):
        # Users start afresh: only their own data count.
        part = block.part(turn.active)
        state, items = self._init_clients(part, message, key), message["item_vectors"].values
        users, everyone = state["users"], np.ones(part.n_users, dtype=bool)
        self._fit_users(part, state["ratings"], state["penalties"], items, everyone, users)
        return {"users": block.spread(users, turn.active)}
