"""Compare our fits with installed peers in one run: ``python -m benchmarks.speed all|peers``.

`all` runs the `speed` commands of the other benchmarks, one after the other: LocALS and its
variants with implicit's ALS; RFRec with implicit; PMF, BiasedMF and SVDpp with Surprise and cornac,
if ``--peers-python`` can import them; LightFR's search with float32 products; FedMF with CoLR; and
each method in several settings. `peers`: CPU seconds of a first fit, kernels compiled within it,
and of the faster of two later ones: implicit's ALS, EASE by NumPy and the authors' way to train
PFedRec (a loop over clients with torch's optimisers, scaled from 60 of them), beside ours.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

import numpy as np
from sklearn.base import clone

from benchmarks import centralized, colr, fedals, lightfr, neural, rfrec, settings
from benchmarks._command_line import command_line
from fedrecsk import EASE, FedEASE, ImplicitALS, LocALS
from fedrecsk.datasets import fetch_movielens
from fedrecsk.neural import PFedRec


def all_commands(options):
    """Run the speed commands of other benchmarks."""
    where = [] if options.data_home is None else ["--data-home", options.data_home]
    for module, arguments in (
        (fedals, ["speed"]),
        (rfrec, ["speed"]),
        (centralized, ["speed", "--peers-python", options.peers_python]),
        (lightfr, ["speed"]),
        (lightfr, ["search"]),
        (colr, ["speed"]),
        (settings, []),
    ):
        print(f"\n## {' '.join([module.__name__, *arguments[:1]])}\n", flush=True)
        module.main([*arguments, *where])


def fit_ease_by_numpy(X, reg=1000.0):
    """Fit EASE as its paper prints it."""
    users, items = (np.unique(column, return_inverse=True)[1] for column in X.T)
    likes = np.zeros((users.max() + 1, items.max() + 1))
    likes[users, items] = 1
    inverse = np.linalg.inv(likes.T @ likes + reg * np.eye(likes.shape[1]))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)


def fits(model):
    """Return a function that fits a copy of a model."""
    return lambda X: clone(model).fit(X)


ROUND = PFedRec(n_rounds=1, random_state=0)
PEERS = {
    "implicit's ALS, 64 factors": lambda X: fedals._implicit(X, 64, use_cg=True)(10),
    "ImplicitALS(64)": fits(ImplicitALS(64)),
    "LocALS(64)": fits(LocALS(64)),
    "EASE by NumPy": fit_ease_by_numpy,
    "EASE()": fits(EASE()),
    "FedEASE()": fits(FedEASE()),
    "PFedRec, one round": fits(ROUND),
}


def peers(options):
    """CPU seconds of first and later fits, one thread, each model in a process of its own."""
    print("| data | model | first fit, CPU s | later fits, CPU s |\n|---|---|---|---|")
    context = multiprocessing.get_context("spawn")
    for name in options.data:
        X, _ = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
        X = X[:, :2]
        for label in PEERS:
            with tempfile.TemporaryDirectory() as folder:
                # The kernels of ours are compiled in the first fit.
                alone = {"NUMBA_CACHE_DIR": folder, "OPENBLAS_NUM_THREADS": "1"}
                with mock.patch.dict(os.environ, alone), ProcessPoolExecutor(1, context) as pool:
                    seconds = pool.submit(_seconds, label, X).result()
            print(f"| {name} | {label} | {seconds[0]:.2f} | {min(seconds[1:]):.2f} |", flush=True)
        loop = neural.plain_seconds("PFedRec", ROUND, X) * len(np.unique(X[:, 0]))
        print(f"| {name} | PFedRec by a loop over clients, one round | | {loop:.2f} |", flush=True)


def _seconds(label, X):
    seconds = []
    for _ in range(3):
        start = time.process_time()
        PEERS[label](X)
        seconds.append(time.process_time() - start)
    return seconds


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {"all": all_commands, "peers": peers}
    parser = command_line("speed", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", nargs="+", default=["100k"], choices=["100k", "1m"])
    parser.add_argument("--data-home")
    parser.add_argument("--peers-python")
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
