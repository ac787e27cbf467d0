"""Implicit-feedback ALS as Hu, Koren and Volinsky write it: a dense weighted ridge per row.

Slow on purpose.
"""

import numpy as np


def ridge(vectors, confidences, liked, regularization):
    """The vector that minimises sum_i c_i (t_i - x . vectors_i)^2 + regularization |x|^2."""
    C = np.diag(confidences)
    gram = vectors.T @ C @ vectors + regularization * np.eye(vectors.shape[1])
    return np.linalg.solve(gram, vectors.T @ C @ liked)


def als(strengths, users, items, regularization, n_epochs):
    """Users, then items, `n_epochs` times; 0 in `strengths` means not liked."""
    liked = (strengths > 0).astype(float)
    confidences = np.where(strengths > 0, strengths, 1.0)
    for _ in range(n_epochs):
        for u in range(len(users)):
            users[u] = ridge(items, confidences[u], liked[u], regularization)
        for i in range(len(items)):
            items[i] = ridge(users, confidences[:, i], liked[:, i], regularization)
    return users, items


def loss(strengths, users, items, regularization):
    """The objective."""
    liked = strengths > 0
    confidences = np.where(liked, strengths, 1.0)
    squares = confidences * (liked - users @ items.T) ** 2
    return squares.sum() + regularization * (np.sum(users**2) + np.sum(items**2))
