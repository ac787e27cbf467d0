"""Lost, late, repeated, malformed and wrong: what a fit does about it, without an engine."""

import logging

import joblib
import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import (
    FedEASE,
    FedEB,
    Federation,
    FedFast,
    FedMF,
    LightFR,
    LocALS,
    RFRec,
)
from fedrecsk.aggregation import HierarchicalClipping, Krum
from fedrecsk.deployment.exchanges import NotEnough
from fedrecsk.deployment.node import Node
from fedrecsk.deployment.records import pack, unpack
from fedrecsk.deployment.store import Store
from tests.conftest import make_toy
from tests.deployment.in_process import coordinator, lose, make_nodes, prepared, spoil

X, Y = make_toy()
SILOS = X[:, 0] % 3


def small(n_rounds=3):
    return prepared(RFRec(3, n_rounds=n_rounds, random_state=0), X, Y)


def a_fit(folder, estimator=None, **parameters):
    """A coordinator and its nodes."""
    estimator = small() if estimator is None else estimator
    nodes = make_nodes(estimator, X, Y, SILOS, folder)
    return coordinator(estimator, nodes, folder, **parameters), nodes


def rounds(server):
    return [entry for entry in server.communication_.entries if entry["phase"] == "round"]


def test_a_round_goes_on_with_a_quorum(tmp_path):
    one, nodes = a_fit(tmp_path, quorum=0.6)
    carrier, lost = one.exchanges.carrier, max(nodes)

    def die(request, reply):
        if request.kind == "round" and unpack(request.content)[0]["number"] == 1:
            carrier.connected.pop(lost, None)
        return None if request.node == lost and lost not in carrier.connected else reply

    carrier.tamper = die
    server = one.run()
    assert [entry["messages_up"] for entry in rounds(server)] == [3, 2, 2]
    assert [entry["dropped"] for entry in rounds(server)] == [0, 1, 1]
    folders = [node.store.folder for node in nodes.values()]
    assert sum((folder / "model.joblib").exists() for folder in folders) == 2


def test_too_few_answers_end_the_app_but_not_the_fit(tmp_path):
    one, nodes = a_fit(tmp_path)
    spoil(one, lose, node=max(nodes))
    with pytest.raises(NotEnough, match=r"2 of 3 clients .* but 3 must. Without an answer: \d\."):
        one.run()
    again = coordinator(small(), nodes, tmp_path)
    assert again.is_resumed
    assert again.run().n_rounds_ == 3


class Killed(BaseException):
    """As by kill -9: nothing is done about it."""


@pytest.mark.parametrize(
    ("kind", "number"), [("setup", 0), ("round", 0), ("round", 1), ("finish", 3)]
)
def test_a_killed_server_goes_on_from_its_checkpoint(tmp_path, monkeypatch, kind, number):
    """Nodes that were asked before answer as they did, so that the result is the same."""
    monkeypatch.setattr("secrets.randbits", lambda n: 5)
    plain = a_fit(tmp_path / "plain", small())[0].run()
    first, nodes = a_fit(tmp_path / "killed", small())

    def kill(request, reply):
        asked = request.kind, unpack(request.content)[0].get("number")
        if asked == (kind, number) and request.node == max(nodes):
            raise Killed
        return reply

    first.exchanges.carrier.tamper = kill
    with pytest.raises(Killed):
        first.run()
    second = coordinator(small(), nodes, tmp_path / "killed")
    # A set-up that was interrupted begins anew.
    assert second.is_resumed == (kind != "setup")
    server = second.run()
    np.testing.assert_array_equal(server.item_factors_, plain.item_factors_)
    assert server.communication_ == plain.communication_
    assert [t["kind"] for t in server.traffic_] == [t["kind"] for t in plain.traffic_]


def test_a_checkpoint_of_other_parameters_is_refused(tmp_path):
    one, nodes = a_fit(tmp_path, quorum=1.0)
    spoil(one, lose)
    with pytest.raises(NotEnough):
        one.run()
    with pytest.raises(ValueError, match=r"has not ended.* in n_factors; .*remove the file"):
        coordinator(small().set_params(n_factors=4), nodes, tmp_path)


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
    server = one.run()
    assert [entry["messages_up"] for entry in rounds(server)] == [3, 3, 3]
    assert (nodes[moved].store.folder / "model.joblib").exists()


