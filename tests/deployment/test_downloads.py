"""What deployed clients get instead of whole models, and when they get whole ones."""

import secrets

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import CoLR, Federation, FedMF, RFRec, RFRecF
from fedrecsk.compression import Compressed, Compressor, LowRank, Quantization, TopK
from fedrecsk.deployment._changes import has_changes
from fedrecsk.deployment._wire import pack, unpack
from fedrecsk.simulation import blocks
from tests.conftest import make_toy
from tests.deployment.in_process import coordinator, make_nodes, prepared, simulated_key
from tests.deployment.test_fit import assert_same, load_models

X, Y = make_toy(8)


class Watch:
    """Looks at all that crosses, and checks that nodes have exactly the server's message.

    `said` has a request's kind, number and node, and whether it had the whole message ("whole"),
    changes ("changes"), or none ("none"); and "lacks" after requests that were not answered.
    """

    def __init__(self, one, nodes, tamper=None):
        self.one, self.nodes, self.tamper = one, nodes, tamper
        self.said = []
        one.exchanges.carrier.tamper = self

    def __call__(self, request, reply):
        head, arrays = unpack(request.content)
        if "message" in head:
            self._look(head, arrays, request.node, unpack(reply)[0])
        return reply if self.tamper is None else self.tamper(request, reply)

    def _look(self, head, arrays, node, answer):
        form = head["message"]
        what = "none" if form is None else "changes" if "changes" in form else "whole"
        step = head["kind"], head["number"], node
        self.said.append((*step, what))
        if "lacks" in answer:
            self.said.append((*step, "lacks"))
        elif head["kind"] == "round" and form is not None and has_changes(self.one.server.method):
            memory = self.nodes[node].store.load(f"{head['fit']}.state")
            number, has = memory.received["round"]
            assert number == head["number"]
            wire = self.one.server.federation.wire_dtype
            for name, field in self.one.server._last_message.items():
                expected = field.values
                if expected.dtype.kind == "f":
                    expected = expected.astype(field.dtype or wire)
                assert has[name].astype(expected.dtype).tobytes() == expected.tobytes(), name

    def of(self, kind, number=None, node=None):
        """What was sent to whom in an exchange, in order."""
        return [
            what
            for k, n, at, what in self.said
            if k == kind and number in (None, n) and node in (None, at)
        ]


def a_fit(estimator, folder, clients=X[:, 0], tamper=None, **parameters):
    """A coordinator over a node for each client, watched."""
    nodes = make_nodes(estimator, X, Y, clients, folder)
    one = coordinator(estimator, nodes, folder, **parameters)
    return one, nodes, Watch(one, nodes, tamper)


@pytest.fixture
def estimator_of(monkeypatch):
    """Makes estimators whose deployed and simulated fits have the same draws."""
    monkeypatch.setattr(blocks, "block_size", lambda data: 1)
    monkeypatch.setattr(Federation, "draws_each", True)

    def make(estimator, compression=None, wire="float64"):
        federation = Federation(compression=compression, wire_dtype=wire)
        estimator = clone(estimator).set_params(random_state=0, federation=federation)
        estimator = prepared(estimator, X, Y)
        seed = simulated_key(estimator).seed
        monkeypatch.setattr(secrets, "randbits", lambda n: seed)
        return estimator

    return make


ALL = {"n_rounds": 4, "client_fraction": 1.0}
CASES = [
    (CoLR(2, n_factors=3, **ALL), None),
    (CoLR(2, n_factors=3, averaging=False, **ALL), None),
    (CoLR(2, n_factors=4, **ALL), TopK(0.25)),
    (RFRec(3, n_rounds=4), TopK(0.25)),
    (RFRec(3, n_rounds=4), Quantization("int8")),
    (RFRec(3, n_rounds=4), Quantization("float16", direction="down")),
    (RFRecF(3, n_rounds=6), TopK(0.25, direction="down")),
    (FedMF(4, **ALL), TopK(0.25)),
    (FedMF(4, **ALL), Quantization("int8")),
    (FedMF(4, **ALL), LowRank(1, direction="down")),
]


@pytest.mark.parametrize(("estimator", "compression"), CASES, ids=str)
def test_changes_give_the_simulated_fit(estimator, compression, estimator_of, tmp_path):
    estimator = estimator_of(estimator, compression)
    one, nodes, watch = a_fit(estimator, tmp_path)
    server = one.run()
    assert_same(load_models(nodes), server, clone(estimator).fit(X, Y))
    assert set(watch.of("round", 0)) == {"whole"}
    later = [what for kind, n, _, what in watch.said if kind == "round" and n]
    assert set(later) - {"none"} == {"changes"}
    # Averages are no change of the last model; the last model of CoLR without them is.
    is_change = isinstance(estimator, CoLR) and not estimator.averaging
    assert set(watch.of("finish")) == {"changes" if is_change else "whole"}


