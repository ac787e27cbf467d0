"""Lost, late, repeated, malformed and wrong: what a fit does about it, without an engine."""

import joblib
import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import FedEASE, FedEB, Federation, FedFast, FedMF, LightFR, LocALS, RFRec
from fedrecsk.aggregation import HierarchicalClipping, Krum
from fedrecsk.deployment.exchanges import NotEnough
from fedrecsk.deployment.node import Node
from fedrecsk.deployment.records import pack, unpack
from fedrecsk.deployment.store import Store
from fedrecsk.federated.rfrec import RFRecAlgorithm
from tests.conftest import make_toy
from tests.deployment.in_process import (
    Killed,
    coordinator,
    counts,
    kill,
    lose,
    make_nodes,
    prepared,
    spoil,
    step_of,
)

X, Y = make_toy()
SILOS = X[:, 0] % 3


def small(Estimator=RFRec, n_rounds=3, **parameters):
    return prepared(Estimator(3, n_rounds=n_rounds, random_state=0, **parameters), X, Y)


def a_fit(folder, estimator=None, **parameters):
    """A coordinator and its nodes."""
    estimator = small() if estimator is None else estimator
    nodes = make_nodes(estimator, X, Y, SILOS, folder)
    return coordinator(estimator, nodes, folder, **parameters), nodes


def model_of(node):
    return node.store.folder / "model.joblib"


# ------------------------------------------------------------------ lost, killed, repeated


def test_a_round_goes_on_with_a_quorum(tmp_path):
    one, nodes = a_fit(tmp_path, quorum=0.6)
    carrier, lost = one.exchanges.carrier, max(nodes)

    def die(request, reply):
        if step_of(request) == ("round", 1):
            carrier.connected.pop(lost, None)
        return None if request.node == lost and lost not in carrier.connected else reply

    carrier.tamper = die
    server = one.run()
    assert counts(server) == [3, 2, 2]
    assert counts(server, "dropped") == [0, 1, 1]
    assert [model_of(nodes[name]).exists() for name in sorted(nodes)] == [True, True, False]


def test_too_few_answers_end_the_app_but_not_the_fit(tmp_path):
    one, nodes = a_fit(tmp_path)
    spoil(one, lose, node=max(nodes))
    with pytest.raises(NotEnough, match=r"2 of 3 clients .* but 3 must. Without an answer: \d\."):
        one.run()
    with pytest.raises(ValueError, match=r"has not ended.* in n_factors; .*remove the file"):
        coordinator(small().set_params(n_factors=4), nodes, tmp_path)
    again = coordinator(small(), nodes, tmp_path)
    assert again.is_resumed
    assert again.run().n_rounds_ == 3


@pytest.mark.parametrize(
    ("kind", "number"), [("setup", 0), ("round", 0), ("round", 1), ("finish", 3)]
)
def test_a_killed_server_goes_on_from_its_checkpoint(tmp_path, monkeypatch, kind, number):
    """Nodes that were asked before answer as they did, so that the result is the same."""
    monkeypatch.setattr("secrets.randbits", lambda n: 5)
    plain = a_fit(tmp_path / "plain")[0].run()
    first, nodes = a_fit(tmp_path / "killed")
    kill(first, kind, number, max(nodes))
    with pytest.raises(Killed):
        first.run()
    second = coordinator(small(), nodes, tmp_path / "killed")
    # A set-up that was interrupted begins anew.
    assert second.is_resumed == (kind != "setup")
    server = second.run()
    np.testing.assert_array_equal(server.item_factors_, plain.item_factors_)
    assert server.communication_ == plain.communication_
    assert [t["kind"] for t in server.traffic_] == [t["kind"] for t in plain.traffic_]


def test_a_client_comes_back_at_another_address(tmp_path):
    one, nodes = a_fit(tmp_path, quorum=0.6)
    carrier, moved = one.exchanges.carrier, max(nodes)

    def move(request, reply):
        if request.kind == "round" and request.node == moved:
            carrier.connected.pop(moved)
            carrier.connected[77] = Node(small(), nodes[moved].load_data, nodes[moved].store)
            return None
        return reply

    carrier.tamper = move
    assert counts(one.run()) == [3, 3, 3]
    assert model_of(nodes[moved]).exists()


