"""Measure DCF and DDL: ``python -m benchmarks.ddl ratings|rankings|cold|choices``.

`ratings`: RMSE on 80/20 splits. `rankings`: MovieLens-1M, each user's last row among the 99 given
negatives, HR@10 and NDCG@10, ties in expectation; models are fitted to ratings, or to positives
(y = 1) and as many unrated items (y = 0), drawn by the seed. `cold`: RMSE on all rows of a tenth of
the items. Means and standard deviations over seeds.

DDL's features are the `genres` of an item, or its `audience`: which of the 500 users with the most
training rows have rated it.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA. `rankings` also
needs the leave-one-out files of MovieLens-1M of He et al. (2017) in this folder.
"""

from __future__ import annotations

import numpy as np
from sklearn.base import clone
from sklearn.metrics import root_mean_squared_error

from benchmarks._command_line import command_line
from benchmarks._seeds import choosing, reported, untested
from benchmarks.lightfr import drawn_negatives, hits, last_but_one, leave_one_out
from benchmarks.rfrec import split
from fedrecsk import DCF, DDL, PMF, BiasOnly, Popularity
from fedrecsk.datasets import fetch_movielens

N_AUDIENCE = 500
# Chosen on validation rows (choices): on which scale 1 and 0 are, and how features weigh.
RANKING = {"rating_scale": (-0.5, 1.5), "init": "random"}
CONTENT = {"content_weight": 300.0}
STARTS = ({"init": "relaxed"}, {"init": "random"})
MODELS = {
    "DCF": DCF(),
    "DCF, 30 bits": DCF(30),
    "DDL": DDL(),
    "DDL, features weighted": DDL(**CONTENT),
}


# ---------------------------------------------------------------------------- features


def genres(name, items, data_home=None):
    """A row of 0 and 1 for each item."""
    films = fetch_movielens(name, features=True, data_home=data_home).item_features
    years = [one for one in films if one == "year" or one.startswith("from_")]
    return films.drop(columns=years).reindex(items).fillna(0).to_numpy(dtype=float)


def audience(X, items):
    """Whether each item has a row of each of the users with the most rows."""
    users, counts = np.unique(X[:, 0], return_counts=True)
    chosen = np.sort(users[np.argsort(-counts, kind="stable")[:N_AUDIENCE]])
    rows = X[np.isin(X[:, 0], chosen)]
    features = np.zeros((len(items), len(chosen)))
    features[np.searchsorted(items, rows[:, 1]), np.searchsorted(chosen, rows[:, 0])] = 1
    return features


def contents(name, X, items, options):
    """The features, by name."""
    return {"genres": genres(name, items, options.data_home), "audience": audience(X, items)}


