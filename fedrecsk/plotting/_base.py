"""What displays share: style, and the base classes of displays and of those of a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone

from fedrecsk._utils.docs import documented
from fedrecsk._utils.extras import require
from fedrecsk.data.frames import as_pandas
from fedrecsk.model_selection import Comparison, compare
from fedrecsk.model_selection._compare import _named, _scorers
from fedrecsk.model_selection._comparison import COSTS, HEADINGS, TIMES, is_error
from fedrecsk.model_selection._fold import scorers_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours for colour-blind readers, without the yellow.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# Of Tol's muted colours, for reference lines; different from those of the methods.
REFERENCE_COLOURS = ("#882255", "#117733", "#332288", "#999933")
DASHES = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LABELS = HEADINGS | {
    "mb": "MB that a client sends and receives",
    "mb_up": "MB that a client sends",
    "mb_down": "MB that a client receives",
    "mb_device_to_device": "MB that a client sends to other clients",
    "hours": "Hours by the simulated clock",
    "score_seconds": "Score time (s)",
    "epsilon": "Total privacy loss ε (left is more private)",
    "adversary": "Attack",
    "dropout": "Dropout rate",
    "loss": "Training loss",
    "validation_loss": "Validation loss",
    "validation_score": "Validation score",
    "novelty": "Novelty (bits)",
}
# Column of the value, where several values of a parameter share a label.
VARIANT = "variant"
# In inches: size of a new figure, least width for a legend beside the axes, width of a letter.
SIZE, WIDE, LETTER = (7.5, 4.5), 6.0, 0.08


def pyplot(caller, ax):
    """Import matplotlib.pyplot, and check `ax`."""
    plt = require("matplotlib.pyplot", caller)
    if not isinstance(ax, plt.Axes | None):
        raise TypeError(f"ax must be one matplotlib Axes or None, got {type(ax).__name__}.")
    return plt


def axes(caller, ax) -> tuple[Axes, bool]:
    """Return axes to draw in, and whether they are in a new figure."""
    plt = pyplot(caller, ax)
    if ax is not None:
        return ax, False
    size = plt.rcParams["figure.figsize"]
    if size == plt.rcParamsDefault["figure.figsize"]:
        size = SIZE
    return plt.subplots(figsize=size, layout="constrained")[1], True


def style(n):
    """Return colour and marker of the n-th method of the axes."""
    return {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n % len(MARKERS)]}


def with_style(kwargs, **style):
    """Return `style`, overridden by the caller's parameters or their short forms."""
    from matplotlib import cbook, lines

    return style | cbook.normalize_kwargs(kwargs, lines.Line2D)


def check_any(found, name):
    """Raise if there is nothing to draw."""
    if not len(found):
        raise ValueError(f"Nothing to draw: no row of the results has {name!r}.")


def check_reference(reference):
    """Return scores of reference lines by name, from a number, a dict or None."""
    if reference is None:
        return {}
    if isinstance(reference, Real):
        reference = {"reference": reference}
    if not isinstance(reference, Mapping):
        raise TypeError(
            "reference must be a number or a dict of names to numbers, got "
            f"{type(reference).__name__}."
        )
    for name, score in reference.items():
        if not isinstance(score, Real) or not math.isfinite(score):
            raise ValueError(f"reference {name!r} must be a finite number, got {score!r}.")
    return {str(name): float(score) for name, score in reference.items()}


def draw_level(ax, score, name, **style):
    """Draw a horizontal line behind everything else."""
    return ax.axhline(score, label=legible(name), zorder=1, **style)


def legible(name):
    """Escape a name: matplotlib reads $ as mathematics and hides names that begin with _."""
    name = str(name).replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name


def make_logarithmic(ax):
    """Make the x axis logarithmic, with as many short labels as there is room for."""
    from matplotlib import ticker

    ax.set_xscale("log")
    low, high = ax.get_xlim()
    decades = np.log10(high / low)
    if decades < 0.7:
        locator = ticker.MaxNLocator(nbins=4)
    else:
        subs = (1, 2, 5) if decades < 1.2 else (1, 3) if decades < 3 else (1,)
        locator = ticker.LogLocator(subs=subs)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(_short)
    ax.xaxis.set_minor_formatter(ticker.NullFormatter())


