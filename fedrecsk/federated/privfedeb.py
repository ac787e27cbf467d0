"""PrivFedEB: ratings under user-level central differential privacy."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from fedrecsk._utils.docs import documented
from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.sklearn_compat import Interval, StrOptions
from fedrecsk._utils.user_warnings import warn
from fedrecsk.base._item_prior import ItemFeatures, ItemPrior
from fedrecsk.data._checks import scale_of
from fedrecsk.federated import _empirical_bayes
from fedrecsk.federated._empirical_bayes import EmpiricalBayes, Scale, fedeb_kernels
from fedrecsk.federated._features import FederatedContent
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol.algorithm import Algorithm, Loss, Traits
from fedrecsk.protocol.keys import SETUP
from fedrecsk.protocol.messages import Dense, Message
from fedrecsk.protocol.participation import RoundMasks
from fedrecsk.protocol.states import PerItem, PerUser
from fedrecsk.updates import FieldSpec, Updates

if TYPE_CHECKING:
    from fedrecsk.protocol.blocks import Block
    from fedrecsk.protocol.keys import Key, Keys
    from fedrecsk.protocol.messages import Catalogue, Upload

__all__ = ["PrivFedEB"]

privfedeb_kernels: LazyModule = LazyModule("fedrecsk.federated._privfedeb_kernels")

# Precisions of a rating, and of users' biases.
ALPHA, LAMBDA_0 = 1.3, 6.0
# In the set-up: how many ratings at the center a user's mean is shrunk by, and the bound of a
# residual, in units.
SHRINKAGE, LARGEST = 3.0, 2.0
# Norm of the part of the first upload that is one number, for the squared counts.
SQUARES = 0.1
# Least mean square error, in squared units, that a user's gradient is divided by.
FLOOR = 0.25
# Share of the average vectors that a round replaces at least.
NEW = 0.5
# Rounds of all clients: with little noise or a smaller epsilon than `SMALL`; without noise.
ROUNDS, FEW_ROUNDS, ROUNDS_WITHOUT_NOISE = 10, 5, 20
SMALL, LOUD = 2.0, 6.0
# Bounds of a rating's weight, whose square must neither overflow nor vanish.
LIGHTEST, HEAVIEST = 1e-6, 1e6

# Variances of items' biases about their prior mean, and of the numbers of their vectors, in units.
BIAS_VARIANCE, VECTOR_VARIANCE = 0.25, 0.02
# Mean square of the numbers of users' vectors, as far as their ratings determine them.
USER_SQUARE = 0.35
# Factor of the gradient in vectors, whose numbers are smaller than those in biases.
EMPHASIS = 1.4
# An item's rows are weighted by 1 / (N_i + half the mean)^power, for fewer rated items.
POWER = 0.25
# Standard deviations over the ratings of the columns of users' tastes.
TASTE = 0.14
# Root mean square of an item's features, all together, and of how many directions at most.
CONTENT, DIRECTIONS = 0.3, 20
# Of the prior of counts, in standard deviations of the noise: its largest value and its steps; a
# larger count than `CLEAR` stays as it is. Steps by which it is learned.
WIDEST, STEP, CLEAR, PRIOR_STEPS = 8.0, 0.25, 6.0, 50
# Factors: none if a step of all clients is less reliable than this, else one for each multiple of
# it and one more, at most `MOST`.
RELIABLE, MOST = 0.125, 6
TINY = np.finfo(float).tiny
# Columns of x_i that follow from the others: popularity and b_i.
TASTES = 2


# --------------------------------------------------------- the server: steps on noisy sums

# The sums of a round are ``h (x - x_now)`` plus noise, for an item's parameter x and a curvature h
# that follows from the first release. With a normal prior of x, the best step is the posterior
# mean, a fraction of the sum that is small for items about which the noise hides nearly everything.


class _Release(NamedTuple):
    """What the set-up has published."""

    counts: np.ndarray  # (n_items,), N_i, at least 0
    residuals: np.ndarray  # (n_items,), B_i, noisy
    noise_std: float  # of both
    rating_weight: float  # by how much a typical rating counts in the sums

    @classmethod
    def of(cls, sums, noise_std, squares):
        """Make it from sums of counts and residuals (n_items, 2), and of squared counts."""
        counts = _denoised(sums[:, 0], noise_std)
        rating_weight = max(float(squares), 0.0) / max(float(counts.sum()), TINY)
        return cls(counts, sums[:, 1], noise_std, rating_weight)

    @property
    def padded(self):
        """N_i plus half their mean, so that the noise on small ones does not matter."""
        return np.maximum(self.counts + self.counts.mean() / 2, TINY)

    def row_weights(self):
        """a_i: weights of the items' rows in uploads; in the mean over ratings, a_i^2 is 1."""
        weights = (self.padded / self.padded.max()) ** -POWER
        total = self.counts.sum()
        if not total > 0:
            return np.ones(len(weights))
        return weights / np.sqrt(self.counts @ weights**2 / total)

    def noise(self, curvature, row_weights, noise_std):
        """Variance of a round's sums: added noise, and that of the ratings themselves."""
        return noise_std**2 + self.rating_weight * curvature * row_weights / ALPHA

    def biases(self, prior=None):
        """Return first estimates of b_i, and their variances."""
        h = self.counts
        noise = self.noise(h, 1.0, self.noise_std)
        # Popular items are often better ones.
        prior = self._line(noise) if prior is None else prior
        gain = _gains(np.full(len(h), BIAS_VARIANCE), h, noise)
        return prior + gain * (self.residuals - h * prior), BIAS_VARIANCE * (1 - gain * h)

    def _line(self, noise):
        """Weighted least squares of B_i / N_i on log N_i, at all items."""
        x, h = np.log(self.padded), self.counts
        # One over the variance of B_i / N_i about the line, 0 where nothing is known.
        weights = h**2 / np.maximum(BIAS_VARIANCE * h**2 + noise, TINY)
        total = weights.sum()
        if not total > 0:
            return np.zeros(len(h))
        y = self.residuals / np.where(h > 0, h, 1)
        x = x - weights @ x / total
        spread = weights @ x**2
        slope = weights @ (x * y) / spread if spread > 1e-9 * total else 0.0
        return weights @ y / total + slope * x

    def n_factors(self, share):
        """Return how many factors the noise allows, given the share of clients in a round."""
        a = self.row_weights()
        curvature = share * self.counts * a
        noise = self.noise(curvature, a, self.noise_std)
        h = USER_SQUARE * EMPHASIS * curvature
        # Of all rounds in which every client takes part once.
        ratio = VECTOR_VARIANCE * h**2 / np.maximum(noise, TINY) / share
        total = self.counts.sum()
        reliability = self.counts @ (ratio / (1 + ratio)) / total if total > 0 else 0.0
        return min(MOST, 1 + int(reliability / RELIABLE)) if reliability >= RELIABLE else 0


