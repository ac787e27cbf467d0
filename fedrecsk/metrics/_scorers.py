"""Scorers for scikit-learn: ranking metrics, and what a fit costs; the best within a budget."""

from __future__ import annotations

import copy
from collections.abc import Callable, KeysView, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.metadata_routing import MetadataRequest

from fedrecsk._utils.constraints import NotNegative
from fedrecsk._utils.parameters import checked, limits_of
from fedrecsk._utils.sklearn_compat import BaseScorer, MultimetricScorer
from fedrecsk.metrics._evaluate import Protocol
from fedrecsk.metrics._held_out import unwrap
from fedrecsk.metrics._ranking import METRICS, RankingSpec, key_of, value


def make_ranking_scorer(
    metric: str | Sequence[str] = "ndcg",
    k: int | Sequence[int] = 10,
    *,
    n_negatives: int | None = None,
    negatives: ArrayLike | Mapping[Any, ArrayLike] | None = None,
    exclude_seen: bool = True,
    threshold: float | None = None,
    items: Literal["all", "known", "new"] = "all",
    users: Literal["all", "known", "new"] = "all",
    random_state: int | np.random.RandomState | None = None,
) -> RankingScorer | RankingScorers:
    """Make a scorer for scikit-learn's model selection from ranking metrics.

    Parameters
    ----------
    metric : str or sequence of str, default="ndcg"
        "ndcg", "hit_rate", "precision", "recall", "mrr", "map", "auc", "coverage", "novelty" or
        "diversity"; see :func:`evaluate_ranking`.
    k : int or sequence of int, default=10
        Cutoffs.
    n_negatives, negatives, exclude_seen, threshold, items, users
        As in :func:`evaluate_ranking`.
    random_state : int, RandomState instance or None, default=None
        As in :func:`evaluate_ranking`. Pass an int, so that all candidates of a search are
        evaluated on the same negatives.

    Returns
    -------
    scorer : callable
        ``scorer(estimator, X, y=None, *, sample_weight=None)``, for `scoring` of GridSearchCV,
        cross_validate, ScoringMonitor and the like. One metric with one cutoff gives a float.
        Several give a dict with keys like ``"ndcg@10"``, from which `refit` names one; they
        share one ranking. Such a scorer unpacks into a dict of scorers: ``{**scorer, "bytes_up":
        bytes_up_scorer}``. In a dict, too, scorers with equal parameters share one ranking.

    Raises
    ------
    ValueError
        If a metric is unknown, k is below 1, or both kinds of negatives are requested.

    See Also
    --------
    evaluate_ranking : The same for one fitted model, with details.
    best_within : Choose the best candidate of a search within a budget.

    Notes
    -----
    Errors while scoring are handled by `error_score` if the scorers are in a dict. A scorer of
    several metrics that is passed on its own raises them.

    In searches and :func:`sklearn.model_selection.cross_validate`, models of other packages must
    expose what their users have seen; see :func:`evaluate_ranking`. In
    :func:`fedrecsk.model_selection.compare` they need `predict` only.

    Examples
    --------
    >>> from sklearn.model_selection import cross_validate, KFold
    >>> from fedrecsk import Popularity
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.metrics import bytes_up_scorer, make_ranking_scorer
    >>> X, _ = make_ratings(random_state=0)
    >>> ranking = make_ranking_scorer(["ndcg", "hit_rate"], n_negatives=20, random_state=0)
    >>> scoring = {**ranking, "bytes_up": bytes_up_scorer}
    >>> scores = cross_validate(Popularity(), X, cv=KFold(2, shuffle=True), scoring=scoring)
    >>> sorted(scores)
    ['fit_time', 'score_time', 'test_bytes_up', 'test_hit_rate@10', 'test_ndcg@10']
    """
    protocol = Protocol(n_negatives, negatives, exclude_seen, threshold, random_state, items, users)
    metrics, cutoffs, spec = protocol.plan(metric, k, "metric")
    if isinstance(metric, str) and np.ndim(k) == 0:
        return RankingScorer(metric, cutoffs[0], protocol, spec)
    return RankingScorers(
        {key_of(m, k): RankingScorer(m, k, protocol, spec) for m in metrics for k in cutoffs}
    )


class RecommenderScorer(BaseScorer):
    """Base class of this package's scorers."""

    def __init__(self, value: Callable[..., float]) -> None:
        # scikit-learn requires every scorer in a dict to name a method of the estimator.
        super().__init__(value, sign=1, kwargs={}, response_method="predict")

    def __call__(
        self,
        estimator: object,
        X: ArrayLike,
        y_true: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        **kwargs: Any,
    ) -> float:
        """Score a fitted estimator; the larger, the better."""
        return super().__call__(estimator, X, y_true, sample_weight=sample_weight, **kwargs)


