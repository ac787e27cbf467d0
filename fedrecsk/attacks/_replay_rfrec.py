"""What one client of RFRec or RFRecF uploads, computed from a guess of its private data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import expit


class Move(NamedTuple):
    """One thing that a client does in a round.

    Attributes
    ----------
    what : {"step", "mean", "send"}
        A gradient step, a move towards the server's mean, or an upload.
    center : ndarray of shape (n_rated, width)
        What the server has sent last, for the client's own items.
    rate, pull : float
        Of a gradient step: its size, and the weight of the coupling to `center`.
    """

    what: str
    center: np.ndarray
    rate: float = 0.0
    pull: float = 0.0


class Replay:
    """A client with one user whose ratings all weigh 1, replayed for many guesses at a time.

    Parameters
    ----------
    model : RFRec or RFRecF
        With its hyperparameters.
    announced : Message
        The fields "scale" and, unless there is local noise, "n_ratings".
    items : ndarray of shape (n_rated,)
        Codes of the items that the client is believed to have rated.
    moves : list of Move
    """

    def __init__(self, model, announced, items, moves):
        self.model, self.moves = model, moves
        self.level = float(announced["scale"].values[2])
        low, high = announced["scale"].values[:2]
        levels = np.arange(low, high + 0.5)
        self.whole_ratings = (levels - low) / ((high - low) or 1.0)
        self.of_items = np.zeros((len(items), model._width))
        if "n_ratings" in announced:
            counts = announced["n_ratings"].values[items].astype(np.float64)
            reg_item, reg_bias = model._penalties_on_items(counts)
            self.of_items += reg_item[:, None]
            self.of_items[:, 0] = reg_bias
        reg_user, reg_bias = model._penalties_on_users(np.array([float(len(items))]))
        self.of_user = np.repeat(np.float64(reg_user), model._width)
        self.of_user[0] = reg_bias[0]

    def run(self, users, ratings, path=None):
        """Replay the moves.

        Parameters
        ----------
        users : ndarray of shape (n_guesses, width)
            Users' vectors before the first round; column 0 has their biases, if there are any.
        ratings : ndarray of shape (n_guesses, n_rated)
            Ratings scaled to [0, 1].
        path : list of ndarray of shape (1 or n_guesses, width), or None
            Users' vectors before each step, in place of `users`. None: they are computed.

        Returns
        -------
        sent : ndarray of shape (n_guesses, n_uploads, n_rated, width)
            The item vectors in each upload.
        taken : list of ndarray of shape (n_guesses, width)
            Users' vectors before each step, and last those after all steps.
        """
        model, clip = self.model, self.model._clip
        user = Descent(model, users)
        first = self.moves[0].center
        held = Descent(model, np.repeat(first[None], len(ratings), axis=0))
        sent, taken = [], []
        for move in self.moves:
            if move.what == "send":
                sent.append(held.now if clip is None else np.clip(held.now, -clip, clip))
            elif move.what == "mean":
                held.now = held.now + float(model._share) * (move.center - held.now)
            else:
                now = user.now if path is None else path[len(taken)]
                taken.append(now)
                of_items, of_user = self._gradients(move, held.now, now, ratings)
                held.step(of_items, move.rate)
                user.now = now
                user.step(of_user, move.rate)
        return np.stack(sent, axis=1), [*taken, user.now]

    def _gradients(self, move, held, user, ratings):
        """The gradients by the client's items and by its user's vector."""
        model = self.model
        partner, level = user.copy(), self.level
        if model.biases:
            level, partner[:, 0] = level + user[:, :1], 1.0
        scores = level + np.matmul(held, partner[:, :, None])[:, :, 0]
        if model.link == "sigmoid":
            estimates = expit(scores)
            slopes = -2 * (ratings - estimates) * estimates * (1 - estimates)
        else:
            slopes = -2 * (ratings - scores)
        of_items = slopes[:, :, None] * partner[:, None] + 2 * self.of_items * held
        if move.pull:
            of_items += move.pull * (held - move.center)
        of_user = np.matmul(slopes[:, None], held)[:, 0]
        if model.biases:
            of_user[:, 0] = slopes.sum(axis=1)
        return of_items, of_user + 2 * self.of_user * user


class Descent:
    """Numbers that take steps of Adam or of plain gradient descent, as the model does.

    Parameters
    ----------
    model : RFRec or RFRecF
    now : ndarray
        The numbers before the first step.
    """

    def __init__(self, model, now):
        self.model, self.now = model, np.array(now, dtype=np.float64)
        self.mean, self.square, self.n_steps = 0.0, 0.0, 0

    def step(self, gradient, rate):
        """Take one step down this gradient."""
        model = self.model
        if model.optimizer == "gd":
            self.now = self.now - rate * gradient
            return
        self.n_steps += 1
        self.mean = model.beta_1 * self.mean + (1 - model.beta_1) * gradient
        self.square = model.beta_2 * self.square + (1 - model.beta_2) * gradient**2
        size = np.sqrt(self.square / (1 - model.beta_2**self.n_steps)) + model.epsilon
        self.now = self.now - rate / (1 - model.beta_1**self.n_steps) * self.mean / size
