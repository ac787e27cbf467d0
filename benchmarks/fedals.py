"""Measure LocALS, LocSGD and GlobSGD: ``python -m benchmarks.fedals quality|speed``.

All ratings are positives. Each user's rows are split 80/20 at random by seed; one user per client;
precision@10 over the full catalogue without the user's training items; d = 20.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import itertools
import time

import numpy as np
from sklearn.base import clone

from benchmarks._command_line import command_line
from benchmarks._seeds import reported
from fedrecsk import GlobSGD, ImplicitALS, LocALS, LocSGD, Popularity
from fedrecsk.datasets import fetch_movielens

# What implicit is tuned over, on a validation part cut from training.
REGULARIZATIONS = (3.0, 10.0, 30.0, 100.0)
ALPHAS = (1.0, 2.0, 4.0, 10.0)
ROUNDS = (5, 10, 30)


def split(X, seed, share=0.2):
    """Training and test part of X, user by user."""
    X = X[np.random.default_rng(seed).permutation(len(X))]
    users = np.unique(X[:, 0], return_inverse=True)[1]
    sizes = np.bincount(users)
    order = np.argsort(users, kind="stable")
    rank = np.empty(len(X), dtype=np.int64)
    rank[order] = np.arange(len(X)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    test = rank < np.floor(share * sizes)[users]
    return X[~test], X[test]


def precisions(model, train, test, k=10):
    """The users that have training and test rows, and their precision@k."""
    users = np.intersect1d(train[:, 0], test[:, 0])
    items, _ = model.recommend(users, k)
    codes = np.searchsorted(users, test[:, 0])
    taken = {(u, i) for u, i in zip(codes.tolist(), test[:, 1].tolist(), strict=True)}
    hits = [[(u, i) in taken for i in row] for u, row in enumerate(items.tolist())]
    return users, np.mean(hits, axis=1)


def precision(model, train, test, k=10):
    """Mean precision@k over the users that have test rows."""
    return float(np.mean(precisions(model, train, test, k)[1]))


def tuned_als(train, options):
    """implicit's ALS with the best regularisation and alpha on a part of the training rows."""
    inner, validation = split(train, 1000)

    def accuracy(pair):
        model = als(*pair, seed=0, options=options).fit(inner)
        return precision(model, inner, validation)

    return max(itertools.product(REGULARIZATIONS, ALPHAS), key=accuracy)


def als(regularization, alpha, seed, options):
    """implicit's ALS, d = 20."""
    return ImplicitALS(
        20,
        reg=regularization,
        alpha=alpha,
        item_bias=False,
        random_state=seed,
        n_jobs=options.n_jobs,
    )


def data_sets(options):
    """Name and rows: the whole sets, then smaller and sparser parts of MovieLens-100k."""
    for name in options.data:
        yield name, fetch_movielens(name, data_home=options.data_home, return_X_y=True)[0][:, :2]
    X = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)[0][:, :2]
    rng = np.random.default_rng(0)
    yield "100k, 20 % of the rows", X[rng.random(len(X)) < 0.2]
    few = np.isin(X[:, 0], rng.permutation(np.unique(X[:, 0]))[:200])
    yield "100k, 200 users", X[few]


def quality(options):
    """Precision@10 after 5, 10 and 30 rounds, compared with tuned implicit ALS and popularity."""
    models = {
        "LocALS": LocALS(20),
        "LocALS, 10 % of the clients": LocALS(20, client_fraction=0.1),
        "GlobSGD": GlobSGD(),
        "GlobSGD, preconditioned": GlobSGD(preconditioner=True),
        "LocSGD": LocSGD(),
    }
    print("| data | model | round 5 | 10 | 30 | round 10 over ALS |\n|---|---|---|---|---|---|")
    for name, X in data_sets(options):
        parts = [split(X, seed) for seed in reported(options.seeds)]
        pair = tuned_als(parts[0][0], options)
        central = np.mean(
            [precision(als(*pair, s, options).fit(a), a, b) for s, (a, b) in enumerate(parts)]
        )
        popularity = np.mean([precision(Popularity().fit(a), a, b) for a, b in parts])
        label = f"implicit ALS, regularization={pair[0]:g}, alpha={pair[1]:g}"
        print(f"| {name} | {label} | | | {central:.4f} | |")
        print(f"| {name} | popularity | | | {popularity:.4f} | |", flush=True)
        for label, model in models.items():
            curve = np.mean(
                [_curve(model, s, a, b, options) for s, (a, b) in enumerate(parts)], axis=0
            )
            row = " | ".join(f"{value:.4f}" for value in curve)
            print(f"| {name} | {label} | {row} | {curve[1] / central:.3f} |", flush=True)


def speed(options):
    """Seconds per round on MovieLens-1M and of implicit's iterations, one thread, float32."""
    X = fetch_movielens("1m", data_home=options.data_home, return_X_y=True)[0][:, :2]
    for d in (20, 64):
        fits = {
            label: _federated(model.set_params(n_factors=d, random_state=0), X)
            for label, model in {
                "LocALS": LocALS(),
                "GlobSGD": GlobSGD(),
                "LocSGD": LocSGD(),
            }.items()
        }
        fits["implicit Cholesky"] = _implicit(X, d, use_cg=False)
        fits["implicit CG"] = _implicit(X, d, use_cg=True)
        seconds = _seconds_per_round(fits)
        exact, inexact = seconds["implicit Cholesky"], seconds["implicit CG"]
        for label, value in seconds.items():
            print(
                f"d = {d}, {label}: {value:.4f} s; {value / exact:.2f} of implicit's Cholesky "
                f"iteration, {value / inexact:.2f} of its CG iteration",
                flush=True,
            )


def _curve(model, seed, train, test, options):
    model = clone(model).set_params(random_state=seed, n_jobs=options.n_jobs, warm_start=True)
    return [precision(model.set_params(n_rounds=n).fit(train), train, test) for n in ROUNDS]


def _seconds_per_round(fits, n_short=3, n_long=13, repeats=3):
    # Difference of two fits, best of several; alternated, so that all run under the same load.
    best = {}
    for _ in range(repeats):
        for label, fit in fits.items():
            for n in (n_short, n_long):
                start = time.perf_counter()
                fit(n)
                taken = time.perf_counter() - start
                best[label, n] = min(taken, best.get((label, n), np.inf))
    return {
        label: (best[label, n_long] - best[label, n_short]) / (n_long - n_short) for label in fits
    }


def _federated(model, X):
    clone(model).set_params(n_rounds=1).fit(X[:5000])
    return lambda n: clone(model).set_params(n_rounds=n).fit(X)


def _implicit(X, d, use_cg):
    from implicit.cpu.als import AlternatingLeastSquares
    from scipy.sparse import csr_array, csr_matrix
    from threadpoolctl import threadpool_limits

    users, items = (np.unique(column, return_inverse=True)[1] for column in X.T)
    matrix = csr_matrix(csr_array((np.ones(len(users), dtype=np.float32), (users, items))))

    def fit(n):
        model = AlternatingLeastSquares(
            factors=d, use_cg=use_cg, num_threads=1, iterations=n, random_state=0
        )
        with threadpool_limits(1, "blas"):
            model.fit(matrix, show_progress=False)

    return fit


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {f.__name__: f for f in (quality, speed)}
    parser = command_line("fedals", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", nargs="+", default=["100k", "1m"])
    parser.add_argument("--data-home")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n-jobs", type=int, default=1)
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
