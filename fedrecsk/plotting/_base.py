"""Style every display alike: axes, colours, scales, labels, legends; base class of curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrecsk._utils.docs import documented
from fedrecsk._utils.extras import require
from fedrecsk.model_selection._comparison import HEADINGS

if TYPE_CHECKING:
    from typing import Self

    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

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
    "score_seconds": "Score time (s)",
    "epsilon": "Total privacy loss ε (left is more private)",
    "adversary": "Attack",
    "dropout": "Dropout rate",
    "loss": "Training loss",
    "validation_loss": "Validation loss",
    "novelty": "Novelty (bits)",
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


class Display:
    """Base class of displays: what each draws around its own lines and points."""

    score_name: str
    reference: float | Mapping[str, float] | None

    def _plot(self, found, ax, x_name, **kwargs):
        """Draw what the subclass draws, then reference lines, notes of failures, labels, legend."""
        check_any(found, self.score_name)
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
        ax.set_xlabel(_label(x_name), wrap=True)
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


@dataclass(kw_only=True, eq=False, repr=False)
class CurvesDisplay(Display):
    """Base class of displays with one line per method, and a band of one standard deviation."""

    curves: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]]
    x_name: str
    score_name: str
    failed: Sequence[str] = ()
    reference: float | Mapping[str, float] | None = None

    @documented
    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw the display.

        Parameters
        ----------
        {ax}
        **kwargs
            How to draw the lines: parameters of matplotlib's `plot`, or of `errorbar` for points
            side by side.

        {drawn}
        """
        return self._plot(self.curves, ax, self.x_name, **kwargs)

    def _draw(self, ax, **kwargs):
        self._draw_lines(ax, self.curves, kwargs)

    def _draw_lines(self, ax, curves, kwargs):
        self.lines_: list[Any] = []
        self.bands_: list[Any] = []
        taken = len(ax.lines)
        for name, (x, mean, std) in curves.items():
            look = style(taken + len(self.lines_)) | {"label": legible(name), "markersize": 6}
            if len(x) > 20:
                look["markevery"] = len(x) // 10
            (line,) = ax.plot(x, mean, **with_style(kwargs, **look))
            self.lines_.append(line)
            if np.any(np.asarray(std) > 0):
                low, high = np.subtract(mean, std), np.add(mean, std)
                band = ax.fill_between(x, low, high, alpha=0.2, color=line.get_color(), lw=0)
                self.bands_.append(band)
