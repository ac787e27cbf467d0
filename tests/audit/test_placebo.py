"""Placebo items: honest programs rank them by chance, and leaky ones do not."""

import subprocess
import sys
from functools import partial
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from fedrecsk import EASE, BiasOnly, LocALS, Popularity
from fedrecsk.audit import placebo
from fedrecsk.datasets import make_interactions, make_ratings

N_USERS, N_ITEMS = 300, 300


@pytest.fixture(scope="module")
def X():
    """Rows (user, item) of 300 users, each with at most 60 of 300 items."""
    rows = make_interactions(N_USERS, N_ITEMS, 15_000, timestamps=False, random_state=0)
    rows = np.random.default_rng(0).permutation(rows)
    return rows[pd.Series(rows[:, 0]).groupby(rows[:, 0]).cumcount() < 60]


def factorise(train, test, candidates, *, leaks=False):
    """Matrix factorisation by gradients; with the leak, test items are no negatives of training."""
    wanted, weights = np.zeros((N_USERS, N_ITEMS)), np.ones((N_USERS, N_ITEMS))
    wanted[tuple(train.T)] = 1
    if leaks:
        weights[tuple(test.T)] = 0
    users, items = np.random.default_rng(0).normal(scale=0.1, size=(2, N_USERS, 100))
    for _ in range(100):
        errors = weights * (wanted - users @ items.T)
        users, items = users + 0.01 * errors @ items, items + 0.01 * errors.T @ users
    return (users[test[:, 0]][:, None] * items[candidates]).sum(axis=2)


def test_an_honest_estimator_ranks_placebo_items_by_chance(X):
    report = placebo(EASE(reg=10), X, random_state=0)
    assert (report.method, report.n_users, report.chance) == ("EASE", N_USERS, 0.1)
    assert report.interval[0] < report.hit_rate < report.interval[1]
    assert not report.has_leak
    assert report.verdict.startswith("no leak found")
    assert "99% interval" in repr(report)
    assert "no leak found" in report._repr_html_()
    assert report == placebo(EASE(reg=10), X[::-1], random_state=0)
    # Popular items are placebo items as often as others.
    assert placebo(Popularity(), X, random_state=0).hit_rate == report.popularity
    assert 0.02 < report.popularity < 0.2


def test_ids_may_be_integers_of_two_kinds(X):
    # Hashes beyond 2**63 are of another dtype than small numbers.
    users = np.uint64(2**63) + X[:, 0].astype(np.uint64)
    frame = pd.DataFrame({"user": users, "item": X[:, 1].astype(np.int64)})
    assert not placebo(EASE(reg=10), frame, random_state=0).has_leak


def test_negatives_that_avoid_the_test_items_are_found(X):
    honest = placebo(factorise, X, confidence=0.9999, random_state=0)
    assert honest.verdict.startswith("no leak found")
    leaky = placebo(partial(factorise, leaks=True), X, confidence=0.9999, random_state=0)
    assert leaky.hit_rate > 2 * leaky.chance
    assert leaky.has_leak
    assert leaky.verdict.startswith("leak: placebo items rank above")


@pytest.mark.full
@pytest.mark.skipif(not find_spec("torch"), reason="needs torch")
def test_pfedrec_leaks_with_the_negatives_of_the_published_code(X):
    from fedrecsk.neural import PFedRec

    def fit_and_rank(train, test, candidates, *, leaks):
        # More negatives than by default, so that the leak is far from chance on any processor.
        model = PFedRec(n_negatives=8, personal_items=True, n_rounds=15, random_state=0)
        if leaks:
            rows = np.concatenate([train, test])
            is_train = np.arange(len(rows)) < len(train)
            model.fit(rows, is_train, sample_weight=np.where(is_train, 1.0, 1e-12))
        else:
            model.fit(train)
        users = np.repeat(test[:, 0], candidates.shape[1])
        return model.predict(np.column_stack([users, candidates.ravel()])).reshape(candidates.shape)

    honest, leaky = (
        placebo(partial(fit_and_rank, leaks=leaks), X, confidence=0.9999, random_state=0)
        for leaks in (False, True)
    )
    assert not honest.has_leak
    assert leaky.hit_rate > 0.2
    assert leaky.verdict.startswith("leak: placebo items rank above")


def test_honest_programs_are_hardly_ever_called_leaky(X):
    """Popular items first: 100 draws, of which one may err on average."""
    counts = np.bincount(X[:, 1], minlength=N_ITEMS)
    reports = [
        placebo(lambda _, __, candidates: counts[candidates], X, random_state=seed)
        for seed in range(100)
    ]
    assert np.mean([one.hit_rate for one in reports]) == pytest.approx(0.1, abs=0.008)
    assert sum(one.has_leak for one in reports) < 7


def test_placebo_items_are_untouched_and_among_their_candidates(X):
    def look(train, test, candidates):
        np.testing.assert_array_equal(train, X)
        train[:] = 0
        assert test.shape == (50, 2)
        np.testing.assert_array_equal(candidates[:, 0], test[:, 1])
        touched = {*map(tuple, X)}
        for user, items in zip(test[:, 0], candidates, strict=True):
            assert len({*items}) == 21
            assert not touched & {(user, item) for item in items}
        return np.zeros(candidates.shape)

    report = placebo(look, X, k=5, n_negatives=20, n_users=50, random_state=1)
    # All candidates are tied, in random order.
    assert report.hit_rate == pytest.approx(5 / 21)
    assert report.n_users == 50


