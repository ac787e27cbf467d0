"""Unmodified nodes under SecAggPlus, and a server that lies to them about who is there."""

import json

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import FedEASE, Federation, FedMF
from fedrecsk.deployment.keys import read_identity, write_identities
from fedrecsk.deployment.records import masking_arrays, masking_of, pack, session_of, unpack
from fedrecsk.privacy import CentralDP, SecAggPlus
from fedrecsk.privacy._secagg_protocol import MaskingClient
from fedrecsk.protocol.secure_accounts import aligned_size
from tests.deployment.in_process import Killed, coordinator, make_nodes, prepared, simulated_key
from tests.privacy.lying_server import LyingServer, split

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
        session = session_of(one.progress.fit, kind, number)
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
                head["place"]["n_clients"] = n_claimed
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
    why = {"no terms": "names no clip and no noise", "many clients": "has too little noise"}
    assert why[lie] in said.pop()


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
