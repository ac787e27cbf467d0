"""Measure LightFR: ``python -m benchmarks.lightfr quality|cold|search``.

All ratings are positives. A test row is ranked among 99 items that its user has not rated; HR@10
and NDCG@10 are means over test rows, ties in expectation. MovieLens-1M: the last row of each user,
with the negatives of the file below. MovieLens-100k: each user's rows in order of time, 80 % for
training, 10 % for validation, 10 % for the test, with negatives drawn by a seed.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA. MovieLens-1M
also needs the leave-one-out files of MovieLens-1M of He et al. (2017) in this folder.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from sklearn.base import clone

from benchmarks._command_line import command_line
from benchmarks._seeds import reported
from fedrecsk import ImplicitALS, ImplicitBPR, LightFR, Popularity
from fedrecsk._utils.kernels import LazyModule
from fedrecsk.datasets import fetch_movielens

score_kernels = LazyModule("fedrecsk.models._score_kernels")


class WithoutPrior(LightFR):
    """LightFR that shrinks users' vectors towards zero."""

    MEAN_PRIOR = False


class ToOne(WithoutPrior):
    """... with target 1 for positives."""

    POSITIVE_TARGET = 1.0


class Untrained(WithoutPrior):
    """... with random item codes."""

    _trains_items = False


class OneSweep(LightFR):
    """LightFR with one sweep per round, as in the paper."""

    N_SWEEPS = 1


class Sampled(OneSweep):
    """... with the targets that suit sampled negatives."""

    POSITIVE_TARGET = 1.0
    NEGATIVE_TARGET = 0.4


class Literal(OneSweep):
    """LightFR as in the paper: one sweep, and a server that keeps no total."""

    SERVER_DECAY = 1


DEFAULT = WithoutPrior()
# What METHODS calls recommended: the paper's codes, fresh negatives, a server with a total.
SAMPLED = Sampled(aggregation="gradient", user_bits=1, balance_user=0.003, balance_item=0.01)
LITERAL = Literal(
    aggregation="gradient",
    user_bits=1,
    targets="ratings",
    n_negatives=0,
    balance_user=0.5,
    balance_item=0.5,
)
MODELS = {
    "LightFR": DEFAULT,
    "LightFR, n_bits=128": clone(DEFAULT).set_params(n_bits=128),
    "LightFR, user_bits=1": ToOne(user_bits=1),
    "LightFR, sampled negatives": SAMPLED,
    "LightFR, votes": clone(SAMPLED).set_params(aggregation="parameter", balance_item=0.0),
    "LightFR, ratings alone": clone(LITERAL).set_params(balance_user=0.01, balance_item=0.01),
    "LightFR, the paper's literal settings": LITERAL,
    "LightFR, random item codes": Untrained(),
}
N_NEGATIVES, K = 99, 10


# ------------------------------------------------------------------------------------ data


def leave_one_out(options):
    """ML-1M: training rows and ratings, test rows, and their negatives."""
    import pandas as pd

    X, y = fetch_movielens("1m", data_home=options.data_home, return_X_y=True)
    home = Path(options.data_home or os.environ["FEDRECSK_DATA"]) / "ml-1m"
    test = pd.read_csv(home / "leave_one_out_test.csv.gz")[["user", "item"]].to_numpy()
    negatives = pd.read_csv(home / "leave_one_out_negatives.csv.gz").to_numpy()
    order = np.argsort(negatives[:, 0])[np.argsort(np.argsort(test[:, 0]))]
    kept = ~np.isin(_pair(X), _pair(test))
    return X[kept, :2], y[kept], test, negatives[order, 1:]


def chronological(options):
    """ML-100k: training rows and ratings, validation rows and test rows.

    Of rows with the same time, the one further down is later, as in `LeaveLastOut`.
    """
    X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    X = X[:, :3].astype(np.int64)
    order = np.lexsort((X[:, 2], X[:, 0]))
    X, y = X[order], y[order]
    sizes = np.unique(X[:, 0], return_counts=True)[1]
    share = (np.arange(len(X)) - np.repeat(np.cumsum(sizes) - sizes, sizes)) / np.repeat(
        sizes, sizes
    )
    first, last = share < 0.8, share >= 0.9
    return X[first, :2], y[first], X[~first & ~last, :2], X[last, :2]


