"""Steps along gradients, by Adam or plain gradient descent."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal, NamedTuple

import numpy as np

from fedrecsk._utils.constraints import Positive
from fedrecsk._utils.parameters import constant


def adam(method, moments, n_steps, gradient):
    """Return the direction of step `n_steps`, from 1, and Adam's new moments (mean, square)."""
    mean, square = moments
    # What overflows ends the fit, or warns, with its likely cause.
    with np.errstate(over="ignore", invalid="ignore"):
        mean = method.BETA_1 * mean + (1 - method.BETA_1) * gradient
        square = method.BETA_2 * square + (1 - method.BETA_2) * gradient**2
        size = np.sqrt(square / (1 - method.BETA_2**n_steps)) + method.EPSILON
        return mean / (1 - method.BETA_1**n_steps) / size, (mean, square)


class Moments(NamedTuple):
    """Adam's running means of gradients and of their squares, after so many steps."""

    n_steps: int
    mean: np.ndarray
    square: np.ndarray


@dataclass(eq=False, repr=False)
class StepParameters:
    """Parameters of methods whose server steps along gradients."""

    _: KW_ONLY
    learning_rate: Positive = 0.1
    optimizer: Literal["adam", "gd"] = "adam"
    BETA_1: float = constant(0.1)
    BETA_2: float = constant(0.99)
    EPSILON: float = constant(1e-8)


def descend(method, values, gradient, moments):
    """Return values (float64) a step down the gradient, and the new Moments (None before)."""
    if method.optimizer == "adam":
        n_steps, *before = (0, 0.0, 0.0) if moments is None else moments
        gradient, after = adam(method, before, n_steps + 1, gradient)
        moments = Moments(n_steps + 1, *after)
    return values.astype(np.float64) - method.learning_rate * gradient, moments
