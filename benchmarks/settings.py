"""Measure what each setting costs in simulation time: ``python -m benchmarks.settings``.

CPU seconds per round of each method in one setting at a time, on one thread: the median of a fit's
rounds without the first two, of the faster of two fits. Each setting is compared with the method's
plain round. The last column is the peak memory of the process so far.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA. The audit of
encryption needs the extra fedrecsk[privacy].
"""

from __future__ import annotations

import resource
import time
import warnings

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from benchmarks._command_line import command_line
from fedrecsk import CoLR, Federation, FedMF, GlobSGD, LightFR, LocALS, RFRec, SCoLR
from fedrecsk._utils.sklearn_compat import get_threadpool_controller
from fedrecsk._utils.threads import Threads
from fedrecsk.aggregation import NormClipping
from fedrecsk.attacks import Promotion, RandomDirection, RandomUpload, SignFlip
from fedrecsk.compression import LowRank, Quantization, TopK
from fedrecsk.datasets import fetch_movielens
from fedrecsk.privacy import CKKS, LaplaceMechanism, SecAggPlus
from fedrecsk.simulation.run import Run

METHODS = {
    "RFRec": RFRec(),
    "RFRec, holders": RFRec(aggregation="holders"),
    "RFRec, holders, a tenth": RFRec(aggregation="holders", client_fraction=0.1),
    "LocALS": LocALS(),
    "GlobSGD": GlobSGD(),
    "FedMF": FedMF(),
    "CoLR": CoLR(),
    "SCoLR": SCoLR(),
    "LightFR": LightFR(),
}
UP = {"direction": "up"}
SETTINGS = {
    "plain": Federation(),
    "half of the uploads lost": Federation(dropout=0.5),
    "half of the clients stale": Federation(dropout=0.5, dropout_mode="stale"),
    "norm clipping": Federation(aggregator=NormClipping()),
    "sign flip": Federation(adversary=SignFlip()),
    "noise uploads": Federation(adversary=RandomUpload()),
    "promotion": Federation(adversary=Promotion(item=1)),
    "float16": Federation(compression=Quantization("float16", **UP)),
    "int8": Federation(compression=Quantization("int8", **UP)),
    "Top-K": Federation(compression=TopK(**UP)),
    "low rank": Federation(compression=LowRank(**UP)),
    "Top-K, sign flip, clipping": Federation(
        compression=TopK(**UP), adversary=SignFlip(), aggregator=NormClipping()
    ),
    "masks": Federation(secure_aggregation=SecAggPlus(max_abs=64)),
    "CKKS, two clients audited": Federation(secure_aggregation=CKKS(8192, (60, 60, 60))),
}
# What needs a draw for every client and number: 12 ns each, and for every pass over them.
DRAWS = {
    "random direction": Federation(adversary=RandomDirection()),
    "noise uploads, clipping": Federation(adversary=RandomUpload(), aggregator=NormClipping()),
    "local noise, clipping": Federation(
        local_dp=LaplaceMechanism(0.2, 0.04), aggregator=NormClipping()
    ),
}


def seconds_per_round(model, X, y, n_rounds):
    """Median over the rounds of a fit, of the faster of two; None where it is refused."""
    model = clone(model).set_params(n_rounds=n_rounds + 2)
    try:
        model._validate_params()
        model._check_before_fit()
        data = model._read(X, y)
        return min(_median_round(model, data, n_rounds) for _ in range(2))
    except ValueError:
        return None


def _median_round(model, data, n_rounds):
    run = Run.new(model, data)
    seconds = []
    with (
        get_threadpool_controller().limit(limits=1, user_api="blas"),
        Threads(None) as run.parallel,
    ):
        run.set_up()
        for _ in range(n_rounds + 2):
            # CPU time, since a machine may have more to do.
            start = time.process_time()
            run.round()
            seconds.append(time.process_time() - start)
    # The first rounds compile, and make the clients' states.
    return float(np.median(seconds[2:]))


def prepared(name, federation, items):
    """The method in the setting, with what the setting demands."""
    model = clone(METHODS[name]).set_params(federation=federation, random_state=0)
    known = model.get_params(deep=False)
    if federation.secure_aggregation is not None and "upload" in known:
        model.set_params(upload="all")
    if federation.local_dp is not None:
        model.set_params(items=items)
        if "rating_scale" in known:
            model.set_params(rating_scale=(1, 5))
    return model


def main(argv=None):
    """Print a table for each data set."""
    parser = command_line("settings", __doc__)
    parser.add_argument("--data-home")
    parser.add_argument("--data", nargs="+", default=["100k", "1m"], choices=["100k", "1m"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    everything = SETTINGS | DRAWS
    parser.add_argument("--settings", nargs="+", default=list(everything), choices=everything)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore", ConvergenceWarning)
    for data in options.data:
        X, y = fetch_movielens(data, data_home=options.data_home, return_X_y=True)
        print(f"\n{data}: milliseconds per round, and times the plain round.\n")
        _print_table(X[:, :2], y, options, everything)


def _print_table(X, y, options, settings):
    print(f"| | {' | '.join(options.methods)} | memory |")
    print(f"|---|{'---|' * (len(options.methods) + 1)}")
    plain = {}
    for setting in ["plain", *(name for name in options.settings if name != "plain")]:
        n_rounds = max(1, options.rounds // 5) if setting in DRAWS else options.rounds
        cells = []
        for name in options.methods:
            model = prepared(name, settings[setting], np.unique(X[:, 1]))
            seconds = seconds_per_round(model, X, y, n_rounds)
            plain.setdefault(name, seconds)
            cells.append(_cell(seconds, plain[name]))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"| {setting} | {' | '.join(cells)} | {memory:.2f} GiB |", flush=True)


def _cell(seconds, plain):
    return "refused" if seconds is None else f"{1e3 * seconds:.1f} ({seconds / plain:.1f}x)"


if __name__ == "__main__":
    main()
