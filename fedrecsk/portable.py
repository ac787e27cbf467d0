"""What a fitted model knows about items: scores for anybody's history, and their reasons.

This file needs nothing but NumPy and the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__: list[str] = []


@dataclass(frozen=True)
class History:
    """A user's rows, each item once: codes, ratings or preferences, and weights, all (n,)."""

    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray

    def liked(self) -> History:
        """Return the rows with a value above 0."""
        mask = self.values > 0
        return History(self.items[mask], self.values[mask], self.weights[mask])


@dataclass(frozen=True)
class ItemWeights:
    """Scores that add up rows of a matrix: EASE.

    Parameters
    ----------
    matrix : ndarray of shape (n_items, n_items)
        A user who likes item j with weight w has w times row j in its scores.
    """

    matrix: np.ndarray

    def contributions(self, history: History, item: int) -> tuple[float, np.ndarray]:
        """Return a score's part that is everybody's, and what each row adds to it, (n,)."""
        weights = np.where(history.values > 0, history.weights, 0.0)
        return 0.0, weights * self.matrix[history.items, item]


@dataclass(frozen=True)
class Ridge:
    """Scores ``offset_i + x_i . p`` whose p solves a ridge regression of the user's rows on x.

    For rows j with value y_j and weight w_j::

        (penalty + sum_j e_j (x_j x_j' + diag(v_j))) p = sum_j (t_j x_j + n^-1/2 z_j)

    with e = confidence w and t = e (y - offset) for ratings. For likes only rows with y > 0 count,
    with e = confidence w - shift, or confidence w y - shift, and t = 1 + e. p is linear in t and z,
    so each row has its own part of the score.

    Parameters
    ----------
    vectors : ndarray of shape (n_items, k)
        x.
    offset : ndarray of shape (n_items,)
    penalty : ndarray of shape (k, k)
        Column f is multiplied by the sum of the weights to the power ``power[f]``.
    power : ndarray of shape (k,)
    variance : ndarray of shape (n_items, k) or (0, k)
        v; 0 if it has no rows.
    prior : ndarray of shape (n_items, k) or (0, k)
        z; 0 if it has no rows.
    rates : bool
        Whether y are ratings; likes otherwise.
    confidence, shift : float
    counts_values : bool
        Whether y multiplies the weight of a like.
    """

    vectors: np.ndarray
    offset: np.ndarray
    penalty: np.ndarray
    power: np.ndarray
    variance: np.ndarray
    prior: np.ndarray
    rates: bool
    confidence: float
    shift: float = 0.0
    counts_values: bool = False

    @classmethod
    def of(cls, vectors: np.ndarray, penalty: np.ndarray, **others: Any) -> Ridge:
        """Return it with zeros in place of the arrays that are not given."""
        n_items, k = vectors.shape
        none = {"offset": np.zeros(n_items, vectors.dtype), "power": np.zeros(k)}
        none |= {"variance": np.zeros((0, k)), "prior": np.zeros((0, k))}
        return cls(vectors=vectors, penalty=penalty, **none | others)

    def contributions(self, history: History, item: int) -> tuple[float, np.ndarray]:
        """Return a score's part that is everybody's, and what each row adds to it, (n,)."""
        parts, matrix = np.zeros(len(history.items)), self._equations(history)
        if matrix is not None:
            counting, rows, matrix = matrix
            parts[counting] = rows @ np.linalg.solve(matrix, self.vectors[item].astype(float))
        return float(self.offset[item]), parts

    def _equations(self, history):
        """Return which rows count, their right sides (n, k), and the matrix; None without any."""
        counting = np.ones(len(history.items), bool) if self.rates else history.values > 0
        if not counting.any():
            return None
        items, values, weights = (
            column[counting] for column in (history.items, history.values, history.weights)
        )
        vectors = self.vectors[items].astype(float)
        if self.rates:
            extra = self.confidence * weights
            pull = extra * (values - self.offset[items])
        else:
            extra = self.confidence * weights * (values if self.counts_values else 1) - self.shift
            pull = 1 + extra
        matrix = self.penalty * weights.sum() ** self.power + (extra * vectors.T) @ vectors
        rows = pull[:, None] * vectors
        if len(self.variance):
            matrix[np.diag_indices_from(matrix)] += extra @ self.variance[items]
        if len(self.prior):
            rows += self.prior[items] / np.sqrt(len(items))
        return counting, rows, matrix
