"""One server and one-client devices that exchange nothing but bytes equal a simulated fit."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

import fedrecsk
from fedrecsk import (
    FCF,
    CoLR,
    ExplicitFCF,
    FedEB,
    Federation,
    FedFast,
    FedMF,
    FedRec,
    LightFR,
    LocALS,
    RFRec,
    RFRecF,
    SCoLR,
)
from fedrecsk.aggregation import NormClipping, TrimmedMean
from fedrecsk.compression import LowRank, Quantization, TopK
from fedrecsk.federated._rfrec_predictions import OwnItems
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.privacy import GaussianMechanism, LaplaceMechanism, SphereMechanism
from fedrecsk.protocol import blocks
from fedrecsk.protocol.registration import catalogue_nbytes
from tests.conftest import make_toy
from tests.listed import cases
from tests.protocol.loopback import Deployment

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
}


def make(Estimator, **parameters):
    """A small estimator in which every client takes part, whatever the method's defaults are."""
    names = Estimator().get_params(deep=False)
    small = {name: value for name, value in SMALL.items() if name in names}
    small |= {"client_fraction": 1.0}
    if issubclass(Estimator, RFRecF):
        small["n_rounds"] = 14
    return Estimator(**small | parameters)


def deploy(estimator, X, y, clients=None):
    """Attributes of a deployed fit, and the deployment."""
    deployment = Deployment(clone(estimator), X, y, clients)
    return deployment.fit(), deployment


def simulate(estimator, X, y, clients, monkeypatch):
    """Fit by one-client blocks whose single uploads are looked at, as devices send them."""
    monkeypatch.setattr(blocks, "block_size", lambda data: 1)
    monkeypatch.setattr(Federation, "looks_at_uploads", True)
    return clone(estimator).fit(X, y, clients=clients)


