"""Blocks of clients, the simulator's unit of work. Which clients share one depends on data only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from fedrecsk.data.interactions import Interactions, runs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    # Fitted attributes by name.
    Attributes = dict[str, Any]

RATINGS_PER_BLOCK = 2**16
MAX_BLOCKS = 64


class Layout(NamedTuple):
    """Which users and items belong to which client, as kernels take it.

    Attributes
    ----------
    client_indptr : (n_clients + 1,), users of each client
    indptr : (n_users + 1,), ratings of each user
    row_indptr : (n_clients + 1,), held item rows of each client
    rows : (n_ratings,), held row of each rating
    row_items : (n_rows,), item code of each held row
    """

    client_indptr: np.ndarray
    indptr: np.ndarray
    row_indptr: np.ndarray
    rows: np.ndarray
    row_items: np.ndarray


class OwnRows(NamedTuple):
    """Where the held rows of some of a block's clients lie, one client after the other.

    Rows ``indptr[c]:indptr[c + 1]``, of these `items`, are client c's; clients that are left out
    have none.
    """

    indptr: np.ndarray
    items: np.ndarray


@dataclass(eq=False)
class Block:
    """Private data of some clients, which only the clients' side of a method may read.

    All indices except `clients`, `users` and `items` are relative to the block.

    Attributes
    ----------
    clients : ndarray of shape (n_clients,)
        The clients' codes in the federation.
    users : ndarray of shape (n_users,)
        The users' codes, client by client.
    client_indptr : ndarray of shape (n_clients + 1,)
        Users of each client.
    indptr : ndarray of shape (n_users + 1,)
        Ratings of each user.
    items : ndarray of shape (n_ratings,), dtype int32
    values, weights : ndarray of shape (n_ratings,), dtype float64
    n_items : int
        Size of the catalogue.
    times : ndarray of shape (n_ratings,), dtype float64, or None
        NaN where missing. None: the method does not use them.
    features : ndarray of shape (n_users, n_features), or None
        Likewise, of the users.
    """

    clients: np.ndarray
    users: np.ndarray
    client_indptr: np.ndarray
    indptr: np.ndarray
    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    n_items: int
    times: np.ndarray | None = None
    features: np.ndarray | None = None

    @property
    def n_clients(self) -> int:
        return len(self.clients)

    @property
    def n_users(self) -> int:
        return len(self.users)

    @property
    def rating_indptr(self) -> np.ndarray:
        """Ratings of each client, shape (n_clients + 1,)."""
        return self.indptr[self.client_indptr]

    @cached_property
    def _holdings(self):
        # If every client has one user, rows and ratings are the same.
        if self.n_users == self.n_clients:
            rows = np.arange(len(self.items), dtype=np.int32)
            return self.indptr, self.items, rows
        clients = np.repeat(np.arange(self.n_clients), np.diff(self.rating_indptr))
        held, rows = np.unique(clients * self.n_items + self.items, return_inverse=True)
        row_indptr = np.searchsorted(held, np.arange(self.n_clients + 1) * self.n_items)
        return row_indptr, (held % self.n_items).astype(np.int32), rows.astype(np.int32)

    @property
    def row_indptr(self) -> np.ndarray:
        """Rows of each client, one per distinct item; shape (n_clients + 1,)."""
        return self._holdings[0]

    @cached_property
    def row_counts(self) -> np.ndarray:
        """Distinct items of each client, shape (n_clients,)."""
        return np.diff(self.row_indptr)

    @property
    def row_items(self) -> np.ndarray:
        """Item code of each such row, ascending within a client, shape (n_rows,)."""
        return self._holdings[1]

    @property
    def rows(self) -> np.ndarray:
        """Row of each rating, shape (n_ratings,)."""
        return self._holdings[2]

    @property
    def rating_users(self) -> NDArray[np.int64]:
        """User of each rating, by its place in the block, shape (n_ratings,)."""
        return np.repeat(np.arange(self.n_users), np.diff(self.indptr))

    @cached_property
    def layout(self) -> Layout:
        """Which users and items belong to which client, as kernels take it."""
        return Layout(self.client_indptr, self.indptr, self.row_indptr, self.rows, self.row_items)

    def own_rows(self, who: NDArray[np.bool_]) -> OwnRows:
        """Return the held rows of the clients of a mask."""
        indptr = np.concatenate([[0], np.cumsum(np.where(who, self.row_counts, 0))])
        return OwnRows(indptr, self.row_items[np.repeat(who, self.row_counts)])

    def own_slots(self, who: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Return the place of each held row among the `own_rows` of the clients of a mask."""
        return np.cumsum(np.repeat(who, self.row_counts), dtype=np.int32) - 1

    def by_user(self, codes: NDArray[np.int64] | None = None) -> Block:
        """Return the block in which each user is a client; `codes` are theirs, if others."""
        codes = self.users if codes is None else codes
        indptr = np.arange(self.n_users + 1)
        return replace(self, clients=codes, users=codes, client_indptr=indptr)

    def part(self, who: NDArray[np.bool_]) -> Block:
        """Return the block of the clients of a mask; this block if the mask has all."""
        if who.all():
            return self
        part = of_clients(self, np.flatnonzero(who))
        return replace(part, clients=self.clients[part.clients], users=self.users[part.users])

    def spread(self, rows: np.ndarray, who: NDArray[np.bool_]) -> np.ndarray:
        """Spread rows of the users of ``part(who)`` over all users; the others get zeros."""
        if who.all():
            return rows
        spread = np.zeros((self.n_users, *rows.shape[1:]), rows.dtype)
        spread[self.users_of(who)] = rows
        return spread

    def clients_of(self, users: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mask of the clients that have a user of the mask `users`."""
        return np.logical_or.reduceat(users, self.client_indptr[:-1])

    def users_of(self, who: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mask of the users of the clients of the mask `who`."""
        return np.repeat(who, np.diff(self.client_indptr))


def block_size(n_ratings: int, n_items: int) -> int:
    """Return the number of ratings per block: 65,536, or more for large data and large catalogues.

    There are at most 64 blocks, each with about as many ratings as there are items or more, so
    that an array of the catalogue's size per block is never larger than the data.
    """
    return max(RATINGS_PER_BLOCK, -(-n_ratings // MAX_BLOCKS), n_items)


def cut(
    data: Interactions,
    groups: np.ndarray | None = None,
    max_ratings: int | None = None,
    share: float = 1.0,
) -> list[Block]:
    """Cut the clients into blocks of at most about `max_ratings` ratings.

    By default this is :func:`block_size`. It is up to eight times as many if only a share of the
    clients takes part in a round. Clients of different `groups` are in different blocks.
    """
    if max_ratings is None:
        max_ratings = block_size(len(data.items), data.n_items)
    most = max_ratings / max(share, 1 / 8)
    groups = np.zeros(data.n_clients, dtype=np.int64) if groups is None else groups
    order = np.argsort(groups, kind="stable")
    sizes = np.diff(data.rating_indptr)[order]
    ends = np.cumsum(sizes)
    group_ends = np.append(np.flatnonzero(np.diff(groups[order])) + 1, len(order))
    blocks, start = [], 0
    for stop in group_ends:
        while start < stop:
            # As many clients as fit, but at least one.
            before = ends[start] - sizes[start]
            end = max(start + 1, int(np.searchsorted(ends, before + most, "right")))
            end = min(end, stop)
            blocks.append(of_clients(data, order[start:end]))
            start = end
    return blocks


def of_clients(data: Interactions | Block, clients: NDArray[np.int64]) -> Block:
    """Return one block of these clients (codes)."""
    users = _runs(data.client_indptr, clients)
    if len(users) and (np.diff(users) == 1).all():
        # Consecutive rows: views instead of copies.
        ratings = slice(data.indptr[users[0]], data.indptr[users[-1] + 1])
    else:
        ratings = _runs(data.indptr, users)
    return Block(
        clients=clients,
        users=users,
        client_indptr=_local_indptr(data.client_indptr, clients),
        indptr=_local_indptr(data.indptr, users),
        items=data.items[ratings],
        values=data.values[ratings],
        weights=data.weights[ratings],
        n_items=data.n_items,
        times=None if data.times is None else data.times[ratings],
        features=None if data.features is None else data.features[users],
    )


def _runs(indptr, rows):
    """Concatenate ``range(indptr[r], indptr[r + 1])`` over `rows`."""
    return runs(indptr[rows], indptr[rows + 1] - indptr[rows])


def _local_indptr(indptr, rows):
    return np.concatenate([[0], np.cumsum(indptr[rows + 1] - indptr[rows])]).astype(np.int64)


def codes_of_users(
    client_indptr: NDArray[np.int64], first_users: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the codes of all users of some clients, given that of each client's first one."""
    return runs(first_users, np.diff(client_indptr))


def by_user(
    users: list[np.ndarray], attributes: list[Attributes], n_users: int | None = None
) -> Attributes:
    """Join attributes of several groups of users, in the order of the users' codes.

    `users` are the codes of each group; users who are in none of them get rows of zeros. Attributes
    are arrays with a row per user, dense or sparse, or objects with a class method ``joined``.
    """
    n_users = sum(map(len, users)) if n_users is None else n_users
    joined = {}
    for name, first in attributes[0].items():
        parts = [one[name] for one in attributes]
        if sparse.issparse(first):
            joined[name] = _rows_by_user(users, parts, n_users)
        elif isinstance(first, np.ndarray):
            joined[name] = np.zeros((n_users, *first.shape[1:]), first.dtype)
            for codes, rows in zip(users, parts, strict=True):
                joined[name][codes] = rows
        else:
            joined[name] = type(first).joined(parts)
    return joined


def _rows_by_user(users, parts, n_users):
    users = np.concatenate(users)
    rows = sparse.vstack(parts, "csr")
    rows.resize((len(users) + 1, parts[0].shape[1]))
    places = np.full(n_users, len(users))
    places[users] = np.arange(len(users))
    return rows[places]
