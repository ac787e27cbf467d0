"""Accuracy against communication cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length

from fedrecsk._utils.docs import documented
from fedrecsk.model_selection import Comparison
from fedrecsk.model_selection._comparison import is_error
from fedrecsk.plotting._base import (
    DASHES,
    Display,
    as_table,
    check_any,
    column,
    draw_level,
    errors_over_users,
    failures,
    legible,
    make_logarithmic,
    numbers,
    pyplot,
    scores_of,
    style,
    vary,
    with_style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class CostDisplay(Display):
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
    cost_name, score_name : str, default="mb", "score"
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
    cost_name: str = "mb"
    score_name: str = "score"
    greater_is_better: bool | None = None
    failed: Sequence[str] = ()
    reference: float | Mapping[str, float] | None = None

    @classmethod
    @documented
    def from_results(
        cls,
        results: Comparison | ArrayLike | Sequence[Mapping[str, Any]],
        *,
        score: str = "ndcg@10",
        cost: str = "mb",
        by: str = "estimator",
        greater_is_better: bool | None = None,
        reference: float | Mapping[str, float] | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw a comparison.

        Parameters
        ----------
        results : Comparison, DataFrame or list of dict
            One row or more per method. Points are means over a method's rows, with error bars of
            one standard deviation; for the score of a Comparison that has it by user, of one
            standard error over users. Rows without the score, such as those of failed fits, are
            left out.
        score, cost : str, default="ndcg@10", "mb"
            Columns of score and cost, such as "hours" of the simulated clock. If there is no
            column "mb", it is the sum of "mb_up", "mb_down" and, if there is one, twice
            "mb_device_to_device", which clients both send and receive.
        by : str, default="estimator"
            Column of the methods' names.
        {greater_is_better}
        {drawing}

        {drawn}
        """
        table = as_table(results)
        if cost == "mb" and "mb" not in table:
            table = table.assign(mb=numbers(table, "mb_up") + numbers(table, "mb_down"))
            if "mb_device_to_device" in table:
                table["mb"] += 2 * numbers(table, "mb_device_to_device")
        points = pd.DataFrame(
            {
                "name": list(map(str, column(table, by))),
                "score": scores_of(table, score),
                "cost": numbers(table, cost),
            }
        ).dropna(subset="score")
        if (points["cost"] < 0).any():
            raise ValueError(
                f"{cost!r} has negative values; cost scorers return those, so negate them."
            )
        if np.isinf(points["cost"]).any():
            raise ValueError(
                f"{cost!r} is infinite for some methods; draw epsilon by PrivacyDisplay."
            )
        check_any(points, score)
        methods = points.groupby("name", sort=False)
        means, stds = pd.DataFrame(methods.mean()), pd.DataFrame(methods.std(ddof=0))
        stds["score"] = errors_over_users(results, score, by, stds["score"])
        display = cls(
            names=means.index.tolist(),
            costs=means["cost"].to_numpy(),
            scores=means["score"].to_numpy(),
            cost_stds=stds["cost"].to_numpy(),
            score_stds=stds["score"].to_numpy(),
            cost_name=cost,
            score_name=score,
            greater_is_better=greater_is_better,
            failed=failures(table, score, by),
            reference=reference,
        )
        return display.plot(ax, **kwargs)

    @classmethod
    @documented
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        param_name: str,
        param_range: Iterable[Any] | Mapping[str, Any],
        score: str = "ndcg@10",
        cost: str = "mb",
        greater_is_better: bool | None = None,
        reference: float | Mapping[str, Any] | Sequence[Any] | None = None,
        ax: Axes | None = None,
        compare_params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Cross-validate an estimator with several values of a parameter, and draw the results.

        Parameters
        ----------
        estimator : estimator
        {data}
        param_name : str
            Name of the parameter to vary, as in `set_params`.
        param_range : iterable, or dict of str to value
            Values of the parameter, or a dict of labels to values.
        score, cost, greater_is_better
            As in :meth:`from_results`.
        {comparing}

        {drawn}
        """
        pyplot("CostDisplay.from_estimator", ax)
        scores = [score, "mb_up" if cost == "mb" else cost]
        table, reference = vary(
            [estimator], X, y, param_name, param_range, scores, compare_params, reference
        )
        labels = [f"{param_name}={value}" for value in table[param_name]]
        return cls.from_results(
            table.assign(**{param_name: labels}),
            score=score,
            cost=cost,
            by=param_name,
            greater_is_better=greater_is_better,
            reference=reference,
            ax=ax,
            **kwargs,
        )

    @property
    def pareto_(self):
        """Methods on the Pareto front, the cheapest first; of equal methods the first."""
        return [self.names[i] for i in self._front()]

    def _front(self):
        check_consistent_length(
            self.names, self.costs, self.scores, self.cost_stds, self.score_stds
        )
        costs, scores = np.asarray(self.costs, float), np.asarray(self.scores, float)
        greater = self.greater_is_better
        if greater is None:
            greater = not is_error(self.score_name, self.scores)
        losses = -scores if greater else scores
        front = []
        for i in np.lexsort((losses, costs)):
            if np.isfinite(costs[i]) and (not front or losses[i] < losses[front[-1]]):
                front.append(i)
        return front

    @documented
    def plot(
        self, ax: Axes | None = None, *, front_kw: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> Self:
        """Draw the display.

        Parameters
        ----------
        {ax}
        front_kw : dict, default=None
            How to draw the front: parameters of matplotlib's `plot`.
        **kwargs
            How to draw the points: parameters of matplotlib's `errorbar`.

        {drawn}
        """
        on_front = self._front()
        return self._plot(
            self.names, ax, self.cost_name, on_front=on_front, front_kw=front_kw, **kwargs
        )

    def _draw(self, ax, *, on_front, front_kw, **kwargs):
        costs, scores = np.asarray(self.costs, float), np.asarray(self.scores, float)
        self.points_: list[Any] = []
        self.baselines_: list[Any] = []
        taken = len(ax.containers)
        for i, name in enumerate(self.names):
            if np.isnan(costs[i]):
                dashes = DASHES[len(self.baselines_) % len(DASHES)]
                look = {"color": "0.5", "linestyle": dashes, "linewidth": 1.3}
                line = draw_level(ax, scores[i], f"{name} (centralised)", **look)
                self.baselines_.append(line)
                continue
            look = style(taken + len(self.points_)) | {"linestyle": "none", "markersize": 8}
            look |= {"label": legible(name), "capsize": 3, "zorder": 3}
            look |= {"xerr": _bar(self.cost_stds, i), "yerr": _bar(self.score_stds, i)}
            point = ax.errorbar(costs[i], scores[i], **with_style(kwargs, **look))
            self.points_.append(point)
        self.front_: Any = None
        if len(on_front) > 1:
            look = {"color": "0.6", "linewidth": 1.5, "zorder": 2, "drawstyle": "steps-post"}
            look = with_style(front_kw, label="Pareto front", **look)
            (self.front_,) = ax.plot(costs[on_front], scores[on_front], **look)
        positive = costs[np.isfinite(costs)]
        if len(positive) and positive.min() > 0 and positive.max() > 20 * positive.min():
            make_logarithmic(ax)


def _bar(stds, i):
    return None if stds is None or not np.asarray(stds)[i] > 0 else np.asarray(stds)[i]
