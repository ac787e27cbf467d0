"""FedRAP against a loop over clients."""

import numpy as np
import torch

from fedrecsk.neural import FedRAP
from fedrecsk.simulation.run import Run
from tests.conftest import fits_in_blocks
from tests.reference.neural import fedrap as reference
from tests.reference.neural.federated_module import seeds_of

SETTINGS = {
    "v_1": 0.5,
    "v_2": 0.3,
    "rate": 0.05,
    "item_rate": 2.0,
    "decay": 0.8,
    "n_negatives": 2,
    "n_epochs": 2,
    "batch_size": 7,
}


def shared_by_a_loop(model, X):
    """Shared items after all rounds, from the same beginning as the fit."""
    run, data = Run.new(model, model._prepared(X)), model._prepared(X)
    algorithm, n_items, d = run.server.algorithm, data.n_items, model.n_factors
    server = algorithm.begin(data, None, run.server.key)
    first = {name: torch.from_numpy(one).double() for name, one in server.first.items()}
    clients = []
    for u in range(data.n_users):
        items = data.items[data.indptr[u] : data.indptr[u + 1]]
        own = {
            "d": first["item_own.weight"].reshape(n_items, d).clone(),
            "w": first["score.weight"].clone(),
            "b": first["score.bias"].clone(),
        }
        clients.append((dict.fromkeys(items.tolist(), (1.0, 1.0)), own))
    shared = torch.from_numpy(server.parameters["item.weight"]).double()
    for a in range(model.n_rounds):
        seeds = seeds_of(run.clients[0].keys.at(a).private, data.n_users)
        shared = reference.one_round(a, shared, clients, SETTINGS, seeds)
    return shared.numpy()


def test_equals_a_loop_over_clients(toy):
    X = toy[0]
    model = FedRAP(
        3,
        independence=SETTINGS["v_1"],
        sparsity=SETTINGS["v_2"],
        learning_rate=SETTINGS["rate"],
        item_learning_rate=SETTINGS["item_rate"],
        decay=SETTINGS["decay"],
        n_negatives=SETTINGS["n_negatives"],
        local_epochs=SETTINGS["n_epochs"],
        batch_size=SETTINGS["batch_size"],
        n_rounds=4,
        random_state=3,
    )
    expected = shared_by_a_loop(model, X)
    for fitted in fits_in_blocks(model, X):
        np.testing.assert_allclose(fitted.item_factors_, expected, rtol=1e-4, atol=1e-5)


def test_scores_are_the_modules(toy):
    model = FedRAP(3, n_rounds=2, random_state=0).fit(toy[0])
    items = torch.arange(model.n_items_)
    for code, user in enumerate(model.user_ids_.tolist()):
        with torch.no_grad():
            scores = model.to_module(user)(torch.zeros_like(items), items).numpy()
        np.testing.assert_allclose(model._model().score_all(np.array([code]))[0], scores, rtol=1e-5)


def test_private_items_are_trained_to_differ(toy):
    lengths = []
    for weight in (0.0, 0.1):
        model = FedRAP(3, independence=weight, n_rounds=5, random_state=0).fit(toy[0])
        own = model.user_factors_[:, : 3 * model.n_items_].reshape(-1, model.n_items_, 3)
        lengths.append(np.mean((own - model.item_factors_) ** 2))
    assert lengths[1] > lengths[0]
