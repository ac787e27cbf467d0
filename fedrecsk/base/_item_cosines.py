"""Count similar attributes of items as users who have both (`item_features` of ItemKNN)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.preprocessing import normalize

from fedrecsk.base._item_prior import (
    ItemContent,
    ItemFeatures,
    longer_histories,
    scaled,
    scaling,
)
from fedrecsk.base._item_weights import nearest_of, sparse_weights, weights_by_row
from fedrecsk.data import item_features as reading


class ItemCosines:
    """Add to each pair of items `weight` times the cosine of their attributes.

    Columns are multiplied by the logarithm of how rare they are, as in TF-IDF.
    """

    def __init__(self, features: Any, counts: Any, weight: float) -> None:
        self.counts, self.weight = counts, weight
        self.scaling: tuple[Any, Any] = scaling(features)
        if sparse.issparse(features) and self.scaling[0].any():
            features = features.toarray()  # of which `scaled` subtracts the means
        design = scaled(features, *self.scaling)
        squares = design.multiply(design) if sparse.issparse(design) else design**2
        shares = (np.asarray(squares.sum(axis=0)).ravel() + 1) / (design.shape[0] + 1)
        self.rarity: Any = np.maximum(-np.log(shares), 0)
        self.directions: Any = self._directions_of(features)

    def _directions_of(self, features):
        """Return rows of length 1, or 0 without attributes."""
        return normalize(scaled(features, *self.scaling) @ sparse.diags_array(self.rarity))

    def added_to(self, i: int, others: Any, values: Any) -> tuple[Any, Any]:
        """Return the items and numbers of row i, with what cosines add."""
        own = self.directions[[i]]
        own = own.toarray() if sparse.issparse(own) else own
        row = self.weight * np.maximum(self.directions @ own.ravel(), 0)
        row[others] += values
        row[i] = 0
        kept = np.flatnonzero(row)
        return kept, row[kept]

    def followed_by(self, features: Any) -> ItemCosines:
        """Return the cosines of these items and of new ones."""
        longer = copy.copy(self)
        if sparse.issparse(self.directions):
            new = self._directions_of(sparse.csr_array(features))
            longer.directions = sparse.vstack([self.directions, new], "csr")
        else:
            dense = features.toarray() if sparse.issparse(features) else features
            longer.directions = np.vstack([self.directions, self._directions_of(dense)])
        longer.counts = np.concatenate([self.counts, np.zeros(features.shape[0])])
        return longer

    def filled(self, counts: Any) -> Any:
        """Return items' counts as they are, because cosines predict none."""
        return counts


def cosines_of(content: ItemFeatures, counts: Any, weight: float) -> ItemCosines | None:
    """Return the ItemCosines of `item_features`, None without any."""
    if content.features is None:
        return None
    return ItemCosines(reading.aligned(content.features, content.items), counts, weight)


@dataclass(eq=False, repr=False)
class NearestContent(ItemContent):
    """Place new items near items with similar attributes."""

    def _with_items(self: Any, rows):
        cosines = self._content.followed_by(rows)
        power, had = self._direction.powers(self.power, self.history_power)
        there = self._weights_of_new(cosines, power, had)
        back = self._weights_of_new(cosines, had, power)
        blocks = [[self.item_weights_, back.T], [there, None]]
        return longer_histories(self, len(cosines.counts)) | {
            "item_weights_": sparse.block_array(blocks, format="csr"),
            "_content": cosines,
            "_popularity": np.append(self._popularity, np.zeros(rows.shape[0])),
        }

    def _weights_of_new(self: Any, cosines, power, history_power):
        """Return the largest weights from new items to known ones; with powers swapped, to new."""
        n_known, n_items = self.n_items_, len(cosines.counts)
        nothing, new = sparse.csr_array((n_items, n_items)), np.arange(n_known, n_items)
        powers = power, history_power, self.shrinkage
        rows = weights_by_row(new, nothing, cosines.counts, *powers, cosines)
        to_known = ((items[items < n_known], values[items < n_known]) for items, values in rows)
        width = min(self.n_neighbors, n_known)
        nearest = nearest_of(to_known, np.zeros(len(new)), width, self.item_weights_.dtype)
        return sparse_weights(*nearest, n_known)
