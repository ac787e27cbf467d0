"""Compare FedFast with plain averaging: ``python -m benchmarks.fedfast quality|choices``.

One client per user, 1 % of the clients per round. HR@10 by rounds: one row of each user is ranked
among 99 negatives, ties in expectation. `quality` ranks the last row of each user, `choices` a
random training row.

Data: MovieLens-1M, in the folder --data-home or FEDRECSK_DATA. `quality` also needs the
leave-one-out files of MovieLens-1M of He et al. (2017) in this folder.
"""

from __future__ import annotations

import numpy as np
from sklearn.base import clone

from benchmarks._command_line import command_line
from benchmarks._seeds import reported
from benchmarks._variants import variant
from benchmarks.lightfr import drawn_negatives, hits, last_but_one, leave_one_out
from fedrecsk import FedFast, Popularity

# Chosen on validation rows for FedFast, and used for all.
SHARED = {"client_fraction": 0.01, "learning_rate": 0.2}
PLAIN = {"sampling": "federation", "aggregation": "visits", "discount": None}
MODELS = {
    "plain averaging": PLAIN,
    "... of a client's whole matrix, by its data": PLAIN | {"aggregation": "data_size"},
    "... cohorts from clusters": PLAIN | {"sampling": "clusters"},
    "... items weighed by their changes": PLAIN | {"aggregation": "active"},
    "... absent clients move with their cluster": PLAIN | {"discount": 0.1},
    "FedFast": {},
    "plain averaging, learning_rate=0.5": PLAIN | {"learning_rate": 0.5},
    "plain averaging, FINAL_EPOCHS=20": PLAIN | {"FINAL_EPOCHS": 20},
    "FedFast, FINAL_EPOCHS=20": {"FINAL_EPOCHS": 20},
}
# Those of the final numbers are others than those of the choices.
FIRST_SEED = 100


def curve(model, X, rows, negatives, rounds):
    """HR@10 after each of these numbers of rounds, in one fit."""
    model = clone(model).set_params(warm_start=True)
    return [hits(model.set_params(n_rounds=n).fit(X), rows, negatives)[0] for n in rounds]


def _print(label, curves):
    cells = [f"{mean:.3f} ± {spread:.3f}" for mean, spread in zip(*_moments(curves), strict=True)]
    print(f"| {label} | {' | '.join(cells)} |", flush=True)


def _moments(curves):
    return np.mean(curves, axis=0), np.std(curves, axis=0)


def _head(label, rounds):
    print(f"| {label} | " + " | ".join(f"round {n}" for n in rounds) + " |")
    print("|---|" + "---|" * len(rounds))


def quality(options):
    """Each part of FedFast alone and together, on test rows."""
    X, _, test, negatives = leave_one_out(options)
    print(f"popularity: {hits(Popularity().fit(X), test, negatives)[0]:.3f}\n")
    _head("HR@10", options.rounds)
    for label in options.only:
        changed = MODELS[label]
        curves = [
            curve(
                variant(FedFast, **SHARED | changed, random_state=seed),
                X,
                test,
                negatives,
                options.rounds,
            )
            for seed in reported(options.seeds, FIRST_SEED)
        ]
        _print(label, curves)


def choices(options):
    """Neighbours of both methods' settings, on validation rows."""
    X, y, test, _ = leave_one_out(options)
    inner, _, validation = last_but_one(X, y)
    negatives = drawn_negatives(np.concatenate([X, test]), validation, seed=1)
    grid = [
        {"learning_rate": rate, "INIT_STD": std, "local_epochs": epochs}
        for rate in (0.05, 0.1, 0.2, 0.5)
        for std in (0.01, 0.03, 0.1)
        for epochs in (2, 5)
    ]
    for label, base in {"FedFast": {}, "plain averaging": PLAIN}.items():
        _head(label, options.rounds)
        for changed in grid:
            model = variant(FedFast, **SHARED | base | changed, random_state=0)
            _print(changed, [curve(model, inner, validation, negatives, options.rounds)])


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {f.__name__: f for f in (quality, choices)}
    parser = command_line("fedfast", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data-home")
    parser.add_argument("--rounds", nargs="+", type=int, default=[5, 20, 100])
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
