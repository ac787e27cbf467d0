"""Measure attacks and robust aggregators: ``python -m benchmarks.robustness``.

All ratings are positives, and each user's rows are split 80/20 at random; d = 20; defaults. A
tenth of the clients is poisoned, the same ones in all rows. The first table has one user per
client; in the second the users are divided among 20 silos. Each cell is precision@10 of the honest
users over the full catalogue; the last column is the share of honest users who get the promoted
item among their ten. Three quarters of the items have more ratings than the promoted one.
``--curve`` prints precision by round instead.

Data: MovieLens-100k, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import numpy as np
from sklearn.base import clone

from benchmarks._command_line import command_line
from benchmarks.fedals import precision, split
from fedrecsk import Federation, GlobSGD, LocALS, LocSGD, Popularity
from fedrecsk.aggregation import CoordinateMedian, Krum, NormClipping, TrimmedMean
from fedrecsk.attacks import LabelFlip, Promotion, RandomDirection, RandomUpload, SignFlip
from fedrecsk.datasets import fetch_movielens
from fedrecsk.metrics import exposure

N_SILOS = 20
METHODS = {
    "LocALS": LocALS(),
    "GlobSGD": GlobSGD(),
    "GlobSGD, preconditioned": GlobSGD(preconditioner=True),
    "LocSGD": LocSGD(),
}
CLIPPING = {
    "none": None,
    "clip at the median": NormClipping(),
    "clip at 3 medians": NormClipping(multiple=3.0),
}
COMPARISONS = {
    "median": CoordinateMedian(),
    "trimmed mean": TrimmedMean(),
    "Krum": Krum(n_attackers=2),
    "Multi-Krum": Krum(n_attackers=2, n_selected=10),
}


def attacks(item):
    """Name and adversary."""
    return {
        "no attack": None,
        "noise .1": RandomUpload(strength=0.1),
        "noise 1": RandomUpload(strength=1.0),
        "-5 x honest": SignFlip(),
        "random direction": RandomDirection(),
        "flipped labels": LabelFlip(),
        "promotion": Promotion(item=item),
    }


def tables(options):
    """Precision@10 of honest users: a row a method and aggregator, a column an attack."""
    train, test, item = _data(options)
    print(f"popularity: {precision(Popularity().fit(train), train, test):.3f}")
    columns = attacks(item)
    silos = train[:, 0] % N_SILOS
    for title, clients, aggregators in (
        ("one user per client", None, CLIPPING),
        (f"{N_SILOS} silos", silos, CLIPPING | COMPARISONS),
    ):
        print(f"\n| {title} | aggregator | {' | '.join(columns)} | exposure |")
        print("|" + "---|" * (len(columns) + 3))
        for method, estimator in METHODS.items():
            for name, aggregator in aggregators.items():
                cells, reach = [], float("nan")
                for attack, adversary in columns.items():
                    federation = Federation(adversary=adversary, aggregator=aggregator)
                    model = clone(estimator).set_params(
                        federation=federation, random_state=options.seed, n_jobs=options.n_jobs
                    )
                    try:
                        model.fit(train, clients=clients)
                    except ValueError as error:
                        if "diverged" not in str(error):
                            raise
                        cells.append("diverges")
                        continue
                    good = _honest(model, train, clients)
                    cells.append(f"{_precision(model, train, test, good):.3f}")
                    if attack == "promotion":
                        reach = exposure(model, item, good)
                row = " | ".join(cells)
                print(f"| {method} | {name} | {row} | {reach:.2f} |", flush=True)


def curve(options):
    """Precision@10 of honest users by round, one user per client."""
    train, test, item = _data(options)
    rounds = (1, 2, 5, 10, 20, 30)
    print(f"| method | aggregator | attack | {' | '.join(map(str, rounds))} |")
    print("|" + "---|" * (len(rounds) + 3))
    for method, estimator in METHODS.items():
        for name, aggregator in CLIPPING.items():
            for attack, adversary in attacks(item).items():
                federation = Federation(adversary=adversary, aggregator=aggregator)
                model = clone(estimator).set_params(
                    federation=federation, warm_start=True, random_state=options.seed
                )
                cells = []
                for n in rounds:
                    model.set_params(n_rounds=n).fit(train)
                    good = _honest(model, train, None)
                    cells.append(f"{_precision(model, train, test, good):.3f}")
                print(f"| {method} | {name} | {attack} | {' | '.join(cells)} |", flush=True)


def _data(options):
    X, _ = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    train, test = split(X[:, :2], options.seed)
    items, counts = np.unique(train[:, 1], return_counts=True)
    return train, test, items[np.argsort(counts, kind="stable")[len(items) // 4]]


def _honest(model, train, clients):
    clients = train[:, 0] if clients is None else clients
    bad = getattr(model, "compromised_clients_", [])
    return np.unique(train[~np.isin(clients, bad), 0])


def _precision(model, train, test, users):
    return precision(model, train[np.isin(train[:, 0], users)], test[np.isin(test[:, 0], users)])


def main(argv=None):
    """Print the tables, or the curves."""
    parser = command_line("robustness", __doc__)
    parser.add_argument("--curve", action="store_true")
    parser.add_argument("--data-home")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n-jobs", type=int, default=1)
    options = parser.parse_args(argv)
    (curve if options.curve else tables)(options)


if __name__ == "__main__":
    main()
