"""On Flower: its apps in this process, and its processes with TLS and faults."""

import ipaddress
import pickle
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from fedrecsk import Federation, FedMF, LocALS, RFRec
from fedrecsk.deployment.flower import client_app, server_app
from fedrecsk.deployment.keys import write_identities
from fedrecsk.privacy import SecAggPlus
from fedrecsk.protocol import blocks
from fedrecsk.selection import FederatedSearch
from tests.conftest import make_toy
from tests.deployment.in_process import coordinator, counts, make_nodes, prepared, simulated_key
from tests.deployment.processes import Processes, write_project
from tests.deployment.test_fit import assert_same, look_at_uploads

DIGITS = Federation(wire_dtype="float64")
X, Y = make_toy()


@pytest.fixture(autouse=True)
def one_client_per_block(monkeypatch):
    """Then simulated fits add up single updates, as the server does."""
    monkeypatch.setattr(blocks, "block_size", lambda *_: 1)
    look_at_uploads(monkeypatch)


def toy(n_rounds=2):
    return prepared(RFRec(3, n_rounds=n_rounds, random_state=0, federation=DIGITS), X, Y)


def rows_of(silo, n_silos):
    mine = X[:, 0] % n_silos == silo
    return np.column_stack([X, Y])[mine]


# ------------------------------------------------------------------------- without nodes


class Context:
    """As much of Flower's as the apps use."""

    def __init__(self, **config):
        self.run_config = self.node_config = config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"folder": "x"}, "n_clients is missing; pass n_clients=3 to server_app, or set n-clients"),
        ({"n-clients": 2}, "folder is missing"),
        ({"n-clients": 2.5, "folder": "x"}, "n_clients must be an int"),
        ({"n-clients": 2, "folder": "x", "quorum": 0.0}, "quorum must be in"),
        ({"n-clients": 2, "folder": "x", "patience": -1.0}, "patience must be a number of seconds"),
    ],
)
def test_wrong_settings_are_named_before_anything_starts(config, message):
    with pytest.raises(ValueError, match=message):
        server_app(toy())(None, Context(**config))


def test_apps_refuse_estimators_that_cannot_be_deployed():
    for make in (lambda e: server_app(e), lambda e: client_app(e, dict)):
        with pytest.raises(ValueError, match="LocALS needs the catalogue"):
            make(LocALS())


class HereGrid:
    """A Grid whose nodes are a ClientApp in this process, each with a configuration.

    `killed_by` is asked for each node and kind of message whether that ends the node.
    """

    def __init__(self, app, contexts, killed_by):
        self.app, self.contexts, self.killed_by = app, contexts, killed_by
        self.n_sent, self.replies = 0, {}

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        (message,) = messages
        self.n_sent += 1
        ticket, node = f"message {self.n_sent}", message.metadata.dst_node_id
        if self.killed_by(node, message.metadata.group_id):
            self.contexts.pop(node, None)
        if node in self.contexts:
            content = self.app(message, self.contexts[node]).content
            metadata = SimpleNamespace(reply_to_message_id=ticket)
            self.replies[ticket] = SimpleNamespace(
                content=content, metadata=metadata, has_error=lambda: False
            )
        return [ticket]

    def pull_messages(self, tickets):
        return [self.replies[one] for one in tickets if one in self.replies]


@pytest.fixture
def run_here(tmp_path, monkeypatch):
    """Run the apps in this process, with a client for each file of keys; return what is saved."""
    for name in ("task", "run", "node"):
        monkeypatch.setattr(f"flwr.supercore.task_identity.TaskIdentity._{name}_id", 1)

    def run(estimator, paths, killed_by=lambda node, kind: False, **config):
        key = simulated_key(estimator)

        def load_data(context):
            silo = context.node_config["silo"]
            mine = X[:, 0] % len(paths) == silo
            return {"client_id": silo, "X": X[mine], "y": Y[mine], "private": key}

        def folder(context):
            return tmp_path / str(context.node_config["silo"])

        contexts = {silo + 1: Context(silo=silo, keys=str(path)) for silo, path in enumerate(paths)}
        clients = client_app(lambda context: estimator, load_data, folder=folder)
        config |= {"n-clients": len(paths), "folder": str(tmp_path / "server")}
        app = server_app(lambda context: estimator, key=key, poll=0.01)
        app(HereGrid(clients, contexts, killed_by), Context(**config))
        return joblib.load(tmp_path / "server" / "model.joblib")

    return run


