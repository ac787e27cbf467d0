"""Fits whose messages are bytes, without an engine: equal to the simulated ones.

Nodes forget everything between requests but the files in their folders.
"""

import secrets

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import fedrecsk
from fedrecsk import (
    FCF,
    CoLR,
    ExplicitFCF,
    FedEASE,
    FedEB,
    Federation,
    FedFast,
    FedItemKNN,
    FedMF,
    FedRec,
    FedSpectral,
    LightFR,
    LocALS,
    RFRec,
    RFRecF,
    SCoLR,
    aggregation,
    compression,
)
from fedrecsk.aggregation import (
    CoordinateMedian,
    FLTrust,
    GeometricMedian,
    HierarchicalClipping,
    Krum,
    NormClipping,
    PopularityFilter,
    RowClipping,
    TrimmedMean,
)
from fedrecsk.compression import LowRank, Quantization, TopK
from fedrecsk.deployment.server_model import send_new_items
from fedrecsk.deployment.store import Store
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.federated.rfrec import RFRecAlgorithm
from fedrecsk.privacy import (
    CentralDP,
    GaussianMechanism,
    LaplaceMechanism,
    SecAggPlus,
    SphereMechanism,
)
from fedrecsk.protocol import blocks
from fedrecsk.protocol.plan import FitPlan
from tests.conftest import draw_each, make_toy
from tests.deployment.in_process import InProcess, coordinator, make_nodes, prepared, simulated_key
from tests.listed import cases

# Uploads of all digits, so that fits can be compared bit by bit.
DIGITS = Federation(wire_dtype="float64")
METHODS = [
    one
    for one in (getattr(fedrecsk, name) for name in fedrecsk.__all__)
    if isinstance(one, type) and issubclass(one, FederatedRecommender)
]
# Small, where the defaults are not, and long enough for something to happen.
SMALL = {
    "n_factors": 3,
    "n_bits": 5,
    "rank": 2,
    "n_rounds": 4,
    "reg_user": 0.5,
    "n_negatives": 2,
    # Devices that send to each other are simulated only.
    "n_common": 0,
    "random_state": 0,
    "federation": DIGITS,
}


def make(Estimator, **parameters):
    """A small estimator in which every client takes part, whatever the method's defaults are."""
    names = Estimator().get_params(deep=False)
    small = {name: value for name, value in SMALL.items() if name in names}
    small |= {"client_fraction": 1.0}
    if issubclass(Estimator, RFRecF):
        small["n_rounds"] = 14
    return Estimator(**small | parameters)


@pytest.fixture
def as_simulated(monkeypatch):
    """Let devices draw what the simulator draws, instead of asking the operating system."""

    def seed(estimator):
        drawn = simulated_key(estimator).seed
        monkeypatch.setattr(secrets, "randbits", lambda n: drawn)

    return seed


def deploy(estimator, X, y, clients, folder, **parameters):
    """Each client's model, the server's, and the carrier."""
    nodes = make_nodes(estimator, X, y, clients, folder)
    one = coordinator(estimator, nodes, folder, **parameters)
    server = one.run()
    return load_models(nodes), server, one.exchanges.carrier


def load_models(nodes):
    return [joblib.load(node.store.folder / "model.joblib") for node in nodes.values()]


def fitted(model, prefix):
    """Names of fitted arrays of users or items."""
    names = [n for n in vars(model) if n.startswith(prefix) and n.endswith("_")]
    return [n for n in names if isinstance(getattr(model, n), np.ndarray) and "_ids_" not in n]


