"""The base class of fitted models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk import metrics

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedrecsk.portable import ItemWeights, Ridge

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

SCORES_PER_BATCH = 2**22


def batches(n_rows: int, n_columns: int) -> list[slice]:
    """Cut rows, so that a batch has no more scores than fit into memory."""
    size = max(1, SCORES_PER_BATCH // max(1, n_columns))
    return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def as_they_are(scores: Floats) -> Floats:
    """Return scores as predictions."""
    return scores


def clipped(low: float, high: float) -> Callable[[Floats], Floats]:
    """Return the response that clips scores to a rating scale."""
    return partial(np.clip, a_min=low, a_max=high)


@dataclass(frozen=True, eq=False, kw_only=True)
class Model(ABC):
    """A fitted model: scores of users and items by their codes, -1 for unknown ones.

    Attributes
    ----------
    n_items : int
    response : function from scores to predictions
        It keeps the order of scores, and may make ties.
    unknown : function or None
        Returns the scores (n_items,) of users of whom nothing is known; None: all are 0.
    formula : function or None
        Returns the rule of :mod:`fedrecsk.portable` by which a history gives scores. None: there
        is none.
    deviations : function or None
        Returns the standard deviations of the ratings of pairs, (n,). None: there are none.
    """

    n_items: int
    response: Callable[[Floats], Floats] = as_they_are
    unknown: Callable[[], NDArray[np.floating]] | None = None
    formula: Callable[[], ItemWeights | Ridge] | None = None
    deviations: Callable[[Integers, Integers], Floats] | None = None

    @abstractmethod
    def score_pairs(self, users: Integers, items: Integers) -> Floats:
        """Score pairs, before the response; shape (n,)."""

    @abstractmethod
    def score_all(self, users: Integers) -> Floats:
        """Score every item for users, before the response; shape (n, n_items)."""

    def predict(self, users: Integers, items: Integers) -> Floats:
        """Predict the ratings or preferences of pairs, (n,)."""
        return self.response(self.score_pairs(users, items))

    def best(
        self, users: Integers, n: int, eligible: Integers | None, barred: Integers
    ) -> tuple[Integers, Floats]:
        """Return codes and scores of each user's n best items, ties by code; -inf if too few.

        The ascending codes `eligible` are to choose from (None: all); `barred` are positions in
        `users` and items not to recommend.
        """
        board = self.score_all(users)
        board[barred[0], barred[1]] = -np.inf
        if eligible is not None:
            board = np.take(board, eligible, axis=1)
        top = metrics.top_k(board, n)
        items, scores = top, np.take_along_axis(board, top, axis=1)
        if eligible is not None:
            items = eligible[top]
        return items, np.where(np.isfinite(scores), scores, -np.inf)

    def rule(self, item: int | None = None) -> ItemWeights | Ridge | None:
        """Return the rule for scores from a history, or one that suffices for an item's scores."""
        return None if self.formula is None else self.formula()

    def _with_unknown(self, scores, users, items=None):
        """Add the scores of unknown users to those of pairs or, without items, to their rows."""
        is_unknown = users < 0 if items is None else (users < 0) & (items >= 0)
        if self.unknown is not None and is_unknown.any():
            common = self.unknown()
            scores[is_unknown] += common if items is None else common[items[is_unknown]]
        return scores


@dataclass(frozen=True, eq=False, kw_only=True)
class Scores(Model):
    """A model of two functions, which score pairs and all items."""

    pairs: Callable[[Integers, Integers], Floats]
    board: Callable[[Integers], Floats]

    def score_pairs(self, users: Integers, items: Integers) -> Floats:
        return self.pairs(users, items)

    def score_all(self, users: Integers) -> Floats:
        return self.board(users)
