"""Repeat the papers' tables: ``python -m benchmarks.reproduce rfrec|lightfr|colr|fedals``.

Every row has the paper's number, ours as mean and spread over seeds, the difference, and a reason
if it does not reproduce. ``--quick`` runs a tenth of the rounds with one seed, to see that it
works. Finished cells are kept in the folder ``--results`` and not run again: stop with Ctrl-C, and
run the same command to continue.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA. Rows of other
data say so if these are not in the folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
from sklearn.base import clone
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

from benchmarks import fedals as _fedals
from benchmarks import rfrec as _rfrec
from benchmarks._command_line import command_line
from benchmarks._results import Results
from benchmarks._timing import Stopwatch
from fedrecsk import (
    FCF,
    PMF,
    BiasOnly,
    CoLR,
    ExplicitFCF,
    Federation,
    FedFast,
    FedMF,
    FedRec,
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
from fedrecsk.compression import LowRank, TopK
from fedrecsk.datasets import fetch_filmtrust, fetch_kuairec, fetch_movielens
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.privacy import LaplaceMechanism

# How far below the paper a score may be before a row counts as not reproduced.
TOLERANCE = 0.01
ABSENT = "data absent"
MOST_MESSAGES = 200


@dataclass(frozen=True)
class Row:
    """A line of a table.

    Parameters
    ----------
    label : str
    model : estimator or None
        None: not in fedrecsk.
    paper : dict of {str: float}
        By metric; the keys are what is measured. NaN where the paper has a figure only.
    data : str
    protocol : callable
        ``protocol(model, data, seed, options)`` returns a dict of scores.
    why : str
        Why it does not reproduce, if it does not.
    """

    label: str
    model: object
    paper: dict
    data: str
    protocol: Callable
    why: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of one protocol."""

    name: str
    protocol: str
    rows: list = field(default_factory=list)


# ------------------------------------------------------------------------------- protocols


def load(data, options):
    """(X, y) of a data set that is here, read once.

    Raises
    ------
    FileNotFoundError
        If it is not.
    """
    return _read(data, options.data_home)


@cache
def _read(data, data_home):
    where = {
        "data_home": data_home,
        "download_if_missing": False,
        "return_X_y": True,
    }
    if data in ("100k", "1m"):
        X, y = fetch_movielens(data, **where)
    elif data == "KuaiRec":
        X, y = fetch_kuairec(**where)
        X, y = X[y <= 20], y[y <= 20]
    elif data == "FilmTrust":
        X, y = fetch_filmtrust(**where)
    else:
        raise FileNotFoundError(f"{data} has no loader; see docs/datasets.md for a recipe")
    return X[:, :2], y


def rating_errors(model, data, seed, options):
    """MAE and RMSE on a fifth of the rows, drawn at random."""
    X, y = load(data, options)
    X_train, y_train, X_test, y_test = _rfrec.split(X, y, seed)
    if model.get_params().get("federation__local_dp") is not None:
        # What is on offer is public; noise could not hide who is in it.
        model.set_params(items=np.unique(X[:, 1]))
    model.fit(X_train, y_train)
    predicted = model.predict(X_test)
    return {
        "MAE": mean_absolute_error(y_test, predicted),
        "RMSE": root_mean_squared_error(y_test, predicted),
        "rounds": float(getattr(model, "n_rounds_", 0)),
    }


