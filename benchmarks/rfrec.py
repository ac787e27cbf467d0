"""Measure RFRec and RFRecF: ``python -m benchmarks.rfrec COMMAND``.

Splits are 80/20 at random, one user per client, drawn by
``numpy.random.default_rng(seed).permutation``.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import numpy as np
from sklearn.base import clone
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

from benchmarks._command_line import command_line
from benchmarks._seeds import reported, untested
from fedrecsk import BiasOnly, Federation, FedFast, RFRec, RFRecF
from fedrecsk.datasets import fetch_movielens
from fedrecsk.privacy import LaplaceMechanism

# Liu et al., CIKM 2024: table 2, and table 3 for the lost uploads.
PAPER = {
    ("100k", "RFRec"): (0.7237, 0.9325),
    ("100k", "RFRecF"): (0.7317, 0.9385),
    ("1m", "RFRec"): (0.6937, 0.8831),
    ("1m", "RFRecF"): (0.6906, 0.8840),
    ("1m", "RFRec, 90% of uploads lost"): (0.7117, 0.9001),
    ("1m", "RFRecF, 90% of uploads lost"): (0.7064, 0.9057),
}
LOST = Federation(dropout=0.9)


def split(X, y, seed, share=0.2):
    """Training and test part of (X, y)."""
    order = np.random.default_rng(seed).permutation(len(y))
    n_test = int(share * len(y))
    test, train = order[:n_test], order[n_test:]
    return X[train], y[train], X[test], y[test]


def validation(X, y, seed, tested):
    """Training part, and validation rows that are in the test part of no seed of `tested`."""
    X_train, y_train, rows, target = split(X, y, seed)
    kept = untested(rows, [split(X, y, s)[2] for s in tested])
    return X_train, y_train, rows[kept], target[kept]


def errors(model, X_train, y_train, X_test, y_test):
    """(MAE, RMSE) on the test part after a fit on the training part."""
    predicted = model.fit(X_train, y_train).predict(X_test)
    return mean_absolute_error(y_test, predicted), root_mean_squared_error(y_test, predicted)


def quality(options):
    """Beside the paper's table 2 and its dropout figure."""
    models = {
        "bias-only": BiasOnly(),
        "RFRec": RFRec(),
        "RFRecF": RFRecF(),
        "RFRec, 90% of uploads lost": RFRec(federation=LOST),
        "RFRecF, 90% of uploads lost": RFRecF(federation=LOST),
    }
    print("| data | model | MAE | RMSE | +- | paper MAE / RMSE |\n|---|---|---|---|---|---|")
    for name in options.data:
        X, y = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
        for label, model in models.items():
            runs = [
                errors(_seeded(model, seed, options), *split(X, y, seed))
                for seed in reported(options.seeds)
            ]
            mae, rmse = np.mean(runs, axis=0)
            paper = " / ".join(
                "-" if v is None else f"{v:.4f}" for v in PAPER.get((name, label), ())
            )
            print(
                f"| {name} | {label} | {mae:.4f} | {rmse:.4f} | {np.std(runs, axis=0)[1]:.4f} "
                f"| {paper or '-'} |",
                flush=True,
            )


def sparse(options):
    """Few ratings per user, few rows, few users: RMSE compared with the bias-only model's."""
    print("| data | bias-only | RFRec | RFRecF |\n|---|---|---|---|")
    for name in options.data:
        X, y = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
        for label, cut in CUTS.items():
            runs = []
            for seed in reported(options.seeds):
                X_train, y_train, X_test, y_test = split(X, y, seed)
                kept = cut(X_train, np.random.default_rng(seed))
                part = X_train[kept], y_train[kept], X_test, y_test
                runs.append(
                    [
                        errors(_seeded(model, seed, options), *part)[1]
                        for model in (BiasOnly(), RFRec(), RFRecF())
                    ]
                )
            row = " | ".join(f"{value:.4f}" for value in np.mean(runs, axis=0))
            print(f"| {name}, {label} | {row} |", flush=True)


