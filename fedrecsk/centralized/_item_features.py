"""The parameter `item_features`: one row of features per item, in the order of the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse
from sklearn.utils import check_array

from fedrecsk.data.interactions import catalogue_ids, id_array, named

if TYPE_CHECKING:
    from typing import Any

    from fedrecsk.data.interactions import Ids


def has_ids(features: Any) -> bool:
    """Whether the features say whose they are: a DataFrame with the items' ids as its index."""
    return hasattr(features, "index") and hasattr(features, "columns")


def catalogue_of(features: Any) -> Ids:
    """The items of a DataFrame, in ascending order."""
    ids = id_array(np.asarray(features.index), "the index of item_features")
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise ValueError(
            f"item_features has {named('item', values[counts > 1])} more than once in its index; "
            "give each item one row."
        )
    return catalogue_ids(ids)


def aligned(features: Any, items: Any) -> Any:
    """Check `features` and bring their rows into the order of the catalogue.

    Parameters
    ----------
    features : array, sparse matrix or DataFrame
        With as many rows as `items`, in the same order, or with ids as its index.
    items : array-like of shape (n_items,) or None
        The parameter of the estimator.

    Returns
    -------
    rows : ndarray or csr_array of shape (n_items, n_features), dtype float64
        In ascending order of ids, which is that of ``item_ids_``.

    Raises
    ------
    ValueError
        If rows have no ids, items have no row, rows have no item, or values are not in [0, 1].
    """
    if has_ids(features):
        ids = catalogue_of(features)
        order = np.argsort(id_array(np.asarray(features.index), "ids"), kind="stable")
        if items is not None:
            _check_same(ids, catalogue_ids(items))
        features = features.iloc[order]
        kinds = {str(kind) for kind in features.dtypes}
        if kinds and all(kind.startswith("Sparse") for kind in kinds):
            return _checked(features.sparse.to_coo(), ids, features.columns)
        _check_columns(features)
        return _checked(features, ids, features.columns)
    if items is None:
        raise ValueError(
            "item_features has no ids, so its rows cannot be matched with items. Pass items= with "
            "one id per row in the same order, or a pandas DataFrame whose index holds the ids."
        )
    ids, given = catalogue_ids(items), id_array(items, "items")
    n_rows = features.shape[0] if sparse.issparse(features) else len(features)
    if n_rows != len(given):
        raise ValueError(
            f"item_features has {n_rows} rows, but items has {len(given)} ids; give one row per "
            "item, in the order of items."
        )
    rows = _checked(features, None)
    order = np.argsort(given, kind="stable")
    rows = rows[order]
    _check_range(rows, ids)
    return rows


def _checked(features, ids, columns=None):
    """A matrix of numbers; `ids` are those of its rows if they are in order."""
    if np.shape(features)[1:] == (0,):
        raise ValueError("item_features has no columns; give each item at least one feature.")
    rows = check_array(
        features,
        accept_sparse="csr",
        dtype=np.float64,
        ensure_all_finite=False,
        input_name="item_features",
    )
    rows = sparse.csr_array(rows) if sparse.issparse(rows) else rows
    if ids is not None:
        _check_range(rows, ids, columns)
    return rows


def _check_columns(frame):
    """Raise for columns of a DataFrame that hold no numbers."""
    for name in frame.select_dtypes(include=["object", "string", "category"]).columns:
        raise ValueError(
            f"The column {name!r} of item_features holds {frame[name].dtype}, not numbers; make "
            "columns of 0 and 1 of it, for example with pandas.get_dummies."
        )


def _check_same(ours, catalogue):
    """Raise unless the features' items are those of `items`."""
    missing = catalogue.values[ours.codes(catalogue.values) < 0]
    if len(missing):
        raise ValueError(
            f"item_features has no row for {named('item', missing)}; add what is missing to its "
            "index (a row of zeros if nothing is known), or leave the item out of items."
        )
    unknown = ours.values[catalogue.codes(ours.values) < 0]
    if len(unknown):
        raise ValueError(
            f"item_features has rows for {named('item', unknown)}, which items does not list; "
            "drop these rows, or use items=None to take the index of item_features."
        )


def _check_range(rows, ids, columns=None):
    """Raise for values that are not in [0, 1], and say whose they are."""
    if sparse.issparse(rows):
        values, places = rows.data, rows.indices
        owners = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    else:
        values, owners = rows.ravel(), np.repeat(np.arange(len(rows)), rows.shape[1])
        places = np.tile(np.arange(rows.shape[1]), len(rows))
    bad = ~((values >= 0) & (values <= 1))
    if bad.any():
        place = int(bad.argmax())
        column = "" if columns is None else f" in the column {columns[places[place]]!r}"
        raise ValueError(
            f"item_features of item {ids.values[owners[place]]!s} has the value "
            f"{values[place]:g}{column}, but Boltzmann machines need finite numbers in [0, 1]; "
            "scale the features, for example with sklearn.preprocessing.MinMaxScaler (MaxAbsScaler "
            "if they are sparse and non-negative), fill in what is missing, and let ids be the "
            "index of a DataFrame, not a column."
        )


def check_covered(items: Any, catalogue: Ids) -> None:
    """Raise if items of X have no row in `item_features`, whose index is the catalogue.

    Parameters
    ----------
    items : ndarray of shape (n_samples,)
        Ids of X.
    catalogue : Ids
    """
    if (items.dtype.kind == "U") != (catalogue.values.dtype.kind == "U"):
        kinds = [
            "strings" if ids.dtype.kind == "U" else "numbers" for ids in (items, catalogue.values)
        ]
        raise ValueError(
            f"The item ids of X are {kinds[0]} and those in the index of item_features are "
            f"{kinds[1]}; convert one of them to the type of the other."
        )
    missing = np.unique(items[catalogue.codes(items) < 0])
    if len(missing):
        raise ValueError(
            f"item_features has no row for {named('item', missing)} of X; add what is missing to "
            "its index (a row of zeros if nothing is known), or leave these rows of X out."
        )