def _gains(variance, curvature, noise):
    """Return fractions of ``h (x - x_now) + noise`` that make x_now x's posterior mean."""
    return variance * curvature / np.maximum(variance * curvature**2 + noise, TINY)


def _denoised(counts, noise_std):
    """Return posterior means of counts given noisy ones, whose prior is learned from them all."""
    clear = counts >= CLEAR * noise_std
    if clear.all() or noise_std == 0:
        return np.maximum(counts, 0)
    grid = np.arange(0, WIDEST + STEP, STEP)
    away = (counts[~clear, None] / noise_std - grid) ** 2
    likelihood = np.exp((away.min(axis=1, keepdims=True) - away) / 2)
    prior = np.full(len(grid), 1 / len(grid))
    for _ in range(PRIOR_STEPS):
        posterior = likelihood * prior
        posterior /= posterior.sum(axis=1, keepdims=True)
        prior = posterior.mean(axis=0)
    result = counts.copy()
    result[~clear] = noise_std * posterior @ grid
    return result


def _tastes(biases, row_weights, features=None):
    """Return the columns of x_i that are public: popularity, b_i and features."""
    popularity = row_weights ** (-1 / POWER)
    columns = np.column_stack([np.log(popularity), biases])
    share = popularity / popularity.sum()
    columns = columns - share @ columns
    columns *= TASTE / np.maximum(np.sqrt(share @ columns**2), 1e-6)
    return columns if features is None else np.column_stack([columns, features])


# --------------------------------------------------------------------------- the algorithm

NO_LOCAL_DP = (
    "its uploads are bounded as a whole, and not number by number. Use central_dp, or RFRec "
    "for local differential privacy."
)


