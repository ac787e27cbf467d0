"""Uploads as their clients send them under central differential privacy: clipped and rounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrecsk.privacy._grid import STEPS, skellam
from fedrecsk.uploads import Changes, Ragged, Scaled, Update


def clip_uploads(batch, clip, field_weights):
    """Scale every client's upload down to an L2 norm of at most `clip` over all its fields.

    Parameters
    ----------
    batch : Batch
        Changed in place. Its centers are left out; the server adds them.
    clip : float
    field_weights : dict of {str: float}
        Factors of the fields' numbers in the norm; 1 for fields that are not in it.

    Returns
    -------
    n_unclipped : int
        Number of accepted clients whose norm was at most `clip` already.
    """
    squares = np.zeros(len(batch.clients))
    for fields in (batch.changes, batch.counts):
        for name, changes in fields.items():
            squares += (field_weights.get(name, 1.0) * changes.norms(batch.accepted)) ** 2
    norms = np.sqrt(squares)
    weights = np.where(norms > clip, clip / np.maximum(norms, clip), 1.0)
    for fields in (batch.changes, batch.counts):
        for name, changes in fields.items():
            fields[name] = Scaled(changes, weights)
    batch.centers = {}
    return int((batch.accepted & (norms <= clip)).sum())


class Rounded(Changes):
    """A clipped field, rounded to a grid, with its client's own share of the noise.

    Parameters
    ----------
    clipped : Scaled
    step : float
        Of the grid.
    variance : float
        Of each client's share of the noise, in squared steps. 0: it is added to the sum later.
    seeds : ndarray of shape (n_clients,), dtype uint64
        Each client's seed for this field.
    """

    def __init__(self, clipped, step, variance, seeds):
        self.clipped = clipped
        self.step = step
        self.variance = variance
        self.seeds = seeds
        self.shape = clipped.shape
        self.n_clients = clipped.n_clients

    def update(self, client):
        rows, change = self.clipped.update(client)
        change = np.rint(change / self.step)
        if not self.variance:
            return Update(rows, self.step * change)
        # Rows that the client has not changed are as noisy as the others.
        whole = np.zeros(self.shape)
        whole[rows] = change
        generator = np.random.default_rng(int(self.seeds[client]))
        whole += skellam(self.variance, self.shape, generator)
        return Update(slice(None), self.step * whole)

    def add_to(self, sums, weights):
        honest = self.clipped.honest
        if self.variance or not isinstance(honest, Ragged) or honest.common is not None:
            super().add_to(sums, weights)
            return
        values = honest.values.astype(np.float64)
        if honest.origin is not None:
            values -= honest.origin[honest.rows]
        factors = np.repeat(self.clipped.weights / self.step, honest.n_rows)
        values *= factors.reshape(-1, *(1,) * (values.ndim - 1))
        np.rint(values, out=values)
        values *= self.step
        form = replace(honest.form, dtype=None, bits=False)
        replace(honest, values=values, origin=None, form=form).add_to(sums, weights)


def rounded(batch, clip, field_weights, variance, key):
    """Round all fields of clipped uploads to the grid and add each client's share, in place."""
    for fields in (batch.changes, batch.counts):
        for name, changes in fields.items():
            step = clip / STEPS / field_weights.get(name, 1.0)
            seeds = key.hashed(f"share of the noise of {name}", batch.clients)
            fields[name] = Rounded(changes, step, variance, seeds)
