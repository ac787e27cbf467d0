"""Masked sums around whole fits, compared with plain loops over clients."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import Federation, FedMF, LightFR, LocALS, PrivFedEB, RFRec
from fedrecsk.attacks import SignFlip
from fedrecsk.deployment import Device, DeviceServer
from fedrecsk.privacy import CentralDP, LaplaceMechanism, SecAggPlus
from fedrecsk.privacy._secagg_protocol import Ring, bytes_of_sum
from fedrecsk.protocol import FieldSpec, Ledger
from fedrecsk.protocol.central_noise import CentralNoise
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.secure_accounts import (
    MaskedChannel,
    as_vector,
    integers_of,
    summed_updates,
    units_of,
)
from fedrecsk.updates import HeldUpdates, RoundUpdates, SparseRows
from tests.conftest import draw_each, make_toy
from tests.privacy.masked_sums import Lost, masked_sum
from tests.updates.making import updates_of

pytest.importorskip("cryptography", reason="needs fedrecsk[privacy]")

X, Y = make_toy()
SMALL = {"n_factors": 3, "n_rounds": 3, "random_state": 0}
PUBLIC = {"items": np.unique(X[:, 1]), "rating_scale": (1, 5)}


def masked(estimator, scheme=None, **setting):
    scheme = SecAggPlus() if scheme is None else scheme
    federation = Federation(secure_aggregation=scheme, **setting)
    return clone(estimator).set_params(federation=federation)


# ------------------------------------------------------------------------- exact sums


def updates(n_clients=5, seed=0):
    """Single updates of a real field with own rows, a default and a center, and of counts."""
    rng = np.random.default_rng(seed)
    specs = {"x": FieldSpec((4, 2)), "n": FieldSpec((4,), dtype="uint8", learned=False)}
    specs["loss"] = FieldSpec((1,), learned=False)
    rows = [np.sort(rng.permutation(4)[:size]) for size in rng.integers(0, 4, n_clients)]
    indptr, rows = np.cumsum([0, *map(len, rows)]), np.concatenate(rows)
    x = SparseRows(
        indptr,
        rows,
        rng.normal(size=(len(rows), 2)).astype(np.float32),
        default=rng.normal(size=(4, 2)),
        center=rng.normal(size=(4, 2)),
        factors=rng.uniform(0.5, 1, n_clients),
    )
    n = SparseRows.stacked(rng.integers(0, 9, (n_clients, 4)).astype(np.uint8))
    loss = SparseRows.stacked(rng.uniform(0, 900, (n_clients, 1)))
    one = updates_of({"x": x, "n": n, "loss": loss}, specs)
    return RoundUpdates([HeldUpdates(one, [], one.accepted)]), specs


def test_a_sum_is_that_of_the_clients_rounded_numbers():
    scheme = SecAggPlus(fraction_bits=13)
    single, specs = updates()
    channel, codes = MaskedChannel(scheme, 5), np.arange(5)
    ledger = Ledger(codes)
    ledger.open("round", 0)
    assert channel.open(codes, codes, 13, Key(0, 0), ledger)
    sums = channel.sum(single, specs, {})
    units = [2.0**-13] * 8 + [1] * 4 + [2.0**-2]
    total = np.zeros(13)
    for _, one in single.single():
        for i, number in enumerate(as_vector(one, 0)):
            total[i] += units[i] * round(number / units[i])
    assert np.concatenate([np.ravel(sums[name]) for name in specs]).tolist() == total.tolist()
    assert sums["n"].dtype == np.int64


SHARES = CentralDP(clip=1.0, noise_multiplier=1.0, epsilon=None, noise="clients")
METHODS = {
    "RFRec": RFRec(**SMALL),
    "LocALS": LocALS(upload="all", reg_user=1.0, aggregation="clients", **SMALL),
    "FedMF": FedMF(client_fraction=0.5, **SMALL),
    "PrivFedEB": PrivFedEB(n_factors=3, n_rounds=3, random_state=0),
}


@pytest.fixture
def unmasked(monkeypatch):
    """Run the protocol in each sum of single updates, compare, and list its numbers of vectors."""
    vectors_of, opened = [], []
    open_one, sum_one = MaskedChannel.open, MaskedChannel.sum

    def opens(channel, senders, arrived, n_values, key, ledger):
        opened.append((channel.plan_of(len(senders)), channel.ring_of(senders, key)[1]))
        return open_one(channel, senders, arrived, n_values, key, ledger)

    def sums(channel, updates, specs, steps):
        simulated = sum_one(channel, updates, specs, steps)
        plan, ring = opened[-1]
        units = units_of(channel.scheme, specs, steps)
        vectors = {
            int(code): integers_of(channel.scheme, updates.one(place).whole(0), units, steps)
            for place, code in enumerate(updates.codes)
        }
        vectors_of.append(len(vectors))
        # What a lost client would have sent is unknown.
        gone = set(ring.order.tolist()) - vectors.keys()
        nothing = np.zeros_like(next(iter(vectors.values())))
        total, alive = masked_sum(
            plan, vectors | dict.fromkeys(gone, nothing), ring, Lost(vector=gone)
        )
        assert np.flatnonzero(alive).tolist() == updates.codes.tolist()
        step, clients = ("round", 0), updates.codes
        protocol = summed_updates(total, step, clients, specs, units).fields
        for name in specs:
            one, other = protocol[name], simulated[name]
            one, other = (x.toarray() if specs[name].sparse else x for x in (one, other))
            assert np.array_equal(one, other), name
        return simulated

    monkeypatch.setattr(MaskedChannel, "open", opens)
    monkeypatch.setattr(MaskedChannel, "sum", sums)
    return vectors_of


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("setting", [{}, {"dropout": 0.15}], ids=["all", "dropout"])
def test_the_protocol_gives_the_simulated_sums(name, setting, unmasked):
    model = masked(METHODS[name], SecAggPlus(max_abs=64), **setting).fit(X, Y)
    entries = model.communication_.entries
    arrived = sum(e["messages_up"] for e in entries if e["phase"] == "round")
    assert sum(unmasked) >= arrived * (model.encryption_.n_lost == 0)
    assert len(unmasked) >= 3 - model.encryption_.n_lost


@pytest.mark.parametrize("name", METHODS)
def test_a_masked_fit_is_the_plain_one_within_the_rounding(name):
    plain = clone(METHODS[name]).fit(X, Y)
    secure = masked(METHODS[name], SecAggPlus(fraction_bits=35, max_abs=64)).fit(X, Y)
    np.testing.assert_allclose(secure.predict(X), plain.predict(X), atol=1e-5)
    assert secure.privacy_.server_sees == plain.privacy_.server_sees == "exact sums"
    assert plain.privacy_.trust == "everyone who sees uploads or models"
    assert secure.privacy_.trust.startswith("everyone who sees sums or models; a single upload")


def test_the_ledger_counts_the_messages_of_all_rounds():
    plain = clone(METHODS["LocALS"]).fit(X, Y).communication_
    model, lossy = masked(METHODS["LocALS"]), masked(METHODS["LocALS"], dropout=0.2)
    plan, ring, n_values = SecAggPlus().plan(12), Ring(np.arange(12), 11), 9 * 3
    up, down = bytes_of_sum(plan, ring, np.ones(12, dtype=bool), n_values)
    for one, other in zip(plain.entries, model.fit(X, Y).communication_.entries, strict=True):
        if one["phase"] == "round":
            assert other["bytes_up"] == up.sum()
            assert other["bytes_down"] == one["bytes_down"] + down.sum()
            assert other["payload_up"] == one["payload_up"]
            assert other["messages_down"] == one["messages_down"]
    report = model.encryption_
    assert (report.n_neighbors, report.threshold, report.n_bits) == tuple(plan[1:])
    assert report.mask_bytes == up[0] + down[0] - plan.nbytes(n_values)
    # Lost clients have sent keys, shares and their vector, but no answer.
    for entry in lossy.fit(X, Y).communication_.entries:
        if entry["phase"] == "round":
            alive = np.arange(12) < 12 - entry["dropped"]
            assert entry["bytes_up"] == bytes_of_sum(plan, ring, alive, n_values)[0].sum()


@pytest.mark.parametrize(("mode", "dropout"), [("upload", 0.35), ("offline", 0.8), ("stale", 0.35)])
def test_too_many_lost_clients_lose_the_round_and_no_more(mode, dropout):
    model = masked(RFRec(3, n_rounds=12, random_state=0), dropout=dropout, dropout_mode=mode)
    with pytest.warns(UserWarning, match=r"In \d+ of 12 rounds (too few clients|every upload)"):
        model.fit(X, Y)
    assert 0 < model.encryption_.n_lost < 12
    assert np.isfinite(model.item_factors_).all()


# --------------------------------------------------------------------------- with the rest


def test_noise_of_the_clients_goes_through_exactly(monkeypatch, unmasked):
    draw_each(monkeypatch)
    # One secret for both, which else depends on the federation.
    monkeypatch.setattr("fedrecsk.simulation.both_sides.secret_of", lambda *given: Key(7))
    estimator = clone(METHODS["PrivFedEB"]).set_params(**PUBLIC)
    plain = clone(estimator).set_params(federation=Federation(central_dp=SHARES)).fit(X, Y)
    # If nobody is lost or helps a server that lies, all shares are sure.
    scheme = SecAggPlus(max_dropout=0.0, max_colluding=0.0)
    secure = masked(estimator, scheme, central_dp=SHARES).fit(X, Y)
    assert 12 in unmasked
    assert secure.predict(X).tolist() == plain.predict(X).tolist()
    assert secure.privacy_.epsilon == plain.privacy_.epsilon
    assert secure.privacy_.server_sees == "noisy sums"
    assert secure.privacy_.trust.startswith("no party")


def test_noise_that_the_bits_do_not_hold_is_noticed(monkeypatch):
    """As if they were counted for the clients' numbers without noise."""
    noise = CentralDP(clip=1.0, noise_multiplier=300.0, epsilon=None, noise="clients")
    model = masked(RFRec(**SMALL, **PUBLIC), central_dp=noise)
    n_bits = clone(model).fit(X, Y).encryption_.n_bits
    assert n_bits > SecAggPlus().plan(12).n_bits
    monkeypatch.setattr(CentralNoise, "largest_sum", lambda noise, n_clients: 0.0, raising=False)
    with pytest.raises(RuntimeError, match="bits do not hold"):
        model.fit(X, Y)


