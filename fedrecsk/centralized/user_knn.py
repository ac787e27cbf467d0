"""UserKNN: what the users with the most similar histories have (Resnick et al., CSCW 1994)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from sklearn.preprocessing import normalize

from fedrecsk import metrics
from fedrecsk._utils.constraints import AtLeast1
from fedrecsk._utils.docs import documented
from fedrecsk._utils.memory import batches
from fedrecsk.base import RankingMixin, Recommender, check_likes
from fedrecsk.base._item_weights import histories, liked
from fedrecsk.models import Scores


@documented
@dataclass(eq=False, repr=False)
class UserKNN(RankingMixin, Recommender):
    """Nearest users by the cosine of their histories.

    A user's preference for an item is the share of the user's neighbours that have the item,
    weighted by their similarity. The similarity is the cosine of two users' rows of X: the sample
    weight of each positive (y > 0), and 0 elsewhere. Nothing is drawn at random.

    Parameters
    ----------
    n_neighbors : int, default=100
        Number of users, at most, whose similarity is largest.
    {items}

    Attributes
    ----------
    user_neighbors_ : csr_array of shape (n_users, n_fitted), dtype float64
        Similarities of each user's neighbours among the users of fit, divided by their sum.
    neighbor_history_ : csr_array of shape (n_fitted, n_items), dtype float64
        1 for each positive of a user of fit.
    item_popularity_ : ndarray of shape (n_items,), dtype float64
        Share of the users of fit that have the item.
    {ids}

    Raises
    ------
    ValueError
        By fit: if no y is positive.

    See Also
    --------
    ItemKNN : By similar items, which needs no other user's history when it recommends.

    Notes
    -----
    Centralised: all rows are in one place, and `clients` is checked and otherwise ignored. There is
    no federated form: users are compared by their whole histories.

    Unknown users, and users without similar ones, are recommended popular items. Unknown items have
    preference 0. Rows with y <= 0 count as if they were absent, except that `recommend` leaves out
    their items too. The neighbours of a folded-in user are users of fit, including its own earlier
    rows if it was one of them; it is not a neighbour of others.

    References
    ----------
    .. [1] P. Resnick, N. Iacovou, M. Suchak, P. Bergstrom and J. Riedl, "GroupLens: an open
       architecture for collaborative filtering of netnews", CSCW 1994.

    Examples
    --------
    >>> from fedrecsk import UserKNN
    >>> X = [["ann", "alien"], ["ann", "aliens"], ["bob", "alien"], ["bob", "aliens"],
    ...      ["bob", "predator"], ["cat", "emma"], ["cat", "persuasion"]]
    >>> model = UserKNN(n_neighbors=1).fit(X)
    >>> model.recommend(["ann"], 1)[0].tolist()
    [['predator']]
    >>> model.recommend(["dan"], 1, interactions=[["dan", "emma"]])[0].tolist()
    [['persuasion']]
    """

    n_neighbors: AtLeast1 = 100

    _has_item_vectors = _has_user_vectors = False

    def _fit(self, data, report):
        check_likes(data)
        rows, directions = histories(liked(data), np.float64), _directions(data)
        rows.data[:] = 1.0
        return {
            "user_neighbors_": self._neighbors(directions, directions, but_itself=True),
            "neighbor_history_": rows,
            "item_popularity_": rows.sum(axis=0) / data.n_users,
            "_fitted_directions": directions,
        }

    def _new_user_attributes(self, data):
        return {"user_neighbors_": self._neighbors(_directions(data), self._fitted_directions)}

    def _neighbors(self, rows, fitted, but_itself=False):
        """Return weights (CSR) of the nearest fitted users of each row."""
        n_fitted, found = fitted.shape[0], []
        for batch in batches(rows.shape[0], n_fitted):
            alike = (rows[batch] @ fitted.T).toarray()
            if but_itself:
                alike[np.arange(len(alike)), batch.start + np.arange(len(alike))] = 0.0
            nearest = metrics.top_k(alike, min(self.n_neighbors, n_fitted))
            kept = np.zeros_like(alike)
            np.put_along_axis(kept, nearest, np.take_along_axis(alike, nearest, axis=1), axis=1)
            found.append(sparse.csr_array(kept))
        return sparse.csr_array(normalize(sparse.vstack(found, "csr"), "l1"))

    def _model(self):
        return Scores(n_items=self.n_items_, pairs=self._score_pairs, board=self._score_all)

    def _score_all(self, users):
        scores = np.zeros((len(users), self.n_items_))
        known = users >= 0
        scores[known] = (self.user_neighbors_[users[known]] @ self.neighbor_history_).toarray()
        return self._with_popularity(scores, users)

    def _score_pairs(self, users, items):
        scores, holders = np.zeros(len(users)), self.neighbor_history_.T.tocsr()
        for batch in batches(len(users), 8 * self.n_neighbors):
            known = np.flatnonzero((users[batch] >= 0) & (items[batch] >= 0)) + batch.start
            weights = self.user_neighbors_[users[known]]
            scores[known] = weights.multiply(holders[items[known]]).sum(axis=1)
        return self._with_popularity(scores, users, items)

    def _with_popularity(self, scores, users, items=None):
        """Set the scores, of pairs or of whole rows, of users without neighbours."""
        alone = (users < 0) | (np.diff(self.user_neighbors_.indptr)[users] == 0)
        if items is None:
            scores[alone] = self.item_popularity_
        else:
            alone &= items >= 0
            scores[alone] = self.item_popularity_[items[alone]]
        return scores


def _directions(data):
    """Return the users' rows of X, each of length 1 or 0."""
    return sparse.csr_array(normalize(histories(liked(data), np.float64)))
