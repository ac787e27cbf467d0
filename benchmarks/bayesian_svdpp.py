"""Measure BayesianSVDpp: ``python -m benchmarks.bayesian_svdpp quality|choices|sparse``.

Ratings are split 80/20 at random by seed. `choices` only uses the training rows of split 0, from
which it takes a validation part. Seconds are CPU seconds.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks._command_line import command_line
from benchmarks._seeds import reported
from benchmarks.centralized import load, mean_rmse, sparse_sets, split
from fedrecsk import BayesianSVDpp, BiasOnly, SVDpp

TARGETS = {"100k": 0.8795, "1m": 0.8243}
NEIGHBOURS = (
    {},
    {"n_factors": 10},
    {"n_factors": 40},
    {"kernel_rank": 0},
    {"kernel_rank": 64},
    {"kernel_rank": 256},
    {"noise_df": None},
    {"noise_df": 5.0},
    {"noise_df": 20.0},
    {"n_burn_in": 100},
    {"n_samples": 100, "thinning": 2},
    {"n_samples": 25, "thinning": 8},
    {"thinning": 8},
    {"n_samples": 100},
)


def measured(model, X_train, y_train, X_test, y_test):
    """RMSE, shares of ratings inside 50 and 90 % intervals, seconds of fit and of a sweep."""
    start = time.process_time()
    model.fit(X_train, y_train)
    seconds = time.process_time() - start
    mean, std = model.predict(X_test, return_std=True)
    errors = np.abs(mean - y_test)
    inside = [np.mean(errors < width * std) for width in (0.6745, 1.6449)]
    return np.array(
        [np.sqrt(np.mean(errors**2)), *inside, seconds, seconds / len(model.loss_curve_)]
    )


def row(*cells):
    """A line of a markdown table, numbers as `measured` has them."""
    *labels, (rmse, half, most, seconds, sweep) = cells
    numbers = f"{rmse:.4f} | {half:.3f} | {most:.3f} | {seconds:.1f} | {sweep:.3f}"
    print("|", " | ".join(map(str, labels)), "|", numbers, "|", flush=True)


HEAD = "RMSE | in 50 % intervals | in 90 % intervals | seconds | a sweep |"


def quality(options):
    """Test errors with the defaults, split by split, and their mean."""
    print("| data | split | to reach |", HEAD + "\n|---|---|---|---|---|---|---|---|")
    for name in options.data:
        X, y = load(name, options)
        runs = []
        for seed in reported(options.seeds):
            settings = {"n_samples": options.n_samples, "n_jobs": options.n_jobs}
            model = BayesianSVDpp(**settings, random_state=seed)
            runs.append(measured(model, *split(X, y, seed)))
            row(name, seed, "", runs[-1])
        row(name, "mean", TARGETS[name], np.mean(runs, axis=0))


def choices(options):
    """Neighbours of the defaults on a validation part of the training rows of split 0."""
    print("| data | with |", HEAD + "\n|---|---|---|---|---|---|---|")
    for name in options.data:
        X_train, y_train, *_ = split(*load(name, options), 0)
        part = split(X_train, y_train, 1)
        for changed in NEIGHBOURS:
            model = BayesianSVDpp(random_state=0, n_jobs=options.n_jobs, **changed)
            row(name, changed or "defaults", measured(model, *part))


def sparse(options):
    """RMSE on sparse parts of MovieLens-100k."""
    models = BiasOnly(), SVDpp(), BayesianSVDpp()
    print("| data |", " | ".join(type(model).__name__ for model in models), "|\n|---|---|---|---|")
    for label, parts in sparse_sets(options):
        errors = " | ".join(f"{mean_rmse(model, parts):.4f}" for model in models)
        print(f"| {label} | {errors} |", flush=True)


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {f.__name__: f for f in (quality, choices, sparse)}
    parser = command_line("bayesian_svdpp", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", nargs="+", default=["100k", "1m"])
    parser.add_argument("--data-home")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n-samples", type=int, default=BayesianSVDpp.n_samples)
    parser.add_argument("--n-jobs", type=int, default=1)
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