def test_apps_find_keys_and_estimator_by_their_context(run_here, tmp_path):
    pytest.importorskip("cryptography", reason="needs fedrecsk[privacy]")
    plain = toy()
    secure = clone(plain).set_params(federation__secure_aggregation=SecAggPlus())
    server = run_here(secure, list(write_identities(range(3), tmp_path / "keys").values()))
    assert server.privacy_.server_sees == "exact sums"
    expected = clone(plain).fit(X, Y, clients=X[:, 0] % 3)
    for silo in range(3):
        model = joblib.load(tmp_path / f"{silo}" / "model.joblib")
        np.testing.assert_allclose(model.item_factors_, expected.item_factors_, atol=1e-4)


def test_a_masked_round_ends_without_a_node_that_was_killed(run_here, tmp_path):
    """It has sent its shares, and receives the request for its masked numbers."""
    pytest.importorskip("cryptography", reason="needs fedrecsk[privacy]")
    scheme = SecAggPlus(max_dropout=0.4, max_colluding=0.0)
    federation = Federation(secure_aggregation=scheme)
    method = FedMF(3, n_rounds=2, client_fraction=1.0, random_state=0, federation=federation)
    paths = list(write_identities(range(4), tmp_path / "keys").values())
    server = run_here(
        prepared(method, X, Y),
        paths,
        killed_by=lambda node, kind: (node, kind) == (3, "round"),
        quorum=0.5,
        patience=1.0,
    )
    assert counts(server) == [3, 3]
    assert server.privacy_.server_sees == "exact sums"
    assert np.isfinite(server.item_factors_).all()
    assert [(tmp_path / str(k) / "model.joblib").exists() for k in range(4)] == [1, 1, 0, 1]


# -------------------------------------------------------------------------------- a search


def toy_search(n_rounds=4):
    return FederatedSearch(toy(n_rounds), {"reg_user": [0.01, 0.04, 0.16]}, random_state=0)


def found_without_flower(search, folder):
    """The same search by the coordinator and nodes of this process."""
    nodes = make_nodes(search, X, Y, X[:, 0] % 2, folder, private=simulated_key(search))
    return coordinator(search, nodes, folder, patience=5.0, gathering=20.0).run()


def assert_found(folder, expected):
    found = joblib.load(folder / "search.joblib")
    assert found.best_params_ == expected.best_params_
    ours, theirs = (one.cv_results_["mean_test_score"] for one in (found, expected))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    assert found.communication_ == expected.communication_
    model = joblib.load(folder / "model.joblib")
    np.testing.assert_allclose(
        model.item_factors_, expected.best_estimator_.item_factors_, atol=1e-9
    )
    assert "Winner" in (folder / "search.txt").read_text()


def test_a_search_runs_under_flowers_apps(run_here, tmp_path):
    search = toy_search()
    run_here(search, ["", ""], patience=5.0)
    expected = found_without_flower(search, tmp_path / "without")
    assert_found(tmp_path / "server", expected)
    assert joblib.load(tmp_path / "1" / "model.joblib").n_users_ > 0


def test_new_items_are_of_a_model_and_not_of_a_search(tmp_path):
    context = Context(**{"n-clients": 2, "folder": str(tmp_path)})
    app = server_app(toy_search(), add_items=pd.DataFrame({"x": [1.0]}, index=[99]))
    with pytest.raises(TypeError, match="pass the winner of the search in its place"):
        app(None, context)


