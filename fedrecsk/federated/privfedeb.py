"""PrivFedEB: ratings under user-level central differential privacy."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from scipy.sparse import csr_array

from fedrecsk._utils.constraints import AtLeast0, AtLeast1, From0To1, RatingRange
from fedrecsk._utils.docs import documented
from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.parameters import constant
from fedrecsk._utils.user_warnings import warn
from fedrecsk.base import RatingMixin
from fedrecsk.base._item_prior import ItemContent, ItemFeatures, ItemPrior
from fedrecsk.data._checks import scale_of
from fedrecsk.federated import _empirical_bayes
from fedrecsk.federated._empirical_bayes import Scale, fedeb_kernels
from fedrecsk.federated._privfedeb_server import (
    ALPHA,
    EMPHASIS,
    MOST,
    NEW,
    TASTES,
    USER_SQUARE,
    VECTOR_VARIANCE,
    Release,
    Users,
    learned_audiences,
    posterior_gains,
    scaled_audiences,
    tastes,
    without_popularity,
)
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.models import Factors, clipped
from fedrecsk.protocol.algorithm import Algorithm, Traits
from fedrecsk.protocol.keys import SETUP
from fedrecsk.protocol.messages import Dense, Form, MalformedMessage, Message
from fedrecsk.protocol.participation import RoundMasks, Sampling
from fedrecsk.protocol.states import PerItem, PerUser
from fedrecsk.updates import FieldSpec, SparseRows, Updates

__all__ = ["PrivFedEB"]

privfedeb_kernels: LazyModule = LazyModule("fedrecsk.federated._privfedeb_kernels")

# Precision of users' biases.
LAMBDA_0 = 6.0
# In the set-up: how many ratings at the center a user's mean is shrunk by, and the bound of a
# residual, in units.
SHRINKAGE, LARGEST = 3.0, 2.0
# Norm of the part of the first upload that is one number, for the squared counts.
SQUARES = 0.1
# Least mean square error, in squared units, that a user's gradient is divided by.
FLOOR = 0.25
# Rounds of all clients: with little noise or a smaller epsilon than `SMALL`; without noise.
ROUNDS, FEW_ROUNDS, ROUNDS_WITHOUT_NOISE = 10, 5, 20
SMALL, LOUD = 2.0, 6.0
# Bounds of a rating's weight, whose square must neither overflow nor vanish.
LIGHTEST, HEAVIEST = 1e-6, 1e6
# Root mean square of an item's features, all together, and of how many directions at most.
CONTENT, DIRECTIONS = 0.3, 20
# Audiences are learned in the first rounds, of this many in all. With them, the numbers of q_i have
# a variance smaller by this factor.
AUDIENCE_ROUNDS, ROUNDS_WITH_AUDIENCES, EXPLAINED = 2, 16, 0.5
# How many clients it takes: this divided by epsilon, or times the noise multiplier.
ENOUGH, ENOUGH_FOR_NOISE = 30_000, 1_800
# Norm of what clients send of their users' vectors.
USERS = 0.2

NO_LOCAL_DP = (
    "its uploads are bounded as a whole, and not number by number. Use central_dp, or RFRec "
    "for local differential privacy."
)


@dataclass(frozen=True)
class PrivFedEBServer:
    """What the server knows: what the set-up has published, and the items."""

    scale: Scale
    n_clients: int
    release: Release
    row_weights: PerItem
    prior: ItemPrior | None
    # The main directions of item_features; None without any.
    features: PerItem | None
    # How many of the columns of q_i are learned.
    n_factors: int
    n_steps: int
    # (b_i, q_i), the variances of b_i, and the averages of the last rounds.
    items: PerItem
    bias_variance: PerItem
    average: PerItem
    # Coordinates of who rates an item, and what they and q_i say of users; None without audiences.
    audiences: PerItem | None
    users: Users | None

    @property
    def learns_audiences(self) -> bool:
        """Return whether the next sum is for the audiences."""
        return self.audiences is not None and self.n_steps < AUDIENCE_ROUNDS


@dataclass
class PrivFedEBClients:
    """Users of a block: their ratings, in units, and their vectors."""

    # fedeb_kernels.Ratings
    ratings: tuple[np.ndarray, ...]
    unit: float
    # Of the items: a_i, and their features in z_i.
    row_weights: np.ndarray
    features: np.ndarray | None
    # The means phi that the last update has found; the next one starts afresh.
    users: PerUser


@dataclass(eq=False, repr=False)
class PrivFedEBParameters:
    """Parameters of PrivFedEB."""

    n_factors: AtLeast0 | Literal["auto"] = "auto"
    _: KW_ONLY
    center: From0To1 = 0.625
    rating_scale: RatingRange = None
    INIT_STD: float = constant(0.025)


@dataclass(kw_only=True, eq=False)
class PrivFedEBAlgorithm(PrivFedEBParameters, Algorithm[PrivFedEBServer, PrivFedEBClients]):
    """Clients infer their users; the server's steps allow for the noise in the sums."""

    # How many factors clients send.
    n_columns: int
    # From how many clients on audiences are learned.
    fewest: float
    # Number of rounds with all clients, unless audiences are learned.
    full_rounds: int
    client_fraction: float
    dropout: float
    dtype: type[np.floating]
    # Whether there is central differential privacy.
    is_private: bool
    item_content: ItemFeatures

    @property
    def traits(self):
        return Traits(single_uploads=True, rotates=True, refuses={"local_dp": NO_LOCAL_DP})

    def rounds(self, sampling, n_clients):
        n = ROUNDS_WITH_AUDIENCES if n_clients >= self.fewest else self.full_rounds
        return round(n / np.sqrt(sampling.arriving(n_clients)))

    @property
    def _n_explaining(self):
        """How many columns of x_i say what to expect of a user: q_i, tastes and audiences."""
        return self.n_columns + TASTES + self.n_columns + 1

    def downloads(self, n_items):
        d, n_explaining = self.n_columns, self._n_explaining
        n_features = range(DIRECTIONS + 1 if self.item_content.features is not None else 1)
        most = 1 + n_explaining + n_features[-1]
        forms = {
            "scale": Form((3,)),
            "row_weights": Form((n_items,)),
            "features": Form((n_items, n_features)),
            "items": Form((n_items, d + 1)),
            "average_items": Form((n_items, range(1 + TASTES, most + 1))),
        }
        if self.fewest < np.inf:
            forms |= {
                "directions": Form((n_items, d + 1)),
                "audiences": Form((n_items, d + 1)),
                "coefficients": Form((n_explaining, n_explaining)),
                "average_implicit": Form((n_items, range(n_explaining + 1))),
            }
        return forms

    # --------------------------------------------------------------- before the rounds

    def setup_fields(self, n_items):
        return {
            "first": FieldSpec((n_items, 2), learned=False),
            "squares": FieldSpec((1,), learned=False),
        }

    def request(self, catalogue):
        return Message(scale=_public(self._scale(catalogue)))

    def answer(self, block, message, key):
        everybody = np.ones(block.n_clients, dtype=bool)
        turn = RoundMasks(everybody, everybody, self.is_private)
        layout, out = block.layout, _empirical_bayes.uploads(block, turn, 2)
        share, own = np.sqrt(1 - SQUARES**2), np.zeros((block.row_counts.max(initial=1), 2))
        ratings = _ratings_of(block, Scale.received(message))
        privfedeb_kernels.first(layout, ratings, SHRINKAGE, LARGEST, share, own, out)
        out = out._replace(scales=SQUARES * out.scales[:, :1])
        fields = _empirical_bayes.written(block, turn, out)
        return Updates({"first": fields["items"], "squares": fields["scales"]})

    def begin(self, catalogue, sums, key):
        assert sums is not None
        share = np.sqrt(1 - SQUARES**2)
        first = sums["first"]
        squares = sums["squares"].sum[0] / SQUARES
        release = Release.of(first.sum / share, first.noise_std / share, squares)
        n_items, n_factors = len(release.counts), self.n_columns
        if self.n_factors == "auto":
            sampling = Sampling(self.client_fraction, dropout=self.dropout)
            n_factors = min(n_factors, release.n_factors(sampling.arriving(sums.n_clients)))
        items = np.zeros((n_items, self.n_columns + 1))
        items[:, 0], bias_variance = release.biases()
        prior = self.item_content.prior(release.counts)
        if prior is not None:
            items[:, 0], bias_variance = release.biases(prior.means(items[:, :1])[:, 0])
        start = key.at(SETUP).generator("item factors").standard_normal((n_items, n_factors))
        items[:, 1 : n_factors + 1] = self.INIT_STD * start
        audiences, users = None, None
        if catalogue.n_clients >= self.fewest:
            random = key.at(SETUP).generator("audiences")
            audiences = random.standard_normal((n_items, self.n_columns + 1))
            audiences = without_popularity(audiences, release)
            users = Users.first(self._n_explaining)
        return PrivFedEBServer(
            scale=self._scale(catalogue),
            n_clients=catalogue.n_clients,
            release=release,
            row_weights=release.row_weights(),
            prior=prior,
            features=None if prior is None else CONTENT * prior.directions(DIRECTIONS),
            n_factors=n_factors,
            n_steps=0,
            items=items,
            bias_variance=bias_variance,
            average=items,
            audiences=audiences,
            users=users,
        )

    def _scale(self, catalogue):
        """Return the scale, with the level at `center`."""
        low, high = scale_of(self.rating_scale, catalogue.rating_range)
        return Scale(low, high, low + self.center * (high - low))

    def announce(self, server):
        message = Message(scale=_public(server.scale), row_weights=_public(server.row_weights))
        if server.features is not None:
            message["features"] = _public(server.features)
        return message

    # ---------------------------------------------------------------------- each round

    def broadcast(self, server, key):
        if server.learns_audiences:
            release = server.release
            directions = np.linalg.qr(server.audiences)[0] / np.sqrt(release.padded)[:, None]
            return Message(directions=Dense(directions))
        message = Message(items=Dense(server.items))
        if server.users is not None:
            message["audiences"] = Dense(scaled_audiences(server.audiences, server.release))
            message["coefficients"] = Dense(server.users.coefficients)
        return message

    def fields(self, n_items):
        specs = {"items": FieldSpec((n_items, self.n_columns + 1))}
        if self.fewest < np.inf:
            specs["users"] = FieldSpec((self._n_explaining, 2 * self._n_explaining), learned=False)
        return specs

    def enter(self, block, message, key):
        features = message["features"].values if "features" in message else None
        n_known = TASTES if features is None else TASTES + features.shape[1]
        scale = Scale.received(message)
        return PrivFedEBClients(
            ratings=_ratings_of(block, scale),
            unit=scale.unit,
            row_weights=message["row_weights"].values,
            features=features,
            users=np.zeros((block.n_users, self.n_columns + 1 + n_known)),
        )

    def update(self, block, clients, message, turn, key):
        if "directions" in message:
            directions = message["directions"].values
            return clients, self._positions(block, clients, directions, turn), None
        items, coefficients, audiences = message["items"].values, None, None
        n_sent, share = items.shape[1], 1.0
        if "audiences" in message:
            audiences, coefficients = message["audiences"].values, message["coefficients"].values
            share = np.sqrt(1 - USERS**2)
        known = tastes(items[:, 0], clients.row_weights, audiences, clients.features)
        items = np.column_stack([items, known])
        users = np.zeros((block.n_users, items.shape[1]))
        implicit = _implicit(items, coefficients)
        squares, weight, out = _infer(block, clients, items, implicit, turn, users, n_sent, share)
        clients = replace(clients, users=users)
        fields = {"items": _empirical_bayes.written(block, turn, out)["items"]}
        if self.fewest < np.inf:
            sends = out.senders & out.is_finite
            given = None if coefficients is None else (items, users)
            fields["users"] = self._sums_of_users(block, given, turn, sends)
        updates = Updates(fields, is_finite=out.is_finite)
        return clients, updates, (clients.unit**2 * squares, weight)

    def _positions(self, block, clients, directions, turn):
        """Return the uploads of a round for the audiences."""
        out = _empirical_bayes.uploads(block, turn, self.n_columns + 1)
        own = np.zeros((block.row_counts.max(initial=1), self.n_columns + 1))
        position, a = np.zeros(directions.shape[1]), clients.row_weights
        privfedeb_kernels.project(block.layout, turn.active, directions, a, position, own, out)
        items = _empirical_bayes.written(block, turn, out)["items"]
        users = self._sums_of_users(block, None, turn, out.senders)
        return Updates({"items": items, "users": users}, is_finite=out.is_finite)

    def _sums_of_users(self, block, given, turn, sends):
        """Return sums over users of g (g, phi)', of norm `USERS` at most for each client.

        `given` are the rows of the items, and the users' phi; None for sums that are 0.
        """
        if given is None:
            nothing = np.zeros((block.n_clients, self._n_explaining, 2 * self._n_explaining))
            return SparseRows.stacked(nothing) if turn.separate else nothing[0]
        (items, users), rated = given, slice(1, self._n_explaining + 1)
        shape, n_rated = (block.n_users, block.n_items), np.diff(block.indptr)
        matrix = csr_array((np.ones(len(block.items)), block.items, block.indptr), shape=shape)
        # Rows of clients that do not send may not be finite.
        phi = np.where(block.users_of(sends)[:, None], users[:, rated], 0.0)
        g = (matrix @ items[:, rated]) / np.sqrt(n_rated)[:, None]
        both = np.column_stack([g, phi])
        norms = np.linalg.norm(g, axis=1) * np.linalg.norm(both, axis=1)
        n_users = np.diff(block.client_indptr)
        size = block.users_of(sends) * USERS / np.maximum(norms, 1) / np.repeat(n_users, n_users)
        g *= size[:, None]
        if not turn.separate:
            return g.T @ both
        each = np.einsum("ug,uk->ugk", g, both)
        return SparseRows.stacked(np.add.reduceat(each, block.client_indptr[:-1]))

    def step(self, server, upload, key):
        if upload is None:
            return server
        share = upload.n_clients / server.n_clients
        sums, noise_std = upload["items"].sum, upload["items"].noise_std
        release, a, users = server.release, server.row_weights, server.users
        if server.learns_audiences:
            found = learned_audiences(sums, noise_std, a, release)
            return replace(server, audiences=found, n_steps=server.n_steps + 1)
        n_done, of_vectors = 0, VECTOR_VARIANCE
        if users is not None:
            users, n_done = users.after(upload["users"]), AUDIENCE_ROUNDS
            a, of_vectors = np.sqrt(1 - USERS**2) * a, EXPLAINED * of_vectors
        curvature = share * release.counts * a
        noise = release.noise(curvature, a, noise_std)
        items, variance = server.items.copy(), server.bias_variance
        gain = posterior_gains(variance, curvature, noise)
        items[:, 0] += gain * sums[:, 0]
        active = slice(1, server.n_factors + 1)
        gains = posterior_gains(of_vectors, EMPHASIS * USER_SQUARE * curvature, noise)
        items[:, active] += gains[:, None] * sums[:, active]
        t = server.n_steps + 1
        average = server.average + max(1 / (t - n_done), NEW) * (items - server.average)
        average[:, 0] = items[:, 0]
        variance = variance * (1 - gain * curvature)
        server = replace(server, items=items, bias_variance=variance, average=average)
        return replace(server, users=users, n_steps=t)

    # ------------------------------------------------------------------------- the end

    def final(self, server):
        items, prior = server.average[:, : server.n_factors + 1], server.prior
        items = items if prior is None else prior.filled(items)
        audiences, users = None, server.users
        if users is not None:
            audiences = scaled_audiences(server.audiences, server.release)
        known = tastes(items[:, 0], server.row_weights, audiences, server.features)
        items = np.column_stack([items, known])
        message = Message(average_items=Dense(items))
        if users is not None:
            # Without the columns of q_i that are not learned.
            kept = np.delete(np.arange(self._n_explaining), slice(server.n_factors, self.n_columns))
            implicit = _implicit(items, users.coefficients[np.ix_(kept, kept)])
            message["average_implicit"] = Dense(implicit)
        return message

    def personalize(self, block, clients, message, turn, key):
        # Users start afresh: only their own data count.
        part, items = block.part(turn.active), message["average_items"].values
        clients = self.enter(part, message, key)
        users, implicit = np.zeros((part.n_users, items.shape[1])), message.get("average_implicit")
        implicit = _implicit(items, None) if implicit is None else implicit.values
        if implicit.shape[1] >= items.shape[1]:
            raise MalformedMessage("Field 'average_implicit' is wider than 'average_items'.")
        _infer(part, clients, items, implicit, _empirical_bayes.for_nobody(part), users)
        # The bias counts in ratings; p_u has no unit.
        users[:, 0] *= clients.unit
        return replace(clients, users=block.spread(users, turn.active))

    # ------------------------------------------------------------------------ the model

    def server_attributes(self, message):
        scale = Scale.received(message)
        items = scale.unit * message["average_items"].values.astype(self.dtype)
        implicit = message.get("average_implicit")
        attributes = {}
        if implicit is not None:
            attributes["implicit_factors_"] = implicit.values.astype(self.dtype)
        return attributes | {
            "item_factors_": np.ascontiguousarray(items[:, 1:], self.dtype),
            "item_bias_": items[:, 0].astype(self.dtype),
            "global_bias_": scale.level,
            "rating_scale_": (scale.low, scale.high),
        }

    def user_attributes(self, block, clients):
        users = clients.users.astype(self.dtype)
        return {
            "user_factors_": np.ascontiguousarray(users[:, 1:]),
            "user_bias_": users[:, 0].copy(),
        }

    def model(self, fitted):
        def rule():
            unit, prior = _empirical_bayes.scale_of(fitted).unit, {}
            if "implicit_factors_" in fitted:
                factors = fitted["implicit_factors_"]
                n_others = fitted["item_factors_"].shape[1] - factors.shape[1]
                prior["prior"] = np.pad(factors, ((0, 0), (1, n_others)))
            variances = unit**2 / ALPHA, unit**2 / LAMBDA_0
            return _empirical_bayes.posterior_rule(fitted, *variances, **prior)

        response = clipped(*fitted["rating_scale_"])
        return Factors.of(fitted, response=response, make_rule=rule)

    def item_vectors(self, message):
        return message["items"].values