def assert_same(models, server, simulated, tolerance=0.0):
    """Users' and items' attributes, recommendations, and the ledger."""
    for name in fitted(simulated, "item_"):
        expected = getattr(simulated, name)
        for model in (server, *models):
            np.testing.assert_allclose(getattr(model, name), expected, rtol=0, atol=tolerance)
    for model in models:
        codes = simulated._users.codes(model.user_ids_)
        # Sums of pairs of items have no numbers of a user's own.
        assert bool(fitted(model, "user_")) != isinstance(simulated, FedEASE | FedItemKNN)
        for name in fitted(model, "user_"):
            expected = getattr(simulated, name)[codes]
            np.testing.assert_allclose(getattr(model, name), expected, rtol=0, atol=tolerance)
        if not tolerance:
            for one, other in zip(
                model.recommend(model.user_ids_, 3),
                simulated.recommend(model.user_ids_, 3),
                strict=True,
            ):
                np.testing.assert_array_equal(one, other)
    assert server.communication_ == simulated.communication_
    if server.communication_.entries[-3]["phase"] != "taken back":
        # The simulator does not count these uploads.
        assert server.privacy_ == simulated.privacy_
    assert server.n_rounds_ == simulated.n_rounds_


SETTINGS = [
    {},
    {"client_fraction": 0.5},
    {"federation": Federation(sampling="rotating", wire_dtype="float64"), "client_fraction": 0.3},
]


def look_at_uploads(monkeypatch):
    """Let clients of the simulator look at each upload before they add them up."""
    found = FitPlan.uploads

    def uploads(plan, *, is_apart=False, is_forged=False):
        return found(plan, is_apart=is_apart, is_forged=True)

    monkeypatch.setattr(FitPlan, "uploads", uploads)


@pytest.fixture
def exact(monkeypatch):
    """Let the simulator add up single updates, as the server does: sums are rounded otherwise."""
    monkeypatch.setattr(blocks, "block_size", lambda *_: 1)
    look_at_uploads(monkeypatch)


def assert_simulated(estimator, X, y, clients, folder, as_simulated, tolerance=0.0):
    """Compare a deployed fit with the simulated one."""
    estimator = prepared(estimator, X, y)
    as_simulated(estimator)
    models, server, carrier = deploy(estimator, X, y, clients, folder)
    assert_same(models, server, clone(estimator).fit(X, y, clients=clients), tolerance)
    return server, carrier


@pytest.mark.parametrize(("Estimator", "setting"), cases(METHODS, SETTINGS, 3))
def test_one_client_per_user_is_the_simulated_fit(
    Estimator, setting, tmp_path, as_simulated, exact
):
    X, y = make_toy(8)
    estimator = make(Estimator, **setting)
    fits = assert_simulated(estimator, X, y, X[:, 0], tmp_path, as_simulated)
    assert_counted_what_crossed(*fits)


@pytest.mark.parametrize("Estimator", METHODS)
def test_silos_are_the_simulated_fit_in_blocks(Estimator, tmp_path, as_simulated, monkeypatch):
    monkeypatch.setattr(Estimator, "_dtype", np.float64, raising=False)
    X, y = make_toy()
    # In the simulation users are numbered across clients, and so are the devices' by the server.
    assert_simulated(make(Estimator), X, y, X[:, 0] % 3, tmp_path, as_simulated, 1e-9)


class Retrained(FedFast):
    FINAL_EPOCHS = 1


class FrozenItems(LightFR):
    _trains_items = False


VARIANTS = [
    RFRec(3, n_rounds=4, predict_with="local", optimizer="gd"),
    RFRecF(3, n_rounds=14, predict_with="local", aggregation="clients"),
    LocALS(3, n_rounds=3, reg_user=1.0, aggregation="clients", upload="all"),
    FedMF(3, n_rounds=3, client_fraction=1.0, aggregation="data_size", n_negatives=1),
    FedRec(3, n_rounds=4, client_fraction=1.0, virtual_items="redrawn", hybrid_start=1),
    SCoLR(2, n_factors=3, n_rounds=3, client_fraction=1.0, aggregation="entries"),
    Retrained(3, n_rounds=3, aggregation="visits", sampling="federation"),
    LightFR(70, n_rounds=2, aggregation="parameter", targets="ratings"),
    FrozenItems(5, n_rounds=3),
    FCF(3, n_rounds=3, upload="local"),
]


