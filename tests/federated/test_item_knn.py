"""ItemKNN and FedItemKNN against loops over pairs, with dense and with sparse sums."""

import tracemalloc

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import Federation, FedItemKNN, FedSpectral, ItemKNN
from fedrecsk._utils import memory
from fedrecsk.aggregation import NormClipping
from fedrecsk.base import _item_weights
from fedrecsk.data.interactions import encode
from fedrecsk.datasets import make_interactions
from fedrecsk.federated import _gram
from fedrecsk.privacy import CentralDP
from fedrecsk.protocol import blocks
from tests.conftest import fits_in_blocks, make_toy
from tests.deployment.in_process import coordinator, make_nodes
from tests.reference import ease as reference


@pytest.mark.parametrize("half_life", [None, 3.0])
def test_a_sum_that_one_user_fills_is_added_up_densely(half_life, monkeypatch):
    X = np.column_stack([np.r_[np.zeros(40), 1 + np.arange(60) % 9], np.r_[:40, np.arange(60) % 7]])
    (likes,) = blocks.cut(encode(X.astype(int), times=np.arange(100.0)))
    everyone = np.ones(likes.n_clients, dtype=bool)
    monkeypatch.setattr(_item_weights, "DENSE_BYTES", 10**6)
    expected = _item_weights.sparse_gram(likes, half_life, everyone).toarray()
    monkeypatch.undo()
    monkeypatch.setattr(_item_weights, "single_grams", None)
    filled = _item_weights.sparse_gram(likes, half_life, everyone)
    assert filled.shape == expected.shape
    np.testing.assert_allclose(filled.toarray(), expected, rtol=1e-12)


@pytest.mark.parametrize("kind", ["sparse", "filled", "dense"])
@pytest.mark.parametrize("Estimator", [ItemKNN, FedItemKNN])
@pytest.mark.parametrize("n_silos", [None, 4])
def test_equals_the_naive_reference(Estimator, n_silos, kind, monkeypatch):
    """With a sum that is sparse, one that is until it is filled, and one that is not."""
    monkeypatch.setattr(_item_weights, "MANY_ITEMS", 10**6 if kind == "dense" else 1)
    monkeypatch.setattr(_item_weights, "DENSE_BYTES", 10**6 if kind == "sparse" else 1)
    model = Estimator(4, power=0.3, shrinkage=1.5)
    X, y = make_toy(30, 9, seed=2)
    y -= 2
    weight = np.random.default_rng(1).uniform(0.2, 2, len(y))
    clients = None if n_silos is None else X[:, 0] // 7 % n_silos
    data = encode(X, y, clients=clients, sample_weight=weight)
    rows = reference.rows_of(data)
    expected = reference.nearest(rows.T @ rows, 0.3, 1.5, 4)
    for fitted in fits_in_blocks(model, X, y, clients=clients, sample_weight=weight):
        np.testing.assert_allclose(fitted.item_weights_.toarray(), expected, atol=1e-6)
        assert np.diff(fitted.item_weights_.indptr).max() == 4
        scores = fitted._model().score_all(np.arange(data.n_users))
        np.testing.assert_allclose(scores, rows @ expected, atol=1e-5)
        np.testing.assert_allclose(fitted.predict(X), scores[_codes(fitted, X)], atol=1e-6)


@pytest.mark.parametrize("Estimator", [ItemKNN, FedItemKNN])
def test_a_user_with_the_whole_catalogue_takes_no_more_memory_than_estimated(
    Estimator, monkeypatch
):
    monkeypatch.setattr(_item_weights, "MANY_ITEMS", 1)
    n_items, (X, y) = 700, make_toy(12, 9)
    Estimator().fit(X, y)  # compiled code
    everything = np.column_stack([np.zeros(n_items, int), np.arange(n_items)])
    tracemalloc.start()
    try:
        Estimator(5).fit(everything)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < _gram.PAIR_BYTES * n_items * (n_items + 1) / 2


def _codes(model, X):
    return model._users.codes(X[:, 0]), model._items.codes(X[:, 1])


SETTINGS = [
    {"client_fraction": 0.3, "n_rounds": 3},
    {"federation": Federation(dropout=0.4), "n_rounds": 2},
    {"federation": Federation(aggregator=NormClipping(1e9))},
    {"federation": Federation(aggregator=NormClipping(2.0))},
    {"upload": "all"},
]
MODELS = [FedItemKNN(4, power=0.3, shrinkage=1.5), FedSpectral(4, alpha=2.0, reg_user=0.7)]
every_sparse = pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)


