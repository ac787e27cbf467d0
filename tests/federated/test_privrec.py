"""PrivRec: its clipped step against a loop, and the paper's epsilon. Without noise: test_colr."""

import numpy as np
import pytest

from benchmarks.private_rankings import PAPER, epsilons
from fedrecsk import Federation, PrivRec
from fedrecsk.data.interactions import encode
from fedrecsk.privacy import CentralDP
from tests.federated.test_colr import clients_of, make
from tests.federated.turns import first_items, key_of

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("silos", [False, True])
def test_the_server_steps_along_the_sum_of_clipped_changes(silos, toy):
    X, y = toy
    clients = X[:, 0] % 4 if silos else None
    mechanism = CentralDP(clip=0.5, noise_multiplier=0.0)
    model = make(
        PrivRec,
        n_rounds=1,
        server_learning_rate=3.0,
        items=np.unique(X[:, 1]),
        federation=Federation(central_dp=mechanism),
    )
    model.fit(X, y, clients=clients)
    data, expected = encode(X, y, clients=clients), first_items(model, model.n_items_)
    seeds, start = key_of(model).at(0).hashed("visit", np.arange(data.n_clients)), expected.copy()
    n_clipped = 0
    for client, seed in zip(clients_of(model, data), seeds, strict=True):
        change, _ = client.visit(start, np.eye(5), model.learning_rate, seed)
        norm = np.sqrt(np.sum(change**2))
        n_clipped += norm > 0.5
        expected += 3.0 / data.n_clients * change * min(1.0, 0.5 / norm)
    assert n_clipped > 0
    np.testing.assert_allclose(model.item_factors_, expected, atol=1e-6)


def test_noise_is_divided_by_the_planned_cohort():
    X = np.column_stack([np.repeat(np.arange(40), 3), np.tile(np.arange(60), 2)])
    mechanism = CentralDP(clip=0.01, noise_multiplier=100.0, delta=1e-3)
    private = Federation(central_dp=mechanism, sampling="poisson")
    parameters = {"n_rounds": 1, "averaging": False, "server_learning_rate": 2.0}
    model = PrivRec(
        50,
        items=np.arange(60),
        federation=private,
        client_fraction=0.5,
        random_state=0,
        **parameters,
    ).fit(X)
    # Noise of deviation 1 on the sum, for a cohort of 20.
    assert model.item_factors_.std() == pytest.approx(2 / 20, rel=0.1)


def test_steps_are_longer_for_more_items():
    for n_items, step in ((1, 1.0), (185, 1.0), (370, 2.0), (10**6, 20.0)):
        assert PrivRec()._algorithm().length_of_step(n_items) == step
        assert PrivRec(server_learning_rate=3)._algorithm().length_of_step(n_items) == 3


def test_the_papers_epsilon_is_that_of_the_conversion_of_2017():
    found = epsilons()
    by_chance = "by chance", "one client more"
    assert found[(*by_chance, "RDP of whole orders, conversion of 2017")] == pytest.approx(
        35.6, abs=0.05
    )
    assert found[(*by_chance, "PLD")] < found[(*by_chance, "RDP of whole orders")] < 35
    X = np.column_stack([np.arange(12), np.arange(12) % 3])
    mechanism = CentralDP(clip=50, noise_multiplier=PAPER["noise"], delta=PAPER["delta"])
    private = Federation(central_dp=mechanism, sampling="poisson")
    model = PrivRec(2, items=np.arange(3), federation=private, random_state=0).fit(X)
    assert model.privacy_.epsilon == pytest.approx(found[(*by_chance, "PLD")], abs=1e-3)
