"""Models that add up weights between items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk._utils.kernels import LazyModule
from fedrecsk.models._model import Model
from fedrecsk.portable import ItemWeights

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from fedrecsk.models._model import Floats, Integers

score_kernels: LazyModule = LazyModule("fedrecsk.models._score_kernels")

# The most items whose weights a file holds: they fill 400 MB.
MOST_ITEMS = 10_000


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