@pytest.mark.parametrize("compression", [TopK(0.25), Quantization("int8"), LowRank(1)], ids=str)
def test_numbers_of_4_bytes_arrive_bit_for_bit(compression, estimator_of, tmp_path):
    estimator = estimator_of(FedMF(4, **ALL), compression, wire="float32")
    one, _, watch = a_fit(estimator, tmp_path)
    one.run()
    assert set(watch.of("round", 3)) == {"changes"}


def test_numbers_that_the_wire_rounds_are_sent_whole(estimator_of, tmp_path, monkeypatch):
    """Rounded changes of rounded models would drift away from the server's."""
    monkeypatch.setattr(CoLR, "_dtype", np.float64)
    one, _, watch = a_fit(estimator_of(CoLR(2, n_factors=3, **ALL), wire="float32"), tmp_path)
    one.run()
    assert set(watch.of("round")) == {"whole"}


def test_where_nothing_is_sent_as_a_change_nobody_keeps_messages(estimator_of, tmp_path):
    one, nodes, watch = a_fit(estimator_of(RFRec(3, n_rounds=3)), tmp_path)
    one.run()
    assert set(watch.of("round")) == {"whole"}
    assert one.progress.sent == {}
    assert nodes[1003].store.load(f"{one.progress.fit}.state").received == {}


class Halved(Compressor):
    """A compressor of a user, whose form nobody else knows."""

    direction = "down"

    def _compress(self, values, generator):
        return Compressed(values / 2, values.size, values.size)


def test_a_compressor_of_unknown_form_is_sent_as_whole_models(estimator_of, tmp_path):
    estimator = estimator_of(RFRec(3, n_rounds=3), Halved())
    one, nodes, watch = a_fit(estimator, tmp_path)
    server = one.run()
    assert_same(load_models(nodes), server, clone(estimator).fit(X, Y))
    assert set(watch.of("round")) == {"whole"}


@pytest.mark.parametrize(
    ("estimator", "compression"),
    [
        (RFRec(3, n_rounds=4, learning_rate=0.5), None),
        (RFRec(3, n_rounds=4, learning_rate=0.5), TopK(0.25, direction="down")),
        (CoLR(2, n_factors=3, averaging=False, **ALL), None),
    ],
    ids=str,
)
def test_so_do_fits_that_stop_early(estimator, compression, estimator_of, tmp_path):
    """Clients that have measured a model do not get it again for the round."""
    estimator = estimator_of(
        clone(estimator).set_params(
            early_stopping=True, validation_fraction=0.3, n_iter_no_change=9
        ),
        compression,
    )
    silo = np.zeros(len(X), dtype=int)
    one, nodes, watch = a_fit(estimator, tmp_path, silo)
    server = one.run()
    assert_same(load_models(nodes), server, clone(estimator).fit(X, Y, clients=silo))
    assert watch.of("round") == ["whole"] + 3 * ["changes"]
    assert watch.of("validate") == 4 * ["changes" if isinstance(estimator, CoLR) else "whole"]
    entries = [e for e in server.communication_.entries if e["phase"] != "catalogue"]
    sent = sum(one["bytes_down"] for one in server.traffic_)
    n_requests = sum(one["requests"] for one in server.traffic_)
    assert sent <= 1.1 * sum(e["bytes_down"] for e in entries) + 600 * n_requests


@pytest.mark.parametrize("compression", [None, TopK(0.25)], ids=str)
def test_who_was_not_in_the_last_cohort_gets_a_whole_model(compression, estimator_of, tmp_path):
    estimator = CoLR(2, n_factors=3, n_rounds=8, client_fraction=0.6)
    estimator = estimator_of(estimator, compression)
    one, nodes, watch = a_fit(estimator, tmp_path)
    server = one.run()
    assert_same(load_models(nodes), server, clone(estimator).fit(X, Y))
    last, whats = set(), []
    for number in range(8):
        asked = {node: what for k, n, node, what in watch.said if (k, n) == ("round", number)}
        assert asked == {node: "changes" if node in last else "whole" for node in asked}
        last = set(asked)
        whats += asked.values()
    assert set(whats) == {"changes", "whole"}


