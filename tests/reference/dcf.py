"""DCF and DDL written down naively: loops over rows, bits and ratings, with Python's integers."""

import math

import numpy as np

ONE = 2**20


def fixed(x):
    """To fixed point."""
    return int(np.rint(x * ONE))


def updated(code, rated, linear, n_sweeps):
    """A row's code after coordinate descent (equations 9 and 11).

    Parameters
    ----------
    code : list of +1 and -1
    rated : list of (code of the other side, weight, target in bits)
    linear : list of int, in fixed point
        What draws at each bit apart from the ratings.
    n_sweeps : int
    """
    code = list(code)
    for _ in range(n_sweeps):
        before = list(code)
        for k in range(len(code)):
            pull = linear[k]
            for other, w, t in rated:
                rest = sum(code[j] * other[j] for j in range(len(code)) if j != k)
                pull += (fixed(w * t) - fixed(w) * rest) * other[k]
            if pull != 0:
                code[k] = 1 if pull > 0 else -1
        if code == before:
            break
    return code


def delegate(B):
    """Equations 13 to 16, where B has full rank: the polar factor of the centred codes."""
    B = np.asarray(B, dtype=float)
    n = len(B)
    P, _, Qt = np.linalg.svd(B - B.mean(axis=0), full_matrices=False)
    return math.sqrt(n) * P @ Qt


def relaxed(vector, rated, linear, ridge):
    """A row's real-valued vector after one sweep: each entry solves its own normal equation."""
    vector = [float(x) for x in vector]
    weight = sum(w for _, w, _ in rated)
    for k in range(len(vector)):
        top, bottom = linear[k], ridge * weight
        for other, w, t in rated:
            rest = sum(vector[j] * other[j] for j in range(len(vector)) if j != k)
            top += w * (t - rest) * other[k]
            bottom += w * other[k] ** 2
        vector[k] = top / bottom
    return vector


def fit(users, items, ratings, alpha, beta, n_epochs, n_sweeps, content=None):
    """Algorithm 1 from given codes, which are changed in place.

    Parameters
    ----------
    users, items : lists of codes
    ratings : list of (user, item, weight, target in bits)
    alpha, beta : float
    n_epochs, n_sweeps : int
    content : object or None
        DDL: `pull(i)` is the linear term of item i, in fixed point, and ``learn(items, rated)``
        trains the network and sets the codes of items without ratings.

    Returns
    -------
    errors : list of float
        Weighted squared errors in bits after each iteration.
    """
    rated, errors = sorted({i for _, i, _, _ in ratings}), []
    for _ in range(n_epochs):
        before = [list(code) for code in users + items]
        X = delegate(users)
        for u in range(len(users)):
            mine = [(items[i], w, t) for v, i, w, t in ratings if v == u]
            users[u] = updated(users[u], mine, [fixed(alpha * x) for x in X[u]], n_sweeps)
        Y = delegate([items[i] for i in rated])
        for place, i in enumerate(rated):
            mine = [(users[u], w, t) for u, j, w, t in ratings if j == i]
            linear = [fixed(beta * y) for y in Y[place]]
            if content is not None:
                linear = [a + b for a, b in zip(linear, content.pull(i), strict=True)]
            items[i] = updated(items[i], mine, linear, n_sweeps)
        total = 0.0
        for u, i, w, t in ratings:
            total += w * (t - sum(b * d for b, d in zip(users[u], items[i], strict=True))) ** 2
        errors.append(total)
        if content is not None:
            content.learn(items, rated)
        elif before == users + items:
            break
    return errors
