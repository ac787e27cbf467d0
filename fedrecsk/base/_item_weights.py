"""Ranking by weights between items: a user's scores are the sum of the rows of its own items.

What EASE and FedEASE share, and the sums over users of pairs of items that others start from.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import sparse
from scipy.linalg import lapack

from fedrecsk._utils.kernels import LazyModule
from fedrecsk.base._fading import FadingPairs, ages, fading, rates
from fedrecsk.portable import History, ItemWeights

gram_kernels: LazyModule = LazyModule("fedrecsk.base._gram_kernels")


# After so many, the scores of unknown users rank like popularity (MovieLens-100k, reg 200 to 5000).
POWER_STEPS = 10


class ItemWeightsMixin(FadingPairs):
    """Scores of a recommender that has `item_weights_` and its users' `user_history_`."""

    _has_user_vectors = False

    def _score_pairs(self, users, items):
        scores = np.zeros(len(users))
        gram_kernels.score_pairs(
            users, items, *_arrays(self.user_history_), self.item_weights_, scores
        )
        return self._with_unknown_users(scores, users, items)

    def _score_all(self, users):
        scores = np.zeros((len(users), self.n_items_))
        gram_kernels.score_all(users, *_arrays(self.user_history_), self.item_weights_, scores)
        return self._with_unknown_users(scores, users)

    def _scores_of_unknown_users(self):
        """Return about the mean user's scores: those that stay in proportion as a history."""
        scores = np.abs(self.item_weights_).sum(axis=0)
        for _ in range(POWER_STEPS):
            norm = np.linalg.norm(scores)
            scores = scores @ self.item_weights_ / (norm if norm > 0 else 1)
        return scores

    def _public_half(self):
        return ItemWeights(self.item_weights_)

    def _kept_rows(self, user):
        indptr, items, weights = _arrays(self.user_history_)
        own = slice(indptr[user], indptr[user + 1])
        return History(items[own], np.ones(own.stop - own.start), weights[own].astype(float))

    def _item_likeness(self):
        weights = self.item_weights_

        def partial_correlations(codes):
            there, back = weights[codes], weights[:, codes].T
            return np.sign(there) * np.sqrt(np.maximum(there * back, 0))

        return partial_correlations


def _arrays(matrix):
    return matrix.indptr, matrix.indices, matrix.data


# ------------------------------------------------------------------------- users' histories


def liked(rows):
    """Return interactions or a block with the rows of y > 0 only, and with all users and items."""
    mask = rows.values > 0
    if mask.all():
        return rows
    kept = np.concatenate([[0], np.cumsum(mask)])
    return replace(
        rows,
        indptr=kept[rows.indptr],
        items=rows.items[mask],
        values=rows.values[mask],
        weights=rows.weights[mask],
        times=None if rows.times is None else rows.times[mask],
    )


def histories(likes, dtype, half_life=None):
    """Return the users' rows of X: the faded weight of each item that they like, a CSR array."""
    weights, n_users = likes.weights * fading(likes, half_life), len(likes.indptr) - 1
    return sparse.csr_array(
        (weights.astype(dtype), likes.items, likes.indptr), shape=(n_users, likes.n_items)
    )


# --------------------------------------------------------------------------------- matrices


def n_pairs(n_items):
    """Return the number of entries of a symmetric matrix, each once."""
    return n_items * (n_items + 1) // 2


def n_items_of(triangle):
    """Return the number of items whose pairs fill a triangle."""
    return (np.sqrt(8 * len(triangle) + 1).astype(int) - 1) // 2


def add_gram(likes, half_life, senders, sums):
    """Add X'X, its pairs faded, of the clients of the mask to a triangle of float64."""
    zeros = np.zeros(len(senders), dtype=np.int64)
    gram_kernels.add_pairs(
        likes.client_indptr,
        likes.indptr,
        likes.items,
        zeros,
        likes.weights,
        ages(likes),
        rates(likes, half_life),
        senders,
        zeros,
        sums,
    )


def whole(triangle, n_items):
    """Return the symmetric matrix of a triangle."""
    matrix = np.empty((n_items, n_items), dtype=triangle.dtype)
    for i in range(n_items):
        matrix[i, : i + 1] = matrix[: i + 1, i] = triangle[n_pairs(i) : n_pairs(i + 1)]
    return matrix


def lower_part(matrix):
    """Return the triangle of a symmetric matrix."""
    return np.concatenate([matrix[i, : i + 1] for i in range(len(matrix))])


def regularized_inverse(triangle, n_items, reg):
    """P = (G + reg I)^-1 for the triangle G, as a whole matrix."""
    matrix = whole(triangle, n_items)
    matrix[np.diag_indices(n_items)] += reg
    # LAPACK's arrays are by column, and the matrix is symmetric.
    factor, info = lapack.dpotrf(matrix.T, lower=1)
    if info:
        # Not a sum of x x': some clients have sent wrong numbers.
        return np.linalg.inv(matrix)
    inverse, _ = lapack.dpotri(factor, lower=1, overwrite_c=1)
    inverse = inverse.T
    for i in range(n_items):
        inverse[i + 1 :, i] = inverse[i, i + 1 :]
    return inverse


def weights_of(inverse):
    """Return EASE's B = I - P diag(P)^-1, whose diagonal is 0."""
    weights = inverse / -np.diag(inverse)
    np.fill_diagonal(weights, 0)
    return weights
