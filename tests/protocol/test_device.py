"""Devices and a server outside the simulator, driven as the user guide does."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import (
    FedEB,
    Federation,
    FedMF,
    LightFR,
    LocALS,
    PrivFedEB,
    RFRec,
    RFRecF,
    SCoLR,
)
from fedrecsk.aggregation import NormClipping
from fedrecsk.attacks import SignFlip
from fedrecsk.compression import Compressed, LowRank, Quantization, TopK
from fedrecsk.deployment import ClientMessage, Device, DeviceServer, Numbers
from fedrecsk.deployment.checks import Refused
from fedrecsk.deployment.device import MOST_CLIENTS
from fedrecsk.federated.locals import LocALSAlgorithm
from fedrecsk.privacy import CentralDP, LaplaceMechanism
from fedrecsk.protocol import FieldSpec
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.messages import ClientCodes, Dense, Message
from fedrecsk.simulation import both_sides
from tests.conftest import draw_each, make_toy

pytestmark = pytest.mark.sampled

CATALOGUE = 1000 + 3 * np.arange(9)


def make(Estimator, **parameters):
    estimator = Estimator()
    small = {"n_factors": 3, "n_bits": 8, "n_rounds": 3, "reg_user": 0.5, "client_fraction": 1.0}
    rates = {"rating_scale": (1, 5)} if issubclass(Estimator, RFRec) else {}
    known = estimator.get_params(deep=False)
    small = {name: value for name, value in small.items() if name in known}
    return estimator.set_params(items=CATALOGUE, **small | rates | parameters)


def entered(server, devices, *, late=False):
    """The devices' uploads before the rounds, for which they are registered."""
    registrations = [one.register() for one in devices]
    places = server.admit(registrations) if late else server.register(registrations)
    for device, place in zip(devices, places, strict=True):
        device.place(place)
    steps, how = [], {"late": True} if late else {}
    if server.has_setup:
        message = server.setup_message(**how)
        steps.append([one for device in devices for one in device.setup(message)])
        server.close_setup(steps[-1], **how)
    announcement = server.send_announcement(**how)
    for device in devices:
        device.announce(announcement)
    return steps


def updated(server, devices):
    """The uploads of these devices in a new round."""
    _, message = server.open_round()
    for device in devices:
        device.receive(server.round, message)
    return [one for device in devices for one in device.update(server.round)[0]]


def devices_of(method, X, y, key, clients=None):
    """A device for each client; by default, for each user."""
    clients = X[:, 0] if clients is None else clients
    return [
        Device(method, X[clients == one], y[clients == one], client_id=one, private=key)
        for one in np.unique(clients)
    ]


def deployed(method, X, y, seed, secret=None):
    """Each silo's fitted model, and the server; everybody is pickled between the rounds."""
    server = DeviceServer.of(method, Key(seed), secret=secret)
    devices = devices_of(method, X, y, Key(seed), X[:, 0] % 4)
    entered(server, devices)
    for _ in range(method.n_rounds):
        server.close_round(updated(server, devices))
        server, devices = pickle.loads(pickle.dumps((server, devices)))
    final = server.send_final()
    return [device.fitted(final, server.round) for device in devices], server


@pytest.mark.filterwarnings("ignore:CentralDP.delta=")
@pytest.mark.parametrize(
    ("Estimator", "mechanism"),
    [(PrivFedEB, {}), (RFRec, {"quantile": 0.5}), (FedMF, {"noise": "clients"})],
)
def test_central_noise_of_a_deployment_is_that_of_the_simulator(Estimator, mechanism, monkeypatch):
    # Devices cannot leave their shares to one draw for the sum.
    draw_each(monkeypatch)
    X, y = make_toy()
    central = CentralDP(clip=0.5, noise_multiplier=0.1, **mechanism)
    scale = {} if Estimator is FedMF else {"rating_scale": (1, 5)}
    method = make(Estimator, federation=Federation(central_dp=central), random_state=0, **scale)
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    # Where clients add noise, the simulator draws all that is private from the server's secret.
    monkeypatch.setattr(both_sides, "secret_of", lambda *given: Key(seed))
    models, server = deployed(method, X, y, seed, Key(seed))
    simulated = method.fit(X, y, clients=X[:, 0] % 4)
    assert simulated.communication_ == server.ledger
    assert simulated.privacy_ == server.privacy_report()
    if "quantile" in mechanism:
        assert server.releases._round.clip != 0.5
    for model in models:
        np.testing.assert_allclose(model.item_factors_, simulated.item_factors_, atol=1e-4)


