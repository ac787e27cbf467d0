"""What federated methods of ratings share: the rating scale, and biases in front of vectors."""

import numpy as np

from fedrecsk.data._checks import check_ratings, check_scale
from fedrecsk.updates import ClientUpdates


class RatingScale:
    """Mixin of methods with a parameter `rating_scale`, before FederatedRecommender."""

    def _check_before_fit(self):
        super()._check_before_fit()
        if self.rating_scale is not None:
            check_scale(self.rating_scale)

    def _check_setting(self, federation, data, blocks):
        super()._check_setting(federation, data, blocks)
        if self.rating_scale is not None:
            check_ratings(data.values, self.rating_scale)

    def _new_user_attributes(self, data):
        check_ratings(data.values, self.rating_scale_)
        return super()._new_user_attributes(data)


class BiasColumn(RatingScale):
    """Mixin of methods with a parameter `biases`: column 0 of items and users is then the bias.

    Messages have `item_vectors` and a `scale`: the ends of the rating scale and the mean rating.
    """

    @property
    def _width(self):
        """Length of an item's or a user's vector, with its bias."""
        return self.n_factors + int(self.biases)

    def _first_items(self, catalogue, key):
        """Server: item vectors to begin with; items without ratings become zero later."""
        shape = (catalogue.n_items, self._width)
        vectors = self.INIT_STD * key.generator("item vectors").standard_normal(shape)
        if self.biases:
            vectors[:, 0] = 0
        return vectors.astype(self._dtype)

    def _setup_update(self, block, message, step, key):
        fields = {
            "ratings": np.array([block.weights @ block.values, block.weights.sum()]),
            "n_ratings": np.bincount(block.items, block.weights, minlength=block.n_items),
            "held_items": np.bincount(block.row_items, minlength=block.n_items),
        }
        specs = self._setup_specs(block.n_items, step)
        return ClientUpdates({name: fields[name] for name in specs})

    def _server_attributes(self, message):
        items, first = message["item_vectors"].values, int(self.biases)
        low, high, level = (float(number) for number in message["scale"].values)
        attributes = {
            "item_factors_": items[:, first:],
            "global_bias_": level,
            "rating_scale_": (low, high),
        }
        return attributes | ({"item_bias_": items[:, 0]} if self.biases else {})

    def _user_attributes(self, block, state):
        users, first = state["users"], int(self.biases)
        attributes = {"user_factors_": users[:, first:]}
        return attributes | ({"user_bias_": users[:, 0]} if self.biases else {})
