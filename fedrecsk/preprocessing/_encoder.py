"""Ids as codes."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from fedrecsk._utils.sklearn_compat import StrOptions, fit_context
from fedrecsk.data._mistakes import warn_about_columns
from fedrecsk.data.interactions import ROLES, Ids, as_rows, as_table, id_columns


@dataclass(eq=False, repr=False)
class IdEncoder(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Encode the ids of users and items as 0, 1, ... n - 1.

    The recommenders of this package take ids as they are. Use this encoder for tools that need
    codes: embeddings, sparse matrices, other libraries. It keeps the number of rows, so it can be
    a step of a Pipeline.

    Parameters
    ----------
    handle_unknown : {"use_encoded_value", "error"}, default="use_encoded_value"
        What `transform` does with ids that fit did not see. "use_encoded_value": encode them
        as -1, -2, ... in ascending order, which every recommender of this package treats as
        unknown ids; these codes differ from call to call. "error": raise. Test folds usually
        have some unknown ids.

    Attributes
    ----------
    user_ids_, item_ids_ : ndarray of shape (n_users_,) and (n_items_,)
        Ids in ascending order; the code of an id is its position.
    n_users_, n_items_ : int
        Numbers of users and items.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, if they are strings.

    Examples
    --------
    >>> from fedrecsk.preprocessing import IdEncoder
    >>> encoder = IdEncoder().fit([["bob", 70], ["ann", 50]])
    >>> encoder.transform([["ann", 70], ["cat", 50]])
    array([[ 0,  1],
           [-1,  0]])
    >>> encoder.inverse_transform([[0, 1]])
    array([['ann', 70]], dtype=object)
    """

    _: KW_ONLY
    handle_unknown: str = "use_encoded_value"

    _parameter_constraints: ClassVar[dict] = {
        "handle_unknown": [StrOptions({"error", "use_encoded_value"})]
    }

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: None = None) -> Self:
        """Learn the ids.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features >= 2)
            Column 0 is the user's id, column 1 the item's (integers, floats or strings).
        y : None
            Ignored.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If ids are NaN, infinite or of mixed types.
        TypeError
            If an id is neither a string nor a number.
        """
        X, _ = self._checked(X, reset=True)
        users, items = id_columns(X)
        self.user_ids_: NDArray[Any] = np.unique(users)
        self.item_ids_: NDArray[Any] = np.unique(items)
        self.n_users_: int = len(self.user_ids_)
        self.n_items_: int = len(self.item_ids_)
        return self

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """Encode the ids; other columns stay as they are.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
            int64 if X has only the two columns of ids; otherwise a type that holds the codes
            and the other columns: object if these are not numbers.

        Raises
        ------
        ValueError
            If an id is unknown and `handle_unknown` is "error", or ids are strings where fit
            saw numbers or the other way round.
        """
        check_is_fitted(self)
        X, array = self._checked(X)
        codes = []
        for role, ids, known in zip(ROLES, id_columns(X), self._ids(), strict=True):
            codes.append(known.codes(ids))
            unknown = codes[-1] < 0
            if self.handle_unknown == "error" and unknown.any():
                raise ValueError(
                    f"{role.capitalize()} {ids[unknown.argmax()]!s} was not in fit; drop its "
                    "rows, or use handle_unknown='use_encoded_value'."
                )
            codes[-1][unknown] = -1 - np.unique(ids[unknown], return_inverse=True)[1]
        return _with_ids(array, codes)

    def inverse_transform(self, X: ArrayLike) -> NDArray[Any]:
        """Turn codes back into ids.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            As `transform` gives it.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
            Of a type that holds all columns: object if these are strings and numbers.

        Raises
        ------
        ValueError
            If there is no id with this code, such as -1.
        """
        check_is_fitted(self)
        X, array = self._checked(X)
        ids = []
        for role, codes, known in zip(ROLES, id_columns(X), self._ids(), strict=True):
            strange = ~np.isin(codes, np.arange(len(known)))
            if strange.any():
                raise ValueError(
                    f"{codes[strange.argmax()]!s} is not the code of any {role}: codes are "
                    f"0 to {len(known) - 1}."
                )
            ids.append(known.values[codes.astype(np.int64)])
        return _with_ids(array, ids)

    def _ids(self):
        return Ids(self.user_ids_, "user ids"), Ids(self.item_ids_, "item ids")

    def _checked(self, X, *, reset=False):
        """X to read ids from, column by column, and X as one array."""
        if hasattr(X, "columns"):
            # As one array, dates beside ids would be refused.
            validate_data(self, X, skip_check_array=True, reset=reset)
            return as_rows(X), np.asarray(X)
        table = validate_data(
            self, as_table(X), dtype=None, ensure_min_features=2 if reset else 1, reset=reset
        )
        warn_about_columns(table)
        # A list becomes a table of objects, whose context may be plain numbers all the same.
        plain = np.asarray(X) if isinstance(X, list | tuple) else table
        return table, plain if plain.dtype.kind in "biuf" else table

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags


def _with_ids(array, ids):
    """Put columns of ids or codes in front of the other columns of `array`."""
    columns = ids + ([array[:, 2:]] if array.shape[1] > 2 else [])
    out = np.empty(array.shape, dtype=_common_type(columns))
    for column, values in enumerate(ids):
        out[:, column] = values
    out[:, 2:] = array[:, 2:]
    return out


def _common_type(columns):
    kinds = {column.dtype.kind for column in columns}
    if not (kinds <= set("biuf") or kinds == {"U"}):
        return object
    common = np.result_type(*columns)
    integers = [column for column in columns if column.dtype.kind in "iu" and column.size]
    # Floats would merge neighbouring integers beyond this.
    too_large = any(column.max() >= 2**53 or column.min() <= -(2**53) for column in integers)
    return object if common.kind == "f" and too_large else common
