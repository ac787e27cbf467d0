"""Updates on their way to the server: counted, protected and added up."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrecsk import Federation
from fedrecsk.aggregation import NormClipping
from fedrecsk.compression import TopK
from fedrecsk.data.interactions import encode
from fedrecsk.privacy import LaplaceMechanism
from fedrecsk.protocol import FieldSpec, Ledger, SparseRows, Summed, Updates
from fedrecsk.protocol.blocks import of_clients
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.links import Downlink, StepTotal, Uplink
from fedrecsk.protocol.participation import RoundMasks
from fedrecsk.protocol.protection import completed, measured
from fedrecsk.protocol.secure_accounts import aligned_size
from tests.protocol.test_compression import sent

N_CLIENTS = 7
X = {"x": FieldSpec((3,))}
KEY = Key(0, 0)


def closed(uplink, parts, specs=None, key=KEY, *, learned=False):
    """The upload of these parts, added up one after the other."""
    total = StepTotal(uplink, X if specs is None else specs, learned=learned)
    for one in parts:
        total.add(one)
    return uplink.close(total, key)


def make(federation=None, n_clients=N_CLIENTS):
    ledger = Ledger(np.arange(n_clients))
    ledger.open("round", 0)
    downlink = Downlink(federation or Federation(), ledger, np.ones(n_clients, dtype=int))
    return Uplink(downlink, n_clients)


def block_of(clients):
    """A block of these clients, who all hold one item."""
    data = encode(np.stack([np.arange(N_CLIENTS), np.zeros(N_CLIENTS)], axis=1))
    return of_clients(data, np.asarray(clients))


def summed(clients, turn, is_finite, sums, specs=X):
    """The sums of some clients, as they leave them."""
    own, updates = block_of(clients), Updates(sums, is_finite)
    plan = SimpleNamespace(name="Test", federation=Federation())
    return completed(plan, own, updates, ("round", 0), specs, turn, "sum")


def of_everybody(values, specs):
    """Updates of one client each, all with the same values."""
    one = RoundMasks(*np.ones((2, 1), dtype=bool), False)
    return [summed([client], one, None, dict(values), specs) for client in range(N_CLIENTS)]


MASKS = st.lists(st.booleans(), min_size=N_CLIENTS, max_size=N_CLIENTS).map(np.array)


@given(MASKS, MASKS, MASKS, st.integers(1, N_CLIENTS))
def test_the_sum_is_over_what_arrives_and_is_finite(active, delivers, is_finite, size):
    uplink = make()
    counted = active & delivers & is_finite
    values = np.arange(N_CLIENTS * 3.0).reshape(N_CLIENTS, 3)
    parts = []
    for clients in np.split(np.arange(N_CLIENTS), range(size, N_CLIENTS, size)):
        turn = RoundMasks(active[clients], delivers[clients], False)
        sums = {"x": values[clients][counted[clients]].sum(axis=0)}
        parts.append(summed(clients, turn, is_finite[clients], sums))
    if (active & delivers).any() and not counted.any():
        with pytest.raises(ValueError, match="clients diverged: all"):
            closed(uplink, parts)
        return
    upload = closed(uplink, parts)
    (entry,) = uplink.ledger.entries
    assert entry["messages_up"] == counted.sum()
    assert entry["rejected"] == (active & delivers & ~is_finite).sum()
    assert entry["bytes_up"] == active.sum() * 3 * 4
    assert uplink.ledger.client_bytes_up.tolist() == (active * 12).tolist()
    if counted.any():
        np.testing.assert_allclose(upload["x"].sum, values[counted].sum(axis=0))
        np.testing.assert_allclose(upload["x"].mean, values[counted].mean(axis=0))
        assert upload.n_clients == upload["x"].n_clients == counted.sum()
    else:
        assert upload is None


def test_a_sum_that_is_not_finite_is_dropped_and_counted():
    uplink = make()
    parts = of_everybody({"x": np.ones(3)}, X)
    one = RoundMasks(*np.ones((2, 1), dtype=bool), False)
    for client, broken in enumerate((np.nan, np.inf, -np.inf)):
        parts[client] = summed([client], one, None, {"x": np.array([1, broken, 1])})
    upload = closed(uplink, parts)
    assert upload["x"].sum.tolist() == [4, 4, 4]
    assert upload.n_clients == 4
    assert uplink.ledger.entries[-1]["rejected"] == 3
    # Clients may be asked again for what they have sent.
    assert all(one.fields["x"].tolist() == [1, 1, 1] for one in parts[3:])


@pytest.mark.parametrize("n", [2**60 + 1, 2**53 + 1])
def test_integers_are_added_exactly(n):
    specs, values = {"n": FieldSpec((2, 1), dtype="int64")}, np.array([[n], [3]])
    # Compression looks at each upload.
    uploads = (
        closed(make(), of_everybody({"n": values}, specs), specs),
        uploaded(Federation(compression=TopK()), specs, N_CLIENTS, n=values),
    )
    for upload in uploads:
        assert upload["n"].sum.dtype == np.int64
        assert upload["n"].sum.tolist() == [[N_CLIENTS * n], [21]]


# ------------------------------------------------------------------------------- what it weighs


def sizes_of(specs, n_held, wire_dtype="float32", **fields):
    return measured(fields, specs, np.array(n_held), wire_dtype)


@pytest.mark.parametrize(("wire_dtype", "itemsize"), [("float32", 4), ("float64", 8)])
def test_bytes_follow_the_wire_dtype_and_the_fields_own(wire_dtype, itemsize):
    specs = {"x": FieldSpec((3, 2)), "n": FieldSpec((5,), dtype="uint8", learned=False)}
    sizes = sizes_of(specs, [1, 4], wire_dtype, x=np.ones((3, 2)), n=np.ones(5))
    assert sizes[0].tolist() == [6 * itemsize + 5] * 2
    assert sizes[1].tolist() == [6 * itemsize] * 2
    assert sizes[2].tolist() == [11] * 2


def test_rows_and_columns_cost_each_client_its_own():
    x, indptr, columns = np.ones((9, 4)), np.array([0, 3, 5]), np.ones((2, 4), dtype=bool)
    sizes = sizes_of({"q": FieldSpec((9, 4), rows="held")}, [3, 1, 0], q=x)
    assert sizes[0].tolist() == [48, 16, 0]
    assert sizes[2].tolist() == [12, 4, 0]
    # Chosen rows cost their numbers too.
    rows, n_rows = SparseRows(indptr, np.array([0, 2, 8, 1, 2]), np.ones((5, 4))), np.diff(indptr)
    for field in (rows, Summed(x, n_rows=n_rows)):
        sizes = sizes_of({"q": FieldSpec((9, 4), rows="chosen")}, [7, 7], q=field)
        assert sizes[0].tolist() == [3 * 20, 2 * 20]
        assert sizes[1].tolist() == [3 * 16, 2 * 16]
    columns[0, 3:] = columns[1, :3] = False
    rows = SparseRows(np.array([0, 1, 1]), np.array([5]), np.ones((1, 4)), columns=columns)
    for field in (rows, Summed(x, n_columns=np.array([3, 1]))):
        sizes = sizes_of({"q": FieldSpec((9, 4))}, [7, 7], q=field)
        assert sizes[0].tolist() == [9 * 3 * 4, 9 * 4]
    # Bits are packed into words of 64.
    for width, words in ((1, 1), (64, 1), (65, 2)):
        specs = {"q": FieldSpec((9, width), rows="chosen", bits=True)}
        sizes = sizes_of(specs, [7], q=Summed(np.ones((9, width)), n_rows=np.array([3])))
        assert sizes[0].tolist() == [3 * (8 * words + 4)]


# ------------------------------------------------------------------------- local noise, aggregators


def test_noise_and_its_cost_add_up_over_clients_blocks_and_rounds():
    uplink = make(Federation(local_dp=LaplaceMechanism(clip=1.0, scale=0.5)))
    specs, sums = {"x": FieldSpec((20_000,), clip=1.0)}, {"x": np.zeros(20_000)}
    for round, learned in enumerate([False, True, True]):
        parts = []
        # Client 0 sends in the first step only.
        for clients in ([1, 2, 3], [4, 5, 6], [0])[: 2 if round else 3]:
            turn = RoundMasks(*np.ones((2, len(clients)), dtype=bool), False)
            parts.append(summed(clients, turn, None, sums, specs))
        upload = closed(uplink, parts, specs, Key(0, round), learned=learned)
        n_clients = 6 if round else 7
        assert upload["x"].sum.mean() == pytest.approx(0, abs=0.05)
        assert upload["x"].sum.var() == pytest.approx(n_clients * 2 * 0.5**2, rel=0.05)
        # Papers count what is learned, and not the set-up.
        payload = uplink.ledger.entries[-1]["payload_up"]
        assert payload == round * 6 * 20_000 * 4
    report = uplink.privacy_report("exact sums")
    assert (report.n_uploads, report.n_coordinates) == (3, 3 * 20_000)
    assert report.server_sees == "exact sums"
    assert report.epsilon == pytest.approx(3 * 20_000 * 4.0)


@pytest.mark.parametrize("aggregator", [None, NormClipping()], ids=["sums", "one by one"])
def test_what_noise_would_not_protect_never_leaves_under_local_dp(aggregator):
    mechanism = LaplaceMechanism(clip=1.0, scale=0.5)
    federation = Federation(local_dp=mechanism, aggregator=aggregator)
    for parts in ({}, {"clip": 2.0}, {"rows": "held", "clip": 1.0}, {"learned": False}):
        with pytest.raises(RuntimeError, match="Field 'x' would be sent without noise"):
            uploaded(federation, {"x": FieldSpec((3,), **parts)}, x=np.ones(3))


def uploaded(federation, specs, n_clients=5, **fields):
    """What the server gets of so many one-client blocks that send these fields."""
    return sent(federation, specs, lambda code: fields, n_clients, single=False)[0]


def test_counts_get_their_noise_beside_a_robust_aggregator():
    mechanism = LaplaceMechanism(clip=1.0, scale=0.5)
    federation = Federation(local_dp=mechanism, aggregator=NormClipping(1e9))
    specs = {"q": FieldSpec((3, 2), clip=1.0), "n": FieldSpec((2,), clip=1.0, learned=False)}
    upload = uploaded(federation, specs, q=np.zeros((3, 2)), n=np.ones(2))
    assert (upload["n"].sum != 5).all()
    assert (upload["q"].sum != 0).all()


def test_a_secure_sum_takes_the_same_numbers_of_everybody():
    specs = {"q": FieldSpec((9, 4)), "n": FieldSpec((9,), dtype="uint8", learned=False)}
    assert aligned_size(specs) == 45
    for rows in ("held", "chosen"):
        with pytest.raises(RuntimeError, match="Field 'q' has rows of some items only"):
            aligned_size({"q": FieldSpec((9, 4), rows=rows)})


def test_single_updates_where_a_sum_was_asked_for_are_refused():
    everyone = RoundMasks(*np.ones((2, 2), dtype=bool), False)
    rows = SparseRows(np.array([0, 1, 2]), np.array([0, 1]), np.ones(2))
    with pytest.raises(ValueError, match="returns 'x' client by client"):
        summed([0, 1], everyone, None, {"x": rows})
