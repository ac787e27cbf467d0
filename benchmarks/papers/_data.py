"""The data of the papers' tables, and how they are split."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.papers._rows import NotObtainableError
from fedrecsk.datasets import fetch_filmtrust, fetch_kuairec, fetch_movielens

# A quick run keeps every fifth user of a data set with more than this many rows.
QUICK_ROWS, QUICK_SHARE = 500_000, 5


def load(data, options):
    """(X, y) of a data set that is here, with user and item in X, read once."""
    X, y = load_all(data, options)
    return X[:, :2], y


def load_all(data, options):
    """The same with the column of times, if the data have one.

    Raises
    ------
    FileNotFoundError
        If the data set is not here.
    """
    return _read(data, options.data_home, options.quick)


@cache
def _read(data, data_home, quick):
    where = {"data_home": data_home, "download_if_missing": False, "return_X_y": True}
    if data in ("100k", "1m"):
        X, y = fetch_movielens(data, **where)
    elif data == "KuaiRec":
        X, y = fetch_kuairec(**where)
        X, y = X[y <= 20], y[y <= 20]
    elif data == "FilmTrust":
        X, y = fetch_filmtrust(**where)
    else:
        raise FileNotFoundError(f"{data} has no loader; see docs/datasets.md for a recipe")
    return thinned(X, y) if quick else (X, y)


def thinned(X, y):
    """Every fifth user of a large data set."""
    if len(X) <= QUICK_ROWS:
        return X, y
    kept = np.unique(X[:, 0], return_inverse=True)[1] % QUICK_SHARE == 0
    return X[kept], y[kept]


def leave_one_out_files(options):
    """ML-1M: training rows and ratings, each user's last row, and the 99 given negatives."""
    return _leave_one_out_files(options.data_home, options.quick)


@cache
def _leave_one_out_files(data_home, quick):
    import pandas as pd

    X, y = _read("1m", data_home, quick)
    X = X[:, :2]
    folder = Path(data_home or os.environ["FEDRECSK_DATA"]) / "ml-1m"
    test = pd.read_csv(folder / "leave_one_out_test.csv.gz")[["user", "item"]].to_numpy()
    negatives = pd.read_csv(folder / "leave_one_out_negatives.csv.gz")
    here = np.unique(X[:, 0])
    test = test[np.isin(test[:, 0], here)]
    negatives = negatives[negatives.iloc[:, 0].isin(here)]
    pairs, held_out = (part[:, 0] * 10_000 + part[:, 1] for part in (X, test))
    training = ~np.isin(pairs, held_out)
    return X[training], y[training], test, negatives


def one_row_out(X, y, seed):
    """A random row of each user, and the rest."""
    order = np.random.default_rng(seed).permutation(len(X))
    X, y = X[order], y[order]
    _users, first, sizes = np.unique(X[:, 0], return_index=True, return_counts=True)
    test = np.zeros(len(X), dtype=bool)
    test[first[sizes > 1]] = True
    return X[~test], y[~test], X[test]


def split_per_user(X, y, by_time, seed):
    """80 % of each user's rows, and the last 10 %; those between are for validation.

    Parameters
    ----------
    X : ndarray of shape (n_rows, 2) or (n_rows, 3)
        User, item and, with `by_time`, time.
    by_time : bool
        Whether a user's rows are in order of time, or in random order. Of rows with the same time,
        the one further down is later, as in `LeaveLastOut`.

    Returns
    -------
    X_train, y_train, X_test
    """
    if by_time and X.shape[1] < 3:
        raise NotObtainableError("this copy of the data has no times")
    last = X[:, 2] if by_time else np.random.default_rng(seed).permutation(len(X))
    order = np.lexsort((last, X[:, 0]))
    X, y = X[order, :2], y[order]
    sizes = np.unique(X[:, 0], return_counts=True)[1]
    starts = np.cumsum(sizes) - sizes
    place = (np.arange(len(X)) - np.repeat(starts, sizes)) / np.repeat(sizes, sizes)
    first, last = place < 0.8, place >= 0.9
    return X[first], y[first], X[last]
