"""Stopping on errors that clients measure on rows of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrecsk.simulation.messages import Dense, Message


def hold_out(data, fraction, key):
    """Let every client hold out some of its rows.

    Each user keeps at least one row for training. Which rows are held out depends on the
    data and the key alone.

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
    chance = key.uniform("held-out rows of a user", np.arange(data.n_users))
    n_held_out = np.minimum(np.floor(fraction * lengths + chance), lengths - 1)
    draws = key.uniform("held-out row", np.arange(len(data.items)))
    order = np.lexsort((draws, data.users))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(data.indptr[:-1], lengths)
    mask = rank < np.repeat(n_held_out, lengths)
    if not mask.any():
        raise ValueError(
            "early_stopping has no row to hold out, because hardly any user has more than one; "
            "raise validation_fraction or use early_stopping=False."
        )
    return data.take(~mask), data.take(mask)


@dataclass
class EarlyStopping:
    """The server's memory of how well each round's model did.

    Attributes
    ----------
    best : dict or None
        Fitted attributes of the best round's model.
    best_loss : float
    best_round : int
    stopped : bool
    """

    best: dict | None = None
    best_loss: float = float("inf")
    best_round: int = -1
    stopped: bool = False
    _target: float = float("inf")
    _rounds_without_progress: int = 0

    def update(self, attributes, losses, run, hears, delivers, *, tol, patience):
        """Collect the errors of the model just heard and decide; returns their mean.

        Each client that hears uploads two numbers, its sum of losses on held-out rows and its
        sum of weights; the server sees totals only.

        Parameters
        ----------
        attributes : dict
            Fitted attributes of that model.
        losses : ndarray of shape (n_clients, 2)
            The two numbers of every client.
        run : Run
        hears, delivers : ndarray of shape (n_clients,), dtype bool
            Clients that have heard the model, and those whose uploads arrive.
        tol, patience : float, int
        """
        arrive = hears & delivers
        parts = [
            Message(validation_loss=Dense(losses[b.clients[arrive[b.clients]]].sum(axis=0)))
            for b in run.blocks
        ]
        upload = run.transport.up(run.blocks, parts, hears, arrive, run.key.at(run.n_rounds))
        if upload is None or upload["validation_loss"].sum[1] == 0:
            return float("nan")
        total, weight = upload["validation_loss"].sum
        loss = float(total / weight)
        if loss < self.best_loss:
            self.best, self.best_loss, self.best_round = attributes, loss, run.n_rounds - 1
        if loss < self._target - tol:
            self._target, self._rounds_without_progress = loss, 0
        else:
            self._rounds_without_progress += 1
        self.stopped = self._rounds_without_progress >= patience
        return loss


def losses_by_client(held_out, losses, weights):
    """Each client's sum of losses on its held-out rows and sum of their weights.

    Parameters
    ----------
    held_out : Interactions
    losses, weights : ndarray of shape (n_ratings of held_out,)

    Returns
    -------
    sums : ndarray of shape (n_clients, 2)
    """
    clients = np.repeat(np.arange(held_out.n_clients), np.diff(held_out.rating_indptr))
    sums = [
        np.bincount(clients, column, minlength=held_out.n_clients) for column in (losses, weights)
    ]
    return np.stack(sums, axis=1)
