"""What defaults are chosen on is never what is reported."""

import numpy as np
import pytest

choices = pytest.importorskip("benchmarks.choices", reason="run pytest from the repository")

from benchmarks import fcf, fedeb, fedfast, fedrec, lightfr, methods  # noqa: E402
from benchmarks._seeds import CHOOSING, REPORTED, choosing  # noqa: E402
from fedrecsk.datasets import make_ratings  # noqa: E402

pytestmark = pytest.mark.full


class Options:
    data_home, users, n_jobs, seeds = None, None, 1, 3


def pairs(X):
    return {(int(row[0]), int(row[1])) for row in X}


@pytest.fixture
def toy(monkeypatch):
    """Made-up ratings in place of MovieLens."""
    X, y = make_ratings(40, 600, 2500, random_state=0)
    for module in (choices, lightfr):
        monkeypatch.setattr(module, "fetch_movielens", lambda *_, **__: (X, y))
    return X, y


def test_no_seed_is_both_chosen_on_and_reported():
    assert set(REPORTED).isdisjoint(CHOOSING)
    firsts = [module.FIRST_SEED for module in (fcf, fedeb, fedfast, fedrec)]
    assert {*firsts, methods.SEED, choices.OF_METHODS} < set(REPORTED)
    assert set(choosing(3)) < set(CHOOSING)


@pytest.mark.parametrize(
    ("protocol", "seeds"),
    [(choices.Ratings(), [0, 1, 2, 300]), (choices.Catalogue(), [0, 1, 2, 3])],
)
def test_no_random_validation_row_is_tested_under_a_reported_seed(protocol, seeds, toy):
    tested = set.union(*(pairs(part.rows) for part in protocol.reported("100k", seeds, Options)))
    for part in protocol.choosing("100k", choosing(3), Options):
        assert len(part.rows) > 20
        assert pairs(part.rows).isdisjoint(tested | pairs(part.X))


def test_validation_rows_of_rankings_come_before_the_test(toy):
    X, _ = toy
    times = {(int(u), int(i)): t for u, i, t in X[:, :3]}
    test = next(iter(choices.Rankings().reported("100k", [0], Options))).rows
    earliest = {}
    for pair in pairs(test):
        earliest[pair[0]] = min(times[pair], earliest.get(pair[0], np.inf))
    rated = pairs(X)
    for part in choices.Rankings().choosing("100k", choosing(2), Options):
        assert pairs(part.rows).isdisjoint(pairs(test) | pairs(part.X))
        assert all(times[pair] <= earliest[pair[0]] for pair in pairs(part.rows))
        for row, drawn in zip(part.rows, part.target, strict=True):
            assert pairs([(row[0], item) for item in drawn]).isdisjoint(rated)
