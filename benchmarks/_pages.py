"""What README and the pages of the site show of the records, and the pictures in docs/_static.

``python -m benchmarks pages`` writes them. Each table stands below a comment like ``<!--
table("fedeb quality") -->``. In a sentence, a comment behind a number names it, as in ``0.8251<!--
fedeb -->``, and ``<!-- numbers``, a comment at the end of the page, has lines like ``fedeb =
number(...)``. The number comes first, because a line that begins with a comment is not Markdown.
"""

from __future__ import annotations

import json
import re
from textwrap import indent

import matplotlib
import numpy as np

matplotlib.use("svg")
import matplotlib.pyplot as plt

from benchmarks import _records as records
from benchmarks.methods import PUBLISHED

DOCS = records.ROOT / "docs"
MADE = ("auto_examples", "generated")
PAGES = [
    records.ROOT / "README.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if not set(MADE) & set(page.parts)),
]
FOLDER = DOCS / "_static"
# The comment of a table, and the table and its caption once they are written.
TABLE = re.compile(
    r"^( *)<!-- (table\((?s:.*?)\)) -->\n(?:\n(?: *\|.*\n)+\n *\*.*\*\n)?", re.MULTILINE
)
NUMBER = re.compile(r"[-+]?\d[\d.]*(?: [/±] \d[\d.]*)?(?=<!-- (\w+) -->)")
NUMBERS = re.compile(r"^<!-- numbers\n(.*?)^-->$", re.DOTALL | re.MULTILINE)
COMMANDS = {
    "ratings": ("methods ratings --train 80", "test RMSE"),
    "rankings": ("methods rankings", "HR@10 / NDCG@10"),
}
GREY = "#7d8590"
FEDERATED = "#1b95aa"
CENTRALISED = "#d9742b"
# Offsets of labels in points; what is not named here is not drawn.
POINTS = {
    "ratings": {
        "FedRec": (8, -3),
        "FCF for ratings": (8, -3),
        "RFRec": (-8, -3),
        "RFRec, local DP (clip 0.2, scale 0.04)": (-8, -3),
        "RFRecF": (-8, -3),
        "FedEB, cohorts of 10%": (8, -14),
        "FedEB, cohorts of 1%, d = 40, int8 uploads": (-7, -14),
        "FedEB, cohorts of 10%, mean of 4 runs": (9, -4),
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
    "RFRec, local DP (clip 0.2, scale 0.04)": "RFRec, local DP",
    "FedEB, cohorts of 10%": "FedEB",
    "FedEB, cohorts of 1%, d = 40, int8 uploads": "FedEB, int8",
    "FedEB, cohorts of 10%, mean of 4 runs": "mean of 4 FedEB",
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
        "GLocal-K": ("GLocal-K, 90% for training", -12),
        "same, ordered probit": ("myFM, 90% for training, with timestamps", 4),
    },
    "rankings": {"MF": ("published: MF 0.4523, iALS 0.4521", 4)},
}
TITLES = {
    "ratings": "Ratings: test RMSE, 80% for training\n(better is higher up)",
    "rankings": "Rankings: NDCG@10 among 99 negatives",
}
# Methods of the picture of hours.
HOURS = {"FedEB": "FedEB: test RMSE", "FedMF": "FedMF: NDCG@10"}
# The axis of errors points down, so that better is higher up in both pictures.
LIMITS = {"ratings": ((0.7, 90), (0.912, 0.808)), "rankings": ((0.3, 110), (0.332, 0.466))}
STYLE = {
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedrecsk",
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}


def points(task):
    """Return score and megabytes (None for centralised models) of each row: a dict from label."""
    name, column = COMMANDS[task]
    found = {}
    for row, _ in records.rows_of(name):
        federated = row["rounds"] != "-"
        mb = round(float(row["MB up"]) + float(row["MB down"]), 2) if federated else None
        found[row[""]] = (float(row[column].split("/")[-1]), mb)
    return found


def draw(task, path):
    """Draw federated models as points and centralised ones as lines, for light and dark pages."""
    rows = points(task)
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(4.8, 4.8), layout="constrained")
    for label, offset in POINTS[task].items():
        y, x = rows[label]
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
    lines = [(text, rows[label][0], 4, GREY, (0, (4, 3))) for label, text in LINES[task].items()]
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
    # The numbers too, so that a test can compare them.
    about = {"Date": None, "Description": json.dumps(rows)}
    with plt.rc_context(STYLE):
        figure.savefig(path, transparent=True, metadata=about)
    plt.close(figure)


def curves():
    """Return hours and scores of each method and schedule: a dict from "method, schedule"."""
    found = {}
    for name in HOURS:
        for row, _ in records.rows_of(f"clock hours --data 1m --only {name}", number=2):
            own = found.setdefault(f"{name}, {row['rounds']}", [])
            own.append((float(row["hours"]), float(row["score"])))
    return found


def draw_hours(path):
    """Draw scores against simulated hours, for light and dark pages."""
    rows, colours = curves(), (GREY, CENTRALISED, FEDERATED)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(2, 1, figsize=(4.8, 6.4), layout="constrained")
    for ax, (name, title) in zip(axes, HOURS.items(), strict=True):
        own = {key: points for key, points in rows.items() if key.startswith(f"{name}, ")}
        for (key, points), colour in zip(own.items(), colours, strict=True):
            label = key.partition(", ")[2]
            ax.plot(*zip(*points, strict=True), "o-", color=colour, markersize=4, label=label)
        ax.set(xscale="log", xlabel="simulated hours")
        ax.set_title(title, loc="left", fontsize=11)
        ax.xaxis.set_major_formatter("{x:g}")
        if "RMSE" in title:
            ax.invert_yaxis()
    axes[0].legend(frameon=False, labelcolor=GREY, fontsize=9.5)
    about = {"Date": None, "Description": json.dumps(rows)}
    with plt.rc_context(STYLE):
        figure.savefig(path, transparent=True, metadata=about)
    plt.close(figure)


