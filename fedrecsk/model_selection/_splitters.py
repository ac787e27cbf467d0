"""Splitters of rows: the last, the latest or random ones, once or in folds."""

from __future__ import annotations

import datetime
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from fedrecsk._utils.constraints import ArrayLike, AtLeast1, AtLeast2, Column, Seed
from fedrecsk._utils.docs import documented
from fedrecsk._utils.sklearn_compat import Interval, RealNotInt
from fedrecsk._utils.user_warnings import warn
from fedrecsk.data import _times
from fedrecsk.data.interactions import coded_rows
from fedrecsk.model_selection._base import Splitter, by_group, two_parts

ShareOrNumber = Annotated[float, Interval(RealNotInt, 0, 1, closed="neither")] | AtLeast1


@documented
@dataclass(eq=False, repr=False)
class LeaveLastOut(Splitter):
    """Hold out the last interactions of each user, the usual "leave one out" of ranking papers.

    What it guarantees:

    - each user with more than `n_last` rows has exactly `n_last` test rows, none of them
      earlier than any of its training rows; with ``ties="train"`` or ``"test"`` the number can
      differ, but all test rows are later than the user's training rows;
    - all rows of every other user are training rows;
    - so every user is in training. Test items may be missing from training.

    Parameters
    ----------
    n_last : int, default=1
        Number of rows to hold out per user.
    {column of times}
        At least within each user.
    ties : {"row_order", "train", "test"} or None, default=None
        Where rows go if the first held-out row of a user has the same time as the training row
        before it. "row_order": the row further down in X counts as later. "train": all rows of
        that time are training rows. "test": all of them are test rows, but a user without an
        earlier row has no test rows. If None, as "row_order", with a warning that reports the
        share of users with such rows.

    Attributes
    ----------
    {split attributes}

    See Also
    --------
    TemporalHoldout : A share of each user's rows, or of all rows, by time. Never cuts a tie.

    Examples
    --------
    >>> from fedrecsk.model_selection import LeaveLastOut
    >>> X = [["ann", "alien", 3], ["ann", "brazil", 1], ["bob", "clue", 2]]
    >>> for train, test in LeaveLastOut().split(X):
    ...     print(train, test)
    [1 2] [0]

    Where times are equal, the order of the rows decides, unless `ties` says otherwise:

    >>> X = [["ann", "alien", 1], ["ann", "brazil", 3], ["ann", "clue", 3], ["bob", "clue", 2]]
    >>> for ties in ("row_order", "test"):
    ...     train, test = next(LeaveLastOut(ties=ties).split(X))
    ...     print(train, test)
    [0 1 3] [2]
    [0 3] [1 2]
    """

    n_last: AtLeast1 = 1
    _: KW_ONLY
    timestamps: Column = 2
    ties: Literal["row_order", "train", "test"] | None = None

    def _splits(self, X):
        times = _times.read_times(X, self.timestamps)
        (users, n_users), _ = coded_rows(X)
        rows, starts, counts = by_group(users, n_users, np.argsort(times, kind="stable"))
        n_last = _n_held_out(self.n_last, counts)
        if not n_last.any():
            raise ValueError(
                f"No user has more than n_last={self.n_last} rows (the most is {counts.max()}), so "
                "the test set would be empty; lower n_last, or give more interactions per user."
            )
        n_last = self._resolve_ties(times[rows], starts, counts, n_last)
        return iter([two_parts(_last_of_group(rows, starts, counts, n_last))])

    def _resolve_ties(self, times, starts, counts, n_last):
        """Return how many rows of each user to hold out where its cut falls among equal times."""
        ends = starts + counts
        cuts = np.minimum(ends - n_last, ends - 1)
        before, after = _tie_around(times, cuts)
        before, after = np.maximum(before, starts), np.minimum(after, ends)
        is_tied = (n_last > 0) & (before < cuts)
        if self.ties == "train":
            cuts = after
        elif self.ties == "test":
            cuts = np.where(before > starts, before, ends)
        elif self.ties is None and is_tied.any():
            n_tied, n_users = is_tied.sum(), (n_last > 0).sum()
            warn(
                f"For {n_tied} of {n_users} users ({n_tied / n_users:.0%}) times do not determine "
                "which rows to hold out: of equal times the row further down in X counts as later. "
                "Pass ties='train' or ties='test' to keep them together, or ties='row_order' to "
                "accept this split."
            )
        n_last = np.where(is_tied, ends - cuts, n_last)
        if not n_last.any():
            raise ValueError(
                f"ties={self.ties!r} leaves the test set empty, since each user's last rows have "
                "the same time; pass ties='row_order', or times of a finer resolution."
            )
        return n_last


