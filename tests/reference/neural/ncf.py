"""NCF as a plain loop in torch: each batch's gradients by autograd, then Adam step by step."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits


def train(module, batches, rates, reg, squared=False):
    """Train a module of `fedrecsk.neural.modules` in place; returns the loss of each batch.

    `batches` holds users (n,) and items, targets, weights (n, 1 + n_negatives) of each batch, and
    `rates` their learning rates.
    """
    moments = {name: torch.zeros(2, *p.shape).to(p) for name, p in module.named_parameters()}
    losses = []
    for t, (batch, rate) in enumerate(zip(batches, rates, strict=True), start=1):
        users, items, targets, weights = (torch.from_numpy(one) for one in batch)
        users = users.long()[:, None].expand(items.shape)
        items = items.long()
        scores = module(users, items)
        if squared:
            loss = weights * (scores - targets) ** 2 / 2
        else:
            loss = binary_cross_entropy_with_logits(scores, targets, weights, reduction="none")
        losses.append(loss.detach().sum().item())
        lengths = (module.user(users) ** 2).sum(-1) + (module.item(items) ** 2).sum(-1)
        module.zero_grad()
        (loss + reg * weights * lengths).mean().backward()
        used = {"user.weight": users.unique(), "item.weight": items.unique()}
        for name, parameter in module.named_parameters():
            # Users and items outside of the batch stay as they are.
            rows = used.get(name, slice(None))
            adam_step(parameter.data, parameter.grad, moments[name], rows, t, float(rate))
    return losses


def adam_step(parameter, gradient, moments, rows, t, rate):
    """Step t of Adam (Kingma and Ba 2015) on some rows of a parameter."""
    g = gradient[rows]
    m, v = moments[:, rows]
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    moments[0, rows], moments[1, rows] = m, v
    m, v = m / (1 - 0.9**t), v / (1 - 0.999**t)
    parameter[rows] -= rate * m / (torch.sqrt(v) + 1e-8)
