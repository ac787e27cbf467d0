"""Calls of kernels are cut into pieces, so that Ctrl-C need not wait."""

import itertools

import numpy as np
import pytest

from fedrecsk import _pieces
from tests.conftest import make_toy
from tests.test_contract import assert_same_fit, every_estimator, make


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_pieces_are_all_tasks_in_order_and_cost_no_more_than_allowed(piece, monkeypatch):
    monkeypatch.setattr(_pieces, "PIECE", piece)
    costs = np.array([0, 3, 0, 20, 1, 1, 1, 0, 2, 0])
    cuts = _pieces.pieces(costs)
    assert [k for start, stop in cuts for k in range(start, stop)] == list(range(len(costs)))
    assert all(costs[start:stop].sum() <= piece or stop == start + 1 for start, stop in cuts)
    # No two neighbours could have been one.
    for (start, _), (_, stop) in itertools.pairwise(cuts):
        assert costs[start:stop].sum() > piece
    assert _pieces.pieces(costs[:0]) == []


def test_what_a_task_counts_for_makes_pieces_smaller(monkeypatch):
    monkeypatch.setattr(_pieces, "PIECE", 12)
    assert _pieces.pieces(np.ones(5, dtype=bool), 6) == [(0, 2), (2, 4), (4, 5)]
    assert _pieces.pieces(np.ones(2, dtype=bool), 100) == [(0, 1), (1, 2)]


@every_estimator
def test_pieces_change_no_bit(Estimator, monkeypatch):
    X, y = make_toy(20, 15)
    settings = ({}, {"clients": X[:, 0] % 7}) if "client_fraction" in vars(Estimator()) else ({},)
    whole = [make(Estimator).fit(X, y, **setting) for setting in settings]
    monkeypatch.setattr(_pieces, "PIECE", 1)
    for model, setting in zip(whole, settings, strict=True):
        assert_same_fit(model, make(Estimator).fit(X, y, **setting))
