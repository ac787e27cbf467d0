"""Dense stacks of a few rows of all clients."""

from __future__ import annotations

import numpy as np

from fedrecsk.aggregation._base import forms_of, places_of
from fedrecsk.uploads import Ragged

# Memory of one stack.
TILE_BYTES = 64 * 2**20


def tiles(batches, name, max_bytes=TILE_BYTES):
    """Yield one field of all accepted clients as dense arrays, a few rows at a time.

    Yields
    ------
    rows : slice
    stack : ndarray of shape (n_clients, n_rows, width), dtype float64
        The clients are in the order of their codes.
    """
    form = batches[0].forms[name]
    n_clients = sum(batch.n_accepted for batch in batches)
    pieces = [
        (_OwnRows if isinstance(batch.changes[name], Ragged) else _OneByOne)(
            batch.changes[name], places
        )
        for batch, places in zip(batches, places_of(batches), strict=True)
    ]
    step = max(1, max_bytes // max(1, 8 * n_clients * form.width))
    for first in range(0, form.shape[0], step):
        rows = slice(first, min(first + step, form.shape[0]))
        stack = np.zeros((n_clients, rows.stop - first, form.width))
        for piece in pieces:
            piece.fill(rows, stack)
        yield rows, stack


class _OwnRows:
    """Fills stacks from a Ragged, whose own rows it sorts once."""

    def __init__(self, changes, places):
        self.changes = changes
        self.everyone = places[places >= 0]
        owners = np.repeat(places, changes.n_rows)
        order = np.argsort(changes.rows, kind="stable")
        self.order = order[owners[order] >= 0]
        self.owners = owners[self.order]
        self.rows = changes.rows[self.order]

    def fill(self, rows, stack):
        changes = self.changes
        if changes.common is not None and changes.form.rows == "all":
            stack[self.everyone] = changes.common.change[rows]
        span = slice(*np.searchsorted(self.rows, [rows.start, rows.stop]))
        own = self.rows[span]
        values = (
            changes.values[self.order[span]].reshape(len(own), stack.shape[2]).astype(np.float64)
        )
        if changes.origin is not None:
            values -= changes.origin[own].reshape(values.shape)
        stack[self.owners[span], own - rows.start] = values


class _OneByOne:
    """Fills stacks client by client."""

    def __init__(self, changes, places):
        self.changes = changes
        self.places = places

    def fill(self, rows, stack):
        numbers = np.arange(self.changes.shape[0])
        for client in np.flatnonzero(self.places >= 0):
            theirs, change = self.changes.update(client)
            theirs = numbers[theirs]
            inside = (theirs >= rows.start) & (theirs < rows.stop)
            values = change[inside].reshape(inside.sum(), stack.shape[2])
            stack[self.places[client], theirs[inside] - rows.start] = values


def products(batches):
    """Inner products of the accepted clients' uploads over all fields."""
    n_clients = sum(batch.n_accepted for batch in batches)
    products = np.zeros((n_clients, n_clients))
    for name in forms_of(batches):
        for _, stack in tiles(batches, name):
            numbers = stack.reshape(n_clients, -1)
            with np.errstate(invalid="ignore", over="ignore"):
                products += numbers @ numbers.T
    return products