def messages_to_converge(model, data, seed, options):
    """Messages in either direction until a fit has converged, by two measures.

    RFRec's section 4.3: until the server's item matrix changes by at most 1% of its norm from one
    aggregation to the next (the paper does not say how little). And until the RMSE on test rows
    is within 1% of its best among the first 200 messages, after which the paper stops.
    """
    X_train, y_train, X_test, y_test = _rfrec.split(*load(data, options), seed)
    before, n_sent, sent, changes, errors = None, 0, [], [np.inf], []
    for n in range(1, model.n_rounds + 1):
        model.set_params(n_rounds=n, warm_start=True).fit(X_train, y_train)
        entry = model.communication_.entries[-2]
        n_sent += (entry["messages_down"] > 0) + (entry["messages_up"] > 0)
        if n_sent > MOST_MESSAGES:
            break
        if entry["messages_up"] == 0:
            continue
        items = np.column_stack([model.item_bias_, model.item_factors_])
        if before is not None:
            changes.append(np.linalg.norm(items - before) / np.linalg.norm(before))
        errors.append(root_mean_squared_error(y_test, model.predict(X_test)))
        sent.append(n_sent)
        before = items
    settled = np.array(errors) <= 1.01 * min(errors)
    still = np.array(changes) <= 0.01
    stop = sent[still.argmax()] if still.any() else MOST_MESSAGES
    return {"paper's criterion": float(stop), "RMSE within 1%": float(sent[settled.argmax()])}


def leave_one_out(model, data, seed, options):
    """HR@10 and NDCG@10 of a row of each user among 99 negatives.

    ML-1M: each user's last row and the negatives of the usual file; else a random row and
    negatives drawn with the seed.
    """
    if data == "1m":
        train, ratings, test, negatives = _leave_one_out_files(options.data_home)
        among = {"negatives": negatives}
    else:
        train, ratings, test = _one_row_out(*load(data, options), seed)
        among = {"n_negatives": 99, "random_state": seed}
    rates = (
        model.__sklearn_tags__().target_tags.required or getattr(model, "targets", "") == "ratings"
    )
    model.fit(train, ratings if rates else None)
    scores = evaluate_ranking(model, test, metrics=("hit_rate", "ndcg"), k=10, **among)
    return {"HR@10": scores["hit_rate@10"], "NDCG@10": scores["ndcg@10"]}


def full_ranking(model, data, seed, options):
    """Precision@10 over the full catalogue, a fifth of each user's rows held out."""
    train, test = _fedals.split(load(data, options)[0], seed)
    return {"precision@10": _fedals.precision(model.fit(train), train, test)}


@cache
def _leave_one_out_files(data_home):
    import pandas as pd

    X, y = _read("1m", data_home)
    folder = Path(data_home or os.environ["FEDRECSK_DATA"]) / "ml-1m"
    test = pd.read_csv(folder / "leave_one_out_test.csv.gz")[["user", "item"]].to_numpy()
    negatives = pd.read_csv(folder / "leave_one_out_negatives.csv.gz")
    pairs, held_out = (part[:, 0] * 10_000 + part[:, 1] for part in (X, test))
    training = ~np.isin(pairs, held_out)
    return X[training], y[training], test, negatives


def _one_row_out(X, y, seed):
    order = np.random.default_rng(seed).permutation(len(X))
    X, y = X[order], y[order]
    _users, first, sizes = np.unique(X[:, 0], return_index=True, return_counts=True)
    test = np.zeros(len(X), dtype=bool)
    test[first[sizes > 1]] = True
    return X[~test], y[~test], X[test]


# ---------------------------------------------------------------------------------- tables

NOT_HERE = "not in fedrecsk yet"
LITERAL_GD = (
    "the paper's text: gradient descent, linear link, no biases; it diverges or stays above biases "
    "alone, and the authors' code does something else"
)
UNKNOWN_PROTOCOL = (
    "the paper's numbers fit no single number of negatives; ours are with 99, all ratings positive"
)


# RFRec's table 4: alpha, and RMSE at lambda = 5, 10, 20, 40.
SENSITIVITY = {
    "RFRec": {
        0.1: (0.8912, 0.8948, 0.8963, 0.9036),
        0.05: (0.8957, 0.8846, 0.8869, 0.8887),
        0.025: (0.9057, 0.8928, 0.8897, 0.8983),
        0.0125: (0.8895, 0.8870, 0.8891, 0.8920),
    },
    "RFRecF": {
        0.1: (0.9169, 0.9035, 0.9066, 0.9139),
        0.05: (0.9254, 0.9108, 0.8923, 0.9070),
        0.025: (0.9101, 0.8830, 0.8856, 0.8908),
        0.0125: (1.0491, 0.9588, 0.9102, 0.8992),
    },
}


