"""Federated averaging of a torch module, one client after the other, with whole tables.

Examples are drawn as FedMF's clients draw them: first the negatives, user by user and rating by
rating, then the shuffle of every epoch, from a splitmix64 stream of the client's own.
"""

import fnmatch

import numpy as np
import torch

from fedrecsk.protocol.keys import Key
from tests.reference.colr import Stream


def examples(users, n_items, n_negatives, stream):
    """(user, item, target, weight) of a client; `users` is a list of {item: (target, weight)}."""
    found = []
    for user, rated in enumerate(users):
        unseen = [item for item in range(n_items) if item not in rated]
        for item in sorted(rated):
            target, weight = rated[item]
            found.append((user, item, target, weight))
            if target > 0 and unseen:
                for _ in range(n_negatives):
                    found.append((user, unseen[stream.below(len(unseen))], 0.0, weight))
    return found


def train(module, optimizers, users, n_items, loss, settings, stream):
    """Local epochs of one client, in place; each batch is a step of each optimiser in turn."""
    own = examples(users, n_items, settings["n_negatives"], stream)
    order = list(range(len(own)))
    for _ in range(settings["n_epochs"]):
        order = stream.shuffled(order)
        for start in range(0, len(own), settings["batch_size"]):
            batch = [own[e] for e in order[start : start + settings["batch_size"]]]
            u, i = (torch.tensor([example[k] for example in batch]) for k in range(2))
            dtype = next(module.parameters()).dtype
            y, w = (torch.tensor([example[k] for example in batch], dtype=dtype) for k in (2, 3))
            for optimizer in optimizers:
                module.zero_grad()
                ((w * loss(module(u, i), y)).sum() / w.sum()).backward()
                optimizer.step()
    return {example[1] for example in own}


def one_round(make, private, server, clients, n_items, loss, optimizers, settings, seeds):
    """The server's parameters after a round with all clients, whose private ones are changed.

    `clients` is a list of (users, private parameters by name); `optimizers` makes those of one
    client, once per round.
    """
    sums = {name: np.zeros(value.shape) for name, value in server.items()}
    n_visits = np.zeros(n_items)
    for (users, own), seed in zip(clients, seeds, strict=True):
        module = make(n_users=len(users), n_items=n_items)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                is_private = any(fnmatch.fnmatch(name, pattern) for pattern in private)
                parameter.copy_(torch.as_tensor((own if is_private else server)[name]))
        own_optimizers = optimizers(module)
        visited = train(module, own_optimizers, users, n_items, loss, settings, Stream(seed))
        n_visits[list(visited)] += 1
        for name, parameter in module.named_parameters():
            value = parameter.detach().numpy()
            if name in own:
                own[name] = value.copy()
            else:
                sums[name] += value.astype(np.float64) - server[name]
    return sums, n_visits


def seeds_of(key: Key, n_clients):
    return key.hashed("visit", np.arange(n_clients))
