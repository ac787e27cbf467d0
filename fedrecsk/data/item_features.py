"""Read the features of items: a DataFrame with ids, or an array in the order of the items.

DataFrames of polars have their ids in the first column, those of pandas in the index.
"""

from __future__ import annotations

import hashlib
import reprlib
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import check_array

from fedrecsk._utils.given import check_given
from fedrecsk.data._checks import LARGEST
from fedrecsk.data.frames import library_of, place_of_ids, with_index
from fedrecsk.data.ids import Ids, are_strings, catalogue_ids, distinct_items, id_array, named


def has_ids(features: Any) -> bool:
    """Return whether the features are a DataFrame, which has the items' ids."""
    is_polars = library_of(features) == "polars"
    return hasattr(features, "columns") and (is_polars or hasattr(features, "index"))


def catalogue_of(features: Any) -> Ids:
    """Return the items of a DataFrame, in ascending order."""
    source = f"the {place_of_ids(features)} of item_features"
    ids = id_array(np.asarray(with_index(features).index), source.capitalize())
    return distinct_items(ids, source.capitalize(), "give each item one row", source)


def aligned(features: Any, items: Any, *, bounded: bool = False) -> Any:
    """Check `features` and return their rows in ascending order of ids, float64, maybe sparse.

    Raise ValueError if rows have no ids, items have no row, rows have no item, or values are not
    finite, beyond 1e15 or, where `bounded`, not in [0, 1].
    """
    check_given(features, "item_features")
    columns = None
    if has_ids(features):
        ids, features = catalogue_of(features), with_index(features)
        given = id_array(np.asarray(features.index), "ids")
        if items is not None:
            _check_same(ids, catalogue_ids(items))
        columns, kinds = features.columns, [str(kind) for kind in features.dtypes]
        if kinds and all(kind.startswith("Sparse") for kind in kinds):
            features = features.sparse.to_coo()
        else:
            _check_columns(features)
    elif items is None:
        raise ValueError(
            "item_features has no ids, so its rows cannot be matched with items. Pass items= with "
            "one id per row in the same order, or a DataFrame that has the ids in its index "
            "(pandas) or in its first column (polars)."
        )
    else:
        ids, given = catalogue_ids(items), id_array(items, "items")
        n_rows = features.shape[0] if sparse.issparse(features) else len(features)
        if n_rows != len(given):
            raise ValueError(
                f"item_features has {n_rows} rows, but items has {len(given)} ids; give one row "
                "per item, in the order of items."
            )
    rows = _matrix(features)[np.argsort(given, kind="stable")]
    _check_values(rows, ids, columns, bounded)
    return rows


def ids_of(features: Any, items: Any) -> Any:
    """Return the ids of the rows that `aligned` returns."""
    return (catalogue_of(features) if has_ids(features) else catalogue_ids(items)).values


def columns_of(features: Any) -> list[Any]:
    """Return the names of the columns, or their numbers if they have no names."""
    if has_ids(features):
        names = list(features.columns)
        return names[1:] if library_of(features) == "polars" else names
    return list(range(np.shape(features)[1]))


def check_columns_alike(features: Any, columns: list[Any]) -> None:
    """Raise unless new items have the columns of the fit, by name or, without names, by number."""
    given = columns_of(features)
    named_alike = has_ids(features) and columns != list(range(len(columns)))
    if len(given) != len(columns) or (named_alike and given != columns):
        raise ValueError(
            f"features has the columns {reprlib.repr(given)}, but item_features in fit had "
            f"{reprlib.repr(columns)}; give new items the same columns in the same order, for "
            "example by the transform of the same fitted transformer."
        )


def fingerprint(features: Any) -> str:
    """Return a hash of features, by which parameters are compared."""
    if has_ids(features):
        features = with_index(features)
        ids = np.asarray(features.index).astype(str)
        parts = ids, np.asarray(features, dtype=np.float64)
    elif sparse.issparse(features):
        rows = sparse.csr_array(features)
        parts = rows.indptr, rows.indices, rows.data
    else:
        parts = (np.asarray(features),)
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


def _matrix(features):
    """Return a matrix of numbers, an array or a CSR array."""
    if np.shape(features)[1:] == (0,):
        raise ValueError("item_features has no columns; give each item at least one feature.")
    rows = check_array(
        features,
        accept_sparse="csr",
        dtype=np.float64,
        ensure_all_finite=False,
        input_name="item_features",
    )
    return sparse.csr_array(rows) if sparse.issparse(rows) else rows


def _check_columns(frame):
    """Raise for columns of a DataFrame that hold no numbers."""
    for name in frame.select_dtypes(include=["object", "string", "category", "datetime"]).columns:
        raise ValueError(
            f"The column {name!r} of item_features holds {frame[name].dtype}, not numbers; make "
            "columns of 0 and 1 of it, for example with pandas.get_dummies, or of text with "
            "sklearn.feature_extraction.text.TfidfVectorizer."
        )


def _check_same(ours, catalogue):
    """Raise unless the features' items are those of `items`."""
    source = f"{ours.source.capitalize()}, which holds the ids,"
    if are_strings(ours.values) != are_strings(catalogue.values):
        kinds = ("strings", "numbers")[:: 1 if are_strings(ours.values) else -1]
        raise ValueError(
            f"{source} has {kinds[0]}, and items has {kinds[1]}; give ids of the same type there."
        )
    missing = catalogue.values[ours.codes(catalogue.values) < 0]
    if len(missing):
        raise ValueError(
            f"{source} lacks {named('item', missing)}; give it a row (of zeros if nothing is "
            "known), or leave the item out of items."
        )
    unknown = ours.values[catalogue.codes(ours.values) < 0]
    if len(unknown):
        raise ValueError(
            f"{source} has {named('item', unknown)}, which items does not list; "
            "drop these rows, or use items=None to take the items of item_features."
        )


def _check_values(rows, ids, columns, bounded):
    """Raise for infinite, missing and huge values, or those not in [0, 1] where `bounded`."""
    # Without zeros, which are always right.
    entries = sparse.coo_array(rows)
    values = entries.data
    # Some programs write the lowest float64 for what is missing, whose square is infinite.
    bad = ~((values >= 0) & (values <= 1)) if bounded else ~(abs(values) <= LARGEST)
    if not bad.any():
        return
    first = int(bad.argmax())
    item, value = ids.values[entries.row[first]], values[first]
    column = "" if columns is None else f" in the column {columns[entries.col[first]]!r}"
    what = f"item_features of item {item!s} has the value {value:g}"
    if not bounded:
        raise ValueError(
            f"{what}{column}; fill in what is missing, for example with "
            "sklearn.impute.SimpleImputer, or leave the column out."
        )
    raise ValueError(
        f"{what}{column}, but Boltzmann machines need finite numbers in [0, 1]; "
        "scale the features, for example with sklearn.preprocessing.MinMaxScaler (MaxAbsScaler "
        "if they are sparse and non-negative), fill in what is missing, and let ids be the "
        "index of a DataFrame, not a column."
    )
