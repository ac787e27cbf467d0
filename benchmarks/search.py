"""Choose parameters where the data are: ``python -m benchmarks.search [METHOD ...]``.

27 candidates of each method (`GRID`, with the defaults in the middle). `FederatedSearch` chooses
one by rows that clients hold out of the training rows. The table has the test score of the model
that it fits, of the defaults, and of the best of the 27 on the test rows, each fitted whole to all
training rows; and the megabytes of all clients of the search, of the defaults, and of all 27 fits.
The best of the 27 is chosen by the test rows, so no search can expect to reach it.

Ratings: RMSE on a fifth of the rows. Rankings: NDCG@10 of the whole catalogue on a fifth of each
user's rows. Splits have seeds for reported numbers (``benchmarks/_seeds.py``).

With --cuts, rules for cutting candidates are compared on validation rows, which no reported split
tests: --candidates random settings of RFRec, each fitted for all rounds with a curve of its losses
on rows that clients hold out. 300 times, 26 of them and the defaults are cut by each rule. The
table has what the winner's whole fit loses in RMSE to that of the best of the 27, and to that of
the defaults, and the share of the bytes of 27 fits.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid

import fedrecsk
from benchmarks import fedals, rfrec
from benchmarks._command_line import command_line
from benchmarks._seeds import choosing, reported
from fedrecsk.datasets import fetch_movielens
from fedrecsk.metrics import make_ranking_scorer
from fedrecsk.selection import FederatedSearch

GRID = {
    "RFRec": {
        "reg_user": [0.02, 0.04, 0.08],
        "reg_item": [0.02, 0.04, 0.08],
        "learning_rate": [0.05, 0.1, 0.2],
    },
    "FedEB": {
        "n_factors": [10, 20, 40],
        "sketch_size": [32, 128, 256],
        "learning_rate": [0.025, "auto", 0.1],
    },
    "LocALS": {
        "alpha": [0.5, 1.0, 2.0],
        "reg_user": [15.0, 30.0, 60.0],
        "reg_item": [5.0, 10.0, 20.0],
    },
    "FedMF": {
        "learning_rate": [0.25, 0.5, 1.0],
        "reg": [0.001, 0.002, 0.004],
        "batch_size": [32, 64, 128],
    },
}
RATINGS = {"RFRec", "FedEB"}


def split(name, X, y, seed):
    """Return training rows and test rows, each with ratings or None."""
    if name in RATINGS:
        X_train, y_train, X_test, y_test = rfrec.split(X, y, seed)
        return (X_train, y_train), (X_test, y_test)
    train, test = fedals.split(X, seed)
    return (train, None), (test, None)


def score(name, model, X, y):
    """RMSE or NDCG@10."""
    if name in RATINGS:
        return float(np.sqrt(np.mean((model.predict(X) - y) ** 2)))
    return float(make_ranking_scorer("ndcg", k=10)(model, X))


def megabytes(model):
    """Megabytes of all clients, in both directions."""
    ledger = model.communication_
    return (ledger.bytes_up + ledger.bytes_down) / 1e6


def measured(name, train, test, options):
    """Return test scores and megabytes of the search, of the defaults, and of all candidates."""
    method = getattr(fedrecsk, name)(random_state=0, n_jobs=options.n_jobs)
    search = FederatedSearch(method, GRID[name], n_jobs=options.n_jobs, random_state=0)
    start = time.process_time()
    search.fit(*train)
    seconds = time.process_time() - start
    scores, sizes = [score(name, search, *test)], [megabytes(search)]
    whole = [clone(method)]
    if not options.search_only:
        whole += [clone(method).set_params(**params) for params in ParameterGrid(GRID[name])]
    fits = [model.fit(*train) for model in whole]
    found = [score(name, model, *test) for model in fits]
    best = min if name in RATINGS else max
    scores += [found[0], best(found)]
    all_fits = [megabytes(model) for model in fits]
    # The defaults are the first of the fits, and one of the candidates again.
    return search, scores, [*sizes, all_fits[0], sum(all_fits[1:])], seconds


# -------------------------------------------------------------------------- rules for cuts


def drawn(n):
    """Return n settings of RFRec, the first one with the defaults."""
    rng, settings = np.random.default_rng(5), [{}]

    def between(low, high):
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    ranges = {
        "reg_user": (0.01, 0.16),
        "reg_item": (0.01, 0.16),
        "reg_bias": (0.02, 0.28),
        "learning_rate": (0.02, 0.5),
    }
    for _ in range(n):
        setting = {name: between(*ends) for name, ends in ranges.items()}
        settings.append(setting | {"n_factors": int(rng.integers(5, 31))})
    # The draw that the defaults replace.
    return [settings[0], *settings[2:]]


def curve(setting, X, y, rows, target, n_jobs):
    """Return the losses on held-out rows by round, and RMSE and megabytes of a whole fit."""
    model = fedrecsk.RFRec(random_state=0, n_jobs=n_jobs, **setting)
    watched = clone(model).set_params(early_stopping=True, n_iter_no_change=10**6).fit(X, y)
    losses = [row["validation_loss"] for row in watched.history_]
    error = score("RFRec", model.fit(X, y), rows, target)
    return np.nan_to_num(losses, nan=np.inf), error, megabytes(model)


def winner(losses, sizes, rungs, *, keeps_default=True, decay=0.0):
    """Return the candidate that is left, and the megabytes of all until then.

    With a `decay`, the curve is continued: of each third of the logarithm of the rounds, the loss
    falls by this share of what it fell in the one before.
    """
    n_rounds, alive, cost, last = losses.shape[1], np.arange(len(losses)), 0.0, 0
    for rung in rungs:
        cost += (sizes[alive] * (rung - last) / n_rounds).sum()
        last, now = rung, losses[alive, rung - 1]
        if decay and rung < rungs[-1]:
            fall = losses[alive, max(1, round(rung / 3)) - 1] - now
            steps = np.log(rungs[-1] / rung) / np.log(3)
            now = now - fall * decay * (1 - decay**steps) / (1 - decay)
        order = alive[np.argsort(now, kind="stable")]
        kept = order[: 1 if rung == rungs[-1] else -(-len(alive) // 3)]
        if keeps_default and rung != rungs[-1] and 0 not in kept:
            kept[-1] = 0
        alive = kept
    return alive[0], cost + sizes[alive[0]] * (n_rounds - last) / n_rounds


def cuts(options, data):
    """Print a row for each rule."""
    X, y = fetch_movielens(data, data_home=options.data_home, return_X_y=True)
    X, y = np.asarray(X)[:, :2].astype(np.int64), np.asarray(y)
    (seed,) = choosing(1)
    parts = rfrec.validation(X, y, seed, reported(4))
    found = [curve(one, *parts, options.n_jobs) for one in drawn(options.candidates)]
    losses, errors, sizes = map(np.array, zip(*found, strict=True))
    rules = {
        "10, 30, 75": {"rungs": (10, 30, 75)},
        "without the defaults": {"rungs": (10, 30, 75), "keeps_default": False},
        "curve continued, decay .33": {"rungs": (10, 30, 75), "decay": 0.33},
        "curve continued, decay .5": {"rungs": (10, 30, 75), "decay": 0.5},
        "4, 12, 36": {"rungs": (4, 12, 36)},
        "10, 30": {"rungs": (10, 30)},
        "10, 30, 50": {"rungs": (10, 30, 50)},
        "10, 30, 90": {"rungs": (10, 30, 90)},
    }
    for name, rule in rules.items():
        rng, rows = np.random.default_rng(0), []
        for _ in range(300):
            own = np.r_[0, 1 + rng.choice(len(errors) - 1, 26, replace=False)]
            best, cost = winner(losses[own], sizes[own], **rule)
            error = errors[own][best]
            lost = error - errors[own].min(), error - errors[0]
            rows.append([*lost, cost / sizes[own].sum()])
        regret, to_default, cost = np.transpose(rows)
        shown = f"{regret.mean():.4f} | {regret.max():.4f} | {to_default.max():.4f}"
        print(f"| {data} | {name} | {shown} | {cost.mean():.3f} |", flush=True)


def main(argv=None):
    """Print a row for each data set and method."""
    parser = command_line("search", __doc__)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"default: {', '.join(GRID)}")
    parser.add_argument("--data", nargs="+", default=["100k", "1m"], choices=["100k", "1m"])
    parser.add_argument("--data-home")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n-jobs", type=int, default=1)
    parser.add_argument("--search-only", action="store_true", help="do not fit all candidates")
    parser.add_argument("--cuts", action="store_true", help="compare rules for cuts instead")
    parser.add_argument("--candidates", type=int, default=81, help="settings drawn for --cuts")
    options = parser.parse_args(argv)
    if options.cuts:
        print("| data | cuts after rounds | lost | at most | to the defaults | bytes |")
        print("|---|---|---|---|---|---|", flush=True)
        for data in options.data:
            cuts(options, data)
        return
    unknown = sorted(set(options.methods) - GRID.keys())
    if unknown:
        parser.error(f"unknown method {unknown[0]}; there are {', '.join(GRID)}")
    (seed,) = reported(1, options.seed)
    print("| data | method | search | defaults | best of 27 | MB: search | defaults | 27 fits | |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for data in options.data:
        X, y = fetch_movielens(data, data_home=options.data_home, return_X_y=True)
        X, y = np.asarray(X)[:, :2].astype(np.int64), np.asarray(y)
        for name in options.methods or GRID:
            search, scores, sizes, seconds = measured(name, *split(name, X, y, seed), options)
            shown = " | ".join(f"{one:.4f}" for one in scores)
            costs = " | ".join(f"{one:,.0f}" for one in sizes)
            params = ", ".join(f"{key}={value}" for key, value in search.best_params_.items())
            line = f"{shown} | {costs} | {params}; {seconds:.0f} CPU s"
            print(f"| {data} | {name} | {line} |", flush=True)


if __name__ == "__main__":
    main()
