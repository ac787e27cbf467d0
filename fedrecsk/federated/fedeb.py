"""FedEB: federated empirical Bayes for ratings, by sums over clients."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from fedrecsk._utils.docs import documented
from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.sklearn_compat import Interval, StrOptions
from fedrecsk.base import RatingMixin
from fedrecsk.data._rating_scale import scale_of
from fedrecsk.federated import _item_prior
from fedrecsk.federated._fedeb_scales import Scales, learned
from fedrecsk.federated._item_rows import OwnRows, layout_of
from fedrecsk.federated._ratings import RatingScale
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol.messages import Dense, Message, Rows
from fedrecsk.protocol.participation import RoundMasks
from fedrecsk.updates import ClientUpdates, FieldSpec, SparseRows

fedeb_kernels: LazyModule = LazyModule("fedrecsk.federated._fedeb_kernels")

# The ends of the scale are this many units apart: on a scale from 1 to 5 a unit is a star.
UNITS = 4.0
# Of the server's Adam.
BETA_1, BETA_2, EPSILON = 0.9, 0.99, 1e-8
# Largest total weight of a user's ratings; a weight of 1 is a rating.
HEAVIEST = 1e6
# Averages for prediction cover at least this many rounds.
LOOK_BACK = 10


class Moments(NamedTuple):
    """Adam's moments, with the shape of the parameter."""

    first: np.ndarray
    second: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Moments:
        """Before the first step."""
        return cls(np.zeros_like(values), np.zeros_like(values))


