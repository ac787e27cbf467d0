"""Methods whose algorithm is still written as hooks of their estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedrecsk.protocol.algorithm import (
    Algorithm,
    ChoosesCohorts,
    MeetsPeers,
    SendsOnce,
    SharesHistory,
    Traits,
)


@dataclass(frozen=True, eq=False)
class HookAlgorithm(
    Algorithm[Any, Any], SendsOnce[Any], SharesHistory[Any], ChoosesCohorts[Any], MeetsPeers[Any]
):
    """Calls the hooks of an estimator with hyperparameters only."""

    method: Any

    @property
    def traits(self):
        one = self.method
        refuses = {} if one._no_local_dp is None else {"local_dp": one._no_local_dp}
        return Traits(
            single_uploads=one._single_uploads,
            server_sees=one._server_sees,
            rotates=one._prefers_rotation,
            goes_on=bool(one._carried or one._sends_once),
            sends_once=one._sends_once,
            shares_history=one._shares_state,
            may_be_silent=one._may_be_silent,
            chooses_cohorts=one._choose_cohort is not None,
            n_exchanges=one._n_exchanges,
            admits_late_clients=one._admits_late_clients,
            refuses=refuses,
        )

    def setup_fields(self, n_items):
        return self.method._setup_specs(n_items)

    def request(self, catalogue):
        return self.method._setup_request(catalogue)

    def answer(self, block, message, key):
        return self.method._setup_update(block, message, key)

    def begin(self, catalogue, sums, key):
        return self.method._begin(catalogue, sums, key)

    def announce(self, server):
        return self.method._initial_broadcast(server)

    def broadcast(self, server, key):
        return self.method._broadcast(server, key)

    def delta(self, server):
        return self.method._model_delta(server)

    def decode(self, message, key):
        return self.method._decode_broadcast(message, key)

    def fields(self, n_items):
        return self.method._upload_specs(n_items)

    def enter(self, block, message, key):
        return self.method._init_clients(block, message, key)

    def update(self, block, clients, message, turn, key):
        return self.method._client_update(block, clients, message, turn, key)

    def centers(self, message):
        return self.method._upload_centers(message)

    def step(self, server, upload, key):
        return self.method._aggregate(server, upload, key)

    def final(self, server):
        return self.method._final_model(server)

    def personalize(self, block, clients, message, turn, key):
        return self.method._personalize(block, clients, message, turn, key)

    def item_prior(self, server):
        return server.get("content")

    def resume(self, now, before, places):
        return self.method._resumed(now, before, places)

    def memory(self, clients):
        return self.method._memory(clients)

    def recall(self, clients, remembered):
        return self.method._recalled(clients, remembered)

    def has_sent(self, clients):
        return clients["has_sent"]

    def take_back(self, clients):
        return self.method._taking_back(clients)

    def share(self, common, message, key):
        return self.method._update_unrated_items(common, message, key)

    def with_shared(self, clients, common):
        clients["common"] = common
        return clients

    def choose(self, server, n_clients, size, key):
        return self.method._choose_cohort(server, n_clients, size, key)

    def exchange(self, block, clients, message, turn, step, key):
        return self.method._exchange(block, clients, message, turn, step, key)

    def after_exchange(self, block, clients, means, turn, step):
        return self.method._after_exchange(block, clients, means, turn, step)
