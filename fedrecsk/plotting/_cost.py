"""Accuracy against communication cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_consistent_length

from fedrecsk._utils.docs import documented
from fedrecsk.plotting import _base
from fedrecsk.plotting._base import TableDisplay


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class CostDisplay(TableDisplay):
    """Accuracy against communication cost, with the Pareto front.

    Each method is a point. The Pareto front joins the methods that are better than every method
    that costs no more. Centralised methods, which have no such cost, are horizontal lines.

    Parameters
    ----------
    names : list of str
        Names of the methods.
    costs, scores : array-like of shape (n_methods,)
        Costs and scores of the methods. NaN is the cost of a method that has none.
    cost_stds, score_stds : array-like of shape (n_methods,), default=None
        Standard deviations, drawn as error bars. If None, no bars.
    x_name, score_name : str, default="mb", "score"
        Names of cost and score, which label the axes.
    {greater_is_better}
    {failed}
    {reference}

    Attributes
    ----------
    pareto_ : list of str
        Methods on the Pareto front, the cheapest first.
    {display attributes}
    points_ : list of matplotlib ErrorbarContainer
        One per method with a cost.
    baselines_ : list of matplotlib Line2D
        One per method without a cost.
    front_ : matplotlib Line2D or None

    See Also
    --------
    fedrecsk.model_selection.compare : Makes the results.
    fedrecsk.metrics.best_within : The best candidate of a search within a budget.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from fedrecsk.plotting import CostDisplay
    >>> results = [
    ...     {"estimator": "thrifty", "ndcg@10": 0.30, "mb_up": 0.1, "mb_down": 0.1},
    ...     {"estimator": "lavish", "ndcg@10": 0.40, "mb_up": 9.0, "mb_down": 9.0},
    ...     {"estimator": "wasteful", "ndcg@10": 0.35, "mb_up": 20.0, "mb_down": 20.0},
    ... ]
    >>> CostDisplay.from_results(results).pareto_
    ['thrifty', 'lavish']
    """

    names: Sequence[str]
    costs: ArrayLike
    scores: ArrayLike
    cost_stds: ArrayLike | None = None
    score_stds: ArrayLike | None = None
    x_name: str = "mb"
    score_name: str = "score"
    greater_is_better: bool | None = None
    _point: ClassVar[list[str]] = ["method"]

    def __post_init__(self):
        _base.check_any(self.names, self.score_name)
        check_consistent_length(
            self.names, self.costs, self.scores, self.cost_stds, self.score_stds
        )
        costs = np.asarray(self.costs, float)
        if (costs < 0).any():
            raise ValueError(
                f"{self.x_name!r} has negative values; cost scorers return those, so negate them."
            )
        if np.isinf(costs).any():
            raise ValueError(
                f"{self.x_name!r} is infinite for some methods; draw epsilon by PrivacyDisplay."
            )

    @classmethod
    def _data(cls, points, results, score, by, greater_is_better):
        errors = _base.errors_over_users(results, score, by)
        stds = zip(points["method"], points["score_std"], strict=True)
        return {
            "names": points["method"].tolist(),
            "costs": points["x"].to_numpy(),
            "scores": points["score"].to_numpy(),
            "cost_stds": points["x_std"].to_numpy(),
            "score_stds": np.array([errors.get(name, std) for name, std in stds]),
            "greater_is_better": greater_is_better,
        }

    @classmethod
    def _prepare(cls, table, param_name, x):
        several = table["estimator"].nunique() > 1
        names = zip(table["estimator"], table[param_name], strict=True)
        labels = [f"{name}, " * several + f"{param_name}={value}" for name, value in names]
        return table.assign(estimator=labels), x

    @property
    def pareto_(self):
        """Methods on the Pareto front, the cheapest first; of equal methods the first."""
        return [self.names[i] for i in self._front()]

    def _front(self):
        costs, scores = np.asarray(self.costs, float), np.asarray(self.scores, float)
        greater = self.greater_is_better
        if greater is None:
            greater = _base.is_greater_better(self.score_name, self.scores)
        losses = -scores if greater else scores
        front = []
        for i in np.lexsort((losses, costs)):
            if np.isfinite(costs[i]) and (not front or losses[i] < losses[front[-1]]):
                front.append(i)
        return front

    def _draw(self, ax, *, front_kw=None, **kwargs):
        costs, scores = np.asarray(self.costs, float), np.asarray(self.scores, float)
        self.points_: list[Any] = []
        self.baselines_: list[Any] = []
        taken = len(ax.containers)
        for i, name in enumerate(self.names):
            if np.isnan(costs[i]):
                dashes = _base.DASHES[len(self.baselines_) % len(_base.DASHES)]
                look = {"color": "0.5", "linestyle": dashes, "linewidth": 1.3}
                line = _base.draw_level(ax, scores[i], f"{name} (centralised)", **look)
                self.baselines_.append(line)
                continue
            look = _base.style(taken + len(self.points_)) | {"linestyle": "none", "markersize": 8}
            look |= {"label": _base.legible(name), "capsize": 3, "zorder": 3}
            look |= {"xerr": _bar(self.cost_stds, i), "yerr": _bar(self.score_stds, i)}
            point = ax.errorbar(costs[i], scores[i], **_base.with_style(kwargs, **look))
            self.points_.append(point)
        self.front_: Any = None
        on_front = self._front()
        if len(on_front) > 1:
            look = {"color": "0.6", "linewidth": 1.5, "zorder": 2, "drawstyle": "steps-post"}
            look = _base.with_style(front_kw, label="Pareto front", **look)
            (self.front_,) = ax.plot(costs[on_front], scores[on_front], **look)
        positive = costs[np.isfinite(costs)]
        if len(positive) and positive.min() > 0 and positive.max() > 20 * positive.min():
            _base.make_logarithmic(ax)


def _bar(stds, i):
    return None if stds is None or not np.asarray(stds)[i] > 0 else np.asarray(stds)[i]