@dataclass(frozen=True)
class Server:
    """What the server knows: what the set-up has published, and the items."""

    scale: Scale
    n_clients: int
    release: _Release
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


@dataclass
class Clients:
    """Users of a block: their ratings, in units, and their vectors."""

    # fedeb_kernels.Ratings
    ratings: tuple[np.ndarray, ...]
    unit: float
    # Of the items: a_i, and their features in z_i.
    row_weights: np.ndarray
    features: np.ndarray | None
    # The means phi that the last update has found; the next one starts afresh.
    users: PerUser


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivFedEBAlgorithm(Algorithm[Server, Clients]):
    """Clients infer their users; the server's steps allow for the noise in the sums."""

    n_factors: int | Literal["auto"]
    # How many factors clients send.
    n_columns: int
    center: float
    rating_scale: tuple[float, float] | None
    client_fraction: float
    dropout: float
    # Whether there is central differential privacy.
    is_private: bool
    INIT_STD: float
    content: ItemFeatures

    @property
    def traits(self):
        return Traits(single_uploads=True, rotates=True, refuses={"local_dp": NO_LOCAL_DP})

    # --------------------------------------------------------------- before the rounds

    def setup_fields(self, n_items: int) -> dict[str, FieldSpec]:
        return {
            "first": FieldSpec((n_items, 2), learned=False),
            "squares": FieldSpec((1,), learned=False),
        }

    def request(self, catalogue: Catalogue) -> Message:
        return Message(scale=_public(self._scale(catalogue)))

    def answer(self, block: Block, message: Message, key: Keys) -> Updates:
        everybody = np.ones(block.n_clients, dtype=bool)
        turn = RoundMasks(everybody, everybody, self.is_private)
        layout, out = block.layout, _empirical_bayes.uploads(block, turn, 2)
        share, own = np.sqrt(1 - SQUARES**2), np.zeros((block.row_counts.max(initial=1), 2))
        ratings = _ratings_of(block, Scale.received(message))
        privfedeb_kernels.first(layout, ratings, SHRINKAGE, LARGEST, share, own, out)
        out = out._replace(scales=SQUARES * out.scales[:, :1])
        fields = _empirical_bayes.written(block, turn, out)
        return Updates({"first": fields["items"], "squares": fields["scales"]})

    def begin(self, catalogue: Catalogue, sums: Upload, key: Key) -> Server:
        share = np.sqrt(1 - SQUARES**2)
        first = sums["first"]
        squares = sums["squares"].sum[0] / SQUARES
        release = _Release.of(first.sum / share, first.noise_std / share, squares)
        n_items, n_factors = len(release.counts), self.n_columns
        if self.n_factors == "auto":
            arriving = _empirical_bayes.planned_share(
                self.client_fraction, self.dropout, sums.n_clients
            )
            n_factors = min(n_factors, release.n_factors(arriving))
        items = np.zeros((n_items, self.n_columns + 1))
        items[:, 0], variance = release.biases()
        prior = self.content.prior(release.counts)
        if prior is not None:
            items[:, 0], variance = release.biases(prior.means(items[:, :1])[:, 0])
        start = key.at(SETUP).generator("item factors").standard_normal((n_items, n_factors))
        items[:, 1 : n_factors + 1] = self.INIT_STD * start
        return Server(
            scale=self._scale(catalogue),
            n_clients=catalogue.n_clients,
            release=release,
            row_weights=release.row_weights(),
            prior=prior,
            features=None if prior is None else CONTENT * prior.directions(DIRECTIONS),
            n_factors=n_factors,
            n_steps=0,
            items=items,
            bias_variance=variance,
            average=items,
        )

    def _scale(self, catalogue):
        """Return the scale, with the level at `center`."""
        low, high = scale_of(self.rating_scale, catalogue.rating_range)
        return Scale(low, high, low + self.center * (high - low))

    def announce(self, server: Server) -> Message:
        message = Message(scale=_public(server.scale), row_weights=_public(server.row_weights))
        if server.features is not None:
            message["features"] = _public(server.features)
        return message

    # ---------------------------------------------------------------------- each round

    def broadcast(self, server: Server, key: Key) -> Message:
        return Message(items=Dense(server.items))

    def fields(self, n_items: int) -> dict[str, FieldSpec]:
        return {"items": FieldSpec((n_items, self.n_columns + 1))}

    def enter(self, block: Block, message: Message, key: Keys) -> Clients:
        features = message["features"].values if "features" in message else None
        n_known = TASTES if features is None else TASTES + features.shape[1]
        scale = Scale.received(message)
        return Clients(
            ratings=_ratings_of(block, scale),
            unit=scale.unit,
            row_weights=message["row_weights"].values,
            features=features,
            users=np.zeros((block.n_users, self.n_columns + 1 + n_known)),
        )

    def update(
        self, block: Block, clients: Clients, message: Message, turn: RoundMasks, key: Keys
    ) -> tuple[Clients, Updates, Loss]:
        items = message["items"].values
        n_sent = items.shape[1]
        known = _tastes(items[:, 0], clients.row_weights, clients.features)
        items = np.column_stack([items, known])
        squares, weight, out = _infer(block, clients, items, turn, clients.users, n_sent)
        fields = {"items": _empirical_bayes.written(block, turn, out)["items"]}
        updates = Updates(fields, is_finite=out.is_finite)
        return clients, updates, (clients.unit**2 * squares, weight)

    def step(self, server: Server, upload: Upload | None, key: Key) -> Server:
        if upload is None:
            return server
        share = upload.n_clients / server.n_clients
        sums, noise_std = upload["items"].sum, upload["items"].noise_std
        release, a = server.release, server.row_weights
        curvature = share * release.counts * a
        noise = release.noise(curvature, a, noise_std)
        items, variance = server.items.copy(), server.bias_variance
        gain = _gains(variance, curvature, noise)
        items[:, 0] += gain * sums[:, 0]
        active = slice(1, server.n_factors + 1)
        of_vectors = _gains(VECTOR_VARIANCE, EMPHASIS * USER_SQUARE * curvature, noise)
        items[:, active] += of_vectors[:, None] * sums[:, active]
        t = server.n_steps + 1
        average = server.average + max(1 / t, NEW) * (items - server.average)
        average[:, 0] = items[:, 0]
        variance = variance * (1 - gain * curvature)
        return replace(server, items=items, bias_variance=variance, average=average, n_steps=t)

    # ------------------------------------------------------------------------- the end

    def final(self, server: Server) -> Message:
        items, prior = server.average[:, : server.n_factors + 1], server.prior
        items = items if prior is None else prior.filled(items)
        known = _tastes(items[:, 0], server.row_weights, server.features)
        return Message(average_items=Dense(np.column_stack([items, known])))

    def personalize(
        self, block: Block, clients: Clients | None, message: Message, turn: RoundMasks, key: Keys
    ) -> Clients:
        # Users start afresh: only their own data count.
        part, items = block.part(turn.active), message["average_items"].values
        clients = self.enter(part, message, key)
        users = np.zeros((part.n_users, items.shape[1]))
        _infer(part, clients, items, _empirical_bayes.for_nobody(part), users)
        # The bias counts in ratings; p_u has no unit.
        users[:, 0] *= clients.unit
        return replace(clients, users=block.spread(users, turn.active))


