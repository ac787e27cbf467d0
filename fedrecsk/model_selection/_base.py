"""Base class of the splitters: CV objects that are also transformers for a single split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import TransformerMixin
from sklearn.utils import Tags, metadata_routing
from sklearn.utils.validation import check_consistent_length, indexable, validate_data

from fedrecsk._utils.parameters import PlainParameters
from fedrecsk._utils.sklearn_compat import fit_context, safe_indexing
from fedrecsk.data.interactions import as_rows


class Splitter(TransformerMixin, PlainParameters, ABC):
    """Base class of the splitters; a subclass implements `_splits`."""

    # There is no `transform`, so that a Pipeline refuses the splitter, which would drop rows of X
    # but not of y.

    train_indices_: NDArray[np.int64]
    test_indices_: NDArray[np.int64]
    held_out_: Any

    # As in scikit-learn's BaseCrossValidator: no groups to route.
    __metadata_request__split: ClassVar[dict] = {"groups": metadata_routing.UNUSED}

    @abstractmethod
    def _splits(self, X: Any) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Check X (an array or DataFrame) and return an iterator of rows: (train, test)."""

    def _parts(self, X: Any) -> dict[str, NDArray[np.int64]]:
        """Return the row numbers of the first split's parts, by name."""
        return dict(zip(("train", "test"), next(self._splits(X)), strict=True))

    def split(
        self, X: ArrayLike, y: ArrayLike | None = None, groups: None = None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Split into training and test rows.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features >= 2)
            Column 0 is the user's id, column 1 the item's id.
        y : array-like of shape (n_samples,), default=None
            Only its length is checked.
        groups : None
            Ignored.

        Returns
        -------
        splits : iterator of (train, test)
            Ascending row numbers: ndarrays of shape (n_train,) and (n_test,), dtype int64.

        Raises
        ------
        ValueError
            If a parameter, an id or a timestamp is invalid, or there would be no training or test
            rows. Raised before the first split.
        TypeError
            If an id is neither a string nor a number, or X is sparse.
        """
        self._validate_params()
        table, _ = indexable(as_rows(X), y)
        return self._splits(table)

    def get_n_splits(
        self, X: ArrayLike | None = None, y: ArrayLike | None = None, groups: None = None
    ) -> int:
        """Return the number of splits.

        Parameters
        ----------
        X, y, groups
            Ignored.

        Returns
        -------
        n_splits : int
        """
        return self._n_splits()

    def _n_splits(self):
        return getattr(self, "n_splits", 1)

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Split X once, as the first split of `split` does.

        Parameters
        ----------
        X, y
            As in `split`.

        Returns
        -------
        self : object
            With the rows in `train_indices_`, `test_indices_` and `held_out_`.

        Raises
        ------
        ValueError, TypeError
            As `split`.
        """
        table, _ = indexable(as_rows(X), y)
        parts = self._parts(table)
        validate_data(self, table, skip_check_array=True)
        vars(self).pop("validation_indices_", None)  # of an earlier fit
        for name, rows in parts.items():
            setattr(self, f"{name}_indices_", rows)
        self.held_out_ = safe_indexing(table, self.test_indices_)
        return self

    def fit_transform(self, X: ArrayLike, y: ArrayLike | None = None) -> ArrayLike:
        """Split X once and return the training rows.

        Parameters
        ----------
        X, y
            As in `split`; :meth:`train_test_split` splits y too.

        Returns
        -------
        X_train : ndarray or DataFrame of shape (n_train, n_features)
            The other rows are in `held_out_`.
        """
        return safe_indexing(as_rows(X), self.fit(X, y).train_indices_)

    def train_test_split(self, X: ArrayLike, *arrays: ArrayLike) -> list[Any]:
        """Split X and other arrays, like :func:`sklearn.model_selection.train_test_split`.

        Parameters
        ----------
        X
            As in `split`.
        *arrays : array-likes of shape (n_samples, ...)
            y, clients, sample_weight, ...

        Returns
        -------
        parts : list
            ``[X_train, X_test]``, then the training and test rows of each array, of the type
            given. With a validation part: ``[X_train, X_validation, X_test, ...]``. Nothing is
            stored in the splitter.

        Raises
        ------
        ValueError, TypeError
            As `split`.
        """
        self._validate_params()
        check_consistent_length(X, *arrays)
        parts = self._parts(as_rows(X)).values()
        return [safe_indexing(array, rows) for array in (X, *arrays) for rows in parts]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        return tags


def two_parts(held_out):
    """Return the row numbers of the training and of the test rows."""
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def by_group(codes, n_groups, order):
    """Return rows, starts and counts: group g is ``rows[starts[g]:starts[g] + counts[g]]``."""
    counts = np.bincount(codes, minlength=n_groups)
    return order[np.argsort(codes[order], kind="stable")], np.cumsum(counts) - counts, counts
