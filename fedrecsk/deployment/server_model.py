"""The model that the server of a deployed fit keeps: for new users, and with new items."""

from __future__ import annotations

import math

from pandas import DataFrame

from fedrecsk.base import attributes_of, fitted_copy
from fedrecsk.data._checks import check_items
from fedrecsk.data.ids import catalogue_ids
from fedrecsk.data.interactions import Interactions
from fedrecsk.deployment.checks import differences, digests
from fedrecsk.deployment.device_server import DeviceServer
from fedrecsk.deployment.exchanges import Carrier, Exchanges, Members
from fedrecsk.deployment.records import message_arrays, pack
from fedrecsk.deployment.store import MODEL, STATE, Store
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol.messages import Dense, Message
from fedrecsk.simulation.both_sides import plain_copy
from fedrecsk.simulation.run import fitted_attributes


def model_for_newcomers(
    estimator: FederatedRecommender, server: DeviceServer, message: Message
) -> FederatedRecommender:
    """Return a fitted estimator without users, which folds in newcomers."""
    model, items = plain_copy(estimator), catalogue_ids(estimator.items)
    attributes = fitted_attributes(model, server, message, lambda received, ours: {})
    no_rows = Interactions.empty(items)
    check_items(model, no_rows, attributes)
    attributes |= {
        "n_rounds_": server.round,
        "history_": server.history,
        "communication_": server.ledger,
        "privacy_": server.privacy_report(),
    }
    if model.early_stopping:
        attributes["best_round_"] = server.stopping.best_round
    model = fitted_copy(model, attributes_of(no_rows) | attributes)
    return fitted_copy(model, model._new_user_attributes(no_rows))


def send_new_items(
    estimator: FederatedRecommender,
    features: DataFrame,
    carrier: Carrier,
    store: Store,
    *,
    n_clients: int,
    quorum: float = 0.5,
    patience: float = 60.0,
    gathering: float = 600.0,
) -> FederatedRecommender:
    """Add items to the model of the last fit, send its nodes their rows alone, and return it."""
    last, model, ours = store.load(STATE), store.load(MODEL), digests(estimator)
    differing = last and differences(ours, last.digests)
    if last is None or differing:
        raise ValueError(
            f"{store.folder} has no fit of this estimator with warm_start=True that has ended, "
            f"whose nodes could be sent new items. {differing or ''}"
        )
    n_known, members = len(last.server.item_ids), Members()
    model.add_items(features)
    rows = {
        name: Dense(field.values[n_known:], field.dtype)
        for name, field in model._final_message.items()
        if len(field.values) == model.n_items_
    }
    if hasattr(model, "item_weights_"):
        raise ValueError(
            f"Nodes of {type(model).__name__} have weights between items, which new items extend "
            "in both directions; set items to all items, and update=True."
        )
    spec, arrays = message_arrays(Message(**rows), None, 0, last.server.federation.wire_dtype)
    head = {"fit": last.fit, "ids": model.item_ids_[n_known:].tolist(), "rows": spec}
    exchanges = Exchanges(carrier, members, last.greeting(), patience, n_known, [])
    exchanges.gather(n_clients, gathering)
    content = pack(head | {"kind": "items"}, arrays)
    exchanges.ask("items", 0, members, lambda member: content, math.ceil(quorum * len(members)))
    store.save(MODEL, model)
    return model