def rfrec_tables():
    """Liu et al., CIKM 2024."""
    # Each method's MAE and RMSE on the four data sets.
    main = [
        ("PMF", PMF(), (0.7341, 0.9318), (0.6878, 0.8762), (0.3814, 0.7275), (0.8062, 1.0440)),
        ("SVD++", SVDpp(), (0.7289, 0.9273), (0.6924, 0.8863), (0.3760, 0.7145), (0.8006, 1.0430)),
        (
            "FCF",
            ExplicitFCF(),
            (0.7602, 0.9614),
            (0.7014, 0.8874),
            (0.4861, 0.7569),
            (0.8175, 1.0718),
        ),
        (
            "FedRec",
            FedRec(),
            (0.7549, 0.9832),
            (0.7289, 0.9161),
            (0.5949, 0.7969),
            (0.8473, 1.0755),
        ),
        (
            "FedFast",
            FedFast(loss="squared"),
            (0.7545, 0.9403),
            (0.7056, 0.8860),
            (0.4678, 0.7387),
            (0.8321, 1.0982),
        ),
        ("SemiDFEGL", None, (0.7583, 0.9645), (0.7130, 0.8937), (0.4798, 0.7511), (0.8275, 1.0726)),
        ("FedNCF", None, (0.7562, 0.9612), (0.7090, 0.8966), (0.3934, 0.7474), (0.8330, 1.0712)),
        ("RFRec", RFRec(), (0.7237, 0.9325), (0.6937, 0.8831), (0.3684, 0.7163), (0.8118, 1.0447)),
        (
            "RFRecF",
            RFRecF(),
            (0.7317, 0.9385),
            (0.6906, 0.8840),
            (0.3781, 0.7280),
            (0.8086, 1.0565),
        ),
        ("biases alone", BiasOnly(), *[(np.nan, np.nan)] * 4),
    ]
    rows = [
        Row(label, model, dict(zip(("MAE", "RMSE"), paper, strict=True)), data, rating_errors)
        for label, model, *papers in main
        for data, paper in zip(("100k", "1m", "KuaiRec", "Jester"), papers, strict=True)
    ]
    dropout = [
        Row(
            f"{label}, dropout {share:.0%}",
            Estimator(federation=Federation(dropout=share)),
            dict(zip(("MAE", "RMSE"), paper, strict=True)),
            "1m",
            rating_errors,
        )
        for label, Estimator, papers in (
            (
                "RFRec",
                RFRec,
                [
                    (0.6937, 0.8831),
                    (0.6958, 0.8870),
                    (0.7083, 0.8956),
                    (0.7090, 0.8966),
                    (0.7117, 0.9001),
                ],
            ),
            (
                "RFRecF",
                RFRecF,
                [
                    (0.6906, 0.8840),
                    (0.6974, 0.8891),
                    (0.7017, 0.9005),
                    (0.7038, 0.9048),
                    (0.7064, 0.9057),
                ],
            ),
        )
        for share, paper in zip((0.0, 0.2, 0.5, 0.8, 0.9), papers, strict=True)
    ]
    ablation = [
        Row(f"{label}, {what}", Estimator(**changed), {"RMSE": np.nan}, "100k", rating_errors)
        for label, Estimator in (("RFRec", RFRec), ("RFRecF", RFRecF))
        for what, changed in (
            ("whole", {}),
            ("w/o regulariser", {"coupling": 0.0}),
            ("w/o penalty", {"reg_user": 0.0, "reg_item": 0.0, "reg_bias": 0.0}),
        )
    ]
    privacy = [
        Row(
            f"{label}, clip {clip}, scale {scale} (epsilon {2 * clip / scale:g} each)",
            Estimator(
                rating_scale=(1, 5),
                aggregation="all",
                federation=Federation(local_dp=LaplaceMechanism(clip=clip, scale=scale)),
            ),
            {"RMSE": np.nan},
            "1m",
            rating_errors,
        )
        for label, Estimator in (("RFRec", RFRec), ("RFRecF", RFRecF))
        for clip in (0.1, 0.2, 0.4)
        for scale in (0.02, 0.04, 0.08)
    ]
    literal = [
        Row(
            f"RFRec as printed, alpha {rate}, lambda {coupling}",
            RFRec(
                learning_rate=rate,
                coupling=float(coupling),
                optimizer="gd",
                link="identity",
                biases=False,
                reg_item=0.0,
                reg_power=0.0,
                few_ratings=0.0,
                n_factors=20,
            ),
            {"RMSE": paper},
            "1m",
            rating_errors,
            LITERAL_GD,
        )
        for rate, papers in SENSITIVITY["RFRec"].items()
        for coupling, paper in zip((5, 10), papers[:2], strict=True)
    ]
    sensitivity = [
        Row(
            f"{label}, alpha {rate / best:g} times, lambda {coupling / 10:g} times",
            Estimator(
                learning_rate=Estimator().learning_rate * rate / best,
                coupling=Estimator().coupling * coupling / 10,
            ),
            {"RMSE": paper},
            "1m",
            rating_errors,
        )
        for label, Estimator, best in (("RFRec", RFRec, 0.05), ("RFRecF", RFRecF, 0.025))
        for rate, papers in SENSITIVITY[label].items()
        for coupling, paper in zip((5, 10, 20, 40), papers, strict=True)
    ]
    coin = [
        Row(
            f"RFRecF, p = {p}",
            RFRecF(aggregation_probability=p),
            {"RMSE": np.nan},
            "1m",
            rating_errors,
        )
        for p in (0.1, 0.3, 0.5, 0.7, 0.9)
    ]
    stop = [
        Row(
            label,
            Estimator(n_rounds=1000),
            {"paper's criterion": np.nan, "RMSE within 1%": np.nan},
            data,
            messages_to_converge,
        )
        for data in ("100k", "1m")
        for label, Estimator in (("RFRec", RFRec), ("RFRecF", RFRecF))
    ]
    early = [
        Row(
            f"{label}, early stopping",
            Estimator(n_rounds=1000, early_stopping=True),
            {"rounds": np.nan, "RMSE": np.nan},
            "100k",
            rating_errors,
        )
        for label, Estimator in (("RFRec", RFRec), ("RFRecF", RFRecF))
    ]
    split = "80/20 random, one user per client, defaults"
    return [
        Table("Table 2: accuracy", split, rows),
        Table("Table 3: dropped devices (uploads lost)", split, dropout),
        Table("Table 4: the printed algorithm", split, literal),
        Table("Table 4: ours at the same multiples of the optimum", split, sensitivity),
        Table("Section 4.6: the coin", split, coin),
        Table(f"Figure 2: messages to convergence, of {MOST_MESSAGES}", split, stop),
        Table("Rounds of early stopping", split, early),
        Table("Figure 3: ablation", split, ablation),
        Table("Figure 4: privacy budget", split, privacy),
    ]


