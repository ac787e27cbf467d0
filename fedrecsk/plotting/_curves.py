"""Draw scores over settings, and losses over rounds, as curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    Display,
    TableDisplay,
    as_table,
    check_any,
    conditions,
    draw_level,
    legible,
    make_logarithmic,
    name_ticks,
    numbers,
    style,
    with_style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(kw_only=True, eq=False, repr=False)
class CurvesDisplay(Display):
    """Base class of displays with one line per method, and a band of one standard deviation."""

    curves: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]]

    def __post_init__(self):
        check_any(self.curves, self.score_name)

    def _draw(self, ax, curves=None, **kwargs):
        curves = self.curves if curves is None else curves
        self.lines_: list[Any] = []
        self.bands_: list[Any] = []
        taken = len(ax.lines)
        for name, (x, mean, std) in curves.items():
            look = style(taken + len(self.lines_)) | {"label": legible(name), "markersize": 6}
            if len(x) > 20:
                look["markevery"] = len(x) // 10
            (line,) = ax.plot(x, mean, **with_style(kwargs, **look))
            self.lines_.append(line)
            if np.any(np.asarray(std) > 0):
                low, high = np.subtract(mean, std), np.add(mean, std)
                band = ax.fill_between(x, low, high, alpha=0.2, color=line.get_color(), lw=0)
                self.bands_.append(band)


@dataclass(kw_only=True, eq=False, repr=False)
class SettingsDisplay(CurvesDisplay, TableDisplay):
    """Base class of displays with one line per method over the settings of a table."""

    @classmethod
    def _data(cls, points, *_):
        curves = {}
        for name, own in points.groupby("method", sort=False):
            if all(isinstance(place, Real) for place in own["x"]):
                own = own.sort_values("x", kind="stable")
            curves[name] = own["x"].tolist(), own["score"].to_numpy(), own["score_std"].to_numpy()
        return {"curves": curves}

    @classmethod
    def _prepare(cls, table, param_name, x):
        # Folds of one setting may differ a little in their epsilon.
        x = x or cls.x_name
        settings = [table["estimator"], table[param_name]]
        places = pd.Series(numbers(table, x)).groupby(settings, sort=False, dropna=False)
        return table.assign(**{x: places.transform("mean")}), x


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class RobustnessDisplay(SettingsDisplay):
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

    _read = staticmethod(conditions)
    _lists = True

    def __post_init__(self):
        super().__post_init__()
        if any(value in (np.inf, -np.inf) for x, _, _ in self.curves.values() for value in x):
            raise ValueError(f"{self.x_name!r} is infinite in some rows; leave them out.")

    @classmethod
    def _prepare(cls, table, param_name, x):
        if x is not None:
            return super()._prepare(table, param_name, x)
        x = param_name.split("__")[-1]
        return table.assign(**{x: table[param_name]}), x

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
class PrivacyDisplay(SettingsDisplay):
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
    draw by `x`, so that the axis says which it is. If the folds of a setting differ in it, give
    their rows its mean first, as `from_estimator` does.

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

    def __post_init__(self):
        super().__post_init__()
        if any(value <= 0 for x, _, _ in self.curves.values() for value in x):
            raise ValueError(f"{self.x_name!r} must be positive; the axis is logarithmic.")

    @staticmethod
    def _read(table, x):
        losses = numbers(table, x)
        check_any(losses[~np.isnan(losses)], x)
        return losses

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
    >>> display = ConvergenceDisplay.from_results(model)
    >>> display.lines_[0].get_xdata().tolist()
    [1, 2, 3, 4, 5]
    """

    x_name: str = "rounds"
    score_name: str = "loss"

    @classmethod
    @documented
    def from_results(
        cls,
        results: BaseEstimator | Comparison | Mapping[str, Any],
        *,
        score: str = "loss",
        x: Literal["rounds", "hours"] = "rounds",
        reference: float | Mapping[str, float] | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw histories of fits.

        Parameters
        ----------
        results : fitted model, Comparison or dict
            A federated model, or a Pipeline or search that ends in one; or a dict with by name
            one of these: a fitted model, a `history_` (list of dict), the numbers themselves, or a
            list of models or histories (of several folds, for example), whose mean is drawn with
            a band of one standard deviation. A comparison must be made with
            ``return_estimator=True``; its federated models are drawn.
        score : str, default="loss"
            Key of the rows of `history_`: "loss", or after early stopping "validation_loss" or
            "validation_score"; or the name of the numbers.
        x : {"rounds", "hours"}, default="rounds"
            What the axis shows: rounds, or the hours by the simulated clock, of which the mean over
            several fits counts. Only fits with ``Federation(devices=...)`` have hours.
        {drawing}

        {drawn}
        NotFittedError
            If a model is not fitted.
        TypeError
            If a model has no `history_`, because it is centralised, or the results have no names.
        """
        checked("from_results", {"x": [StrOptions({"rounds", "hours"})]}, x=x)
        if isinstance(results, Comparison):
            results = _federated_of(results)
        if hasattr(results, "fit"):
            results = {type(unwrap(results)[1]).__name__: results}
        if not isinstance(results, Mapping):
            raise TypeError(
                "results must be a fitted model, a Comparison or a dict by name, got "
                f"{type(results).__name__}."
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
        check_is_fitted(run)
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
