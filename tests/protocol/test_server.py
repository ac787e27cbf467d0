"""What a server does about uploads that it should not get, or that are malformed."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from fedrecsk import CoLR, Federation, LightFR, LocALS, RFRec, RFRecF, SCoLR
from fedrecsk.aggregation import NormClipping
from fedrecsk.data.interactions import encode
from fedrecsk.deployment import DeviceServer, Numbers
from fedrecsk.federated.rfrec import RFRecAlgorithm
from fedrecsk.privacy import LaplaceMechanism, SecAggPlus
from fedrecsk.protocol import blocks
from fedrecsk.protocol.algorithm import ChoosesCohorts
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.messages import Registration
from fedrecsk.simulation.run import Run
from tests.conftest import make_toy
from tests.protocol.test_device import devices_of, entered, first_round, updated


@pytest.fixture(autouse=True)
def one_client_in_each_block(monkeypatch):
    monkeypatch.setattr(blocks, "block_size", lambda *_: 1)


def opened(estimator):
    """A server with an open round, and the updates of the clients that were asked, as a total."""
    run = Run.new(estimator.set_params(random_state=0), encode(*make_toy()))
    run.set_up()
    server = run.server
    turn, message = server.open_round()
    received = server.algorithm.decode(message, server.key.at(0))
    total = server.new_total()
    for one in run.clients:
        one.receive(0, received, turn)
        for updates in one.update(0)[0]:
            total.add(updates)
    return server, total


def test_an_upload_of_a_client_that_was_not_asked_is_refused():
    server, uploads = deployed(RFRec(3, client_fraction=0.5, **RATES))
    asked = server.opened[0].active
    assert asked.sum() == 6
    stranger = np.flatnonzero(~asked)[0]
    with pytest.raises(
        ValueError, match=f"Client {100 + 7 * stranger} was not selected in round 0"
    ):
        server.close_round([uploads[stranger]])


def test_clients_without_any_message_yet_do_not_count_as_participants():
    stale = Federation(dropout=0.6, dropout_mode="stale")
    server, total = opened(RFRec(3, n_rounds=2, aggregation="holders", federation=stale))
    turn, _ = server.opened
    assert 0 < total.n_arrived == turn.receives.sum() < turn.active.sum() == 12
    server.close_round(total)
    entry, row = server.ledger.entries[-1], server.history[-1]
    assert entry["participants"] == row["participants"] == turn.receives.sum()
    assert entry["dropped"] == 12 - turn.receives.sum()
    other, _ = server.open_round()
    server.close_round(server.new_total())
    # Those with a message of either round.
    received = turn.receives | other.receives
    assert turn.receives.sum() < received.sum()
    assert server.ledger.entries[-1]["participants"] == received.sum()


@pytest.mark.parametrize(
    "step",
    [
        DeviceServer.open_round,
        DeviceServer.send_announcement,
        DeviceServer.send_final,
        DeviceServer.privacy_report,
        DeviceServer.setup_message,
    ],
)
def test_nothing_is_sent_before_clients_register(step):
    server = DeviceServer.of(RFRec(3, items=range(9), rating_scale=(1, 5)))
    with pytest.raises(ValueError, match=r"No client has registered yet; call register\(\) first"):
        step(server)


def test_a_registration_that_was_refused_leaves_nobody_behind():
    federation = Federation(secure_aggregation=SecAggPlus())
    server = DeviceServer.of(RFRec(3, items=range(9), rating_scale=(1, 5), federation=federation))
    one = np.ones(1, dtype=np.int64)
    clients = [Registration(np.array([name]), one, one) for name in range(5)]
    with pytest.raises(ValueError, match="at least 3"):
        server.register(clients[:2])
    server.register(clients)
    assert server.n_clients == server.n_users == len(server.n_held) == 5


def test_a_round_that_is_not_open_cannot_be_closed():
    server, total = opened(RFRec(3, n_rounds=1))
    server.close_round(total)
    with pytest.raises(ValueError, match=r"Round 1 is not open; call open_round\(\) first"):
        server.close_round(total)


class ChosenAlgorithm(RFRecAlgorithm, ChoosesCohorts):
    @property
    def traits(self):
        return replace(super().traits, chooses_cohorts=True)

    def choose(self, server, n_clients, size, key):
        return np.arange(n_clients) < size


def test_clients_that_share_state_have_cohorts_of_the_federation():
    class Chosen(RFRec):
        _kind = ChosenAlgorithm

    with pytest.raises(TypeError, match="Chosen shares state between clients of equal history"):
        opened(Chosen(3, n_rounds=1, client_fraction=0.5))


# ------------------------------------------------------------------- malformed uploads


def deployed(estimator):
    """A server with an open round, and the uploads of the devices that were asked."""
    X, y = make_toy()
    server, _, uploads = first_round(estimator.set_params(items=np.unique(X[:, 1])), X, y)
    return server, uploads


LAPLACE = LaplaceMechanism(clip=0.2, scale=0.1)
RATES = {"n_rounds": 1, "rating_scale": (1, 5)}
DEPLOYED = {
    "all": (RFRec(3, **RATES), "item_vectors"),
    "noised": (RFRec(3, federation=Federation(local_dp=LAPLACE), **RATES), "item_vectors"),
    "held": (LocALS(3, reg_user=1.0), "rows"),
    "chosen": (LightFR(5, client_fraction=1.0), "rows"),
    "bits": (LightFR(5, aggregation="parameter", client_fraction=1.0), "votes"),
    "columns": (SCoLR(3, n_factors=4, client_fraction=1.0), "updates"),
    "counts": (SCoLR(3, n_factors=4, client_fraction=1.0), "n_visits"),
}


class Hostile:
    """It raises whenever anybody looks at it."""

    def __getattr__(self, name):
        raise RuntimeError(name)


def first_row(values, number):
    """The numbers with others in the first row, as far as their type goes."""
    values = values.astype(np.float64 if values.dtype.kind == "f" else np.int64)
    values[:1] = number
    return values


BROKEN_NUMBERS = {
    "NaN": lambda n: n._replace(values=n.values * np.nan),
    "infinite": lambda n: n._replace(values=n.values + np.inf),
    "more than the type can hold": lambda n: n._replace(
        values=first_row(n.values, 1e39 if n.values.dtype.kind == "f" else 2**62)
    ),
    "too few rows": lambda n: n._replace(values=n.values[:-1]),
    "a row that would be broadcast": lambda n: n._replace(values=n.values[:1]),
    "a number that would be broadcast": lambda n: n._replace(values=np.ones(())),
    "too many columns": lambda n: n._replace(values=np.repeat(n.values, 2, axis=1)),
    "text": lambda n: n._replace(values=n.values.astype(str)),
    "complex": lambda n: n._replace(values=n.values + 0j),
    "a list": lambda n: n._replace(values=n.values.tolist()),
    "objects": lambda n: n._replace(values=n.values.astype(object)),
    "no numbers": lambda n: n._replace(values=None),
    "an object that raises": lambda n: n._replace(values=Hostile()),
    "not Numbers": lambda n: Hostile(),
    "more than Numbers": lambda n: (*n, 1),
    "rows that are not asked for, or not there": lambda n: n._replace(
        rows=np.arange(len(n.values)) if n.rows is None else None
    ),
    "rows out of range": lambda n: n._replace(rows=np.arange(len(n.values)) + 9),
    "negative rows": lambda n: n._replace(rows=np.arange(len(n.values)) - 1),
    "the same row twice": lambda n: n._replace(rows=np.zeros(len(n.values), dtype=int)),
    "rows in descending order": lambda n: n._replace(rows=np.arange(len(n.values))[::-1]),
    "real row numbers": lambda n: n._replace(rows=np.arange(len(n.values)) + 0.0),
    "columns that are numbers": lambda n: n._replace(columns=np.arange(n.values.shape[1])),
    "more columns than there are": lambda n: n._replace(columns=np.ones(99, dtype=bool)),
    "columns without numbers": lambda n: n._replace(columns=np.zeros(3, dtype=bool)),
}


@pytest.fixture(scope="module")
def pickled():
    """A server with an open round, and the uploads, of each kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "block_size", lambda *_: 1)
        return {k: pickle.dumps(deployed(clone(one))) for k, (one, _) in DEPLOYED.items()}


