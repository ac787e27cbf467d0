"""MetaMF: every client's model comes from the server's network, and its gradients go back."""

import numpy as np
import pytest
import torch

from benchmarks._variants import variant
from fedrecsk import Federation
from fedrecsk.aggregation import TrimmedMean
from fedrecsk.data.interactions import encode
from fedrecsk.neural import MetaMF
from fedrecsk.neural._metamf_network import Made, first_weights
from fedrecsk.privacy import CKKS, CentralDP, LaplaceMechanism
from tests.conftest import BLOCK_SIZES, fits_in_blocks, make_toy
from tests.federated.turns import key_of, turns_of
from tests.reference.neural import metamf as reference


@pytest.fixture
def float64(monkeypatch):
    monkeypatch.setattr(MetaMF, "_dtype", np.float64)


def make(**parameters):
    defaults = {
        "n_factors": 4,
        "rank": 2,
        "scorer_size": 3,
        "code_size": 3,
        "memory_size": 5,
        "hidden_size": 6,
        "n_rounds": 4,
        "learning_rate": 0.02,
        "client_fraction": 1.0,
        "random_state": 0,
    }
    return variant(MetaMF, **defaults | parameters)


def first_server(model, n_clients, n_items):
    """The reference's server with the weights that MetaMF begins with."""
    key = key_of(model)
    draw = key.generator("codes").standard_normal
    common = model.INIT_COMMON * draw(model.code_size)
    codes = common + model.INIT_STD * draw((n_clients, model.code_size))
    weights = first_weights(model._algorithm().sizes(n_items), key.generator("network"), np.float64)
    server = reference.Server(model, n_clients, n_items).to(torch.float64)
    server.load(weights | {"codes": codes})
    return server


def expected_predictions(model, X, y, **fit_params):
    """What the reference predicts for every user and item, and its codes of the users."""
    data = encode(X, y, **fit_params)
    client_of = np.repeat(np.arange(data.n_clients), np.diff(data.client_indptr))
    own = [[] for _ in range(data.n_clients)]
    for u, *row in zip(data.users, data.items, data.values, data.weights, strict=True):
        own[client_of[u]].append(row)
    level = np.average(data.values, weights=data.weights) if model.level else 0.0
    turns = turns_of(model, data.n_clients)
    rounds = [np.flatnonzero(active & delivers) for _, active, delivers in turns]
    with torch.random.fork_rng():
        server = first_server(model, data.n_clients, data.n_items)
    reference.run(model, server, own, level, rounds)
    scale = data.values.min(), data.values.max()
    each = [
        reference.predictions(server, level, scale, c, data.n_items) for c in range(data.n_clients)
    ]
    return np.array(each)[client_of], server.codes.weight.detach().numpy()[client_of]


def all_predictions(model):
    pairs = [[user, item] for user in model.user_ids_ for item in model.item_ids_]
    return model.predict(pairs).reshape(model.n_users_, model.n_items_)


def assert_equals_reference(model, X, y, block_sizes=BLOCK_SIZES, **fit_params):
    expected, codes = expected_predictions(model, X, y, **fit_params)
    for fitted in fits_in_blocks(model, X, y, block_sizes=block_sizes, **fit_params):
        np.testing.assert_allclose(fitted.user_codes_, codes, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(all_predictions(fitted), expected, rtol=1e-9)


# ------------------------------------------------------------------------ the algorithm


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"level": False, "reg": 1e-2, "max_norm": None, "INIT_COMMON": 0.0},
        {"max_norm": 0.05, "BETA_1": 0.5, "BETA_2": 0.9, "EPSILON": 1e-3},
        {"client_fraction": 0.4, "federation": Federation(sampling="rotating", dropout=0.3)},
        {"client_fraction": 0.4, "federation": Federation(sampling="random")},
    ],
    ids=str,
)
def test_equals_the_naive_reference(parameters, toy, float64):
    assert_equals_reference(make(**parameters), *toy)


