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