def test_a_repeated_request_gets_the_same_answer(tmp_path):
    one, nodes = a_fit(tmp_path)
    seen = set()

    def repeat(request, reply):
        if request.kind != "register":
            seen.add(request.kind)
            assert nodes[request.node].answer(request.content) == reply
        return reply

    one.exchanges.carrier.tamper = repeat
    one.run()
    assert seen == {"setup", "round", "finish"}


def test_a_lost_registration_or_unreadable_data_are_asked_for_again(tmp_path):
    one, nodes = a_fit(tmp_path)
    n_lost, n_tries, node = [], [], nodes[min(nodes)]
    data = node.load_data()

    def lose_two(reply):
        n_lost.append(reply)
        return None if len(n_lost) <= 2 else reply

    def load_data():
        n_tries.append(1)
        if len(n_tries) < 3:
            raise OSError("the disk is not there yet")
        return data

    node.load_data = load_data
    spoil(one, lose_two, kind="register", node=max(nodes))
    assert counts(one.run()) == [3, 3, 3]
    assert len(n_lost) == len(n_tries) == 3


# ------------------------------------------------------------------ malformed and broken


def changed(change):
    """A change of the head and the arrays of a reply."""

    def apply(reply):
        head, arrays = unpack(reply)
        change(head.get("upload"), head, arrays)
        return pack(head, arrays)

    return apply


@changed
def another_client(upload, head, arrays):
    upload["client"] = (upload["client"] + 1) % 3


@changed
def a_fractional_client(upload, head, arrays):
    upload["client"] = float(upload["client"])


@changed
def another_round(upload, head, arrays):
    upload["round"] += 1


@changed
def twice(upload, head, arrays):
    head["upload"] = 2 * [upload]


@changed
def another_field(upload, head, arrays):
    arrays["else/values"] = np.ones(3)


@changed
def nan(upload, head, arrays):
    arrays |= {name: values * np.nan for name, values in arrays.items()}


def of_size(size):
    @changed
    def enlarged(upload, head, arrays):
        for name, values in arrays.items():
            if values.dtype.kind == "f":
                arrays[name] = 0 * values + size

    return enlarged


@pytest.mark.parametrize(
    ("estimator", "change", "named"),
    [
        (small(), another_client, "it sends"),
        (small(), a_fractional_client, "it sends"),
        (small(), another_round, "it sends"),
        (small(), twice, "lacks its phase"),
        (small(), another_field, "'else/values'"),
        (small(), nan, ""),
        (small(), of_size(3e38), ""),
        (small(FedEB), of_size(3e38), ""),
    ],
)
def test_wrong_uploads_are_rejected_and_counted(estimator, change, named, tmp_path, caplog):
    one, nodes = a_fit(tmp_path, estimator)
    spoil(one, change, node=max(nodes), number=1)
    server = one.run()
    assert counts(server, "rejected") == [0, 1, 0]
    assert counts(server) == [3, 2, 3]
    assert np.abs(server.item_factors_).max() < 10
    assert named in caplog.text


def test_a_model_that_has_diverged_warns_on_the_server_and_on_the_nodes(tmp_path):
    one, nodes = a_fit(tmp_path, small(FedMF, client_fraction=1.0))
    spoil(one, of_size(1e14), node=max(nodes), number=1)
    with pytest.warns(UserWarning, match="FedMF diverged") as seen:
        one.run()
    texts = [str(warning.message) for warning in seen]
    assert sum("scores of training rows reach" in text for text in texts) == len(nodes)
    assert sum("item factors or biases reach" in text for text in texts) == 1


class NoUserFitsAlgorithm(RFRecAlgorithm):
    """Nobody can be fitted to its items."""

    def user_attributes(self, block, clients):
        attributes = super().user_attributes(block, clients)
        return {name: values * np.nan for name, values in attributes.items()}


class NoUserFits(RFRec):
    _kind = NoUserFitsAlgorithm


def test_a_model_to_which_no_client_can_be_fitted_is_not_saved(tmp_path):
    one, nodes = a_fit(tmp_path, small(NoUserFits, n_rounds=2))
    with pytest.raises(ValueError, match="No client has taken the final model of NoUserFits"):
        one.run()
    assert not any(model_of(node).exists() for node in nodes.values())


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"junk", "not a message of this version"),
        # It was just sent that, and is not asked for ever.
        (pack({"lacks": "model"}, {}), "reports a message as missing"),
    ],
)
def test_a_senseless_reply_is_no_answer(reply, message, tmp_path, caplog):
    one, nodes = a_fit(tmp_path, quorum=0.6)
    spoil(one, lambda _: reply, node=max(nodes))
    assert counts(one.run(), "dropped") == [1, 1, 1]
    assert message in caplog.text


