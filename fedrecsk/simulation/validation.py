"""Validation of uploads by the server, before they are added up."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.simulation.contributions import Counts
from fedrecsk.uploads import LARGEST_INTEGER, Batch, Listed, Ragged, Sizes, Update

if TYPE_CHECKING:
    from fedrecsk.simulation.contributions import Contribution
    from fedrecsk.uploads import Form


# ---------------------------------------------------------------------- numbers of one field


def are_numbers(values: object, form: Form, shape: tuple[int, ...], n_clients: int = 1) -> bool:
    """Whether this is a valid sum of a field over `n_clients` clients.

    Parameters
    ----------
    values : object
    form : Form
    shape : tuple of int
    n_clients : int, default=1

    Returns
    -------
    bool
    """
    kinds = "iub" if form.is_integer else "iubf"
    if type(values) is not np.ndarray or values.dtype.kind not in kinds:
        return False
    if values.shape != tuple(shape):
        return False
    if values.size == 0:
        return True
    if not form.is_integer:
        return bool(np.isfinite(values.astype(np.float64)).all())
    low, high = _range(form, n_clients)
    if int(values.min()) < low or int(values.max()) > high:
        return False
    return not form.bits or n_clients > 1 or bool((values != 0).all())


def _range(form, n_clients):
    """Smallest and largest possible sum of an integer field over `n_clients` clients."""
    largest = int(LARGEST_INTEGER)
    if form.bits:
        return -n_clients, n_clients
    if np.dtype(form.dtype).kind == "b":
        return 0, n_clients
    limits = np.iinfo(form.dtype)
    low, high = n_clients * int(limits.min), n_clients * int(limits.max)
    return max(low, -largest), min(high, largest)


def are_rows(rows: object, form: Form) -> bool:
    """Whether these are ascending, distinct row numbers of a field."""
    if type(rows) is not np.ndarray or rows.ndim != 1 or rows.dtype.kind not in "iu":
        return False
    if not len(rows):
        return True
    inside = int(rows.min()) >= 0 and int(rows.max()) < form.shape[0]
    return inside and bool((np.diff(rows.astype(np.int64)) > 0).all())


def are_columns(columns: object, form: Form) -> bool:
    """Whether this is a mask of the columns of a field."""
    is_mask = type(columns) is np.ndarray and columns.dtype == bool
    return is_mask and columns.shape == (form.width,)


# ----------------------------------------------------------------- untrusted contributions


def validated(
    contribution: Contribution, forms: dict[str, Form], centers: dict[str, np.ndarray]
) -> Contribution:
    """Accept only the well-formed uploads of a contribution.

    Sums are accepted or rejected as a whole.

    Parameters
    ----------
    contribution : Contribution
    forms : dict of {str: Form}
        Forms of the fields in this step.
    centers : dict of {str: ndarray}
        What a client without any change would send, unless that is zero.

    Returns
    -------
    Contribution
    """
    # Any error in processing an unchecked upload is due to the upload, so it is rejected.
    try:
        checked = _validated(contribution, forms, centers)
    except Exception:
        checked = None
    if checked is not None:
        return checked
    n_clients = len(contribution.clients)
    sizes = contribution.sizes
    if not _are_sizes(sizes, n_clients):
        sizes = Sizes(*np.zeros((3, n_clients), dtype=np.int64))
    arrives = contribution.arrives
    if not _is_mask(arrives, n_clients):
        arrives = contribution.sends
    return replace(
        contribution,
        arrives=arrives,
        accepted=np.zeros(n_clients, dtype=bool),
        sizes=sizes,
        sums={},
        batch=None,
        deferred=[],
        n_without_noise=0,
        counts=Counts(),
    )


def _validated(contribution, forms, centers):
    """The validated contribution, or None if nothing in it can be accepted."""
    one, n_clients = contribution, len(contribution.clients)
    masks = one.sends, one.arrives, one.accepted
    if not all(_is_mask(mask, n_clients) for mask in masks):
        return None
    if not _are_sizes(one.sizes, n_clients):
        return None
    accepted = one.accepted & one.arrives & one.sends
    if one.batch is None:
        well_formed = _well_formed_sums(one, forms, int(accepted.sum()))
        return replace(one, accepted=accepted) if well_formed and accepted.any() else None
    batch = _rebuilt(one, accepted, forms, centers)
    if batch is None or not batch.accepted.any():
        return None
    return replace(one, accepted=batch.accepted, batch=batch)


def _is_mask(mask, n_clients):
    return type(mask) is np.ndarray and mask.dtype == bool and mask.shape == (n_clients,)


def _are_sizes(sizes, n_clients):
    return isinstance(sizes, Sizes) and all(
        type(part) is np.ndarray
        and part.dtype.kind in "iu"
        and part.shape == (n_clients,)
        and (part >= 0).all()
        for part in sizes
    )


def _well_formed_sums(one, forms, n_accepted):
    n_without_noise = int(one.n_without_noise)
    return (
        0 <= n_without_noise <= n_accepted
        and one.sums.keys() == forms.keys()
        and all(
            are_numbers(values, form, form.shape, n_accepted)
            for values, form in ((one.sums[name], form) for name, form in forms.items())
        )
    )


def _rebuilt(one, accepted, forms, centers):
    """Rebuild a batch with the server's forms, centers and masks; None for unexpected fields."""
    batch = one.batch
    learned = {name for name, form in forms.items() if form.learned}
    if batch.changes.keys() != learned or batch.counts.keys() != forms.keys() - learned:
        return None
    if not np.array_equal(batch.clients, one.clients):
        return None
    if not all(
        name in learned and are_numbers(center, forms[name], forms[name].shape)
        for name, center in batch.centers.items()
    ):
        return None
    fields, sound = {}, accepted.copy()
    for name, form in forms.items():
        changes = (batch.changes if form.learned else batch.counts)[name]
        if tuple(changes.shape) != tuple(form.shape) or changes.n_clients != len(sound):
            return None
        ours, theirs = centers.get(name), batch.centers.get(name)
        fields[name], sound = _own(changes, form, sound)
        if ours is not theirs and not np.array_equal(ours, theirs):
            fields[name] = _moved(fields[name], sound, theirs, ours)
    return Batch(
        one.clients,
        one.sends,
        one.arrives,
        sound,
        forms,
        {name: fields[name] for name in forms if name in learned},
        {name: fields[name] for name in forms if name not in learned},
        {name: center for name, center in centers.items() if name in fields},
        one.sizes,
    )


