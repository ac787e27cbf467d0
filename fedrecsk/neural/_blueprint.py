"""What estimators keep of a module that they have built: its layout, and a small copy."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fedrecsk.neural._layout import Layout, built, fixed_parameters
from fedrecsk.neural._threads import seeded

if TYPE_CHECKING:
    from fedrecsk.neural.base import NeuralRecommender

# Building a module takes milliseconds, and the hooks of a round need it many times.
_KEPT: deque[Blueprint] = deque(maxlen=16)


class Blueprint:
    """A small module, whose parameters are replaced when it is called, and its layout.

    Parameters
    ----------
    estimator : NeuralRecommender
    """

    def __init__(self, estimator: NeuralRecommender) -> None:
        self.origin = _origin(estimator)
        self.make = estimator._make
        self.layout: Layout = Layout.of(estimator._make, estimator._private)
        self._own = threading.local()
        self._fixed: tuple[int, dict[str, Tensor]] = -1, {}

    @property
    def module(self) -> nn.Module:
        """This thread's own module: while it is called, it holds the caller's parameters."""
        if not hasattr(self._own, "module"):
            with seeded(0):
                self._own.module = built(self.make, 1, 1).train()
        return self._own.module

    def fixed(self, n_items: int) -> dict[str, Tensor]:
        """The parameters that do not change, by name, for so many items."""
        kept_for, fixed = self._fixed
        if kept_for != n_items:
            fixed = fixed_parameters(self.make, self.layout, n_items)
            self._fixed = n_items, fixed
        return fixed


def blueprint(estimator: NeuralRecommender) -> Blueprint:
    """The Blueprint of an estimator's module."""
    origin = _origin(estimator)
    for kept in list(_KEPT):
        if _is_same(kept.origin, origin):
            return kept
    made = Blueprint(estimator)
    _KEPT.append(made)
    return made


def _origin(estimator) -> list[Any]:
    """All that determines the module, as objects to be compared by identity."""
    return [type(estimator), *estimator._module_arguments(), *estimator._private]


def _is_same(origin, other):
    return len(origin) == len(other) and all(a is b for a, b in zip(origin, other, strict=True))
