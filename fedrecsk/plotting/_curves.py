"""Draw scores over settings, and losses over rounds, as curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from fedrecsk._utils.docs import documented
from fedrecsk._utils.parameters import checked
from fedrecsk._utils.sklearn_compat import StrOptions
from fedrecsk.metrics._held_out import unwrap
from fedrecsk.model_selection import Comparison
from fedrecsk.plotting._base import (
    VARIANT,
    CurvesDisplay,
    as_table,
    check_any,
    conditions,
    curves_by_method,
    draw_level,
    failures,
    legible,
    make_logarithmic,
    name_ticks,
    numbers,
    pyplot,
    style,
    vary,
    with_style,
    worst_rows,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@documented
@dataclass(kw_only=True, eq=False, repr=False)
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
    {failed}
    {reference}

    Attributes
    ----------
    {display attributes}
    {lines}
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

    x_name: str = "dropout"
    score_name: str = "ndcg@10"
    worst_: dict[tuple[str, float | str], dict[str, Any]] = field(init=False, default_factory=dict)

    @classmethod
    @documented
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
        {drawing}

        {drawn}
        """
        table = as_table(results)
        if any(value in (np.inf, -np.inf) for value in conditions(table, x)):
            raise ValueError(f"{x!r} is infinite in some rows; leave them out.")
        over, chosen = [over] if isinstance(over, str) else list(over), {}
        if over:
            table, chosen = worst_rows(table, x=x, score=score, by=by, over=over, worst=worst)
        curves = curves_by_method(table, setting=x, x=x, score=score, by=by)
        failed = failures(table, score, by)
        display = cls(curves=curves, x_name=x, score_name=score, failed=failed, reference=reference)
        display.worst_ = chosen
        return display.plot(ax, **kwargs)

    @classmethod
    @documented
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
        {data}
        param_name : str, default="federation__dropout"
            Name of the parameter to vary, as in `set_params`.
        param_range : iterable or dict, default=(0.0, 0.25, 0.5, 0.75)
            Values of the parameter, or a dict of labels to values: ``{"none": None, "noise":
            RandomUpload()}`` for "federation__adversary". If a value of the dict is a list, such as
            ``[RandomUpload(strength=s) for s in (0.1, 1, 10)]``, the worst of its values is drawn.
        {column score}
        worst : {"auto", "lowest", "highest"}, default="auto"
            Which score of a list of values is the worst, as in :meth:`from_results`. Choose
            "highest" for a scorer of your own that measures an attack's success.
        {comparing}

        {drawn}
        """
        pyplot("RobustnessDisplay.from_estimator", ax)
        models, what = estimator, ([score], compare_params, reference)
        table, reference = vary(models, X, y, param_name, param_range, *what, variants=True)
        x = param_name.split("__")[-1]
        table = table.assign(**{x: table[param_name]})
        values = param_range.values() if isinstance(param_range, Mapping) else ()
        over = [VARIANT] if any(isinstance(value, list) for value in values) else []
        return cls.from_results(
            table, x=x, score=score, over=over, worst=worst, reference=reference, ax=ax, **kwargs
        )

    def _draw(self, ax, **kwargs):
        conditions = [value for x, _, _ in self.curves.values() for value in x]
        if all(isinstance(value, Real) for value in conditions):
            super()._draw(ax, **kwargs)
            return
        conditions = list(dict.fromkeys(conditions))
        self.lines_: list[Any] = []
        self.bands_: list[Any] = []
        n_methods = len(self.curves)
        for i, (name, (x, mean, std)) in enumerate(self.curves.items()):
            look = {"label": legible(name), "linestyle": "none", "markersize": 7, "capsize": 3}
            look = with_style(kwargs, **style(i), **look, yerr=std)
            shift = (i - (n_methods - 1) / 2) * min(0.12, 0.7 / n_methods)
            places = [conditions.index(value) + shift for value in x]
            self.lines_.append(ax.errorbar(places, mean, **look))
        name_ticks(ax, conditions)


@documented
@dataclass(kw_only=True, eq=False, repr=False)
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
    {failed}
    {reference}

    Attributes
    ----------
    {display attributes}
    {lines}
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

    x_name: str = "epsilon"
    score_name: str = "ndcg@10"

    @classmethod
    @documented
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
            Folds of one setting may differ a little in their epsilon. If None, `x`.
        {drawing}

        {drawn}
        """
        table = as_table(results)
        losses = numbers(table, x)
        if (losses <= 0).any():
            raise ValueError(f"{x!r} must be positive; the axis is logarithmic.")
        known = table[~np.isnan(losses)]
        check_any(known, x)
        curves = curves_by_method(known, setting=setting or x, x=x, score=score, by=by)
        failed = failures(table, score, by)
        display = cls(curves=curves, x_name=x, score_name=score, failed=failed, reference=reference)
        return display.plot(ax, **kwargs)

    @classmethod
    @documented
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
        {data}
        param_name : str, default="federation__local_dp"
            Name of the parameter to vary, as in `set_params`, such as
            "federation__local_dp__scale".
        param_range : iterable, or dict of str to value
            Values of the parameter, or a dict of labels to values; None means no noise.
        {column score}
        {comparing}

        {drawn}
        """
        pyplot("PrivacyDisplay.from_estimator", ax)
        table, reference = vary(
            estimator, X, y, param_name, param_range, [score], compare_params, reference
        )
        return cls.from_results(
            table, score=score, setting=param_name, reference=reference, ax=ax, **kwargs
        )

    def _draw(self, ax, **kwargs):
        noisy, clear = {}, {}
        for name, (x, mean, std) in self.curves.items():
            x, mean, std = (np.asarray(part, dtype=float) for part in (x, mean, std))
            finite = np.isfinite(x)
            if finite.any():
                noisy[name] = x[finite], mean[finite], std[finite]
            if not finite.all():
                clear[name] = mean[~finite].mean()
        super()._draw(ax, noisy, **kwargs)
        colours = {name: line.get_color() for name, line in zip(noisy, self.lines_, strict=True)}
        self.baselines_: list[Any] = []
        for name, score in clear.items():
            look = {"color": colours.get(name, "0.35"), "linestyle": "--", "linewidth": 1}
            self.baselines_.append(draw_level(ax, score, f"{name}, no noise", **look))
        make_logarithmic(ax)


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class ConvergenceDisplay(CurvesDisplay):
    """Loss by round or by hour, or any other number that a method reports each round.

    Parameters
    ----------
    curves : dict of str to (x, mean, std)
        For each method, arrays of shape (n_rounds,): the rounds, counted from 1, or the hours until
        their ends, and the mean and standard deviation of the number after each.
    x_name : {"rounds", "hours"}, default="rounds"
        What the axis shows.
    score_name : str, default="loss"
        Name of the number, which labels the axis.
    {reference}

    Attributes
    ----------
    {display attributes}
    {lines}

    Notes
    -----
    Each method minimises its own objective. Compare the losses of a method over rounds, to see
    whether it has converged, but not the losses of different methods.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from fedrecsk import RFRec
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.plotting import ConvergenceDisplay
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=1000, random_state=0)
    >>> model = RFRec(n_rounds=5, random_state=0).fit(X, y)
    >>> display = ConvergenceDisplay.from_estimator(model)
    >>> display.lines_[0].get_xdata().tolist()
    [1, 2, 3, 4, 5]
    """

    x_name: str = "rounds"
    score_name: str = "loss"
    failed: Sequence[str] = field(init=False, default=())

    @classmethod
    @documented
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        *,
        score: str = "loss",
        x: Literal["rounds", "hours"] = "rounds",
        name: str | None = None,
        reference: float | Mapping[str, float] | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the history of a fitted federated model.

        Parameters
        ----------
        estimator : estimator
            A fitted federated model, or a Pipeline or search that ends in one.
        score : str, default="loss"
            Key of the rows of `history_`: "loss", or after early stopping "validation_loss" or
            "validation_score".
        x : {"rounds", "hours"}, default="rounds"
            What the axis shows. Only fits with ``Federation(devices=...)`` have hours.
        name : str, default=None
            Label of the line. If None, the name of the class.
        {drawing}

        {drawn}
        NotFittedError
            If the estimator is not fitted.
        TypeError
            If it has no `history_`, because it is centralised.
        """
        check_is_fitted(estimator)
        if name is None:
            name = type(unwrap(estimator)[1]).__name__
        return cls.from_results(
            {name: estimator}, score=score, x=x, reference=reference, ax=ax, **kwargs
        )

    @classmethod
    @documented
    def from_results(
        cls,
        results: Comparison | Mapping[str, Any],
        *,
        score: str = "loss",
        x: Literal["rounds", "hours"] = "rounds",
        reference: float | Mapping[str, float] | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw histories of several fits.

        Parameters
        ----------
        results : Comparison or dict
            By name, one of these: a fitted model, a `history_` (list of dict), the numbers
            themselves, or a list of models or histories (of several folds, for example), whose
            mean is drawn with a band of one standard deviation. A comparison must be made with
            ``return_estimator=True``; its federated models are drawn.
        score : str, default="loss"
            Key of the rows of `history_`, or the name of the numbers.
        x : {"rounds", "hours"}, default="rounds"
            What the axis shows: rounds, or the hours by the simulated clock, of which the mean over
            several fits counts. Only fits with ``Federation(devices=...)`` have hours.
        {drawing}

        {drawn}
        TypeError
            If a model has no `history_`, or the results are not a dict by name.
        """
        checked("from_results", {"x": [StrOptions({"rounds", "hours"})]}, x=x)
        if isinstance(results, Comparison):
            results = _federated_of(results)
        if not isinstance(results, Mapping):
            raise TypeError(
                f"results must be a Comparison or a dict by name, got {type(results).__name__}."
            )
        curves = {}
        for name, result in results.items():
            runs = [pd.Series(_by_round(name, run, score)) for run in _runs(name, result)]
            losses = pd.concat(runs, axis="columns").dropna(how="all")
            if len(losses):
                mean, std = losses.mean(axis="columns"), losses.std(axis="columns", ddof=0)
                places = losses.index.to_numpy() + 1
                if x == "hours":
                    runs = [pd.Series(_by_round(name, run, x)) for run in _runs(name, result)]
                    places = pd.concat(runs, axis="columns").mean(axis="columns")[losses.index]
                curves[str(name)] = np.asarray(places), mean.to_numpy(), std.to_numpy()
        check_any(curves, score)
        display = cls(curves=curves, x_name=x, score_name=score, reference=reference)
        return display.plot(ax, **kwargs)

    def _draw(self, ax, **kwargs):
        super()._draw(ax, **kwargs)
        if ax.get_xscale() == "linear" and self.x_name == "rounds":
            ax.locator_params(axis="x", integer=True)


def _federated_of(comparison):
    if comparison.estimators is None:
        raise ValueError(
            "The comparison kept no fitted estimators; compare with return_estimator=True."
        )
    table = as_table(comparison)
    federated = table[table["rounds"].notna()]
    return {
        str(name): [comparison.estimators[name][fold] for fold in own["fold"]]
        for name, own in federated.groupby("estimator", sort=False)
    }


def _runs(name, result):
    """Return a list of models, histories or arrays of numbers, from one or several."""
    if hasattr(result, "fit"):
        return [result]
    if isinstance(result, str) or not isinstance(result, Iterable):
        raise TypeError(
            f"{name!r} must be a fitted model, its history_, numbers by round, or a list of these, "
            f"got {result!r}."
        )
    result = list(result)
    return [result] if not result or isinstance(result[0], Mapping | Real) else result


def _by_round(name, run, score):
    if hasattr(run, "fit"):
        _, model = unwrap(run)
        if not hasattr(model, "history_"):
            raise TypeError(
                f"{name} has no history_: {type(model).__name__} does not learn in rounds."
            )
        run = model.history_
    run = list(run)
    if len(run) == 0:
        raise ValueError(f"{name} has no rounds to draw.")
    if not isinstance(run[0], Mapping):
        run = [{score: loss} for loss in run]
    losses = numbers(as_table(run), score)
    # An infinite loss leaves a gap, like an unknown one.
    losses[np.isinf(losses)] = np.nan
    return losses
