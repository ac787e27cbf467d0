"""Stopping on errors that clients measure on rows of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedrecsk._order import stable_order
from fedrecsk.simulation.messages import Message


def hold_out(data, fraction, key):
    """Let every client hold out some of its rows.

    Each user keeps at least one row for training. Which rows are held out depends on the
    user's own rows, its code and the key alone.

    Parameters
    ----------
    data : Interactions
    fraction : float in (0, 1)
        Share of each user's rows, rounded up or down at random.
    key : Key

    Returns
    -------
    training, held_out : Interactions
        With the users, items and clients of `data`.

    Raises
    ------
    ValueError
        If no row can be spared.
    """
    lengths = np.diff(data.indptr)
    users = data.users
    place = np.arange(len(users)) - np.repeat(data.indptr[:-1], lengths)
    chance = key.uniform("held-out rows of a user", np.arange(data.n_users))
    n_held_out = np.minimum(np.floor(fraction * lengths + chance), lengths - 1)
    draws = key.uniform("held-out row", users * 2**32 + place)
    order = np.argsort(draws)
    order = order[stable_order(users[order], data.n_users)]
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = place
    mask = rank < np.repeat(n_held_out, lengths)
    if not mask.any():
        raise ValueError(
            "early_stopping has no row to hold out, because hardly any user has more than one; "
            "raise validation_fraction or use early_stopping=False."
        )
    return data.take(~mask), data.take(mask)


class HeldOut(NamedTuple):
    """Held-out rows of a block's users, whose numbers count within the block.

    Attributes
    ----------
    users, items : ndarray of shape (n_ratings,)
    values, weights : ndarray of shape (n_ratings,)
    n_users, n_items : int
    ranks : ndarray of shape (n_ratings,)
        Number of each row among its user's.
    """

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    n_users: int
    n_items: int
    ranks: np.ndarray

    @classmethod
    def of(cls, block):
        """From a block of them."""
        lengths = np.diff(block.indptr)
        users = np.repeat(np.arange(block.n_users), lengths)
        ranks = np.arange(len(users)) - np.repeat(block.indptr[:-1], lengths)
        return cls(
            users, block.items, block.values, block.weights, block.n_users, block.n_items, ranks
        )


@dataclass
class EarlyStopping:
    """The server's memory of how well each round's model did.

    Parameters
    ----------
    tol : float
        What counts as an improvement.
    patience : int
        Passes without improvement that end the fit.
    n_cohorts : int
        Rounds of a pass, in which every client is reached about once: cohorts measure on rows of
        their own, so that models are judged by the mean over a pass.

    Attributes
    ----------
    message : Message or None
        The best round's model, with the announcement.
    best_loss : float
    best_round : int
    stopped : bool
    """

    tol: float
    patience: int
    n_cohorts: int = 1
    message: Message | None = None
    best_loss: float = float("inf")
    best_round: int = -1
    stopped: bool = False
    _target: float = float("inf")
    _rounds_without_progress: int = 0
    _last_losses: tuple = ()

    def be_patient(self, patience):
        """Take another patience, which a stopped fit may still have."""
        self.patience = patience
        self.stopped = self._rounds_without_progress >= patience * self.n_cohorts

    def judge(self, loss, round, message, *, by_everybody=True, is_last=False):
        """Take the loss of a round's model; returns whether it is the best so far.

        Parameters
        ----------
        loss : float
            NaN: nobody could measure it.
        round : int
        message : callable
            Makes the model's message.
        by_everybody : bool, default=True
            Whether all clients were asked, instead of a cohort.
        is_last : bool, default=False
            Whether there will be no more: a fit of fewer rounds than a pass is judged by those.
        """
        if np.isnan(loss):
            return False
        if not by_everybody:
            self._last_losses = (*self._last_losses, loss)[-self.n_cohorts :]
            if len(self._last_losses) < self.n_cohorts and not is_last:
                return False
            loss = sum(self._last_losses) / len(self._last_losses)
        is_best = loss < self.best_loss
        if is_best:
            self.message, self.best_loss, self.best_round = message(), loss, round
        if loss < self._target - self.tol:
            self._target, self._rounds_without_progress = loss, 0
        else:
            self._rounds_without_progress += 1
        self.stopped = self._rounds_without_progress >= self.patience * self.n_cohorts
        return is_best
