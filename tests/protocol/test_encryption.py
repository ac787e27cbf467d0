"""Secure sums around whole fits."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import Federation, LocALS, RFRec
from fedrecsk.aggregation import NormClipping
from fedrecsk.attacks import SignFlip
from fedrecsk.compression import TopK
from fedrecsk.privacy import CKKS, LaplaceMechanism, Paillier
from fedrecsk.privacy._secure_aggregation import Party
from fedrecsk.protocol import FieldSpec, Ledger
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.links import Downlink, Uplink
from fedrecsk.protocol.secure_accounts import EncryptedChannel
from fedrecsk.updates import HeldUpdates, RoundUpdates, SparseRows
from tests.conftest import make_toy
from tests.protocol.test_compression import make
from tests.updates.making import updates_of

WEAK = {"key_bits": 512, "allow_weak": True}


def schemes():
    """Skipped, with the reason, where the extra is not installed."""
    pytest.importorskip("tenseal", reason="needs fedrecsk[privacy]")
    pytest.importorskip("phe", reason="needs fedrecsk[privacy]")
    return [CKKS(), Paillier(**WEAK)]


@pytest.mark.parametrize("Estimator", [RFRec, LocALS])
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
    # Adam enlarges the noise of ciphertexts where a gradient is small.
    np.testing.assert_allclose(whole.item_factors_, plain.item_factors_, atol=1e-4)
    uploads = sum(e["messages_up"] for e in whole.communication_.entries if e["phase"] == "round")
    n_rounds = sum(
        e["messages_up"] > 0 for e in sampled.communication_.entries if e["phase"] == "round"
    )
    assert whole.encryption_.n_encrypted == uploads
    assert sampled.encryption_.n_encrypted == scheme.audit * n_rounds
    assert sum(e["encrypted"] for e in sampled.communication_.entries) == scheme.audit * n_rounds
    for report in (sampled.encryption_, whole.encryption_):
        assert 0 <= report.max_error <= report.precision < 1e-5


@pytest.mark.parametrize("scheme", [0, 1], ids=["CKKS", "Paillier"])
def test_a_wrong_decrypted_sum_is_noticed(scheme, monkeypatch):
    channel, decrypt = EncryptedChannel(schemes()[scheme]), Party.decrypt
    vectors = [np.array([1.5, -2.0]), np.array([0.25, 1.0])]
    np.testing.assert_allclose(channel.sum(vectors, 2), [1.75, -1.0], atol=1e-7)
    for wrong in ([0.0, 1e-6], [0.0, -1e-6], [0.0, np.nan]):
        monkeypatch.setattr(Party, "decrypt", lambda *given, by=wrong: np.add(decrypt(*given), by))
        with pytest.raises(RuntimeError, match=r"decrypted sum has an error of .* allows at most"):
            channel.sum(vectors, 2)


def test_clients_for_the_audit_are_drawn_in_each_round():
    channel, clients = EncryptedChannel(Paillier(**WEAK, audit=2)), np.arange(10, 30)
    drawn = [channel.audited(clients, Key(0, round)) for round in range(60)]
    assert {len(some) for some in drawn} == {2}
    assert set().union(*drawn) == set(clients.tolist())


def audited(scheme, values):
    """The sums of one-number uploads beside counts of 1, as the server continues with them."""
    n_clients = len(values)
    specs = {"x": FieldSpec((1, 1)), "n": FieldSpec((1,), dtype="uint8", learned=False)}
    values = np.asarray(values, dtype=float).reshape(n_clients, 1, 1)
    fields = {"x": values, "n": np.ones((n_clients, 1), dtype=np.uint8)}
    updates = updates_of({name: SparseRows.stacked(one) for name, one in fields.items()}, specs)
    single = RoundUpdates([HeldUpdates(updates, [], updates.accepted)])
    ledger = Ledger(updates.clients)
    ledger.open("round", 0)
    federation = Federation(secure_aggregation=scheme)
    downlink = Downlink(federation, ledger, np.ones(n_clients, dtype=int))
    uplink = Uplink(downlink, n_clients)
    totals = {"x": single.sum("x")} | single.rest()
    return uplink._audited(uplink.channel, single, totals, specs, Key(0, 0))


def test_the_server_continues_with_the_decrypted_sum_if_all_are_encrypted():
    schemes()
    rough, values = Paillier(**WEAK, fraction_bits=1), [0.3, 0.6, 0.9]
    assert audited(rough, values)["x"] == pytest.approx(1.8)
    whole = audited(clone(rough).set_params(audit="all"), values)
    # 0.5, 0.5 and 1, which are the nearest halves.
    assert whole["x"].tolist() == [[2.0]]
    assert whole["n"].tolist() == [3]
    assert whole["n"].dtype == np.int64


def test_a_value_too_large_for_the_sum_is_refused_though_it_is_not_encrypted():
    schemes()
    scheme = Paillier(**WEAK, audit=1)
    # Four clients could send it, but not five.
    for values in 1.0 + (0.9 * scheme.max_value(4) - 1.0) * np.eye(5):
        with pytest.raises(ValueError, match="in a sum over 5 clients each value must be at most"):
            audited(scheme, values)


def rounds_and_final(model):
    entries = model.communication_.entries
    return [entry for entry in entries if entry["phase"] in ("round", "final")]


def test_ciphertexts_are_what_the_ledger_counts():
    scheme = schemes()[0]
    X, _y = make_toy()
    setting = Federation(secure_aggregation=scheme)
    model = make(LocALS, setting, aggregation="holders").fit(X)
    n, m, d = 12, 9, 3
    catalogue, keys, setup, *rounds, final = model.communication_.entries
    assert keys["bytes_down"] == n * scheme.key_nbytes() > 0 == catalogue["bytes_up"]
    of_setup, of_upload = scheme.ciphertext_bytes(m), scheme.ciphertext_bytes(m * d + m)
    assert setup["bytes_up"] == n * of_setup
    assert setup["bytes_down"] == n * scheme.ciphertext_bytes(1)
    assert {e["bytes_up"] for e in rounds} == {n * of_upload}
    assert {e["payload_up"] for e in rounds} == {n * m * d * 4}
    # The model before the first round is drawn by the server; later it has ciphertexts only.
    assert rounds[0]["bytes_down"] == n * m * d * 4
    assert {e["bytes_down"] for e in [*rounds[1:], final]} == {n * of_upload}
    assert model.encryption_.ciphertext_bytes == of_upload


def test_a_model_with_secret_keys_pickles_without_them():
    scheme = schemes()[0]
    X, y = make_toy()
    model = make(RFRec, Federation(secure_aggregation=scheme), warm_start=True).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert again._run.server.uplink.channel._keys is None
    for either in (model, again):
        either.set_params(n_rounds=6).fit(X, y)
    np.testing.assert_array_equal(model.item_factors_, again.item_factors_)


@pytest.mark.parametrize(
    "setting",
    [{"local_dp": LaplaceMechanism(clip=0.2, scale=0.1)}, {"adversary": SignFlip(0.2)}],
    ids=["noise", "attack"],
)
def test_noise_and_attacks_come_before_encryption(setting):
    schemes()
    X, y = make_toy()
    public = {"rating_scale": (1, 5), "items": np.unique(X[:, 1])}
    sampled, whole = (
        make(RFRec, Federation(secure_aggregation=scheme, **setting), **public).fit(X, y)
        for scheme in (CKKS(), CKKS(audit="all"))
    )
    np.testing.assert_allclose(sampled.item_factors_, whole.item_factors_, atol=1e-3)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"aggregator": NormClipping()}, "NormClipping looks at single uploads"),
        ({"compression": TopK()}, "uploads compressed by TopK cannot"),
    ],
)
def test_what_cannot_be_added_under_encryption_is_refused(setting, message):
    schemes()
    with pytest.raises(ValueError, match=message):
        RFRec(federation=Federation(secure_aggregation=CKKS(), **setting)).fit(*make_toy())


def test_decrypted_validation_errors_come_down_like_other_sums():
    scheme = schemes()[0]
    X, y = make_toy()
    plain = make(RFRec, Federation(secure_aggregation=scheme)).fit(X, y)
    watched = make(RFRec, Federation(secure_aggregation=scheme), early_stopping=True).fit(X, y)
    errors = 12 * scheme.ciphertext_bytes(2)
    first, *rest = (
        other["bytes_down"] - one["bytes_down"]
        for one, other in zip(rounds_and_final(plain), rounds_and_final(watched), strict=True)
    )
    # The errors of a round's model are known when the next one comes.
    assert [first, *rest] == [0, 0, errors, errors, errors]
