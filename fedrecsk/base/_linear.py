"""Scores of models with factors and biases."""

from __future__ import annotations

import numpy as np

from fedrecsk import _kernels

SCORES_PER_BATCH = 2**22


class LinearScores:
    """Scores from `global_bias_`, `user_bias_`, `item_bias_`, `user_factors_`, `item_factors_`.

    Any of them may be missing.
    """

    def _score_pairs(self, users, items):
        """Score pairs of codes, -1 for unknown; shape (n,)."""
        return self._response(linear_scores(users, items, *self._linear_part()))

    def _score_all(self, users):
        """Score every item for users (codes, -1 for unknown); shape (n, n_items).

        These are the scores before `_response`, which may make ties of them.
        """
        offset, user_bias, item_bias, user_factors, item_factors = self._linear_part()
        known = users >= 0
        # One product with the biases as two more columns writes the board only once.
        left = np.column_stack(
            [
                np.where(known[:, None], user_factors[users], 0).astype(np.float64),
                np.where(known, user_bias[users], 0) + offset,
                np.ones(len(users)),
            ]
        )
        # Item by item, which is the fast way to write it.
        right = np.empty((len(item_bias), left.shape[1]))
        right[:, :-2], right[:, -2], right[:, -1] = item_factors, 1, item_bias
        return left @ right.T

    def _linear_part(self):
        n_users, n_items = self.n_users_, self.n_items_
        return (
            float(getattr(self, "global_bias_", 0.0)),
            getattr(self, "user_bias_", np.zeros(n_users)),
            getattr(self, "item_bias_", np.zeros(n_items)),
            getattr(self, "user_factors_", np.zeros((n_users, 0))),
            getattr(self, "item_factors_", np.zeros((n_items, 0))),
        )


def linear_scores(users, items, *linear_part):
    """Scores of pairs of codes, -1 for unknown, under `Recommender._linear_part`; shape (n,)."""
    scores = np.empty(len(users))
    # Ctrl-C comes through between two calls of a kernel.
    for batch in _batches(len(users), 1):
        _kernels.scores.pairs(users[batch], items[batch], *linear_part, scores[batch])
    return scores


def _batches(n_rows, n_columns):
    size = max(1, SCORES_PER_BATCH // max(1, n_columns))
    return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]