@documented
@dataclass(eq=False, repr=False)
class TemporalHoldout(Splitter):
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
        rows, if an int. With `per_user`, of each user's rows. Without effect if there is a
        `cutoff`.
    validation_size : float or int, default=None
        Share or number of validation rows, which come just before the test rows. If None, no
        validation part.
    per_user : bool, default=False
        Whether to cut the rows of each user at its own time, instead of all rows at one time.
    cutoff : date, number, float in (0, 1) or None, default=None
        When the test rows begin, the same time for all users: a time as in X, such as
        "2024-05-01", whose rows are test rows, or, if a float in (0, 1), a quantile of the times
        of the rows.
    {column of times}
        With `per_user`, at least within each user.

    Attributes
    ----------
    {split attributes}
    validation_indices_ : ndarray of shape (n_validation,), dtype int64
        Only with `validation_size`.

    See Also
    --------
    LeaveLastOut : The last row of each user, even where times are equal.
    RollingOrigin : Several cut-offs, one after the other.

    Notes
    -----
    With `validation_size`, `split` gives (training, validation) and leaves out the test rows. But a
    search that refits uses all rows that it was given, so do not give it the test rows: see below.

    Only a global cut never uses the future: with `per_user`, training has later rows of others.

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
    >>> for train, test in TemporalHoldout(cutoff=2).split(X):
    ...     print(train, test)
    [0] [1 2 3]

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

    test_size: ShareOrNumber = 0.2
    _: KW_ONLY
    validation_size: ShareOrNumber | None = None
    per_user: bool = False
    cutoff: str | Real | datetime.date | np.datetime64 | None = None
    timestamps: Column = 2

    def _splits(self, X):
        train, held_out, *_ = self._parts(X).values()
        return iter([(train, held_out)])

    def _parts(self, X):
        if self.cutoff is not None and self.per_user:
            raise ValueError(
                "cutoff is one time for all users, and per_user=True cuts each user's rows at its "
                "own; leave one of them out."
            )
        sizes = {"test": 1 if self.cutoff is not None else self.test_size}
        if self.validation_size is not None:
            sizes["validation"] = self.validation_size
        if sum(size for size in sizes.values() if not isinstance(size, Integral)) >= 1:
            raise ValueError(
                f"test_size={self.test_size} and validation_size={self.validation_size} leave no "
                "training rows; together they should be less than 1."
            )
        times = _times.read_times(X, self.timestamps)
        (users, n_users), _ = coded_rows(X)
        groups, n_groups = (users, n_users) if self.per_user else (np.zeros_like(users), 1)
        rows, starts, counts = by_group(groups, n_groups, np.argsort(times, kind="stable"))
        times, position = times[rows], np.arange(len(rows))
        parts, ends = {}, starts + counts
        for name, size in sizes.items():
            if name == "test" and self.cutoff is not None:
                cuts = self._cut_at(times)
            else:
                cuts = _cut(times, starts, ends, _n_held_out(size, counts, ends - starts))
            late = (position >= np.repeat(cuts, counts)) & (position < np.repeat(ends, counts))
            if not late.any():
                raise ValueError(
                    f"{name}_size={size} leaves the {name} set empty: "
                    f"{'no user has' if self.per_user else 'X does not have'} enough rows at "
                    f"different times for training rows before them. Change {name}_size, or give "
                    "more interactions."
                )
            parts[name] = np.sort(rows[late])
            ends = cuts
        parts["train"] = np.sort(rows[position < np.repeat(ends, counts)])
        return dict(reversed(parts.items()))

    def _cut_at(self, times):
        """Return where the test rows begin among sorted times, (1,)."""
        cuts = np.searchsorted(times, _cutoff_times([self.cutoff], times, "cutoff"))
        if not 0 < cuts[0] < len(times):
            raise ValueError(
                f"cutoff={self.cutoff!r} leaves no {'test' if cuts[0] else 'training'} rows: the "
                f"times of X are from {times[0]} to {times[-1]}. Give a time between them."
            )
        return cuts


