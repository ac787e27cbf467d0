"""Rank for users with one row, a few, all and none: ``python -m benchmarks.few_rows COMMAND``.

A fifth of the users is tested: a model is fitted to all rows of the others. Half of the rows of
each tested user are test rows; the others, all or cut to 1, 3 or 5 at random, are folded in, and
the rest of the catalogue is ranked. `quality` prints NDCG@10 beside popularity, and what it is if
users with few rows are treated like others. `choices` compares values of CAUTION on another fifth,
to which no model is fitted, and never reads a tested user.

Data: MovieLens-100k, MovieLens-1M and Amazon Beauty, in the folder --data-home or FEDRECSK_DATA;
"-thin": 20 random rows of each user.
"""

from __future__ import annotations

import os
import warnings
from copy import deepcopy
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd

from benchmarks._command_line import command_line
from benchmarks._seeds import choosing, reported
from benchmarks.sparse_defaults import new, ranks
from fedrecsk import portable
from fedrecsk.datasets import fetch_movielens
from fedrecsk.metrics import evaluate_ranking

MODELS = ("LocALS", "FCF", "GlobSGD", "LocSGD", "FedSpectral")
DATA = ("100k", "100k-thin", "1m", "1m-thin", "beauty")
CAUTIONS = (0.0, 10.0, 30.0, 100.0)
# Tested users, at most, and rows of a user in thin data.
N_USERS, FEW = 1500, 20
WIDTHS = (1, 3, 5)


def interactions(name, home):
    """Pairs of users and items."""
    if name == "beauty":
        folder = Path(home or os.environ.get("FEDRECSK_DATA", ""))
        return pd.read_csv(folder / "amazon-beauty/interactions.csv.gz").iloc[:, :2].to_numpy(int)
    return fetch_movielens(name, data_home=home, return_X_y=True)[0][:, :2].astype(int)


def parts(name, options, seed, fold):
    """Rows to fit, half of the rows of a fifth of the users, their places, and the other half."""
    name, _, is_thin = name.partition("-")
    X = interactions(name, options.data_home)
    if is_thin:
        X = X[ranks(X, seed + 1000) < FEW]
    users = np.random.default_rng(seed).permutation(np.unique(X[:, 0]))
    folds = np.array_split(users, 5)
    fitted = X[np.isin(X[:, 0], np.concatenate(folds[1 + fold :]))]
    rows = X[np.isin(X[:, 0], folds[fold][:N_USERS]) & np.isin(X[:, 1], fitted[:, 1])]
    place = ranks(rows, seed)
    is_first = place < np.bincount(rows[:, 0])[rows[:, 0]] // 2
    known = np.isin(rows[:, 0], rows[is_first, 0])
    return fitted, rows[is_first], place[is_first], rows[~is_first & known]


def gains(model, first, place, rows):
    """NDCG@10 for each number of rows that is folded in."""
    scores = []
    for n in (*WIDTHS, len(first)):
        model.fold_in(first[place < n], replace=True)
        scores.append(evaluate_ranking(model, rows)["ndcg@10"])
    return scores


def show(label, scores):
    """Print a row: means over seeds."""
    cells = " | ".join(f"{score:.4f}" for score in np.mean(scores, axis=0))
    print(f"| {label} | {cells} |", flush=True)


def head(name):
    """Print the head of a table."""
    print(f"\n| {name} | 1 row | 3 | 5 | all |\n|---|---|---|---|---|", flush=True)


def quality(options):
    """NDCG@10 beside popularity, on test rows."""
    for name in options.data:
        head(name)
        splits = [(s, *parts(name, options, s, 0)) for s in reported(options.seeds)]
        popular = [gains(new("Popularity", s).fit(fitted), *rest) for s, fitted, *rest in splits]
        show("Popularity", popular)
        for label in options.models or MODELS:
            fits = [(new(label, s).fit(fitted), rest) for s, fitted, *rest in splits]
            show(label, [gains(deepcopy(model), *rest) for model, rest in fits])
            with patch("fedrecsk.federated._wmf.short_histories", lambda gram, n: (0 * n, 0 * n)):
                show(f"{label}, as others", [gains(model, *rest) for model, rest in fits])


def choices(options):
    """NDCG@10 of values of CAUTION, on validation rows."""
    for name in options.data:
        head(name)
        splits = [(s, *parts(name, options, s, 1)) for s in choosing(options.seeds)]
        for label in options.models or MODELS:
            fits = [(new(label, s).fit(fitted), rest) for s, fitted, *rest in splits]
            for caution in CAUTIONS:
                with patch.object(portable, "CAUTION", caution):
                    found = [gains(deepcopy(model), *rest) for model, rest in fits]
                show(f"{label}, {caution:g}", found)


def main(argv=None):
    """Print one of the tables."""
    warnings.filterwarnings("ignore", "The model knows 0 of")
    commands = {f.__name__: f for f in (quality, choices)}
    parser = command_line("few_rows", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", nargs="+", default=DATA, choices=DATA)
    parser.add_argument("--data-home")
    parser.add_argument("--models", nargs="+", choices=MODELS, help="models to run (default: all)")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