def test_a_repeated_request_gets_the_same_answer(tmp_path):
    one, nodes = a_fit(tmp_path)
    seen = []

    def repeat(request, reply):
        if request.kind != "register":
            seen.append(request.kind)
            assert nodes[request.node].answer(request.content) == reply
        return reply

    one.exchanges.carrier.tamper = repeat
    one.run()
    assert set(seen) == {"setup", "round", "finish"}


def changed(reply, change):
    """The reply after a change of its upload's head."""
    head, arrays = unpack(reply)
    change(head, arrays)
    return pack(head, arrays)


def another_client(head, arrays):
    head["upload"]["client"] = (head["upload"]["client"] + 1) % 3


def a_fractional_client(head, arrays):
    head["upload"]["client"] = float(head["upload"]["client"])


def another_round(head, arrays):
    head["upload"]["round"] += 1


def twice(head, arrays):
    head["upload"] = 2 * [head["upload"]]


def another_field(head, arrays):
    arrays["else/values"] = np.ones(3)


CHANGES = [another_client, a_fractional_client, another_round, twice, another_field]


@pytest.mark.parametrize("change", CHANGES)
def test_malformed_and_duplicate_uploads_are_rejected_and_counted(tmp_path, change, caplog):
    one, nodes = a_fit(tmp_path)
    spoil(one, lambda reply: changed(reply, change), node=max(nodes), number=1)
    with caplog.at_level(logging.WARNING):
        server = one.run()
    assert [entry["rejected"] for entry in rounds(server)] == [0, 1, 0]
    assert [entry["messages_up"] for entry in rounds(server)] == [3, 2, 3]
    named = "it sends", "'else/values'", "lacks its phase"
    assert any(name in record.message for record in caplog.records for name in named)


def with_nan(reply):
    head, arrays = unpack(reply)
    return pack(head, {name: values * np.nan for name, values in arrays.items()})


def test_nan_in_uploads_is_rejected_and_counted(tmp_path):
    one, nodes = a_fit(tmp_path)
    spoil(one, with_nan, node=max(nodes))
    assert [entry["rejected"] for entry in rounds(one.run())] == [1, 1, 1]


def enlarge(one, node, factor):
    """Let a node send numbers of this size in round 1."""

    def enlarged(reply):
        head, arrays = unpack(reply)
        reals = {name for name, values in arrays.items() if values.dtype.kind == "f"}
        return pack(head, {n: v * 0 + factor if n in reals else v for n, v in arrays.items()})

    spoil(one, enlarged, node=node, number=1)


def implicit(Estimator):
    return prepared(Estimator(3, n_rounds=3, client_fraction=1.0, random_state=0), X, Y)


@pytest.mark.parametrize("estimator", [small(), implicit(FedMF), prepared(FedEB(3), X, Y)], ids=str)
def test_a_finite_but_huge_upload_is_rejected_and_counted(estimator, tmp_path):
    one, nodes = a_fit(tmp_path, estimator.set_params(n_rounds=3))
    enlarge(one, max(nodes), 3e38)
    server = one.run()
    assert [entry["rejected"] for entry in rounds(server)] == [0, 1, 0]
    assert [entry["messages_up"] for entry in rounds(server)] == [3, 2, 3]
    assert np.abs(server.item_factors_).max() < 10


def test_a_model_that_has_exploded_warns_on_the_server_and_on_the_nodes(tmp_path):
    one, nodes = a_fit(tmp_path, implicit(FedMF))
    enlarge(one, max(nodes), 1e14)
    with pytest.warns(UserWarning, match="FedMF has exploded") as seen:
        one.run()
    texts = [str(warning.message) for warning in seen]
    assert sum("scores of training rows reach" in text for text in texts) == len(nodes)
    assert sum("the items' factors or biases reach" in text for text in texts) == 1


class NoUserFits(RFRec):
    """Nobody can be fitted to its items."""

    def _user_attributes(self, block, state):
        attributes = super()._user_attributes(block, state)
        return {name: values * np.nan for name, values in attributes.items()}


