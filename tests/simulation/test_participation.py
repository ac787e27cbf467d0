import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrecsk import Federation
from fedrecsk.simulation.keys import Key
from fedrecsk.simulation.participation import draw, histories

FEDERATIONS = st.builds(
    Federation,
    dropout=st.sampled_from([0.0, 0.3, 0.9]),
    dropout_mode=st.sampled_from(["upload", "stale", "offline"]),
    sampling=st.sampled_from(["random", "rotating"]),
)
FRACTIONS = st.floats(0.01, 1.0)


@given(FEDERATIONS, FRACTIONS, st.integers(1, 40), st.integers(0, 30))
def test_masks_agree_with_each_other(federation, fraction, n_clients, round):
    turn = draw(n_clients, fraction, federation, Key(0, round))
    receives, active, delivers, dropped = turn
    assert not (delivers & ~active).any()
    assert not (delivers & dropped).any()
    if federation.dropout == 0:
        assert not dropped.any()
        assert np.array_equal(receives, delivers)
        assert active.any()
    match federation.dropout_mode:
        case "upload":
            assert np.array_equal(receives, active)
            assert np.array_equal(active, delivers | dropped)
        case "stale":
            assert np.array_equal(receives, delivers)
            assert np.array_equal(active, delivers | dropped)
        case "offline":
            assert np.array_equal(receives, active)
            assert np.array_equal(active, delivers)


@given(FEDERATIONS, FRACTIONS, st.integers(1, 25))
def test_equal_histories_are_equal(federation, fraction, n_clients):
    groups = histories(n_clients, fraction, federation, Key(5))
    seen = [draw(n_clients, fraction, federation, Key(5, t)) for t in range(12)]
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        for turn in seen:
            assert len(set(turn.receives[members])) == 1
            assert len(set(turn.active[members])) == 1


@pytest.mark.parametrize("n_clients", [1, 7, 100])
def test_rotation_reaches_everybody_once_a_turn(n_clients):
    federation = Federation(sampling="rotating")
    n_cohorts = min(n_clients, 10)
    visits = sum(draw(n_clients, 0.1, federation, Key(2, t)).active * 1 for t in range(n_cohorts))
    assert visits.tolist() == [1] * n_clients


def test_a_random_cohort_has_its_size_and_changes():
    first, second = (draw(200, 0.1, Federation(), Key(2, t)).active for t in (0, 1))
    assert first.sum() == second.sum() == 20
    assert not np.array_equal(first, second)


def test_dropout_has_its_rate():
    turns = [draw(500, 1.0, Federation(dropout=0.3), Key(2, t)) for t in range(40)]
    assert np.mean([turn.dropped.mean() for turn in turns]) == pytest.approx(0.3, abs=0.02)


@given(FEDERATIONS, FRACTIONS, st.integers(2, 40))
def test_a_part_of_the_clients_has_its_part_of_the_masks(federation, fraction, n_clients):
    turn = draw(n_clients, fraction, federation, Key(1, 3))
    clients = np.random.default_rng(0).permutation(n_clients)[: n_clients // 2]
    for mask, ours in zip(turn, turn.of(clients), strict=True):
        assert ours.tolist() == [bool(mask[c]) for c in clients]
