"""Hold out a random share of each user's rows."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from sklearn.utils import check_random_state

from fedrecsk._sklearn import Interval, RealNotInt
from fedrecsk.model_selection._base import Splitter, two_parts
from fedrecsk.model_selection._groups import by_group, last_of_group, n_held_out
from fedrecsk.preprocessing._rows import coded_rows

if TYPE_CHECKING:
    from numpy.random import RandomState
    from numpy.typing import ArrayLike


class UserHoldout(Splitter):
    """Hold out a random share of the rows of each user.

    What it guarantees:

    - each user's test rows are its share, rounded to the nearest row, but at least one row
      remains in training;
    - so every user is in training. Test items may be missing from training.

    Parameters
    ----------
    test_size : float or int, default=0.2
        Share of each user's rows to hold out, if a float in (0, 1); number of rows per user, if
        an int: users with no more rows than that stay in training.
    n_splits : int, default=1
        Number of random splits.
    random_state : int, RandomState instance or None, default=None
        Source of the random numbers. An int gives the same splits in every call.

    Attributes
    ----------
    train_indices_, test_indices_ : ndarray of shape (n_train,) and (n_test,), dtype int64
        Ascending row numbers of the split that `fit` made.
    held_out_ : ndarray or DataFrame of shape (n_test, n_features)
        The test rows of X.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, if they are strings.

    See Also
    --------
    UserKFold : Tests each row once.
    TemporalHoldout : The latest rows of each user, with `per_user=True`.
    sklearn.model_selection.GroupShuffleSplit : Whole users, with `groups=X[:, 0]`.

    Notes
    -----
    It splits rows, so a repeated (user, item) pair may be both in training and in test.

    Examples
    --------
    >>> from fedrecsk.model_selection import UserHoldout
    >>> X = [["ann", item] for item in "abcd"] + [["bob", item] for item in "ab"]
    >>> train, test = next(UserHoldout(test_size=0.5, random_state=0).split(X))
    >>> [X[row] for row in test]
    [['ann', 'a'], ['ann', 'd'], ['bob', 'a']]
    """

    _parameter_constraints: ClassVar[dict] = {
        "test_size": [
            Interval(RealNotInt, 0, 1, closed="neither"),
            Interval(Integral, 1, None, closed="left"),
        ],
        "n_splits": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        test_size: float = 0.2,
        *,
        n_splits: int = 1,
        random_state: int | RandomState | None = None,
    ) -> None:
        self.test_size = test_size
        self.n_splits = n_splits
        self.random_state = random_state

    def _splits(self, X):
        (users, n_users), _ = coded_rows(X)
        counts = np.bincount(users, minlength=n_users)
        n_test = n_held_out(self.test_size, counts)
        if not n_test.any():
            raise ValueError(
                f"test_size={self.test_size} holds out no row, since the most active user has "
                f"{counts.max()} rows and one must stay in training; change test_size, or give "
                "more interactions per user."
            )
        rng = check_random_state(self.random_state)
        orders = (rng.permutation(len(users)) for _ in range(self.n_splits))
        return (
            two_parts(last_of_group(*by_group(users, n_users, order), n_test)) for order in orders
        )

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
        return self.n_splits