def test_scores_ranks_and_rates_are_the_same_number(X):
    def ranks(train, test, candidates):
        scores = factorise(train, test, candidates)
        return 1 + (scores > scores[:, :1]).sum(axis=1)

    def rate(train, test, candidates):
        return np.mean(ranks(train, test, candidates) <= 10)

    reports = [placebo(one, X, random_state=0) for one in (factorise, ranks, rate)]
    assert len({one.hit_rate for one in reports}) == 1
    assert len({one.interval for one in reports}) == 1


def test_items_that_are_pushed_down_are_a_leak_too(X):
    report = placebo(lambda _, test, __: np.full(len(test), 100), X, random_state=0)
    assert report.hit_rate == report.interval[0] == 0
    assert report.verdict.startswith("leak: placebo items rank below")


def test_the_interval_is_that_of_clopper_and_pearson(X):
    # 5 of 10, as in tables.
    report = placebo(
        lambda *_: 0.5, X, n_users=10, k=5, n_negatives=9, confidence=0.95, random_state=0
    )
    assert report.interval == pytest.approx((0.1871, 0.8129), abs=1e-4)


PROGRAM = """
import csv, sys

rows = [row for row in csv.reader(open("train.csv"))]
n_users = {}
for user, item in rows:
    n_users[item] = n_users.get(item, 0) + 1
hits = 0
cases = list(csv.reader(open("negatives.csv")))
for user, *items in cases:
    counts = [n_users.get(item, 0) for item in items]
    hits += sum(one > counts[0] for one in counts) < 10
print("HR@10 =", hits / len(cases))
"""


def test_a_program_around_files_of_its_own(X, tmp_path):
    def run(train, test, candidates):
        np.savetxt(tmp_path / "train.csv", train, fmt="%d", delimiter=",")
        rows = np.column_stack([test[:, 0], candidates])
        np.savetxt(tmp_path / "negatives.csv", rows, fmt="%d", delimiter=",")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        return float(done.stdout.split("=")[1])

    report = placebo(run, X, random_state=0)
    # It puts the test item first among items of equal popularity.
    assert report.popularity <= report.hit_rate < report.popularity + 0.05
    assert report.method == "run"


class Peer(BaseEstimator):
    """A model of another package, with fit and predict alone."""

    def fit(self, X, y=None):
        self.counts_ = pd.Series(np.asarray(X)[:, 1]).value_counts()
        return self

    def predict(self, X):
        return self.counts_.reindex(np.asarray(X)[:, 1]).to_numpy()


def test_other_estimators_and_tables(X):
    expected = placebo(Popularity(), X, random_state=0).hit_rate
    named = pd.DataFrame({"user": X[:, 0], "item": [f"i{item:03}" for item in X[:, 1]]})
    piped = make_pipeline(FunctionTransformer(), Popularity())
    for model, rows in ((Peer(), X), (Peer(), named), (piped, X), (Popularity(), named)):
        assert placebo(model, rows, random_state=0).hit_rate == pytest.approx(expected)
    timed = make_interactions(N_USERS, N_ITEMS, 6_000, random_state=0)
    assert not placebo(
        LocALS(history_half_life=3.0, random_state=0), timed, random_state=0
    ).has_leak
    rated, y = make_ratings(N_USERS, N_ITEMS, 6_000, random_state=0)
    assert not placebo(BiasOnly(), rated, y, random_state=0).has_leak


FULL = np.array([[1, item] for item in range(300)] + [[2, 5], [3, 7]])


def returns(values):
    return lambda *_: values


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        (EASE, {}, TypeError, r"got a class; pass EASE\(\)"),
        (3, {}, TypeError, "neither an estimator nor a function: 3"),
        (EASE(), {"X": FULL}, ValueError, "User 1 never touched 0 of the 300 items .* needs 100"),
        (EASE(), {"n_negatives": 400}, ValueError, "needs 401; lower n_negatives"),
        (EASE(), {"n_users": 400}, ValueError, "X has only 300 users"),
        (EASE(), {"n_users": 0}, ValueError, "n_users"),
        (EASE(), {"k": 100}, ValueError, "k=100 must be at most n_negatives=99"),
        (EASE(), {"confidence": 1.0}, ValueError, "confidence"),
        (EASE(), {"top_k": 5}, TypeError, "did you mean k?"),
        (BiasOnly(), {}, ValueError, "requires y"),
        (returns(None), {}, ValueError, r"returned None; return scores of shape \(300, 100\)"),
        (returns(np.zeros((100, 300))), {}, ValueError, r"returned an array of shape \(100, 300\)"),
        (returns(np.zeros(300)), {}, ValueError, "returned ranks from 0 to 0, .* from 1 to 100"),
        (returns(19.7), {}, ValueError, "returned a hit rate from 19.7 to 19.7, .* from 0 to 1"),
        (returns(np.full((300, 100), np.nan)), {}, ValueError, "returned NaN"),
        (returns("HR@10 = .1"), {}, ValueError, "could not convert string"),
    ],
)
def test_wrong_input_is_named(given, options, error, message, X):
    with pytest.raises(error, match=message):
        placebo(given, **({"X": X} | options))