def _own(changes, form, sound):
    """Copy a field into the server's own class, with a mask of the clients with valid parts."""
    if not isinstance(changes, Ragged):
        return _listed(changes, form, sound)
    sound = sound & _well_formed_rows(changes, form)
    changes = replace(changes, form=form, center=None)
    if not sound.any():
        return changes, sound
    if form.is_integer:
        return _listed(changes, form, sound)
    return changes, sound & changes.finite(sound)


def _listed(changes, form, sound):
    """Copy changes of any class into arrays."""
    sound = sound.copy()
    updates: list[Update | None] = [None] * len(sound)
    for client in np.flatnonzero(sound):
        updates[client] = _update_of(changes, client, form)
        sound[client] = updates[client] is not None
    return Listed(updates, form), sound


def _update_of(changes, client, form):
    try:
        rows, change = changes.update(client)
        everything = isinstance(rows, slice) and rows == slice(None)
        if not everything and not are_rows(rows, form):
            return None
        n_rows = form.shape[0] if everything else len(rows)
        if not are_numbers(change, form, (n_rows, *form.shape[1:])):
            return None
    except Exception:
        return None
    return Update(rows, change)


def _moved(changes, sound, theirs, ours):
    """Turn absolute numbers into changes from the server's center."""
    move = np.zeros(changes.shape)
    move += 0 if theirs is None else theirs
    move -= 0 if ours is None else ours
    updates = [
        Update(slice(None), changes.whole(client) + move) if sound[client] else None
        for client in range(len(sound))
    ]
    return Listed(updates, changes.form)


def _well_formed_rows(ragged, form):
    """Mask of the clients whose row numbers are valid, ascending and distinct."""
    n_clients, n_own, indptr = ragged.n_clients, len(ragged.rows), ragged.indptr
    whole = (ragged.origin, None if ragged.common is None else ragged.common.change)
    kinds = "iub" if form.is_integer else "iubf"
    if not (
        type(ragged.values) is np.ndarray
        and ragged.values.dtype.kind in kinds
        and ragged.values.shape == (n_own, *form.shape[1:])
        and ragged.rows.dtype.kind in "iu"
        and ragged.rows.ndim == 1
        and indptr[0] == 0
        and indptr[-1] == n_own
        and (np.diff(indptr) >= 0).all()
        and all(one is None or one.shape == tuple(form.shape) for one in whole)
        and (ragged.origin is None or np.isfinite(ragged.origin).all())
    ):
        return np.zeros(n_clients, dtype=bool)
    rows = ragged.rows.astype(np.int64)
    bad = (rows < 0) | (rows >= form.shape[0])
    falls = np.diff(rows, prepend=-1) <= 0
    # A client's first row may be lower than the last row of the previous client.
    falls[indptr[:-1][np.diff(indptr) > 0]] = False
    n_bad = np.concatenate([[0], np.cumsum(bad | falls)])
    return n_bad[indptr[1:]] == n_bad[indptr[:-1]]