@pytest.mark.filterwarnings("ignore:CentralDP.delta=")
def test_a_deployed_server_draws_each_noise_afresh():
    central = CentralDP(clip=0.5, noise_multiplier=0.1)
    method = make(RFRec, federation=Federation(central_dp=central))
    server = DeviceServer.of(method, Key(0))
    server.register([Device(method, *make_toy(), client_id=0).register()])
    # Also after it was restored from a checkpoint.
    assert len({server.releases.secret_of(Key(1)) for _ in range(3)}) == 3


@pytest.mark.filterwarnings("ignore:CentralDP.delta=")
@pytest.mark.parametrize("Estimator", [RFRec, FedMF])
@pytest.mark.parametrize("terms", [(0.5, 0.0), (0.5, np.nan), (np.inf, 1e9), (0.0, 1e9)])
def test_a_device_adds_no_less_noise_than_its_federation_requires(Estimator, terms):
    central = CentralDP(clip=0.5, noise_multiplier=0.1, noise="clients")
    method = make(Estimator, federation=Federation(central_dp=central))
    server = DeviceServer.of(method, Key(0))
    devices = devices_of(method, *make_toy(), Key(0))
    entered(server, devices)
    uploads = updated(server, devices)
    server.close_round(uploads)
    _, message = server.open_round()
    lie = message | Message(privacy_terms=Dense(np.array(terms)))
    for device in devices:
        with pytest.raises(Refused, match="the server asks for a share of noise of variance"):
            device.receive(server.round, lie)
        device.receive(server.round, message)
    assert all(device.update(server.round)[0] for device in devices)


def a_place(client=0, first_user=0, n_clients=9, n_users=2**62 - 1):
    """A place whose parts may be anything."""
    return ClientCodes(np.array([client]), np.array([first_user]), Key(1), n_clients, n_users)


def noisy_device():
    federation = Federation(central_dp=CentralDP(epsilon=1.0, noise="clients", delta=1e-9))
    method = make(FedMF, federation=federation)
    X, y = make_toy(2)
    return Device(method, np.column_stack([X[:, 0] * 0, X[:, 1]]), y, client_id="one")


def test_a_device_stores_as_much_however_many_clients_there_are():
    sizes = []
    for n_clients in (20, MOST_CLIENTS):
        device = noisy_device()
        device.place(a_place(n_clients=n_clients))
        sizes.append(len(pickle.dumps(device)))
    assert sizes[1] < sizes[0] + 1000


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (a_place(n_clients=0), "code 0 .* n_clients=0; codes must be below n_clients"),
        (a_place(n_clients=-5), "n_clients=-5; codes must be below"),
        (a_place(n_clients=2**63 - 1), "which is at most 1,000,000"),
        (a_place(n_clients=MOST_CLIENTS + 1), "which is at most 1,000,000"),
        (a_place(9, 9), "code 9 .* n_clients=9; codes must be below"),
        (a_place(-1), "code -1"),
        (a_place(3, 2), "first user 2 .* no first user is below its code"),
        (a_place(3, 2**62), "first user"),
        (a_place(n_clients=9.0), "all integers"),
        (a_place(n_clients=10**30), "all integers"),
        (a_place(True), "all integers"),
        (a_place(0.0), "all integers"),
        (a_place([0, 1]), "all integers"),
        (a_place("0"), "all integers"),
        (a_place(n_users="9"), "all integers"),
        (a_place(n_users=8), "n_users=8 .* each client has a user"),
        (a_place(3, 20, n_users=20), "first user 20 .* n_users=20"),
    ],
)
def test_a_device_refuses_an_impossible_place(place, message):
    with pytest.raises(Refused, match=message):
        noisy_device().place(place)


@pytest.mark.filterwarnings("ignore:CentralDP.delta=")
def test_a_device_must_say_in_one_bit_whether_it_was_clipped():
    central = CentralDP(clip=0.5, noise_multiplier=0.1, quantile=0.5)
    method = make(RFRec, federation=Federation(central_dp=central))
    server, _, uploads = first_round(method, *make_toy())
    no_bits = {}, *({"privacy_terms": bit} for bit in (np.array([1]), np.array([True, True]), True))
    for place, extras in enumerate(no_bits):
        uploads[place] = replace(uploads[place], extras=extras)
    server.close_round(uploads)
    entry = server.ledger.entries[-1]
    assert (entry["rejected"], entry["messages_up"]) == (4, len(uploads) - 4)