# --------------------------------------------------------------- what goes wrong on the way


def lost_once(kind, number, node):
    """Loses the first answer to a request, which the node has taken."""
    lost = []

    def lose(request, reply):
        step = request.kind, unpack(request.content)[0].get("number"), request.node
        if step == (kind, number, node) and not lost:
            lost.append(step)
            return None
        return reply

    return lose


CHANGING = [(CoLR(2, n_factors=3, **ALL), None), (FedMF(4, **ALL), TopK(0.25))]


@pytest.mark.parametrize(("estimator", "compression"), CHANGING, ids=str)
def test_a_lost_answer_is_asked_for_again(estimator, compression, estimator_of, tmp_path):
    """The node has taken the change already, and must not take it twice."""
    estimator = estimator_of(estimator, compression)
    one, nodes, watch = a_fit(estimator, tmp_path, tamper=lost_once("round", 2, 1003))
    server = one.run()
    assert watch.of("round", node=1003) == ["whole"] + 4 * ["changes"]
    assert_same(load_models(nodes), server, clone(estimator).fit(X, Y))


@pytest.mark.parametrize(("estimator", "compression"), CHANGING, ids=str)
def test_whose_answer_is_lost_for_good_gets_a_whole_model(
    estimator, compression, estimator_of, tmp_path
):
    """The server cannot know whether the client has the last message."""
    estimator = estimator_of(clone(estimator).set_params(n_rounds=5), compression)
    lose = lost_once("round", 2, 1003)
    one, _, watch = a_fit(estimator, tmp_path, tamper=lose, quorum=0.5)
    server = one.run()
    assert watch.of("round", node=1003) == ["whole", "changes", "changes", "whole", "changes"]
    assert watch.of("round", node=1004) == ["whole"] + 4 * ["changes"]
    ups = [e["messages_up"] for e in server.communication_.entries if e["phase"] == "round"]
    assert ups == [8, 8, 7, 8, 8]


@pytest.mark.parametrize(("estimator", "compression"), CHANGING, ids=str)
def test_a_node_with_an_older_state_asks_for_a_whole_model(
    estimator, compression, estimator_of, tmp_path
):
    estimator = estimator_of(estimator, compression)
    states = {}

    def set_back(request, reply):
        head = unpack(request.content)[0]
        if request.kind == "round" and request.node == 1003:
            store, name = nodes[1003].store, f"{head['fit']}.state"
            states[head["number"]] = store.load(name)
            if head["number"] == 1:
                store.save(name, states[0])
        return reply

    one, nodes, watch = a_fit(estimator, tmp_path, tamper=set_back)
    server = one.run()
    assert watch.of("round", 2, 1003) == ["changes", "lacks", "whole"]
    assert watch.of("round", 3, 1003) == ["changes"]
    assert server.n_rounds_ == 4
    assert watch.said.count(("round", 2, 1003, "lacks")) == len(watch.of("round", 2)) - 8 - 1


def test_two_answers_of_a_slow_node_that_lacks_a_message_are_one(estimator_of, tmp_path, caplog):
    """The server has asked it again before it has heard what the node lacks."""
    states, n_asked = {}, 0

    def set_back(request, reply):
        head = unpack(request.content)[0]
        if request.kind == "round" and request.node == 1003:
            store, name = nodes[1003].store, f"{head['fit']}.state"
            states[head["number"]] = store.load(name)
            if head["number"] == 1:
                store.save(name, states[0])
        return reply

    def is_slow(request):
        nonlocal n_asked
        is_second_round = request.kind == "round" and unpack(request.content)[0]["number"] == 2
        n_asked += is_second_round and request.node == 1003
        return is_second_round and request.node == 1003 and n_asked == 1

    estimator = estimator_of(*CHANGING[0])
    one, nodes, watch = a_fit(estimator, tmp_path, tamper=set_back)
    one.exchanges.carrier.is_slow = is_slow
    server = one.run()
    assert watch.of("round", 2, 1003) == ["changes", "lacks", "changes", "lacks", "whole"]
    ups = [e["messages_up"] for e in server.communication_.entries if e["phase"] == "round"]
    assert ups == 4 * [8]
    assert "cannot answer" not in caplog.text