@documented
@dataclass(eq=False, repr=False)
class RollingOrigin(Splitter):
    """Train on all rows before a cut-off in time, test on the next period, and move on.

    What it guarantees:

    - in each split, all training rows are strictly earlier than all test rows;
    - rows with the same time stay together;
    - each row after the first cut-off is a test row in exactly one split, in which all earlier
      rows, test rows of earlier splits included, are training rows;
    - users and items of the test rows may be missing from training.

    Parameters
    ----------
    cutoffs : int, or array-like of dates, numbers or quantiles, default=3
        Where periods begin. An int: the number of cut-offs, which cut the last half of the rows
        into periods of about the same number of rows. Floats in (0, 1): quantiles of the times of
        the rows. Otherwise times as in X, such as "2024-05-01": periods begin at them, and their
        rows are test rows. One cut-off makes one split at a date for all users.
    {column of times}

    Attributes
    ----------
    {split attributes}

    See Also
    --------
    TemporalHoldout : One cut, by the number of test rows.
    compare : With ``cv=RollingOrigin()``, its `per_fold` has a row for each period.

    Examples
    --------
    >>> from fedrecsk.model_selection import RollingOrigin
    >>> X = [["ann", "a", "2024-01-01"], ["bob", "a", "2024-02-01"], ["ann", "b", "2024-03-01"],
    ...      ["bob", "b", "2024-03-15"], ["bob", "c", "2024-04-01"]]
    >>> for train, test in RollingOrigin(["2024-03-01", "2024-04-01"]).split(X):
    ...     print(train, test)
    [0 1] [2 3]
    [0 1 2 3] [4]
    >>> for train, test in RollingOrigin([0.7]).split(X):
    ...     print(train, test)
    [0 1 2] [3 4]
    """

    cutoffs: AtLeast1 | ArrayLike = 3
    _: KW_ONLY
    timestamps: Column = 2

    def _n_splits(self):
        return int(self.cutoffs) if isinstance(self.cutoffs, Integral) else len(self.cutoffs)

    def _splits(self, X):
        times = _times.read_times(X, self.timestamps)
        cutoffs = self.cutoffs
        if isinstance(cutoffs, Integral):
            cutoffs = 0.5 + 0.5 * np.arange(cutoffs) / cutoffs
        cutoffs = _cutoff_times(cutoffs, times, "cutoffs")
        period = np.searchsorted(cutoffs, times, side="right")
        sizes = np.bincount(period, minlength=len(cutoffs) + 1)
        if not sizes.all():
            empty = int(np.argmin(sizes))
            where = f"from {cutoffs[empty - 1]} on" if empty else f"before {cutoffs[0]}"
            raise ValueError(
                f"X has no row {where}; its times are from {times.min()} to {times.max()}. Give "
                "other or fewer cutoffs."
            )
        numbers = range(1, len(cutoffs) + 1)
        return iter([(np.flatnonzero(period < n), np.flatnonzero(period == n)) for n in numbers])


@dataclass(eq=False, repr=False)
class RandomHoldout(Splitter):
    """Base class of splitters that hold out a random share, once or `n_splits` times."""

    test_size: ShareOrNumber = 0.2
    _: KW_ONLY
    n_splits: AtLeast1 = 1
    random_state: Seed = None