def test_a_search_in_processes_goes_on_after_a_killed_superlink(tmp_path):
    pytest.importorskip("cryptography", reason="needs fedrecsk[privacy]")
    search = toy_search(n_rounds=3)
    write_project(tmp_path, search, simulated_key(search).seed)
    pem, own = write_certificate(tmp_path)
    link = ["--ssl-ca-certfile", pem, "--ssl-certfile", pem, "--ssl-keyfile", own]
    with Processes(tmp_path, link, ["--root-certificates", pem]) as processes:
        processes.start_superlink()
        names = "one", "two"
        for silo, name in enumerate(names):
            processes.start_node(name, rows_of(silo, 2), silo)
        processes.run()
        processes.wait_for("server/search")
        for name in ("superlink", *names):
            processes.kill(name)
        processes.start_superlink()
        for silo, name in enumerate(names):
            processes.start_node(name, rows_of(silo, 2), silo)
        processes.run()
        processes.wait_for("server/search.txt", "one/model.joblib", "two/model.joblib")
    assert_found(tmp_path / "server", found_without_flower(search, tmp_path / "without"))


# ----------------------------------------------------------------------------- processes


def write_certificate(folder):
    """A certificate for 127.0.0.1, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    plain = serialization.NoEncryption()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "server.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "server.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    )
    return folder / "server.pem", folder / "server.key"


def write_node_keys(folder, nodes):
    """A key pair for each node."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    plain, openssh = serialization.NoEncryption(), serialization.PublicFormat.OpenSSH
    for node in nodes:
        own = ec.generate_private_key(ec.SECP384R1())
        private = own.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, plain
        )
        public = own.public_key().public_bytes(serialization.Encoding.OpenSSH, openssh)
        (folder / f"{node}.key").write_bytes(private)
        (folder / f"{node}.pub").write_bytes(public)


def test_processes_with_tls_and_known_nodes_give_the_simulated_fit(tmp_path):
    pytest.importorskip("cryptography", reason="needs fedrecsk[privacy]")
    estimator = toy(n_rounds=1)
    write_project(tmp_path, estimator, simulated_key(estimator).seed)
    write_node_keys(tmp_path, ["one", "two", "stranger"])
    pem, own = write_certificate(tmp_path)
    link = ["--ssl-ca-certfile", pem, "--ssl-certfile", pem, "--ssl-keyfile", own]
    link += ["--enable-supernode-auth"]
    with Processes(tmp_path, link, ["--root-certificates", pem]) as processes:
        processes.start_superlink()
        processes.flwr("flwr", "supernode", "register", "one.pub", "here")
        processes.flwr("flwr", "supernode", "register", "two.pub", "here")
        for silo, name in enumerate(("one", "two", "stranger")):
            key = "--auth-supernode-private-key", tmp_path / f"{name}.key"
            processes.start_node(name, rows_of(silo % 2, 2), silo, *key)
        processes.run()
        processes.wait_for("server/model.joblib")
        # The superlink does not know the third key.
        processes.wait(lambda: processes.started["stranger"].poll() is not None, 240)
    models = [joblib.load(tmp_path / name / "model.joblib") for name in ("one", "two")]
    server = joblib.load(tmp_path / "server" / "model.joblib")
    assert not (tmp_path / "stranger").exists()
    assert_same(models, server, clone(estimator).fit(X, Y, clients=X[:, 0] % 2), 1e-9)


def checkpoint(folder):
    """The server's half, as it was saved after the last round; None before the rounds."""
    file = folder / "server" / "checkpoint"
    return pickle.loads(file.read_bytes()).server if file.exists() else None


def clients_so_far(folder):
    server = checkpoint(folder)
    return 0 if server is None else len(server.client_ids)


