"""What a client of SemiDFEGL keeps from round to round."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class EgoGraphs(NamedTuple):
    """The users' surroundings in the last round that their client took part in.

    Attributes
    ----------
    n_common : ndarray of shape (n_users, 1)
        Number of predicted items that the user is connected to (k).
    own : ndarray of shape (n_users, 1)
        Share of own items among the user's neighbours.
    scale : ndarray of shape (n_users, 1)
        1 / sqrt(degree of the user).
    common : ndarray of shape (n_users, d)
        Sum of the predicted items, divided by the root of their degree.
    peers : ndarray of shape (n_users, d)
        Mean of what the devices of the group have sent.
    first : ndarray of shape (n_users, d)
        Layer 1.
    """

    n_common: np.ndarray
    own: np.ndarray
    scale: np.ndarray
    common: np.ndarray
    peers: np.ndarray
    first: np.ndarray


class Moments(NamedTuple):
    """Adam's moments and number of steps, by user."""

    mean: np.ndarray
    square: np.ndarray
    n_steps: np.ndarray

    def direction(self, method: Any, gradient: np.ndarray, users: np.ndarray) -> np.ndarray:
        """Update those of the users of a mask; returns their directions."""
        self.n_steps[users] += 1
        for moment, beta, power in (
            (self.mean, method.BETA_1, 1),
            (self.square, method.BETA_2, 2),
        ):
            moment[users] = beta * moment[users] + (1 - beta) * gradient**power
        mean = self.mean[users] / (1 - method.BETA_1 ** self.n_steps[users])
        square = self.square[users] / (1 - method.BETA_2 ** self.n_steps[users])
        return mean / (np.sqrt(square) + method.EPSILON)
