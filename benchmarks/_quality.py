"""Tables of quality that the benchmarks of NCF and of federated neural methods share.

Lists: all ratings are positives, and the last row of each user is ranked among 99 items that its
user has not rated; HR@10 and NDCG@10 are means over users, ties in expectation. MovieLens-1M has
the test rows and negatives of He et al. (2017); in MovieLens-100k the last row is that of
`LeaveLastOut`, and negatives are drawn by a seed. Ratings: RMSE of random 80/20 splits.

A function here takes the models (a dict from label to estimator), the options of the command line,
and `fresh(model, seed, options)`, which copies a model for one fit.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks._seeds import choosing, reported, untested
from benchmarks.centralized import load, rmse
from benchmarks.centralized import split as rating_split
from benchmarks.lightfr import drawn_negatives, hits, last_but_one, leave_one_out
from fedrecsk import Popularity
from fedrecsk.datasets import fetch_movielens
from fedrecsk.model_selection import LeaveLastOut


def split(name, options):
    """Training rows, test rows and their negatives."""
    if name == "100k":
        return _latest(options)
    X, _, test, negatives = leave_one_out(options)
    return X, test, negatives


def _latest(options):
    """ML-100k: training rows, the latest row of each user, and 99 negatives of each."""
    X, _ = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    X = X[:, :3].astype(np.int64)
    train, test = LeaveLastOut(ties="row_order").train_test_split(X)
    return train[:, :2], test[:, :2], drawn_negatives(X, test)


def validation(name, options):
    """Training rows without one random row of each user, these rows, and their negatives."""
    X, _, _ = split(name, options)
    seed = choosing(1)[0]
    inner, _, rows = last_but_one(X, X[:, 0], seed)
    return inner, rows, drawn_negatives(X, rows, seed)


def lists(models, options, fresh):
    """HR@10 and NDCG@10 on test rows: mean and standard deviation over seeds of the fit."""
    print("| data | model | HR@10 | NDCG@10 | CPU s |\n|---|---|---|---|---|", flush=True)
    for name in options.data:
        X, test, negatives = split(name, options)
        popular = hits(Popularity().fit(X), test, negatives)
        print(f"| {name} | popularity | {popular[0]:.4f} | {popular[1]:.4f} | |", flush=True)
        for label, model in models.items():
            start, scores = time.process_time(), []
            for seed in reported(options.seeds):
                scores.append(hits(fresh(model, seed, options).fit(X), test, negatives))
            row(name, label, scores, start)


def list_choices(models, choices, options, fresh):
    """HR@10 and NDCG@10 of neighbours of the settings, on rows cut from the training rows."""
    seed = choosing(1)[0]
    print("| validation rows of | model | HR@10 | NDCG@10 | CPU s |\n|---|---|---|---|---|")
    for name in options.data:
        X, rows, negatives = validation(name, options)
        for label, model in models.items():
            for changed in choices[label]:
                start = time.process_time()
                one = fresh(model, seed, options).set_params(**changed).fit(X)
                row(name, f"{label} {changed or 'as it is'}", [hits(one, rows, negatives)], start)


def ratings(models, options, fresh):
    """RMSE on random fifths of the ratings: mean and standard deviation over splits."""
    print("| data | model | RMSE |\n|---|---|---|", flush=True)
    for name in options.data:
        X, y = load(name, options)
        for label, model in models.items():
            errors = [
                rmse(fresh(model, seed, options), *rating_split(X, y, seed))
                for seed in reported(options.seeds)
            ]
            print(
                f"| {name} | {label} | {np.mean(errors):.4f} ± {np.std(errors):.4f} |", flush=True
            )


def rating_choices(models, choices, options, fresh):
    """RMSE of neighbours of the settings, on rows that `ratings` tests nowhere."""
    seed = choosing(1)[0]
    print("| validation rows of | model | RMSE |\n|---|---|---|", flush=True)
    for name in options.data:
        X, y = load(name, options)
        tests = [rating_split(X, y, one)[2] for one in reported(options.seeds)]
        kept = untested(X, tests)
        part = rating_split(X[kept], y[kept], seed)
        for label, model in models.items():
            for changed in choices:
                error = rmse(fresh(model, seed, options).set_params(**changed), *part)
                print(f"| {name} | {label} {changed or 'as it is'} | {error:.4f} |", flush=True)


def row(name, label, scores, start):
    """Print a row: mean and standard deviation of HR and NDCG, and CPU seconds of a fit."""
    taken = (time.process_time() - start) / len(scores)
    (hr, ndcg), spread = np.mean(scores, axis=0), np.std(scores, axis=0)
    cells = f"{hr:.4f} ± {spread[0]:.4f} | {ndcg:.4f} ± {spread[1]:.4f} | {taken:.0f}"
    print(f"| {name} | {label} | {cells} |", flush=True)
