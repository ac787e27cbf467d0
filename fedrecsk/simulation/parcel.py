"""A client's upload as it is sent: plain numbers, all of which the server can check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedrecsk.simulation.contributions import Contribution, measured
from fedrecsk.simulation.validation import are_columns, are_numbers, are_rows
from fedrecsk.uploads import Batch, Ragged, Sizes

if TYPE_CHECKING:
    from fedrecsk.uploads import Form


class Numbers(NamedTuple):
    """Numbers of one field as they are sent.

    Attributes
    ----------
    values : ndarray
        All rows of the field, the rows of the items that the client holds, or rows of its choice,
        depending on the field's form.
    rows : ndarray of shape (n_rows,) or None
        Ascending numbers of these rows, if the client chooses them or has not sent its items in the
        set-up. None: the server knows them.
    columns : ndarray of shape (width,), dtype bool, or None
        Columns that the client sends; `values` has only these. None: all columns.
    """

    values: np.ndarray
    rows: np.ndarray | None = None
    columns: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Parcel:
    """One client's upload in one step of the protocol, as a :class:`Device` returns it.

    Its numbers are final and include the noise. Everything else about the upload (its size,
    whether it is valid, what it changes) is computed by the server.

    Parameters
    ----------
    phase : {"setup", "round", "validation"}
    round : int
        The round, or the step of the set-up.
    client : int
        Code that the server has assigned to the client.
    fields : dict of {str: Numbers}
    """

    phase: str
    round: int
    client: int
    fields: dict[str, Numbers] = field(default_factory=dict)


# ---------------------------------------------------------------------------- on the device


def packed(
    contribution: Contribution | None, forms: dict[str, Form], held: np.ndarray, *, numbered: bool
) -> list[Parcel]:
    """Turn a contribution into parcels, one for each client that sends.

    Parameters
    ----------
    contribution : Contribution or None
        Single uploads, or the sums of a single client.
    forms : dict of {str: Form}
    held : ndarray of shape (n_held,)
        Items that the client holds; needed for sums only.
    numbered : bool
        Whether to send the row numbers of the items that the client holds.

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
    """Numbers to send for one field of one client."""
    if contribution.batch is None:
        rows, values, columns = _summed(contribution, name, form, held)
    else:
        rows, values, columns = _single(contribution.batch, place, name, form)
    if contribution.arrives[place] and not contribution.accepted[place]:
        # A client that has diverged sends NaN, which every field of reals can hold.
        values = np.full(values.shape, np.nan)
    elif form.is_integer:
        values = _shortened(values, np.dtype("int8" if form.bits else form.dtype))
    if columns is not None:
        values = values[:, columns]
    if form.rows == "held" and not numbered:
        rows = None
    # Copies, because the client keeps training in its own arrays.
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
    """Rows, values and columns of a sum over one client."""
    if len(contribution.clients) != 1 or form.rows == "chosen":
        raise ValueError(
            f"Field {name!r} is a sum over {len(contribution.clients)} clients, or without row "
            "numbers; use Clients(..., separate=True) with one client each."
        )
    values = contribution.sums.get(name)
    if values is None:
        values = np.full(form.shape, np.nan)
    return (held, values[held], None) if form.rows == "held" else (None, values, None)


def _shortened(values, dtype):
    """Convert integers to the type of the message, unless they do not fit."""
    short = values.astype(dtype)
    return short if np.array_equal(short, values) else values


# ---------------------------------------------------------------------------- at the server


def unpacked(
    parcel: Parcel,
    forms: dict[str, Form],
    n_held: int,
    *,
    held: np.ndarray | None = None,
    centers: dict[str, np.ndarray] | None = None,
    wire_dtype: str = "float32",
    hold: bool = False,
) -> Contribution:
    """Turn a parcel into a Contribution, which is rejected if anything in it is malformed.

    Parameters
    ----------
    parcel : Parcel
        A parcel whose phase, round and client have been checked.
    forms : dict of {str: Form}
        Forms of the fields in this step.
    n_held : int
        Number of items that the client holds, as it has registered.
    held : ndarray of shape (n_held,) or None
        Items that the client holds, if the server knows them.
    centers : dict of {str: ndarray} or None
        What a client without any change would send, unless that is zero.
    wire_dtype : str
    hold : bool
        Whether to keep the single upload instead of sums.

    Returns
    -------
    Contribution
    """
    step = parcel.phase, int(parcel.round)
    code, sends = np.array([int(parcel.client)]), np.ones(1, dtype=bool)
    row_counts = np.array([n_held])
    fields = _fields(parcel, forms, int(n_held), held, wire_dtype)
    if fields is None:
        empty = {name: _field(np.zeros((0, *form.shape[1:])), form) for name, form in forms.items()}
        sizes = Sizes(*(part.copy() for part in measured(empty, forms, row_counts, wire_dtype)))
        return Contribution(*step, code, sends, sends, ~sends, sizes, sums={})
    sizes = measured(fields, forms, row_counts, wire_dtype)
    centers = {name: c for name, c in (centers or {}).items() if hold and name in fields}
    for name, center in centers.items():
        fields[name] = _moved(fields[name], center)
    changes = {name: one for name, one in fields.items() if forms[name].learned}
    counts = {name: one for name, one in fields.items() if not forms[name].learned}
    batch = Batch(code, sends, sends, sends.copy(), forms, changes, counts, centers, sizes)
    return Contribution.of_batch(step, batch, hold=hold)


def held_items(contribution: Contribution) -> np.ndarray | None:
    """Items that a client holds according to its set-up upload; None if it does not say."""
    batch = contribution.batch
    if batch is None or not contribution.accepted.all():
        return None
    named = [name for name, form in batch.forms.items() if form.rows == "held"]
    return (batch.changes | batch.counts)[named[0]].rows if named else None


def _fields(parcel, forms, n_held, held, wire_dtype):
    """Each field as a Ragged of one client, or None if any is malformed."""
    # Any error in processing an unchecked upload is the upload's fault, not the server's.
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
    """Numbers of the rows that were sent; None if they are invalid."""
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
    """Turn absolute numbers into changes from a center."""
    values = ragged.values - np.asarray(center, dtype=np.float64)[ragged.rows]
    return Ragged(ragged.indptr, ragged.rows, values, columns=ragged.columns, form=ragged.form)