@pytest.mark.parametrize("estimator", VARIANTS, ids=repr)
def test_so_it_is_with_a_methods_other_parameters(estimator, tmp_path, as_simulated, exact):
    X, y = make_toy()
    estimator = clone(estimator).set_params(random_state=1, federation=DIGITS)
    assert_simulated(estimator, X, y, X[:, 0] % 5, tmp_path, as_simulated)


@pytest.mark.parametrize("personal_items", [False, True])
def test_so_it_is_where_each_client_gets_a_table_of_its_own(personal_items, tmp_path, as_simulated):
    pytest.importorskip("torch")
    from fedrecsk.neural import GPFedRec

    X, y = make_toy(8)
    federation = Federation(wire_dtype="float64")
    model = GPFedRec(3, layers=(4,), n_rounds=3, client_fraction=0.5, personal_items=personal_items)
    model.set_params(random_state=1, federation=federation)
    assert_simulated(model, X, y, X[:, 0], tmp_path, as_simulated, 1e-5)


def mf(**parameters):
    return FedMF(3, n_rounds=3, client_fraction=1.0, **parameters)


def rfrec(**parameters):
    return RFRec(3, n_rounds=3, **parameters)


NOISE = LaplaceMechanism(clip=0.2, scale=0.1)
# Each aggregator, compressor and mechanism once or twice, and each family of methods.
FEDERATIONS = [
    (FedFast(3, n_rounds=3, client_fraction=0.5), {"sampling": "rotating"}),
    (LocALS(3, n_rounds=2), {"aggregator": NormClipping(0.2)}),
    (rfrec(), {"aggregator": RowClipping()}),
    (RFRecF(3, n_rounds=8), {"aggregator": HierarchicalClipping()}),
    (FedEB(3, n_rounds=3), {"aggregator": GeometricMedian()}),
    (ExplicitFCF(3, n_rounds=3), {"aggregator": CoordinateMedian()}),
    (FedRec(3, n_rounds=3, client_fraction=1.0), {"aggregator": Krum(1)}),
    (LightFR(5, n_rounds=3, client_fraction=1.0), {"aggregator": TrimmedMean()}),
    (FCF(3, n_rounds=3), {"aggregator": PopularityFilter()}),
    (rfrec(), {"aggregator": FLTrust(reference=100)}),
    (rfrec(), {"compression": Quantization("float16", direction="down")}),
    (mf(), {"compression": TopK(0.3)}),
    (FedEB(3, n_rounds=3), {"compression": LowRank(1, direction="up")}),
    (LocALS(3, n_rounds=2), {"compression": Quantization("int8"), "aggregator": RowClipping()}),
    (
        CoLR(2, n_factors=3, n_rounds=3, client_fraction=1.0),
        {"compression": Quantization("int8", direction="up")},
    ),
    (
        rfrec(aggregation="clients"),
        {"local_dp": NOISE, "compression": LowRank(1, direction="up")},
    ),
    (
        RFRecF(3, n_rounds=8, aggregation="clients"),
        {"local_dp": GaussianMechanism(clip=0.5, noise_multiplier=0.5)},
    ),
    (rfrec(aggregation="clients"), {"local_dp": SphereMechanism(clip=0.5, epsilon=10.0)}),
]


@pytest.mark.parametrize("room", [aggregation, compression])
def test_every_aggregator_and_compressor_is_deployed_below(room):
    parts = {type(part).__name__ for _, one in FEDERATIONS for part in one.values()}
    assert set(room.__all__) - parts <= {"Aggregator", "Compressor", "Compressed"}


@pytest.mark.parametrize(("estimator", "setting"), FEDERATIONS, ids=str)
def test_so_are_cohorts_quiet_rounds_aggregators_compression_and_noise(
    estimator, setting, tmp_path, as_simulated, monkeypatch
):
    monkeypatch.setattr(type(estimator), "_dtype", np.float64, raising=False)
    monkeypatch.setattr(blocks, "block_size", lambda *_: 1)
    # Each client's own noise, as its device draws it.
    draw_each(monkeypatch)
    X, y = make_toy(8)
    federation = Federation(wire_dtype="float64", **setting)
    estimator = clone(estimator).set_params(random_state=1, federation=federation)
    assert_simulated(estimator, X, y, X[:, 0], tmp_path, as_simulated, 1e-9)


