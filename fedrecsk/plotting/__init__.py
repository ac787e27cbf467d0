"""Displays in scikit-learn's style: what accuracy costs, convergence, robustness, privacy.

Each has `from_results`, which draws what is known already, `from_estimator`, and `plot`, which
draws again. matplotlib is imported when something is drawn, and not before; it comes with
``pip install 'fedrecsk[plot]'``.

A new figure has 7.5 x 4.5 inches, or ``matplotlib.rcParams["figure.figsize"]``, where that is not
matplotlib's default. Its legend is beside the axes; above them in a figure narrower than 6 inches,
or where it would take more than a third of the width. A figure of which a legend above would take
more than a third is made taller.
"""

from fedrecsk.plotting._convergence import ConvergenceDisplay
from fedrecsk.plotting._cost import CostDisplay
from fedrecsk.plotting._privacy import PrivacyDisplay
from fedrecsk.plotting._robustness import RobustnessDisplay

__all__ = ["ConvergenceDisplay", "CostDisplay", "PrivacyDisplay", "RobustnessDisplay"]