def _public(values):
    """Return a field of numbers that were not learned."""
    return Dense(np.asarray(values), learned=False)


def _ratings_of(block, scale):
    """Return ratings from the center, in units, and their weights."""
    return fedeb_kernels.Ratings(scale.in_units(block), block.weights)


def _infer(block, clients, items, turn, users, n_sent=0):
    """Infer users given the items; return loss, weight and uploads of the first columns."""
    items, layout = np.ascontiguousarray(items, dtype=np.float64), block.layout
    width = items.shape[1]
    prior = np.ones(width)
    prior[0] = LAMBDA_0
    no_implicit, no_variances = np.zeros((len(items), 0)), np.zeros((0, width))
    model = fedeb_kernels.Model(items, no_implicit, no_variances, prior, ALPHA, 0.0, True)
    work = fedeb_kernels.workspace(layout, model, n_sent)
    out = _empirical_bayes.uploads(block, turn, n_sent)
    constants = clients.row_weights, EMPHASIS, FLOOR
    squares, weight = privfedeb_kernels.update(
        layout, clients.ratings, turn.active, model, *constants, work, users, out
    )
    return squares, weight, out


@documented
@dataclass(eq=False, repr=False)
class PrivFedEB(FederatedContent, EmpiricalBayes):
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
    and for good items, learned on the device without noise. With `item_features`, z_i has these
    too, in up to 20 directions, and b_i's prior mean is a regression on them. The method and its
    name are this project's.

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
        above 6; without noise, ``20 f^-1/2``.
    center : float in [0, 1], default=0.625
        Where on the rating scale most ratings are, from 0 (its low end) to 1; on a scale from 1 to
        5, 0.625 is 3.5 stars. It is a guess, because the mean of the data is private.
    rating_scale : tuple (low, high) or None, default=None
        The ends of the rating scale, to which predictions are clipped. If None, the range of y;
        under central differential privacy this raises an error.
    {item_features}
    {shared parameters}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors + 2), dtype float32
        p_u and s_u; private to the client. With ``n_factors="auto"``, as many columns of p_u as the
        server chose; with `item_features`, up to 20 columns more.
    item_factors_ : ndarray of shape (n_items, n_factors + 2), dtype float32
        q_i and z_i, in ratings.
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
    in both directions. At the end, down: d + 3, and the features.

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

    n_factors: int | Literal["auto"] = "auto"
    _: KW_ONLY
    n_rounds: int | Literal["auto"] = "auto"
    center: float = 0.625
    INIT_STD = 0.025
    rating_scale: tuple[float, float] | None = None

    _parameter_constraints: ClassVar[dict] = FederatedRecommender._parameter_constraints | {
        "n_factors": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
        "n_rounds": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "center": [Interval(Real, 0, 1, closed="both")],
        "rating_scale": [tuple, list, None],
        **FederatedContent._content_constraints,
    }

    _predicted_fields = ("average_items",)
    _absent_fields = ("row_weights", "features")

    def _algorithm(self):
        return self._made(
            PrivFedEBAlgorithm,
            n_columns=self._n_columns(),
            dropout=self._setting().dropout,
            is_private=self._setting().central_dp is not None,
            content=ItemFeatures(self.item_features, self.items),
        )

    # --------------------------------------------------------------- what a fit gives

    def _server_attributes(self, message):
        scale = Scale.received(message)
        items = scale.unit * message["average_items"].values.astype(self._dtype)
        return {
            "item_factors_": np.ascontiguousarray(items[:, 1:], self._dtype),
            "item_bias_": items[:, 0].astype(self._dtype),
            "global_bias_": scale.level,
            "rating_scale_": (scale.low, scale.high),
        }

    def _user_attributes(self, block, clients):
        users = clients.users.astype(self._dtype)
        return {
            "user_factors_": np.ascontiguousarray(users[:, 1:]),
            "user_bias_": users[:, 0].copy(),
        }

    def _public_half(self):
        unit = self._scale().unit
        return self._posterior_rule(unit**2 / ALPHA, unit**2 / LAMBDA_0)

    # ----------------------------------------------------- how many factors and rounds

    def _n_columns(self):
        """Return how many factors clients send."""
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

    def _rounds(self, n_clients):
        if self.n_rounds != "auto":
            return self.n_rounds
        n = FEW_ROUNDS if self._is_loud() else ROUNDS
        if self._setting().central_dp is None:
            n = ROUNDS_WITHOUT_NOISE
        return round(n / np.sqrt(self._planned_share(n_clients)))

    # ------------------------------------------------------------------------- checks

    def _check_before_fit(self):
        super()._check_before_fit()
        mechanism = self._setting().central_dp
        for name in ("clip", "setup_clip"):
            bound = getattr(mechanism, name, None)
            if bound is not None and bound > 1:
                warn(
                    f"No upload of {type(self).__name__} is longer than 1, so CentralDP("
                    f"{name}={bound:g}) only means more noise; set {name}=1.0.",
                    UserWarning,
                )

    def _check_setting(self, federation, data, blocks):
        super()._check_setting(federation, data, blocks)
        wrong = data.weights[(data.weights < LIGHTEST) | (data.weights > HEAVIEST)]
        if len(wrong):
            raise ValueError(
                f"A rating has sample_weight {wrong[0]:g}, but weights must be between "
                f"{LIGHTEST:g} and {HEAVIEST:g}, or 0; divide sample_weight by its mean."
            )

    def _least_bytes(self, data):
        users = 2 * np.dtype(self._dtype).itemsize * data.n_users * (self._n_columns() + TASTES)
        return super()._least_bytes(data) + (users if self.client_fraction == 1 else 0)
