"""Compression and secure sums around whole fits."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import CoLR, Federation, GlobSGD, LocALS, LocSGD, RFRec, RFRecF, SCoLR
from fedrecsk.aggregation import NormClipping
from fedrecsk.attacks import Adversary, RandomUpload, SignFlip
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


# --------------------------------------------------------------------- one upload at a time


@pytest.mark.parametrize("compressor", [TopK(0.2), LowRank(1), Quantization()], ids=str)
def test_columns_that_a_method_has_picked_itself_cross_as_they_are(compressor):
    X, y = make_toy()
    model = SCoLR(3, n_factors=4, n_rounds=3, client_fraction=1.0, random_state=0)
    plain = clone(model).fit(X, y)
    world = Federation(compression=clone(compressor).set_params(direction="up"))
    packed = clone(model).set_params(federation=world).fit(X, y)
    assert packed.communication_ == plain.communication_
    np.testing.assert_allclose(packed.item_factors_, plain.item_factors_, atol=1e-6)


@pytest.mark.parametrize("world", [{}, {"aggregator": NormClipping()}], ids=str)
def test_local_dp_lets_no_count_through_without_noise(world):
    mechanism = LaplaceMechanism(clip=1.0, scale=0.5)
    transport, blocks, everyone = wire(Federation(local_dp=mechanism, **world))
    part = Message(q=Dense(np.zeros(3), clip=1.0), n=Dense(np.ones(2), dtype="uint8"))
    with pytest.raises(RuntimeError, match="Field 'n' reached the wire .* without the clip"):
        transport.up(blocks, [part] * 5, everyone, everyone, Key(0, 0), learned=True)
    part["n"] = Dense(np.ones(2), clip=1.0, learned=False)
    upload = transport.up(blocks, [part] * 5, everyone, everyone, Key(0, 0), learned=True)
    assert (upload["n"].sum != 5).all()


@pytest.mark.parametrize("values", [np.array([2**60 + 1]), np.array([2**53 + 1, 3])], ids=str)
def test_integers_are_added_exactly_one_by_one(values):
    transport, blocks, everyone = wire(Federation(compression=TopK()))
    parts = [Message(n=Dense(values, dtype="int64")) for _ in blocks]
    upload = transport.up(blocks, parts, everyone, everyone, Key(0, 0), learned=True)
    assert upload["n"].sum.dtype == np.int64
    assert upload["n"].sum.tolist() == [5 * int(value) for value in values]


class Huge(Adversary):
    def _forged(self, data, upload, generator):
        return {name: u._replace(change=1e9 + u.change) for name, u in upload.items()}


def test_what_float16_cannot_hold_is_rejected_and_ends_nothing():
    X, _ = make_toy()
    world = Federation(adversary=Huge(0.2), compression=Quantization("float16", direction="up"))
    model = LocALS(3, random_state=0, federation=world).fit(X)
    rounds = [e for e in model.communication_.entries if e["phase"] == "round"]
    assert {e["rejected"] for e in rounds} == {2}
    assert np.isfinite(model.predict(X)).all()


def test_a_server_whose_model_does_not_fit_into_float16_says_so():
    transport, blocks, everyone = wire(Federation(compression=Quantization("float16")))
    transport.down(blocks, Message(q=Dense(np.zeros((3, 2)))), everyone, key=Key(0, 0))
    with pytest.raises(ValueError, match='change of q in round 1 .* use Quantization."int8"'):
        transport.down(blocks, Message(q=Dense(np.full((3, 2), 1e6))), everyone, key=Key(0, 1))


def test_decrypted_validation_errors_come_down_like_other_sums():
    scheme = schemes()[0]
    X, y = make_toy()
    plain = make(RFRec, Federation(secure_aggregation=scheme)).fit(X, y)
    watched = make(RFRec, Federation(secure_aggregation=scheme), early_stopping=True).fit(X, y)
    errors = 12 * scheme.ciphertext_bytes(2)
    first, *rest = (
        other["bytes_down"] - one["bytes_down"]
        for one, other in zip(
            plain.communication_.entries[1:], watched.communication_.entries[1:], strict=True
        )
    )
    # The errors of a round's model are known when the next one comes.
    assert [first, *rest] == [0, 0, errors, errors, errors]


class Nonsense(Adversary):
    def _forged(self, data, upload, generator):
        return {name: u._replace(change=np.nan * u.change) for name, u in upload.items()}


def test_a_forged_upload_that_is_not_finite_is_rejected():
    X, _ = make_toy()
    world = Federation(adversary=Nonsense(0.2), compression=TopK())
    model = LocALS(3, random_state=0, federation=world).fit(X)
    rounds = [e for e in model.communication_.entries if e["phase"] == "round"]
    assert {e["rejected"] for e in rounds} == {2}
    assert np.isfinite(model.predict(X)).all()


def test_the_last_broadcast_is_whole_where_clients_know_a_compressed_model():
    X, y = make_toy()
    world = Federation(compression=TopK(0.2))
    model = CoLR(1, n_factors=8, n_rounds=3, client_fraction=1.0, random_state=0, federation=world)
    entries = model.fit(X, y).communication_.entries
    assert entries[-1]["bytes_down"] == 12 * 9 * 8 * 4


def test_what_the_server_draws_itself_crosses_beside_the_encrypted_sum():
    scheme = schemes()[0]
    X, y = make_toy()
    world = Federation(secure_aggregation=scheme)
    model = CoLR(2, n_factors=4, n_rounds=3, client_fraction=1.0, random_state=0, federation=world)
    rounds = [e for e in model.fit(X, y).communication_.entries if e["phase"] == "round"]
    each, basis = scheme.ciphertext_bytes(9 * 2 + 9), 2 * 4 * 4
    assert [e["bytes_down"] for e in rounds[1:]] == [12 * (each + basis)] * 2


def test_an_encrypted_sum_is_sent_once():
    schemes()
    X, y = make_toy()
    lost = Federation(secure_aggregation=CKKS(), dropout=0.97)
    *entries, final = make(RFRec, lost, n_rounds=6).fit(X, y).communication_.entries[1:]
    sums = [e["messages_up"] > 0 for e in entries]
    assert 0 < sum(sums) < 6
    one = entries[0]["bytes_up"]
    heard = [e["bytes_down"] for e in [*entries[1:], final]]
    assert heard == [one * arrived for arrived in sums]


def test_a_forged_upload_has_the_columns_that_its_client_names():
    class Told(SignFlip):
        def _forged(self, data, upload, generator):
            return {name: u._replace(change=u.change + 1.0) for name, u in upload.items()}

    transport, blocks, everyone = wire(Federation(adversary=Told(clients=[2])))
    data = encode(np.stack([np.arange(5), np.zeros(5)], axis=1))
    transport.intrusion = transport.federation.adversary.enter(data, False, Key(0))
    change = np.zeros((4, 3))
    change[:, 1] = 1.0
    parts = [Message(a=Dense(change, n_coordinates=np.array([4]))) for _ in blocks]
    upload = transport.up(blocks, parts, everyone, everyone, Key(0, 0), learned=True)
    np.testing.assert_array_equal(upload["a"].sum, 6 * change)
    assert transport.ledger.bytes_up == 5 * 4 * 4


def test_forged_integers_are_integers_and_are_not_compressed():
    world = Federation(adversary=SignFlip(clients=[2], scale=0.4), compression=Quantization())
    transport, blocks, everyone = wire(world)
    data = encode(np.stack([np.arange(5), np.zeros(5)], axis=1))
    transport.intrusion = world.adversary.enter(data, False, Key(0))
    parts = [Message(n=Dense(np.full((4, 2), 10), dtype="int64")) for _ in blocks]
    upload = transport.up(blocks, parts, everyone, everyone, Key(0, 0), learned=True)
    np.testing.assert_array_equal(upload["n"].sum, np.full((4, 2), 4 * 10 - 4))
    assert upload["n"].sum.dtype == np.int64
    assert transport.ledger.bytes_up == 5 * 8 * 8


@pytest.mark.parametrize("Estimator", [LocALS, LocSGD, GlobSGD])
@pytest.mark.parametrize("download", ["own", "all"])
def test_small_matrices_that_must_fit_the_items_are_not_compressed(Estimator, download):
    X, _ = make_toy(n_users=60, n_items=30, density=0.3)
    world = Federation(compression=TopK(0.1))
    model = Estimator(8, reg_user=1.0, download=download, random_state=0, federation=world).fit(X)
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({}, {"compression": TopK()}),
        ({"compression": TopK()}, {}),
        ({"compression": TopK()}, {"compression": Quantization()}),
        ({"adversary": SignFlip()}, {"adversary": None}),
        ({"aggregator": NormClipping(1.0)}, {"aggregator": NormClipping(2.0)}),
    ],
)
def test_a_warm_start_in_another_world_is_refused(first, then):
    X, _ = make_toy()
    model = LocALS(3, n_rounds=2, warm_start=True, random_state=0, federation=Federation(**first))
    model.fit(X)
    model.set_params(n_rounds=4, federation=Federation(**then))
    with pytest.raises(ValueError, match="federation__.* has changed from"):
        model.fit(X)


def test_what_an_earlier_fit_left_is_gone():
    X, _ = make_toy()
    model = LocALS(3, random_state=0, federation=Federation(adversary=SignFlip())).fit(X)
    assert hasattr(model, "compromised_clients_")
    model.set_params(federation=None).fit(X)
    assert not hasattr(model, "compromised_clients_")


def test_a_value_too_large_for_the_scheme_is_refused_whoever_sends_it():
    schemes()
    X, y = make_toy()
    world = Federation(secure_aggregation=CKKS(audit=1), adversary=RandomUpload(strength=1e9))
    for seed in range(4):
        with pytest.raises(ValueError, match="may overflow"):
            make(RFRec, world).set_params(random_state=seed).fit(X, y)