@pytest.mark.parametrize("kind", DEPLOYED)
@pytest.mark.parametrize("broken", BROKEN_NUMBERS)
def test_a_malformed_upload_is_rejected_and_counted(kind, broken, pickled):
    server, uploads = pickle.loads(pickled[kind])
    expected = pickle.loads(pickled[kind])[0].close_round(uploads[:5] + uploads[6:])
    _, name = DEPLOYED[kind]
    numbers = BROKEN_NUMBERS[broken](uploads[5].fields[name])
    uploads[5] = replace(uploads[5], fields=uploads[5].fields | {name: numbers})
    upload = server.close_round(uploads)
    for field, total in upload.items():
        np.testing.assert_array_equal(total.sum, expected[field].sum)
    entry = server.ledger.entries[-1]
    assert (upload.n_clients, entry["messages_up"], entry["rejected"]) == (11, 11, 1)


BROKEN_FIELDS = {
    "no field": lambda fields: {},
    "another name": lambda fields: {f"my_{name}": numbers for name, numbers in fields.items()},
    "one name more": lambda fields: fields | {"more": Numbers(np.ones(3))},
    "no dict": lambda fields: list(fields.values()),
    "None": lambda fields: None,
    "an object that raises": lambda fields: Hostile(),
}


def test_uploads_with_other_fields_are_rejected_and_counted():
    server, uploads = deployed(clone(DEPLOYED["held"][0]))
    for place, broken in enumerate(BROKEN_FIELDS.values()):
        uploads[place] = replace(uploads[place], fields=broken(uploads[place].fields))
    n_broken = len(BROKEN_FIELDS)
    assert server.close_round(uploads).n_clients == 12 - n_broken
    assert server.ledger.entries[-1]["rejected"] == n_broken


