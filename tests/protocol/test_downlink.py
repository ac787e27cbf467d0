"""What the server's messages weigh, and who pays for which of them."""

import numpy as np
import pytest

from fedrecsk import Federation
from fedrecsk.compression import LowRank, Quantization, TopK
from fedrecsk.privacy import CKKS
from fedrecsk.protocol import Dense, Derived, Ledger, Message, Rows
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.links import Downlink

N_CLIENTS = 7
EVERYONE = np.ones(N_CLIENTS, dtype=bool)


def make(federation=None, n_held=None):
    ledger = Ledger(np.arange(N_CLIENTS))
    ledger.open("round", 0)
    n_held = np.full(N_CLIENTS, 2) if n_held is None else np.asarray(n_held)
    return Downlink(federation or Federation(), ledger, n_held)


def last(downlink):
    entry = downlink.ledger.entries[-1]
    return [entry[f"bytes_down{x}"] for x in ("", "_whole", "_missed", "_latest")]


WHOLE, DELTA = Message(x=Dense(np.ones(10))), Message(x=Dense(np.ones(3)))


@pytest.mark.parametrize(("wire_dtype", "itemsize"), [("float32", 4), ("float64", 8)])
def test_bytes_follow_the_wire_dtype_and_the_fields_own(wire_dtype, itemsize):
    downlink = make(Federation(wire_dtype=wire_dtype))
    message = Message(
        x=Dense(np.ones((3, 2))),
        n=Dense(np.ones(5), dtype="uint8"),
        basis=Dense(np.ones(2), learned=False),
        computed=Derived(np.ones(1000)),
    )
    assert downlink.send(message, EVERYONE) is message
    assert downlink.ledger.bytes_down == N_CLIENTS * (8 * itemsize + 5)
    assert downlink.ledger.entries[-1]["payload_down"] == N_CLIENTS * 6 * itemsize


def test_rows_cost_those_who_receive_them_their_own_items():
    downlink = make(n_held=[3, 1, 1, 0, 0, 0, 0])
    message = Message(q=Rows(np.ones((9, 4))), n=Rows(np.ones(9), dtype="uint8"))
    downlink.send(message, np.arange(N_CLIENTS) != 1)
    assert downlink.ledger.client_bytes_down.tolist() == [51, 0, 17, 0, 0, 0, 0]
    assert downlink.ledger.entries[-1]["messages_down"] == 6


def test_updates_cost_what_each_client_missed_or_the_whole_model_if_that_is_less():
    downlink = make()
    first, late = np.arange(N_CLIENTS) < 4, np.arange(N_CLIENTS) == 0
    readings = []
    for receives, new in [(first, None), (late, DELTA), (~first, DELTA), (first, DELTA)]:
        downlink.ledger.open("round")
        downlink.send(WHOLE, receives, new)
        readings.append(last(downlink))
    downlink.ledger.open("round")
    downlink.send(WHOLE, late, DELTA)
    assert [*readings, last(downlink)] == [
        [4 * 40, 4 * 40, 4 * 40, 4 * 40],
        [12, 40, 12, 12],
        [3 * 40, 3 * 40, 3 * 40, 3 * 12],
        [24 + 3 * 36, 4 * 40, 24 + 3 * 36, 4 * 12],
        [12, 40, 12, 12],
    ]
    sums = downlink.ledger.client_bytes_down.tolist()
    assert sums == [40 + 12 + 24 + 12, 76, 76, 76, 40, 40, 40]


def test_after_a_whole_model_only_the_whole_will_do_for_those_who_missed_it():
    downlink = make()
    downlink.send(WHOLE, EVERYONE)
    downlink.send(WHOLE, np.arange(N_CLIENTS) == 0)
    downlink.ledger.open("round")
    downlink.send(WHOLE, EVERYONE, DELTA)
    assert last(downlink) == [12 + 6 * 40, 7 * 40, 12 + 6 * 40, 7 * 12]


