"""Fits that need more memory than there is, and numbers of threads that make no sense."""

import tracemalloc
import warnings

import pytest
from sklearn.base import clone

from fedrecsk import FCF, BayesianSVDpp, Federation, RFRec
from fedrecsk._utils import memory
from fedrecsk._utils.threads import n_threads
from fedrecsk.aggregation import NormClipping
from fedrecsk.datasets import make_ratings
from tests.listed import THINGS, is_neural

ESTIMATORS = [one for one in THINGS.values() if hasattr(one, "fit")]
SHORT = {"n_rounds": 1, "n_epochs": 1, "n_samples": 1, "n_burn_in": 1, "rank": 4}
# What is said to be there when it is tested what does not fit: this machine may have more.
GIBIBYTES = 16 * 2**30


def short(cls, **parameters):
    known = cls().get_params(deep=False)
    some = SHORT | {"random_state": 0} | parameters
    return cls(**{name: value for name, value in some.items() if name in known})


@pytest.fixture(scope="module")
def small():
    return make_ratings(n_users=60, n_items=90, n_ratings=900, random_state=0)


@pytest.fixture(scope="module")
def like_movielens_100k():
    return make_ratings(random_state=0)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_a_fit_takes_more_than_what_it_is_refused_for(cls, small):
    model = short(cls, n_factors=160, n_bits=160)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        needed = model._least_bytes(model._prepared(*small))
        # Modules and kernels, some only for many factors, load in the first fit.
        clone(model).fit(*small)
        tracemalloc.start()
        model.fit(*small)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert needed <= peak
    # Where there are factors, it is not just anything below. Neural clients train in chunks, whose
    # memory does not grow with the data.
    if hasattr(model, "n_factors") and needed:
        assert needed > peak / (100 if is_neural(cls) else 40)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("RFRec", {"n_factors": 10**6}),
        ("FedMF", {"n_factors": 10**6}),
        ("FedEB", {"n_factors": 10**4}),
        ("LocALS", {"n_factors": 10**5}),
        ("LightFR", {"n_bits": 10**5}),
        ("DCF", {"n_bits": 10**7}),
        ("SVDpp", {"n_factors": 10**7}),
        ("ImplicitALS", {"n_factors": 10**7}),
        ("BayesianSVDpp", {"n_factors": 10**6, "n_samples": 1}),
    ],
)
def test_what_does_not_fit_is_refused_before_work(name, sizes, like_movielens_100k, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: GIBIBYTES)
    model = THINGS[name](**sizes, random_state=0)
    monkeypatch.setattr(type(model), "_fit", None)
    size, value = next(iter(sizes.items()))
    with pytest.raises(ValueError, match=f"{name} with {size}={value}, for 943 .*Lower {size}"):
        model.fit(*like_movielens_100k)


OFFLINE = Federation(dropout=0.1, dropout_mode="offline")
LIMITS = {
    # A vector and its two moments for each pair of client and item, and a copy to predict with.
    "rfrec.DENSE_LIMIT": [
        (RFRec(8, federation=OFFLINE, aggregation="clients"), 4 * 3 * 60 * 90 * 9),
        (RFRec(8, federation=OFFLINE, predict_with="local", biases=False), 4 * 4 * 60 * 90 * 8),
    ],
    # The uploads of a round's clients, if all are held.
    "fcf.DENSE_LIMIT": [
        (FCF(8, upload="all", federation=Federation(aggregator=NormClipping())), 4 * 60 * 90 * 8)
    ],
    "bayesian_svdpp.MAX_BYTES": [
        (BayesianSVDpp(8, n_samples=3, n_burn_in=1), 4 * 3 * 9 * (60 + 2 * 90))
    ],
}


@pytest.mark.parametrize(
    ("limit", "model", "nbytes"),
    [(limit, *case) for limit, cases in LIMITS.items() for case in cases],
    ids=str,
)
def test_limits_are_kept_to_the_byte(limit, model, nbytes, small, monkeypatch):
    module, name = limit.split(".")
    package = "centralized" if module == "bayesian_svdpp" else "federated"
    place = f"fedrecsk.{package}.{module}.{name}"
    model = clone(model)
    monkeypatch.setattr(place, nbytes - 1)
    with pytest.raises(ValueError, match=r"would take .* GiB"):
        model.fit(*small)
    monkeypatch.setattr(place, nbytes)
    if hasattr(model, "n_rounds"):
        model.set_params(n_rounds=1)
    model.fit(*small)


def test_what_fits_is_not_refused(like_movielens_100k, monkeypatch):
    for cls in ESTIMATORS:
        # GPFedRec's server has a table of items for each client.
        nbytes = 2**30 if cls.__name__ == "GPFedRec" else 2**29
        monkeypatch.setattr(memory, "available", lambda nbytes=nbytes: nbytes)
        model = cls()
        model._require_memory(model._prepared(*like_movielens_100k))


def test_as_many_threads_as_processors_at_most():
    assert n_threads(None) == n_threads(1) == 1
    assert n_threads(-1) == n_threads(10**6)
    assert n_threads(-(10**6)) == 1
