"""FedMF, CoLR and SCoLR, which share their training and most of what they send."""

from collections import namedtuple

import numpy as np
import pytest
from scipy.special import expit
from sklearn.base import clone

from benchmarks._variants import variant
from fedrecsk import CoLR, Federation, FedMF, PrivRec, SCoLR
from fedrecsk.data.interactions import encode
from fedrecsk.federated._feedback import unseen_items
from fedrecsk.federated.fedmf import EPOCHS_OF_THE_NEW
from fedrecsk.protocol import blocks
from fedrecsk.protocol.evaluation import HeldOut
from fedrecsk.protocol.keys import Key
from tests.conftest import BLOCK_SIZES, fits_in_blocks, make_toy
from tests.federated.turns import (
    IDLE,
    SETTINGS,
    crossed,
    first_items,
    key_of,
    spans_of,
    turns_of,
    two_fits,
)
from tests.reference import colr as reference

pytestmark = pytest.mark.usefixtures("float64")


def make(Estimator, **parameters):
    """Small, every client in every round, and with batches that end inside a client's data."""
    defaults = {
        "n_factors": 5,
        "n_rounds": 3,
        "n_negatives": 2,
        "batch_size": 7,
        "reg": 0.01,
        "INIT_STD": 0.5,
        "client_fraction": 1.0,
        "random_state": 0,
    }
    if not issubclass(Estimator, FedMF):
        defaults["rank"] = 3
    return variant(Estimator, **defaults | parameters)


def rows_of_basis(model, key, n_clients):
    """Which rows of B each client trains in a round, drawn as the docstring says."""
    if not isinstance(model, SCoLR):
        rank = getattr(model, "rank", model.n_factors)
        return [np.arange(rank)] * n_clients
    if model.local_rank == "uniform":
        sizes = 1 + np.floor(key.uniform("local rank", np.arange(n_clients)) * model.rank)
    else:
        given = np.atleast_2d(
            np.broadcast_to(model.local_rank, np.shape(model.local_rank) or n_clients)
        )
        sizes = given[key.round % len(given)]
    draws = key.uniform("rows of B", np.arange(n_clients * model.rank)).reshape(n_clients, -1)
    return [np.argsort(d)[: int(n)] for d, n in zip(draws, sizes, strict=True)]


def basis_of(model, key):
    """B, as the server draws it."""
    if isinstance(model, FedMF):
        return np.eye(model.n_factors)
    return broadcast_of(model, key)["basis"].values


def broadcast_of(model, key):
    """A round's message."""
    algorithm = model._algorithm()
    server = algorithm.begin(namedtuple("Catalogue", "n_items")(1), None, key)
    return algorithm.broadcast(server, key)


def clients_of(model, data):
    targets = np.full((data.n_users, data.n_items), np.nan)
    weights = np.zeros(targets.shape)
    level = np.average(data.values, weights=data.weights)
    values = data.values > 0 if model.loss == "bce" else data.values - level
    targets[data.users, data.items] = values
    weights[data.users, data.items] = data.weights
    coordinates = np.arange(data.n_users * model.n_factors).reshape(data.n_users, -1)
    users = model.INIT_STD * key_of(model).normal("user factors", coordinates)
    spans = spans_of(data)
    return [reference.Client(model, targets[s], weights[s], users[s]) for s in spans]


def assert_equals_reference(model, X, y=None, block_sizes=BLOCK_SIZES[:1], **fit_params):
    data = encode(X, y, **fit_params)
    clients, n = clients_of(model, data), data.n_clients
    keys = [key_of(model).at(t) for t in range(model.n_rounds)]
    draws = [
        (basis_of(model, k), rows_of_basis(model, k, n), k.hashed("visit", np.arange(n)))
        for k in keys
    ]
    start = first_items(model, data.n_items)
    items = reference.run(model, clients, start, turns_of(model, n), draws)
    seed = Key(0).hashed("personal")
    n_epochs = {False: EPOCHS_OF_THE_NEW, True: model.local_epochs}
    users = np.concatenate([c.personal_vectors(items, n_epochs, seed) for c in clients])
    for fitted in fits_in_blocks(model, X, y, block_sizes=block_sizes, **fit_params):
        np.testing.assert_allclose(fitted.item_factors_, items, atol=1e-9)
        np.testing.assert_allclose(fitted.user_factors_, users, atol=1e-9)
        assert np.abs(items - start).max() > 1e-3


