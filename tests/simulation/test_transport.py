import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrecsk import Federation
from fedrecsk.interactions import encode
from fedrecsk.privacy import LaplaceMechanism
from fedrecsk.simulation.blocks import cut
from fedrecsk.simulation.keys import Key
from fedrecsk.simulation.messages import Dense, Message, Rows
from fedrecsk.simulation.transport import Transport

N_CLIENTS = 7


def make(federation=None, max_ratings=2):
    X = np.stack([np.repeat(np.arange(N_CLIENTS), 2), np.tile([0, 1], N_CLIENTS)], axis=1)
    data = encode(X)
    transport = Transport(federation or Federation(), data.client_ids)
    transport.ledger.open("round", 0)
    return transport, cut(data, max_ratings=max_ratings)


MASKS = st.lists(st.booleans(), min_size=N_CLIENTS, max_size=N_CLIENTS).map(np.array)


@given(MASKS, MASKS, MASKS, st.integers(1, 14))
def test_the_sum_is_over_what_arrives_and_is_sound(active, arrives, sound, max_ratings):
    transport, blocks = make(max_ratings=max_ratings)
    delivers = active & arrives
    counted = delivers & sound
    values = np.arange(N_CLIENTS * 3.0).reshape(N_CLIENTS, 3)
    parts = [
        Message(x=Dense(values[b.clients[counted[b.clients]]].sum(axis=0)), sound=sound[b.clients])
        if active[b.clients].any()
        else None
        for b in blocks
    ]
    if delivers.any() and not counted.any():
        with pytest.raises(ValueError, match="clients diverged: all"):
            transport.up(blocks, parts, active, delivers, Key(0, 0))
        return
    upload = transport.up(blocks, parts, active, delivers, Key(0, 0))
    entry = transport.ledger.entries[-1]
    assert entry["messages_up"] == counted.sum()
    assert entry["rejected"] == (delivers & ~sound).sum()
    assert entry["bytes_up"] == active.sum() * 3 * 4
    assert transport.ledger.client_bytes_up.tolist() == (active * 12).tolist()
    if counted.any():
        assert upload["x"].sum == pytest.approx(values[counted].sum(axis=0))
        assert upload["x"].mean == pytest.approx(values[counted].mean(axis=0))
        assert upload.n_clients == counted.sum()
    else:
        assert upload is None


@pytest.mark.parametrize("broken", [np.array([np.nan, 1.0]), np.array([np.inf, 1.0]), np.ones(3)])
def test_a_broken_block_is_dropped_and_counted(broken):
    transport, blocks = make()
    everyone = np.ones(N_CLIENTS, dtype=bool)
    parts = [Message(x=Dense(np.ones(2))) for _ in blocks]
    parts[2] = Message(x=Dense(broken))
    upload = transport.up(blocks, parts, everyone, everyone, Key(0, 0))
    assert upload["x"].sum.tolist() == [6.0, 6.0]
    assert upload.n_clients == N_CLIENTS - 1
    assert transport.ledger.entries[-1]["rejected"] == 1


def test_bytes_follow_the_wire_dtype_and_the_fields_own():
    transport, blocks = make(Federation(wire_dtype="float64"))
    everyone = np.ones(N_CLIENTS, dtype=bool)
    message = Message(x=Dense(np.ones((3, 2))), n=Dense(np.ones(5), dtype="uint8"))
    transport.down(blocks, message, everyone)
    assert transport.ledger.bytes_down == N_CLIENTS * (6 * 8 + 5)
    transport.down(blocks, None, everyone)
    assert transport.ledger.bytes_down == N_CLIENTS * (6 * 8 + 5)


def test_noise_is_added_once_for_each_client():
    mechanism = LaplaceMechanism(clip=1.0, scale=0.5)
    transport, blocks = make(Federation(local_dp=mechanism), max_ratings=99)
    everyone = np.ones(N_CLIENTS, dtype=bool)
    part = Message(x=Dense(np.zeros(20_000), clip=1.0))
    upload = transport.up(blocks, [part], everyone, everyone, Key(0, 0))
    assert upload["x"].sum.mean() == pytest.approx(0, abs=0.05)
    assert upload["x"].sum.var() == pytest.approx(N_CLIENTS * 2 * 0.5**2, rel=0.05)
    report = transport.privacy_report()
    assert (report.n_uploads, report.n_coordinates) == (1, 20_000)
    assert report.epsilon == pytest.approx(20_000 * 4.0)


