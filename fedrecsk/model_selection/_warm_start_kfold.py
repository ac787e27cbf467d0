"""K-fold in which training has every user and item of the test rows."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, depth_first_order

from fedrecsk._sklearn import Interval
from fedrecsk.model_selection._base import FoldSplitter
from fedrecsk.model_selection._groups import by_group
from fedrecsk.preprocessing._rows import coded_rows

if TYPE_CHECKING:
    from numpy.random import RandomState


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
    n_splits : int, default=5
        Number of folds, at least 2.
    shuffle : bool, default=False
        Whether to shuffle the rows before they are assigned to the folds.
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
        one, other = np.hstack([first_two(codes[rows], n_ids) for codes, n_ids in sides])
        folds = np.full(X.shape[0], -1)
        folds[rows] = deal(one, other, len(rows), self.n_splits)
        return folds


def first_two(codes, n_groups):
    """The first two rows of each group that has two; shape (2, n_pairs)."""
    rows, starts, counts = by_group(codes, n_groups, np.arange(len(codes)))
    first = starts[counts > 1]
    return np.stack([rows[first], rows[first + 1]])


def deal(one, other, n_rows, n_folds):
    """Deal rows to folds so that linked rows are in different folds.

    Parameters
    ----------
    one, other : ndarray of shape (n_links,)
        Linked rows. They form chains and rings, and the rings are even.
    n_rows, n_folds : int

    Returns
    -------
    folds : ndarray of shape (n_rows,)
    """
    linked, ends = np.unique(np.concatenate([one, other]), return_inverse=True)
    one, other = np.split(ends, 2)
    free = np.ones(n_rows, dtype=bool)
    free[linked] = False
    sequence = np.concatenate([linked[along_chains(one, other, len(linked))], np.flatnonzero(free)])
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


def along_chains(one, other, n_nodes):
    """Order nodes so that each chain or ring of links is walked from end to end."""
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
    """Nodes with a single link."""
    return np.flatnonzero(np.diff(graph.indptr) == 1)
