"""The bias-only model: collaborative filtering without interactions of users and items."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from fedrecsk._utils.constraints import AtLeast1, NotNegative
from fedrecsk._utils.docs import documented
from fedrecsk.base import RatingMixin, Recommender
from fedrecsk.models import Factors
from fedrecsk.portable import Ridge


@documented
@dataclass(eq=False, repr=False)
class BiasOnly(RatingMixin, Recommender):
    """Global mean plus shrunken user and item biases: r_ui = mu + b_u + b_i.

    The baseline for rating models: it models no personal tastes. Fitted by alternating regularised
    least squares on the sum of squared errors plus ``reg_user * b_u^2`` for each user and
    ``reg_item * b_i^2`` for each item.

    Parameters
    ----------
    reg_user : float, default=15.0
        Shrinkage of user biases, in ratings: the bias of a user with that many ratings is halved.
    reg_item : float, default=10.0
        Shrinkage of item biases, in ratings.
    n_sweeps : int, default=10
        Number of sweeps over items, then users.
    {items}

    Attributes
    ----------
    global_bias_ : float
        Weighted mean of the ratings (mu).
    user_bias_ : ndarray of shape (n_users,), dtype float64
        b_u, in rating units.
    item_bias_ : ndarray of shape (n_items,), dtype float64
        b_i, in rating units.
    {ids}

    Notes
    -----
    Centralised: all rows are in one place, and `clients` is checked and otherwise ignored.
    An unknown user or item has bias 0, and so has an item of `items` without ratings. Predictions
    are not clipped to the range of the ratings.

    References
    ----------
    .. [1] Y. Koren, "Factor in the neighbors: scalable and accurate collaborative
       filtering", TKDD 4(1), 2010, section 2.1. The default shrinkage is that of Surprise's
       BaselineOnly.

    Examples
    --------
    >>> from fedrecsk import BiasOnly
    >>> X = [["ann", "alien"], ["ann", "brazil"], ["bob", "alien"], ["bob", "clue"]]
    >>> model = BiasOnly(reg_user=1, reg_item=1).fit(X, [5, 4, 3, 2])
    >>> model.predict([["bob", "brazil"], ["carol", "alien"]]).round(2)
    array([2.83, 3.86])
    """

    _: KW_ONLY
    reg_user: NotNegative = 15.0
    reg_item: NotNegative = 10.0
    n_sweeps: AtLeast1 = 10

    _has_item_vectors = _has_user_vectors = False

    def _fit(self, data, report):
        users, items, weights = data.users, data.items, data.weights
        mean = np.average(data.values, weights=weights)
        user_bias, centred = np.zeros(data.n_users), data.values - mean
        by_item, by_user = (items, weights, data.n_items), (users, weights, data.n_users)
        for _ in range(self.n_sweeps):
            item_bias = _shrunk_means(centred - user_bias[users], *by_item, self.reg_item)
            user_bias = _shrunk_means(centred - item_bias[items], *by_user, self.reg_user)
        return {"global_bias_": float(mean), "user_bias_": user_bias, "item_bias_": item_bias}

    def _model(self):
        level, item_bias, penalty = self.global_bias_, self.item_bias_, float(self.reg_user)

        def rule():
            offset = level + item_bias
            ones, penalties = np.ones((len(offset), 1)), np.full((1, 1), penalty)
            return Ridge.of(ones, penalties, offset=offset, rates=True, confidence=1.0)

        return Factors.of(vars(self), make_rule=rule)

    def _new_user_attributes(self, data):
        residual = data.values - self.global_bias_ - self.item_bias_[data.items]
        groups = data.users, data.weights, data.n_users
        return {"user_bias_": _shrunk_means(residual, *groups, self.reg_user)}


def _shrunk_means(values, groups, weights, n_groups, shrinkage):
    """Return weighted means by group, shrunk towards 0 by `shrinkage` pseudo-counts."""
    sums = np.bincount(groups, weights * values, minlength=n_groups)
    total_weight = np.bincount(groups, weights, minlength=n_groups) + shrinkage
    return np.divide(sums, total_weight, out=np.zeros(n_groups), where=total_weight > 0)