def assert_counted_what_crossed(server, carrier):
    """Up to the places of rows, and counts in fewer bytes."""
    n_counted = sum(entry["bytes_up"] for entry in server.communication_.entries)
    assert abs(carrier.n_bytes_of_numbers_up - n_counted) < 0.08 * n_counted


def test_on_the_wire_are_the_ledgers_bytes_and_a_constant_per_message(tmp_path):
    """With the default, numbers of 4 bytes. Models go down whole, also if they are compressed."""
    X, y = make_toy(12, n_items=200, density=0.5)
    estimators = [LocALS(8), LightFR(64), CoLR(2, n_factors=16)]
    compressions = TopK(), Quantization("int8"), LowRank(2)
    estimators += [RFRec(8, federation=Federation(compression=one)) for one in compressions]
    estimators += [RFRec(8, early_stopping=True, validation_fraction=0.3)]
    for number, estimator in enumerate(estimators):
        estimator = prepared(estimator.set_params(n_rounds=2), X, y)
        if "client_fraction" in estimator.get_params():
            estimator.set_params(client_fraction=1.0)
        folder = tmp_path / str(number)
        _, server, carrier = deploy(estimator, X, y, X[:, 0] % 3, folder)
        entries = [e for e in server.communication_.entries if e["phase"] != "catalogue"]
        down = sum(entry["bytes_down"] for entry in entries)
        up = sum(entry["bytes_up"] for entry in entries)
        sent = [one for one in carrier.crossed if one[0] != "register"]
        assert sum(one[1] for one in sent) <= 1.1 * down + 1300 * len(sent)
        assert sum(one[2] for one in sent) <= 1.1 * up + 1300 * len(sent)
        traffic = server.traffic_
        assert sum(t["bytes_down"] for t in traffic) == sum(one[1] for one in sent)


def test_the_servers_estimator_serves_newcomers(tmp_path):
    X, y = make_toy()
    estimator = prepared(RFRec(3, n_rounds=2), X, y)
    _, server, _ = deploy(estimator, X, y, X[:, 0] % 3, tmp_path)
    assert server.n_users_ == 0
    item = server.item_ids_[0]
    before = server.predict([["zoe", item]])
    server = server.fold_in([["zoe", item], ["zoe", server.item_ids_[1]]], [5.0, 5.0])
    assert server.predict([["zoe", item]]) > before
    assert joblib.load(tmp_path / "server" / "model.joblib").n_rounds_ == 2
    assert not (tmp_path / "server" / "checkpoint").exists()


ITEMS = [RFRec(3), FedEB(3), LocALS(3, reg_user=1.0), LightFR(5)]


@pytest.mark.parametrize("method", ITEMS, ids=repr)
def test_nodes_are_sent_the_rows_of_new_items_alone(method, tmp_path, as_simulated):
    X, y = make_toy(12, n_items=20, density=0.7)
    ids = np.unique(X[:, 1])
    rng = np.random.default_rng(0)
    features = pd.DataFrame(rng.random((len(ids) + 2, 3)), index=[*ids, 7, 9])
    method = clone(method).set_params(n_rounds=3, random_state=0, federation=DIGITS)
    method.set_params(warm_start=True, item_features=features.iloc[:-2])
    estimator = prepared(method, X, y)
    as_simulated(estimator)
    silos = X[:, 0] % 3
    nodes = make_nodes(estimator, X, y, silos, tmp_path)
    coordinator(estimator, nodes, tmp_path).run()
    carrier, store = InProcess(nodes), Store(tmp_path / "server")
    settings = {"n_clients": 3, "patience": 0.2, "gathering": 1.0}
    for n_new in (1, 2):
        new = features.iloc[-2:][n_new - 1 : n_new]
        server = send_new_items(estimator, new, carrier, store, **settings)
    assert [size < 3000 for kind, size, _ in carrier.crossed if kind == "items"] == 6 * [True]
    simulated = clone(estimator).fit(X, y, clients=silos).add_items(features.iloc[-2:])
    # The server knows neither rows nor losses.
    unknown = {"_run", "_parts", "_added", "_user_columns", "n_features_in_", "loss_curve_"}
    assert vars(simulated).keys() - vars(server).keys() <= unknown
    for model in load_models(nodes):
        assert model.item_ids_.tolist() == server.item_ids_.tolist() == [*ids, 7, 9]
        pairs = [[user, item] for user in model.user_ids_ for item in (7, 9, ids[0])]
        np.testing.assert_allclose(model.predict(pairs), simulated.predict(pairs), rtol=1e-4)
        assert np.isin(model.recommend(model.user_ids_, 20)[0], [7, 9]).any()


