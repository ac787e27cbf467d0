"""Clipped uploads and noise on their sums, against loops over clients."""

import re
import tracemalloc
import warnings

import numpy as np
import pytest

from fedrecsk import FCF, FedEASE, FedEB, Federation, FedFast, LightFR, LocALS, RFRec
from fedrecsk.aggregation import NormClipping
from fedrecsk.attacks import SignFlip
from fedrecsk.compression import TopK
from fedrecsk.federated.rfrec import RFRecAlgorithm
from fedrecsk.privacy import CKKS, CentralDP, LaplaceMechanism, Paillier, SecAggPlus
from fedrecsk.privacy._grid import STEPS, sensitivity
from fedrecsk.privacy.central_dp import clip_updates, round_updates
from fedrecsk.protocol import central_noise
from fedrecsk.protocol.central_noise import CentralNoise
from fedrecsk.protocol.keys import Key
from fedrecsk.simulation.run import watch
from fedrecsk.updates import FieldSpec, SparseRows
from tests.conftest import make_toy
from tests.updates.making import updates_of

pytestmark = pytest.mark.filterwarnings("ignore:CentralDP.delta=")

N_ITEMS, N_CLIENTS = 9, 20
PUBLIC = {"items": np.arange(N_ITEMS) * 3 + 1000, "rating_scale": (1, 5), "aggregation": "clients"}


@pytest.fixture
def toy():
    return make_toy(N_CLIENTS, N_ITEMS, seed=1)


def private(**parameters):
    federation = {n: parameters.pop(n) for n in list(parameters) if n in Federation().get_params()}
    return Federation(central_dp=CentralDP(**parameters), **federation)


def make(federation, **parameters):
    known = {"n_factors": 3, "n_rounds": 3, "random_state": 0} | PUBLIC | parameters
    return RFRec(federation=federation, **known)


# ------------------------------------------------------------------------------ clipping


def make_updates(with_default=True):
    """Fields of all kinds: own rows and a default, small arrays, integers."""
    generator = np.random.default_rng(0)
    indptr, rows = np.array([0, 2, 2, 5, 6]), np.array([1, 3, 0, 2, 4, 4])
    center, default = generator.normal(size=(2, 5, 2))
    specs = {
        "vectors": FieldSpec((5, 2)),
        "small": FieldSpec((3,)),
        "counts": FieldSpec((5,), dtype="uint8", learned=False),
    }
    fields = {
        "vectors": SparseRows(
            indptr,
            rows,
            generator.normal(size=(6, 2)),
            default=default if with_default else None,
            center=center,
        ),
        "small": SparseRows.stacked(generator.normal(size=(4, 3))),
        "counts": SparseRows(indptr, rows, np.ones(6, dtype=np.uint8)),
    }
    return updates_of(fields, specs, [True, True, False, True])


def naive_sums(updates, clip, weights):
    sums = {name: np.zeros(spec.shape) for name, spec in updates.specs.items()}
    n_short = 0
    for client in np.flatnonzero(updates.accepted):
        upload = {name: rows.whole()[client] for name, rows in updates.fields.items()}
        weighted = [weights.get(name, 1) * np.ravel(values) for name, values in upload.items()]
        norm = np.linalg.norm(np.concatenate(weighted))
        n_short += norm <= clip
        for name, values in upload.items():
            sums[name] += values * min(1, clip / norm)
    return sums, n_short


@pytest.mark.parametrize("weights", [{}, {"vectors": 3.0, "counts": 0.1}])
@pytest.mark.parametrize("clip", [0.5, 4.0, 100.0])
def test_uploads_are_clipped_over_all_fields(weights, clip):
    updates = make_updates()
    expected, n_short = naive_sums(updates, clip, weights)
    clipped, is_short = clip_updates(updates, clip, weights)
    assert (is_short & updates.accepted).sum() == n_short
    for name, values in expected.items():
        # Without the center, which the server adds.
        np.testing.assert_allclose(clipped.total(name), values, rtol=1e-12)


@pytest.mark.parametrize("with_default", [True, False])
def test_rounded_uploads_lie_on_the_grid(with_default):
    clipped, _ = clip_updates(make_updates(with_default), 2.0, {})
    rounded = round_updates(clipped, 2.0, {}, 0.0, Key(0, 3))
    for name, rows in rounded.fields.items():
        steps = np.rint(clipped.fields[name].whole() * STEPS / 2)
        np.testing.assert_array_equal(rows.whole() * STEPS / 2, steps)


