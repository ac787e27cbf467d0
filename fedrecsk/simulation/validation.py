"""The server's look at what arrives, before any of it is added up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrecsk.uploads import Ragged


def validated(contribution, forms):
    """The contribution, of which only well-formed uploads are accepted.

    Sums are accepted or rejected as a whole. What the simulator has checked where it was made is
    not looked at again.

    Parameters
    ----------
    contribution : Contribution
    forms : dict of {str: Form}
        What clients declared that they would send.

    Returns
    -------
    Contribution
    """
    if contribution.checked:
        return contribution
    accepted = contribution.accepted & contribution.arrives & contribution.sends
    batch = contribution.batch
    if batch is not None:
        accepted = accepted & _well_formed_clients(batch, forms)
        batch = replace(batch, accepted=accepted)
    elif not _well_formed_sums(contribution.sums, forms):
        accepted = np.zeros_like(accepted)
    if accepted.any():
        return replace(contribution, accepted=accepted, batch=batch, checked=True)
    nothing = {"sums": {}, "batch": None, "deferred": [], "n_without_noise": 0}
    return replace(contribution, accepted=accepted, checked=True, **nothing)


def _well_formed_sums(sums, forms):
    return sums.keys() == forms.keys() and all(
        _is_array(values, form, form.shape) and np.isfinite(values).all()
        for values, form in ((sums[name], form) for name, form in forms.items())
    )


def _is_array(values, form, shape):
    kinds = "iub" if form.is_integer else "iubf"
    is_array = isinstance(values, np.ndarray) and values.dtype.kind in kinds
    return is_array and values.shape == tuple(shape)


def _well_formed_clients(batch, forms):
    """Whose fields all have their form, shape (n_clients,), dtype bool."""
    nobody = np.zeros(len(batch.clients), dtype=bool)
    fields = batch.changes | batch.counts
    if fields.keys() != forms.keys() or batch.changes.keys() & batch.counts.keys():
        return nobody
    if not all(
        name in fields and _is_array(center, forms[name], forms[name].shape)
        for name, center in batch.centers.items()
    ):
        return nobody
    whom = batch.accepted.copy()
    for name, changes in fields.items():
        form = forms[name]
        if tuple(changes.shape) != tuple(form.shape) or changes.n_clients != len(whom):
            return nobody
        if isinstance(changes, Ragged):
            whom &= _well_formed_rows(changes, form)
        if whom.any():
            whom &= changes.finite(whom)
    centers = batch.centers.values()
    return whom if all(np.isfinite(center).all() for center in centers) else nobody


def _well_formed_rows(ragged, form):
    """Whose own rows are rows of the field, ascending, each once."""
    n_clients, n_own, indptr = ragged.n_clients, len(ragged.rows), ragged.indptr
    whole = (ragged.origin, None if ragged.common is None else ragged.common.change)
    if not (
        _is_array(ragged.values, form, (n_own, *form.shape[1:]))
        and ragged.rows.dtype.kind in "iu"
        and indptr[0] == 0
        and indptr[-1] == n_own
        and (np.diff(indptr) >= 0).all()
        and all(one is None or one.shape == tuple(form.shape) for one in whole)
    ):
        return np.zeros(n_clients, dtype=bool)
    rows = ragged.rows.astype(np.int64)
    bad = (rows < 0) | (rows >= form.shape[0])
    falls = np.diff(rows, prepend=-1) <= 0
    # A client's first row may be lower than the last one of the client before.
    falls[indptr[:-1][np.diff(indptr) > 0]] = False
    n_bad = np.concatenate([[0], np.cumsum(bad | falls)])
    return n_bad[indptr[1:]] == n_bad[indptr[:-1]]
