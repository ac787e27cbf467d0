"""ExplicitFCF: federated collaborative filtering of ratings, and FedMF (Chai et al., 2020)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from fedrecsk._utils.constraints import AtLeast1, NotNegative, Positive, RatingRange
from fedrecsk._utils.docs import documented
from fedrecsk._utils.parameters import constant
from fedrecsk.base import RatingMixin
from fedrecsk.data._checks import scale_of
from fedrecsk.federated import _ratings
from fedrecsk.federated._optimizers import Moments, StepParameters, descend
from fedrecsk.federated._ratings import ColumnAlgorithm, Scale
from fedrecsk.federated._wmf import wmf_kernels
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.portable import Ridge
from fedrecsk.protocol.algorithm import Traits
from fedrecsk.protocol.messages import Dense, Form, Message, Rows
from fedrecsk.protocol.states import Kept, PerItem, PerUser
from fedrecsk.updates import FieldSpec, SparseRows, Updates

__all__ = ["ExplicitFCF"]


class Ratings(NamedTuple):
    """The user and the item of each rating, its value less the level, and its weight."""

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray


NO_LOCAL_DP = (
    "its set-up counts ratings in plaintext, and its gradients are not clipped. Use RFRec for "
    "local differential privacy."
)


@dataclass(frozen=True)
class RatingServer:
    """What the server knows: the items with their biases, and their penalties."""

    items: Kept[PerItem]
    penalties: PerItem
    scale: Scale
    # Adam's means, None before the first step.
    moments: Moments | None


@dataclass
class RatingClients:
    """Users of a block: their ratings, and their vectors with biases."""

    ratings: Ratings
    # By weight.
    n_ratings: PerUser
    penalties: PerUser
    users: Kept[PerUser]


@dataclass(eq=False, repr=False)
class RatingParameters(StepParameters):
    """Parameters of ExplicitFCF and SemiDFEGL."""

    n_factors: AtLeast1 = 20
    _: KW_ONLY
    biases: bool = True
    reg_user: Positive = 1.3
    reg_item: NotNegative = 1.3
    reg_bias: Positive = 3.0
    rating_scale: RatingRange = None
    # Which items' rows are sent: those that the client has rated, or all.
    upload: Literal["local", "all"] = constant("local")
    INIT_STD: float = constant(0.1)  # standard deviation of the initial item vectors
    # How fast penalties on vectors grow with the number of ratings. With 0, and biases=False, it is
    # the papers' form, which overfits.
    REG_POWER: float = constant(0.5)


@dataclass(kw_only=True, eq=False)
class RatingAlgorithm(RatingParameters, ColumnAlgorithm[Any, Any]):
    """Clients send gradients of rated items: ExplicitFCF and SemiDFEGL."""

    def downloads(self, n_items):
        return {"scale": Form((3,)), "item_vectors": Form((n_items, self.width))}

    # --------------------------------------------------------------- before the rounds

    def setup_fields(self, n_items):
        specs = _ratings.RATINGS | {"n_ratings": FieldSpec((n_items,), self.rows, learned=False)}
        if self.upload == "local":
            specs |= _ratings.held_items(n_items)
        return specs

    @property
    def rows(self) -> Literal["held", "all"]:
        """Return which rows are sent, as in a FieldSpec."""
        return "held" if self.upload == "local" else "all"

    def answer(self, block, message, key):
        return _ratings.answer(block, self.setup_fields(block.n_items))

    def begin(self, catalogue, sums, key):
        assert sums is not None
        total, number = sums["ratings"].sum
        # Noise (central_dp) may turn a count negative, and take the mean out of the scale.
        n_ratings = np.maximum(sums["n_ratings"].sum, 0)
        low, high = scale_of(self.rating_scale, catalogue.rating_range)
        level = np.clip(total / number, low, high) if number > 0 else (low + high) / 2
        items = self.first_items(catalogue.n_items, self.INIT_STD, key)
        return RatingServer(
            items=np.where((n_ratings > 0)[:, None], items, self.dtype(0)),
            penalties=self._penalties(n_ratings, self.reg_item) / catalogue.n_clients,
            scale=Scale(low, high, float(level) if self.biases else 0.0),
            moments=None,
        )

    def _penalties(self, n_ratings, reg):
        """Return the penalties on each number of vectors, by their numbers of ratings."""
        penalties = np.repeat((reg * n_ratings**self.REG_POWER)[:, None], self.width, axis=1)
        if self.biases:
            penalties[:, 0] = self.reg_bias
        return penalties

    def announce(self, server):
        return Message(scale=server.scale.sent())

    def enter(self, block, message, key):
        users = block.rating_users
        n_ratings = np.bincount(users, block.weights, minlength=block.n_users)
        values = (block.values - Scale.received(message).level).astype(self.dtype)
        return RatingClients(
            ratings=Ratings(users, block.items, values, block.weights.astype(self.dtype)),
            n_ratings=n_ratings,
            penalties=self._penalties(n_ratings, self.reg_user),
            users=np.zeros((block.n_users, self.width), dtype=self.dtype),
        )

    # ------------------------------------------------------------------ on the clients

    def fit_users(self, block, ratings, penalties, items, who, users):
        """Solve exactly for the users of a mask, in place."""
        items, values = items.astype(self.dtype), ratings.values
        if self.biases:
            values = values - items[ratings.items, 0]
            items[:, 0] = 1
        equations = wmf_kernels.Ratings(ratings.items, ratings.weights, ratings.weights * values)
        work, penalties = wmf_kernels.workspace(block, users), penalties.astype(self.dtype)
        wmf_kernels.fit_raters(block.indptr, who, equations, items, penalties, work, users)

    def with_ones(self, users):
        """Return what items are multiplied by: users' rows with 1 in place of their biases."""
        left = users.copy()
        if self.biases:
            left[:, 0] = 1
        return left

    def errors(self, block, ratings, who, left, user_bias, items):
        """Return w (score - rating) of each rating, 0 for those of clients outside a mask."""
        places, errors = rated_by(block, who), np.zeros(len(block.items), self.dtype)
        users, rated, values, weights = (one[places] for one in ratings)
        # Clients that have diverged are left out of the sums, or report it themselves.
        with np.errstate(over="ignore", invalid="ignore"):
            scores = np.einsum("kf,kf->k", left[users], items[rated]) + user_bias[users]
            errors[places] = weights * (scores - values)
        return errors

    def by_item(self, block, turn, *terms):
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
            columns, n_columns, dtype = block.rows, len(block.row_items), self.dtype
        senders, shape, total = block.users_of(sends)[:, None], (block.n_users, n_columns), 0
        for numbers, rows in terms:
            numbers = numbers if turn.separate else np.where(broken, 0, numbers)
            matrix = csr_array((numbers, columns, block.indptr), shape)
            total = total + matrix.T @ np.where(senders, rows, 0).astype(dtype)
        if turn.separate:
            own = block.own_rows(sends)
            total = SparseRows(own.indptr, own.items, total[np.repeat(sends, block.row_counts)])
        return total, is_finite

    # ------------------------------------------------------------------- on the server

    def stepped(self, server, gradient):
        """Return the server's state after a step of the items down their gradient."""
        items, moments = descend(self, server.items, gradient, server.moments)
        return replace(server, items=items.astype(self.dtype), moments=moments)

    def final(self, server):
        # To recommend, a client needs the items that it has not rated.
        return Message(item_vectors=Dense(server.items))