def _short(x, _):
    power = min(4, int(np.log10(x) // 3)) if x >= 1 else 0
    return f"{x / 1000**power:g}" + ("", "k", "M", "G", "T")[power]


def name_ticks(ax, names):
    """Name ticks at 0, 1, ..., slanted if neighbours would touch."""
    width = ax.bbox.width / ax.figure.dpi / len(names)
    needed = [LETTER * (len(a) + len(b) + 3) / 2 for a, b in pairwise(map(str, names))]
    slanted = {"rotation": 30, "rotation_mode": "anchor", "horizontalalignment": "right"}
    ax.set_xticks(range(len(names)), names, **slanted if max(needed, default=0) > width else {})
    ax.set_xlim(-0.5, len(names) - 0.5)


def _label(name):
    kind, at, k = name.removeprefix("mean_").partition("@")
    return LABELS.get(kind, kind) + at + k


def _place_legend(ax, own, handles, labels):
    """Place a small legend in axes that were given, and one outside the axes of a new figure."""
    if not own:
        size = "small" if ax.bbox.width / ax.figure.dpi > 4 else "x-small"
        ax.legend(handles, labels, fontsize=size, framealpha=0.5, markerscale=0.8)
        return
    inches = ax.figure.get_size_inches()

    def put(**place):
        legend = ax.legend(handles, labels, frameon=False, **place)
        return legend.get_window_extent().size / ax.figure.dpi / inches

    width, height = put(loc="upper left", bbox_to_anchor=(1, 1))
    if inches[0] >= WIDE and width < 1 / 3 and height < 1:
        return
    # Aligned right, so that a wide legend extends over the y labels, not beyond the figure.
    above = {"loc": "lower right", "bbox_to_anchor": (1, 1), "fontsize": "small"}
    for n_columns in range(min(6, len(labels)), 0, -1):
        width, height = put(ncols=n_columns, **above)
        if width < 0.97:
            break
    ax.figure.set_figheight(inches[1] * max(1, 3 * height))


@dataclass(kw_only=True, eq=False, repr=False)
class Display:
    """Base class of displays: what each draws around its own lines and points."""

    x_name: str
    score_name: str
    reference: float | Mapping[str, float] | None = None

    @documented
    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw the display.

        Parameters
        ----------
        {ax}
        **kwargs
            How to draw lines: parameters of matplotlib's `plot`; or points: of its `errorbar`.
            `CostDisplay` has `front_kw` too, a dict of how to draw the front.

        {drawn}
        """
        references = check_reference(self.reference)
        ax, own = axes(f"{type(self).__name__}.plot", ax)
        self._draw(ax, **kwargs)
        looks = zip(cycle(REFERENCE_COLOURS), cycle(DASHES), strict=False)
        self.references_ = [
            draw_level(ax, score, name, color=colour, linestyle=dashes, lw=1.5)
            for (name, score), (colour, dashes) in zip(references.items(), looks, strict=False)
        ]
        for note in getattr(self, "failed", ()):
            ax.plot([], [], "x", color="0.35", label=note)
        ax.set_xlabel(_label(self.x_name), wrap=True)
        ax.set_ylabel(_label(self.score_name))
        ax.grid(True, color="0.5", alpha=0.2, linewidth=0.8)
        ax.set_axisbelow(True)
        # matplotlib lists lines before error bars; put the methods first and the front last.
        entries = zip(*ax.get_legend_handles_labels(), strict=True)
        entries = sorted(entries, key=lambda entry: not hasattr(entry[0], "lines"))
        handles = [handle[0] if hasattr(handle, "lines") else handle for handle, _ in entries]
        _place_legend(ax, own, handles, [label for _, label in entries])
        self.ax_, self.figure_ = ax, ax.figure
        return self


# -------------------------------------------------------------------------------- tables


def as_table(results):
    """Return a comparison, a DataFrame or a list of dicts as a DataFrame."""
    table = as_pandas(results.per_fold if isinstance(results, Comparison) else results)
    if not isinstance(table, pd.DataFrame):
        rows = list(table) if isinstance(table, Iterable) else []
        table = pd.DataFrame(
            rows if all(isinstance(row, Mapping) for row in rows) else [], dtype=object
        )
    if table.empty:
        raise ValueError("results must be a Comparison, or a table with at least one row.")
    return table.reset_index(drop=True)


def errors_over_users(results, score, by):
    """Return the standard errors over users of a Comparison's scores by method, if it has them."""
    if (
        by != "estimator"
        or not isinstance(results, Comparison)
        or score not in results.per_user.columns
    ):
        return {}
    return {name: draws[1:].std() for name, draws in results._resampled(score).items()}


def is_greater_better(score, values):
    """Return whether larger scores are better, by the name and the values."""
    return score != "exposure" and not is_error(score, values)


def column(table, name):
    """Return a column, or megabytes both ways; the error for a missing one lists the others."""
    if name == "mb" and name not in table:
        direct = 2 * numbers(table, "mb_device_to_device") if "mb_device_to_device" in table else 0
        return numbers(table, "mb_up") + numbers(table, "mb_down") + direct
    if name not in table:
        it = "give the comparison itself; this" if f"mean_{name}" in table else "it"
        raise ValueError(f"results has no column {name!r}; {it} has {', '.join(map(str, table))}.")
    return table[name]


def numbers(table, name):
    """Return a column of numbers, NaN where a row has none."""
    values = column(table, name)
    for value in values:
        if not (pd.isna(value) or isinstance(value, Real)):
            raise ValueError(
                f"Column {name!r} holds {value!r}, which is not a number; convert the column, or "
                "name another."
            )
    return np.array([np.nan if pd.isna(value) else float(value) for value in values])


def scores_of(table, name):
    """Return a column of scores; raise where one is infinite."""
    values = numbers(table, name)
    if np.isinf(values).any():
        raise ValueError(
            f"{name!r} is infinite in row {int(np.isinf(values).argmax())}; did the fit diverge? "
            "Leave such rows out."
        )
    return values


def conditions(table, name):
    """Return a column of numbers and names; a DataFrame may turn None into NaN."""
    return [_condition(value) for value in column(table, name)]


def _condition(value):
    if value is None or value != value:
        return "none"
    return value if isinstance(value, Real) else str(value)


def failures(table, score, by):
    """Return notes about methods with rows that have an error in place of the score."""
    if "error" not in table:
        return []
    has_error = [isinstance(error, str) and error != "" for error in table["error"]]
    failed = table[score].isna() & np.array(has_error)
    return [
        f"{name}: {own.sum()} of {len(own)} failed"
        for name, own in failed.groupby(table[by], sort=False)
        if own.any()
    ]


def vary(estimator, X, y, param_name, param_range, scores, compare_params, reference, variants):
    """Compare the estimators with each value of a parameter.

    Return the table, with the value in a new column, and the reference scores by name. With
    `variants`, a list in a dict is several values with one label.
    """
    known, baselines = _scores_and_estimators(reference)
    several = isinstance(estimator, Mapping | list | tuple)
    models = _named(estimator if several else [estimator])
    params = dict(compare_params or {})
    params["scoring"] = _scoring(params.get("scoring"), scores, models, y)
    if isinstance(param_range, str) or not isinstance(param_range, Iterable):
        raise TypeError(f"param_range must be a list of values or a dict, got {param_range!r}.")
    if not isinstance(param_range, Mapping):
        param_range, variants = {_condition(value): value for value in param_range}, False
    values = {
        label: value if variants and isinstance(value, list) else [value]
        for label, value in param_range.items()
    }
    if not values or not all(values.values()):
        raise ValueError("param_range is empty, or has an empty list; give at least one value.")
    varied, settings = {}, {}
    for label, group in values.items():
        for i, value in enumerate(group):
            for name, model in models.items():
                full = f"{name} with {param_name}={label}" + f", {value}" * (i > 0)
                settings[full] = {"estimator": name, param_name: label, VARIANT: str(value)}
                varied[full] = clone(model).set_params(**{param_name: clone(value, safe=False)})
    table = as_table(compare(varied | baselines, X, y, **params))
    for name in baselines:
        own = table["estimator"] == name
        known[name] = float(np.mean(table.loc[own, scores[0]].to_numpy()))
        if np.isnan(known[name]):
            raise ValueError(
                f"reference {name!r} has no {scores[0]!r}; leave it out, or draw another score."
            )
    table = table[table["estimator"].isin(settings)].reset_index(drop=True)
    columns = pd.DataFrame([settings[name] for name in table["estimator"]], dtype=object)
    order = map(str, reference) if isinstance(reference, Mapping) else known
    return table.assign(**columns), {name: known[name] for name in order}


def _scores_and_estimators(reference):
    """Split a reference into scores and estimators, both by name."""
    if isinstance(reference, list | tuple) or hasattr(reference, "fit"):
        return {}, _named(reference if isinstance(reference, list | tuple) else [reference])
    if not isinstance(reference, Mapping):
        return check_reference(reference), {}
    estimators = {name: one for name, one in reference.items() if hasattr(one, "fit")}
    known = {name: one for name, one in reference.items() if name not in estimators}
    return check_reference(known), _named(estimators) if estimators else {}


def _scoring(given, wanted, models, y):
    """Return the wanted scorers; raise before anything is fitted if one does not apply."""
    known, scorers = _scorers(given, y), {}
    for name in wanted:
        if name not in [*TIMES, *COSTS]:
            scorers[name] = known[name] if name in [*known] else _scorers([name], y)[name]
            if not any(name in scorers_for(one, scorers) for one in models.values()):
                raise ValueError(f"{name!r} applies to rating models only, and there is none.")
    return scorers or given


@dataclass(kw_only=True, eq=False, repr=False)
class TableDisplay(Display):
    """Base class of displays of a table with a row for each fit.

    A subclass says what tells points apart, how to read the column of x, whether a list is several
    values of a parameter, and by `_data` and `_prepare` what it takes from points and fits.
    """

    failed: Sequence[str] = ()
    worst_: dict[tuple[str, Any], dict[str, Any]] = field(init=False, default_factory=dict)
    _point: ClassVar[list[str]] = ["method", "x"]
    _read: ClassVar[Callable[[pd.DataFrame, str], Any]] = staticmethod(numbers)
    _lists: ClassVar[bool] = False

    @classmethod
    @documented
    def from_results(
        cls,
        results: Comparison | ArrayLike | Sequence[Mapping[str, Any]],
        *,
        x: str | None = None,
        score: str = "ndcg@10",
        by: str = "estimator",
        over: str | Sequence[str] = (),
        greater_is_better: bool | None = None,
        reference: float | Mapping[str, float] | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw a comparison, or another table of scores.

        Parameters
        ----------
        results : Comparison, DataFrame or list of dict
            One row or more for each point, such as ``comparison.per_fold`` with a column for the
            condition. A point is the mean of a method's rows with the same x, or of all its rows in
            `CostDisplay`, with an error bar or a band of one standard deviation; in `CostDisplay`,
            for the score of a Comparison that has it by user, of one standard error over users.
            Rows without the score, such as those of failed fits, are left out.
        x : str, default=None
            Column of the horizontal axis: by default "mb" of `CostDisplay`, "dropout" of
            `RobustnessDisplay` and "epsilon" of `PrivacyDisplay`. "hours" is the simulated clock.
            If there is no column "mb", it is the sum of "mb_up", "mb_down" and, if there is one,
            twice "mb_device_to_device", which clients both send and receive.
        score, by : str, default="ndcg@10", "estimator"
            Columns of the score and the methods' names.
        over : str or list of str, default=()
            Columns of what an attacker chooses, such as its strength. Each point is the worst mean
            score over these columns. Fits that failed do not count, and are noted in the legend.
        {greater_is_better}
        {drawing}

        {drawn}
        """
        x, over = x or cls.x_name, [over] if isinstance(over, str) else list(over)
        table = as_table(results)
        places, scores = cls._read(table, x), scores_of(table, score)
        methods = list(map(str, column(table, by)))
        choices = list(zip(methods, *(conditions(table, name) for name in over), strict=True))
        rows = pd.DataFrame({"method": methods, "x": places, "score": scores})
        rows = rows.assign(choice=choices).dropna(subset="score")
        groups = rows.groupby([*cls._point, "choice"], sort=False)
        points = groups.mean().join(groups.std(ddof=0).add_suffix("_std")).reset_index()
        if greater_is_better is None:
            greater_is_better = is_greater_better(score, rows["score"])
        gain = points.assign(score=points["score"] * (1 if greater_is_better else -1))
        points = points.loc[gain.groupby(cls._point, sort=False)["score"].idxmin()]
        place = groups.ngroup().dropna()
        not_chosen = place.index[~place.isin(points.index)]
        display = cls(
            **cls._data(points, results, score, by, greater_is_better),
            x_name=x,
            score_name=score,
            failed=failures(table.drop(not_chosen), score, by),
            reference=reference,
        )
        if over:
            display.worst_ = {
                (point.method, point.x): dict(zip(over, point.choice[1:], strict=True))
                for point in points.itertuples()
            }
        return display.plot(ax, **kwargs)

    @classmethod
    @documented
    def from_estimator(
        cls,
        estimator: BaseEstimator | Sequence[BaseEstimator] | Mapping[str, BaseEstimator],
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        param_name: str,
        param_range: Iterable[Any] | Mapping[str, Any],
        x: str | None = None,
        score: str = "ndcg@10",
        reference: float | Mapping[str, Any] | Sequence[Any] | None = None,
        ax: Axes | None = None,
        compare_params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Cross-validate estimators with several values of a parameter, and draw the results.

        Parameters
        ----------
        estimator : estimator, list of estimators, or dict of str to estimator
        X : array-like or DataFrame of shape (n_samples, n_features >= 2)
            Column 0 is the user's id, column 1 the item's id.
        y : array-like of shape (n_samples,), default=None
            Rating or preference of each row.
        param_name : str
            Name of the parameter to vary, as in `set_params`: "federation__dropout",
            "federation__local_dp__scale".
        param_range : iterable, or dict of str to value
            Values of the parameter, or a dict of labels to values: ``{"none": None, "noise":
            RandomUpload()}`` for "federation__adversary". If a value of the dict is a list, such as
            ``[RandomUpload(strength=s) for s in (0.1, 1, 10)]``, `RobustnessDisplay` draws the
            worst of its values.
        x : str, default=None
            Column of the comparison for the horizontal axis: by default "mb" of `CostDisplay`,
            the parameter of `RobustnessDisplay`, and "epsilon" of `PrivacyDisplay`. Curves have its
            mean over the folds of a value.
        score : str, default="ndcg@10"
            Column of the comparison to draw; it is computed even if `scoring` does not have it.
        reference : float, dict of str to float or estimator, or list of estimators, default=None
            Baselines to draw as dashed horizontal lines: scores by name, or estimators, which are
            cross-validated on the same folds: ``{"paper": 0.87, "biases": BiasOnly()}``.
        {ax}
        compare_params : dict, default=None
            Further parameters of :func:`fedrecsk.model_selection.compare`: `cv`, `scoring`,
            `clients`, `n_jobs`...
        **kwargs : dict
            Passed to :meth:`from_results`, such as `greater_is_better`.

        {drawn}
        """
        pyplot(f"{cls.__name__}.from_estimator", ax)
        scores = [score] if x in (None, "mb") else [score, x]
        table, reference = vary(
            estimator, X, y, param_name, param_range, scores, compare_params, reference, cls._lists
        )
        table, x = cls._prepare(table, param_name, x)
        return cls.from_results(
            table, x=x, score=score, over=VARIANT, reference=reference, ax=ax, **kwargs
        )