def test_shares_of_the_noise_are_on_the_grid_and_on_all_rows():
    clipped, _ = clip_updates(make_updates(False), 2.0, {})
    quiet, noisy = (round_updates(clipped, 2.0, {}, v, Key(0, 3)) for v in (0.0, 1e4))
    for name, rows in noisy.fields.items():
        noise = (rows.whole() - quiet.fields[name].whole()) * STEPS / 2
        np.testing.assert_array_equal(noise, np.rint(noise))
        assert (noise != 0).all()
        assert 30 < noise.std() < 300


# --------------------------------------------------------------------------------- noise


def test_the_model_of_a_fit_is_as_noisy_as_announced(toy):
    # One round of gradient descent from the same start: the difference is the noise.
    fits = [
        make(private(clip=0.1, noise_multiplier=z), n_rounds=1, n_factors=20).fit(*toy)
        for z in (0.0, 5.0)
    ]
    clear, noisy = (model.item_factors_.ravel() for model in fits)
    exact = make(
        private(clip=0.1, noise_multiplier=5.0, noise="clients"), n_rounds=1, n_factors=20
    ).fit(*toy)
    std = 0.1 * 5 / N_CLIENTS
    assert np.std(noisy - clear) == pytest.approx(std, rel=0.2)
    assert np.std(exact.item_factors_.ravel() - clear) == pytest.approx(std, rel=0.2)


def test_the_server_does_not_divide_by_a_secret_number():
    # All uploads but one are lost; the sum is still divided by the expected number of clients.
    seen = {}

    class WatchingAlgorithm(RFRecAlgorithm):
        def step(self, server, upload, key):
            seen[key.round] = upload
            return super().step(server, upload, key)

    class Watching(RFRec):
        _kind = WatchingAlgorithm

    model = Watching(3, n_rounds=2, random_state=0, **PUBLIC)
    model.set_params(federation=private(noise_multiplier=1.0, dropout=0.5), client_fraction=0.5)
    model.fit(*make_toy(N_CLIENTS, N_ITEMS, seed=1))
    assert {upload.n_clients for upload in seen.values()} == {5}
    assert all(upload["item_vectors"].noise_std > 0 for upload in seen.values())
    assert all(upload["item_vectors"].n_clients == 5 for upload in seen.values())


def test_noise_is_added_when_all_uploads_are_lost(toy):
    federation = private(noise_multiplier=1.0, dropout=0.999)
    model = make(federation, n_rounds=1).fit(*toy)
    other = make(private(noise_multiplier=2.0, dropout=0.999), n_rounds=1).fit(*toy)
    assert not np.array_equal(model.item_factors_, other.item_factors_)


@pytest.mark.parametrize("quantile", [0.2, 0.8])
def test_the_clip_follows_the_quantile(quantile):
    federation = private(clip=10.0, noise_multiplier=0.1, quantile=quantile)
    model = make(federation, n_rounds=60, learning_rate=0.01)
    data = model._prepared(*make_toy(200, N_ITEMS, seed=1))
    shares = []
    for _, _, seen in watch(model, data, 60):
        weights = [tile.fields["item_vectors"].factors for tile in seen.tiles()]
        shares.append(np.mean(np.concatenate(weights) == 1))
    assert shares[0] == 1
    assert np.mean(shares[-10:]) == pytest.approx(quantile, abs=0.1)


def test_the_bit_of_a_short_upload_is_counted(toy):
    turns = {"sampling": "rotating"}
    fits = [
        make(private(noise_multiplier=0.5, quantile=q, **turns), client_fraction=0.5).fit(*toy)
        for q in (None, 0.5)
    ]
    # 3 rounds of 10 clients, who take part in 2 of them at most.
    assert np.diff([one.communication_.bytes_up for one in fits]) == 30
    assert np.diff([one.privacy_.n_coordinates for one in fits]) == 2
    assert fits[1].planned_privacy(N_CLIENTS).n_coordinates == fits[1].privacy_.n_coordinates


# ------------------------------------------------------------------------------- account


@pytest.mark.parametrize(
    ("sampling", "uses"), [("rotating", 2), ("random", None), ("poisson", None)]
)
def test_cohorts_count_as_often_as_they_are_used(toy, sampling, uses):
    federation = private(epsilon=3.0, delta=1e-3, sampling=sampling)
    model = make(federation, n_rounds=6, client_fraction=0.3).fit(*toy)
    report = model.privacy_
    assert 0.99 * 3 < report.epsilon <= 3 * (1 + 1e-9)
    if uses is not None:
        assert report.n_uploads == uses == report.events[0].count
    if sampling == "poisson":
        assert report.events[0].probability == 0.3
        assert report.events[0].count == 6


