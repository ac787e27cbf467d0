"""Pairs and histories that fade, by their definitions: loops over users and their pairs."""

import numpy as np

from tests.reference.wmf import final_user


def positions(times):
    """Each row's place among its user's: the mean over the places of rows with the same time.

    `times` has None for a row without a time, which comes before all others.
    """
    keys = [float("-inf") if time is None else time for time in times]
    places = []
    for key in keys:
        earlier = sum(other < key for other in keys)
        equal = sum(other == key for other in keys)
        places.append(earlier + (equal - 1) / 2)
    return places


def life(half_life, n_rows):
    """Return the half-life of a user with n rows; infinite for None."""
    if half_life is None:
        return float("inf")
    return 0.7 * n_rows**0.5 if half_life == "auto" else half_life


def gram(histories, n_items, half_life=None):
    """The sum over users of 2^(-|a - b| / half-life) for each pair of places a and b.

    A history is a list of (item, time, weight), in any order, with each item once.
    """
    G = np.zeros((n_items, n_items))
    for rows in histories:
        places = positions([time for _, time, _ in rows])
        for (i, _, v), a in zip(rows, places, strict=True):
            for (j, _, w), b in zip(rows, places, strict=True):
                G[i, j] += v * w * 2 ** (-abs(a - b) / life(half_life, len(rows)))
    return G


def directed(histories, n_items, half_life=None, backward=1.0):
    """The sum over users of the fade of each pair (i, j), i before j, and backward times (j, i).

    A pair at one time counts half each way, and an item with itself once.
    """
    F = np.zeros((n_items, n_items))
    for rows in histories:
        places = positions([time for _, time, _ in rows])
        for (i, _, v), a in zip(rows, places, strict=True):
            for (j, _, w), b in zip(rows, places, strict=True):
                if i != j and a <= b:
                    share = 0.5 if a == b else 1
                    F[i, j] += share * v * w * 2 ** (-(b - a) / life(half_life, len(rows)))
    return F + backward * F.T + np.diag(np.diag(gram(histories, n_items)))


def own_pairs(histories, n_items, half_life=None):
    """Each user's pairs, by what came first."""
    own = [directed([rows], n_items, half_life, backward=0.0) for rows in histories]
    for one in own:
        np.fill_diagonal(one, 0)
    return own


def support(histories, n_items, half_life=None):
    """How many users, each user with itself included, share a pair in the same order."""
    own = own_pairs(histories, n_items, half_life)
    return sum(np.sum(a * b) for a in own for b in own) / sum(np.sum(a * a) for a in own)


def agreement(histories, n_items, half_life=None):
    """Over pairs of users: how often they have a pair in opposite order, over the same order."""
    own = own_pairs(histories, n_items, half_life)
    same = sum(np.sum(a * b) for a in own for b in own if a is not b)
    opposite = sum(np.sum(a * b.T) for a in own for b in own if a is not b)
    return min(max(opposite / same, 0), 1)


def fades(rows, half_life=None):
    """What each row of a history counts for its user's scores: 1 for the last."""
    places = positions([time for _, time, _ in rows])
    return [2 ** (-(max(places) - a) / life(half_life, len(rows))) for a in places]


def history(rows, n_items, half_life=None):
    """A dense row of the weights of a user's items, faded."""
    x = np.zeros(n_items)
    for (item, _, weight), fade in zip(rows, fades(rows, half_life), strict=True):
        x[item] = weight * fade
    return x


def user_vector(rows, items, alpha, reg, half_life=None):
    """The vector of one user by weighted least squares; a row that has faded away is no row."""
    c, r = np.ones(len(items)), np.zeros(len(items))
    for (item, _, weight), fade in zip(rows, fades(rows, half_life), strict=True):
        c[item] = 1 + fade * alpha * weight
        r[item] = fade * (1 + alpha * weight) / c[item]
    return final_user(c, r, reg, sum(weight for _, _, weight in rows), items)
