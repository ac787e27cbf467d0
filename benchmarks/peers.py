"""Measure what peers' published code is compared with: ``python -m benchmarks.peers ours``.

MovieLens-100k, all ratings positive. The latest row of each user is the test row, ranked among 99
items that the user has no row of; the row before it is left out too, because the peers validate on
it; of rows with the same time, the first in the file is the latest, as in their code, and not the
last as in `LeaveLastOut`. HR@10 and NDCG@10 are means over users, ties in expectation. "leak": as
in the peers' code, no row that is left out is ever a negative in training.

Data: MovieLens-100k, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import time
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
from sklearn.base import clone

from benchmarks._command_line import command_line
from benchmarks._methods import add_method
from benchmarks._seeds import reported
from benchmarks._variants import variant
from benchmarks.lightfr import drawn_negatives, hits
from benchmarks.papers.colr import AUTHORS
from fedrecsk import EASE, CoLR, FedEASE, FedMF, ImplicitALS, LocALS, Popularity
from fedrecsk.datasets import fetch_movielens
from fedrecsk.neural import FedRAP, GPFedRec, PFedRec


class Split(NamedTuple):
    """Rows (user, item, time) for training, those left out, tested ones, and their negatives."""

    train: np.ndarray
    left_out: np.ndarray
    test: np.ndarray
    negatives: np.ndarray


def split(options):
    """Leave the last two rows of each user out."""
    X, _ = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    X = X[np.lexsort((-np.arange(len(X)), X[:, 2], X[:, 0]))].astype(np.int64)
    is_last = np.append(X[1:, 0] != X[:-1, 0], True)
    is_left_out = is_last | np.append(is_last[1:], False)
    return Split(X[~is_left_out], X[is_left_out], X[is_last], drawn_negatives(X, X[is_last]))


def fit_with_leak(model, train, left_out):
    """Fit a neural model that never draws a row left out as a negative, as the peers' code does."""
    rows = np.concatenate([train, left_out])
    is_train = np.arange(len(rows)) < len(train)
    return model.fit(rows, is_train, sample_weight=np.where(is_train, 1.0, 1e-12))


class Row(NamedTuple):
    """A model to measure, on the rows for training or also with the peers' leak."""

    label: str
    model: object
    leaks: tuple[str, ...] = ("no",)


# CoLR's settings, with 60 of the 943 clients in each round.
COHORTS = AUTHORS | {"client_fraction": 60 / 943, "n_rounds": 35}
BOTH = ("yes", "no")
ROWS = [
    Row("popularity", Popularity()),
    Row("EASE", EASE()),
    Row("ImplicitALS, 64 factors", ImplicitALS(64)),
    Row("FedEASE", FedEASE()),
    Row("LocALS, 64 factors", LocALS(64)),
    Row("FedEASE, half-life 5", FedEASE(pair_half_life=5.0, history_half_life=5.0)),
    Row("LocALS, 64 factors, half-life 5", LocALS(64, history_half_life=5.0)),
    Row("FedMF, CoLR's settings", FedMF(64, **COHORTS)),
    Row("CoLR, rank 4, CoLR's settings", variant(CoLR, **COHORTS, rank=4, RANK_EXPONENT=0.5)),
    # The authors' code does not train on the final model, as ours does.
    Row("PFedRec, own items", PFedRec(personal_items=True, n_rounds=29), BOTH),
    Row("PFedRec, own items", PFedRec(personal_items=True, n_rounds=10), BOTH),
    Row("PFedRec", PFedRec(n_rounds=29), BOTH),
    # The authors' weight.
    Row("FedRAP", FedRAP(independence=0.1, n_rounds=4), BOTH),
    Row("FedRAP", FedRAP(independence=0.1, n_rounds=20), BOTH),
    # Like PFedRec, it trains on the final model.
    Row("GPFedRec, own items", GPFedRec(personal_items=True, n_rounds=3), BOTH),
    Row("GPFedRec, own items", GPFedRec(personal_items=True, n_rounds=9), BOTH),
    Row("GPFedRec", GPFedRec(n_rounds=9), BOTH),
]


def ours(options):
    """HR@10 and NDCG@10 of our models, CPU seconds a round, and bytes of one client."""
    import torch

    torch.set_num_threads(1)
    (seed,) = reported(1)
    data = split(options)
    items = np.unique(np.concatenate([data.train, data.left_out])[:, 1])
    print("| model | leak | rounds | HR@10 | NDCG@10 | CPU s a round | MB up | MB down |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for label, model, leaks in ROWS:
        wanted = [one for one in leaks if one in options.leak]
        for leak in wanted if any(word in label for word in options.only) else ():
            add_method(model)
            given = {"random_state": seed, "items": items}
            known = {name: given[name] for name in given.keys() & model.get_params()}
            one, start = clone(model).set_params(**known), time.process_time()
            if leak == "yes":
                fit_with_leak(one, data.train[:, :2], data.left_out[:, :2])
            else:
                one.fit(data.train if "half-life" in label else data.train[:, :2])
            seconds = time.process_time() - start
            judged = SimpleNamespace(predict=partial(_predict, one, data.test[:, 2]))
            quality = hits(judged, data.test[:, :2], data.negatives)
            print(f"| {label} | {leak} | {_cells(one, quality, seconds)} |", flush=True)


def _predict(model, times, pairs):
    """Predict, with the times of the test rows if the model was fitted with times."""
    columns = pairs, np.repeat(times, len(pairs) // len(times))
    return model.predict(np.column_stack(columns[: model.n_features_in_ - 1]))


def _cells(model, quality, seconds):
    """Return the cells of rounds, quality and costs."""
    quality = " | ".join(f"{value:.4f}" for value in quality)
    ledger = getattr(model, "communication_", None)
    if ledger is None:
        return f"- | {quality} | {seconds:.2f} | - | -"
    up, down = (n.mean() / 1e6 for n in (ledger.client_bytes_up, ledger.client_bytes_down))
    seconds /= model.n_rounds_
    return f"{model.n_rounds_} | {quality} | {seconds:.2f} | {up:.2f} | {down:.2f}"


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {"ours": ours}
    parser = command_line("peers", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data-home")
    parser.add_argument("--only", nargs="+", default=[""], help="words of the models to run")
    parser.add_argument(
        "--leak",
        nargs="+",
        choices=["yes", "no"],
        default=["yes", "no"],
        help="whether rows that are left out may be negatives in training (no) or never (yes)",
    )
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
