"""How long it takes by the simulated clock: ``python -m benchmarks.clock hours|cost``.

FedEB with cohorts of 10% (test RMSE) and FedMF (NDCG@10 of the whole catalogue) on a random 80/20
split, with the profile "phones": log-normal speeds of devices and networks, sigma 1.5. A round ends
when all uploads have arrived ("synchronous"), or after 60 seconds ("deadline"). "asynchronous"
rounds have as many uploads as synchronous ones, so that all send as much in as many rounds.

`hours`: the best score on the way; the hours and the MB per client, up and down, until it is within
0.002 RMSE or 0.005 NDCG of the best of synchronous rounds ("never", if it is not); hours and MB per
client of the whole fit. A second table has the scores on the way. `cost`: CPU seconds of 100
rounds, without and with a clock, the least of three fits.

Data: MovieLens-100k or MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.metrics import root_mean_squared_error

from benchmarks._command_line import command_line
from benchmarks._methods import add_method
from benchmarks._seeds import reported
from benchmarks._timing import Stopwatch
from benchmarks.rfrec import split
from fedrecsk import FedEB, Federation, FedMF
from fedrecsk.datasets import fetch_movielens
from fedrecsk.metrics import make_ranking_scorer
from fedrecsk.protocol import Asynchronous, Synchronous

SEED = 300
SCHEDULES = {
    "synchronous": None,
    "deadline": Synchronous(60),
    "asynchronous": Asynchronous(),
}


class Task(NamedTuple):
    """A method, its rounds, and how close to the best score is close enough."""

    model: FedEB | FedMF
    n_rounds: int
    metric: str
    tolerance: float


TASKS = {
    "FedEB": Task(FedEB(client_fraction=0.1), 300, "RMSE", 0.002),
    "FedMF": Task(FedMF(), 200, "NDCG@10", 0.005),
}
NDCG = make_ranking_scorer("ndcg", k=10)


def score(task, model, X, y):
    """Return a score that is better if it is larger."""
    if task.metric == "RMSE":
        return -root_mean_squared_error(y, model.predict(X))
    return NDCG(model, X)


def prepared(task, schedule, y, devices="phones"):
    """Return the model with a clock, and the y that it is fitted to."""
    (seed,) = reported(1, SEED)
    federation = Federation(devices=devices, schedule=schedule)
    model = clone(task.model).set_params(random_state=seed, federation=federation)
    return model, y if task.metric == "RMSE" else None


def curve(task, schedule, parts, n_points):
    """Fit, and return hours and scores on the way, and the model."""
    X, y, X_test, y_test = parts
    model, target = prepared(task, schedule, y)
    model.set_params(warm_start=True)
    found = []
    for n_rounds in np.linspace(task.n_rounds / n_points, task.n_rounds, n_points).astype(int):
        ledger = model.set_params(n_rounds=int(n_rounds)).fit(X, target).communication_
        nbytes = (ledger.client_bytes_up + ledger.client_bytes_down).mean()
        found.append((ledger.hours, score(task, model, X_test, y_test), nbytes / 1e6))
    return np.array(found), model


def reached(found, level):
    """Return the hours and the MB of the first score of a level."""
    good = np.flatnonzero(found[:, 1] >= level)
    return [f"{found[good[0], of]:.2f}" for of in (0, 2)] if len(good) else ["never", "-"]


def hours(options):
    """Hours until a score is good, by when rounds end."""
    X, y = fetch_movielens(options.data, data_home=options.data_home, return_X_y=True)
    parts, curves = split(X, y, SEED), []
    columns = "best score | hours to it | MB to it | hours | MB up | MB down"
    print(f"| method, rounds | metric | {columns} |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in options.only or TASKS:
        task, level = TASKS[name], None
        add_method(task.model)
        for label, schedule in SCHEDULES.items():
            found, model = curve(task, schedule, parts, options.points)
            best, ledger = found[:, 1].max(), model.communication_
            level = best - task.tolerance if level is None else level
            cells = [f"{name}, {label}", task.metric, f"{abs(best):.4f}", *reached(found, level)]
            cells += [f"{ledger.hours:.2f}"]
            sizes = ledger.client_bytes_up, ledger.client_bytes_down
            cells += [f"{one.mean() / 1e6:.2f}" for one in sizes]
            print(f"| {' | '.join(cells)} |", flush=True)
            curves += [(name, label, *row[:2]) for row in found.tolist()]
    print("\n| method | rounds | hours | score |")
    print("|---|---|---|---|")
    for name, label, after, value in curves:
        print(f"| {name} | {label} | {after:.4f} | {abs(value):.4f} |")


def cost(options):
    """CPU seconds of the simulation, without and with a clock."""
    X, y = fetch_movielens(options.data, data_home=options.data_home, return_X_y=True)
    print("| method | no clock | synchronous | asynchronous |")
    print("|---|---|---|---|", flush=True)
    for name in options.only or TASKS:
        add_method(TASKS[name].model)
        settings = (None, None), ("phones", None), ("phones", SCHEDULES["asynchronous"])
        models = [prepared(TASKS[name], one, y, devices) for devices, one in settings]
        seconds = [[] for _ in models]
        for model, target in models:
            model.set_params(n_rounds=2).fit(X, target)  # compiles
        for _ in range(3):
            for (model, target), own in zip(models, seconds, strict=True):
                watch = Stopwatch(time.process_time)
                model.set_params(n_rounds=100).fit(X, target)
                own.append(watch.seconds())
        print(f"| {name} | {' | '.join(f'{min(own):.2f}' for own in seconds)} |", flush=True)


def main(argv=None):
    """Run the benchmark."""
    commands = {f.__name__: f for f in (hours, cost)}
    parser = command_line("clock", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", choices=["100k", "1m"], default="1m")
    parser.add_argument("--data-home")
    parser.add_argument("--only", nargs="+", choices=list(TASKS))
    parser.add_argument("--points", type=int, default=10, help="scores on the way")
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
