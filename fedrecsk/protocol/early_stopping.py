"""Early stopping by what clients measure on their own held-out rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fedrecsk.data.interactions import Interactions
    from fedrecsk.protocol.keys import Key


M = TypeVar("M")


class HoldOut(NamedTuple):
    """Which rows each user holds out: a share, at random or, where times are known, the latest."""

    share: float
    latest: bool = False


def hold_out(
    data: Interactions,
    which: HoldOut,
    key: Key,
    codes: NDArray[np.int64] | None = None,
    *,
    is_device: bool = False,
) -> tuple[Interactions, Interactions]:
    """Hold out a share of each user's rows, but never all; return training and held-out rows.

    Which ones depends only on the user's rows, its code (of `codes`, if `data` has some of the
    users only) and the key; rows of equal times are drawn at random. A device may hold out no row,
    because other devices do.
    """
    lengths = np.diff(data.indptr)
    users = data.users
    place = np.arange(len(users)) - np.repeat(data.indptr[:-1], lengths)
    codes = np.arange(data.n_users) if codes is None else codes
    chance = key.uniform("held-out rows of a user", codes)
    n_held_out = np.minimum(np.floor(which.share * lengths + chance), lengths - 1)
    draws = key.uniform("held-out row", codes[users] * 2**32 + place)
    order = np.argsort(draws)
    if which.latest:
        times = np.where(np.isnan(data.times), -np.inf, data.times)
        order = order[np.argsort(-times[order], kind="stable")]
    order = order[np.argsort(users[order], kind="stable")]
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = place
    mask = rank < np.repeat(n_held_out, lengths)
    if not mask.any() and not is_device:
        raise ValueError(
            "There is no row to hold out, because hardly any user has more than one row; raise "
            "validation_fraction, or do without early stopping or search."
        )
    return data.take(~mask), data.take(mask)


@dataclass
class EarlyStopping(Generic[M]):
    """The record of validation losses, at the server or of a centralised model.

    `patience` passes without an improvement by more than `tol` end the fit. In the `n_cohorts`
    rounds of a pass every client is reached about once. Each cohort has its own held-out rows, so
    models are judged by the mean over a pass. `message` is the best round's model, with the
    announcement; of a centralised model its parameters.
    """

    tol: float
    patience: int
    n_cohorts: int = 1
    message: M | None = None
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
        message: Callable[[], M],
        *,
        by_everybody: bool = True,
        is_last: bool = False,
    ) -> bool:
        """Record the loss of a round's model; return whether it is the best so far.

        The loss is NaN if no client has measured it. With fewer rounds than a pass, the last round
        is judged by all that there are.
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
