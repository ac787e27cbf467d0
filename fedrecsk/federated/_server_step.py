"""A server that steps along gradients, by Adam or plain gradient descent."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import ClassVar, Literal

import numpy as np

from fedrecsk._utils.sklearn_compat import Interval, StrOptions


@dataclass(eq=False, repr=False)
class ServerStep:
    """The parameters of the server's step, and the step."""

    _: KW_ONLY
    learning_rate: float = 0.1
    optimizer: Literal["adam", "gd"] = "adam"

    BETA_1 = 0.1
    BETA_2 = 0.99
    EPSILON = 1e-8

    _step_constraints: ClassVar[dict] = {
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "optimizer": [StrOptions({"adam", "gd"})],
    }

    def _gradient_moving(self, view, name, moves):
        """Gradients that each of the adversary's clients sends for the server to step by `moves`.

        Adam divides by the size of past gradients, so only much larger ones decide.
        """
        size = 0.5
        if self.optimizer == "adam":
            size = np.abs(view.mean(name)).max(initial=0)
        return -view.n_senders / view.n_own * size / self.learning_rate * moves

    def _stepped(self, server, name, gradient):
        """The server's state after a step of the array of this name down the gradient."""
        moments = {}
        if self.optimizer == "adam":
            step = server.get("step", 0) + 1
            mean = self.BETA_1 * server.get("mean", 0.0) + (1 - self.BETA_1) * gradient
            square = self.BETA_2 * server.get("square", 0.0) + (1 - self.BETA_2) * gradient**2
            moments = {"step": step, "mean": mean, "square": square}
            gradient = mean / (1 - self.BETA_1**step)
            gradient = gradient / (np.sqrt(square / (1 - self.BETA_2**step)) + self.EPSILON)
        items = server[name].astype(np.float64) - self.learning_rate * gradient
        return server | moments | {name: items.astype(self._dtype)}
