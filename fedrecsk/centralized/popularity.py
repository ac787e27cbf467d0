"""Popularity: the same list for all users."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrecsk._utils.docs import documented
from fedrecsk.base import RankingMixin, Recommender, check_likes
from fedrecsk.models import Factors


@documented
@dataclass(eq=False, repr=False)
class Popularity(RankingMixin, Recommender):
    """Rank items by how many users have them.

    The baseline for ranking models. The preference of any user for an item is estimated as the
    item's share: the weight of its interactions with y > 0, over the number of users.

    Parameters
    ----------
    {items}

    Attributes
    ----------
    item_popularity_ : ndarray of shape (n_items,), dtype float64
        Share of the users that have the item (with unit weights).
    {ids}

    Raises
    ------
    ValueError
        By fit: if no y is positive.

    Notes
    -----
    Rows with y <= 0 count as if they were absent, except that `recommend` leaves out their
    items too.

    Centralised: all rows are in one place, and `clients` is checked and otherwise ignored.
    Unknown users are recommended the same items. Unknown items have preference 0, and so do items
    of `items` without interactions.

    Examples
    --------
    >>> from fedrecsk import Popularity
    >>> X = [["ann", "alien"], ["ann", "brazil"], ["bob", "alien"], ["bob", "clue"]]
    >>> items, scores = Popularity().fit(X).recommend(["ann", "zoe"], n_recommendations=1)
    >>> items.tolist(), scores.tolist()
    ([['clue'], ['alien']], [[0.5], [1.0]])
    """

    _has_item_vectors = _has_user_vectors = False

    def _fit(self, data, report):
        check_likes(data)
        taken = np.where(data.values > 0, data.weights, 0.0)
        counts = np.bincount(data.items, taken, minlength=data.n_items)
        return {"item_popularity_": counts / data.n_users}

    def _new_user_attributes(self, data):
        return {}

    def _model(self):
        return Factors.of(vars(self), item_bias=self.item_popularity_)
