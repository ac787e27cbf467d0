"""FedEB: federated empirical Bayes for ratings, by sums over clients."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from fedrecsk._utils.constraints import AtLeast0, AtLeast1, Column, DataFrame, Positive, RatingRange
from fedrecsk._utils.docs import documented
from fedrecsk._utils.given import is_dask
from fedrecsk._utils.parameters import constant
from fedrecsk.base import RatingMixin
from fedrecsk.base._item_prior import ItemContent, ItemFeatures
from fedrecsk.data import _times
from fedrecsk.data._checks import scale_of
from fedrecsk.data.interactions import id_columns
from fedrecsk.federated import _empirical_bayes, _ratings
from fedrecsk.federated._day_effects import effects_of_days
from fedrecsk.federated._empirical_bayes import Scale, fedeb_kernels
from fedrecsk.federated._features import UserFeatures, UserRegression
from fedrecsk.federated._fedeb_server import (
    Averaged,
    FedEBServer,
    Scales,
    directions,
    eigenpairs,
    learn_scales,
    sketch,
)
from fedrecsk.federated._optimizers import adam
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.models import Factors, clipped
from fedrecsk.models._model import linear_scores
from fedrecsk.protocol.algorithm import Algorithm, Traits
from fedrecsk.protocol.keys import SETUP
from fedrecsk.protocol.messages import Dense, Form, Message, Rows
from fedrecsk.protocol.states import PerUser
from fedrecsk.updates import FieldSpec, Updates

if TYPE_CHECKING:
    from fedrecsk.protocol.blocks import Block

__all__ = ["FedEB"]

# Largest total weight of a user's ratings; a weight of 1 is a rating.
HEAVIEST = 1e6
# Standard deviations of users' slopes on popularity and on b_i (their tastes).
SLOPES = 0.2, 0.3
TASTES = len(SLOPES)
# How many coordinates an item's audience has, and the standard deviation of tastes for them.
AUDIENCES, TASTE_FOR_AUDIENCES = 32, 0.4
# Items that fewer users have rated have no audience, which would say what else these have rated.
FEWEST_RATERS = 10
# Averages for prediction cover at least this many rounds.
LOOK_BACK = 10

# Where precisions start, in units: of ratings, of users' biases, of items' biases and vectors given
# their prior mean (R), and of that mean (psi).
ALPHA, LAMBDA_0, REG_BIAS, REG, PSI = 1.3, 6.0, 5.0, 100.0, 10.0
REFUSES = {
    "local_dp": "which rows a client sends reveals the items it has rated, and noise cannot hide "
    "that. Use RFRec for local differential privacy.",
    "central_dp": "its sketch and its learned scales do not survive the noise. Use PrivFedEB, "
    "which is made for it.",
}


@dataclass
class FedEBClients:
    """Users of a block: their ratings, in units, and their posteriors."""

    # fedeb_kernels.Ratings
    ratings: tuple[np.ndarray, ...]
    unit: float
    # Of the items: numbers of ratings, and the logarithms of these, centered.
    n_ratings: np.ndarray
    popularity: np.ndarray
    # The means phi that the last update has found; the next one starts afresh.
    users: PerUser
    # Given the final model: covariances, standard deviations of ratings, and effects of days.
    covariances: PerUser | None = None
    noise: PerUser | None = None
    days: object = None


@dataclass(eq=False, repr=False)
class FedEBParameters:
    """Parameters of FedEB."""

    n_factors: AtLeast1 = 20
    _: KW_ONLY
    implicit: bool = True
    sketch_size: AtLeast0 = 128
    user_noise: bool = True
    learning_rate: Positive | Literal["auto"] = "auto"
    upload: Literal["local", "all"] = "local"
    rating_scale: RatingRange = None
    timestamps: Column | None = None
    # Standard deviation of the initial item vectors.
    INIT_STD: float = constant(0.1)
    # The server's Adam.
    BETA_1: float = constant(0.9)
    BETA_2: float = constant(0.99)
    EPSILON: float = constant(1e-8)
    # How many ratings the prior of a user's own precision is worth (nu).
    NU: float = constant(10.0)


@dataclass(kw_only=True, eq=False)
class FedEBAlgorithm(FedEBParameters, Algorithm[FedEBServer, FedEBClients]):
    """Clients infer their users; the server steps along gradients and learns the variances."""

    dtype: type[np.floating]
    item_content: ItemFeatures
    regression: UserRegression

    @property
    def traits(self):
        refuses = self.regression.refuses | REFUSES
        return Traits(
            single_uploads=True, rotates=True, goes_on=True, takes_stale=True, refuses=refuses
        )

    @property
    def width(self):
        """How many numbers a user has, without those for audiences."""
        return 1 + self.n_factors + TASTES

    @property
    def _n_implicit(self):
        return self.n_factors if self.implicit else 0

    @property
    def _rows(self):
        return "all" if self.upload == "all" else "held"

    def rounds(self, sampling, n_clients):
        return round(100 / np.sqrt(sampling.arriving(n_clients)))

    def downloads(self, n_items):
        d = self.n_factors
        items, implicit = Form((n_items, d + 1)), Form((n_items, d))
        forms = {"scale": Form((3,)), "scales": Form((d + 3,)), "n_ratings": Form((n_items,))}
        forms |= {"items": items, "average_items": items}
        if self.implicit:
            forms |= {"implicit": implicit, "average_implicit": implicit}
        if self.sketch_size:
            forms["audiences"] = Form((n_items, range(AUDIENCES + 1)))
        return forms | self.regression.downloads(self.width)

    # --------------------------------------------------------------- before the rounds

    def setup_fields(self, n_items):
        counts = FieldSpec((n_items, 3), self._rows, learned=False)
        specs = _ratings.RATINGS | {"counts": counts}
        if self.sketch_size:
            shape = n_items, min(self.sketch_size, n_items)
            specs["sketch"] = FieldSpec(shape, self._rows, learned=False)
        if self.upload == "local":
            specs |= _ratings.held_items(n_items)
        return specs | self.regression.setup_fields()

    def answer(self, block, message, key):
        n_rated = np.diff(block.indptr)
        columns = block.weights, None, np.repeat(1 / n_rated, n_rated)
        counts = [np.bincount(block.items, one, minlength=block.n_items) for one in columns]
        fields = {
            "ratings": _ratings.sums_of_ratings(block),
            "counts": np.column_stack(counts).astype(np.float64),
        }
        if self.sketch_size:
            public = directions(block.n_items, self.sketch_size, key.shared)
            fields["sketch"] = sketch(block, public)
        if self.upload == "local":
            fields["held_items"] = _ratings.numbers_of_holders(block)
        return Updates(fields | self.regression.answer(block, weights_of_users(block)))

    def begin(self, catalogue, sums, key):
        assert sums is not None
        m, d = catalogue.n_items, self.n_factors
        items = np.zeros((m, d + 1), self.dtype)
        items[:, 1:] = self.INIT_STD * key.generator("item factors").standard_normal((m, d))
        reg = np.r_[REG_BIAS, np.full(d, REG)]
        psi = np.full(d + 1, PSI)
        total, weight = sums["ratings"].sum
        n_ratings, n_users, shares = np.ascontiguousarray(sums["counts"].sum.T)
        similar = None
        if self.sketch_size:
            public = directions(m, self.sketch_size, key.at(SETUP))
            similar = eigenpairs(sums["sketch"].sum, public, n_users)
            similar = similar._replace(vectors=similar.vectors.astype(self.dtype))
        return FedEBServer(
            scale=Scale(*scale_of(self.rating_scale, catalogue.rating_range), total / weight),
            n_clients=catalogue.n_clients,
            n_ratings=n_ratings,
            n_users=np.rint(n_users),
            shares=shares,
            similar=similar,
            prior=self.item_content.prior(n_ratings),
            n_steps=0,
            items=Averaged.first(items),
            implicit=Averaged.first(np.zeros((m, self._n_implicit), self.dtype)),
            scales=Scales(ALPHA, LAMBDA_0, reg, np.full(self._n_implicit, REG), psi),
            center=np.zeros_like(items),
            content_means=np.zeros_like(items),
            user_sums=self.regression.begin(sums, self.width),
        )

    def announce(self, server):
        message = Message(
            scale=server.scale.sent(), n_ratings=Dense(server.n_ratings, learned=False)
        )
        if server.similar is not None:
            vectors, sizes = (one[..., :AUDIENCES] for one in server.similar)
            # The largest number of a vector is positive, whatever LAPACK's signs are.
            signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(len(sizes))])
            audiences = vectors * (TASTE_FOR_AUDIENCES * signs * np.sqrt(sizes))
            audiences[server.n_users < FEWEST_RATERS] = 0
            message["audiences"] = Dense(audiences, learned=False)
        return message

    # ---------------------------------------------------------------------- each round

    def broadcast(self, server, key):
        field = Dense if self.upload == "all" else Rows
        fields = {"items": field(server.items.now)}
        if self.implicit:
            fields["implicit"] = field(server.implicit.now)
        return Message(**fields, scales=server.scales.sent())

    def fields(self, n_items):
        specs = {"items": FieldSpec((n_items, self.n_factors + 1), self._rows)}
        if self.implicit:
            specs["implicit"] = FieldSpec((n_items, self.n_factors), self._rows)
        specs["scales"] = FieldSpec((4,), learned=False)
        return specs | self.regression.fields(self.width)

    def enter(self, block, message, key):
        scale = Scale.received(message)
        ratings, weights = scale.in_units(block).astype(self.dtype), block.weights
        n_ratings = message["n_ratings"].values.astype(self.dtype)
        return FedEBClients(
            ratings=fedeb_kernels.Ratings(ratings, weights.astype(self.dtype)),
            unit=scale.unit,
            n_ratings=n_ratings,
            popularity=popularity(n_ratings),
            users=np.zeros((block.n_users, self.width), self.dtype),
        )

    def update(self, block, clients, message, turn, key):
        items = with_tastes(message["items"].values, clients.popularity)
        given = items, message["implicit"] if self.implicit else None, message["scales"]
        # Whose means are the arrays of the clients' users.
        posterior = self._posterior(clients.users)
        squares, weight, out = self._infer(block, clients, *given, turn, posterior)
        fields = _empirical_bayes.written(block, turn, out)
        if self.regression.n_features:
            vectors = clients.users - self._implicit_means(block, message)
            sends, n_rows = out.senders & out.is_finite, weights_of_users(block)
            fields |= self.regression.sums(block, n_rows, vectors, turn, sends)
        fields = {name: fields[name] for name in self.fields(block.n_items)}
        updates = Updates(fields, is_finite=out.is_finite)
        return clients, updates, (clients.unit**2 * squares, weight)

    def _implicit_means(self, block, message):
        """Return users' prior means without features, (0, m_u, 0)."""
        means, n_rated = np.zeros((block.n_users, self.width)), np.diff(block.indptr)
        if self.implicit:
            shape = block.n_users, block.n_items
            rated = csr_array((np.ones(len(block.items)), block.items, block.indptr), shape=shape)
            implicit = rated @ message["implicit"].values / np.sqrt(n_rated)[:, None]
            means[:, 1 : 1 + self.n_factors] = implicit
        return means

    def _posterior(self, users, n_whole=0):
        """Return space for the users' means, and for all else of the first `n_whole` users."""
        covariances = np.zeros((n_whole, self.width, self.width), self.dtype)
        return fedeb_kernels.Posterior(users, np.zeros(n_whole, self.dtype), covariances)

    def _infer(self, block, clients, items, implicit, scales, turn, posterior):
        """Infer the active clients' users given the model; return loss, weight and uploads."""
        real, layout, width = self.dtype, block.layout, items.shape[1]
        implicit = np.zeros((len(items), 0)) if implicit is None else implicit.values
        alpha, lambda_0, *reg = scales.values
        prior = np.r_[lambda_0, np.ones(width - 1)].astype(real)
        # What is known has no variance.
        precisions = np.r_[reg, np.full(width - len(reg), np.inf)].astype(real)
        variances = 1 / (precisions + real(alpha) * clients.n_ratings[:, None])
        model = fedeb_kernels.Model(
            items.astype(real),
            implicit.astype(real, copy=False),
            variances,
            prior,
            float(alpha),
            self.NU if self.user_noise else 0.0,
        )
        work = fedeb_kernels.workspace(layout, model, 1 + self.n_factors)
        out = _empirical_bayes.uploads(block, turn, 1 + self.n_factors, self._n_implicit, real)
        squares, weight = fedeb_kernels.update(
            layout, clients.ratings, turn.active, model, work, posterior, out
        )
        return squares, weight, out

    def step(self, server, upload, key):
        if upload is None:
            return server
        t, share, scales = server.n_steps + 1, upload.n_clients / server.n_clients, server.scales
        given = server.items, upload["items"].sum, scales.reg, server.center
        items, implicit = self._stepped(t, share, *given), server.implicit
        if self.implicit:
            given = implicit, upload["implicit"].sum, scales.reg_implicit, 0
            implicit = self._stepped(t, share, *given)
        user_sums = self.regression.step(server.user_sums, upload, server.n_clients)
        server = replace(server, n_steps=t, items=items, implicit=implicit, user_sums=user_sums)
        return learn_scales(server, upload["scales"].sum / share)

    def _stepped(self, t, share, before, sums, reg, mean):
        """Return the items or their implicit part after step `t` of Adam, and the average."""
        with np.errstate(over="ignore", invalid="ignore"):
            gradient = (sums / share - reg * (before.now - mean)).astype(self.dtype)
        direction, moments = adam(self, (before.mean, before.square), t, gradient)
        now = before.now + self.dtype(self.rate(share)) * direction
        # The average covers all rounds at first.
        replaced = max(1 / t, min(share, 1 / LOOK_BACK))
        average = before.average + self.dtype(replaced) * (now - before.average)
        return Averaged(now, *moments, average)

    def rate(self, share: float) -> float:
        """Return Adam's step size, given the share of the clients in the sum."""
        is_auto = self.learning_rate == "auto"
        return 0.05 * share ** (1 / 3) if is_auto else float(self.learning_rate)

    # ------------------------------------------------------------------------- the end

    def final(self, server):
        items, prior = server.items.average, server.prior
        fields = {"average_items": Dense(items if prior is None else prior.filled(items))}
        if self.implicit:
            fields["average_implicit"] = Dense(server.implicit.average)
        fields |= self.regression.final(server.user_sums)
        return Message(**fields, scales=server.scales.sent())

    def personalize(self, block, clients, message, turn, key):
        # Users start afresh: only their own data count.
        part = block.part(turn.active)
        clients = self._fitted(part, self.enter(part, message, key), message)
        own = clients.users, clients.covariances, clients.noise
        users, covariances, noise = (block.spread(one, turn.active) for one in own)
        days = None
        if self.timestamps is not None:
            scale = Scale.received(message)
            items = scale.unit * average_rows(message)
            expected = scale.level + _expected(block, users, items[:, 0], items[:, 1:])
            days = effects_of_days(block, np.clip(expected, scale.low, scale.high), self.dtype)
        return replace(clients, users=users, covariances=covariances, noise=noise, days=days)

    def _fitted(self, block, clients, message):
        """Infer users given the final model, with tastes for audiences; biases are in ratings."""
        items = average_rows(message)
        n_audiences = items.shape[1] - self.width
        users = np.zeros((block.n_users, items.shape[1]), self.dtype)
        means = self.regression.expected(block, message)
        if means is not None:
            # What the mean of their features leaves is inferred; they say nothing of audiences.
            means = np.pad(means, ((0, 0), (0, n_audiences)))
            expected = _expected(block, means, np.zeros(len(items)), items[:, 1:])
            values = (clients.ratings.values - expected).astype(self.dtype)
            clients.ratings = clients.ratings._replace(values=values)
        implicit = message["average_implicit"] if self.implicit else None
        given = items, implicit, message["scales"]
        posterior = self._posterior(users, block.n_users)
        self._infer(block, clients, *given, _empirical_bayes.for_nobody(block), posterior)
        users += 0 if means is None else means.astype(self.dtype)
        unit, covariances = self.dtype(clients.unit), posterior.covariances
        # The bias counts in ratings; other numbers of a user have no unit.
        users[:, 0] *= unit
        covariances[:, 0] *= unit
        covariances[:, :, 0] *= unit
        noise = unit / np.sqrt(posterior.precisions)
        return replace(clients, users=users, covariances=covariances, noise=noise)

    @staticmethod
    def received(message: Message) -> tuple[np.ndarray, Scale]:
        """Return the rows (b_i, q_i, z_i) of a round's message, in units, and the Scale."""
        known = popularity(message["n_ratings"].values)
        return with_tastes(message["items"].values, known), Scale.received(message)

    # ------------------------------------------------------------------ with other rows

    def resume(self, now, before, places):
        # Factors that the old rows did not need are 0, where they have no gradient: the first
        # random vectors are added, and precisions are learned anew.
        state = super().resume(now, before, places)
        items = replace(state.items, now=state.items.now + now.items.now)
        return replace(state, items=items)

    # ------------------------------------------------------------------------ the model

    def server_attributes(self, message):
        scale = Scale.received(message)
        alpha, lambda_0, *reg = message["scales"].values
        unit, n_ratings = scale.unit, message["n_ratings"].values
        items = (unit * average_rows(message)).astype(self.dtype)
        # The last row is that of an unknown item.
        n_ratings = np.append(n_ratings, 0)
        variance = np.zeros((len(n_ratings), items.shape[1]), self.dtype)
        variance[:, : len(reg)] = unit**2 / (reg + alpha * n_ratings[:, None])
        attributes = {
            "item_factors_": np.ascontiguousarray(items[:, 1:]),
            "item_bias_": items[:, 0].copy(),
            "item_variance_": variance[:-1],
            "_new_item_variance": variance[-1],
            "global_bias_": scale.level,
            "rating_scale_": (scale.low, scale.high),
            "noise_std_": float(unit / np.sqrt(alpha)),
            "bias_std_": float(unit / np.sqrt(lambda_0)),
        }
        if self.implicit:
            attributes["implicit_factors_"] = message["average_implicit"].values
        return attributes

    def user_attributes(self, block, clients):
        users = clients.users
        days = {} if self.timestamps is None else {"user_days_": clients.days}
        return days | {
            "user_factors_": np.ascontiguousarray(users[:, 1:]),
            "user_bias_": users[:, 0].copy(),
            "user_covariance_": clients.covariances,
            "user_noise_": clients.noise,
        }

    def model(self, fitted):
        response = clipped(*fitted["rating_scale_"])
        own = {"make_rule": partial(self._rule, fitted)}
        own["deviations"] = partial(self._deviations, fitted)
        return Factors.of(fitted, response=response, **own)

    def _rule(self, fitted):
        """Return the rule of users' posterior means."""
        # The bias has no variance here, because its partner, 1, is known.
        variance = fitted["item_variance_"]
        width = variance.shape[1]
        spread = {"variance": variance * (np.arange(width) > 0)}
        if self.implicit:
            n_known = width - 1 - self.n_factors
            spread["prior"] = np.pad(fitted["implicit_factors_"], ((0, 0), (1, n_known)))
        scales = fitted["noise_std_"] ** 2, fitted["bias_std_"] ** 2
        return _empirical_bayes.posterior_rule(fitted, *scales, **spread)

    def _deviations(self, fitted, users, items):
        """Return the standard deviations of the ratings of pairs."""
        # An unknown item is 0, with the variance of the prior.
        factors = np.pad(fitted["item_factors_"], ((0, 1), (0, 0)))
        item_variance = np.vstack([fitted["item_variance_"], fitted["_new_item_variance"]])
        items = np.where(items < 0, len(factors) - 1, items)
        spread = (factors**2).sum(axis=1, dtype=float) + item_variance.sum(axis=1, dtype=float)
        variance = self.typical_variance(fitted) + fitted["bias_std_"] ** 2 + spread[items]
        known = np.flatnonzero(users >= 0)
        of_known, pairs = np.empty(len(known)), (users[known], items[known])
        of_users = (fitted[f"user_{name}_"] for name in ("factors", "covariance", "noise"))
        fedeb_kernels.variances(*pairs, *of_users, factors, item_variance, of_known)
        variance[known] = of_known
        return np.sqrt(variance)

    def typical_variance(self, fitted):
        """Return the variance of the ratings of a user of whom nothing is known."""
        share = self.NU / (self.NU - 2) if self.user_noise else 1
        return fitted["noise_std_"] ** 2 * share

    def item_vectors(self, message):
        return message["items"].values