class RankingScorer(RecommenderScorer):
    """One ranking metric at one cutoff; see :func:`make_ranking_scorer`."""

    def __init__(self, metric: str, k: int, protocol: Protocol, spec: RankingSpec) -> None:
        super().__init__(value)
        self._metric, self._k, self._protocol, self._spec = metric, k, protocol, spec
        self._metadata_request = MetadataRequest(owner=self)
        self._metadata_request.score.add_request(param="sample_weight", alias=True)
        # Of the last call, for a comparison: ids of the users, and the value of each.
        self.by_user = None

    def _score(self, method_caller, estimator, X, y_true=None, *, sample_weight=None):
        # The caller is bound to the dict in which the scorers of one multimetric call share
        # responses, or to None. Rankings are shared there too.
        cache = method_caller.args[0]
        key = (self._protocol.key, id(sample_weight))
        ranking, spec = None if cache is None else cache.get(key), self._spec
        if ranking is None or ranking.spec.joined(spec) != ranking.spec:
            spec = spec if ranking is None else spec.joined(ranking.spec)
            ranking = self._protocol.rank(estimator, X, y_true, sample_weight, spec=spec)
            if cache is not None:
                cache[key] = ranking
        if self._protocol.X_train is not None and self._metric != "coverage":
            self.by_user = ranking.users, METRICS[self._metric](ranking, self._k)
        return value(self._metric, ranking, self._k)

    @property
    def ranks_seen(self) -> bool:
        """Return whether the items that a user has seen in fit are ranked like others."""
        return not self._protocol.hides_seen

    @property
    def counts_repeated(self) -> bool:
        """Return whether a pair counts as often as it occurs in the test rows."""
        return self._metric == "ndcg"

    def trained_on(self, X_train: ArrayLike) -> RankingScorer:
        """Return the same scorer with the training rows made known to it."""
        scorer = copy.copy(self)
        scorer._protocol = replace(self._protocol, X_train=X_train)
        return scorer

    def _accept_sample_weight(self):
        return True

    def __repr__(self) -> str:
        return f"make_ranking_scorer({self._metric!r}, k={self._k})"


class RankingScorers(MultimetricScorer):
    """Several ranking metrics from one ranking; see :func:`make_ranking_scorer`."""

    def __init__(self, scorers: Mapping[str, RankingScorer]) -> None:
        super().__init__(scorers=scorers, raise_exc=True)

    def keys(self) -> KeysView[str]:
        """Return the metrics' names; with this, ``{**scorers}`` is a dict of scorers."""
        return self._scorers.keys()

    def __getitem__(self, name: str) -> RankingScorer:
        return self._scorers[name]

    def __repr__(self) -> str:
        return f"make_ranking_scorer: {', '.join(self._scorers)}"


# ----------------------------------------------------------------------------- costs


def best_within(
    budget: NotNegative, *, metric: str = "ndcg@10", cost: str = "bytes_up"
) -> Callable[[Mapping[str, NDArray[Any]]], int]:
    """Choose the best candidate of a search whose cost stays within a budget.

    Pass it as `refit` of GridSearchCV or RandomizedSearchCV.

    Parameters
    ----------
    budget : float
        Highest cost allowed, in the unit of the cost scorer. `bytes_up_scorer` counts bytes per
        client, so ``50e6`` means 50 MB per client.
    metric : str, default="ndcg@10"
        Name of the metric to maximise, as in the search's `scoring`.
    cost : str, default="bytes_up"
        Name of the cost scorer, as in the search's `scoring`.

    Returns
    -------
    refit : callable
        Takes `cv_results_` and returns the index of the best candidate within the budget: of all
        candidates whose mean cost over the folds is at most `budget`, the one with the largest
        mean metric, and among equals the cheapest.

    Raises
    ------
    ValueError
        By `best_within`, if the budget is not a number of at least 0. By the callable, if its
        argument is not `cv_results_`, if `metric` or `cost` is not among the scores, if a cost has
        the wrong sign (cost scorers return negative numbers), or if no candidate is within the
        budget.

    Notes
    -----
    A search with a callable `refit` has no `best_score_` and no `score` in scikit-learn. Read
    ``cv_results_["mean_test_..."][best_index_]`` instead, and score with
    ``evaluate_ranking(search, X_test)``. If no candidate is within the budget, the error ends the
    search and its results are lost. If you are unsure of the budget, search with
    ``refit=False`` and call ``best_within(...)`` on `cv_results_` afterwards.

    Examples
    --------
    >>> from sklearn.model_selection import GridSearchCV, KFold
    >>> from fedrecsk import RFRec
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.metrics import best_within, bytes_up_scorer
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=1000, random_state=0)
    >>> search = GridSearchCV(
    ...     RFRec(n_rounds=3, random_state=0),
    ...     {"n_factors": [2, 4, 64]},
    ...     cv=KFold(2, shuffle=True, random_state=0),
    ...     scoring={"rmse": "neg_root_mean_squared_error", "bytes_up": bytes_up_scorer},
    ...     refit=best_within(10_000, metric="rmse"),
    ... ).fit(X, y)
    >>> search.best_params_["n_factors"] < 64
    True
    """
    (budget,) = checked("best_within", limits_of(best_within), budget=budget)
    return _BestWithin(budget, metric, cost)


