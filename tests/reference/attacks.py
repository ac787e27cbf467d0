"""Attacks as their papers write them, client by client and number by number.

Slow on purpose. Uploads are lists of arrays of one shape, with NaN in rows that are not sent.
"""

from itertools import pairwise
from statistics import NormalDist

import numpy as np


def mean_and_deviation(uploads):
    """Of each number over the clients that send it; 0 for numbers that nobody sends."""
    shape = uploads[0].shape
    mean, deviation = np.zeros(shape), np.zeros(shape)
    for place in np.ndindex(shape):
        sent = [upload[place] for upload in uploads if not np.isnan(upload[place])]
        if sent:
            mean[place] = sum(sent) / len(sent)
            deviation[place] = (sum((x - mean[place]) ** 2 for x in sent) / len(sent)) ** 0.5
    return mean, deviation


def alie_z(n_clients, n_attackers):
    """Baruch et al.: s honest clients must be found beyond the forged value."""
    n_honest = n_clients - n_attackers
    s = int(np.floor(n_clients / 2 + 1)) - n_attackers
    return NormalDist().inv_cdf((n_honest - s) / n_honest)


def min_max(uploads, rows, perturbation):
    """Shejwalkar and Houmansadr, by bisection; what a client with these rows sends."""
    mean, deviation = mean_and_deviation(uploads)
    direction = {
        "unit_vector": -mean / np.linalg.norm(mean),
        "std": -deviation,
        "sign": -np.sign(mean),
    }[perturbation]
    honest = [np.nan_to_num(upload) for upload in uploads]
    bound = max(np.linalg.norm(a - b) for a in honest for b in honest)

    def forged(gamma):
        whole = np.zeros(mean.shape)
        whole[rows] = (mean + gamma * direction)[rows]
        return whole

    def allowed(gamma):
        return max(np.linalg.norm(forged(gamma) - one) for one in honest) <= bound

    low, high = 0.0, 1e15
    for _ in range(120):
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return forged(low)[rows]


def popular_by_moves(broadcasts, target, n_popular):
    """PIECK: the items whose vectors have moved most, except the target."""
    totals = {item: 0.0 for item in range(len(broadcasts[0])) if item != target}
    for before, after in pairwise(broadcasts):
        for item in totals:
            totals[item] += np.linalg.norm(after[item] - before[item])
    return sorted(totals, key=lambda item: -totals[item])[:n_popular]


def fitted_user(vectors, liked):
    """Ridge regression of 1 for what is liked and 0 for an average item, by stacked rows."""
    n_items, width = vectors.shape
    rows = [vectors[item] for item in liked]
    targets = [1.0 for _ in liked]
    for vector in vectors:
        rows.append(np.sqrt(len(liked) / n_items) * vector)
        targets.append(0.0)
    mean_square = sum(vector @ vector for vector in vectors) / n_items
    for k in range(width):
        rows.append(np.sqrt(0.1 * len(liked) * mean_square / width) * np.eye(width)[k])
        targets.append(0.0)
    return np.linalg.lstsq(np.array(rows), np.array(targets), rcond=None)[0]


def pip_attack(vectors, popular, target, likes, strength, boost):
    """Where PipAttack wants the target's vector."""
    mean = sum(vectors[item] for item in popular) / len(popular)
    push = np.zeros(len(mean))
    for liked in likes:
        user = fitted_user(vectors, liked)
        push += user / (1 + np.exp(user @ vectors[target]))
    direction = mean / np.linalg.norm(mean) + boost * push / np.linalg.norm(push)
    return strength * np.linalg.norm(mean) * direction / np.linalg.norm(direction)