# Client 0 sends two uploads in round 0. Clients begin some rounds only when the test lets them.
APP = """
import time
from pathlib import Path
from fedrecsk.deployment.node import Node
from fedrecsk.deployment.records import pack, unpack

answer = Node.answer


def answer_slowly_and_twice(node, content):
    asked, _ = unpack(content)
    if asked["kind"] != "round":
        return answer(node, content)
    gate = Path(f"gate-{asked['number']}")
    while asked["number"] in (1, 3, 4) and not gate.exists():
        time.sleep(0.05)
    head, arrays = unpack(answer(node, content))
    if (asked["number"], node.load_data()["client_id"]) == (0, 0):
        head["upload"] = 2 * [head["upload"]]
    return pack(head, arrays)


Node.answer = answer_slowly_and_twice
"""


def test_killed_nodes_a_killed_superlink_nan_a_twin_and_a_second_upload(tmp_path):
    """Over TLS, rounds go on without a killed node, and all from their files after a power cut.

    The node whose data had NaN joins late.
    """
    pytest.importorskip("cryptography", reason="needs fedrecsk[privacy]")
    estimator = toy(n_rounds=5)
    write_project(tmp_path, estimator, simulated_key(estimator).seed)
    with (tmp_path / "toy" / "client_app.py").open("a") as file:
        file.write(APP)
    spoilt = rows_of(2, 3)
    spoilt[0, 2] = np.nan
    pem, own = write_certificate(tmp_path)
    link = ["--ssl-ca-certfile", pem, "--ssl-certfile", pem, "--ssl-keyfile", own]
    with Processes(tmp_path, link, ["--root-certificates", pem]) as processes:
        processes.start_superlink()
        processes.start_node("one", rows_of(0, 3), 0)
        processes.start_node("nan", spoilt, 2)
        # Three times as long the nodes may take to start, while round 1 waits at its gate.
        config = {"quorum": 0.5, "patience": 120.0}
        processes.run(**config)
        processes.wait(lambda: any(tmp_path.glob("one/*.state")), 240)
        processes.wait(lambda: "NaN" in processes.log("nan"), 240)
        processes.kill("nan")
        processes.start_node("twin", rows_of(0, 3), 0)
        processes.start_node("two", rows_of(1, 3), 1)
        processes.wait(lambda: any(tmp_path.glob("two/*.state")), 240)
        processes.start_node("mended", rows_of(2, 3), 2)
        processes.wait(lambda: "does not let this node take part" in processes.log("twin"), 240)
        processes.kill("twin")
        # It answers before the others do, so that it joins before round 2 or 3.
        processes.wait(lambda: "Sending:" in processes.log("mended"), 240)
        (tmp_path / "gate-1").touch()
        processes.wait(lambda: clients_so_far(tmp_path) == 3, 400)
        processes.kill("two")
        (tmp_path / "gate-3").touch()
        processes.wait(lambda: checkpoint(tmp_path).round == 4, 400)
        for name in ("superlink", "one", "mended"):
            processes.kill(name)
        assert checkpoint(tmp_path).round == 4
        (tmp_path / "gate-4").touch()
        processes.start_superlink()
        for silo, name in enumerate(("one", "two", "mended")):
            processes.start_node(name, rows_of(silo, 3), silo)
        # It waits this long for all three.
        processes.run(**config | {"patience": 400.0})
        processes.wait_for("server/model.joblib", "two/model.joblib", "mended/model.joblib")
    server = joblib.load(tmp_path / "server" / "model.joblib")
    entries = server.communication_.entries
    # The third client has answered the set-up after the others.
    assert [one["messages_up"] for one in entries if one["phase"] == "setup"] == [2, 1]
    rounds = [one for one in entries if one["phase"] == "round"]
    assert len(rounds) == server.n_rounds_ == 5
    assert [one["rejected"] for one in rounds] == [1, 0, 0, 0, 0]
    assert [one["messages_up"] for one in rounds][3:] == [2, 3]
    for name in ("nan", "twin"):
        assert not (tmp_path / name / "model.joblib").exists()
    model = joblib.load(tmp_path / "two" / "model.joblib")
    assert model.recommend(model.user_ids_, 2)[0].shape == (len(model.user_ids_), 2)
