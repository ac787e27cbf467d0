"""K-fold within each user's rows."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedrecsk._sklearn import Interval
from fedrecsk.model_selection._base import FoldSplitter
from fedrecsk.model_selection._groups import by_group
from fedrecsk.preprocessing._rows import coded_rows

if TYPE_CHECKING:
    from numpy.random import RandomState


class UserKFold(FoldSplitter):
    """K-fold that spreads the rows of each user over the folds.

    What it guarantees:

    - each row of a user with two or more rows is a test row in exactly one split;
    - the numbers of a user's rows in the folds differ by at most one, and so do the sizes of
      the folds;
    - a user's only row is always in training;
    - so every user is in training in every split. Test items may be missing from training.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds, at least 2.
    shuffle : bool, default=False
        Whether to assign a user's rows to the folds at random. Otherwise they are assigned in
        turn, in the order of X.
    random_state : int, RandomState instance or None, default=None
        Source of the random numbers if `shuffle`. An int gives the same splits in every call.

    Attributes
    ----------
    train_indices_, test_indices_ : ndarray of shape (n_train,) and (n_test,), dtype int64
        Ascending row numbers of the first split, which `fit` made.
    held_out_ : ndarray or DataFrame of shape (n_test, n_features)
        The test rows of X.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, if they are strings.

    See Also
    --------
    WarmStartKFold : Keeps all items in training, too.
    sklearn.model_selection.GroupKFold : Whole users, with `groups=X[:, 0]`.

    Notes
    -----
    :func:`sklearn.model_selection.cross_val_predict` needs every row to be tested once, so it
    works if every user has at least two rows. This splits rows, so a repeated (user, item) pair
    may be both in training and in test.

    Examples
    --------
    >>> from fedrecsk.model_selection import UserKFold
    >>> X = [["ann", "a"], ["ann", "b"], ["ann", "c"], ["bob", "a"], ["bob", "b"], ["cat", "a"]]
    >>> for train, test in UserKFold(n_splits=2).split(X):
    ...     print(train, test)
    [1 3 5] [0 2 4]
    [0 2 4 5] [1 3]
    """

    _parameter_constraints: ClassVar[dict] = {
        "n_splits": [Interval(Integral, 2, None, closed="left")],
        "shuffle": ["boolean"],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_splits: int = 5,
        *,
        shuffle: bool = False,
        random_state: int | RandomState | None = None,
    ) -> None:
        self.n_splits = n_splits
        self.shuffle = shuffle
        self.random_state = random_state

    def _folds(self, X, order):
        (users, n_users), _ = coded_rows(X)
        rows, _, counts = by_group(users, n_users, order)
        rows = rows[np.repeat(counts > 1, counts)]
        if len(rows) < self.n_splits:
            raise ValueError(
                f"Only {len(rows)} rows belong to a user with two rows or more, too few for "
                f"n_splits={self.n_splits} folds; lower n_splits, or give more interactions per "
                "user."
            )
        # The turns continue from user to user, so that the folds have equal sizes.
        folds = np.full(len(users), -1)
        folds[rows] = np.arange(len(rows)) % self.n_splits
        return folds