@pytest.mark.parametrize("Estimator", [FedEASE, FedItemKNN])
def test_new_items_that_cannot_be_sent_are_refused(Estimator, tmp_path):
    X, y = make_toy(8)
    features = pd.DataFrame(np.eye(10), index=[*np.unique(X[:, 1]), 7])
    estimator = Estimator(item_features=features[:-1], warm_start=True)
    estimator = prepared(estimator, X, y)
    store = Store(tmp_path / "server")
    with pytest.raises(ValueError, match="has no fit of this estimator with warm_start=True"):
        send_new_items(estimator, features[-1:], None, store, n_clients=2)
    deploy(estimator, X, y, X[:, 0] % 2, tmp_path)
    with pytest.raises(ValueError, match=r"have weights between items.*update=True"):
        send_new_items(estimator, features[-1:], None, store, n_clients=2)


class AlwaysAlike(RFRecAlgorithm):
    def losses(self, model, held_out, seen):
        return np.ones((2, len(held_out.users)))


class NeverBetter(RFRec):
    """The first model stays the best."""

    _kind = AlwaysAlike


STOPPED = [RFRec, NeverBetter, FedEB, LocALS, FedMF, LightFR, RFRecF, ExplicitFCF]


@pytest.mark.parametrize(("Estimator", "patience"), cases(STOPPED, [1, 10], 2))
def test_early_stopping_keeps_the_simulated_models(
    Estimator, patience, tmp_path, as_simulated, monkeypatch
):
    monkeypatch.setattr(blocks, "block_size", lambda *_: 1)
    X, y = make_toy(8, density=0.8)
    stops = {"early_stopping": True, "validation_fraction": 0.3, "tol": 0.0}
    estimator = make(Estimator, n_rounds=6, n_iter_no_change=patience, **stops)
    # One silo with all users, so that the device holds out the rows that the simulator does.
    silo = np.zeros(len(X), dtype=int)
    server, _ = assert_simulated(estimator, X, y, silo, tmp_path, as_simulated)
    assert server.best_round_ == prepared(estimator, X, y).fit(X, y, clients=silo).best_round_


UPDATED = [
    RFRec(3, predict_with="local", client_fraction=0.5),
    FedEB(3),
    LocALS(3, reg_user=1.0),
    FCF(3),
    FedMF(3, client_fraction=0.5),
    SCoLR(2, n_factors=3, client_fraction=1.0),
    FedEASE(reg=5.0),
    FedEASE(reg=5.0, client_fraction=0.5),
    FedItemKNN(3),
]


