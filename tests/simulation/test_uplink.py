"""Contributions on their way to the server: counted, validated, protected and added up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrecsk import Federation
from fedrecsk.aggregation import Aggregator, NormClipping
from fedrecsk.compression import TopK
from fedrecsk.interactions import encode
from fedrecsk.privacy import LaplaceMechanism
from fedrecsk.simulation import Form, Ledger, Message, Ragged, Summed, Uploads
from fedrecsk.simulation.blocks import of_clients
from fedrecsk.simulation.clients import Clients
from fedrecsk.simulation.contributions import Contribution, measured
from fedrecsk.simulation.downlink import Downlink
from fedrecsk.simulation.keys import Key, Keys
from fedrecsk.simulation.participation import Turn
from fedrecsk.simulation.uplink import Uplink, aligned_size

N_CLIENTS = 7
X = {"x": Form((3,))}
KEY = Key(0, 0)


def make(federation=None, n_clients=N_CLIENTS):
    ledger = Ledger(np.arange(n_clients))
    ledger.open("round", 0)
    federation = federation or Federation()
    downlink = Downlink(federation, ledger, np.ones(n_clients, dtype=int), None)
    return Uplink(federation, ledger, downlink, None, n_clients)


def contribution(clients, turn, sound, sums, forms=X):
    """The sums of some clients, weighed with their forms."""
    clients = np.asarray(clients)
    sizes = measured(Uploads(**sums), forms, np.ones(len(clients), dtype=int), "float32")
    return Contribution.of_sums(("round", 0), clients, turn, sound, sums, sizes)


def of_everybody(values, forms):
    """One contribution for each client, all with the same values."""
    one = Turn(*np.ones((2, 1), dtype=bool), False)
    n_clients = N_CLIENTS
    return [contribution([c], one, None, dict(values), forms) for c in range(n_clients)]


MASKS = st.lists(st.booleans(), min_size=N_CLIENTS, max_size=N_CLIENTS).map(np.array)


@given(MASKS, MASKS, MASKS, st.integers(1, N_CLIENTS))
def test_the_sum_is_over_what_arrives_and_is_sound(active, delivers, sound, size):
    uplink = make()
    counted = active & delivers & sound
    values = np.arange(N_CLIENTS * 3.0).reshape(N_CLIENTS, 3)
    parts = []
    for clients in np.split(np.arange(N_CLIENTS), range(size, N_CLIENTS, size)):
        turn = Turn(active[clients], delivers[clients], False)
        sums = {"x": values[clients][counted[clients]].sum(axis=0)}
        parts.append(contribution(clients, turn, sound[clients], sums))
    if (active & delivers).any() and not counted.any():
        with pytest.raises(ValueError, match="clients diverged: all"):
            uplink.collect(parts, X, KEY)
        return
    upload = uplink.collect(parts, X, KEY)
    (entry,) = uplink.ledger.entries
    assert entry["messages_up"] == counted.sum()
    assert entry["rejected"] == (active & delivers & ~sound).sum()
    assert entry["bytes_up"] == active.sum() * 3 * 4
    assert uplink.ledger.client_bytes_up.tolist() == (active * 12).tolist()
    if counted.any():
        np.testing.assert_allclose(upload["x"].sum, values[counted].sum(axis=0))
        np.testing.assert_allclose(upload["x"].mean, values[counted].mean(axis=0))
        assert upload.n_clients == upload["x"].n_clients == counted.sum()
    else:
        assert upload is None


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_sum_that_is_not_finite_is_dropped_and_counted(broken):
    uplink = make()
    parts = of_everybody({"x": np.ones(3)}, X)
    one = Turn(*np.ones((2, 1), dtype=bool), False)
    parts[2] = contribution([2], one, None, {"x": np.array([1, broken, 1])})
    upload = uplink.collect(parts, X, KEY)
    assert upload["x"].sum.tolist() == [6, 6, 6]
    assert upload.n_clients == 6
    assert uplink.ledger.entries[-1]["rejected"] == 1


def test_contributions_are_taken_one_at_a_time():
    """A round must not need the memory of all blocks' sums."""
    uplink, alive = make(), []

    def stream():
        for one in of_everybody({"x": np.ones(3)}, X):
            alive.append(len(uplink._uploads.nonzero()[0]))
            yield one

    uplink.collect(stream(), X, KEY)
    assert alive == list(range(N_CLIENTS))


def test_what_clients_send_is_left_as_it_is():
    """They may be asked for it again."""
    parts = of_everybody({"x": np.ones(3)}, X)
    upload = make().collect(parts, X, KEY)
    assert upload["x"].sum.tolist() == [7, 7, 7]
    assert all(one.sums["x"].tolist() == [1, 1, 1] for one in parts)


def test_no_contribution_is_no_upload():
    uplink = make()
    assert uplink.collect([], X, KEY) is None
    assert uplink.ledger.bytes_up == uplink.ledger.entries[-1]["messages_up"] == 0