def weights_of_users(block: Block) -> np.ndarray:
    """Return the total weight of each user's ratings."""
    return np.add.reduceat(block.weights, block.indptr[:-1])


def popularity(n_ratings: np.ndarray) -> np.ndarray:
    """Return the logarithms of items' numbers of ratings, centered; 0 without ratings."""
    known, found = n_ratings > 0, np.zeros(len(n_ratings))
    padded = n_ratings[known].astype(float)
    padded += padded.mean() / 2
    logarithms = np.log(padded)
    found[known] = logarithms - padded @ logarithms / padded.sum()
    return found


def with_tastes(items: np.ndarray, popularity: np.ndarray) -> np.ndarray:
    """Return rows (b_i, q_i, z_i) of items from (b_i, q_i) and their popularity."""
    return np.column_stack([items, SLOPES[0] * popularity, SLOPES[1] * items[:, 0]])


def average_rows(message: Message) -> np.ndarray:
    """Return the rows (b_i, q_i, z_i, a_i) of the final message, in units."""
    known = popularity(message["n_ratings"].values)
    rows = with_tastes(message["average_items"].values, known)
    audiences = message.get("audiences")
    return rows if audiences is None else np.column_stack([rows, audiences.values])


def _expected(block, users, item_bias, items):
    """Return the scores of a block's rows without the mean rating; users have b_u in front."""
    of_rating = block.rating_users
    linear = 0.0, users[:, 0], item_bias, users[:, 1:], items
    return linear_scores(of_rating, block.items, *linear)


