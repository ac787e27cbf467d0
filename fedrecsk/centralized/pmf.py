"""Probabilistic matrix factorisation: r_ui = mu + p_u . q_i under Gaussian priors."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np
from numpy.typing import NDArray

from fedrecsk._utils.constraints import Finite, NotNegative
from fedrecsk._utils.docs import documented
from fedrecsk._utils.kernels import LazyModule
from fedrecsk.centralized import _sgd
from fedrecsk.centralized._sgd import GradientDescent, item_vectors, ridge_by_user, vectors
from fedrecsk.models import Factors, clipped

sgd_kernels: LazyModule = LazyModule("fedrecsk.centralized._sgd_kernels")


@documented
@dataclass(eq=False, repr=False)
class PMF(GradientDescent):
    """Probabilistic matrix factorisation: ratings are mu + p_u.q_i plus noise, no biases.

    Minimises, by stochastic gradient descent over ratings of weight w_ui that are centred and
    divided by their standard deviation::

        sum over ratings of w_ui (r_ui - p_u . q_i)^2
          + sum_u (reg w_u + shrinkage) |p_u - m|^2 + sum_i (reg w_i + shrinkage) |q_i - m'|^2

    where w_u and w_i are the summed weights of the user and the item, m is `prior_mean` in its
    first coordinate, m' in its second, and both are 0 elsewhere. Users with few ratings are
    shrunk more; see `few_ratings`.

    Parameters
    ----------
    n_factors : int, default=20
        Length of p_u and q_i (the paper's D).
    {epochs}
    reg : float, default=0.05
        Strength of the priors for each rating of the user or item (lambda_U and lambda_V, as
        the paper's authors apply them).
    shrinkage : float, default=3.0
        Further strength once per user and item, in ratings. It keeps users and items with few
        ratings near the prior mean.
    few_ratings : float, default=15.0
        Number of ratings below which users are shrunk more: `shrinkage` of a user with n ratings
        is multiplied by ``few_ratings / n`` if that is more than 1. 0: never.
    prior_mean : float, default=1.0
        Prior mean of coordinate 0 of users and coordinate 1 of items. The same coordinate of the
        other side then acts as a bias. 0: the paper's plain PMF, which learns nothing from small
        data.
    center : bool, default=True
        Whether to subtract the global mean mu from ratings. False: mu is 0.
    {held-out rows}
        In squared ratings.
    {epochs warm_start}
    random_state : int, RandomState instance or None, default=None
        Seed of the first vectors, the order of ratings and the held-out rows.
    {items}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors), dtype float32
        p_u, in the root of rating units.
    item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        q_i.
    global_bias_ : float
        mu, in rating units.
    {rating attributes}
    {epochs attributes}

    Raises
    ------
    {epochs errors}
        If `n_factors` is 1 and `prior_mean` is not 0.

    See Also
    --------
    BiasedMF : With explicit biases.
    SVDpp : Also learns from which items were rated.

    Notes
    -----
    Centralised: all rows are in one place, and `clients` is checked and otherwise ignored.

    An unknown user or item has its prior mean as vector, and so has an item of `items` without
    ratings. `fold_in` solves for a new user's p_u exactly, with the items fixed.

    One thread. Each epoch takes the ratings in the same order: random groups of 64 users, and
    random within. A step of weight w is rate w / (1 + 2 rate w), at most 1/2.

    The paper gives priors means in section 3 ("adaptive priors") and learns them; here one
    coordinate's is set. With ``prior_mean=0, shrinkage=0`` and a `reg` of about 0.09
    this is the plain model of section 2 without the sigmoid.

    *Constants.* Initial vectors have the standard deviation ``INIT_STD = 0.03``.

    References
    ----------
    .. [1] A. Mnih, R. Salakhutdinov, "Probabilistic matrix factorization", NIPS 2007,
       section 2, equation 4; the linear form, whose gradients are per rating.

    Examples
    --------
    >>> from fedrecsk import PMF
    >>> X = [["ann", "alien"], ["ann", "brazil"], ["bob", "alien"], ["bob", "clue"]]
    >>> model = PMF(n_factors=2, random_state=0).fit(X, [5, 4, 3, 2])
    >>> model.predict([["bob", "brazil"], ["carol", "alien"]]).round(1)
    array([3.5, 3.7])
    """

    _: KW_ONLY
    few_ratings: NotNegative = 15.0
    prior_mean: Finite = 1.0
    center: bool = True

    def _check_before_fit(self):
        if self.n_factors == 1 and self.prior_mean != 0:
            raise ValueError(
                "prior_mean needs a coordinate for users and another for items; use n_factors of "
                "at least 2, or prior_mean=0."
            )

    def _center(self, rows):
        return rows.mean if self.center else 0.0

    def _start(self, rows, key):
        generator = key.generator("first vectors")
        P = vectors(rows.n_users, self.n_factors, self.INIT_STD, generator)
        Q = item_vectors(rows, self.n_factors, self.INIT_STD, generator)
        mean_user, mean_item = self._prior_means(P.shape[1])
        return {"P": P + mean_user, "Q": Q + mean_item}

    def _decays(self, rows):
        n_ratings = np.bincount(rows.users, rows.weights, minlength=rows.n_users)
        of_users = self._shrinkage_of(n_ratings)
        return rows.decays(self.reg, self.shrinkage, self.learning_rate, of_users)

    def _shrinkage_of(self, n_ratings):
        """Return the shrinkage of users, by their numbers of ratings."""
        return self.shrinkage * np.maximum(1.0, self.few_ratings / np.maximum(n_ratings, 1.0))

    def _epoch(self, arranged, state, rate):
        ratings, decays = arranged
        mean = _sgd.DTYPE(self.prior_mean)
        return sgd_kernels.pmf(ratings, rate, state["P"], state["Q"], decays, mean)

    def _parameters(self, rows, state):
        return {"user_factors_": state["P"], "item_factors_": state["Q"]}

    def _new_user_attributes(self, data):
        mean, items = self._fitted_prior_means()[0], self.item_factors_.astype(np.float64)

        def prior(weight):
            strength = (self.reg * weight + self._shrinkage_of(weight)) * self._scale
            return np.full(len(mean), strength)

        residuals = data.values - self.global_bias_ - items[data.items] @ mean
        theta = ridge_by_user(data, residuals, items, prior)
        return {"user_factors_": (mean + theta).astype(self.user_factors_.dtype)}

    # ------------------------------------------------- unknown users and items: the prior mean

    def _prior_means(self, width):
        """Return the prior means of users' and items' vectors, of DTYPE."""
        means = np.zeros((2, width), dtype=_sgd.DTYPE)
        means[0, 0] = means[1, min(1, width - 1)] = self.prior_mean
        return means

    def _fitted_prior_means(self):
        """Return the priors' means in the units of the fitted vectors."""
        return self._prior_means(self.item_factors_.shape[1]) * np.sqrt(self._scale)

    def _model(self):
        (user, item), items = self._fitted_prior_means(), self.item_factors_
        own = {"unknown": lambda: items @ user, "unknown_item": item}
        return PriorMeans.of(vars(self), response=clipped(*self.rating_range_), **own)


@dataclass(frozen=True, eq=False, kw_only=True)
class PriorMeans(Factors):
    """Vectors; those of unknown users and items are the means of their priors."""

    unknown_item: NDArray[np.floating]

    def _with_unknown(self, scores, users, items=None):
        if items is not None:
            new = (items < 0) & (users >= 0)
            scores[new] += self.users[users[new]] @ self.unknown_item
        return super()._with_unknown(scores, users, items)
