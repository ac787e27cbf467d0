"""Choose defaults on many sets: ``python -m benchmarks.defaults COMMAND [--method ...]``.

NDCG@10 over the full catalogue on validation rows, and megabytes for each client, of a method's
settings in `TRIED`, by default LocALS's. `whole`: the last row but one of up to 4,000 users of sets
with times; a fifth of the rows at random of MovieLens-100k and of 2,000 users of MovieLens-1M; and
one random row of 4,000 users of generated rows whose 20,000 users fall into 50 groups, each with
items of its own. `few`: one random row per user of MovieLens-100k with a few random rows per user,
and of small generated sets; means over three seeds. `newcomers`, of LocALS: users of whom 1, 3, 5
or all rows are folded in, as in ``few_rows choices``. "growing": penalties that grow with the
number of a user's positives and with that of an item's holders, ``REG_PIVOT=20``.

Test rows of :mod:`benchmarks.next_item`, :mod:`benchmarks.fedals` and
:mod:`benchmarks.sparse_defaults` are never ranked, and random splits alone may train on some.

Data: MovieLens-1M with the leave-one-out files of He et al. (2017), and those of
:mod:`benchmarks.next_item`.
"""

from __future__ import annotations

import numpy as np

from benchmarks import fedals, few_rows, next_item, sparse_defaults
from benchmarks._command_line import command_line
from benchmarks._methods import add_method
from benchmarks._seeds import choosing, reported, untested
from benchmarks._variants import variant
from benchmarks.lightfr import leave_one_out
from fedrecsk import FedEASE, FedSpectral, LightFR, LocALS, LocSGD, Popularity
from fedrecsk.datasets import fetch_movielens
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.model_selection import LeaveLastOut

N_TESTED, N_USERS = 4, 2000
GROWING = {"REG_PIVOT": 20, "reg_user": 8.0, "reg_item": 3.0, "reg_exponent": 0.75}
SLOWER = {"REG_PIVOT": 20, "reg_user": 10.0, "reg_item": 4.0, "reg_exponent": 0.5}
TRIED = {
    "LocALS": {
        "popularity": None,
        "20 factors": {"n_factors": 20},
        "64 factors": {"n_factors": 64},
        "64, 5 rounds": {"n_factors": 64, "n_rounds": 5},
        "64, penalties 9 and 3": {"n_factors": 64, "reg_user": 9.0, "reg_item": 3.0},
        "64, alpha 3": {"n_factors": 64, "alpha": 3.0},
        "64, growing": {"n_factors": 64, **GROWING},
        "64, growing to 0.5": {"n_factors": 64, **SLOWER},
    },
    "FedSpectral": {
        "4, 30": {"alpha": 4.0, "reg_user": 30.0},
        "1, 30": {"alpha": 1.0, "reg_user": 30.0},
        "1, 60": {"alpha": 1.0, "reg_user": 60.0},
        "1, 120": {"alpha": 1.0, "reg_user": 120.0},
        "0.25, 60": {"alpha": 0.25, "reg_user": 60.0},
        "1, 60, 64 factors": {"alpha": 1.0, "reg_user": 60.0, "n_factors": 64},
    },
    "LightFR": {
        "4": {"alpha": 4.0},
        "16": {"alpha": 16.0},
        "64": {"alpha": 64.0},
        "auto": {"alpha": "auto"},
    },
    "FedEASE": {
        "1000": {"reg": 1000.0},
        "300": {"reg": 300.0},
        "100": {"reg": 100.0},
        "auto": {"reg": "auto"},
    },
    "LocSGD": {
        "0.3": {"learning_rate": 0.3},
        "1.2": {"learning_rate": 1.2},
        "4.8": {"learning_rate": 4.8},
        "auto, 0.1": {"RATE": 0.1},
        "auto": {"RATE": 0.2},
        "auto, 0.4": {"RATE": 0.4},
    },
}
METHODS = {one.__name__: one for one in (LocALS, FedSpectral, LightFR, FedEASE, LocSGD)}
# Groups, items of each, items, and users and rows of each.
GROUPS, OWN, ITEMS, USERS, ROWS = 50, 60, 5000, 20_000, 20


def random_fifth(X, everything):
    """Rows to fit, and a fifth of the rows at random that `fedals quality` does not test."""
    train, rows = fedals.split(X[:, :2], choosing(1)[0])
    tests = [fedals.split(everything, seed)[1] for seed in reported(N_TESTED)]
    return train, rows[untested(rows, tests)]


def grouped():
    """Rows of users who choose half of their items as all do, and half among those of a group."""
    rng = np.random.default_rng(choosing(1)[0])
    share = 1 / np.arange(1, ITEMS + 1) ** 0.8
    items = rng.choice(ITEMS, (USERS, ROWS), p=share / share.sum())
    own = rng.permuted(np.tile(np.arange(ITEMS), (GROUPS, 1)), axis=1)[:, :OWN]
    group, is_own = rng.integers(GROUPS, size=(USERS, 1)), rng.random(items.shape) < 0.5
    items = np.where(is_own, own[group, rng.integers(OWN, size=items.shape)], items)
    X = np.column_stack([np.repeat(np.arange(USERS), ROWS), items.ravel()])
    return one_each(np.unique(X, axis=0), choosing(1)[0])


