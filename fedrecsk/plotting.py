"""Displays in scikit-learn's style: what accuracy costs, convergence, robustness, privacy.

Each has `from_results`, which draws what is known already, `from_estimator`, and `plot`, which
draws again. matplotlib is imported when something is drawn, and not before; it comes with
``pip install 'fedrecsk[plot]'``.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from fedrecsk.metrics._recommender import unwrap
from fedrecsk.model_selection import Comparison, compare

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self

    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike
    from sklearn.base import BaseEstimator

__all__ = ["ConvergenceDisplay", "CostDisplay", "PrivacyDisplay", "RobustnessDisplay"]

# Okabe and Ito's colours, which the colour-blind can tell apart, without the yellow.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = (":", "--", "-.", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
ERRORS = ("rmse", "mae")
LABELS = {
    "mb": "MB that a client sends and receives",
    "mb_up": "MB that a client sends",
    "mb_down": "MB that a client receives",
    "fit_seconds": "Fit time (s)",
    "score_seconds": "Score time (s)",
    "rounds": "Rounds",
    "epsilon": "Total privacy loss ε (left is more private)",
    "adversary": "Attack",
    "dropout": "Dropout rate",
    "loss": "Training loss",
    "validation_loss": "Validation loss",
    "rmse": "RMSE",
    "mae": "MAE",
    "hit_rate": "Hit rate",
    "ndcg": "NDCG",
    "mrr": "MRR",
    "precision": "Precision",
    "recall": "Recall",
}


class CostDisplay:
    """Accuracy against what it costs to transmit, with the Pareto front.

    A point a method. The Pareto front joins the methods that are better than all that cost
    no more; what is not on it costs more than another that is at least as good. Methods that
    have no such cost, as those that are centralised, are horizontal lines.

    Parameters
    ----------
    names : list of str
        The methods.
    costs, scores : array-like of shape (n_methods,)
        NaN costs are those of methods that have none.
    cost_stds, score_stds : array-like of shape (n_methods,), default=None
        Spreads, for error bars. None: no bars.
    cost_name, score_name : str, default="mb", "score"
        Columns of a comparison, or any names; they label the axes.
    greater_is_better : bool, default=None
        Whether a larger score is better. None: unless it is "rmse" or "mae".

    Attributes
    ----------
    pareto_ : list of str
        Methods on the front, the cheapest first.
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    points_ : list of matplotlib ErrorbarContainer
        One a method with a cost.
    baselines_ : list of matplotlib Line2D
        One a method without.
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
    ) -> None:
        self.names = names
        self.costs = costs
        self.scores = scores
        self.cost_stds = cost_stds
        self.score_stds = score_stds
        self.cost_name = cost_name
        self.score_name = score_name
        self.greater_is_better = greater_is_better

    @classmethod
    def from_results(
        cls,
        results: Comparison | ArrayLike | Sequence[Mapping],
        *,
        score: str = "ndcg@10",
        cost: str = "mb",
        by: str = "estimator",
        greater_is_better: bool | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw a comparison.

        Parameters
        ----------
        results : Comparison, DataFrame or list of dict
            A row a method, or more, whose mean is drawn with error bars of one standard
            deviation. Rows without the score, as those of failed fits, are left out.
        score, cost : str, default="ndcg@10", "mb"
            Columns. A cost "mb" that is no column is the sum of "mb_up" and "mb_down".
        by : str, default="estimator"
            Column of the methods' names.
        greater_is_better : bool, default=None
            Whether a larger score is better. None: unless it is "rmse" or "mae".
        ax : matplotlib Axes, default=None
            Where to draw. None: a new figure.
        **kwargs
            To :meth:`plot`.

        Returns
        -------
        display : CostDisplay

        Raises
        ------
        ImportError
            If matplotlib is missing.
        ValueError
            If there is no such column, a cost is infinite, or no row has the score.
        """
        rows = _rows(results)
        if cost == "mb" and "mb" not in rows[0]:
            _column(rows, "mb_up"), _column(rows, "mb_down")
            rows = [{**row, "mb": row["mb_up"] + row["mb_down"]} for row in rows]
        methods = {}
        for name, value, paid in zip(
            _column(rows, by), _column(rows, score), _column(rows, cost), strict=True
        ):
            if not np.isnan(value):
                methods.setdefault(str(name), []).append((paid, value))
        if np.isinf([paid for pairs in methods.values() for paid, _ in pairs]).any():
            raise ValueError(
                f"{cost!r} is infinite for some; PrivacyDisplay draws that of epsilon."
            )
        _check_any(methods, score)
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
        param_range: Iterable | Mapping[str, Any],
        score: str = "ndcg@10",
        cost: str = "mb",
        greater_is_better: bool | None = None,
        ax: Axes | None = None,
        compare_params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Cross-validate an estimator for several values of a parameter, and draw.

        Parameters
        ----------
        estimator : estimator
        X : array-like or DataFrame of shape (n_samples, n_features >= 2)
        y : array-like of shape (n_samples,), default=None
        param_name : str
            The parameter that varies, as in `set_params`.
        param_range : iterable, or dict of str to value
            Its values, perhaps by the names to show.
        score, cost, greater_is_better, ax, **kwargs
            As in :meth:`from_results`.
        compare_params : dict, default=None
            Parameters of :func:`fedrecsk.model_selection.compare`: `cv`, `scoring`, `clients`,
            `n_jobs`...

        Returns
        -------
        display : CostDisplay
        """
        _pyplot("CostDisplay.from_estimator")
        results = _vary(estimator, X, y, param_name, param_range, compare_params)
        rows = [{**row, param_name: f"{param_name}={row[param_name]}"} for row in results]
        return cls.from_results(
            rows,
            score=score,
            cost=cost,
            by=param_name,
            greater_is_better=greater_is_better,
            ax=ax,
            **kwargs,
        )

    @property
    def pareto_(self):
        """Methods better than all that cost no more, the cheapest first; of equals the first."""
        return [self.names[i] for i in self._front()]

    def _front(self):
        costs, scores = np.asarray(self.costs, float), np.asarray(self.scores, float)
        losses = -scores if self._greater_is_better() else scores
        front = []
        for i in np.lexsort((losses, costs)):
            if np.isfinite(costs[i]) and (not front or losses[i] < losses[front[-1]]):
                front.append(i)
        return front

    def _greater_is_better(self):
        given = self.greater_is_better
        return self.score_name not in ERRORS if given is None else given

    def plot(
        self,
        ax: Axes | None = None,
        *,
        front_kw: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw. None: a new figure.
        front_kw : dict, default=None
            How the front is drawn, for matplotlib's `plot`.
        **kwargs
            How the points are drawn, for matplotlib's `errorbar`.

        Returns
        -------
        display : CostDisplay
            Itself.

        Raises
        ------
        ImportError
            If matplotlib is missing.
        """
        ax, own = _axes("CostDisplay.plot", ax)
        costs, scores = np.asarray(self.costs, float), np.asarray(self.scores, float)
        self.points_, self.baselines_ = [], []
        taken = len(ax.containers)
        for i, name in enumerate(self.names):
            if np.isnan(costs[i]):
                dashes = DASHES[len(self.baselines_) % len(DASHES)]
                self.baselines_.append(
                    ax.axhline(
                        scores[i],
                        label=f"{name} (centralised)",
                        color="0.35",
                        linestyle=dashes,
                        linewidth=1.3,
                        zorder=1,
                    )
                )
                continue
            bars = {"xerr": _bar(self.cost_stds, i), "yerr": _bar(self.score_stds, i)}
            style = _style(taken + len(self.points_))
            style |= {"linestyle": "none", "markersize": 8, "capsize": 3, "zorder": 3}
            point = ax.errorbar(costs[i], scores[i], label=name, **bars, **(style | kwargs))
            self.points_.append(point)
        self.front_ = None
        on_front = self._front()
        if len(on_front) > 1:
            style = {"color": "0.6", "linewidth": 1.5, "zorder": 2, "drawstyle": "steps-post"}
            (self.front_,) = ax.plot(
                costs[on_front],
                scores[on_front],
                label="Pareto front",
                **(style | dict(front_kw or {})),
            )
        _widen(ax, costs)
        ax.set(xlabel=_label(self.cost_name), ylabel=_label(self.score_name))
        return _finish(self, ax, own)


class _CurvesDisplay:
    """What displays of one curve a method share.

    Parameters
    ----------
    curves : dict of str to (x, mean, std)
        A method's arrays of shape (n_points,).
    x_name, score_name : str
    """

    def __init__(
        self,
        *,
        curves: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]],
        x_name: str,
        score_name: str,
    ) -> None:
        self.curves = curves
        self.x_name = x_name
        self.score_name = score_name

    def _draw(self, ax, curves, kwargs):
        self.lines_, self.bands_ = [], []
        taken = len(ax.lines)
        for name, (x, mean, std) in curves.items():
            style = {"markersize": 6} | _style(taken + len(self.lines_))
            if len(x) > 30:
                style["markevery"] = len(x) // 10
            (line,) = ax.plot(x, mean, label=name, **(style | kwargs))
            self.lines_.append(line)
            if np.any(np.asarray(std) > 0):
                low, high = np.subtract(mean, std), np.add(mean, std)
                band = ax.fill_between(x, low, high, alpha=0.2, color=line.get_color(), lw=0)
                self.bands_.append(band)


class ConvergenceDisplay(_CurvesDisplay):
    """Loss, or any other number, by round.

    Parameters
    ----------
    curves : dict of str to (x, mean, std)
        For each method the rounds, counted from 1, and the number after each with its spread;
        arrays of shape (n_rounds,).
    score_name : str, default="loss"
        What the number is; it labels the axis.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    lines_ : list of matplotlib Line2D
        One a method.
    bands_ : list of matplotlib artists
        One a method with a spread.

    Notes
    -----
    Methods minimise objectives of their own: their losses tell whether they have converged,
    and not which is better.

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

    def __init__(
        self,
        *,
        curves: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]],
        score_name: str = "loss",
    ) -> None:
        super().__init__(curves=curves, x_name="rounds", score_name=score_name)

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        *,
        score: str = "loss",
        name: str | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the history of a fitted federated model.

        Parameters
        ----------
        estimator : estimator
            Fitted; also inside a Pipeline or a search.
        score : str, default="loss"
            Key of the rows of `history_`: "loss", or "validation_loss" after early stopping.
        name : str, default=None
            Label. None: the name of the class.
        ax : matplotlib Axes, default=None
            Where to draw. None: a new figure.
        **kwargs
            To :meth:`plot`.

        Returns
        -------
        display : ConvergenceDisplay

        Raises
        ------
        ImportError
            If matplotlib is missing.
        NotFittedError
            If the estimator is not fitted.
        TypeError
            If it has no `history_`, as centralised models.
        ValueError
            If the history has no such key.
        """
        check_is_fitted(estimator)
        if name is None:
            name = type(unwrap(estimator)[1]).__name__
        return cls.from_results({name: estimator}, score=score, ax=ax, **kwargs)

    @classmethod
    def from_results(
        cls,
        results: Comparison | Mapping[str, Any],
        *,
        score: str = "loss",
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw histories of several fits.

        Parameters
        ----------
        results : Comparison or dict
            By name a fitted model, a `history_` (list of dict), the numbers themselves, or a
            list of models or histories (of folds, say), whose mean is drawn with a band of
            one standard deviation. Of a comparison made with ``return_estimator=True``, the
            federated models.
        score : str, default="loss"
            Key of the rows of `history_`; of plain numbers, what they are.
        ax : matplotlib Axes, default=None
            Where to draw. None: a new figure.
        **kwargs
            To :meth:`plot`.

        Returns
        -------
        display : ConvergenceDisplay

        Raises
        ------
        ImportError
            If matplotlib is missing.
        TypeError
            If a model has no `history_`.
        ValueError
            If a history has no such key, nothing is given, or the comparison kept no models.
        """
        if isinstance(results, Comparison):
            results = _federated_of(results)
        curves = {}
        for name, result in results.items():
            runs = [_by_round(name, run, score) for run in _runs(result)]
            by_round = np.full((len(runs), max(map(len, runs))), np.nan)
            for line, run in zip(by_round, runs, strict=True):
                line[: len(run)] = run
            known = ~np.isnan(by_round).all(axis=0)
            if known.any():
                rounds = np.flatnonzero(known)
                numbers = by_round[:, rounds]
                curves[str(name)] = (
                    rounds + 1,
                    np.nanmean(numbers, axis=0),
                    np.nanstd(numbers, axis=0),
                )
        _check_any(curves, score)
        return cls(curves=curves, score_name=score).plot(ax, **kwargs)

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw. None: a new figure.
        **kwargs
            How the lines are drawn, for matplotlib's `plot`.

        Returns
        -------
        display : ConvergenceDisplay
            Itself.

        Raises
        ------
        ImportError
            If matplotlib is missing.
        """
        ax, own = _axes("ConvergenceDisplay.plot", ax)
        self._draw(ax, self.curves, kwargs)
        if ax.get_xscale() == "linear":
            ax.locator_params(axis="x", integer=True)
        ax.set(xlabel="Rounds", ylabel=_label(self.score_name))
        return _finish(self, ax, own)


class RobustnessDisplay(_CurvesDisplay):
    """A score as the world gets worse: more dropout, stronger attacks.

    A line a method where the condition is a number; where it is a name (of an attack, say),
    points side by side.

    Parameters
    ----------
    curves : dict of str to (x, mean, std)
        For each method the conditions, and the score under each with its spread; arrays of
        shape (n_conditions,).
    x_name, score_name : str, default="dropout", "ndcg@10"
        What the condition and the score are; they label the axes.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    lines_ : list of matplotlib Line2D or ErrorbarContainer
        One a method.
    bands_ : list of matplotlib artists
        One a line with a spread.

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
    """

    def __init__(
        self,
        *,
        curves: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]],
        x_name: str = "dropout",
        score_name: str = "ndcg@10",
    ) -> None:
        super().__init__(curves=curves, x_name=x_name, score_name=score_name)

    @classmethod
    def from_results(
        cls,
        results: ArrayLike | Sequence[Mapping],
        *,
        x: str = "dropout",
        score: str = "ndcg@10",
        by: str = "estimator",
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw a table of scores under several conditions.

        Parameters
        ----------
        results : DataFrame or list of dict
            A row a method and condition, or more, whose mean is drawn with one standard
            deviation; ``comparison.per_fold`` with a column for the condition, say. Rows
            without the score are left out.
        x, score, by : str, default="dropout", "ndcg@10", "estimator"
            Columns of the condition, the score and the method's name.
        ax : matplotlib Axes, default=None
            Where to draw. None: a new figure.
        **kwargs
            To :meth:`plot`.

        Returns
        -------
        display : RobustnessDisplay

        Raises
        ------
        ImportError
            If matplotlib is missing.
        ValueError
            If there is no such column, or no row has the score.
        """
        curves = _curves(_rows(results), setting=x, x=x, score=score, by=by)
        return cls(curves=curves, x_name=x, score_name=score).plot(ax, **kwargs)

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator | Mapping[str, BaseEstimator],
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        param_name: str = "federation__dropout",
        param_range: Iterable | Mapping[str, Any] = (0.0, 0.25, 0.5, 0.75),
        score: str = "ndcg@10",
        ax: Axes | None = None,
        compare_params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Cross-validate federated models in several worlds, and draw.

        Parameters
        ----------
        estimator : estimator, or dict of str to estimator
        X : array-like or DataFrame of shape (n_samples, n_features >= 2)
        y : array-like of shape (n_samples,), default=None
        param_name : str, default="federation__dropout"
            The parameter that varies, as in `set_params`.
        param_range : iterable or dict, default=(0.0, 0.25, 0.5, 0.75)
            Its values; a dict gives names to show: ``{"nobody": None, "noise":
            RandomUpload()}`` of "federation__adversary".
        score : str, default="ndcg@10"
            Column of the comparison.
        ax : matplotlib Axes, default=None
            Where to draw. None: a new figure.
        compare_params : dict, default=None
            Parameters of :func:`fedrecsk.model_selection.compare`: `cv`, `scoring`, `clients`,
            `n_jobs`...
        **kwargs
            To :meth:`plot`.

        Returns
        -------
        display : RobustnessDisplay
        """
        _pyplot("RobustnessDisplay.from_estimator")
        rows = _vary(estimator, X, y, param_name, param_range, compare_params)
        x = param_name.split("__")[-1]
        rows = [{**row, x: row[param_name]} for row in rows]
        return cls.from_results(rows, x=x, score=score, ax=ax, **kwargs)

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw. None: a new figure.
        **kwargs
            How lines or points are drawn, for matplotlib's `plot` or `errorbar`.

        Returns
        -------
        display : RobustnessDisplay
            Itself.

        Raises
        ------
        ImportError
            If matplotlib is missing.
        """
        ax, own = _axes("RobustnessDisplay.plot", ax)
        conditions = [value for x, _, _ in self.curves.values() for value in x]
        if all(isinstance(value, Real) for value in conditions):
            self._draw(ax, self.curves, kwargs)
        else:
            self._draw_side_by_side(ax, list(dict.fromkeys(conditions)), kwargs)
        ax.set(xlabel=_label(self.x_name), ylabel=_label(self.score_name))
        return _finish(self, ax, own)

    def _draw_side_by_side(self, ax, conditions, kwargs):
        self.lines_, self.bands_ = [], []
        n_methods = len(self.curves)
        for i, (name, (x, mean, std)) in enumerate(self.curves.items()):
            style = _style(i) | {"linestyle": "none", "markersize": 7, "capsize": 3}
            shift = (i - (n_methods - 1) / 2) * min(0.12, 0.7 / n_methods)
            places = [conditions.index(value) + shift for value in x]
            self.lines_.append(ax.errorbar(places, mean, std, label=name, **(style | kwargs)))
        ax.set_xticks(range(len(conditions)), conditions)
        ax.set_xlim(-0.5, len(conditions) - 0.5)
        if sum(len(str(value)) for value in conditions) > 60:
            ax.tick_params(axis="x", labelrotation=30)


