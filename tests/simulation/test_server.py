"""What a server does about uploads that it should not get, or that are malformed."""

from dataclasses import replace

import numpy as np
import pytest
from joblib import Parallel
from sklearn.exceptions import ConvergenceWarning

from fedrecsk import CoLR, Federation, LightFR, LocALS, RFRec, RFRecF
from fedrecsk.aggregation import NormClipping
from fedrecsk.federated._fit import Loop, Run
from fedrecsk.interactions import encode
from fedrecsk.simulation import Server, blocks
from fedrecsk.simulation.clients import Registration
from fedrecsk.simulation.keys import Key
from tests.conftest import make_toy


@pytest.fixture(autouse=True)
def one_client_in_each_block(monkeypatch):
    monkeypatch.setattr(blocks, "block_size", lambda data: 1)


def opened(estimator):
    """A server with an open round, and the uploads of the clients that were asked."""
    run = Run.new(estimator.set_params(random_state=0), encode(*make_toy()))
    Loop(run, Parallel(require="sharedmem", return_as="generator")).set_up()
    server = run.server
    turn, message = server.open_round()
    received = server.method._on_receipt(message, server.key.at(0))
    uploads = []
    for one in run.clients:
        one.receive(0, received, turn)
        uploads += one.update(0)[0]
    return server, [replace(upload, checked=False) for upload in uploads]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": np.array([12])}, "unknown client 12; only the 12 clients"),
        ({"clients": np.array([-1])}, "unknown client -1; only the 12 clients"),
        ({"clients": np.array([4])}, "Client 128 has sent already in round 0"),
        ({"round": 1}, "An upload of round 1 came in round 0"),
        ({"round": -1}, "An upload of round -1 came in round 0"),
        ({"phase": "setup"}, "An upload of setup 0 came in round 0"),
        ({"phase": "validation"}, "An upload of validation 0 came in round 0"),
    ],
    ids=str,
)
def test_an_upload_that_has_no_place_in_the_round_is_refused(change, message):
    server, uploads = opened(RFRec(3, n_rounds=1))
    uploads[7] = replace(uploads[7], **change)
    with pytest.raises(ValueError, match=message):
        server.close_round(uploads)


def test_two_uploads_of_one_client_are_refused_in_one_contribution_too():
    server, uploads = opened(RFRec(3, n_rounds=1))
    both = {name: np.repeat(getattr(uploads[3], name), 2) for name in ("clients", "sends")}
    with pytest.raises(ValueError, match="Client 121 has sent already in round 0"):
        server.close_round([replace(uploads[3], **both)])


def test_an_upload_of_a_client_that_was_not_asked_is_refused():
    server, uploads = opened(RFRec(3, n_rounds=1, client_fraction=0.5))
    asked = server._participation.active
    assert len(uploads) == asked.sum() == 6
    stranger = np.flatnonzero(~asked)[:1]
    uploads[0] = replace(uploads[0], clients=stranger)
    with pytest.raises(
        ValueError, match=f"Client {100 + 7 * stranger[0]} was not asked in round 0"
    ):
        server.close_round(uploads)


def test_a_round_that_is_not_open_cannot_be_closed():
    server, uploads = opened(RFRec(3, n_rounds=1))
    server.close_round(uploads)
    with pytest.raises(ValueError, match=r"Round 1 is not open; call open_round\(\) first"):
        server.close_round(uploads)


def test_a_client_that_registers_twice_is_named():
    server = Server(RFRec(3), Federation(), Key(0), np.arange(5), (1, 5))
    one, two = np.ones(1, dtype=int), np.ones(2, dtype=int)
    ids = np.array(["ann", "bob"]), np.array(["bob"])
    with pytest.raises(ValueError, match="Client bob registers twice; give it one id"):
        server.register([Registration(ids[0], two, two), Registration(ids[1], one, one)])


def test_places_follow_the_order_of_the_ids():
    server = Server(RFRec(3), Federation(), Key(0), np.arange(5), (1, 5))
    places = server.register(
        [
            Registration(np.array([30, 10]), np.array([3, 1]), np.array([1, 1])),
            Registration(np.array([20]), np.array([2]), np.array([1])),
        ]
    )
    assert [place.clients.tolist() for place in places] == [[2, 0], [1]]
    assert [place.first_users.tolist() for place in places] == [[3, 0], [1]]
    assert server.client_ids.tolist() == [10, 20, 30] and server.n_users == 6


# ------------------------------------------------------------------------ malformed uploads