def lightfr_tables():
    """Zhang et al., TOIS 2023."""
    sampled = LightFR(
        aggregation="gradient",
        user_bits=1,
        positive_target=1.0,
        negative_target=0.4,
        reg_user=0.003,
        reg_item=0.01,
        n_sweeps=1,
    )
    literal = clone(sampled).set_params(
        targets="ratings", n_negatives=0, memory=1, reg_user=0.5, reg_item=0.5
    )
    main = [
        ("PMF", PMF(), 0.5124, 0.2768),
        ("SVD++", SVDpp(), 0.5291, 0.2826),
        ("DDL", None, 0.5101, 0.2743),
        ("NCF", None, 0.5342, 0.2901),
        ("FCF", FCF(), 0.4945, 0.2625),
        ("FedMF", FedMF(**PAPERS_FEDERATION), 0.4836, 0.2534),
        ("FedRec", FedRec(), 0.4893, 0.2612),
        ("MetaMF", None, 0.4994, 0.2691),
        ("PrivRec", None, 0.4989, 0.2688),
        ("LightFR", LightFR(), 0.5014, 0.2709),
        ("LightFR, sampled negatives", sampled, 0.5014, 0.2709),
        ("LightFR, the text's settings", literal, 0.5014, 0.2709),
        ("implicit ALS", ImplicitALS(regularization=0.01, item_bias=False), np.nan, np.nan),
        ("implicit BPR", ImplicitBPR(), np.nan, np.nan),
        ("popularity", Popularity(), np.nan, np.nan),
    ]
    ablation = [
        ("random item codes", LightFR(train_items=False), 0.2419, 0.1043),
        (
            "parameter aggregation",
            clone(sampled).set_params(aggregation="parameter", reg_item=0.0),
            0.4942,
            0.2618,
        ),
        ("gradient aggregation", sampled, 0.5014, 0.2709),
    ]
    sweeps = [
        ("Figure 4: code length", "n_bits", (8, 16, 32, 64, 128)),
        ("Figure 6: ratio of clients", "client_fraction", (0.2, 0.4, 0.6, 0.8, 1.0)),
    ]
    tables = [
        Table("Table 4: accuracy", LOO, [_ranked(*row) for row in main]),
        Table("Table 6: ablation", LOO, [_ranked(*row) for row in ablation]),
    ]
    for name, parameter, values in sweeps:
        rows = [
            _ranked(f"{parameter}={v}", LightFR(**{parameter: v}), np.nan, np.nan) for v in values
        ]
        tables.append(Table(name, LOO, rows))
    rows = [
        _ranked(f"lambda={v}", clone(sampled).set_params(reg_user=v, reg_item=v), np.nan, np.nan)
        for v in (0.0, 0.003, 0.01, 0.03, 0.2, 0.6, 1.0)
    ]
    tables.append(Table("Figure 5: lambda", LOO, rows))
    other = [
        Row(
            "LightFR",
            LightFR(),
            dict(zip(("HR@10", "NDCG@10"), paper, strict=True)),
            data,
            leave_one_out,
            UNKNOWN_PROTOCOL,
        )
        for data, paper in (
            ("FilmTrust", (0.8615, 0.6565)),
            ("Douban-Movie", (0.2934, 0.1665)),
            ("Ciao", (0.4556, 0.2413)),
        )
    ]
    protocol = "a random row of each user among 99 sampled negatives"
    return [*tables, Table("Table 4, other data", protocol, other)]