@documented
class UserHoldout(RandomHoldout):
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
    {random splits}

    Attributes
    ----------
    {split attributes}

    See Also
    --------
    UserKFold : Tests each row once.
    TemporalHoldout : The latest rows of each user, with `per_user=True`.

    Examples
    --------
    >>> from fedrecsk.model_selection import UserHoldout
    >>> X = [["ann", item] for item in "abcd"] + [["bob", item] for item in "ab"]
    >>> train, test = next(UserHoldout(test_size=0.5, random_state=0).split(X))
    >>> [X[row] for row in test]
    [['ann', 'a'], ['ann', 'd'], ['bob', 'a']]
    """

    def _splits(self, X):
        (users, n_users), _ = coded_rows(X)
        counts = np.bincount(users, minlength=n_users)
        n_test = _n_held_out(self.test_size, counts)
        if not n_test.any():
            raise ValueError(
                f"test_size={self.test_size} holds out no row, since no user has more than "
                f"{counts.max()} rows and one must stay in training; change it."
            )
        rng = check_random_state(self.random_state)
        orders = (rng.permutation(len(users)) for _ in range(self.n_splits))
        return (
            two_parts(_last_of_group(*by_group(users, n_users, order), n_test)) for order in orders
        )


@documented
@dataclass(eq=False, repr=False)
class ColdItemHoldout(RandomHoldout):
    """Hold out all rows of a random share of the items, as if these were new.

    What it guarantees:

    - no test item has a training row, and every other row is a training row;
    - every user with a row of another item is in training; the test rows of other users are left
      out of both parts.

    Parameters
    ----------
    test_size : float or int, default=0.1
        Share of the items to hold out, if a float in (0, 1); number of items, if an int.
    {random splits}

    Attributes
    ----------
    {split attributes}

    See Also
    --------
    UserHoldout : Known items.

    Notes
    -----
    A model can recommend new items only by their features: with `item_features` of all items,
    or by its `add_items`.

    Examples
    --------
    >>> from fedrecsk.model_selection import ColdItemHoldout
    >>> X = [["ann", item] for item in "abcd"] + [["bob", item] for item in "ab"]
    >>> train, test = next(ColdItemHoldout(test_size=0.25, random_state=0).split(X))
    >>> [X[row] for row in test]
    [['ann', 'c']]
    """

    test_size: ShareOrNumber = 0.1

    def _splits(self, X):
        (users, _), (items, n_items) = coded_rows(X)
        n_test = self.test_size
        if not isinstance(n_test, Integral):
            n_test = max(1, int(n_test * n_items + 0.5))
        if n_test >= n_items:
            raise ValueError(f"test_size={self.test_size} holds out all {n_items} items; lower it.")
        rng, splits = check_random_state(self.random_state), []
        for _ in range(self.n_splits):
            cold = np.isin(items, rng.permutation(n_items)[:n_test])
            known = np.isin(users, users[~cold])
            splits.append((np.flatnonzero(~cold), np.flatnonzero(cold & known)))
        if not all(len(test) for _, test in splits):
            raise ValueError(
                "No user of a held-out item has a row of another item, so nothing is known of the "
                "users to test; change test_size or random_state."
            )
        return iter(splits)


def _cutoff_times(cutoffs, times, name):
    """Return cut-offs, given as times or quantiles of the times of rows, as ascending times."""
    cutoffs = np.asarray(cutoffs)
    if cutoffs.ndim != 1 or not len(cutoffs):
        raise ValueError(f"{name} should be a list of times or quantiles, got {cutoffs!r}.")
    if cutoffs.dtype.kind == "f" and ((cutoffs > 0) & (cutoffs < 1)).all():
        return np.quantile(times, cutoffs, method="higher")
    found = _times.as_times(cutoffs, name)
    if (found.dtype.kind == "M") != (times.dtype.kind == "M"):
        raise ValueError(
            f"One of {name} and the times of X are dates and the other are numbers: {name} "
            f"{'has' if name == 'cutoff' else 'have'} {found[0]!s}, and X has {times[0]!s}. Give "
            "both in the same form."
        )
    if not (found[:-1] < found[1:]).all():
        raise ValueError(f"{name} should be in ascending order, each once; sort them.")
    return found


def _n_held_out(size, counts, available=None):
    """Return how many rows of each group to hold out: a share or number, all but one at most."""
    available = counts if available is None else available
    if isinstance(size, Integral):
        return np.where(available > size, int(size), 0)
    return np.minimum(np.floor(size * counts + 0.5).astype(np.int64), available - 1)


def _last_of_group(rows, starts, counts, n_last):
    """Mark the last `n_last[g]` rows of each group g."""
    mask = np.empty(len(rows), dtype=bool)
    mask[rows] = np.arange(len(rows)) >= np.repeat(starts + counts - n_last, counts)
    return mask


def _cut(times, starts, ends, n_late):
    """Cut groups where the time changes, as near as possible to `n_late` rows from their ends."""
    # Late rows are times[cuts[g]:ends[g]]: none if n_late is 0 or all rows have the same time.
    wish = np.minimum(ends - n_late, ends - 1)
    before, after = _tie_around(times, wish)
    near = (before > starts) & ((wish - before < after - wish) | (after >= ends))
    return np.where(n_late > 0, np.where(near, before, np.minimum(after, ends)), ends)


def _tie_around(times, places):
    """Return where the rows with the time at each place begin and end, times being sorted."""
    moments = np.flatnonzero(np.concatenate([[True], times[1:] != times[:-1]]))
    moment = np.searchsorted(moments, places, side="right") - 1
    return moments[moment], np.append(moments, len(times))[moment + 1]


@dataclass(eq=False, repr=False)
class FoldSplitter(Splitter):
    """Base class of splitters with `n_splits` folds; a subclass implements `_folds`."""

    n_splits: AtLeast2 = 5
    _: KW_ONLY
    shuffle: bool = False
    random_state: Seed = None

    @abstractmethod
    def _folds(self, X: Any, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the fold of each row, -1 for rows that are never tested."""

    def _splits(self, X):
        if not self.shuffle and self.random_state is not None:
            raise ValueError(
                f"random_state={self.random_state!r} has no effect since shuffle is False; set "
                "shuffle=True, or leave random_state at None."
            )
        order = np.arange(X.shape[0])
        if self.shuffle:
            order = check_random_state(self.random_state).permutation(order)
        folds = self._folds(X, order)
        return (two_parts(folds == fold) for fold in range(self.n_splits))


