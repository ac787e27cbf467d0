"""FederatedModule against a loop over clients, and what it refuses."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedrecsk import Federation
from fedrecsk.federated import _fit
from fedrecsk.neural import FederatedModule
from tests.conftest import fits_in_blocks
from tests.reference import federated_module as reference


class Everything(nn.Module):
    """A module with all kinds of parameters."""

    def __init__(self, n_users, n_items, width=3, dtype=torch.float64):
        super().__init__()
        self.user = nn.Embedding(n_users, width, dtype=dtype)
        self.item = nn.Embedding(n_items, width, dtype=dtype)
        self.item_bias = nn.Parameter(torch.zeros(n_items, dtype=dtype))
        self.own_item_bias = nn.Parameter(torch.zeros(n_items, dtype=dtype))
        self.own_bias = nn.Parameter(torch.zeros((), dtype=dtype))
        self.hidden = nn.Linear(width, 2, dtype=dtype)
        self.scale = nn.Parameter(torch.ones(2, dtype=dtype))

    def forward(self, users, items):
        hidden = torch.tanh(self.hidden(self.user(users) * self.item(items)))
        biases = self.item_bias[items] + self.own_item_bias[items] + self.own_bias
        return hidden @ self.scale + biases


PRIVATE = ("user*", "own*")


def rated_of(data, client, targets, weights):
    """The users of a client as the reference takes them."""
    users = []
    for u in range(data.client_indptr[client], data.client_indptr[client + 1]):
        span = slice(data.indptr[u], data.indptr[u + 1])
        rows = zip(data.items[span].tolist(), targets[span], weights[span], strict=True)
        users.append({item: (float(t), float(w)) for item, t, w in rows})
    return users


def two_rounds_by_a_loop(model, X, y, clients):
    """Server and private parameters after two rounds, from the same beginning as the fit."""
    run = _fit.Run.new(model, model._prepared(X, y, clients), is_watched=False)
    method, data = run.server.method, model._prepared(X, y, clients)
    key, layout = run.server.key, model._module_layout()
    state = method._init_server(type("Catalogue", (), {"n_items": data.n_items}), key)
    message = method._announce(state | ({"global_bias": np.average(data.values)}))
    block = run.clients[0].block
    first = method._init_clients(block, message, run.clients[0].keys)
    feedback, columns = first["feedback"], layout.columns(data.n_items)
    parts = {name: layout.parts[name] for name in layout.sent}
    shapes = {n: (-1, *p.shape) if p.kind == "item" else p.shape for n, p in parts.items()}
    server = {name: state[name].reshape(shape) for name, shape in shapes.items()}
    own_users = []
    for c in range(data.n_clients):
        span, own = slice(data.client_indptr[c], data.client_indptr[c + 1]), {}
        for name, column in columns.items():
            part, rows = layout.parts[name], first["users"][span, column]
            rows = rows if part.kind == "user" else rows[0]
            shape = part.shape if part.kind == "private" else (-1, *part.shape)
            own[name] = rows.reshape(shape)
        own_users.append((rated_of(data, c, feedback.targets, feedback.weights), own))
    plan = model._plan(data.n_items)
    settings = {
        "n_negatives": plan.n_negatives,
        "n_epochs": plan.n_epochs,
        "batch_size": plan.batch_size,
    }
    make = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}.get(model.optimizer, model.optimizer)
    for round in range(2):
        seeds = reference.seeds_of(run.clients[0].keys.at(round).private, data.n_clients)
        sums, n_visits = reference.one_round(
            model._make,
            PRIVATE,
            server,
            own_users,
            data.n_items,
            plan.loss,
            lambda module: [make(module.parameters(), lr=model.learning_rate)],
            settings,
            seeds,
        )
        for name in server:
            divisor = data.n_clients
            if layout.parts[name].kind == "item" and model.aggregation == "visits":
                divisor = np.maximum(n_visits, 1).reshape(-1, *[1] * (server[name].ndim - 1))
            server[name] = server[name] + sums[name] / divisor
    return server


@pytest.mark.parametrize("aggregation", ["visits", "mean"])
@pytest.mark.parametrize("silos", [False, True])
@pytest.mark.parametrize(
    ("loss", "optimizer"),
    [("bce", "adam"), ("squared", "sgd"), ("bce", partial(torch.optim.RMSprop, momentum=0.5))],
)
def test_equals_a_loop_over_clients(toy, loss, optimizer, silos, aggregation):
    X, y = toy
    clients = X[:, 0] % 5 if silos else None
    model = FederatedModule(
        Everything,
        private=PRIVATE,
        loss=loss,
        optimizer=optimizer,
        aggregation=aggregation,
        learning_rate=0.05,
        local_epochs=2,
        batch_size=7,
        n_negatives=2,
        n_rounds=2,
        random_state=3,
        federation=Federation(wire_dtype="float64"),
    )
    expected = two_rounds_by_a_loop(model, X, y, clients)
    for fitted in fits_in_blocks(model, X, y, clients=clients):
        for name, values in expected.items():
            got = fitted.parameters_[name].reshape(values.shape)
            np.testing.assert_allclose(got, values, rtol=1e-9, atol=1e-12, err_msg=name)
