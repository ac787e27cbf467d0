"""Successive halving as one writes it down: each candidate is fitted anew for each cut.

Slow on purpose. Rows are held out as for early stopping; a plain fit to the others is scored on
them by `evaluate_ranking` or NumPy. The first candidate, the default, stays until the last cut.
"""

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from fedrecsk.metrics import evaluate_ranking
from fedrecsk.protocol.early_stopping import HoldOut, hold_out
from fedrecsk.protocol.keys import Key


def split(method, X, y, key, *, latest=False):
    """Training rows and held-out rows, each as (X, y)."""
    data = clone(method)._prepared(X, y)
    return [
        (
            np.stack(
                [data.user_ids.values[one.users], data.item_ids.values[one.items]]
                + ([] if one.times is None else [one.times.astype(int)]),
                axis=1,
            ),
            None if y is None else one.values,
        )
        for one in hold_out(data, HoldOut(0.1, latest), key)
    ]


def score(model, X, y):
    """Greater is better: NDCG@10 without ratings, else the RMSE with its sign turned."""
    if y is None:
        return evaluate_ranking(model, X, metrics="ndcg", k=10)["ndcg@10"]
    return -np.sqrt(np.mean((model.predict(X) - y) ** 2))


def evaluated(method, train, held_out, rung, key, share):
    """The mean score of the models of the last rounds, by a share of the clients in all."""
    scores, users = [], np.unique(train[0][:, 0])
    n_cohorts = round(1 / method.client_fraction)
    n_last = int(np.ceil(share * n_cohorts))
    for n_rounds in range(rung - n_last + 1, rung + 1):
        model = clone(method).set_params(n_rounds=n_rounds).fit(*train)
        cohort = method._plan().sampling.draw(len(users), key.at(n_rounds)).receives
        chances = key.at(n_rounds).uniform("evaluating clients", np.arange(len(users)))
        n_chosen = int(np.ceil(share * n_cohorts / n_last * cohort.sum()))
        chosen = sorted(np.flatnonzero(cohort), key=lambda code: chances[code])[:n_chosen]
        rows = np.isin(held_out[0][:, 0], users[chosen])
        scores.append(score(model, *(None if one is None else one[rows] for one in held_out)))
    return float(np.mean(scores))


def halving(methods, X, y, rungs, factor, shares=(1, 1, 1), *, latest=False):
    """For each cut the numbers of the candidates, best first, and their scores.

    `shares` are those of the clients that evaluate each candidate.
    """
    key = Key(int(check_random_state(methods[0].random_state).randint(2**31 - 1)))
    train, held_out = split(methods[0], X, y, key, latest=latest)
    items = np.unique(X[:, 1])
    methods = [clone(one).set_params(items=items) for one in methods]
    alive, cuts = list(range(len(methods))), []
    for rung, share in zip(rungs, shares, strict=False):
        scores = {
            number: evaluated(methods[number], train, held_out, rung, key, share)
            for number in alive
        }
        ranked = sorted(alive, key=lambda number: -scores[number])
        cuts.append((ranked, scores))
        kept = ranked[: int(np.ceil(len(alive) / factor))]
        if 0 not in kept:
            kept[-1] = 0
        alive = sorted(kept)
    return cuts
