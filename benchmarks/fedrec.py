"""Measure FedRec: ``python -m benchmarks.fedrec COMMAND``.

Splits are 80/20 at random, one user per client, as in `benchmarks.rfrec`.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.base import clone

from benchmarks._command_line import command_line
from benchmarks._seeds import reported
from benchmarks._variants import variant
from benchmarks.rfrec import errors, split
from fedrecsk import BiasOnly, Federation, FedRec
from fedrecsk.audit import measure_leak
from fedrecsk.datasets import fetch_movielens
from fedrecsk.simulation.run import watch

PAPER = {
    "n_rounds": 100,
    "client_fraction": 1.0,
    "biases": False,
    "learning_rate_decay": 0.9,
    "reg": 0.001,
    "user_steps": 1,
    "HYBRID_STEPS": 10,
    "INIT_RANGE": 0.005,
}
FIRST_SEED = 10  # Defaults were chosen on rows cut from the training part of split 0.


def quality(options):
    """Test errors of the paper's setting and of the defaults."""
    models = {
        "bias-only": BiasOnly(),
        "paper, no virtual items": variant(FedRec, **PAPER | {"n_virtual": 0}),
        "paper, average, 3": variant(
            FedRec, **PAPER | {"filling": "average", "virtual_items": "redrawn"}
        ),
        "paper, hybrid, 3": variant(FedRec, **PAPER | {"virtual_items": "redrawn"}),
        "paper, hybrid, 3, fixed": variant(FedRec, **PAPER),
        "defaults": FedRec(),
        "defaults, reg=0.015 (better on 1M)": FedRec(reg=0.015),
        "defaults, redrawn": FedRec(virtual_items="redrawn"),
        "defaults, 1": FedRec(n_virtual=1),
        "defaults, no virtual items": FedRec(n_virtual=0),
        "defaults, average, 3": FedRec(filling="average"),
    }
    print("| data | model | MAE | RMSE | +- | CPU s |\n|---|---|---|---|---|---|")
    for name in options.data:
        X, y = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
        for label, model in models.items():
            runs, start = [], time.process_time()
            for seed in reported(options.seeds, FIRST_SEED):
                runs.append(errors(_seeded(model, seed), *split(X, y, seed)))
            seconds = (time.process_time() - start) / options.seeds
            (mae, rmse), spread = np.mean(runs, axis=0), np.std(runs, axis=0)[1]
            print(
                f"| {name} | {label} | {mae:.4f} | {rmse:.4f} | {spread:.4f} | {seconds:.0f} |",
                flush=True,
            )


def stochastic(options):
    """The paper's stochastic order on ML-100k: clients train one after the other."""
    X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    part = split(X, y, FIRST_SEED)
    n_clients = len(np.unique(part[0][:, 0]))
    print("| learning rate | RMSE | CPU s |\n|---|---|---|")
    for rate in (0.8, 0.4, 0.2, 0.1):
        parameters = PAPER | {
            "client_fraction": 1 / n_clients,
            "n_rounds": options.passes * n_clients,
            "learning_rate": rate,
            "federation": Federation(sampling="rotating"),
        }
        start = time.process_time()
        try:
            rmse = f"{errors(_seeded(variant(FedRec, **parameters), FIRST_SEED), *part)[1]:.4f}"
        except ValueError as error:
            rmse = str(error).split(":")[0]
        print(f"| {rate} | {rmse} | {time.process_time() - start:.0f} |", flush=True)


def intersection(options):
    """Items in all of a client's uploads: how many of them are rated, on ML-100k."""
    X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    lengths = (1, 3, 10)
    print("| virtual items | n_virtual | 1 round | 3 rounds | 10 rounds |\n|---|---|---|---|---|")
    for virtual_items in ("redrawn", "fixed"):
        for n_virtual in (1, 3):
            model = FedRec(n_virtual=n_virtual, virtual_items=virtual_items, client_fraction=1.0)
            shares = rated_among_repeated(_seeded(model, FIRST_SEED), X, y, lengths)
            print(
                f"| {virtual_items} | {n_virtual} | "
                + " | ".join(f"{s:.3f}" for s in shares)
                + " |",
                flush=True,
            )


def leak(options):
    """What the values of one plaintext upload reveal, on ML-100k, 200 clients."""
    X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    settings = {
        "average (first rounds)": {},
        "hybrid from the first round": {"hybrid_start": 0},
        "average, redrawn": {"virtual_items": "redrawn"},
        "no biases": {"biases": False},
    }
    names = ("directions", "interactions", "values")
    print("| filling | directions | interactions | values |\n|---|---|---|---|", flush=True)
    for label, setting in settings.items():
        report = measure_leak(_seeded(FedRec(**setting), FIRST_SEED), X, y, max_clients=200)
        cells = " | ".join(f"{getattr(report, name):.3f}" for name in names)
        print(f"| {label} | {cells} |", flush=True)
    print(f"| by chance | {' | '.join(f'{report.chance[name]:.3f}' for name in names)} |")


def rated_among_repeated(model, X, y, lengths):
    """Play a server that keeps the items that are in all plaintext uploads of a client.

    Parameters
    ----------
    model : FedRec, with ``upload="chosen"`` and all clients in every round
    X, y
    lengths : tuple of int
        Numbers of rounds to read.

    Returns
    -------
    list of float
        For each, the share of rated items among those that are left: the precision of the
        guess. All rated items are always left.
    """
    data = model._prepared(X, y)
    kept, shares = {}, []
    for round, (_, _, seen) in enumerate(watch(model, data, max(lengths)), start=1):
        for tile in seen.tiles():
            for place, client in enumerate(tile.clients.tolist()):
                sent = set(tile.upload(place)["gradients"].rows.tolist())
                kept[client] = kept.get(client, sent) & sent
        if round in lengths:
            shares.append(len(data.items) / sum(map(len, kept.values())))
    return shares


def _seeded(model, seed):
    model = clone(model)
    return model.set_params(random_state=seed) if "random_state" in model.get_params() else model


COMMANDS = {one.__name__: one for one in (quality, stochastic, intersection, leak)}


def main(argv=None):
    """Run a command."""
    parser = command_line("fedrec", __doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--data", nargs="+", default=["100k", "1m"], choices=["100k", "1m"])
    parser.add_argument("--data-home", default=None)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=100, help="over the clients; stochastic")
    options = parser.parse_args(argv)
    COMMANDS[options.command](options)


if __name__ == "__main__":
    main()
