"""Vectors of users that an adversary estimates from broadcast item vectors, and how to win them."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

# Weight of the penalty on a user's vector, relative to that of its items.
PENALTY = 0.1


def fitted_users(vectors, indptr, items):
    """Vectors of users with which the items that they like score 1 and an average item 0.

    A user with items I gets the p that minimises, by ridge regression::

        sum_{i of I} (1 - p . q_i)^2 + |I| mean_i (p . q_i)^2 + PENALTY |I| mean |q|^2 / d |p|^2

    Parameters
    ----------
    vectors : ndarray of shape (n_items, width), dtype float64
    indptr : ndarray of shape (n_users + 1,)
        User u likes ``items[indptr[u]:indptr[u + 1]]``.
    items : ndarray of shape (n_likes,)

    Returns
    -------
    users : ndarray of shape (n_users, width), dtype float64
        0 for users without an item.
    """
    n_items, width = vectors.shape
    average = vectors.T @ vectors / n_items
    average += (PENALTY * np.trace(average) / width or 1.0) * np.eye(width)
    users = np.zeros((len(indptr) - 1, width))
    for user in np.flatnonzero(np.diff(indptr)):
        liked = vectors[items[indptr[user] : indptr[user + 1]]]
        users[user] = np.linalg.solve(liked.T @ liked + len(liked) * average, liked.sum(axis=0))
    return users


def likes_of(data, users, rates):
    """What some users like: all their rows, or those that they rate at least at their mean.

    Parameters
    ----------
    data : Interactions
    users : ndarray
        Codes of users.
    rates : bool
        Whether the data are ratings.

    Returns
    -------
    indptr : ndarray of shape (len(users) + 1,)
    items : ndarray
    """
    counts = np.diff(data.indptr)
    kept = data.values > 0
    if rates:
        means = np.bincount(data.users, data.values, data.n_users) / np.maximum(counts, 1)
        kept = data.values >= means[data.users]
    kept &= np.isin(data.users, users)
    number = np.searchsorted(users, data.users[kept])
    n_liked = np.bincount(number, minlength=len(users))
    return np.concatenate([[0], np.cumsum(n_liked)]), data.items[kept]


def rivals(vectors, users, target, n_best, barred=None):
    """Score of the last item on each user's list, if the target is not on it.

    Parameters
    ----------
    vectors : ndarray of shape (n_items, width)
    users : ndarray of shape (n_users, width)
    target : int
    n_best : int
        Length of the list.
    barred : tuple (indptr, items) or None
        Items that are not recommended to the users.

    Returns
    -------
    scores : ndarray of shape (n_users,)
    """
    last = np.empty(len(users))
    n_best = min(n_best, len(vectors) - 1)
    for user, vector in enumerate(users):
        scores = vectors @ vector
        scores[target] = -np.inf
        if barred is not None:
            scores[barred[1][barred[0][user] : barred[0][user + 1]]] = -np.inf
        last[user] = np.partition(scores, -n_best)[-n_best]
    finite = np.isfinite(last)
    return np.where(finite, last, last[finite].min(initial=0))


def raised(vector, users, rival_scores):
    """The move of an item's vector that puts it on the lists of half of the users that lack it.

    The direction is that of the steepest ascent of ``sum_u log sigmoid(margin_u)``, with margins
    in units of the users' mean rival score; the length is the median over users that the item is
    not yet recommended to, and that gain by the direction, of what each of them takes.

    Parameters
    ----------
    vector : ndarray of shape (width,)
        The item's vector.
    users : ndarray of shape (n_users, width)
    rival_scores : ndarray of shape (n_users,)
        Scores to exceed.

    Returns
    -------
    move : ndarray of shape (width,)
    """
    margins = users @ vector - rival_scores
    scale = np.abs(rival_scores).mean() or 1.0
    direction = expit(-margins / scale) @ users
    gains = users @ direction
    lacking = (margins < 0) & (gains > 0)
    if not lacking.any():
        return np.zeros_like(vector)
    return np.median(-margins[lacking] / gains[lacking]) * direction


def unit(vector):
    """The vector with length 1; 0 stays 0."""
    return vector / (np.linalg.norm(vector) or 1.0)
