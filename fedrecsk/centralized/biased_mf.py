"""Biased matrix factorisation: r_ui = mu + b_u + b_i + p_u . q_i."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from fedrecsk._utils.constraints import NotNegative
from fedrecsk._utils.docs import documented
from fedrecsk._utils.kernels import LazyModule
from fedrecsk.base._item_prior import ItemContent
from fedrecsk.centralized import _sgd
from fedrecsk.centralized._sgd import GradientDescent, item_vectors, ridge_by_user, vectors
from fedrecsk.centralized.bias_only import BiasOnly

sgd_kernels: LazyModule = LazyModule("fedrecsk.centralized._sgd_kernels")


@documented
@dataclass(eq=False, repr=False)
class BiasedMF(ItemContent, GradientDescent):
    """Matrix factorisation with biases: r_ui = mu + b_u + b_i + p_u.q_i.

    The strong plain baseline. Starts near the biases of :class:`BiasOnly` and minimises, by
    stochastic gradient descent over ratings of weight w_ui that are centred and divided by
    their standard deviation::

        sum over ratings of w_ui (r_ui - b_u - b_i - p_u . q_i)^2
          + sum_u (reg w_u + shrinkage) |p_u|^2 + (reg_bias w_u + shrinkage_bias) b_u^2
          + sum_i (reg w_i + shrinkage) |q_i|^2 + (reg_bias w_i + shrinkage_bias) b_i^2

    where w_u and w_i are the summed weights of the user and the item.

    Parameters
    ----------
    n_factors : int, default=20
        Length of p_u and q_i (f).
    {epochs}
    reg : float, default=0.05
        Weight of |p_u|^2 and |q_i|^2 for each rating of the user or item (lambda).
    shrinkage : float, default=3.0
        Further weight once per user and item, in ratings. It keeps the vectors of those with few
        ratings short.
    {biases reg}
    {held-out rows}
        In squared ratings.
    {epochs warm_start}
    random_state : int, RandomState instance or None, default=None
        Seed of the first vectors, the order of ratings and the held-out rows.
    {item_features}
    {items}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors), dtype float32
        p_u, in the root of rating units.
    item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        q_i.
    {biases}
    {rating attributes}
    {epochs attributes}

    Raises
    ------
    {epochs errors}

    See Also
    --------
    PMF : Without biases.
    SVDpp : Also learns from which items were rated.
    BiasOnly : Without vectors.

    Notes
    -----
    Centralised: all rows are in one place, and `clients` is checked and otherwise ignored.

    An unknown user or item adds nothing, and neither does an item of `items` without ratings.
    `fold_in` solves for a new user's b_u and p_u exactly, with the items fixed.

    One thread. Each epoch takes the ratings in the same order: random groups of 64 users, and
    random within. A step of weight w is rate w / (1 + 2 rate w), at most 1/2.

    *Constants.* Initial vectors have the standard deviation ``INIT_STD = 0.03``.

    References
    ----------
    .. [1] Y. Koren, R. Bell, C. Volinsky, "Matrix factorization techniques for recommender
       systems", Computer 42(8), 2009, equation 5.

    Examples
    --------
    >>> from fedrecsk import BiasedMF
    >>> X = [["ann", "alien"], ["ann", "brazil"], ["bob", "alien"], ["bob", "clue"]]
    >>> model = BiasedMF(n_factors=2, random_state=0).fit(X, [5, 4, 3, 2])
    >>> model.predict([["bob", "brazil"], ["carol", "alien"]]).round(1)
    array([3.3, 3.6])
    """

    _: KW_ONLY
    reg_bias: NotNegative = 0.01
    shrinkage_bias: NotNegative = 5.0

    _absent = ("implicit_factors_",)

    def _start(self, rows, key):
        # Two sweeps are near enough: gradient descent goes on from here.
        levels = BiasOnly(n_sweeps=2)._fit(rows, report=None)
        generator = key.generator("first vectors")
        return {
            "user_bias": (levels["user_bias_"] / rows.scale).astype(_sgd.DTYPE),
            "item_bias": (levels["item_bias_"] / rows.scale).astype(_sgd.DTYPE),
            "P": vectors(rows.n_users, self.n_factors, self.INIT_STD, generator),
            "Q": item_vectors(rows, self.n_factors, self.INIT_STD, generator),
        }

    def _decays(self, rows):
        return (
            *rows.decays(self.reg, self.shrinkage, self.learning_rate),
            *rows.decays(self.reg_bias, self.shrinkage_bias, self.learning_rate),
        )

    def _epoch(self, arranged, state, rate):
        ratings, decays = arranged
        return sgd_kernels.biased_mf(ratings, rate, tuple(state.values()), decays)

    def _fitted(self, rows, state):
        return self._with_content(super()._fitted(rows, state), rows.n_ratings)

    def _parameters(self, rows, state):
        return {
            "user_bias_": state["user_bias"],
            "item_bias_": state["item_bias"],
            "user_factors_": state["P"],
            "item_factors_": state["Q"],
        }

    def _new_user_attributes(self, data):
        residuals = data.values - self.global_bias_ - self.item_bias_[data.items]
        bias, factors = self._solve_users(data, residuals)
        return {"user_bias_": bias, "user_factors_": factors}

    def _solve_users(self, data, residuals):
        """Return new users' b_u and p_u from the residuals of their ratings."""
        design = np.column_stack([np.ones(self.n_items_), self.item_factors_])

        def prior(weight):
            strengths = np.full(design.shape[1], (self.reg * weight + self.shrinkage) * self._scale)
            strengths[0] = self.reg_bias * weight + self.shrinkage_bias
            return strengths

        theta = ridge_by_user(data, residuals, design, prior)
        theta = theta.astype(self.item_factors_.dtype)
        return theta[:, 0], theta[:, 1:]
