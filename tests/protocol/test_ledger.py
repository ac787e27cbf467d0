import copy

import numpy as np
import pytest

from fedrecsk.protocol import Ledger


def ledger_of_two_rounds():
    ledger = Ledger(np.array(["ann", "bob", "cem"]))
    ledger.open("setup", 0)
    ledger.up(np.arange(3), np.full(3, 8))
    for round, clients in enumerate([[0, 1], [2]]):
        ledger.open("round", round)
        clients = np.array(clients)
        sizes = 100 * (1 + clients)
        ledger.down(clients, sizes, sizes - 10, sizes - 40, sizes - 50)
        ledger.up(clients, sizes, sizes // 2)
        ledger.count(participants=len(clients), messages_up=len(clients))
    return ledger


def test_entries_and_clients_add_up_to_the_same():
    ledger = ledger_of_two_rounds()
    assert sum(e["bytes_down"] for e in ledger.entries) == ledger.bytes_down == 600 - 30
    assert sum(e["bytes_up"] for e in ledger.entries) == ledger.bytes_up == 600 + 24
    assert ledger.client_bytes_down.tolist() == [90, 190, 290]
    assert ledger.client_bytes_up.tolist() == [108, 208, 308]
    assert [e["payload_up"] for e in ledger.entries] == [0, 150, 150]
    assert [e["payload_down"] for e in ledger.entries] == [0, 200, 250]
    assert [e["messages_down"] for e in ledger.entries] == [0, 2, 1]


def readings(ledger):
    """The bytes down of the last entry, by way of counting."""
    return [ledger.entries[-1][f"bytes_down{x}"] for x in ("", "_whole", "_missed", "_latest")]


def test_a_client_receives_the_smaller_of_the_whole_and_what_it_has_missed():
    ledger = Ledger(np.arange(2))
    ledger.open("round", 0)
    ledger.down(np.arange(2), np.array([40, 40]), np.array([12, 90]), np.array([12, 12]))
    assert readings(ledger) == [52, 80, 102, 24]
    assert ledger.client_bytes_down.tolist() == [12, 40]
    # What comes with the same message, and what has one way of counting, counts alike in all.
    ledger.more_down(np.array([1, 0]), np.array([5, 7]))
    assert readings(ledger) == [64, 92, 114, 36]
    assert ledger.client_bytes_down.tolist() == [19, 45]
    assert ledger.entries[-1]["messages_down"] == 2
    ledger.open("catalogue")
    ledger.down(np.arange(2), np.full(2, 7))
    assert readings(ledger) == [14] * 4
    assert ledger.entries[-1]["payload_down"] == 0


def test_ledgers_of_several_fits_join_into_one():
    one, other = ledger_of_two_rounds(), ledger_of_two_rounds()
    other.more_down(np.array([1]), np.array([1000]))
    whole = Ledger.joined([one, other])
    assert whole.entries == one.entries + other.entries
    assert whole.client_bytes_down.tolist() == [180, 380 + 1000, 580]
    assert whole.client_bytes_up.tolist() == [216, 416, 616]
    whole.count(dropped=1)
    assert other.entries[-1]["dropped"] == 0


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_400, "999 kB"), (2_345_678, "2.35 MB")],
)
def test_sizes_are_written_in_powers_of_1000(nbytes, text):
    ledger = Ledger(np.arange(2))
    ledger.open("round", 0)
    ledger.up(np.array([0]), np.array([2 * nbytes]))
    assert f"per client {text} up and 0 B down" in repr(ledger)
    # The rounds and the total, per client.
    assert ledger._repr_html_().count(f">{text}</td>") >= 2


def test_it_is_equal_to_its_copy_until_one_of_them_goes_on():
    ledger = ledger_of_two_rounds()
    copied = copy.deepcopy(ledger)
    assert copied == ledger
    assert copied != "a ledger"
    copied.count(dropped=1)
    assert copied != ledger
    copied = copy.deepcopy(ledger)
    copied.client_bytes_up[0] += 1
    assert copied != ledger
    with pytest.raises(TypeError, match="unhashable"):
        hash(ledger)


def test_it_shows_itself():
    ledger = ledger_of_two_rounds()
    assert "2 rounds, 3 clients, 624 B up and 570 B down" in repr(ledger)
    frame = ledger.to_frame()
    assert frame["phase"].tolist() == ["setup", "round", "round"]
    assert frame["bytes_down"].tolist() == [0, 280, 290]
