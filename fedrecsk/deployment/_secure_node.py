"""A node that shows the server nothing but ciphertexts."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.deployment._agreement import Refused
from fedrecsk.deployment._ciphertexts import steps_of, uploads_arrays
from fedrecsk.deployment._forms import place_of
from fedrecsk.deployment._node import Node
from fedrecsk.deployment._wire import pack
from fedrecsk.simulation import SecureDevice

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fedrecsk.deployment._store import Store
    from fedrecsk.privacy import Party

log = logging.getLogger("fedrecsk.deployment")


class SecureNode(Node):
    """One client's machine under ``Federation(secure_aggregation=...)``.

    The keys are not part of what it stores.

    Parameters
    ----------
    estimator, load_data, store
        As for :class:`Node`.
    party : Party
        The clients' side of the keys.
    """

    def __init__(
        self,
        estimator: Any,
        load_data: Callable[[], dict[str, Any]],
        store: Store,
        party: Party,
    ) -> None:
        super().__init__(estimator, load_data, store)
        self.party = party

    def _digests(self):
        return super()._digests() | {"keys": self.party.key_id}

    def _new_device(self, data):
        return SecureDevice(self.estimator, **data, party=self.party)

    def _loaded(self, fit):
        memory = super()._loaded(fit)
        if memory is not None:
            memory.device.party = self.party
        return memory

    def _learn(self, memory, kind, head, arrays):
        """Take the server's steps that have ended since the last request."""
        device = memory.device
        if head.get("place") is not None:
            device.place(place_of(head["place"]), int(head["n_clients"]))
            memory.place = head["place"]
        first, replica = int(head["first"]), device.replica
        if replica is None or first > replica.n_taken:
            raise Refused(
                "this node's folder is a copy of before its last answers, and the server has no "
                "model that it could send; restore a newer copy, or begin a new fit without it"
            )
        device.take(steps_of(head["steps"], arrays), first)

    def _setup(self, memory, head, arrays):
        return self._encrypted(memory.device.setup(int(head["number"])))

    def _round(self, memory, head, arrays):
        device, round = memory.device, int(head["number"])
        uploads, _ = device.update(round)
        log.info("Client %s has trained in round %d", device.client_ids[0], round)
        return self._encrypted(uploads)

    def _validate(self, memory, head, arrays):
        raise Refused("nobody evaluates models under secure sums")

    def _encrypted(self, uploads):
        heads, arrays = uploads_arrays(uploads)
        return pack({"uploads": heads}, arrays)

    def _finish(self, memory, head, arrays):
        model = memory.device.fitted()
        self.store.save_model(model)
        log.info("Client %s has its model: %s", *memory.device.client_ids, self.store.folder)
        return pack({"n_users": int(np.size(model.user_ids_))}, {})
