"""What makes FedMF, CoLR and SCoLR work on few ratings: shrinkage and averaging."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import ClassVar

from fedrecsk._sklearn import Interval
from fedrecsk.federated._fedmf import AveragedItems
from fedrecsk.simulation.messages import Dense, Message

# How much more later rounds count: the average is of the last tenth of the rounds, roughly.
EMPHASIS = 9


@dataclass(eq=False, repr=False)
class SteadyItems(AveragedItems):
    """Base class of FedMF and CoLR.

    Polynomial-decay averaging (O. Shamir and T. Zhang, "Stochastic Gradient Descent for
    Non-smooth Optimization", ICML 2013) needs no length of its window to be set.
    """

    _: KW_ONLY
    shrinkage: float = 0.5
    averaging: bool = True

    _parameter_constraints: ClassVar[dict] = AveragedItems._parameter_constraints | {
        "shrinkage": [Interval(Real, 0, None, closed="left")],
        "averaging": ["boolean"],
    }

    @property
    def _least_penalty(self):
        return self.shrinkage

    @property
    def _averages(self):
        """Whether the final model is an average; clients measure the model that they receive."""
        return self.averaging and not self.early_stopping

    def _init_server(self, catalogue, key):
        server = super()._init_server(catalogue, key)
        if self._averages:
            server |= {"average_items": server["item_factors"], "n_averaged": 0}
        return server

    def _moved_items(self, server, update):
        moved = super()._moved_items(server, update)
        if not self._averages:
            return moved
        n, average = server["n_averaged"] + 1, server["average_items"]
        weight = self._dtype((EMPHASIS + 1) / (n + EMPHASIS))
        average = average + weight * (moved["item_factors"] - average)
        return moved | {"average_items": average, "n_averaged": n}

    def _final_model(self, server):
        if not self._averages:
            return super()._final_model(server)
        return Message(average_items=Dense(server["average_items"]))

    def _final_items(self, message):
        if "average_items" not in message:
            return super()._final_items(message)
        return message["average_items"].values