def assert_same(deployed, simulated, tolerance):
    """Fitted attributes equal the simulated ones, bit for bit where there is no tolerance."""
    assert deployed
    for name, values in deployed.items():
        expected = getattr(simulated, name)
        if isinstance(values, OwnItems):
            values, expected = (own_vectors(one, simulated) for one in (values, expected))
        if sparse.issparse(values):
            values, expected = values.toarray(), expected.toarray()
        if tolerance:
            np.testing.assert_allclose(values, expected, atol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(values, expected, err_msg=name)
            assert np.asarray(values).dtype == np.asarray(expected).dtype


def own_vectors(own_items, model):
    """The vectors of all items as each user's client has them, or the server's if it has none."""
    n_items = own_items.n_items
    users, items = np.divmod(np.arange(model.n_users_ * n_items), n_items)
    server = np.column_stack([model.item_bias_, model.item_factors_])
    return own_items.vectors(users, items, server)


def assert_same_history(deployment, simulated, tolerance):
    server = deployment.server
    assert server.round == simulated.n_rounds_
    for ours, theirs in zip(server.history, simulated.history_, strict=True):
        assert ours.keys() == theirs.keys()
        np.testing.assert_allclose(
            list(ours.values()), list(theirs.values()), rtol=tolerance or 1e-12
        )
    assert server.ledger == simulated.communication_
    assert server.privacy_report() == simulated.privacy_


def assert_counted_what_crossed(deployment):
    """Of downloads the ledger has the whole models' bytes."""
    ledger = deployment.server.ledger
    whole = sum(entry["bytes_down_whole"] for entry in ledger.entries)
    catalogue = len(deployment.devices) * catalogue_nbytes(deployment.server.item_ids)
    assert whole == catalogue + deployment.bytes_down
    assert sum(entry["bytes_up"] for entry in ledger.entries) == deployment.bytes_up


SETTINGS = [
    {},
    {"federation": Federation(dropout=0.4)},
    {"federation": Federation(dropout=0.4, dropout_mode="stale")},
    {"federation": Federation(dropout=0.4, dropout_mode="offline"), "client_fraction": 0.5},
    {"federation": Federation(sampling="rotating"), "client_fraction": 0.3},
]


@pytest.mark.parametrize(("Estimator", "setting"), cases(METHODS, SETTINGS, 3))
def test_a_deployed_fit_is_the_simulated_one_bit_for_bit(Estimator, setting, monkeypatch):
    X, y = make_toy(8)
    estimator = make(Estimator, **setting)
    deployed, deployment = deploy(estimator, X, y)
    simulated = simulate(estimator, X, y, None, monkeypatch)
    assert_same(deployed, simulated, None)
    assert_same_history(deployment, simulated, None)
    assert_counted_what_crossed(deployment)


class Retrained(FedFast):
    FINAL_EPOCHS = 1


class FrozenItems(LightFR):
    _trains_items = False


VARIANTS = [
    RFRec(3, n_rounds=4, aggregation="holders"),
    RFRec(3, n_rounds=4, predict_with="local", optimizer="gd"),
    RFRecF(3, n_rounds=14, predict_with="local", aggregation="clients"),
    LocALS(3, n_rounds=3, reg_user=1.0, aggregation="holders"),
    LocALS(3, n_rounds=3, reg_user=1.0, aggregation="clients", upload="all"),
    LocALS(3, n_rounds=3, reg_user=1.0, upload="all"),
    FedMF(3, n_rounds=3, client_fraction=1.0, loss="squared"),
    FedMF(3, n_rounds=3, client_fraction=1.0, aggregation="data_size", n_negatives=1),
    FedRec(3, n_rounds=4, client_fraction=1.0, virtual_items="redrawn", hybrid_start=1),
    FedRec(3, n_rounds=4, client_fraction=1.0, biases=False, upload="all"),
    SCoLR(2, n_factors=3, n_rounds=3, client_fraction=1.0, aggregation="entries"),
    FedFast(3, n_rounds=3, client_fraction=0.5, cluster_every=1, discount=None),
    Retrained(3, n_rounds=3, aggregation="visits", sampling="federation"),
    LightFR(5, n_rounds=3, aggregation="parameter"),
    LightFR(70, n_rounds=2, aggregation="parameter", targets="ratings"),
    LightFR(5, n_rounds=3, upload="all"),
    FrozenItems(5, n_rounds=3),
    FCF(3, n_rounds=3, upload="local"),
    FCF(3, n_rounds=3, optimizer="gd"),
    ExplicitFCF(3, n_rounds=3, upload="all"),
    ExplicitFCF(3, n_rounds=3, biases=False),
]
STALE = Federation(dropout=0.4, dropout_mode="stale")


@pytest.mark.parametrize("estimator", VARIANTS, ids=repr)
def test_so_it_is_with_a_methods_other_parameters(estimator, monkeypatch):
    X, y = make_toy()
    estimator = clone(estimator).set_params(random_state=1, federation=STALE)
    deployed, deployment = deploy(estimator, X, y, X[:, 0] % 5)
    simulated = simulate(estimator, X, y, X[:, 0] % 5, monkeypatch)
    assert_same(deployed, simulated, None)
    assert_same_history(deployment, simulated, None)
    assert_counted_what_crossed(deployment)


@pytest.mark.parametrize(("Estimator", "setting"), cases(METHODS, SETTINGS[2::2], 2))
def test_a_deployed_fit_is_the_simulated_one_in_blocks(Estimator, setting, monkeypatch):
    monkeypatch.setattr(Estimator, "_dtype", np.float64, raising=False)
    X, y = make_toy()
    clients = X[:, 0] % 5
    estimator = make(Estimator, **setting)
    deployed, deployment = deploy(estimator, X, y, clients)
    simulated = clone(estimator).fit(X, y, clients=clients)
    assert_same(deployed, simulated, 1e-9)
    assert_same_history(deployment, simulated, 1e-9)


@pytest.mark.parametrize(("Estimator", "n_iter_no_change"), cases(METHODS, [1, 10], 2))
def test_early_stopping_deployed_is_early_stopping_simulated(
    Estimator, n_iter_no_change, monkeypatch
):
    X, y = make_toy(8, density=0.8)
    estimator = make(
        Estimator,
        n_rounds=6,
        early_stopping=True,
        validation_fraction=0.3,
        n_iter_no_change=n_iter_no_change,
        tol=0.0,
        client_fraction=0.7,
    )
    deployed, deployment = deploy(estimator, X, y)
    simulated = simulate(estimator, X, y, None, monkeypatch)
    assert deployment.server.stopping.best_round == simulated.best_round_
    assert_same(deployed, simulated, None)
    assert_same_history(deployment, simulated, None)


@pytest.mark.parametrize("Estimator", [RFRec, RFRecF])
@pytest.mark.parametrize(
    ("mechanism", "dropout"),
    [
        (LaplaceMechanism(clip=0.2, scale=0.1), 0.0),
        (LaplaceMechanism(clip=0.2, scale=0.1), 0.4),
        (GaussianMechanism(clip=0.5, noise_multiplier=0.5), 0.4),
        (SphereMechanism(clip=0.5, epsilon=10.0), 0.4),
    ],
)
def test_a_deployed_client_adds_its_own_noise(Estimator, mechanism, dropout, monkeypatch):
    """Nothing leaves it that is not noised already; the server adds none."""
    federation = Federation(local_dp=mechanism, dropout=dropout)
    X, y = make_toy()
    estimator = make(
        Estimator,
        aggregation="clients",
        rating_scale=(1, 5),
        items=np.unique(X[:, 1]),
        federation=federation,
    )
    deployed, deployment = deploy(estimator, X, y)
    monkeypatch.setattr(Federation, "draws_each", True)
    simulated = clone(estimator).fit(X, y)
    assert_same(deployed, simulated, 1e-6)
    assert_same_history(deployment, simulated, 1e-6)
    monkeypatch.setattr(type(mechanism), "_protect", lambda self, updates, *_, **__: updates)
    with_none, _ = deploy(estimator, X, y)
    assert np.abs(with_none["item_factors_"] - deployed["item_factors_"]).max() > 1e-3


@pytest.mark.parametrize(
    ("Estimator", "aggregator"), cases(METHODS, [NormClipping(0.5), TrimmedMean(0.2)], 2)
)
def test_a_robust_aggregator_sees_the_same_uploads(Estimator, aggregator, monkeypatch):
    monkeypatch.setattr(Estimator, "_dtype", np.float64, raising=False)
    X, y = make_toy(8)
    estimator = make(Estimator, federation=Federation(aggregator=aggregator))
    try:
        simulated = clone(estimator).fit(X, y)
    except ValueError as error:
        refusal = str(error)
    else:
        refusal = None
    if refusal is not None:
        assert "so the aggregator would have no effect" in refusal
        with pytest.raises(ValueError, match=refusal[:20]):
            deploy(estimator, X, y)
        return
    deployed, deployment = deploy(estimator, X, y)
    assert_same(deployed, simulated, 1e-9)
    assert_same_history(deployment, simulated, 1e-9)


COMPRESSED = [
    (Estimator, {"compression": compressor, "dropout": 0.2})
    for Estimator in (RFRec, LocALS, FedMF, FedEB)
    for compressor in (TopK(0.3), Quantization("int8"), Quantization("float16"), LowRank(1))
]
COMPRESSED += [
    (RFRec, {"compression": TopK(0.3), "aggregator": NormClipping(0.5)}),
    (RFRec, {"compression": LowRank(1), "local_dp": LaplaceMechanism(clip=0.2, scale=0.1)}),
    (CoLR, {"compression": Quantization("int8")}),
    (SCoLR, {"compression": TopK(0.3)}),
]


@pytest.mark.parametrize(("Estimator", "parts"), COMPRESSED, ids=str)
def test_compressed_uploads_are_those_of_the_simulator(Estimator, parts, monkeypatch):
    """What crosses is what the compressor counts, and the server reconstructs it."""
    monkeypatch.setattr(Estimator, "_dtype", np.float64, raising=False)
    # Devices cannot leave their rounding and their noise to one draw for the sum.
    monkeypatch.setattr(Federation, "draws_each", True)
    X, y = make_toy(8)
    federation = Federation(**parts)
    federation.compression = clone(federation.compression).set_params(direction="up")
    parameters = {}
    if Estimator is RFRec:
        items = np.unique(X[:, 1])
        parameters = {"rating_scale": (1, 5), "aggregation": "clients", "items": items}
    estimator = make(Estimator, federation=federation, **parameters)
    deployed, deployment = deploy(estimator, X, y, X[:, 0] % 4)
    simulated = simulate(estimator, X, y, X[:, 0] % 4, monkeypatch)
    exact = isinstance(federation.compression, TopK | Quantization) and len(parts) < 3
    exact = exact and federation.aggregator is None
    assert_same(deployed, simulated, None if exact else 1e-9)
    assert_same_history(deployment, simulated, None if exact else 1e-9)
    assert_counted_what_crossed(deployment)