def test_a_round_of_nothing_but_nan_leaves_the_model_as_it_is(tmp_path, caplog):
    one, _ = a_fit(tmp_path, quorum=0.3)
    asked = []
    # The first to answer sends NaN, and the others nothing.
    spoil(one, lambda reply: asked.append(1) or (nan(reply) if len(asked) == 1 else None), number=1)
    assert counts(one.run()) == [3, 0, 3]
    assert "All 1 uploads of round 1 held NaN" in caplog.text


def test_aggregators_that_do_not_suit_the_uploads_are_named(tmp_path, caplog):
    federation = Federation(aggregator=HierarchicalClipping(share=0.5))
    with pytest.raises(ValueError, match="as integers"):
        a_fit(tmp_path, prepared(LightFR(5, federation=federation), X, Y))
    a_fit(tmp_path, small(federation=Federation(aggregator=Krum(1))))[0].run()
    assert "Krum() had too few uploads in round 0, so the model stays as it is" in caplog.text


def test_malformed_answers_to_the_set_up_end_the_run_and_losses_are_counted(tmp_path):
    one, nodes = a_fit(tmp_path / "setup")
    spoil(one, another_client, kind="setup", node=max(nodes))
    with pytest.raises(NotEnough, match="1 answers to the set-up message were malformed"):
        one.run()
    one, nodes = a_fit(tmp_path / "loss", small(early_stopping=True))
    spoil(one, another_client, kind="validate", node=max(nodes))
    assert sum(entry["rejected"] for entry in one.run().communication_.entries) == 3


# --------------------------------------------------------------------- nodes that differ


def with_data(**changes):
    """A change of what a node's `load_data` returns."""

    def apply(node, other):
        data = node.load_data()
        data |= {name: change(data.get(name)) for name, change in changes.items()}

    return apply


def set_to(name, value):
    return lambda node, other: setattr(node, name, value)


@pytest.mark.parametrize(
    ("change", "told", "logged"),
    [
        (with_data(y=lambda y: y * np.nan), "failed with ValueError", "NaN"),
        (with_data(X=lambda X: np.add(X, [0, 1])), "failed with ValueError", "items"),
        (
            with_data(client_id=lambda name: 1),
            "another node has registered as client 1; give each client its own id",
            "the server does not let this node take part",
        ),
        (with_data(client_id=lambda name: "shop"), "use one type for all", ""),
        (
            lambda node, other: setattr(node, "store", other.store),
            "give each node its own folder",
            "",
        ),
        (set_to("estimator", small().set_params(n_factors=4)), "server's in n_factors", ""),
        (set_to("estimator", small(LocALS)), "the estimator here is a ", ""),
    ],
)
def test_a_node_that_cannot_take_part_is_told_so(change, told, logged, tmp_path, caplog):
    one, nodes = a_fit(tmp_path, n_clients=2)
    # The last to register is client 2.
    change(nodes[max(nodes)], nodes[1001])
    server = one.run()
    assert server.communication_.entries[-1]["messages_down"] == 2
    # The server learns that it failed, and not why.
    (reason,) = one.exchanges.refused.values()
    assert told in reason
    assert logged in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"junk", "not a message of this version"),
        (pack({"kind": "round"}, {}), "'fit' of a request must be the name of a fit"),
        (pack({"kind": "round", "fit": "../../../../etc"}, {}), "'fit' of a request must be"),
        (
            pack({"kind": "register", "fit": "0" * 16, "after": "../../etc"}, {}),
            "'after' of a request must be the name of a fit",
        ),
        (
            pack({"kind": "register", "fit": "0" * 16}, {}),
            "'parameters' of a request must be digests by name",
        ),
        (pack({"kind": "else", "fit": "0" * 16, "number": 0}, {}), "must register first"),
        (
            pack({"kind": "round", "fit": "0" * 16, "number": 0}, {}),
            "this node has no state of this fit; it must register first",
        ),
    ],
)
def test_nodes_refuse_malformed_requests(tmp_path, content, message):
    head, _ = unpack(Node(small(), dict, Store(tmp_path)).answer(content))
    assert message in head["refused"]


