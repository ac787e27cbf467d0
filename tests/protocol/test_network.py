import numpy as np
import pytest

from fedrecsk import Popularity, RFRec
from fedrecsk.protocol import Ledger
from fedrecsk.protocol.devices import PROFILES, DeviceProfile
from fedrecsk.protocol.network_time import estimate_training_time


def ledger_of(n_rounds, nbytes, n_clients=60):
    """Equal rounds, each client sending and receiving `nbytes`, after a set-up."""
    ledger, everyone = Ledger(np.arange(n_clients)), np.arange(n_clients)
    ledger.open("setup")
    ledger.up(everyone, np.full(n_clients, 1000))
    for k in range(n_rounds):
        ledger.open("round", k)
        ledger.down(everyone, np.full(n_clients, nbytes))
        ledger.up(everyone, np.full(n_clients, nbytes))
        ledger.count(participants=n_clients)
    ledger.open("final", n_rounds)
    ledger.down(everyone, np.full(n_clients, nbytes))
    return ledger


# CoLR, Table 2: minutes of 1000 rounds on MovieLens-1M by floats a client sends for an item.
TABLE_2 = {64: 80.43, 1: 1.26, 2: 2.51, 4: 5.03, 8: 10.05, 16: 20.11, 32: 40.21}


@pytest.mark.parametrize("rank", TABLE_2)
def test_the_papers_communication_minutes(rank):
    time = estimate_training_time(ledger_of(1000, 3706 * rank * 4), "paper", rounds_only=True)
    assert round(time.communication_seconds / 60, 2) == TABLE_2[rank]


def test_all_phases_count_unless_told_otherwise():
    everything = estimate_training_time(ledger_of(3, 2**20), "paper")
    rounds = estimate_training_time(ledger_of(3, 2**20), "paper", rounds_only=True)
    extra = 1000 / (0.25 * 2**20) + 1 / 0.75
    difference = everything.communication_seconds - rounds.communication_seconds
    assert difference == pytest.approx(extra)
    np.testing.assert_allclose(everything.round_seconds, 10 + 16 / 3)
    np.testing.assert_allclose(rounds.round_seconds, 10 + 16 / 3)


def test_a_fitted_model_is_read_through_its_ledger(toy):
    model = RFRec(n_factors=3, n_rounds=4, random_state=0).fit(*toy)
    time = estimate_training_time(model, PROFILES["4g"])
    assert len(time.round_seconds) == 4
    assert time.seconds == estimate_training_time(model.communication_, "4g").seconds
    worked = 7 * model.communication_.client_seconds
    assert worked > 0
    assert time.computation_seconds == pytest.approx(4 * worked)
    assert repr(time).startswith("TrainingTime(")


def test_a_round_takes_as_long_as_its_slowest_client():
    ledger = Ledger(np.arange(3))
    ledger.open("round", 0)
    ledger.down(np.arange(3), np.array([10, 20, 60]))
    ledger.more_down(np.arange(3), np.array([1, 1, 4]))
    for client, nbytes in enumerate([5, 7, 1]):
        ledger.up(np.array([client]), np.array([nbytes]))
    ledger.count(participants=3)
    profile = DeviceProfile(1, 100, 0, 0)
    assert estimate_training_time(ledger, profile).seconds == pytest.approx(64 + 0.07)
    assert estimate_training_time(ledger, profile, up="payload_up").seconds == 64


def test_the_errors_that_end_a_fit_cost_what_one_client_sends(toy):
    model = RFRec(
        3, n_rounds=50, early_stopping=True, n_iter_no_change=1, tol=10.0, random_state=0
    ).fit(*toy)
    last = model.communication_.entries[-2]
    assert (last["participants"], last["messages_down"], last["bytes_up"]) == (0, 12, 12 * 8)
    slow = DeviceProfile(download=1e12, upload=1.0)
    assert len(estimate_training_time(model, slow).round_seconds) == model.n_rounds_
    model.communication_.entries = [last]
    time = estimate_training_time(model, slow)
    assert time.communication_seconds == pytest.approx(8, abs=1e-3)


