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


def average_precision(order, gains, k):
    found = [c for c in order[:k] if gains[c] > 0]
    shares = [precision(order, gains, order.index(c) + 1) for c in found]
    return sum(shares) / min(k, sum(gain > 0 for gain in gains))


def auc(order, gains, k):
    """Share of pairs of a relevant and another candidate in the right order; k has no meaning."""
    place = {c: place for place, c in enumerate(order)}
    relevant = [place.get(c, np.inf) for c, gain in enumerate(gains) if gain > 0]
    others = [place[c] for c in order if gains[c] <= 0]
    if not others:
        return np.nan
    return float(np.mean([one < other for one in relevant for other in others]))


METRICS = {f.__name__: f for f in (ndcg, hit_rate, precision, recall, mrr)}
METRICS |= {"map": average_precision}
ALL = METRICS | {"auc": auc}


def expected(metric, scores, gains, k):
    """Mean of a metric over all orders of the ties, NaN where nothing is relevant."""
    gains = [max(gain, 0) for gain in gains]
    if not any(gains):
        return np.nan
    return float(np.mean([ALL[metric](order, gains, k) for order in orders(scores)]))


def evaluate(
    metric, k, score, catalogue, X, y=None, *, seen=(), negatives=None, threshold=None, weights=None
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
        least = np.nextafter(0, 1) if threshold is None else threshold
        gains = [tested[i][1] * (tested[i][0] >= least) if i in tested else 0 for i in candidates]
        values.append(expected(metric, scores, gains, k))
    return float(np.nanmean(values)) if not np.isnan(values).all() else np.nan


def lists(k, score, catalogue, X, seen):
    """The first k items of each user of X, ties by item; not what it has seen but for X."""
    tested = {(user, item) for user, item in np.asarray(X)[:, :2].tolist()}
    best = {}
    for user in sorted({user for user, _ in tested}):
        items = [i for i in sorted(catalogue) if (user, i) not in set(seen) - tested]
        best[user] = sorted(items, key=lambda i: -score(user, i))[:k]
    return best


def beyond_accuracy(best, catalogue, train):
    """Coverage, novelty and diversity of the lists of users, from the definitions."""
    owners = {i: {u for u, item in train if item == i} for i in catalogue}
    n_users = len({u for u, _ in train})

    def cosine(i, j):
        if not owners[i] or not owners[j]:
            return 0.0
        return len(owners[i] & owners[j]) / np.sqrt(len(owners[i]) * len(owners[j]))

    novelties, diversities = [], []
    for items in best.values():
        if items:
            bits = [log2(n_users / max(len(owners[i]), 1)) for i in items]
            novelties.append(np.mean(bits))
        pairs = [(i, j) for a, i in enumerate(items) for j in items[:a]]
        if pairs:
            diversities.append(np.mean([1 - cosine(i, j) for i, j in pairs]))
    return {
        "coverage": len({i for items in best.values() for i in items}) / len(catalogue),
        "novelty": np.mean(novelties) if novelties else np.nan,
        "diversity": np.mean(diversities) if diversities else np.nan,
    }
