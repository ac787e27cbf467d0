"""Compare all methods on MovieLens-1M: ``python -m benchmarks.methods ratings|rankings``.

Defaults, unless the label says otherwise. `ratings`: test RMSE on one random 80/20 split (seed
300), and on the 90/10 split of myFM's notebook (`--train` chooses one). `rankings`: HR@10 and
NDCG@10 of each user's last row among 99 given negatives; all ratings are positives. The other
columns: MB per client in the whole fit, rounds, CPU seconds, epsilon of differential
privacy ("-" for centralised models, which have all data), and the numbers of the papers. Below,
the best published numbers of centralised models, with the share of the rows that they were trained
on: compare only numbers of the same share.

Data: MovieLens-1M, in the folder --data-home or FEDRECSK_DATA. `rankings` also needs the
leave-one-out files of MovieLens-1M of He et al. (2017) in this folder.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.metrics import root_mean_squared_error

from benchmarks import ranking
from benchmarks._command_line import command_line
from benchmarks._methods import add_method
from benchmarks._seeds import reported
from benchmarks._timing import Stopwatch
from benchmarks.lightfr import hits, leave_one_out
from benchmarks.rfrec import split
from fedrecsk import (
    EASE,
    FCF,
    PMF,
    BayesianSVDpp,
    BiasedMF,
    BiasOnly,
    CoLR,
    ExplicitFCF,
    FedEASE,
    FedEB,
    Federation,
    FedFast,
    FedMF,
    FedRec,
    FedSpectral,
    GlobSGD,
    ImplicitALS,
    ImplicitBPR,
    LightFR,
    LocALS,
    LocSGD,
    Popularity,
    RFRec,
    RFRecF,
    SCoLR,
    SVDpp,
)
from fedrecsk.compression import Quantization
from fedrecsk.datasets import fetch_movielens
from fedrecsk.ensemble import RatingEnsemble
from fedrecsk.privacy import LaplaceMechanism

SEED = 300


class Entry(NamedTuple):
    """A row of a table."""

    label: str
    model: BaseEstimator
    published: str = ""


class Published(NamedTuple):
    """A published result of a centralised model on MovieLens-1M."""

    model: str
    score: str
    train: str
    protocol: str
    source: str


LAST_ROW = "last row of each user among the given negatives"
IRSPACK = "irspack, notebook 1-vs-100-negative"
RENDLE = "Rendle and others, RecSys 2020"
PUBLISHED = {
    "ratings": [
        Published("GLocal-K", "0.8227", "90%", "random split", "Han and others, CIKM 2021"),
        Published(
            "timeSVD++ flipped", "0.8161", "90%", "random, with timestamps", "myFM, notebook"
        ),
        Published(
            "same, ordered probit", "0.8140", "90%", "random, with timestamps", "myFM, notebook"
        ),
    ],
    "rankings": [
        Published("iALS, 192 factors", "0.7310 / 0.4521", "all but one row", LAST_ROW, IRSPACK),
        Published("MF", "0.7294 / 0.4523", "all but one row", LAST_ROW, RENDLE),
        Published("SLIM", "0.716 / 0.447", "all but one row", LAST_ROW, RENDLE),
        Published("iALS", "0.711 / 0.438", "all but one row", LAST_ROW, RENDLE),
        Published("NeuMF", "0.709 / 0.435", "all but one row", LAST_ROW, RENDLE),
    ],
}
SMALL_COHORTS = FedEB(40, client_fraction=0.01)
INT8_UP = Federation(compression=Quantization("int8", direction="up"))
RATINGS = [
    Entry("bias-only", BiasOnly()),
    Entry("PMF", PMF(), "0.8762"),
    Entry("BiasedMF", BiasedMF()),
    Entry("SVD++", SVDpp(), "0.8863"),
    Entry("Bayesian SVD++", BayesianSVDpp()),
    Entry("FedRec", FedRec(), "0.9161"),
    Entry("FCF for ratings", ExplicitFCF(), "0.8874"),
    Entry("RFRec", RFRec(), "0.8831"),
    Entry(
        "RFRec, local DP (clip 0.2, scale 0.04)",
        RFRec(rating_scale=(1, 5), federation=Federation(local_dp=LaplaceMechanism(0.2, 0.04))),
    ),
    Entry("RFRecF", RFRecF(), "0.8840"),
    Entry("FedEB, cohorts of 10%", FedEB(client_fraction=0.1)),
    Entry("FedEB, cohorts of 1%, d = 40", SMALL_COHORTS),
    Entry(
        "FedEB, cohorts of 1%, d = 40, int8 uploads",
        clone(SMALL_COHORTS).set_params(federation=INT8_UP),
    ),
    Entry(
        "FedEB, cohorts of 10%, mean of 4 runs",
        RatingEnsemble([(f"run {k}", FedEB(client_fraction=0.1)) for k in range(4)]),
    ),
]
RANKINGS = [
    Entry("popularity", Popularity()),
    Entry("implicit BPR", ImplicitBPR()),
    Entry("implicit ALS, tuned", ImplicitALS(reg=30.0, alpha=4.0, item_bias=False)),
    Entry("EASE", EASE()),
    Entry("LocSGD", LocSGD()),
    Entry("GlobSGD", GlobSGD()),
    Entry("LocALS", LocALS()),
    Entry("FCF", FCF(), "0.4945 / 0.2625"),
    Entry("FedFast", FedFast()),
    Entry("FedMF", FedMF(), "0.4836 / 0.2534"),
    Entry("CoLR, rank 4", CoLR()),
    Entry("SCoLR, rank 4", SCoLR()),
    Entry("LightFR", LightFR(), "0.5010 / 0.2710"),
    Entry("LocALS, d = 128, 12 rounds", ranking.LOCALS),
    Entry("LocALS, d = 192, scaled penalties", ranking.SCALED),
    Entry("FedEASE", FedEASE()),
    Entry("FedEASE + FedSpectral", ranking.MODELS["FedEASE + FedSpectral"]),
    Entry("FedSpectral", FedSpectral()),
    Entry(
        "FedEASE + FedSpectral + LocALS, d = 192",
        ranking.MODELS["FedEASE + FedSpectral + LocALS, d = 192"],
    ),
]


def myfm_split(X, y):
    """The 90/10 split of myFM's notebook: the first tenth of a shuffle of the row numbers."""
    rows = np.arange(len(X))
    np.random.RandomState(0).shuffle(rows)
    test, train = np.split(rows, [len(rows) // 10])
    return X[train], y[train], X[test], y[test]


def ratings(options):
    """Test RMSE of each rating method, with 80% and with 90% of the rows for training."""
    X, y = fetch_movielens("1m", data_home=options.data_home, return_X_y=True)
    parts = {"80": split(X, y, SEED), "90": myfm_split(X, y)}
    for share in options.train:
        X_train, y_train, X_test, y_test = parts[share]

        def score(model, rows=X_test, truth=y_test):
            return f"{root_mean_squared_error(truth, model.predict(rows)):.4f}"

        _table("test RMSE", RATINGS, X_train, y_train, score, options)
    _print_published("RMSE", "ratings", options)


def rankings(options):
    """HR@10 / NDCG@10 of each ranking method."""
    X, _, test, negatives = leave_one_out(options)

    def score(model):
        return " / ".join(f"{share:.4f}" for share in hits(model, test, negatives))

    _table("HR@10 / NDCG@10", RANKINGS, X, None, score, options)
    _print_published("HR@10 / NDCG@10", "rankings", options)


def _table(metric, entries, X, y, score, options):
    print(f"\n| | {metric} | published | rounds | MB up | MB down | epsilon | CPU s |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    chosen = [entry for entry in entries if entry.label in options.only]
    for entry in chosen or [one for one in entries if any(w in one.label for w in options.only)]:
        add_method(entry.model)
        model, watch = _seeded(entry.model, X), Stopwatch(time.process_time)
        model.fit(X, y)
        seconds = watch.seconds()
        print(
            f"| {entry.label} | {score(model)} | {entry.published} | {_costs(model)} "
            f"| {seconds:.1f} |",
            flush=True,
        )


def _print_published(metric, task, options):
    if options.only != [""]:
        return
    print(f"\n| published, centralised | {metric} | train rows | protocol | source |")
    print("|---|---|---|---|---|")
    for row in PUBLISHED[task]:
        print(f"| {' | '.join(row)} |")


def _seeded(model, X):
    """A copy with a seed, two threads, and the catalogue where it must be public."""
    known = model.get_params()
    (seed,) = reported(1, SEED)
    chosen = {"random_state": seed, "n_jobs": 2}
    if getattr(known.get("federation"), "local_dp", None) is not None:
        chosen["items"] = sorted(set(X[:, 1]))
    model = clone(model).set_params(**{k: v for k, v in chosen.items() if k in known})
    parts = known.get("estimators") or []
    for number, (name, part) in enumerate(parts):
        seeds = {"random_state": seed + number, "n_jobs": 2}
        seeds = {f"{name}__{k}": v for k, v in seeds.items() if k in part.get_params()}
        model.set_params(**seeds)
    return model


def _costs(model):
    """Rounds, megabytes up and down per client, and epsilon, as cells of a row."""
    ledger = getattr(model, "communication_", None)
    if ledger is None:
        return "- | - | - | -"
    up, down = (n.mean() / 1e6 for n in (ledger.client_bytes_up, ledger.client_bytes_down))
    return f"{model.n_rounds_} | {up:.2f} | {down:.2f} | {model.privacy_.epsilon:g}"


def main(argv=None):
    """Print one of the tables."""
    commands = {f.__name__: f for f in (ratings, rankings)}
    parser = command_line("methods", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data-home")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="labels, or words of labels, to run"
    )
    parser.add_argument(
        "--train", nargs="+", choices=["80", "90"], default=["80", "90"], help="splits of ratings"
    )
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
