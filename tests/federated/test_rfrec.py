import itertools

import numpy as np
import pytest

from benchmarks._variants import variant
from fedrecsk import Federation, RFRec, RFRecF
from fedrecsk.data.interactions import encode
from fedrecsk.privacy import LaplaceMechanism
from tests.conftest import BLOCK_SIZES, fits_in_blocks, make_toy
from tests.federated.turns import SETTINGS, key_of, spans_of, turns_of, two_fits
from tests.reference import rfrec as reference

BOTH = pytest.mark.parametrize("Estimator", [RFRec, RFRecF])


pytestmark = pytest.mark.usefixtures("float64")


def reference_fit(model, X, y, clients=None, sample_weight=None):
    """Run the naive reference in the setting of `model`; returns users, items and clients."""
    data = encode(X, y, clients=clients, sample_weight=sample_weight)
    low, high = model.rating_scale or (y.min(), y.max())
    ratings = np.full((data.n_users, data.n_items), np.nan)
    weights = np.zeros(ratings.shape)
    ratings[data.users, data.items] = (data.values - low) / (high - low)
    weights[data.users, data.items] = data.weights
    setting, key = model.federation or Federation(), key_of(model)
    private = setting.local_dp is not None

    mean = 0.5 if private else np.nansum(weights * np.nan_to_num(ratings)) / weights.sum()
    level = (np.log(mean / (1 - mean)) if model.LINK == "sigmoid" else mean) * model.biases
    width = model.n_factors + model.biases
    items = key.generator("item vectors").standard_normal((data.n_items, width))
    users = key.normal("user vectors", np.arange(data.n_users * width)).reshape(-1, width)
    items, users = model.INIT_STD * items, model.INIT_STD * users
    if model.biases:
        items[:, 0] = users[:, 0] = 0

    n_ratings = None if private else weights.sum(axis=0)
    spans = spans_of(data)
    everyone = [
        reference.Client(model, ratings[s], weights[s], users[s], level, n_ratings) for s in spans
    ]
    server = reference.Server(model, items, [ratings[s] for s in spans])
    turns = turns_of(model, data.n_clients)
    clip = setting.local_dp.clip if private else np.inf
    if isinstance(model, RFRecF):
        coins = [
            int(key.at(t).uniform("coin") < model.aggregation_probability)
            for t in range(model.n_rounds)
        ]
        reference.rfrecf(model, everyone, server, turns, coins, clip)
    else:
        reference.rfrec(model, everyone, server, turns, clip)
    return np.concatenate([c.users for c in everyone]), server.items, everyone


def assert_equals_reference(model, X, y, block_sizes=BLOCK_SIZES[:1], **fit_params):
    users, items, everyone = reference_fit(model, X, y, **fit_params)
    first = int(model.biases)
    started = np.concatenate([np.full(len(c.users), c.items is not None) for c in everyone])
    for fitted in fits_in_blocks(model, X, y, block_sizes=block_sizes, **fit_params):
        np.testing.assert_allclose(fitted.item_factors_, items[:, first:], atol=1e-9)
        np.testing.assert_allclose(fitted.user_factors_[started], users[started, first:], atol=1e-9)
        if model.biases:
            np.testing.assert_allclose(fitted.item_bias_, items[:, 0], atol=1e-9)
            np.testing.assert_allclose(fitted.user_bias_[started], users[started, 0], atol=1e-9)
    return everyone


CATALOGUE = 1000 + 3 * np.arange(9)


def make(Estimator, **parameters):
    if getattr(parameters.get("federation"), "local_dp", None) is not None:
        parameters = {"items": CATALOGUE} | parameters
    return variant(
        Estimator,
        **{"n_factors": 3, "n_rounds": 25 if Estimator is RFRecF else 8, "random_state": 0}
        | parameters,
    )


METHODS = [
    {},
    {"optimizer": "gd", "learning_rate": 0.02},
    {"LINK": "identity"},
    {"LINK": "identity", "optimizer": "gd", "biases": False, "reg_item": 0.0, "REG_POWER": 0.0},
    {"FEW_RATINGS": 0.0},
    {"aggregation": "holders", "prox": 1.3},
    {"aggregation": "clients", "REG_POWER": 1.0, "prox": 0.7},
    {"biases": False, "rating_scale": (0, 6)},
]


@BOTH
@pytest.mark.parametrize("parameters", METHODS, ids=str)
def test_equals_the_naive_reference(Estimator, parameters, toy):
    for arguments, options in two_fits(*toy):
        assert_equals_reference(make(Estimator, **parameters), *arguments, **options)


@BOTH
@pytest.mark.parametrize("setting", [{"federation": Federation(dropout=0.9)}, *SETTINGS], ids=str)
@pytest.mark.parametrize("aggregation", ["clients", "holders"])
def test_equals_the_naive_reference_in_any_setting(Estimator, setting, aggregation, toy):
    X, y = toy
    for options in ({"block_sizes": BLOCK_SIZES[:2]}, {"clients": X[:, 0] % 5}):
        model = make(Estimator, aggregation=aggregation, **setting)
        assert_equals_reference(model, X, y, **options)


@BOTH
def test_clipping_equals_the_naive_reference(Estimator, toy, monkeypatch):
    monkeypatch.setattr(
        LaplaceMechanism, "summed_noise", lambda self, n, shape, generator: np.zeros(shape)
    )
    setting = Federation(local_dp=LaplaceMechanism(clip=0.05, scale=1.0), dropout=0.2)
    model = make(Estimator, aggregation="clients", rating_scale=(1, 5), federation=setting)
    assert_equals_reference(model, *toy, block_sizes=BLOCK_SIZES)


