import numpy as np
import pytest

from fedrecsk import Federation, FedRec
from fedrecsk.interactions import encode
from fedrecsk.simulation import blocks, participation
from fedrecsk.simulation.keys import Key
from tests.reference import fedrec as reference


@pytest.fixture(autouse=True)
def float64(monkeypatch):
    monkeypatch.setattr(FedRec, "_dtype", np.float64)


def chances(key, user, n):
    """The draws of one user: a splitmix64 stream from its seed on."""
    seed, mask = int(key.hashed("virtual items", user)), 2**64 - 1
    for k in range(1, n + 1):
        x = (seed + k * 0x9E3779B97F4A7C15) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        yield ((x ^ (x >> 31)) >> 11) * 2.0**-53


def reference_fit(model, X, y, clients=None, sample_weight=None):
    """Run the naive reference in the setting of `model`; returns its clients and items."""
    data = encode(X, y, clients=clients, sample_weight=sample_weight)
    low, high = model.rating_scale or (y.min(), y.max())
    ratings = np.full((data.n_users, data.n_items), np.nan)
    weights = np.zeros(ratings.shape)
    ratings[data.users, data.items] = 1 + 4 * (data.values - low) / (high - low)
    weights[data.users, data.items] = data.weights
    key = Key(int(np.random.RandomState(model.random_state).randint(2**31 - 1)))
    level = np.nansum(weights * np.nan_to_num(ratings)) / weights.sum() * model.biases

    width = model.n_factors + model.biases
    items = key.generator("item vectors").uniform(-1, 1, (data.n_items, width))
    users = 2 * key.uniform("user vectors", np.arange(data.n_users * width)) - 1
    items, users = model.init_range * items, model.init_range * users.reshape(-1, width)
    if model.biases:
        items[:, 0] = users[:, 0] = 0

    def virtual(t, client):
        drawn = key.at(t if model.virtual_items == "redrawn" else -1)
        of_users = []
        for u in range(*data.client_indptr[client : client + 2]):
            rated = ~np.isnan(ratings[u])
            n_wanted = min(model.n_virtual * rated.sum(), (~rated).sum())
            of_users.append(
                reference.virtual_items(rated, n_wanted, chances(drawn, u, data.n_items))
            )
        return of_users

    spans = [slice(*data.client_indptr[c : c + 2]) for c in range(data.n_clients)]
    everyone = [reference.Client(model, ratings[s], weights[s], users[s], level) for s in spans]
    setting = model.federation or Federation()
    turns = [
        participation.draw(data.n_clients, model.client_fraction, setting, key.at(t))[:3]
        for t in range(model.n_rounds)
    ]
    reference.fedrec(model, everyone, items, turns, virtual)
    return everyone, items


def assert_equals_reference(model, X, y, **fit_params):
    model.fit(X, y, **fit_params)
    everyone, items = reference_fit(model, X, y, **fit_params)
    users = np.concatenate([c.users for c in everyone])
    trained = np.concatenate([np.full(len(c.users), c.has_trained) for c in everyone])
    first = int(model.biases)
    assert trained.any()
    np.testing.assert_allclose(model.item_factors_, items[:, first:], atol=1e-9)
    np.testing.assert_allclose(model.user_factors_[trained], users[trained, first:], atol=1e-9)
    if model.biases:
        np.testing.assert_allclose(model.item_bias_, items[:, 0], atol=1e-9)
        np.testing.assert_allclose(model.user_bias_[trained], users[trained, 0], atol=1e-9)


def make(**parameters):
    small = {"n_factors": 3, "n_rounds": 8, "n_virtual": 1, "hybrid_start": 3, "hybrid_steps": 2}
    return FedRec(**small | {"random_state": 0, "init_range": 0.3} | parameters)


PAPER = {"biases": False, "learning_rate_decay": 0.9, "reg": 0.001, "user_steps": 1}
METHODS = [
    {},
    PAPER | {"virtual_items": "redrawn", "learning_rate": 0.2},
    {"filling": "average", "user_steps": 2, "learning_rate_decay": 0.5},
    {"n_virtual": 3, "virtual_items": "redrawn", "hybrid_start": 0},
    {"n_virtual": 0, "rating_scale": (0, 6)},
    {"upload": "all", "virtual_items": "redrawn"},
]
SIZES = pytest.mark.parametrize("ratings_per_block", [10**6, 12, 1], ids=["one", "some", "single"])


@SIZES
@pytest.mark.parametrize("parameters", METHODS, ids=str)
@pytest.mark.parametrize("n_clients", [None, 4], ids=["users", "silos"])
def test_equals_the_naive_reference(parameters, n_clients, ratings_per_block, toy, monkeypatch):
    monkeypatch.setattr(blocks, "block_size", lambda data: ratings_per_block)
    X, y = toy
    clients = None if n_clients is None else X[:, 0] % n_clients
    weight = np.random.default_rng(3).integers(1, 4, len(y)).astype(float)
    assert_equals_reference(make(**parameters), X, y, clients=clients)
    assert_equals_reference(make(**parameters), X, y, clients=clients, sample_weight=weight)


SETTINGS = [
    {"federation": Federation(dropout=0.4)},
    {"federation": Federation(dropout=0.4, dropout_mode="stale")},
    {"federation": Federation(dropout=0.4, dropout_mode="offline")},
    {"client_fraction": 0.3, "n_rounds": 15},
    {"client_fraction": 0.3, "federation": Federation(sampling="rotating"), "n_rounds": 15},
    {"client_fraction": 1 / 12, "federation": Federation(sampling="rotating"), "n_rounds": 60},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("virtual_items", ["fixed", "redrawn"])
def test_equals_the_naive_reference_in_any_setting(setting, virtual_items, toy):
    X, y = toy
    assert_equals_reference(make(virtual_items=virtual_items, **setting), X, y)
