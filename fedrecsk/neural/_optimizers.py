"""Optimisers that train many clients at once: any that moves each coordinate by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adam import adam
from torch.optim.sgd import sgd

Tensors = list[Tensor]
Make = Callable[..., Optimizer]


class Descent(ABC):
    """Moves stacked parameters, of which the client is the first axis, by their gradients.

    Parameters
    ----------
    parameters : list of Tensor
    rates : list of float
        Learning rate of each.
    """

    def __init__(self, parameters: Tensors, rates: list[float]) -> None:
        self.parameters = parameters
        self.rates = rates

    @abstractmethod
    def step(self, gradients: Tensors) -> None:
        """Move all parameters, in place."""

    @abstractmethod
    def keep_first(self, parameters: Tensors, n: int) -> None:
        """Go on with the first `n` clients, in these tensors."""


class Sgd(Descent):
    """Stochastic gradient descent, as ``torch.optim.SGD(..., lr=rate)``."""

    def step(self, gradients):
        options = {"weight_decay": 0, "momentum": 0, "dampening": 0, "nesterov": False}
        for parameter, gradient, rate in zip(self.parameters, gradients, self.rates, strict=True):
            sgd([parameter], [gradient], [None], lr=rate, maximize=False, **options)

    def keep_first(self, parameters, n):
        self.parameters = parameters


class Adam(Descent):
    """Adam, as ``torch.optim.Adam(..., lr=rate)``.

    The functions of torch are used instead of its classes, because these import its compiler,
    which takes longer than a small fit.
    """

    def __init__(self, parameters, rates):
        super().__init__(parameters, rates)
        self.means, self.squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
        self.steps = [torch.zeros((), dtype=torch.float32, device=p.device) for p in parameters]

    def step(self, gradients):
        options = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0}
        state = self.parameters, gradients, self.means, self.squares, self.steps
        for parameter, gradient, mean, square, step, rate in zip(*state, self.rates, strict=True):
            adam(
                [parameter], [gradient], [mean], [square], [], [step],
                lr=rate, fused=True, amsgrad=False, maximize=False, **options,
            )  # fmt: skip

    def keep_first(self, parameters, n):
        self.parameters = parameters
        self.means = [one[:n].clone() for one in self.means]
        self.squares = [one[:n].clone() for one in self.squares]


class Foreign(Descent):
    """An optimiser of torch, or one with the same interface.

    Parameters
    ----------
    make : callable
        Returns it for a list of parameter groups.
    """

    def __init__(self, make: Make, parameters: Tensors, rates: list[float]) -> None:
        super().__init__(parameters, rates)
        groups = zip(parameters, rates, strict=True)
        self.optimizer = make([{"params": [p], "lr": rate} for p, rate in groups])

    def step(self, gradients):
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()

    def keep_first(self, parameters, n):
        fresh = dict(zip(self.parameters, parameters, strict=True))
        for group in self.optimizer.param_groups:
            group["params"] = [fresh[one] for one in group["params"]]
        for old, new in fresh.items():
            state = self.optimizer.state.pop(old, {})
            self.optimizer.state[new] = {k: _first(v, old, n) for k, v in state.items()}
        self.parameters = parameters


def _first(value: Any, parameter: Tensor, n: int) -> Any:
    stacked = torch.is_tensor(value) and value.shape == parameter.shape
    return value[:n].clone() if stacked else value


def descent(optimizer: str | Make, parameters: Tensors, rates: list[float]) -> Descent:
    """The optimiser that is given by name or by its constructor."""
    if callable(optimizer):
        return Foreign(optimizer, parameters, rates)
    return {"adam": Adam, "sgd": Sgd}[optimizer](parameters, rates)


def check(optimizer: str | Make) -> None:
    """Raise unless an optimiser moves each coordinate by its own gradients, or not at all.

    Only then may clients be stacked in one tensor, and rows of which a client has no gradient be
    left out.

    Raises
    ------
    ValueError
    """
    if isinstance(optimizer, str):
        return
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    gradients = torch.randn(3, 3, 4, generator=generator, dtype=torch.float64)
    gradients[:, 1, 2] = 0
    name = getattr(optimizer, "func", optimizer)
    name = getattr(name, "__name__", type(name).__name__)
    try:
        stacked = _moved(optimizer, first, gradients)
        numbers = zip(first.ravel(), gradients.flatten(1).T, strict=True)
        alone = torch.stack([_moved(optimizer, *one) for one in numbers]).reshape(first.shape)
    except Exception as error:
        raise ValueError(
            f"The optimizer {name} could not train a matrix by its gradient alone "
            f'({type(error).__name__}: {error}). Use "adam", "sgd" or another optimiser that '
            "needs no closure."
        ) from error
    if not torch.allclose(stacked, alone, rtol=1e-9, atol=1e-12):
        raise ValueError(
            f"The optimizer {name} mixes coordinates: it moves a number by other numbers' "
            "gradients, so clients cannot be trained side by side. Use an elementwise one, such "
            'as "adam" or "sgd".'
        )
    if stacked[1, 2] != first[1, 2]:
        raise ValueError(
            f"The optimizer {name} moves numbers whose gradient is zero (weight decay?), but "
            "clients do not keep rows of items that they have no examples of. Set its "
            "weight_decay=0, and put a penalty into the loss."
        )


def _moved(optimizer, first, gradients):
    parameter = first.clone().requires_grad_()
    one = descent(optimizer, [parameter], [0.1])
    for gradient in gradients:
        one.step([gradient.clone()])
    return parameter.detach()
