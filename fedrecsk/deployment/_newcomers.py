"""The server's own estimator, which knows no users but folds them in."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.base import attributes_of
from fedrecsk.interactions import Ids, catalogue_ids

if TYPE_CHECKING:
    from typing import Any

    from fedrecsk.simulation.messages import Message
    from fedrecsk.simulation.server import Server


def model_for_newcomers(estimator: Any, server: Server, message: Message) -> Any:
    """A fitted estimator without users.

    Parameters
    ----------
    estimator : federated estimator
    server : Server
        At its end.
    message : Message
        The final model with the announcement.

    Returns
    -------
    model : estimator
        Predicts from what is known of the items, and folds in users.
    """
    model = copy.copy(server.method)
    received = model._on_receipt(message, server.key.at(server.round))
    # An invented user shows which attributes users have.
    items = catalogue_ids(estimator.items)
    low, high = getattr(estimator, "rating_scale", None) or (1, 1)
    X = np.array([["nobody", items.values[0]]], dtype=object)
    data = model._read(X, np.array([(low + high) / 2]), None, None, item_ids=items)
    vars(model).update(
        attributes_of(data) | model._server_attributes(received),
        _final_message=message,
        n_rounds_=server.round,
        history_=server.history,
        communication_=server.ledger,
        privacy_=server.privacy_report(),
    )
    if model.early_stopping:
        model.best_round_ = server.stopping.best_round
    nobody = {name: rows[:0] for name, rows in model._new_user_attributes(data).items()}
    no_ids = Ids(np.zeros(0, dtype=np.int64), "user ids")
    vars(model).update(
        nobody,
        user_ids_=no_ids.values.copy(),
        n_users_=0,
        _users=no_ids,
        _seen=(np.zeros(1, dtype=np.int64), data.items[:0]),
    )
    return model
