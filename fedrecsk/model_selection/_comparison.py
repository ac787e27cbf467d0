"""The result of a comparison of recommenders, as tables in text, HTML and LaTeX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

from fedrecsk._utils import html
from fedrecsk.metrics import (
    bytes_device_to_device_scorer,
    bytes_down_scorer,
    bytes_up_scorer,
    epsilon_scorer,
    rounds_scorer,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ERRORS = {"rmse": root_mean_squared_error, "mae": mean_absolute_error}
TIMES = ("fit_seconds", "score_seconds")
COSTS = {
    "mb_up": (bytes_up_scorer, 1e6),
    "mb_down": (bytes_down_scorer, 1e6),
    "mb_device_to_device": (bytes_device_to_device_scorer, 1e6),
    "rounds": (rounds_scorer, 1),
    "epsilon": (epsilon_scorer, 1),
}
HEADINGS = {
    "rmse": "RMSE",
    "mae": "MAE",
    "ndcg": "NDCG",
    "hit_rate": "Hit rate",
    "precision": "Precision",
    "recall": "Recall",
    "mrr": "MRR",
    "map": "MAP",
    "auc": "AUC",
    "coverage": "Coverage",
    "novelty": "Novelty",
    "diversity": "Diversity",
    "fit_seconds": "Fit time (s)",
    "mb_up": "MB up per client",
    "mb_down": "MB down per client",
    "mb_device_to_device": "MB device to device per client",
    "rounds": "Rounds",
    "epsilon": "ε",
}
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "&": r"\&",
        "#": r"\#",
        "%": r"\%",
        "_": r"\_",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "ε": r"$\varepsilon$",
        "↓": r"$\downarrow$",
        "↑": r"$\uparrow$",
    }
)


# Below this share of the test rows, new users and items hardly change a score.
WORTH_SAYING = 0.01


class Comparison:
    """What :func:`compare` returns; shown as a table of means and standard deviations.

    Attributes
    ----------
    per_fold : DataFrame
        One row per estimator and fold: `estimator` and `fold`; one column per score;
        `fit_seconds` and `score_seconds`; for federated models `mb_up` and `mb_down` (megabytes,
        1e6 bytes, that a client sent and received during fit, on average over clients),
        `mb_device_to_device` (sent directly to other clients; only if any were), `rounds` and
        `epsilon` (total privacy loss of the client that lost most, infinite without noise); and
        `error`, which is empty if all went well. NaN means that a number does not apply, or
        that its computation failed.
    summary : DataFrame
        One row per estimator: `estimator`, `n_folds`, `n_failed` (folds with an error), and for
        each number ``mean_...`` and ``std_...`` over the folds that have it (the population's
        standard deviation, as in scikit-learn's searches).
    unknown : dict of str to float
        Share of the test rows whose "users" or "items" have no training row, the mean over the
        folds. Printed below the table if it is 1 % or more of either.
    estimators : dict of str to list, or None
        The fitted estimators by name and fold, None for a failed fit. Only with
        ``return_estimator=True``.

    Notes
    -----
    Notebooks show a comparison as `to_html` gives it.
    """

    per_fold: pd.DataFrame
    summary: pd.DataFrame
    unknown: dict[str, float]
    estimators: dict[str, list[Any]] | None

    def __init__(
        self,
        rows: list[dict[str, Any]],
        columns: Sequence[str],
        unknown: Mapping[str, float],
        estimators: dict[str, list[Any]] | None = None,
    ) -> None:
        table = pd.DataFrame(rows)
        unused = "mb_device_to_device"
        if unused in table and not (table[unused] > 0).any():
            table = table.drop(columns=unused)
        self._table = table
        self._columns = [name for name in columns if name in table]
        self.per_fold = table.copy()
        self.summary = _summary(table, self._columns)
        self.unknown = dict(unknown)
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
        head = ["", *(_heading(*column) for column in self._shown())]
        body = [[name, *map(_in_html, cells)] for name, cells in self._cells()]
        return html.table(self._caption(), head, body, notes=self._notes())

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
        columns = self._shown()
        lines = [
            rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
            r"\toprule",
            _latex_row(["", *(_heading(*column).translate(LATEX) for column in columns)]),
            r"\midrule",
            *(
                _latex_row([name.translate(LATEX), *map(_in_latex, cells)])
                for name, cells in self._cells()
            ),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        if caption is not None or label is not None:
            lines = [r"\begin{table}", r"\centering", *lines]
            lines += [] if caption is None else [rf"\caption{{{caption}}}"]
            lines += [] if label is None else [rf"\label{{{label}}}"]
            lines.append(r"\end{table}")
        return "\n".join([*lines, *(f"% {note}" for note in self._notes())])

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
        lines = [self._caption(), *lines, *self._notes()]
        return "\n".join(line.rstrip() for line in lines)

    def _caption(self):
        n, n_folds = self._table["estimator"].nunique(), self._table["fold"].nunique()
        folds = "1 fold" if n_folds == 1 else f"{n_folds} folds, mean ± standard deviation"
        return f"{n} recommender{'s' * (n > 1)} on {folds}"

    def _shown(self):
        """Return columns that any estimator has, and whether smaller is better (None: a cost)."""
        return [
            (name, None if name in TIMES or name in COSTS else is_error(name, self._table[name]))
            for name in self._columns
            if name != "score_seconds" and self._table[name].notna().any()
        ]

    def _cells(self):
        """Return pairs of each estimator's name and its cells."""
        by_estimator = self._table.groupby("estimator", sort=False)
        columns = []
        for name, is_error in self._shown():
            cells = [_cell(values.to_numpy(), name) for _, values in by_estimator[name]]
            columns.append(_with_best(cells, smaller=is_error is not False))
        names = self._table["estimator"].unique()
        return [(name, [column[i] for column in columns]) for i, name in enumerate(names)]

    def _notes(self):
        notes = [
            f"Of the test rows, {self.unknown['users']:.0%} have a user and "
            f"{self.unknown['items']:.0%} an item without training rows."
        ]
        table = self._table
        errors = zip(table["estimator"], table["fold"], table["error"], strict=True)
        return notes * (max(self.unknown.values()) >= WORTH_SAYING) + error_lines(errors)


def is_error(name, values):
    """Return whether smaller is better, by the name; scikit-learn's negated errors are below 0."""
    return name.removeprefix("mean_") in ERRORS and not (np.asarray(values, float) < 0).any()


def error_lines(errors):
    """Return a line for each estimator and error, from (name, fold, error)."""
    folds = {}
    for name, fold, error in errors:
        if error:
            folds.setdefault((name, error), []).append(str(fold))
    return [
        f"{name}, fold{'s' * (len(of) > 1)} {', '.join(of)}: {error}"
        for (name, error), of in folds.items()
    ]


def _summary(table, columns):
    summary = []
    for name, own in table.groupby("estimator", sort=False):
        failed = int((own["error"] != "").sum())
        line = {"estimator": name, "n_folds": len(own), "n_failed": failed}
        for column in columns:
            line[f"mean_{column}"], line[f"std_{column}"] = _mean_and_std(own[column].to_numpy())
        summary.append(line)
    return pd.DataFrame(summary)


def _mean_and_std(values):
    values = values[~np.isnan(values)]
    if len(values) == 0:
        return float("nan"), float("nan")
    if np.isfinite(values).all():
        return float(values.mean()), float(values.std())
    # Infinite epsilons: usually all of them are, and then they do not vary.
    return float(values.mean()), 0.0 if (values == values[0]).all() else float("nan")


class Cell(NamedTuple):
    """A mean as text, its spread and a note, and its value, NaN if it cannot be the best."""

    mean: str
    spread: str
    note: str
    value: float
    best: bool = False

    @property
    def plain(self):
        """Return the cell in one line."""
        spread = f" ± {self.spread}" if self.spread else ""
        return self.mean + spread + (f" {self.note}" if self.note else "")


def _cell(values, column):
    mean, spread = _mean_and_std(values)
    n_known = int((~np.isnan(values)).sum())
    if n_known == 0:
        return Cell("", "", "", float("nan"))
    if column not in COSTS:
        text, shown = f"{mean:.3f}", f"{spread:.3f}"
    else:
        # Costs span orders of magnitude, so significant digits are shown.
        text = f"{mean:.4g}" if mean < 1e4 else f"{mean:.0f}"
        shown = f"{spread:.1g}" if spread > 5e-4 * mean else ""
    note = "" if n_known == len(values) else f"({n_known} of {len(values)})"
    return Cell(text, shown if n_known > 1 else "", note, float("nan") if note else mean)


def _with_best(cells, *, smaller):
    """Mark the best cells of a column, as they are written; none if all are alike."""
    known = [cell for cell in cells if not np.isnan(cell.value)]
    if len({cell.mean for cell in known}) < 2:
        return cells
    best = (min if smaller else max)(known, key=lambda cell: cell.value).mean
    return [cell._replace(best=not np.isnan(cell.value) and cell.mean == best) for cell in cells]


def _heading(column, is_error):
    """Return the name of a column; of a score, with an arrow to where it is better."""
    kind, at, k = column.partition("@")
    arrow = "" if is_error is None else " ↓" if is_error else " ↑"
    return HEADINGS.get(kind, kind) + at + k + arrow


def _in_html(cell):
    text = cell.plain.replace("inf", "∞")
    return html.Bold(text) if cell.best else text


def _latex_row(cells):
    return " & ".join(cells) + r" \\"


def _in_latex(cell):
    if not cell.mean:
        return ""
    mean = cell.mean.replace("inf", r"\infty")
    mean = rf"\mathbf{{{mean}}}" if cell.best else mean
    spread = rf" \pm {cell.spread}" if cell.spread else ""
    return f"${mean}{spread}$" + (f" {cell.note}" if cell.note else "")
