"""Random numbers in place of what clients have learned, drawn only when they are used."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property

import numpy as np
from scipy import sparse

from fedrecsk.attacks._one_by_one import columns_of, fitting
from fedrecsk.uploads import Changes, Ragged, Update, client_generator


class _Drawn(Changes):
    """Random numbers in place of the changes of one field, drawn only when they are used."""

    def __init__(self, batch, name, seeds):
        self.honest = batch.changes[name]
        self.form = batch.forms[name]
        self.shape = self.form.shape
        self.n_clients = len(seeds)
        self.is_integer = self.form.is_integer
        self.sends = batch.sends
        self.name = name
        self.seeds = seeds

    @abstractmethod
    def _sized(self, client, normal):
        """Turn independent standard normal numbers into what the client sends, in place."""

    def update(self, client):
        rows, shape = self._rows(client)
        normal = client_generator(self.seeds[client], self.name).standard_normal(shape)
        columns = columns_of(self.honest, client)
        if columns is not None:
            normal *= columns
        return Update(rows, fitting(self._sized(client, normal), self.form, columns))

    def _rows(self, client):
        """Rows that a client sends, and the shape of its numbers."""
        if not isinstance(self.honest, Ragged):
            rows, change = self.honest.update(client)
            return rows, change.shape
        if self.form.rows == "all":
            return slice(None), self.shape
        span = slice(self.honest.indptr[client], self.honest.indptr[client + 1])
        rows = self.honest.rows[span]
        return rows, (len(rows), *self.shape[1:])


class Noise(_Drawn):
    """Independent normal numbers."""

    def __init__(self, batch, name, seeds, strength, summed):
        super().__init__(batch, name, seeds)
        self.strength = strength
        # A sum of rounded numbers is distributed differently from a rounded sum.
        self.summed = summed and not self.is_integer and isinstance(self.honest, Ragged)

    def _sized(self, client, normal):
        normal *= self.strength
        return normal

    def finite(self, mask):
        if self.strength > 1e300:
            return super().finite(mask)
        return np.ones(self.n_clients, dtype=bool)

    def add_to(self, sums, weights):
        senders = np.flatnonzero(weights)
        if not self.summed or len(senders) == 0:
            super().add_to(sums, weights)
            return
        matrix = sums.reshape(len(sums), -1)
        normal = client_generator(self.seeds[senders[0]], self.name, 1).standard_normal(
            matrix.shape
        )
        normal *= self.strength * np.sqrt(self._variances(weights))
        matrix += normal

    def _variances(self, weights):
        """Sum of the squared weights of the clients that send a number, by row and column."""
        squares = (weights**2)[:, None]
        if self.honest.columns is not None:
            squares = squares * self.honest.columns
        if self.form.rows == "all":
            return squares.sum(axis=0)
        indptr, rows = self.honest.indptr, self.honest.rows
        sent = sparse.csr_array(
            (np.ones(len(rows)), rows, indptr), shape=(self.n_clients, self.shape[0])
        )
        return sent.T @ squares


class Turned(_Drawn):
    """A random direction with the norm of the honest change."""

    @cached_property
    def lengths(self):
        return self.honest.norms(self.sends)

    def _sized(self, client, normal):
        normal *= self.lengths[client] / (np.linalg.norm(normal) or 1)
        return normal

    def norms(self, mask):
        return super().norms(mask) if self.is_integer else np.where(mask, self.lengths, 0)

    def finite(self, mask):
        return np.isfinite(self.lengths) | ~mask
