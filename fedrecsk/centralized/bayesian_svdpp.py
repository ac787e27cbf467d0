"""Bayesian SVD++: the mean over many models that fit the ratings, by Gibbs sampling."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np
from scipy.special import gammaincinv

from fedrecsk._utils.constraints import AtLeast0, AtLeast1, Jobs, Positive, Seed
from fedrecsk._utils.docs import documented
from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.memory import batches
from fedrecsk._utils.sklearn_compat import get_threadpool_controller
from fedrecsk.base import RatingMixin, Recommender
from fedrecsk.base._item_prior import ItemContent
from fedrecsk.centralized._sgd import Rows, Side, begun, implicit_sums
from fedrecsk.models import Factors, clipped

sampler: LazyModule = LazyModule("fedrecsk.centralized._bayesian_svdpp_kernels")

DTYPE = np.float32
MAX_BYTES = 8 * 2**30


@documented
@dataclass(eq=False, repr=False)
class BayesianSVDpp(ItemContent, RatingMixin, Recommender):
    """Bayesian SVD++: the mean prediction of models drawn from the posterior distribution.

    The model of a rating is that of :class:`SVDpp`, with a distribution for everything::

        r_ui = mu + b_u + b_i + q_i.p_u + e_ui,    e_ui ~ N(0, 1 / (w_ui alpha tau_u))
        p_u ~ N(|R_u|^-1/2 sum_{j in R_u} y_j, 1 / lambda),    y_j ~ N(0, 1 / eta)
        (b_i, q_i) ~ N(f_i, 1 / rho),    f ~ GP(0, K / psi)

    R_u are the items that the user rated, w_ui is `sample_weight`, tau_u measures how predictable a
    user is, and K_ij measures how many users rated both i and j, so that items with the same
    audience are expected to be alike. Nothing has to be tuned: a Gibbs sampler draws all unknowns
    in turn, strengths of regularisation included, and predictions are averaged over the draws.

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
        Lowest and highest rating, to which predictions are clipped.
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

    n_factors: AtLeast1 = 20
    _: KW_ONLY
    n_samples: AtLeast1 = 50
    n_burn_in: AtLeast0 = 40
    thinning: AtLeast1 = 4
    kernel_rank: AtLeast0 = 128
    noise_df: Positive | None = 10.0
    warm_start: bool = False
    n_jobs: Jobs = None
    random_state: Seed = None

    _predicted = ("item_factors_", "item_bias_", "item_bias_samples_")
    _absent = ("implicit_factors_",)

    # ------------------------------------------------------------------------------ fit

    def _n_tasks(self, data):
        return self.n_burn_in + self.n_samples * self.thinning

    def _fit(self, data, report):
        self._check_memory(data.n_users, data.n_items)
        run = begun(self, data, "n_samples")
        rows = Rows.of(data)
        with get_threadpool_controller().limit(limits=1, user_api="blas"):
            content = self._item_content.prior(rows.n_ratings)
            problem = sampler.Problem.of(rows, self.kernel_rank, self.noise_df, content)
            if run.state is None:
                generator = run.key.generator("first vectors")
                run.state = sampler.State.start(problem, self.n_factors, generator)
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
            return sampler.sweep(problem, state, key, self.n_jobs)[0]
        given = state.sample(DTYPE)
        normal = _opposite_normals("samples", run.key, run.n_samples, state.P.shape)
        loss, P = sampler.sweep(problem, state, key, self.n_jobs, normal)
        run.samples.append(given | {"P": P.astype(DTYPE)})
        return loss

    def _finished(self, run, rows, rated):
        """Return fitted attributes as if the sampling ended here; new arrays."""
        samples = run.samples or [run.state.sample(DTYPE)]
        each = {name: [sample[name] for sample in samples] for name in samples[0]}
        n, scale, weight = len(samples), rows.scale, float(rows.weights.mean())
        codes, root = np.argsort(rows.rank_of_user), np.sqrt(scale)
        user_biases = _stacked([P[:, :1] for P in each["P"]], codes, rows.n_users, scale)
        item_biases = _stacked([Q[:, :1] for Q in each["Q"]], rated, rows.n_items, scale)
        noise = np.mean(each["noise"], axis=0)[rows.rank_of_user]
        attributes = {
            "global_bias_": rows.mean,
            "rating_range_": rows.range,
            "user_factors_": _stacked([P[:, 1:] for P in each["P"]], codes, rows.n_users, root),
            "item_factors_": _stacked([Q[:, 1:] for Q in each["Q"]], rated, rows.n_items, root / n),
            "implicit_factors_": _stacked(each["Y"], rated, rows.n_items, root),
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
            "_user_precision": np.array(each["user_precision"]),
            "_item_variance": np.array([np.mean(Q**2.0, axis=0) for Q in each["Q"]]),
            "_noise_precision": np.array(each["noise_precision"]),
            "_key": run.key,
        }
        return self._with_content(attributes, rows.n_ratings, shrunk=False)

    def _model(self):
        response = clipped(*self.rating_range_)
        return Factors.of(vars(self), response=response, deviations=self._deviations)

    # -------------------------------------------------------------------------- predict

    def _deviations(self, users, items):
        """Return the standard deviations of the ratings of pairs."""
        # The spread over the samples and the user's own noise, of a rating of weight 1. Of unknown
        # users and items it is the spread of all of them, and an unknown user has the mean noise.
        unrated = np.ones(self.n_items_, dtype=bool)
        unrated[self._rated] = False
        items = np.where(unrated[items], -1, items)
        noise = self.user_noise_variance_.astype(np.float64)
        variances = np.where(users >= 0, noise[users], self._mean_noise)
        units = np.full(1 + self.n_factors, self._scale)
        units[0] **= 2
        of_users = self.user_bias_samples_, self.user_factors_, units / self._user_precision
        of_items = self.item_bias_samples_, self.item_factors_, units * self._item_variance
        for some in batches(len(users), self.user_factors_.shape[1]):
            p, p_spread = _moments(users[some], *of_users)
            q, q_spread = _moments(items[some], *of_items)
            q[..., 1:] *= self.n_samples_
            scores = p[..., 0] + q[..., 0] + np.sum(p[..., 1:] * q[..., 1:], axis=2)
            squares = p_spread * (q**2 + q_spread) + p**2 * q_spread
            squares[..., 0] = p_spread[..., 0] + q_spread[..., 0]
            variances[some] += scores.var(axis=1) + squares.sum(axis=2).mean(axis=1)
        return np.sqrt(variances)

    # ------------------------------------------------------------------------ newcomers

    def _new_user_attributes(self, data):
        with get_threadpool_controller().limit(limits=1, user_api="blas"):
            samples, noise = self._sampled(data)
        scale, codes = self._scale, np.arange(data.n_users)
        biases = _stacked([P[:, :1] for P in samples], codes, len(codes), scale).astype(DTYPE)
        factors = _stacked([P[:, 1:] for P in samples], codes, len(codes), np.sqrt(scale))
        return {
            "user_factors_": factors.astype(DTYPE),
            "user_bias_": biases.mean(axis=1),
            "user_bias_samples_": biases,
            "user_noise_variance_": (noise * scale**2 * self._mean_weight).astype(DTYPE),
        }

    def _sampled(self, data):
        """Return new users' (b_u, p_u) for each sample, and the mean of 1 / (alpha tau_u)."""
        n, size = data.n_users, 1 + self.n_factors
        values = (data.values - self.global_bias_) / self._scale
        weights = data.weights / self._mean_weight
        side = Side(data.indptr, data.items, values, weights)
        user_noise, noise, samples = np.ones(n), np.zeros(n), []
        for s, alpha in enumerate(self._noise_precision):
            key, (items, mean) = self._key.at(s), self._given(s, data)
            # All new users have the same numbers, so that none depends on which others are new.
            normal = key.generator("newcomers").standard_normal(size)
            again = _opposite_normals("samples of newcomers", self._key, s, size)
            (_, P), squares = sampler.drawn_rows(
                side,
                items,
                (mean, self._user_precision[s]),
                (alpha * user_noise, np.ones(len(items))),
                np.repeat([[normal], [again]], n, axis=1),
            )
            samples.append(P)
            noise += 1 / (alpha * user_noise * self.n_samples_)
            if self.noise_df is not None:
                shape = (self.noise_df + np.diff(data.indptr)) / 2
                rate = (self.noise_df + alpha * squares) / 2
                user_noise = gammaincinv(shape, key.uniform("newcomers' noise")) / rate
        return samples, noise

    def _given(self, s, data):
        """Return (b_i, q_i) of sample s, and the prior means of (b_u, p_u) of `data`'s users."""
        d, root = self.n_factors, np.sqrt(self._scale)
        own = slice(s * d, (s + 1) * d)
        factors = self.item_factors_[:, own] * (self.n_samples_ / root)
        items = np.column_stack([self.item_bias_samples_[:, s] / self._scale, factors])
        implicit = implicit_sums(data.indptr, data.items, self.implicit_factors_[:, own])
        mean = np.column_stack([np.zeros(data.n_users), implicit / root])
        return items.astype(np.float64), mean.astype(np.float64)


def _opposite_normals(purpose, key, sample, shape):
    """Return standard normal numbers; each second sample gets those before with opposite sign."""
    normal = key.at(sample // 2).generator(purpose).standard_normal(shape)
    return -normal if sample % 2 else normal


def _stacked(blocks, places, n_rows, factor):
    """Return arrays of one shape side by side, times a factor, at rows `places`; 0 elsewhere."""
    width = blocks[0].shape[1]
    everything = np.zeros((n_rows, len(blocks) * width), dtype=blocks[0].dtype)
    for s, block in enumerate(blocks):
        everything[places, s * width : (s + 1) * width] = block
    everything *= everything.dtype.type(factor)
    return everything


def _moments(codes, biases, factors, spread):
    """Return (bias, vector) of each sample, (n, S, 1 + d), and its variance, 0 for known codes."""
    vectors = factors[codes].reshape(len(codes), len(spread), -1)
    values = np.concatenate([biases[codes][:, :, None], vectors], axis=2, dtype=np.float64)
    unknown = (codes < 0)[:, None, None]
    return np.where(unknown, 0, values), np.where(unknown, spread, 0)
