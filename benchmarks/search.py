"""Choose parameters where the data are: ``python -m benchmarks.search [METHOD ...]``.

27 candidates of each method (`GRID`, with the defaults in the middle). `FederatedSearch` chooses
one by rows that clients hold out of the training rows. The table has the test score of the model
that it fits, of the defaults, and of the best of the 27 on the test rows, each fitted whole to all
training rows; and the megabytes of all clients of the search, of the defaults, and of all 27 fits.
The best of the 27 is chosen by the test rows, so no search can expect to reach it.

Ratings: RMSE on a fifth of the rows. Rankings: NDCG@10 of the whole catalogue on a fifth of each
user's rows. Splits have seeds for reported numbers (``benchmarks/_seeds.py``).

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid

import fedrecsk
from benchmarks import fedals, rfrec
from benchmarks._command_line import command_line
from benchmarks._seeds import reported
from fedrecsk.datasets import fetch_movielens
from fedrecsk.metrics import make_ranking_scorer
from fedrecsk.selection import FederatedSearch

GRID = {
    "RFRec": {
        "reg_user": [0.02, 0.04, 0.08],
        "reg_item": [0.02, 0.04, 0.08],
        "learning_rate": [0.05, 0.1, 0.2],
    },
    "FedEB": {
        "n_factors": [10, 20, 40],
        "sketch_size": [32, 128, 256],
        "learning_rate": [0.025, "auto", 0.1],
    },
    "LocALS": {
        "alpha": [0.5, 1.0, 2.0],
        "reg_user": [15.0, 30.0, 60.0],
        "reg_item": [5.0, 10.0, 20.0],
    },
    "FedMF": {
        "learning_rate": [0.25, 0.5, 1.0],
        "reg": [0.001, 0.002, 0.004],
        "batch_size": [32, 64, 128],
    },
}
RATINGS = {"RFRec", "FedEB"}


def split(name, X, y, seed):
    """Return training rows and test rows, each with ratings or None."""
    if name in RATINGS:
        X_train, y_train, X_test, y_test = rfrec.split(X, y, seed)
        return (X_train, y_train), (X_test, y_test)
    train, test = fedals.split(X, seed)
    return (train, None), (test, None)


def score(name, model, X, y):
    """RMSE or NDCG@10."""
    if name in RATINGS:
        return float(np.sqrt(np.mean((model.predict(X) - y) ** 2)))
    return float(make_ranking_scorer("ndcg", k=10)(model, X))


def megabytes(model):
    """Megabytes of all clients, in both directions."""
    ledger = model.communication_
    return (ledger.bytes_up + ledger.bytes_down) / 1e6


def measured(name, train, test, options):
    """Return test scores and megabytes of the search, of the defaults, and of all candidates."""
    method = getattr(fedrecsk, name)(random_state=0, n_jobs=options.n_jobs)
    search = FederatedSearch(method, GRID[name], n_jobs=options.n_jobs, random_state=0)
    start = time.process_time()
    search.fit(*train)
    seconds = time.process_time() - start
    scores, sizes = [score(name, search, *test)], [megabytes(search)]
    whole = [clone(method)]
    if not options.search_only:
        whole += [clone(method).set_params(**params) for params in ParameterGrid(GRID[name])]
    fits = [model.fit(*train) for model in whole]
    found = [score(name, model, *test) for model in fits]
    best = min if name in RATINGS else max
    scores += [found[0], best(found)]
    all_fits = [megabytes(model) for model in fits]
    # The defaults are the first of the fits, and one of the candidates again.
    return search, scores, [*sizes, all_fits[0], sum(all_fits[1:])], seconds


def main(argv=None):
    """Print a row for each data set and method."""
    parser = command_line("search", __doc__)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"default: {', '.join(GRID)}")
    parser.add_argument("--data", nargs="+", default=["100k", "1m"], choices=["100k", "1m"])
    parser.add_argument("--data-home")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n-jobs", type=int, default=1)
    parser.add_argument("--search-only", action="store_true", help="do not fit all candidates")
    options = parser.parse_args(argv)
    unknown = sorted(set(options.methods) - GRID.keys())
    if unknown:
        parser.error(f"unknown method {unknown[0]}; there are {', '.join(GRID)}")
    (seed,) = reported(1, options.seed)
    print("| data | method | search | defaults | best of 27 | MB: search | defaults | 27 fits | |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for data in options.data:
        X, y = fetch_movielens(data, data_home=options.data_home, return_X_y=True)
        X, y = np.asarray(X)[:, :2].astype(np.int64), np.asarray(y)
        for name in options.methods or GRID:
            search, scores, sizes, seconds = measured(name, *split(name, X, y, seed), options)
            shown = " | ".join(f"{one:.4f}" for one in scores)
            costs = " | ".join(f"{one:,.0f}" for one in sizes)
            params = ", ".join(f"{key}={value}" for key, value in search.best_params_.items())
            line = f"{shown} | {costs} | {params}; {seconds:.0f} CPU s"
            print(f"| {data} | {name} | {line} |", flush=True)


if __name__ == "__main__":
    main()
