"""ItemKNN: the items that the same users have, one after the other (Sarwar et al., WWW 2001)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedrecsk._utils.docs import documented
from fedrecsk.base import RankingMixin, Recommender, _item_weights, check_likes
from fedrecsk.base._fading import life_of
from fedrecsk.base._item_cosines import NearestContent, cosines_of
from fedrecsk.base._item_weights import (
    NearestItemsMixin,
    dense_gram,
    diagonal,
    fill_little,
    histories,
    liked,
    n_pairs,
    nearest_items,
    popularity,
    sparse_gram,
    sparse_weights,
)
from fedrecsk.base._ordered_pairs import (
    directed,
    ordered_gram,
    sparse_ordered_gram,
    squares_of_pairs,
)
from fedrecsk.models._model import NearestWeights
from fedrecsk.protocol import blocks


@documented
@dataclass(eq=False, repr=False)
class ItemKNN(NearestContent, NearestItemsMixin, RankingMixin, Recommender):
    """Nearest items by how often the same users have both.

    Each item keeps the `n_neighbors` items with the largest::

        B_ij = G_ij / ((G_ii G_jj)^power + shrinkage),    G = X'X

    where X has a row for each user: the sample weight of each positive (y > 0), and 0 elsewhere. A
    user's scores are its row of X times B. Nothing is drawn at random. Unlike :class:`EASE` it
    handles catalogues of tens of thousands of items, because no array is as large as the square of
    their number; where EASE fits into memory, it usually ranks better.

    Parameters
    ----------
    {n_neighbors}
    {nearest power}
    {history_power}
    {neighbours shrinkage}
    {timestamps}
    {nearest half-lives}
    {nearest item_features}
    {content_weight}
    {items}

    Attributes
    ----------
    item_weights_ : csr_array of shape (n_items, n_items), dtype float32
        B: row j is added to the scores of all items for each item j in a user's history.
    {backward_weight_}
    {pair_support_}
    {user_history_}
    {ids}

    Raises
    ------
    ValueError
        By fit: if no y is positive, or if `backward_weight` is below 1 without half-lives or times.

    See Also
    --------
    FedItemKNN : The same model from one sum over clients.
    EASE : Weights between all items at once, for fewer items.

    Notes
    -----
    *Algorithm*::

        1  G = X'X                            dense_gram, sparse_gram: kernel add_pairs
        2  B, the nearest items of each item  nearest_items
        3  scores of a user: x_u' B

    With ``power=0.5`` and ``shrinkage=0`` the weights are cosines. Smaller powers favour popular
    items, which ranks better on Amazon Beauty; `shrinkage` keeps pairs that one user
    alone has from counting as much as pairs of many users.

    {time}

    {direction}

    Centralised: all rows are in one place, and `clients` is checked and otherwise ignored.

    {item weights}

    {item attributes}

    References
    ----------
    .. [1] B. Sarwar, G. Karypis, J. Konstan and J. Riedl, "Item-based collaborative filtering
       recommendation algorithms", WWW 2001.
    .. [2] M. Ferrari Dacrema, P. Cremonesi and D. Jannach, "Are we really making much progress?",
       RecSys 2019, on how strong it is.

    Examples
    --------
    >>> from fedrecsk import ItemKNN
    >>> X = [["ann", "alien"], ["ann", "aliens"], ["bob", "alien"], ["bob", "aliens"],
    ...      ["bob", "predator"], ["cat", "emma"], ["cat", "persuasion"]]
    >>> model = ItemKNN().fit(X)
    >>> model.recommend(["ann"], 1)[0].tolist()
    [['predator']]
    >>> model.recommend(["dan"], 1, interactions=[["dan", "emma"]])[0].tolist()
    [['persuasion']]
    """

    _dtype = np.float32

    def _fit(self, data, report):
        check_likes(data)
        likes = liked(data)
        asked, half_life = self._backward_weight, life_of(self, "pair_half_life")
        gram, squares = self._gram(likes, half_life, asked != 1), None
        if asked is None:
            squares = squares_of_pairs(likes, half_life, np.ones(data.n_clients, dtype=bool))
        counts = diagonal(gram, data.n_items)
        matrix, direction = directed(gram, data.n_items, asked, squares)
        powers = direction.powers(self.power, self.history_power)
        cosines = cosines_of(self._item_content, counts, self.content_weight)
        own = self.n_neighbors, *powers, self.shrinkage
        nearest = nearest_items(matrix, counts, *own, dtype=self._dtype, cosines=cosines)
        life = direction.half_life(self.history_half_life)
        return {
            "item_weights_": sparse_weights(*nearest),
            "user_history_": histories(likes, self._dtype, life),
            "backward_weight_": direction.backward_weight,
            "pair_support_": direction.pair_support,
            "_popularity": popularity(counts),
            "_content": cosines,
        }

    def _gram(self, likes, half_life, has_direction):
        # Whoever holds a user, only the pairs of the user's own items count.
        users = np.arange(likes.n_users + 1)
        by_user = replace(likes, client_ids=likes.user_ids.values, client_indptr=users)
        everyone = np.ones(likes.n_users, dtype=bool)
        held = n_pairs(np.diff(likes.indptr)).sum()
        if likes.n_items < _item_weights.MANY_ITEMS or not fill_little(held, likes.n_items):
            gram_of = ordered_gram if has_direction else dense_gram
            return gram_of(by_user, half_life, everyone)
        gram_of = sparse_ordered_gram if has_direction else sparse_gram
        return sum(
            gram_of(block, half_life, np.ones(block.n_clients, dtype=bool))
            for block in blocks.cut(by_user)
        )

    def _model(self):
        return NearestWeights.of(vars(self))

    def _new_user_attributes(self, data):
        life = life_of(self, "history_half_life")
        return {"user_history_": histories(liked(data), self._dtype, life)}
