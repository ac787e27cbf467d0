"""Bayesian SVD++: the mean over many models that fit the ratings, by Gibbs sampling."""

from __future__ import annotations

import itertools
from dataclasses import KW_ONLY, dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from joblib import delayed
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, eigsh
from scipy.special import gammaincinv
from sklearn.utils import check_random_state

from fedrecsk._utils.docs import documented
from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.sklearn_compat import Interval, get_threadpool_controller
from fedrecsk._utils.threads import N_JOBS, Threads
from fedrecsk.base import RatingMixin, Recommender
from fedrecsk.base._item_content import ItemContent
from fedrecsk.base._warm_start import parameters_of_a_run, resumed
from fedrecsk.centralized._sgd import Rows, implicit_sums, narrowed
from fedrecsk.protocol.keys import Key

if TYPE_CHECKING:
    from typing import Any

    from numpy.random import RandomState

bayesian_svdpp_kernels: LazyModule = LazyModule("fedrecsk.centralized._bayesian_svdpp_kernels")

DTYPE = np.float32
MAX_BYTES = 8 * 2**30
# Every precision has the prior Gamma(SHAPE, rate RATE), which is nearly flat for a scale. A large
# rate would keep factors that the data do not need from vanishing: sparse data are then overfitted.
SHAPE, RATE = 0.5, 0.005
INIT_STD = 0.1
INIT_PRECISION = 30.0  # of y: it moves slowly, and the posterior's is about as large on MovieLens
RATINGS_PER_CALL = 2**20  # of a kernel
SMALL = 1000  # items up to which all eigenvectors are as quick to find as some


