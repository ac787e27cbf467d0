"""Compare ranking metrics with the bare product of the factors: ``python -m benchmarks.metrics``.

Limit BLAS to one thread (OPENBLAS_NUM_THREADS=1) for a fair comparison. All 6,040 users are ranked
over the full catalogue, for the last row of each user and for 80/20 at random. Factors are random,
which does not change the time.

"bare product": the product of the factors in float64, the type of scores. "model's scores":
`score_all`. "reading": checking and encoding the test rows. "all": evaluate_ranking with five
metrics at three cutoffs.

Data: MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import time
from itertools import product
from typing import ClassVar

import numpy as np

from benchmarks._command_line import command_line
from fedrecsk.base import RankingMixin, Recommender
from fedrecsk.datasets import fetch_movielens
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.metrics._held_out import Own, adapt, check_rows, hold_out

METRICS = ("ndcg", "hit_rate", "precision", "recall", "mrr")


class Factors(RankingMixin, Recommender):
    """Random factors of a given size and type."""

    _parameter_constraints: ClassVar[dict] = {}

    def __init__(self, n_factors=20, dtype=np.float64):
        self.n_factors = n_factors
        self.dtype = dtype

    def _fit(self, data, report):
        rng = np.random.default_rng(0)
        return {
            "user_factors_": rng.normal(size=(data.n_users, self.n_factors)).astype(self.dtype),
            "item_factors_": rng.normal(size=(data.n_items, self.n_factors)).astype(self.dtype),
        }

    def _new_user_attributes(self, data):
        return {"user_factors_": np.zeros((data.n_users, self.n_factors), dtype=self.dtype)}


def products(model, users_per_block):
    """The bare product of the factors, in blocks."""
    users = model.user_factors_.astype(np.float64)
    items = np.ascontiguousarray(model.item_factors_.T, dtype=np.float64)
    for start in range(0, model.n_users_, users_per_block):
        users[start : start + users_per_block] @ items


def boards(model, users_per_block):
    """The model's own scores of everything, in blocks."""
    codes = np.arange(model.n_users_)
    for start in range(0, model.n_users_, users_per_block):
        model._model().score_all(codes[start : start + users_per_block])


def read(model, X, y):
    """Check and encode the rows under test."""
    hold_out(adapt(model), *check_rows(X, y))


def seconds(function, *arguments, repeats=7, **options):
    """The least time of several runs, after one that warms up."""
    function(*arguments, **options)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function(*arguments, **options)
        times.append(time.perf_counter() - begin)
    return min(times)


def splits(X, y):
    """Name, training rows and test rows."""
    order = np.random.default_rng(0).permutation(len(y))
    n_test = len(y) // 5
    yield "80/20", order[n_test:], order[:n_test]
    last = len(y) - 1 - np.unique(X[::-1, 0], return_index=True)[1]
    yield "last row of each user", np.setdiff1d(np.arange(len(y)), last), last


def main(argv=None):
    """Print a table of seconds."""
    parser = command_line("metrics", __doc__)
    parser.add_argument("--data-home")
    parser.add_argument("--factors", type=int, nargs="+", default=[20, 64])
    options = parser.parse_args(argv)
    X, y = fetch_movielens("1m", data_home=options.data_home, return_X_y=True)
    print("| factors | test rows | bare product | model's scores | reading | all | all / bare |")
    print("|---|---|---|---|---|---|---|")
    for n_factors, dtype in product(options.factors, (np.float64, np.float32)):
        for name, train, test in splits(X, y):
            model = Factors(n_factors, dtype).fit(X[train], y[train])
            users_per_block = Own.scores_per_batch // model.n_items_
            bare = seconds(products, model, users_per_block)
            scores = seconds(boards, model, users_per_block)
            rows = X[test], y[test]
            reading = seconds(read, model, *rows)
            everything = seconds(evaluate_ranking, model, *rows, metrics=METRICS, k=[5, 10, 20])
            print(
                f"| {n_factors} {dtype.__name__} | {name} | {bare:.3f} | {scores:.3f} "
                f"| {reading:.3f} | {everything:.3f} | {everything / bare:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
