"""Optimisers that train many clients at once: any that moves each coordinate by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adam import adam

Constructor = Callable[..., Optimizer]


class Rows(NamedTuple):
    """Gradient of a table of which few rows have one."""

    # Rows, in tables whose clients follow one another; repeated ones add up.
    places: Tensor
    values: Tensor


class Descent(ABC):
    """Moves stacked parameters, of which the client is the first axis, by their gradients."""

    def __init__(self, parameters: dict[str, Tensor], rates: list[float]) -> None:
        self.names = list(parameters)
        self.parameters = list(parameters.values())
        self.rates = rates

    @abstractmethod
    def step(self, gradients: list[Tensor | Rows]) -> None:
        """Move all parameters, in place."""

    def keep_first(self, n: int) -> None:
        """Go on with the first `n` clients; the others stay as they are."""
        self.parameters = [one[:n] for one in self.parameters]


class Sgd(Descent):
    """Stochastic gradient descent, as ``torch.optim.SGD(..., lr=rate)``."""

    def step(self, gradients):
        for parameter, gradient, rate in zip(self.parameters, gradients, self.rates, strict=True):
            if isinstance(gradient, Rows):
                rows = _flat(parameter, gradient)
                rows.index_add_(0, gradient.places, gradient.values, alpha=-rate)
            else:
                parameter.add_(gradient, alpha=-rate)


class WholeTables(Descent):
    """An optimiser that needs the gradient of every row, also where it is zero."""

    def __init__(self, parameters, rates):
        super().__init__(parameters, rates)
        # The gradients of tables, zero between two steps.
        self._dense: dict[str, Tensor] = {}

    def step(self, gradients):
        self._move([self._whole(*one) for one in zip(self.names, gradients, strict=True)])
        for name, gradient in zip(self.names, gradients, strict=True):
            if isinstance(gradient, Rows):
                _flat(self._dense[name], gradient).index_fill_(0, gradient.places, 0)

    @abstractmethod
    def _move(self, gradients: list[Tensor]) -> None:
        """Move all parameters by gradients of their own shapes."""

    def keep_first(self, n):
        super().keep_first(n)
        self._dense = {name: one[:n] for name, one in self._dense.items()}

    def _whole(self, name, gradient):
        """Return a gradient in the shape of its parameter."""
        if not isinstance(gradient, Rows):
            # Fused kernels read the memory as it lies.
            return gradient.contiguous()
        if name not in self._dense:
            self._dense[name] = torch.zeros_like(self.parameters[self.names.index(name)])
        whole = self._dense[name]
        _flat(whole, gradient).index_add_(0, gradient.places, gradient.values)
        return whole


class Adam(WholeTables):
    """Adam, as ``torch.optim.Adam(..., lr=rate)``."""

    def __init__(self, parameters, rates):
        super().__init__(parameters, rates)
        self.means, self.squares = ([torch.zeros_like(p) for p in self.parameters] for _ in "mv")
        self.n_steps = 0

    def _move(self, gradients):
        self.n_steps += 1
        state = self.parameters, self.means, self.squares, gradients
        for *one, rate in zip(*state, self.rates, strict=True):
            adam_step(*([tensor] for tensor in one), self.n_steps, rate)

    def keep_first(self, n):
        super().keep_first(n)
        self.means, self.squares = ([one[:n] for one in m] for m in (self.means, self.squares))


class Foreign(WholeTables):
    """An optimiser of torch, or one with the same interface."""

    def __init__(
        self, make: Constructor, parameters: dict[str, Tensor], rates: list[float]
    ) -> None:
        super().__init__(parameters, rates)
        groups = zip(self.parameters, rates, strict=True)
        self.optimizer = make([{"params": [p], "lr": rate} for p, rate in groups])

    def _move(self, gradients):
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()

    def keep_first(self, n):
        old = self.parameters
        super().keep_first(n)
        fresh = dict(zip(old, self.parameters, strict=True))
        for group in self.optimizer.param_groups:
            group["params"] = [fresh[one] for one in group["params"]]
        for before, after in fresh.items():
            state = self.optimizer.state.pop(before, {})
            self.optimizer.state[after] = {k: _first(v, before, n) for k, v in state.items()}


def adam_step(
    parameters: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    gradients: Sequence[Tensor],
    n_steps: int,
    learning_rate: float,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
) -> None:
    """Take step `n_steps`, from 1, of Adam; parameters and moments change in place."""
    # The function of torch, because its class imports the compiler, which takes longer than a small
    # fit.
    steps = [torch.tensor(n_steps - 1.0, device=one.device) for one in parameters]
    gradients = [gradient.contiguous() for gradient in gradients]
    with torch.no_grad():
        adam(
            list(parameters), gradients, list(means), list(squares), [], steps,
            lr=learning_rate, beta1=betas[0], beta2=betas[1], eps=epsilon,
            weight_decay=weight_decay, fused=True, amsgrad=False, maximize=False,
        )  # fmt: skip


def _flat(table: Tensor, gradient: Rows) -> Tensor:
    """Return all clients' rows of a table, as a matrix that shares its memory."""
    return table.view(-1, gradient.values.shape[1])


def _first(value: Any, parameter: Tensor, n: int) -> Any:
    return value[:n] if torch.is_tensor(value) and value.shape == parameter.shape else value


def descent(
    optimizer: str | Constructor, parameters: dict[str, Tensor], rates: list[float]
) -> Descent:
    """Return the optimiser that is given by name or by its constructor."""
    if callable(optimizer):
        return Foreign(optimizer, parameters, rates)
    return {"adam": Adam, "sgd": Sgd}[optimizer](parameters, rates)