def with_negatives(X, seed):
    """Positives as 1, and as 0 an item drawn for each, where its user has no row of it."""
    items, codes = np.unique(X[:, 1], return_inverse=True)
    owned = np.unique(X[:, 0].astype(np.int64) * len(items) + codes)
    users, drawn = (
        X[:, 0].astype(np.int64),
        np.random.default_rng(seed).integers(0, len(items), len(X)),
    )
    pairs = np.setdiff1d(users * len(items) + drawn, owned)
    negatives = np.column_stack([pairs // len(items), items[pairs % len(items)]])
    return np.concatenate([X, negatives]), np.repeat([1.0, 0.0], [len(X), len(negatives)])


# ---------------------------------------------------------------------------- commands


def labelled(name, X, items, options):
    """Label and estimator of each row of a table."""
    for label, model in MODELS.items():
        if options.only and label not in options.only:
            continue
        if not isinstance(model, DDL):
            yield label, clone(model).set_params(items=items)
            continue
        for kind, rows in contents(name, X, items, options).items():
            settings = {"items": items, "item_features": rows}
            yield f"{label}, {kind}", clone(model).set_params(**settings)


def ratings(options):
    """RMSE on test rows."""
    print("| data | model | RMSE |\n|---|---|---|")
    for name in options.data:
        X, y = _ratings(name, options)
        items, errors = np.unique(X[:, 1]), {}
        for seed in reported(options.seeds):
            X_train, y_train, X_test, y_test = split(X, y, seed)
            models = labelled(name, X_train, items, options)
            for label, model in (("bias-only", BiasOnly()), ("PMF", PMF()), *models):
                predicted = _seeded(model, seed).fit(X_train, y_train).predict(X_test)
                errors.setdefault(label, []).append(root_mean_squared_error(y_test, predicted))
        for label, found in errors.items():
            print(f"| {name} | {label} | {np.mean(found):.4f} ± {np.std(found):.4f} |", flush=True)


def rankings(options):
    """HR@10 and NDCG@10 of the last row of each user of MovieLens-1M."""
    X, y, test, negatives = leave_one_out(options)
    items = np.unique(np.concatenate([X[:, 1], test[:, 1], negatives.ravel()]))
    print("| fitted to | model | HR@10 | NDCG@10 |\n|---|---|---|---|", flush=True)
    _row("", "popularity", [hits(Popularity().fit(X), test, negatives)])
    for what in ("ratings", "positives and negatives"):
        for label, model in labelled("1m", X, items, options):
            scores = []
            for seed in reported(options.seeds):
                rows = X, y
                if what != "ratings":
                    rows, model = with_negatives(X, seed), model.set_params(**RANKING)
                scores.append(hits(_seeded(model, seed).fit(*rows), test, negatives))
            _row(what, label, scores)


def cold(options):
    """RMSE on the rows of a tenth of the items, which have no training rows."""
    print("| data | model | RMSE on new items |\n|---|---|---|")
    for name in options.data:
        X, y = _ratings(name, options)
        items, errors = np.unique(X[:, 1]), {}
        for seed in reported(options.seeds):
            new = np.random.default_rng(seed).permutation(items)[: len(items) // 10]
            held_out = np.isin(X[:, 1], new)
            for label, model in labelled(name, X[~held_out], items, options):
                if "audience" in label:
                    # New items have none.
                    continue
                model = _seeded(model, seed).fit(X[~held_out], y[~held_out])
                predicted = model.predict(X[held_out])
                errors.setdefault(label, []).append(root_mean_squared_error(y[held_out], predicted))
        for label, found in errors.items():
            print(f"| {name} | {label} | {np.mean(found):.4f} ± {np.std(found):.4f} |", flush=True)


def choices(options):
    """What was chosen, on validation rows that are in no test part."""
    grid = [
        *({"n_bits": bits} for bits in (30, 64, 128)),
        {"init": "random"},
        *({"reg": reg} for reg in (0.03, 0.3, 1.0)),
        *({"balance_user": w, "balance_item": w} for w in (0.0, 1.0, 10.0, 100.0)),
    ]
    weights = [{"content_weight": w} for w in (1e-3, 10.0, 100.0, 300.0, 1000.0)]
    print("| data | setting | RMSE |\n|---|---|---|")
    for name in options.data:
        X, y = _ratings(name, options)
        items = np.unique(X[:, 1])
        tested = [split(X, y, seed)[2] for seed in reported(3)]
        errors = {}
        for seed in choosing(options.seeds):
            X_train, y_train, rows, target = split(X, y, seed)
            kept = untested(rows, tested)
            features = contents(name, X_train, items, options)
            models = [(f"DCF {one}", DCF(items=items, **one)) for one in grid]
            for kind, values in features.items():
                for one in weights:
                    model = DDL(items=items, item_features=values, **one)
                    models.append((f"DDL {one}, {kind}", model))
            for label, model in models:
                predicted = _seeded(model, seed).fit(X_train, y_train).predict(rows[kept])
                error = root_mean_squared_error(target[kept], predicted)
                errors.setdefault(label, []).append(error)
        for label, found in errors.items():
            print(f"| {name} | {label} | {np.mean(found):.4f} |", flush=True)


def ranking_choices(options):
    """The same for lists, on a random row of each user of the leave-one-out training part."""
    X, y, test, _ = leave_one_out(options)
    items = np.unique(np.concatenate([X[:, 1], test[:, 1]]))
    inner, inner_y, validation = last_but_one(X, y, seed=choosing(1)[0])
    negatives = drawn_negatives(np.concatenate([X, test]), validation, seed=1)
    everything, labels = with_negatives(inner, choosing(1)[0])
    features = contents("1m", inner, items, options)
    parts = ({}, inner, inner_y), (RANKING, everything, labels)
    grid = [(settings | one, *rows, None) for settings, *rows in parts for one in STARTS]
    grid += [
        (settings | {"content_weight": w}, *rows, kind)
        for settings, *rows in parts
        for kind in features
        for w in (100.0, 1000.0)
    ]
    grid += [
        (RANKING | {"rating_scale": scale}, everything, labels, None) for scale in ((0, 1), (-1, 2))
    ]
    print("| rows | setting | HR@10 | NDCG@10 |\n|---|---|---|---|")
    for settings, rows, target, kind in grid:
        features_of = {} if kind is None else {"item_features": features[kind]}
        Estimator = DCF if kind is None else DDL
        model = Estimator(items=items, **features_of, **settings)
        scores = hits(_seeded(model, 2000).fit(rows, target), validation, negatives)
        what = "ratings" if target is inner_y else "positives and negatives"
        _row(what, f"{settings} {kind or ''}", [scores])


def _ratings(name, options):
    X, y = fetch_movielens(name, data_home=options.data_home, return_X_y=True)
    return X[:, :2], y


def _seeded(model, seed):
    model = clone(model)
    known = "random_state" in model.get_params()
    return model.set_params(random_state=seed) if known else model


def _row(what, label, scores):
    means, spread = np.mean(scores, axis=0), np.std(scores, axis=0)
    cells = " | ".join(f"{m:.4f} ± {s:.4f}" for m, s in zip(means, spread, strict=True))
    print(f"| {what} | {label} | {cells} |", flush=True)


def main(argv=None):
    """Run one of the benchmarks."""
    functions = (ratings, rankings, cold, choices, ranking_choices)
    commands = {f.__name__.replace("_", "-"): f for f in functions}
    parser = command_line("ddl", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", nargs="+", default=["100k", "1m"], choices=["100k", "1m"])
    parser.add_argument("--data-home")
    parser.add_argument("--only", nargs="+", default=[], choices=MODELS)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(argv)
    commands[options.command](options)


if __name__ == "__main__":
    main()
