"""Hold out the latest rows."""

from __future__ import annotations

from numbers import Integral
from typing import ClassVar

import numpy as np

from fedrecsk._sklearn import Interval, RealNotInt
from fedrecsk.model_selection import _times
from fedrecsk.model_selection._base import Holdout
from fedrecsk.model_selection._groups import by_group, cut, n_held_out
from fedrecsk.preprocessing._rows import coded_rows

_SIZE = [
    Interval(RealNotInt, 0, 1, closed="neither"),
    Interval(Integral, 1, None, closed="left"),
]


class TemporalHoldout(Holdout):
    """Hold out the latest rows, of all or of each user.

    What it guarantees:

    - every training row is strictly earlier than every validation row, and every validation row
      than every test row (with `per_user`, among the rows of each user);
    - rows with the same time stay together. A cut that would fall among them moves to the nearer
      end (the later one if both are as near), so a part can be larger or smaller than requested;
    - with `per_user`, every user is in training; users with too few rows for a part, or with
      all rows at the same time, contribute nothing to it;
    - without `per_user`, users and items of the test rows may be missing from training.

    Parameters
    ----------
    test_size : float or int, default=0.2
        Share of test rows, if a float in (0, 1), rounded to the nearest row; number of test
        rows, if an int. With `per_user`, of each user's rows.
    validation_size : float or int, default=None
        Share or number of validation rows, which come just before the test rows. None: no
        validation part.
    per_user : bool, default=False
        Whether to cut the rows of each user at its own time, instead of all rows at one time.
    timestamps : int or str, default=2
        Column of X with the time of each row: its position (2 or more) or, for a DataFrame,
        its name. The times are numbers, dates, or ISO dates as strings. "row_order": the rows of
        X are in the order of time (with `per_user`, at least within each user).

    Attributes
    ----------
    train_indices_, test_indices_ : ndarray of shape (n_train,) and (n_test,), dtype int64
        Ascending row numbers of the split that `fit` made.
    validation_indices_ : ndarray of shape (n_validation,), dtype int64
        Only with `validation_size`.
    held_out_ : ndarray or DataFrame of shape (n_test, n_features)
        The test rows of X.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, if they are strings.

    See Also
    --------
    LeaveLastOut : The last row of each user, even where times are equal.

    Notes
    -----
    With `validation_size`, `split` gives (training, validation) and leaves out the test rows, so
    that a search is scored on validation rows. But a search that refits uses all rows that it was
    given, so do not give it the test rows: see the last example.

    Only a global cut never uses the future: with `per_user`, training has rows of other users that
    are later than the test rows.

    Examples
    --------
    >>> from fedrecsk.model_selection import TemporalHoldout
    >>> X = [["ann", "a", 1], ["ann", "b", 2], ["bob", "a", 3], ["bob", "c", 4]]
    >>> for train, test in TemporalHoldout(test_size=0.25).split(X):
    ...     print(train, test)
    [0 1 2] [3]
    >>> for train, test in TemporalHoldout(test_size=0.5, per_user=True).split(X):
    ...     print(train, test)
    [0 2] [1 3]

    80/10/10 of each user:

    >>> from fedrecsk.datasets import make_ratings
    >>> X, y = make_ratings(random_state=0)
    >>> splitter = TemporalHoldout(0.1, validation_size=0.1, per_user=True)
    >>> X_train, X_val, X_test, y_train, y_val, y_test = splitter.train_test_split(X, y)
    >>> [round(len(part) / len(y), 2) for part in (y_train, y_val, y_test)]
    [0.8, 0.1, 0.1]

    A search that never sees the test rows:

    >>> from sklearn.model_selection import GridSearchCV
    >>> from fedrecsk import BiasOnly
    >>> X_seen, X_test, y_seen, y_test = TemporalHoldout(0.1).train_test_split(X, y)
    >>> search = GridSearchCV(BiasOnly(), {"reg_item": [1, 10]}, cv=TemporalHoldout(1 / 9))
    >>> r2 = search.fit(X_seen, y_seen).score(X_test, y_test)
    """

    _parameter_constraints: ClassVar[dict] = {
        "test_size": _SIZE,
        "validation_size": [*_SIZE, None],
        "per_user": ["boolean"],
        "timestamps": _times.CONSTRAINT,
    }

    def __init__(
        self,
        test_size: float = 0.2,
        *,
        validation_size: float | None = None,
        per_user: bool = False,
        timestamps: int | str = 2,
    ) -> None:
        self.test_size = test_size
        self.validation_size = validation_size
        self.per_user = per_user
        self.timestamps = timestamps

    def _splits(self, X):
        train, held_out, *_ = self._parts(X).values()
        return iter([(train, held_out)])

    def _parts(self, X):
        sizes = {"test": self.test_size, "validation": self.validation_size}
        sizes = {name: size for name, size in sizes.items() if size is not None}
        shares = [size for size in sizes.values() if not isinstance(size, Integral)]
        if sum(shares) >= 1:
            raise ValueError(
                f"test_size={self.test_size} and validation_size={self.validation_size} leave no "
                "training rows; together they should be less than 1."
            )
        times = _times.read_times(X, self.timestamps)
        (users, n_users), _ = coded_rows(X)
        groups, n_groups = (users, n_users) if self.per_user else (np.zeros_like(users), 1)
        rows, starts, counts = by_group(groups, n_groups, np.argsort(times, kind="stable"))
        times = times[rows]

        part = np.zeros(len(rows), dtype=np.int8)
        position = np.arange(len(rows))
        ends = starts + counts
        for number, (name, size) in enumerate(sizes.items(), start=1):
            cuts = cut(times, starts, ends, n_held_out(size, counts, ends - starts))
            late = (position >= np.repeat(cuts, counts)) & (position < np.repeat(ends, counts))
            if not late.any():
                raise ValueError(
                    f"{name}_size={size} leaves the {name} set empty: "
                    f"{'no user has' if self.per_user else 'X does not have'} enough rows at "
                    f"different times for training rows before them. Change {name}_size, or give "
                    "more interactions."
                )
            part[rows[late]] = number
            ends = cuts
        late_parts = reversed(list(enumerate(sizes, start=1)))
        numbers = {"train": 0} | {name: number for number, name in late_parts}
        return {name: np.flatnonzero(part == number) for name, number in numbers.items()}