def _public(values):
    """Return a field of numbers that were not learned."""
    return Dense(np.asarray(values), learned=False)


def _ratings_of(block, scale):
    """Return ratings from the center, in units, and their weights."""
    return fedeb_kernels.Ratings(scale.in_units(block), block.weights)


def _implicit(items, coefficients):
    """Return what each rated item adds to a user's prior mean, no columns if nothing."""
    if coefficients is None:
        return np.zeros((len(items), 0))
    return items[:, 1 : 1 + len(coefficients)] @ coefficients


def _infer(block, clients, items, implicit, turn, users, n_sent=0, share=1.0):
    """Infer users given the items; return loss, weight and uploads of the first columns."""
    items, layout = np.ascontiguousarray(items, dtype=np.float64), block.layout
    width = items.shape[1]
    prior = np.ones(width)
    prior[0] = LAMBDA_0
    implicit, no_variances = np.ascontiguousarray(implicit), np.zeros((0, width))
    model = fedeb_kernels.Model(items, implicit, no_variances, prior, ALPHA, 0.0)
    work = fedeb_kernels.workspace(layout, model, n_sent)
    out = _empirical_bayes.uploads(block, turn, n_sent)
    constants = clients.row_weights, EMPHASIS, FLOOR, share
    squares, weight = privfedeb_kernels.update(
        layout, clients.ratings, turn.active, model, *constants, work, users, out
    )
    return squares, weight, out


