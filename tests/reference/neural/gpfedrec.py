"""GPFedRec, one client after the other, with whole tables and torch's autograd.

Examples are drawn and shuffled as in `federated_module`.
"""

import torch
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits

from tests.reference.colr import Stream
from tests.reference.neural.federated_module import examples


def trained(module, own, begin, goal, rated, settings, seed, *, moves_items=True):
    """A client's items after its local epochs; its private parameters `own` move in place.

    The loss is the mean cross-entropy of a batch, plus `reg` times the mean of all squared
    differences between the client's items and the `goal`. Of the rows without an example, on which
    only that penalty depends, the result is its minimum.
    """
    items, stream = begin.clone(), Stream(seed)
    drawn = examples([rated], len(items), settings["n_negatives"], stream)
    order = list(range(len(drawn)))
    for _ in range(settings["n_epochs"]):
        order = stream.shuffled(order)
        for start in range(0, len(order), settings["batch_size"]):
            batch = [drawn[e] for e in order[start : start + settings["batch_size"]]]
            u, i = (torch.tensor([example[k] for example in batch]) for k in range(2))
            y = torch.tensor([example[2] for example in batch], dtype=items.dtype)
            leaves = {
                name: value.clone().requires_grad_()
                for name, value in (own | {"item.weight": items}).items()
            }
            loss = binary_cross_entropy_with_logits(functional_call(module, leaves, (u, i)), y)
            loss = loss + settings["reg"] * ((leaves["item.weight"] - goal) ** 2).mean()
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            for name, gradient in zip(leaves, gradients, strict=True):
                kind = name.split(".")[0]
                if kind == "item" and moves_items:
                    items -= settings["item_rate"] * gradient
                elif kind != "item":
                    own[name] -= settings["user_rate" if kind == "user" else "rate"] * gradient
    visited = {example[1] for example in drawn}
    others = [item for item in range(len(items)) if item not in visited]
    items[others] = goal[others]
    return items


def graph_means(tables):
    """The mean table of each client's neighbours, whose cosine with its own is above the mean."""
    flat = [one.flatten() for one in tables]
    cosines = torch.tensor([[float(a @ b / a.norm() / b.norm()) for a in flat] for b in flat])
    means = []
    for row in cosines:
        neighbours = [tables[v] for v in range(len(tables)) if row[v] > cosines.mean()]
        means.append(torch.stack(neighbours).mean(dim=0))
    return means