@every_sparse
@pytest.mark.parametrize("setting", [{}, *SETTINGS], ids=str)
def test_sparse_sums_give_the_same_model(model, setting, monkeypatch):
    X, y = make_toy(40, 25, density=0.2, seed=2)
    model = clone(model).set_params(random_state=0, **setting)
    dense = clone(model).fit(X, y)
    monkeypatch.setattr(_item_weights, "MANY_ITEMS", 1)
    fitted = model.fit(X, y)
    tolerance = 2e-3 if isinstance(model, FedSpectral) else 1e-6  # its eigenpairs are randomised
    np.testing.assert_allclose(fitted.predict(X), dense.predict(X), atol=tolerance)
    assert fitted.communication_ == dense.communication_


@every_sparse
def test_devices_send_sparse_sums(model, tmp_path, monkeypatch):
    monkeypatch.setattr(_item_weights, "MANY_ITEMS", 1)
    X, y = make_toy(12, 9, seed=2)
    model = clone(model).set_params(items=np.unique(X[:, 1]))
    simulated, nodes = clone(model).fit(X, y), make_nodes(model, X, y, X[:, 0], tmp_path)
    served = coordinator(model, nodes, tmp_path).run()
    pairs = [[user, item] for user in simulated.user_ids_ for item in simulated.item_ids_]
    served = served.fold_in(X, y)
    np.testing.assert_allclose(served.predict(pairs), simulated.predict(pairs), atol=1e-4)
    assert served.communication_.bytes_up == simulated.communication_.bytes_up


@every_sparse
def test_updates_of_sparse_sums_are_exact(model, monkeypatch):
    monkeypatch.setattr(_item_weights, "MANY_ITEMS", 1)
    X, y = make_toy(30, 9, seed=2)
    order = np.argsort(X[:, 1], kind="stable")[::-1]  # so that the first item comes last
    X, y = X[order], y[order]
    model = clone(model).set_params(warm_start=True)
    updated = clone(model).fit(X[:120], y[:120]).partial_fit(X[120:], y[120:])
    np.testing.assert_allclose(updated.predict(X), clone(model).fit(X, y).predict(X), atol=1e-3)
    gone = X[:, 0] == X[0, 0]
    refitted = clone(model).set_params(items=np.unique(X[:, 1])).fit(X[~gone], y[~gone])
    updated.forget([X[0, 0]])
    np.testing.assert_allclose(updated.predict(X[~gone]), refitted.predict(X[~gone]), atol=1e-3)


def test_bytes_are_those_of_pairs_and_of_neighbours():
    X, y = make_toy(30, 9, seed=2)
    ledger = FedItemKNN(n_neighbors=4).fit(X, y).communication_
    n_own = np.unique(X[:, 0], return_counts=True)[1]
    assert ledger.bytes_up == 4 * len(X) + 8 * (n_own * (n_own + 1) // 2).sum()
    assert ledger.bytes_down == 30 * 9 * 8 + 30 + 8 * 4 * len(X)
    everything = FedItemKNN(n_neighbors=4, download="all").fit(X, y).communication_
    assert everything.bytes_down == 30 * 9 * 8 + 30 + 30 * 8 * 4 * 9


def test_noise_on_the_sum_leaves_what_is_visible():
    X = make_interactions(n_users=500, n_items=40, n_interactions=8000, random_state=0)
    federation = Federation(central_dp=CentralDP(noise_multiplier=0.01, clip=100))
    model = FedItemKNN(items=np.unique(X[:, 1]), federation=federation, random_state=0).fit(X)
    plain = FedItemKNN(items=np.unique(X[:, 1])).fit(X)
    ours, theirs = (one._model().score_all(np.arange(50)).ravel() for one in (model, plain))
    assert np.corrcoef(ours, theirs)[0, 1] > 0.9


def test_too_many_items_are_refused_before_any_work(monkeypatch):
    X, y = make_toy(12, 9)
    monkeypatch.setattr(_item_weights, "MANY_ITEMS", 1)
    monkeypatch.setattr(_gram, "MOST_ITEMS", 8)
    with pytest.raises(ValueError, match=r"FedItemKNN takes at most 8 items.*Leave out rare items"):
        FedItemKNN().fit(X, y)
    monkeypatch.setattr(_gram, "MOST_ITEMS", 9)
    monkeypatch.setattr(memory, "available", lambda: 64 * len(X))
    with pytest.raises(ValueError, match="FedItemKNN's matrices of 9 by 9 items"):
        FedItemKNN().fit(X, y)