def rated_by(block, who):
    """Return the ratings of the clients of a mask, as an index."""
    if who.all():
        return slice(None)
    return np.flatnonzero(np.repeat(block.users_of(who), np.diff(block.indptr)))


def loss_of(block, errors, weights, who):
    """Return the sums of w (score - rating)^2 and of w over the clients of a mask."""
    places = rated_by(block, who)
    errors, weights = errors[places].astype(np.float64), weights[places].astype(np.float64)
    positive = weights > 0
    return (errors[positive] ** 2 / weights[positive]).sum(), weights.sum()


@dataclass(eq=False, repr=False)
class ExplicitFCFParameters(RatingParameters):
    """Parameters of ExplicitFCF."""

    _: KW_ONLY
    upload: Literal["local", "all"] = "local"


@dataclass(kw_only=True, eq=False)
class ExplicitFCFAlgorithm(ExplicitFCFParameters, RatingAlgorithm):
    """Every client solves for its users, and uploads the gradient in the items they have rated."""

    @property
    def traits(self):
        return Traits(single_uploads=True, goes_on=True, refuses={"local_dp": NO_LOCAL_DP})

    def broadcast(self, server, key):
        rows = Rows if self.upload == "local" else Dense
        return Message(item_vectors=rows(server.items))

    def fields(self, n_items):
        return {"gradient": FieldSpec((n_items, self.width), self.rows)}

    def update(self, block, clients, message, turn, key):
        ratings, users, who = clients.ratings, clients.users, turn.active
        items = message["item_vectors"].values.astype(self.dtype)
        self.fit_users(block, ratings, clients.penalties, items, block.users_of(who), users)
        left = self.with_ones(users)
        bias = users[:, 0] if self.biases else np.zeros(len(users), self.dtype)
        errors = self.errors(block, ratings, who, left, bias, items)
        gradient, is_finite = self.by_item(block, turn, (errors, left))
        loss = loss_of(block, errors, ratings.weights, who)
        return clients, Updates({"gradient": gradient}, is_finite=is_finite), loss

    def step(self, server, upload, key):
        if upload is None:
            return server
        gradient = upload["gradient"].mean + server.penalties * server.items
        return self.stepped(server, 2 * gradient)

    def personalize(self, block, clients, message, turn, key):
        # Users start afresh: only their own data count.
        part, items = block.part(turn.active), message["item_vectors"].values
        clients, everyone = self.enter(part, message, key), np.ones(part.n_users, dtype=bool)
        users = clients.users
        self.fit_users(part, clients.ratings, clients.penalties, items, everyone, users)
        return replace(clients, users=block.spread(users, turn.active))

    def model(self, fitted):
        def rule():
            vectors, width = fitted["item_factors_"], self.width
            offset = np.full(len(vectors), fitted["global_bias_"])
            penalty, power = np.full(width, float(self.reg_user)), np.zeros(width)
            power[int(self.biases) :] = self.REG_POWER
            if self.biases:
                vectors = np.column_stack([np.ones_like(vectors[:, 0]), vectors])
                offset, penalty[0] = offset + fitted["item_bias_"], self.reg_bias
            own = {"offset": offset, "power": power, "rates": True, "confidence": 1.0}
            return Ridge.of(vectors, np.diag(penalty), **own)

        return replace(super().model(fitted), make_rule=rule)


