"""Unmodified nodes under SecAggPlus, and a server that lies to them about who is there."""

import json

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import FCF, FedEASE, Federation, FedMF
from fedrecsk.deployment import Device, DeviceServer
from fedrecsk.deployment.checks import Refused
from fedrecsk.deployment.exchanges import NotEnough
from fedrecsk.deployment.keys import read_identity, write_identities
from fedrecsk.deployment.records import masking_arrays, masking_of, pack, session_of, unpack
from fedrecsk.privacy import CentralDP, SecAggPlus
from fedrecsk.privacy._grid import STEPS
from fedrecsk.privacy._secagg_protocol import MaskingClient, Ring
from fedrecsk.protocol.central_noise import CentralNoise
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.secure_accounts import aligned_size
from tests.deployment.in_process import Killed, coordinator, make_nodes, prepared, simulated_key
from tests.privacy.lying_server import Clients, Lies, LyingServer, split
from tests.privacy.masked_sums import Lost, masked_sum

pytest.importorskip("cryptography", reason="needs fedrecsk[privacy]")

METHODS = {
    "FedEASE": FedEASE(upload="all", random_state=0),
    "FedMF": FedMF(3, client_fraction=1.0, n_rounds=2, random_state=0),
}


def fit_of(method, n_clients, folder, identities, **parts):
    """Return a coordinator of a fit of silos, and its nodes."""
    rng = np.random.default_rng(0)
    silos = np.repeat(np.arange(n_clients), 6)
    X = np.unique(np.column_stack([silos, rng.integers(0, 5, len(silos))]), axis=0)
    federation = Federation(secure_aggregation=SecAggPlus(), **parts)
    estimator = clone(method).set_params(federation=federation)
    estimator, y = prepared(estimator, X, None), np.ones(len(X))
    key = simulated_key(estimator)
    nodes = make_nodes(estimator, X, y, X[:, 0], folder, identities=identities, private=key)
    return coordinator(estimator, nodes, folder), nodes


def attacked(method, n_real, n_claimed, folder):
    """Return what nodes have refused, and what a server sees that names another number of them."""
    identities = write_identities(range(n_real), folder / "identities", fewest=3)
    one, nodes = fit_of(method, n_real, folder, identities)
    refusals, found = [], []

    def attack(masks, kind, number, asked, message, specs, quorum):
        if kind == "setup":
            return honest(masks, kind, number, asked, message, specs, quorum)
        plan = SecAggPlus().plan(n_claimed)

        def ask(stage, messages):
            answers = {}
            for code, own in messages.items():
                is_vector = stage == "vectors"
                content = one._request(
                    kind if is_vector else f"{kind} {stage}",
                    number,
                    asked[code],
                    message if is_vector else None,
                    {"n_clients": n_claimed, "n_bits": plan.n_bits},
                    masking_arrays(own),
                )
                head, arrays = unpack(nodes[asked[code].node].answer(content))
                refusals.extend(str(head[name]) for name in ("refused", "failed") if name in head)
                if arrays:
                    answers[code] = masking_of(arrays)
            return answers

        half = n_real // 2
        lies = split(0, range(1, half), range(half, n_real))
        session = session_of(one.progress.fit, kind, number, "")
        found.extend(LyingServer(plan, session, aligned_size(specs), ask, lies).opened())
        raise Killed

    honest, one._masked = one._masked, attack
    with pytest.raises(Killed):
        one.run()
    return refusals, found


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize(("n_real", "n_claimed"), [(8, 3), (8, 5), (8, 8)])
def test_nodes_reveal_no_upload_whatever_number_of_clients_they_hear(
    method, n_real, n_claimed, tmp_path, monkeypatch
):
    sent, run = {}, MaskingClient.mask

    def mask(client, values, shares):
        sent[client.code] = values
        return run(client, values, shares)

    monkeypatch.setattr(MaskingClient, "mask", mask)
    refusals, found = attacked(method, n_real, n_claimed, tmp_path)
    assert ([0], sent.get(0, np.zeros(1)).tolist()) not in found
    why = "fewer than the threshold" if n_claimed == n_real else "more than the"
    assert len(refusals) >= n_real // 2
    assert all(why in text for text in refusals)


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ({"n_clients": 4}, "has certified it for sums over at least 5"),
        ({"n_clients": 2}, "at least 3 clients in a sum, but got 2"),
        ({"n_clients": "8"}, "must be a whole number"),
        ({"n_clients": 8, "n_bits": 8}, "have 26 to 63 bits, and not 8"),
        ({"n_clients": 8, "n_bits": None}, "have 26 to 63 bits, and not None"),
    ],
)
def test_a_node_refuses_what_a_sum_cannot_have(head, why, tmp_path):
    identities = write_identities(range(8), tmp_path / "identities", fewest=5)
    said, (one, _) = [], fit_of(METHODS["FedMF"], 8, tmp_path, identities)
    nodes = one.exchanges.carrier.connected

    def watch(request):
        if request.kind.endswith("keys"):
            old, arrays = unpack(request.content)
            asked = pack(old | head, arrays)
            said.append(unpack(nodes[request.node].answer(asked))[0]["refused"])
            raise Killed

    one.exchanges.carrier.watch = watch
    with pytest.raises(Killed):
        one.run()
    assert why in said[0]


