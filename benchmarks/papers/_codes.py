"""LightFR's baselines with untrained codes, and what models need on a device."""

from __future__ import annotations

import time

import numpy as np
from sklearn.base import BaseEstimator, clone
from threadpoolctl import threadpool_limits

from benchmarks.papers._rows import NotObtainableError
from fedrecsk._utils.kernels import LazyModule
from fedrecsk.datasets import make_ratings
from fedrecsk.federated import pack_codes

score_kernels = LazyModule("fedrecsk.models._score_kernels")

CIAO = {"n_users": 7375, "n_items": 105_096, "n_ratings": 282_619}
SEARCHES = 100


class QuantizedFactors(BaseEstimator):
    """Signs of a fitted factor model's vectors, compared by Hamming distance.

    LightFR's Table 6: "init" (median quantisation of the features of a matrix factorisation) and
    "random" (codes of users and items that nothing is learned for).

    Parameters
    ----------
    model : estimator with `user_factors_` and `item_factors_`
    threshold : {"median", "zero", "random"}, default="median"
        An entry's sign is taken above the median of its column, or above zero; "random" draws
        signs instead.
    random_state : int, default=0
    """

    def __init__(self, model, threshold="median", random_state=0):
        self.model = model
        self.threshold = threshold
        self.random_state = random_state

    def __sklearn_tags__(self):
        return self.model.__sklearn_tags__()

    def fit(self, X, y=None):
        """Fit the model, and quantise its vectors."""
        inner = clone(self.model)
        if "random_state" in inner.get_params():
            inner.set_params(random_state=self.random_state)
        inner.fit(X, y)
        self.user_ids_, self.item_ids_ = inner.user_ids_, inner.item_ids_
        rng = np.random.default_rng(self.random_state)
        self.users_, self.items_ = (
            self._signs(factors, rng) for factors in (inner.user_factors_, inner.item_factors_)
        )
        return self

    def _signs(self, factors, rng):
        if self.threshold == "random":
            return rng.choice(np.array([-1, 1], dtype=np.int8), factors.shape)
        middle = np.median(factors, axis=0) if self.threshold == "median" else 0
        return np.where(factors > middle, 1, -1).astype(np.int8)

    def predict(self, X):
        """Similarity of codes, from 0 to 1; below 0 for unknown items."""
        users, user_known = _codes(self.user_ids_, X[:, 0])
        items, item_known = _codes(self.item_ids_, X[:, 1])
        dots = np.einsum("ij,ij->i", self.users_[users], self.items_[items], dtype=np.float32)
        return np.where(user_known & item_known, 0.5 + dots / (2 * self.items_.shape[1]), -1)


def _codes(ids, wanted):
    places = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return places, ids[places] == wanted


def on_a_device(model, data, seed, options):
    """Bytes stored and sent by a client of Ciao's shape, and the CPU time of one search.

    A round is run, so that the ledger has its bytes. In a quick run a tenth of the items.
    """
    if data != "Ciao's shape":
        raise NotObtainableError(f"{data} is not a shape that is generated")
    shape = CIAO if not options.quick else CIAO | {"n_items": CIAO["n_items"] // 10}
    X, y = make_ratings(**shape, timestamps=False, random_state=seed)
    rates = model.__sklearn_tags__().target_tags.required
    model.set_params(n_rounds=1, items=np.arange(shape["n_items"]))
    model.fit(X[:, :2], y if rates else None)
    entry = next(one for one in model.communication_.entries if one["phase"] == "round")
    down = entry["bytes_down"] / entry["messages_down"]
    up = entry["bytes_up"] / entry["messages_up"]
    sent = {"sent in a round, MB": (down + up) / 1e6}
    if not (hasattr(model, "item_factors_") or hasattr(model, "item_codes_")):
        # A model of the client's own, as MetaMF's, is all that it receives.
        return {"stored, MB": down / 1e6} | sent
    search = search_microseconds(model, options)
    return {"stored, MB": _stored(model) / 1e6} | sent | {"search, CPU us": search}


def _stored(model):
    """Bytes of the items, and of one user."""
    if hasattr(model, "item_codes_"):
        return model.item_codes_.nbytes + model.user_codes_[0].nbytes
    items = sum(
        getattr(model, name, np.empty(0)).nbytes for name in ("item_factors_", "item_bias_")
    )
    return items + items / len(model.item_factors_)


def search_microseconds(model, options):
    """CPU time of the ten best items of one user, the least of many searches."""
    user = model.user_ids_[:1]
    return _least(lambda: model.recommend(user), SEARCHES // (10 if options.quick else 1))


def hamming_or_float(model, data, seed, options):
    """LightFR's Figure 1: bytes and search time of random codes and vectors, 64 entries each.

    `data` is the number of items; in a quick run a tenth of it.
    """

    n_items = int(data) // (10 if options.quick else 1)
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((n_items, 64), dtype=np.float32)
    user = rng.standard_normal(64, dtype=np.float32)
    codes = pack_codes(np.where(vectors > 0, 1, -1).astype(np.int8))
    words, found = np.ascontiguousarray(codes.T), np.empty((2, 1, 10), dtype=np.int64)
    near = np.empty(score_kernels.BLOCK, dtype=np.int32)
    own = pack_codes(np.where(user > 0, 1, -1).astype(np.int8)[None])[:, None]
    pointer, nothing = np.zeros(2, dtype=np.int64), np.empty(0, dtype=np.int64)

    def by_codes():
        score_kernels.nearest_of_users(
            pointer[:1], own, words, pointer, nothing, near, found[0], found[1]
        )

    def by_vectors():
        scores = vectors @ user
        top = np.argpartition(-scores, 10)[:10]
        return top[np.argsort(-scores[top])]

    return {
        "codes, MB": codes.nbytes / 1e6,
        "float32, MB": vectors.nbytes / 1e6,
        "codes, CPU us": _least(by_codes, 20),
        "float32, CPU us": _least(by_vectors, 20),
    }


def _least(call, repeats):
    best = np.inf
    with threadpool_limits(1, "blas"):
        for _ in range(repeats):
            start = time.process_time()
            call()
            best = min(best, time.process_time() - start)
    return 1e6 * best
