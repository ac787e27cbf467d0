"""Optimisers that train many clients at once: any that moves each coordinate by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch.optim import Optimizer
from torch.optim.adam import adam

Constructor = Callable[..., Optimizer]


class Descent(ABC):
    """Moves stacked parameters, of which the client is the first axis, by their gradients."""

    def __init__(self, parameters, rates):
        self.names = list(parameters)
        self.parameters = list(parameters.values())
        self.rates = rates

    @abstractmethod
    def step(self, gradients):
        """Move all parameters, in place."""

    def keep_first(self, n):
        """Go on with the first `n` clients; the others stay as they are."""
        self.parameters = [one[:n] for one in self.parameters]


class Sgd(Descent):
    """Stochastic gradient descent, as ``torch.optim.SGD(..., lr=rate)``."""

    def step(self, gradients):
        for parameter, gradient, rate in zip(self.parameters, gradients, self.rates, strict=True):
            parameter.add_(gradient, alpha=-rate)


class Adam(Descent):
    """Adam, as ``torch.optim.Adam(..., lr=rate)``."""

    def __init__(self, parameters, rates):
        super().__init__(parameters, rates)
        self.means, self.squares = ([torch.zeros_like(p) for p in self.parameters] for _ in "mv")
        self.n_steps = 0

    def step(self, gradients):
        self.n_steps += 1
        state = self.parameters, self.means, self.squares, gradients
        for *one, rate in zip(*state, self.rates, strict=True):
            adam_step(*([tensor] for tensor in one), self.n_steps, rate)

    def keep_first(self, n):
        super().keep_first(n)
        self.means, self.squares = ([one[:n] for one in m] for m in (self.means, self.squares))


class Foreign(Descent):
    """An optimiser of torch, or one with the same interface."""

    def __init__(self, make, parameters, rates):
        super().__init__(parameters, rates)
        groups = zip(self.parameters, rates, strict=True)
        self.optimizer = make([{"params": [p], "lr": rate} for p, rate in groups])

    def step(self, gradients):
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            # Fused kernels read the memory as it lies.
            parameter.grad = gradient.contiguous()
        self.optimizer.step()

    def keep_first(self, n):
        old = self.parameters
        super().keep_first(n)
        fresh = dict(zip(old, self.parameters, strict=True))
        for group in self.optimizer.param_groups:
            group["params"] = [fresh[one] for one in group["params"]]
        for before, after in fresh.items():
            state = self.optimizer.state[after] = self.optimizer.state.pop(before, {})
            for name, value in state.items():
                if torch.is_tensor(value) and value.shape == before.shape:
                    state[name] = value[:n]


def adam_step(
    parameters, means, squares, gradients, n_steps, learning_rate,
    *, betas=(0.9, 0.999), epsilon=1e-8, weight_decay=0.0,
):  # fmt: skip
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


def descent(optimizer, parameters, rates):
    """Return the optimiser that is given by name or by its constructor."""
    if callable(optimizer):
        return Foreign(optimizer, parameters, rates)
    return {"adam": Adam, "sgd": Sgd}[optimizer](parameters, rates)