def test_a_model_to_which_no_user_can_be_fitted_names_no_client(tmp_path):
    one, nodes = a_fit(tmp_path, prepared(NoUserFits(3, n_rounds=2), X, Y))
    with pytest.raises(ValueError, match="NoUserFits diverged: no user can be fitted") as error:
        one.run()
    assert "nobody" not in str(error.value)
    assert not any((node.store.folder / "model.joblib").exists() for node in nodes.values())


def test_bytes_that_are_no_message_are_no_answer(tmp_path, caplog):
    one, nodes = a_fit(tmp_path, quorum=0.6)
    spoil(one, lambda reply: b"junk", node=max(nodes))
    server = one.run()
    assert [entry["dropped"] for entry in rounds(server)] == [1, 1, 1]
    assert "not a message of this version" in caplog.text


def test_a_round_of_nothing_but_nan_leaves_the_model_as_it_is(tmp_path, caplog):
    one, _ = a_fit(tmp_path, quorum=0.3)
    asked = []
    # The first to answer sends NaN, and the others nothing.
    spoil(
        one,
        lambda reply: asked.append(reply) or (with_nan(reply) if len(asked) == 1 else None),
        number=1,
    )
    server = one.run()
    assert [entry["messages_up"] for entry in rounds(server)] == [3, 0, 3]
    assert "All 1 uploads of round 1 held NaN" in caplog.text


def test_rounds_with_too_few_uploads_for_the_aggregator_are_named(tmp_path, caplog):
    one, _ = a_fit(tmp_path, small().set_params(federation=Federation(aggregator=Krum(1))))
    one.run()
    assert "Krum() had too few uploads in round 0, so the model stays as it is" in caplog.text


def test_an_aggregator_that_does_not_suit_the_uploads_is_refused_at_once(tmp_path):
    federation = Federation(aggregator=HierarchicalClipping(share=0.5))
    estimator = prepared(LightFR(5, federation=federation), X, Y)
    with pytest.raises(ValueError, match="as integers"):
        a_fit(tmp_path, estimator)


def test_a_malformed_answer_to_the_set_up_ends_the_run(tmp_path):
    one, nodes = a_fit(tmp_path)
    spoil(one, lambda reply: changed(reply, another_client), kind="setup", node=max(nodes))
    with pytest.raises(NotEnough, match="1 answers to set-up exchange 0 were malformed"):
        one.run()


def test_malformed_validation_losses_are_counted(tmp_path):
    one, nodes = a_fit(tmp_path, small().set_params(early_stopping=True, n_rounds=3))
    spoil(one, lambda reply: changed(reply, another_client), kind="validate", node=max(nodes))
    ledger = one.run().communication_
    assert sum(entry["rejected"] for entry in ledger.entries) == 3


def spoilt(nodes, number, change):
    """Let one node's data be other than they were."""
    node = sorted(nodes.values(), key=lambda one: str(one.store.folder))[number]
    data = dict(node.load_data())
    change(data)
    node.load_data = lambda: data
    return node


def test_nan_in_a_nodes_data_is_its_own_affair(tmp_path, caplog):
    one, nodes = a_fit(tmp_path, n_clients=2)
    bad = spoilt(nodes, 1, lambda data: data.update(y=data["y"] * np.nan))
    server = one.run()
    assert server.communication_.entries[-1]["messages_down"] == 2
    assert not (bad.store.folder / "model.joblib").exists()
    assert "NaN" in caplog.text
    # The server learns that it failed, and not why.
    (reason,) = one.exchanges.refused.values()
    assert "failed with ValueError; its own log says why" in reason


def test_unknown_items_are_the_nodes_error(tmp_path, caplog):
    one, nodes = a_fit(tmp_path)
    spoilt(nodes, 0, lambda data: data.update(X=data["X"] + [0, 1]))
    with pytest.raises(NotEnough, match=r"2 of 3 clients have registered within 1 s(.|\n)*failed"):
        one.run()
    assert "item" in caplog.text
    assert "items" in caplog.text


def test_two_nodes_with_one_client_id(tmp_path, caplog):
    one, nodes = a_fit(tmp_path, n_clients=2)
    spoilt(nodes, 0, lambda data: data.update(client_id=1))
    one.run()
    (reason,) = one.exchanges.refused.values()
    assert "another node has registered as client 1; give each client its own id" in reason
    assert "the server does not let this node take part" in caplog.text