@pytest.mark.parametrize("before", ["setup", "round"])
def test_a_node_with_a_copy_of_before_the_first_round_takes_part_again(tmp_path, before, caplog):
    one, nodes = a_fit(tmp_path)
    node, copies, file = nodes[max(nodes)], {}, f"{one.progress.fit}.state"

    def set_back(request):
        if request.node == max(nodes) and (node.store.folder / file).exists():
            copies.setdefault(request.kind, node.store.load(file))
            if step_of(request) == ("round", 1):
                node.store.save(file, copies[before])

    one.exchanges.carrier.watch = set_back
    assert counts(one.run()) == [3, 3, 3]
    assert "lacks its place in the fit, and is sent it again" in caplog.text
    assert np.isfinite(joblib.load(model_of(node)).predict(X)).all()


def test_a_node_that_has_lost_the_model_it_has_measured_gets_it_again(tmp_path, caplog):
    """Others are not sent again for the round what they have just measured."""
    one, nodes = a_fit(tmp_path, small(early_stopping=True, validation_fraction=0.3))
    node, said, copies, file = nodes[max(nodes)], [], [], f"{one.progress.fit}.state"

    def set_back(request, reply):
        if (*step_of(request), request.node) == ("round", 0, max(nodes)):
            copies.append(node.store.load(file))
        if (*step_of(request), request.node) == ("validate", 1, max(nodes)):
            node.store.save(file, copies[0])
        if step_of(request) == ("round", 1):
            kept = "kept" in unpack(request.content)[0]["message"]
            said.append((request.node == max(nodes), kept, "lacks" in unpack(reply)[0]))
        return reply

    one.exchanges.carrier.tamper = set_back
    # With the validation losses.
    assert counts(one.run()) == [3, 6, 6]
    assert said.count((False, True, False)) == 2
    assert [one for one in said if one[0]] == [(True, True, True), (True, False, False)]
    assert "lacks its model in the fit, and is sent it again" in caplog.text


def test_a_node_one_round_ahead_refuses_earlier_requests(tmp_path):
    one, nodes = a_fit(tmp_path)
    node, earlier, refused = nodes[max(nodes)], [], []

    def repeat(request, reply):
        if nodes[request.node] is node and request.kind in ("setup", "round"):
            refused.append([unpack(node.answer(one))[0].get("refused", "") for one in earlier])
            earlier.append(request.content)
        return reply

    one.exchanges.carrier.tamper = repeat
    one.run()
    why = [
        [f"in round {now}, and the server asks for {then}" for then in asked]
        for now, asked in enumerate([["the set-up"], ["the set-up", "round 0"]])
    ]
    assert [len(texts) for texts in refused] == [0, 1, 2, 3]
    for texts, expected in zip(refused[1:], why, strict=False):
        for text, one_of in zip(texts, expected, strict=True):
            assert one_of in text


def test_nodes_refuse_a_server_with_an_older_checkpoint(tmp_path):
    one, nodes = a_fit(tmp_path)
    checkpoint, copies = tmp_path / "server" / "checkpoint", []

    def die(request, reply):
        copies.append(checkpoint.read_bytes() if checkpoint.exists() else None)
        if step_of(request) == ("round", 2):
            raise Killed
        return reply

    one.exchanges.carrier.tamper = die
    with pytest.raises(Killed):
        one.run()
    checkpoint.write_bytes(next(copy for copy in copies if copy))
    with pytest.raises(NotEnough, match=r"in round [12], and the server asks for round 0.*new fit"):
        coordinator(small(), nodes, tmp_path).run()


# ---------------------------------------------------------------------------- late clients


def joining_late(folder, estimator, in_round=0):
    """A fit that one of three clients joins during a round, and its nodes."""
    one, nodes = a_fit(folder, estimator, n_clients=2)
    carrier = one.exchanges.carrier
    late = carrier.connected.pop(max(nodes))

    def join(request):
        if step_of(request) == ("round", in_round):
            carrier.connected[max(nodes)] = late

    carrier.watch = join
    return one, nodes


def test_a_client_that_cannot_join_late_or_comes_in_the_last_round_is_told_so(tmp_path, caplog):
    one, nodes = joining_late(tmp_path / "apart", small(FedFast))
    assert one.run().n_rounds_ == 3
    assert "keeps something for each client of the set-up" in caplog.text
    assert not model_of(nodes[max(nodes)]).exists()
    joining_late(tmp_path / "last", small(), in_round=2)[0].run()
    assert "does not let this node take part: the fit has ended; its server's model" in caplog.text