class PrivacyDisplay(_CurvesDisplay):
    """A score against the privacy loss epsilon, on a logarithmic axis.

    A line a method; a dashed horizontal line is the method without noise.

    Parameters
    ----------
    curves : dict of str to (epsilon, mean, std)
        For each method the privacy losses, and the score under each with its spread; arrays of
        shape (n_settings,). An infinite epsilon is a fit without noise.
    x_name, score_name : str, default="epsilon", "ndcg@10"
        What the privacy loss and the score are; they label the axes.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    lines_ : list of matplotlib Line2D
        One a method with a finite epsilon.
    bands_ : list of matplotlib artists
        One a line with a spread.
    baselines_ : list of matplotlib Line2D
        One a method without noise.

    Notes
    -----
    Comparisons have the total privacy loss of `privacy_`, over all coordinates and uploads of
    the client that lost most. Papers often quote that of one coordinate of one upload, which
    is smaller by orders of magnitude; say which, by `x` and its name.

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
    ) -> None:
        super().__init__(curves=curves, x_name=x_name, score_name=score_name)

    @classmethod
    def from_results(
        cls,
        results: Comparison | ArrayLike | Sequence[Mapping],
        *,
        x: str = "epsilon",
        score: str = "ndcg@10",
        by: str = "estimator",
        setting: str | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw a table of scores under several privacy losses.

        Parameters
        ----------
        results : Comparison, DataFrame or list of dict
            A row a method and setting, or more, whose mean is drawn with a band of one
            standard deviation. Rows without the score or an epsilon, as those of centralised
            models, are left out.
        x, score, by : str, default="epsilon", "ndcg@10", "estimator"
            Columns of the privacy loss, the score and the method's name.
        setting : str, default=None
            Column of what was set (the scale of the noise, say), by which rows are averaged.
            Folds of one setting may differ a little in their epsilon. None: `x`.
        ax : matplotlib Axes, default=None
            Where to draw. None: a new figure.
        **kwargs
            To :meth:`plot`.

        Returns
        -------
        display : PrivacyDisplay

        Raises
        ------
        ImportError
            If matplotlib is missing.
        ValueError
            If there is no such column, no row has the score, or an epsilon is not positive.
        """
        rows = _rows(results)
        rows = [row for row, loss in zip(rows, _column(rows, x), strict=True) if loss == loss]
        if any(row[x] <= 0 for row in rows):
            raise ValueError(f"{x!r} must be positive; the axis is logarithmic.")
        _check_any(rows, x)
        curves = _curves(rows, setting=setting or x, x=x, score=score, by=by)
        return cls(curves=curves, x_name=x, score_name=score).plot(ax, **kwargs)

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator | Mapping[str, BaseEstimator],
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        param_name: str = "federation__local_dp",
        param_range: Iterable | Mapping[str, Any],
        score: str = "ndcg@10",
        ax: Axes | None = None,
        compare_params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Cross-validate federated models under several mechanisms, and draw.

        Parameters
        ----------
        estimator : estimator, or dict of str to estimator
        X : array-like or DataFrame of shape (n_samples, n_features >= 2)
        y : array-like of shape (n_samples,), default=None
        param_name : str, default="federation__local_dp"
            The parameter that varies, as in `set_params`; "federation__local_dp__scale", say.
        param_range : iterable, or dict of str to value
            Its values; None is no noise.
        score : str, default="ndcg@10"
            Column of the comparison.
        ax : matplotlib Axes, default=None
            Where to draw. None: a new figure.
        compare_params : dict, default=None
            Parameters of :func:`fedrecsk.model_selection.compare`: `cv`, `scoring`, `clients`,
            `n_jobs`...
        **kwargs
            To :meth:`plot`.

        Returns
        -------
        display : PrivacyDisplay
        """
        _pyplot("PrivacyDisplay.from_estimator")
        rows = _vary(estimator, X, y, param_name, param_range, compare_params)
        return cls.from_results(rows, score=score, setting=param_name, ax=ax, **kwargs)

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw. None: a new figure.
        **kwargs
            How the lines are drawn, for matplotlib's `plot`.

        Returns
        -------
        display : PrivacyDisplay
            Itself.

        Raises
        ------
        ImportError
            If matplotlib is missing.
        """
        ax, own = _axes("PrivacyDisplay.plot", ax)
        noisy, clear = {}, {}
        for name, (x, mean, std) in self.curves.items():
            x, mean, std = (np.asarray(part, dtype=float) for part in (x, mean, std))
            finite = np.isfinite(x)
            if finite.any():
                noisy[name] = x[finite], mean[finite], std[finite]
            if not finite.all():
                clear[name] = mean[~finite].mean()
        self._draw(ax, noisy, kwargs)
        colours = {line.get_label(): line.get_color() for line in self.lines_}
        self.baselines_ = [
            ax.axhline(
                score,
                color=colours.get(name, "0.35"),
                linestyle="--",
                linewidth=1,
                zorder=1,
                label=f"{name}, no noise",
            )
            for name, score in clear.items()
        ]
        ax.set_xscale("log")
        ax.set(xlabel=_label(self.x_name), ylabel=_label(self.score_name))
        return _finish(self, ax, own)


