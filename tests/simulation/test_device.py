"""Devices and a server outside the simulator, driven as the user guide does."""

import pickle

import numpy as np
import pytest

from fedrecsk import FedMF, LightFR, LocALS, RFRec, RFRecF
from fedrecsk.simulation import Device, Server
from fedrecsk.simulation.keys import Key
from tests.conftest import make_toy

CATALOGUE = 1000 + 3 * np.arange(9)


def make(Estimator, **parameters):
    estimator = Estimator()
    small = {"n_factors": 3, "n_bits": 8, "n_rounds": 3, "reg_user": 0.5, "client_fraction": 1.0}
    rates = {"rating_scale": (1, 5)} if issubclass(Estimator, RFRec) else {}
    known = estimator.get_params(deep=False)
    small = {name: value for name, value in small.items() if name in known}
    return estimator.set_params(items=CATALOGUE, **small | rates | parameters)


def deployed(method, X, y, seed):
    """Each silo's fitted model, and the server; everybody is pickled between the rounds."""
    key = Key(seed)
    server = Server.of(method, key)
    silos = np.unique(X[:, 0] % 4)
    devices = [
        Device(method, X[mine], y[mine], client_id=silo, private=key)
        for silo in silos
        for mine in [X[:, 0] % 4 == silo]
    ]
    for device, place in zip(
        devices, server.register([d.register() for d in devices]), strict=True
    ):
        device.place(place)
    for step in range(server.n_setups):
        message = server.setup_message(step)
        server.close_setup(step, [device.setup(step, message) for device in devices])
    announcement = server.send_announcement()
    for device in devices:
        device.announce(announcement)
    for round in range(method.n_rounds):
        _, message = server.open_round()
        uploads = []
        for device in devices:
            device.receive(round, message)
            uploads += device.update(round)[0]
        server.close_round(uploads)
        server, devices = pickle.loads(pickle.dumps((server, devices)))
    final = server.send_final()
    return [device.fitted(final, server.round) for device in devices], server


@pytest.mark.parametrize("Estimator", [RFRec, RFRecF, LocALS, FedMF, LightFR])
def test_devices_learn_what_the_simulator_says(Estimator):
    X, y = make_toy()
    method = make(Estimator)
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    models, server = deployed(method, X, y, seed)
    simulated = method.set_params(random_state=0).fit(X, y, clients=X[:, 0] % 4)
    assert simulated.communication_ == server.ledger
    for model in models:
        pairs = np.stack([np.repeat(model.user_ids_, 9), np.tile(CATALOGUE, model.n_users_)], 1)
        assert model.predict(pairs) == pytest.approx(simulated.predict(pairs), abs=1e-4)
        items, scores = model.recommend(model.user_ids_[:1], 2)
        assert items.shape == (1, 2) and np.isfinite(scores).any()


def test_a_devices_model_folds_in_newcomers():
    X, y = make_toy()
    method = make(RFRec)
    models, _ = deployed(method, X, y, int(np.random.RandomState(0).randint(2**31 - 1)))
    newcomer = [[-1, CATALOGUE[0]], [-1, CATALOGUE[1]]]
    simulated = method.set_params(random_state=0).fit(X, y, clients=X[:, 0] % 4)
    before = models[0].predict(newcomer)
    one, other = (model.fold_in(newcomer, [5.0, 1.0]) for model in (models[0], simulated))
    assert one.predict(newcomer) == pytest.approx(other.predict(newcomer), abs=1e-4)
    assert np.abs(one.predict(newcomer) - before).max() > 0.01


def test_what_a_device_cannot_know_must_be_given():
    X, y = make_toy()
    with pytest.raises(ValueError, match="LocALS on its own needs the catalogue"):
        Device(LocALS(), X, client_id=1)
    with pytest.raises(ValueError, match="on which scale users rate; set rating_scale"):
        Server.of(make(RFRec, rating_scale=None)).register(
            [Device(make(RFRec, rating_scale=None), X, y, client_id=1).register()]
        )
