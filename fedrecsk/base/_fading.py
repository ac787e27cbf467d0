"""Time in models of implicit feedback: histories that fade, and pairs of items that fade.

The time of a row counts only by the order that it gives to the rows of its user. Rows with the same
time share the mean of their positions, and rows without a time are the user's oldest, all at once.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np
import pandas as pd

from fedrecsk._utils.constraints import Column, HalfLife
from fedrecsk.data import _times

# With "auto", the half-life of a user with T rows is this many times the root of T.
AUTO = 0.7


@dataclass(eq=False, repr=False)
class FadingHistory:
    """Parameters of models in which a user's older rows count less."""

    _: KW_ONLY
    timestamps: Column | None = 2
    history_half_life: HalfLife = None

    @property
    def _reads_times(self):
        return self.timestamps is not None and self._fades

    def _times_of(self, X, *, all_users=False):
        if not self._reads_times:
            return None
        return _times.times_of_histories(X, self.timestamps, all_users=all_users)

    @property
    def _fades(self):
        """Whether any half-life is set."""
        return self.history_half_life is not None

    def _auto_life(self, name):
        """Return what "auto" stands for."""
        return "auto"


@dataclass(eq=False, repr=False)
class FadingPairs(FadingHistory):
    """Parameters of models that also let pairs of items fade with their distance in time."""

    _: KW_ONLY
    pair_half_life: HalfLife = None

    @property
    def _fades(self):
        return self.history_half_life is not None or self.pair_half_life is not None


def life_of(model, name):
    """Return a half-life of a model, None without one; a number, if "auto" stands for one."""
    life = getattr(model, name, None)
    return model._auto_life(name) if life == "auto" else life


def ages(rows):
    """Return by how many half positions each like is older than its user's latest, int32."""
    if rows.times is None or not len(rows.items):
        return np.zeros(len(rows.items), dtype=np.int32)
    users = np.repeat(np.arange(len(rows.indptr) - 1), np.diff(rows.indptr))
    times = np.where(np.isnan(rows.times), -np.inf, rows.times)
    # The mean position of rows with the same time, a multiple of a half.
    position = pd.Series(times).groupby(users).rank()
    last = position.groupby(users).transform("max")
    return (2 * (last - position)).to_numpy(np.int32)


def rates(rows, half_life):
    """Return how fast each user's weights decay per half position, (n_users,)."""
    counts = np.diff(rows.indptr)
    if half_life is None:
        return np.zeros(len(counts))
    lives = AUTO * np.sqrt(np.maximum(counts, 1)) if half_life == "auto" else half_life
    return np.broadcast_to(np.log(2) / 2 / lives, len(counts)).astype(np.float64)


def as_power(half_life):
    """Return a and b such that the half-life of a user with T rows is a T^b; None for None."""
    if half_life is None:
        return None
    return [AUTO, 0.5] if half_life == "auto" else [float(half_life), 0.0]


def fading(rows, half_life):
    """Return what each rating's weight is multiplied by, 1 for a user's latest, (n_ratings,)."""
    by_rating = np.repeat(rates(rows, half_life), np.diff(rows.indptr))
    return np.exp(-by_rating * ages(rows))
