"""Cut-offs in time, one period after the other."""

import copy

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning

from fedrecsk import FedEASE, Federation, Popularity
from fedrecsk.datasets import make_interactions
from fedrecsk.model_selection import RollingOrigin, TemporalHoldout, compare
from fedrecsk.privacy import CentralDP


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
    several = RollingOrigin(["2024-02-01", "2024-02-15"], timestamps="when").split(frame)
    for (train, test), first in zip(several, ["2024-02-01", "2024-02-15"], strict=True):
        assert (days[train] < first).all()
        assert (days[test] >= first).all()


@pytest.fixture(scope="module")
def mixed(X):
    """The same rows in an order of time in which users come back."""
    order = np.random.default_rng(0).permutation(len(X))
    return np.column_stack([X[order, :2], np.arange(len(X))])


def followed(model, X, update, **options):
    return compare(
        {"one": model},
        X,
        cv=RollingOrigin(3),
        update=update,
        scoring="ndcg@10",
        error_score="raise",
        **options,
    )


def test_models_go_from_period_to_period(mixed):
    model = FedEASE(30.0, history_half_life=5.0)
    by = {
        update: followed(model, mixed, update, return_estimator=True)
        for update in ("fit", "partial_fit", "fold_in", "none")
    }
    scores = {update: one.per_fold["ndcg@10"].to_numpy() for update, one in by.items()}
    # An updated sum is that of a fit.
    np.testing.assert_allclose(scores["partial_fit"], scores["fit"], atol=1e-6)
    splits = list(RollingOrigin(3).split(mixed))
    first = clone(model).fit(mixed[splits[0][0]])
    for update, one in by.items():
        assert one.per_fold["ndcg@10"][0] == pytest.approx(scores["fit"][0])
        for kept, (train, _) in zip(one.estimators["one"], splits, strict=True):
            expected = clone(model).fit(mixed[train]) if "fit" in update else copy.deepcopy(first)
            if update == "fold_in":
                expected.fold_in(mixed[train], replace=True)
            np.testing.assert_allclose(kept.predict(mixed), expected.predict(mixed), atol=1e-5)
    for update in ("fold_in", "none"):
        costs = by[update].per_fold[["mb_up", "mb_down", "rounds"]]
        assert (costs.iloc[0] > 0).all()
        assert (costs.iloc[1:] == 0).all(axis=None)


def test_updates_get_the_clients_and_weights_of_their_rows(mixed):
    options = {
        "clients": mixed[:, 0] // 3,
        "sample_weight": np.random.default_rng(0).random(len(mixed)) + 0.5,
        "return_estimator": True,
    }
    one, other = (followed(FedEASE(30.0), mixed, way, **options) for way in ("partial_fit", "fit"))
    for ours, theirs in zip(one.estimators["one"], other.estimators["one"], strict=True):
        np.testing.assert_allclose(ours.predict(mixed), theirs.predict(mixed), atol=1e-5)
        assert len(ours.communication_.client_ids) == len(theirs.communication_.client_ids)


def test_what_cannot_follow_is_named(mixed):
    with pytest.raises(TypeError, match="'one' has no partial_fit; leave it out"):
        followed(Popularity(), mixed, "partial_fit")
    with pytest.raises(ValueError, match=r"training rows of fold 0 are none of fold 1.*Rolling"):
        compare([FedEASE()], mixed, cv=3, update="none")
    # Nothing can be taken back from a sum with noise.
    private = Federation(central_dp=CentralDP(noise_multiplier=1.0, delta=1e-3))
    model = FedEASE(30.0, items=range(40), federation=private, random_state=0)
    with pytest.warns(FitFailedWarning, match="2 of 3 fits failed"):
        result = compare([model], mixed, cv=RollingOrigin(3), update="partial_fit")
    assert result.per_fold["error"].str.contains("cannot withdraw").tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("splitter", "message"),
    [
        (TemporalHoldout(cutoff=1e15), "leaves no test rows: the times of X are from"),
        (TemporalHoldout(cutoff=-1), "cutoff=-1 leaves no training rows"),
        (TemporalHoldout(cutoff="2024-05-01"), "One of cutoff and the times.*Give both in the sa"),
        (TemporalHoldout(cutoff=0.5, per_user=True), "one time for all users"),
        (TemporalHoldout(cutoff=[0.5]), "'cutoff' parameter of TemporalHoldout"),
        (RollingOrigin(["2024-05-01"]), "Give both in the same form"),
        (RollingOrigin([1e15]), r"no row from 1000000000000000.0 on.*other or fewer cutoffs"),
        (RollingOrigin([-1.0]), "no row before -1.0"),
        (RollingOrigin(["some day"]), "'some day' is not an ISO date"),
        (RollingOrigin([]), "list of times or quantiles"),
        (RollingOrigin(0), "'cutoffs' parameter of RollingOrigin must be"),
    ],
    ids=str,
)
def test_bad_cutoffs_are_named(X, splitter, message):
    with pytest.raises(ValueError, match=message):
        splitter.split(X)
