"""Items' features in federated methods: the server knows them, and clients send nothing more."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedrecsk.base._item_prior import ItemContent
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.messages import Message


@dataclass(eq=False, repr=False)
class FederatedContent(ItemContent):
    """`item_features` of a method whose server keeps an ItemPrior as `content` in its state."""

    # Fields of the final message with a row for each item that features predict, and those that
    # are 0 for an item without ratings.
    _predicted_fields: ClassVar[tuple[str, ...]] = ()
    _absent_fields: ClassVar[tuple[str, ...]] = ()

    def _with_items(self, rows):
        """Return the attributes of the final message with rows for items with these features."""
        message = Message(**self._final_message)
        for names, predict in ((self._predicted_fields, True), (self._absent_fields, False)):
            for name in set(names) & set(message):
                field = message[name]
                new = self._new_rows(field.values, rows, predict)
                message[name] = replace(field, values=np.concatenate([field.values, new]))
        method = copy.copy(self)
        received = method._decode_broadcast(message, Key(0))
        return method._server_attributes(received) | {"_final_message": message}