def fedfast(options):
    """FedFast's step and penalty for ratings, on a validation part cut from training.

    The paper's table 2 has FedFast with ratings. FedFast's defaults are for positives, and diverge.
    """
    print("| data | learning_rate | reg | RMSE |\n|---|---|---|---|")
    for name in options.data:
        X, y = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
        part = split(*split(X[:, :2], y, 300)[:2], 1)
        for rate in (0.02, 0.05, 0.1, 0.2):
            for decay in (0.002, 0.02):
                model = FedFast(loss="squared", learning_rate=rate, reg=decay)
                try:
                    rmse = f"{errors(_seeded(model, 0, options), *part)[1]:.4f}"
                except ValueError as error:
                    if "diverged" not in str(error):
                        raise
                    rmse = "diverges"
                print(f"| {name} | {rate} | {decay} | {rmse} |", flush=True)


def participation(options):
    """What clients that stay away do, on ML-100k: RMSE in settings of one kind each."""
    X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    part = split(X, y, 0)
    settings = {"all take part": {}}
    for mode in ("upload", "stale", "offline"):
        federation = Federation(dropout=0.5, dropout_mode=mode)
        settings[f"half of the clients dropped: {mode!r}"] = {"federation": federation}
    for share in (0.5, 0.1):
        for sampling in ("random", "rotating"):
            federation = Federation(sampling=sampling)
            settings[f"{sampling} cohorts of {share:.0%}"] = {
                "client_fraction": share,
                "federation": federation,
            }
    aggregations = ("clients", "holders")
    print(f"| RMSE of RFRec by aggregation | {' | '.join(aggregations)} |\n|---|---|---|")
    for label, setting in settings.items():
        models = [RFRec(aggregation=one, **setting) for one in aggregations]
        found = [errors(_seeded(model, 0, options), *part)[1] for model in models]
        print(f"| {label} | {found[0]:.4f} | {found[1]:.4f} |", flush=True)
    print(f"| biases alone | {errors(BiasOnly(), *part)[1]:.4f} | |")


def privacy(options):
    """Local differential privacy: RMSE, and epsilon by coordinate and in total."""
    for name in options.data:
        X, y = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
        part = split(X, y, 0)
        print(f"{name}, bias-only: RMSE {errors(BiasOnly(), *part)[1]:.4f}")
        for scale in (0.04, 0.08, 0.4):
            federation = Federation(local_dp=LaplaceMechanism(clip=0.2, scale=scale))
            for rate, n_rounds in ((0.1, 100), (0.03, 100), (0.03, 200)):
                model = RFRec(
                    learning_rate=rate,
                    n_rounds=n_rounds,
                    rating_scale=(1, 5),
                    items=np.unique(X[:, 1]),
                    federation=federation,
                )
                model = _seeded(model, 0, options)
                rmse = errors(model, *part)[1]
                report = model.privacy_
                print(
                    f"{name}, noise {scale}, learning_rate={rate}, {n_rounds} rounds: RMSE "
                    f"{rmse:.4f}, epsilon {report.epsilon_per_coordinate:g} a coordinate and "
                    f"upload, {report.epsilon:.3g} in total",
                    flush=True,
                )


def _seeded(model, seed, options):
    known = model.get_params()
    extra = {"random_state": seed, "n_jobs": options.n_jobs}
    return clone(model).set_params(**{k: v for k, v in extra.items() if k in known})


def _first_of_each(users, rng, n):
    order = rng.permutation(len(users))
    order = order[np.argsort(users[order], kind="stable")]
    starts = np.flatnonzero(np.r_[True, np.diff(users[order]) != 0])
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    return order[rank < n]


# Sparse parts of a training set, as masks or numbers of its rows.
CUTS = {
    "at most 5 ratings per user": lambda X, rng: _first_of_each(X[:, 0], rng, 5),
    "at most 10 ratings per user": lambda X, rng: _first_of_each(X[:, 0], rng, 10),
    "at most 20 ratings per user": lambda X, rng: _first_of_each(X[:, 0], rng, 20),
    "20% of the rows": lambda X, rng: rng.random(len(X)) < 0.2,
}


def main(argv=None):
    """Run one of the benchmarks."""
    known = (quality, sparse, fedfast, participation, privacy)
    commands = {one.__name__: one for one in known}
    parser = command_line("rfrec", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", nargs="+", default=["100k", "1m"])
    parser.add_argument("--data-home")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n-jobs", type=int, default=1)
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
