"""Measure fits from 100 thousand to 25 million ratings: ``python -m benchmarks.scale COMMAND``.

Each method and size runs in a process of its own: two rounds (epochs, sweeps) on ratings in the
shape of a MovieLens data set, with the method's defaults and two threads; cohorts of 600 clients
take turns. `table` prints the seconds of the last round and, as ``x^``, their growth exponent: the
slope of log seconds over log ratings from a million on. Then, for the largest size: the time of
the rest of the fit, the time of predictions for all users after it (measured on 2,000 users, most
of whom no cohort has reached), the peak memory of the process (with the ratings), and kilobytes
per client per round. `plot` draws the seconds. Run the same command to continue a run that was
stopped (``--results``).

Data: none needed; ratings are generated.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

import fedrecsk
from benchmarks._command_line import command_line
from benchmarks._results import Results
from benchmarks._timing import Stopwatch
from benchmarks.rounds import Clock
from fedrecsk import Federation
from fedrecsk.datasets import make_ratings

# Users and items of MovieLens-100k, 1M, 10M and 25M.
SHAPES = {
    100_000: (943, 1_682),
    1_000_000: (6_040, 3_706),
    10_000_000: (69_878, 10_677),
    25_000_000: (162_541, 59_047),
}
COHORT = 600
# Users whose vectors are computed after the fit to see how long all would take.
N_LATER = 2_000
SETTINGS = ("all clients", f"{COHORT} clients")
METHODS = [name for name in fedrecsk.__all__ if hasattr(getattr(fedrecsk, name), "fit")]
STEPS = ("n_rounds", "n_epochs", "n_samples")


def measure(method, setting, n_ratings, folder):
    """Fit once in this process; a dict of numbers."""
    X, y = _data(n_ratings, folder)
    model = getattr(fedrecsk, method)()
    known = model.get_params()
    chosen = {name: 2 for name in STEPS if name in known}
    chosen |= {"n_burn_in": 1, "random_state": 0, "n_jobs": 2}
    if setting != SETTINGS[0]:
        chosen["client_fraction"] = min(1.0, COHORT / SHAPES[n_ratings][0])
        chosen["federation"] = Federation(sampling="rotating")
    model.set_params(**{name: value for name, value in chosen.items() if name in known})
    # Imports and compiled code are not what grows.
    few = X[:, 0] < np.quantile(np.unique(X[:, 0]), 0.01)
    times = Clock()
    try:
        model.fit(X[few], y[few])
        model.set_callbacks(times)
        whole = Stopwatch()
        model.fit(X, y)
    except ValueError as error:
        return {"refused": str(error)}
    seconds = whole.seconds()
    # The last entry is the end of the fit.
    rounds = np.diff(times.ends[:-1])
    last = float(rounds[-1]) if len(rounds) else seconds
    some = X[np.unique(X[:, 0], return_index=True)[1][:: max(1, SHAPES[n_ratings][0] // N_LATER)]]
    later = Stopwatch()
    model.predict(some)
    return {
        "round": last,
        "rest": seconds - len(times.ends[:-1]) * last,
        "later": later.seconds() * SHAPES[n_ratings][0] / len(some),
        "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        **_kilobytes(getattr(model, "communication_", None)),
    }


def _kilobytes(ledger):
    """Mean kilobytes that a participating client receives and sends in a round."""
    if ledger is None:
        return {}
    last = [entry for entry in ledger.entries if entry["phase"] == "round"][-1]
    n_clients = 1e3 * max(1, last["participants"])
    return {"kb_up": last["bytes_up"] / n_clients, "kb_down": last["bytes_down"] / n_clients}


def _data(n_ratings, folder):
    """Generated ratings of one size, kept in a file."""
    path = Path(folder) / f"ratings_{n_ratings}.npz"
    if not path.exists():
        X, y = make_ratings(*SHAPES[n_ratings], n_ratings, random_state=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, X=X[:, :2], y=y)
    with np.load(path) as stored:
        return stored["X"], stored["y"]


def table(options):
    """Print the table; measure what has not been measured yet."""
    results = Results(options.results, "scale")
    print("| method | clients per round |", end="")
    for size in options.sizes:
        print(f" {size / 1e6:g}M |", end="")
    print(" grows as | rest of the fit (s) | all users later (s) | GiB | kB up | kB down |")
    print("|---" * (len(options.sizes) + 8) + "|", flush=True)
    for method in options.methods:
        for setting in options.settings:
            if setting != SETTINGS[0] and "federation" not in _parameters(method):
                continue
            cells = [_cell(results, method, setting, size, options) for size in options.sizes]
            print(_row(method, setting, cells, options.sizes), flush=True)


def _cell(results, method, setting, n_ratings, options):
    """The numbers of a cell, measured in a new process unless they are known."""
    key, settings = (method, setting, n_ratings), {"shape": list(SHAPES[n_ratings])}
    scores = results.get(key, settings)
    if scores is None:
        _data(n_ratings, options.data)
        arguments = ["measure", method, setting, str(n_ratings), options.data]
        process = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.scale", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        scores = json.loads(process.stdout.splitlines()[-1])
        results.put(key, settings, scores)
    return scores


def _row(method, setting, cells, sizes):
    fitted = [(size, cell) for size, cell in zip(sizes, cells, strict=True) if "round" in cell]
    seconds = [f"{cell['round']:.2g}" if "round" in cell else "refused" for cell in cells]
    if not fitted:
        return f"| {' | '.join([method, setting, *seconds])} |" + " |" * 6
    last = fitted[-1][1]
    kilobytes = [f"{last[k]:.3g}" if k in last else "" for k in ("kb_up", "kb_down")]
    costs = [f"{last['rest']:.1f}", f"{last['later']:.2g}", f"{last['gib']:.1f}", *kilobytes]
    return f"| {' | '.join([method, setting, *seconds, _growth(fitted), *costs])} |"


def _growth(fitted):
    large = [(math.log(size), math.log(cell["round"])) for size, cell in fitted if size >= 10**6]
    return f"x^{np.polyfit(*zip(*large, strict=True), 1)[0]:.2f}" if len(large) > 1 else ""


def plot(options):
    """Draw seconds per round against ratings."""
    import matplotlib.pyplot as plt

    results = Results(options.results, "scale")
    figure, axes = plt.subplots(1, 2, figsize=(10, 5), sharey=True, layout="constrained")
    for ax, setting in zip(axes, SETTINGS, strict=True):
        for method in options.methods:
            cells = [
                (size, results.get((method, setting, size), {"shape": list(SHAPES[size])}))
                for size in options.sizes
            ]
            points = [(size, cell["round"]) for size, cell in cells if cell and "round" in cell]
            if points:
                (line,) = ax.loglog(*zip(*points, strict=True), marker="o", markersize=4)
                ax.annotate(
                    method, points[-1], xytext=(6, -3), textcoords="offset points",
                    color=line.get_color(), fontsize=8,
                )  # fmt: skip
        ax.set(xlabel="ratings", title=f"{setting} per round")
        ax.set_xlim(right=max(options.sizes) * 4)
    axes[0].set_ylabel("seconds per round, two threads")
    figure.savefig(options.output)


def _parameters(method):
    return getattr(fedrecsk, method)().get_params()


def main(argv=None):
    """Measure, print or draw."""
    parser = command_line("scale", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (table, plot):
        one = commands.add_parser(command.__name__, description=command.__doc__)
        one.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
        one.add_argument("--settings", nargs="+", choices=SETTINGS, default=SETTINGS)
        one.add_argument("--sizes", nargs="+", type=int, choices=SHAPES, default=list(SHAPES))
        one.add_argument("--results", default="results")
        one.add_argument("--data", default="results", help="where generated ratings are kept")
    # Of the last command alone.
    one.add_argument("--output", default="results/scale.svg")
    child = commands.add_parser("measure", description=measure.__doc__)
    for name, kind in (("method", str), ("setting", str), ("n_ratings", int), ("folder", str)):
        child.add_argument(name, type=kind)
    options = parser.parse_args(argv)
    if options.command == "measure":
        numbers = measure(options.method, options.setting, options.n_ratings, options.folder)
        print(json.dumps(numbers))
    else:
        {"table": table, "plot": plot}[options.command](options)


if __name__ == "__main__":
    main()
