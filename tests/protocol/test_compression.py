"""Compression around whole fits, and of what clients send."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import Federation, FedMF, LocALS, RFRec, SCoLR
from fedrecsk.attacks import SignFlip
from fedrecsk.compression import LowRank, Quantization, TopK
from fedrecsk.data.interactions import encode
from fedrecsk.protocol import FieldSpec, Message, SparseRows, Summed, Updates
from fedrecsk.protocol.algorithm import Algorithm, Traits
from fedrecsk.protocol.blocks import of_clients
from fedrecsk.protocol.clients import ClientGroup
from fedrecsk.protocol.keys import Key, Keys
from fedrecsk.protocol.ledger import Ledger
from fedrecsk.protocol.links import Downlink, StepTotal, Uplink
from tests.conftest import make_toy


def make(Estimator, federation, **parameters):
    own = {} if issubclass(Estimator, RFRec) else {"upload": "all", "reg_user": 1.0}
    small = {"n_factors": 3, "n_rounds": 4, "random_state": 0, "federation": federation}
    return Estimator(**small | own | parameters)


@pytest.mark.parametrize("Estimator", [RFRec, LocALS])
@pytest.mark.parametrize("compressor", [TopK(1.0), LowRank(3)], ids=str)
def test_compression_that_loses_nothing_changes_nothing(Estimator, compressor, monkeypatch):
    monkeypatch.setattr(Estimator, "_dtype", np.float64)
    X, y = make_toy()
    parameters = {"biases": False} if issubclass(Estimator, RFRec) else {}
    plain = make(Estimator, Federation(), **parameters).fit(X, y)
    packed = make(Estimator, Federation(compression=compressor), **parameters).fit(X, y)
    np.testing.assert_allclose(packed.item_factors_, plain.item_factors_, atol=1e-6)
    np.testing.assert_allclose(packed.user_factors_, plain.user_factors_, atol=1e-6)


class Sender(Algorithm):
    """As much of a method as `ClientGroup` needs to send an upload of each client."""

    begin = broadcast = downloads = step = final = server_attributes = user_attributes = None

    def __init__(self, specs, upload, single):
        self.specs, self.upload, self.single = specs, upload, single

    @property
    def traits(self):
        return Traits(single_uploads=self.single)

    def fields(self, n_items):
        return self.specs

    def enter(self, block, message, key):
        return {}

    def update(self, block, state, message, turn, key):
        fields = self.upload(int(block.clients[0]))
        if self.single and not turn.separate:
            fields = {
                name: Summed(replace(one, spec=self.specs[name]).whole()[0], None, one.n_columns)
                for name, one in fields.items()
            }
        return state, Updates(fields), None


def sent(federation, specs, upload, n_clients=5, single=True):
    """What the server gets of clients that each send ``upload(code)``, and the ledger."""
    data = encode(np.stack([np.arange(n_clients), np.zeros(n_clients)], axis=1))
    ledger = Ledger(np.arange(n_clients))
    ledger.open("round", 0)
    downlink = Downlink(federation, ledger, np.ones(n_clients, dtype=int))
    uplink = Uplink(downlink, n_clients)
    intrusion = None
    if federation.adversary is not None:
        intrusion = federation.adversary.enter(data, False, Key(0))
    parts = []
    for code in range(n_clients):
        forge = intrusion.forge if intrusion is not None and intrusion.controlled[code] else None
        block = of_clients(data, np.array([code]))
        keys = Keys(Key(0), Key(0))
        plan = replace(FedMF()._plan(), federation=federation)
        plan = replace(plan, algorithm=Sender(specs, upload, single))
        one = ClientGroup(plan, block, keys, client_ids=block.clients, forge=forge)
        one.receive(0, Message())
        parts += one.update(0)[0]
    total = StepTotal(uplink, specs, learned=True)
    for one in parts:
        total.add(one)
    return uplink.close(total, Key(0, 0)), ledger


def test_each_client_compresses_what_it_has_learned():
    rng = np.random.default_rng(0)
    changes, start = rng.standard_normal((5, 4, 2)), rng.standard_normal((4, 2))
    specs = {"q": FieldSpec((4, 2))}
    upload, ledger = sent(
        Federation(compression=TopK(1 / 4)),
        specs,
        lambda c: {"q": SparseRows.stacked(changes[c : c + 1], center=start)},
    )
    expected = 5 * start
    for change in changes:
        for where in np.argsort(-np.abs(change), axis=None)[:2]:
            expected.flat[where] += change.flat[where]
    np.testing.assert_allclose(upload["q"].sum, expected)
    assert ledger.bytes_up == ledger.entries[-1]["payload_up"] == 5 * 2 * (4 + 4)


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "idle"),
    [(RFRec(3), None), (LocALS(3, reg_user=1.0), "download"), (SCoLR(2, n_factors=3), "upload")],
    ids=repr,
)
def test_a_fit_warns_of_compression_that_does_nothing(method, idle):
    X, y = make_toy()
    packed = clone(method).set_params(n_rounds=2, federation=Federation(compression=TopK(0.2)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        packed.fit(X, y)
    found = [str(one.message) for one in caught if "compresses nothing" in str(one.message)]
    assert len(found) == (idle is not None)
    assert all(f"clients of {type(method).__name__} {idle} in a round" in one for one in found)
    # The cure is a direction that has something to compress.
    cure = {"download": 'set direction="up".', "upload": 'direction="down" or compression=None.'}
    assert all(one.endswith(cure[idle]) for one in found)


def test_no_direction_is_advised_that_is_idle_too(monkeypatch):
    monkeypatch.setattr("fedrecsk.protocol.server.is_compressed", lambda *_: False)
    model = LocALS(3, n_rounds=1, federation=Federation(compression=TopK(0.2)))
    with pytest.warns(UserWarning, match="compresses nothing") as caught:
        model.fit(*make_toy())
    found = [str(one.message) for one in caught if "compresses nothing" in str(one.message)]
    assert len(found) == 2
    assert all(one.endswith("set compression=None.") for one in found)


def test_columns_that_a_method_has_picked_itself_cross_as_they_are():
    X, y = make_toy()
    model = SCoLR(3, n_factors=4, n_rounds=3, client_fraction=1.0, random_state=0)
    plain = clone(model).fit(X, y)
    for compressor in (TopK(0.2), LowRank(1), Quantization()):
        setting = Federation(compression=compressor.set_params(direction="up"))
        packed = clone(model).set_params(federation=setting).fit(X, y)
        assert packed.communication_ == plain.communication_
        np.testing.assert_allclose(packed.item_factors_, plain.item_factors_, atol=1e-6)


def test_forged_integers_are_integers_and_are_not_compressed():
    attack = SignFlip(clients=[2], strength=0.4)
    upload, ledger = sent(
        Federation(adversary=attack, compression=Quantization()),
        {"n": FieldSpec((4, 2), dtype="int64")},
        lambda code: {"n": SparseRows.stacked(np.full((1, 4, 2), 10))},
    )
    np.testing.assert_array_equal(upload["n"].sum, np.full((4, 2), 4 * 10 - 4))
    assert upload["n"].sum.dtype == np.int64
    assert ledger.bytes_up == 5 * 8 * 8
