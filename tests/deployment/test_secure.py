"""Deployed fits under secure sums, whose messages are bytes, without an engine."""

import warnings

import joblib
import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import CoLR, Federation, FedMF
from fedrecsk.deployment.exchanges import NotEnough
from fedrecsk.deployment.keys import read_keys, write_keys
from fedrecsk.deployment.records import pack, unpack
from fedrecsk.privacy import CKKS, Paillier
from tests.conftest import make_toy
from tests.deployment import in_process
from tests.deployment.in_process import counts, make_nodes, prepared, spoil, step_of

X, Y = make_toy()
SILOS = X[:, 0] % 3
PAILLIER = Paillier(512, allow_weak=True)
# Bytes of a block.
SIZE = 2 * 512 // 8
SMALL = {"n_rounds": 3, "random_state": 0, "client_fraction": 1.0}


def secure(estimator, scheme=PAILLIER):
    federation = Federation(secure_aggregation=scheme)
    return prepared(clone(estimator).set_params(federation=federation), X, Y)


def nodes_of(estimator, folder):
    clients, _ = write_keys(estimator, 3, folder / "keys")
    party = read_keys(estimator, clients, "clients")
    return make_nodes(estimator, X, Y, SILOS, folder, party=party)


def coordinator(estimator, nodes, folder, **settings):
    party = read_keys(estimator, folder / "keys" / "server.key", "server")
    return in_process.coordinator(
        estimator, nodes, folder, **{"n_clients": 3, "quorum": 0.6, "party": party} | settings
    )


def a_fit(folder):
    """A coordinator of FedMF under Paillier's scheme, and its nodes."""
    estimator = secure(FedMF(3, **SMALL))
    nodes = nodes_of(estimator, folder)
    return coordinator(estimator, nodes, folder), nodes


def models_of(nodes):
    return [joblib.load(one.store.folder / "model.joblib") for one in nodes.values()]


@pytest.mark.parametrize(
    ("estimator", "scheme"),
    [(FedMF(3, **SMALL), PAILLIER), (CoLR(2, n_factors=3, **SMALL), CKKS())],
    ids=["FedMF, Paillier", "CoLR, CKKS"],
)
def test_nodes_have_the_model_and_the_server_its_records(estimator, scheme, tmp_path):
    estimator = secure(estimator, scheme)
    nodes = nodes_of(estimator, tmp_path)
    one = coordinator(estimator, nodes, tmp_path)
    records = one.run()
    models = models_of(nodes)
    for model in models[1:]:
        np.testing.assert_array_equal(model.item_factors_, models[0].item_factors_)
    assert models[0].recommend(models[0].user_ids_, 2)[0].shape == (4, 2)
    newcomer = X[:2] * [0, 1] + [1000, 0]
    assert models[0].fold_in(newcomer, Y[:2]).n_users_ == 5
    assert sorted(file.name for file in (tmp_path / "server").iterdir()) == ["records.joblib"]
    saved = joblib.load(tmp_path / "server" / "records.joblib")
    assert saved.communication_ == records.communication_
    assert (saved.n_rounds_, saved.privacy_.server_sees) == (3, "encrypted sums")
    # The ledger has what crossed, but for heads, and counts blocks of CKKS in whole KiB.
    ledger, crossed = records.communication_, one.exchanges.carrier.crossed
    counted = {"setup": 0, "round": 0}
    for entry in ledger.entries:
        if entry["phase"] in counted:
            counted[entry["phase"]] += entry["bytes_up"]
    for kind, nbytes in counted.items():
        replies = [reply for name, _, reply in crossed if name == kind]
        assert 0.97 * nbytes <= sum(replies) <= 1.1 * nbytes + 1300 * len(replies)


def test_lost_answers_and_a_server_that_starts_again(tmp_path):
    estimator = secure(FedMF(3, **SMALL))
    nodes = nodes_of(estimator, tmp_path)
    first = coordinator(estimator, nodes, tmp_path)
    n_rounds = 0

    def tamper(request, reply):
        nonlocal n_rounds
        if request.kind != "round":
            return reply
        n_rounds += 1
        # Node 1000 is there in the first round only; in the second nobody else answers either.
        if n_rounds == 3:
            del first.exchanges.carrier.connected[1000]
        return reply if n_rounds <= 3 else None

    first.exchanges.carrier.tamper = tamper
    with pytest.raises(NotEnough):
        first.run()
    again = coordinator(estimator, nodes, tmp_path)
    assert again.is_resumed
    assert again.server.round == 1
    # It comes back in the last round, when it lacks the sums of two.
    carrier = again.exchanges.carrier
    away = carrier.connected.pop(1000)

    def come_back(request):
        if step_of(request) == ("round", 2):
            carrier.connected[1000] = away

    carrier.watch = come_back
    records = again.run()
    assert counts(records, "dropped")[:2] == [0, 1]
    models = models_of(nodes)
    for model in models[1:]:
        np.testing.assert_array_equal(model.item_factors_, models[0].item_factors_)


def test_a_node_with_an_older_state_is_refused(tmp_path, caplog):
    one, nodes = a_fit(tmp_path)
    store, old = nodes[1000].store, {}

    def tamper(request, reply):
        (file,) = store.folder.glob("*.state")
        if request.kind == "setup" or not old:
            old["state"] = file.read_bytes()
        if request.kind == "round" and request.node == 1002:
            file.write_bytes(old["state"])
        return reply

    one.exchanges.carrier.tamper = tamper
    records = one.run()
    assert "a copy of before its last answers" in caplog.text
    assert records.n_rounds_ == 3