@pytest.mark.parametrize("method", UPDATED, ids=repr)
def test_an_update_is_the_simulated_one(method, tmp_path, monkeypatch, exact):
    """Of new rows of some clients, new users and new items; and again."""
    X, y = make_toy(8)
    silos, times = X[:, 0] % 4, np.arange(len(X)) % 5
    # Client 3 is new at first, the last item later, and client 0 has new rows once.
    late = X[:, 1] == X[:, 1].max()
    first = (silos < 3) & (times > 1) & ~late
    second = ((times > 0) | (silos == 2)) & ~late & (first | (silos != 1))
    third = (second | (silos == 1)) & (silos != 0) | second
    estimator = clone(method).set_params(random_state=0, federation=DIGITS, warm_start=True)
    if not estimator._algorithm().traits.sends_once:
        estimator.set_params(n_rounds=10)
    simulated, before = None, np.zeros(len(X), dtype=bool)
    for number, rows in enumerate([first, second, third]):
        estimator = prepared(estimator, X, y).set_params(items=np.unique(X[rows, 1]))
        if simulated is None:
            simulated = clone(estimator).fit(X[rows], y[rows], clients=silos[rows])
        else:
            simulated.set_params(items=estimator.items)
            new = rows & ~before
            simulated.partial_fit(X[new], y[new], clients=silos[new])
        key, before = simulated._run.server.key, rows
        monkeypatch.setattr(secrets, "randbits", lambda n, key=key: key.seed)
        nodes = make_nodes(estimator, X[rows], y[rows], silos[rows], tmp_path)
        settings = {"update": number > 0, "key": key}
        server = coordinator(estimator, nodes, tmp_path, **settings).run()
        if simulated._algorithm().traits.sends_once and simulated.client_fraction < 1:
            # The simulator also asks those that have nothing to take back.
            server.communication_ = simulated.communication_
        assert_same(load_models(nodes), server, simulated)


@pytest.mark.parametrize("method", [FedEASE(reg=5.0), FedItemKNN(3), FedSpectral()], ids=repr)
def test_an_update_forgets_a_user_whose_rows_a_silo_left_out(method, tmp_path):
    X, y = make_toy(8)
    silos = X[:, 0] % 4
    estimator = clone(method).set_params(warm_start=True, items=np.unique(X[:, 1]))
    for number, rows in enumerate([X[:, 0] >= 0, X[:, 0] != X[0, 0]]):
        nodes = make_nodes(estimator, X[rows], y[rows], silos[rows], tmp_path)
        coordinator(estimator, nodes, tmp_path, update=number > 0).run()
    refitted = clone(estimator).fit(X[rows], y[rows], clients=silos[rows])
    for own in load_models(nodes):
        assert X[0, 0] not in own.user_ids_
        pairs = X[np.isin(X[:, 0], own.user_ids_)]
        np.testing.assert_allclose(own.predict(pairs), refitted.predict(pairs), atol=1e-6)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (LocALS(3), "do not keep their rows; set warm_start=True.* leave out update"),
        (LightFR(3, warm_start=True), "LightFR cannot continue"),
        (
            LocALS(3, early_stopping=True, warm_start=True),
            "early_stopping a deployed LocALS always begins anew",
        ),
        (
            FedEASE(federation=Federation(secure_aggregation=SecAggPlus()), warm_start=True),
            "secure_aggregation a deployed FedEASE always begins anew",
        ),
        (
            FedEASE(
                federation=Federation(central_dp=CentralDP(noise_multiplier=1.0, epsilon=None)),
                warm_start=True,
            ),
            "cannot withdraw uploads sent under central_dp",
        ),
    ],
    ids=lambda one: type(one).__name__,
)
def test_an_update_that_cannot_be_is_refused(method, message, tmp_path):
    estimator = method.set_params(items=range(9))
    with pytest.raises(ValueError, match=message):
        coordinator(estimator, {}, tmp_path, update=True)


def test_an_update_of_no_fit_or_of_another_is_refused(tmp_path):
    X, y = make_toy(8)
    estimator = prepared(LocALS(3, n_rounds=2, warm_start=True), X, y)
    with pytest.raises(ValueError, match="nothing to update; run without update first"):
        coordinator(estimator, {}, tmp_path, update=True)
    deploy(estimator, X, y, X[:, 0], tmp_path)
    for wrong, message in (
        ({"n_factors": 4}, r"is of another fit.*differs.*n_factors"),
        ({"items": estimator.items[:-2]}, "items lacks items .* which the last fit had"),
    ):
        with pytest.raises(ValueError, match=message):
            coordinator(clone(estimator).set_params(**wrong), {}, tmp_path, update=True)