@documented
@dataclass(eq=False, repr=False)
class FedEB(
    FedEBParameters,
    UserFeatures,
    ItemContent,
    RatingMixin,
    FederatedRecommender,
):
    """Federated empirical Bayes: SVD++ with learned variances, trained by sums of uploads.

    Each client infers the exact distribution of its user vectors given the items, and uploads the
    gradient of the ratings' likelihood with respect to its own items. The server adds these up,
    updates the items, and learns the variances of ratings, users and items. Few clients per round
    are enough, and predictions have standard deviations.

    The model of user u's rating of item i::

        r = mean + b_i + b_u + q_i . p_u + z_i . s_u + a_i . t_u + e,  e ~ N(0, 1 / alpha_u)
        (b_u, p_u, s_u, t_u) ~ N((0, m_u, 0, 0), diag(1 / lambda_0, 1, ..., 1))
        m_u = n_u^-1/2 sum_j y_j
        alpha_u ~ Gamma(nu / 2, nu / (2 alpha))
        (b_i, q_i) ~ N(f_i, 1 / R),                  f ~ N(0, K / psi)

    where the sum is over the n_u items j that u has rated, and K measures how often two items
    are rated by the same users. z_i has two numbers known to clients, from the item's popularity
    and b_i; s_u is the user's taste for popular and for good items. a_i are the leading coordinates
    of K, called the item's audience: by t_u a user's deviation on one item carries over to items
    that the same users rate. It is used at the end, and where early stopping measures. s_u and t_u
    are learned on the device. The method and its name are this project's.

    Parameters
    ----------
    n_factors : int, default=20
        Length of p_u and q_i (d).
    n_rounds : int or "auto", default="auto"
        Number of rounds in total (T). "auto": ``100 f^-1/2``, where f is the share of the clients
        that take part in a round and do not drop out: 100 rounds of all clients, 1,000 of 1%. Each
        client then uploads about ``100 f^1/2`` times.
    implicit : bool, default=True
        Whether to learn about a user from the choice of rated items (y_j), in addition to the
        ratings. If False, m_u is 0.
    sketch_size : int, default=128
        Columns of the sketch from which the server learns K, at most the number of items. 0: items
        do not depend on each other (f is 0), and have no audiences.
    user_noise : bool, default=True
        Whether each user has a separate noise level. If False, alpha_u is alpha for all.
    learning_rate : float or "auto", default="auto"
        Step size of the server's Adam (eta). "auto": ``0.05 f^1/3``, where f is the share of
        the clients whose uploads were accepted in the round.
    upload : {"local", "all"}, default="local"
        "local": a client reports once which items it holds, and receives and sends only their
        rows. "all": the rows of all items are sent, as secure sums require.
    rating_scale : tuple (low, high) or None, default=None
        The ends of the rating scale, to which predictions are clipped. If None, the range of y.
    timestamps : int, str or None, default=None
        Column of X with the time of each row: its position (2 or more) or, for a DataFrame, its
        name; dates, or seconds since 1970. Adds an effect of each day (UTC) with ratings of the
        user, in `predict` only. If None, time is not used.
    {user_features}
    {item_features}
    {shared parameters}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors + 2 + n_audiences), dtype float32
        Means of p_u, s_u and t_u; private to the client.
    item_factors_ : ndarray of shape (n_items, n_factors + 2 + n_audiences), dtype float32
        q_i, z_i and a_i, in ratings. There are at most 32 audiences.
    implicit_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        y_j; absent with ``implicit=False``.
    user_bias_, item_bias_ : ndarray of shape (n_users,) and (n_items,), dtype float32
        b_u and b_i, in ratings.
    global_bias_ : float
        The mean rating.
    user_covariance_ : ndarray of shape (n_users, n_factors + 3, n_factors + 3), dtype float32
        Covariance of (b_u, p_u, s_u); private to the client. Standard deviations omit t_u.
    user_noise_ : ndarray of shape (n_users,), dtype float32
        Standard deviation of a user's ratings, alpha_u^-1/2, in ratings; private to the client.
    item_variance_ : ndarray of shape (n_items, n_factors + 3 + n_audiences), dtype float32
        Variances of (b_i, q_i), in squared ratings, and zeros for z_i and a_i.
    noise_std_, bias_std_ : float
        Standard deviations of a rating and of users' biases, learned from all users.
    rating_scale_ : tuple of float
        The ends of the rating scale.
    user_days_ : sparse array of shape (n_users, 65536), dtype float32
        With `timestamps`: the effect of each day since 1970, in ratings; private to the client.
    {shared attributes}

    Raises
    ------
    ValueError
        By fit: if ratings lie outside `rating_scale`; if weights are too large for float32; with
        local or central differential privacy, which it does not support (for the latter there is
        :class:`PrivFedEB`); with secure sums and ``upload="local"``.

    Notes
    -----
    *Algorithm*::

        set-up  clients send counts and a sketch of who rates what  answer
                server finds K's leading eigenpairs                 begin
        each round
          1  server sends b_i, q_i, y_i and the scales              broadcast
          2  clients infer their users                              kernel infer
          3  ... and upload the gradient in their items             kernel add_user
          4  server takes a step of Adam, and learns the scales     step
        end
          5  server sends the items' averages over the last rounds  final
          6  clients infer their users once more                    personalize: kernel update

    ``z_i = (0.2 (log(n_i + c) - l), 0.3 b_i)``, where c is half the mean of n_i and l the mean of
    the logarithm over items weighted by n_i + c, all for items with ratings; the first is 0 for
    others. ``a_i = 0.4 (K's 32 leading eigenvectors, times the roots of their eigenvalues)``, so
    that ``a_i . a_j`` is near 0.16 K_ij, but 0 for items with fewer than 10 users. With ``x_i = (1,
    q_i, z_i)``, in step 6 ``(1, q_i, z_i, a_i)``, X the rows of the items that u has rated, and
    ``V_i = 1 / (R + alpha n_i)``, 0 for z_i and a_i, step 2 is::

        G = X'X + diag(0, sum_i V_i),   S = (alpha G + Lambda)^-1
        phi = (b_u, p_u, s_u) = S (alpha X' (r - mean - b) + Lambda (0, m_u, 0))
        res = r - mean - b - X phi
        E = |res|^2 + tr(S G) + sum_i [V_i0 + sum_k V_ik p_uk^2]
        alpha_u = (nu + n_u) / (nu / alpha + E)

    and step 3: ``alpha_u res_i`` for b_i, ``alpha_u (res_i p_u - S x_i)`` for q_i,
    ``n_u^-1/2 (p_u - m_u)`` for y_i, and four numbers for the scales: ``b_u^2 + S_00``, 1,
    ``alpha_u / alpha E`` and n_u. These are the partial gradients of a lower bound of the ratings'
    likelihood, at the users' optimum up to one sweep. A rating of weight w counts as w ratings.

    *What is sent.* Once, up: sum and number of ratings; for each item that the client holds (or
    for all) its number of ratings and users, the sum of 1 / n_u, and a row of `sketch_size`
    numbers; with "local", which items these are. Once, down: the scale, the mean and every item's
    number of ratings and audience. Each round, down: 2 d + 1 numbers per item, and the scales; up:
    as many numbers of gradients, and four more. At the end, down: all rows.

    *What it reveals.* The server uses only sums, so secure sums hide the rest. Without them, one
    upload reveals exactly which items its user has rated and how, and the user's vector
    (:func:`fedrecsk.audit.measure_leak`). A sum over a small cohort does not hide the rows of
    items that only one of its clients rated. Audiences reveal to every client, and to any party
    with the model, how often two items are rated by the same users. Items with fewer than 10 users
    have none, because theirs would reveal the other items of these users.

    *Item features.* With `item_features` x_i the prior mean is ``f_i + a + A' x_i``, which the
    server learns in each round by a ridge regression of ``(b_i, q_i) - f_i`` on x_i with weights
    ``n_i / (n_i + 20)`` (empirical Bayes). Items without ratings, and those of `add_items`, are
    predicted by a regression of the final (b_i, q_i) with weights ``n_i / (n_i + 10 m)``, m the
    mean n_i of items with ratings.

    *User features.* With x_u = (1, features), ``phi - (0, m_u, 0)`` of the posterior means is
    regressed on x_u as items are, with weights ``w_u = n_u / (n_u + 400)``. More is sent: once, up,
    ``sum w x x'`` and the number of users in it; in each round, up, ``sum w x phi'`` and ``sum w
    phi^2``, of which the server takes the last or, with cohorts, averages; at the end, down, the
    coefficients, one column for each number of phi. The rounds themselves do not use features. At
    the end a client takes from its ratings what the expected phi contributes, infers the rest, and
    adds the expected phi to it. One plaintext upload of a client with one user reveals the user's
    features.

    References
    ----------
    .. [1] Y. Koren, "Factorization meets the neighborhood", KDD 2008 (SVD++), equation 15.
    .. [2] R. Salakhutdinov and A. Mnih, "Bayesian probabilistic matrix factorization using
       Markov chain Monte Carlo", ICML 2008, section 3.

    Examples
    --------
    >>> from fedrecsk import FedEB
    >>> from fedrecsk.datasets import make_ratings
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = FedEB(n_factors=4, client_fraction=0.1, random_state=0).fit(X, y)
    >>> model.n_rounds_
    316
    >>> mean, std = model.predict(X[:3], return_std=True)
    >>> mean.shape, std.shape
    ((3,), (3,))
    """

    _: KW_ONLY
    n_rounds: AtLeast1 | Literal["auto"] = "auto"
    user_features: DataFrame | None = None

    _user_width = "_width"
    # What `fit` sets.
    user_covariance_: ClassVar[np.ndarray]
    user_noise_: ClassVar[np.ndarray]
    user_days_: ClassVar[csr_array]
    item_variance_: ClassVar[np.ndarray]
    implicit_factors_: ClassVar[np.ndarray]
    noise_std_: ClassVar[float]
    bias_std_: ClassVar[float]
    _predicted = ("average_items",)
    _absent = ("average_implicit", "n_ratings", "audiences")
    HALF_OF_USERS = 400.0

    _kind = FedEBAlgorithm

    @property
    def _width(self):
        """Return how many numbers a user has."""
        return self._algorithm().width

    # ----------------------------------------------------------------- effects of days

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Estimate the rating of (user, item) pairs, on the days of the rows if it knows these.

        Parameters
        ----------
        X, return_std
            As in `predict` of other models. With `timestamps`, X has that column too. A day without
            ratings of the user, or a missing one, has no effect.

        Returns
        -------
        y_pred : ndarray of shape (n_samples,), dtype float64
        y_std : ndarray of shape (n_samples,), dtype float64
            With ``return_std=True``: the predicted standard deviation of the rating.

        Raises
        ------
        ValueError
            With ``return_std=True``, if the model has no standard deviations; or if times are not
            valid.
        """
        found = super().predict(X, return_std)
        # On a Dask cluster, each worker has added them.
        if self.timestamps is None or is_dask(X):
            return found
        predicted = found[0] if return_std else found
        X, _ = self._checked(X)
        users = self._users.codes(id_columns(X)[0])
        days = _times.days_of(X, self.timestamps, all_users=False)
        rows = np.flatnonzero((users >= 0) & ~np.isnan(days))
        # Of no rows, SciPy's answer is a sparse array.
        if len(rows):
            effects = self.user_days_[users[rows], days[rows].astype(np.int64)]
            predicted[rows] += np.asarray(effects).ravel()
        predicted = np.clip(predicted, *self.rating_scale_)
        return (predicted, found[1]) if return_std else predicted

    @property
    def _reads_times(self):
        return self.timestamps is not None

    def _times_of(self, X: ArrayLike, *, all_users: bool = False) -> np.ndarray | None:
        if not self._reads_times:
            return None
        return _times.days_of(X, self.timestamps, all_users=all_users)

    # --------------------------------------------------------------- what a fit gives

    def _prior_attributes(self, means):
        """Return the attributes of users of whom only the expected vectors, in units, are known."""
        n, unit = len(means), _empirical_bayes.scale_of(vars(self)).unit
        prior = np.r_[self.bias_std_**2, np.ones(self._width - 1)]
        n_audiences = 1 + self.item_factors_.shape[1] - self._width
        days = {}
        if self.timestamps is not None:
            days["user_days_"] = csr_array((n, _times.N_DAYS), dtype=self._dtype)
        attributes = {
            "user_factors_": np.pad(means[:, 1:], ((0, 0), (0, n_audiences))),
            "user_bias_": unit * means[:, 0],
            "user_covariance_": np.tile(np.diag(prior), (n, 1, 1)),
            "user_noise_": np.full(n, np.sqrt(self._algorithm().typical_variance(vars(self)))),
        }
        return days | {name: rows.astype(self._dtype) for name, rows in attributes.items()}

    def _compared(self, name):
        # By q and p alone: popularity and biases say nothing of what an item is like.
        return super()._compared(name)[:, : self.n_factors]

    # ------------------------------------------------------------------------- checks

    def _check_setting(self, plan, data, blocks):
        super()._check_setting(plan, data, blocks)
        largest = weights_of_users(data).max()
        if largest > HEAVIEST:
            raise ValueError(
                f"The weights of a user's ratings add up to {largest:.3g}, and more than "
                f"{HEAVIEST:g} is too much for float32; divide sample_weight by its mean."
            )

    def _least_bytes(self, data):
        n_numbers = self._width**2 + min(AUDIENCES, self.sketch_size)
        others = np.dtype(self._dtype).itemsize * data.n_users * n_numbers
        return super()._least_bytes(data) + (others if self.client_fraction == 1 else 0)