def changed(reply, change):
    """The reply with other bytes of its blocks."""
    head, arrays = unpack(reply)
    return pack(
        head, {n: change(one) if n.endswith("blocks") else one for n, one in arrays.items()}
    )


def cut(reply):
    return changed(reply, lambda content: content[:-8])


def of_ones(reply):
    return changed(reply, lambda content: content | 255)


def of_zeros(reply):
    return changed(reply, lambda content: 0 * content)


def at_random(reply):
    """Numbers below the modulus, which nobody can tell from a ciphertext."""

    def draw(content):
        drawn = np.random.default_rng(0).integers(0, 256, len(content), dtype=np.uint8)
        drawn[SIZE - 1 :: SIZE] = 0
        return drawn

    return changed(reply, draw)


SPOILT = [(cut, 1), (of_ones, 1), (of_zeros, 1), (at_random, 0)]


@pytest.mark.parametrize(("spoilt", "rejected"), SPOILT)
def test_spoilt_uploads_do_not_end_the_fit(spoilt, rejected, tmp_path):
    one, nodes = a_fit(tmp_path)
    spoil(one, spoilt, node=1001)
    with warnings.catch_warnings(record=True) as caught:
        records = one.run()
    assert counts(records, "rejected") == 3 * [rejected]
    assert any("no sum of clients' numbers" in str(w.message) for w in caught) == (not rejected)
    models = models_of(nodes)
    np.testing.assert_array_equal(models[0].item_factors_, models[1].item_factors_)


@pytest.mark.parametrize("number", [-1, 3])
def test_nodes_refuse_rounds_that_the_fit_does_not_have(number, tmp_path):
    one, nodes = a_fit(tmp_path)
    answers = []

    def ask_for_more(request, reply):
        if request.kind == "round":
            head, arrays = unpack(request.content)
            asked = pack(head | {"number": number}, arrays)
            answers.append(unpack(nodes[request.node].answer(asked))[0])
        return reply

    one.exchanges.carrier.tamper = ask_for_more
    assert one.run().n_rounds_ == 3
    assert len(answers) == 9
    assert all("but the fit has 3 rounds" in answer["refused"] for answer in answers)


def test_nothing_in_plaintext_crosses_or_is_stored(tmp_path):
    one, nodes = a_fit(tmp_path)
    seen = []
    one.exchanges.carrier.tamper = lambda request, reply: (
        seen.extend([request.content, reply]) or reply
    )
    one.run()
    seen += [file.read_bytes() for file in (tmp_path / "server").iterdir()]
    everything = b"".join(seen)
    secret = (tmp_path / "keys" / "clients.key").read_bytes()[-PAILLIER.key_nbytes() :]
    half = len(secret) // 2
    assert secret[:half] not in everything
    assert secret[half:] not in everything
    for model in models_of(nodes):
        for array in (model.item_factors_, model.user_factors_):
            for row in array:
                assert row.astype(np.float32).tobytes() not in everything
                assert row.astype(np.float64).tobytes() not in everything
    for node in nodes.values():
        (state,) = node.store.folder.glob("*.state")
        assert secret[:half] not in state.read_bytes()


def test_nodes_with_other_keys_are_refused(tmp_path, caplog):
    estimator = secure(FedMF(3, **SMALL))
    nodes = nodes_of(estimator, tmp_path)
    nodes[1000].party = PAILLIER.generate_keys(3).clients
    with pytest.raises(NotEnough, match="2 of 3 clients"):
        coordinator(estimator, nodes, tmp_path).run()
    assert "differs from the server's in keys" in caplog.text


def test_keys_of_the_wrong_side_scheme_or_mode(tmp_path):
    estimator = secure(FedMF(3, **SMALL))
    clients, server = write_keys(estimator, 3, tmp_path)
    assert clients.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="clients' keys, with which the server could decrypt"):
        read_keys(estimator, clients, "server")
    with pytest.raises(ValueError, match=r"or the path of clients\.key"):
        read_keys(estimator, server, "clients")
    with pytest.raises(ValueError, match=r"pass keys= the path of server\.key"):
        read_keys(estimator, None, "server")
    with pytest.raises(FileNotFoundError, match="no keys in"):
        read_keys(estimator, tmp_path / "nothing", "server")
    party = read_keys(estimator, server, "server")
    with pytest.raises(ValueError, match=r"n_clients is 4, but the keys are for 3.*write_keys"):
        in_process.coordinator(estimator, {}, tmp_path / "4", n_clients=4, party=party)
    with pytest.raises(FileExistsError, match="exists already"):
        write_keys(estimator, 3, tmp_path)
    other = secure(clone(estimator), CKKS())
    with pytest.raises(ValueError, match="keys with the parameters of the estimator"):
        read_keys(other, server, "server")
    clients.chmod(0o644)
    with pytest.raises(PermissionError, match="chmod 600"):
        read_keys(estimator, clients, "clients")


def test_a_node_cannot_ask_for_deleted_sums(tmp_path, caplog):
    one, _ = a_fit(tmp_path)
    spoil(one, lambda reply: pack({"lacks": "message"}, {}), node=1001, number=2)
    records = one.run()
    assert one.server.sums.first > 0
    assert counts(records, "rejected") == [0, 0, 1]
