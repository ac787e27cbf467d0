"""The median of each number."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedrecsk.aggregation._comparison import OrderStatistic


class CoordinateMedian(OrderStatistic):
    """Take the median of every number over the clients (Yin et al., ICML 2018).

    For silos, where most clients hold most items. It withstands attackers as long as they are
    fewer than half of the clients of a round.

    Examples
    --------
    >>> from fedrecsk import Federation, GlobSGD
    >>> from fedrecsk.aggregation import CoordinateMedian
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=20, n_interactions=500, random_state=0)
    >>> federation = Federation(aggregator=CoordinateMedian())
    >>> model = GlobSGD(4, federation=federation, random_state=0).fit(X, clients=X[:, 0] % 5)
    """

    _parameter_constraints: ClassVar[dict] = {}

    def _mean(self, changes):
        return np.median(changes, axis=0)
