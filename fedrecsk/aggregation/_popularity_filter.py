"""Leave out rows that push an item towards the popular ones suspiciously hard."""

from __future__ import annotations

from numbers import Real
from typing import ClassVar, Literal

import numpy as np

from fedrecsk._sklearn import Interval
from fedrecsk.aggregation._row_clipping import RowClipping
from fedrecsk.aggregation._rows import is_changed, lengths, row_sums, row_totals, scaled_rows

# Clients per round that the comparison needs.
N_NEEDED = 5


class PopularityFilter(RowClipping):
    """Clip rows, then leave out those that push an item suspiciously hard towards popular ones.

    A promoted item moves towards the popular items, to where most users' recommendations are. In
    each round, for each field with a row for each item, after the rows are clipped as by
    :class:`RowClipping`:

    1. The popular items are the share `popular` of all items whose rows have the largest sum of
       norms, and u is the direction of the sum of their rows.
    2. The push on an item is the mean of ``row . u`` over the clients that have changed its row.
    3. An item is suspicious if its push is above ``m + tolerance * s / sqrt(n)``. Here m is the
       largest push on a popular item, s is the spread of single rows around the mean of their
       item among the popular ones, and n is how many clients have changed the item.
    4. In suspicious items the rows that push harder than this limit are left out.

    This defence is our own. It uses the observation behind PipAttack [1]_ and PIECK [2]_ that
    promoted items are aligned with popular ones. The defence proposed in [2]_ is different: a
    penalty in the clients' training.

    Parameters
    ----------
    tolerance : float, default=3.0
        How many standard errors the push on an item may be above that on the popular items.
    popular : float in (0, 1), default=0.1
        Share of the items that count as popular. Attackers should not be able to bring an item
        among them.
    max_norm, multiple
        As in :class:`RowClipping`.

    Notes
    -----
    It detects many clients that push an item with few honest senders in the same direction, as hard
    as clipping allows. It does not detect rows that push no harder than the limit (an attacker that
    knows the limit stays below it), rows that aim elsewhere than at the popular items, such as
    noise, and attackers so few that their push could be chance. Where all clients change all rows,
    as in RFRec with Adam, popular items are recognised by the size of their rows alone.

    A round that receives fewer than five uploads changes nothing.

    References
    ----------
    .. [1] S. Zhang, H. Yin, T. Chen, Z. Huang, Q. V. H. Nguyen and L. Cui, "PipAttack: Poisoning
       Federated Recommender Systems for Manipulating Item Promotion", WSDM 2022.
    .. [2] J. Zhang, H. Li, D. Rong, Y. Zhao, K. Chen and L. Shou, "Preventing the Popular Item
       Embedding Based Attack in Federated Recommendations", ICDE 2024.

    Examples
    --------
    >>> from fedrecsk import Federation, LocALS
    >>> from fedrecsk.aggregation import PopularityFilter
    >>> from fedrecsk.attacks import Promotion
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> attack, defence = Promotion(0.1, item=7), PopularityFilter(tolerance=2.0)
    >>> federation = Federation(adversary=attack, aggregator=defence)
    >>> model = LocALS(n_factors=4, federation=federation, random_state=0).fit(X)
    """

    _parameter_constraints: ClassVar[dict] = RowClipping._parameter_constraints | {
        "tolerance": [Interval(Real, 0, None, closed="left")],
        "popular": [Interval(Real, 0, 1, closed="neither")],
    }

    def __init__(
        self,
        tolerance: float = 3.0,
        *,
        popular: float = 0.1,
        max_norm: float | Literal["median"] = "median",
        multiple: float = 1.0,
    ):
        super().__init__(max_norm, multiple=multiple)
        self.tolerance = tolerance
        self.popular = popular

    def _check_clients(self, data, n_clients):
        if n_clients < N_NEEDED:
            raise ValueError(
                f"PopularityFilter compares the senders of items, which needs {N_NEEDED} clients "
                f"per round, but there are {n_clients}; raise client_fraction, or use RowClipping."
            )

    def _combined(self, batches):
        if sum(batch.n_accepted for batch in batches) < N_NEEDED:
            return None
        return super()._combined(batches)

    def _accepted_rows(self, batches, name):
        clipped = super()._accepted_rows(batches, name)
        direction, pushes, limits = self._judged(clipped, name)
        suspicious = pushes > limits

        def is_accepted(rows, change):
            return ~suspicious[rows] | (change @ direction <= limits[rows])

        return scaled_rows(clipped, name, is_accepted)

    def _judged(self, batches, name):
        """Direction of the popular items, the push on each item, and the limits of the pushes."""
        totals = row_totals(batches, name)
        n_senders = row_sums(batches, name, is_changed)
        sizes = row_sums(batches, name, lengths)
        popular = np.argsort(-sizes, kind="stable")
        popular = popular[: max(1, round(self.popular * np.count_nonzero(n_senders)))]
        direction = totals[popular].sum(axis=0)
        direction /= np.linalg.norm(direction) or 1.0
        n = np.maximum(n_senders, 1)
        pushes = totals @ direction / n
        squares = row_sums(batches, name, lambda change: (change @ direction) ** 2)
        # Squared deviations of the single rows from the mean of their item.
        within = (squares - n * pushes**2)[popular].sum()
        spread = np.sqrt(max(within, 0.0) / n[popular].sum())
        return direction, pushes, pushes[popular].max() + self.tolerance * spread / np.sqrt(n)