LOO = "ML-1M leave-one-out, the given 99 negatives, all ratings positive"
PAPERS_FEDERATION = {
    "n_rounds": 1000,
    "client_fraction": 0.01,
    "federation": Federation(sampling="rotating"),
    "shrinkage": 0.0,
    "averaging": False,
}


STARS = "trained on ratings only, it does not separate seen from unseen; the protocol is unknown"
WHY = {
    "PMF": STARS,
    "SVD++": STARS,
    "LightFR, the text's settings": "a lambda of .2 to 1 outweighs the data term of about 1/f",
    "random item codes": "chance is .10 among 100; the paper's row is above it",
}


def _ranked(label, model, hit_rate, ndcg):
    paper = {"HR@10": hit_rate, "NDCG@10": ndcg}
    why = NOT_HERE if model is None else WHY.get(label, UNKNOWN_PROTOCOL)
    return Row(label, model, paper, "1m", leave_one_out, why)


def colr_tables():
    """Nguyen et al., WWW 2024."""
    setting = PAPERS_FEDERATION

    def compressed(compressor):
        federation = Federation(sampling="rotating", compression=compressor)
        return FedMF(64, **setting | {"federation": federation})

    nothing = {"HR@10": np.nan, "NDCG@10": np.nan}
    full = [Row("FedMF, d = 64", FedMF(64, **setting), nothing, "1m", leave_one_out)]
    full += [
        Row(f"FedMF, d = {d}", FedMF(d, **setting), nothing, "1m", leave_one_out)
        for d in (1, 2, 4, 8, 16, 32)
    ]
    ranks = [
        Row(f"CoLR, rank {r}", CoLR(rank=r, **setting), nothing, "1m", leave_one_out)
        for r in (1, 2, 4, 8, 16, 32)
    ]
    equal = [
        Row(f"SVD, rank {r}", compressed(LowRank(r)), nothing, "1m", leave_one_out)
        for r in (1, 4, 16)
    ]
    equal += [
        Row(f"Top-K, {r}/64", compressed(TopK(r / 64)), nothing, "1m", leave_one_out)
        for r in (1, 4, 16)
    ]
    table_4 = {
        2: (0.5784, 0.3258),
        4: (0.5987, 0.3389),
        8: (0.6102, 0.3477),
        16: (0.6206, 0.3563),
        32: (0.6329, 0.3634),
        64: (0.6386, 0.3704),
    }
    subsampled = [
        Row(
            f"SCoLR, local rank 1-{r}",
            SCoLR(rank=r, **setting),
            dict(zip(("HR@10", "NDCG@10"), paper, strict=True)),
            "1m",
            leave_one_out,
        )
        for r, paper in table_4.items()
    ]
    pinterest = [Row("FedMF, d = 64", FedMF(64, **setting), nothing, "Pinterest", leave_one_out)]
    protocol = f"{LOO}; 1000 rounds of 60 clients in turn"
    return [
        Table("Figure 3: FedMF by width, CoLR by rank", protocol, full + ranks),
        Table("Table 4: SCoLR", protocol, subsampled),
        Table("Figure 4: SVD and Top-K at CoLR's payload", protocol, equal),
        Table("All of it on Pinterest", protocol, pinterest),
        Table("Tables 2 and 3: python -m benchmarks.encryption network|table3", "", []),
    ]


