"""Early stopping by losses that clients measure on their own held-out rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fedrecsk.data.interactions import Interactions
    from fedrecsk.protocol.blocks import Block
    from fedrecsk.protocol.keys import Key


def hold_out(
    data: Interactions, fraction: float, key: Key, codes: NDArray[np.int64] | None = None
) -> tuple[Interactions, Interactions]:
    """Let every client hold out some of its rows.

    Each user keeps at least one row for training. Which rows are held out depends only on the
    user's rows, its code and the key.

    Parameters
    ----------
    data : Interactions
    fraction : float in (0, 1)
        Share of each user's rows, rounded up or down at random.
    key : Key
    codes : ndarray of shape (n_users,) or None
        The users' codes in the fit, if `data` has a part of its users.

    Returns
    -------
    training, held_out : Interactions
        Both with the users, items and clients of `data`.

    Raises
    ------
    ValueError
        If no row can be held out.
    """
    lengths = np.diff(data.indptr)
    users = data.users
    place = np.arange(len(users)) - np.repeat(data.indptr[:-1], lengths)
    codes = np.arange(data.n_users) if codes is None else codes
    chance = key.uniform("held-out rows of a user", codes)
    n_held_out = np.minimum(np.floor(fraction * lengths + chance), lengths - 1)
    draws = key.uniform("held-out row", codes[users] * 2**32 + place)
    order = np.argsort(draws)
    order = order[np.argsort(users[order], kind="stable")]
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = place
    mask = rank < np.repeat(n_held_out, lengths)
    if not mask.any():
        raise ValueError(
            "early_stopping has no row to hold out, because hardly any user has more than one row; "
            "raise validation_fraction or use early_stopping=False."
        )
    return data.take(~mask), data.take(mask)


class HeldOut(NamedTuple):
    """Held-out rows of a block's users, which are numbered within the block.

    Attributes
    ----------
    users, items : ndarray of shape (n_ratings,)
    values, weights : ndarray of shape (n_ratings,)
    n_users, n_items : int
    ranks : ndarray of shape (n_ratings,)
        Position of each row among the rows of its user.
    """

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    n_users: int
    n_items: int
    ranks: np.ndarray

    @classmethod
    def of(cls, block: Block) -> HeldOut:
        """Make them from a block of held-out rows."""
        lengths = np.diff(block.indptr)
        users = np.repeat(np.arange(block.n_users), lengths)
        ranks = np.arange(len(users)) - np.repeat(block.indptr[:-1], lengths)
        return cls(
            users, block.items, block.values, block.weights, block.n_users, block.n_items, ranks
        )


@dataclass
class EarlyStopping:
    """The record of validation losses, at the server or of a centralised model.

    Parameters
    ----------
    tol : float
        Smallest decrease of the loss that counts as an improvement.
    patience : int
        Number of passes without improvement that end the fit.
    n_cohorts : int
        Number of rounds per pass, in which every client is reached about once. Each cohort has its
        own held-out rows, so models are judged by the mean over a pass.

    Attributes
    ----------
    message : Message, dict or None
        The best round's model, with the announcement; of a centralised model its parameters.
    best_loss : float
    best_round : int
    stopped : bool
    """

    tol: float
    patience: int
    n_cohorts: int = 1
    message: Any = None
    best_loss: float = float("inf")
    best_round: int = -1
    stopped: bool = False
    _target: float = float("inf")
    _rounds_without_progress: int = 0
    _last_losses: tuple = ()

    def be_patient(self, patience: int) -> None:
        """Change the patience; a stopped fit may then go on."""
        self.patience = patience
        self.stopped = self._rounds_without_progress >= patience * self.n_cohorts

    def judge(
        self,
        loss: float,
        round: int,
        message: Callable[[], Any],
        *,
        by_everybody: bool = True,
        is_last: bool = False,
    ) -> bool:
        """Record the loss of a round's model; returns whether it is the best so far.

        Parameters
        ----------
        loss : float
            NaN if no client has measured it.
        round : int
        message : callable
            Returns the model's message.
        by_everybody : bool, default=True
            Whether all clients measured it, and not only a cohort.
        is_last : bool, default=False
            Whether this is the last round. A fit with fewer rounds than a pass is measured by the
            rounds that it has.
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