def one_each(X, seed, n_users=next_item.N_USERS):
    """Rows to fit, and a random row of users who have another."""
    place = sparse_defaults.ranks(X, seed + 1000)
    is_held = (place == 0) & np.isin(X[:, 0], X[place == 1, 0])
    rows = X[is_held]
    return X[~is_held], rows[np.random.default_rng(seed).permutation(len(rows))[:n_users]]


def whole_sets(options):
    """Name, and pairs of rows to fit and to rank."""
    for name in options.data:
        X = next_item.load(name, options.data_home)
        if X is not None:
            yield name, [next_item.validation_rows(X)[:2]]
        if name == "100k" and X is not None:
            rest, _ = LeaveLastOut(ties="row_order").train_test_split(X)
            yield "100k, random", [random_fifth(rest, X)]
    if "100k" in options.data:
        X = leave_one_out(options)[0]
        users = np.random.default_rng(choosing(1)[0]).permutation(np.unique(X[:, 0]))
        everything = fetch_movielens("1m", data_home=options.data_home, return_X_y=True)[0]
        yield "1m, random", [random_fifth(X[np.isin(X[:, 0], users[:N_USERS])], everything)]
        yield "groups", [grouped()]


def few_sets(options):
    """Name, and pairs of rows to fit and to rank, one for each seed."""
    for name, rows in sparse_defaults.ranking_sets(options):
        # Generated rows of another seed are other rows.
        tests = [one_each(rows(s), s)[1] for s in reported(3)] if "ML" in name else []
        pairs = []
        for seed in choosing(3):
            train, held = one_each(rows(seed), seed)
            pairs.append((train, held[untested(held, tests)] if tests else held))
        yield name, pairs


def made(changed, seed, method="LocALS"):
    """An estimator with these parameters and constants."""
    if changed is None:
        return Popularity()
    return variant(METHODS[method], **changed, random_state=seed)


def table(sets, options):
    """Print each setting's NDCG@10 and megabytes on each set."""
    print("| data | setting | NDCG@10 | MB up | MB down |\n|---|---|---|---|---|", flush=True)
    for name, pairs in sets:
        for label, changed in TRIED[options.method].items():
            if options.only and label not in options.only:
                continue
            scores, costs = [], []
            for seed, (train, rows) in zip(choosing(len(pairs)), pairs, strict=True):
                model = made(changed, seed, options.method)
                add_method(model)
                scores.append(evaluate_ranking(model.fit(train), rows)["ndcg@10"])
                costs.append(_megabytes(model))
            cost = " | ".join(np.array(costs[0]).astype(str))
            print(f"| {name} | {label} | {np.mean(scores):.4f} | {cost} |", flush=True)


def _megabytes(model):
    """Megabytes per client up and down, as cells."""
    ledger = getattr(model, "communication_", None)
    if ledger is None:
        return "-", "-"
    return [f"{n.mean() / 1e6:.3f}" for n in (ledger.client_bytes_up, ledger.client_bytes_down)]


def whole(options):
    """Validation rows of whole sets."""
    table(whole_sets(options), options)


def few(options):
    """Validation rows of sets with few rows per user."""
    table(few_sets(options), options)


def newcomers(options):
    """Users of few rows, unknown to the fit."""
    for name in ("100k", "100k-thin"):
        few_rows.head(name)
        splits = [(s, *few_rows.parts(name, options, s, 1)) for s in choosing(2)]
        for label, changed in TRIED["LocALS"].items():
            fits = [(made(changed, s).fit(fitted), rest) for s, fitted, *rest in splits]
            few_rows.show(label, [few_rows.gains(model, *rest) for model, rest in fits])


def main(argv=None):
    """Print one of the tables."""
    commands = {f.__name__: f for f in (whole, few, newcomers)}
    parser = command_line("defaults", __doc__)
    parser.add_argument("command", choices=commands)
    data = list(next_item.FILES)
    parser.add_argument("--data", nargs="+", choices=data, default=data[::-1])
    parser.add_argument("--data-home")
    parser.add_argument("--method", choices=TRIED, default="LocALS")
    parser.add_argument("--only", nargs="+", help="settings to run")
    options = parser.parse_args(argv)
    if options.command == "newcomers" and options.method != "LocALS":
        parser.error("newcomers is of LocALS only")
    if unknown := set(options.only or ()) - set(TRIED[options.method]):
        parser.error(f"--only {', '.join(unknown)}: use some of {', '.join(TRIED[options.method])}")
    commands[options.command](options)


if __name__ == "__main__":
    main()
