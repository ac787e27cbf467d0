"""GPFedRec against a loop over clients."""

import numpy as np
import pytest
import torch

from fedrecsk import Federation
from fedrecsk.aggregation import CoordinateMedian
from fedrecsk.neural import GPFedRec
from fedrecsk.neural.modules import MLP
from fedrecsk.privacy import SecAggPlus
from fedrecsk.protocol.keys import Key
from fedrecsk.simulation.run import Run
from tests.conftest import fits_in_blocks
from tests.reference.neural import gpfedrec as reference
from tests.reference.neural.federated_module import seeds_of

D, N_ROUNDS, PULL, RATE, ITEM_RATE = 3, 3, 0.3, 0.05, 2.0


def model_of(**parameters):
    return GPFedRec(
        D,
        layers=(4, 2),
        pull=PULL,
        learning_rate=RATE,
        item_learning_rate=ITEM_RATE,
        n_negatives=1,
        local_epochs=2,
        batch_size=7,
        random_state=3,
        **{"n_rounds": N_ROUNDS} | parameters,
    )


def by_a_loop(model, X):
    """Shared items, each user's table, and each user's private parameters, one after the other."""
    data = model._prepared(X)
    run = Run.new(model, data)
    algorithm, n_items, (clients,) = run.server.algorithm, data.n_items, run.clients
    server = algorithm.begin(data, None, run.server.key)
    private = algorithm.enter(clients.block, algorithm.announce(server), clients.keys.at(0)).users
    module = MLP(1, n_items, (2 * D, 4, 2)).double()
    shared = torch.from_numpy(server.parameters["item.weight"]).double()
    shapes = {n: one.shape for n, one in module.named_parameters() if n != "item.weight"}
    own, rated = [], []
    for u in range(data.n_users):
        parts = torch.from_numpy(private[u]).double().split([s.numel() for s in shapes.values()])
        values = zip(shapes.items(), parts, strict=True)
        own.append({name: part.reshape(shape).clone() for (name, shape), part in values})
        items = data.items[data.indptr[u] : data.indptr[u + 1]]
        rated.append(dict.fromkeys(items.tolist(), (1.0, 1.0)))
    settings = {
        "rate": RATE,
        "user_rate": 80 * RATE,
        "item_rate": ITEM_RATE,
        # By which a step of SGD goes the share PULL of the way.
        "reg": PULL * n_items * D / (2 * ITEM_RATE),
        "n_negatives": 1,
        "n_epochs": 2,
        "batch_size": 7,
    }
    goals = [shared.clone() for _ in own]
    for a in range(model.n_rounds):
        seeds = seeds_of(clients.keys.at(a).private, data.n_users)
        tables = [
            reference.trained(module, own[u], shared, goals[u], rated[u], settings, seeds[u])
            for u in range(data.n_users)
        ]
        goals = reference.graph_means(tables)
        shared = torch.stack(goals).mean(dim=0)
    seed, moves = Key(0).hashed("personal"), model.personal_items
    tables = [
        reference.trained(
            module, own[u], shared if moves else goals[u], goals[u], rated[u], settings, seed,
            moves_items=moves,
        )
        for u in range(data.n_users)
    ]  # fmt: skip
    numbers = [torch.cat([one.flatten() for one in values.values()]) for values in own]
    return shared.numpy(), torch.stack(tables).numpy(), torch.stack(numbers).numpy()


@pytest.mark.parametrize("personal_items", [False, True])
def test_equals_a_loop_over_clients(toy, personal_items):
    X = toy[0]
    model = model_of(personal_items=personal_items)
    shared, tables, private = by_a_loop(model, X)
    for fitted in fits_in_blocks(model, X):
        np.testing.assert_allclose(fitted.item_factors_, shared, rtol=1e-4, atol=1e-5)
        own = fitted.user_factors_[:, private.shape[1] :].reshape(tables.shape)
        np.testing.assert_allclose(shared + own, tables, rtol=1e-4, atol=1e-5)
        numbers = fitted.user_factors_[:, : private.shape[1]]
        np.testing.assert_allclose(numbers, private, rtol=1e-4, atol=1e-5)
    assert np.abs(own).max() > 0.01


def test_links_similar_users():
    # Two groups that like different halves of the catalogue.
    X = [(u, i + 20 * (u % 2)) for u in range(20) for i in range(20) if (u + i) % 3]
    model = GPFedRec(8, n_rounds=5, random_state=0).fit(X)
    tables = model.user_factors_[:, -model.item_factors_.size :]
    similar = np.corrcoef(tables)
    same = np.equal.outer(model.user_ids_ % 2, model.user_ids_ % 2)
    assert similar[same].mean() > similar[~same].mean() + 0.5


def test_clients_that_take_no_part_keep_the_shared_items(toy):
    model = model_of(n_rounds=1, client_fraction=0.3).fit(toy[0])
    tables = model.user_factors_[:, -model.item_factors_.size :]
    n_apart = (tables != 0).any(axis=1).sum()
    assert 0 < n_apart < len(tables)
    # Nor has the server a table of new users.
    new = model.fold_in([[999, item] for item in toy[0][:3, 1]])
    assert np.isfinite(new.predict([[999, toy[0][0, 1]]])).all()


def test_scores_are_the_modules(toy):
    model = model_of(personal_items=True).fit(toy[0])
    # Their own items are in their vectors.
    assert not hasattr(model, "user_items_")
    items = torch.arange(model.n_items_)
    for code, user in enumerate(model.user_ids_.tolist()):
        with torch.no_grad():
            scores = model.to_module(user)(torch.zeros_like(items), items).numpy()
        np.testing.assert_allclose(model._model().score_all(np.array([code]))[0], scores, rtol=1e-4)


@pytest.mark.parametrize(
    ("federation", "reason"),
    [
        (Federation(secure_aggregation=SecAggPlus()), "treats clients individually"),
        (Federation(aggregator=CoordinateMedian()), "averages the item tables"),
    ],
)
def test_refuses_what_hides_or_replaces_single_tables(toy, federation, reason):
    with pytest.raises(ValueError, match=reason):
        model_of(federation=federation).fit(toy[0])