def test_one_folder_for_two_nodes(tmp_path):
    one, nodes = a_fit(tmp_path, n_clients=2)
    first, second, _ = nodes.values()
    second.store = first.store
    one.run()
    (reason,) = one.exchanges.refused.values()
    assert "give each node its own folder" in reason


def test_ids_of_two_types(tmp_path):
    one, nodes = a_fit(tmp_path, n_clients=2)
    name = max(nodes)
    data = dict(nodes[name].load_data())
    nodes[name].load_data = lambda: data | {"client_id": "shop"}
    one.run()
    (reason,) = one.exchanges.refused.values()
    assert "use one type for all" in reason


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (small().set_params(n_factors=4), "differs from the server's in n_factors"),
        (prepared(LocALS(3), X, Y), r"estimator here is a .*LocALS"),
    ],
)
def test_nodes_with_other_parameters(tmp_path, other, message):
    one, nodes = a_fit(tmp_path)
    nodes[max(nodes)].estimator = other
    with pytest.raises(NotEnough, match=message):
        one.run()


def joining_late(folder, estimator):
    """A fit that one of three clients joins during the first round, and its nodes."""
    one, nodes = a_fit(folder, estimator, n_clients=2)
    carrier = one.exchanges.carrier
    late = carrier.connected.pop(max(nodes))

    def join(request, reply):
        if request.kind == "round":
            carrier.connected[max(nodes)] = late
        return reply

    carrier.tamper = join
    return one, nodes


@pytest.mark.parametrize("Estimator", [RFRec, LocALS])
def test_a_client_joins_late(Estimator, tmp_path):
    estimator = prepared(Estimator(3, n_rounds=3, random_state=0), X, Y)
    one, nodes = joining_late(tmp_path, estimator)
    server = one.run()
    assert [entry["messages_up"] for entry in rounds(server)] == [2, 3, 3]
    assert len(server.communication_.client_ids) == 3
    model = joblib.load(nodes[max(nodes)].store.folder / "model.joblib")
    assert set(model.user_ids_) == set(X[SILOS.max() == SILOS, 0])
    assert np.isfinite(model.predict(X)).all()


def test_a_late_client_still_takes_part_after_the_server_was_killed(tmp_path):
    one, nodes = joining_late(tmp_path, small())
    join = one.exchanges.carrier.tamper

    def die(request, reply):
        if request.kind == "round" and unpack(request.content)[0]["number"] == 2:
            raise KeyboardInterrupt
        return join(request, reply)

    one.exchanges.carrier.tamper = die
    with pytest.raises(KeyboardInterrupt):
        one.run()
    server = coordinator(small(), nodes, tmp_path).run()
    assert [entry["messages_up"] for entry in rounds(server)] == [2, 3, 3]


def test_a_client_that_cannot_join_late_is_told_so(tmp_path, caplog):
    one, nodes = joining_late(tmp_path, prepared(FedFast(3, n_rounds=3, random_state=0), X, Y))
    with caplog.at_level(logging.WARNING):
        assert one.run().n_rounds_ == 3
    assert "keeps something for each client of the set-up" in caplog.text
    assert not (nodes[max(nodes)].store.folder / "model.joblib").exists()


def test_a_node_without_its_state_says_so(tmp_path):
    node = Node(small(), dict, Store(tmp_path))
    head, _ = unpack(node.answer(pack({"kind": "round", "fit": "0" * 16, "number": 0}, {})))
    assert head == {"refused": "this node has no state of this fit; it must register first"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"junk", "not a message of this version"),
        (pack({"kind": "round"}, {}), "does not say to which fit"),
        (pack({"kind": "round", "fit": "../../../../etc"}, {}), "does not say to which fit"),
    ],
)
def test_nodes_refuse_malformed_requests(tmp_path, content, message):
    head, _ = unpack(Node(small(), dict, Store(tmp_path)).answer(content))
    assert message in head["refused"]


