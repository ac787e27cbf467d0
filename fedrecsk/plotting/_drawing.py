"""How all displays look: axes, colours, scales, labels, legends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk._extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours for colour-blind readers, without the yellow.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# Of Tol's muted colours, for reference lines; different from those of the methods.
REFERENCE_COLOURS = ("#882255", "#117733", "#332288", "#999933")
DASHES = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LABELS = {
    "mb": "MB that a client sends and receives",
    "mb_up": "MB that a client sends",
    "mb_down": "MB that a client receives",
    "mb_device_to_device": "MB that a client sends to other clients",
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
    "map": "MAP",
    "auc": "AUC",
    "coverage": "Coverage",
    "novelty": "Novelty (bits)",
    "diversity": "Diversity",
    "precision": "Precision",
    "recall": "Recall",
}
# In inches: size of a new figure, least width for a legend beside the axes, width of a letter.
SIZE, WIDE, LETTER = (7.5, 4.5), 6.0, 0.08


def pyplot(caller, ax):
    """Import matplotlib.pyplot, and check `ax`."""
    plt = require("matplotlib.pyplot", caller)
    if not isinstance(ax, plt.Axes | None):
        raise TypeError(f"ax must be one matplotlib Axes or None, got {type(ax).__name__}.")
    return plt


def axes(caller, ax) -> tuple[Axes, bool]:
    """Axes to draw in, and whether they are in a new figure."""
    plt = pyplot(caller, ax)
    if ax is not None:
        return ax, False
    size = plt.rcParams["figure.figsize"]
    if size == plt.rcParamsDefault["figure.figsize"]:
        size = SIZE
    return plt.subplots(figsize=size, layout="constrained")[1], True


def style(n):
    """Colour and marker of the n-th method of the axes."""
    return {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n % len(MARKERS)]}


def restyled(kwargs, **look):
    """How to draw a line: `look`, overridden by the caller's parameters or their short forms."""
    from matplotlib import cbook, lines

    return look | cbook.normalize_kwargs(kwargs, lines.Line2D)


def check_reference(reference):
    """Scores of reference lines by name, from a number, a dict or None.

    Raises
    ------
    TypeError
        If it is something else.
    ValueError
        If a score is not finite.
    """
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


def draw_reference(display, ax):
    """Draw a display's reference scores as horizontal dashed lines."""
    display.references_ = []
    for i, (name, score) in enumerate(check_reference(display.reference).items()):
        look = {"color": REFERENCE_COLOURS[i % len(REFERENCE_COLOURS)], "linewidth": 1.5}
        look["linestyle"] = DASHES[i % len(DASHES)]
        display.references_.append(ax.axhline(score, label=legible(name), zorder=1, **look))


def legible(name):
    """A name that matplotlib shows as it is: without mathematics, and even if it begins with _."""
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
    """Ticks at 0, 1, ... with these names, slanted if neighbours would touch."""
    room = ax.bbox.width / ax.figure.dpi / len(names)
    needed = [LETTER * (len(a) + len(b) + 3) / 2 for a, b in pairwise(map(str, names))]
    aslant = {"rotation": 30, "rotation_mode": "anchor", "horizontalalignment": "right"}
    ax.set_xticks(range(len(names)), names, **aslant if max(needed, default=0) > room else {})
    ax.set_xlim(-0.5, len(names) - 0.5)


def finish(display, ax, own, *, x_name, score_name):
    """Add notes about failures, labels, grid and legend."""
    for note in getattr(display, "failed", ()):
        ax.plot([], [], "x", color="0.35", label=note)
    ax.set_xlabel(_label(x_name), wrap=True)
    ax.set_ylabel(_label(score_name))
    ax.grid(True, color="0.5", alpha=0.2, linewidth=0.8)
    ax.set_axisbelow(True)
    # matplotlib lists lines before error bars; put the methods first and the Pareto front last.
    entries = zip(*ax.get_legend_handles_labels(), strict=True)
    entries = sorted(entries, key=lambda entry: not hasattr(entry[0], "lines"))
    handles = [handle[0] if hasattr(handle, "lines") else handle for handle, _ in entries]
    _place_legend(ax, own, handles, [label for _, label in entries])
    display.ax_, display.figure_ = ax, ax.figure
    return display


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
