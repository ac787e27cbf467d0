"""Displays in scikit-learn's style, of accuracy against cost, convergence, robustness and privacy.

Each display has `from_results`, which draws results that you have, and `plot`, which draws a
display again. Those of scores also have `from_estimator`, which cross-validates first. All take
`reference`: scores of baselines, drawn as dashed horizontal lines. matplotlib comes with
``pip install '.[plot]'`` and is imported only when something is drawn.

A new figure measures 7.5 x 4.5 inches, unless you change
``matplotlib.rcParams["figure.figsize"]``. Its legend is beside the axes, or above them if the
figure is narrower than 6 inches or the legend would take more than a third of the width. A figure
whose legend would take more than a third of the height is made taller.
"""

from fedrecsk.plotting._cost import CostDisplay
from fedrecsk.plotting._curves import ConvergenceDisplay, PrivacyDisplay, RobustnessDisplay

__all__ = ["ConvergenceDisplay", "CostDisplay", "PrivacyDisplay", "RobustnessDisplay"]
