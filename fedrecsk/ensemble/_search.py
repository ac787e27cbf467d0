"""The search for an ensemble's weights on rows that its parts were not fitted to."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from fedrecsk.base import _batches

K = 10
STEPS = 10


def candidates(n_parts):
    """All weights that are multiples of 1 / STEPS and add up to 1, (n_candidates, n_parts)."""
    bars = combinations(range(STEPS + n_parts - 1), n_parts - 1)
    cuts = np.array([(-1, *bar, STEPS + n_parts - 1) for bar in bars])
    return (np.diff(cuts, axis=1) - 1) / STEPS


def held_out(data, generator):
    """A random row of y > 0 of each user that has two of them; a mask of the rows.

    Parameters
    ----------
    data : Interactions
    generator : RandomState

    Raises
    ------
    ValueError
        If no user has one.
    """
    likes = data.values > 0
    users = np.repeat(np.arange(data.n_users), np.diff(data.indptr))
    spare = likes & (np.bincount(users, likes, data.n_users) > 1)[users]
    draws = np.where(spare, generator.uniform(size=len(spare)), -1.0)
    order = np.lexsort((draws, data.users))
    last = order[data.indptr[1:] - 1]
    mask = np.zeros(len(spare), dtype=bool)
    mask[last[spare[last]]] = True
    if not mask.any():
        raise ValueError(
            'weights="search" has no row to hold out, because no user has two rows of y > 0; '
            "give weights."
        )
    return mask


def scores(weights, boards, data, mask, n_negatives, generator):
    """Mean NDCG@10 of the held-out rows under each of the weights.

    Parameters
    ----------
    weights : ndarray of shape (n_candidates, n_parts)
    boards : callable
        The parts' standardised scores of users (codes), shape (n_parts, n_users, n_items).
    data : Interactions
    mask : ndarray of shape (n_ratings,), dtype bool
        The held-out rows, at most one of a user.
    n_negatives : int or None
    generator : RandomState

    Returns
    -------
    scores : ndarray of shape (n_candidates,)
    """
    users, items = data.users[mask], data.items[mask]
    totals = np.zeros(len(weights))
    for batch in _batches(len(users), data.n_items * weights.shape[1]):
        rows = np.arange(len(users[batch]))
        others = _others(data, users[batch])
        if n_negatives is not None:
            others = _drawn(others, n_negatives, generator)
        parts = boards(users[batch])
        for candidate, one in enumerate(weights):
            board = np.tensordot(one, parts, 1)
            own = board[rows, items[batch]][:, None]
            ahead = ((board > own) & others).sum(axis=1)
            place = ahead + ((board == own) & others).sum(axis=1) / 2
            totals[candidate] += np.where(place < K, 1 / np.log2(place + 2), 0).sum()
    return totals / len(users)


def _others(data, users):
    """Items without any row of the users, held out or not; a mask."""
    others = np.ones((len(users), data.n_items), dtype=bool)
    for k, user in enumerate(users):
        others[k, data.items[data.indptr[user] : data.indptr[user + 1]]] = False
    return others


def _drawn(others, n, generator):
    """At most n of them for each user."""
    draws = np.where(others, generator.uniform(size=others.shape), 2.0)
    n = min(n, others.shape[1])
    chosen = np.zeros_like(others)
    np.put_along_axis(chosen, np.argpartition(draws, n - 1, axis=1)[:, :n], True, axis=1)
    return chosen & others
