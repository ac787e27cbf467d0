"""Choose parameters where the data are: ``python -m benchmarks.search [--data DATA]``.

27 candidates of each method (`GRID`, with the defaults in the middle). `FederatedSearch` chooses
one by rows that clients hold out of the training rows. Ratings: RMSE on a fifth of the rows.
Rankings: NDCG@10 of the whole catalogue on a fifth of each user's rows. Splits have seeds for
reported numbers (``benchmarks/_seeds.py``).

The table has the test score of the model that the search fits, of the defaults, and of the best of
the 27 on the test rows, each fitted whole to all training rows; megabytes per client, up and down,
of the search, of the defaults, and of all 27 fits. The best of the 27 is chosen by the test rows,
so no search can expect to reach it.

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
from benchmarks._methods import add_method
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
    """Megabytes per client, up and down."""
    ledger = model.communication_
    return (ledger.bytes_up + ledger.bytes_down) / 1e6 / len(ledger.client_ids)


def searched(name, options, **parameters):
    """Return the search of a method with some parameters."""
    method = getattr(fedrecsk, name)(random_state=0, n_jobs=options.n_jobs, **parameters)
    add_method(method)
    return FederatedSearch(method, GRID[name], n_jobs=options.n_jobs, random_state=0)


def parts(name, options):
    """Return training rows and test rows."""
    (seed,) = reported(1, options.seed)
    X, y = fetch_movielens(options.data, data_home=options.data_home, return_X_y=True)
    return split(name, np.asarray(X)[:, :2].astype(np.int64), np.asarray(y), seed)


def measure(options):
    """Print scores and bytes of the search, of the defaults, and of all candidates."""
    head = ["data, method", "metric", "search", "default", "best of 27"]
    head += ["MB, search", "MB, default", "MB, 27 fits", "share", "found", "CPU s"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for name in options.only or GRID:
        train, test = parts(name, options)
        search, start = searched(name, options), time.process_time()
        search.fit(*train)
        seconds = time.process_time() - start
        # The defaults are one of the candidates, too.
        whole = [clone(search.estimator).set_params(**one) for one in ParameterGrid(GRID[name])]
        fits = [model.fit(*train) for model in whole]
        default = next(
            fit
            for fit in fits
            if all(getattr(fit, key) == getattr(search.estimator, key) for key in GRID[name])
        )
        found = [score(name, model, *test) for model in fits]
        best = min if name in RATINGS else max
        scores = score(name, search, *test), found[fits.index(default)], best(found)
        total = sum(map(megabytes, fits))
        sizes = megabytes(search), megabytes(default), total
        cells = [f"MovieLens-{options.data}, {name}", "RMSE" if name in RATINGS else "NDCG@10"]
        cells += [f"{one:.4f}" for one in scores]
        cells += [*(f"{one:.2f}" for one in sizes), f"{sizes[0] / total:.1%}"]
        cells += [", ".join(f"{key}={value}" for key, value in search.best_params_.items())]
        print(f"| {' | '.join([*cells, f'{seconds:.0f}'])} |", flush=True)


def main(argv=None):
    """Run the benchmark."""
    parser = command_line("search", __doc__)
    parser.add_argument("--data", choices=["100k", "1m"], default="100k")
    parser.add_argument("--data-home")
    parser.add_argument("--only", nargs="+", choices=list(GRID))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n-jobs", type=int, default=1)
    measure(parser.parse_args(argv))


if __name__ == "__main__":
    main()