def test_equals_it_for_clients_of_several_users_and_weighted_rows(toy, float64):
    X, y = toy
    weight = np.random.default_rng(3).random(len(y)) + 0.5
    for clients in (X[:, 0] % 4, np.where(X[:, 0] < 140, X[:, 0] % 4, X[:, 0])):
        assert_equals_reference(
            make(), X, y, block_sizes=BLOCK_SIZES[:2], clients=clients, sample_weight=weight
        )


def test_the_number_of_clients_at_a_time_does_not_matter(toy, float64, monkeypatch):
    expected = make().fit(*toy)
    for module in ("metamf", "_metamf_network"):
        monkeypatch.setattr(f"fedrecsk.neural.{module}.CLIENTS_AT_A_TIME", 5)
    fitted = make().fit(*toy)
    np.testing.assert_allclose(fitted.user_codes_, expected.user_codes_, rtol=1e-9)
    np.testing.assert_allclose(all_predictions(fitted), all_predictions(expected), rtol=1e-9)
    np.testing.assert_allclose(fitted.user_tables_, expected.user_tables_, rtol=1e-9, atol=1e-12)


def test_the_loss_is_that_of_the_ratings_received(toy):
    X, y = toy
    model = make(n_rounds=1, INIT_STD=0.0, INIT_COMMON=0.0, level=True).fit(X, y)
    # With codes of zero and biases of zero every score is the level.
    assert model.loss_curve_[0] == pytest.approx(np.var(y), rel=1e-5)


# -------------------------------------------------------------- what is sent and computed


def test_every_client_gets_its_own_model_and_sends_the_rows_that_it_has_rated(toy):
    X, y = toy
    model = make(n_rounds=3).fit(X, y)
    table, rest = 9 * 2, 2 * 4 + (4 + 2) * 3 + 1
    entries = [e for e in model.communication_.entries if e["phase"] in ("round", "final")]
    assert [e["bytes_down"] for e in entries] == [12 * 4 * (table + rest)] * 4
    up = len(y) * (4 + 4 * 2) + 12 * 4 * (rest + 1)
    assert [e["bytes_up"] for e in entries] == [up] * 3 + [0]
    assert model.privacy_.server_sees == "single uploads"


def test_no_round_computes_whole_tables(monkeypatch):
    X, y = make_toy(40, 15)

    def refuse(*arguments, **named):
        raise AssertionError("A table of all items was computed.")

    monkeypatch.setattr(Made, "__array__", refuse)
    model = make(n_rounds=2, client_fraction=0.3).fit(X, y)
    assert np.isfinite(model.predict(X)).all()


def test_strangers_and_newcomers_are_served_by_the_mean_code(toy):
    X, y = toy
    model = make().fit(X, y)
    items = model.item_ids_
    expected = model.predict([[-1, item] for item in items])
    model.fold_in([[-5, items[0]], [-5, items[1]]], [1.0, 5.0])
    np.testing.assert_array_equal(model.user_codes_[-1], model.mean_code_)
    assert model.predict([[-5, item] for item in items]) == pytest.approx(expected)
    assert model.predict([[X[0, 0], 1], [-1, 1]]) == pytest.approx(model.global_bias_)


@pytest.mark.parametrize(
    ("federation", "message"),
    [
        (Federation(aggregator=TrimmedMean(0.1)), "the aggregator would have no effect"),
        (Federation(secure_aggregation=CKKS()), "secure_aggregation hides"),
        (Federation(central_dp=CentralDP(epsilon=1.0)), "individually"),
        (Federation(local_dp=LaplaceMechanism(1.0, scale=1.0)), "MetaMF has no local_dp"),
    ],
    ids=lambda one: "",
)
def test_what_hides_single_gradients_is_refused(federation, message, toy):
    X, y = toy
    model = make(federation=federation, items=np.unique(X[:, 1]))
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)
