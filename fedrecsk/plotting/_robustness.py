"""Robustness: a score under dropout and attacks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

from fedrecsk.plotting._curves import CurvesDisplay
from fedrecsk.plotting._drawing import check_reference, legible, name_ticks, pyplot, restyled, style
from fedrecsk.plotting._results import (
    VARIANT,
    as_rows,
    by_method,
    column,
    failures,
    vary,
    worst_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self

    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike
    from sklearn.base import BaseEstimator


class RobustnessDisplay(CurvesDisplay):
    """A score as conditions get worse: more dropout, stronger attacks.

    If the condition is a number, each method is a line. If it is a name, such as that of an attack,
    the methods are points side by side. What an attacker chooses, such as the strength of its
    attack, should not be assumed: give several strengths, and the worst score is drawn.

    Parameters
    ----------
    curves : dict of str to (x, mean, std)
        For each method, arrays of shape (n_conditions,): the conditions, and the mean and
        standard deviation of the score under each.
    x_name, score_name : str, default="dropout", "ndcg@10"
        Names of the condition and the score, which label the axes.
    failed : list of str, default=()
        Notes for the legend about fits that failed.
    reference : float or dict of str to float, default=None
        Scores of baselines by name, to draw as dashed horizontal lines.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    references_ : list of matplotlib Line2D
        One per reference score.
    lines_ : list of matplotlib Line2D or ErrorbarContainer
        One per method.
    bands_ : list of matplotlib artists
        One per line with a standard deviation above 0.
    worst_ : dict of (str, float or str) to dict
        For each method and condition, what the attacker has chosen, by column of `over`. Empty
        without `over`.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from fedrecsk.plotting import RobustnessDisplay
    >>> results = [
    ...     {"estimator": "A", "dropout": 0.0, "rmse": 0.90},
    ...     {"estimator": "A", "dropout": 0.5, "rmse": 1.00},
    ...     {"estimator": "A", "dropout": 0.5, "rmse": 1.50},
    ... ]
    >>> display = RobustnessDisplay.from_results(results, score="rmse")
    >>> display.lines_[0].get_ydata().tolist()
    [0.9, 1.25]

    The worst of several strengths:

    >>> results = [
    ...     {"estimator": "A", "attack": "noise", "strength": strength, "ndcg@10": score}
    ...     for strength, score in ((0.1, 0.4), (1.0, 0.2), (10.0, 0.3))
    ... ]
    >>> display = RobustnessDisplay.from_results(results, x="attack", over="strength")
    >>> display.worst_
    {('A', 'noise'): {'strength': 1.0}}
    """

    def __init__(
        self,
        *,
        curves: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]],
        x_name: str = "dropout",
        score_name: str = "ndcg@10",
        failed: Sequence[str] = (),
        reference: float | Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(
            curves=curves,
            x_name=x_name,
            score_name=score_name,
            failed=failed,
            reference=reference,
        )
        self.worst_: dict[tuple[str, float | str], dict[str, Any]] = {}

    @classmethod
    def from_results(
        cls,
        results: ArrayLike | Sequence[Mapping[str, Any]],
        *,
        x: str = "dropout",
        score: str = "ndcg@10",
        by: str = "estimator",
        over: str | Sequence[str] = (),
        worst: Literal["auto", "lowest", "highest"] = "auto",
        reference: float | Mapping[str, float] | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw a table of scores under several conditions.

        Parameters
        ----------
        results : DataFrame or list of dict
            One row or more per method and condition, such as ``comparison.per_fold`` with a column
            for the condition. Their mean is drawn with one standard deviation. Rows without the
            score are left out.
        x, score, by : str, default="dropout", "ndcg@10", "estimator"
            Columns of the condition, the score and the method's name.
        over : str or list of str, default=()
            Columns of what the attacker chooses, such as its strength. For each method and
            condition, the rows with the worst mean score over these columns are drawn. Fits that
            failed do not count, and are noted in the legend.
        worst : {"auto", "lowest", "highest"}, default="auto"
            Which score is the worst. "auto": the highest of "rmse", "mae" and "exposure", the
            lowest of others.
        reference : float or dict of str to float, default=None
            Scores of baselines by name, to draw as dashed horizontal lines:
            ``{"BiasOnly": 0.94}``.
        ax : matplotlib Axes, default=None
            Axes to draw in. None: those of a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : RobustnessDisplay

        Raises
        ------
        ImportError
            If matplotlib is missing.
        ValueError
            If there is no such column, a condition or score is infinite, no row has the score, or
            `worst` is unknown.
        """
        check_reference(reference)
        rows = as_rows(results)
        if any(isinstance(value, Real) and math.isinf(value) for value in column(rows, x)):
            raise ValueError(f"{x!r} is infinite in some rows; leave them out.")
        over, chosen = [over] if isinstance(over, str) else list(over), {}
        if over:
            rows, chosen = worst_rows(rows, x=x, score=score, by=by, over=over, worst=worst)
        curves = by_method(rows, setting=x, x=x, score=score, by=by)
        failed = failures(rows, score, by)
        display = cls(curves=curves, x_name=x, score_name=score, failed=failed, reference=reference)
        display.worst_ = chosen
        return display.plot(ax, **kwargs)

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator | Sequence[BaseEstimator] | Mapping[str, BaseEstimator],
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        param_name: str = "federation__dropout",
        param_range: Iterable[Any] | Mapping[str, Any] = (0.0, 0.25, 0.5, 0.75),
        score: str = "ndcg@10",
        worst: Literal["auto", "lowest", "highest"] = "auto",
        reference: float | Mapping[str, Any] | Sequence[Any] | None = None,
        ax: Axes | None = None,
        compare_params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Cross-validate federated models under several conditions, and draw the results.

        Parameters
        ----------
        estimator : estimator, list of estimators, or dict of str to estimator
        X : array-like or DataFrame of shape (n_samples, n_features >= 2)
        y : array-like of shape (n_samples,), default=None
        param_name : str, default="federation__dropout"
            Name of the parameter to vary, as in `set_params`.
        param_range : iterable or dict, default=(0.0, 0.25, 0.5, 0.75)
            Values of the parameter, or a dict of labels to values: ``{"none": None, "noise":
            RandomUpload()}`` for "federation__adversary". If a value of the dict is a list, such as
            ``[RandomUpload(strength=s) for s in (0.1, 1, 10)]``, the worst of its values is drawn.
        score : str, default="ndcg@10"
            Column of the comparison to draw; the score is computed even if `scoring` does not have
            it.
        worst : {"auto", "lowest", "highest"}, default="auto"
            Which score of a list of values is the worst, as in :meth:`from_results`. Choose
            "highest" for a scorer of your own that measures an attack's success.
        reference : float, dict of str to float or estimator, or list of estimators, default=None
            Baselines to draw as dashed horizontal lines: scores by name, or estimators, which are
            cross-validated on the same folds: ``{"paper": 0.87, "biases": BiasOnly()}``.
        ax : matplotlib Axes, default=None
            Axes to draw in. None: those of a new figure.
        compare_params : dict, default=None
            Further parameters of :func:`fedrecsk.model_selection.compare`: `cv`, `scoring`,
            `clients`, `n_jobs`...
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : RobustnessDisplay
        """
        pyplot("RobustnessDisplay.from_estimator", ax)
        rows, reference = vary(
            estimator,
            X,
            y,
            param_name,
            param_range,
            [score],
            compare_params,
            reference,
            variants=True,
        )
        x = param_name.split("__")[-1]
        rows = [{**row, x: row[param_name]} for row in rows]
        values = param_range.values() if isinstance(param_range, Mapping) else ()
        over = [VARIANT] if any(isinstance(value, list) for value in values) else []
        return cls.from_results(
            rows, x=x, score=score, over=over, worst=worst, reference=reference, ax=ax, **kwargs
        )

    def _draw(self, ax, kwargs):
        conditions = [value for x, _, _ in self.curves.values() for value in x]
        if all(isinstance(value, Real) for value in conditions):
            super()._draw(ax, kwargs)
        else:
            self._draw_side_by_side(ax, list(dict.fromkeys(conditions)), kwargs)

    def _draw_side_by_side(self, ax, conditions, kwargs):
        self.lines_: list[Any] = []
        self.bands_: list[Any] = []
        n_methods = len(self.curves)
        for i, (name, (x, mean, std)) in enumerate(self.curves.items()):
            look = {"label": legible(name), "linestyle": "none", "markersize": 7, "capsize": 3}
            look = restyled(kwargs, **style(i), **look, yerr=std)
            shift = (i - (n_methods - 1) / 2) * min(0.12, 0.7 / n_methods)
            places = [conditions.index(value) + shift for value in x]
            self.lines_.append(ax.errorbar(places, mean, **look))
        name_ticks(ax, conditions)
