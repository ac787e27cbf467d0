"""Measure SemiDFEGL: ``python -m benchmarks.semidfegl quality|choices|parts``.

Ratings, one user per client. `quality` splits 80/20 at random, as
:mod:`benchmarks.rfrec` does. `choices` and `parts` measure on validation rows, which are in no
test part of the seeds 0 to 3 and 300.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import numpy as np
from sklearn.base import clone

from benchmarks._command_line import command_line
from benchmarks._seeds import choosing, reported
from benchmarks._variants import variant
from benchmarks.rfrec import errors, split, validation
from fedrecsk import BiasOnly, ExplicitFCF, SemiDFEGL
from fedrecsk.datasets import fetch_movielens

# Liu et al., CIKM 2024, table 2.
PAPER = {"100k": (0.7583, 0.9645), "1m": (0.7130, 0.8937)}
TESTED = (0, 1, 2, 3, 300)
# Each alone, around the defaults.
GRID = {
    "n_layers": (2, 3),
    "n_factors": (10, 40),
    "n_groups": (3, 30),
    "n_common": (5, 80),
    "FUZZINESS": (1.05, 2.0),
    "CLUSTER_EVERY": (3, 30),
    "n_rounds": (75, 100, 300),
    "reg_user": (0.65, 2.6),
    "reg_item": (0.65, 2.6),
    "reg_bias": (1.5, 6.0),
    "REG_POWER": (0.25, 0.75),
    "learning_rate": (0.01, 0.04),
    "user_learning_rate": (0.01, 0.04),
    "INIT_STD": (0.03, 0.3),
}
PARTS = {
    "SemiDFEGL": {},
    "... isolated ego graphs (n_common=0)": {"n_common": 0},
    "... one group": {"n_groups": 1},
    "... without biases": {"biases": False},
}


def _data(name, options):
    X, y = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
    return X[:, :2], y


def quality(options):
    """Beside the row of RFRec's table 2, on test rows, with the bytes of a client."""
    print("| data | model | MAE | RMSE | +- | paper | MB up, down, to other devices |")
    print("|---|---|---|---|---|---|---|")
    models = {
        "SemiDFEGL": SemiDFEGL(),
        "isolated ego graphs": SemiDFEGL(n_common=0),
        "ExplicitFCF": ExplicitFCF(),
        "biases alone": BiasOnly(),
    }
    for name in options.data:
        X, y = _data(name, options)
        for label in options.only or models:
            runs = []
            for seed in reported(options.seeds):
                model = clone(models[label])
                if "random_state" in model.get_params():
                    model.set_params(random_state=seed)
                runs.append(errors(model, *split(X, y, seed)))
            mae, rmse = np.mean(runs, axis=0)
            paper = " / ".join(f"{v:.4f}" for v in PAPER[name]) if label == "SemiDFEGL" else ""
            print(
                f"| {name} | {label} | {mae:.4f} | {rmse:.4f} | {np.std(runs, axis=0)[1]:.4f} "
                f"| {paper} | {_megabytes(model)} |",
                flush=True,
            )


def _megabytes(model):
    if not hasattr(model, "communication_"):
        return ""
    ledger = model.communication_
    totals = ledger.bytes_up, ledger.bytes_down, ledger.bytes_device_to_device
    return ", ".join(f"{total / len(ledger.client_ids) / 1e6:.3g}" for total in totals)


def _on_validation_rows(changed, options):
    cells = []
    for name in options.data:
        X, y = _data(name, options)
        runs = [
            errors(
                variant(SemiDFEGL, random_state=seed, **changed), *validation(X, y, seed, TESTED)
            )[1]
            for seed in choosing(options.seeds)
        ]
        cells.append(f"{np.mean(runs):.4f}")
    return cells


def choices(options):
    """RMSE of neighbours of the defaults on validation rows."""
    rows = [{}, *({name: value} for name in options.only or GRID for value in GRID[name])]
    print(f"| changed | {' | '.join(options.data)} |\n|---|" + "---|" * len(options.data))
    for changed in rows:
        cells = " | ".join(_on_validation_rows(changed, options))
        print(f"| {changed or 'defaults'} | {cells} |", flush=True)


def parts(options):
    """RMSE without one part after the other, on validation rows."""
    print(f"| model | {' | '.join(options.data)} |\n|---|" + "---|" * len(options.data))
    for label, changed in PARTS.items():
        print(f"| {label} | {' | '.join(_on_validation_rows(changed, options))} |", flush=True)


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {f.__name__: f for f in (quality, choices, parts)}
    parser = command_line("semidfegl", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", nargs="+", default=list(PAPER), choices=list(PAPER))
    parser.add_argument("--data-home")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
