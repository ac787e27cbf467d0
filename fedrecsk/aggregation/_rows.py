"""Uploads row by row: statistics of all clients' rows, and factors on single rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrecsk.aggregation._base import float_sum
from fedrecsk.aggregation._norm_clipping import factors_to
from fedrecsk.uploads import Changes, Common, Ragged, Update


def item_fields(forms):
    """Names of the fields with a row for each item: the learned fields with the most rows."""
    most = max(form.shape[0] for form in forms.values())
    return [name for name, form in forms.items() if form.shape[0] == most]


def row_chunks(batches, name):
    """Yield one field of the accepted clients row by row, without a dense copy.

    Yields
    ------
    rows : ndarray of shape (n_chunk,)
    change : ndarray of shape (n_chunk, width), dtype float64
    counts : ndarray of shape (n_chunk,), dtype int64
        How many clients have this very change in this row.
    """
    for batch in batches:
        changes = batch.changes[name]
        if isinstance(changes, Ragged):
            yield from _ragged_chunks(changes, batch.accepted)
            continue
        for client in np.flatnonzero(batch.accepted):
            rows, change = _of_client(changes, client)
            yield rows, change, np.ones(len(rows), dtype=np.int64)


def _ragged_chunks(changes, accepted):
    theirs = np.repeat(accepted, changes.n_rows)
    rows = changes.rows[theirs]
    yield rows, _own_matrix(changes)[theirs], np.ones(len(rows), dtype=np.int64)
    if _common(changes) is not None:
        n_rows = changes.shape[0]
        counts = accepted.sum() - np.bincount(rows, minlength=n_rows)
        yield np.arange(n_rows), changes.common.change, counts


def _common(changes):
    return changes.common if changes.form.rows == "all" else None


def _own_matrix(changes):
    """Changes of the own rows of a Ragged, shape (n_own, width), dtype float64."""
    values = changes.values.reshape(len(changes.rows), changes.form.width).astype(np.float64)
    if changes.origin is not None:
        values -= changes.origin.reshape(len(changes.origin), -1)[changes.rows]
    return values


def _of_client(changes, client):
    """Rows and matrix of one client's change."""
    rows, change = changes.update(client)
    rows = np.arange(changes.shape[0])[rows]
    return rows, change.reshape(len(rows), -1).astype(np.float64)


def lengths(matrix):
    """Euclidean length of each row; infinite if its square is too large."""
    with np.errstate(over="ignore"):
        return np.sqrt(np.einsum("if,if->i", matrix, matrix))


def largest_rows(batches, name):
    """Norm of the largest row of each accepted client, 0 if it has changed nothing."""
    largest = []
    for batch in batches:
        changes = batch.changes[name]
        if isinstance(changes, Ragged):
            largest.append(_largest_of_ragged(changes, batch.accepted)[batch.accepted])
            continue
        clients = np.flatnonzero(batch.accepted)
        norms = (lengths(_of_client(changes, client)[1]) for client in clients)
        largest.append(np.array([of_client.max(initial=0.0) for of_client in norms]))
    return np.concatenate(largest)


def _largest_of_ragged(changes, accepted):
    """Norm of each client's largest row; the rows of those not accepted are not looked at."""
    owners = np.repeat(np.arange(changes.n_clients), changes.n_rows)
    theirs = accepted[owners]
    largest = np.zeros(changes.n_clients)
    np.maximum.at(largest, owners[theirs], lengths(_own_matrix(changes)[theirs]))
    common = _common(changes)
    if common is None:
        return largest
    # The largest common row that is not among a client's own: go down the common rows by size,
    # and stop at the first place that the sorted places of its own rows do not have.
    of_common = lengths(common.change)
    order = np.argsort(-of_common, kind="stable")
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    own = places[changes.rows]
    by_place = np.lexsort((own, owners))
    number = np.arange(len(own)) - changes.indptr[owners]
    first = changes.n_rows.copy()
    np.minimum.at(first, owners, np.where(own[by_place] == number, len(order), number))
    return np.maximum(largest, np.append(of_common[order], 0.0)[first])


def row_bound(batches, name, max_norm, multiple):
    """Bound on the norm of each row; "median": that of the clients' largest rows."""
    if max_norm != "median":
        return max_norm
    largest = largest_rows(batches, name)
    changed = largest[largest > 0]
    return multiple * np.median(changed) if len(changed) else 0.0


def row_clipped(batches, name, bound):
    """The same batches with nothing but one field, whose rows are clipped to `bound`."""
    return scaled_rows(batches, name, lambda _, change: factors_to(bound, lengths(change)))


def row_sums(batches, name, number):
    """Sum of ``number(change)`` over all accepted clients' changes of each row, shape (n_rows,)."""
    n_rows = batches[0].forms[name].shape[0]
    sums = np.zeros(n_rows)
    for rows, change, counts in row_chunks(batches, name):
        sums += np.bincount(rows, counts * number(change), minlength=n_rows)
    return sums


def is_changed(change):
    """Whether each row is not zero."""
    return change.any(axis=1)


def row_totals(batches, name):
    """Sum of each row over the accepted clients, a matrix of float64."""
    total = float_sum(batches, name, [np.ones(len(batch.clients)) for batch in batches])
    return total.reshape(len(total), -1)


def scaled_rows(batches, name, factor):
    """The same batches with nothing but one field, each row times ``factor(rows, change)``."""
    return [
        replace(batch, changes={name: with_factors(batch.changes[name], factor)})
        for batch in batches
    ]


def with_factors(changes, factor):
    """One field of a block, with each row of each client times ``factor(rows, change)``.

    Parameters
    ----------
    changes : Changes
    factor : callable
        Takes numbers of rows and their changes, a matrix, and returns an array of factors.

    Returns
    -------
    Changes
        Real numbers, even if the field has integers.
    """
    if not isinstance(changes, Ragged):
        return _WithFactors(changes, factor)
    own, common = _own_matrix(changes), _common(changes)
    # Uploads that are not accepted may be NaN or infinite.
    with np.errstate(invalid="ignore", over="ignore"):
        own *= factor(changes.rows, own)[:, None]
        if common is not None:
            factors = factor(np.arange(changes.shape[0]), common.change)
            common = Common(common.change * factors[:, None])
    form = replace(changes.form, dtype=None, bits=False)
    values = own.reshape(changes.values.shape)
    return replace(changes, values=values, origin=None, common=common, form=form)


class _WithFactors(Changes):
    """Changes that are not a Ragged, with a factor on each row, computed on access."""

    def __init__(self, changes, factor):
        self.changes = changes
        self.factor = factor
        self.shape = changes.shape
        self.n_clients = changes.n_clients

    def update(self, client):
        rows, change = _of_client(self.changes, client)
        change *= self.factor(rows, change)[:, None]
        return Update(rows, change.reshape(len(rows), *self.shape[1:]))