def test_if_all_are_malformed_the_model_stays_as_it_is():
    server, uploads = deployed(RFRec(3, **RATES))
    before = server.state.items.copy()
    for place, upload in enumerate(uploads):
        broken = BROKEN_NUMBERS["NaN" if place % 2 else "too few rows"]
        numbers = broken(upload.fields["item_vectors"])
        uploads[place] = replace(upload, fields={"item_vectors": numbers})
    assert server.close_round(uploads) is None
    np.testing.assert_array_equal(server.state.items, before)
    assert (server.round, server.n_empty_rounds) == (1, 1)
    assert server.ledger.entries[-1]["rejected"] == 12


def test_an_upload_from_nowhere_is_refused():
    server, uploads = deployed(RFRec(3, **RATES))
    nowhere = {"phase": [3], "round": ["0", None], "client": [1.0, np.arange(2)]}
    for name, values in nowhere.items():
        for value in values:
            wrong = replace(uploads[7], **{name: value})
            with pytest.raises(ValueError, match="An upload must name its phase"):
                server.close_round([wrong])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"client": 12}, "unknown client 12; only the 12 registered"),
        ({"client": -(10**30)}, "unknown client -1; only the 12 registered"),
        ({"client": 10**30}, "unknown client"),
        ({"client": 4}, "Client 128 has already sent in round 0"),
        ({"round": 1}, "An upload of round 1 came in round 0"),
        ({"round": -1}, "An upload of round -1 came in round 0"),
        ({"phase": "setup"}, "An upload of setup 0 came in round 0"),
        ({"phase": "validation"}, "An upload of validation 0 came in round 0"),
    ],
    ids=str,
)
def test_an_upload_that_has_no_place_is_refused_before_anything_is_counted(change, message):
    server, uploads = deployed(RFRec(3, **RATES))
    wrong = [*uploads[:7], replace(uploads[7], **change), *uploads[8:]]
    with pytest.raises(ValueError, match=message):
        server.close_round(iter(wrong))
    assert server.close_round(iter(uploads)).n_clients == 12
    entry = server.ledger.entries[-1]
    assert (entry["participants"], entry["messages_up"]) == (12, 12)
    assert server.privacy_report().n_uploads == 2


