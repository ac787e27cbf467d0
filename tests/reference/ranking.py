"""Ranking metrics by their definitions: loops over users and over every order of ties."""

from itertools import permutations, product
from math import log2

import numpy as np


def orders(scores):
    """Every ranking that the scores allow; candidates at -inf are in none."""
    levels = sorted({s for s in scores if s > -np.inf}, reverse=True)
    groups = [[c for c, s in enumerate(scores) if s == level] for level in levels]
    for arrangement in product(*(permutations(group) for group in groups)):
        yield [candidate for group in arrangement for candidate in group]


def ndcg(order, gains, k):
    dcg = sum(gains[c] / log2(place + 1) for place, c in enumerate(order[:k], start=1))
    best = sorted(gains, reverse=True)[:k]
    return dcg / sum(gain / log2(place + 1) for place, gain in enumerate(best, start=1))


def hit_rate(order, gains, k):
    return float(any(gains[c] > 0 for c in order[:k]))


def precision(order, gains, k):
    return sum(gains[c] > 0 for c in order[:k]) / k


def recall(order, gains, k):
    return sum(gains[c] > 0 for c in order[:k]) / sum(gain > 0 for gain in gains)


def mrr(order, gains, k):
    return max((1 / place for place, c in enumerate(order[:k], 1) if gains[c] > 0), default=0.0)


METRICS = {f.__name__: f for f in (ndcg, hit_rate, precision, recall, mrr)}


def expected(metric, scores, gains, k):
    """Mean of a metric over all orders of the ties, NaN where nothing is relevant."""
    gains = [max(gain, 0) for gain in gains]
    if not any(gains):
        return np.nan
    return float(np.mean([METRICS[metric](order, gains, k) for order in orders(scores)]))


def evaluate(
    metric, k, score, catalogue, X, y=None, *, seen=(), negatives=None, above=0.0, weights=None
):
    """Mean of a metric over users.

    `score` takes a user and an item, `catalogue` holds the items it knows, `seen` holds pairs,
    `negatives` is None for the whole catalogue or a dict from user to items.
    """
    rows = [(user, item) for user, item in np.asarray(X)[:, :2].tolist()]
    y = np.ones(len(rows)) if y is None else y
    weights = np.ones(len(rows)) if weights is None else weights
    values = []
    for user in {user for user, _ in rows}:
        tested = {i: (r, w) for (u, i), r, w in zip(rows, y, weights, strict=True) if u == user}
        others = catalogue if negatives is None else negatives[user]
        others = [i for i in dict.fromkeys(others) if i not in tested]
        if negatives is None:
            others = [i for i in others if (user, i) not in set(seen)]
        candidates = [*tested, *others]
        scores = [score(user, i) if i in catalogue else -np.inf for i in candidates]
        gains = [tested[i][1] * (tested[i][0] > above) if i in tested else 0 for i in candidates]
        values.append(expected(metric, scores, gains, k))
    return float(np.nanmean(values))
