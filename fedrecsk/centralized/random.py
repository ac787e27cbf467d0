"""RandomRecommender: lists by chance, the floor of every comparison."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np
from sklearn.utils import check_random_state

from fedrecsk._utils.constraints import Seed
from fedrecsk._utils.docs import documented
from fedrecsk.base import RankingMixin, Recommender, check_likes
from fedrecsk.models import Scores
from fedrecsk.protocol.keys import Key


@documented
@dataclass(eq=False, repr=False)
class RandomRecommender(RankingMixin, Recommender):
    """Rank items by chance, for each user anew.

    The floor of a comparison: the score of a model that has learned nothing. Scores are uniform in
    [0, 1).

    Parameters
    ----------
    {random_state}
    {items}

    Attributes
    ----------
    seed_ : int
        Drawn from `random_state`.
    user_seed_ : ndarray of shape (n_users,), dtype uint64
        A hash of the seed and of the user's items, from which its scores are drawn. Users with the
        same items are given the same ranking.
    {ids}

    Raises
    ------
    ValueError
        By fit: if no y is positive.

    See Also
    --------
    Popularity : What a ranking model must beat to be of use.

    Notes
    -----
    Centralised: all rows are in one place, and `clients` is checked and otherwise ignored.
    Unknown users share one list. Unknown items score 0.

    Examples
    --------
    >>> from fedrecsk import Popularity, RandomRecommender
    >>> from fedrecsk.datasets import make_interactions
    >>> from fedrecsk.metrics import evaluate_ranking
    >>> X = make_interactions(n_users=400, n_items=200, n_interactions=9_000, random_state=0)
    >>> for model in (RandomRecommender(random_state=0), Popularity()):
    ...     found = evaluate_ranking(model.fit(X[::2]), X[1::2], metrics="recall", k=20)
    ...     print(type(model).__name__, round(found["recall@20"], 2))
    RandomRecommender 0.11
    Popularity 0.55
    """

    _: KW_ONLY
    random_state: Seed = None

    _has_item_vectors = _has_user_vectors = False

    def _fit(self, data, report):
        check_likes(data)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return {"seed_": seed, "user_seed_": _user_seeds(data, seed)}

    def _new_user_attributes(self, data):
        return {"user_seed_": _user_seeds(data, self.seed_)}

    def _model(self):
        return Scores(n_items=self.n_items_, pairs=self._score_pairs, board=self._score_all)

    def _score_pairs(self, users, items):
        seeds = np.where(users >= 0, self.user_seed_[users], np.uint64(0))
        scores = Key(self.seed_).uniform("score", seeds + items.astype(np.uint64))
        return np.where(items >= 0, scores, 0.0)

    def _score_all(self, users):
        return self._score_pairs(users[:, None], np.arange(self.n_items_))


def _user_seeds(data, seed):
    """Return the sum of the hashes of each user's items."""
    seeds = np.zeros(data.n_users, dtype=np.uint64)
    users = np.repeat(np.arange(data.n_users), np.diff(data.indptr))
    np.add.at(seeds, users, Key(seed).hashed("item", data.items))
    return seeds
