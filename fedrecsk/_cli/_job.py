"""The main job: split, fit each model, score it, recommend."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

from fedrecsk import BiasOnly, FedEB, Federation, ImplicitALS, Popularity, RFRec, SVDpp
from fedrecsk._cli import _data, _methods, _output
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.model_selection import UserHoldout
from fedrecsk.privacy import CentralDP, LaplaceMechanism

_FEWEST_ROWS = 10
_K = 10


def run(options: argparse.Namespace) -> None:
    """Do the job and print the results.

    Raises
    ------
    OSError, ValueError
        If the data or the method's parameters are no good.
    """
    ratings = _methods.predicts_ratings(options.method)
    rows = _rows(options, ratings)
    splitter = UserHoldout(0.2, random_state=options.seed)
    train, test = _random_split(rows, options.seed) if ratings else next(splitter.split(rows.X))
    whose = "of the rows" if ratings else "of each user's rows"
    print(f"Data: {_data.describe(rows)}; 20 % {whose} held out at random.")

    model = _model(options, rows)
    y = None if rows.y is None else rows.y[train]
    # A wrong setting is named before the other models take their time.
    model._prepared(rows.X[train], y)
    others = _rating_models(options) if ratings else _ranking_models(options)
    models = [one for one in others if type(one) is not type(model)] + [model]
    table = _output.Table(
        ("", "", "RMSE", "MAE", "kB up/client", "seconds")
        if ratings
        else ("", "", f"precision@{_K}", f"NDCG@{_K}", f"hit rate@{_K}", "kB up/client", "seconds")
    )
    for one in models:
        start = time.perf_counter()
        with _output.progress(one):
            one.fit(rows.X[train], y)
        seconds = time.perf_counter() - start
        scores = _score(one, rows, test, ratings)
        table.add(type(one).__name__, _methods.label(one), *scores, *_costs(one, seconds))
    table.end()
    _print_model(model, rows.X[train])


def _rows(options: argparse.Namespace, ratings: bool) -> _data.Rows:
    """The rows to learn from; what is wrong with them ends the program."""
    try:
        rows = _data.load(
            options.data,
            options.data_home,
            options.seed,
            ratings=ratings,
            columns=options.columns,
            many=options.epsilon is not None,
        )
        rows = rows if ratings else _data.positives(rows, options.threshold)
    except (OSError, ValueError) as error:
        options.error(f"--data {options.data}: {error}")
        raise
    if ratings and rows.y is None:
        options.error(
            f"--data {options.data} has no ratings; take a ranking method, such as --method LocALS"
        )
    if len(rows.X) < _FEWEST_ROWS:
        what = "with a rating" if ratings else "that count"
        options.error(
            f"--data {options.data} has too few rows {what}: {len(rows.X)}; {_FEWEST_ROWS} are "
            "needed"
        )
    return rows


def _random_split(rows: _data.Rows, seed: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(seed).permutation(len(rows.X))
    n_test = len(order) // 5
    return order[n_test:], order[:n_test]


def _model(options: argparse.Namespace, rows: _data.Rows) -> Any:
    """The chosen method with its parameters."""
    model = _with_defaults(options.method, options)
    if options.method is FedEB:
        model.set_params(client_fraction=0.1)
    federation = _federation(options)
    if federation is not None:
        model.set_params(federation=federation, **_public(model, rows))
    return model.set_params(**options.parameters)


def _federation(options: argparse.Namespace) -> Federation | None:
    """The federation with the noise that was asked for."""
    if options.epsilon is not None:
        clip = 1.0 if options.clip is None else options.clip
        return Federation(central_dp=CentralDP(clip=clip, epsilon=options.epsilon))
    if options.scale is not None:
        clip = 5 * options.scale if options.clip is None else options.clip
        return Federation(local_dp=LaplaceMechanism(clip=clip, scale=options.scale))
    return None


def _public(model: Any, rows: _data.Rows) -> dict[str, Any]:
    """Parameters that make public what noise does not protect."""
    known = model.get_params(deep=False)
    # The catalogue and the scale of a public data set are public.
    public: dict[str, Any] = {"items": np.unique(rows.X[:, 1]).tolist()}
    if "rating_scale" in known and rows.y is not None:
        public["rating_scale"] = (float(rows.y.min()), float(rows.y.max()))
        if known.get("aggregation") == "holders":
            public["aggregation"] = "all"
    return public


def _with_defaults(method: type, options: argparse.Namespace) -> Any:
    model = method()
    known = model.get_params(deep=False)
    given = {"random_state": options.seed, "n_jobs": options.n_jobs}
    return model.set_params(**{name: value for name, value in given.items() if name in known})


def _rating_models(options: argparse.Namespace) -> list[Any]:
    methods = [BiasOnly, SVDpp] + ([RFRec] if options.method is FedEB else [])
    return [_with_defaults(method, options) for method in methods]


def _ranking_models(options: argparse.Namespace) -> list[Any]:
    return [_with_defaults(method, options) for method in (Popularity, ImplicitALS)]


def _score(model: Any, rows: _data.Rows, test: np.ndarray, ratings: bool) -> list[str]:
    if ratings and rows.y is not None:
        predicted, y = model.predict(rows.X[test]), rows.y[test]
        return [
            f"{root_mean_squared_error(y, predicted):.4f}",
            f"{mean_absolute_error(y, predicted):.4f}",
        ]
    k = min(_K, model.n_items_)
    names = ("precision", "ndcg", "hit_rate")
    scores = evaluate_ranking(model, rows.X[test], metrics=names, k=k)
    return [f"{scores[f'{name}@{k}']:.4f}" for name in names]


def _costs(model: Any, seconds: float) -> list[str]:
    ledger = getattr(model, "communication_", None)
    sent = "" if ledger is None else f"{ledger.bytes_up / len(ledger.client_ids) / 1000:,.1f}"
    return [sent, f"{seconds:.1f}"]


def _print_model(model: Any, X: np.ndarray) -> None:
    user, n_rows = _data.least_active(X)
    n_left = model.n_items_ - n_rows
    if n_left > 0:
        items, scores = model.recommend([user], n_recommendations=min(5, n_left))
        shown = ", ".join(f"{i} ({s:.2f})" for i, s in zip(items[0], scores[0], strict=True))
        print(f"{type(model).__name__} recommends to user {user}: {shown}.")
    if hasattr(model, "communication_"):
        _output.print_communication(model.communication_)
        _output.print_privacy(model.privacy_)
