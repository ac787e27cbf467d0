import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrecsk import FedEB, Federation, FedRec, PrivFedEB
from fedrecsk.privacy import CentralDP
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.participation import Sampling

FEDERATIONS = st.builds(
    Federation,
    dropout=st.sampled_from([0.0, 0.3, 0.9]),
    dropout_mode=st.sampled_from(["upload", "stale", "offline"]),
    sampling=st.sampled_from(["random", "rotating"]),
)
FRACTIONS = st.floats(0.01, 1.0)


@given(FEDERATIONS, FRACTIONS, st.integers(1, 40), st.integers(0, 30))
def test_masks_agree_with_each_other(federation, fraction, n_clients, round):
    sampling = Sampling.of(federation, fraction)
    receives, active, delivers, dropped, arrivals = sampling.draw(n_clients, Key(0, round))
    assert arrivals is None
    mode = federation.dropout_mode
    assert active.any() or (federation.dropout and mode == "offline")
    np.testing.assert_array_equal(delivers, active & ~dropped)
    np.testing.assert_array_equal(receives, delivers if mode == "stale" else active)
    if federation.dropout == 0:
        assert not dropped.any()
    elif mode != "offline":
        np.testing.assert_array_equal(active, delivers | dropped)


@given(FEDERATIONS, FRACTIONS, st.integers(1, 25))
def test_equal_histories_are_equal(federation, fraction, n_clients):
    sampling = Sampling.of(federation, fraction)
    groups = sampling.histories(n_clients, Key(5))
    seen = [sampling.draw(n_clients, Key(5, t)) for t in range(12)]
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        for turn in seen:
            assert len(set(turn.receives[members])) == 1
            assert len(set(turn.active[members])) == 1


@pytest.mark.parametrize("setting", [{}, {"dropout": 0.5, "dropout_mode": "upload"}], ids=str)
def test_clients_of_equal_history_share_one_group(setting):
    """Lost uploads do not matter; groups of their own would each need memory."""
    assert len(np.unique(Sampling(**setting).histories(12, Key(5)))) == 1
    assert len(np.unique(Sampling(0.25, "rotating", **setting).histories(12, Key(5)))) == 4


@pytest.mark.parametrize("n_clients", [1, 7, 100])
def test_rotation_reaches_everybody_once_a_turn(n_clients):
    sampling, rounds = Sampling(0.1, "rotating"), range(min(n_clients, 10))
    visits = sum(sampling.draw(n_clients, Key(2, t)).active * 1 for t in rounds)
    assert visits.tolist() == [1] * n_clients


@pytest.mark.parametrize(
    ("n_clients", "fraction", "size", "n_cohorts"),
    [
        (100, 0.126, 13, 8),
        (100, 0.124, 12, 8),
        (7, 0.35, 2, 3),
        (7, 0.3, 2, 3),
        (12, 0.6, 7, 2),
        (12, 0.9, 11, 1),
        (12, 0.01, 1, 12),
    ],
)
def test_sizes_are_rounded_to_the_nearest_number(n_clients, fraction, size, n_cohorts):
    sampling = Sampling(fraction)
    assert sampling.cohort_size(n_clients) == size
    cohorts = [sampling.draw(n_clients, Key(0, t)).active for t in range(9)]
    assert {cohort.sum() for cohort in cohorts} == {size}
    assert len({cohort.tobytes() for cohort in cohorts}) > 1
    assert sampling.n_cohorts(n_clients) == n_cohorts


@given(st.sampled_from(["random", "rotating", "auto"]), FRACTIONS, st.integers(1, 40))
def test_no_cohort_is_smaller_than_the_smallest(sampling, fraction, n_clients):
    for rotates in (False, True):
        one = Sampling.of(Federation(sampling=sampling), fraction, rotates=rotates)
        rounds = range(one.n_cohorts(n_clients))
        sizes = [one.draw(n_clients, Key(3, t)).active.sum() for t in rounds]
        assert min(sizes) == one.smallest_cohort(n_clients)
        # Cohorts that rotate differ by one client at most.
        assert max(sizes) - min(sizes) <= 1


def test_dropout_has_its_rate():
    turns = [Sampling(dropout=0.3).draw(500, Key(2, t)) for t in range(40)]
    assert np.mean([turn.dropped.mean() for turn in turns]) == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize(("method", "rounds"), [(FedEB, 775), (FedRec, 1800), (PrivFedEB, 155)])
def test_rounds_of_small_cohorts(method, rounds):
    # For all clients at a time they are 100, 30 and 20; times 60, or its square root.
    assert method(client_fraction=1e-9)._plan().rounds(60) == rounds
    assert method(client_fraction=1 / 60)._plan().rounds(60) == rounds
    assert method(client_fraction=1e-9, n_rounds=7)._plan().rounds(60) == 7
    assert FedEB(federation=Federation(dropout=0.9))._plan().rounds(1000) == 316


def test_privacy_of_small_cohorts_is_planned():
    mechanism = CentralDP(noise_multiplier=1.0, delta=1e-3)
    federation = Federation(central_dp=mechanism, sampling="random")
    public = {"items": range(9), "rating_scale": (1, 5), "random_state": 0}
    planned = [
        PrivFedEB(client_fraction=share, federation=federation, **public).planned_privacy(20)
        for share in (1e-9, 1 / 20)
    ]
    assert planned[0] == planned[1]
