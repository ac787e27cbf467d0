"""Measure models that know features of items: ``python -m benchmarks.content COMMAND``.

A random tenth of the items has no training rows (`ColdItemHoldout`), and so has a tenth of the rows
of the other items. Features are the genres, periods of five years and the year of a film.

`ratings`: RMSE on rows of new items and of known ones, and the AUC of new ones: the share of pairs
of a liked (4 stars or more) and another test row of a user that are in the right order, over all
pairs of the same user. `rankings`: all rows are likes; the new items are ranked for each user with
likes among them, and so are the known ones that the user has no training row of: NDCG@10 and AUC,
means over users. `picture`: RMSE by the number of training rows of an item, with and without
features. `few`: the same for LocALS's rankings. `users`: a tenth of the users has no rows in fit.
Means over seeds.

Data: MovieLens-100k and MovieLens-1M with their films, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.metrics import root_mean_squared_error

from benchmarks._command_line import command_line
from benchmarks._seeds import choosing, reported
from fedrecsk import (
    DDL,
    EASE,
    FCF,
    BayesianSVDpp,
    BiasOnly,
    FedEASE,
    FedEB,
    ImplicitALS,
    LocALS,
    PrivFedEB,
    RFRec,
    SVDpp,
)
from fedrecsk.datasets import fetch_movielens
from fedrecsk.model_selection import ColdItemHoldout, UserHoldout

RATINGS = {
    "biases": BiasOnly(),
    "DDL": DDL(content_weight=300.0),
    "RFRec": RFRec(),
    "PrivFedEB, no noise": PrivFedEB(),
    "SVDpp": SVDpp(),
    "FedEB": FedEB(),
    "BayesianSVDpp": BayesianSVDpp(),
}
RANKINGS = {
    "EASE": EASE(),
    "FedEASE": FedEASE(),
    "FCF": FCF(64),
    "ImplicitALS": ImplicitALS(),
    "LocALS": LocALS(64),
}
LIKED = 4.0
# Numbers of training rows at which items are divided in the picture.
BINS = (1, 3, 6, 11, 21, 51, 101, np.inf)


def parts(X, seed):
    """Row numbers of training, of new items, and of known ones that are tested."""
    rest, cold = next(ColdItemHoldout(0.1, random_state=seed).split(X))
    train, known = next(UserHoldout(0.1, random_state=seed).split(X[rest]))
    return rest[train], cold, rest[known]


def fitted(model, seed, X, y, features, *, knows):
    """A model fitted to these rows; with features of the items on offer, if it `knows` them."""
    model = clone(model)
    if "random_state" in model.get_params():
        model.set_params(random_state=seed)
    items = np.unique(X[:, 1])
    if not knows:
        return model.fit(X, y)
    known = features.loc[items]
    new = features.drop(items)
    if isinstance(model, DDL):
        low, high = features.min(), features.max()
        known, new = (known - low) / (high - low), (new - low) / (high - low)
    return model.set_params(item_features=known).fit(X, y).add_items(new)


def auc(scores, liked):
    """Share of pairs of a liked item and another that are in the right order, and their number."""
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    _, place = np.unique(scores, return_inverse=True)
    ranks[order] = np.arange(len(scores))
    ranks = np.bincount(place, ranks)[place] / np.bincount(place)[place]
    n, m = liked.sum(), (~liked).sum()
    return (ranks[liked].sum() - n * (n - 1) / 2) / max(n * m, 1), n * m


def ratings(options):
    """RMSE of new and of known items, and the order of new ones."""
    print("| data | model | features | RMSE, new | AUC, new | RMSE, known |")
    print("|---|---|---|---|---|---|")
    for name in options.data:
        X, y, features = data(name, options)
        for label, model in chosen(RATINGS, options):
            for knows in (False, True):
                if knows and "item_features" not in model.get_params():
                    continue
                rows = []
                for seed in reported(options.seeds):
                    train, cold, known = parts(X, seed)
                    one = fitted(model, seed, X[train], y[train], features, knows=knows)
                    predicted = one.predict(X[cold])
                    order = np.argsort(X[cold, 0], kind="stable")
                    cuts = np.flatnonzero(np.diff(X[cold, 0][order])) + 1
                    both = predicted[order], y[cold][order] >= LIKED
                    found = [
                        auc(*own) for own in zip(*(np.split(a, cuts) for a in both), strict=True)
                    ]
                    error = root_mean_squared_error
                    rows.append(
                        (
                            error(y[cold], predicted),
                            np.average([a for a, _ in found], weights=[n for _, n in found]),
                            error(y[known], one.predict(X[known])),
                        )
                    )
                _row(name, label, knows, rows)


def rankings(options):
    """NDCG@10 and AUC of new items, and NDCG@10 of known ones."""
    print("| data | model | features | NDCG@10, new | AUC, new | NDCG@10, known |")
    print("|---|---|---|---|---|---|")
    for name in options.data:
        X, _, features = data(name, options)
        for label, model in chosen(RANKINGS, options):
            for knows in (False, True):
                rows = []
                for seed in reported(options.seeds):
                    train, cold, known = parts(X, seed)
                    one = fitted(model, seed, X[train], None, features, knows=knows)
                    ndcg, order = lists(one, X[cold], np.unique(X[cold, 1]), X[train][:0])
                    old, _ = lists(one, X[known], np.unique(X[train, 1]), X[train])
                    rows.append((ndcg, order, old))
                _row(name, label, knows, rows)


def lists(model, test, items, seen):
    """Mean NDCG@10 and AUC over users of the test rows, among these items without those seen."""
    users = np.unique(test[:, 0])
    shape = len(users), len(items)
    pairs = np.column_stack([np.repeat(users, shape[1]), np.tile(items, shape[0])])
    scores, liked = model.predict(pairs).reshape(shape), np.zeros(shape, dtype=bool)
    liked[np.searchsorted(users, test[:, 0]), np.searchsorted(items, test[:, 1])] = True
    hidden = np.zeros(shape, dtype=bool)
    seen = seen[np.isin(seen[:, 0], users)]
    hidden[np.searchsorted(users, seen[:, 0]), np.searchsorted(items, seen[:, 1])] = True
    gains, found = 1 / np.log2(np.arange(2, 12)), []
    ties = np.random.default_rng(0).permutation(len(items))
    for own, mine, out in zip(scores, liked, hidden, strict=True):
        kept = ties[~out[ties]]
        best = mine[kept[np.argsort(-own[kept], kind="stable")[:10]]]
        ideal = gains[: min(10, mine.sum())].sum()
        found.append((gains[: len(best)] @ best / ideal, auc(own[kept], mine[kept])[0]))
    return np.mean(found, axis=0)


def picture(options):
    """RMSE by the number of training rows of an item, new ones first."""
    heads = _heads()
    print(f"| data | model | features | 0 | {' | '.join(heads)} |")
    print("|---|---|---|---|" + "---|" * len(heads))
    for name in options.data:
        X, y, features = data(name, options)
        for label, model in chosen({"FedEB": FedEB()}, options):
            for knows in (False, True):
                squares, sizes = np.zeros((2, len(BINS)))
                for seed in reported(options.seeds):
                    train, cold, known = parts(X, seed)
                    one = fitted(model, seed, X[train], y[train], features, knows=knows)
                    test = np.concatenate([cold, known])
                    items, n_rows = np.unique(X[train, 1], return_counts=True)
                    place = np.minimum(np.searchsorted(items, X[test, 1]), len(items) - 1)
                    counts = np.where(items[place] == X[test, 1], n_rows[place], 0)
                    which = np.searchsorted(BINS, counts, side="right")
                    errors = (one.predict(X[test]) - y[test]) ** 2
                    squares += np.bincount(which, errors, len(BINS))
                    sizes += np.bincount(which, minlength=len(BINS))
                _row(name, label, knows, [np.sqrt(squares / sizes)])


def _heads():
    """Names of the bins but for the first, of new items."""
    heads = [f"{low} to {high - 1:g}" for low, high in itertools.pairwise(BINS)]
    return [*heads[:-1], f"{BINS[-2]} or more"]


def few(options):
    """NDCG@10 of LocALS, and AUC among items by their number of training rows, new ones first.

    AUC is the share of all pairs of a test row's item and another of the same bin that are in the
    right order. The splits are for choices.
    """
    heads = _heads()
    print(f"| data | features | NDCG@10 | 0 | {' | '.join(heads)} |")
    print("|---|---|---|---|" + "---|" * len(heads))
    for name in options.data:
        X, _, features = data(name, options)
        items = np.unique(X[:, 1])
        given = features.loc[items].to_numpy(dtype=float)
        for knows in (False, True):
            rows = []
            for seed in choosing(options.seeds):
                train, test = next(UserHoldout(0.2, random_state=seed).split(X))
                model = LocALS(64, random_state=0, items=items)
                model.set_params(item_features=given if knows else None).fit(X[train])
                n_rows = np.bincount(np.searchsorted(items, X[train, 1]), minlength=len(items))
                which = np.searchsorted(BINS, n_rows, side="right")
                users, inside = np.unique(X[test, 0]), np.isin(X[train, 0], np.unique(X[test, 0]))
                seen, liked = np.zeros((2, len(users), len(items)), dtype=bool)
                for board, own in ((seen, X[train][inside]), (liked, X[test])):
                    board[np.searchsorted(users, own[:, 0]), np.searchsorted(items, own[:, 1])] = 1
                pairs = np.column_stack([np.repeat(users, len(items)), np.tile(items, len(users))])
                scores, found = model.predict(pairs).reshape(liked.shape), []
                for one in range(len(BINS)):
                    kept = (which == one) & ~seen
                    each = zip(scores, liked, kept, strict=True)
                    found.append([auc(s[k], t[k]) for s, t, k in each])
                order = [np.average([a for a, _ in f], weights=[n for _, n in f]) for f in found]
                rows.append([lists(model, X[test], items, X[train])[0], *order])
            cells = " | ".join(f"{mean:.4f}" for mean in np.mean(rows, axis=0))
            print(f"| {name} | {'yes' if knows else 'no'} | {cells} |", flush=True)


def users(options):
    """Scores of cold users by their number of rows, with and without features of users.

    RMSE of FedEB, and NDCG@10 of LocALS, for which all rows are likes. The last column is of other
    users, a tenth of whose rows is for testing. The splits are for choices.
    """
    print("| data | | features of users | 0 rows | 1 row | 3 rows | 5 rows | other users |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.data:
        fetched = fetch_movielens(name, features=True, data_home=options.data_home)
        X, y, about = fetched.data[:, :2], fetched.target, fetched.users
        features = pd.get_dummies(about[["gender", "occupation"]].astype(str)).astype(float)
        features = features.join(pd.get_dummies(about["age"] // 10, prefix="age").astype(float))
        for model, knows in itertools.product((FedEB(), LocALS()), (False, True)):
            model.set_params(user_features=features if knows else None)
            scores = [_cold_scores(model, X, y, seed) for seed in choosing(options.seeds)]
            _row(name, type(model).__name__, knows, scores)


def _cold_scores(model, X, y, seed):
    """Scores of cold users after their first five rows, given 0, 1, 3 or 5; and of other users."""
    rng, ids = np.random.default_rng(seed), np.unique(X[:, 0])
    cold = rng.permutation(ids)[: len(ids) // 10]
    is_cold, test = np.isin(X[:, 0], cold), rng.random(len(y)) < 0.1
    order = rng.permutation(len(y))
    number = np.empty(len(y), dtype=int)
    number[order] = pd.Series(X[order, 0]).groupby(X[order, 0]).cumcount()
    train, others = ~is_cold & ~test, ~is_cold & test
    model = clone(model).set_params(random_state=seed)
    rates = model.__sklearn_tags__().target_tags.required
    y = y if rates else np.ones(len(X))
    model.fit(X[train], y[train])

    def score(model, test, seen):
        if rates:
            return root_mean_squared_error(y[test], model.predict(X[test]))
        return lists(model, X[test], model.item_ids_, X[seen])[0]

    known = np.isin(X[:, 1], model.item_ids_)
    later, first, scores = is_cold & (number >= 5) & known, is_cold & (number < 5) & known, []
    for n in (0, 1, 3, 5):
        served, few = copy.copy(model), is_cold & (number < n)
        if n:
            served.fold_in(X[few], y[few])
        elif model.user_features is not None:
            served.add_users(model.user_features.loc[cold])
        scores.append(score(served, later, first))
    return [*scores, score(model, others & known, train)]


def data(name, options):
    """Rows of users and items, ratings, and the films' features."""
    fetched = fetch_movielens(name, features=True, data_home=options.data_home)
    return fetched.data[:, :2], fetched.target, fetched.item_features


def chosen(models, options):
    """Names and models that are asked for."""
    return [(name, one) for name, one in models.items() if not options.only or name in options.only]


def _row(name, label, knows, scores):
    cells = " | ".join(f"{mean:.4f}" for mean in np.mean(scores, axis=0))
    print(f"| {name} | {label} | {'yes' if knows else 'no'} | {cells} |", flush=True)


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {f.__name__: f for f in (ratings, rankings, picture, few, users)}
    parser = command_line("content", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", nargs="+", default=["100k", "1m"], choices=["100k", "1m"])
    parser.add_argument("--data-home")
    parser.add_argument("--only", nargs="+", default=[], choices=[*RATINGS, *RANKINGS])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
