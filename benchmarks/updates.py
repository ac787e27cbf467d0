"""Measure what an update with new rows is worth: ``python -m benchmarks.updates [METHOD ...]``.

A fifth of the rows, drawn at random, is for testing. A method is fitted to nine tenths of the
others, and then brought up to date with the rest by `partial_fit`; a `fit` to all of them is the
measure. The table has the score of the old, the updated and the new model, and the bytes of update
and new fit, means over --seeds splits. Scores are RMSE for ratings and NDCG@10 of the whole
catalogue for rankings.

With --periods, time decides: a model is fitted to the first half of the rows by date, and the rest
comes in four periods (`RollingOrigin`). Before each, a model stays as it is ("none"), learns what
its users have done since ("fold_in"), is updated ("partial_fit"), or is fitted anew ("fit"). The
table has NDCG@10 of the next period, and megabytes of all clients after the first fit.

With --generated, the rows are generated: 100,000 of 600 users and 9,700 items, a split by seed, and
the last fifth of the training rows by date is new.

With --few, the new rows are the last 36 by date, of two users. The table has the clients that send
in a round, and the megabytes of all clients: of an update, of one of a single round, and of a fit.

Data: MovieLens-100k, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import copy

import numpy as np
from sklearn.base import clone

import fedrecsk
from benchmarks._command_line import command_line
from fedrecsk.datasets import fetch_movielens, make_ratings
from fedrecsk.metrics import make_ranking_scorer
from fedrecsk.model_selection import RollingOrigin, compare

RATINGS = ["RFRec", "FedEB", "ExplicitFCF"]
FEW = ["FedEASE", "FedItemKNN", "LocALS", "FedEB"]
RANKINGS = ["FedEASE", "FedSpectral", "LocALS", "GlobSGD", "FCF", "FedMF", "CoLR", "SCoLR"]


def measured(name, X, y, seed, by_date=False):
    """Return scores of the old, the updated and the new model, and megabytes of the last two.

    With `by_date`, the last fifth of the training rows is new; else a tenth.
    """
    order = np.random.default_rng(seed).permutation(len(X))
    test, train = order[: len(X) // 5], order[len(X) // 5 :]
    old, new = train[len(train) // 10 :], train[: len(train) // 10]
    if by_date:
        train = train[np.argsort(X[train, 2], kind="stable")]
        old, new = np.split(train, [len(train) - len(train) // 5])
    X = X[:, :2]
    method = getattr(fedrecsk, name)(random_state=seed, warm_start=True)

    def fitted(fit, rows):
        return fit(X[rows], y[rows] if name in RATINGS else None)

    def score(model):
        if name in RATINGS:
            return np.sqrt(np.mean((model.predict(X[test]) - y[test]) ** 2))
        return make_ranking_scorer("ndcg", k=10)(model, X[test])

    model = fitted(clone(method).fit, old)
    scores = [score(model)]
    fitted(model.partial_fit, new)
    refitted = fitted(clone(method).fit, train)
    ledgers = [one.communication_ for one in (model, refitted)]
    sizes = [(ledger.bytes_up + ledger.bytes_down) / 1e6 for ledger in ledgers]
    return [*scores, score(model), score(refitted), *sizes]


def periods(names, X):
    """Print NDCG@10 of each period, by how the model has got there."""
    methods = {name: getattr(fedrecsk, name)(random_state=0) for name in names}
    print("| method | update | " + " | ".join(f"period {n}" for n in range(1, 5)) + " | MB |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for update in ("none", "fold_in", "partial_fit", "fit"):
        result = compare(
            methods,
            X,
            cv=RollingOrigin(4),
            update=update,
            scoring="ndcg@10",
            error_score="raise",
            return_estimator=True,
        )
        for name, rows in result.per_fold.groupby("estimator", sort=False):
            n_clients = [len(one.communication_.client_ids) for one in result.estimators[name]]
            each = ((rows["mb_up"] + rows["mb_down"]) * n_clients).to_numpy()
            shown = " | ".join(f"{score:.3f}" for score in rows["ndcg@10"])
            print(f"| {name} | {update} | {shown} | {each[1:].sum():,.0f} |", flush=True)


def few(names, X, y):
    """Print what an update with the last 36 rows sends, and what a fit does."""
    order = np.argsort(X[:, 2], kind="stable")

    def given(name, rows):
        return X[rows, :2], y[rows] if name in RATINGS else None

    print("| method | update | rounds | clients that send | MB up | MB down | final model (MB) |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        method = getattr(fedrecsk, name)(random_state=0, warm_start=True)
        model = clone(method).fit(*given(name, order[:-36]))
        ledgers = {}
        for update, n_rounds in (("partial_fit", None), ("partial_fit, 1 round", 1)):
            # A method of sums has one round anyway.
            if n_rounds is None or model.n_rounds_ > 1:
                updated = copy.deepcopy(model).partial_fit(
                    *given(name, order[-36:]), n_rounds=n_rounds
                )
                ledgers[update] = updated.communication_
        ledgers["fit"] = clone(method).fit(*given(name, order)).communication_
        for update, ledger in ledgers.items():
            rounds = [entry for entry in ledger.entries if entry["phase"] == "round"]
            senders = max(entry["participants"] for entry in rounds)
            final = ledger.entries[-1]["bytes_down"]
            sizes = (f"{size / 1e6:,.1f}" for size in (ledger.bytes_up, ledger.bytes_down, final))
            print(f"| {name} | {update} | {len(rounds)} | {senders} | {' | '.join(sizes)} |")


def main(argv=None):
    """Print a row for each method."""
    parser = command_line("updates", __doc__)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--periods", action="store_true", help="go from period to period")
    parser.add_argument("--few", action="store_true", help="bytes of an update with 36 rows")
    parser.add_argument("--generated", action="store_true", help="generated ratings, by date")
    parser.add_argument("--data-home")
    options = parser.parse_args(argv)
    if not options.generated:
        X, y = fetch_movielens("100k", data_home=options.data_home, return_X_y=True)
    if options.few:
        return few(options.methods or FEW, np.asarray(X), y)
    if options.periods:
        return periods(options.methods or ["FedEASE", "LocALS"], np.asarray(X))
    print("| method | old | updated | new fit | update (MB) | new fit (MB) |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in options.methods or [*RATINGS, *RANKINGS]:
        rows = []
        for seed in range(options.seeds):
            if options.generated:
                X, y = make_ratings(600, 9_700, 100_000, random_state=seed)
            rows.append(measured(name, np.asarray(X), y, seed, options.generated))
        *scores, update, fit = np.mean(rows, axis=0)
        shown = " | ".join(f"{one:.4f}" for one in scores)
        print(f"| {name} | {shown} | {update:,.0f} | {fit:,.0f} |", flush=True)
    return None


if __name__ == "__main__":
    main()
