"""Compression and secure sums around whole fits."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import Federation, GlobSGD, LocALS, LocSGD, RFRec, RFRecF
from fedrecsk.aggregation import NormClipping
from fedrecsk.attacks import SignFlip
from fedrecsk.compression import LowRank, Quantization, TopK
from fedrecsk.interactions import encode
from fedrecsk.privacy import CKKS, LaplaceMechanism, Paillier
from fedrecsk.simulation.blocks import cut
from fedrecsk.simulation.keys import Key
from fedrecsk.simulation.messages import Dense, Message
from fedrecsk.simulation.transport import Transport
from tests.conftest import make_toy

METHODS = [RFRec, RFRecF, LocALS, LocSGD, GlobSGD]
every_method = pytest.mark.parametrize("Estimator", METHODS)
WEAK = {"key_bits": 512, "allow_weak": True}


def make(Estimator, federation, **parameters):
    if issubclass(Estimator, RFRec):
        defaults = {"n_factors": 3, "n_rounds": 4}
    else:
        defaults = {"n_factors": 3, "n_rounds": 4, "download": "all", "reg_user": 1.0}
    return Estimator(**defaults | parameters, random_state=0, federation=federation)


def schemes():
    """Skipped, with the reason, where the extra is not installed."""
    pytest.importorskip("tenseal", reason="needs fedrecsk[privacy]")
    pytest.importorskip("phe", reason="needs fedrecsk[privacy]")
    return [CKKS(), Paillier(**WEAK)]


# ------------------------------------------------------------------------------ compression


@every_method
@pytest.mark.parametrize("compressor", [TopK(1.0), LowRank(3)], ids=str)
def test_compression_that_loses_nothing_changes_nothing(Estimator, compressor, monkeypatch):
    monkeypatch.setattr(Estimator, "_dtype", np.float64)
    X, y = make_toy()
    parameters = {"biases": False} if issubclass(Estimator, RFRec) else {}
    plain = make(Estimator, Federation(), **parameters).fit(X, y)
    packed = make(Estimator, Federation(compression=compressor), **parameters).fit(X, y)
    np.testing.assert_allclose(packed.item_factors_, plain.item_factors_, atol=1e-6)
    np.testing.assert_allclose(packed.user_factors_, plain.user_factors_, atol=1e-6)


@every_method
@pytest.mark.parametrize(
    "compressor", [TopK(0.2), LowRank(1), Quantization("int8"), Quantization("float16")], ids=str
)
def test_every_compressor_serves_every_method_and_is_counted(Estimator, compressor):
    X, y = make_toy()
    plain = make(Estimator, Federation(), n_rounds=8).fit(X, y)
    packed = make(Estimator, Federation(compression=compressor), n_rounds=8).fit(X, y)
    assert np.isfinite(packed.predict(X)).all()
    assert np.abs(packed.item_factors_ - plain.item_factors_).max() > 1e-6
    for column in ("bytes_up", "payload_up", "bytes_down_latest", "payload_down"):
        small, large = (
            sum(e[column] for e in m.communication_.entries if e["phase"] == "round")
            for m in (packed, plain)
        )
        assert 0 < small < large, column
    again = clone(packed).set_params(n_jobs=2).fit(X, y)
    np.testing.assert_array_equal(packed.item_factors_, again.item_factors_)
    assert packed.communication_ == again.communication_


def wire(federation, n_clients=5):
    X = np.stack([np.arange(n_clients), np.zeros(n_clients)], axis=1)
    data = encode(X)
    transport = Transport(federation, data.client_ids)
    transport.ledger.open("round", 0)
    return transport, cut(data, np.arange(n_clients)), np.ones(n_clients, dtype=bool)


def test_each_client_compresses_what_it_has_learned():
    transport, blocks, everyone = wire(Federation(compression=TopK(1 / 4)))
    rng = np.random.default_rng(0)
    changes, start = rng.standard_normal((5, 4, 2)), rng.standard_normal((4, 2))
    parts = [Message(q=Dense(start + change, center=start)) for change in changes]
    upload = transport.up(blocks, parts, everyone, everyone, Key(0, 0), learned=True)
    expected = 5 * start
    for change in changes:
        for where in np.argsort(-np.abs(change), axis=None)[:2]:
            expected.flat[where] += change.flat[where]
    np.testing.assert_allclose(upload["q"].sum, expected)
    assert transport.ledger.bytes_up == 5 * 2 * (4 + 4)


def test_what_one_broadcast_lacks_comes_in_the_next():
    transport, blocks, everyone = wire(Federation(compression=TopK(1 / 8)))
    first, model = np.zeros((4, 2)), np.arange(1.0, 9.0).reshape(4, 2)
    heard = transport.down(blocks, Message(q=Dense(first)), everyone, key=Key(0, 0))
    np.testing.assert_array_equal(heard["q"].values, first)
    for t in range(8):
        heard = transport.down(blocks, Message(q=Dense(model)), everyone, key=Key(0, t + 1))
        assert (heard["q"].values != 0).sum() == t + 1
    np.testing.assert_array_equal(heard["q"].values, model)
    assert transport.ledger.client_bytes_down.tolist() == [32 + 8 * 8] * 5


def test_compression_in_one_direction_leaves_the_other_alone():
    X, y = make_toy()
    ledgers = {
        direction: make(RFRec, Federation(compression=TopK(0.2, direction=direction)))
        .fit(X, y)
        .communication_
        for direction in ("both", "up", "down")
    }
    assert ledgers["up"].bytes_up == ledgers["both"].bytes_up < ledgers["down"].bytes_up
    assert ledgers["down"].bytes_down == ledgers["both"].bytes_down < ledgers["up"].bytes_down


# ------------------------------------------------------------------------------ secure sums


@every_method
@pytest.mark.parametrize("scheme", [0, 1], ids=["CKKS", "Paillier"])
def test_encrypted_sums_equal_plaintext_within_the_stated_precision(Estimator, scheme, monkeypatch):
    monkeypatch.setattr(Estimator, "_dtype", np.float64)
    scheme = schemes()[scheme]
    X, y = make_toy()
    plain = make(Estimator, Federation()).fit(X, y)
    sampled = make(Estimator, Federation(secure_aggregation=scheme)).fit(X, y)
    complete = clone(scheme).set_params(audit="all")
    whole = make(Estimator, Federation(secure_aggregation=complete)).fit(X, y)
    np.testing.assert_allclose(sampled.item_factors_, plain.item_factors_, atol=1e-9)
    np.testing.assert_allclose(whole.item_factors_, plain.item_factors_, atol=1e-5)
    uploads = sum(e["messages_up"] for e in whole.communication_.entries if e["phase"] == "round")
    n_rounds = sum(
        e["messages_up"] > 0 for e in sampled.communication_.entries if e["phase"] == "round"
    )
    assert whole.encryption_.n_encrypted == uploads
    assert sampled.encryption_.n_encrypted == scheme.audit * n_rounds
    assert sum(e["encrypted"] for e in sampled.communication_.entries) == scheme.audit * n_rounds
    for report in (sampled.encryption_, whole.encryption_):
        assert 0 <= report.max_error <= report.precision < 1e-5


def test_a_sampled_audit_leaves_the_model_reproducible():
    schemes()
    X, y = make_toy()
    model = make(RFRec, Federation(secure_aggregation=CKKS()))
    first, second = clone(model).fit(X, y), clone(model).set_params(n_jobs=2).fit(X, y)
    np.testing.assert_array_equal(first.item_factors_, second.item_factors_)


def test_ciphertexts_are_what_the_ledger_counts():
    scheme = schemes()[0]
    X, y = make_toy()
    world = Federation(secure_aggregation=scheme)
    model = make(LocALS, world, aggregation="holders").fit(X)
    n, m, d = 12, 9, 3
    enrolment, *rounds, final = model.communication_.entries
    of_enrolment, of_upload = scheme.ciphertext_bytes(m), scheme.ciphertext_bytes(m * d + m)
    assert enrolment["bytes_up"] == n * of_enrolment
    assert enrolment["bytes_down"] == n * scheme.ciphertext_bytes(1)
    assert {e["bytes_up"] for e in rounds} == {n * of_upload}
    assert {e["payload_up"] for e in rounds} == {n * m * d * 4}
    # The model before the first round is drawn by the server; later it has ciphertexts only.
    assert rounds[0]["bytes_down"] == n * m * d * 4
    assert {e["bytes_down"] for e in [*rounds[1:], final]} == {n * of_upload}
    assert model.encryption_.ciphertext_bytes == of_upload


def test_clients_that_missed_sums_need_all_of_them():
    scheme = schemes()[0]
    X, _ = make_toy()
    model = make(
        LocALS,
        Federation(secure_aggregation=scheme, sampling="rotating"),
        client_fraction=0.25,
        n_rounds=4,
        aggregation="all",
    ).fit(X)
    each, first = scheme.ciphertext_bytes(27), 27 * 4
    rounds = [e["bytes_down"] for e in model.communication_.entries if e["phase"] == "round"]
    assert rounds == [3 * (first + t * each) for t in range(4)]


def test_a_model_with_secret_keys_pickles_without_them():
    scheme = schemes()[0]
    X, y = make_toy()
    model = make(RFRec, Federation(secure_aggregation=scheme), warm_start=True).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert again._run.transport.channel._keys is None
    for either in (model, again):
        either.set_params(n_rounds=6).fit(X, y)
    np.testing.assert_array_equal(model.item_factors_, again.item_factors_)


def test_noise_and_attacks_come_before_encryption():
    schemes()
    X, y = make_toy()
    worlds = [
        {"local_dp": LaplaceMechanism(clip=0.2, scale=0.1), "secure_aggregation": CKKS()},
        {"adversary": SignFlip(0.2), "secure_aggregation": CKKS()},
    ]
    for world in worlds:
        model = make(RFRec, Federation(**world), rating_scale=(1, 5)).fit(X, y)
        world = {**world, "secure_aggregation": CKKS(audit="all")}
        whole = make(RFRec, Federation(**world), rating_scale=(1, 5)).fit(X, y)
        np.testing.assert_allclose(model.item_factors_, whole.item_factors_, atol=1e-3)


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"aggregator": NormClipping()}, "NormClipping looks at single uploads"),
        ({"compression": TopK()}, "Ciphertexts add up value by value, which TopK undoes"),
    ],
)
def test_what_secure_sums_make_meaningless_is_refused(world, message):
    schemes()
    X, y = make_toy()
    with pytest.raises(ValueError, match=message):
        RFRec(federation=Federation(secure_aggregation=CKKS(), **world)).fit(X, y)


@pytest.mark.parametrize("Estimator", [LocALS, LocSGD, GlobSGD])
def test_rows_of_own_items_are_refused_under_encryption(Estimator):
    schemes()
    X, _ = make_toy()
    with pytest.raises(ValueError, match='do not add up encrypted; set download="all"'):
        Estimator(federation=Federation(secure_aggregation=CKKS())).fit(X)


def test_bad_parameters_are_named_before_any_work():
    schemes()
    X, y = make_toy()
    for part, message in [
        ({"compression": TopK(0)}, "'ratio' parameter of TopK"),
        ({"compression": LowRank(0)}, "'rank' parameter of LowRank"),
        ({"secure_aggregation": CKKS(scale_bits=53)}, "scale_bits=53 is too large"),
        ({"secure_aggregation": Paillier(key_bits=512)}, "weak"),
    ]:
        with pytest.raises(ValueError, match=message):
            RFRec(federation=Federation(**part)).fit(X, y)