@pytest.mark.filterwarnings("ignore:CentralDP.delta=")
@pytest.mark.parametrize("lie", ["no terms", "many clients"])
def test_a_node_sends_no_sum_with_less_noise_than_planned(lie, tmp_path):
    noise = CentralDP(epsilon=1.0, delta=1e-3, noise="clients")
    identities = write_identities(range(8), tmp_path / "identities", fewest=5)
    one, _ = fit_of(METHODS["FedEASE"], 8, tmp_path, identities, central_dp=noise)
    carrier, said, n_claimed = one.exchanges.carrier, set(), 10**6

    def send(requests):
        told = []
        for request in requests:
            head, arrays = unpack(request.content)
            if lie == "no terms" and request.kind == "setup":
                head["message"] = None
                arrays = {n: one for n, one in arrays.items() if not n.startswith("message/")}
            if lie == "many clients" and head.get("place"):
                head["place"] |= {"n_clients": n_claimed, "n_users": n_claimed}
            told.append(request._replace(content=pack(head, arrays)))
        return honest(told)

    def tamper(request, reply):
        head, _ = unpack(reply)
        if "refused" in head:
            said.add(head["refused"])
            raise Killed
        return reply

    honest, carrier.send, carrier.tamper = carrier.send, send, tamper
    with pytest.raises(Killed):
        one.run()
    why = {"no terms": "names no clip and no noise", "many clients": "may have too little noise"}
    assert why[lie] in said.pop()


@pytest.mark.filterwarnings("ignore:CentralDP.delta=")
@pytest.mark.parametrize("lie", [{"n_clients": 9, "n_users": 9}, {"shared": 1}])
def test_nodes_that_plan_shares_of_other_noise_are_no_neighbours(lie, tmp_path, caplog):
    """Else the noise that some expect of the others would be less."""
    noise = CentralDP(epsilon=1.0, delta=1e-3, noise="clients")
    identities = write_identities(range(8), tmp_path / "identities", fewest=5)
    one, _ = fit_of(METHODS["FedEASE"], 8, tmp_path, identities, central_dp=noise)
    carrier = one.exchanges.carrier

    def send(requests):
        told = []
        for request in requests:
            head, arrays = unpack(request.content)
            if request.node % 2 and head.get("place"):
                head["place"] |= lie
            told.append(request._replace(content=pack(head, arrays)))
        return honest(told)

    honest, carrier.send = carrier.send, send
    with pytest.raises(NotEnough, match="sum of the set-up is lost"):
        one.run()
    # Those of the others are for another sum.
    assert "Only 4 clients sent keys" in caplog.text


@pytest.mark.filterwarnings("ignore:CentralDP.delta=")
def test_clients_with_another_privacy_are_no_neighbours():
    terms = set()
    for noise_multiplier in (1.0, 2.0):
        devices, _ = devices_of(3, fedmf(SecAggPlus(), noise_multiplier))
        terms |= {one.terms_of_noise for one in devices}
    assert len(terms) == 2
    devices, _ = devices_of(3, fedmf(SecAggPlus()))
    assert {one.terms_of_noise for one in devices} == {""}