@pytest.mark.parametrize(
    "setting",
    [
        {"central_dp": CentralDP(clip=1.0, noise_multiplier=1.0, epsilon=None)},
        {"local_dp": LaplaceMechanism(clip=0.2, scale=0.1)},
        {"adversary": SignFlip(0.2)},
    ],
    ids=["server", "clients", "attack"],
)
def test_noise_of_the_server_and_of_single_clients_goes_with_masks(setting, unmasked):
    masked(RFRec(**SMALL, **PUBLIC), **setting).fit(X, Y)
    assert 12 in unmasked


def test_validation_losses_are_masked_too():
    settings = {"early_stopping": True, "validation_fraction": 0.3}
    plain = RFRec(3, n_rounds=6, random_state=0, **settings).fit(X, Y)
    secure = masked(RFRec(3, n_rounds=6, random_state=0, **settings)).fit(X, Y)
    first, second = ([row["validation_loss"] for row in m.history_] for m in (plain, secure))
    np.testing.assert_allclose(first, second, atol=0.01)
    assert first != second
    # Set-up, rounds, and a sum of losses for each model.
    assert secure.encryption_.n_sums == 1 + 6 + 6


def test_warm_starts_go_on_and_pickle():
    model = masked(RFRec(3, n_rounds=2, warm_start=True, random_state=0)).fit(X, Y)
    again = pickle.loads(pickle.dumps(model)).set_params(n_rounds=4).fit(X, Y)
    whole = masked(RFRec(3, n_rounds=4, random_state=0)).fit(X, Y)
    assert again.predict(X).tolist() == whole.predict(X).tolist()


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (RFRec(client_fraction=0.15), "at least 3 clients in a sum, but got 2"),
        (RFRec(n_factors=2), r"too large for SecAggPlus\(max_abs=1e-06\).*raise max_abs to"),
        (LocALS(), 'set upload="all"'),
        (LightFR(upload="all", aggregation="full"), r"LightFR's integers.*SecAggPlus\(max_abs="),
    ],
)
def test_what_does_not_suit_masks_is_refused(estimator, message):
    small = "max_abs=1e-06" in message
    scheme = SecAggPlus(max_abs=1e-6) if small else SecAggPlus()
    with pytest.raises(ValueError, match=message):
        masked(estimator.set_params(random_state=0), scheme).fit(X, Y)


def test_a_device_returns_integers_to_be_masked_and_no_number_of_items():
    squared = {"loss": "squared", "client_fraction": 1.0}
    estimator = masked(FedMF(3, items=np.unique(X[:, 1]), **squared))
    server = DeviceServer.of(estimator)
    silos = [X[:, 0] % 3 == k for k in range(3)]
    devices = [Device(estimator, X[who], Y[who], client_id=k) for k, who in enumerate(silos)]
    registrations = [one.register() for one in devices]
    assert all((one.n_held == 0).all() for one in registrations)
    devices[0].place(server.register(registrations)[0])
    (upload,) = devices[0].setup(server.setup_message())
    assert upload.fields == {}
    assert upload.integers.dtype == np.int64
