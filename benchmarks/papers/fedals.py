"""Federated ALS: Hurley et al., EuroMLSys 2024. Slides, whose figures have no numbers."""

from __future__ import annotations

from functools import partial

from benchmarks import fedals as _fedals
from benchmarks.papers._protocols import (
    N_SILOS,
    full_ranking,
    full_ranking_by_round,
    full_ranking_of_silos,
    honest_ranking,
    volume,
)
from benchmarks.papers._rows import Row, Table, untold
from fedrecsk import (
    FCF,
    Federation,
    GlobSGD,
    ImplicitALS,
    LocALS,
    LocSGD,
    Popularity,
)
from fedrecsk.attacks import RandomUpload, SignFlip

DATA = ("100k", "1m", "Yelp")
THREE = {"LocALS": partial(LocALS, 20), "GlobSGD": GlobSGD, "LocSGD": LocSGD}
SPLIT = "all ratings positive, 80/20 of each user's rows, full catalogue, 20 factors"
GB = ("GB up", "GB down", "GB both", "GB with set-up and final download")


def tables():
    """All figures of the slides."""
    return [
        Table("Accuracy", SPLIT, _accuracy()),
        Table("Precision by round, all clients and a tenth", SPLIT, _by_round()),
        Table(
            "Communication volume of 30 rounds",
            "all rows of the data, 20 factors, float32, all clients in each round; own rows and "
            "the d x d matrix, against whole matrices both ways",
            _volume(),
        ),
        Table(f"{N_SILOS} silos", f"{SPLIT}; users divided among {N_SILOS} clients", _silos()),
        Table(
            "Robustness: a tenth of the clients poisoned",
            f"{SPLIT}; honest users; all attacks: python -m benchmarks.robustness",
            _poisoned(),
        ),
    ]


def _accuracy():
    models = {
        "LocALS": LocALS(20),
        'LocALS as on the slides ("holders")': LocALS(20, aggregation="holders"),
        "LocALS, 10 % of the clients": LocALS(20, client_fraction=0.1),
        "GlobSGD": GlobSGD(),
        "LocSGD": LocSGD(),
        "implicit ALS, tuned": ImplicitALS(20, reg=30.0, alpha=4.0, item_bias=False),
        "implicit ALS, regularization .01": ImplicitALS(20, reg=0.01, item_bias=False),
        "popularity": Popularity(),
    }
    return [
        Row(label, model, untold("precision@10"), data, full_ranking)
        for data in DATA
        for label, model in models.items()
    ]


def _by_round():
    metrics = [f"precision@10, round {n}" for n in _fedals.ROUNDS]
    return [
        Row(f"{label}, {share:.0%} of the clients", Estimator(client_fraction=share),
            untold(*metrics), data, full_ranking_by_round)
        for data in DATA
        for label, Estimator in THREE.items()
        for share in (1.0, 0.1)
    ]  # fmt: skip


def _volume():
    whole = FCF(20, n_rounds=30)
    models = {label: Estimator(n_rounds=30) for label, Estimator in THREE.items()}
    models |= {"whole matrices both ways (FCF)": whole}
    return [
        Row(label, model, untold(*GB), data, volume)
        for data in DATA
        for label, model in models.items()
    ]


def _silos():
    return [
        Row(label, Estimator(), untold("precision@10", "MB per silo"), data, full_ranking_of_silos)
        for data in DATA
        for label, Estimator in THREE.items()
    ]


def _poisoned():
    attacks = {
        "no attack": None,
        "noise 1": RandomUpload(strength=1.0),
        "-5 x honest": SignFlip(),
    }
    return [
        Row(
            f"{label}, {attack}",
            Estimator(federation=Federation(adversary=adversary)),
            untold("precision@10"),
            "100k",
            honest_ranking,
        )
        for label, Estimator in THREE.items()
        for attack, adversary in attacks.items()
    ]
