"""EASE: a linear model of items whose solution is one inverse (Steck, WWW 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedrecsk._utils import memory
from fedrecsk._utils.constraints import Positive
from fedrecsk._utils.docs import documented
from fedrecsk._utils.sklearn_compat import get_threadpool_controller
from fedrecsk.base import RankingMixin, Recommender, check_likes
from fedrecsk.base._item_prior import WeightsContent, filled_weights
from fedrecsk.base._item_weights import (
    ItemWeightsMixin,
    dense_gram,
    diagonal,
    histories,
    liked,
    popularity,
    regularized_inverse,
    warn_if_slow,
    weights_of,
)
from fedrecsk.models._model import Weights

# At most so many of a float64 for each pair of items at a time: X'X, and its inverse.
MATRICES = 4


@documented
@dataclass(eq=False, repr=False)
class EASE(WeightsContent, ItemWeightsMixin, RankingMixin, Recommender):
    """Embarrassingly shallow autoencoder: weights between items, in closed form.

    Minimises over matrices B of items by items whose diagonal is 0::

        |X - X B|^2 + reg |B|^2

    where X has a row for each user: the sample weight of each positive (y > 0), and 0 elsewhere. A
    user's scores are its row of X times B. Nothing is drawn at random. Memory grows with the square
    of the number of items, and time with its cube: above about 8,400 items, `fit` warns how long it
    will take.

    Parameters
    ----------
    reg : float or "auto", default="auto"
        Weight of the penalty on B (lambda). "auto": five times the mean number of rows (of squared
        weights) of the items that have some.
    {timestamps}
    {pair_half_life}
    {history_half_life}
    {item_features}
    {items}

    Attributes
    ----------
    item_weights_ : ndarray of shape (n_items, n_items), dtype float32
        B: row j is added to the scores of all items for each item j in a user's history.
    {user_history_}
    {ids}

    Raises
    ------
    ValueError
        By fit: if no y is positive, if the matrices do not fit into memory, or if weights are so
        large that `reg` is lost in rounding.

    See Also
    --------
    FedEASE : The same model from one sum over clients.

    Notes
    -----
    *Algorithm*::

        1  G = X'X                              dense_gram: kernel add_pairs
        2  P = (G + reg I)^-1                   regularized_inverse
        3  B_ij = -P_ij / P_jj, and B_jj = 0    weights_of
        4  scores of a user: x_u' B             kernels score_all, score_pairs

    {time}

    Centralised: all rows are in one place, and `clients` is checked and otherwise ignored.

    {item weights}

    With `item_features`, the columns and rows of B of items without positives, and of new ones by
    `add_items`, are predicted by ridge regression from those of the other items, item i with the
    weight ``n_i / (n_i + 10 m)``, n_i its number of rows and m their mean. Other scores stay as
    they are.

    References
    ----------
    .. [1] H. Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", WWW 2019,
       equations 2 to 8.

    Examples
    --------
    >>> from fedrecsk import EASE
    >>> X = [["ann", "alien"], ["ann", "aliens"], ["bob", "alien"], ["bob", "aliens"],
    ...      ["bob", "predator"], ["cat", "emma"], ["cat", "persuasion"]]
    >>> model = EASE(reg=1.0).fit(X)
    >>> model.recommend(["ann"], 1)[0].tolist()
    [['predator']]
    >>> model.recommend(["dan"], 1, interactions=[["dan", "emma"]])[0].tolist()
    [['persuasion']]
    """

    reg: Positive | Literal["auto"] = "auto"

    _dtype = np.float32

    def _fit(self, data, report):
        check_likes(data)
        memory.require(
            MATRICES * 8 * data.n_items**2,
            f"EASE's matrices of {data.n_items} by {data.n_items} items",
            "Leave out rare items, for example with preprocessing.filter_min_ratings, or use a "
            "method with factors such as ImplicitALS.",
        )
        warn_if_slow("EASE", data.n_items, "ItemKNN")
        likes = liked(data)
        gram = dense_gram(likes, self.pair_half_life, np.ones(data.n_clients, dtype=bool))
        with get_threadpool_controller().limit(limits=1, user_api="blas"):
            inverse = regularized_inverse(gram, data.n_items, self.reg)
        attributes = {
            "item_weights_": weights_of(inverse).astype(self._dtype),
            "user_history_": histories(likes, self._dtype, self.history_half_life),
        }
        prior = self._item_content.prior(np.bincount(likes.items, minlength=data.n_items))
        if prior is not None:
            weights = filled_weights(prior, attributes["item_weights_"])
            attributes |= {"item_weights_": weights, "_content": prior}
        return attributes | {"_popularity": popularity(diagonal(gram, data.n_items), prior)}

    def _model(self):
        return Weights.of(vars(self))

    def _new_user_attributes(self, data):
        return {"user_history_": histories(liked(data), self._dtype, self.history_half_life)}
