"""Measure what comes next: ``python -m benchmarks.next_item scores|search|choices|attributes``.

The last row of each user is the test row. It is ranked among all items that the user does not have,
after a fit to the rows before it. HR@10 and NDCG@10 are means over all users; a test item that
nobody had before counts 0. `scores` also prints megabytes per client and CPU seconds of the fit.
`search` finds parameters on the last rows but one of 4,000 users, after a fit to those before: for
one parameter after the other it keeps the best of SEARCHED, beginning with STARTS, until none
changes. Its record has the parameters of "chosen" in `scores` and `attributes`.
`choices` prints NDCG@10 of the last rows but one of the other users, or if there are none of the
same: of "auto", of "auto" with a part of it given, of what `search` found, and of what a
`FederatedSearch` among TRIED finds in the rows of the fit, with the standard error of the
difference to "auto"; also on sets not looked at for the rules of "auto".
`attributes` prints it by `content_weight`, for test items of fewer training rows than the median of
the test rows, and for the others. Rows of the same day stand in the order of the original files,
for all methods alike.

Data: MovieLens-100k, and the 5-core Amazon sets, Yelp and LastFM of Zhou et al. (S3-Rec, CIKM
2020), in the folder --data-home or FEDRECSK_DATA. If one of them is not there, it is left out.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import CountVectorizer

from benchmarks._command_line import command_line
from benchmarks._methods import add_method
from benchmarks._records import rows_of
from benchmarks._timing import Stopwatch
from fedrecsk import FedEASE, FedItemKNN, ItemKNN, LocALS, Popularity
from fedrecsk.datasets import make_interactions
from fedrecsk.ensemble import RankingEnsemble
from fedrecsk.model_selection import LeaveLastOut
from fedrecsk.selection import FederatedSearch

N_BEST, N_USERS = 10, 4000
FILES = {
    "Beauty": "amazon-beauty-5core/interactions.csv.gz",
    "Sports": "amazon-sports-5core/interactions.csv.gz",
    "Yelp": "yelp/interactions.csv.gz",
    "LastFM": "lastfm/interactions.csv.gz",
    "100k": "ml-100k/ratings.csv.gz",
}
# Sets that no rule of "auto" is from.
OTHERS = {"larger Beauty": "amazon-beauty/interactions.csv.gz", "generated": None}
# Where attributes of items, joined by bars, are.
ATTRIBUTES = {name: str(Path(path).with_name("items.csv.gz")) for name, path in FILES.items()}
# FedItemKNN's parameters that are searched, in this order, and their values; and those to begin
# with, the second ones only where users have many rows.
SEARCHED = {
    "pair_half_life": (4.0, 8.0, 16.0, 32.0),
    "history_half_life": (1.0, 1.5, 2.0, 4.0, 6.0, 12.0),
    "backward_weight": (0.1, 0.25, 0.5, 0.75, 1.0),
    "history_power": (0.25, 0.4, 0.5, 0.65, 0.8),
    "power": (0.1, 0.2, 0.25, 0.3, 0.4, 0.5),
    "shrinkage": (2.0, 5.0, 10.0, 20.0),
    "n_neighbors": (100, 300),
}
STARTS = (8.0, 2.0, 0.5, 0.5, 0.25, 5.0, 100), (16.0, 6.0, 0.25, 0.65, 0.4, 5.0, 100)
MANY_ROWS = 20
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
    if name == "generated":
        return make_interactions(1500, 500, 60_000, drift=1.0, random_state=0)
    path = Path(home or os.environ.get("FEDRECSK_DATA", "")) / (FILES | OTHERS)[name]
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


def gains(model, test):
    """NDCG@10 of each of these rows."""
    items = model.recommend(test[:, 0], N_BEST)[0]
    return ((items == test[:, 1:2]) / np.log2(np.arange(N_BEST) + 2)).sum(axis=1)


def chosen(name):
    """Return the parameters of FedItemKNN that `search` found for a data set."""
    found = {row["data"]: row for row, _ in rows_of("next_item search")}
    kind = {parameter: type(grid[0]) for parameter, grid in SEARCHED.items()}
    return {parameter: kind[parameter](found[name][parameter]) for parameter in SEARCHED}


def measured(model, test):
    """HR@10 and NDCG@10 of these rows."""
    found = gains(model, test)
    return (found > 0).mean(), found.mean()


def models_of(name, items, home):
    """Label and estimator of each row of a table."""
    found = chosen(name)
    lives = {key: found[key] for key in ("pair_half_life", "history_half_life")}
    locals_ = LocALS(32, history_half_life=LOCALS_HISTORY, random_state=0)
    best = FedItemKNN(**found)
    yield "popularity", Popularity()
    yield "LocALS, fading history", locals_
    yield "FedItemKNN, without time", FedItemKNN()
    yield "FedItemKNN, fading", FedItemKNN(**lives, backward_weight=1)
    yield 'FedItemKNN, "auto"', FedItemKNN(**AUTO)
    yield "FedItemKNN, chosen", best
    if name in CONTENT_WEIGHT:
        known = attributes_of(name, items, home) | {"content_weight": CONTENT_WEIGHT[name]}
        yield "FedItemKNN, chosen, item attributes", FedItemKNN(**found, **known)
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
    """Return the rows to fit to, the last but one of some users, and those of the others."""
    rest, _ = LeaveLastOut(ties="row_order").train_test_split(X)
    train, rows = LeaveLastOut(ties="row_order").train_test_split(rest)
    order = np.arange(len(rows))
    if len(rows) > N_USERS:
        some = np.random.default_rng(0).choice(len(rows), N_USERS, replace=False)
        order = np.append(some, np.setdiff1d(order, some))
    return train, rows[order[:N_USERS]], rows[order[N_USERS:]]


def search(options):
    """Validation rows, for one parameter after the other the best of a few values."""
    add_method(ItemKNN())
    print(f"| data | {' | '.join(SEARCHED)} | NDCG@10 | tried |")
    print(f"|{'---|' * (len(SEARCHED) + 3)}")
    for name in options.data:
        X = load(name, options.data_home)
        if X is None:
            continue
        train, rows, _ = validation_rows(X)
        has_many = len(train) >= MANY_ROWS * len(np.unique(train[:, 0]))
        tried = {}
        for start in STARTS[: 1 + has_many]:
            _climb(train, rows, start, tried)
        best = max(tried, key=tried.get)
        cells = " | ".join(str(value) for value in best)
        print(f"| {name} | {cells} | {tried[best]:.4f} | {len(tried)} |", flush=True)


def _climb(train, rows, best, tried):
    """Search, and add NDCG@10 to a dict from the parameters that are tried."""
    last = None
    while best != last:
        last = best
        for place, grid in enumerate(SEARCHED.values()):
            line = [(*best[:place], value, *best[place + 1 :]) for value in (best[place], *grid)]
            for one in line:
                if one not in tried:
                    model = ItemKNN(**dict(zip(SEARCHED, one, strict=True)))
                    tried[one] = measured(model.fit(train), rows)[1]
            best = max(line, key=tried.get)


def choices(options):
    """Validation rows, by what "auto" finds, with parts of it given, and by what is searched."""
    add_method(ItemKNN())
    add_method(FedItemKNN())
    print('| data | users | parameters | direction | support | NDCG@10 | divided by "auto" |')
    print("|---|---|---|---|---|---|---|")
    for name in [*options.data, *OTHERS]:
        X = load(name, options.data_home)
        if X is None:
            continue
        train, rows, others = validation_rows(X)
        rows = others if len(others) else rows
        tried = {"auto": ItemKNN(**AUTO)}
        for key, value in GIVEN.items():
            tried[f"auto, {key} {value}"] = ItemKNN(**AUTO | {key: value})
        if name in options.data:
            tried["searched"] = ItemKNN(**chosen(name))
            for which in ("latest", "random"):
                tried[f"FederatedSearch, {which} rows"] = search_of(FedItemKNN(**AUTO), which)
        auto = None
        for label, model in tried.items():
            model = getattr(model.fit(train), "best_estimator_", model)
            found = gains(model, rows)
            auto = found if auto is None else auto
            error = (found - auto).std() / len(rows) ** 0.5 / auto.mean()
            share = f"{found.mean() / auto.mean():.3f} ± {error:.3f}"
            support = "-" if model.pair_support_ is None else f"{model.pair_support_:.1f}"
            cells = f"{label} | {model.backward_weight_:.2f} | {support} | {found.mean():.4f}"
            print(f"| {name} | {len(rows)} | {cells} | {share} |", flush=True)


def attributes(options):
    """Validation rows, by how much attributes of items count."""
    print("| data | parameters | content_weight | NDCG@10 | few rows | many rows |")
    print("|---|---|---|---|---|---|")
    for name in options.data:
        X = load(name, options.data_home)
        if X is None:
            continue
        train, rows, _ = validation_rows(X)
        n_rows = pd.Series(rows[:, 1]).map(pd.Series(train[:, 1]).value_counts()).fillna(0)
        halves = [rows[n_rows < n_rows.median()], rows[n_rows >= n_rows.median()]]
        known = attributes_of(name, np.unique(X[:, 1]), options.data_home)
        for label, parameters in (("chosen", chosen(name)), ("auto", AUTO)):
            for weight in CONTENT_WEIGHTS:
                model = FedItemKNN(**parameters, **known, content_weight=weight)
                add_method(model)
                model.fit(train)
                found = [measured(model, half)[1] for half in halves]
                mean = np.average(found, weights=[len(half) for half in halves])
                cells = " | ".join(f"{ndcg:.4f}" for ndcg in (mean, *found))
                print(f"| {name} | {label} | {weight} | {cells} |", flush=True)


def search_of(model, which):
    """Return a search where the data are, by the latest rows or random ones."""
    return FederatedSearch(model, TRIED, n_candidates=9, validation_rows=which, random_state=0)


# What a FederatedSearch tries.
TRIED = {"history_half_life": [1.5, "auto", 6.0], "power": [0.1, "auto", 0.5]}
# Parameters that "auto" would find.
GIVEN = {"power": 0.25, "history_half_life": 2.0}
# How many users a cosine of 1 counts.
CONTENT_WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {f.__name__: f for f in (scores, search, choices, attributes)}
    parser = command_line("next_item", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", nargs="+", choices=list(FILES), default=list(FILES))
    parser.add_argument("--data-home")
    parser.add_argument("--only", nargs="+")
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
