"""Draw accuracy against megabytes for README: ``python -m benchmarks.picture``.

Writes ratings.svg and rankings.svg from the numbers in accuracy.csv, all in docs/_static. To
measure again, pass two files with what the benchmark of all methods prints; the CSV is written
first::

    python -m benchmarks.methods ratings > ratings.md
    python -m benchmarks.methods rankings > rankings.md
    python -m benchmarks.picture ratings.md rankings.md

Data: none. The two benchmarks need MovieLens-1M.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from benchmarks._command_line import command_line
from benchmarks.methods import PUBLISHED

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "_static"
COLUMNS = ("task", "label", "score", "mb")
GREY = "#7d8590"
FEDERATED = "#1b95aa"
CENTRALISED = "#d9742b"
# Offsets of labels in points; what is not named here is not drawn.
POINTS = {
    "ratings": {
        "FedRec": (8, -3),
        "FCF for ratings": (8, -3),
        "RFRec": (-8, -3),
        "RFRec, local DP (clip .2, scale .04)": (-8, -3),
        "RFRecF": (-8, -3),
        "FedEB, cohorts of 10 %": (8, -14),
        "FedEB, cohorts of 1 %, d = 40, int8 uploads": (-7, -14),
        "FedEB, cohorts of 10 %, mean of 4 runs": (9, -4),
    },
    "rankings": {
        "LocSGD": (8, -3),
        "GlobSGD": (8, -3),
        "LocALS": (-4, 8),
        "FCF": (-8, -3),
        "FedFast": (-8, -3),
        "FedMF": (-8, 6),
        "CoLR, rank 4": (-8, -3),
        "SCoLR, rank 4": (-8, -3),
        "LightFR": (8, -3),
        "FedEASE": (8, -9),
        "FedEASE + FedSpectral + LocALS, d = 192": (-7, 9),
    },
}
NAMES = {
    "RFRec, local DP (clip .2, scale .04)": "RFRec, local DP",
    "FedEB, cohorts of 10 %": "FedEB",
    "FedEB, cohorts of 1 %, d = 40, int8 uploads": "FedEB, int8",
    "FedEB, cohorts of 10 %, mean of 4 runs": "mean of 4 FedEB",
    "FedEASE + FedSpectral + LocALS, d = 192": "FedEASE + FedSpectral + LocALS",
    "FCF for ratings": "ExplicitFCF",
    "CoLR, rank 4": "CoLR",
    "SCoLR, rank 4": "SCoLR",
}
LINES = {
    "ratings": {"bias-only": "bias-only", "SVD++": "SVD++"},
    "rankings": {
        "implicit BPR": "implicit BPR",
        "implicit ALS, tuned": "implicit ALS",
    },
}
# Of `benchmarks.methods.PUBLISHED`: text of the line, and points by which it is moved up.
PUBLISHED_LINES = {
    "ratings": {
        "GLocal-K": ("GLocal-K, 90 % for training", -12),
        "same, ordered probit": ("myFM, 90 % for training, with timestamps", 4),
    },
    "rankings": {"MF": ("published: MF .4523, iALS .4521", 4)},
}
TITLES = {
    "ratings": "Ratings: test RMSE, 80 % for training (better is higher up)",
    "rankings": "Rankings: NDCG@10 among 99 negatives",
}
# The axis of errors points down, so that better is higher up in both pictures.
LIMITS = {"ratings": ((0.7, 90), (0.912, 0.808)), "rankings": ((0.3, 110), (0.332, 0.466))}
STYLE = {
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "svg.hashsalt": "fedrecsk",
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}


def rows_of(task, table):
    """The rows of the first Markdown table that `benchmarks.methods` prints."""
    for line in table.split("\n\n")[0].splitlines():
        label, score, _, _, up, down, *_ = (cell.strip() for cell in line.split("|")[1:-1])
        if not label or label.startswith("--"):
            continue
        megabytes = "" if up == "-" else f"{float(up) + float(down):.2f}"
        yield {"task": task, "label": label, "score": score.split("/")[-1].strip(), "mb": megabytes}


def draw(task, rows, path):
    """Draw federated models as points and centralised ones as lines, for light and dark pages."""
    rows = {row["label"]: row for row in rows if row["task"] == task}
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(6.2, 4.7), layout="constrained")
    for label, offset in POINTS[task].items():
        x, y = float(rows[label]["mb"]), float(rows[label]["score"])
        ax.plot(x, y, "o", color=FEDERATED, markersize=8)
        side = "left" if offset[0] > 0 else "right" if offset[0] < -6 else "center"
        ax.annotate(
            NAMES.get(label, label),
            (x, y),
            offset,
            textcoords="offset points",
            ha=side,
            color=FEDERATED,
            fontsize=10.5,
        )
    lines = [
        (text, rows[label]["score"], 4, GREY, (0, (4, 3))) for label, text in LINES[task].items()
    ]
    for one in PUBLISHED[task]:
        if one.model in PUBLISHED_LINES[task]:
            text, above = PUBLISHED_LINES[task][one.model]
            lines.append((text, one.score.split("/")[-1], above, CENTRALISED, "-"))
    for text, value, above, color, style in lines:
        ax.axhline(float(value), color=color, linestyle=style, linewidth=1.3)
        ax.annotate(
            text,
            (0.99 if above < 0 else 0.01, float(value)),
            (0, above),
            ha="right" if above < 0 else "left",
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            color=color,
            fontsize=9.5,
        )
    ax.set(xscale="log", xlim=LIMITS[task][0], ylim=LIMITS[task][1])
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlabel("MB sent and received per client, whole training")
    ax.set_title(TITLES[task], loc="left", fontsize=12)
    figure.savefig(path, transparent=True, metadata={"Date": None})
    plt.close(figure)


def main(argv=None):
    """Draw both pictures, from new tables where they are given."""
    parser = command_line("picture", __doc__)
    parser.add_argument("tables", nargs="*", help="output of benchmarks.methods: two files")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the files are")
    options = parser.parse_args(argv)
    numbers = options.folder / "accuracy.csv"
    if options.tables:
        rated, ranked = (Path(name).read_text() for name in options.tables)
        with numbers.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows([*rows_of("ratings", rated), *rows_of("rankings", ranked)])
    with numbers.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for task in TITLES:
        draw(task, rows, options.folder / f"{task}.svg")


if __name__ == "__main__":
    main()
