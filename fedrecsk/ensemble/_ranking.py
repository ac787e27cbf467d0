"""RankingEnsemble: the weighted sum of scores that were standardised user by user."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from fedrecsk._docs import documented
from fedrecsk._sklearn import Interval, StrOptions
from fedrecsk.base import RankingMixin, _batches
from fedrecsk.ensemble import _search
from fedrecsk.ensemble._base import RecommenderEnsemble, fit_part

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# Standard deviations below this share of the largest score are rounding.
RESOLUTION = 1e-12


@documented
@dataclass(eq=False, repr=False)
class RankingEnsemble(RankingMixin, RecommenderEnsemble):
    """Weighted sum of several rankers, on one scale for each user.

    The scores of different methods have no common scale. Each estimator's are standardised before
    they are added up: for every user, over all items, to mean 0 and standard deviation 1. If
    estimators rank about equally well but differently, their sum is better than any of them.

    Parameters
    ----------
    estimators : list of (str, estimator)
        Ranking models of this package, federated or not, each with a name. "drop" in place of an
        estimator leaves it out, as in scikit-learn's ensembles.
    weights : array-like of shape (n_estimators,) or "search", default=None
        Weights of the standardised scores; they need not add up to 1. None: equal weights.
        "search": the best on held-out rows. One row with y > 0 is held out of each user that has
        another row, and all estimators are fitted to the rest. Of all multiples of 1/10 that add
        up to 1, the weights with the highest mean NDCG@10 are chosen. All estimators are then
        fitted to all rows: twice the time, and twice the communication, which is counted.
    n_negatives : int or None, default=None
        With "search": among how many items, drawn from those without a row of the user, the
        held-out row is ranked. None: all of them. Use the protocol of your evaluation.
    random_state : int, RandomState instance or None, default=None
        With "search": which rows are held out, and the items drawn. Parts have their own.
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
    search_results_ : dict
        `weights` (array of shape (n_candidates, n_estimators)) and `score`, the mean NDCG@10
        of each. Only with "search".
    {user_ids_}
    {item_ids_}
    {n_users_}
    {n_items_}
    n_rounds_ : int
        Rounds of all federated parts. Only if there is one.
    communication_ : Ledger
        Every byte that federated parts have sent, one after the other, those of the search first.
        Only if there is one.
    privacy_ : PrivacyReport
        Their guarantees composed. Only if all parts are federated.

    Raises
    ------
    TypeError
        By fit: if a part is not a ranking model of this package.
    ValueError
        By fit: if names or weights are wrong, if a part has `items` of its own, if no row can be
        held out for "search", or as a part does.

    See Also
    --------
    RatingEnsemble : The mean of rating models.

    Notes
    -----
    *Algorithm*, with "search"::

        1  hold out a row of each user                        _search.held_out
        2  fit all parts to the others                        fit_part
        3  rank the held-out rows by each candidate's sum     _search.scores
        4  keep the best candidate, and fit all parts again   _fit

    Parts are fitted one after the other, each with the same clients and sample weights. `fold_in`
    and `recommend(interactions=)` fold new users into every part.

    A part that scores all items alike for a user (an unknown one, for example) adds nothing. An
    unknown item scores 0, like the average item.

    *In a federation* each client standardises and adds up its own users' scores, for which it needs
    only the parts. A search needs one number from each client for each candidate: its
    users' NDCG, in a sum. These numbers, 264 bytes per client for three parts, are not counted.

    Examples
    --------
    >>> from fedrecsk import FedEASE, LocALS
    >>> from fedrecsk.datasets import make_interactions
    >>> from fedrecsk.ensemble import RankingEnsemble
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> parts = [("ease", FedEASE(100.0)), ("als", LocALS(4, random_state=0))]
    >>> model = RankingEnsemble(parts, weights="search", random_state=0).fit(X)
    >>> model.weights_.sum().round(6), len(model.search_results_["score"])
    (np.float64(1.0), 11)
    >>> model.recommend(X[:2, 0], n_recommendations=3)[0].shape
    (2, 3)
    """

    _: KW_ONLY
    weights: ArrayLike | Literal["search"] | None = None
    n_negatives: int | None = None
    random_state: int | np.random.RandomState | None = None

    _parameter_constraints: ClassVar[dict] = RecommenderEnsemble._parameter_constraints | {
        "weights": ["array-like", StrOptions({"search"}), None],
        "n_negatives": [Interval(Integral, 1, None, closed="left"), None],
        "random_state": ["random_state"],
    }

    _kind: ClassVar[tuple] = ("a ranking model of fedrecsk", RankingMixin)

    # -------------------------------------------------------------------------- the search

    @property
    def _searches(self):
        return isinstance(self.weights, str)

    def _weights_for(self, data, parts):
        if not self._searches:
            return super()._weights_for(data, parts)
        generator = check_random_state(self.random_state)
        mask = _search.held_out(data, generator)
        # Items whose only row is held out stay in the catalogue.
        catalogue, training = data.item_ids.values, data.take(~mask)
        trial = [fit_part(clone(part).set_params(items=catalogue), training) for part in parts]
        weights = _search.candidates(len(parts))
        scores = _search.scores(
            weights,
            lambda users: np.stack([_standardised(part, users) for part in trial]),
            data,
            mask,
            self.n_negatives,
            generator,
        )
        found = {"search_results_": {"weights": weights, "score": scores}}
        return weights[scores.argmax()], trial, found

    def _check_weights(self):
        if not self._searches:
            super()._check_weights()
            return
        for name, part in self.estimators:
            federation = getattr(part, "federation", None)
            if getattr(federation, "central_dp", None) or getattr(federation, "local_dp", None):
                raise ValueError(
                    'weights="search" chooses weights by held-out rows, and the privacy of '
                    f"{name!r} does not cover that choice; give the weights."
                )

    # ----------------------------------------------------------------------------- scores

    def _score_all(self, users):
        return sum(
            weight * _standardised(part, users)
            for weight, part in zip(self.weights_, self.estimators_, strict=True)
        )

    def _score_pairs(self, users, items):
        scores = np.zeros(len(users))
        distinct, places = np.unique(users, return_inverse=True)
        order = np.argsort(places, kind="stable")
        starts = np.searchsorted(places[order], np.arange(len(distinct) + 1))
        for batch in _batches(len(distinct), self.n_items_):
            rows = order[starts[batch.start] : starts[batch.stop]]
            board = self._score_all(distinct[batch])
            known = items[rows] >= 0
            rows = rows[known]
            scores[rows] = board[places[rows] - batch.start, items[rows]]
        return scores


def _standardised(part, users):
    """A part's scores of all items, for each user with mean 0 and standard deviation 1."""
    board = np.asarray(part._score_all(users), dtype=np.float64)
    board = board - board.mean(axis=1, keepdims=True)
    spread = board.std(axis=1, keepdims=True)
    # Scores that differ only by rounding count as equal.
    flat = spread <= RESOLUTION * np.abs(board).max(axis=1, keepdims=True, initial=0)
    return np.where(flat, 0.0, board / np.where(flat, 1.0, spread))
