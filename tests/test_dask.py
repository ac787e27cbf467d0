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


def searched():
    model = LocALS(n_factors=2, n_rounds=2, random_state=0)
    grid = {"federation__dropout": [0.0, 0.4], "client_fraction": [0.5, 1.0]}
    scoring = make_ranking_scorer("ndcg", k=5)
    return GridSearchCV(model, grid, cv=UserKFold(2), scoring=scoring).fit(X)


def compared(**options):
    models = {"biases": BiasOnly(), "RFRec": RFRec(n_rounds=2, random_state=0)}
    per_fold = compare(models, X, y, cv=UserKFold(2), **options).per_fold
    return per_fold[[name for name in per_fold if "seconds" not in name]]


@pytest.fixture(scope="module")
def serial():
    """The same in this process, before there is a cluster."""
    return searched(), compared()


def test_searches_and_comparisons_have_the_results_of_one_process(serial, cluster):
    ours, (expected, table) = searched(), serial
    assert ours.best_params_ == expected.best_params_
    for column in SCORES:
        np.testing.assert_array_equal(ours.cv_results_[column], expected.cv_results_[column])
    items = expected.best_estimator_.item_factors_
    np.testing.assert_array_equal(ours.best_estimator_.item_factors_, items)
    assert compared(n_jobs=-1).equals(table)