def fedals_tables():
    """Hurley et al., EuroMLSys 2024: slides, without numbers."""
    models = {
        "LocALS": LocALS(),
        'LocALS as on the slides ("holders")': LocALS(aggregation="holders", preconditioner=False),
        "LocALS, 10 % of the clients": LocALS(client_fraction=0.1),
        "GlobSGD": GlobSGD(),
        "LocSGD": LocSGD(),
        "implicit ALS": ImplicitALS(20, regularization=0.01, item_bias=False),
        "popularity": Popularity(),
    }
    rows = [
        Row(label, model, {"precision@10": np.nan}, data, full_ranking)
        for data in ("100k", "1m")
        for label, model in models.items()
    ]
    protocol = "all ratings positive, 80/20 of each user's rows, full catalogue, 20 factors"
    return [
        Table("Accuracy (the slides give no numbers)", protocol, rows),
        Table("Robustness: python -m benchmarks.robustness", "", []),
    ]


PAPERS = {
    "rfrec": rfrec_tables,
    "lightfr": lightfr_tables,
    "colr": colr_tables,
    "fedals": fedals_tables,
}


# ----------------------------------------------------------------------------------- a run


def chosen(name, only):
    """The tables of a paper, with rows whose table and label contain one of the words."""
    return [
        replace(
            table,
            rows=[
                row
                for row in table.rows
                if not only or any(word in f"{table.name}: {row.label}" for word in only)
            ],
        )
        for table in PAPERS[name]()
    ]


def run(name, options):
    """Run what has not been run, then print the tables."""
    results = Results(options.results, f"{name}-quick" if options.quick else name)
    tables = chosen(name, options.only)
    seeds = range(options.seeds)
    cells = [
        (row, _prepared(row.model, seed, options), (table.name, row.label, row.data, seed))
        for table in tables
        for row in table.rows
        if row.model is not None
        for seed in seeds
    ]
    done = [results.get(key, _settings(model)) is not None for _, model, key in cells]
    for n, (row, model, key) in enumerate(cells):
        if done[n]:
            continue
        seed = key[-1]
        _say(f"[{n + 1}/{len(cells)}] {row.label}, {row.data}, seed {seed}")
        watch = Stopwatch()
        try:
            scores = row.protocol(clone(model), row.data, seed, options)
        except FileNotFoundError:
            _say(f" {ABSENT}\n")
            continue
        except ValueError as error:
            if "diverged" not in str(error):
                raise
            scores = dict.fromkeys(row.paper, float("nan"))
        _say(f" {watch.seconds():.1f} s\n")
        results.put(key, _settings(model), {name: float(value) for name, value in scores.items()})
    if options.quick:
        print("A quick run: a tenth of the rounds; not to be set beside the papers.")
    for table in tables:
        print(f"\n### {table.name}\n")
        if table.rows:
            print_table(table, seeds, results, options)


