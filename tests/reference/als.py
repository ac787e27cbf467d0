"""Implicit-feedback ALS as Hu, Koren and Volinsky write it: a dense weighted ridge per row.

Slow on purpose.
"""

import numpy as np


def ridge(vectors, confidences, liked, regularization):
    """The vector that minimises sum_i c_i (t_i - x . vectors_i)^2 + regularization |x|^2."""
    C = np.diag(confidences)
    gram = vectors.T @ C @ vectors + regularization * np.eye(vectors.shape[1])
    return np.linalg.solve(gram, vectors.T @ C @ liked)


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
            users[u] = ridge(items, confidences[u], liked[u], reg)
        for i in range(len(items)):
            reg = penalty(confidences[:, i], regularization, exponent)
            items[i] = ridge(users, confidences[:, i], liked[:, i], reg)
    return users, items


def loss(strengths, users, items, regularization, exponent=0):
    """The objective."""
    liked = strengths > 0
    confidences = np.where(liked, strengths, 1.0)
    squares = confidences * (liked - users @ items.T) ** 2
    of_users = [penalty(c, regularization, exponent) for c in confidences]
    of_items = [penalty(c, regularization, exponent) for c in confidences.T]
    return squares.sum() + of_users @ (users**2).sum(axis=1) + of_items @ (items**2).sum(axis=1)
