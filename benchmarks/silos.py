"""Measure silos with many people: ``python -m benchmarks.silos [COMMAND]``.

`people`, the default, is about people with a separate id at each of several silos. Each user's rows
are dealt at random to 1, 2 or 3 of 5 silos (`split_users`), a fifth of the rows is for testing, and
a model is fitted to the others. Every silo of a person is tested on all test rows of this person:
so the rows tested are the same, however many silos a person has. The table has NDCG@10 of items
that are new to the person, or RMSE, and of the ten items that a silo recommends the share that the
person has already, by a training row at another silo. Means over --seeds splits.

`privacy`: the noise that hides one user, if each user is a client and if the users are dealt to 20
silos that add up their clipped uploads (``CentralDP(unit="user")``), and the noise that hides one
silo. RMSE or NDCG@10 on a fifth of the rows, which were held out at random, and all bytes sent up.

Data: MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks._command_line import command_line
from benchmarks._seeds import reported
from benchmarks.sparse_defaults import new
from fedrecsk import Federation
from fedrecsk.datasets import fetch_movielens
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.preprocessing import split_users
from fedrecsk.privacy import CentralDP

RANKINGS = ("Popularity", "LocALS", "FedEASE")
RATINGS = ("BiasOnly", "FedEB")
N_SILOS, MOST = 5, 3
# Of `privacy`.
PRIVATE, N_PRIVATE, EPSILONS = ("PrivFedEB", "FedEASE"), 20, (10.0, 1.0)


def dealt(users, n, rng):
    """Return a silo for each row: one of `n` random silos of its user."""
    users = np.unique(users, return_inverse=True)[1]
    order = rng.permuted(np.tile(np.arange(N_SILOS), (users.max() + 1, 1)), axis=1)
    return order[users, rng.integers(n, size=len(users))]


def ndcg(recommended, tested):
    """Return NDCG@10 of recommendations, over users with test rows."""
    found = recommended.merge(tested, on=["user", "item"])
    gains = (1 / np.log2(found["rank"] + 1)).groupby(found["user"]).sum()
    ideal = np.cumsum(1 / np.log2(np.arange(10) + 2))
    n_tested = tested.groupby("user").size()
    return (gains.reindex(n_tested.index, fill_value=0) / ideal[n_tested.clip(upper=10) - 1]).mean()


def measured(name, X, y, n, seed):
    """Return the score of a method, and the share of recommendations that a person has already."""
    rng = np.random.default_rng(seed)
    is_test, silos = rng.random(len(X)) < 0.2, dealt(X[:, 0], n, rng)
    rows = pd.DataFrame({"person": X[:, 0], "item": X[:, 1], "y": y})
    train, origins = split_users(X[~is_test], silos[~is_test])
    people = [person for person, _ in origins.values()]
    ids = pd.DataFrame({"user": list(origins), "person": people})
    # Rows of a person, for each of its ids.
    had = ids.merge(rows[~is_test], on="person")[["user", "item"]]
    tested = ids.merge(rows[is_test], on="person")
    model, where = new(name, seed), {"clients": silos[~is_test]}
    where = where if hasattr(model, "federation") else {}
    if name in RATINGS:
        model.fit(train, y[~is_test], **where)
        wrong = model.predict(tested[["user", "item"]].to_numpy(dtype=object)) - tested["y"]
        return np.sqrt((wrong**2).mean()), np.nan
    model.fit(train, **where)
    own = model.recommend(ids["user"], as_frame=True)
    of_new = model.recommend(ids["user"], exclude_interactions=had.to_numpy(object), as_frame=True)
    return ndcg(of_new, tested), len(own.merge(had, on=["user", "item"])) / len(own)


def private(name, X, y, is_test, seed, epsilon, silos, unit):
    """Return the score of a fit with noise, and the bytes that all clients send up."""
    mechanism = CentralDP(epsilon=epsilon, delta=1e-5, unit=unit)
    model = new(name, seed).set_params(items=np.unique(X[:, 1]))
    model.set_params(federation=Federation(central_dp=mechanism))
    clients = None if silos is None else silos[~is_test]
    if name == "PrivFedEB":
        model.set_params(rating_scale=(1, 5)).fit(X[~is_test], y[~is_test], clients=clients)
        score = np.sqrt(np.mean((model.predict(X[is_test]) - y[is_test]) ** 2))
    else:
        model.fit(X[~is_test], clients=clients)
        score = evaluate_ranking(model, X[is_test], k=10)["ndcg@10"]
    return score, model.communication_.bytes_up


def privacy(options, X, y):
    """Print a row for each private method and epsilon."""
    ways = {
        "each user a client": (False, "client"),
        f"{N_PRIVATE} silos, one user hidden": (True, "user"),
        f"{N_PRIVATE} silos, one silo hidden": (True, "client"),
    }
    names = [*ways, *(f"MB up, {one}" for one in list(ways)[:2])]
    print(f"| method | score | epsilon | {' | '.join(names)} |")
    print("|---|---|---|" + "---|" * len(names), flush=True)
    for name in PRIVATE:
        for epsilon in EPSILONS:
            each = []
            for seed in reported(options.seeds):
                rng = np.random.default_rng(seed)
                is_test = rng.random(len(X)) < 0.2
                silos = rng.integers(N_PRIVATE, size=X[:, 0].max() + 1)[X[:, 0]]
                each.append(
                    [
                        private(name, X, y, is_test, seed, epsilon, silos if dealt else None, unit)
                        for dealt, unit in ways.values()
                    ]
                )
            scores, nbytes = np.mean(each, axis=0).T
            shown = [f"{score:.4f}" for score in scores] + [f"{n / 1e6:.1f}" for n in nbytes[:2]]
            score = "RMSE" if name == "PrivFedEB" else "NDCG@10"
            print(f"| {name} | {score} | {epsilon:g} | {' | '.join(shown)} |", flush=True)


def people(options, X, y):
    """Print a row for each method and number of silos of a person."""
    columns = [f"{n} silo{'s' * (n > 1)}" for n in range(1, MOST + 1)]
    shares = [f"already had, {one}" for one in columns[1:]]
    print(f"| method | score | {' | '.join([*columns, *shares])} |")
    print("|---|---|" + "---|" * len([*columns, *shares]), flush=True)
    for name in options.methods:
        each = [
            [measured(name, X, y, n, seed) for seed in reported(options.seeds)]
            for n in range(1, MOST + 1)
        ]
        scores, had = np.mean(each, axis=1).T
        shown = [f"{score:.4f}" for score in scores]
        shown += ["" if np.isnan(share) else f"{share:.3f}" for share in had[1:]]
        score = "RMSE" if name in RATINGS else "NDCG@10"
        print(f"| {name} | {score} | {' | '.join(shown)} |", flush=True)


def main(argv=None):
    """Run a command."""
    commands = {"people": people, "privacy": privacy}
    parser = command_line("silos", __doc__)
    parser.add_argument("command", nargs="?", default="people", choices=commands)
    parser.add_argument("--methods", nargs="+", default=[*RANKINGS, *RATINGS])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data-home")
    options = parser.parse_args(argv)
    X, y = fetch_movielens("1m", data_home=options.data_home, return_X_y=True)
    commands[options.command](options, np.asarray(X)[:, :2].astype(int), y)


if __name__ == "__main__":
    main()