def one_round(method, X, y):
    """The devices after their first update, and the uploads of each step."""
    server, devices = DeviceServer.of(method, Key(1)), devices_of(method, X, y, Key(1))
    return devices, [*entered(server, devices), updated(server, devices)]


def first_round(method, X, y):
    """The server with its first round open, the devices of all users, and their uploads."""
    server, devices = DeviceServer.of(method, Key(1)), devices_of(method, X, y, Key(1))
    entered(server, devices)
    return server, devices, updated(server, devices)


class OtherwiseAlgorithm(LocALSAlgorithm):
    """Its clients say in whole arrays which items they hold, which only its server reads."""

    def setup_fields(self, n_items):
        return {"held_items": FieldSpec((n_items,), dtype="uint8", learned=False)}


class ToldOtherwise(LocALS):
    _kind = OtherwiseAlgorithm


def test_rows_come_with_their_numbers_where_the_set_up_has_not_told_them():
    X, y = make_toy()
    for Estimator in (LocALS, ToldOtherwise):
        devices, (setup, uploads) = one_round(make(Estimator), X, y)
        for device, told, upload in zip(devices, setup, uploads, strict=True):
            places = [one.fields[n].rows for one, n in ((told, "held_items"), (upload, "rows"))]
            held, other = places if Estimator is LocALS else places[::-1]
            np.testing.assert_array_equal(held, device.block.row_items)
            assert other is None
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    _, server = deployed(make(ToldOtherwise), X, y, seed)
    simulated = make(ToldOtherwise, random_state=0).fit(X, y, clients=X[:, 0] % 4)
    assert [entry["messages_up"] for entry in server.ledger.entries if entry["phase"] == "round"]
    np.testing.assert_allclose(server.state.items, simulated.item_factors_, atol=1e-5)


def parts_of(thing):
    """All that uploads are made of."""
    if isinstance(thing, ClientMessage):
        thing = vars(thing)
    if isinstance(thing, dict):
        for name, part in thing.items():
            assert type(name) is str
            yield from parts_of(part)
    elif isinstance(thing, Numbers | list):
        for part in thing:
            yield from parts_of(part)
    else:
        yield thing


LAPLACE = LaplaceMechanism(clip=0.2, scale=0.1)


@pytest.mark.parametrize(
    ("Estimator", "setting"),
    [
        (RFRec, {}),
        (RFRecF, {"aggregator": NormClipping()}),
        (LocALS, {}),
        (LightFR, {"aggregator": NormClipping()}),
        (RFRec, {"local_dp": LAPLACE}),
        (RFRec, {"compression": Quantization("float16", direction="down")}),
    ],
)
def test_nothing_but_plain_numbers_leaves_a_device(Estimator, setting):
    _, steps = one_round(make(Estimator, federation=Federation(**setting)), *make_toy())
    assert sum(map(len, steps)) >= 12
    for part in parts_of(steps):
        if isinstance(part, np.ndarray):
            # Not even a view, whose base might have more.
            assert type(part) is np.ndarray
            assert part.dtype.kind in "iubf"
            assert part.base is None
        else:
            assert part is None or type(part) in (str, int)


def test_noise_is_in_the_numbers_that_leave_a_device():
    federation = Federation(local_dp=LAPLACE)
    devices, (uploads,) = one_round(make(RFRec, federation=federation), *make_toy())
    noise = []
    for device, upload in zip(devices, uploads, strict=True):
        exact = np.clip(device.state.common.items, -0.2, 0.2).astype(np.float64)
        held = device.state.held.now
        exact[device.block.row_items] = np.clip(held, -0.2, 0.2)
        noise.append(upload.fields["item_vectors"].values - exact)
    noise = np.stack(noise)
    # 432 draws, each of its own.
    assert len(np.unique(noise)) == noise.size
    assert np.abs(noise).mean() == pytest.approx(0.1, rel=0.2)


def numbers_of(uploads):
    """Everything in these uploads, to compare them."""
    return [[np.asarray(part).tolist() for part in parts_of(one)] for one in uploads]


REPEATED = [
    (RFRec, {}),
    (LocALS, {}),
    (RFRec, {"federation": Federation(compression=Quantization("int8", direction="up"))}),
    (RFRec, {"federation": Federation(local_dp=LAPLACE)}),
]


