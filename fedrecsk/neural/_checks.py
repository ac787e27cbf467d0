"""Checks, before a fit, that a module and an optimiser can be simulated exactly."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedrecsk._utils.user_warnings import warn
from fedrecsk.neural._layout import (
    LARGE,
    TABLES,
    Layout,
    Make,
    built,
    check_patterns,
    explained,
    matching,
    own_settings,
    seeded,
)
from fedrecsk.neural._training import Constructor, descent

USERS, ITEMS = torch.tensor([4, 1, 1, 0]), torch.tensor([6, 2, 5, 5])
# Options of nn.Embedding that make a row depend on its number or on other rows.
OPTIONS = ("padding_idx", "max_norm", "scale_grad_by_freq", "sparse")


def check_module(make: Make, layout: Layout, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Build a small module, score some pairs, and raise if clients could not be simulated by it."""
    with own_settings(), seeded(0):
        module = built(make, *LARGE).train()
        _check_layers(module)
        scores = _scored(module)
        if not torch.isfinite(scores).all():
            raise ValueError(
                "The module gives scores that are not finite although it is new. Look at its first "
                "numbers, and for a division by zero or the logarithm of a negative number."
            )
        if not torch.equal(scores, _scored(module)):
            raise ValueError(
                "The module gives other scores when called again, so it draws random numbers. "
                "They would come from torch's global stream and could not be repeated; leave "
                "dropout and noise out."
            )
        _check_gradients(module, layout)
        _check_rows(make, module, layout, scores)
        _check_loss(loss, scores)


def _check_layers(module):
    for name, _ in module.named_buffers():
        raise ValueError(
            f"The module has the buffer {name}, such as batch normalisation has. It is neither "
            "trained nor private, and clients would change it in the order in which they come; "
            "use LayerNorm instead of BatchNorm, and no buffers."
        )
    for name, layer in module.named_modules():
        kind = type(layer).__name__
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            raise ValueError(
                f"{name} is a {kind}, whose random numbers come from torch's global stream and "
                "could not be repeated; set p=0 or leave it out."
            )
        if isinstance(layer, nn.Embedding):
            # 0 is a padding_idx.
            given = {option: getattr(layer, option) for option in OPTIONS}
            odd = [option for option, v in given.items() if v is not None and v is not False]
            if odd:
                raise ValueError(
                    f"{name} is an Embedding with {odd[0]}, by which its rows would not be "
                    "trained by their gradients alone; leave it out."
                )


def _scored(module):
    what = "The module could not score four pairs of users and items"
    cure = "It is called as module(users, items) with two tensors of codes."
    with explained(what, cure), torch.no_grad():
        scores = module(USERS, ITEMS)
    if not torch.is_tensor(scores) or scores.shape != USERS.shape:
        got = tuple(scores.shape) if torch.is_tensor(scores) else type(scores).__name__
        hint = " Did you forget .squeeze(-1)?" if got == (*USERS.shape, 1) else ""
        raise ValueError(
            f"module(users, items) must return a tensor with a score for each pair, in the shape "
            f"of users: got {got} for {tuple(USERS.shape)}.{hint}"
        )
    if scores.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"module(users, items) must return scores in float32 or float64, got {scores.dtype}."
        )
    return scores


def _check_gradients(module, layout):
    """Raise if nothing can be trained, and warn of parameters that would be sent for nothing."""
    with torch.enable_grad():
        scores = module(USERS, ITEMS)
        if not scores.requires_grad:
            raise ValueError(
                "module(users, items) returns scores without a gradient, so nothing would be "
                "trained; leave out detach() and torch.no_grad()."
            )
        parameters = dict(module.named_parameters())
        names = layout.trained
        found = torch.autograd.grad(
            scores.sum(), [parameters[name] for name in names], allow_unused=True
        )
    unused = [name for name, gradient in zip(names, found, strict=True) if gradient is None]
    if unused:
        warn(
            f"The scores do not depend on {', '.join(unused)} of the module, which would be sent "
            "or kept for nothing. Use them in forward, or leave them out.",
        )


def _check_rows(make, module, layout, scores):
    """Raise if scores depend on users and items in another way than by rows of their tables."""
    empty = built(make, 1, LARGE[1])
    stacked = {}
    for name, parameter in module.named_parameters():
        kind = layout.parts[name].kind
        rows = USERS if kind == "user" else ITEMS if kind in TABLES else None
        values = parameter.detach()
        stacked[name] = values.expand(4, *values.shape) if rows is None else values[rows, None]
    first = torch.zeros(4, 1, dtype=torch.int64)
    cure = (
        "Its forward may use parameters and tensors of codes only, without branches on their "
        "values and without other tensors."
    )
    score = vmap(lambda own, *pairs: functional_call(empty, own, pairs))
    with explained("The module could not be vectorised over clients", cure), torch.no_grad():
        alone = score(stacked, first, first)
    with torch.no_grad():
        pairs = [module(USERS[k : k + 1], ITEMS[k : k + 1]) for k in range(len(USERS))]
    if not torch.allclose(torch.cat(pairs), scores, rtol=1e-4, atol=1e-6):
        raise ValueError(
            "The score of a pair depends on the other pairs of its batch. It must not: no mean, "
            "sum, softmax or sort over all pairs in forward."
        )
    if not torch.allclose(alone.squeeze(-1), scores, rtol=1e-4, atol=1e-6):
        raise ValueError(
            "The module uses codes of users or items in another way than as rows of its tables. "
            "Clients hold some rows only, so the same item has other codes there; let each "
            "feature of an item be a parameter with a row per item."
        )