def test_lost_shares_are_counted(toy):
    spent = {}
    for dropout in (0.0, 0.4):
        federation = private(epsilon=3.0, delta=1e-3, noise="clients", dropout=dropout)
        spent[dropout] = make(federation, n_rounds=4).fit(*toy).privacy_
    assert spent[0.0].epsilon == pytest.approx(3, rel=1e-3)
    # More shares arrive than the plan relies on.
    assert spent[0.4].epsilon <= 3
    noise = [spent[d].events[0].noise_multiplier for d in (0.0, 0.4)]
    assert noise[1] > noise[0]


@pytest.mark.parametrize("dropout", [0.0, 0.15])
def test_under_masks_only_sure_shares_are_counted(toy, dropout):
    """Whoever is lost: a server that lies may leave out as many as the masks allow."""
    pytest.importorskip("cryptography", reason="needs fedrecsk[privacy]")
    scheme, setting = SecAggPlus(), {"epsilon": 3.0, "delta": 1e-3, "noise": "clients"}
    federation = private(secure_aggregation=scheme, dropout=dropout, **setting)
    model = make(federation, n_rounds=4)
    planned = model.planned_privacy(N_CLIENTS)
    report = model.fit(*toy).privacy_
    assert report.epsilon == pytest.approx(planned.epsilon) == pytest.approx(3, rel=1e-3)
    noise = report.events[0].noise_multiplier
    assert noise == pytest.approx(planned.events[0].noise_multiplier)
    assert report.trust.startswith("no party, if at most one client helps the server;")
    # Each share is that of the fewest clients that are sure to be there.
    releases = CentralNoise.of(model._plan(), N_CLIENTS, Key(0), Key(0))
    everything = (noise * sensitivity(max(releases.uploads.sizes.values()))) ** 2
    share = releases.variance_of_share(Key(0).at(0))
    assert share * scheme.sure_shares(N_CLIENTS) == pytest.approx(everything, rel=1e-3)
    assert share * N_CLIENTS > 3 * everything


def test_masked_sums_in_which_no_share_is_sure_are_refused(toy):
    few = {"secure_aggregation": SecAggPlus(n_neighbors=638), "noise": "clients"}
    with pytest.raises(ValueError, match=r'could see sums over 2000 .*n_neighbors="auto"'):
        make(private(epsilon=3.0, **few)).planned_privacy(2000)
    by_chance = {"secure_aggregation": SecAggPlus(), "noise": "clients", "sampling": "poisson"}
    model = make(private(epsilon=3.0, **by_chance), client_fraction=0.9)
    with pytest.raises(ValueError, match=r'needs cohorts of one size.*sampling="random"'):
        model.fit(*toy)


def test_poisoned_clients_add_no_shares(toy):
    federation = private(noise_multiplier=2.0, delta=1e-3, noise="clients")
    honest = make(federation).fit(*toy).privacy_
    federation = private(noise_multiplier=2.0, delta=1e-3, noise="clients", adversary=SignFlip(0.3))
    with pytest.warns(UserWarning, match="more than the planned"):
        attacked = make(federation).fit(*toy).privacy_
    assert attacked.epsilon > honest.epsilon


def test_warm_starts_add_up(toy):
    federation = private(noise_multiplier=4.0, delta=1e-3)
    model = make(federation, n_rounds=2, warm_start=True).fit(*toy)
    first = model.privacy_.epsilon
    model.set_params(n_rounds=5).fit(*toy)
    whole = make(federation, n_rounds=5).fit(*toy)
    assert first < model.privacy_.epsilon == pytest.approx(whole.privacy_.epsilon)
    np.testing.assert_array_equal(model.item_factors_, whole.item_factors_)


@pytest.mark.parametrize("scheme", [CKKS(), Paillier(key_bits=512, allow_weak=True)])
def test_shares_under_encryption_leave_nobody_to_trust(toy, scheme):
    federation = private(
        noise_multiplier=2.0, delta=1e-3, noise="clients", secure_aggregation=scheme
    )
    model = make(federation, n_rounds=1).fit(*toy)
    assert model.privacy_.trust == "no party, if no client helps the server"
    assert model.privacy_.server_sees == "encrypted sums"
    plain = private(noise_multiplier=2.0, delta=1e-3, noise="clients")
    assert make(plain, n_rounds=1).fit(*toy).privacy_.trust == "the server"


