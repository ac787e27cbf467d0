"""Forge uploads client by client, with an adversary's `_forged`."""

from __future__ import annotations

import numpy as np

from fedrecsk.uploads import Changes, Listed, Update, as_integers


def forged_one_by_one(adversary, view, batch, seeds):
    """Forge each upload of a batch with `adversary._forged`.

    Parameters
    ----------
    adversary : Adversary
    view : View
    batch : Batch
    seeds : ndarray of shape (n_clients,), dtype uint64

    Returns
    -------
    dict of {str: Listed}

    Raises
    ------
    ValueError
        If `_forged` returns other fields, rows or shapes than it received.
    """
    nothing: list[Update | None] = [None] * len(batch.clients)
    updates = {name: nothing.copy() for name in batch.changes}
    for client in np.flatnonzero(batch.sends):
        honest = batch.upload(client)
        forged = adversary._forged(view, dict(honest), np.random.default_rng(int(seeds[client])))
        _check_fields(adversary, forged, honest)
        for name, changes in batch.changes.items():
            form = batch.forms[name]
            rows = _checked_rows(adversary, name, forged[name], honest[name], form)
            change = _checked_change(adversary, name, forged[name], honest[name])
            columns = columns_of(changes, client)
            updates[name][client] = Update(rows, fitting(change, form, columns))
    forged: dict[str, Changes] = {}
    for name, ours in updates.items():
        forged[name] = Listed(ours, batch.forms[name])
    return forged


def _check_fields(adversary, forged, honest):
    if isinstance(forged, dict) and forged.keys() == honest.keys():
        return
    found = sorted(forged) if isinstance(forged, dict) else type(forged).__name__
    raise ValueError(
        f"{type(adversary).__name__}._forged returned {found}; return a dict with an Update for "
        f"each of the fields {sorted(honest)}."
    )


def _checked_change(adversary, name, forged, honest):
    change = np.asarray(forged.change)
    if change.dtype.kind not in "iuf" or change.shape != honest.change.shape:
        raise ValueError(
            f"{type(adversary).__name__}._forged returned a change of shape {change.shape} and "
            f"dtype {change.dtype} for field {name!r}, in which the client sends numbers of shape "
            f"{honest.change.shape}; return upload[{name!r}]._replace(change=...) with a change "
            "of that shape."
        )
    return change


def _checked_rows(adversary, name, forged, honest, form):
    """Rows that the client sends; they can differ from the honest ones only if clients choose."""
    if not isinstance(forged, Update):
        raise ValueError(
            f"{type(adversary).__name__}._forged returned {type(forged).__name__} for field "
            f"{name!r}; return upload[{name!r}]._replace(change=...)."
        )
    if forged.rows is honest.rows or np.array_equal(forged.rows, honest.rows):
        return honest.rows
    rows = np.asarray(forged.rows)
    places = np.arange(form.shape[0])
    if form.rows != "chosen" or not (np.isin(rows, places).all() and _distinct(rows)):
        raise ValueError(
            f"{type(adversary).__name__}._forged returned other rows than the client sends for "
            f"field {name!r} of shape {form.shape}; return upload[{name!r}]._replace(change=...), "
            "or, where clients choose their rows, as many different rows of the field."
        )
    return rows


def _distinct(rows):
    return len(np.unique(rows)) == len(rows)


def columns_of(changes, client):
    """Mask of the columns that a client sends, or None for all."""
    columns = getattr(changes, "columns", None)
    return None if columns is None else columns[client]


def fitting(change, form, columns):
    """Round where the field has integers, and set to 0 outside the client's columns."""
    change = as_integers(change, form) if form.is_integer else change.astype(np.float64, copy=False)
    return change if columns is None else np.where(columns, change, 0)
