"""Ranking metrics as scikit-learn scorers."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sklearn.utils.metadata_routing import MetadataRequest

from fedrecsk._utils.sklearn_compat import BaseScorer, MultimetricScorer
from fedrecsk.metrics._evaluate import Protocol
from fedrecsk.metrics._ranking import METRICS, RankingSpec, key_of, value

if TYPE_CHECKING:
    from collections.abc import Callable, KeysView, Mapping, Sequence

    from numpy.typing import ArrayLike


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
