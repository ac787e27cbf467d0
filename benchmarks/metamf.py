"""Measure MetaMF: ``python -m benchmarks.metamf quality|choices|speed``.

Splits are 80/20 at random, one user per client, as in `benchmarks.rfrec`. `quality` measures the
RMSE on test rows, `choices` on validation rows: a tenth of the training rows of the first split.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import resource
import time

import numpy as np
from sklearn.base import clone

from benchmarks._command_line import command_line
from benchmarks._seeds import reported
from benchmarks._variants import variant
from benchmarks.rfrec import errors, split
from fedrecsk import BiasOnly, Federation
from fedrecsk.datasets import fetch_movielens
from fedrecsk.neural import MetaMF

# The authors' code, but for its cohorts: it takes a step for every 64 ratings, about a million of
# them, and has no rounds.
AUTHORS = {
    "hidden_size": 512,
    "learning_rate": 1e-4,
    "reg": 1e-3,
    "INIT_COMMON": 0.0,
    "INIT_STD": 1.0,
    "level": False,
}
MODELS = {
    "bias-only": BiasOnly(),
    "defaults": MetaMF(),
    "the authors' settings": variant(MetaMF, **AUTHORS),
    "... with defaults' learning_rate": variant(MetaMF, **AUTHORS | {"learning_rate": 2e-3}),
}
CHOICES = {
    "defaults": {},
    "independent codes": {"INIT_COMMON": 0.0, "INIT_STD": 1.0},
    "INIT_STD=0.1": {"INIT_STD": 0.1},
    "learning_rate=1e-3": {"learning_rate": 1e-3},
    "reg=0": {"reg": 0.0},
    "reg=1e-3": {"reg": 1e-3},
    "hidden_size=512": {"hidden_size": 512},
    "level=False": {"level": False},
    "rotating cohorts": {"federation": Federation(sampling="rotating")},
}


def quality(options):
    """RMSE on test rows of ML-100k and ML-1M."""
    print("| data | model | RMSE | +- | CPU s |\n|---|---|---|---|---|")
    for name in options.data:
        X, y = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
        for label in options.only or MODELS:
            runs, start = [], time.process_time()
            for seed in reported(options.seeds):
                model = _seeded(_with_rounds(MODELS[label], options), seed)
                runs.append(errors(model, *split(X, y, seed))[1])
            seconds = (time.process_time() - start) / options.seeds
            mean, spread = np.mean(runs), np.std(runs)
            print(f"| {name} | {label} | {mean:.4f} | {spread:.4f} | {seconds:.0f} |", flush=True)


def choices(options):
    """RMSE on validation rows after some numbers of rounds, for neighbours of the defaults."""
    rounds = options.rounds or [125, 250, 500, 750, 1000]
    print("| data | setting | " + " | ".join(f"round {n}" for n in rounds) + " |")
    print("|---|---|" + "---|" * len(rounds))
    for name in options.data:
        X, y = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
        X_train, y_train, _, _ = split(X, y, 0)
        part = split(X_train, y_train, 2000, share=0.1)
        for label in options.only or CHOICES:
            model = variant(MetaMF, **CHOICES[label], warm_start=True, random_state=0)
            cells = []
            for n in rounds:
                cells.append(f"{errors(model.set_params(n_rounds=n), *part)[1]:.4f}")
            print(f"| {name} | {label} | " + " | ".join(cells) + " |", flush=True)


def speed(options):
    """CPU seconds of a round, from the difference of two fits, and the peak of memory."""
    print("| data | hidden_size | clients | CPU s per round | peak MiB so far |")
    print("|---|---|---|---|---|")
    for name in options.data:
        X, y = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
        for hidden_size in (128, 512):
            for fraction, n_rounds in ((0.01, 22), (1.0, 2)):
                model = MetaMF(
                    hidden_size=hidden_size, client_fraction=fraction, random_state=0, n_jobs=1
                )
                seconds = _round_seconds(model, X, y, n_rounds)
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                print(
                    f"| {name} | {hidden_size} | {fraction:.0%} | {seconds:.3f} | {peak:.0f} |",
                    flush=True,
                )


def _round_seconds(model, X, y, many, few=1):
    # Imports and compiled kernels.
    clone(model).set_params(n_rounds=1).fit(X[:5000], y[:5000])
    taken = []
    for n_rounds in (few, many):
        start = time.process_time()
        clone(model).set_params(n_rounds=n_rounds).fit(X, y)
        taken.append(time.process_time() - start)
    return (taken[1] - taken[0]) / (many - few)


def _seeded(model, seed):
    known = "random_state" in model.get_params()
    return clone(model).set_params(random_state=seed) if known else model


def _with_rounds(model, options):
    if not options.rounds or "n_rounds" not in model.get_params():
        return model
    return clone(model).set_params(n_rounds=options.rounds[0])


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {f.__name__: f for f in (quality, choices, speed)}
    parser = command_line("metamf", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data-home")
    parser.add_argument("--data", nargs="+", default=["1m"], choices=["100k", "1m"])
    parser.add_argument("--rounds", nargs="+", type=int)
    parser.add_argument("--only", nargs="+", choices=[*MODELS, *CHOICES])
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
