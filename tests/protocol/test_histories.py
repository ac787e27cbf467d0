"""RFRec with "holders" among clients of unequal histories equals the naive reference exactly."""

import copy

import numpy as np
import pytest

from fedrecsk import Federation, RFRec, RFRecF
from fedrecsk.attacks import SignFlip
from fedrecsk.protocol import blocks
from tests.federated.test_rfrec import assert_equals_reference, make

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore:In .* every upload was lost"),
]


@pytest.fixture(autouse=True)
def float64(monkeypatch):
    monkeypatch.setattr(RFRec, "_dtype", np.float64)


SETTINGS = [
    {"federation": Federation(dropout=0.6, dropout_mode="stale")},
    {"federation": Federation(dropout=0.6, dropout_mode="offline")},
    {"client_fraction": 0.2},
    {"client_fraction": 0.4, "federation": Federation(dropout=0.5, dropout_mode="stale")},
    {"client_fraction": 0.4, "federation": Federation(dropout=0.5)},
    {"client_fraction": 0.25, "federation": Federation(sampling="rotating")},
]


def make_rfrec(Estimator, **setting):
    """An estimator with a federation of its own, whose parameters can be set."""
    return make(Estimator, **copy.deepcopy(setting))


@pytest.mark.parametrize("Estimator", [RFRec, RFRecF])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("ratings_per_block", [10**6, 12], ids=["one", "some"])
def test_one_block_holds_clients_of_any_history(
    Estimator, setting, ratings_per_block, toy, monkeypatch
):
    monkeypatch.setattr(blocks, "block_size", lambda data: ratings_per_block)
    X, y = toy
    for clients in (None, X[:, 0] % 4):
        for seed in range(2):
            model = make_rfrec(Estimator, aggregation="holders", **setting)
            assert_equals_reference(model.set_params(random_state=seed), X, y, clients=clients)


@pytest.mark.parametrize("aggregation", ["clients", "holders"])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_single_uploads_of_attackers_and_others_do_not_depend_on_blocks(
    aggregation, setting, toy, monkeypatch
):
    fits = []
    for size in (10**6, 1):
        monkeypatch.setattr(blocks, "block_size", lambda data, size=size: size)
        model = make_rfrec(RFRec, aggregation=aggregation, **setting)
        fits.append(model.set_params(federation__adversary=SignFlip(0.3)).fit(*toy))
    np.testing.assert_allclose(fits[0].item_factors_, fits[1].item_factors_, atol=1e-9)
    assert fits[0].communication_ == fits[1].communication_
