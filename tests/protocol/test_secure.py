"""Secure sums on devices: fits equal those in plaintext, and the server sees ciphertexts only."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import (
    CoLR,
    FedEASE,
    FedEB,
    Federation,
    FedFast,
    FedMF,
    LightFR,
    PrivFedEB,
    RFRec,
    RFRecF,
)
from fedrecsk.federated import _round_loop
from fedrecsk.privacy import CKKS, CentralDP, LaplaceMechanism, Paillier
from fedrecsk.protocol import Device, EncryptedServer, Server
from fedrecsk.protocol.keys import Key
from tests.conftest import make_toy
from tests.protocol.test_device import entered

pytestmark = pytest.mark.sampled

CKKS_SCHEME = CKKS()
PAILLIER = Paillier(512, allow_weak=True)
SHARES = CentralDP(epsilon=50, delta=1e-3, noise="clients", clip=1.0)
SMALL = {"n_rounds": 3, "random_state": 0}
X, Y = make_toy()
PLAIN = FedMF(3, items=np.unique(X[:, 1]))
SILOS = X[:, 0] % 3


def secure(estimator, scheme):
    """The estimator with what devices must be given."""
    federation = clone(estimator._setting()).set_params(secure_aggregation=scheme)
    estimator = clone(estimator).set_params(federation=federation, items=np.unique(X[:, 1]))
    if "rating_scale" in estimator.get_params():
        estimator.set_params(rating_scale=(float(Y.min()), float(Y.max())))
    if estimator.get_params().get("upload", "dense") != "dense":
        estimator.set_params(upload="all")
    return estimator


class Fit:
    """A server and three devices, which are pickled between steps."""

    def __init__(self, estimator, seed):
        self.estimator = estimator
        self.keys = estimator.federation.secure_aggregation.generate_keys(n_clients=3)
        self.server = EncryptedServer.of(estimator, Key(seed), party=self.keys.server)
        given = {"party": self.keys.clients, "private": Key(seed)}
        self.devices = [
            Device(estimator, X[k == SILOS], Y[k == SILOS], client_id=k, **given) for k in range(3)
        ]
        self.sent = []

    def stored(self):
        """Store both sides and load them again."""
        self.server = pickle.loads(pickle.dumps(self.server))
        self.devices = pickle.loads(pickle.dumps(self.devices))
        for one in self.devices:
            one.party = self.keys.clients

    def set_up(self):
        self.sent += [one for step in entered(self.server, self.devices) for one in step]
        self.stored()
        return self

    def updates(self):
        """The uploads of a new round."""
        turn, message = self.server.open_round()
        uploads = []
        for k in np.flatnonzero(turn.active):
            self.devices[k].receive(self.server.round, message)
            uploads += self.devices[k].update(self.server.round)[0]
        self.sent += uploads
        return uploads

    def round(self):
        self.server.close_round(self.updates())
        self.stored()

    def run(self):
        self.set_up()
        while self.server.round < self.estimator.n_rounds:
            self.round()
        message = self.server.send_final()
        return [one.fitted(message, self.server.round) for one in self.devices]


def simulated(estimator, monkeypatch):
    """A fit without encryption."""
    monkeypatch.setattr(type(estimator), "_dtype", np.float64, raising=False)
    plain = clone(estimator).set_params(federation__secure_aggregation=None)
    return plain.fit(X, Y, clients=SILOS)


def small(Estimator, **parameters):
    """A quick instance that sends whole matrices."""
    known = Estimator().get_params(deep=False)
    own = {"upload": "all", "n_factors": 5, "rank": 2, "n_bits": 8} | SMALL
    return Estimator(**{k: v for k, v in own.items() if k in known} | parameters)


# One of each way to add up; LightFR adds large integers.
SIMULATED = [
    (small(FedEB), CKKS_SCHEME),
    (small(RFRec), CKKS_SCHEME),
    (small(CoLR), CKKS_SCHEME),
    (small(FedEASE), CKKS_SCHEME),
    (small(PrivFedEB, federation=Federation(central_dp=SHARES)), CKKS_SCHEME),
    (small(LightFR), Paillier(512, fraction_bits=0, allow_weak=True)),
    (FedMF(3, client_fraction=0.5, **SMALL), PAILLIER),
    (RFRecF(3, client_fraction=0.5, **SMALL), PAILLIER),
]


@pytest.mark.parametrize(
    ("estimator", "scheme"), SIMULATED, ids=[type(one).__name__ for one, _ in SIMULATED]
)
def test_a_secure_fit_is_the_simulated_one(estimator, scheme, monkeypatch):
    assert_as_simulated(secure(estimator, scheme), monkeypatch)


def assert_as_simulated(estimator, monkeypatch):
    # Each client draws its own noise, from its own key.
    monkeypatch.setattr(Federation, "draws_each", True)
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    monkeypatch.setattr(_round_loop, "_secret", lambda *given: Key(seed))
    expected = simulated(estimator, monkeypatch)
    # The errors of sums are below 1e-8; RFRec's biases of items with few ratings amplify them.
    close = 1e-4 if isinstance(estimator, RFRec) else 1e-5
    for model in Fit(estimator, seed).run():
        codes = expected._users.codes(model.user_ids_)
        for name, value in vars(expected).items():
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu" or "_ids" in name:
                continue
            if name.startswith(("item_", "user_")):
                ours = getattr(model, name)
                theirs = value if name.startswith("item_") else value[codes]
                if isinstance(estimator, FedEB) and name.endswith("_factors_"):
                    # Others are coordinates of audiences, which may be turned.
                    ours, theirs = (one[:, : estimator.n_factors + 2] for one in (ours, theirs))
                np.testing.assert_allclose(ours, theirs, atol=close, err_msg=name)
        assert model.n_rounds_ == 3


@pytest.mark.parametrize("scheme", [CKKS_SCHEME, PAILLIER], ids=["CKKS", "Paillier"])
def test_the_server_has_no_keys_and_no_numbers_of_clients(scheme):
    """All that the server receives and stores, but ciphertexts, is the same for other ratings."""
    estimator = secure(FedEB(3, client_fraction=1.0, **SMALL), scheme)
    views = []
    for sign in (1, -1):
        fit = Fit(estimator, 1)
        for device in fit.devices:
            for values in (device.data.values, device.block.values):
                values[:] = 3 + sign * (values - 3)
        models = fit.run()
        stored, public = pickle.dumps(fit.server), fit.keys.server.to_bytes()
        secret = fit.keys.clients.to_bytes()
        for start in range(len(secret) - scheme.key_nbytes(), len(secret) - 32, 997):
            piece = secret[start : start + 32]
            assert piece not in stored or piece in public
        for row in np.concatenate([model.item_factors_ for model in models]):
            assert row.tobytes() not in stored
            assert row.astype(np.float32).tobytes() not in stored
        sent = [(one.phase, one.round, one.client, one.encrypted.n_values) for one in fit.sent]
        seen = [(one.phase, one.round, one.clients.tolist()) for one in fit.server.sums.sums]
        views.append((sent, seen, fit.server.ledger))
    assert views[0] == views[1]


# ---------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize("scheme", [CKKS_SCHEME, PAILLIER], ids=["CKKS", "Paillier"])
def test_malformed_uploads_are_left_out_and_counted(scheme):
    fit = Fit(secure(FedMF(3, client_fraction=1.0, **SMALL), scheme), 1).set_up()
    good = fit.updates()
    content, other = good[0].encrypted, scheme.generate_keys(3).clients
    block = content.blocks[0]
    for wrong in (
        replace(content, blocks=content.blocks[:-1]),
        replace(content, blocks=(b"x", *content.blocks[1:])),
        replace(content, blocks=(block[: len(block) // 2], *content.blocks[1:])),
        replace(content, blocks=(block + b"more", *content.blocks[1:])),
        replace(content, n_values=content.n_values - 1),
        replace(content, n_clients=2),
        other.encrypt(np.zeros(content.n_values)),
        fit.keys.clients.encrypt(np.zeros(content.n_values + 1)),
        None,
    ):
        server = pickle.loads(pickle.dumps(fit.server))
        server.close_round([replace(good[0], encrypted=wrong), *good[1:]])
        assert server.ledger.entries[-1]["rejected"] == 1
        assert server.sums.sums[-1].clients.tolist() == [1, 2]
    server = pickle.loads(pickle.dumps(fit.server))
    with pytest.raises(ValueError, match="has already sent in round 0"):
        server.close_round([*good, good[0]])
    for change in ({"round": 1}, {"phase": "setup"}, {"client": 7}, {"client": -1}):
        with pytest.raises(ValueError, match=r"send uploads in their own step|unknown client"):
            server.close_round([replace(good[0], **change), *good[1:]])
    assert len(server.sums.sums) == fit.server.n_setups
    server.close_round(good)
    assert server.sums.sums[-1].total.n_clients == 3
    with pytest.raises(ValueError, match="Round 1 is not open"):
        server.close_round([])


def test_numbers_in_plaintext_are_rejected_and_ciphertexts_do_not_reach_plain_servers():
    estimator = secure(FedMF(3, client_fraction=1.0, **SMALL), PAILLIER)
    fit = Fit(estimator, 1).set_up()
    uploads = fit.updates()
    fit.server.close_round([replace(uploads[0], encrypted=None), *uploads[1:]])
    assert fit.server.ledger.entries[-1]["rejected"] == 1
    server = Server.of(estimator.set_params(federation=None))
    server.register([one.register() for one in fit.devices])
    for step in range(server.n_setups):
        server.setup_message(step)
    server.open_round()
    server.close_round(uploads)
    assert server.ledger.entries[-1]["rejected"] == 3


def test_a_client_that_diverges_sends_nothing():
    fit = Fit(secure(FedMF(3, client_fraction=1.0, **SMALL), PAILLIER), 1).set_up()
    fit.devices[0].method.learning_rate = 1e308
    with np.errstate(all="ignore"):
        assert [one.client for one in fit.updates()] == [1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"early_stopping": True}, "early_stopping=False"),
        ({"federation": Federation()}, "no secure_aggregation"),
        (
            {"federation": Federation(secure_aggregation=PAILLIER, sampling="poisson")},
            'sampling="auto"',
        ),
    ],
)
def test_what_devices_cannot_do_is_named(change, message):
    estimator = secure(RFRec(3, aggregation="clients", **SMALL), PAILLIER).set_params(**change)
    keys = PAILLIER.generate_keys(3)
    with pytest.raises(ValueError, match=message):
        EncryptedServer.of(estimator, party=keys.server)
    with pytest.raises(ValueError, match=message):
        Device(estimator, X, Y, client_id=1, party=keys.clients)
    with pytest.raises(ValueError, match=r"chooses its cohorts|secure_aggregation"):
        EncryptedServer.of(secure(FedFast(3, **SMALL), PAILLIER), party=keys.server)


def test_noise_comes_from_the_clients_and_is_reported(monkeypatch):
    noisy = Federation(local_dp=LaplaceMechanism(clip=1.0, scale=0.5))
    estimator = secure(RFRec(3, aggregation="clients", federation=noisy, **SMALL), PAILLIER)
    assert_as_simulated(estimator, monkeypatch)
    fit = Fit(estimator, 1)
    fit.run()
    report = fit.server.privacy_report()
    assert report.server_sees == "encrypted sums"
    assert report.epsilon == simulated(estimator, monkeypatch).privacy_.epsilon


def test_keys_that_are_missing_or_of_the_other_side_are_named():
    estimator, keys = secure(FedMF(3, **SMALL), PAILLIER), PAILLIER.generate_keys(2)
    for build, message in (
        (
            lambda: EncryptedServer.of(estimator, party=keys.clients),
            r"the clients' keys.*keys\.server",
        ),
        (lambda: Server.of(estimator), r"has secure_aggregation; .* party=keys\.server"),
        (lambda: EncryptedServer.of(PLAIN, party=None), r"does not encrypt; .* use Server\.of"),
        (lambda: Device(estimator, X, Y, client_id=1, party=keys.server), "pass the clients'"),
        (lambda: Device(estimator, X, Y, client_id=1), "secure_aggregation; .* party=keys.clients"),
    ):
        with pytest.raises(ValueError, match=message):
            build()


def test_steps_that_were_deleted_are_named():
    fit = Fit(secure(FedMF(3, client_fraction=1.0, **SMALL), PAILLIER), 1).set_up()
    fit.round()
    fit.server.forget(fit.server.sums.n_ended)
    with pytest.raises(ValueError, match=r"were deleted with forget\(\)"):
        fit.server.sums.since(0)
    with pytest.raises(ValueError, match="cannot go on from step"):
        fit.devices[0].take(fit.server.sums)


def test_keys_as_bytes():
    for scheme in (CKKS_SCHEME, PAILLIER):
        keys = scheme.generate_keys(2)
        server, clients = (scheme.load_party(one.to_bytes()) for one in keys)
        total = server.sum([keys.clients.encrypt([1.5, -2]), clients.encrypt([0.25, 1])])
        np.testing.assert_allclose(clients.decrypt(total), [1.75, -1], atol=1e-8)
        assert not server.holds_secret_key
        with pytest.raises(TypeError, match="are not pickled"):
            pickle.dumps(clients)
        with pytest.raises(ValueError, match="no keys of secure sums"):
            scheme.load_party(b"hello")
        own, others = (k.clients.to_bytes() for k in (keys, scheme.generate_keys(2)))
        for damaged in (own[:-3], own[:-3] + b"abc", own[:-100] + others[-100:]):
            with pytest.raises(ValueError, match=f"keys '{clients.key_id}' are damaged"):
                scheme.load_party(damaged)
    with pytest.raises(ValueError, match="keys with the parameters of the estimator"):
        CKKS(8192).load_party(CKKS_SCHEME.generate_keys(2).server.to_bytes())
