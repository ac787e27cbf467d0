"""What methods of ratings share: sums of ratings, the scale and the level, biases as a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from fedrecsk.models import Factors, clipped
from fedrecsk.protocol.algorithm import Algorithm, C, S
from fedrecsk.protocol.messages import Dense
from fedrecsk.updates import FieldSpec, Updates

# What clients send in the set-up for the mean of all ratings: `sums_of_ratings`.
RATINGS = {"ratings": FieldSpec((2,), learned=False)}


def held_items(n_items):
    """Return the field of the items that a client holds: an int32 for each, its index."""
    return {"held_items": FieldSpec((n_items,), "held", dtype="int32", learned=False)}


def sums_of_ratings(block):
    """Return the sums of a block's ratings, times their weights, and of the weights."""
    return np.array([block.weights @ block.values, block.weights.sum()])


def numbers_of_ratings(block):
    """Return each item's number of ratings in a block, by weight."""
    return np.bincount(block.items, block.weights, minlength=block.n_items)


def numbers_of_holders(block):
    """Return how many clients of a block have rated each item."""
    return np.bincount(block.row_items, minlength=block.n_items)


def answer(block, names):
    """Return what a block sends in the set-up: of these sums those that the server asks for."""
    sums = {
        "ratings": sums_of_ratings,
        "n_ratings": numbers_of_ratings,
        "held_items": numbers_of_holders,
    }
    return Updates({name: sums[name](block) for name in names})


class Scale(NamedTuple):
    """The ends of the rating scale, and the level: the score of the mean rating."""

    low: float
    high: float
    level: float

    @classmethod
    def received(cls, message) -> Self:
        """Return the scale of a message."""
        return cls(*message["scale"].values.tolist())

    def sent(self):
        """Return the scale as the field `scale` of a message."""
        return Dense(np.array(self))

    @property
    def unit(self):
        """The difference of the ends, 1 if they are equal."""
        return float((self.high - self.low) or 1)


@dataclass(kw_only=True, eq=False)
class ColumnAlgorithm(Algorithm[S, C]):
    """Vectors have biases in column 0, if any; the server sends `item_vectors` and a `scale`."""

    n_factors: int
    biases: bool
    dtype: type[np.floating] = np.float32

    @property
    def width(self):
        """Length of an item's or a user's vector, with its bias."""
        return self.n_factors + int(self.biases)

    def first_items(self, n_items, std, key):
        """Return normally distributed item vectors of this standard deviation."""
        shape = n_items, self.width
        return self.first_vectors(std * key.generator("item vectors").standard_normal(shape))

    def first_vectors(self, vectors):
        """Return vectors that were drawn as vectors to begin with, of bias 0."""
        if self.biases:
            vectors[:, 0] = 0
        return vectors.astype(self.dtype)

    def numbers_of_users(self, block):
        """Return the number of each number in users' vectors, by which it is drawn."""
        return block.users[:, None] * self.width + np.arange(self.width)

    def without_bias(self, vectors):
        """Return a view of vectors without the bias in front."""
        return vectors[:, int(self.biases) :]

    def attributes(self, vectors, what):
        """Return vectors of "item" or "user" as fitted attributes."""
        factors = {f"{what}_factors_": self.without_bias(vectors)}
        return factors | ({f"{what}_bias_": vectors[:, 0]} if self.biases else {})

    # ------------------------------------------------------------------------ the model

    def server_attributes(self, message):
        """Return the fitted attributes of items, from the final message."""
        low, high, level = Scale.received(message)
        attributes = self.attributes(message["item_vectors"].values, "item")
        return attributes | {"global_bias_": level, "rating_scale_": (low, high)}

    def user_attributes(self, block, clients: Any):
        """Return the fitted attributes of users."""
        return self.attributes(clients.users, "user")

    def model(self, fitted):
        """Return the model, whose scores are clipped to the scale."""
        return Factors.of(fitted, response=clipped(*fitted["rating_scale_"]))
