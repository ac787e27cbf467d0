"""Searches and comparisons whose fits run on a Dask cluster."""

import joblib
import numpy as np
import pytest
from dask.distributed import Client, LocalCluster
from sklearn.model_selection import GridSearchCV

from fedrecsk import BiasOnly, LocALS, RFRec
from fedrecsk.datasets import make_ratings
from fedrecsk.metrics import make_ranking_scorer
from fedrecsk.model_selection import UserKFold, compare

pytestmark = pytest.mark.full

X, y = make_ratings(40, 30, 500, random_state=0)
SCORES = ("mean_test_score", "std_test_score", "rank_test_score", "split0_test_score")


@pytest.fixture(scope="module")
def cluster():
    """Two processes, as on two machines."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster), joblib.parallel_config("dask"):
        yield


def searched(estimator, grid, y, **options):
    return GridSearchCV(estimator, grid, cv=UserKFold(2), **options).fit(X, y)


CASES = {
    "a federated method": (RFRec(n_rounds=3, random_state=0), {"n_factors": [2, 4]}, y, None),
    "its federation": (
        LocALS(n_factors=2, n_rounds=2, random_state=0),
        {"federation__dropout": [0.0, 0.4], "client_fraction": [0.5, 1.0]},
        None,
        make_ranking_scorer("ndcg", k=5),
    ),
}
SERIAL = {}


@pytest.fixture(scope="module", autouse=True)
def serial():
    """The same searches in this process, before there is a cluster."""
    for name, (estimator, grid, ratings, scorer) in CASES.items():
        SERIAL[name] = searched(estimator, grid, ratings, scoring=scorer)
    SERIAL["compare"] = compared()


def compared(**options):
    models = {"biases": BiasOnly(), "RFRec": RFRec(n_rounds=2, random_state=0)}
    per_fold = compare(models, X, y, cv=UserKFold(2), **options).per_fold
    return per_fold[[name for name in per_fold if "seconds" not in name]]


@pytest.mark.parametrize("name", CASES)
def test_a_search_has_the_result_of_one_process(name, serial, cluster):
    estimator, grid, ratings, scorer = CASES[name]
    ours, expected = searched(estimator, grid, ratings, scoring=scorer), SERIAL[name]
    assert ours.best_params_ == expected.best_params_
    for column in SCORES:
        np.testing.assert_array_equal(ours.cv_results_[column], expected.cv_results_[column])
    items = expected.best_estimator_.item_factors_
    np.testing.assert_array_equal(ours.best_estimator_.item_factors_, items)


def test_a_comparison_has_the_result_of_one_process(serial, cluster):
    ours = compared(n_jobs=-1)
    assert "rmse" in ours
    assert ours.equals(SERIAL["compare"])


def test_an_error_on_a_worker_reaches_the_user(cluster):
    with pytest.raises(ValueError, match="n_factors"):
        searched(RFRec(n_rounds=2), {"n_factors": [-1]}, y, error_score="raise")