def _settings(model):
    return " ".join(repr(model).split())


def _prepared(model, seed, options):
    model = clone(model)
    if "random_state" in model.get_params():
        model.set_params(random_state=seed)
    if options.quick and "n_rounds" in model.get_params():
        model.set_params(n_rounds=max(1, model.n_rounds // 10))
    return model


def print_table(table, seeds, results, options):
    """Paper, ours, difference, and why."""
    print(f"Protocol: {table.protocol}.\n")
    print("| data | method | metric | paper | ours | spread | difference | |")
    print("|---|---|---|---|---|---|---|---|")
    for row in table.rows:
        for metric, paper in row.paper.items():
            told = "" if np.isnan(paper) else f"{paper:.4f}"
            begin = f"| {row.data} | {row.label} | {metric} | {told} |"
            if row.model is None:
                print(f"{begin} | | | {row.why or NOT_HERE} |")
                continue
            settings = [_settings(_prepared(row.model, s, options)) for s in seeds]
            scores = [
                results.get((table.name, row.label, row.data, s), text)
                for s, text in zip(seeds, settings, strict=True)
            ]
            if None in scores:
                print(f"{begin} | | | {ABSENT} |")
                continue
            ours = [score[metric] for score in scores]
            mean, spread = np.mean(ours), np.std(ours)
            if np.isnan(mean):
                print(f"{begin} diverges | | | {row.why} |")
                continue
            worse = (mean - paper) * (1 if metric in ("MAE", "RMSE") else -1)
            note = row.why or "see docs/methods" if worse > TOLERANCE else ""
            difference = "" if np.isnan(paper) else f"{mean - paper:+.4f}"
            print(f"{begin} {mean:.4f} | {spread:.4f} | {difference} | {note} |")


def _say(text):
    print(text, end="", file=sys.stderr, flush=True)


def _check_data(tables, options, parser):
    """Say what is absent, and stop if it is all."""
    names = dict.fromkeys(row.data for table in tables for row in table.rows if row.model)
    missing = {}
    for name in names:
        try:
            load(name, options)
        except FileNotFoundError as error:
            missing[name] = error
        except NotADirectoryError as error:
            parser.error(f"--data-home: {error}")
    if len(missing) == len(names):
        parser.error(f"no data: {next(iter(missing.values()))}")
    for name, error in missing.items():
        _say(f"{name} is absent: {error}\n")


def main(argv=None):
    """Reproduce one paper."""
    parser = command_line("reproduce", __doc__)
    parser.add_argument("paper", choices=PAPERS)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds, one seed")
    parser.add_argument("--seeds", type=int, help="runs of each row (default: 3; 1 if quick)")
    parser.add_argument(
        "--results", default="results", help="folder of finished cells (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", help="words of the tables and labels to run")
    parser.add_argument("--data-home", help="where MovieLens is (default: FEDRECSK_DATA)")
    options = parser.parse_args(argv)
    if options.seeds is None:
        options.seeds = 1 if options.quick else 3
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds}: at least one run is needed")
    try:
        Path(options.results).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--results {options.results}: {error}")
    try:
        _check_data(chosen(options.paper, options.only), options, parser)
        run(options.paper, options)
    except KeyboardInterrupt:
        parser.exit(
            130,
            f"\nStopped. {options.results} has finished runs; repeat the command to continue.\n",
        )


if __name__ == "__main__":
    main()
