import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecsk import Federation
from fedrecsk.simulation.keys import Key
from fedrecsk.simulation.participation import (
    cohort_size,
    draw,
    histories,
    n_rotating,
    smallest_cohort,
)

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


@pytest.mark.parametrize("setting", [{}, {"dropout": 0.5, "dropout_mode": "upload"}], ids=str)
def test_clients_of_equal_history_share_one_group(setting):
    """Lost uploads do not matter; groups of their own would each need memory."""
    assert len(np.unique(histories(12, 1.0, Federation(**setting), Key(5)))) == 1
    rotating = Federation(sampling="rotating", **setting)
    assert len(np.unique(histories(12, 0.25, rotating, Key(5)))) == 4


@pytest.mark.parametrize("n_clients", [1, 7, 100])
def test_rotation_reaches_everybody_once_a_turn(n_clients):
    federation = Federation(sampling="rotating")
    n_cohorts = min(n_clients, 10)
    visits = sum(draw(n_clients, 0.1, federation, Key(2, t)).active * 1 for t in range(n_cohorts))
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
    assert cohort_size(n_clients, fraction) == size
    assert draw(n_clients, fraction, Federation(), Key(0)).active.sum() == size
    assert n_rotating(n_clients, fraction) == n_cohorts


@settings(max_examples=30)
@given(st.sampled_from(["random", "rotating", "auto"]), FRACTIONS, st.integers(1, 40))
def test_no_cohort_is_smaller_than_the_smallest(sampling, fraction, n_clients):
    setting = n_clients, fraction, Federation(sampling=sampling)
    for prefers in ({}, {"prefers_rotation": True}):
        rounds = range(n_rotating(n_clients, fraction))
        sizes = [draw(*setting, Key(3, t), **prefers).active.sum() for t in rounds]
        assert min(sizes) == smallest_cohort(*setting, **prefers)
        # Cohorts that rotate differ by one client at most.
        assert max(sizes) - min(sizes) <= 1


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