def last_but_one(X, y, seed=0):
    """Hold out one random row of each user for validation."""
    order = np.random.default_rng(seed).permutation(len(X))
    held_out = np.zeros(len(X), dtype=bool)
    held_out[order[np.unique(X[order, 0], return_index=True)[1]]] = True
    return X[~held_out], y[~held_out], X[held_out]


def drawn_negatives(seen, rows, seed=0):
    """99 items for each row that its user has no row of in `seen`, without replacement."""
    users, u = np.unique(seen[:, 0], return_inverse=True)
    items, i = np.unique(seen[:, 1], return_inverse=True)
    taken = np.zeros((len(users), len(items)), dtype=bool)
    taken[u, i] = True
    keys = np.random.default_rng(seed).random((len(rows), len(items)), dtype=np.float32)
    keys[taken[np.searchsorted(users, rows[:, 0])]] = 2
    return items[np.argpartition(keys, N_NEGATIVES, axis=1)[:, :N_NEGATIVES]]


def _pair(X):
    return X[:, 0].astype(np.int64) * 100_000 + X[:, 1].astype(np.int64)


def gains(model, rows, negatives):
    """Hits and gains at 10 of each row, ranked among its negatives."""
    users = np.repeat(rows[:, 0], N_NEGATIVES + 1)
    items = np.column_stack([rows[:, 1], negatives]).ravel()
    scores = model.predict(np.column_stack([users, items])).reshape(len(rows), -1)
    ahead = (scores[:, 1:] > scores[:, :1]).sum(axis=1)
    tied = (scores[:, 1:] == scores[:, :1]).sum(axis=1) + 1
    gains = np.r_[1 / np.log2(np.arange(K) + 2), np.zeros(N_NEGATIVES + 1)]
    sums = np.r_[0, np.cumsum(gains)]
    found = np.r_[np.ones(K), np.zeros(N_NEGATIVES + 1)]
    counts = np.r_[0, np.cumsum(found)]
    ndcg = (sums[ahead + tied] - sums[ahead]) / tied
    return (counts[ahead + tied] - counts[ahead]) / tied, ndcg


def hits(model, rows, negatives):
    """HR@10 and NDCG@10 of rows, each ranked among its negatives."""
    return tuple(np.mean(one) for one in gains(model, rows, negatives))


def _fit(model, X, y, seed, options):
    parameters = {"random_state": seed, "n_jobs": options.n_jobs}
    known = model.get_params()
    model = clone(model).set_params(**{k: v for k, v in parameters.items() if k in known})
    return model.fit(X, y if getattr(model, "targets", "implicit") == "ratings" else None)


def _row(name, label, scores):
    mean, deviation = np.mean(scores, axis=0), np.std(scores, axis=0)
    cells = f"{mean[0]:.3f} ± {deviation[0]:.3f} | {mean[1]:.3f} ± {deviation[1]:.3f}"
    print(f"| {name} | {label} | {cells} |", flush=True)


# -------------------------------------------------------------------------------- commands


def quality(options):
    """HR@10 and NDCG@10 of every setting compared with the baselines, on test rows."""
    print("| data | model | HR@10 | NDCG@10 |\n|---|---|---|---|", flush=True)
    for name in options.data:
        if name == "1m":
            X, y, test, negatives = leave_one_out(options)
            inner, _, validation = last_but_one(X, y)
            everything = np.concatenate([X, test])
        else:
            X, y, validation, test = chronological(options)
            inner, everything = X, np.concatenate([X, validation, test])
            negatives = drawn_negatives(everything, test)
        drawn, seeds = drawn_negatives(everything, validation, seed=1), reported(options.seeds)
        _row(name, "popularity", [hits(Popularity().fit(X), test, negatives)])
        for label, candidates in baselines().items():
            best = max(
                candidates, key=lambda m: hits(_fit(m, inner, None, 0, options), validation, drawn)
            )
            scores = [hits(_fit(best, X, None, s, options), test, negatives) for s in seeds]
            _row(name, f"{label}: {best}".replace("\n", " "), scores)
        for label, model in MODELS.items():
            if options.only and label not in options.only:
                continue
            scores = [hits(_fit(model, X, y, s, options), test, negatives) for s in seeds]
            _row(name, label, scores)


