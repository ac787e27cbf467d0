"""Measure what comes next: ``python -m benchmarks.next_item scores|choices|attributes``.

The last row of each user is the test row. It is ranked among all items that the user does not have,
after a fit to the rows before it. HR@10 and NDCG@10 are means over all users; a test item that
nobody had before counts 0. `scores` also prints megabytes per client and CPU seconds of the fit.
`choices` prints NDCG@10 of the last rows but one, after a fit to those before: of each pair of
half-lives and direction; of powers and more neighbours with the best of these; and of "auto".
`attributes` prints it by `content_weight`, for test items of fewer training rows than the median of
the test rows, and for the others. Rows of the same day stand in the order of the original files,
for all methods alike.

Data: MovieLens-100k, and the 5-core Amazon sets, Yelp and LastFM of Zhou et al. (S3-Rec, CIKM
2020), in the folder --data-home or FEDRECSK_DATA. If one of them is not there, it is left out.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import CountVectorizer

from benchmarks._command_line import command_line
from benchmarks._methods import add_method
from benchmarks._timing import Stopwatch
from fedrecsk import FedEASE, FedItemKNN, LocALS, Popularity
from fedrecsk.ensemble import RankingEnsemble
from fedrecsk.model_selection import LeaveLastOut

N_BEST, N_USERS = 10, 4000
FILES = {
    "Beauty": "amazon-beauty-5core/interactions.csv.gz",
    "Sports": "amazon-sports-5core/interactions.csv.gz",
    "Yelp": "yelp/interactions.csv.gz",
    "LastFM": "lastfm/interactions.csv.gz",
    "100k": "ml-100k/ratings.csv.gz",
}
# Where attributes of items, joined by bars, are.
ATTRIBUTES = {name: str(Path(path).with_name("items.csv.gz")) for name, path in FILES.items()}
NAMES = (
    "pair_half_life",
    "history_half_life",
    "backward_weight",
    "history_power",
    "power",
    "shrinkage",
    "n_neighbors",
)
# FedItemKNN's parameters, one after the other the best of a few on validation rows of 8,000 users.
CHOSEN = {
    name: dict(zip(NAMES, values, strict=True))
    for name, *values in (
        ("Beauty", 4.0, 1.0, 0.25, 0.55, 0.25, 10.0, 300),
        ("Sports", 4.0, 2.0, 0.25, 0.55, 0.1, 5.0, 300),
        ("Yelp", 32.0, 12.0, 0.75, 0.25, 0.2, 5.0, 100),
        ("LastFM", 16.0, 6.0, 0.1, 0.65, 0.35, 5.0, 100),
        ("100k", 8.0, 2.0, 0.75, 0.5, 0.5, 10.0, 100),
    )
}
# The best of CONTENT_WEIGHTS for these, on the same rows; Yelp and 100k gain nothing, and tags of
# LastFM are from the users whose rows are tested.
CONTENT_WEIGHT = {"Beauty": 1.0, "Sports": 0.5}
AUTO = {"pair_half_life": "auto", "history_half_life": "auto"}
# FedEASE inverts a matrix of all items.
FEW_ITEMS = 5000
LOCALS_HISTORY = 3.0
# HR@10 / NDCG@10 of the same split and the same files, all items ranked: the best of a grid.
PUBLISHED = [
    ("Beauty", "SASRec, sampled softmax", "0.0921 / 0.0531"),
    ("Beauty", "eSASRec", "0.0928 / 0.0523"),
    ("Beauty", "HSTU", "- / 0.0439"),
    ("Beauty", "FuXi-alpha", "- / 0.0451"),
    ("Beauty", "DuoRec", "- / 0.0443"),
    ("Beauty", "TIGER", "- / 0.0384"),
    ("Beauty", "ActionPiece", "- / 0.0424"),
    ("Beauty", "S3-Rec", "- / 0.0327"),
    ("Sports", "SASRec, sampled softmax", "0.0569 / 0.0314"),
    ("Sports", "eSASRec", "0.0560 / 0.0323"),
    ("Sports", "HSTU", "- / 0.0243"),
    ("Sports", "FuXi-alpha", "- / 0.0244"),
    ("Sports", "DuoRec", "- / 0.0262"),
    ("Sports", "TIGER", "- / 0.0225"),
    ("Sports", "ActionPiece", "- / 0.0264"),
    ("Sports", "S3-Rec", "- / 0.0204"),
]


def load(name, home):
    """Return rows (user, item, time) of a data set, each pair once; None without a copy."""
    path = Path(home or os.environ.get("FEDRECSK_DATA", "")) / FILES[name]
    if not path.is_file():
        print(f"{path} is not there; leaving {name} out.")
        return None
    frame = pd.read_csv(path).iloc[:, [0, 1, -1]].drop_duplicates(["user", "item"], keep="last")
    return frame.to_numpy(dtype=np.int64)


def attributes_of(name, items, home):
    """Return the parameters with the attributes of these items: genres, categories, brands."""
    frame = pd.read_csv(Path(home or os.environ.get("FEDRECSK_DATA", "")) / ATTRIBUTES[name])
    texts = frame.set_index("item").iloc[:, -1].reindex(items).fillna("").astype(str)
    rows = CountVectorizer(token_pattern=r"[^|]+", binary=True).fit_transform(texts)
    return {"items": items, "item_features": rows}


def measured(model, test):
    """HR@10 and NDCG@10 of these rows."""
    items = model.recommend(test[:, 0], N_BEST)[0]
    users, places = np.nonzero(items == test[:, 1:2])
    return len(users) / len(test), (1 / np.log2(places + 2)).sum() / len(test)


def models_of(name, items, home):
    """Label and estimator of each row of a table."""
    chosen = CHOSEN[name]
    lives = {key: chosen[key] for key in ("pair_half_life", "history_half_life")}
    locals_ = LocALS(32, history_half_life=LOCALS_HISTORY, random_state=0)
    best = FedItemKNN(**chosen)
    yield "popularity", Popularity()
    yield "LocALS, fading history", locals_
    yield "FedItemKNN, without time", FedItemKNN()
    yield "FedItemKNN, fading", FedItemKNN(**lives, backward_weight=1)
    yield 'FedItemKNN, "auto"', FedItemKNN(**AUTO)
    yield "FedItemKNN, chosen", best
    if name in CONTENT_WEIGHT:
        known = attributes_of(name, items, home) | {"content_weight": CONTENT_WEIGHT[name]}
        yield "FedItemKNN, chosen, item attributes", FedItemKNN(**chosen, **known)
    if len(items) < FEW_ITEMS:
        ease = FedEASE(100.0, pair_half_life=7.0, history_half_life=5.0)
        yield "FedEASE, fading", ease
        yield "sum of FedItemKNN and FedEASE", RankingEnsemble([("knn", best), ("ease", ease)])
    yield (
        "sum of FedItemKNN and LocALS",
        RankingEnsemble([("knn", best), ("als", locals_)], weights=[1.0, 0.3]),
    )


def scores(options):
    """Test rows of each data set."""
    for name in options.data:
        X = load(name, options.data_home)
        if X is None:
            continue
        train, test = LeaveLastOut(ties="row_order").train_test_split(X)
        print(f"\n{name}: {len(test)} users\n")
        print("| | HR@10 | NDCG@10 | rounds | MB up | MB down | CPU s |")
        print("|---|---|---|---|---|---|---|")
        for label, model in models_of(name, np.unique(X[:, 1]), options.data_home):
            if options.only and label not in options.only:
                continue
            add_method(model)
            watch = Stopwatch(time.process_time)
            model.fit(train)
            seconds = watch.seconds()
            hits, ndcg = measured(model, test)
            print(
                f"| {label} | {hits:.4f} | {ndcg:.4f} | {_costs(model)} | {seconds:.1f} |",
                flush=True,
            )
        published = [row for row in PUBLISHED if row[0] == name]
        if published and not options.only:
            print("\n| published, centralised | HR@10 / NDCG@10 |\n|---|---|")
            for _, label, numbers in published:
                print(f"| {label} | {numbers} |")


def _costs(model):
    """Rounds, and megabytes up and down per client, as cells of a row."""
    ledger = getattr(model, "communication_", None)
    if ledger is None:
        return "- | - | -"
    up, down = (n.mean() / 1e6 for n in (ledger.client_bytes_up, ledger.client_bytes_down))
    return f"{model.n_rounds_} | {up:.4f} | {down:.3f}"


def validation_rows(X):
    """Return the rows to fit to, and the last but one of some users."""
    rest, _ = LeaveLastOut(ties="row_order").train_test_split(X)
    train, rows = LeaveLastOut(ties="row_order").train_test_split(rest)
    if len(rows) > N_USERS:
        rows = rows[np.random.default_rng(0).choice(len(rows), N_USERS, replace=False)]
    return train, rows


def choices(options):
    """Validation rows, by half-lives and direction."""
    for name in options.data:
        X = load(name, options.data_home)
        if X is None:
            continue
        train, rows = validation_rows(X)
        print(f"\n{name}: NDCG@10 of {len(rows)} users\n")
        print("| pairs | history | direction | powers | neighbours | NDCG@10 |")
        print("|---|---|---|---|---|---|")
        tried = {one: _print_choice(train, rows, *one) for one in itertools.product(*GRID)}
        for more in POWERS:
            _print_choice(train, rows, *max(tried, key=tried.get), *more)
        _print_choice(train, rows, *["auto"] * 3)


def _print_choice(train, rows, pair, history, backward, own="auto", power=0.25, size=100):
    """Print and return NDCG@10 of these parameters."""
    values = pair, history, backward, own, power, 5.0, size
    model = FedItemKNN(**dict(zip(NAMES, values, strict=True)))
    add_method(model)
    ndcg = measured(model.fit(train), rows)[1]
    powers = f"{power} both" if own == "auto" and backward != "auto" else f"{own}, {power}"
    print(f"| {pair} | {history} | {backward} | {powers} | {size} | {ndcg:.4f} |", flush=True)
    return ndcg


def attributes(options):
    """Validation rows, by how much attributes of items count."""
    print("| data | parameters | content_weight | NDCG@10 | few rows | many rows |")
    print("|---|---|---|---|---|---|")
    for name in options.data:
        X = load(name, options.data_home)
        if X is None:
            continue
        train, rows = validation_rows(X)
        n_rows = pd.Series(rows[:, 1]).map(pd.Series(train[:, 1]).value_counts()).fillna(0)
        halves = [rows[n_rows < n_rows.median()], rows[n_rows >= n_rows.median()]]
        known = attributes_of(name, np.unique(X[:, 1]), options.data_home)
        for label, parameters in (("chosen", CHOSEN[name]), ("auto", AUTO)):
            for weight in CONTENT_WEIGHTS:
                model = FedItemKNN(**parameters, **known, content_weight=weight)
                add_method(model)
                model.fit(train)
                found = [measured(model, half)[1] for half in halves]
                mean = np.average(found, weights=[len(half) for half in halves])
                cells = " | ".join(f"{ndcg:.4f}" for ndcg in (mean, *found))
                print(f"| {name} | {label} | {weight} | {cells} |", flush=True)


# How many users a cosine of 1 counts.
CONTENT_WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
# Half-lives of pairs and of histories, and the weight of the other direction.
GRID = [4.0, 8.0, 16.0], [1.0, 2.0, 4.0], [1.0, 0.5, 0.25]
# Exponents of the item that users had and of the one to come, and how many neighbours are kept.
POWERS = (0.5, 0.25), (0.5, 0.1), (0.75, 0.25), (0.5, 0.5), (0.25, 0.25, 300)


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {f.__name__: f for f in (scores, choices, attributes)}
    parser = command_line("next_item", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", nargs="+", choices=list(FILES), default=list(FILES))
    parser.add_argument("--data-home")
    parser.add_argument("--only", nargs="+")
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
