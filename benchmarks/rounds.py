"""Seconds a round on MovieLens-1M, with one thread and two: ``python -m benchmarks.rounds``.

The median of a fit's rounds but for the first two, of the faster of two fits; all clients take part
unless the label says otherwise. Beside it, how many times as fast two threads are. Two checkouts
are compared by running this file on each: ``PYTHONPATH=<checkout> python benchmarks/rounds.py``.
Needs MovieLens under ``--data-home`` or FEDRECSK_DATA.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from sklearn.base import clone

from fedrecsk import FedEB, FedMF, GlobSGD, LightFR, LocALS, RFRec
from fedrecsk.datasets import fetch_movielens

MODELS = {
    "RFRec": RFRec(),
    "LocALS": LocALS(),
    "LocALS, d = 64": LocALS(64),
    "GlobSGD": GlobSGD(),
    "FedEB": FedEB(),
    "FedEB, a tenth": FedEB(client_fraction=0.1),
    "FedMF": FedMF(),
    "LightFR": LightFR(),
}


class Clock:
    """Notes when each round of a fit ended; a callback."""

    def __init__(self):
        self.ends = []

    def setup(self, estimator, context):
        """Nothing to prepare."""

    def teardown(self, estimator, context):
        """Nothing to clean up."""

    def on_fit_task_begin(self, estimator, context):
        """A round, or the fit, begins."""

    def on_fit_task_end(self, estimator, context):
        """A round, or the fit, has ended."""
        self.ends.append(time.perf_counter())


def seconds_a_round(model, X, y, n_jobs, n_rounds):
    """The median of the faster of two fits."""
    medians = []
    for _ in range(2):
        clock = Clock()
        fit = clone(model).set_params(n_rounds=n_rounds, n_jobs=n_jobs, random_state=0)
        fit.set_callbacks(clock).fit(X, y)
        # The last end is the fit's.
        medians.append(np.median(np.diff(clock.ends[1:-1])))
    return min(medians)


def main(argv=None):
    """Print a row for each method."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rounds", description=__doc__)
    parser.add_argument("--data-home")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args(argv)
    X, y = fetch_movielens("1m", data_home=options.data_home, return_X_y=True)
    warnings.simplefilter("ignore")
    print("| | 1 thread (ms) | 2 threads (ms) | times as fast |")
    print("|---|---|---|---|")
    for label in options.only:
        one, two = (
            1e3 * seconds_a_round(MODELS[label], X, y, n_jobs, options.rounds) for n_jobs in (1, 2)
        )
        print(f"| {label} | {one:.3g} | {two:.3g} | {one / two:.2f} |", flush=True)


if __name__ == "__main__":
    main()
