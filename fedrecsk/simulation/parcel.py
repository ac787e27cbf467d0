"""One client's upload as it crosses: plain numbers, and nothing that the server has to believe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedrecsk.simulation.contributions import Contribution, measured
from fedrecsk.simulation.validation import are_columns, are_numbers, are_rows
from fedrecsk.uploads import Batch, Ragged, Sizes


class Numbers(NamedTuple):
    """What crosses of one field.

    Attributes
    ----------
    values : ndarray
        All rows of the field, those of the items that the client holds, or the rows that it has
        chosen, as the field's form says.
    rows : ndarray of shape (n_rows,) or None
        The numbers of these rows, ascending, where the client chooses them or has not told in the
        set-up which items it holds. None: the server knows them.
    columns : ndarray of shape (width,), dtype bool, or None
        Which columns the client sends, if not all; `values` has no others.
    """

    values: np.ndarray
    rows: np.ndarray | None = None
    columns: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Parcel:
    """One client's upload in one step of the protocol, as a :class:`Device` hands it over.

    Everything in it is final: noise is in the numbers, and nothing is to be computed later. What
    else the server has to know of the upload (its size, whether it is sound, what it changes) the
    server finds out for itself.

    Parameters
    ----------
    phase : {"setup", "round", "validation"}
    round : int
        The round, or the step of the set-up.
    client : int
        The client's code, which the server gave to it.
    fields : dict of {str: Numbers}
    """

    phase: str
    round: int
    client: int
    fields: dict = field(default_factory=dict)


# ---------------------------------------------------------------------------- on the device


def packed(contribution, forms, held, *, numbered):
    """A contribution as parcels, one for each client that sends.

    Parameters
    ----------
    contribution : Contribution or None
        Of single uploads, or the sums of one client.
    forms : dict of {str: Form}
    held : ndarray of shape (n_held,)
        The items that the client holds. Only sums need them.
    numbered : bool
        Whether rows of the items that the client holds come with their numbers.

    Returns
    -------
    parcels : list of Parcel
    """
    if contribution is None:
        return []
    step = contribution.phase, contribution.round
    return [
        Parcel(
            *step,
            int(contribution.clients[place]),
            {
                name: _numbers(contribution, place, name, form, held, numbered)
                for name, form in forms.items()
            },
        )
        for place in np.flatnonzero(contribution.sends).tolist()
    ]


def _numbers(contribution, place, name, form, held, numbered):
    """What crosses of one client's field."""
    if contribution.batch is None:
        rows, values, columns = _summed(contribution, name, form, held)
    else:
        rows, values, columns = _single(contribution.batch, place, name, form)
    if contribution.arrives[place] and not contribution.accepted[place]:
        # A client that has diverged says so in the only way that every field of reals has.
        values = np.full(values.shape, np.nan)
    elif form.is_integer:
        values = _shortened(values, np.dtype("int8" if form.bits else form.dtype))
    if columns is not None:
        values = values[:, columns]
    if form.rows == "held" and not numbered:
        rows = None
    # Copies, because training goes on in the client's own arrays.
    return Numbers(np.array(values), None if rows is None else np.array(rows), columns)


def _single(batch, place, name, form):
    """Rows, values and columns of one client's own upload."""
    changes = batch.changes[name] if form.learned else batch.counts[name]
    if form.rows == "all":
        rows, values = None, changes.whole(place)
        if name in batch.centers:
            values = values + batch.centers[name].astype(np.float64)
    else:
        rows, values = changes.update(place)
    columns = getattr(changes, "columns", None)
    return rows, values, None if columns is None else columns[place].astype(bool)


def _summed(contribution, name, form, held):
    """The same of a sum over one client."""
    if len(contribution.clients) != 1 or form.rows == "chosen":
        raise ValueError(
            f"Field {name!r} was added up over {len(contribution.clients)} clients, or has lost "
            "its rows' numbers; make Clients(..., separate=True) of one client each."
        )
    values = contribution.sums.get(name)
    if values is None:
        values = np.full(form.shape, np.nan)
    return (held, values[held], None) if form.rows == "held" else (None, values, None)


def _shortened(values, dtype):
    """Integers in the type of the message; those that do not fit stay as they are."""
    short = values.astype(dtype)
    return short if np.array_equal(short, values) else values


# ---------------------------------------------------------------------------- at the server


