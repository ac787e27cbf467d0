"""RFRec and RFRecF: from one client's uploads to its rated items, ratings and user vector.

Which items are rated shows in their vectors: all others follow the server's. The rest is a fit: a
copy of the client is replayed from guesses of its user's vector and ratings until it uploads the
same. Adam's first step is the learning rate in the direction of the gradient's sign, less a part
that is inversely proportional to the gradient, so that the sizes of the gradients show in the last
digits. A second step depends on the ratio of the two gradients, and determines all ratings.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.attacks._fit_rfrec import fitted, from_signs
from fedrecsk.attacks._guesses import Guess
from fedrecsk.attacks._replay_rfrec import Move, Replay
from fedrecsk.attacks._rows_in_noise import standing_out

if TYPE_CHECKING:
    from typing import Any

# As many uploads are fitted; later ones are replayed only. Further ones do not add to an exact fit.
FITTED = 2


def rfrec(model, exchanges, n_items):
    """Replay a client until it uploads the same."""
    seen = [_uploaded(one) for one in exchanges]
    items = _rated(model, exchanges, n_items)
    if len(items) == 0:
        return Guess(None, items)
    noise = model._setting().local_dp
    n_fitted = len(seen) if noise is not None else min(FITTED, len(seen))
    moves = _moves(model, exchanges, items)
    last = [k for k, move in enumerate(moves) if move.what == "send"][n_fitted - 1]
    announced = exchanges[0].message
    short = Replay(model, announced, items, moves[: last + 1])
    uploads = np.stack([one[items] for one in seen[:n_fitted]])
    users, ratings = (fitted if noise is None else from_signs)(short, uploads)
    _, taken = Replay(model, announced, items, moves).run(users[None], ratings[None])
    low, high, _ = announced["scale"].values
    return Guess(taken[-1][0], items, low + ((high - low) or 1) * ratings)


def _uploaded(exchange):
    """The client's item vectors."""
    return exchange.message["item_vectors"].values + exchange.upload["item_vectors"].change


def _rated(model, exchanges, n_items):
    """Codes of the items whose vectors do not follow the server's."""
    noise = model._setting().local_dp
    if noise is None:
        # Before the first upload the others have not moved.
        size = (exchanges[0].upload["item_vectors"].change ** 2).sum(axis=1)
        return np.flatnonzero(size > 1e-12 * size.max(initial=0.0))
    common: Any = None
    excess, first = [], 0
    for one in exchanges:
        for round in range(first, one.key.round + 1):
            keys = SimpleNamespace(shared=one.key.at(round))
            common = model._follow(common, one.message, keys)
        first = one.key.round + 1
        excess.append(_uploaded(one) - common["shared"])
    spread = noise.noise_std(common["shared"].size) / np.sqrt(len(excess))
    return standing_out(np.mean(excess, axis=0), spread)


def _moves(model, exchanges, items):
    """What the client has done from the first round to the last upload."""
    moves, first = [], 0
    for one in exchanges:
        center = one.message["item_vectors"].values[items].astype(np.float64)
        for round in range(first, one.key.round + 1):
            steps = model._steps_of(one.key.at(round))
            moves += [Move(what, center, *numbers) for what, *numbers in steps]
        first = one.key.round + 1
    return moves
