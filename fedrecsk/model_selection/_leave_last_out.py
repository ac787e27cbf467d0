"""Hold out the last interactions of each user."""

from __future__ import annotations

from numbers import Integral
from typing import ClassVar

import numpy as np

from fedrecsk._sklearn import Interval
from fedrecsk.model_selection import _times
from fedrecsk.model_selection._base import Holdout, two_parts
from fedrecsk.model_selection._groups import by_group, last_of_group, n_held_out
from fedrecsk.preprocessing._rows import coded_rows


class LeaveLastOut(Holdout):
    """Hold out the last interactions of each user, the usual "leave one out" of ranking papers.

    What it guarantees:

    - each user with more than `n_last` rows has exactly `n_last` test rows, none of them
      earlier than any of its training rows;
    - all rows of every other user are training rows;
    - so every user is in training. Test items may be missing from training.

    Parameters
    ----------
    n_last : int, default=1
        Number of rows to hold out per user.
    timestamps : int or str, default=2
        Column of X with the time of each row: its position (2 or more) or, for a DataFrame,
        its name. The times are numbers, dates, or ISO dates as strings. "row_order": the rows of
        X are in the order of time, at least within each user. If two rows of a user have the same
        time, the one further down in X counts as later.

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
    TemporalHoldout : A share of each user's rows, or of all rows, by time.

    Notes
    -----
    It splits rows, so a repeated (user, item) pair may be both in training and in test.

    Examples
    --------
    >>> from fedrecsk.model_selection import LeaveLastOut
    >>> X = [["ann", "alien", 3], ["ann", "brazil", 1], ["bob", "clue", 2]]
    >>> for train, test in LeaveLastOut().split(X):
    ...     print(train, test)
    [1 2] [0]

    As a transformer, and with y:

    >>> splitter = LeaveLastOut()
    >>> splitter.fit_transform(X)
    array([['ann', 'brazil', 1],
           ['bob', 'clue', 2]], dtype=object)
    >>> splitter.held_out_
    array([['ann', 'alien', 3]], dtype=object)
    >>> X_train, X_test, y_train, y_test = splitter.train_test_split(X, [5, 4, 3])
    >>> y_train, y_test
    ([4, 3], [5])
    """

    _parameter_constraints: ClassVar[dict] = {
        "n_last": [Interval(Integral, 1, None, closed="left")],
        "timestamps": _times.CONSTRAINT,
    }

    def __init__(self, n_last: int = 1, *, timestamps: int | str = 2) -> None:
        self.n_last = n_last
        self.timestamps = timestamps

    def _splits(self, X):
        times = _times.read_times(X, self.timestamps)
        (users, n_users), _ = coded_rows(X)
        rows, starts, counts = by_group(users, n_users, np.argsort(times, kind="stable"))
        n_last = n_held_out(self.n_last, counts)
        if not n_last.any():
            raise ValueError(
                f"No user has more than n_last={self.n_last} rows (the most is {counts.max()}), so "
                "the test set would be empty; lower n_last, or give more interactions per user."
            )
        return iter([two_parts(last_of_group(rows, starts, counts, n_last))])
