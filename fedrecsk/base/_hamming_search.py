"""Scores and lists of models whose users and items have binary codes.

What LightFR, DCF and DDL share: similarities are Hamming distances, and `recommend` searches codes.
"""

from __future__ import annotations

import numpy as np

from fedrecsk._utils.kernels import LazyModule
from fedrecsk.base import _batches

hamming_kernels: LazyModule = LazyModule("fedrecsk.base._hamming_kernels")


class HammingSearch:
    """Scores of a recommender that has `_user_planes`, `item_codes_`, `n_bits_`, `rating_scale_`.

    `_user_planes` are the users' codes, uint64 of shape (n_users, n_planes, n_words); plane p
    counts 2^p times.
    """

    # Similarity of a pair with an unknown user or item.
    _unknown_similarity = 0.5

    def _response(self, scores):
        low, high = self.rating_scale_
        return low + (high - low) * scores

    @property
    def _farthest(self):
        """The largest distance between codes of the fitted lengths."""
        return self.n_bits_ * (2 ** self._user_planes.shape[1] - 1)

    def _score_pairs(self, users, items):
        distances = np.empty(len(users), dtype=np.int64)
        for batch in _batches(len(users), 1):
            hamming_kernels.pairs(
                users[batch], items[batch], self._user_planes, self.item_codes_, distances[batch]
            )
        similarities = 1 - distances / self._farthest
        return self._response(np.where(distances < 0, self._unknown_similarity, similarities))

    def _score_all(self, users):
        board = np.empty((len(users), self.n_items_))
        near = np.empty(self.n_items_, dtype=np.int32)
        hamming_kernels.similarities(
            users, self._user_planes, _words(self.item_codes_), float(self._farthest), near, board
        )
        board[users < 0] = self._unknown_similarity
        return board

    def _best_items(self, users, n, eligible, barred):
        codes = self.item_codes_ if eligible is None else self.item_codes_[eligible]
        # The search finds the top of a list, for users that have codes.
        if (users < 0).any() or 16 * n > len(codes):
            return super()._best_items(users, n, eligible, barred)
        rows, items = barred
        if eligible is not None:
            places = np.minimum(np.searchsorted(eligible, items), len(eligible) - 1)
            inside = eligible[places] == items
            rows, items = rows[inside], places[inside]
        order = np.lexsort((items, rows))
        indptr = np.searchsorted(rows[order], np.arange(len(users) + 1))
        best = np.zeros((len(users), n), dtype=np.int64)
        distances = np.full(best.shape, -1)
        near = np.empty(hamming_kernels.BLOCK, dtype=np.int32)
        hamming_kernels.nearest_of_users(
            users,
            self._user_planes,
            _words(codes),
            indptr,
            items[order].astype(np.int64),
            near,
            best,
            distances,
        )
        best = best if eligible is None else eligible[best]
        return best, np.where(distances < 0, -np.inf, 1 - distances / self._farthest)


def _words(item_codes):
    """Items' codes word by word."""
    return np.ascontiguousarray(item_codes.T)
