"""Displays in scikit-learn's style: what accuracy costs, convergence, robustness, privacy.

Each has `from_results`, which draws what is known already, `from_estimator`, and `plot`, which
draws again. matplotlib is imported when something is drawn, and not before; it comes with
``pip install 'fedrecsk[plot]'``.

A new figure has the size of ``matplotlib.rcParams["figure.figsize"]``, where that was changed. Its
legend is beside the axes, or above them in a narrow figure.
"""

from fedrecsk.plotting._convergence import ConvergenceDisplay
from fedrecsk.plotting._cost import CostDisplay
from fedrecsk.plotting._privacy import PrivacyDisplay
from fedrecsk.plotting._robustness import RobustnessDisplay

__all__ = ["ConvergenceDisplay", "CostDisplay", "PrivacyDisplay", "RobustnessDisplay"]
