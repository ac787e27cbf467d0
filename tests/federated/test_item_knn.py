"""ItemKNN and FedItemKNN against loops over pairs, with dense and with sparse sums."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
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
from tests.reference import time as time_reference


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


def attributes(n_items):
    """Return two kinds, one of them rare, a column with negative numbers, and years."""
    rng = np.random.default_rng(0)
    kinds = rng.random((n_items, 2)) < [0.6, 0.3]
    others = rng.uniform(-0.5, 0.5, n_items), rng.integers(1980, 2020, n_items)
    return np.column_stack([kinds, *others])


@pytest.mark.parametrize("times", [{}, {"pair_half_life": 3.0, "backward_weight": 0.25}], ids=str)
@pytest.mark.parametrize("kind", ["sparse", "dense"])
@pytest.mark.parametrize("Estimator", [ItemKNN, FedItemKNN])
def test_item_features_equal_the_naive_reference(Estimator, kind, times, monkeypatch):
    """Items 9 and 10 have no rows; 11 and 12 are added."""
    monkeypatch.setattr(_item_weights, "MANY_ITEMS", 10**6 if kind == "dense" else 1)
    X, y = make_toy(30, 9, seed=2)
    order = np.random.default_rng(1).permutation(len(X))
    X = np.column_stack([X[:, 0], (X[:, 1] - 1000) // 3, order])
    y = np.ones(len(X))
    features, powers = pd.DataFrame(attributes(13)), {"power": 0.3, "history_power": 0.7}
    model = Estimator(4, **powers, shrinkage=1.5, content_weight=2.5, **times)
    G, K = np.zeros((11, 11)), reference.cosines(features.to_numpy(), 11)
    histories = [[(i, t, 1.0) for _, i, t in X[X[:, 0] == user]] for user in np.unique(X[:, 0])]
    half_life, backward = times.get("pair_half_life"), times.get("backward_weight", 1.0)
    G[:9, :9] = time_reference.directed(histories, 9, half_life, backward)
    more = reference.with_cosines(G, K[:11, :11], 2.5)
    expected = reference.nearest(more, 0.3, 1.5, 4, 0.7)
    for fitted in fits_in_blocks(model.set_params(item_features=features[:11]), X, y):
        np.testing.assert_allclose(fitted.item_weights_.toarray(), expected, atol=1e-6)
    fitted.add_items(features[11:12]).add_items(features[12:])
    weights = fitted.item_weights_.toarray()
    np.testing.assert_allclose(weights[:11, :11], expected, atol=1e-6)
    n = np.append(np.diag(more), [1, 1])
    for new in (11, 12):
        there, back = (
            [2.5 * K[new, i] / (n[i] ** power + 1.5) for i in range(new)] for power in (0.3, 0.7)
        )
        for found, all_weights in ((weights[new], there), (weights[:, new], back)):
            largest = [w if w in sorted(all_weights)[-4:] else 0 for w in all_weights]
            np.testing.assert_allclose(found[:new], largest, atol=1e-6)


@pytest.mark.parametrize("n_columns", [2, 4], ids=["kinds", "years"])
def test_sparse_item_features_are_those_of_a_frame(n_columns):
    X, y = make_toy(30, 9, seed=2)
    y, rows, items = np.ones(len(y)), attributes(10)[:, :n_columns], np.unique(X[:, 1])
    rows, new = rows[:9], rows[9:]
    frame = FedItemKNN(item_features=pd.DataFrame(rows, index=items)).fit(X, y)
    matrix = FedItemKNN(item_features=sparse.csr_array(rows), items=items).fit(X, y)
    np.testing.assert_array_equal(matrix.predict(X), frame.predict(X))
    assert frame.communication_ == FedItemKNN().fit(X, y).communication_
    frame.add_items(sparse.csr_array(new), [7])
    matrix.add_items(pd.DataFrame(new, index=[7]))
    np.testing.assert_allclose(matrix.item_weights_.toarray(), frame.item_weights_.toarray())
    assert matrix.item_weights_[:, [9]].sum() > 0


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
