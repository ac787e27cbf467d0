"""What a curious server receives, and what it infers about a client.

It receives single uploads, sums over cohorts, or differences of sums. Then come what inversions of
uploads share, and how the sum of a few clients' uploads is separated into the clients' own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls
from sklearn.linear_model import orthogonal_mp

from fedrecsk.base._item_weights import whole
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.messages import Message
from fedrecsk.updates import Update, add_sums

# Separation: least number of rows along a line, largest number of lines in a row if there are more
# lines than columns, and rounds of reweighting in a fit to most of the rows.
LEAST, MOST_AT_ONCE, REWEIGHTINGS = 3, 4, 30


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


# --------------------------------------------------------------------------- taking sums apart
# The rows of a client's upload are multiples of one vector. In a sum over a few clients some rows
# still belong to a single client, and lie along the line of its vector with others of the same
# client; rows that belong to several are combinations of these lines. Whose line it is does not
# show.


def by_lines(invert, field, *, tolerance=1e-6, signed=False):
    """Return a function that separates rows on lines, and inverts each client's share."""
    # tolerance: of the cosine of a client's rows. signed: the first upload's rows, and no others,
    # lie along lines, and are equal but for their signs; otherwise the last upload is separated.

    def separate(model, exchanges, n_items):
        exchange = exchanges[0 if signed else -1]
        rows, items = sent_rows(exchange.upload[field], n_items)
        guesses = []
        for own, change in separate_rows(rows, tolerance, signed):
            upload = {field: Update(items[own], change)}
            if field == "item_vectors":
                alone = np.zeros((n_items, rows.shape[1]))
                alone[items[own]] = change
                upload = {field: Update(slice(None), alone)}
            guesses.append(invert(model, [exchange._replace(upload=upload)], n_items))
        return guesses

    return separate


def by_lines_beside_a_matrix(model, exchanges, n_items):
    """Separate FCF's rows: G q and, for a client's own items, a multiple of its vector."""
    exchange = exchanges[-1]
    rows = np.zeros((n_items, model.n_factors))
    rows[exchange.upload["gradient"].rows] = exchange.upload["gradient"].change
    received = exchange.message["item_factors"].values.astype(np.float64)
    if model.upload == "all":
        rows = rows - _most_common_map(received, rows)
    size = np.linalg.norm(rows, axis=1)
    items = np.flatnonzero(size > 1e-4 * size.max(initial=0.0))
    if 2 * len(items) > n_items:
        return []
    guesses = []
    for own, change in separate_rows(rows[items], 1e-4):
        # Own items pull p towards them: their rows are multiples of p . q - 1, mostly negative.
        vector = -change.sum(axis=0)
        guesses.append(Reconstruction(vector / max(np.linalg.norm(vector), 1e-300), items[own]))
    return guesses


def _most_common_map(received, rows):
    """Return the image of the received vectors under the matrix that explains most rows."""
    weights = np.ones(len(rows))
    image = np.zeros_like(rows)
    for _ in range(REWEIGHTINGS):
        root = np.sqrt(weights)[:, None]
        image = received @ np.linalg.lstsq(root * received, root * rows)[0]
        left = np.linalg.norm(rows - image, axis=1)
        weights = 1 / np.maximum(left, 1e-9 * max(left.max(), 1e-300))
    return image


def separate_rows(rows, tolerance, signed=False):
    """Return, for each line, the numbers of the rows with a part along it, and these parts."""
    found = single(lines(rows, tolerance), signed)
    if len(found) == 0:
        return []
    parts = combinations_of(found, rows, np.sqrt(2 * tolerance) + 1e-3)
    largest = np.abs(parts).max(axis=1, keepdims=True)
    parts[np.abs(parts) < 1e-2 * np.maximum(largest, 1e-300)] = 0
    return [
        (np.flatnonzero(part), np.outer(part[part != 0], line))
        for part, line in zip(parts.T, found, strict=True)
        if part.any()
    ]


def lines(rows, tolerance):
    """Return unit vectors along which several rows lie, those of most rows first."""
    size = np.linalg.norm(rows, axis=1)
    unit = rows[size > 0] / size[size > 0, None]
    alike = np.abs(unit @ unit.T) > 1 - tolerance
    found = []
    while len(unit):
        counts = alike.sum(axis=1)
        first = counts.argmax()
        if counts[first] < LEAST:
            break
        own = alike[first]
        line = np.linalg.svd(unit[own], full_matrices=False)[2][0]
        found.append(line * np.sign((unit[own] @ line).sum() or 1.0))
        unit, alike = unit[~own], alike[np.ix_(~own, ~own)]
    return np.array(found).reshape(len(found), rows.shape[1])


def single(found, signed):
    """Return the lines that are no sum of others, as items of just two clients have."""
    kept = list(range(len(found)))
    for k in reversed(range(len(found))):
        others = [other for other in kept if other != k and (other < k or not signed)]
        if others and nnls(found[others].T, found[k])[1] < 1e-4:
            kept.remove(k)
    return found[kept]


def combinations_of(found, rows, error):
    """Return coefficients (n_rows, n_lines), 0 for rows that are no combination of few lines."""
    size = np.maximum(np.linalg.norm(rows, axis=1), 1e-300)
    if len(found) <= found.shape[1]:
        parts = np.linalg.lstsq(found.T, rows.T)[0].T
    else:
        n_lines = min(MOST_AT_ONCE, len(found))
        # It warns where fewer lines are enough.
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            parts = orthogonal_mp(found.T, rows.T / size, n_nonzero_coefs=n_lines)
        parts = (parts.reshape(len(found), -1) * size).T
    parts[np.linalg.norm(rows - parts @ found, axis=1) > error * size] = 0
    return parts


def any_order(upload, n_items):
    """Return the triangle of pairs, whichever item came first."""
    rows, change = upload
    n_pairs = n_items * (n_items + 1) // 2
    if isinstance(rows, slice):
        return np.reshape(change, (-1, n_pairs)).sum(axis=0)
    return np.bincount(rows % n_pairs, np.ravel(change), n_pairs)


def matrix_of_pairs(upload, n_items):
    """Return the sum of pairs as a symmetric matrix."""
    return whole(any_order(upload, n_items), n_items)


def by_pairs(model, exchanges, n_items):
    """Separate pairs of items: those of an item that only one client has are all its items."""
    # Its pairs are subtracted, and other items are left with one client. All likes weigh the same.
    pairs = matrix_of_pairs(exchanges[0].upload["gram"], n_items)
    held = np.diag(pairs)
    unit = held[held > 0].min(initial=np.inf)
    guesses = []
    while True:
        alone = np.flatnonzero(np.isclose(np.diag(pairs), unit, rtol=1e-3))
        if len(alone) == 0:
            return guesses
        own = np.flatnonzero(pairs[alone[0]] > 0.5 * unit)
        guesses.append(Reconstruction(np.sqrt(unit) * np.isin(np.arange(n_items), own), own))
        pairs[np.ix_(own, own)] -= unit
