"""Items added to a fitted LightFR: rounds with all users, whose codes stay (section 3.3.3)."""

from __future__ import annotations

import numpy as np

from fedrecsk.federated._lightfr import LightFRClients, LightFRServer
from fedrecsk.models._codes import random_codes
from fedrecsk.protocol.blocks import Block
from fedrecsk.protocol.keys import Key, Keys
from fedrecsk.protocol.messages import Total
from fedrecsk.protocol.participation import RoundMasks


def joined(model, users, items, values, weights, n_items):
    """Return all users' rows, each user a client; of the old ones only the items matter."""
    seen_indptr, seen_items = model._seen
    numbers, n_seen = np.arange(model.n_users_), len(seen_items)
    owners = np.concatenate([np.repeat(numbers, np.diff(seen_indptr)), users])
    order = np.argsort(owners, kind="stable")
    lengths = np.bincount(owners, minlength=model.n_users_)
    return Block(
        clients=numbers,
        users=numbers,
        client_indptr=np.arange(model.n_users_ + 1),
        indptr=np.concatenate([[0], np.cumsum(lengths)]),
        items=np.concatenate([seen_items, items])[order].astype(np.int32),
        values=np.concatenate([np.full(n_seen, model.rating_scale_[1]), values])[order],
        weights=np.concatenate([np.ones(n_seen), weights])[order],
        n_items=n_items,
    )


def fitted_codes(model, block, n_rounds):
    """Return the codes of all the block's items, after rounds in which only new ones may change."""
    # New items' codes are not balanced, and users send sums over all items.
    algorithm = model._algorithm(balance_item=0.0, moves_users=False, upload="all")
    known, new = model.item_codes_, np.arange(model.n_items_, block.n_items)
    new = random_codes(Key(0), "item codes", new, 1, algorithm.n_bits)[:, 0]
    mean = np.zeros(algorithm.n_bits)
    if "mean_user" in model._final_message:
        mean = model._final_message["mean_user"].values
    server = LightFRServer(np.concatenate([known, new]), model.rating_scale_, mean)
    rows = algorithm.rows(block, algorithm.announce(server))
    clients, everyone = (
        LightFRClients(rows, model.user_codes_),
        np.ones(block.n_clients, dtype=bool),
    )
    turn = RoundMasks(everyone, everyone, False)
    for t in range(n_rounds):
        key, before = Key(0, t), server.codes
        message = algorithm.decode(algorithm.broadcast(server, key), key)
        _, updates, _ = algorithm.update(block, clients, message, turn, Keys(key, key))
        upload = {name: Total(one, block.n_clients) for name, one in updates.fields.items()}
        server = algorithm.step(server, upload, key)
        server.codes[: len(known)] = known
        # Sampled negatives are redrawn in every round.
        if algorithm.aggregation == "full" and np.array_equal(server.codes, before):
            break
    return server.codes
