"""Tables of means and standard deviations in HTML and LaTeX."""

from __future__ import annotations

import math
from typing import NamedTuple

from fedrecsk import _html

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
    "mb_up": "MB up",
    "mb_down": "MB down",
    "mb_device_to_device": "MB device to device",
    "rounds": "Rounds",
    "epsilon": "ε",
}
LATEX = {
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


class Cell(NamedTuple):
    """A mean as text, its spread and a note, if any, and its value, NaN if it cannot be best."""

    mean: str
    spread: str
    note: str
    value: float
    best: bool = False

    @property
    def plain(self):
        """All of it in one line."""
        spread = f" ± {self.spread}" if self.spread else ""
        return self.mean + spread + (f" {self.note}" if self.note else "")


def best(cells, *, smaller):
    """Whether each cell of a column is the best, as it is written; none if all are alike."""
    known = [cell for cell in cells if not math.isnan(cell.value)]
    if len({cell.mean for cell in known}) < 2:
        return [False] * len(cells)
    chosen = (min if smaller else max)(known, key=lambda cell: cell.value)
    return [not math.isnan(cell.value) and cell.mean == chosen.mean for cell in cells]


def html(caption, columns, rows, notes):
    """An HTML table of (column, whether it is an error) and (name, cells)."""
    head = ["", *(_heading(*column) for column in columns)]
    body = [[name, *(_in_html(cell) for cell in cells)] for name, cells in rows]
    return _html.table(caption, head, body, notes=notes)


def _in_html(cell):
    text = cell.plain.replace("inf", "∞")
    return _html.Bold(text) if cell.best else text


def latex(columns, rows, notes, caption, label):
    """The same as a tabular of booktabs, in a table if there is a caption or a label."""
    lines = [
        rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        " & ".join(["", *(escaped(_heading(*column)) for column in columns)]) + r" \\",
        r"\midrule",
        *(" & ".join([escaped(name), *map(_in_latex, cells)]) + r" \\" for name, cells in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if caption is not None or label is not None:
        lines = [r"\begin{table}", r"\centering", *lines]
        lines += [] if caption is None else [rf"\caption{{{caption}}}"]
        lines += [] if label is None else [rf"\label{{{label}}}"]
        lines.append(r"\end{table}")
    return "\n".join([*lines, *(f"% {note}" for note in notes)])


def _in_latex(cell):
    if not cell.mean:
        return ""
    mean = cell.mean.replace("inf", r"\infty")
    mean = rf"\mathbf{{{mean}}}" if cell.best else mean
    spread = rf" \pm {cell.spread}" if cell.spread else ""
    return f"${mean}{spread}$" + (f" {cell.note}" if cell.note else "")


def escaped(text: str) -> str:
    """Text as LaTeX shows it literally."""
    return "".join(LATEX.get(letter, letter) for letter in text)


def _heading(column, is_error):
    """The name of a column; of a score, with an arrow to where it is better."""
    kind, at, k = column.partition("@")
    arrow = "" if is_error is None else " ↓" if is_error else " ↑"
    return HEADINGS.get(kind, kind) + at + k + arrow