def test_a_node_of_other_arithmetic_gets_whole_models_from_then_on(estimator_of, tmp_path):
    """Another processor may round a product of matrices differently."""
    estimator = estimator_of(CoLR(2, n_factors=3, **ALL))

    def bend(request, reply):
        head = unpack(request.content)[0]
        if (request.kind, head.get("number"), request.node) == ("round", 1, 1003):
            store, name = nodes[1003].store, f"{head['fit']}.state"
            memory = store.load(name)
            has = memory.received["round"][1]
            has["item_factors"] = np.nextafter(has["item_factors"], np.inf)
            store.save(name, memory)
        return reply

    one, nodes, watch = a_fit(estimator, tmp_path, tamper=bend)
    server = one.run()
    assert watch.of("round", node=1003) == ["whole", "changes", "changes", "lacks"] + 2 * ["whole"]
    assert watch.of("round", node=1004) == ["whole"] + 3 * ["changes"]
    assert_same(load_models(nodes), server, clone(estimator).fit(X, Y))


def test_who_lacks_even_whole_models_is_not_asked_for_ever(estimator_of, tmp_path, caplog):
    def lack(request, reply):
        wrong = request.kind == "round" and request.node == 1003
        return pack({"lacks": "message"}, {}) if wrong else reply

    estimator = estimator_of(RFRec(3, n_rounds=2))
    one, _, watch = a_fit(estimator, tmp_path, tamper=lack, quorum=0.5)
    server = one.run()
    assert watch.of("round", node=1003) == ["whole", "whole"]
    rounds = [e for e in server.communication_.entries if e["phase"] == "round"]
    assert [e["dropped"] for e in rounds] == [1, 1]
    assert "but was sent a whole one" in caplog.text


class Killed(BaseException):
    """As by kill -9: nothing is done about it."""


@pytest.mark.parametrize(("estimator", "compression"), CHANGING, ids=str)
def test_a_resumed_server_goes_on_with_changes(estimator, compression, estimator_of, tmp_path):
    estimator = estimator_of(estimator, compression)

    def kill(request, reply):
        if (request.kind, unpack(request.content)[0].get("number")) == ("round", 2):
            asked.append(request.node)
            if len(asked) == 4:
                raise Killed
        return reply

    asked = []
    first, nodes, _ = a_fit(estimator, tmp_path, tamper=kill)
    with pytest.raises(Killed):
        first.run()
    second = coordinator(estimator, nodes, tmp_path)
    assert second.is_resumed
    watch = Watch(second, nodes)
    server = second.run()
    assert set(watch.of("round")) == {"changes"}
    assert_same(load_models(nodes), server, clone(estimator).fit(X, Y))


@pytest.mark.parametrize("compression", [None, TopK(0.25, direction="down")], ids=str)
def test_so_does_one_that_was_killed_while_clients_measured(compression, estimator_of, tmp_path):
    """In the middle of a round whose message is out, too."""
    estimator = RFRec(3, n_rounds=4, learning_rate=0.5, early_stopping=True, n_iter_no_change=9)
    estimator = estimator_of(estimator.set_params(validation_fraction=0.5), compression)
    servers, silos = [], X[:, 0] % 3
    for kill_at in (None, "validate", "round"):

        def kill(request, reply, kill_at=kill_at):
            number = unpack(request.content)[0].get("number")
            if (request.kind, number, request.node) == (kill_at, 2, 1001):
                raise Killed
            return reply

        folder = tmp_path / str(kill_at)
        one, nodes, _ = a_fit(estimator, folder, silos, kill)
        if kill_at is not None:
            with pytest.raises(Killed):
                one.run()
            one = coordinator(estimator, nodes, folder)
            watch = Watch(one, nodes)
        servers.append(one.run())
        if kill_at is not None:
            assert set(watch.of("round")) == {"changes"}
    for other in servers[1:]:
        np.testing.assert_array_equal(other.item_factors_, servers[0].item_factors_)
        assert other.communication_ == servers[0].communication_
        assert other.best_round_ == servers[0].best_round_


@pytest.mark.parametrize(("estimator", "compression"), CHANGING, ids=str)
def test_a_late_client_begins_with_a_whole_model(estimator, compression, estimator_of, tmp_path):
    estimator = estimator_of(estimator, compression)

    def join(request, reply):
        if request.kind == "round":
            one.exchanges.carrier.connected[1003] = nodes[1003]
        return reply

    one, nodes, watch = a_fit(estimator, tmp_path, tamper=join, n_clients=7)
    del one.exchanges.carrier.connected[1003]
    one.run()
    assert watch.of("round", node=1003) == ["whole", "changes", "changes"]
    assert watch.of("round", node=1004) == ["whole"] + 3 * ["changes"]