@documented
@dataclass(eq=False, repr=False)
class FedEB(RatingScale, RatingMixin, FederatedRecommender):
    """Federated empirical Bayes: SVD++ with learned variances, trained by sums of uploads.

    Each client infers the distribution of its users' vectors given the items, exactly, and
    uploads the gradient of the ratings' likelihood in its own items; the server adds these up,
    updates the items, and learns how noisy ratings and how different users and items are. Few
    clients per round are enough: with cohorts of 1 % each client uploads ten times in total.
    Predictions have standard deviations.

    The model of user u's rating of item i::

        r = mean + b_i + b_u + q_i . p_u + e,        e ~ N(0, 1 / alpha_u)
        (b_u, p_u) ~ N((0, m_u), diag(1 / lambda_0, 1, ..., 1)),  m_u = n_u^-1/2 sum_j y_j
        alpha_u ~ Gamma(nu / 2, nu / (2 alpha))
        (b_i, q_i) ~ N(f_i, 1 / R),                  f ~ N(0, K / psi)

    where the sum is over the n_u items j that u has rated, and K measures how often two items
    are rated by the same users. The method and its name are this project's.

    Parameters
    ----------
    n_factors : int, default=20
        Length of p_u and q_i (d).
    n_rounds : int or "auto", default="auto"
        Number of rounds in total (T). "auto": ``100 f^-1/2``, where f is the share of the clients
        that take part in a round and do not drop out: 100 rounds of all clients, 1,000 of 1 %.
        Each client then uploads about ``100 f^1/2`` times.
    implicit : bool, default=True
        Whether to learn about a user also from which items it has rated, apart from the ratings
        themselves (y_j). Without it, m_u is 0.
    sketch_size : int, default=128
        Columns of the sketch from which the server learns K, at most the number of items. 0: items
        do not depend on each other (f is 0).
    user_noise : bool, default=True
        Whether every user has a noise level of its own. If not, alpha_u is alpha for all.
    posterior : {"variational", "map"}, default="variational"
        "variational": users and items have variances, and the scales are learned. "map": only the
        most likely vectors; the scales then keep their initial values.
    learning_rate : float or "auto", default="auto"
        Step size of the server's Adam (eta). "auto": ``0.05 f^1/3``, where f is the share of
        the clients whose uploads were accepted in the round.
    upload : {"own", "all"}, default="own"
        "own": a client reports once which items it holds, and receives and sends only their
        rows. "all": the rows of all items are sent, as secure sums require.
    rating_scale : tuple (low, high) or None, default=None
        The ends of the rating scale, to which predictions are clipped. None: the range of y.
    {shared parameters}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors), dtype float32
        Mean of p_u; private to the client.
    item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        q_i, in ratings.
    implicit_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        y_j; absent with ``implicit=False``.
    user_bias_, item_bias_ : ndarray of shape (n_users,) and (n_items,), dtype float32
        b_u and b_i, in ratings.
    global_bias_ : float
        The mean rating.
    user_covariance_ : ndarray of shape (n_users, n_factors + 1, n_factors + 1), dtype float32
        Covariance of (b_u, p_u); private to the client.
    user_noise_ : ndarray of shape (n_users,), dtype float32
        Standard deviation of a user's ratings, alpha_u^-1/2, in ratings; private to the client.
    item_variance_ : ndarray of shape (n_items, n_factors + 1), dtype float32
        Variances of (b_i, q_i), in squared ratings.
    noise_std_, bias_std_ : float
        Standard deviations of a rating and of users' biases, learned from all users. With
        ``posterior="map"``, their initial values.
    rating_scale_ : tuple of float
        The ends of the rating scale.
    {shared attributes}

    Raises
    ------
    ValueError
        By fit: if ratings lie outside `rating_scale`; if weights are too large for float32; with
        local or central differential privacy, which it does not support (for the latter there is
        :class:`PrivFedEB`); with secure sums and ``upload="own"``.

    Notes
    -----
    *Algorithm*::

        set-up  clients send counts and a sketch of who rates what  _setup_update
                server finds K's leading eigenpairs                 _setup_aggregate
        each round
          1  server sends b_i, q_i, y_i and the scales              _model
          2  clients infer their users                              kernel infer
          3  ... and upload the gradient in their items             kernel add_user
          4  server takes a step of Adam, and learns the scales     _aggregate
        end
          5  server sends the items' averages over the last rounds  _final_model
          6  clients infer their users once more                    _personalize: kernel fit_users

    With ``x_i = (1, q_i)``, X the rows of the items that u has rated, and
    ``V_i = 1 / (R + alpha n_i)``, step 2 is::

        G = X'X + diag(0, sum_i V_i),   S = (alpha G + Lambda)^-1
        (b_u, p_u) = S (alpha X' (r - mean - b) + Lambda (0, m_u))
        res = r - mean - b - X (b_u, p_u)
        E = |res|^2 + tr(S G) + sum_i [V_i0 + sum_k V_ik p_uk^2]
        alpha_u = (nu + n_u) / (nu / alpha + E)

    and step 3: ``alpha_u res_i`` for b_i, ``alpha_u (res_i p_u - S x_i)`` for q_i,
    ``n_u^-1/2 (p_u - m_u)`` for y_i, and four numbers for the scales: ``b_u^2 + S_00``, 1,
    ``alpha_u / alpha E`` and n_u. These are the partial gradients of a lower bound of the ratings'
    likelihood, at the users' optimum up to one sweep. A rating of weight w counts as w
    ratings.

    *Constants.* Initial vectors have the standard deviation ``INIT_STD = 0.1``.

    *What is sent.* Once, up: sum and number of ratings; for each item that the client holds (or
    for all) its number of ratings and users, the sum of 1 / n_u, and a row of
    `sketch_size` numbers; with "own", which items these are. Once, down: the scale, the mean and
    the number of ratings of every item. Each round, down: 2 d + 1 numbers per item, and the
    scales; up: as many numbers of gradients, and four more. At the end, down: all rows.

    *What it reveals.* The server uses only sums, so secure sums hide the rest. Without them, one
    upload reveals exactly which items its user has rated and how, and the user's vector:
    alpha_u follows from the number of rows and the four numbers, and with it the rows
    give the residuals (:func:`fedrecsk.attacks.measure_leak`). A sum over a small cohort has items
    that only one client has rated; it does not hide their rows, and rows for y, which are equal
    for all items of a user, link them. ``python -m benchmarks.fedeb leak`` counts such ratings.

    *Cohorts.* With ``Federation(sampling="auto")`` equal cohorts take turns. Random cohorts
    cost accuracy.

    References
    ----------
    .. [1] Y. Koren, "Factorization meets the neighborhood", KDD 2008 (SVD++), equation 15.
    .. [2] R. Salakhutdinov and A. Mnih, "Bayesian probabilistic matrix factorization using
       Markov chain Monte Carlo", ICML 2008, section 3.
    .. [3] D. Kingma and J. Ba, "Adam: a method for stochastic optimization", ICLR 2015,
       algorithm 1.

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

    n_factors: int = 20
    _: KW_ONLY
    n_rounds: int | Literal["auto"] = "auto"
    implicit: bool = True
    sketch_size: int = 128
    user_noise: bool = True
    posterior: Literal["variational", "map"] = "variational"
    learning_rate: float | Literal["auto"] = "auto"
    INIT_STD = 0.1
    upload: Literal["own", "all"] = "own"
    rating_scale: tuple[float, float] | None = None

    _parameter_constraints: ClassVar[dict] = FederatedRecommender._parameter_constraints | {
        "n_factors": [Interval(Integral, 1, None, closed="left")],
        "n_rounds": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "implicit": ["boolean"],
        "sketch_size": [Interval(Integral, 0, None, closed="left")],
        "user_noise": ["boolean"],
        "posterior": [StrOptions({"variational", "map"})],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "upload": [StrOptions({"own", "all"})],
        "rating_scale": [tuple, list, None],
    }

    _single_uploads = True
    _prefers_rotation = True
    _dtype = np.float32
    _user_width = "n_factors"
    # How many ratings the prior of a user's own precision is worth (nu).
    _nu = 10.0

    # --------------------------------------------------------------- before the rounds

    _n_setups = 1

    def _init_server(self, catalogue, key):
        low, high = scale_of(self.rating_scale, catalogue.rating_range)
        m, d = catalogue.n_items, self.n_factors
        items = np.zeros((m, d + 1), self._dtype)
        items[:, 1:] = self.INIT_STD * key.generator("item factors").standard_normal((m, d))
        implicit = np.zeros((m, d if self.implicit else 0), self._dtype)
        return {
            "rating_scale": (low, high),
            "n_clients": catalogue.n_clients,
            "items": items,
            "implicit": implicit,
            "moments": (Moments.of(items), Moments.of(implicit)),
            "averages": (items, implicit),
            "n_steps": 0,
            "scales": Scales.of(self.n_factors, implicit.shape[1]),
        }

    def _setup_specs(self, n_items, step):
        rows = "all" if self.upload == "all" else "held"
        specs = {
            "ratings": FieldSpec((2,), learned=False),
            "counts": FieldSpec((n_items, 3), rows, learned=False),
        }
        if self.sketch_size:
            n_columns = min(self.sketch_size, n_items)
            specs["sketch"] = FieldSpec((n_items, n_columns), rows, learned=False)
        if self.upload == "own":
            # An int32 for each held item: its index.
            specs["held_items"] = FieldSpec((n_items,), "held", dtype="int32", learned=False)
        return specs

    def _setup_update(self, block, message, step, key):
        n_rated = np.diff(block.indptr)
        columns = block.weights, None, np.repeat(1 / n_rated, n_rated)
        counts = [np.bincount(block.items, one, minlength=block.n_items) for one in columns]
        fields = {
            "ratings": np.array([block.weights @ block.values, block.weights.sum()]),
            "counts": np.column_stack(counts).astype(np.float64),
            "held_items": np.bincount(block.row_items, minlength=block.n_items),
        }
        if self.sketch_size:
            directions = _item_prior.directions(block.n_items, self.sketch_size, key.shared)
            fields["sketch"] = _item_prior.sketch(block, directions)
        return ClientUpdates(
            {name: fields[name] for name in self._setup_specs(block.n_items, step)}
        )

    def _setup_aggregate(self, server, upload, step, key):
        total, weight = upload["ratings"].sum
        n_ratings, n_users, shares = np.ascontiguousarray(upload["counts"].sum.T)
        server = server | {"mean": total / weight, "n_ratings": n_ratings, "shares": shares}
        prior = None
        if self.sketch_size:
            directions = _item_prior.directions(len(n_users), self.sketch_size, key)
            prior = _item_prior.eigenpairs(upload["sketch"].sum, directions, n_users)
            prior = prior._replace(vectors=prior.vectors.astype(self._dtype))
        return server | {"prior": prior, "center": np.zeros_like(server["items"])}

    def _initial_broadcast(self, server):
        return Message(
            ratings=Dense(np.array([*server["rating_scale"], server["mean"]])),
            n_ratings=Dense(server["n_ratings"], learned=False),
        )

    # ---------------------------------------------------------------------- each round

    def _model(self, server):
        field = Dense if self.upload == "all" else Rows
        fields = {"items": field(server["items"])}
        if self.implicit:
            fields["implicit"] = field(server["implicit"])
        return Message(**fields, scales=self._sent_scales(server))

    def _init_clients(self, block, message, key):
        low, high, mean = message["ratings"].values
        ratings = fedeb_kernels.Ratings(
            ((block.values - mean) / self._unit(low, high)).astype(self._dtype),
            block.weights.astype(self._dtype),
        )
        return {
            "ratings": ratings,
            "n_ratings": message["n_ratings"].values.astype(self._dtype),
            # The result of each update; the next one starts afresh.
            "posterior": fedeb_kernels.Posterior.of(
                block.n_users, self.n_factors + 1, self._dtype, whole=False
            ),
            "unit": self._unit(low, high),
        }

    def _least_bytes(self, data):
        covariances = np.dtype(self._dtype).itemsize * data.n_users * (self.n_factors + 1) ** 2
        return super()._least_bytes(data) + (covariances if self.client_fraction == 1 else 0)

    def _upload_specs(self, n_items):
        rows = "all" if self.upload == "all" else "held"
        specs = {"items": FieldSpec((n_items, self.n_factors + 1), rows)}
        if self.implicit:
            specs["implicit"] = FieldSpec((n_items, self.n_factors), rows)
        return specs | {"scales": FieldSpec((4,), learned=False)}

    def _client_update(self, block, state, message, turn, key):
        implicit = message["implicit"].values if self.implicit else None
        model = self._received(state, message["items"].values, implicit, message["scales"].values)
        own = OwnRows.of(block, turn.active) if turn.separate else None
        layout, out = layout_of(block), self._empty_uploads(block, turn, own)
        work = fedeb_kernels.workspace(layout, model)
        squares, weight = fedeb_kernels.update(
            layout, state["ratings"], turn.active, model, work, state["posterior"], out
        )
        loss = state["unit"] ** 2 * squares, weight
        return state, self._uploads(block, own, out), loss

    def _aggregate(self, server, message, upload, key):
        if upload is None:
            return server
        share = upload.n_clients / server["n_clients"]
        t, scales = server["n_steps"] + 1, server["scales"]
        adam = self._adam(t, share)
        items, implicit = server["items"].copy(), server["implicit"].copy()
        moments = tuple(Moments(*map(np.copy, pair)) for pair in server["moments"])
        center = server["center"]
        reg, reg_implicit = scales.reg.astype(self._dtype), scales.reg_implicit.astype(self._dtype)
        fedeb_kernels.ascend(items, upload["items"].sum, 1 / share, reg, center, *moments[0], adam)
        if self.implicit:
            sums, zero = upload["implicit"].sum, np.zeros_like(implicit)
            fedeb_kernels.ascend(implicit, sums, 1 / share, reg_implicit, zero, *moments[1], adam)
        server = server | {"items": items, "implicit": implicit, "moments": moments, "n_steps": t}
        if self.posterior == "variational":
            server |= learned(server, upload["scales"].sum / share)
        weight = self._dtype(max(1 / t, min(share, 1 / LOOK_BACK)))
        averages = zip(server["averages"], (items, implicit), strict=True)
        return server | {"averages": tuple(mean + weight * (new - mean) for mean, new in averages)}

    # ------------------------------------------------------------------------- the end

    def _final_model(self, server):
        items, implicit = server["averages"]
        fields = {"average_items": Dense(items)}
        if self.implicit:
            fields["average_implicit"] = Dense(implicit)
        return Message(**fields, scales=self._sent_scales(server))

    def _personalize(self, block, state, message, turn, key):
        # Users start afresh: only their own data count.
        part = block.part(turn.active)
        state = self._init_clients(part, message, key)
        implicit = message["average_implicit"].values if self.implicit else None
        model = self._received(
            state, message["average_items"].values, implicit, message["scales"].values
        )
        layout, width = layout_of(part), self.n_factors + 1
        posterior = fedeb_kernels.Posterior.of(part.n_users, width, self._dtype)
        everybody, nobody = np.ones(part.n_clients, dtype=bool), np.zeros(part.n_clients, bool)
        silent = self._empty_uploads(part, RoundMasks(everybody, nobody, False), None)
        work = fedeb_kernels.workspace(layout, model)
        fedeb_kernels.update(layout, state["ratings"], everybody, model, work, posterior, silent)
        users, precisions, covariances = posterior
        covariances = covariances.reshape(-1, width, width)
        unit = self._dtype(self._unit(*message["ratings"].values[:2]))
        # The bias counts in ratings; p_u has no unit.
        users[:, 0] *= unit
        covariances[:, 0] *= unit
        covariances[:, :, 0] *= unit
        ends = {"users": users, "covariances": covariances, "noise": unit / np.sqrt(precisions)}
        return {name: block.spread(rows, turn.active) for name, rows in ends.items()}

    def _private_vectors(self, state):
        return state["posterior"].users

    def _server_attributes(self, message):
        low, high, mean = (float(number) for number in message["ratings"].values)
        unit, scales = self._unit(low, high), message["scales"].values
        items = message["average_items"].values * self._dtype(unit)
        n_ratings = np.append(message["n_ratings"].values, 0)
        variance = unit**2 * self._item_variance(n_ratings, scales).astype(self._dtype)
        attributes = {
            "item_factors_": np.ascontiguousarray(items[:, 1:]),
            "item_bias_": items[:, 0].copy(),
            "item_variance_": variance[:-1],
            "_new_item_variance": variance[-1],
            "global_bias_": mean,
            "rating_scale_": (low, high),
            "noise_std_": float(unit / np.sqrt(scales[0])),
            "bias_std_": float(unit / np.sqrt(scales[1])),
        }
        if self.implicit:
            attributes["implicit_factors_"] = message["average_implicit"].values
        return attributes

    def _user_attributes(self, block, state):
        users = state["users"]
        return {
            "user_factors_": np.ascontiguousarray(users[:, 1:]),
            "user_bias_": users[:, 0].copy(),
            "user_covariance_": state["covariances"],
            "user_noise_": state["noise"],
        }

    # ------------------------------------------------------------------- on the clients

    @staticmethod
    def _unit(low, high):
        """What counts as 1 in the model, in ratings."""
        return ((high - low) or UNITS) / UNITS

    def _received(self, state, items, implicit, scales):
        """What clients know of the model, as the kernels take it."""
        real = self._dtype
        if implicit is None:
            implicit = np.zeros((len(items), 0), real)
        alpha, lambda_0, *reg = scales
        prior = np.ones(items.shape[1], real)
        prior[0] = lambda_0
        return fedeb_kernels.Model(
            items.astype(real, copy=False),
            implicit.astype(real, copy=False),
            state["n_ratings"],
            np.asarray(reg, real)[None],
            prior,
            float(alpha),
            self._nu if self.user_noise else 0.0,
            self.posterior == "variational",
        )

    def _empty_uploads(self, block, turn, own):
        """Where the kernel writes: sums by item, or the active clients' own rows and scales."""
        n, width = block.n_clients, self.n_factors + 1
        is_finite, n_implicit = np.ones(n, dtype=bool), self.n_factors if self.implicit else 0
        if own is not None:
            return fedeb_kernels.Uploads(
                turn.active,
                np.zeros((len(own.items), width), self._dtype),
                np.zeros((len(own.items), n_implicit), self._dtype),
                own.slots,
                np.zeros((n, 4)),
                np.arange(n, dtype=np.int32),
                is_finite,
                True,
            )
        return fedeb_kernels.Uploads(
            turn.active & turn.delivers,
            np.zeros((block.n_items, width)),
            np.zeros((block.n_items, n_implicit)),
            block.row_items,
            np.zeros((1, 4)),
            np.zeros(n, dtype=np.int32),
            is_finite,
            False,
        )

    def _uploads(self, block, own, out):
        """What the kernel has written."""
        fields = {"items": out.items, "implicit": out.implicit, "scales": out.scales[0]}
        if own is not None:
            fields = {
                "items": SparseRows(own.indptr, own.items, out.items),
                "implicit": SparseRows(own.indptr, own.items, out.implicit),
                "scales": SparseRows.stacked(out.scales),
            }
        names = self._upload_specs(block.n_items)
        return ClientUpdates({name: fields[name] for name in names}, is_finite=out.is_finite)

    # -------------------------------------------------------------------- on the server

    def _rounds(self, n_clients):
        if self.n_rounds != "auto":
            return self.n_rounds
        arriving = self._cohort_share(n_clients) * (1 - self._setting().dropout)
        return round(100 / np.sqrt(arriving))

    def _sent_scales(self, server):
        scales = server["scales"]
        return Dense(np.r_[scales.alpha, scales.lambda_0, scales.reg])

    def _adam(self, t, share):
        rate = self.learning_rate
        if rate == "auto":
            rate = 0.05 * share ** (1 / 3)
        return fedeb_kernels.Adam(
            float(rate), BETA_1, BETA_2, EPSILON, 1 - BETA_1**t, 1 - BETA_2**t
        )

    def _item_vectors(self, message):
        return message["items"].values

    def _upload_moving(self, view, rows, moves):
        # Adam divides by the size of past gradients, so only much larger ones decide.
        size = np.abs(view.mean("items")).max() * view.n_senders / view.n_own
        share = self._cohort_share(view.data.n_clients)
        return {"items": size / self._adam(1, share).rate * moves}

    def _item_variance(self, n_ratings, scales):
        """V_i of all items, (n_items, d + 1), in squared units."""
        alpha, reg = scales[0], scales[2:]
        if self.posterior == "map":
            return np.zeros((len(n_ratings), len(reg)))
        return 1 / (reg + alpha * n_ratings[:, None])

    # ---------------------------------------------------------------- checks, predictions

    def _check_before_fit(self):
        if self._setting().local_dp is not None:
            raise ValueError(
                f"{type(self).__name__} has no local_dp: which rows a client sends reveals the "
                "items it has rated, and noise cannot hide that. Use RFRec for local "
                "differential privacy."
            )
        if self._setting().central_dp is not None:
            raise ValueError(
                f"{type(self).__name__} has no central_dp: its sketch and its learned scales do "
                "not survive the noise. Use PrivFedEB, which is made for it."
            )
        super()._check_before_fit()
        if self._setting().secure_aggregation is not None and self.upload == "own":
            raise ValueError(
                f"With secure_aggregation {type(self).__name__} must send whole matrices, because "
                'rows of only some items cannot be added encrypted; set upload="all".'
            )

    def _check_setting(self, federation, data, blocks):
        super()._check_setting(federation, data, blocks)
        largest = np.add.reduceat(data.weights, data.indptr[:-1]).max()
        if largest > HEAVIEST:
            raise ValueError(
                f"The weights of a user's ratings add up to {largest:.3g}, and more than "
                f"{HEAVIEST:g} is too much for float32; divide sample_weight by its mean."
            )

    def _response(self, scores):
        return np.clip(scores, *self.rating_scale_)

    def _standard_deviations(self, users, items):
        if self.posterior == "map":
            raise ValueError(
                'FedEB with posterior="map" has no variances; use return_std=False, or '
                'posterior="variational".'
            )
        # An unknown item is 0, with the variance of the prior.
        factors = np.vstack([self.item_factors_, np.zeros(self.n_factors, self._dtype)])
        item_variance = np.vstack([self.item_variance_, self._new_item_variance])
        items = np.where(items < 0, len(self.item_factors_), items)
        noise = self.noise_std_**2 * (self._nu / (self._nu - 2) if self.user_noise else 1)
        spread = (factors**2).sum(axis=1, dtype=float) + item_variance.sum(axis=1, dtype=float)
        variance = noise + self.bias_std_**2 + spread[items]
        known = np.flatnonzero(users >= 0)
        of_known = np.empty(len(known))
        fedeb_kernels.variances(
            users[known],
            items[known],
            self.user_factors_,
            self.user_covariance_,
            self.user_noise_,
            factors,
            item_variance,
            of_known,
        )
        variance[known] = of_known
        return np.sqrt(variance)