def searches():
    """Return MB per client and score of what a search found and its alternatives, by method."""
    found = {}
    for row, _ in records.rows_of("search"):
        names = {"default": "default", "search": "search", "27 fits": "best of 27"}
        title = f"{row['data, method']}: {row['metric']}"
        found[title] = {n: (float(row[f"MB, {n}"]), float(row[one])) for n, one in names.items()}
    return found


def draw_searches(path):
    """Draw scores of searches against megabytes, for light and dark pages."""
    rows, colours = searches(), (GREY, FEDERATED, CENTRALISED)
    labels = "default", "search", "27 fits, best by test rows"
    n_rows = -(-len(rows) // 2)
    with plt.rc_context(STYLE):
        size = {"figsize": (6.5, 2.4 * n_rows), "layout": "constrained", "squeeze": False}
        figure, axes = plt.subplots(n_rows, 2, **size)
    for ax in axes.flat[len(rows) :]:
        ax.set_axis_off()
    for ax, (title, points) in zip(axes.flat, rows.items(), strict=False):
        for point, colour, label in zip(points.values(), colours, labels, strict=True):
            ax.plot(*point, "o", color=colour, markersize=8, label=label)
        ax.set(xscale="log", xlabel="MB per client")
        sizes = [size for size, _ in points.values()]
        ax.set_xticks(sizes, [f"{float(f'{one:.3g}'):g}" for one in sizes])
        ax.set_xticks([], minor=True)
        ax.margins(x=0.15)
        title = title.removeprefix("MovieLens-").replace("RMSE", "RMSE (best on top)")
        ax.set_title(title, loc="left", fontsize=11)
        # Differences below 0.01 should look small.
        middle = sum(score for _, score in points.values()) / len(points)
        half = max(0.01, *(1.3 * abs(score - middle) for _, score in points.values()))
        ax.set_ylim(middle - half, middle + half)
        if "RMSE" in title:
            ax.invert_yaxis()
    axes[0, 0].legend(frameon=False, labelcolor=GREY, fontsize=9)
    about = {"Date": None, "Description": json.dumps(rows)}
    with plt.rc_context(STYLE):
        figure.savefig(path, transparent=True, metadata=about)
    plt.close(figure)


def places():
    """Return megabytes per client and the place in each set, best 1, by task and method."""
    found = {"Rankings": {}, "Ratings": {}}
    for record in records.records_of("leaderboard"):
        for task, number in zip(found, (1, 3), strict=True):
            head, *rows = record.get(f"table {number}", [["MB up / down"]])
            rows = [row for row in rows if not row[0].endswith(", in time")]
            sizes = [(row[0], row[head.index("MB up / down")].split(" / ")) for row in rows]
            federated = [(name, sum(map(float, both))) for name, both in sizes if len(both) == 2]
            for place, (name, megabytes) in enumerate(federated, 1):
                found[task].setdefault(name, []).append((float(f"{megabytes:.3g}"), place))
    return found


def draw_leaderboard(path):
    """Draw places in all sets against megabytes: each set, and the mean of each method."""
    rows = places()
    with plt.rc_context(STYLE):
        size = {"figsize": (6.5, 8.0), "height_ratios": (2, 1), "layout": "constrained"}
        figure, axes = plt.subplots(2, 1, **size)
    for ax, (task, methods) in zip(axes, rows.items(), strict=True):
        for name, points in methods.items():
            sizes, own = np.array(points).T
            mean = np.exp(np.log(sizes).mean()), own.mean()
            ax.plot(sizes, own, "o", color=FEDERATED, alpha=0.25, markersize=4)
            ax.plot(*mean, "o", color=FEDERATED, markersize=7)
            place = {"xytext": (7, -3), "textcoords": "offset points"}
            ax.annotate(name, mean, color=FEDERATED, fontsize=9, **place)
        ax.set(xscale="log", ylabel="place among federated methods")
        ax.xaxis.set_major_formatter("{x:g}")
        ax.margins(x=0.15)
        ax.invert_yaxis()
        ax.set_title(task, loc="left", fontsize=11)
    axes[-1].set_xlabel("MB sent and received per client, whole training")
    about = {"Date": None, "Description": json.dumps(rows)}
    with plt.rc_context(STYLE):
        figure.savefig(path, transparent=True, metadata=about)
    plt.close(figure)


def filled(text):
    """Return a page with its tables and numbers as the records are now."""
    numbers = {}
    for block in NUMBERS.findall(text):
        exec(block, {"number": records.number}, numbers)
    if wrong := numbers.keys() ^ set(NUMBER.findall(text)):
        raise ValueError(f"Each number needs a comment behind it, and a definition: {wrong}.")
    text = NUMBER.sub(lambda found: numbers[found[1]], text)
    return TABLE.sub(_table, text)


def _table(found):
    """Return the comment of a table, and the table."""
    comment = found[0][: found[0].index("-->") + len("-->")]
    table = eval(found[2], {"table": records.table})
    return f"{comment}\n\n{indent(table, found[1])}\n"


def write():
    """Write the tables and numbers of all pages, and the pictures."""
    for page in PAGES:
        page.write_text(filled(page.read_text()))
    for task in TITLES:
        draw(task, FOLDER / f"{task}.svg")
    draw_hours(FOLDER / "hours.svg")
    draw_searches(FOLDER / "search.svg")
    draw_leaderboard(FOLDER / "leaderboard.svg")
