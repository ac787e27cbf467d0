"""A score against the privacy loss epsilon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedrecsk.plotting._curves import CurvesDisplay
from fedrecsk.plotting._drawing import check_reference, legible, make_logarithmic, pyplot
from fedrecsk.plotting._results import as_rows, by_method, check_any, failures, numbers, vary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Self

    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike
    from sklearn.base import BaseEstimator

    from fedrecsk.model_selection import Comparison


class PrivacyDisplay(CurvesDisplay):
    """A score against the privacy loss epsilon, on a logarithmic axis.

    Each method is a line. A dashed horizontal line is the method without noise.

    Parameters
    ----------
    curves : dict of str to (epsilon, mean, std)
        For each method, arrays of shape (n_settings,): the privacy losses, and the mean and
        standard deviation of the score under each. An infinite epsilon means no noise.
    x_name, score_name : str, default="epsilon", "ndcg@10"
        Names of the privacy loss and the score, which label the axes.
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
    lines_ : list of matplotlib Line2D
        One per method with a finite epsilon.
    bands_ : list of matplotlib artists
        One per line with a standard deviation above 0.
    baselines_ : list of matplotlib Line2D
        One per method that has fits without noise.

    Notes
    -----
    The column "epsilon" of a comparison is the total privacy loss in `privacy_`, over all
    coordinates and uploads of the client with the largest loss. Papers often quote epsilon of one
    coordinate of one upload, which is smaller by orders of magnitude. Name the column that you
    draw by `x`, so that the axis says which it is.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from fedrecsk.plotting import PrivacyDisplay
    >>> results = [
    ...     {"estimator": "A", "epsilon": 1.0, "rmse": 1.1},
    ...     {"estimator": "A", "epsilon": 10.0, "rmse": 0.95},
    ...     {"estimator": "A", "epsilon": float("inf"), "rmse": 0.9},
    ... ]
    >>> display = PrivacyDisplay.from_results(results, score="rmse")
    >>> display.ax_.get_xscale(), len(display.lines_), len(display.baselines_)
    ('log', 1, 1)
    """

    def __init__(
        self,
        *,
        curves: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]],
        x_name: str = "epsilon",
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

    @classmethod
    def from_results(
        cls,
        results: Comparison | ArrayLike | Sequence[Mapping[str, Any]],
        *,
        x: str = "epsilon",
        score: str = "ndcg@10",
        by: str = "estimator",
        setting: str | None = None,
        reference: float | Mapping[str, float] | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw a table of scores under several privacy losses.

        Parameters
        ----------
        results : Comparison, DataFrame or list of dict
            One row or more per method and setting. Their mean is drawn with a band of one
            standard deviation. Rows without the score or an epsilon, such as those of centralised
            models, are left out.
        x, score, by : str, default="epsilon", "ndcg@10", "estimator"
            Columns of the privacy loss, the score and the method's name.
        setting : str, default=None
            Column of the varied parameter, such as the scale of the noise; rows are averaged by it.
            Folds of one setting may differ a little in their epsilon. None: `x`.
        reference : float or dict of str to float, default=None
            Scores of baselines by name, to draw as dashed horizontal lines:
            ``{"BiasOnly": 0.94}``.
        ax : matplotlib Axes, default=None
            Axes to draw in. None: those of a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : PrivacyDisplay

        Raises
        ------
        ImportError
            If matplotlib is missing.
        ValueError
            If there is no such column, no row has the score, a score is infinite, or an epsilon is
            not positive.
        """
        check_reference(reference)
        rows = as_rows(results)
        known = [row for row, loss in zip(rows, numbers(rows, x), strict=True) if loss == loss]
        if any(row[x] <= 0 for row in known):
            raise ValueError(f"{x!r} must be positive; the axis is logarithmic.")
        check_any(known, x)
        curves = by_method(known, setting=setting or x, x=x, score=score, by=by)
        failed = failures(rows, score, by)
        display = cls(curves=curves, x_name=x, score_name=score, failed=failed, reference=reference)
        return display.plot(ax, **kwargs)

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator | Sequence[BaseEstimator] | Mapping[str, BaseEstimator],
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        param_name: str = "federation__local_dp",
        param_range: Iterable[Any] | Mapping[str, Any],
        score: str = "ndcg@10",
        reference: float | Mapping[str, Any] | Sequence[Any] | None = None,
        ax: Axes | None = None,
        compare_params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Cross-validate federated models under several mechanisms, and draw the results.

        Parameters
        ----------
        estimator : estimator, list of estimators, or dict of str to estimator
        X : array-like or DataFrame of shape (n_samples, n_features >= 2)
        y : array-like of shape (n_samples,), default=None
        param_name : str, default="federation__local_dp"
            Name of the parameter to vary, as in `set_params`, such as
            "federation__local_dp__scale".
        param_range : iterable, or dict of str to value
            Values of the parameter, or a dict of labels to values; None means no noise.
        score : str, default="ndcg@10"
            Column of the comparison to draw; the score is computed even if `scoring` does not have
            it.
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
        display : PrivacyDisplay
        """
        pyplot("PrivacyDisplay.from_estimator", ax)
        rows, reference = vary(
            estimator, X, y, param_name, param_range, [score], compare_params, reference
        )
        return cls.from_results(
            rows, score=score, setting=param_name, reference=reference, ax=ax, **kwargs
        )

    def _draw(self, ax, kwargs):
        noisy, clear = {}, {}
        for name, (x, mean, std) in self.curves.items():
            x, mean, std = (np.asarray(part, dtype=float) for part in (x, mean, std))
            finite = np.isfinite(x)
            if finite.any():
                noisy[name] = x[finite], mean[finite], std[finite]
            if not finite.all():
                clear[name] = mean[~finite].mean()
        self._draw_lines(ax, noisy, kwargs)
        colours = {name: line.get_color() for name, line in zip(noisy, self.lines_, strict=True)}
        self.baselines_: list[Any] = []
        for name, score in clear.items():
            look = {"color": colours.get(name, "0.35"), "linestyle": "--", "linewidth": 1}
            line = ax.axhline(score, label=legible(f"{name}, no noise"), zorder=1, **look)
            self.baselines_.append(line)
        make_logarithmic(ax)
