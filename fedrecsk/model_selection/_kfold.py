"""K-fold splitters that keep every test user, or every test user and item, in training."""

from __future__ import annotations

from abc import abstractmethod
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, depth_first_order
from sklearn.utils import check_random_state

from fedrecsk._utils.docs import documented
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.model_selection._base import Splitter, by_group, two_parts
from fedrecsk.preprocessing._rows import coded_rows

if TYPE_CHECKING:
    from numpy.random import RandomState
    from numpy.typing import NDArray


class FoldSplitter(Splitter):
    """Base class of splitters with `n_splits` folds; a subclass implements `_folds`."""

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
    {n_splits}
    shuffle : bool, default=False
        Whether to assign a user's rows to the folds at random. Otherwise they are assigned in
        turn, in the order of X.
    random_state : int, RandomState instance or None, default=None
        Source of the random numbers if `shuffle`. An int gives the same splits in every call.

    Attributes
    ----------
    {split attributes}

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
    {n_splits}
    shuffle : bool, default=False
        Whether to shuffle the rows before they are assigned to the folds.
    random_state : int, RandomState instance or None, default=None
        Source of the random numbers if `shuffle`. An int gives the same splits in every call.

    Attributes
    ----------
    {split attributes}

    See Also
    --------
    UserKFold : Keeps only the users in training, and tests more rows.

    Notes
    -----
    A user or item is in training in every split if two of its rows are in different folds. So
    the first two rows of each user are linked, and the first two rows of each item. A row has at
    most two links, one of each kind, so the linked rows form chains and rings. Assigning them to
    the folds in turn, along the chains, separates every two linked rows. If the two ends of a
    ring meet in one fold, the last row moves to the next fold. Splitters that instead reserve one
    row of each user and item for training never test these rows.

    Random folds ignore time. This splits rows, so a repeated (user, item) pair may be both in
    training and in test.

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
                f"n_splits={self.n_splits} folds that keep all users and items in training; lower "
                "n_splits, or keep users and items with more rows "
                "(fedrecsk.preprocessing.filter_k_core)."
            )
        one, other = np.hstack([_first_two(codes[rows], n_ids) for codes, n_ids in sides])
        folds = np.full(X.shape[0], -1)
        folds[rows] = _deal(one, other, len(rows), self.n_splits)
        return folds


def _first_two(codes, n_groups):
    """Return the first two rows of each group that has two, shape (2, n_pairs)."""
    rows, starts, counts = by_group(codes, n_groups, np.arange(len(codes)))
    first = starts[counts > 1]
    return np.stack([rows[first], rows[first + 1]])


def _deal(one, other, n_rows, n_folds):
    """Return folds in which linked rows differ; links form chains and even rings."""
    linked, ends = np.unique(np.concatenate([one, other]), return_inverse=True)
    one, other = np.split(ends, 2)
    free = np.ones(n_rows, dtype=bool)
    free[linked] = False
    walk = linked[_along_chains(one, other, len(linked))]
    sequence = np.concatenate([walk, np.flatnonzero(free)])
    turn = np.empty(n_rows, dtype=np.int64)
    turn[sequence] = np.arange(n_rows)
    folds = turn % n_folds
    # A ring can close on one fold. Its length is even, so this needs three folds or more, and
    # the next fold is not that of the other neighbour, which is the one before.
    one, other = linked[one], linked[other]
    closing = folds[one] == folds[other]
    last = np.where(turn[one] > turn[other], one, other)[closing]
    folds[last] = (folds[last] + 1) % n_folds
    return folds


def _along_chains(one, other, n_nodes):
    """Return nodes in an order that walks each chain or ring of links from end to end."""
    if not n_nodes:
        return np.arange(0)
    graph = _graph(one, other, n_nodes)
    n_chains, chain = connected_components(graph, directed=False)
    is_ring = np.ones(n_chains, dtype=bool)
    is_ring[chain[_loose_ends(graph)]] = False
    # Rings are cut and all chains joined into one, because scipy's walk looks at every exit of
    # a node again whenever it returns there: from a common root it would take quadratic time.
    in_ring = np.flatnonzero(is_ring[chain[one]])
    cuts = in_ring[np.unique(chain[one[in_ring]], return_index=True)[1]]
    one, other = np.delete(one, cuts), np.delete(other, cuts)
    ends = _loose_ends(_graph(one, other, n_nodes))
    heads, tails = ends[np.argsort(chain[ends], kind="stable")].reshape(n_chains, 2).T
    one, other = np.concatenate([one, tails[:-1]]), np.concatenate([other, heads[1:]])
    return depth_first_order(_graph(one, other, n_nodes), heads[0], return_predecessors=False)


def _graph(one, other, n_nodes):
    links = np.concatenate([one, other]), np.concatenate([other, one])
    return coo_array((np.ones(len(links[0])), links), shape=(n_nodes, n_nodes)).tocsr()


def _loose_ends(graph):
    """Return the nodes with a single link."""
    return np.flatnonzero(np.diff(graph.indptr) == 1)
