"""The mean of each number without its extremes."""

from __future__ import annotations

from numbers import Real
from typing import ClassVar

import numpy as np

from fedrecsk._sklearn import Interval
from fedrecsk.aggregation._comparison import OrderStatistic


class TrimmedMean(OrderStatistic):
    """Take the mean of every number without its largest and smallest (Yin et al., ICML 2018).

    For silos, where most clients hold most items.

    Parameters
    ----------
    trim : float in [0, 0.5), default=0.2
        Share of the clients to leave out at each end (beta). Choose more than the share of
        attackers that you expect.

    Examples
    --------
    >>> from fedrecsk.aggregation import TrimmedMean
    >>> TrimmedMean(trim=0.3)
    TrimmedMean(trim=0.3)
    """

    _parameter_constraints: ClassVar[dict] = {"trim": [Interval(Real, 0, 0.5, closed="left")]}

    def __init__(self, trim: float = 0.2):
        self.trim = trim

    def _mean(self, changes):
        n_cut = int(np.ceil(self.trim * len(changes)))
        n_cut = min(n_cut, (len(changes) - 1) // 2)
        return np.sort(changes, axis=0)[n_cut : len(changes) - n_cut].mean(axis=0)
