"""The aggregation of FedMF and PrivRec that needs no counts: a step along the mean change."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import ClassVar, Literal

from fedrecsk._sklearn import Interval, StrOptions
from fedrecsk.federated._steady_items import SteadyItems

# The more items, the fewer clients visit a given one. From HR@10 on validation rows of MovieLens-1M
# (benchmarks.private_rankings settings); with few items that all visit, steps above 1 explode.
ITEMS_PER_UNIT = 185
LONGEST = 20.0


@dataclass(eq=False, repr=False)
class ReptileItems(SteadyItems):
    """Adds ``aggregation="reptile"`` to federated averaging.

    The server takes a step along the mean change of the round's clients (A. Nichol, J. Achiam and
    J. Schulman, "On First-Order Meta-Learning Algorithms", arXiv:1803.02999, algorithm 2). Their
    number is public, so clients send nothing but their changes.
    """

    _: KW_ONLY
    aggregation: Literal["visits", "data_size", "reptile"] = "visits"
    server_learning_rate: float | Literal["auto"] = "auto"

    _parameter_constraints: ClassVar[dict] = SteadyItems._parameter_constraints | {
        "aggregation": [StrOptions({"visits", "data_size", "reptile"})],
        "server_learning_rate": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"auto"}),
        ],
    }

    def _upload_forms(self, n_items):
        return self._without_counts(super()._upload_forms(n_items))

    def _visit_summed(self, block, turn, visit, sound):
        fields, loss = super()._visit_summed(block, turn, visit, sound)
        return self._without_counts(fields), loss

    def _visit_each(self, block, turn, visit, columns):
        fields, loss = super()._visit_each(block, turn, visit, columns)
        return self._without_counts(fields), loss

    def _without_counts(self, fields):
        if self.aggregation != "reptile":
            return fields
        return {"updates": fields["updates"]}

    def _mean_update(self, upload):
        if self.aggregation != "reptile":
            return super()._mean_update(upload)
        changes = upload["updates"].sum
        return self._length_of_step(len(changes)) / upload.n_clients * changes

    def _upload_moving(self, view, rows, moves):
        if self.aggregation != "reptile":
            return super()._upload_moving(view, rows, moves)
        divisor = view.n_senders / self._length_of_step(len(view.item_vectors))
        return {"updates": divisor / view.n_own * moves}

    def _length_of_step(self, n_items):
        if self.server_learning_rate != "auto":
            return self.server_learning_rate
        return min(max(1.0, n_items / ITEMS_PER_UNIT), LONGEST)