BROKEN_SUMS = {
    "NaN": lambda sums: {name: values * np.nan for name, values in sums.items()},
    "infinite": lambda sums: {name: values + np.inf for name, values in sums.items()},
    "too few rows": lambda sums: {name: values[:-1] for name, values in sums.items()},
    "a row that would be broadcast": lambda sums: {n: values[:1] for n, values in sums.items()},
    "a number that would be broadcast": lambda sums: {n: np.ones(()) for n in sums},
    "too many columns": lambda sums: {n: np.repeat(v, 2, axis=1) for n, v in sums.items()},
    "another name": lambda sums: {f"my_{name}": values for name, values in sums.items()},
    "one name more": lambda sums: sums | {"more": np.ones(3)},
    "no field": lambda sums: {},
    "text": lambda sums: {name: values.astype(str) for name, values in sums.items()},
    "complex": lambda sums: {name: values + 0j for name, values in sums.items()},
    "a list": lambda sums: {name: values.tolist() for name, values in sums.items()},
}


@pytest.mark.parametrize("broken", BROKEN_SUMS)
@pytest.mark.parametrize("place", [0, 5, 11])
def test_a_malformed_sum_is_rejected_and_counted(broken, place):
    server, uploads = opened(RFRec(3, n_rounds=1))
    expected = sum(u.sums["item_vectors"] for k, u in enumerate(uploads) if k != place)
    uploads[place] = replace(uploads[place], sums=BROKEN_SUMS[broken](uploads[place].sums))
    upload = server.close_round(uploads)
    np.testing.assert_allclose(upload["item_vectors"].sum, expected)
    entry = server.ledger.entries[-1]
    assert (upload.n_clients, entry["messages_up"], entry["rejected"]) == (11, 11, 1)
    assert np.isfinite(server.state["item_vectors"]).all()


def test_nobody_can_claim_that_its_upload_was_accepted_though_it_was_lost():
    server, uploads = opened(RFRec(3, n_rounds=1))
    uploads[2] = replace(uploads[2], arrives=np.zeros(1, dtype=bool))
    assert server.close_round(uploads).n_clients == 11


@pytest.mark.parametrize("broken", ["NaN", "too few rows", "no field"])
def test_if_all_are_malformed_the_fit_ends_with_what_to_do(broken):
    server, uploads = opened(RFRec(3, n_rounds=1))
    uploads = [replace(u, sums=BROKEN_SUMS[broken](u.sums)) for u in uploads]
    with pytest.raises(ValueError, match="all 12 uploads of round 0 held NaN"):
        server.close_round(uploads)


def test_an_integer_field_takes_no_real_numbers():
    server, uploads = opened(LightFR(5, n_rounds=1, client_fraction=1.0))
    uploads[1].sums["rows"] = uploads[1].sums["rows"] + 0.5
    assert server.close_round(uploads).n_clients == 11


def with_field(batch, name, **changes):
    """The batch with one field replaced."""
    part = batch.changes if name in batch.changes else batch.counts
    other = part | {name: replace(part[name], **changes)}
    return replace(batch, **{"changes" if name in batch.changes else "counts": other})


def without_field(batch, name):
    return replace(batch, changes={n: c for n, c in batch.changes.items() if n != name})


BROKEN_BATCHES = {
    "rows out of range": lambda b, r: with_field(b, "rows", rows=r.rows + 9),
    "negative rows": lambda b, r: with_field(b, "rows", rows=r.rows - 9),
    "the same row twice": lambda b, r: with_field(b, "rows", rows=np.zeros_like(r.rows)),
    "rows in descending order": lambda b, r: with_field(b, "rows", rows=r.rows[::-1].copy()),
    "real row numbers": lambda b, r: with_field(b, "rows", rows=r.rows + 0.0),
    "NaN": lambda b, r: with_field(b, "rows", values=r.values * np.nan),
    "too few values": lambda b, r: with_field(b, "rows", values=r.values[1:]),
    "too few columns": lambda b, r: with_field(b, "rows", values=r.values[:, 1:]),
    "another shape": lambda b, r: with_field(b, "rows", form=replace(r.form, shape=(99, 3))),
    "bounds beyond the end": lambda b, r: with_field(b, "rows", indptr=r.indptr * 2),
    "bounds that fall": lambda b, r: with_field(b, "rows", indptr=r.indptr[::-1].copy()),
    "an origin of another shape": lambda b, r: with_field(b, "rows", origin=np.zeros((1, 3))),
    "no field": lambda b, r: without_field(b, "rows"),
    "a field more": lambda b, r: replace(b, counts=b.counts | {"more": r}),
    "a field twice": lambda b, r: replace(b, counts=b.counts | {"rows": r}),
    "a center of another shape": lambda b, r: replace(b, centers={"rows": np.zeros((1, 3))}),
    "a center that is not finite": lambda b, r: replace(
        b, centers={"rows": np.full((9, 3), np.inf)}
    ),
    "a center of no field": lambda b, r: replace(b, centers={"more": np.zeros((9, 3))}),
}