@pytest.mark.parametrize("n", [2**60 + 1, 2**53 + 1])
def test_integers_are_added_exactly(n):
    forms = {"n": Form((2,), dtype="int64")}
    values = {"n": np.array([n, 3])}
    upload = make().collect(of_everybody(values, forms), forms, KEY)
    assert upload["n"].sum.dtype == np.int64
    assert upload["n"].sum.tolist() == [N_CLIENTS * n, 21]


# ------------------------------------------------------------------------------- what it weighs


def sizes_of(forms, n_held, wire_dtype="float32", **fields):
    return measured(Uploads(**fields), forms, np.array(n_held), wire_dtype)


@pytest.mark.parametrize(("wire_dtype", "itemsize"), [("float32", 4), ("float64", 8)])
def test_bytes_follow_the_wire_dtype_and_the_fields_own(wire_dtype, itemsize):
    forms = {"x": Form((3, 2)), "n": Form((5,), dtype="uint8", learned=False)}
    sizes = sizes_of(forms, [1, 4], wire_dtype, x=np.ones((3, 2)), n=np.ones(5))
    assert sizes.nbytes.tolist() == [6 * itemsize + 5] * 2
    assert sizes.payload.tolist() == [6 * itemsize] * 2
    assert sizes.coordinates.tolist() == [11] * 2


def test_rows_cost_each_client_its_own_items():
    sizes = sizes_of({"q": Form((9, 4), rows="held")}, [3, 1, 0], q=np.ones((9, 4)))
    assert sizes.nbytes.tolist() == [48, 16, 0]
    assert sizes.coordinates.tolist() == [12, 4, 0]


def test_chosen_rows_cost_their_numbers_too():
    forms = {"q": Form((9, 4), rows="chosen")}
    ragged = Ragged(np.array([0, 3, 5]), np.array([0, 2, 8, 1, 2]), np.ones((5, 4)))
    for field in (ragged, Summed(np.ones((9, 4)), n_rows=np.array([3, 2]))):
        sizes = sizes_of(forms, [7, 7], q=field)
        assert sizes.nbytes.tolist() == [3 * 20, 2 * 20]
        assert sizes.payload.tolist() == [3 * 16, 2 * 16]


def test_columns_of_its_own_cost_a_client_no_others():
    forms = {"q": Form((9, 4))}
    columns = np.array([[True] * 3 + [False], [False] * 3 + [True]])
    ragged = Ragged(np.array([0, 1, 1]), np.array([5]), np.ones((1, 4)), columns=columns)
    for field in (ragged, Summed(np.ones((9, 4)), n_columns=np.array([3, 1]))):
        assert sizes_of(forms, [7, 7], q=field).nbytes.tolist() == [9 * 3 * 4, 9 * 4]


@pytest.mark.parametrize(("width", "words"), [(1, 1), (64, 1), (65, 2)])
def test_bits_cost_words_of_64(width, words):
    forms = {"q": Form((9, width), rows="chosen", bits=True)}
    sizes = sizes_of(forms, [7], q=Summed(np.ones((9, width)), n_rows=np.array([3])))
    assert sizes.nbytes.tolist() == [3 * (8 * words + 4)]


# ------------------------------------------------------------------------- local noise, aggregators


def test_noise_is_added_once_for_each_client():
    uplink = make(Federation(local_dp=LaplaceMechanism(clip=1.0, scale=0.5)))
    forms = {"x": Form((20_000,), clip=1.0)}
    everyone = Turn(*np.ones((2, N_CLIENTS), dtype=bool), False)
    sums = {"x": np.zeros(20_000)}
    upload = uplink.collect(
        [contribution(range(N_CLIENTS), everyone, None, sums, forms)], forms, KEY
    )
    assert upload["x"].sum.mean() == pytest.approx(0, abs=0.05)
    assert upload["x"].sum.var() == pytest.approx(N_CLIENTS * 2 * 0.5**2, rel=0.05)
    report = uplink.privacy_report("sums")
    assert (report.n_uploads, report.n_coordinates) == (1, 20_000)
    assert report.server_sees == "sums"
    assert report.epsilon == pytest.approx(20_000 * 4.0)


def test_noise_and_its_cost_add_up_over_blocks_and_rounds():
    uplink = make(Federation(local_dp=LaplaceMechanism(clip=1.0, scale=0.5)))
    forms, sums = {"x": Form((20_000,), clip=1.0)}, {"x": np.zeros(20_000)}
    for round, learned in enumerate([False, True, True]):
        parts = []
        # Client 0 sends in the first step only.
        for clients in ([1, 2, 3], [4, 5, 6], [0])[: 2 if round else 3]:
            turn = Turn(*np.ones((2, len(clients)), dtype=bool), False)
            parts.append(contribution(clients, turn, None, sums, forms))
        upload = uplink.collect(parts, forms, Key(0, round), learned=learned)
        n_clients = 6 if round else 7
        assert upload["x"].sum.var() == pytest.approx(n_clients * 2 * 0.5**2, rel=0.05)
        # Papers count what is learned, and not the set-up.
        payload = uplink.ledger.entries[-1]["payload_up"]
        assert payload == round * 6 * 20_000 * 4
    report = uplink.privacy_report("sums")
    assert (report.n_uploads, report.n_coordinates) == (3, 3 * 20_000)
    assert report.epsilon == pytest.approx(3 * 20_000 * 4.0)