@documented
@dataclass(eq=False, repr=False)
class BayesianSVDpp(ItemContent, RatingMixin, Recommender):
    """Bayesian SVD++: the mean prediction of models drawn from the posterior distribution.

    The model of a rating is that of :class:`SVDpp`, with a distribution for everything::

        r_ui = mu + b_u + b_i + q_i.p_u + e_ui,    e_ui ~ N(0, 1 / (w_ui alpha tau_u))
        p_u ~ N(|R_u|^-1/2 sum_{j in R_u} y_j, 1 / lambda),    y_j ~ N(0, 1 / eta)
        (b_i, q_i) ~ N(f_i, 1 / rho),    f ~ GP(0, K / psi)

    R_u are the items that the user has rated, w_ui is `sample_weight`, tau_u says how
    predictable a user is, and K_ij measures how many users have rated both i and j, so that items
    with the same audience are expected to be alike. Nothing has to be tuned: a Gibbs sampler
    draws all unknowns in turn, strengths of regularisation included, and predictions are
    averaged over the draws.

    Parameters
    ----------
    n_factors : int, default=20
        Length of p_u, q_i and y_j (d).
    n_samples : int, default=50
        Number of samples of the posterior that are kept (S), which is not a number of rows or of
        passes; in total if `warm_start` continues a fit. The model holds
        ``4 S (d + 1) (n_users + 2 n_items)`` bytes, twice that while fit ends.
    n_burn_in : int, default=40
        Number of sweeps before the first draw that is kept.
    thinning : int, default=4
        Number of sweeps per kept draw.
    kernel_rank : int, default=128
        Number of K's leading eigenvectors to which f is confined; 0 for f = 0.
    noise_df : float or None, default=10.0
        Degrees of freedom nu of the prior tau_u ~ Gamma(nu / 2, rate nu / 2). The larger it
        is, the more alike the users are; None for tau_u = 1.
    warm_start : bool, default=False
        Whether `fit` continues the last fit to `n_samples` samples in total, exactly as if it had
        never stopped.
    {n_jobs}
    random_state : int, RandomState instance or None, default=None
        Seed of all draws.
    {item_features}
    {items}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_samples_ * n_factors), dtype float32
        p_u of all samples side by side, sample by sample, in the root of rating units.
    item_factors_ : ndarray of shape (n_items, n_samples_ * n_factors), dtype float32
        Likewise q_i, divided by `n_samples_`: the product of two rows is the mean of p_u.q_i.
    implicit_factors_ : ndarray of shape (n_items, n_samples_ * n_factors), dtype float32
        Likewise y_j, not divided.
    user_bias_ : ndarray of shape (n_users,), dtype float32
        Posterior mean of b_u, in rating units.
    item_bias_ : ndarray of shape (n_items,), dtype float32
        Posterior mean of b_i.
    user_bias_samples_ : ndarray of shape (n_users, n_samples_), dtype float32
        b_u of each sample.
    item_bias_samples_ : ndarray of shape (n_items, n_samples_), dtype float32
        b_i of each sample.
    user_noise_variance_ : ndarray of shape (n_users,), dtype float32
        Posterior mean of 1 / (alpha tau_u): the variance of a user's rating of weight 1 around the
        true model's prediction, in squared ratings.
    global_bias_ : float
        Weighted mean of the ratings (mu).
    rating_range_ : tuple of float
        Least and greatest rating; predictions are clipped to it.
    loss_curve_ : list of float
        Weighted mean squared error on the training rows, of the draws of each sweep.
    n_samples_ : int
        Samples kept; fewer than `n_samples` if a callback stopped the fit. If it did so before
        the first, the last sweep is the sample.
    {ids}

    Raises
    ------
    ValueError
        By fit: if the samples would take more than 8 GiB; if data or parameters have changed
        before a warm start.

    See Also
    --------
    SVDpp : One such model, by stochastic gradient descent.

    Notes
    -----
    Centralised: all rows are in one place, and `clients` is checked and otherwise ignored.

    *Algorithm*. Ratings are centred and divided by their standard deviation. Each sweep draws

    1. (b_u, p_u) of all users, then lambda (``draw_users``),
    2. y_j of one item after the other, then eta (``draw_implicit``),
    3. tau_u of all users, then alpha (``draw_noise``),
    4. (b_i, q_i) of all items, then rho (``draw_items``),
    5. f, then psi (``draw_kernel``),

    each from its distribution given all others and the ratings. lambda, rho and psi have an
    entry for the bias and for each factor; b_u has the mean 0. All precisions (alpha, lambda,
    eta, rho, psi) have the prior Gamma(1/2, rate 1/200). K = D^-1/2 C D^-1/2, where C_ij counts
    the users of i and j and D is C's diagonal.

    Of a sweep that counts, q and y are kept as they were at its beginning, and p_u is drawn
    once more from its distribution given these. Two samples in turn use opposite numbers for
    that, which cancels part of the sampling error.

    Weights matter relative to each other: a common factor changes nothing but the unit of
    `user_noise_variance_`. A merged row counts once in R_u, and its weight is the sum.

    An unknown user or item adds nothing, and neither does an item of `items` without ratings,
    also where it is in R_u of a new user. `fold_in` draws b_u, p_u and tau_u of new users given
    the items of each sample, with draws that are the same for all of them: the result for a new
    user depends only on its own rows and `random_state`.

    References
    ----------
    .. [1] R. Salakhutdinov, A. Mnih, "Bayesian probabilistic matrix factorization using
       Markov chain Monte Carlo", ICML 2008.
    .. [2] Y. Koren, "Factorization meets the neighborhood: a multifaceted collaborative
       filtering model", KDD 2008, section 4.
    .. [3] S. Rendle, L. Zhang, Y. Koren, "On the difficulty of evaluating baselines",
       arXiv:1905.01395, 2019: Gibbs sampling of SVD++ beside tuned baselines.

    Examples
    --------
    >>> from fedrecsk import BayesianSVDpp
    >>> X = [["ann", "alien"], ["ann", "brazil"], ["bob", "alien"], ["bob", "clue"]]
    >>> model = BayesianSVDpp(n_factors=2, random_state=0).fit(X, [5, 4, 3, 2])
    >>> rating, std = model.predict([["bob", "brazil"], ["carol", "dune"]], return_std=True)
    >>> rating.round(1)
    array([2.9, 3.5])
    >>> bool(std[1] > std[0])
    True
    """

    n_factors: int = 20
    _: KW_ONLY
    n_samples: int = 50
    n_burn_in: int = 40
    thinning: int = 4
    kernel_rank: int = 128
    noise_df: float | None = 10.0
    warm_start: bool = False
    n_jobs: int | None = None
    random_state: int | RandomState | None = None

    _parameter_constraints: ClassVar[dict] = Recommender._parameter_constraints | {
        "n_factors": [Interval(Integral, 1, None, closed="left")],
        "n_samples": [Interval(Integral, 1, None, closed="left")],
        "n_burn_in": [Interval(Integral, 0, None, closed="left")],
        "thinning": [Interval(Integral, 1, None, closed="left")],
        "kernel_rank": [Interval(Integral, 0, None, closed="left")],
        "noise_df": [Interval(Real, 0, None, closed="neither"), None],
        "warm_start": ["boolean"],
        "n_jobs": N_JOBS,
        "random_state": ["random_state"],
        **ItemContent._content_constraints,
    }

    _predicted = ("item_factors_", "item_bias_", "item_bias_samples_")
    _absent = ("implicit_factors_",)

    # ------------------------------------------------------------------------------ fit

    def _n_tasks(self, data):
        return self.n_burn_in + self.n_samples * self.thinning

    def _fit(self, data, report):
        self._check_memory(data.n_users, data.n_items)
        run = resumed(self, data, "n_samples") or Run.new(self, data)
        # Sweeps change the state in place: a fit that fails half-way must not be continued.
        self._run = None
        rows = Rows.of(data)
        with get_threadpool_controller().limit(limits=1, user_api="blas"):
            problem = Problem.of(rows, self.kernel_rank, self.noise_df)
            problem = problem._replace(content=self._item_prior(counts_of(rows)))
            if run.state is None:
                generator = run.key.generator("first vectors")
                run.state = State.start(problem, self.n_factors, generator)
            while run.n_samples < self.n_samples:
                close = report.step("sweep")
                run.loss_curve.append(self._sweep(problem, run) * rows.scale**2 / len(rows.values))
                if close(lambda: self._finished(run, rows, problem.rated)):
                    break
        attributes = self._finished(run, rows, problem.rated)
        self._run = run if self.warm_start else None
        return attributes

    def _least_bytes(self, data):
        # Items without a rating have no vectors before the end.
        return 8 * self.n_factors * (data.n_users + 2 * len(np.unique(data.items)))

    def _check_memory(self, n_users, n_items):
        per_sample = np.dtype(DTYPE).itemsize * (self.n_factors + 1) * (n_users + 2 * n_items)
        if per_sample * self.n_samples > MAX_BYTES:
            raise ValueError(
                f"n_samples={self.n_samples} samples of {n_users} users and {n_items} items with "
                f"n_factors={self.n_factors} would take {per_sample * self.n_samples / 2**30:.1f} "
                f"GiB, more than the {MAX_BYTES / 2**30:g} GiB that are allowed. Lower n_samples "
                "or n_factors."
            )

    def _sweep(self, problem, run):
        """Sweep, keep a sample if it is its turn, and return the sum of weighted squared errors."""
        key, state = run.key.at(len(run.loss_curve)), run.state
        n_counting = len(run.loss_curve) + 1 - self.n_burn_in
        if n_counting <= 0 or n_counting % self.thinning:
            return sweep(problem, state, key, self.n_jobs)[0]
        given = Sample.of(state)
        normal = opposite_normals("samples", run.key, run.n_samples, state.P.shape)
        loss, P = sweep(problem, state, key, self.n_jobs, normal)
        run.samples.append(given._replace(users=P.astype(DTYPE)))
        return loss

    def _finished(self, run, rows, rated):
        """Return fitted attributes as if the sampling ended here; new arrays."""
        samples = run.samples or [Sample.of(run.state)]
        n, scale, weight = len(samples), rows.scale, float(rows.weights.mean())
        users, items = [s.users for s in samples], [s.items for s in samples]
        codes = np.argsort(rows.rank_of_user)
        user_biases, user_factors = side_by_side(users, codes, rows.n_users)
        item_biases, item_factors = side_by_side(items, rated, rows.n_items)
        user_biases *= DTYPE(scale)
        item_biases *= DTYPE(scale)
        user_factors *= DTYPE(np.sqrt(scale))
        item_factors *= DTYPE(np.sqrt(scale) / n)
        implicit = stacked([s.implicit for s in samples], rated, rows.n_items)
        implicit *= DTYPE(np.sqrt(scale))
        noise = np.mean([s.noise for s in samples], axis=0)[rows.rank_of_user]
        attributes = {
            "global_bias_": rows.mean,
            "rating_range_": rows.range,
            "user_factors_": user_factors,
            "item_factors_": item_factors,
            "implicit_factors_": implicit,
            "user_bias_": user_biases.mean(axis=1),
            "item_bias_": item_biases.mean(axis=1),
            "user_bias_samples_": user_biases,
            "item_bias_samples_": item_biases,
            "user_noise_variance_": noise * DTYPE(scale**2 * weight),
            "_mean_noise": float(noise.mean() * scale**2 * weight),
            "n_samples_": n,
            "loss_curve_": list(run.loss_curve),
            "_scale": scale,
            "_mean_weight": weight,
            "_rated": rated.copy(),
            "_user_precision": np.array([sample.user_precision for sample in samples]),
            "_item_variance": np.array([np.mean(s.items**2.0, axis=0) for s in samples]),
            "_noise_precision": np.array([sample.noise_precision for sample in samples]),
            "_key": run.key,
        }
        return self._with_content(attributes, counts_of(rows), shrunk=False)

    def _response(self, scores):
        return np.clip(scores, *self.rating_range_)

    # -------------------------------------------------------------------------- predict

    def _standard_deviations(self, users, items):
        # The spread over the samples and the user's own noise, of a rating of weight 1. Of unknown
        # users and items it is the spread of all of them, and an unknown user has the mean noise.
        unrated = np.ones(self.n_items_, dtype=bool)
        unrated[self._rated] = False
        items = np.where(unrated[items], -1, items)
        noise = self.user_noise_variance_.astype(np.float64)
        variances = np.where(users >= 0, noise[users], self._mean_noise)
        return np.sqrt(variances + self._variance_over_samples(users, items))

    def _variance_over_samples(self, users, items):
        """Return the variances of the scores of pairs of codes, -1 for unknown."""
        units = np.full(1 + self.n_factors, self._scale)
        units[0] **= 2
        module, variances = bayesian_svdpp_kernels, np.empty(len(users))
        module.variances(
            users,
            items,
            module.Samples(
                self.user_bias_samples_, self.user_factors_, units / self._user_precision
            ),
            module.Samples(
                self.item_bias_samples_, self.item_factors_, units * self._item_variance
            ),
            float(self.n_samples_),
            variances,
        )
        return variances

    # ------------------------------------------------------------------------ newcomers

    def _new_user_attributes(self, data):
        with get_threadpool_controller().limit(limits=1, user_api="blas"):
            samples, noise = self._sampled(data)
        scale = self._scale
        biases, factors = side_by_side(samples, np.arange(data.n_users), data.n_users)
        biases = (biases * scale).astype(DTYPE)
        return {
            "user_factors_": (factors * np.sqrt(scale)).astype(DTYPE),
            "user_bias_": biases.mean(axis=1),
            "user_bias_samples_": biases,
            "user_noise_variance_": (noise * scale**2 * self._mean_weight).astype(DTYPE),
        }

    def _sampled(self, data):
        """Return new users' (b_u, p_u) for each sample, and the mean of 1 / (alpha tau_u)."""
        n, size = data.n_users, 1 + self.n_factors
        values = (data.values - self.global_bias_) / self._scale
        weights = data.weights / self._mean_weight
        side = bayesian_svdpp_kernels.Side(data.indptr, data.items, values, weights)
        user_noise, noise, samples = np.ones(n), np.zeros(n), []
        for s, alpha in enumerate(self._noise_precision):
            key = self._key.at(s)
            items, prior = self._given(s, data)
            # All new users have the same numbers, so that none depends on which others are new.
            normal = np.tile(key.generator("newcomers").standard_normal(size), (n, 1))
            again = opposite_normals("samples of newcomers", self._key, s, size)
            squares, P = draw_side(
                side,
                items,
                prior,
                (alpha * user_noise, np.ones(len(items))),
                normal,
                np.empty((n, size)),
                normal_again=np.tile(again, (n, 1)),
            )
            samples.append(P)
            noise += 1 / (alpha * user_noise * self.n_samples_)
            if self.noise_df is not None:
                shape = (self.noise_df + np.diff(data.indptr)) / 2
                rate = (self.noise_df + alpha * squares) / 2
                user_noise = gammaincinv(shape, key.uniform("newcomers' noise")) / rate
        return samples, noise

    def _given(self, s, data):
        """Return (b_i, q_i) of sample s, and the Prior of (b_u, p_u) for the users of `data`."""
        d, root = self.n_factors, np.sqrt(self._scale)
        own = slice(s * d, (s + 1) * d)
        factors = self.item_factors_[:, own] * (self.n_samples_ / root)
        items = np.column_stack([self.item_bias_samples_[:, s] / self._scale, factors])
        implicit = implicit_sums(data.indptr, data.items, self.implicit_factors_[:, own])
        mean = np.column_stack([np.zeros(data.n_users), implicit / root])
        return items.astype(np.float64), bayesian_svdpp_kernels.Prior(
            mean.astype(np.float64), self._user_precision[s]
        )