def devices_of(n_clients, method, n_announced=None):
    """Return devices that hear of `n_announced` clients, and a server with terms for as many."""
    rng = np.random.default_rng(0)
    devices = [
        Device(method, [(code, item) for item in rng.permutation(100)[:4]], client_id=code)
        for code in range(n_clients)
    ]
    server = DeviceServer.of(method, Key(0))
    places = server.register([one.register() for one in devices])
    n_announced = n_announced or n_clients
    for device, place in zip(devices, places, strict=True):
        # A code beyond what is announced would be refused.
        code = place.clients % n_announced
        counts = {"n_clients": n_announced, "n_users": n_announced}
        device.place(place._replace(**counts, clients=code, first_users=code))
        device.announce(server.send_announcement())
    if server.releases is not None:
        server.releases = CentralNoise.of(method._plan(), n_announced, Key(0), None)
    return devices, server


def fedmf(scheme, noise_multiplier=None, **parameters):
    """Return FedMF under masks, with noise by the clients if it has a multiplier."""
    noise = noise_multiplier and CentralDP(
        1.0, noise_multiplier=noise_multiplier, delta=1e-3, noise="clients"
    )
    federation = Federation(secure_aggregation=scheme, central_dp=noise)
    parameters = {"n_rounds": 2, "client_fraction": 1.0} | parameters
    return FedMF(8, items=range(100), federation=federation, **parameters)


def sums_of(devices, server, n_summed, cells):
    """Return what a server sees that sums up cells of clients, each told to be the whole sum."""
    scheme, vectors, found, refusals = server.federation.secure_aggregation, {}, [], []
    _, message = server.open_round()
    for code, device in enumerate(devices):
        try:
            device.check_sum("round", 0, n_summed)
        except Refused as error:
            refusals.append(str(error))
            continue
        device.receive(0, message)
        vectors[code] = device.update(0)[0][0].integers
    plan = scheme.plan(n_summed, noisy=0.0)._replace(n_bits=60)
    for cell in cells if vectors else ():
        clients = Clients({code: vectors[code] for code in cell}, lambda code: plan)
        near = {code: [other for other in cell if other != code] for code in cell}
        everyone = np.ones(max(cell) + 1, dtype=bool)
        lies, size = Lies(near, dict.fromkeys(cell, everyone)), len(vectors[cell[0]])
        found += LyingServer(plan, b"one", size, clients.ask, lies).opened()
        refusals += clients.refusals
    return found, refusals


# Real clients, how many are announced for the fit and for the sum, and the server's cells.
@pytest.mark.filterwarnings("ignore:CentralDP.delta=")
@pytest.mark.parametrize(
    ("scheme", "n_announced", "n_summed", "cells"),
    [
        ({}, 21, 21, [range(21)]),
        ({}, 7, 7, [range(7), range(7, 14), range(14, 21)]),
        ({"max_dropout": 0.1}, 7, 21, [range(21)]),
        # t + 1 neighbours apart from the rest.
        ({}, 21, 21, [range(15)]),
        ({"max_dropout": 0.1, "max_colluding": 0.0}, 21, 21, [range(19)]),
        # With few neighbours each, whom the server chooses.
        ({"n_neighbors": 12, "max_dropout": 0.0, "max_colluding": 0.0}, 21, 21, [range(13)]),
    ],
)
def test_no_sum_of_nodes_has_less_noise_than_promised(scheme, n_announced, n_summed, cells):
    devices, server = devices_of(21, fedmf(SecAggPlus(**scheme), 10.0), n_announced)
    found, refusals = sums_of(devices, server, n_summed, cells)
    assert [group for group, _ in found] == [[*cell] for cell in cells]
    assert refusals == []
    for group, numbers in found:
        # A client's own share does not count. 800 numbers give the deviation within 2.5 %.
        assert np.std(numbers) / STEPS * np.sqrt(1 - 1 / len(group)) > 0.9 * 10.0


