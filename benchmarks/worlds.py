"""What a world costs in time, on MovieLens-100k: ``python -m benchmarks.worlds``.

Seconds a round of each method in worlds of one kind each, one thread, the best of three fits. A
round is the difference between fits of five rounds and of one, over four, so that what every fit
does once is not in it. What looks at single uploads (compression, guards, attacks, audits) runs
client by client instead of block by block. Needs MovieLens under ``--data-home`` or FEDRECSK_DATA,
and the extra [privacy].
"""

from __future__ import annotations

import argparse
import time

from sklearn.base import clone

from fedrecsk import CoLR, Federation, FedMF, GlobSGD, LightFR, LocALS, RFRec
from fedrecsk.aggregation import NormClipping
from fedrecsk.attacks import RandomUpload
from fedrecsk.compression import LowRank, Quantization, TopK
from fedrecsk.datasets import fetch_movielens
from fedrecsk.privacy import CKKS

METHODS = {
    "RFRec": RFRec(),
    "LocALS": LocALS(),
    "GlobSGD": GlobSGD(),
    "FedMF": FedMF(client_fraction=1.0),
    "CoLR": CoLR(client_fraction=1.0),
    "LightFR": LightFR(client_fraction=1.0),
}
WORLDS = {
    "perfect": Federation(),
    "half of the uploads lost": Federation(dropout=0.5),
    "half of the clients stale": Federation(dropout=0.5, dropout_mode="stale"),
    "TopK": Federation(compression=TopK()),
    "LowRank": Federation(compression=LowRank()),
    "Quantization": Federation(compression=Quantization()),
    "NormClipping": Federation(aggregator=NormClipping()),
    "RandomUpload": Federation(adversary=RandomUpload()),
    "CKKS, one client audited": Federation(secure_aggregation=CKKS(8192, (60, 60, 60))),
}


def seconds_a_round(model, X, y, n_rounds=5):
    """Of the fastest of three fits; None where method and world do not go together."""
    try:
        one = min(_seconds(clone(model).set_params(n_rounds=1), X, y) for _ in range(3))
    except ValueError:
        return None
    more = min(_seconds(clone(model).set_params(n_rounds=n_rounds), X, y) for _ in range(3))
    return (more - one) / (n_rounds - 1)


def _seconds(model, X, y):
    start = time.perf_counter()
    model.fit(X, y)
    return time.perf_counter() - start


def main(argv=None):
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worlds", description=__doc__)
    parser.add_argument("--data-home")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    options = parser.parse_args(argv)
    X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    X = X[:, :2]
    print("Seconds a round, and times the perfect world's.\n")
    print(f"| | {' | '.join(options.methods)} |\n|---|{'---|' * len(options.methods)}")
    perfect = {}
    for name, world in WORLDS.items():
        cells = []
        for method in options.methods:
            model = clone(METHODS[method]).set_params(federation=world, random_state=0)
            if method == "LightFR" and world.secure_aggregation is not None:
                model.set_params(upload="all")
            seconds = seconds_a_round(model, X, y)
            perfect.setdefault(method, seconds)
            cells.append(_cell(seconds, perfect[method]))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _cell(seconds, perfect):
    return "refused" if seconds is None else f"{seconds:.3f} ({seconds / perfect:.0f}x)"


if __name__ == "__main__":
    main()