def unpacked(parcel, forms, n_held, *, held=None, centers=None, wire_dtype="float32", hold=False):
    """A parcel as the server has it: a Contribution, rejected if anything in it is malformed.

    Parameters
    ----------
    parcel : Parcel
        Its phase, round and client have been checked.
    forms : dict of {str: Form}
        What the server expects in this step.
    n_held : int
        How many items the client holds, as it said when it registered.
    held : ndarray of shape (n_held,) or None
        Which ones, if the server knows.
    centers : dict of {str: ndarray} or None
        What a client that has changed nothing would send, as far as that is not zero.
    wire_dtype : str
    hold : bool
        Whether the single upload is kept, instead of its numbers alone.

    Returns
    -------
    Contribution
    """
    step = parcel.phase, int(parcel.round)
    code, sends = np.array([int(parcel.client)]), np.ones(1, dtype=bool)
    n_held = np.array([n_held])
    fields = _fields(parcel, forms, int(n_held[0]), held, wire_dtype)
    if fields is None:
        empty = {name: _field(np.zeros((0, *form.shape[1:])), form) for name, form in forms.items()}
        sizes = Sizes(*(part.copy() for part in measured(empty, forms, n_held, wire_dtype)))
        return Contribution(*step, code, sends, sends, ~sends, sizes, sums={})
    sizes = measured(fields, forms, n_held, wire_dtype)
    centers = {name: c for name, c in (centers or {}).items() if hold and name in fields}
    for name, center in centers.items():
        fields[name] = _moved(fields[name], center)
    changes = {name: one for name, one in fields.items() if forms[name].learned}
    counts = {name: one for name, one in fields.items() if not forms[name].learned}
    batch = Batch(code, sends, sends, sends.copy(), forms, changes, counts, centers, sizes)
    return Contribution.of_batch(step, batch, hold=hold)


def held_items(contribution):
    """The items that a client says it holds in its set-up upload; None if it does not say."""
    batch = contribution.batch
    if batch is None or not contribution.accepted.all():
        return None
    named = [name for name, form in batch.forms.items() if form.rows == "held"]
    return (batch.changes | batch.counts)[named[0]].rows if named else None


def _fields(parcel, forms, n_held, held, wire_dtype):
    """Each field as a Ragged of one client, or None if any is malformed."""
    # Whatever goes wrong with what a stranger sent, the upload is at fault and not the server.
    try:
        if parcel.fields.keys() != forms.keys():
            return None
        known = held if parcel.phase != "setup" else None
        fields = {}
        for name, form in forms.items():
            numbers = Numbers(*parcel.fields[name])
            rows = _rows(numbers.rows, form, n_held, known)
            fields[name] = None if rows is None else _rebuilt(numbers, rows, form, wire_dtype)
    except Exception:
        return None
    return None if any(one is None for one in fields.values()) else fields


def _rows(rows, form, n_held, held):
    """Which rows of the field have come, None if that makes no sense."""
    known = np.arange(form.shape[0]) if form.rows == "all" else held
    if form.rows != "chosen" and known is not None:
        return known if rows is None else None
    if not are_rows(rows, form) or (form.rows == "held" and len(rows) != n_held):
        return None
    return rows


def _rebuilt(numbers, rows, form, wire_dtype):
    values, columns = numbers.values, numbers.columns
    shape = (len(rows), *form.shape[1:])
    if columns is not None:
        if len(shape) != 2 or not are_columns(columns, form):
            return None
        shape = len(rows), int(columns.sum())
    if not are_numbers(values, form, shape):
        return None
    values = values.astype(form.sum_dtype)
    if not form.is_integer:
        largest = np.finfo(form.dtype or wire_dtype).max
        if np.abs(values).max(initial=0) > largest:
            return None
    if columns is not None:
        whole = np.zeros((len(rows), form.width), dtype=form.sum_dtype)
        whole[:, columns] = values
        values, columns = whole, columns[None]
    return _field(values, form, rows.astype(np.int64), columns)


def _field(values, form, rows=None, columns=None):
    rows = np.arange(len(values)) if rows is None else rows
    return Ragged(np.array([0, len(rows)]), rows, values, columns=columns, form=form)


def _moved(ragged, center):
    """Whole numbers as changes from a center."""
    values = ragged.values - np.asarray(center, dtype=np.float64)[ragged.rows]
    return Ragged(ragged.indptr, ragged.rows, values, columns=ragged.columns, form=ragged.form)