@pytest.mark.parametrize("kind", ["held", "all"])
def test_a_client_cannot_get_past_a_robust_aggregator(kind):
    estimator, name = DEPLOYED[kind]
    setting = Federation(aggregator=NormClipping(0.01))
    server, uploads = deployed(clone(estimator).set_params(federation=setting))
    idle = 12 * server._centers().get(name, 0.0)
    fields = {n: one._replace(values=one.values + 1e6) for n, one in uploads[3].fields.items()}
    uploads[3] = replace(uploads[3], fields=fields)
    upload = server.close_round(uploads)
    assert upload.n_clients == 12
    assert 0 < np.linalg.norm(upload[name].sum - idle) <= 12 * 0.01 + 1e-9


def test_a_client_that_holds_other_items_than_it_registered_is_rejected():
    X, y = make_toy()
    method = LocALS(3, reg_user=1.0, items=np.unique(X[:, 1]))
    server, devices = DeviceServer.of(method, Key(1)), devices_of(method, X, y, Key(1))
    setup, liar = devices[0].setup, devices[0]

    def forget_one(message):
        (upload,) = setup(message)
        numbers = upload.fields["held_items"]
        assert np.array_equal(numbers.rows, liar.block.row_items)
        return [
            replace(upload, fields={"held_items": Numbers(numbers.values[1:], numbers.rows[1:])})
        ]

    liar.setup = forget_one
    entered(server, devices)
    (entry,) = (one for one in server.ledger.entries if one["phase"] == "setup")
    assert entry["rejected"] == 1
    # Its rows have no numbers, so the server cannot know which they are.
    assert server.close_round(updated(server, devices[:2])).n_clients == 1
    assert server.ledger.entries[-1]["rejected"] == 1


class AlwaysAlike(CoLR._kind):
    def losses(self, model, held_out, seen):
        return np.ones((2, len(held_out.users)))


class NeverBetter(CoLR):
    """All of its models are equally good, so the first one is the best."""

    _kind = AlwaysAlike


@pytest.mark.full
def test_the_best_model_is_sent_whole_where_others_get_by_with_changes():
    """The change of the last round does not lead back to an earlier model."""
    model = NeverBetter(1, n_factors=8, n_rounds=5, client_fraction=1.0, random_state=0)
    model.set_params(early_stopping=True, validation_fraction=0.3, n_iter_no_change=99)
    ledger = model.fit(*make_toy(density=0.9)).communication_
    final, best = ledger.entries[-2:]
    assert (final["phase"], best["phase"], model.best_round_) == ("final", "best", 0)
    # A mean over rows, not a sum.
    assert [row["validation_loss"] for row in model.history_] == [1.0] * 5
    assert final["bytes_down"] < final["bytes_down_whole"] == 12 * 9 * 8 * 4
    assert best["bytes_down"] == best["bytes_down_whole"] == 12 * 9 * 8 * 4


@pytest.mark.parametrize("mode", ["upload", "stale"])
def test_rounds_without_a_single_upload_are_warned_of_once(mode):
    X, y = make_toy()
    lost = Federation(dropout=0.95, dropout_mode=mode)
    model = RFRec(3, n_rounds=20, random_state=0, federation=lost, aggregation="holders")
    with pytest.warns(ConvergenceWarning) as warned:
        model.fit(X, y)
    rounds = [e for e in model.communication_.entries if e["phase"] == "round"]
    n_empty = sum(e["messages_up"] == 0 < e["bytes_up"] for e in rounds)
    (warning,) = [one for one in warned if one.category is ConvergenceWarning]
    assert 0 < n_empty < 20
    assert f"In {n_empty} of 20 rounds every upload was lost" in str(warning.message)
    assert "lower federation.dropout" in str(warning.message)
    assert warning.filename == __file__


def test_rounds_in_which_nobody_sends_by_design_are_not_warned_of(recwarn):
    RFRecF(3, n_rounds=20, random_state=0).fit(*make_toy())
    assert not [one for one in recwarn if one.category is ConvergenceWarning]
