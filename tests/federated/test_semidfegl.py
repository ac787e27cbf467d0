"""SemiDFEGL: LightGCN on graphs of groups of devices, which exchange embeddings and gradients."""

import numpy as np
import pytest

from benchmarks._variants import variant
from fedrecsk import BiasOnly, ExplicitFCF, SemiDFEGL
from fedrecsk.data.interactions import encode
from fedrecsk.federated.papers.semidfegl import _clustered
from fedrecsk.metrics import bytes_device_to_device_scorer, bytes_scorer
from fedrecsk.model_selection import compare
from fedrecsk.plotting import CostDisplay
from fedrecsk.protocol import estimate_training_time
from fedrecsk.protocol.ledger import Ledger
from fedrecsk.protocol.messages import GroupMessages, deliver
from tests.conftest import BLOCK_SIZES, fits_in_blocks, make_toy
from tests.federated.test_explicit_fcf import problem_of, start_of
from tests.federated.turns import SETTINGS, key_of, turns_of
from tests.reference import semidfegl as reference

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture
def tiny():
    return make_toy(n_users=7, n_items=6, density=0.5, seed=2)


def make(**parameters):
    defaults = {
        "n_factors": 2,
        "n_rounds": 3,
        "n_groups": 2,
        "n_common": 2,
        "CLUSTER_EVERY": 1,
        "INIT_STD": 0.5,
        "reg_user": 0.5,
        "learning_rate": 0.1,
        "user_learning_rate": 0.2,
        "random_state": 0,
    }
    return variant(SemiDFEGL, **defaults | parameters)


def assert_equals_reference(model, X, y, block_sizes=BLOCK_SIZES[:1], **fit_params):
    data = encode(X, y, **fit_params)
    w, ratings, _, spans = problem_of(model, data)
    devices = [reference.Device(model, w[s], ratings[s]) for s in spans]
    start, penalties = start_of(model, w)
    server = reference.Server(model, data.n_clients, start, penalties)
    reference.run(model, devices, server, turns_of(model, data.n_clients), key_of(model))
    first = int(model.biases)
    for fitted in fits_in_blocks(model, X, y, block_sizes=block_sizes, **fit_params):
        np.testing.assert_allclose(fitted.item_factors_, server.items[:, first:], atol=1e-9)
        for span, device in zip(spans, devices, strict=True):
            if device.received is None:
                continue
            for u, code in enumerate(range(span.start, span.stop)):
                z, bias = reference.final_user(model, device, u, server.items)
                np.testing.assert_allclose(fitted.user_factors_[code], z, atol=1e-9)
                if model.biases:
                    assert fitted.user_bias_[code] == pytest.approx(bias, abs=1e-9)
        assert np.abs(server.items - start).max() > 1e-3
    return server


PARAMETERS = [
    {},
    {"n_layers": 3, "reg_item": 0.0, "reg_bias": 0.3},
    {"biases": False, "n_groups": 1, "n_common": 4, "REG_POWER": 0.0},
    {"n_layers": 3, "optimizer": "gd", "CLUSTER_EVERY": 2, "FUZZINESS": 2.0, "BETA_1": 0.5},
]


def test_ego_graphs_may_stay_isolated(tiny):
    model = make(n_common=0, n_layers=3)
    server = assert_equals_reference(model, *tiny, block_sizes=BLOCK_SIZES)
    assert (server.groups < 0).all()
    assert model.fit(*tiny).communication_.bytes_device_to_device == 0


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_equals_the_naive_reference(parameters, tiny):
    X, y = tiny
    weight = np.random.default_rng(3).random(len(y)) + 0.5
    server = assert_equals_reference(make(**parameters), X, y, block_sizes=BLOCK_SIZES)
    assert (server.groups >= 0).all()
    clients = np.where(X[:, 0] < 120, 0, X[:, 0])
    assert_equals_reference(make(**parameters), X, y, clients=clients, sample_weight=weight)


@pytest.mark.parametrize("setting", SETTINGS[:4], ids=str)
def test_equals_the_naive_reference_in_any_setting(setting, tiny):
    assert_equals_reference(make(n_layers=3, n_rounds=5, **setting), *tiny, BLOCK_SIZES[1:2])


def test_groups_are_soft_clusters_of_users_and_items():
    rng = np.random.default_rng(1)
    # Two directions of users, and of items; client 2 has sent nothing yet.
    users = np.array([[1.0, 0], [2, 0.1], [5, 5], [0, 3], [-0.1, 1]])
    items = np.array([[0, 0.5], [4.0, 0], [0.1, 9], [7, 0.2]])
    known = np.array([True, True, False, True, True])
    groups = _clustered(users, known, items, 2, 2, 1.2, np.random.default_rng(0))
    one, other = groups.of_client[0], groups.of_client[3]
    assert groups.of_client.tolist() == [one, one, -1, other, other]
    assert groups.n_devices.tolist() == [2, 2]
    assert sorted(groups.items[one]) == [1, 3]
    assert sorted(groups.items[other]) == [0, 2]
    # Fewer directions than groups, and no user at all.
    assert len(_clustered(users[:1], known[:1], items, 9, 9, 1.2, rng).items) == 1
    assert len(_clustered(users, ~known & known, items, 2, 2, 1.2, rng).items) == 0