@pytest.mark.parametrize("broken", BROKEN_BATCHES)
@pytest.mark.parametrize("place", [0, 7])
def test_a_malformed_single_upload_is_rejected_and_counted(broken, place):
    setting = Federation(aggregator=NormClipping(1e9))
    server, uploads = opened(LocALS(3, n_rounds=1, reg_user=1.0, federation=setting))
    expected = sum(u.batch.sum_of_changes("rows") for k, u in enumerate(uploads) if k != place)
    batch = uploads[place].batch
    broken_batch = BROKEN_BATCHES[broken](batch, batch.changes["rows"])
    uploads[place] = replace(uploads[place], batch=broken_batch)
    upload = server.close_round(uploads)
    np.testing.assert_allclose(upload["rows"].sum, expected, atol=1e-12)
    entry = server.ledger.entries[-1]
    assert (upload.n_clients, entry["messages_up"], entry["rejected"]) == (11, 11, 1)


def test_one_malformed_upload_in_a_batch_of_many_costs_the_others_nothing(monkeypatch):
    monkeypatch.setattr(blocks, "block_size", lambda data: 10**6)
    setting = Federation(aggregator=NormClipping(1e9))
    server, (everybody,) = opened(LocALS(3, n_rounds=1, reg_user=1.0, federation=setting))
    ragged = everybody.batch.changes["rows"]
    rows, values = ragged.rows.copy(), ragged.values.copy()
    rows[ragged.indptr[3]] = 9
    values[ragged.indptr[6]] = np.inf
    # Two rows of client 8 are the wrong way round.
    rows[ragged.indptr[8] : ragged.indptr[8] + 2] = rows[ragged.indptr[8] : ragged.indptr[8] + 2][
        ::-1
    ]
    expected = np.zeros((9, 3))
    for client in set(range(12)) - {3, 6, 8}:
        expected += ragged.whole(client)
    batch = with_field(everybody.batch, "rows", rows=rows, values=values)
    upload = server.close_round([replace(everybody, batch=batch)])
    assert (upload.n_clients, server.ledger.entries[-1]["rejected"]) == (9, 3)
    np.testing.assert_allclose(upload["rows"].sum, expected, atol=1e-12)


@pytest.mark.parametrize(
    "estimator",
    [RFRec(3), LocALS(3, reg_user=1.0), CoLR(2, n_factors=3), LightFR(5)],
    ids=lambda one: type(one).__name__,
)
@pytest.mark.parametrize("aggregator", [None, NormClipping(1e9)], ids=["sums", "batches"])
def test_what_methods_send_is_well_formed(estimator, aggregator):
    """What the simulator does not check again would pass."""
    setting = Federation(aggregator=aggregator)
    server, uploads = opened(estimator.set_params(client_fraction=1.0, federation=setting))
    assert server.close_round(uploads).n_clients == 12


# ------------------------------------------------------------------------------ what is sent


class NeverBetter(CoLR):
    """All of its models are equally good, so the first one is the best."""

    def _validation_losses(self, held_out):
        return np.ones((2, len(held_out.users)))


def test_the_best_model_is_sent_whole_where_others_get_by_with_changes():
    """The change of the last round does not lead back to an earlier model."""
    model = NeverBetter(1, n_factors=8, n_rounds=5, client_fraction=1.0, random_state=0)
    model.set_params(early_stopping=True, validation_fraction=0.3, n_iter_no_change=99)
    ledger = model.fit(*make_toy(density=0.9)).communication_
    final, best = ledger.entries[-2:]
    assert (final["phase"], best["phase"], model.best_round_) == ("final", "best", 0)
    assert final["bytes_down"] < final["bytes_down_whole"] == 12 * 9 * 8 * 4
    assert best["bytes_down"] == best["bytes_down_whole"] == 12 * 9 * 8 * 4


# --------------------------------------------------------------------------- empty rounds


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


def test_a_model_stays_what_it_is_in_an_empty_round():
    server, uploads = opened(RFRec(3, n_rounds=1))
    before = server.state["item_vectors"].copy()
    nobody = np.zeros(1, dtype=bool)
    lost = [replace(u, arrives=nobody, accepted=nobody, sums={}) for u in uploads]
    assert server.close_round(lost) is None
    np.testing.assert_array_equal(server.state["item_vectors"], before)
    assert server.n_empty_rounds == 1 and server.ledger.entries[-1]["rejected"] == 0


def test_rounds_in_which_nobody_sends_by_design_are_not_warned_of(recwarn):
    RFRecF(3, n_rounds=20, random_state=0).fit(*make_toy())
    assert not [one for one in recwarn if one.category is ConvergenceWarning]
