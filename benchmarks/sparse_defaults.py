"""Default settings on few rows per user: ``python -m benchmarks.sparse_defaults ranking|ratings``.

`ranking`: HR@10 and NDCG@10 over the full catalogue of one random held-out row per user, for every
ranking model with its defaults, next to popularity. `ratings`: RMSE next to BiasOnly, for pairs of
users and items with no, few and more training rows. Means over seeds; the defaults were chosen with
seeds from 100 on, and the seeds here begin with 0 (docs/choices.md has the rows in common).

Data: MovieLens-100k, in the folder --data-home or FEDRECSK_DATA, with a few random rows per user;
and generated rows.
"""

from __future__ import annotations

import numpy as np

import fedrecsk
from benchmarks._command_line import command_line
from benchmarks._methods import add_method
from benchmarks._seeds import reported
from fedrecsk.datasets import fetch_movielens, make_interactions, make_ratings
from fedrecsk.metrics import evaluate_ranking

# Users, items and rows, the held-out one included.
GENERATED = ((100, 150, 400), (200, 100, 1000), (250, 200, 2000), (300, 200, 1200))
ROWS_PER_USER = (3, 5, 10, 20)
RANKING = (
    "Popularity", "ImplicitALS", "FedMF", "CoLR", "SCoLR", "LightFR", "LocALS", "LocSGD",
    "GlobSGD", "FCF", "EASE",
)  # fmt: skip
RATING = ("BiasOnly", "RFRec", "RFRecF", "PMF", "BiasedMF", "SVDpp", "ExplicitFCF", "FedEB")
# Test rows of each user, and the share of users without training rows.
TEST, UNKNOWN = 5, 0.1


def ranks(X, seed):
    """Each row's place in a random order of its user's rows."""
    order = np.random.default_rng(seed).permutation(len(X))
    users = np.unique(X[order, 0], return_inverse=True)[1]
    by_user, sizes = np.argsort(users, kind="stable"), np.bincount(users)
    place = np.empty(len(X), dtype=np.int64)
    place[order[by_user]] = np.arange(len(X)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return place


def new(name, seed):
    """An estimator with its defaults."""
    model = getattr(fedrecsk, name)()
    add_method(model)
    seeded = "random_state" in model.get_params(deep=False)
    return model.set_params(random_state=seed) if seeded else model


def ranking_sets(options):
    """Name, and a function from a seed to rows."""
    for shape in GENERATED:
        name = "{} x {}, {} rows".format(*shape)
        yield name, lambda s, shape=shape: make_interactions(*shape, random_state=s)[:, :2]
    X = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)[0][:, :2]
    for n in ROWS_PER_USER:
        yield f"ML-100k, {n} rows per user", lambda s, n=n: X[ranks(X, s) < n]
    yield "ML-100k", lambda s: X


def ranking(options):
    """HR@10 / NDCG@10 of one held-out row per user."""
    sets = dict(ranking_sets(options))
    print("| model | " + " | ".join(sets) + " |\n" + "|---" * (1 + len(sets)) + "|")
    for name in options.models or RANKING:
        cells = []
        for rows in sets.values():
            found = []
            for seed in reported(options.seeds):
                X = rows(seed)
                place = ranks(X, seed + 1000)
                alone = np.isin(X[:, 0], X[place == 1, 0], invert=True)
                test = (place == 0) & ~alone
                metrics = evaluate_ranking(new(name, seed).fit(X[~test]), X[test])
                found.append([metrics["hit_rate@10"], metrics["ndcg@10"]])
            cells.append("{:.3f} / {:.3f}".format(*np.mean(found, axis=0)))
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def rating_sets(options):
    """Name, training rows per user, and a function from a seed to rows and ratings."""
    X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    for n in (5, 10, 20):
        yield f"ML-100k, at most {n} rows per user", n, lambda s: (X[:, :2], y)
    for n in (5, 10):
        yield f"200 x 150, at most {n}", n, lambda s: make_ratings(200, 150, 4000, random_state=s)


def parts(X, y, n, seed):
    """Training rows, at most n per user, and test rows, also of users without training rows."""
    place, users = ranks(X, seed), np.unique(X[:, 0], return_inverse=True)[1]
    unknown = np.random.default_rng(seed).random(users.max() + 1) < UNKNOWN
    train = (place >= TEST) & (place < TEST + n) & ~unknown[users]
    test = place < TEST
    return X[train], y[train], X[test], y[test]


def counts(train, test):
    """Training rows of each test row's user and item."""
    both = []
    for column in (0, 1):
        ids, n = np.unique(train[:, column], return_counts=True)
        place = np.minimum(np.searchsorted(ids, test[:, column]), len(ids) - 1)
        both.append(np.where(ids[place] == test[:, column], n[place], 0))
    return both


def groups(train, test):
    """Masks of test rows by what the model knows of user and item."""
    of_user, of_item = counts(train, test)
    return {
        "all": np.ones(len(test), dtype=bool),
        "unknown user": of_user == 0,
        "unknown item": of_item == 0,
        "item with 1 or 2": (of_user > 0) & (of_item > 0) & (of_item < 3),
        "item with 3 to 5": (of_user > 0) & (of_item > 2) & (of_item < 6),
        "item with more": (of_user > 0) & (of_item > 5),
    }


def ratings(options):
    """RMSE by what is known of user and item."""
    for title, n, rows in rating_sets(options):
        errors = {}
        for seed in reported(options.seeds):
            train, y_train, test, y_test = parts(*rows(seed), n, seed)
            for name in options.models or RATING:
                predicted = new(name, seed).fit(train, y_train).predict(test)
                for group, mask in groups(train, test).items():
                    errors.setdefault(name, {}).setdefault(group, []).append(
                        (predicted - y_test)[mask] ** 2
                    )
        first = next(iter(errors.values()))
        print(f"\n| {title} | " + " | ".join(first) + " |\n" + "|---" * (1 + len(first)) + "|")
        for name, by_group in errors.items():
            cells = [f"{np.sqrt(np.mean(np.concatenate(one))):.4f}" for one in by_group.values()]
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main(argv=None):
    """Print one of the tables."""
    parser = command_line("sparse_defaults", __doc__)
    parser.add_argument("command", choices={"ranking": ranking, "ratings": ratings})
    parser.add_argument("--models", nargs="*", help="models to run (default: all)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-home")
    options = parser.parse_args(argv)
    {"ranking": ranking, "ratings": ratings}[options.command](options)


if __name__ == "__main__":
    main()