def test_an_unclipped_field_never_leaves_under_local_dp():
    transport, blocks = make(Federation(local_dp=LaplaceMechanism(clip=1.0, scale=0.5)))
    everyone = np.ones(N_CLIENTS, dtype=bool)
    with pytest.raises(RuntimeError, match="without the clip"):
        transport.up(blocks, [Message(x=Dense(np.ones(2)))] * 7, everyone, everyone, Key(0, 0))


def test_the_ledger_adds_up_and_shows_itself():
    transport, blocks = make()
    hears = np.arange(N_CLIENTS) < 3
    transport.down(blocks, Message(x=Dense(np.ones(10))), hears)
    transport.ledger.open("round", 1)
    transport.down(blocks, Message(x=Dense(np.ones(10))), ~hears)
    ledger = transport.ledger
    assert sum(e["bytes_down"] for e in ledger.entries) == ledger.bytes_down == 7 * 40
    assert ledger.client_bytes_down.tolist() == [40] * 7
    assert "2 rounds, 7 clients" in repr(ledger)
    frame = ledger.to_frame()
    assert frame["bytes_down"].tolist() == [120, 160]
    copied = copy.deepcopy(ledger)
    copied.count(dropped=1)
    assert copied != ledger and ledger == copy.deepcopy(ledger)


def test_rows_cost_each_client_its_own_items():
    X = np.array([[0, 5], [0, 6], [0, 7], [1, 5], [2, 6], [3, 6]])
    data = encode(X, clients=np.array([0, 0, 0, 1, 2, 2]))
    transport = Transport(Federation(), data.client_ids)
    transport.ledger.open("round", 0)
    blocks = cut(data, max_ratings=3)
    everyone = np.ones(3, dtype=bool)
    transport.down(blocks, Message(q=Rows(np.ones((3, 4)))), everyone)
    assert transport.ledger.client_bytes_down.tolist() == [3 * 16, 16, 16]
    parts = [Message(q=Rows(np.ones((3, 4)))) for _ in blocks]
    transport.up(blocks, parts, everyone, everyone, Key(0, 0))
    assert transport.ledger.client_bytes_up.tolist() == [3 * 16, 16, 16]
    assert transport.privacy_report().n_coordinates == 12


def test_news_cost_what_each_client_missed_or_the_whole_model_if_that_is_less():
    transport, blocks = make()
    whole, news = Message(x=Dense(np.ones(10))), Message(x=Dense(np.ones(3)))
    first, late = np.arange(N_CLIENTS) < 4, np.arange(N_CLIENTS) == 0
    readings = []
    for hears, new in [(first, None), (late, news), (~first, news), (first, news), (late, news)]:
        transport.ledger.open("round")
        transport.down(blocks, whole, hears, new)
        entry = transport.ledger.entries[-1]
        readings.append([entry[f"bytes_down{x}"] for x in ("", "_whole", "_missed", "_latest")])
    assert readings == [
        [4 * 40, 4 * 40, 4 * 40, 4 * 40],
        [12, 40, 12, 12],
        [3 * 40, 3 * 40, 3 * 40, 3 * 12],
        [24 + 3 * 36, 4 * 40, 24 + 3 * 36, 4 * 12],
        [12, 40, 12, 12],
    ]
    sums = transport.ledger.client_bytes_down.tolist()
    assert sums == [40 + 12 + 24 + 12, 76, 76, 76, 40, 40, 40]


def test_an_announcement_is_no_model():
    transport, blocks = make()
    transport.announce(blocks, Message(x=Dense(np.ones(2))))
    news = Message(x=Dense(np.ones(1)))
    transport.down(blocks, Message(x=Dense(np.ones(10))), np.arange(N_CLIENTS) < 1, news)
    assert transport.ledger.client_bytes_down.tolist() == [48] + [8] * 6


def test_an_empty_message_is_no_upload():
    transport, blocks = make()
    everyone = np.ones(N_CLIENTS, dtype=bool)
    assert transport.up(blocks, [Message()] * 7, everyone, everyone, Key(0, 0)) is None
    assert transport.ledger.bytes_up == transport.ledger.entries[-1]["messages_up"] == 0
    assert Message().sizes(blocks[0]).tolist() == [0] * blocks[0].n_clients