@pytest.mark.parametrize("form", [Form((3,)), Form((3,), clip=2.0), Form((3,), "held", clip=1.0)])
@pytest.mark.parametrize("aggregator", [None, NormClipping()], ids=["sums", "one by one"])
@pytest.mark.parametrize("learned", [True, False])
def test_what_noise_would_not_protect_never_leaves_under_local_dp(form, aggregator, learned):
    mechanism = LaplaceMechanism(clip=1.0, scale=0.5)
    federation = Federation(local_dp=mechanism, aggregator=aggregator)
    form = Form(form.shape, form.rows, clip=form.clip, learned=learned)
    with pytest.raises(RuntimeError, match="Field 'x' would be sent without noise"):
        uploaded(federation, {"x": form}, x=np.ones(3))


class Method:
    """As much of a method as `Clients` need to send what they are given."""

    _single_uploads = _shares_state = _may_be_silent = False

    def __init__(self, forms, fields):
        self.forms, self.fields = forms, fields

    def _upload_forms(self, n_items):
        return self.forms

    def _init_clients(self, block, message, key):
        return {}

    def _client_update(self, block, state, message, turn, key):
        return state, Uploads(**self.fields), None


def uploaded(federation, forms, n_clients=5, **fields):
    """What the server gets of so many one-client blocks that send these fields."""
    data = encode(np.stack([np.arange(n_clients), np.zeros(n_clients)], axis=1))
    uplink, parts = make(federation, n_clients), []
    for client in range(n_clients):
        block = of_clients(data, np.array([client]))
        one = Clients(Method(forms, fields), block, federation, Keys(Key(0), Key(0)))
        one.receive(0, Message())
        parts += one.update(0)[0]
    return uplink.collect(parts, forms, KEY, learned=True)


def test_counts_get_their_noise_beside_a_robust_aggregator():
    mechanism = LaplaceMechanism(clip=1.0, scale=0.5)
    federation = Federation(local_dp=mechanism, aggregator=NormClipping(1e9))
    forms = {"q": Form((3, 2), clip=1.0), "n": Form((2,), clip=1.0, learned=False)}
    upload = uploaded(federation, forms, q=np.zeros((3, 2)), n=np.ones(2))
    assert (upload["n"].sum != 5).all()
    assert (upload["q"].sum != 0).all()


class Median(Aggregator):
    """One of a user's own; with fewer than three uploads it gives up."""

    def combine(self, uploads, shapes):
        if len(uploads) < 3:
            return None
        return {
            name: len(uploads) * np.median([one[name].change for one in uploads], axis=0)
            for name in shapes
        }


def test_an_aggregator_of_ones_own_gets_what_was_learned_and_no_counts():
    forms = {"q": Form((3, 2)), "n": Form((2,), dtype="uint8", learned=False)}
    upload = uploaded(Federation(aggregator=Median()), forms, q=np.ones((3, 2)), n=np.ones(2))
    assert upload["q"].sum.tolist() == [[5, 5]] * 3
    assert upload["n"].sum.tolist() == [5, 5]
    assert (
        uploaded(Federation(aggregator=Median()), forms, 2, q=np.ones((3, 2)), n=np.ones(2)) is None
    )


def test_integers_stay_exact_where_compression_looks_at_each():
    forms = {"n": Form((2, 1), dtype="int64")}
    n = 2**53 + 1
    upload = uploaded(Federation(compression=TopK()), forms, n=np.array([[n], [3]]))
    assert upload["n"].sum.dtype == np.int64
    assert upload["n"].sum.tolist() == [[5 * n], [15]]


def test_sizes_are_those_of_the_senders_alone():
    uplink = make()
    turn = Turn(np.arange(N_CLIENTS) < 2, np.ones(N_CLIENTS, dtype=bool), False)
    uplink.collect([contribution(range(N_CLIENTS), turn, None, {"x": np.ones(3)})], X, KEY)
    assert uplink.ledger.client_bytes_up.tolist() == [12, 12, 0, 0, 0, 0, 0]
    assert uplink._coordinates.tolist() == [3, 3, 0, 0, 0, 0, 0]


def test_a_secure_sum_takes_the_same_numbers_of_everybody():
    forms = {"q": Form((9, 4)), "n": Form((9,), dtype="uint8", learned=False)}
    assert aligned_size(forms) == 45
    for rows in ("held", "chosen"):
        with pytest.raises(RuntimeError, match="Field 'q' has rows of some items only"):
            aligned_size({"q": Form((9, 4), rows=rows)})
