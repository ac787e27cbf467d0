"""One way to ask any fitted recommender for scores, ours or a peer's."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from fedrecsk._extras import require
from fedrecsk.interactions import Ids


def unwrap(estimator):
    """Find the recommender inside pipelines and searches.

    Parameters
    ----------
    estimator : object
        A fitted recommender, or a fitted Pipeline or search object that ends in one.

    Returns
    -------
    transformers : list
        What X goes through before it reaches the recommender, in order.
    recommender : object

    Raises
    ------
    NotFittedError
        If `estimator` is not fitted.
    TypeError
        If there is no recommender inside.
    """
    transformers, inner = [], estimator
    while True:
        check_is_fitted(inner)
        if isinstance(inner, Pipeline):
            transformers += [step for _, step in inner.steps[:-1] if hasattr(step, "transform")]
            inner = inner.steps[-1][1]
        elif hasattr(inner, "best_estimator_"):
            inner = inner.best_estimator_
        elif isinstance(inner, TransformedTargetRegressor):
            # Its transformer rescales ratings, which leaves their order alone.
            inner = inner.regressor_
        else:
            break
    missing = [name for name in ("recommend", "predict", "item_ids_") if not hasattr(inner, name)]
    if missing:
        raise TypeError(
            f"{type(inner).__name__} is not a recommender: it has no {' and no '.join(missing)}."
        )
    return transformers, inner


def adapt(recommender):
    """The fast way in where there is one, else the conventional one."""
    ours = hasattr(recommender, "_score_all") and hasattr(recommender, "_seen")
    return _Own(recommender) if ours else _Peer(recommender)


class _Own:
    """A recommender of this package, by its codes.

    Scores are those before the response (clipping to the scale, say), which makes ties.
    """

    scores_per_batch = 2**18

    def __init__(self, model):
        self._model = model
        self.item_ids = model._items
        self.user_ids = model._users
        self.seen = tuple(np.asarray(part, dtype=np.int64) for part in model._seen)

    def n_scored(self, n_candidates):
        """How many scores it takes to have those of each user's candidates."""
        return np.full_like(n_candidates, len(self.item_ids))

    def board(self, users, ids):
        """Scores of all items, ours to overwrite; shape (n_users, n_items)."""
        return np.ascontiguousarray(self._model._score_all(users))

    def pairs(self, users, ids, rows, items):
        """Scores of pairs: position in `users` and item code of each."""
        return self._model._score_all(users)[rows, items]


class _Peer:
    """Any recommender with `predict`, `item_ids_` and perhaps `user_ids_`, by its ids.

    What its users have seen is read from `interactions_`, a sparse matrix of shape
    (n_users, n_items), where there is one.
    """

    scores_per_batch = 2**20

    def __init__(self, model):
        self._model = model
        item_order = np.argsort(model.item_ids_, kind="stable")
        self.item_ids = Ids(np.asarray(model.item_ids_)[item_order], "item ids")
        self.user_ids = self.seen = None
        if hasattr(model, "user_ids_"):
            self.user_ids = Ids(np.asarray(model.user_ids_), "user ids")
            if hasattr(model, "interactions_"):
                code = np.empty_like(item_order)
                code[item_order] = np.arange(len(item_order))
                matrix = sparse.csr_array(model.interactions_)
                self.seen = matrix.indptr.astype(np.int64), code[matrix.indices]

    def n_scored(self, n_candidates):
        """How many scores it takes to have those of each user's candidates."""
        return n_candidates

    def board(self, users, ids):
        """Scores of all items; shape (n_users, n_items)."""
        n_items = len(self.item_ids)
        rows = np.repeat(np.arange(len(ids)), n_items)
        items = np.tile(np.arange(n_items), len(ids))
        return self.pairs(users, ids, rows, items).reshape(len(ids), n_items)

    def pairs(self, users, ids, rows, items):
        """Scores of pairs: position in `ids` and item code of each."""
        columns = ids[rows], self.item_ids.values[items]
        scores = np.array(self._model.predict(self._table(*columns)))
        return scores if scores.dtype.kind == "f" else scores.astype(np.float64)

    def _table(self, users, items):
        if hasattr(self._model, "feature_names_in_"):
            names = self._model.feature_names_in_
            pandas = require("pandas", "A model fitted on a table with column names")
            return pandas.DataFrame({names[0]: users, names[1]: items})
        if (users.dtype.kind == "U") != (items.dtype.kind == "U"):
            users, items = users.astype(object), items.astype(object)
        return np.column_stack([users, items])