def test_a_late_client_whose_set_up_answer_is_lost_joins_a_round_later(tmp_path):
    one, nodes = joining_late(tmp_path, small(LocALS, n_rounds=4))
    lost = []

    def lose_one(reply):
        return reply if lost else lost.append(reply)

    spoil(one, lose_one, kind="setup", node=max(nodes))
    assert counts(one.run()) == [2, 2, 3, 3]
    assert lost


def test_late_clients_keep_their_codes_if_the_server_is_killed_meanwhile(tmp_path):
    estimator = small(LocALS, n_rounds=4)
    one, nodes = a_fit(tmp_path, estimator, n_clients=1)
    carrier, codes = one.exchanges.carrier, {}
    late = {name: carrier.connected.pop(name) for name in sorted(nodes)[1:]}

    def note(request):
        if request.kind == "round":
            carrier.connected.update(late)
        place = unpack(request.content)[0].get("place")
        if request.node in late and place:
            codes.setdefault(request.node, set()).add(str(place["clients"]))

    carrier.watch = note
    kill(one, "setup", 0, max(nodes))
    with pytest.raises(Killed):
        one.run()
    again = coordinator(estimator, dict(reversed(nodes.items())), tmp_path)
    again.exchanges.carrier.watch = note
    assert counts(again.run()) == [1, 3, 3, 3]
    assert [len(given) for given in codes.values()] == [1, 1]


# --------------------------------------------------------------------------------- updates


def test_a_sum_is_right_again_after_lost_answers(tmp_path):
    """Nobody is counted twice or taken back without having been counted."""
    estimator = prepared(FedEASE(reg=5.0, warm_start=True), X, Y)
    few = np.arange(len(X)) % 4 > 0
    expected = clone(estimator).fit(X).item_weights_
    nodes = make_nodes(estimator, X[few], Y[few], SILOS[few], tmp_path)
    coordinator(estimator, nodes, tmp_path).run()
    nodes = make_nodes(estimator, X, Y, SILOS, tmp_path)

    def update(lost, **parameters):
        one = coordinator(estimator, nodes, tmp_path, update=True, **parameters)
        spoil(one, lose, kind=lost, node=max(nodes))
        return one.run()

    def asked(server):
        return [e["participants"] for e in server.communication_.entries[-3:-1]]

    with pytest.raises(NotEnough, match="request 'withdraw'"):
        update("withdraw")
    one = coordinator(estimator, nodes, tmp_path, update=True)
    kill(one, "round", 0, max(nodes))
    with pytest.raises(Killed):
        one.run()
    assert coordinator(estimator, nodes, tmp_path, update=True).is_resumed
    assert asked(update("round", quorum=0.5)) == [3, 3]
    server = update(None)
    # Only the client that was lost; it has nothing to take back.
    assert asked(server)[1:] == [1]
    np.testing.assert_allclose(server.item_weights_, expected, atol=1e-6)
    # Nobody has new rows.
    server = update(None)
    assert asked(server)[1:] == [0]
    np.testing.assert_allclose(server.item_weights_, expected, atol=1e-6)
    # A client that comes during the update is counted as before.
    one, late = coordinator(estimator, nodes, tmp_path, update=True, n_clients=2), max(nodes)
    carrier = one.exchanges.carrier
    carrier.connected.pop(late)
    carrier.watch = lambda request: request.kind == "setup" and carrier.connected.update(nodes)
    np.testing.assert_allclose(one.run().item_weights_, expected, atol=1e-6)
    nodes[late].store = Store(tmp_path / "empty")
    with pytest.raises(NotEnough, match="has lost what it has sent to the last fit"):
        update(None)


def test_a_node_keeps_its_data_no_longer_than_the_fit(tmp_path):
    nodes = make_nodes(small(), X, Y, SILOS, tmp_path)
    (tmp_path / "node 0").mkdir(exist_ok=True)
    for name in (".model.joblib-killed", f".{'0' * 16}.state-killed"):
        (tmp_path / "node 0" / name).write_bytes(b"half of it")
    for fit in ("first", "second"):
        coordinator(small(), nodes, tmp_path / fit).run()
        for node in nodes.values():
            (state,) = node.store.names("*.state")
            memory = node.store.load(state)
            assert memory.device is memory.rows is memory.past is None
            assert not list(node.store.folder.glob(".*"))
