"""Defaults on few rows per user and on very many, and pairs of whom a model knows little."""

import numpy as np
import pytest

from benchmarks._variants import variant
from benchmarks.sparse_defaults import new
from fedrecsk import FCF, PMF, FedSpectral, GlobSGD, LocALS, LocSGD, Popularity, RFRec, RFRecF
from fedrecsk.datasets import make_interactions, make_ratings
from fedrecsk.metrics import evaluate_ranking

pytestmark = pytest.mark.full


@pytest.mark.parametrize("aggregation", ["clients", "full", "holders"])
def test_locsgd_stays_finite_for_users_with_thousands_of_rows(aggregation):
    X = make_interactions(80, 4000, 40_000, random_state=0)[:, :2]
    X = np.vstack([X, [[1000 + u, i] for u in range(10) for i in range(u, 2500 + u)]])
    model = LocSGD(8, aggregation=aggregation, alpha=10.0, n_rounds=10, random_state=0).fit(X)
    assert np.abs(model.predict(X)).max() < 10
    assert model.loss_curve_[-1] < model.loss_curve_[0]


def test_strangers_get_the_mean_rating_of_what_they_rate():
    X, y = make_ratings(200, 150, 4000, random_state=0)
    model = RFRecF(random_state=0).fit(X[:, :2], y)
    strangers = X[:, :2].copy()
    strangers[:, 0] = -1
    assert model.predict(strangers).mean() == pytest.approx(y.mean(), abs=1e-6)
    items, scores = model.recommend([-1], 3)
    assert scores[0] == pytest.approx(model.predict([[-1, item] for item in items[0]]))


@pytest.mark.parametrize(("Estimator", "name"), [(RFRec, "FEW_RATINGS"), (PMF, "few_ratings")])
def test_short_histories_are_shrunk_more(Estimator, name):
    X, y = make_ratings(60, 40, 300, random_state=0)
    cautious, bold = (
        variant(Estimator, **{name: few}, random_state=0).fit(X, y).user_factors_ for few in (15, 0)
    )
    assert np.std(cautious, axis=0).sum() < 0.9 * np.std(bold, axis=0).sum()


@pytest.mark.parametrize("Estimator", [FCF, FedSpectral, GlobSGD, LocALS, LocSGD])
def test_users_with_one_row_are_ranked_better_than_by_popularity(Estimator):
    X = make_interactions(400, 300, 16_000, random_state=0)[:, :2]
    old, newcomers = X[X[:, 0] < 300], X[X[:, 0] >= 300]
    first = np.unique(newcomers[:, 0], return_index=True)[1]
    rest = np.delete(newcomers, first, axis=0)
    popular, found = (
        evaluate_ranking(one.fit(old).fold_in(newcomers[first]), rest)["ndcg@10"]
        for one in (Popularity(), new(Estimator.__name__, 0).set_params(n_factors=8))
    )
    assert found > popular