@BOTH
@pytest.mark.parametrize("biases", [True, False])
def test_local_prediction_uses_the_clients_own_matrix(Estimator, biases, toy):
    X, y = toy
    model = make(Estimator, predict_with="local", LINK="identity", biases=biases)
    everyone = assert_equals_reference(model, X, y, clients=X[:, 0] % 4)
    data = encode(X, y, clients=X[:, 0] % 4)
    low, high = model.rating_scale_
    for c, client in enumerate(everyone):
        for local, u in enumerate(range(*data.client_indptr[c : c + 2])):
            p, q = client.users[local], client.items
            score = q @ p
            if biases:
                score = client.level + p[0] + q[:, 0] + q[:, 1:] @ p[1:]
            pairs = [[model.user_ids_[u], item] for item in model.item_ids_]
            expected = np.clip(low + (high - low) * score, low, high)
            assert model.predict(pairs) == pytest.approx(expected)
            _items, scores = model.recommend([model.user_ids_[u]], 9, exclude_seen=False)
            assert scores[0] == pytest.approx(np.sort(expected)[::-1])


def test_the_ledger_counts_what_the_protocol_sends(toy):
    X, y = toy
    n, m, width, rounds = 12, 9, 4, 8
    ledger = make(RFRec).fit(X, y).communication_
    catalogue, setup, *entries, final = ledger.entries
    assert catalogue["bytes_down"] == n * 8 * m
    assert catalogue["bytes_up"] == 0
    assert setup["bytes_up"] == n * 4 * (2 + m)
    assert setup["bytes_down"] == n * 4 * (3 + m)
    assert len(entries) == rounds
    for entry in entries:
        assert entry["bytes_up"] == entry["bytes_down"] == n * m * width * 4
        assert entry["messages_up"] == entry["messages_down"] == n
    assert final["bytes_down"] == n * m * width * 4
    assert final["bytes_up"] == 0
    paper = make(RFRec, biases=False, reg_item=0.0).fit(X, y).communication_
    assert paper.bytes_up == rounds * n * m * 3 * 4


def test_rfrecf_sends_only_when_the_coin_changes(toy):
    model = make(RFRecF, n_rounds=400).fit(*toy)
    key, p = key_of(model), model.aggregation_probability
    coins = [0] + [int(key.at(t).uniform("coin") < p) for t in range(400)]
    changes = list(itertools.pairwise(coins))
    history = model.history_
    assert [bool(row["bytes_up"]) for row in history] == [c == (0, 1) for c in changes]
    sent_down = [bool(row["bytes_down"]) for row in history]
    assert sent_down[1:] == [c == (1, 0) for c in changes[1:]]
    assert sent_down[0]
    assert sum(map(sum, zip(sent_down, [c == (0, 1) for c in changes], strict=True))) == (
        pytest.approx(2 * p * (1 - p) * 400, abs=40)
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"aggregation": "holders", "rating_scale": (1, 5)}, "aggregation='holders' needs"),
        ({}, "rating scale must be public"),
        ({"early_stopping": True, "rating_scale": (1, 5)}, "early_stopping uploads"),
    ],
)
def test_what_local_dp_does_not_cover_is_refused(toy, parameters, message):
    setting = Federation(local_dp=LaplaceMechanism(clip=0.2, scale=0.04))
    with pytest.raises(ValueError, match=message):
        make(RFRec, federation=setting, **parameters).fit(*toy)


def test_too_much_memory_is_refused_before_any_work():
    rng = np.random.default_rng(0)
    X = np.stack([rng.integers(0, 3000, 20_000), np.arange(20_000) % 6000], axis=1)
    y = rng.integers(1, 6, len(X))
    offline = Federation(dropout=0.1, dropout_mode="offline")
    with pytest.raises(ValueError, match=r'unequal history exactly would .* aggregation="holders"'):
        RFRec(federation=offline).fit(X, y)
    RFRec(n_rounds=1, aggregation="holders", federation=offline).fit(X, y)


def test_new_users_get_the_vector_that_minimises_their_loss():
    X, y = make_toy(40, 12, seed=3)
    mine = X[:, 0] == X[0, 0]
    model = make(RFRec, n_rounds=40, LINK="identity").fit(X[~mine], y[~mine])
    model.fold_in(X[mine], y[mine])
    low, high = model.rating_scale_
    items = np.searchsorted(model.item_ids_, X[mine, 1])
    target = (y[mine] - low) / (high - low) - model.global_bias_ - model.item_bias_[items]
    design = np.column_stack([np.ones(len(items)), model.item_factors_[items]])
    penalty = np.diag(
        [model.reg_bias] + [model.reg_user * len(items) ** model.REG_POWER] * model.n_factors
    )
    penalty *= max(1, model.FEW_RATINGS / len(items))
    expected = np.linalg.solve(design.T @ design + penalty, design.T @ target)
    assert np.r_[model.user_bias_[-1], model.user_factors_[-1]] == pytest.approx(expected)


@BOTH
def test_own_items_are_those_of_the_last_fit(Estimator):
    X, y = make_toy()[:2]
    model = Estimator(4, n_rounds=2, predict_with="local", random_state=0).fit(X, y)
    model.set_params(predict_with="global").fit(X, y)
    assert model._own_items is None
    with pytest.raises(ValueError, match=r"needs the clients' own items.*fit again"):
        model.set_params(predict_with="local").predict(X)
