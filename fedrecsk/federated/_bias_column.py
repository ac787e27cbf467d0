"""Rating methods that keep biases in front of vectors."""


class BiasColumn:
    """Mixin of methods with a parameter `biases`: column 0 of items and users is then the bias.

    Messages have `item_vectors` and a `scale`: the ends of the rating scale and the mean rating.
    """

    @property
    def _width(self):
        """Numbers of an item or a user."""
        return self.n_factors + int(self.biases)

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