def baselines():
    """implicit's models with the settings that validation rows choose among."""
    return {
        "implicit ALS": [
            ImplicitALS(64, reg=reg, alpha=alpha, item_bias=False)
            for reg, alpha in ((30.0, 1.0), (30.0, 4.0), (100.0, 4.0))
        ],
        "implicit BPR": [ImplicitBPR(64, learning_rate=r) for r in (0.03, 0.1)],
    }


def cold(options):
    """ML-100k: a fifth of the users, or of the items, added after the fit."""
    X, _y, validation, test = chronological(options)
    negatives = drawn_negatives(np.concatenate([X, validation, test]), test)
    print("| HR@10 | added after the fit | trained with all | popularity |\n|---|---|---|---|")
    for column, what in enumerate(("users", "items")):
        ids = np.unique(X[:, column])
        new = np.random.default_rng(0).permutation(ids)[: len(ids) // 5]
        added = np.isin(X[:, column], new)
        model = _fit(DEFAULT, X[~added], None, 0, options)
        (model.fold_in if column == 0 else model.fold_in_items)(X[added])
        full = _fit(DEFAULT, X, None, 0, options)
        popular = Popularity().fit(X)
        mine = np.isin(test[:, column], new)
        scores = [hits(m, test[mine], negatives[mine])[0] for m in (model, full, popular)]
        print(f"| rows of new {what} | {' | '.join(f'{score:.3f}' for score in scores)} |")


def search(options):
    """One user's ten best of 105,096 items: the call, the kernel, and a float32 product."""
    from threadpoolctl import threadpool_limits

    n_items, rng = 105_096, np.random.default_rng(0)
    items = np.arange(n_items)
    X = np.column_stack([rng.integers(0, 7375, n_items), items])
    vectors = rng.normal(size=(n_items, 32)).astype(np.float32)
    user = rng.normal(size=32).astype(np.float32)

    def product():
        scores = vectors @ user
        top = np.argpartition(-scores, 10)[:10]
        return top[np.argsort(-scores[top])]

    timed = {}
    models = {}
    for bits in (1, 4):
        model = Untrained(user_bits=bits, n_rounds=1, random_state=0).fit(X)
        models[bits] = model
        found, distances = np.empty((2, 1, 10), dtype=np.int64)
        no_user, none = np.zeros(2, dtype=np.int64), np.empty(0, dtype=np.int64)
        words = np.ascontiguousarray(model.item_codes_.T)
        near = np.empty(score_kernels.BLOCK, dtype=np.int32)
        codes = no_user[:1], model.user_codes_, words
        arguments = *codes, no_user, none, near, found, distances
        timed[f"kernel, user_bits={bits}"] = lambda a=arguments: score_kernels.nearest_of_users(*a)
        timed[f"recommend, user_bits={bits}"] = lambda m=model: m.recommend(m.user_ids_[:1])
    timed["float32 product, d=32, and partial sort"] = product
    best = dict.fromkeys(timed, np.inf)
    with threadpool_limits(1, "blas"):
        for _ in range(300):
            for label, call in timed.items():
                start = time.perf_counter()
                call()
                best[label] = min(best[label], time.perf_counter() - start)
    print("| ten best of 105,096 items | us |\n|---|---|")
    for label, seconds in best.items():
        print(f"| {label} | {1e6 * seconds:.0f} |")


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {f.__name__: f for f in (quality, cold, search)}
    parser = command_line("lightfr", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", nargs="+", default=["100k", "1m"], choices=["100k", "1m"])
    parser.add_argument("--data-home")
    parser.add_argument("--only", nargs="+", default=[], choices=MODELS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--n-jobs", type=int, default=1)
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
