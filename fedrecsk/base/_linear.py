"""Scores of models with factors and biases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedrecsk._utils.kernels import LazyModule
from fedrecsk.cluster import _frames

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

scores_kernels: LazyModule = LazyModule("fedrecsk.base._score_kernels")


SCORES_PER_BATCH = 2**22


class LinearScores:
    """Scores from `global_bias_`, `user_bias_`, `item_bias_`, `user_factors_`, `item_factors_`.

    Any of them may be missing.
    """

    def _score_pairs(self, users, items):
        """Score pairs of codes, -1 for unknown; shape (n,)."""
        scores = linear_scores(users, items, *self._linear_part())
        return self._response(self._with_unknown_users(scores, users, items))

    def _score_all(self, users):
        """Score every item for users (codes, -1 for unknown); shape (n, n_items).

        Scores are those before `_response`, which may turn different scores into ties.
        """
        offset, user_bias, item_bias, user_factors, item_factors = self._linear_part()
        known = users >= 0
        # With the biases as two more columns, one product gives all scores.
        left = np.column_stack(
            [
                np.where(known[:, None], user_factors[users], 0).astype(np.float64),
                np.where(known, user_bias[users], 0) + offset,
                np.ones(len(users)),
            ]
        )
        # C order, in which it is filled fastest.
        right = np.empty((len(item_bias), left.shape[1]))
        right[:, :-2], right[:, -2], right[:, -1] = item_factors, 1, item_bias
        return self._with_unknown_users(left @ right.T, users)

    def _scores_of_unknown_users(self):
        """Return each item's score for users of whom nothing is known, (n_items,); None: all 0."""
        return None

    def _with_unknown_users(self, scores, users, items=None):
        """Add the scores of unknown users to those of pairs or, without items, to their rows."""
        unknown = users < 0 if items is None else (users < 0) & (items >= 0)
        if unknown.any():
            common = self._scores_of_unknown_users()
            if common is not None:
                scores[unknown] += common if items is None else common[items[unknown]]
        return scores

    def _linear_part(self):
        # Vectors that live on a cluster are not missing.
        _frames.check_users_are_here(self)
        n_users, n_items = self.n_users_, self.n_items_
        return (
            float(getattr(self, "global_bias_", 0.0)),
            getattr(self, "user_bias_", np.zeros(n_users)),
            getattr(self, "item_bias_", np.zeros(n_items)),
            getattr(self, "user_factors_", np.zeros((n_users, 0))),
            getattr(self, "item_factors_", np.zeros((n_items, 0))),
        )


def linear_scores(users: np.ndarray, items: np.ndarray, *linear_part: Any) -> NDArray[np.float64]:
    """Return scores (n,) of pairs of codes, -1 for unknown, under `Recommender._linear_part`."""
    scores = np.empty(len(users))
    # In batches, because Ctrl-C is noticed only between two calls of a kernel.
    for batch in _batches(len(users), 1):
        scores_kernels.pairs(users[batch], items[batch], *linear_part, scores[batch])
    return scores


def _batches(n_rows, n_columns):
    size = max(1, SCORES_PER_BATCH // max(1, n_columns))
    return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]