def test_a_node_whose_data_cannot_be_read_at_first_is_asked_again(tmp_path):
    one, nodes = a_fit(tmp_path)
    node, n_tries = nodes[max(nodes)], 0
    data = node.load_data()

    def load_data():
        nonlocal n_tries
        n_tries += 1
        if n_tries < 3:
            raise OSError("the disk is not there yet")
        return data

    node.load_data = load_data
    assert [entry["messages_up"] for entry in rounds(one.run())] == [3, 3, 3]
    assert n_tries == 3


def test_a_lost_registration_is_asked_for_again(tmp_path):
    one, nodes = a_fit(tmp_path)
    seen = []

    def lose_two(reply):
        seen.append(reply)
        return None if len(seen) <= 2 else reply

    spoil(one, lose_two, kind="register", node=max(nodes))
    assert one.run().n_rounds_ == 3
    assert len(seen) == 3


@pytest.mark.parametrize("before", ["setup", "round"])
def test_a_node_with_a_copy_of_before_the_first_round_takes_part_again(tmp_path, before, caplog):
    one, nodes = a_fit(tmp_path)
    node, copies = nodes[max(nodes)], {}

    def keep(request):
        if request.node == max(nodes) and (node.store.folder / file(request)).exists():
            number = unpack(request.content)[0].get("number")
            copies.setdefault(request.kind, node.store.load(file(request)))
            if (request.kind, number) == ("round", 1):
                node.store.save(file(request), copies[before])

    def file(request):
        return f"{unpack(request.content)[0]['fit']}.state"

    one.exchanges.carrier.watch = keep
    server = one.run()
    assert [entry["messages_up"] for entry in rounds(server)] == [3, 3, 3]
    assert "lacks its place in the fit, and is sent it again" in caplog.text
    assert np.isfinite(joblib.load(node.store.folder / "model.joblib").predict(X)).all()


def test_a_node_that_has_lost_the_model_it_has_measured_gets_it_again(tmp_path, caplog):
    """Others are not sent again for the round what they have just measured."""
    estimator = small().set_params(early_stopping=True, validation_fraction=0.3)
    one, nodes = a_fit(tmp_path, estimator)
    node, said, copies = nodes[max(nodes)], [], []

    def set_back(request, reply):
        head = unpack(request.content)[0]
        step = request.kind, head.get("number")
        if request.node == max(nodes):
            if step == ("round", 0):
                copies.append(node.store.load(f"{head['fit']}.state"))
            if step == ("validate", 1):
                node.store.save(f"{head['fit']}.state", copies[0])
        if step == ("round", 1):
            kept = bool(head["message"].get("kept"))
            said.append((request.node == max(nodes), kept, "lacks" in unpack(reply)[0]))
        return reply

    one.exchanges.carrier.tamper = set_back
    server = one.run()
    # With the validation losses.
    assert [entry["messages_up"] for entry in rounds(server)] == [3, 6, 6]
    assert said.count((False, True, False)) == 2
    assert [one for one in said if one[0]] == [(True, True, True), (True, False, False)]
    assert "lacks its model in the fit, and is sent it again" in caplog.text


def test_a_node_that_says_that_it_lacks_what_it_was_just_sent_is_not_asked_for_ever(tmp_path):
    one, nodes = a_fit(tmp_path, quorum=0.6)
    spoil(one, lambda reply: pack({"lacks": "model"}, {}), node=max(nodes))
    assert [entry["dropped"] for entry in rounds(one.run())] == [1, 1, 1]


def test_nodes_refuse_a_server_with_an_older_checkpoint(tmp_path):
    one, nodes = a_fit(tmp_path)
    checkpoint, copies = tmp_path / "server" / "checkpoint", []

    def kill(request, reply):
        copies.append(checkpoint.read_bytes() if checkpoint.exists() else None)
        if request.kind == "round" and unpack(request.content)[0]["number"] == 2:
            raise Killed
        return reply

    one.exchanges.carrier.tamper = kill
    with pytest.raises(Killed):
        one.run()
    checkpoint.write_bytes(next(copy for copy in copies if copy))
    with pytest.raises(NotEnough, match=r"in round [12], and the server asks for round 0.*new fit"):
        coordinator(small(), nodes, tmp_path).run()


