"""The result of a comparison of recommenders, as tables."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrecsk.metrics import (
    bytes_device_to_device_scorer,
    bytes_down_scorer,
    bytes_up_scorer,
    epsilon_scorer,
    rounds_scorer,
)
from fedrecsk.model_selection import _tables

if TYPE_CHECKING:
    from collections.abc import Sequence

ERRORS = ("rmse", "mae")
TIMES = ("fit_seconds", "score_seconds")
COSTS = {
    "mb_up": (bytes_up_scorer, 1e6),
    "mb_down": (bytes_down_scorer, 1e6),
    "mb_device_to_device": (bytes_device_to_device_scorer, 1e6),
    "rounds": (rounds_scorer, 1),
    "epsilon": (epsilon_scorer, 1),
}


class Comparison:
    """What :func:`compare` returns; shown as a table of means and standard deviations.

    Attributes
    ----------
    per_fold : DataFrame or list of dict
        One row per estimator and fold: `estimator` and `fold`; one column per score;
        `fit_seconds` and `score_seconds`; for federated models `mb_up` and `mb_down` (megabytes,
        1e6 bytes, that a client sent and received during fit, on average over clients),
        `mb_device_to_device` (sent directly to other clients; only if any were), `rounds` and
        `epsilon` (total privacy loss of the client that lost most, infinite without noise); and
        `error`, which is empty if all went well. NaN means that a number does not apply, or
        that its computation failed.
    summary : DataFrame or list of dict
        One row per estimator: `estimator`, `n_folds`, `n_failed` (folds with an error), and for
        each number ``mean_...`` and ``std_...`` over the folds that have it (the population's
        standard deviation, as in scikit-learn's searches).
    estimators : dict of str to list, or None
        The fitted estimators by name and fold, None for a failed fit. Only with
        ``return_estimator=True``.

    Notes
    -----
    Notebooks show a comparison as `to_html` gives it.
    """

    per_fold: Any
    summary: Any
    estimators: dict[str, list[Any]] | None

    def __init__(
        self,
        rows: list[dict[str, Any]],
        columns: Sequence[str],
        estimators: dict[str, list[Any]] | None = None,
    ) -> None:
        rows, columns = _without_unused(rows, columns)
        self._rows = rows
        self._columns = columns
        self._summary = _summary(rows, columns)
        self.per_fold = _frame(rows)
        self.summary = _frame(self._summary)
        self.estimators = estimators

    def to_html(self) -> str:
        """Write the table in HTML, with the best value of each column in bold.

        Returns
        -------
        html : str
            Without scripts and colours, for light and dark pages. A mean of fewer folds than
            the others is never in bold.

        Examples
        --------
        >>> from fedrecsk import BiasOnly, PMF
        >>> from fedrecsk.datasets import make_ratings
        >>> from fedrecsk.model_selection import compare
        >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=1000, random_state=0)
        >>> html = compare([PMF(random_state=0), BiasOnly()], X, y, cv=2, scoring="rmse").to_html()
        >>> html.count("<tr>"), "RMSE" in html
        (3, True)
        """
        return _tables.html(self._caption(), self._shown(), self._cells(), self._error_lines())

    def to_latex(self, *, caption: str | None = None, label: str | None = None) -> str:
        r"""Write the table in LaTeX (booktabs), with the best value of each column in bold.

        Parameters
        ----------
        caption : str, default=None
            Caption in LaTeX, which is not escaped. With a caption or a label the table is in a
            ``table`` environment; otherwise it is a ``tabular`` alone.
        label : str, default=None
            Label for ``\ref``.

        Returns
        -------
        latex : str
            It needs ``\usepackage{booktabs}``. Errors of failed folds are comments below the
            table. A mean of fewer folds than the others is never in bold.

        Examples
        --------
        >>> from fedrecsk import BiasOnly
        >>> from fedrecsk.model_selection import compare
        >>> X, y = [[u, i] for u in range(4) for i in range(4)], [1, 2, 3, 4] * 4
        >>> comparison = compare({"A_1": BiasOnly()}, X, y, cv=2, scoring="mae")
        >>> print(comparison.to_latex())
        \begin{tabular}{lrr}
        \toprule
         & MAE $\downarrow$ & Fit time (s) \\
        \midrule
        A\_1 & $0.973 \pm 0.000$ & $...$ \\
        \bottomrule
        \end{tabular}
        """
        return _tables.latex(self._shown(), self._cells(), self._error_lines(), caption, label)

    def _repr_html_(self) -> str:
        return self.to_html()

    def __repr__(self) -> str:
        shown = [name for name, _ in self._shown()]
        table = [["", *shown]]
        table += [[name, *(cell.plain for cell in cells)] for name, cells in self._cells()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
            for line in table
        ]
        lines = [self._caption(), *lines, *self._error_lines()]
        return "\n".join(line.rstrip() for line in lines)

    def _caption(self):
        n, n_folds = len(self._summary), self._summary[0]["n_folds"]
        folds = "1 fold" if n_folds == 1 else f"{n_folds} folds, mean ± standard deviation"
        return f"{n} recommender{'s' * (n > 1)} on {folds}"

    def _shown(self):
        """Columns that any estimator has, and whether smaller is better; None: not a score."""
        shown = []
        for name in self._columns:
            means = np.array([row[f"mean_{name}"] for row in self._summary])
            if name != "score_seconds" and not np.isnan(means).all():
                is_cost = name in TIMES or name in COSTS
                shown.append((name, None if is_cost else is_error(name, means)))
        return shown

    def _cells(self):
        """Each estimator's name and cells."""
        table = []
        for row in self._summary:
            own = [one for one in self._rows if one["estimator"] == row["estimator"]]
            cells = [_cell(row, name, [one[name] for one in own]) for name, _ in self._shown()]
            table.append((row["estimator"], cells))
        for place, (_, is_error) in enumerate(self._shown()):
            column = [cells[place] for _, cells in table]
            best = _tables.best(column, smaller=is_error is not False)
            for (_, cells), is_best in zip(table, best, strict=True):
                cells[place] = cells[place]._replace(best=is_best)
        return table

    def _error_lines(self):
        return error_lines((row["estimator"], row["fold"], row["error"]) for row in self._rows)