@pytest.mark.parametrize(("Estimator", "parameters"), REPEATED)
def test_a_repeated_request_gets_the_same_uploads(Estimator, parameters):
    devices, (*_, uploads) = one_round(make(Estimator, **parameters), *make_toy())
    for device, upload in zip(devices, uploads, strict=True):
        before = numbers_of([upload])
        # Whoever writes into what was sent changes nothing in the device.
        for numbers in upload.fields.values():
            numbers.values[:] = 0
        for again in (device, pickle.loads(pickle.dumps(device))):
            assert numbers_of(again.update(0)[0]) == before
            if Estimator is LocALS:
                # The set-up's message is asked for again after the round.
                assert numbers_of(again.setup(None)) == numbers_of(device.setup(None))


def test_a_validation_asked_for_again_after_the_update_has_the_same_answer():
    X, y = make_toy(8, density=0.8)
    method = make(RFRec, early_stopping=True, validation_fraction=0.3)
    server, devices, uploads = first_round(method, X, y)
    server.close_round(uploads)
    turn, message = server.open_round()
    asked = server.send_for_validation(turn.receives)
    device = devices[0]
    before = numbers_of(device.validate(1, asked))
    device.receive(1, message)
    (upload,), _ = device.update(1)
    measured = device._measured
    device = pickle.loads(pickle.dumps(device))
    assert numbers_of(device.validate(1, asked)) == before
    assert numbers_of(device.update(1)[0]) == numbers_of([upload])
    now, then = device._measured[0]["user_factors_"], measured[0]["user_factors_"]
    np.testing.assert_array_equal(now, then)


def flipped(extra):
    return extra[::-1].copy()


BROKEN = [
    (TopK(0.3), lambda numbers, extra: (numbers[:-1], extra)),
    (TopK(0.3), lambda numbers, extra: (numbers, flipped(extra))),
    (TopK(0.3), lambda numbers, extra: (numbers, extra + 27)),
    (TopK(0.3), lambda numbers, extra: (numbers, None)),
    (TopK(0.3), lambda numbers, extra: (np.zeros((9, 3)), None)),
    (Quantization("int8"), lambda codes, scale: (codes.astype(np.float64), scale)),
    (Quantization("int8"), lambda codes, scale: (codes, -scale)),
    (Quantization("int8"), lambda codes, scale: (codes, np.nan * scale)),
    (Quantization("float16"), lambda numbers, extra: (numbers + np.float16(np.inf), extra)),
    (Quantization("float16"), lambda numbers, _: (numbers, np.ones(1))),
    (LowRank(1), lambda factor, other: (factor, other[:, :2])),
    (LowRank(1), lambda factor, other: (factor * 1e30, other * 1e30)),
]


@pytest.mark.parametrize(("compressor", "broken"), BROKEN)
def test_malformed_compressed_uploads_are_rejected(compressor, broken):
    X, y = make_toy()
    federation = Federation(compression=clone(compressor).set_params(direction="up"))
    method = make(RFRec, federation=federation, aggregation="clients")
    server, _, uploads = first_round(method, X, y)
    numbers = uploads[0].fields["item_vectors"]
    values, extra = broken(numbers.values, uploads[0].extras.get("item_vectors"))
    extras = {} if extra is None else {"item_vectors": extra}
    fields = {"item_vectors": numbers._replace(values=values)}
    server.close_round([replace(uploads[0], fields=fields, extras=extras), *uploads[1:]])
    entry = server.ledger.entries[-1]
    assert (entry["rejected"], entry["messages_up"]) == (1, len(uploads) - 1)
    # A rejected upload has the size of the others, whatever it holds.
    assert len(set(server.ledger.client_bytes_up.tolist())) == 1
    assert np.isfinite(server.state.items).all()


@pytest.mark.parametrize("compressor", [None, TopK(0.3), Quantization("int8")], ids=str)
def test_a_device_that_has_diverged_says_so(compressor):
    compressor = compressor and clone(compressor).set_params(direction="up")
    method = make(RFRec, federation=Federation(compression=compressor))
    server, devices, uploads = first_round(method, *make_toy())
    server.close_round(uploads)
    devices[0].state.users.now[:] = np.nan
    server.close_round(updated(server, devices))
    assert server.ledger.entries[-1]["rejected"] == 1


class Halves(TopK):
    """A compressor that sends something of its own."""

    def _compress(self, values, generator):
        return Compressed(values / 2, values.size, values.size)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"compression": Halves(0.3)}, "cannot send what Halves makes of an upload"),
        (
            {"compression": TopK(0.3), "dropout": 0.1, "dropout_mode": "stale"},
            "would start from an older one",
        ),
        ({"adversary": SignFlip(0.1)}, r"set federation\.adversary=None, or call fit"),
    ],
)
def test_federations_that_devices_refuse(parts, message):
    method = make(RFRec, federation=Federation(**parts))
    for build in (DeviceServer.of, lambda method: Device(method, *make_toy(), client_id=1)):
        with pytest.raises(ValueError, match=message):
            build(method)


