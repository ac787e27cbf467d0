"""Cut-offs in time, one period after the other."""

import numpy as np
import pandas as pd
import pytest

from fedrecsk import FedEASE, Popularity
from fedrecsk.datasets import make_interactions
from fedrecsk.model_selection import RollingOrigin, TemporalHoldout, compare


@pytest.fixture(scope="module")
def X():
    return make_interactions(60, 40, 1500, timestamps=True, random_state=0)


@pytest.mark.parametrize("cutoffs", [1, 3, [0.6, 0.9], [0.5]], ids=str)
def test_training_rows_come_before_test_rows_and_each_is_tested_once(X, cutoffs):
    splitter = RollingOrigin(cutoffs)
    splits = list(splitter.split(X))
    assert len(splits) == splitter.get_n_splits()
    times = X[:, 2]
    for train, test in splits:
        assert times[train].max() < times[test].min()
        np.testing.assert_array_equal(train, np.flatnonzero(times < times[test].min()))
    tested = np.concatenate([test for _, test in splits])
    np.testing.assert_array_equal(np.sort(tested), np.flatnonzero(times >= times[tested].min()))


def test_dates_cut_at_the_same_rows_for_all_users(X):
    frame = pd.DataFrame(X[:, :2], columns=["user", "item"])
    frame["when"] = pd.to_datetime("2024-01-01") + pd.to_timedelta(np.arange(len(X)) % 60, "D")
    splits = RollingOrigin(["2024-02-01", "2024-02-15"], timestamps="when").split(frame)
    for (train, test), first in zip(splits, ["2024-02-01", "2024-02-15"], strict=True):
        assert (frame["when"][train] < first).all()
        assert (frame["when"][test] >= first).all()


@pytest.mark.parametrize("validation_size", [None, 0.2])
def test_one_cutoff_is_a_temporal_holdout(X, validation_size):
    for cutoff in (0.7, float(np.sort(X[:, 2])[1000])):
        splitter = TemporalHoldout(cutoff=cutoff, validation_size=validation_size)
        parts = splitter.train_test_split(X)
        [(_, test)] = RollingOrigin([cutoff]).split(X)
        np.testing.assert_array_equal(parts[-1], X[test])
        assert sum(map(len, parts)) == len(X)
        ends = [part[:, 2].max() for part in parts[:-1]]
        assert (np.array(ends) < [part[:, 2].min() for part in parts[1:]]).all()
    days = pd.to_datetime("2024-01-01") + pd.to_timedelta(np.arange(len(X)) % 60, "D")
    frame = pd.DataFrame(X[:, :2]).assign(when=days)
    for cutoff in ("2024-02-01", pd.Timestamp("2024-02-01"), np.datetime64("2024-02-01")):
        [(_, test)] = TemporalHoldout(cutoff=cutoff, timestamps="when").split(frame)
        np.testing.assert_array_equal(test, np.flatnonzero(days >= "2024-02-01"))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"cutoff": 1e15}, "leaves no test rows: the times of X are from"),
        ({"cutoff": -1}, "cutoff=-1 leaves no training rows"),
        ({"cutoff": "2024-05-01"}, "One of cutoff and the times.*Give both in the same form"),
        ({"cutoff": "in May"}, "'in May' is not an ISO date"),
        ({"cutoff": 0.5, "per_user": True}, "one time for all users"),
        ({"cutoff": [0.5]}, "'cutoff' parameter of TemporalHoldout"),
    ],
    ids=str,
)
def test_a_bad_cutoff_is_named(X, parameters, message):
    with pytest.raises(ValueError, match=message):
        TemporalHoldout(**parameters).split(X)


def test_compare_has_a_row_for_each_period(X):
    models = {"ease": FedEASE(30.0, history_half_life=5.0), "popular": Popularity()}
    result = compare(models, X, cv=RollingOrigin(2), scoring=["ndcg@10"], error_score="raise")
    assert len(result.per_fold) == 4
    assert result.per_fold["ndcg@10"].between(0, 1).all()


@pytest.mark.parametrize(
    ("cutoffs", "message"),
    [
        (["2024-05-01"], "Give both in the same form"),
        ([1e15], r"no row from 1000000000000000.0 on.*other or fewer cutoffs"),
        ([-1.0], "no row before -1.0"),
        ([0.9, 5.0], "no row"),
        (["some day"], "'some day' is not an ISO date"),
        ([], "list of times or quantiles"),
        (0, "'cutoffs' parameter of RollingOrigin must be"),
    ],
    ids=str,
)
def test_bad_cutoffs_are_named(X, cutoffs, message):
    with pytest.raises(ValueError, match=message):
        RollingOrigin(cutoffs).split(X)