# ------------------------------------------------------------------------------- results


def _rows(results):
    """Rows of a comparison, a DataFrame or a list of dicts, as dicts."""
    if isinstance(results, Comparison):
        results = results.per_fold
    if hasattr(results, "to_dict"):
        results = results.to_dict("records")
    rows = list(results)
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise ValueError("results must be a Comparison, or a table with at least one row.")
    return rows


def _column(rows, name):
    for row in rows:
        if name not in row:
            raise ValueError(f"results has no column {name!r}; it has {', '.join(map(str, row))}.")
    return [row[name] for row in rows]


def _check_any(found, name):
    if not found:
        raise ValueError(f"Nothing to draw: no row of the results has {name!r}.")


def _curves(rows, *, setting, x, score, by):
    """Mean and spread of the score by method and setting; conditions in order."""
    columns = (_column(rows, name) for name in (by, setting, x, score))
    points = {}
    for name, key, place, value in zip(*columns, strict=True):
        if not np.isnan(value):
            of_method = points.setdefault(str(name), {})
            of_method.setdefault(_condition(key), []).append((_condition(place), value))
    _check_any(points, score)
    curves = {}
    for name, settings in points.items():
        pairs = list(settings.values())
        if all(isinstance(place, Real) for group in pairs for place, _ in group):
            places = [float(np.mean([place for place, _ in group])) for group in pairs]
            order = np.argsort(places, kind="stable")
        else:
            places = [group[0][0] for group in pairs]
            order = range(len(places))
        scores = [[value for _, value in pairs[i]] for i in order]
        curves[name] = (
            [places[i] for i in order],
            np.array([np.mean(values) for values in scores]),
            np.array([np.std(values) for values in scores]),
        )
    return curves


