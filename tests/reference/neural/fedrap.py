"""FedRAP, one client after the other, with whole tables and torch's autograd.

Examples are drawn and shuffled as in `federated_module`.
"""

from math import tanh

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from tests.reference.colr import Stream
from tests.reference.neural.federated_module import examples


def one_round(a, shared, clients, settings, seeds):
    """Shared items after round `a`, from 0; each client's private d, w and b move in place.

    `clients` is a list of (rated, own): {item: (target, weight)}, and tensors by name.
    """
    independence, sparsity = (settings[name] * tanh(a / 10) for name in ("v_1", "v_2"))
    slow, fast = (settings[name] * settings["decay"] ** a for name in ("rate", "item_rate"))
    changes = torch.zeros_like(shared)
    for (rated, own), seed in zip(clients, seeds, strict=True):
        stream, q = Stream(seed), shared.clone()
        drawn = examples([rated], len(shared), settings["n_negatives"], stream)
        order = list(range(len(drawn)))
        for _ in range(settings["n_epochs"]):
            order = stream.shuffled(order)
            for start in range(0, len(order), settings["batch_size"]):
                batch = [drawn[e] for e in order[start : start + settings["batch_size"]]]
                i = torch.tensor([item for _, item, _, _ in batch])
                y = torch.tensor([target for _, _, target, _ in batch], dtype=q.dtype)
                moving = [q, own["d"], own["w"], own["b"]]
                leaves = [one.clone().requires_grad_() for one in moving]
                q_, d, w, b = leaves
                loss = (
                    binary_cross_entropy_with_logits((q_[i] + d[i]) @ w + b, y)
                    - independence * ((d[i] - q_[i]) ** 2).mean()
                    + sparsity * q_[i].abs().mean()
                )
                gradients = torch.autograd.grad(loss, leaves)
                for one, gradient, rate in zip(
                    moving, gradients, (fast, fast, slow, slow), strict=True
                ):
                    one -= rate * gradient
        changes += q - shared
    return shared + changes / len(clients)