def joined_late(method, X, y, n_rounds, *, late):
    """The server and the devices, the last of which joins after two rounds.

    Without `late` it is registered from the beginning, and offline until then.
    """
    server, devices = DeviceServer.of(method, Key(3)), devices_of(method, X, y, Key(3))
    entered(server, devices[:-1] if late else devices)
    for round in range(n_rounds):
        if round == 2 and late:
            server = pickle.loads(pickle.dumps(server))
            entered(server, devices[-1:], late=True)
        server.close_round(updated(server, devices if round >= 2 else devices[:-1]))
    return server, devices


LATE = [
    (RFRec, {"aggregation": "clients"}),
    (FedEB, {"rating_scale": (1, 5)}),
    (LocALS, {}),
    (LightFR, {}),
]


@pytest.mark.parametrize(("Estimator", "parameters"), LATE)
def test_a_client_may_join_late(Estimator, parameters):
    X, y = make_toy()
    # Nobody else has the last item.
    others = X[:, 1] != CATALOGUE[-1]
    X, y = np.vstack([X[others], [X[:, 0].max(), CATALOGUE[-1]]]), np.append(y[others], 5.0)
    method = make(Estimator, **parameters)
    server, devices = joined_late(method, X, y, 4, late=True)
    n_clients = len(devices)
    assert devices[-1].block.users.tolist() == [n_clients - 1]
    entries = [one for one in server.ledger.entries if one["phase"] == "round"]
    assert [one["messages_up"] for one in entries] == [n_clients - 1] * 2 + [n_clients] * 2
    assert sum(server.ledger.client_bytes_down) == server.ledger.bytes_down
    final = server.send_final()
    model = devices[-1].fitted(final, server.round)
    assert np.isfinite(model.recommend(model.user_ids_, 2)[1]).all()
    # The others' bytes are those of a fit in which nobody is late.
    other, others = joined_late(method, X, y, 4, late=False)
    if not server.has_setup:
        np.testing.assert_array_equal(
            model.predict(X), others[-1].fitted(other.send_final(), 4).predict(X)
        )
        for name, values in vars(server.state).items():
            if isinstance(values, np.ndarray):
                np.testing.assert_array_equal(values, getattr(other.state, name))


def test_who_cannot_join_late():
    X, y = make_toy()
    method = make(RFRec, aggregation="clients")
    server = DeviceServer.of(method, Key(3))
    stranger = Device(method, X, y, client_id=99).register()
    with pytest.raises(ValueError, match="The set-up is not over"):
        server.admit([stranger])
    server, devices = joined_late(method, X, y, 3, late=True)
    before = server.n_clients, len(server.ledger.entries), len(server.ledger.client_bytes_up)
    with pytest.raises(ValueError, match="is registered already; if it has come back"):
        server.admit([devices[0].register()])
    with pytest.raises(ValueError, match="registers twice"):
        server.admit([stranger, stranger])
    with pytest.raises(ValueError, match="must all be numbers or all be strings"):
        server.admit([Device(method, X, y, client_id="a shop").register()])
    with pytest.raises(ValueError, match="No client has joined since the last round"):
        server.send_announcement(late=True)
    after = server.n_clients, len(server.ledger.entries), len(server.ledger.client_bytes_up)
    assert before == after
    server.open_round()
    with pytest.raises(ValueError, match="Round 3 is open"):
        server.admit([stranger])


@pytest.mark.filterwarnings("ignore:CentralDP.delta=")
@pytest.mark.parametrize(
    ("Estimator", "parameters", "message"),
    [
        (SCoLR, {"rank": 2, "local_rank": [1, 2]}, "No client can join SCoLR late"),
        (
            RFRec,
            {"federation": Federation(central_dp=CentralDP(clip=0.5, noise_multiplier=0.1))},
            "late under central_dp",
        ),
    ],
)
def test_what_no_client_can_join_late(Estimator, parameters, message):
    X, y = make_toy()
    method, mine = make(Estimator, **parameters), X[:, 0] == X[0, 0]
    own = clone(method).set_params(**{"local_rank": 1} if Estimator is SCoLR else {})
    server = DeviceServer.of(method, Key(3))
    entered(server, [Device(own, X[mine], y[mine], client_id=1)])
    with pytest.raises(ValueError, match=message):
        server.admit([Device(make(LocALS), X, client_id=2).register()])