def test_soft_clusters_of_many_are_those_of_the_naive_reference():
    model = make(n_factors=3, n_groups=4, n_common=20, FUZZINESS=1.5)
    rng = np.random.default_rng(0)
    users, items = rng.normal(size=(60, 3)), rng.normal(size=(50, 3))
    known = rng.random(60) < 0.8
    server = reference.Server(model, 60, items, None)
    server.embeddings = {client: users[client] for client in np.flatnonzero(known)}
    server.cluster(np.random.default_rng(0))
    groups = _clustered(users, known, items, 4, 20, 1.5, np.random.default_rng(0))
    assert groups.of_client.tolist() == server.groups.tolist()
    assert groups.items.tolist() == server.predicted


def test_messages_reach_their_group_alone():
    ledger = Ledger(np.arange(6))
    ledger.open("round", 0)
    nan = [np.nan, 0]
    blocks = [
        GroupMessages(np.array([1, -1, 0]), np.array([[1.0, 2], [9, 9], [3, 4]])),
        None,
        GroupMessages(np.array([1, 1]), np.array([[3.0, 6], nan])),
    ]
    clients = [np.array([0, 1, 2]), np.array([4]), np.array([3, 5])]
    means = deliver(blocks, clients, 6, ledger, "float32")
    # The message that is not finite does no harm.
    np.testing.assert_allclose(means[0], [[2, 4], [0, 0], [3, 4]])
    assert means[1] is None
    np.testing.assert_allclose(means[2], [[2, 4], [2, 4]])
    assert ledger.client_bytes_device_to_device.tolist() == [16, 0, 0, 16, 0, 16]
    assert ledger.entries[-1]["messages_device_to_device"] == 6
    assert ledger.bytes_device_to_device == 48
    assert deliver([None], [np.array([0])], 6, ledger, "float32") == [None]


def test_the_ledger_counts_what_devices_send_to_each_other(toy):
    X, y = toy
    model = make(n_groups=1, n_factors=3).fit(X, y)
    ledger, n, n_rows = model.communication_, 12, len(y)
    _, setup, *rounds, final = ledger.entries
    assert setup["bytes_up"] == 4 * (2 * n + 2 * n_rows)
    assert {e["bytes_up"] for e in rounds} == {4 * (n_rows * 4 + n * 6)}
    # Every client is alone in the first round. Then it knows the other clients of its group.
    first, *others = rounds
    assert first["bytes_down"] == 4 * (n_rows * 4 + n * 3)
    assert {e["bytes_down"] for e in others} == {4 * (n_rows * 4 + n * 3 + n * (n - 1))}
    assert first["bytes_device_to_device"] == first["messages_device_to_device"] == 0
    assert {e["messages_device_to_device"] for e in others} == {2 * n * (n - 1)}
    assert {e["bytes_device_to_device"] for e in others} == {2 * n * (n - 1) * 4 * 3}
    assert ledger.bytes_device_to_device == 2 * 2 * n * (n - 1) * 12
    assert "from device to device" in repr(ledger)
    assert "Device to device" in ledger._repr_html_()
    assert final["bytes_down"] == 4 * n * 9 * 4
    assert bytes_device_to_device_scorer(model, X) == -ledger.bytes_device_to_device / n
    both = ledger.bytes_up + ledger.bytes_down + 2 * ledger.bytes_device_to_device
    assert bytes_scorer(model, X) == pytest.approx(-both / n)
    slower = estimate_training_time(model).communication_seconds
    assert slower > estimate_training_time(model, up="payload_up").communication_seconds
    joined = Ledger.joined([ledger, ledger])
    assert joined.bytes_device_to_device == 2 * ledger.bytes_device_to_device


def test_comparisons_and_plots_show_it_only_where_there_is_any(toy):
    models = {"graph": make(), "plain": ExplicitFCF(2, n_rounds=2), "biases": BiasOnly()}
    result = compare(models, *toy, cv=2, scoring="rmse")
    row = result.summary.set_index("estimator").to_dict("index")
    assert row["graph"]["mean_mb_device_to_device"] > row["plain"]["mean_mb_device_to_device"] == 0
    assert "MB device to device" in result.to_html()
    display = CostDisplay.from_results(result, score="rmse")
    costs = dict(zip(display.names, display.costs, strict=True))
    names = ["mean_mb_up", "mean_mb_down", "mean_mb_device_to_device"]
    up, down, direct = (row["graph"][name] for name in names)
    assert costs["graph"] == pytest.approx(up + down + 2 * direct)
    del models["graph"]
    summary = compare(models, *toy, cv=2, scoring="rmse").summary
    assert "mean_mb_device_to_device" not in summary


def test_newcomers_stand_alone_and_are_solved_exactly(toy):
    X, y = toy
    model = make(n_factors=3, n_layers=3).fit(X, y)
    mine = X[:, 0] == X[0, 0]
    model.fold_in(np.column_stack([np.full(mine.sum(), 5), X[mine, 1]]), y[mine])
    new = np.flatnonzero(model.user_ids_ == 5)[0]
    z, b = model.user_factors_[new], model.user_bias_[new]
    items = np.searchsorted(model.item_ids_, X[mine, 1])
    E, n = model.item_factors_[items], mine.sum()
    # z = (p + e + p + e) / 4, with e the sum of the items' embeddings over sqrt(n).
    first = E.sum(axis=0) / np.sqrt(n)
    p = 2 * z - first
    errors = model.global_bias_ + b + model.item_bias_[items] + E @ z - y[mine]
    np.testing.assert_allclose(E.T @ errors / 2 + 0.5 * np.sqrt(n) * p, 0, atol=1e-9)
    assert errors.sum() + model.reg_bias * b == pytest.approx(0, abs=1e-9)