@documented
@dataclass(eq=False, repr=False)
class PrivFedEB(PrivFedEBParameters, ItemContent, RatingMixin, FederatedRecommender):
    """Ratings under user-level differential privacy: federated empirical Bayes on noisy sums.

    Every upload is a vector of norm 1 at most, so that noise of a known size on the sum hides it.
    The server weighs each noisy sum against a prior: it moves popular items far and others hardly
    at all, expects popular items to be better, and learns as many factors as the noise allows.
    Meant for ``Federation(central_dp=CentralDP(epsilon=10))``; :class:`FedEB` is more accurate
    without noise.

    The model of user u's rating of item i, in quarters of the scale::

        r = center + b_i + b_u + q_i . p_u + z_i . s_u + e,        e ~ N(0, 1 / alpha)
        (b_u, p_u, s_u) ~ N(0, diag(1 / lambda_0, 1, ..., 1))
        b_i ~ N(beta_0 + beta_1 log N_i, 1 / 4),    q_i ~ N(0, I / 50)

    where N_i measures how often the item is rated, alpha is 1.3, and lambda_0 is 6. z_i has two
    numbers that follow from published values, log N_i and b_i; s_u is the user's taste for popular
    and for good items, learned on the device without noise. With `audiences`, z_i also has numbers
    that say who rates the item, and the mean of (p_u, s_u) depends on which items u has rated. With
    `item_features`, z_i has these too, in up to 20 directions, and b_i's prior mean is a regression
    on them. The method and its name are this project's.

    Parameters
    ----------
    n_factors : int or "auto", default="auto"
        Length of p_u and q_i (d); 0 to learn biases only. "auto": the server chooses up to 6 from
        the first noisy sums, which costs no further privacy; clients send 6 in any case. It is 0
        where ``n_rounds="auto"`` is 5, because factors need more rounds.
    n_rounds : int or "auto", default="auto"
        Number of rounds in total (T), with f the share of the clients that take part in one and
        do not drop out. "auto": ``10 f^-1/2`` under central differential privacy;
        ``5 f^-1/2`` if its epsilon is below 2 or, where only that is given, its noise multiplier
        above 6; without noise, ``20 f^-1/2``; with `audiences`, ``16 f^-1/2``.
    center : float in [0, 1], default=0.625
        Where on the rating scale most ratings are, from 0 (its low end) to 1; on a scale from 1 to
        5, 0.625 is 3.5 stars. It is a guess, because the mean of the data is private.
    audiences : bool or "auto", default="auto"
        Whether the first two rounds are spent on who rates which item, and the others also learn
        what this choice says about a user. "auto": under central differential privacy, if the
        number of clients is at least 30,000 / epsilon or, where only that is given, 1,800 times the
        noise multiplier; never with ``n_factors=0``, an `n_rounds`, or cohorts.
    rating_scale : tuple (low, high) or None, default=None
        The ends of the rating scale, to which predictions are clipped. If None, the range of y;
        under central differential privacy this raises an error.
    {item_features}
    {shared parameters}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors + 2), dtype float32
        p_u and s_u; private to the client. With ``n_factors="auto"``, as many columns of p_u as the
        server chose; with `audiences`, 7 columns more (n_factors + 1 if that is a number); with
        `item_features`, up to 20 columns more.
    item_factors_ : ndarray of shape (n_items, n_factors + 2), dtype float32
        q_i and z_i, in ratings.
    implicit_factors_ : ndarray, dtype float32
        With `audiences`: what each item that a user has rated adds to the prior mean of p_u and
        s_u, times the square root of their number.
    user_bias_, item_bias_ : ndarray of shape (n_users,) and (n_items,), dtype float32
        b_u and b_i, in ratings.
    global_bias_ : float
        The center of the ratings.
    rating_scale_ : tuple of float
        The ends of the rating scale.
    {shared attributes}

    Raises
    ------
    ValueError
        By fit: if ratings lie outside `rating_scale`; if weights are not between 1e-6 and 1e6;
        with local differential privacy, which it does not support.

    See Also
    --------
    FedEB : More accurate without noise.
    fedrecsk.privacy.CentralDP : The noise, and its epsilon.

    Notes
    -----
    *Algorithm*, with a user's ratings counted from the center, in units of a quarter of the scale::

        set-up
          1  clients send counts and residuals                  answer: kernel first
          2  server estimates N_i, b_i and row weights a_i      begin
        each round
          3  server sends b_i and q_i                           broadcast
          4  clients infer their users                          kernel infer
          5  ... and upload the gradient in their items         kernel add_user
          6  server takes a step                                step
        end
          7  server sends b_i, the average of q_i, and z_i      final
          8  clients infer their users once more                personalize

    *Set-up.* For each rated item, user u has ``(1, clip(r - m_u, -2, 2))``, where m_u is its mean
    rating shrunk by three ratings at the center; this vector is scaled to norm 1. A client
    adds up its users' vectors and scales the sum down to norm 1 if it is longer. The sums
    over clients are N_i and B_i; noisy N_i below six standard deviations of their noise are
    replaced by their posterior means, under a prior learned from all of them (empirical Bayes, on
    a grid of a quarter standard deviation). A further number, 0.1 times the squares of the
    counts, tells the server how much one rating counts (w): the noise in the ratings themselves has
    variance ``w N_i / alpha``, and s^2 more if noise of standard deviation s is added.

    *Step 2.* A line ``g_i = beta_0 + beta_1 log(N_i + mean(N) / 2)`` is fitted to B_i / N_i, and
    b_i is the posterior mean ``g_i + k (B_i - N_i g_i)`` with
    ``k = V N_i / (V N_i^2 + s^2 + w N_i / alpha)``. Its variance V is 1/4 at first and then
    ``(1 - k N_i) V``. Row weights ``a_i ~ (N_i + mean(N) / 2)^-1/4`` spend more of an upload on
    seldom rated items [4]_.

    *Steps 4 and 5.* z_i has ``log(N_i + mean(N) / 2)`` and b_i, each with mean 0 and standard
    deviation 0.14 over items weighted by ``N_i + mean(N) / 2``; clients compute it from a_i, b_i.
    Features are centred, turned to their main directions and scaled together to a root mean square
    of 0.3. With ``x_i = (1, q_i, z_i)`` and X the rows of the user's items, ``S = (alpha X'X +
    Lambda)^-1``, ``phi = (b_u, p_u, s_u) = alpha S X'(r - b)``, ``e = r - b - X phi``. The gradient
    is ``a_i e_i`` for b_i and ``1.4 a_i (e_i p_u - S x_i)`` for q_i, divided by its norm, or by
    that of ``a / 2`` if this is larger. A client adds up its users' gradients, and scales the sum
    down to norm 1.

    *Step 6.* With a share f of the clients in the sum, the curvature of b_i is ``h = f N_i a_i``,
    and b_i moves by the k of step 2 with ``s^2 + f w N_i a_i^2 / alpha`` as the variance of the
    noise. For q_i the curvature is ``0.35 * 1.4 h``, and V stays 1/50, because its
    optimum moves along with the users. Each round's q_i replaces half of the average.

    *Audiences.* The server begins with random directions O, orthogonal to ``N^1/2``. In each of two
    rounds, a user whose items' rows of ``(N_i + mean(N) / 2)^-1/2 O`` add up to t sends ``a_i t``
    for each rated item, divided by the norm of it all. The server divides a row of the sum by
    ``a_i (N_i + mean(N) / 2)^1/2``, takes away what lies along ``N^1/2``, and multiplies it by
    ``v / (v + s_i^2)``, where s_i^2 is the variance of its noise, and v the variance of a column
    without it. These columns are the next directions, and at the end z_i, scaled to a root mean
    square of 0.2 together. In the rounds after that, ``g = n_u^-1/2 sum_j (q_j, z_j)`` over the n_u
    rated items, without features. A client adds up ``g (g, phi)'`` of its users, each of norm 0.2
    divided by their number, and its gradients have norm 0.98. From averages of these sums, half of
    which each round replaces, a ridge regression of phi on g (penalty 4 s) gives the prior mean of
    (p_u, s_u). The variance of q_i is then 1/100.

    *Sensitivity.* A user's rows are weighted by a_i before they are divided by the norm of all of
    them, so the squared norms of its rows add up to at most 1 whatever a_i, b_i and q_i are: the
    weights divide one user's budget among its items, and never add to it. A client's sum
    is scaled down to norm 1 again. So without one client, any sum changes by at most 1 in L2, which
    is what the noise and its accounting assume. N_i, a_i, b_i, q_i and z_i are computed from noisy
    sums (post-processing), and s_u is never sent.

    *Choices that the noise does not pay for.* Constants and defaults were chosen on a part of
    MovieLens-1M's ratings, without noise on the choice. An epsilon on that data set does not
    cover this; on any other data set it covers everything.

    *Weights.* A rating of `sample_weight` 2 counts twice in its user's own vector and in the
    upload before it is scaled. As uploads have norm 1, users with large weights do not count more
    than others.

    *Constants.* Initial vectors have the standard deviation ``INIT_STD = 0.025``.

    *What is sent.* Once, up: two numbers for each item of the catalogue, and one more; down:
    a_i, the scale and the center, and the features of z_i. Each round: d + 1 numbers for each item,
    in both directions. At the end, down: d + 3, and the features. With `audiences`, each round also
    d + 1 numbers for each item down, ``(2 d + 3)^2`` more, and twice these up; at the end 3 d + 4
    numbers for each item down.

    *What it reveals.* The server uses only sums. With central differential privacy these
    have noise, and nothing else leaves a client. Without it, a client's zero rows reveal what it
    has not rated, and the others reveal its ratings; use secure sums.

    References
    ----------
    .. [1] S. Chien, P. Jain, W. Krichene, S. Rendle, S. Song, A. Thakurta and L. Zhang, "Private
       Alternating Least Squares", ICML 2021: uploads of bounded norm for all items of a user.
    .. [2] H. B. McMahan, D. Ramage, K. Talwar and L. Zhang, "Learning differentially private
       recurrent language models", ICLR 2018.
    .. [3] R. Kalman, "A new approach to linear filtering and prediction problems", 1960: the step.
    .. [4] W. Krichene, P. Jain, S. Song, M. Sundararajan, A. Thakurta and L. Zhang, "Multi-task
       differential privacy under distribution skew", ICML 2023: weights of items, n^-1/4.

    Examples
    --------
    >>> import numpy as np
    >>> from fedrecsk import Federation, PrivFedEB
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.privacy import CentralDP
    >>> X, y = make_ratings(n_users=600, n_items=40, n_ratings=9000, random_state=0)
    >>> private = Federation(central_dp=CentralDP(epsilon=10, delta=1e-4))
    >>> model = PrivFedEB(items=np.arange(40), rating_scale=(1, 5), federation=private)
    >>> model = model.fit(X, y)
    >>> model.n_rounds_, round(model.privacy_.epsilon, 6)
    (10, 10.0)
    """

    _: KW_ONLY
    n_rounds: AtLeast1 | Literal["auto"] = "auto"
    audiences: bool | Literal["auto"] = "auto"

    # What `fit` sets.
    implicit_factors_: ClassVar[np.ndarray]

    _predicted = ("average_items",)
    _absent = ("row_weights", "features", "average_implicit")

    _kind = PrivFedEBAlgorithm

    @property
    def _dropout(self):
        return self._setting().dropout

    @property
    def _is_private(self):
        return self._setting().central_dp is not None

    # ----------------------------------------------------- how many factors and rounds

    @property
    def _n_columns(self):
        if self.n_factors != "auto":
            return self.n_factors
        # In a few rounds no factors are learned.
        return 0 if self._is_loud() else MOST

    def _is_loud(self):
        """Return whether so much noise is added that many rounds cost more than they bring."""
        mechanism = self._setting().central_dp
        if mechanism is None:
            return False
        if mechanism.epsilon is not None:
            return mechanism.epsilon < SMALL
        return (mechanism.noise_multiplier or 0.0) > LOUD

    @property
    def _fewest(self):
        if self.audiences != "auto":
            return 0 if self.audiences else np.inf
        mechanism = self._setting().central_dp
        is_plain = self.n_rounds == "auto" and self.n_factors != 0 and self.client_fraction == 1
        if mechanism is None or not is_plain or self._is_loud():
            return np.inf
        if mechanism.epsilon is not None:
            return ENOUGH / mechanism.epsilon
        return ENOUGH_FOR_NOISE * mechanism.noise_multiplier or np.inf

    @property
    def _full_rounds(self):
        if not self._is_private:
            return ROUNDS_WITHOUT_NOISE
        return FEW_ROUNDS if self._is_loud() else ROUNDS

    # ------------------------------------------------------------------------- checks

    def _check_before_fit(self):
        super()._check_before_fit()
        is_short = self.n_rounds != "auto" and self.n_rounds <= AUDIENCE_ROUNDS
        if is_short and self.audiences not in ("auto", False):
            raise ValueError(
                f"With audiences=True the first {AUDIENCE_ROUNDS} rounds learn no vectors, so "
                f"n_rounds={self.n_rounds} is too few; raise n_rounds, or set audiences=False."
            )
        mechanism = self._setting().central_dp
        for name in ("clip", "setup_clip"):
            bound = getattr(mechanism, name, None)
            if bound is not None and bound > 1:
                warn(
                    f"No upload of {type(self).__name__} is longer than 1, so CentralDP("
                    f"{name}={bound:g}) only means more noise; set {name}=1.0.",
                    UserWarning,
                )

    def _check_setting(self, plan, data, blocks):
        super()._check_setting(plan, data, blocks)
        wrong = data.weights[(data.weights < LIGHTEST) | (data.weights > HEAVIEST)]
        if len(wrong):
            raise ValueError(
                f"A rating has sample_weight {wrong[0]:g}, but weights must be between "
                f"{LIGHTEST:g} and {HEAVIEST:g}, or 0; divide sample_weight by its mean."
            )

    def _least_bytes(self, data):
        users = 2 * np.dtype(self._dtype).itemsize * data.n_users * (self._n_columns + TASTES)
        return super()._least_bytes(data) + (users if self.client_fraction == 1 else 0)