@dataclass(frozen=True)
class _BestWithin:
    # A class, not a closure, so that a fitted search can be pickled.
    budget: float
    metric: str
    cost: str

    def __call__(self, results):
        values, costs = _means(results, self.metric), -_means(results, self.cost)
        if (costs < 0).any():
            raise ValueError(
                f"{self.cost!r} is not a cost: it has positive scores. Cost scorers such as "
                "bytes_up_scorer return negative numbers."
            )
        within = np.flatnonzero((costs <= self.budget) & ~np.isnan(values))
        if len(within) == 0:
            scored = np.where(np.isnan(values), np.nan, costs)
            if np.isnan(scored).all():
                raise ValueError(f"No candidate has both {self.metric!r} and {self.cost!r}.")
            cheapest = np.nanargmin(scored)
            raise ValueError(
                f"No candidate is within the budget of {self.budget:g}: the cheapest, "
                f"{results['params'][cheapest]}, has a mean {self.cost!r} of "
                f"{costs[cheapest]:g}. Raise the budget or widen the search."
            )
        return int(within[np.lexsort((costs[within], -values[within]))[0]])


def _means(results, name):
    key, prefix = f"mean_test_{name}", "mean_test_"
    if key not in results:
        names = [one.removeprefix(prefix) for one in results if one.startswith(prefix)]
        raise ValueError(
            f"The search has no score {name!r}; it has {', '.join(names) or 'none'}. Name scores "
            "as its `scoring` does, which must be a dict or a list."
        )
    values = np.asarray(results[key])
    if values.dtype.kind not in "iuf":
        raise ValueError(f"Column {key!r} holds {values.tolist()[0]!r}, which is not a number.")
    return values.astype(np.float64)


def _mean_bytes(directions, model):
    ledger = model.communication_
    return sum(getattr(ledger, f"client_bytes_{one}").mean() for one in directions)


def _epsilon(model):
    # The sum of federated and centralised models has a ledger, but no report.
    return model.privacy_.epsilon if hasattr(model, "privacy_") else np.inf


class CostScorer(RecommenderScorer):
    """A cost of the fit as a negative number, because scikit-learn maximises scores."""

    def __init__(
        self, name: str, cost: Callable[[Any], float], *, of_centralised: float = 0.0
    ) -> None:
        super().__init__(cost)
        self._name, self._of_centralised = name, of_centralised

    def _score(self, method_caller, estimator, X, y_true=None, *, sample_weight=None):
        # A federated search counts what it has cost itself.
        model = estimator if hasattr(estimator, "communication_") else unwrap(estimator)[1]
        if hasattr(model, "communication_"):
            return -float(self._score_func(model))
        if hasattr(model, "federation"):
            raise ValueError(
                f"{type(model).__name__} has no communication_ yet: costs are known only after the "
                "fit, so they cannot be monitored while it runs; history_ can."
            )
        return -self._of_centralised

    def _accept_sample_weight(self):
        return False

    def _get_metadata_request(self):
        return MetadataRequest(owner=self)

    def __repr__(self) -> str:
        return self._name


bytes_up_scorer: CostScorer = CostScorer("bytes_up_scorer", partial(_mean_bytes, ["up"]))
"""Mean number of bytes that a client sent during fit, as a negative number.

Taken from `communication_`, including the set-up. 0 for a centralised model, which sends no
messages (although it has to collect all data in one place).
"""

bytes_down_scorer: CostScorer = CostScorer("bytes_down_scorer", partial(_mean_bytes, ["down"]))
"""Mean number of bytes that a client received during fit, as a negative number.

Taken from `communication_`, including the final model, from which clients predict. 0 for a
centralised model.
"""

bytes_device_to_device_scorer: CostScorer = CostScorer(
    "bytes_device_to_device_scorer", partial(_mean_bytes, ["device_to_device"])
)
"""Mean number of bytes that a client sent directly to other clients, as a negative number.

Taken from `communication_`. 0 for methods whose clients talk to the server only.
"""

# Clients receive what they send to each other, too.
bytes_scorer: CostScorer = CostScorer(
    "bytes_scorer", partial(_mean_bytes, ["up", "down", "device_to_device", "device_to_device"])
)
"""Mean number of bytes that a client sent and received during fit, as a negative number.

From and to the server and other clients.
"""

rounds_scorer: CostScorer = CostScorer("rounds_scorer", attrgetter("n_rounds_"))
"""Number of communication rounds of the fit, as a negative number. 0 for a centralised model."""

hours_scorer: CostScorer = CostScorer("hours_scorer", attrgetter("communication_.hours"))
"""Hours of the fit by the simulated clock, as a negative number. 0 for a centralised model.

NaN without ``Federation(devices=...)``.
"""

epsilon_scorer: CostScorer = CostScorer("epsilon_scorer", _epsilon, of_centralised=np.inf)
"""Total privacy loss of the client with the largest loss, as a negative number.

Taken from `privacy_`: epsilon over all coordinates and uploads of that client. Infinite if
uploads carry no noise, and for a centralised model, which reads all data in plaintext.
"""
