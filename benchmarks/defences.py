"""Measure what robust aggregators cost, and what gets through: ``python -m benchmarks.defences``.

``cost``: precision@10 over the full catalogue without an attack. ``stops``: the same for the honest
users while 2 or 10 % of the clients attack, and the share of honest users who get the promoted item
among their ten. Three quarters of the items have more ratings than that item. All ratings are
positives, and each user's rows are split 80/20 at random by seed; one user per client, or with
``--silos`` 20 silos; defaults. ``--valid`` measures on a fifth of the training rows instead of the
test rows, for choosing parameters.

Data: MovieLens-100k, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import numpy as np
from sklearn.base import clone

from benchmarks._command_line import command_line
from benchmarks.fedals import precision, split
from fedrecsk import Federation, FedMF, GlobSGD, LocALS
from fedrecsk.aggregation import (
    CoordinateMedian,
    FLTrust,
    GeometricMedian,
    HierarchicalClipping,
    Krum,
    NormClipping,
    PopularityFilter,
    RowClipping,
    TrimmedMean,
)
from fedrecsk.attacks import LabelFlip, Promotion, RandomDirection, RandomUpload, SignFlip
from fedrecsk.datasets import fetch_movielens
from fedrecsk.metrics import exposure

N_SILOS = 20
FRACTIONS = (0.02, 0.1)
SCALES = (1.0, 10.0, 1e4)
METHODS = {"LocALS": LocALS(), "GlobSGD": GlobSGD(), "FedMF": FedMF()}
DEFENCES = {
    "none": None,
    "norms": NormClipping(),
    "rows": RowClipping(),
    "rows, 2 medians": RowClipping(multiple=2.0),
    "hierarchical": HierarchicalClipping(),
    "hierarchical, half": HierarchicalClipping(share=0.5),
    "popularity": PopularityFilter(),
    "geometric median": GeometricMedian(),
}
# The trusted silo is the first. The adversary draws its clients, which may include it.
OF_SILOS = {
    "median": CoordinateMedian(),
    "trimmed mean": TrimmedMean(),
    "Multi-Krum": Krum(n_attackers=2, n_selected=10),
    "FLTrust": FLTrust(0),
}


def attacks(item, fraction):
    """Name and adversary."""
    scales = {f"x {scale:g}": Promotion(fraction, item=item, scale=scale) for scale in SCALES}
    return {
        "noise .1": RandomUpload(fraction, strength=0.1),
        "noise 1": RandomUpload(fraction, strength=1.0),
        "-5 x honest": SignFlip(fraction),
        "random direction": RandomDirection(fraction),
        "flipped labels": LabelFlip(fraction),
    } | scales


def cost(options):
    """Precision@10 without an attack: a row per defence, a column per method."""
    methods = {name: METHODS[name] for name in options.methods}
    print(f"| defence | {' | '.join(methods)} |\n|" + "---|" * (len(methods) + 1))
    for name, aggregator in defences(options).items():
        cells = []
        for method in methods.values():
            figures = [_measured(method, aggregator, None, seed, options) for seed in options.seeds]
            cells.append(" ".join(figure for figure, _ in figures))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def stops(options):
    """Precision@10 and exposure under attack: a row per defence, a column per attack."""
    item = _data(options, options.seeds[0])[2]
    for method in options.methods:
        for fraction in FRACTIONS:
            columns = attacks(item, fraction)
            print(f"\n| {method}, {fraction:.0%} | {' | '.join(columns)} |")
            print("|" + "---|" * (len(columns) + 1))
            for name, aggregator in defences(options).items():
                cells = []
                for adversary in columns.values():
                    figure, reach = _measured(
                        METHODS[method], aggregator, adversary, options.seeds[0], options
                    )
                    promotes = isinstance(adversary, Promotion)
                    cells.append(f"{figure} ({reach})" if promotes else figure)
                print(f"| {name} | {' | '.join(cells)} |", flush=True)


def defences(options):
    """Name and aggregator, of those that were asked for."""
    known = DEFENCES | OF_SILOS if options.silos else DEFENCES
    return {name: known[name] for name in known if not options.only or name in options.only}


def _measured(method, aggregator, adversary, seed, options):
    """Precision@10 of the honest users and exposure, or the reason why there are none."""
    train, test, item = _data(options, seed)
    clients = train[:, 0] % N_SILOS if options.silos else train[:, 0]
    federation = Federation(adversary=adversary, aggregator=aggregator)
    model = clone(method).set_params(federation=federation, random_state=seed)
    try:
        model.fit(train, clients=clients)
    except ValueError as error:
        for word, cell in {
            "diverged": "diverges",
            "set share=1": "refused",
            "the federation's adversary controls": "reference attacked",
        }.items():
            if word in str(error):
                return cell, "-"
        raise
    bad = getattr(model, "compromised_clients_", [])
    honest = np.unique(train[~np.isin(clients, bad), 0])
    part = [rows[np.isin(rows[:, 0], honest)] for rows in (train, test)]
    return f"{precision(model, *part):.4f}", f"{exposure(model, item, honest):.3f}"


def _data(options, seed):
    X, _ = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    train, test = split(X[:, :2], seed)
    if options.valid:
        train, test = split(train, 1000 + seed)
    items, counts = np.unique(train[:, 1], return_counts=True)
    return train, test, items[np.argsort(counts, kind="stable")[len(items) // 4]]


def main(argv=None):
    """Print a table."""
    commands = {"cost": cost, "stops": stops}
    parser = command_line("defences", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data-home")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--only", nargs="+", choices=DEFENCES | OF_SILOS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1], help="seeds to run")
    parser.add_argument("--silos", action="store_true", help="20 silos, and defences for silos")
    parser.add_argument("--valid", action="store_true", help="measure on training rows")
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
