"""FedItemKNN: nearest items from one sum over clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedrecsk._utils.docs import documented
from fedrecsk.base._item_cosines import NearestContent, cosines_of
from fedrecsk.base._item_prior import ItemFeatures
from fedrecsk.base._item_weights import (
    Direction,
    NearestItemsMixin,
    NearestParameters,
    diagonal,
    nearest_items,
    sparse_weights,
)
from fedrecsk.base._ordered_pairs import directed
from fedrecsk.federated._gram import FederatedGram
from fedrecsk.federated.fedease import OwnWeightsAlgorithm, OwnWeightsParameters
from fedrecsk.models._model import NearestWeights
from fedrecsk.protocol.messages import Dense, Derived, Form, Message, Rows

__all__ = ["FedItemKNN"]


@dataclass(kw_only=True, eq=False)
class FedItemKNNAlgorithm(NearestParameters, OwnWeightsAlgorithm):
    """The server finds the nearest items of each item."""

    solves_sparse = True

    # None: what the sum says.
    backward_weight: float | None
    item_content: ItemFeatures

    @property
    def has_direction(self):
        return self.backward_weight != 1

    @property
    def learns_direction(self):
        return self.backward_weight is None

    def downloads(self, n_items):
        shape = n_items, min(self.n_neighbors, n_items)
        neighbors = Form(shape, "int", bounds=(0, n_items - 1))
        forms = {"neighbors": neighbors, "nearness": Form(shape)}
        if self.learns_direction:
            forms["backward_weight"] = Form((1,), bounds=(0, 1))
            forms["pair_support"] = Form((1,), bounds=(1, np.inf))
        return super().downloads(n_items) | forms

    def solve(self, server):
        gram, n_items = server.visible_gram(), server.n_items
        counts = diagonal(gram, n_items)
        matrix, direction = directed(gram, n_items, self.backward_weight, server.squares)
        powers = direction.powers(self.power, self.history_power)
        own = self.n_neighbors, *powers, self.shrinkage
        neighbors, nearness = nearest_items(
            matrix, counts, *own, dtype=self.dtype, cosines=self.item_prior(server)
        )
        field = Rows if self.sends_rows else Dense
        message = Message(
            neighbors=field(neighbors, dtype="int32", learned=False), nearness=field(nearness)
        )
        if self.learns_direction:
            for name, value in direction._asdict().items():
                message[name] = Dense(np.array([value]))
        return message

    def item_prior(self, server):
        return cosines_of(self.item_content, server.counts, self.content_weight)

    def personalize(self, block, clients, message, turn, key):
        clients = super().personalize(block, clients, message, turn, key)
        return replace(clients, direction=self.direction_in(message))

    def direction_in(self, message):
        """Return what the final model says of direction."""
        if not self.learns_direction:
            return Direction(self.backward_weight)
        return Direction(*(float(message[name].values[0]) for name in Direction._fields))

    def decode(self, message, key):
        if "nearness" not in message:
            return message
        weights = sparse_weights(message["neighbors"].values, message["nearness"].values)
        return Message(**message, item_weights=Derived(weights))

    # ------------------------------------------------------------------------ the model

    def server_attributes(self, message):
        direction = self.direction_in(message)
        return super().server_attributes(message) | {
            "backward_weight_": direction.backward_weight,
            "pair_support_": direction.pair_support,
        }

    def model(self, fitted):
        return NearestWeights.of(fitted)

    def life_of_history(self, direction: Any):
        return direction.half_life(self.history_half_life)


@documented
@dataclass(eq=False, repr=False)
class FedItemKNN(NearestContent, NearestItemsMixin, OwnWeightsParameters, FederatedGram):
    """Nearest items from one sum in one round.

    :class:`ItemKNN` needs only X'X, which is a sum over users. Every client uploads its users' part
    of it once. The result is exactly that of the centralised model on the data of the clients whose
    uploads arrived. With 5,000 items and more the sum is kept sparse, so that catalogues of tens of
    thousands of items take little memory.

    Parameters
    ----------
    {n_neighbors}
    {nearest power}
        On the scale of the sum of uploads.
    {history_power}
    {neighbours shrinkage}
    n_rounds, upload
        As in :class:`FedEASE`.
    download : {"auto", "local", "all"}, default="auto"
        What a client receives in the end: the nearest items of its own items, or those of all
        items. "auto": "all" with secure aggregation or central privacy, and otherwise "local", for
        which the client reports beforehand which items it holds.
    {timestamps}
    {nearest half-lives}
    {nearest item_features}
    {content_weight}
    {shared parameters}

    Attributes
    ----------
    item_weights_ : csr_array of shape (n_items, n_items), dtype float32
        B: row j is added to the scores of all items for each item j in a user's history.
    {backward_weight_}
    {pair_support_}
    user_history_ : csr_array of shape (n_users, n_items), dtype float32
        X, faded: the weight of each item in a user's history. It never leaves the client.
    {shared attributes}

    Raises
    ------
    ValueError
        As :class:`FedEASE` does, if more than 65,535 items are kept sparse (37,836 with direction),
        or if `backward_weight` is below 1 without half-lives or times.

    See Also
    --------
    ItemKNN : The same model without clients.
    FedEASE : Weights between all items at once, for fewer items.

    Notes
    -----
    *Algorithm*::

        set-up  with download="local", clients report which items they hold  answer
        each round
          1  server requests uploads (1 byte)                   broadcast
          2  clients that have not sent before upload x x',
             summed over their users                            update: kernel add_pairs
          3  server adds up: G                                  step
        end
          4  server finds the nearest items of each item,
             by B_ij = G_ij / ((G_ii G_jj)^power + shrinkage),
             or with direction as below                         solve
          5  clients receive those of their items               final
          6  ... and add up those of a user's own items

    {time}
    What is sent is as large as without time, and as private.

    {direction}
    The number of a pair says which item came first, so a client with one user sends no more numbers
    than without direction; with "auto" it sends two more, with ``upload="all"`` twice as many as
    without. Central privacy takes no direction, whose noise hides it.

    {item attributes}
    The server adds the cosines before it finds the nearest items, so bytes stay as they are.

    *What is sent.* Up, as in :class:`FedEASE`: once, 8 bytes for each pair of items that one of the
    client's users likes, or with ``upload="all"`` 4 for each pair of the catalogue. In the end,
    down: ``8 n_neighbors`` bytes (index and value) for each own item, or for each item with "all".

    *Rounds, cohorts, lost uploads, what is revealed, central privacy* are as in :class:`FedEASE`.
    Under central privacy and secure sums whole triangles are sent, which many items do not allow.

    References
    ----------
    .. [1] B. Sarwar, G. Karypis, J. Konstan and J. Riedl, "Item-based collaborative filtering
       recommendation algorithms", WWW 2001.

    Examples
    --------
    >>> import numpy as np
    >>> from fedrecsk import FedItemKNN, ItemKNN
    >>> from fedrecsk.datasets import make_ratings
    >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model, centralised = FedItemKNN().fit(X), ItemKNN().fit(X)
    >>> np.allclose(model.predict(X), centralised.predict(X))
    True
    """

    _kind = FedItemKNNAlgorithm

    @property
    def _backward_weight(self):
        # Noise would hide direction.
        is_private = self.backward_weight == "auto" and self._setting().central_dp is not None
        return 1.0 if is_private else super()._backward_weight
