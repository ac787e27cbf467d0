"""Measure FedMF, CoLR and SCoLR: ``python -m benchmarks.colr COMMAND``.

The federation is the paper's: 1,000 rounds over a shuffled list of clients, 60 at a time. HR@10
and NDCG@10 are in percent. `quality` and `ranks` rank the last row of each of the 6,040 users
among 99 given negatives.

Data: MovieLens-1M, in the folder --data-home or FEDRECSK_DATA. `quality` and `ranks` also need the
leave-one-out files of MovieLens-1M of He et al. (2017) in this folder.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.base import clone

from benchmarks._command_line import command_line
from benchmarks._seeds import reported
from fedrecsk import CoLR, Federation, FedMF, Popularity, SCoLR
from fedrecsk.datasets import fetch_movielens
from fedrecsk.metrics import evaluate_ranking

PAPER = {
    "n_factors": 64,
    "n_rounds": 1000,
    "client_fraction": 0.01,
    "federation": Federation(sampling="rotating"),
    "shrinkage": 0.0,
    "averaging": False,
}
# Nguyen et al., WWW 2024: table 4.
TABLE_4 = {
    2: (57.84, 32.58),
    4: (59.87, 33.89),
    8: (61.02, 34.77),
    16: (62.06, 35.63),
    32: (63.29, 36.34),
    64: (63.86, 37.04),
}


def leave_one_out(options):
    """Training rows, the row under test of each user, and its negatives."""
    X = fetch_movielens("1m", data_home=options.data_home, return_X_y=True)[0][:, :2]
    files = Path(options.data_home or os.environ["FEDRECSK_DATA"]) / "ml-1m"
    test = pd.read_csv(files / "leave_one_out_test.csv.gz")[["user", "item"]].to_numpy()
    negatives = pd.read_csv(files / "leave_one_out_negatives.csv.gz")
    pairs, held_out = (part[:, 0] * 10_000 + part[:, 1] for part in (X, test))
    return X[~np.isin(pairs, held_out)], test, negatives


def hits(model, test, **among):
    """HR@10 and NDCG@10 in percent."""
    with warnings.catch_warnings():
        # 156 of the given negatives were rated.
        warnings.simplefilter("ignore", UserWarning)
        values = evaluate_ranking(model, test, **among)
    return 100 * values["hit_rate@10"], 100 * values["ndcg@10"]


def quality(options):
    """HR@10 and NDCG@10 of the paper's methods, over seeds."""
    X, test, negatives = leave_one_out(options)
    models = {
        "popularity": Popularity(),
        "FedMF": FedMF(**PAPER),
        "FedMF, batches of 256": FedMF(**PAPER, batch_size=256),
        "CoLR, rank 4": CoLR(4, **PAPER),
        "SCoLR, rank 4": SCoLR(4, **PAPER),
        "SCoLR, rank 4, entries": SCoLR(4, aggregation="entries", **PAPER),
        "SCoLR, rank 16": SCoLR(16, **PAPER),
    }
    print("| model | HR@10 | NDCG@10 | +- | of FedMF's HR | s |\n|---|---|---|---|---|---|")
    best = None
    for label, model in models.items():
        runs, seconds = _runs(model, X, test, negatives, options)
        hr, ndcg = np.mean(runs, axis=0)
        best = hr if label == "FedMF" else best
        share = f"{hr / best:.3f}" if best else ""
        spread = np.std(runs, axis=0)[0]
        print(
            f"| {label} | {hr:.2f} | {ndcg:.2f} | {spread:.2f} | {share} | {seconds:.0f} |",
            flush=True,
        )


def ranks(options):
    """Every rank of the paper's table 4 and figures 3 and 4."""
    X, test, negatives = leave_one_out(options)
    print("| d or rank | FedMF | CoLR | SCoLR | paper's SCoLR |\n|---|---|---|---|---|")
    for rank in options.ranks:
        models = [
            FedMF(**PAPER | {"n_factors": rank}),
            CoLR(rank, **PAPER),
            SCoLR(rank, **PAPER),
        ]
        cells = []
        for model in models:
            runs, _ = _runs(model, X, test, negatives, options)
            cells.append("{:.2f} / {:.2f}".format(*np.mean(runs, axis=0)))
        paper = " / ".join(f"{value:.2f}" for value in TABLE_4.get(rank, ())) or "-"
        print(f"| {rank} | {' | '.join(cells)} | {paper} |", flush=True)


def speed(options):
    """Seconds for 1,000 rounds at d = 64 from the difference of two fits, best of several."""
    X, _, _ = leave_one_out(options)
    models = {"FedMF": FedMF(**PAPER)}
    models |= {f"CoLR, rank {rank}": CoLR(rank, **PAPER) for rank in (1, 4, 16, 32, 64)}
    best = {}
    for model in models.values():
        clone(model).set_params(n_rounds=1).fit(X[:5000])
    for _ in range(3):
        # Alternated, so that all run under the same load.
        for label, model in models.items():
            for n_rounds in (100, 300):
                one = clone(model).set_params(
                    n_rounds=n_rounds, random_state=0, n_jobs=options.n_jobs
                )
                start = time.perf_counter()
                one.fit(X)
                taken = time.perf_counter() - start
                best[label, n_rounds] = min(taken, best.get((label, n_rounds), np.inf))
    for label in models:
        seconds = (best[label, 300] - best[label, 100]) / 200 * 1000
        print(f"{label}: {seconds:.1f} s for 1,000 rounds, n_jobs={options.n_jobs}", flush=True)


def _runs(model, X, test, negatives, options):
    """HR and NDCG of each seed, and the least seconds of a fit."""
    runs, seconds = [], np.inf
    for seed in reported(options.seeds):
        one = clone(model)
        if "random_state" in one.get_params():
            one.set_params(random_state=seed, n_jobs=options.n_jobs)
        start = time.perf_counter()
        one.fit(X)
        seconds = min(seconds, time.perf_counter() - start)
        runs.append(hits(one, test, negatives=negatives))
    return runs, seconds


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {f.__name__: f for f in (quality, ranks, speed)}
    parser = command_line("colr", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data-home")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--n-jobs", type=int, default=1)
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
