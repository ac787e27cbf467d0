"""Tables in HTML and LaTeX: of comparisons, of the ledger, of the privacy report."""

from html.parser import HTMLParser

import numpy as np
import pytest

from fedrecsk import BiasOnly
from fedrecsk.model_selection import Comparison, compare
from fedrecsk.privacy.report import PrivacyReport
from fedrecsk.protocol import Ledger

VOID = {"br", "hr", "img"}


class Table(HTMLParser):
    """Cells of the rows, those in bold marked by a star; fails if tags do not match."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.open, self.tags, self.notes = [], [], set(), []
        self.feed(html)
        self.close()
        assert self.open == []
        assert not self.tags & {"script", "link", "iframe"}

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        assert not [name for name, _ in attributes if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data + "*" * ("strong" in self.open)
        elif data.strip():
            self.notes.append(data)


def comparison():
    """Three estimators on two folds; one fold failed, and one name wants escaping."""
    nan, inf = float("nan"), float("inf")
    values = {
        "RF_Rec <1> & 50%": [(0.9, 0.1, 12000.0, inf), (0.92, 0.3, 12000.0, inf)],
        "good": [(0.8, 0.2, 3.5, 2.0), (0.8, 0.2, 3.5, 2.0)],
        "$half$": [(0.1, 0.9, nan, nan), (nan, nan, nan, nan)],
    }
    names = ["rmse", "ndcg@10", "mb_up", "epsilon"]
    rows = [
        {
            "estimator": name,
            "fold": fold,
            **dict(zip(names, row, strict=True)),
            "error": "boom <b>\\alpha" if np.isnan(row[0]) else "",
        }
        for name, folds in values.items()
        for fold, row in enumerate(folds)
    ]
    return Comparison(rows, names, {"users": 0.0, "items": 0.0})


def test_a_comparison_in_html():
    table = Table(comparison().to_html())
    assert table.rows == [
        ["", "RMSE ↓", "NDCG@10 ↑", "MB up per client", "ε"],
        ["RF_Rec <1> & 50%", "0.910 ± 0.010", "0.200 ± 0.100", "12000", "∞"],
        ["good", "0.800 ± 0.000*", "0.200 ± 0.000", "3.5*", "2*"],
        ["$half$", "0.100 (1 of 2)", "0.900 (1 of 2)", "", ""],
    ]
    assert table.notes == [
        "3 recommenders on 2 folds, mean ± standard deviation",
        "$half$, fold 1: boom <b>\\alpha",
    ]
    assert comparison()._repr_html_() == comparison().to_html()


def test_a_comparison_in_latex():
    latex = comparison().to_latex(caption="Ours & theirs", label="tab:x")
    assert latex.splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r" & RMSE $\downarrow$ & NDCG@10 $\uparrow$ & MB up per client & $\varepsilon$ \\",
        r"\midrule",
        r"RF\_Rec \textless{}1\textgreater{} \& 50\% & $0.910 \pm 0.010$ & "
        r"$0.200 \pm 0.100$ & $12000$ & $\infty$ \\",
        r"good & $\mathbf{0.800} \pm 0.000$ & $0.200 \pm 0.000$ & $\mathbf{3.5}$ & "
        r"$\mathbf{2}$ \\",
        r"\$half\$ & $0.100$ (1 of 2) & $0.900$ (1 of 2) &  &  \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\caption{Ours & theirs}",
        r"\label{tab:x}",
        r"\end{table}",
        r"% $half$, fold 1: boom <b>\alpha",
    ]
    assert comparison().to_latex().startswith(r"\begin{tabular}")


def test_the_best_value_of_a_scorer_is_the_largest_and_equal_ones_are_not_in_bold(toy):
    """An error with a minus, as scikit-learn gives it, is largest where it is best."""
    X, _ = toy
    models = {"shrunken": BiasOnly(reg_item=1e9, reg_user=1e9), "biases": BiasOnly()}
    alike = compare({"A": BiasOnly(), "B": BiasOnly()}, *toy, cv=2, scoring="rmse")
    assert "*" not in "".join(row[1] for row in Table(alike.to_html()).rows)
    given = {"rmse": "neg_root_mean_squared_error"}
    with_minus = compare(models, X, 10 * X[:, 1], cv=2, scoring=given)
    plain = compare(models, X, 10 * X[:, 1], cv=2, scoring="rmse")
    for result, arrow in ((with_minus, "↑"), (plain, "↓")):
        head, shrunken, biases = Table(result.to_html()).rows
        assert head[1] == f"RMSE {arrow}"
        assert biases[1].endswith("*")
        assert not shrunken[1].endswith("*")


def test_the_ledger_in_html():
    ledger = Ledger(np.array(["ann", "bob"]))
    ledger.open("catalogue")
    ledger.down(np.arange(2), np.full(2, 10))
    for round in range(3):
        ledger.open("round", round)
        ledger.down(np.arange(2), np.full(2, 1000))
        ledger.up(np.arange(2), np.full(2, 500))
        ledger.count(messages_up=1, dropped=1, rejected=round)
    table = Table(ledger._repr_html_())
    assert table.rows == [
        ["", "Messages up", "Messages down", "Up", "Down", "Up per client", "Down per client"],
        ["Catalogue of items", "0", "2", "0 B", "20 B", "0 B", "10 B"],
        ["Rounds (3)", "3", "6", "3 kB", "6 kB", "1.5 kB", "3 kB"],
        ["Total", "3", "8", "3 kB", "6.02 kB", "1.5 kB", "3.01 kB"],
    ]
    assert table.notes == [
        "Communication of 2 clients",
        "3 uploads lost or not sent",
        "3 uploads rejected",
    ]


@pytest.mark.parametrize("epsilon", [10.0, float("inf")])
def test_the_privacy_report_in_html(epsilon):
    report = PrivacyReport("laplace", epsilon, 5, 1200, 1200 * epsilon, "<sums>")
    repr(report).encode("cp1252")  # as print does on Windows
    table = Table(report._repr_html_())
    cells = dict(table.rows)
    assert cells["What the server sees"] == "<sums>"
    assert cells["Most coordinates of one client"] == "1,200"
    shown = "∞" if np.isinf(epsilon) else "12,000"
    assert cells["Total ε of the client that lost most"] == shown
    assert (cells["What the guarantee hides"] == "nothing") == np.isinf(epsilon)
    assert ("no formal guarantee" in " ".join(table.notes)) == np.isinf(epsilon)