COMBINATIONS = [
    (FedMF, {}),
    (FedMF, {"aggregation": "data_size", "local_epochs": 1}),
    (FedMF, {"loss": "squared", "learning_rate": 0.1}),
    (FedMF, {"n_negatives": 0}),
    (PrivRec, {"server_learning_rate": 3.0}),
    (CoLR, {}),
    (CoLR, {"rank": 5, "aggregation": "data_size"}),
    (CoLR, {"RANK_EXPONENT": 0.5}),
    (CoLR, {"rank": 1, "loss": "squared", "learning_rate": 0.1}),
    (SCoLR, {}),
    (SCoLR, {"aggregation": "visits", "local_epochs": 1}),
    (SCoLR, {"aggregation": "data_size", "local_rank": 2}),
    (SCoLR, {"aggregation": "entries"}),
]


@pytest.mark.parametrize(("Estimator", "parameters"), COMBINATIONS)
def test_equals_the_naive_reference(Estimator, parameters, toy):
    for arguments, options in two_fits(*toy, shift=2):
        assert_equals_reference(make(Estimator, **parameters), *arguments, **options)


# One of each way to add up; losses and rates do not depend on who takes part.
ADDED_UP = [COMBINATIONS[k] for k in (0, 1, 4, 6, 9, 10, 12)]


@pytest.mark.parametrize(("combination", "setting"), crossed(ADDED_UP, SETTINGS))
def test_equals_the_naive_reference_in_any_setting(combination, setting, toy):
    X, y = toy
    Estimator, parameters = combination
    model = make(Estimator, **parameters, **setting)
    assert_equals_reference(clone(model), X, y)
    assert_equals_reference(clone(model), X, y, clients=X[:, 0] % 5)


def test_given_local_ranks_change_from_round_to_round(toy):
    X, _ = toy
    n = len(np.unique(X[:, 0]))
    given = np.random.default_rng(0).integers(1, 4, (2, n))
    assert_equals_reference(make(SCoLR, local_rank=given.tolist()), X)
    assert_equals_reference(make(SCoLR, local_rank=given[0].tolist()), X)


def test_the_basis_has_orthogonal_rows_of_the_same_length_and_is_new_each_round():
    model = CoLR(3, n_factors=12)
    basis, other = (basis_of(model, Key(0, t)) for t in (0, 1))
    np.testing.assert_allclose(basis @ basis.T, 4 * np.eye(3), atol=1e-12)
    message = broadcast_of(model, Key(0, 0))
    # What is not learned is not compressed.
    assert not message["basis"].learned
    assert np.abs(basis - other).min() > 1e-6


def sent(model, X, **fit_params):
    ledger = model.fit(X, **fit_params).communication_
    return [(e["bytes_down"], e["bytes_up"]) for e in ledger.entries if e["phase"] == "round"]


def test_the_ledger_counts_items_down_and_updates_with_visits_up(toy):
    X, _ = toy
    n, m, d, r = len(np.unique(X[:, 0])), len(np.unique(X[:, 1])), 5, 3
    assert sent(make(FedMF), X) == [(4 * n * m * d, n * (4 * m * d + m))] * 3
    down = [4 * n * (m * d + r * d)] + 2 * [4 * n * (m * r + r * d)]
    assert sent(make(CoLR), X) == [(bytes_down, n * (4 * m * r + m)) for bytes_down in down]
    entries = make(CoLR).fit(X).communication_.entries
    (payload,) = {e["payload_up"] for e in entries if e["phase"] == "round"}
    assert payload == 4 * n * m * r
    assert sent(make(CoLR, aggregation="data_size"), X)[0][1] == n * (4 * m * r + 4)
    squared = make(FedMF, loss="squared").fit(X, X[:, 1] / 1000).communication_
    (setup,) = [e for e in squared.entries if e["phase"] == "setup"]
    assert (setup["bytes_down"], setup["bytes_up"]) == (4 * n, 8 * n)


@pytest.mark.parametrize("aggregation", ["visits", "entries"])
def test_the_ledger_counts_each_clients_own_rank(aggregation, toy):
    X, _ = toy
    n, m = len(np.unique(X[:, 0])), len(np.unique(X[:, 1]))
    model = make(SCoLR, aggregation=aggregation)
    key = key_of(model)
    for t, (_, up) in enumerate(sent(model, X)):
        total = sum(map(len, rows_of_basis(model, key.at(t), n)))
        weights = {"visits": n * m, "entries": total * m}[aggregation]
        assert up == 4 * total * m + weights + n * model.rank


