"""Base class of displays with one curve per method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedrecsk.plotting._drawing import (
    axes,
    check_reference,
    draw_reference,
    finish,
    legible,
    restyled,
    style,
)
from fedrecsk.plotting._results import check_any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike


class CurvesDisplay:
    """One line per method, with a band of one standard deviation.

    Parameters
    ----------
    curves : dict of str to (x, mean, std)
        For each method, arrays of shape (n_points,).
    x_name, score_name : str
    failed : list of str, default=()
        Notes for the legend about fits that failed.
    reference : float or dict of str to float, default=None
        Scores of baselines by name, to draw as dashed horizontal lines.
    """

    def __init__(
        self,
        *,
        curves: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]],
        x_name: str,
        score_name: str,
        failed: Sequence[str] = (),
        reference: float | Mapping[str, float] | None = None,
    ) -> None:
        self.curves = curves
        self.x_name = x_name
        self.score_name = score_name
        self.failed = failed
        self.reference = reference

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw in. None: those of a new figure.
        **kwargs
            How to draw the lines: parameters of matplotlib's `plot`, or of `errorbar` for points
            side by side.

        Returns
        -------
        display : object
            Itself.

        Raises
        ------
        ImportError
            If matplotlib is missing.
        """
        check_any(self.curves, self.score_name)
        check_reference(self.reference)
        ax, own = axes(f"{type(self).__name__}.plot", ax)
        self._draw(ax, kwargs)
        draw_reference(self, ax)
        return finish(self, ax, own, x_name=self.x_name, score_name=self.score_name)

    def _draw(self, ax, kwargs):
        self._draw_lines(ax, self.curves, kwargs)

    def _draw_lines(self, ax, curves, kwargs):
        self.lines_, self.bands_ = [], []
        taken = len(ax.lines)
        for name, (x, mean, std) in curves.items():
            look = style(taken + len(self.lines_)) | {"label": legible(name), "markersize": 6}
            if len(x) > 20:
                look["markevery"] = len(x) // 10
            (line,) = ax.plot(x, mean, **restyled(kwargs, **look))
            self.lines_.append(line)
            if np.any(np.asarray(std) > 0):
                low, high = np.subtract(mean, std), np.add(mean, std)
                band = ax.fill_between(x, low, high, alpha=0.2, color=line.get_color(), lw=0)
                self.bands_.append(band)
