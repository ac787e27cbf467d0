"""A common interface to the scores of any fitted recommender, of this package or another."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from fedrecsk.data.interactions import Ids, encode
from fedrecsk.metrics._held_out import check_rows

PEERS = (
    "To be ranked, a model of another package needs predict, and either X_train (its training "
    "rows; compare passes them) or the attributes item_ids_, user_ids_ and interactions_ (a "
    "sparse matrix of users by items)."
)


def _class(module, name):
    """Return a class, or () if its module has not been imported: then no object is one."""
    return getattr(sys.modules.get(module), name, ())


def unwrap(estimator):
    """Return the transformers of pipelines and searches, and the recommender inside."""
    transformers, inner = [], estimator
    while True:
        check_is_fitted(inner)
        if isinstance(inner, _class("sklearn.pipeline", "Pipeline")):
            transformers += [step for _, step in inner.steps[:-1] if hasattr(step, "transform")]
            inner = inner.steps[-1][1]
        elif hasattr(inner, "best_estimator_"):
            inner = inner.best_estimator_
        elif isinstance(inner, _class("sklearn.compose", "TransformedTargetRegressor")):
            # It rescales ratings, which does not change their order.
            inner = inner.regressor_
        else:
            break
    missing = [name for name in ("predict", "item_ids_") if not hasattr(inner, name)]
    if missing:
        raise TypeError(
            f"{type(inner).__name__} is not a recommender: it has no {' and no '.join(missing)}. "
            f"{PEERS}"
        )
    return transformers, inner


def unwrap_and_adapt(estimator, X_train=None):
    """Return transformers, recommender and adapted model; `X_train` says what users have seen."""
    if X_train is not None and not hasattr(estimator, "predict"):
        raise TypeError(f"{type(estimator).__name__} cannot be ranked: it has no predict. {PEERS}")
    try:
        transformers, recommender = unwrap(estimator)
    except (NotFittedError, TypeError):
        # To scikit-learn, a model without attributes that end in "_" is not fitted.
        if X_train is None:
            raise
    else:
        model = adapt(recommender)
        if X_train is None or model.seen is not None:
            return transformers, recommender, model
    return [], estimator, _Plain(estimator, X_train)


def adapt(recommender: Any) -> Any:
    """Adapt a recommender: by its codes if it is of this package, else by `predict`."""
    ours = hasattr(recommender, "_score_all") and hasattr(recommender, "_seen")
    return _Own(recommender) if ours else _Peer(recommender)


class _Own:
    """A recommender of this package, by its codes; scores are those before the response."""

    scores_per_batch = 2**22

    def __init__(self, model):
        self._model = model
        self.item_ids = model._items
        self.user_ids = model._users
        self.seen = _ones(*model._seen, len(model._items))

    def n_scored(self, n_candidates):
        """Return the number of scores to compute for each user's candidates."""
        return np.full_like(n_candidates, len(self.item_ids))

    def board(self, users, ids):
        """Return scores of all items, which the caller may overwrite, (n_users, n_items)."""
        return np.ascontiguousarray(self._model._score_all(users))

    def pairs(self, users, ids, rows, items):
        """Return scores of pairs: position in `users` and item code of each."""
        return self._model._score_all(users)[rows, items]


class _Peer:
    """Any recommender with `predict`, `item_ids_` and perhaps `user_ids_` and `interactions_`."""

    scores_per_batch = 2**20

    def __init__(self, model):
        self._model = model
        self._columns = getattr(model, "feature_names_in_", None)
        item_order = np.argsort(model.item_ids_, kind="stable")
        self.item_ids = Ids(np.asarray(model.item_ids_)[item_order], "item ids")
        self.user_ids = self.seen = None
        if hasattr(model, "user_ids_"):
            self.user_ids = Ids(np.asarray(model.user_ids_), "user ids")
            if sparse.issparse(getattr(model, "interactions_", None)):
                code = np.empty_like(item_order)
                code[item_order] = np.arange(len(item_order))
                matrix = sparse.csr_array(model.interactions_)
                self.seen = _ones(matrix.indptr, code[matrix.indices], len(self.item_ids))
                self.seen.sum_duplicates()

    def n_scored(self, n_candidates):
        """Return the number of scores to compute for each user's candidates."""
        return n_candidates

    def board(self, users, ids):
        """Return scores of all items, shape (n_users, n_items)."""
        n_items = len(self.item_ids)
        rows = np.repeat(np.arange(len(ids)), n_items)
        items = np.tile(np.arange(n_items), len(ids))
        return self.pairs(users, ids, rows, items).reshape(len(ids), n_items)

    def pairs(self, users, ids, rows, items):
        """Return scores of pairs: position in `ids` and item code of each."""
        columns = ids[rows], self.item_ids.values[items]
        scores = np.array(self._model.predict(self._table(*columns)))
        return scores if scores.dtype.kind == "f" else scores.astype(np.float64)

    def _table(self, users, items):
        if self._columns is not None:
            return pd.DataFrame({self._columns[0]: users, self._columns[1]: items})
        if (users.dtype.kind == "U") != (items.dtype.kind == "U"):
            users, items = users.astype(object), items.astype(object)
        return np.column_stack([users, items])


class _Plain(_Peer):
    """Any model with `predict`; catalogue and seen items are those of its training rows."""

    def __init__(self, model, X_train):
        data = encode(check_rows(X_train)[0])
        self._model = model
        self._columns = getattr(X_train, "columns", None)
        self.item_ids, self.user_ids = data.item_ids, data.user_ids
        self.seen = _ones(data.indptr, data.items, len(data.item_ids))


def _ones(indptr, items, n_items):
    ones = np.ones(len(items), dtype=np.int32)
    return sparse.csr_array((ones, items, indptr), (len(indptr) - 1, n_items))