# ----------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"clip": 0, "epsilon": 1}, "set clip to the largest"),
        ({"clip": None, "noise_multiplier": 1}, "set clip to the largest"),
        ({"clip": -1.0, "epsilon": 1}, "'clip' parameter of CentralDP"),
        ({}, "neither epsilon nor noise_multiplier"),
        ({"epsilon": -1}, "'epsilon' parameter of CentralDP"),
        ({"noise_multiplier": 0.0, "epsilon": 1}, "adds no noise"),
        ({"noise_multiplier": 0.0, "noise": "clients"}, "adds no noise"),
        ({"epsilon": 1, "quantile": 0.5, "noise": "clients"}, "cannot adapt the clip"),
        ({"epsilon": 1, "quantile": 0.5}, "cannot hide one of them; .* find more clients"),
        ({"epsilon": 1, "field_weights": {"item_vectors": 0}}, "must be a positive number"),
        ({"epsilon": 1, "field_weights": {"vectors": 1.0}}, "use these names"),
        ({"noise_multiplier": 1e-9}, "next to nothing"),
        ({"epsilon": 1e-3, "noise": "clients"}, "less than can be accounted for"),
        ({"noise_multiplier": 1e5, "noise": "clients"}, "more than integers hold"),
        ({"epsilon": 1, "field_weights": {"item_vectors": 1e-200}}, "from 1e-06 to 1e"),
        ({"epsilon": 1, "noise_multiplier": 0.5}, "spends epsilon .* set noise_multiplier to"),
        ({"epsilon": 1, "local_dp": LaplaceMechanism(1, 1)}, "both central_dp and local_dp"),
        ({"epsilon": 1, "aggregator": NormClipping()}, "set aggregator=None"),
        ({"epsilon": 1, "compression": TopK(0.3)}, "set compression=None"),
        ({"epsilon": 1, "secure_aggregation": CKKS()}, "by which clients add it"),
        (
            {"epsilon": 1, "quantile": 0.5, "dropout": 0.1, "dropout_mode": "stale"},
            "announces a new clip",
        ),
    ],
)
def test_bad_settings(toy, parameters, message):
    with pytest.raises(ValueError, match=message):
        make(private(**parameters)).fit(*toy)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (RFRec(**PUBLIC | {"items": None}), "the catalogue must be public"),
        (RFRec(**PUBLIC | {"rating_scale": None}), "the rating scale must be public"),
        (RFRec(**PUBLIC | {"aggregation": "holders"}), 'set aggregation="clients"'),
        (RFRec(**PUBLIC, early_stopping=True), "set early_stopping=False"),
        (RFRec(**PUBLIC, warm_start=True), "set noise_multiplier instead"),
        (FedFast(items=PUBLIC["items"]), "treats clients individually"),
        (LightFR(items=PUBLIC["items"], rating_scale=(1, 5)), "sends codes"),
        (FCF(items=PUBLIC["items"], upload="local"), 'set upload="all"'),
        (LocALS(items=PUBLIC["items"]), 'set upload="all"'),
        (FedEASE(items=PUBLIC["items"], upload="local"), 'set upload="all"'),
        (FedEB(items=PUBLIC["items"], rating_scale=(1, 5)), "Use PrivFedEB"),
    ],
)
def test_what_noise_would_not_protect_is_refused(toy, estimator, message):
    with pytest.raises(ValueError, match=message):
        estimator.set_params(federation=private(epsilon=5.0)).fit(*toy)


def test_a_cohort_of_one_cannot_hide_behind_its_own_share(toy):
    federation = private(epsilon=3.0, noise="clients", sampling="rotating")
    with pytest.raises(ValueError, match="needs 2 clients in every cohort"):
        make(federation, client_fraction=0.05).fit(*toy)


@pytest.mark.parametrize("mode", ["upload", "offline"])
def test_a_cohort_whose_shares_rarely_arrive_is_refused(toy, mode):
    federation = private(epsilon=3.0, noise="clients", dropout=0.99, dropout_mode=mode)
    with pytest.raises(ValueError, match=r"nearly always answer, .* lower dropout"):
        make(federation).fit(*toy)


def test_a_fit_that_spends_more_than_its_limit_warns(toy):
    # The second cohort has few clients that have not sent before, and so few shares.
    X, _ = toy
    federation = private(epsilon=3.0, noise="clients", delta=1e-3, sampling="random")
    model = FedEASE(
        n_rounds=3,
        client_fraction=0.7,
        items=PUBLIC["items"],
        federation=federation,
        random_state=0,
    )
    with pytest.warns(UserWarning, match="spent epsilon .* more than CentralDP.epsilon=3"):
        model.fit(X)
    assert model.privacy_.epsilon > 3


