"""Measure attacks and defences: ``python -m benchmarks.robustness COMMAND``.

The attacker chooses the strength of its attack, so every number is the worst over a grid of
strengths: for each method, defence, attack and share of poisoned clients, the strength with the
lowest precision@10 of the honest users (or the highest exposure of the promoted item), averaged
over seeds (and promoted items). The strength is chosen on the same rows that are reported, which
favours the attacker.

All ratings are positives, and each user's rows are split 80/20 at random; d = 20; defaults.
Precision@10 is that of the honest users over the full catalogue. Exposure is the share of honest
users without the item who get it among their ten. The items to promote are drawn among those with
as few ratings as a quarter of all items have.

Data: MovieLens-100k, in the folder --data-home or FEDRECSK_DATA. Finished fits are kept in the
folder --results.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from sklearn.base import clone

from benchmarks._command_line import command_line
from benchmarks._results import Results
from benchmarks._seeds import reported
from benchmarks.fedals import precision, split
from fedrecsk import Federation, FedMF, GlobSGD, LocALS, LocSGD, Popularity
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
from fedrecsk.attacks import (
    ALIE,
    PIECK,
    PSMU,
    AHum,
    Fang,
    FedRecAttack,
    LabelFlip,
    MinMax,
    PipAttack,
    Promotion,
    RandomDirection,
    RandomUpload,
    SignFlip,
)
from fedrecsk.datasets import fetch_movielens
from fedrecsk.metrics import exposure

N_SILOS = 20
TRUSTED = 0
SHARES = (0.01, 0.02, 0.05, 0.1)
METHODS = {
    "LocALS": LocALS(),
    "GlobSGD": GlobSGD(),
    "GlobSGD, preconditioned": GlobSGD(preconditioner=True),
    "LocSGD": LocSGD(),
    "FedMF": FedMF(n_rounds=300),
}
DEFENCES = {
    "none": None,
    "clip at the median": NormClipping(),
    "clip at 3 medians": NormClipping(multiple=3.0),
    "clip rows": RowClipping(),
    "hierarchical clipping": HierarchicalClipping(),
    "popularity filter": PopularityFilter(),
    "geometric median": GeometricMedian(),
}
SILO_DEFENCES = {
    "median": CoordinateMedian(),
    "trimmed mean": TrimmedMean(),
    "Krum": Krum(n_attackers=2),
    "Multi-Krum": Krum(n_attackers=2, n_selected=10),
    "FLTrust": FLTrust(reference=TRUSTED),
}
# Each attack for a share of clients, at each strength that is tried.
UNTARGETED = {
    "noise": [RandomUpload(strength=s) for s in (0.01, 0.1, 1.0, 10.0, 100.0)],
    "-x honest": [SignFlip(strength=s) for s in (1.0, 5.0, 25.0, 100.0)],
    "random direction": [RandomDirection()],
    "flipped labels": [LabelFlip()],
    "ALIE": [ALIE(z=z) for z in (None, 1.0, 3.0, 10.0, 30.0)],
    "MinMax": [MinMax(perturbation=p) for p in ("unit_vector", "std", "sign")],
    "Fang": [Fang(nearest=x, farthest=4 / 3 * x) for x in (1.0, 3.0, 10.0, 30.0)],
}
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 5.0, 20.0)
TARGETED = {
    "Promotion": [Promotion(strength=s) for s in (1.0, 10.0, 100.0, 1e4)],
    "PipAttack": [PipAttack(strength=s) for s in STRENGTHS],
    "FedRecAttack": [FedRecAttack(strength=s) for s in STRENGTHS],
    "A-hum": [AHum(strength=s) for s in STRENGTHS],
    "PIECK": [PIECK(strength=s) for s in STRENGTHS],
    "PSMU": [PSMU(strength=s) for s in STRENGTHS],
}


def accuracy(options):
    """Precision@10 of honest users under the worst of each untargeted attack."""
    _print_tables(options, UNTARGETED, "precision", min)


def promotion(options):
    """Exposure of the promoted item under the worst of each targeted attack."""
    _print_tables(options, TARGETED, "exposure", max)


def cost(options):
    """Precision@10 of the defences without an attack."""
    for title in options.settings:
        print(f"\n| {title} | {' | '.join(options.methods)} |")
        print("|" + "---|" * (len(options.methods) + 1))
        for defence in _defences(options, title):
            cells = [
                _cell(options, title, (m, defence, None), "precision") for m in options.methods
            ]
            print(f"| {defence} | {' | '.join(cells)} |", flush=True)


def _defences(options, title):
    """Names of the defences that were asked for and suit the clients."""
    known = DEFENCES if title == "one user per client" else DEFENCES | SILO_DEFENCES
    return [name for name in known if not options.defences or name in options.defences]


def _print_tables(options, attacks, score, worst):
    attacks = {name: attacks[name] for name in options.attacks or attacks if name in attacks}
    train, test = _split(options.data_home, 0)
    print(f"popularity, seed 0: precision@10 {precision(Popularity().fit(train), train, test):.3f}")
    shares = " / ".join(f"{100 * share:g} %" for share in options.shares)
    print(f"{score} with {shares} of the clients poisoned; in brackets the strength at the last")
    for title in options.settings:
        print(f"\n| {title} | defence | no attack | {' | '.join(attacks)} |")
        print("|" + "---|" * (len(attacks) + 3))
        for method in options.methods:
            for defence in _defences(options, title):
                row = [method, defence, _cell(options, title, (method, defence, None), score)]
                for attack, strengths in attacks.items():
                    place = method, defence, attack
                    row.append(_worst(options, title, place, strengths, score, worst))
                print(f"| {' | '.join(row)} |", flush=True)


def _worst(options, title, place, strengths, score, worst):
    """The worst mean over the strengths for each share of poisoned clients."""
    found = []
    for share in options.shares:
        means = {}
        for adversary in strengths:
            values = _scores(options, title, place, adversary, share, score)
            if not np.isnan(values).all():
                means[_strength(adversary)] = float(np.nanmean(values))
        if not means:
            found.append("diverges")
            continue
        at = worst(means, key=means.__getitem__)
        found.append(f"{means[at]:.3f}")
    return " / ".join(found) + (f" ({at})" if means and at else "")


def _cell(options, title, place, score):
    return f"{np.nanmean(_scores(options, title, place, None, 0.0, score)):.3f}"


def _strength(adversary):
    parameters = adversary.get_params(deep=False)
    known = [name for name in ("strength", "z", "nearest", "perturbation") if name in parameters]
    return f"{known[0]}={parameters[known[0]]}" if known else ""


def _scores(options, title, place, adversary, share, score):
    """The score of each seed (and each promoted item); NaN where the fit diverges."""
    of_item = score == "exposure"
    values = []
    for seed in reported(options.seeds):
        for number in range(options.targets if of_item else 1):
            key = (title, *map(str, place), str(adversary), f"{share:g}", str(seed), str(number))
            settings = {"of_item": of_item}
            scores = options.kept.get(key, settings)
            if scores is None:
                scores = _fit(options, title, place, adversary, share, seed, number)
                options.kept.put(key, settings, scores)
            values.append(scores[score])
    return values


def _fit(options, title, place, adversary, share, seed, number):
    """Precision of the honest users, and exposure of an item."""
    method, defence, _ = place
    train, test = _split(options.data_home, seed)
    item = _targets(options.data_home, seed)[number]
    silos = None if title == "one user per client" else train[:, 0] % N_SILOS
    if adversary is not None:
        adversary = clone(adversary).set_params(fraction=share)
        if "item" in adversary.get_params():
            adversary.set_params(item=item)
        if silos is not None:
            # FLTrust must not trust an attacker.
            others = np.random.default_rng(seed).permutation(np.setdiff1d(silos, [TRUSTED]))
            adversary.set_params(clients=others[: max(1, round(share * N_SILOS))])
    aggregator = (DEFENCES | SILO_DEFENCES)[defence]
    model = clone(METHODS[method]).set_params(
        federation=Federation(adversary=adversary, aggregator=clone(aggregator, safe=False)),
        random_state=seed,
        n_jobs=options.n_jobs,
    )
    try:
        model.fit(train, clients=silos)
    except ValueError as error:
        if "diverged" not in str(error):
            raise
        return {"precision": float("nan"), "exposure": float("nan")}
    owners = train[:, 0] if silos is None else silos
    bad = getattr(model, "compromised_clients_", [])
    good = np.unique(train[~np.isin(owners, bad), 0])
    ours = [rows[np.isin(rows[:, 0], good)] for rows in (train, test)]
    return {"precision": precision(model, *ours), "exposure": exposure(model, item, good)}


@cache
def _split(data_home, seed):
    X, _ = fetch_movielens("100k", data_home=data_home, return_X_y=True)
    return split(X[:, :2], seed)


@cache
def _targets(data_home, seed):
    """Items with about as few ratings as a quarter of the items have, the median one first."""
    train, _ = _split(data_home, seed)
    items, counts = np.unique(train[:, 1], return_counts=True)
    order = items[np.argsort(counts, kind="stable")]
    quarter = len(items) // 4
    return order[[quarter, quarter - 40, quarter + 40, quarter - 80, quarter + 80]]


def curve(options):
    """Precision@10 of honest users by round under noise and flipped signs."""
    train, test = _split(options.data_home, 0)
    rounds = (1, 2, 5, 10, 20, 30)
    print(f"| method | defence | attack | {' | '.join(map(str, rounds))} |")
    print("|" + "---|" * (len(rounds) + 3))
    for method in options.methods:
        for name, aggregator in DEFENCES.items():
            for attack in (None, RandomUpload(0.1), SignFlip(0.1)):
                federation = Federation(adversary=attack, aggregator=aggregator)
                model = clone(METHODS[method]).set_params(
                    federation=federation, warm_start=True, random_state=0
                )
                cells = []
                for n in rounds:
                    model.set_params(n_rounds=n).fit(train)
                    bad = getattr(model, "compromised_clients_", [])
                    ours = [rows[~np.isin(rows[:, 0], bad)] for rows in (train, test)]
                    cells.append(f"{precision(model, *ours):.3f}")
                print(f"| {method} | {name} | {attack} | {' | '.join(cells)} |", flush=True)


def main(argv=None):
    """Run one of the commands."""
    commands = {f.__name__: f for f in (accuracy, promotion, cost, curve)}
    settings = ["one user per client", f"{N_SILOS} silos"]
    parser = command_line("robustness", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data-home")
    parser.add_argument("--results", default="results/robustness")
    parser.add_argument("--methods", nargs="+", default=["LocALS"], choices=METHODS)
    parser.add_argument(
        "--defences", nargs="+", default=[], choices=DEFENCES | SILO_DEFENCES, help="default: all"
    )
    parser.add_argument(
        "--attacks", nargs="+", default=[], choices=UNTARGETED | TARGETED, help="default: all"
    )
    parser.add_argument("--settings", nargs="+", default=settings[:1], choices=settings)
    parser.add_argument(
        "--shares", nargs="+", type=float, default=SHARES, help="shares of poisoned clients"
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument(
        "--targets", type=int, default=3, choices=range(1, 6), help="number of items to promote"
    )
    parser.add_argument("--n-jobs", type=int, default=1)
    options = parser.parse_args(argv)
    options.kept = Results(options.results, options.command)
    commands[options.command](options)


if __name__ == "__main__":
    main()