class Sample(NamedTuple):
    """What is kept of a draw, users in the order of their ids.

    Attributes
    ----------
    users : ndarray of shape (n_users, 1 + d)
        (b_u, p_u) given the rest.
    items : ndarray of shape (n_rated_items, 1 + d)
        (b_i, q_i).
    implicit : ndarray of shape (n_rated_items, d)
        y_j.
    user_precision : ndarray of shape (1 + d,)
        lambda.
    noise_precision : float
        alpha.
    noise : ndarray of shape (n_users,)
        1 / (alpha tau_u).
    """

    users: np.ndarray
    items: np.ndarray
    implicit: np.ndarray
    user_precision: np.ndarray
    noise_precision: float
    noise: np.ndarray

    @classmethod
    def of(cls, state: State) -> Sample:
        """Return a copy of what the state has, in single precision."""
        return cls(
            state.P.astype(DTYPE),
            state.Q.astype(DTYPE),
            state.Y.astype(DTYPE),
            state.user_precision,
            float(state.noise_precision),
            (1 / (state.noise_precision * state.user_noise)).astype(DTYPE),
        )


@dataclass(eq=False)
class Run:
    """A fit in progress: all that warm_start needs to continue exactly where it ended."""

    key: Key
    fingerprint: bytes | None
    parameters: dict[str, Any]
    state: State | None = None
    loss_curve: list[float] = field(default_factory=list)
    samples: list[Any] = field(default_factory=list)

    @classmethod
    def new(cls, estimator: Any, data: Any) -> Run:
        """Return a run before the first sweep."""
        parameters = parameters_of_a_run(estimator, "n_samples")
        seed = check_random_state(estimator.random_state).randint(2**31 - 1)
        return cls(Key(int(seed)), data.fingerprint() if estimator.warm_start else None, parameters)

    @property
    def n_samples(self) -> int:
        return len(self.samples)


