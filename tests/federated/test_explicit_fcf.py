"""ExplicitFCF: exact users and gradients of rated items; under encryption, FedMF."""

import numpy as np
import pytest

from benchmarks._variants import variant
from fedrecsk import ExplicitFCF, Federation
from fedrecsk.data.interactions import encode
from fedrecsk.privacy import CentralDP
from tests.conftest import BLOCK_SIZES, fits_in_blocks
from tests.federated.turns import SETTINGS, crossed, key_of, spans_of, turns_of, two_fits
from tests.reference import fcf as reference

pytestmark = pytest.mark.usefixtures("float64")


def make(**parameters):
    defaults = {"n_factors": 3, "n_rounds": 5, "INIT_STD": 0.5, "random_state": 0}
    return variant(ExplicitFCF, **defaults | parameters)


def first_items(model, n_items):
    shape = (n_items, model.n_factors + model.biases)
    items = model.INIT_STD * key_of(model).generator("item vectors").standard_normal(shape)
    if model.biases:
        items[:, 0] = 0
    return items


def problem_of(model, data):
    """Weights and centred ratings as matrices, the mean, and each client's users."""
    w, ratings = np.zeros((2, data.n_users, data.n_items))
    level = np.average(data.values, weights=data.weights) if model.biases else 0.0
    w[data.users, data.items] = data.weights
    ratings[data.users, data.items] = data.values - level
    return w, ratings, level, spans_of(data)


def start_of(model, w):
    """The first items, and their penalties."""
    start = first_items(model, w.shape[1])
    penalties = np.ones_like(start) * model.reg_item * w.sum(axis=0)[:, None] ** model.REG_POWER
    if model.biases:
        penalties[:, 0] = model.reg_bias
    return start, penalties


def assert_equals_reference(model, X, y, block_sizes=BLOCK_SIZES[:1], **fit_params):
    data = encode(X, y, **fit_params)
    w, ratings, level, spans = problem_of(model, data)
    clients = [reference.RatingClient(model, w[s], ratings[s]) for s in spans]
    start, penalties = start_of(model, w)
    items = reference.run(model, clients, start, penalties, turns_of(model, data.n_clients))
    everybody = reference.RatingClient(model, w, ratings)
    users = np.array([everybody.user(*one, items) for one in zip(w, ratings, strict=True)])
    expected = [
        level + everybody.score(users[u], items[i])
        for u, i in zip(data.users, data.items, strict=True)
    ]
    pairs = np.column_stack([data.user_ids.values[data.users], data.item_ids.values[data.items]])
    low, high = data.values.min(), data.values.max()
    first = int(model.biases)
    for fitted in fits_in_blocks(model, X, y, block_sizes=block_sizes, **fit_params):
        np.testing.assert_allclose(fitted.item_factors_, items[:, first:], atol=1e-9)
        np.testing.assert_allclose(fitted.user_factors_, users[:, first:], atol=1e-9)
        if model.biases:
            np.testing.assert_allclose(fitted.item_bias_, items[:, 0], atol=1e-9)
            np.testing.assert_allclose(fitted.user_bias_, users[:, 0], atol=1e-9)
        assert fitted.global_bias_ == pytest.approx(level)
        assert np.abs(items - start).max() > 1e-3
        np.testing.assert_allclose(fitted.predict(pairs), np.clip(expected, low, high), atol=1e-9)


@pytest.mark.filterwarnings("ignore:CentralDP.delta=")
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("seed", range(4))
def test_noise_on_counts_makes_no_penalty_negative_and_keeps_the_mean_on_the_scale(seed, toy):
    federation = Federation(central_dp=CentralDP(noise_multiplier=100.0))
    public = {"items": np.unique(toy[0][:, 1]), "rating_scale": (1, 5), "upload": "all"}
    model = make(federation=federation, **public, random_state=seed).fit(*toy)
    assert 1 <= model.global_bias_ <= 5
    assert np.isfinite(model.item_factors_).all()


PARAMETERS = [
    {},
    {"biases": False, "REG_POWER": 0.0, "reg_user": 0.5},
    {"REG_POWER": 0.5, "reg_item": 0.0, "reg_bias": 0.3, "EPSILON": 1e-3},
    {"optimizer": "gd", "learning_rate": 0.2},
    {"BETA_1": 0.9, "BETA_2": 0.9, "learning_rate": 0.02, "biases": False},
]


@pytest.mark.parametrize("upload", ["all", "local"])
@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_equals_the_naive_reference(upload, parameters, toy):
    for arguments, options in two_fits(*toy):
        assert_equals_reference(make(upload=upload, **parameters), *arguments, **options)


@pytest.mark.parametrize(("parameters", "setting"), crossed(PARAMETERS, SETTINGS, 5))
def test_equals_the_naive_reference_in_any_setting(parameters, setting, toy):
    X, y = toy
    assert_equals_reference(make(**parameters, **setting), X, y)
    assert_equals_reference(make(upload="all", **parameters, **setting), X, y, clients=X[:, 0] % 5)


@pytest.mark.parametrize("n_clients", [None, 4])
def test_the_ledger_counts_own_rows_or_whole_matrices(n_clients, toy):
    X, y = toy
    clients = X[:, 0] if n_clients is None else X[:, 0] % n_clients
    n, n_items, width = len(np.unique(clients)), 9, 4
    n_rows = len(np.unique(np.column_stack([clients, X[:, 1]]), axis=0))
    for upload, n_setup, n_numbers in (
        ("local", 2 * n + 2 * n_rows, n_rows * width),
        ("all", 2 * n + n * n_items, n * n_items * width),
    ):
        _, setup, *rounds, final = (
            make(upload=upload).fit(X, y, clients=clients).communication_.entries
        )
        assert setup["bytes_up"] == 4 * n_setup
        assert {e["bytes_up"] for e in rounds} == {4 * n_numbers}
        assert {e["bytes_down"] for e in rounds} == {4 * n_numbers}
        assert final["bytes_down"] == 4 * n * n_items * width


def test_items_that_nobody_has_rated_have_no_vector(toy):
    X, y = toy
    items = np.append(np.unique(X[:, 1]), 5000)
    model = make(items=items).fit(X, y)
    assert not model.item_factors_[-1].any()
    assert model.item_bias_[-1] == 0