def test_a_late_client_whose_set_up_answer_is_lost_joins_a_round_later(tmp_path):
    estimator = prepared(LocALS(3, n_rounds=4, random_state=0), X, Y)
    one, nodes = joining_late(tmp_path, estimator)
    join, lost = one.exchanges.carrier.tamper, []

    def lose(request, reply):
        if request.kind == "setup" and request.node == max(nodes) and not lost:
            lost.append(request)
            return None
        return join(request, reply)

    one.exchanges.carrier.tamper = lose
    server = one.run()
    assert lost
    assert [entry["messages_up"] for entry in rounds(server)] == [2, 2, 3, 3]


def test_late_clients_keep_their_codes_if_the_server_is_killed_meanwhile(tmp_path):
    estimator = prepared(LocALS(3, n_rounds=4, random_state=0), X, Y)
    one, nodes = a_fit(tmp_path, estimator, n_clients=1)
    carrier, codes = one.exchanges.carrier, {}
    late = {name: carrier.connected.pop(name) for name in sorted(nodes)[1:]}

    def join(request, reply):
        if request.kind == "round":
            carrier.connected.update(late)
        head = unpack(request.content)[0]
        if request.node in late and head.get("place"):
            codes.setdefault(request.node, []).append(head["place"]["clients"])
            if request.kind == "setup" and request.node == max(nodes) and not again:
                raise Killed
        return reply

    again = None
    carrier.tamper = join
    with pytest.raises(Killed):
        one.run()
    again = coordinator(estimator, dict(reversed(nodes.items())), tmp_path)
    again.exchanges.carrier.tamper = join
    server = again.run()
    assert [entry["messages_up"] for entry in rounds(server)] == [1, 3, 3, 3]
    assert all(len(set(map(str, given))) == 1 for given in codes.values())


def test_a_client_that_comes_in_the_last_round_is_told_so(tmp_path, caplog):
    one, nodes = a_fit(tmp_path, n_clients=2)
    carrier = one.exchanges.carrier
    late = carrier.connected.pop(max(nodes))

    def join(request, reply):
        if request.kind == "round" and unpack(request.content)[0]["number"] == 2:
            carrier.connected[max(nodes)] = late
        return reply

    carrier.tamper = join
    one.run()
    assert "does not let this node take part: the fit has ended; its server's model" in caplog.text


def test_a_sum_is_right_again_after_lost_answers(tmp_path):
    """Nobody is counted twice or taken back without having been counted."""
    estimator = prepared(FedEASE(reg=5.0, warm_start=True), X, Y)
    few = np.arange(len(X)) % 4 > 0
    expected = clone(estimator).fit(X).item_weights_
    coordinator(
        estimator, make_nodes(estimator, X[few], Y[few], SILOS[few], tmp_path), tmp_path
    ).run()
    nodes = make_nodes(estimator, X, Y, SILOS, tmp_path)

    def update(lost, **parameters):
        one = coordinator(estimator, nodes, tmp_path, update=True, **parameters)
        spoil(one, lose, kind=lost, node=max(nodes))
        return one.run()

    with pytest.raises(NotEnough, match="request 'withdraw'"):
        update("withdraw")

    def asked(server):
        return [e["participants"] for e in server.communication_.entries[-3:-1]]

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
    carrier.watch = lambda request: (
        carrier.connected.update(nodes) if request.kind == "setup" else None
    )
    np.testing.assert_allclose(one.run().item_weights_, expected, atol=1e-6)
    nodes[late].store = Store(tmp_path / "empty")
    with pytest.raises(NotEnough, match="has lost what it has sent to the last fit"):
        update(None)


def test_a_node_keeps_its_data_no_longer_than_the_fit(tmp_path):
    estimator = small()
    nodes = make_nodes(estimator, X, Y, SILOS, tmp_path)
    (tmp_path / "node 0").mkdir(exist_ok=True)
    for name in (".model.joblib-killed", f".{'0' * 16}.state-killed"):
        (tmp_path / "node 0" / name).write_bytes(b"half of it")
    for fit in ("first", "second"):
        coordinator(estimator, nodes, tmp_path / fit).run()
        for node in nodes.values():
            (state,) = node.store.names("*.state")
            assert node.store.load(state).device is None
            assert not list(node.store.folder.glob(".*"))
