"""Implicit-feedback ALS as Hu, Koren and Volinsky write it: a dense weighted ridge per row.

Slow on purpose.
"""

import numpy as np

from tests.reference.wmf import user_solve


def penalty(confidences, regularization, exponent):
    """The penalty of a user or an item with these confidences of all its pairs."""
    return regularization * np.mean(confidences) ** exponent


def als(strengths, users, items, regularization, n_epochs, exponent=0):
    """Users, then items, `n_epochs` times; 0 in `strengths` means not liked."""
    liked = (strengths > 0).astype(float)
    confidences = np.where(strengths > 0, strengths, 1.0)
    for _ in range(n_epochs):
        for u in range(len(users)):
            reg = penalty(confidences[u], regularization, exponent)
            users[u] = user_solve(confidences[u], liked[u], items, reg)
        for i in range(len(items)):
            reg = penalty(confidences[:, i], regularization, exponent)
            items[i] = user_solve(confidences[:, i], liked[:, i], users, reg)
    return users, items


def loss(strengths, users, items, regularization, exponent=0):
    """The objective."""
    liked = strengths > 0
    confidences = np.where(liked, strengths, 1.0)
    squares = confidences * (liked - users @ items.T) ** 2
    of_users = [penalty(c, regularization, exponent) for c in confidences]
    of_items = [penalty(c, regularization, exponent) for c in confidences.T]
    return squares.sum() + of_users @ (users**2).sum(axis=1) + of_items @ (items**2).sum(axis=1)