def opposite_normals(purpose: str, key: Key, sample: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return standard normal numbers; each second sample gets those before with opposite sign."""
    normal = key.at(sample // 2).generator(purpose).standard_normal(shape)
    return -normal if sample % 2 else normal


def side_by_side(
    samples: list[np.ndarray], places: np.ndarray, n_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return biases (n_rows, S) and factors (n_rows, S d) of samples of (bias, vector)."""
    return (
        stacked([rows[:, :1] for rows in samples], places, n_rows),
        stacked([rows[:, 1:] for rows in samples], places, n_rows),
    )


def stacked(blocks: list[np.ndarray], places: np.ndarray, n_rows: int) -> np.ndarray:
    """Put arrays of one shape side by side, their rows at `places` and 0 elsewhere."""
    width = blocks[0].shape[1]
    everything = np.zeros((n_rows, len(blocks) * width), dtype=blocks[0].dtype)
    for s, block in enumerate(blocks):
        everything[places, s * width : (s + 1) * width] = block
    return everything


# ------------------------------------------------------------------------------ the sampler


class Problem(NamedTuple):
    """What stays the same over the sweeps.

    Attributes
    ----------
    rated : ndarray of shape (n_rated_items,)
        The items with ratings; all else here is about these.
    users, items : bayesian_svdpp_kernels.Side
        The ratings by user and by item, less their mean, in standard deviations.
    shares : ndarray of shape (n_users,)
        |R_u|^-1/2.
    eigenvalues, eigenvectors : ndarray of shape (r,) and (n_items, r)
        Of the items' kernel.
    noise_df : float or None
        nu.
    content : ItemPrior or None
        What features say, of all items.
    """

    rated: np.ndarray
    users: NamedTuple
    items: NamedTuple
    shares: np.ndarray
    eigenvalues: np.ndarray
    eigenvectors: np.ndarray
    noise_df: float | None
    content: Any = None

    @classmethod
    def of(cls, rows: Any, kernel_rank: int, noise_df: float) -> Problem:
        """Return the problem of `rows` (Rows)."""
        Side = bayesian_svdpp_kernels.Side
        # Counted, because NumPy takes seconds to sort 25 million items.
        is_rated = np.bincount(rows.items, minlength=rows.n_items) > 0
        rated, places = np.flatnonzero(is_rated), np.cumsum(is_rated, dtype=np.int32) - 1
        items = places[rows.items].astype(np.int32, copy=False)
        values = (rows.values - rows.mean) / rows.scale
        weights = rows.weights / rows.weights.mean()
        by_item = np.argsort(narrowed(items), kind="stable")
        n_ratings = np.bincount(items)
        item_indptr = np.concatenate([[0], np.cumsum(n_ratings)])
        shape = rows.n_users, len(n_ratings)
        held = sparse.csr_array(((n_ratings**-0.5)[items], items, rows.indptr), shape=shape)
        return cls(
            rated,
            Side(rows.indptr, items, values, weights),
            # Calls, between which an interrupt arrives, unlike between brackets.
            Side(item_indptr, *(a.take(by_item) for a in (rows.users, values, weights))),
            np.diff(rows.indptr) ** -0.5,
            *leading_eigenpairs(held, kernel_rank),
            noise_df,
        )


def counts_of(rows: Any) -> Any:
    """Return the items' numbers of ratings, by weight."""
    return np.bincount(rows.items, rows.weights / rows.weights.mean(), rows.n_items)


def leading_eigenpairs(held: Any, rank: Any) -> Any:
    """Return eigenvalues and eigenvectors of held' held, at most `rank`, none of them 0."""
    n_items = held.shape[1]
    rank = min(rank, n_items)
    if rank == 0:
        return np.empty(0), np.empty((n_items, 0))
    if n_items <= SMALL or rank > n_items // 4:
        values, vectors = np.linalg.eigh((held.T @ held).toarray())
    else:
        transposed = held.T.tocsr()
        # LinearOperator.__new__ makes an object of a subclass, which takes other arguments.
        shape, times = (n_items, n_items), lambda x: transposed @ (held @ x)
        product = LinearOperator(shape, matvec=times)  # pyright: ignore[reportCallIssue]
        values, vectors = eigsh(product, rank, v0=np.ones(n_items))
    best = np.argsort(-values, kind="stable")[:rank]
    best = best[values[best] > 1e-8 * values.max()]
    return values[best], np.ascontiguousarray(vectors[:, best])


@dataclass
class State:
    """All unknowns. Column 0 of the matrices with 1 + d columns is the bias.

    Attributes
    ----------
    P, Q : ndarray of shape (n_users, 1 + d) and (n_items, 1 + d)
        (b_u, p_u) and (b_i, q_i).
    Y : ndarray of shape (n_items, d)
        y_j.
    user_mean, item_mean : ndarray, as P and Q
        The means of their priors: (0, m_u) and f_i.
    content_mean : ndarray, as Q, or 0
        The part of f_i that features predict.
    user_precision, item_precision, kernel_precision : ndarray of shape (1 + d,)
        lambda, rho, psi.
    implicit_precision, noise_precision : float
        eta, alpha.
    user_noise : ndarray of shape (n_users,)
        tau_u.
    """

    P: np.ndarray
    Q: np.ndarray
    Y: np.ndarray
    user_mean: np.ndarray
    item_mean: np.ndarray
    user_precision: np.ndarray
    item_precision: np.ndarray
    kernel_precision: np.ndarray
    implicit_precision: float
    noise_precision: float
    user_noise: np.ndarray
    content_mean: np.ndarray | float = 0.0

    @classmethod
    def start(cls, problem: Problem, n_factors: int, generator: np.random.Generator) -> State:
        """Return small random item vectors, and moderate precisions.

        A chain forgets slowly how large it took the factors to be, most of all where ratings are
        few. It starts as if they explained a quarter of the variance, which is
        d / lambda (1 / rho + 1 / psi) where all three are equal and K_ii = 1.
        """
        n_users, n_items, size = len(problem.shares), len(problem.rated), 1 + n_factors
        precision = np.full(size, np.sqrt(8 * n_factors))
        Q = INIT_STD * generator.standard_normal((n_items, size))
        Q[:, 0] = 0
        return cls(
            P=np.zeros((n_users, size)),
            Q=Q,
            Y=np.zeros((n_items, n_factors)),
            user_mean=np.zeros((n_users, size)),
            item_mean=np.zeros((n_items, size)),
            user_precision=precision,
            item_precision=precision.copy(),
            kernel_precision=precision.copy(),
            implicit_precision=INIT_PRECISION,
            noise_precision=1.0,
            user_noise=np.ones(n_users),
        )


def sweep(problem: Any, state: Any, key: Any, n_jobs: Any = None, normal_again: Any = None) -> Any:
    """Draw everything once, changing `state`; `key` seeds all draws of the sweep.

    Return the sum of weighted squared errors of the new P and the old Q, and a second draw of P by
    the standard normal numbers `normal_again`, or no rows.
    """
    squares, again = draw_users(problem, state, key.generator("users"), n_jobs, normal_again)
    draw_implicit(problem, state, key.generator("implicit"))
    draw_noise(problem, state, squares, key.generator("noise"))
    draw_items(problem, state, key.generator("items"), n_jobs)
    draw_kernel(problem, state, key.generator("kernel"))
    return float(squares.sum()), again


def draw_users(problem: Any, state: Any, generator: Any, n_jobs: Any, normal_again: Any) -> Any:
    """Draw (b_u, p_u) | rest, then lambda."""
    normal = generator.standard_normal(state.P.shape)
    prior = bayesian_svdpp_kernels.Prior(state.user_mean, state.user_precision)
    precisions = state.noise_precision * state.user_noise, np.ones(len(state.Q))
    squares, again = draw_side(
        problem.users, state.Q, prior, precisions, normal, state.P, n_jobs, normal_again
    )
    rest = np.sum((state.P - state.user_mean) ** 2, axis=0)
    state.user_precision = drawn_precision(generator, len(state.P), rest)
    return squares, again


def draw_implicit(problem: Any, state: Any, generator: Any) -> None:
    """Draw y_j | rest, one after the other, then eta."""
    normal = generator.standard_normal(state.Y.shape)
    rest = state.P[:, 1:] - state.user_mean[:, 1:]
    bayesian_svdpp_kernels.implicit(
        problem.items.indptr,
        problem.items.others,
        problem.shares,
        state.user_precision[1:],
        state.implicit_precision,
        normal,
        rest,
        state.Y,
    )
    state.user_mean[:, 1:] = state.P[:, 1:] - rest
    state.implicit_precision = drawn_precision(generator, state.Y.size, np.sum(state.Y**2))


def draw_noise(problem: Any, state: Any, squares: Any, generator: Any) -> None:
    """Draw tau_u | rest, then alpha; `squares` are the users' weighted squared errors."""
    if problem.noise_df is not None:
        counts = np.diff(problem.users.indptr)
        rates = (problem.noise_df + state.noise_precision * squares) / 2
        state.user_noise = generator.standard_gamma((problem.noise_df + counts) / 2) / rates
    n_ratings = len(problem.users.others)
    state.noise_precision = drawn_precision(generator, n_ratings, state.user_noise @ squares)


def draw_items(problem: Any, state: Any, generator: Any, n_jobs: Any) -> None:
    """Draw (b_i, q_i) | rest, then rho."""
    normal = generator.standard_normal(state.Q.shape)
    prior = bayesian_svdpp_kernels.Prior(state.item_mean, state.item_precision)
    precisions = np.ones(len(state.Q)), state.noise_precision * state.user_noise
    draw_side(problem.items, state.P, prior, precisions, normal, state.Q, n_jobs)
    rest = np.sum((state.Q - state.item_mean) ** 2, axis=0)
    state.item_precision = drawn_precision(generator, len(state.Q), rest)


def draw_kernel(problem: Any, state: Any, generator: Any) -> None:
    """Draw f | rest, in the coordinates g of the eigenvectors, f = U g, then psi.

    What features predict of the rest is added to f.
    """
    values, vectors = problem.eigenvalues[:, None], problem.eigenvectors
    rest = state.Q - state.content_mean
    strength = state.kernel_precision / values + state.item_precision
    mean = state.item_precision * (vectors.T @ rest) / strength
    g = mean + generator.standard_normal(mean.shape) / np.sqrt(strength)
    state.item_mean = vectors @ g
    if problem.content is not None:
        rest = np.zeros((len(problem.content.n_ratings), state.Q.shape[1]))
        rest[problem.rated] = state.Q - state.item_mean
        state.content_mean = problem.content.means(rest)[problem.rated]
        state.item_mean = state.item_mean + state.content_mean
    if not len(values):
        return
    squares = np.sum(g**2 / values, axis=0)
    state.kernel_precision = drawn_precision(generator, len(values), squares)


def drawn_precision(generator: Any, count: Any, squares: Any) -> Any:
    """Draw a precision given `count` normal numbers of mean 0 and the sum of their squares."""
    squares = np.asarray(squares)
    return generator.standard_gamma(SHAPE + count / 2, squares.shape) / (RATE + squares / 2)


def draw_side(
    side: Any,
    factors: Any,
    prior: Any,
    precisions: Any,
    normal: Any,
    out: Any,
    n_jobs: Any = None,
    normal_again: Any = None,
) -> Any:
    """Replace the rows `out` of a side; threads take parts of about as many ratings.

    Return sums of weighted squared errors by row, and a second draw by `normal_again`, or no rows.
    """
    module = bayesian_svdpp_kernels
    if normal_again is None:
        normal_again = np.empty((0, normal.shape[1]))
    drawn = module.Drawn(out, np.empty_like(normal_again), np.empty(len(out)))
    rest = side, factors, prior, module.Noise(*precisions), normal, normal_again, drawn
    with Threads(n_jobs) as threads:
        cuts = _cuts(side.indptr, threads.n_threads)
        for _ in threads(delayed(module.rows)(*cut, *rest) for cut in cuts):
            pass
    return drawn.squares, drawn.again


def _cuts(indptr, n_threads):
    """Return runs of rows with about as many ratings each; Ctrl-C arrives between two of them."""
    n_parts = max(n_threads, int(indptr[-1]) // RATINGS_PER_CALL)
    goals = np.arange(1, n_parts) * indptr[-1] / n_parts
    return itertools.pairwise([0, *np.searchsorted(indptr, goals).tolist(), len(indptr) - 1])