def test_work_is_slowed_down_and_begins_late_if_anybody_takes_part():
    ledger = ledger_of(4, 0)
    ledger.open("round", 4)
    time = estimate_training_time(ledger, "paper", client_seconds=2, server_seconds=3)
    assert time.computation_seconds == 4 * (7 * 2 + 10 + 3)
    assert time.minutes == pytest.approx(time.seconds / 60)
    assert time.round_seconds[-1] == 0
    assert time.overhead_seconds == 4 * 10


@pytest.mark.parametrize(
    ("profile", "client_seconds", "text"),
    [
        # In each round 1 s down and 2 s up, and 7 s of work after 10 s.
        ("paper", 1, "3.33 h: 85.0% computing, of which 10 s a round are assumed; 15.0% network"),
        (DeviceProfile(2**19, 2**18, 1, 0), 9, "2 h: 75.0% computing; 25.0% network"),
        (DeviceProfile(2**19, 2**18, 0, 0), 9, "30 min: 0.0% computing; 100.0% network"),
    ],
)
def test_the_time_says_what_it_is_made_of(profile, client_seconds, text):
    if profile == "paper":
        profile = DeviceProfile(2**19, 2**18)
    ledger = ledger_of(600, 2**19)
    ledger.entries[:] = [entry for entry in ledger.entries if entry["phase"] == "round"]
    time = estimate_training_time(ledger, profile, client_seconds=client_seconds)
    assert repr(time) == f"TrainingTime({text}; 600 rounds)"


def test_the_assumed_seconds_are_those_of_the_slowest_device():
    profile = DeviceProfile(2**19, 2**18, speed={client: 1.0 + client for client in range(60)})
    time = estimate_training_time(ledger_of(5, 0), profile, client_seconds=1)
    assert time.overhead_seconds == pytest.approx(5 * 10)
    slow = DeviceProfile(2**19, 2**18, speed={client: 1 / (1 + client) for client in range(60)})
    time = estimate_training_time(ledger_of(5, 0), slow, client_seconds=1)
    assert time.overhead_seconds == pytest.approx(5 * 10 * 60)
    assert "of which 600 s a round are assumed" in repr(time)


NAN, INF = float("nan"), float("inf")


def test_wrong_numbers_are_named():
    speeds, costs = (0, -1, NAN, "1", None), (-1, INF, "1", None)
    wrong = {"download": speeds, "upload": speeds, "slowdown": costs, "overhead": costs}
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match=f"The '{name}' parameter of DeviceProfile must"):
                estimate_training_time(ledger_of(1, 1), DeviceProfile(**{name: value}))
    for name in ("client_seconds", "server_seconds"):
        for value in (-1, NAN, INF, "1"):
            with pytest.raises(ValueError, match=f"'{name}' parameter of estimate_training_time"):
                estimate_training_time(ledger_of(1, 1), **{name: value})


def test_an_unknown_profile_and_a_model_without_a_ledger_are_named(toy):
    with pytest.raises(ValueError, match=r"'profile' parameter .* must be .* Got \['4g'\]"):
        estimate_training_time(ledger_of(1, 1), ["4g"])
    with pytest.raises(ValueError, match=r"profile='5g' is unknown.*'4g', 'broadband'"):
        estimate_training_time(ledger_of(1, 1), "5g")
    with pytest.raises(ValueError, match=r"no column 'payload'.*'bytes_down'"):
        estimate_training_time(ledger_of(1, 1), down="payload")
    with pytest.raises(TypeError, match="RFRec has no communication_"):
        estimate_training_time(RFRec)
    with pytest.warns(UserWarning, match=r"download=9\) is in bytes per second"):
        estimate_training_time(ledger_of(1, 1), DeviceProfile(download=9))
    with pytest.raises(TypeError, match="Popularity has no communication_"):
        estimate_training_time(Popularity().fit(toy[0]))