def _check_loss(loss, scores):
    cure = (
        "It is called as loss(scores, targets) with two tensors of one shape; of a class such as "
        'nn.MSELoss, give an object: nn.MSELoss(reduction="none").'
    )
    with explained("loss could not be computed", cure):
        losses = loss(scores, torch.ones_like(scores))
    if not torch.is_tensor(losses) or losses.shape != scores.shape:
        got = tuple(losses.shape) if torch.is_tensor(losses) else type(losses).__name__
        raise ValueError(
            f"loss(scores, targets) must return the loss of each example, in the shape of scores: "
            f'got {got} for {tuple(scores.shape)}. Use reduction="none".'
        )
    _check_examples(loss)


def _check_examples(loss):
    """Raise if an example's loss depends on other examples, which are those of other clients."""
    scores = torch.linspace(-2.0, 3.0, 12).reshape(3, 4).requires_grad_()
    targets = (torch.arange(12).reshape(3, 4) % 3 == 0).to(scores.dtype)
    with torch.enable_grad():
        losses = loss(scores, targets)
        if not losses.requires_grad:
            raise ValueError(
                "loss(scores, targets) has no gradient by the scores, so nothing would be trained; "
                "compute it from the scores in torch, without detach()."
            )
        again = loss(scores, targets)
        alone = [
            loss(score.reshape(1, 1), target.reshape(1, 1)).reshape(())
            for score, target in zip(scores.flatten(), targets.flatten(), strict=True)
        ]
    if not torch.equal(losses.nan_to_num(), again.nan_to_num()):
        raise ValueError(
            "loss gives other numbers when called again, so it draws random numbers. They would "
            "come from torch's global stream and could not be repeated; leave them out."
        )
    if not torch.allclose(losses.flatten(), torch.stack(alone), rtol=1e-4, equal_nan=True):
        raise ValueError(
            "An example's loss depends on other examples. It is called with the examples of many "
            "clients at once, so it must treat each by itself: no mean, sum, sort, softmax or "
            "branch over all scores or targets."
        )


def check_optimizer(optimizer: str | Constructor) -> None:
    """Raise unless an optimiser moves each coordinate by its own gradients, or not at all."""
    # Only then may clients be stacked in one tensor, and rows without a gradient be left out.
    if isinstance(optimizer, str):
        return
    if "lr" in getattr(optimizer, "keywords", {}):
        raise ValueError(
            "optimizer sets lr, which learning_rate would replace; leave lr out of the optimiser, "
            "and set learning_rate."
        )
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    gradients = torch.randn(3, 3, 4, generator=generator, dtype=torch.float64)
    gradients[:, 1, 2] = 0
    name = getattr(optimizer, "func", optimizer)
    name = getattr(name, "__name__", type(name).__name__)
    what = f"The optimizer {name} could not train a matrix by its gradient alone"
    with explained(what, 'Use "adam", "sgd" or another optimiser that needs no closure.'):
        stacked = _moved(optimizer, first, gradients)
        numbers = zip(first.ravel(), gradients.flatten(1).T, strict=True)
        alone = torch.stack([_moved(optimizer, *one) for one in numbers]).reshape(first.shape)
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
    parameter = first.clone()
    one = descent(optimizer, {"": parameter}, [0.1])
    for gradient in gradients:
        one.step([gradient.clone()], {})
    return parameter


def check_rates(rates: dict[str, float], layout: Layout) -> None:
    """Raise unless every trained parameter has one valid learning rate."""
    check_patterns("learning_rate", rates, layout.parts)
    for pattern, rate in rates.items():
        if not isinstance(rate, Real) or not rate > 0:
            raise ValueError(f"learning_rate[{pattern!r}] is {rate!r}; it must be above 0.")
    for name in layout.trained:
        if matching(name, rates) is None:
            raise ValueError(
                f'learning_rate has no pattern that matches {name}; add "{name}", or "*" for the '
                "rest."
            )


def check_device(device: str | torch.device) -> None:
    """Raise if a device is not there."""
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device={str(device)!r} is not there: {str(error).splitlines()[0].rstrip('.')}. "
            'Use "cpu".'
        ) from error
