"""Neural methods: from one client's uploads to its positives.

An item's rows change by its examples only. The gradient of a positive's score pulls them one way,
that of a sampled negative the other way, for all items along about the same line; and positives
are trained in every round, while negatives are drawn anew.
"""

from __future__ import annotations

import numpy as np

from fedrecsk.attacks._guesses import Guess, direction_of, sent_rows


def neural(model, exchanges, n_items):
    """Find the items that are trained in every round and are mostly pulled as positives."""
    n_negatives = 0 if model._sees_ratings else model.n_negatives
    n_trained, pull = np.zeros(n_items, dtype=int), np.zeros(n_items)
    for one in exchanges:
        rows, items = _moved(model, one.upload, n_items)
        n_trained[items] += 1
        pull[items] += _pulls(rows, n_items, n_negatives)
    always = n_trained == len(exchanges)
    return Guess(None, np.flatnonzero(always & (pull > 0) if n_negatives else always))


def _moved(model, upload, n_items):
    """Changes of the items' rows in all tables side by side, and the items."""
    tables = [sent_rows(upload[name], n_items) for name in model._module_layout().named("item")]
    items = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *(i for _, i in tables)]))
    parts = [np.zeros((len(items), 0))]
    for rows, moved in tables:
        part = np.zeros((len(items), rows.shape[1]))
        part[np.searchsorted(items, moved)] = rows
        parts.append(part)
    return np.concatenate(parts, axis=1), items


def _pulls(rows, n_items, n_negatives):
    """How far each row has moved along the common line, positives forwards."""
    if len(rows) == 0:
        return np.zeros(0)
    along = rows @ direction_of(rows)
    along /= np.abs(along).mean() or 1.0
    n_forwards, n = (along > 0).sum(), len(along)
    forwards = _misfit(n_forwards, n - n_forwards, n_items, n_negatives)
    backwards = _misfit(n - n_forwards, n_forwards, n_items, n_negatives)
    return along if forwards <= backwards else -along


def _misfit(n_positives, n_others, n_items, n_negatives):
    """How far the number of other items is from that of so many drawings with replacement."""
    n_unseen = max(1, n_items - n_positives)
    expected = n_unseen * (1 - (1 - 1 / n_unseen) ** (n_negatives * n_positives))
    return abs(n_others - expected)