def test_an_announcement_is_no_model():
    downlink = make()
    downlink.announce(Message(x=Dense(np.ones(2))))
    delta = Message(x=Dense(np.ones(1)))
    downlink.send(Message(x=Dense(np.ones(10))), np.arange(N_CLIENTS) < 1, delta)
    assert downlink.ledger.client_bytes_down.tolist() == [48] + [8] * 6


# ---------------------------------------------------------------------------- compression


def test_what_one_message_lacks_comes_in_the_next():
    downlink = make(Federation(compression=TopK(1 / 8)))
    first, model = np.zeros((4, 2)), np.arange(1.0, 9.0).reshape(4, 2)
    received = downlink.send(Message(q=Dense(first)), EVERYONE, key=Key(0, 0))
    np.testing.assert_array_equal(received["q"].values, first)
    for t in range(8):
        received = downlink.send(Message(q=Dense(model)), EVERYONE, key=Key(0, t + 1))
        assert (received["q"].values != 0).sum() == t + 1
    np.testing.assert_array_equal(received["q"].values, model)
    assert downlink.ledger.client_bytes_down.tolist() == [32 + 8 * 8] * N_CLIENTS


def test_what_is_no_matrix_of_learned_numbers_is_sent_as_it_is():
    fields = {
        "rows": Rows(np.ones((4, 2))),
        "vector": Dense(np.ones(8)),
        "not_learned": Dense(np.ones((4, 2)), learned=False),
        "not_compressible": Dense(np.ones((4, 2)), compressible=False),
        "integers": Dense(np.ones((4, 2), dtype=np.uint64), dtype="uint64"),
    }
    downlink = make(Federation(compression=LowRank(1)))
    for t in range(3):
        received = downlink.send(Message(**fields), EVERYONE, key=Key(0, t))
        for name, field in fields.items():
            assert received[name].values is field.values
            assert received[name].packed is None


@pytest.mark.parametrize("direction", ["up", "both"])
def test_the_last_model_is_whole_and_so_is_every_one_if_only_uploads_are_compressed(direction):
    downlink = make(Federation(compression=TopK(1 / 8, direction=direction)))
    keys = [None, None] if direction == "both" else [Key(0, 0), Key(0, 1)]
    for key in keys:
        model = np.random.default_rng(1).random((4, 2))
        received = downlink.send(Message(q=Dense(model)), EVERYONE, key=key)
        np.testing.assert_array_equal(received["q"].values, model)
    assert downlink.ledger.client_bytes_down.tolist() == [64] * N_CLIENTS


def test_a_model_that_does_not_fit_into_float16_says_so():
    downlink = make(Federation(compression=Quantization("float16")))
    downlink.send(Message(q=Dense(np.zeros((3, 2)))), EVERYONE, key=Key(0, 0))
    with pytest.raises(ValueError, match=r'change of q in round 1 .* use Quantization."int8"'):
        downlink.send(Message(q=Dense(np.full((3, 2), 1e6))), EVERYONE, key=Key(0, 1))


# ------------------------------------------------------------------------- encrypted sums


class Channel:
    """Ciphertexts of 1000 bytes and one for each number."""

    def nbytes(self, n_values):
        return 1000 + n_values


def test_under_encryption_every_sum_is_received_once_whoever_was_away():
    downlink = make(Federation(secure_aggregation=CKKS()))
    downlink.channel = Channel()
    model = Message(
        q=Dense(np.ones((5, 2))), basis=Dense(np.ones(2), learned=False), d=Derived(np.ones(99))
    )
    here = np.arange(N_CLIENTS) < 3
    # Before the first model nobody is owed anything: the set-up's sums stay with the server.
    downlink.owe(5000)
    downlink.send(model, here)
    drawn, basis = 4 * 12, 4 * 2
    assert downlink.ledger.client_bytes_down.tolist() == [drawn] * 3 + [0] * 4
    downlink.owe(1010)
    downlink.send(model, here)
    downlink.owe(1020)
    downlink.send(model, EVERYONE)
    each = drawn + 1010 + basis + 1020 + basis
    assert downlink.ledger.client_bytes_down.tolist() == [each] * N_CLIENTS
    downlink.send(model, EVERYONE)
    assert downlink.ledger.client_bytes_down.tolist() == [each + basis] * N_CLIENTS