@pytest.mark.filterwarnings("ignore:CentralDP.delta=")
@pytest.mark.parametrize(
    ("scheme", "n_announced", "n_summed", "why"),
    [
        ({}, 60, 60, "must be able to unmask it"),
        ({"max_dropout": 0.1, "max_colluding": 0.0}, 100_000, 100_000, "must be able to unmask it"),
        ({"max_dropout": 0.1, "max_colluding": 0.0}, 100_000, 21, "too little noise"),
        ({}, 42, 21, "too little noise"),
        ({}, 21, 10, "too little noise"),
        ({}, 21, 3, "too little noise"),
    ],
)
def test_clients_that_hear_of_more_than_there_are_send_nothing(scheme, n_announced, n_summed, why):
    devices, server = devices_of(21, fedmf(SecAggPlus(**scheme), 10.0), n_announced)
    found, refusals = sums_of(devices, server, n_summed, [range(21)])
    assert found == []
    assert len(refusals) == 21
    assert all(why in text for text in refusals)


@pytest.mark.filterwarnings("ignore:CentralDP.delta=")
def test_a_client_refuses_more_rounds_than_its_noise_is_planned_for():
    """Whatever cohorts the server draws: half of the rounds, if they take turns."""
    method = fedmf(SecAggPlus(), 10.0, n_rounds=4, client_fraction=0.5)
    method.federation.sampling = "rotating"
    devices, server = devices_of(6, method)
    _, message = server.open_round()
    for number in range(2):
        devices[0].receive(number, message)
        assert devices[0].update(number)[0]
    devices[0].receive(2, message)
    with pytest.raises(Refused, match=r"uploads of 3 rounds, but .* planned for 2"):
        devices[0].update(2)


@pytest.mark.filterwarnings("ignore:CentralDP.delta=")
@pytest.mark.parametrize("noise_multiplier", [None, 10.0])
def test_a_repeated_model_shows_an_upload_through_masks_but_not_through_noise(noise_multiplier):
    """The server sends one model in two rounds, and says in the second that client 0 is lost.

    This is no lie that clients could notice: a round whose uploads are lost repeats its model.
    """
    items = {code: [*range(code, 100, 7)] for code in range(7)}
    noise = noise_multiplier and CentralDP(
        1.0, noise_multiplier=noise_multiplier, delta=1e-3, noise="clients"
    )
    federation = Federation(secure_aggregation=SecAggPlus(), central_dp=noise)
    method = FCF(4, n_rounds=2, items=range(100), federation=federation)
    devices = [
        Device(method, [(code, item) for item in own], client_id=code)
        for code, own in items.items()
    ]
    server = DeviceServer.of(method, Key(0))
    for device, place in zip(
        devices, server.register([one.register() for one in devices]), strict=True
    ):
        device.place(place)
        device.announce(server.send_announcement())
    _, message = server.open_round()
    plan = federation.secure_aggregation.plan(7, None if noise is None else 0.0)
    plan, ring, sums, uploads = plan._replace(n_bits=60), Ring(np.arange(7), 6), [], []
    for number, lost in enumerate([(), (0,)]):
        for device in devices:
            device.receive(number, message)
        uploads = {c: one.update(number)[0][0].integers for c, one in enumerate(devices)}
        sums.append(masked_sum(plan, uploads, ring, Lost(vector=lost))[0])
    difference = sums[0] - sums[1]
    if noise is None:
        assert np.abs(uploads[0]).max() > 0
        assert difference.tolist() == uploads[0].tolist()
        return
    # Of a length of at most one clip, under noise in each of the two sums.
    assert np.std(difference) / STEPS > 0.9 * np.sqrt(2) * noise_multiplier


def test_clients_that_join_later_are_certified_for_the_same_sums(tmp_path):
    first = write_identities(range(20), tmp_path)
    later = write_identities([20], tmp_path)
    other = write_identities([21], tmp_path, fewest=4)
    fewest = [read_identity(path).fewest for path in (first[0], later[20], other[21])]
    assert fewest == [10, 10, 4]
    with pytest.raises(ValueError, match="set fewest to at least 3"):
        write_identities([22], tmp_path, fewest=2)
    content = json.loads(other[21].read_bytes())
    certificate = bytes.fromhex(content["certificate"])
    content["certificate"] = (certificate[:99] + b"\x03" + certificate[100:]).hex()
    other[21].write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is not certified by its operator"):
        read_identity(other[21])
