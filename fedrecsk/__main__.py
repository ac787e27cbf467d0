"""``python -m fedrecsk``: the main job, from ratings to a model and what it costs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

from fedrecsk import BiasOnly, FedEB, Federation, RFRec, RFRecF, SVDpp, _warmup
from fedrecsk.datasets import fetch_movielens, load_ratings, make_ratings
from fedrecsk.privacy import LaplaceMechanism

METHODS = {"fedeb": FedEB, "rfrec": RFRec, "rfrecf": RFRecF}


def main(argv=None):
    """Fit a federated recommender and print accuracy, recommendations, bytes and privacy."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["warmup"]:
        _warmup.main(arguments[1:])
        return
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.clip is not None and options.scale is None:
        parser.error("--clip without --scale would add no noise; give --scale too")
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1 round is needed")
    if options.n_jobs == 0:
        parser.error("--n-jobs 0: give a number of threads, or -1 for all cores")
    if options.method is None:
        options.method = "fedeb" if options.scale is None else "rfrec"
    if options.method == "fedeb" and options.scale is not None:
        parser.error("--method fedeb has no local differential privacy; take rfrec or rfrecf")
    for name in ("clip", "scale"):
        number = getattr(options, name)
        if number is not None and not number > 0:
            parser.error(f"--{name} {number:g} must be positive")
    try:
        X, y = _load(options)
    except (OSError, ValueError) as error:
        parser.error(f"--data {options.data}: {error}")
    if y is None or len(y) < 10:
        parser.error(f"{options.data} has too few rows with a rating; 10 are needed")
    train, test = _split(len(y), options.seed)
    print(f"Data: {options.data}, {len(y):,} ratings, 20 % held out at random.")

    model = METHODS[options.method](random_state=options.seed, n_jobs=options.n_jobs)
    if options.method == "fedeb":
        model.set_params(client_fraction=0.1)
    if options.rounds is not None:
        model.set_params(n_rounds=options.rounds)
    if options.scale is not None:
        clip = 5 * options.scale if options.clip is None else options.clip
        mechanism = LaplaceMechanism(clip=clip, scale=options.scale)
        model.set_params(
            federation=Federation(local_dp=mechanism),
            aggregation="all",
            rating_scale=(float(y.min()), float(y.max())),
            # The catalogue and the scale of a public data set are public.
            items=np.unique(X[:, 1]),
        )
    for one in (*_others(options), model):
        predicted = one.fit(X[train], y[train]).predict(X[test])
        print(
            f"{_named(one):>22}: RMSE {root_mean_squared_error(y[test], predicted):.4f}, "
            f"MAE {mean_absolute_error(y[test], predicted):.4f}"
        )
    users, n_rated = np.unique(X[train, 0], return_counts=True)
    user, n_left = users[n_rated.argmin()], model.n_items_ - n_rated.min()
    if n_left > 0:
        items, scores = model.recommend([user], n_recommendations=min(5, n_left))
        shown = ", ".join(f"{i} ({s:.2f})" for i, s in zip(items[0], scores[0], strict=True))
        print(f"For user {user}: {shown}.")
    print(f"Communication: {model.communication_}.")
    print(f"Privacy: {model.privacy_}.")


def _others(options):
    """What the method is compared with."""
    yield BiasOnly()
    yield SVDpp(random_state=options.seed)
    if options.method == "fedeb":
        yield RFRec(random_state=options.seed, n_jobs=options.n_jobs)


def _named(model):
    where = "federated" if hasattr(model, "communication_") else "centralised"
    return f"{type(model).__name__}, {where}"


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m fedrecsk",
        description=main.__doc__,
        epilog="`python -m fedrecsk warmup` compiles all methods ahead of time.",
    )
    parser.add_argument(
        "--data",
        default="generated",
        help="generated (default), 100k, 1m or latest-small (MovieLens), or a file of ratings",
    )
    parser.add_argument("--data-home", help="folder with a copy of MovieLens")
    parser.add_argument(
        "--method",
        choices=METHODS,
        help="default: fedeb, with cohorts of a tenth of the clients; rfrec under local DP",
    )
    parser.add_argument("--rounds", type=int, help="rounds (default: the method's)")
    parser.add_argument(
        "--clip", type=float, help="local DP: bound on a coordinate (default: 5 times the scale)"
    )
    parser.add_argument("--scale", type=float, help="local DP: scale of the Laplace noise")
    parser.add_argument("--n-jobs", type=int, default=-1, help="threads (default: all cores)")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _load(options):
    if options.data == "generated":
        return make_ratings(random_state=options.seed)
    if options.data in ("100k", "1m", "latest-small"):
        return fetch_movielens(options.data, data_home=options.data_home, return_X_y=True)
    if not Path(options.data).exists():
        raise FileNotFoundError(
            "no such file, nor one of generated, 100k, 1m and latest-small (MovieLens)"
        )
    return load_ratings(options.data, return_X_y=True)


def _split(n_rows, seed):
    order = np.random.default_rng(seed).permutation(n_rows)
    return order[n_rows // 5 :], order[: n_rows // 5]


if __name__ == "__main__":
    main()