@documented
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
    {folds}

    Attributes
    ----------
    {split attributes}

    See Also
    --------
    WarmStartKFold : Keeps all items in training, too.

    Notes
    -----
    :func:`sklearn.model_selection.cross_val_predict` works if every user has at least two rows.

    Examples
    --------
    >>> from fedrecsk.model_selection import UserKFold
    >>> X = [["ann", "a"], ["ann", "b"], ["ann", "c"], ["bob", "a"], ["bob", "b"], ["cat", "a"]]
    >>> for train, test in UserKFold(n_splits=2).split(X):
    ...     print(train, test)
    [1 3 5] [0 2 4]
    [0 2 4 5] [1 3]
    """

    def _folds(self, X, order):
        (users, n_users), _ = coded_rows(X)
        rows, _, counts = by_group(users, n_users, order)
        rows = rows[np.repeat(counts > 1, counts)]
        if len(rows) < self.n_splits:
            raise ValueError(
                f"Only {len(rows)} rows belong to a user with two rows or more, too few for "
                f"n_splits={self.n_splits}; lower it, or give more interactions per user."
            )
        # The turns continue from user to user, so that the folds have equal sizes.
        folds = np.full(len(users), -1)
        folds[rows] = np.arange(len(rows)) % self.n_splits
        return folds


@documented
class WarmStartKFold(FoldSplitter):
    """K-fold that keeps every test user and every test item in training.

    What it guarantees:

    - every user and every item is in training in every split;
    - each row whose user has another row and whose item has another row is a test row in
      exactly one split;
    - all other rows, the only ones of a user or of an item, are always in training;
    - the sizes of the folds differ by at most one, except on very sparse data with closed chains
      of users with two items and items with two users.

    Parameters
    ----------
    {folds}

    Attributes
    ----------
    {split attributes}

    See Also
    --------
    UserKFold : Keeps only the users in training, and tests more rows.

    Notes
    -----
    A user or item is in training in every split if two of its rows are in different folds. So
    the first two rows of each user are linked, and the first two rows of each item, which makes
    chains and rings of rows. Assigning them to the folds in turn, along the chains, separates every
    two linked rows. If the two ends of a ring meet in one fold, the last row moves to the next.

    Examples
    --------
    >>> from fedrecsk.model_selection import WarmStartKFold
    >>> X = [["ann", "a"], ["ann", "b"], ["bob", "a"], ["bob", "b"], ["bob", "c"]]
    >>> for train, test in WarmStartKFold(n_splits=2).split(X):
    ...     print(train, test)
    [1 2 4] [0 3]
    [0 3 4] [1 2]
    """

    def _folds(self, X, order):
        sides = coded_rows(X)
        testable = np.ones(X.shape[0], dtype=bool)
        for codes, _ in sides:
            testable &= (np.bincount(codes) > 1)[codes]
        rows = order[testable[order]]
        if len(rows) < self.n_splits:
            raise ValueError(
                f"Only {len(rows)} rows have a user and an item with another row, too few for "
                f"n_splits={self.n_splits}; lower it, or drop rare users and items first "
                "(fedrecsk.preprocessing.filter_k_core)."
            )
        pairs = [_first_two(codes[rows], n_ids) for codes, n_ids in sides]
        folds = np.full(X.shape[0], -1)
        folds[rows] = _deal(pairs, len(rows), self.n_splits)
        return folds


def _first_two(codes, n_groups):
    """Return the first two rows of each group that has two, shape (2, n_pairs)."""
    rows, starts, counts = by_group(codes, n_groups, np.arange(len(codes)))
    first = starts[counts > 1]
    return np.stack([rows[first], rows[first + 1]])


def _deal(pairs, n_rows, n_folds):
    """Return folds in which linked rows differ; `pairs` has the links by users and by items."""
    partners = np.full((2, n_rows), -1)
    for partner, (one, other) in zip(partners, pairs, strict=True):
        partner[one], partner[other] = other, one
    turn = np.empty(n_rows, dtype=np.int64)
    turn[_along_chains(partners)] = np.arange(n_rows)
    folds = turn % n_folds
    # A ring can close on one fold. Its length is even, so this needs three folds or more, and
    # the next fold is not that of the other neighbour, which is the one before.
    one, other = np.hstack(pairs)
    closing = folds[one] == folds[other]
    last = np.where(turn[one] > turn[other], one, other)[closing]
    folds[last] = (folds[last] + 1) % n_folds
    return folds


def _along_chains(partners):
    """Return rows in an order that walks each chain or ring of links from end to end."""
    is_linked = (partners >= 0).any(axis=0)
    partners, seen, sequence = partners.tolist(), set(), []

    def walk(start, side):
        row, path = partners[side][start], []
        while row not in (-1, start):
            path.append(row)
            side = 1 - side
            row = partners[side][row]
        return path, row == start

    for start in np.flatnonzero(is_linked).tolist():
        if start not in seen:
            before, is_ring = walk(start, 0)
            chain = [*reversed(before), start, *([] if is_ring else walk(start, 1)[0])]
            seen.update(chain)
            sequence += chain if chain[0] < chain[-1] else chain[::-1]
    return np.concatenate([np.array(sequence, dtype=np.int64), np.flatnonzero(~is_linked)])
