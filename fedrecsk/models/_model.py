"""Fitted models: their base class, and kinds by vectors and by weights between items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedrecsk import metrics
from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.memory import batches
from fedrecsk.portable import ItemWeights, Ridge

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

score_kernels: LazyModule = LazyModule("fedrecsk.models._score_kernels")

# The most items whose weights a file holds: they fill 400 MB.
MOST_ITEMS = 10_000


def identity(scores: Floats) -> Floats:
    """Return scores as predictions."""
    return scores


def clipped(low: float, high: float) -> Callable[[Floats], Floats]:
    """Return the response that clips scores to a rating scale.

    Examples
    --------
    >>> from fedrecsk.models import clipped
    >>> import numpy as np
    >>> clipped(1, 5)(np.array([0.5, 3.0, 7.0]))
    array([1., 3., 5.])
    """
    return partial(np.clip, a_min=low, a_max=high)


@dataclass(frozen=True, eq=False, kw_only=True)
class Model(ABC):
    """A fitted model: scores of users and items by their codes, -1 for unknown ones.

    It looks into the fitted attributes it is made of, so it is not for keeping after another fit.

    Attributes
    ----------
    n_items : int
    response : function from scores to predictions
        It keeps the order of scores, and may make ties.
    unknown : function or None
        Returns the scores (n_items,) of users of whom nothing is known; None: all are 0.
    make_rule : function or None
        Returns the rule of :mod:`fedrecsk.portable` by which a history gives scores. None: there
        is none.
    deviations : function or None
        Returns the standard deviations of the ratings of pairs, (n,). None: there are none.
    """

    n_items: int
    response: Callable[[Floats], Floats] = identity
    unknown: Callable[[], NDArray[np.floating]] | None = None
    make_rule: Callable[[], ItemWeights | Ridge] | None = None
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
        return None if self.make_rule is None else self.make_rule()

    def _with_unknown(self, scores, users, items=None):
        """Add the scores of unknown users to those of pairs or, without items, to their rows."""
        is_unknown = users < 0 if items is None else (users < 0) & (items >= 0)
        if self.unknown is not None and is_unknown.any():
            common = self.unknown()
            scores[is_unknown] += common if items is None else common[items[is_unknown]]
        return scores


@dataclass(frozen=True, eq=False, kw_only=True)
class Scores(Model):
    """A model of two functions: `pairs` scores pairs, and `board` all items for users."""

    pairs: Callable[[Integers, Integers], Floats]
    board: Callable[[Integers], Floats]

    def score_pairs(self, users: Integers, items: Integers) -> Floats:
        return self.pairs(users, items)

    def score_all(self, users: Integers) -> Floats:
        return self.board(users)


# ----------------------------------------------------------------- vectors and biases


@dataclass(frozen=True, eq=False, kw_only=True)
class Factors(Model):
    """Scores by biases and vectors, without the parts of unknown users and items.

    The score of a pair is ``level + user_bias[u] + item_bias[i] + users[u] @ items[i]``.
    """

    level: float
    user_bias: NDArray[np.floating]
    item_bias: NDArray[np.floating]
    users: NDArray[np.floating]
    items: NDArray[np.floating]

    @classmethod
    def of(cls, fitted: Mapping[str, Any], **parts: Any) -> Self:
        """Build the model from fitted attributes, by their names; a missing one counts as 0."""
        n_users, n_items = fitted["n_users_"], fitted["n_items_"]
        own = {
            "level": float(fitted.get("global_bias_", 0.0)),
            "user_bias": fitted.get("user_bias_", np.zeros(n_users)),
            "item_bias": fitted.get("item_bias_", np.zeros(n_items)),
            "users": fitted.get("user_factors_", np.zeros((n_users, 0))),
            "items": fitted.get("item_factors_", np.zeros((n_items, 0))),
        }
        return cls(n_items=n_items, **own | parts)

    def score_pairs(self, users: Integers, items: Integers) -> Floats:
        linear = self.level, self.user_bias, self.item_bias, self.users, self.items
        return self._with_unknown(linear_scores(users, items, *linear), users, items)

    def score_all(self, users: Integers) -> Floats:
        known = users >= 0
        # With the biases as two more columns, one product gives all scores.
        left = np.zeros((len(users), self.users.shape[1] + 2))
        left[known, :-2] = self.users[users[known]]
        left[known, -2] = self.user_bias[users[known]]
        left[:, -2] += self.level
        left[:, -1] = 1
        # C order, in which it is filled fastest.
        right = np.empty((len(self.item_bias), left.shape[1]))
        right[:, :-2], right[:, -2], right[:, -1] = self.items, 1, self.item_bias
        return self._with_unknown(left @ right.T, users)


def linear_scores(users: np.ndarray, items: np.ndarray, *linear: Any) -> NDArray[np.float64]:
    """Return scores (n,) of pairs, given the level, biases and vectors of users and items."""
    scores = np.empty(len(users))
    # In batches, because Ctrl-C is noticed only between two calls of a kernel.
    for batch in batches(len(users), 1):
        score_kernels.pairs_by_factors(users[batch], items[batch], *linear, scores[batch])
    return scores


# ---------------------------------------------------------------- weights between items


@dataclass(frozen=True, eq=False, kw_only=True)
class Weights(Model):
    """Scores ``x_u B`` of a user's history x_u, by a dense matrix B."""

    matrix: Any
    # A CSR array with a row for each user.
    histories: Any

    @classmethod
    def of(cls, fitted: Mapping[str, Any]) -> Self:
        """Return the model of fitted attributes, which ranks by popularity for unknown users."""
        # Only a client's own model has no counts, and users of its own.
        popularity = fitted.get("_popularity")
        return cls(
            n_items=fitted["n_items_"],
            unknown=None if popularity is None else lambda: popularity,
            matrix=fitted["item_weights_"],
            histories=fitted["user_history_"],
        )

    def score_pairs(self, users: Integers, items: Integers) -> Floats:
        scores = np.zeros(len(users))
        score_kernels.pairs_by_weights(users, items, *self._rows, self.matrix, scores)
        return self._with_unknown(scores, users, items)

    def score_all(self, users: Integers) -> Floats:
        scores = np.zeros((len(users), self.n_items))
        score_kernels.all_by_weights(users, *self._rows, self.matrix, scores)
        return self._with_unknown(scores, users)

    def rule(self, item: int | None = None) -> ItemWeights:
        return ItemWeights(self.matrix)

    @property
    def _rows(self):
        return self.histories.indptr, self.histories.indices, self.histories.data


class NearestWeights(Weights):
    """The same by a sparse matrix B, the weights of each item's nearest items."""

    def score_pairs(self, users: Integers, items: Integers) -> Floats:
        known, scores = (users >= 0) & (items >= 0), np.zeros(len(users))
        weights = self.matrix.T.tocsr()[items[known]]
        scores[known] = self.histories[users[known]].multiply(weights).sum(axis=1)
        return self._with_unknown(scores, users, items)

    def score_all(self, users: Integers) -> Floats:
        known, scores = users >= 0, np.zeros((len(users), self.n_items))
        scores[known] = (self.histories[users[known]] @ self.matrix).toarray()
        return self._with_unknown(scores, users)

    def rule(self, item: int | None = None) -> ItemWeights:
        if item is not None:
            # One column is enough, and there may be too many items for all of them.
            column = self.matrix[:, [item]].toarray()
            return ItemWeights(np.broadcast_to(column, (self.n_items, self.n_items)))
        if self.n_items > MOST_ITEMS:
            raise ValueError(
                f"The model has {self.n_items} items, and export takes at most {MOST_ITEMS}, "
                "because the file has the weights of all pairs of items."
            )
        return ItemWeights(self.matrix.toarray())
