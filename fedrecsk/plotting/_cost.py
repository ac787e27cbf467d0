"""Accuracy against communication cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_consistent_length

from fedrecsk.model_selection._comparison import is_error
from fedrecsk.plotting._drawing import (
    DASHES,
    axes,
    check_reference,
    draw_reference,
    finish,
    legible,
    make_logarithmic,
    pyplot,
    restyled,
    style,
)
from fedrecsk.plotting._results import (
    as_rows,
    check_any,
    column,
    failures,
    numbers,
    scores_of,
    vary,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Self

    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike
    from sklearn.base import BaseEstimator

    from fedrecsk.model_selection import Comparison


class CostDisplay:
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
        Standard deviations, drawn as error bars. None: no bars.
    cost_name, score_name : str, default="mb", "score"
        Names of cost and score, which label the axes.
    greater_is_better : bool, default=None
        Whether a larger score is better. None: True, except for "rmse" and "mae" if they are not
        negative.
    failed : list of str, default=()
        Notes for the legend about fits that failed.
    reference : float or dict of str to float, default=None
        Scores of baselines by name, to draw as dashed horizontal lines.

    Attributes
    ----------
    pareto_ : list of str
        Methods on the Pareto front, the cheapest first.
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    references_ : list of matplotlib Line2D
        One per reference score.
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

    def __init__(
        self,
        *,
        names: Sequence[str],
        costs: ArrayLike,
        scores: ArrayLike,
        cost_stds: ArrayLike | None = None,
        score_stds: ArrayLike | None = None,
        cost_name: str = "mb",
        score_name: str = "score",
        greater_is_better: bool | None = None,
        failed: Sequence[str] = (),
        reference: float | Mapping[str, float] | None = None,
    ) -> None:
        self.names = names
        self.costs = costs
        self.scores = scores
        self.cost_stds = cost_stds
        self.score_stds = score_stds
        self.cost_name = cost_name
        self.score_name = score_name
        self.greater_is_better = greater_is_better
        self.failed = failed
        self.reference = reference

    @classmethod
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
            one standard deviation. Rows without the score, such as those of failed fits, are
            left out.
        score, cost : str, default="ndcg@10", "mb"
            Columns of score and cost. If there is no column "mb", it is the sum of "mb_up",
            "mb_down" and, if there is one, twice "mb_device_to_device", which clients both send
            and receive.
        by : str, default="estimator"
            Column of the methods' names.
        greater_is_better : bool, default=None
            Whether a larger score is better. None: True, except for "rmse" and "mae" if they are
            not negative.
        reference : float or dict of str to float, default=None
            Scores of baselines by name, to draw as dashed horizontal lines:
            ``{"BiasOnly": 0.94}``.
        ax : matplotlib Axes, default=None
            Axes to draw in. None: those of a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : CostDisplay

        Raises
        ------
        ImportError
            If matplotlib is missing.
        ValueError
            If there is no such column, a cost is infinite or negative, a score infinite, or no
            row has the score.
        """
        check_reference(reference)
        rows = as_rows(results)
        if cost == "mb" and "mb" not in rows[0]:
            sums = np.add(numbers(rows, "mb_up"), numbers(rows, "mb_down"))
            if "mb_device_to_device" in rows[0]:
                sums = sums + 2 * np.array(numbers(rows, "mb_device_to_device"))
            rows = [{**row, "mb": both} for row, both in zip(rows, sums.tolist(), strict=True)]
        methods = {}
        for name, value, paid in zip(
            column(rows, by), scores_of(rows, score), numbers(rows, cost), strict=True
        ):
            if not np.isnan(value):
                methods.setdefault(str(name), []).append((paid, value))
        all_paid = np.array([paid for pairs in methods.values() for paid, _ in pairs])
        if (all_paid < 0).any():
            raise ValueError(
                f"{cost!r} has negative values; cost scorers return those, so negate them."
            )
        if np.isinf(all_paid).any():
            raise ValueError(
                f"{cost!r} is infinite for some methods; draw epsilon by PrivacyDisplay."
            )
        check_any(methods, score)
        means = np.array([np.mean(pairs, axis=0) for pairs in methods.values()])
        stds = np.array([np.std(pairs, axis=0) for pairs in methods.values()])
        display = cls(
            names=list(methods),
            costs=means[:, 0],
            scores=means[:, 1],
            cost_stds=stds[:, 0],
            score_stds=stds[:, 1],
            cost_name=cost,
            score_name=score,
            greater_is_better=greater_is_better,
            failed=failures(rows, score, by),
            reference=reference,
        )
        return display.plot(ax, **kwargs)

    @classmethod
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
        X : array-like or DataFrame of shape (n_samples, n_features >= 2)
        y : array-like of shape (n_samples,), default=None
        param_name : str
            Name of the parameter to vary, as in `set_params`.
        param_range : iterable, or dict of str to value
            Values of the parameter, or a dict of labels to values.
        score, cost, greater_is_better, ax, **kwargs
            As in :meth:`from_results`.
        reference : float, dict of str to float or estimator, or list of estimators, default=None
            Baselines to draw as dashed horizontal lines: scores by name, or estimators, which are
            cross-validated on the same folds: ``{"paper": 0.87, "biases": BiasOnly()}``.
        compare_params : dict, default=None
            Further parameters of :func:`fedrecsk.model_selection.compare`: `cv`, `scoring`,
            `clients`, `n_jobs`...

        Returns
        -------
        display : CostDisplay
        """
        pyplot("CostDisplay.from_estimator", ax)
        scores = [score, "mb_up" if cost == "mb" else cost]
        results, reference = vary(
            [estimator], X, y, param_name, param_range, scores, compare_params, reference
        )
        rows = [{**row, param_name: f"{param_name}={row[param_name]}"} for row in results]
        return cls.from_results(
            rows,
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
        parts = self.names, self.costs, self.scores, self.cost_stds, self.score_stds
        check_consistent_length(*parts)
        costs, scores = np.asarray(self.costs, float), np.asarray(self.scores, float)
        losses = -scores if self._greater_is_better() else scores
        front = []
        for i in np.lexsort((losses, costs)):
            if np.isfinite(costs[i]) and (not front or losses[i] < losses[front[-1]]):
                front.append(i)
        return front

    def _greater_is_better(self):
        if self.greater_is_better is not None:
            return self.greater_is_better
        return not is_error(self.score_name, self.scores)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        front_kw: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw in. None: those of a new figure.
        front_kw : dict, default=None
            How to draw the front: parameters of matplotlib's `plot`.
        **kwargs
            How to draw the points: parameters of matplotlib's `errorbar`.

        Returns
        -------
        display : CostDisplay
            Itself.

        Raises
        ------
        ImportError
            If matplotlib is missing.
        """
        check_any(self.names, self.score_name)
        on_front = self._front()
        check_reference(self.reference)
        ax, own = axes("CostDisplay.plot", ax)
        costs, scores = np.asarray(self.costs, float), np.asarray(self.scores, float)
        self.points_: list[Any] = []
        self.baselines_: list[Any] = []
        taken = len(ax.containers)
        for i, name in enumerate(self.names):
            if np.isnan(costs[i]):
                dashes = DASHES[len(self.baselines_) % len(DASHES)]
                look = {"color": "0.5", "linestyle": dashes, "linewidth": 1.3, "zorder": 1}
                line = ax.axhline(scores[i], label=legible(f"{name} (centralised)"), **look)
                self.baselines_.append(line)
                continue
            look = style(taken + len(self.points_)) | {"linestyle": "none", "markersize": 8}
            look |= {"label": legible(name), "capsize": 3, "zorder": 3}
            look |= {"xerr": _bar(self.cost_stds, i), "yerr": _bar(self.score_stds, i)}
            point = ax.errorbar(costs[i], scores[i], **restyled(kwargs, **look))
            self.points_.append(point)
        draw_reference(self, ax)
        self.front_: Any = None
        if len(on_front) > 1:
            look = {"color": "0.6", "linewidth": 1.5, "zorder": 2, "drawstyle": "steps-post"}
            look = restyled(front_kw, label="Pareto front", **look)
            (self.front_,) = ax.plot(costs[on_front], scores[on_front], **look)
        positive = costs[np.isfinite(costs)]
        if len(positive) and positive.min() > 0 and positive.max() > 20 * positive.min():
            make_logarithmic(ax)
        return finish(self, ax, own, x_name=self.cost_name, score_name=self.score_name)


def _bar(stds, i):
    return None if stds is None or not np.asarray(stds)[i] > 0 else np.asarray(stds)[i]
