"""Interactions of an adversary's clients, real and fabricated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np


def of_rows(data, users, items, values, weights):
    """The same users, items and clients with other interactions."""
    order = np.lexsort((items, users))
    counts = np.bincount(users, minlength=data.n_users)
    return replace(
        data,
        indptr=np.concatenate([[0], np.cumsum(counts)]),
        items=items[order].astype(data.items.dtype),
        values=values[order],
        weights=weights[order],
    )


def rows_of(data, users):
    """The same users, items and clients, with the interactions of a mask of users only."""
    kept = users[data.users]
    return of_rows(data, data.users[kept], data.items[kept], data.values[kept], data.weights[kept])