def test_predict_gives_chances_or_ratings(toy):
    X, y = toy
    model = make(FedMF).fit(X)
    users = np.searchsorted(model.user_ids_, X[:, 0])
    items = np.searchsorted(model.item_ids_, X[:, 1])
    scores = np.sum(model.user_factors_[users] * model.item_factors_[items], axis=1)
    np.testing.assert_allclose(model.predict(X), expit(scores))
    assert model.predict([[-1, X[0, 1]]]) == pytest.approx(0.5)
    model = make(FedMF, loss="squared", learning_rate=0.1).fit(X, y)
    assert model.predict([[-1, X[0, 1]]]) == pytest.approx(y.mean())
    assert model.global_bias_ == pytest.approx(y.mean())


def first_rows(X):
    """The first row of each user, as if held out."""
    data = encode(X)
    mask = np.zeros(len(data.items), dtype=bool)
    mask[data.indptr[:-1]] = True
    return data, HeldOut.of(blocks.cut(data.take(mask), max_ratings=len(X))[0])


def test_early_stopping_measures_cross_entropy_on_held_out_rows(toy):
    X, _ = toy
    data, held_out = first_rows(X)
    model = make(FedMF).fit(X)
    losses, weights = model._algorithm().losses(model._model(), held_out, model._seen)
    full = np.diff(data.indptr)[held_out.users] == data.n_items
    np.testing.assert_array_equal(weights, np.where(full, 1, 3))
    chance = model._model().predict(held_out.users, held_out.items)
    assert (losses >= -np.log(chance) - 1e-12).all()
    np.testing.assert_allclose(losses[full], -np.log(chance[full]))


def test_a_client_alone_validates_with_the_same_negatives(toy):
    X, _ = toy
    model = make(FedMF).fit(X)
    data, held_out = first_rows(X)
    rows, negatives = unseen_items(held_out, held_out.values > 0, model._seen, model.n_negatives)
    for user in range(data.n_users):
        seen = data.items[data.indptr[user] : data.indptr[user + 1]]
        _, mine = first_rows(X[X[:, 0] == data.user_ids.values[user]])
        mine = mine._replace(n_items=data.n_items)
        own = np.array([0, len(seen)]), seen
        _, drawn = unseen_items(mine, mine.values > 0, own, model.n_negatives)
        np.testing.assert_array_equal(drawn, negatives[held_out.users[rows] == user])
        assert not np.isin(drawn, seen).any()


# ---------------------------------------------------------------- visits and bad input


@pytest.mark.parametrize("Estimator", [FedMF, SCoLR])
def test_clients_that_have_diverged_are_told_and_not_added(Estimator, toy):
    class Diverging(Estimator._kind):
        def enter(self, block, message, key):
            clients = super().enter(block, message, key)
            clients.users[block.users == 0] = np.inf
            return clients

    class Broken(Estimator):
        _kind = Diverging

    for federation in (None, Federation(aggregator=IDLE)):
        setting = {"federation": federation, "loss": "squared", "learning_rate": 0.1}
        model = Broken(**make(Estimator, **setting).get_params(deep=False)).fit(*toy)
        rounds = [e for e in model.communication_.entries if e["phase"] == "round"]
        assert [e["rejected"] for e in rounds] == [1] * 3
        assert np.isfinite(model.item_factors_).all()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (CoLR(6, n_factors=5), "rank=6 is more than n_factors=5"),
        (SCoLR(4, local_rank=5), "local_rank must be between 1 and rank=4, got 5 to 5"),
        (SCoLR(4, local_rank=[1, 2]), "local_rank has shape .2,., but there are 12 clients"),
        (SCoLR(4, local_rank=[1.5] * 12), "local_rank must hold integers"),
        (SCoLR(4, local_rank=[0] * 12), "local_rank must be between 1 and rank=4, got 0 to 0"),
        (FedMF(n_negatives=9), "n_negatives=9 is more than the 8 items"),
    ],
)
def test_bad_input_is_named(model, message):
    X, _ = make_toy(density=0.0)
    with pytest.raises(ValueError, match=message):
        model.fit(X)