@documented
@dataclass(eq=False, repr=False)
class ExplicitFCF(ExplicitFCFParameters, RatingMixin, FederatedRecommender):
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
        to them. If None, the range of y.
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

        set-up  clients send sums and counts of ratings       answer, begin
        each round
          1  server sends (b_i, q_i), of own items with "local" broadcast
          2  clients solve for their users                    fit_users: kernel fit_raters
          3  ... and upload the gradient of rated items       by_item
          4  server takes a step of Adam                      step
        end
          5  server sends all items                           final
          6  clients solve for their users once more          personalize: kernel fit_raters

    *What is sent.* Once, up: the client's sum and number of ratings, and its number of ratings
    of each item; with "local" also which items these are. Once, down: the scale and the level.
    Each round, down: (b_i, q_i). Up: for each rated item ``sum_u w (score - r) (1, p_u)``. At
    the end, down: all items.

    *What it reveals.* The server uses only sums over clients. In plaintext, one upload of a
    one-user client gives p_u, the user's items and all ratings exactly: rows are multiples of
    (1, p_u), the multiples are the errors, and the ridge regression's own equation gives the
    bias (:func:`fedrecsk.audit.measure_leak`). Chai et al. prove the same for two uploads, and
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
    learning_rate: Positive = 0.03

    _kind = ExplicitFCFAlgorithm
    _user_width = "n_factors"
