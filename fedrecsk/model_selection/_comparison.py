"""The result of a comparison of recommenders, as tables in text, HTML and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

from fedrecsk._utils import html
from fedrecsk._utils.constraints import AtLeast1
from fedrecsk._utils.parameters import checked, limits_of
from fedrecsk.data.frames import make_frame
from fedrecsk.metrics import (
    bytes_device_to_device_scorer,
    bytes_down_scorer,
    bytes_up_scorer,
    epsilon_scorer,
    hours_scorer,
    rounds_scorer,
)

ERRORS = {"rmse": root_mean_squared_error, "mae": mean_absolute_error}
# Errors are means of these powers over rows; other scores are means over users.
POWERS = {"rmse": 2, "mae": 1}
TIMES = ("fit_seconds", "score_seconds")
COSTS = {
    "mb_up": (bytes_up_scorer, 1e6),
    "mb_down": (bytes_down_scorer, 1e6),
    "mb_device_to_device": (bytes_device_to_device_scorer, 1e6),
    "rounds": (rounds_scorer, 1),
    "hours": (hours_scorer, 1),
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
    "hours": "Simulated hours",
    "epsilon": "ε",
}
LATEX = str.maketrans(
    {sign: rf"\{sign}" for sign in "{}$&#%_"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "ε": r"$\varepsilon$"}
    | {"↓": r"$\downarrow$", "↑": r"$\uparrow$"}
)


# The error of fits that had not ended.
INTERRUPTED = "interrupted"
# Below this share of the test rows, new users and items hardly change a score.
WORTH_SAYING = 0.01
N_RESAMPLES = 1000
LEVEL = (2.5, 97.5)  # percentiles of an interval
# Some terminals, such as those of Windows, cannot print the sign of almost equal.
ALIKE = "~: not distinguishable from the best (95% interval, paired bootstrap over users)"


class Comparison:
    """The result of :func:`compare`, shown as a table of means and standard deviations.

    Attributes
    ----------
    per_fold : DataFrame
        One row per estimator and fold: `estimator` and `fold`; one column per score;
        `fit_seconds` and `score_seconds`; for federated models `mb_up` and `mb_down` (megabytes,
        1e6 bytes, that a client sent and received during fit, on average over clients),
        `mb_device_to_device` (sent directly to other clients; only if any were), `rounds`,
        `hours` (by the simulated clock; only if a federation has `devices`) and `epsilon` (total
        privacy loss of the client that lost most, infinite without noise); and `error`, which is
        empty unless the fit or a score failed. NaN means that a number does not apply, or that its
        computation failed.
    summary : DataFrame
        One row per estimator: `estimator`, `n_folds`, `n_failed` (folds with an error, even if it
        is "interrupted"), and for each number ``mean_...`` and ``std_...`` over the folds that have
        it (the population's standard deviation, as in scikit-learn's searches).
    per_user : DataFrame
        One row per estimator, fold and user with test rows: `estimator`, `fold`, `user`,
        `n_rows` (the number, or total weight, of the user's test rows), and a column for each
        score that is a mean over users or rows: "rmse", "mae" and ranking scores other than
        coverage. NaN where a user has no such score. `against` compares estimators by it.
    unknown : dict of str to float
        Share of the test rows whose "users" or "items" have no training row, the mean over the
        folds. Printed below the table if it is 1% or more of either.
    estimators : dict of str to list, or None
        The fitted estimators by name and fold, None for a failed fit. Only with
        ``return_estimator=True``.
    is_partial : bool
        Whether an interrupt ended the comparison early. The `error` of unfinished fits is
        "interrupted".

    Notes
    -----
    DataFrames are of polars if X is one of polars, and of pandas otherwise. Notebooks show a
    comparison as `to_html` gives it.

    "~" marks what is not distinguishable from the best of its column: the 95% interval of the
    difference over users includes 0 (see `against`). Nothing is marked where users are unknown.
    """

    def __init__(
        self,
        rows: list[dict[str, Any]],
        columns: Sequence[str],
        unknown: Mapping[str, float],
        estimators: dict[str, list[Any]] | None = None,
        per_user: pd.DataFrame | None = None,
        library: str = "pandas",
    ) -> None:
        folds = pd.DataFrame(rows)
        for unused in ("mb_device_to_device", "hours"):
            if unused in folds and not (folds[unused] > 0).any():
                folds = folds.drop(columns=unused)
        self._table = folds
        self._columns = [name for name in columns if name in folds]
        self.unknown: dict[str, float] = dict(unknown)
        self.estimators: dict[str, list[Any]] | None = estimators
        self.is_partial: bool = bool((folds["error"] == INTERRUPTED).any())
        own = ["estimator", "fold", "user", "n_rows"]
        users = pd.DataFrame(columns=own) if per_user is None else per_user
        self._users = users[[*own, *(name for name in self._columns if name in users)]]
        self._library = library
        self.per_fold: pd.DataFrame = make_frame(folds.copy(), library)
        self.per_user: pd.DataFrame = make_frame(self._users, library)
        self.summary: pd.DataFrame = make_frame(_summary(folds, self._columns), library)
        self._draws: dict[Any, Any] = {}

    def against(
        self, baseline: str, *, n_resamples: AtLeast1 = 1000, random_state: int | None = 0
    ) -> pd.DataFrame:
        """Compare all estimators with one of them: is the difference more than luck?

        Users are drawn with replacement, the same ones for all estimators, with all their test rows
        (a paired bootstrap). The interval covers the sampling of users, not of training rows or
        `random_state`.

        Parameters
        ----------
        baseline : str
            Name of the estimator to compare with.
        n_resamples : int, default=1000
            Number of times that users are drawn.
        random_state : int or None, default=0
            Seeds the draws.

        Returns
        -------
        differences : DataFrame
            One row for each other estimator and score that both have for two users or more:
            `estimator`, `score`, `difference` (the estimator's score less the baseline's, over the
            users and folds that all estimators with the score have), `low` and `high` (its 95%
            interval), `p` (the two-sided p-value that the difference is 0, at least ``2 /
            (n_resamples + 1)``), and `better` (True or False if the interval leaves out 0,
            otherwise None).

        Raises
        ------
        ValueError
            If no estimator has this name, or `n_resamples` is not an integer of at least 1.

        Examples
        --------
        >>> from fedrecsk import BiasOnly, SVDpp
        >>> from fedrecsk.datasets import make_ratings
        >>> from fedrecsk.model_selection import compare
        >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=1000, random_state=0)
        >>> comparison = compare([SVDpp(random_state=0), BiasOnly()], X, y, cv=3, scoring="rmse")
        >>> comparison.against("BiasOnly").columns.tolist()
        ['estimator', 'score', 'difference', 'low', 'high', 'p', 'better']
        """
        if baseline not in self._names():
            raise ValueError(f"No estimator is called {baseline!r}; name one of {self._names()}.")
        limits = limits_of(Comparison.against)
        (n_resamples,) = checked("against", limits, n_resamples=n_resamples)
        columns = ["estimator", "score", "difference", "low", "high", "p", "better"]
        rows = self._differences(baseline, n_resamples, random_state)
        return make_frame(pd.DataFrame(rows, columns=columns), self._library)

    def _differences(self, baseline, n_resamples=N_RESAMPLES, random_state=0):
        """Return the rows of `against`."""
        rows = []
        for score in self._users.columns[4:]:
            found = self._resampled(score, n_resamples, random_state)
            for name in found:
                if name != baseline and baseline in found:
                    draws = found[name] - found[baseline]
                    rows.append({"estimator": name, "score": score} | _judge(draws, score))
        return rows

    def _resampled(self, score, n_resamples=N_RESAMPLES, random_state=0):
        """Return, by estimator, the score over all users and then over drawn ones."""
        key = score, n_resamples, random_state
        if key not in self._draws:
            power = POWERS.get(score, 1)
            table = self._users[["estimator", "fold", "user", "n_rows", score]].dropna()
            weights = table["n_rows"] if score in POWERS else 1.0
            table = table.assign(weight=weights, total=weights * table[score] ** power)
            wide = table.pivot(index=["user", "fold"], columns="estimator").dropna()
            wide = wide[["weight", "total"]].groupby("user").sum()
            names, n_users = [n for n in self._names() if n in wide["total"]], len(wide)
            numbers = np.column_stack([wide["weight"].iloc[:, :1], wide["total"][names]])
            generator, draws = np.random.default_rng(random_state), [numbers.sum(axis=0)]
            # One user drawn again and again would be no spread at all.
            for _ in range(n_resamples if n_users > 1 else 0):
                chosen = generator.integers(n_users, size=n_users)
                draws.append(np.bincount(chosen, minlength=n_users) @ numbers)
            draws = np.array(draws)
            means = (draws[:, 1:] / draws[:, :1]) ** (1 / power) if n_users > 1 else draws[:, 1:]
            self._draws[key] = dict(zip(names, means.T, strict=True)) if n_users > 1 else {}
        return self._draws[key]

    def _names(self):
        return self._table["estimator"].unique().tolist()

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
        rows = [["", *(_heading(*column).translate(LATEX) for column in columns)]]
        rows += [[name.translate(LATEX), *map(_in_latex, cells)] for name, cells in self._cells()]
        head, *body = (" & ".join(row) + r" \\" for row in rows)
        lines = [rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"\toprule", head, r"\midrule"]
        lines += [*body, r"\bottomrule", r"\end{tabular}"]
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
        left = (self._table["error"] == INTERRUPTED).sum()
        fits = f", interrupted after {len(self._table) - left} of {len(self._table)} fits"
        return f"{n} recommender{'s' * (n > 1)} on {folds}{fits * self.is_partial}"

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
            cells = _with_best(cells, smaller=is_error is not False)
            columns.append(self._with_mark(name, cells) if name in self._users else cells)
        return [(name, [column[i] for column in columns]) for i, name in enumerate(self._names())]

    def _with_mark(self, score, cells):
        """Mark the cells that are not distinguishable from the best of their column."""
        draws, names = self._resampled(score), self._names()
        best = next((n for n, cell in zip(names, cells, strict=True) if cell.best), None)
        if best not in draws:
            return cells
        return [
            cell._replace(alike=_judge(draws[name] - draws[best], score)["better"] is None)
            if name in draws and not cell.best
            else cell
            for name, cell in zip(names, cells, strict=True)
        ]

    def _notes(self):
        notes = [
            f"Of the test rows, {self.unknown['users']:.0%} have a user and "
            f"{self.unknown['items']:.0%} an item without training rows."
        ]
        notes *= max(self.unknown.values()) >= WORTH_SAYING
        if any(cell.alike for _, cells in self._cells() for cell in cells):
            notes.append(ALIKE)
        table = self._table
        errors = zip(table["estimator"], table["fold"], table["error"], strict=True)
        return notes + error_lines(errors)


def is_error(name, values):
    """Return whether smaller is better, by the name; scikit-learn's negated errors are below 0."""
    return name.removeprefix("mean_") in ERRORS and not (np.asarray(values, float) < 0).any()


def _judge(draws, score):
    """Return a difference, its interval, p and who is better, from it and its resamples."""
    difference, resampled = draws[0], draws[1:]
    low, high = np.percentile(resampled, LEVEL)
    fewer = min((resampled <= 0).sum(), (resampled >= 0).sum())
    better = None if low <= 0 <= high else bool((difference < 0) == is_error(score, [0.0]))
    p = min(1.0, 2 * (fewer + 1) / (len(resampled) + 1))
    return {"difference": difference, "low": low, "high": high, "p": p, "better": better}


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
    alike: bool = False

    @property
    def plain(self):
        """Return the cell in one line."""
        spread = f" ± {self.spread}" if self.spread else ""
        mark = " ~" if self.alike else ""
        return self.mean + spread + mark + (f" {self.note}" if self.note else "")


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


def _in_latex(cell):
    if not cell.mean:
        return ""
    mean = cell.mean.replace("inf", r"\infty")
    mean = rf"\mathbf{{{mean}}}" if cell.best else mean
    spread = rf" \pm {cell.spread}" if cell.spread else ""
    mark = r" \approx" if cell.alike else ""
    return f"${mean}{spread}{mark}$" + (f" {cell.note}" if cell.note else "")