def _condition(value):
    """A number, or a name; a DataFrame turns None into NaN."""
    if value is None or value != value:
        return "none"
    return value if isinstance(value, Real) else str(value)


def _vary(estimator, X, y, param_name, param_range, compare_params):
    """Rows of comparisons of the estimators for each value of a parameter, in a new column."""
    named = estimator if isinstance(estimator, Mapping) else {type(estimator).__name__: estimator}
    if isinstance(param_range, Mapping):
        values = dict(param_range)
    else:
        values = {_condition(value): value for value in param_range}
    settings, varied = {}, {}
    for label, value in values.items():
        for name, one in named.items():
            full = f"{name} with {param_name}={label}"
            settings[full] = {"estimator": name, param_name: label}
            varied[full] = clone(one).set_params(**{param_name: clone(value, safe=False)})
    comparison = compare(varied, X, y, **(compare_params or {}))
    return [{**row, **settings[row["estimator"]]} for row in _rows(comparison)]


def _federated_of(comparison):
    if comparison.estimators is None:
        raise ValueError(
            "The comparison kept no fitted estimators; compare with return_estimator=True."
        )
    runs = {}
    for row in _rows(comparison):
        if not np.isnan(row["rounds"]):
            fitted = comparison.estimators[row["estimator"]][row["fold"]]
            runs.setdefault(row["estimator"], []).append(fitted)
    return runs


