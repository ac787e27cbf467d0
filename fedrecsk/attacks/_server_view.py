"""What a curious server receives, and what it infers about a client.

It receives single uploads, sums over cohorts, or differences of sums. The end has what inversions
of uploads share.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedrecsk.updates import Update, add_sums

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fedrecsk.protocol.keys import Key
    from fedrecsk.protocol.messages import Message


class Exchange(NamedTuple):
    """One upload of a client or of a group of clients, and the message that it answers."""

    key: Key  # the round's shared key
    message: Message  # the announcement, and the last broadcast
    upload: dict[str, Update]  # changes that the server received


class Singles:
    """Exchanges by client (`singles`) or by the clients in a sum (`sums`) of at most `cohort`."""

    cohort: int | None = None

    def __init__(self, clients):
        self.clients = clients
        self.singles, self.sums = {}, {}

    def take(self, key, message, tiles):
        """Record the accepted updates of a round, tile by tile."""
        for client, tile, place in self._attacked(tiles):
            self._record(client, key, message, tile.all_fields(place))

    def _attacked(self, tiles):
        for tile in tiles:
            for place in np.flatnonzero(np.isin(tile.clients, self.clients)):
                yield int(tile.clients[place]), tile, place

    def _record(self, client, key, message, upload):
        exchange = Exchange(key, message.of(np.array([client])), upload)
        self.singles.setdefault(client, []).append(exchange)


class Groups(Singles):
    """Sums over cohorts of at least `size` clients, drawn at random once."""

    def __init__(self, n_clients, size, n_attacked):
        order = np.random.default_rng(0).permutation(n_clients)
        groups = np.array_split(order, n_clients // size)
        ends = np.cumsum([len(one) for one in groups])
        self.groups = [np.sort(one) for one in groups[: np.searchsorted(ends, n_attacked) + 1]]
        if len(groups) == 1:
            # Any client of the only sum may stand for the others.
            self.groups = [np.arange(n_clients)]
        super().__init__(np.concatenate(self.groups)[:n_attacked])
        self.cohort = max(len(one) for one in self.groups)
        self._group_of = np.full(n_clients, -1)
        for number, group in enumerate(self.groups):
            self._group_of[group] = number

    def take(self, key, message, tiles):
        for group, upload in zip(self.groups, self._totals(tiles), strict=True):
            if upload:
                exchange = Exchange(key, message, upload)
                self.sums.setdefault(tuple(group.tolist()), []).append(exchange)

    def _totals(self, tiles):
        """Return the sum of each group's uploads."""
        totals = [{} for _ in self.groups]
        for tile in tiles:
            for number, total in enumerate(totals):
                who = self._group_of[tile.clients] == number
                if who.any():
                    members = tile.take(who).fields
                    add_sums(total, {name: rows.sum() for name, rows in members.items()})
        everything = slice(None)
        return [
            {name: Update(everything, sums.astype(np.float64)) for name, sums in total.items()}
            for total in totals
        ]


class Differences(Groups):
    """Each client's cohort sum less a sum without it: of the round `last` or (None) the same."""

    def __init__(self, n_clients, size, n_attacked, last):
        super().__init__(n_clients, size, n_attacked)
        self.last, self._before = last, None

    def take(self, key, message, tiles):
        totals = self._totals(tiles)
        if not any(totals):
            return
        if self.last is None:
            self._subtract(key, message, totals, tiles, totals)
        elif key.round == self.last and self._before is not None:
            self._subtract(*self._before, tiles, totals)
        self._before = key, message, totals

    def _subtract(self, key, message, firsts, tiles, seconds):
        """Record the first sums less those of these uploads without each client."""
        for client, tile, place in self._attacked(tiles):
            group, upload = self._group_of[client], {}
            alone = tile.take(np.arange(len(tile.clients)) == place)
            for name, rows in alone.fields.items():
                first = firsts[group][name].change
                change = first - (seconds[group][name].change - rows.whole()[0])
                # Remove what rounding has left of the sums.
                change[np.abs(change) <= 1e-12 * np.abs(first).max()] = 0.0
                upload[name] = Update(slice(None), change)
            self._record(client, key, message, upload)


# ------------------------------------------------------------------------ what it infers


class Reconstruction(NamedTuple):
    """What a curious server infers about one client.

    Attributes
    ----------
    vector : ndarray or None
        The user's private vector.
    items : ndarray of shape (n_inferred,)
        Codes of the user's own items.
    values : ndarray of shape (n_inferred,) or None
        Ratings of these items.
    """

    vector: np.ndarray | None
    items: np.ndarray
    values: np.ndarray | None = None


def one_by_one(invert: Callable[..., Reconstruction]) -> Callable[..., Reconstruction]:
    """Turn an inversion of one upload into one of many, which keeps the items of all of them."""

    @wraps(invert)
    def of_all(model: Any, exchanges: list[Exchange], n_items: int) -> Reconstruction:
        return keep_common([invert(model, one.message, one.upload, n_items) for one in exchanges])

    return of_all


def keep_common(guesses: list[Reconstruction]) -> Reconstruction:
    """Return the last round's reconstruction, of the items that are in those of all rounds."""
    last = guesses[-1]
    kept = np.ones(len(last.items), dtype=bool)
    for guess in guesses[:-1]:
        kept &= np.isin(last.items, guess.items)
    values = None if last.values is None else last.values[kept]
    return Reconstruction(last.vector, last.items[kept], values)


def sent_rows(update, n_items):
    """Return the rows of an update that are not zero, and their items."""
    change = np.asarray(update.change, dtype=np.float64)
    items = np.arange(n_items)[update.rows]
    size = np.abs(change).max(axis=1, initial=0.0)
    nonzero = size > 1e-9 * size.max(initial=0.0)
    return change[nonzero], items[nonzero]


def direction_of(rows):
    """Return the unit vector along which most of the rows lie."""
    if len(rows) == 0:
        return np.zeros(rows.shape[1])
    return np.linalg.svd(rows, full_matrices=False)[2][0]
