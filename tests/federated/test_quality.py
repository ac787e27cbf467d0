"""MovieLens-100k with the defaults; the full tables are in benchmarks/."""

import numpy as np
import pytest
from sklearn.base import clone

from benchmarks._variants import variant
from benchmarks.fedals import precision
from fedrecsk import (
    FCF,
    BiasOnly,
    ExplicitFCF,
    FedMF,
    FedRec,
    GlobSGD,
    LightFR,
    LocALS,
    LocSGD,
    Popularity,
    RFRec,
    RFRecF,
)
from fedrecsk.metrics import evaluate_ranking
from tests.conftest import rmse, split


@pytest.mark.parametrize(
    ("model", "seed", "bound"),
    [
        (RFRec(n_jobs=2), 0, 0.912),
        (RFRecF(n_jobs=2), 0, 0.915),
        (ExplicitFCF(), 1, 0.921),
        (FedRec(), 5, 0.945),
    ],
)
def test_methods_are_as_good_as_they_say(model, seed, bound, ml100k):
    X, y, X_test, y_test = split(*ml100k, seed)
    model.set_params(random_state=0 if seed == 5 else seed)
    biases = rmse(BiasOnly().fit(X, y), X_test, y_test)
    assert rmse(model.fit(X, y), X_test, y_test) < min(bound, biases)


@pytest.mark.parametrize("Estimator", [RFRec, RFRecF])
def test_sparse_data_are_no_worse_than_biases_alone(Estimator, ml100k):
    X, y, X_test, y_test = split(*ml100k, seed=0)
    few = np.random.default_rng(0).permutation(len(y))[:12_000]
    model, biases = Estimator(random_state=0).fit(X[few], y[few]), BiasOnly().fit(X[few], y[few])
    assert rmse(model, X_test, y_test) <= rmse(biases, X_test, y_test)


@pytest.mark.parametrize(
    ("model", "bound"),
    [
        (LocALS(), 0.36),
        (variant(LocALS, EXACT_UP_TO=0), 0.36),
        (LocALS(client_fraction=0.1), 0.323),
        (GlobSGD(), 0.352),
        (GlobSGD(preconditioner=True, n_rounds=10), 0.36),
        (LocSGD(), 0.315),
        (FCF(), 0.36),
    ],
    ids=str,
)
def test_rankings_are_as_good_as_they_say(model, bound, ml100k):
    train, _, test, _ = split(ml100k[0][:, :2], ml100k[1], seed=0)
    model = clone(model).set_params(random_state=0).fit(train)
    assert precision(model, train, test) > bound


def test_lightfr_reaches_its_hit_rate_and_beats_popularity(ml100k):
    """HR@10 of each user's last item among 99 drawn negatives; benchmarks/lightfr.py has tables."""
    X, _ = ml100k
    X = X[np.lexsort((X[:, 1], X[:, 2], X[:, 0]))][:, :2].astype(int)
    last = np.append(np.diff(X[:, 0]) != 0, True)

    def hit_rate(model):
        options = {"n_negatives": 99, "random_state": 0, "metrics": "hit_rate"}
        return evaluate_ranking(model.fit(X[~last]), X[last], **options)["hit_rate@10"]

    popular = hit_rate(Popularity())
    assert hit_rate(LightFR(n_rounds=20, random_state=0)) > popular + 0.08
    frozen = variant(LightFR, n_rounds=5, random_state=0, _trains_items=False)
    assert hit_rate(frozen) < popular


def test_the_mean_over_holders_is_no_better_than_popularity(ml100k):
    train, _, test, _ = split(ml100k[0][:, :2], ml100k[1], seed=0)
    model = LocALS(aggregation="holders", random_state=0, n_rounds=30).fit(train)
    assert precision(model, train, test) < precision(Popularity().fit(train), train, test)


def test_fedmf_beats_popularity_on_few_users(ml100k):
    rng = np.random.default_rng(0)
    X = ml100k[0][rng.permutation(len(ml100k[0])), :2]
    X = X[np.isin(X[:, 0], rng.permutation(np.unique(X[:, 0]))[:150])]
    _, first = np.unique(X[:, 0], return_index=True)
    held_out = np.zeros(len(X), dtype=bool)
    held_out[first] = True
    model = FedMF(random_state=0).fit(X[~held_out])
    assert model.score(X[held_out]) > Popularity().fit(X[~held_out]).score(X[held_out]) + 0.01