@pytest.mark.parametrize(
    ("noise", "change"),
    [("server", "epsilon"), ("server", "data"), ("server", "nothing"), ("clients", "data")],
)
def test_different_fits_have_different_noise(noise, change, toy, monkeypatch):
    # Otherwise the noise of two fits could be subtracted.
    X, y = toy
    settings = {"noise": noise, "epsilon": 3.0, "secure_aggregation": None}
    if noise == "clients":
        # Every client draws its own share.
        settings["secure_aggregation"] = CKKS(audit=1)
    first = make(private(**settings), n_rounds=1, learning_rate=1e-9).fit(X, y)
    if change == "epsilon":
        settings["epsilon"] = 3.1
    if change == "data":
        y = np.where(np.arange(len(y)) == 0, 6 - y, y)
    other = make(private(**settings), n_rounds=1, learning_rate=1e-9).fit(X, y)
    start = make(private(epsilon=3.0, clip=1e-12), n_rounds=1).fit(X, y).item_factors_
    noises = [(one.item_factors_ - start).ravel() for one in (first, other)]
    correlation = np.corrcoef(*noises)[0, 1]
    assert correlation > 0.999 if change == "nothing" else abs(correlation) < 0.8


@pytest.mark.parametrize(
    ("federation", "parameters", "epsilon"),
    [
        ({"sampling": "poisson"}, {"client_fraction": 0.3}, 500.0),
        ({"sampling": "random", "dropout": 0.9}, {"client_fraction": 0.05, "n_rounds": 1}, 1.0),
        ({}, {}, 1e5),
    ],
)
def test_extreme_settings_fit(federation, parameters, epsilon, toy):
    model = make(private(epsilon=epsilon, delta=1e-3, **federation), **parameters)
    report = model.fit(*toy).privacy_
    assert report.epsilon <= epsilon * (1 + 1e-6)


def test_methods_that_send_once_pay_once(toy):
    model = FedEASE(n_rounds=4, items=PUBLIC["items"], federation=private(epsilon=5.0))
    (event,) = model.fit(toy[0]).privacy_.events
    # For the counts of its items, and for their pairs.
    assert event.count == 2


def test_all_that_central_privacy_needs_is_said_at_once():
    mechanism = CentralDP(epsilon=10.0)
    model = RFRec(early_stopping=True, federation=Federation(central_dp=mechanism))
    with pytest.raises(ValueError, match="3 settings do not suit") as caught:
        model.fit(*make_toy(N_CLIENTS, N_ITEMS))
    for part in ("early_stopping=False", "set items=", "set rating_scale="):
        assert part in str(caught.value)
    model = LocALS(federation=Federation(central_dp=mechanism))
    with pytest.raises(ValueError, match="2 settings do not suit") as caught:
        model.planned_privacy(100)
    assert "set items=" in str(caught.value)
    assert 'set upload="all"' in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "module"),
    [(CKKS(), "tenseal"), (SecAggPlus(), "cryptography")],
    ids=["CKKS", "masks"],
)
def test_what_clients_noise_costs_under_secure_sums_is_said_before_the_fit(
    scheme, module, toy, monkeypatch
):
    pytest.importorskip(module)
    monkeypatch.setattr(central_noise, "LONG", 0.0)
    setting = {"noise_multiplier": 2.0, "delta": 1e-3, "secure_aggregation": scheme}
    model = RFRec(4, n_rounds=3, federation=private(noise="clients", **setting), **PUBLIC)
    with pytest.warns(
        UserWarning, match=r"in 60 uploads of \d+ numbers, .* at least \d+ s"
    ) as all_:
        model.fit(*toy)
    text = next(str(one.message) for one in all_ if "share of the noise" in str(one.message))
    sent = model.communication_.entries
    sent = sum(one["bytes_up"] for one in sent if one["phase"] == "round") / 1e9
    if scheme.hides_sums:
        assert f"send {sent:,.2g} GB in all" in text
    else:
        # Keys and shares come on top, which are most of the bytes of so short a vector.
        assert 0 < float(re.search(r"send (\S+) GB in all", text)[1]) < sent
    monkeypatch.setattr(central_noise, "LONG", 1e9)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*share of the noise.*")
        model.fit(*toy)


def test_clipped_uploads_of_few_pairs_are_not_written_out():
    """A client has 3 of the 1,500 items, but its upload is a vector of 1.1 million pairs."""
    X = np.column_stack([np.repeat(np.arange(400), 3), np.arange(1200)])
    model = FedEASE(items=np.arange(1500), federation=private(epsilon=5, delta=1e-3, clip=1))
    tracemalloc.start()
    model.fit(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    n_bytes = 8 * 1500 * 1501 // 2
    assert peak < 20 * n_bytes
