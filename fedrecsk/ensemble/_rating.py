"""RatingEnsemble: the weighted mean of predicted ratings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedrecsk._docs import documented
from fedrecsk.base import RatingMixin
from fedrecsk.ensemble._base import RecommenderEnsemble


@documented
@dataclass(eq=False, repr=False)
class RatingEnsemble(RatingMixin, RecommenderEnsemble):
    """Weighted mean of the predictions of several rating models.

    If the errors of models differ, their mean is better than each: even the mean of fits of one
    method with different `random_state`.

    :class:`~sklearn.ensemble.VotingRegressor` predicts the same means, but has no `recommend`, no
    `fold_in`, no `items` and no ledger, and refuses `clients` unless metadata routing is switched
    on.

    Parameters
    ----------
    estimators : list of (str, estimator)
        Rating models of this package, federated or not, each with a name. "drop" in place of an
        estimator leaves it out, as in scikit-learn's ensembles.
    weights : array-like of shape (n_estimators,), default=None
        Weights of the predictions; they need not add up to 1. None: equal weights.
    {items}
        It is passed on to all parts.

    Attributes
    ----------
    estimators_ : list of estimator
        The fitted parts, without those that are dropped.
    named_estimators_ : Bunch
        The same by their names.
    weights_ : ndarray of shape (n_estimators,), dtype float64
        Their weights, which add up to 1.
    {user_ids_}
    {item_ids_}
    {n_users_}
    {n_items_}
    n_rounds_ : int
        Rounds of all federated parts. Only if there is one.
    communication_ : Ledger
        Every byte that federated parts have sent, one after the other. Only if there is one.
    privacy_ : PrivacyReport
        Their guarantees composed. Only if all parts are federated.

    Raises
    ------
    TypeError
        By fit: if a part is not a rating model of this package.
    ValueError
        By fit: if names or weights are wrong, if a part has `items` of its own, or as a part does.

    See Also
    --------
    RankingEnsemble : The sum of rankers, whose scores have no common scale.

    Notes
    -----
    Parts are fitted one after the other, each to all rows, with the same clients and sample
    weights. `fold_in` and `recommend(interactions=)` fold new users into every part.

    With federated parts, a client takes part in each of them, and computes the mean of their
    predictions itself.

    Examples
    --------
    >>> from fedrecsk import BiasOnly, RFRec
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.ensemble import RatingEnsemble
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> X = X[:, :2]
    >>> parts = [("rfrec", RFRec(4, n_rounds=20, random_state=0)), ("bias", BiasOnly())]
    >>> model = RatingEnsemble(parts, weights=[2, 1]).fit(X, y)
    >>> mean = sum(w * part.predict(X) for w, part in zip(model.weights_, model.estimators_))
    >>> bool(abs(model.predict(X) - mean).max() < 1e-12), model.n_rounds_
    (True, 20)
    """

    _kind: ClassVar[tuple] = ("a rating model of fedrecsk", RatingMixin)

    def _score_pairs(self, users, items):
        return sum(
            weight * part._score_pairs(users, items)
            for weight, part in zip(self.weights_, self.estimators_, strict=True)
        )

    def _score_all(self, users):
        return sum(
            weight * part._response(part._score_all(users))
            for weight, part in zip(self.weights_, self.estimators_, strict=True)
        )

    def _standard_deviations(self, users, items):
        # Of a mixture of the parts' distributions.
        square, mean = 0.0, 0.0
        for weight, part in zip(self.weights_, self.estimators_, strict=True):
            rating = part._score_pairs(users, items)
            square += weight * (part._standard_deviations(users, items) ** 2 + rating**2)
            mean += weight * rating
        return np.sqrt(np.maximum(square - mean**2, 0))
