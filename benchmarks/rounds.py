"""Time rounds on MovieLens-1M with one and two threads: ``python -m benchmarks.rounds``.

The median of a fit's rounds without the first two, of the faster of two fits. All clients take
part, unless the label says what share does. The last column is the speed-up by the second thread.
To compare two checkouts, run this file on each: ``PYTHONPATH=<checkout> python
benchmarks/rounds.py``.

Data: MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
from sklearn.base import clone

from benchmarks._command_line import command_line
from fedrecsk import (
    FCF,
    CoLR,
    ExplicitFCF,
    FedEB,
    FedFast,
    FedMF,
    GlobSGD,
    LightFR,
    LocALS,
    LocSGD,
    RFRec,
    RFRecF,
    SemiDFEGL,
)
from fedrecsk.datasets import fetch_movielens

MODELS = {
    "RFRec": RFRec(),
    "RFRecF": RFRecF(),
    "LocALS": LocALS(),
    "LocALS, d = 64": LocALS(64),
    "GlobSGD": GlobSGD(),
    "LocSGD": LocSGD(),
    "FCF": FCF(),
    "ExplicitFCF": ExplicitFCF(),
    "FedEB": FedEB(),
    "FedEB, 10%": FedEB(client_fraction=0.1),
    "FedMF, 20%, its default": FedMF(),
    "CoLR, rank 4, 20%, its default": CoLR(4),
    "FedFast, 20%, its default": FedFast(),
    "LightFR, 60%, its default": LightFR(),
    "SemiDFEGL": SemiDFEGL(),
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
    parser = command_line("rounds", __doc__)
    parser.add_argument("--data-home")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args(argv)
    X, y = fetch_movielens("1m", data_home=options.data_home, return_X_y=True)
    warnings.simplefilter("ignore")
    print("| share of the clients, if not all | 1 thread (ms) | 2 threads (ms) | times as fast |")
    print("|---|---|---|---|")
    for label in options.only:
        one, two = (
            1e3 * seconds_a_round(MODELS[label], X, y, n_jobs, options.rounds) for n_jobs in (1, 2)
        )
        print(f"| {label} | {one:.3g} | {two:.3g} | {one / two:.2f} |", flush=True)


if __name__ == "__main__":
    main()