def is_error(name, values):
    """Whether a score is better where it is smaller, by its name.

    Values below 0 are negated errors, as scikit-learn's scorers return them: larger is better.
    """
    return name.removeprefix("mean_") in ERRORS and not (np.asarray(values, float) < 0).any()


def error_lines(errors):
    """A line for each estimator and error, from (name, fold, error)."""
    folds = {}
    for name, fold, error in errors:
        if error:
            folds.setdefault((name, error), []).append(str(fold))
    return [
        f"{name}, fold{'s' * (len(of) > 1)} {', '.join(of)}: {error}"
        for (name, error), of in folds.items()
    ]


def _without_unused(rows, columns):
    """Rows and columns without messages from device to device, if there are none."""
    unused = "mb_device_to_device"
    if any(row.get(unused, 0) > 0 for row in rows):
        return rows, columns
    rows = [{name: value for name, value in row.items() if name != unused} for row in rows]
    return rows, [name for name in columns if name != unused]


def _summary(rows, columns):
    summary = []
    for name in dict.fromkeys(row["estimator"] for row in rows):
        own = [row for row in rows if row["estimator"] == name]
        line = {
            "estimator": name,
            "n_folds": len(own),
            "n_failed": sum(bool(row["error"]) for row in own),
        }
        for column in columns:
            line[f"mean_{column}"], line[f"std_{column}"] = _mean_and_std(
                np.array([row[column] for row in own])
            )
        summary.append(line)
    return summary


def _mean_and_std(values):
    values = values[~np.isnan(values)]
    if len(values) == 0:
        return float("nan"), float("nan")
    if np.isfinite(values).all():
        return float(values.mean()), float(values.std())
    # Infinite epsilons: usually all of them are, and then they do not vary.
    return float(values.mean()), 0.0 if (values == values[0]).all() else float("nan")


def _frame(rows):
    if importlib.util.find_spec("pandas") is None:
        return rows
    import pandas as pd

    return pd.DataFrame(rows)


def _cell(row, column, values):
    mean, spread = row[f"mean_{column}"], row[f"std_{column}"]
    n_known = int((~np.isnan(values)).sum())
    if n_known == 0:
        return _tables.Cell("", "", "", float("nan"))
    if column not in COSTS:
        text, shown = f"{mean:.3f}", f"{spread:.3f}"
    else:
        # Costs span orders of magnitude, so significant digits are shown.
        text = f"{mean:.4g}" if mean < 1e4 else f"{mean:.0f}"
        shown = f"{spread:.1g}" if spread > 5e-4 * mean else ""
    all_known = n_known == len(values)
    return _tables.Cell(
        text,
        shown if n_known > 1 else "",
        "" if all_known else f"({n_known} of {len(values)})",
        mean if all_known else float("nan"),
    )