def _runs(result):
    """A list of models, histories or arrays of numbers, from one or several."""
    if hasattr(result, "fit"):
        return [result]
    result = list(result)
    one = len(result) == 0 or isinstance(result[0], Mapping | Real)
    return [result] if one else result


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
    numbers = _column(run, score) if isinstance(run[0], Mapping) else run
    return np.asarray(numbers, dtype=float)


# ------------------------------------------------------------------------------- drawing


def _pyplot(caller):
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(f"{caller} needs matplotlib: pip install 'fedrecsk[plot]'.") from error
    return plt


def _axes(caller, ax):
    """The axes, and whether they are in a figure of our own."""
    plt = _pyplot(caller)
    if ax is not None:
        return ax, False
    _, ax = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
    return ax, True


def _style(n):
    """Colour and marker of the n-th method of the axes."""
    return {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n % len(MARKERS)]}


def _bar(stds, i):
    return None if stds is None or not np.asarray(stds)[i] > 0 else np.asarray(stds)[i]


def _widen(ax, costs):
    """Costs that span more than a factor of 20 go on a logarithmic axis."""
    positive = costs[np.isfinite(costs)]
    if len(positive) and positive.min() > 0 and positive.max() > 20 * positive.min():
        ax.set_xscale("log")


def _label(name):
    kind, at, k = name.partition("@")
    return LABELS.get(kind, kind) + at + k


def _finish(display, ax, own):
    """Grid and legend; beside the axes, where the figure is our own."""
    ax.grid(True, color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    where = {"loc": "upper left", "bbox_to_anchor": (1, 1)} if own else {"loc": "best"}
    # matplotlib lists lines before error bars; methods stay together, the front comes last.
    entries = zip(*ax.get_legend_handles_labels(), strict=True)
    entries = sorted(entries, key=lambda entry: not hasattr(entry[0], "lines"))
    handles = [handle[0] if hasattr(handle, "lines") else handle for handle, _ in entries]
    ax.legend(handles, [label for _, label in entries], frameon=not own, **where)
    display.ax_, display.figure_ = ax, ax.figure
    return display
