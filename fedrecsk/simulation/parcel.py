"""A client's upload as it is sent: plain numbers, which the server can check completely."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedrecsk.compression._base import After
from fedrecsk.simulation.contributions import Contribution, Counts, measured
from fedrecsk.simulation.protection import is_compressed
from fedrecsk.simulation.release import TERMS
from fedrecsk.simulation.validation import are_columns, are_numbers, are_rows
from fedrecsk.uploads import Batch, Ragged, Sizes

if TYPE_CHECKING:
    from fedrecsk.simulation.federation import Federation
    from fedrecsk.uploads import Form


class Numbers(NamedTuple):
    """Numbers of one field as they are sent.

    Attributes
    ----------
    values : ndarray
        All rows of the field, the rows of the items that the client holds, or rows of its choice,
        depending on the field's form. If the field is compressed, what the compressor sends: the
        kept numbers, codes of int8 or float16, or the first factor.
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
    extras : dict of {str: ndarray}
        What a compressor sends of a field besides its values: Top-K's positions (int32), the scale
        of int8 (float32), or the second factor of a matrix of low rank. Under
        ``CentralDP(quantile=...)`` also "privacy_terms": whether the upload was short enough, shape
        (1,), dtype bool. Send arrays of other types than float64 as they are.
    """

    phase: str
    round: int
    client: int
    fields: dict[str, Numbers] = field(default_factory=dict)
    extras: dict[str, np.ndarray] = field(default_factory=dict)


# ---------------------------------------------------------------------------- on the device


def packed(
    contribution: Contribution | None,
    forms: dict[str, Form],
    held: np.ndarray,
    *,
    numbered: bool,
    federation: Federation | None = None,
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
    federation : Federation or None
        With its compression and central privacy. None: neither.

    Returns
    -------
    parcels : list of Parcel
    """
    if contribution is None:
        return []
    step = contribution.phase, contribution.round
    forms = _as_sent(forms, federation)
    parcels = []
    for place in np.flatnonzero(contribution.sends).tolist():
        parcel = Parcel(*step, int(contribution.clients[place]))
        for name, form in forms.items():
            numbers, extra = _numbers(contribution, place, name, form, held, federation)
            if form.rows == "held" and not numbered:
                numbers = numbers._replace(rows=None)
            parcel.fields[name] = numbers
            if extra is not None:
                parcel.extras[name] = extra
        if _says_short(step[0], federation):
            parcel.extras[TERMS] = np.array([contribution.counts.short_excess > 0])
        parcels.append(parcel)
    return parcels


def _as_sent(forms, federation):
    """Forms of the numbers as they cross: clipped integers are real numbers."""
    if federation is None or federation.central_dp is None:
        return forms
    return {
        name: replace(form, dtype=None, bits=False) if form.is_integer else form
        for name, form in forms.items()
    }


def _says_short(phase, federation):
    """Whether a client says if its upload was shorter than the clip."""
    mechanism = None if federation is None else federation.central_dp
    return phase == "round" and mechanism is not None and mechanism.quantile is not None


def _numbers(contribution, place, name, form, held, federation):
    """Numbers to send for one field of one client, and what else its compressor sends."""
    if contribution.batch is None:
        rows, values, columns = _summed(contribution, name, form, held)
    else:
        changes = contribution.batch.changes.get(name)
        if isinstance(changes, After):
            return _compressed(contribution, place, changes, form, federation.compression)
        rows, values, columns = _single(contribution.batch, place, name, form)
    if contribution.arrives[place] and not contribution.accepted[place]:
        # A client that has diverged sends NaN, which every field of reals can hold.
        values = np.full(values.shape, np.nan)
    elif form.is_integer:
        values = _shortened(values, np.dtype("int8" if form.bits else form.dtype))
    if columns is not None:
        values = values[:, columns]
    # Copies, because the client keeps training in its own arrays.
    return Numbers(np.array(values), None if rows is None else np.array(rows), columns), None


def _compressed(contribution, place, changes, form, compressor):
    """One compressed field of a client: its change, since compressors are for changes."""
    rows, received = changes.update(place)
    honest = changes.changes.update(place).change
    diverged = contribution.arrives[place] and not contribution.accepted[place]
    if diverged:
        honest = received = np.zeros(received.shape)
    values, extra = compressor._encoded(honest, received)
    values, extra = np.array(values), None if extra is None else np.array(extra)
    if diverged:
        # Codes cannot be NaN, but their scale can.
        (values if extra is None or values.dtype.kind == "f" else extra)[:] = np.nan
    return Numbers(values, None if form.rows == "all" else np.array(rows)), extra


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
    federation: Federation | None = None,
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
    federation : Federation or None
        As in `packed`.

    Returns
    -------
    Contribution
    """
    step = parcel.phase, int(parcel.round)
    code, sends = np.array([int(parcel.client)]), np.ones(1, dtype=bool)
    row_counts = np.array([n_held])
    fields = _fields(parcel, _as_sent(forms, federation), int(n_held), held, wire_dtype, federation)
    if fields is None:
        empty = {name: _field(np.zeros((0, *form.shape[1:])), form) for name, form in forms.items()}
        sizes = _sizes(parcel, empty, forms, row_counts, wire_dtype, federation)
        return Contribution(*step, code, sends, sends, ~sends, sizes, sums={})
    sizes = _sizes(parcel, fields, forms, row_counts, wire_dtype, federation)
    changed = [n for n, one in fields.items() if _is_compressed(parcel, one, forms[n], federation)]
    centers = {n: c for n, c in (centers or {}).items() if n in fields and (hold or n in changed)}
    for name, center in centers.items():
        if name not in changed:
            fields[name] = _moved(fields[name], center)
    changes = {name: one for name, one in fields.items() if forms[name].learned}
    counts = {name: one for name, one in fields.items() if not forms[name].learned}
    batch = Batch(code, sends, sends, sends.copy(), forms, changes, counts, centers, sizes)
    one = Contribution.of_batch(step, batch, hold=hold)
    mechanism = None if federation is None else federation.central_dp
    if mechanism is not None:
        short = bool(parcel.extras[TERMS][0]) if _says_short(step[0], federation) else False
        one.counts = Counts(int(mechanism.noise == "clients"), 0, short - 0.5)
    return one


def _is_compressed(parcel, ragged, form, federation):
    return parcel.phase == "round" and ragged.columns is None and is_compressed(federation, form)


def _sizes(parcel, fields, forms, n_held, wire_dtype, federation):
    """Sizes of an upload, with what compression and the adaptive clip make of them."""
    sizes = Sizes(*(part.copy() for part in measured(fields, forms, n_held, wire_dtype)))
    for name, form in forms.items():
        if not _is_compressed(parcel, fields[name], form, federation):
            continue
        n_rows = {"all": np.array([form.shape[0]]), "held": n_held}.get(
            form.rows, fields[name].n_rows
        )
        itemsize = np.dtype(form.dtype or wire_dtype).itemsize
        nbytes, payload = federation.compression._sizes_of_upload(form, n_rows, itemsize)
        sizes.nbytes[:] += nbytes - form.nbytes(wire_dtype, n_rows)
        sizes.payload[:] += payload - form.payload_nbytes(wire_dtype, n_rows)
    if _says_short(parcel.phase, federation):
        sizes.nbytes[:] += 1
        sizes.coordinates[:] += 1
    return sizes


def held_items(contribution: Contribution) -> np.ndarray | None:
    """Items that a client holds according to its set-up upload; None if it does not say."""
    batch = contribution.batch
    if batch is None or not contribution.accepted.all():
        return None
    named = [name for name, form in batch.forms.items() if form.rows == "held"]
    return (batch.changes | batch.counts)[named[0]].rows if named else None


def _fields(parcel, forms, n_held, held, wire_dtype, federation):
    """Each field as a Ragged of one client, or None if any is malformed."""
    # Any error in processing an unchecked upload is due to the upload, so it is rejected.
    try:
        if parcel.fields.keys() != forms.keys():
            return None
        known = held if parcel.phase != "setup" else None
        fields, extras = {}, dict(parcel.extras)
        if _says_short(parcel.phase, federation):
            check_bit(extras.pop(TERMS))
        for name, form in forms.items():
            numbers = Numbers(*parcel.fields[name])
            rows = _rows(numbers.rows, form, n_held, known)
            if rows is None:
                return None
            if _is_compressed(parcel, numbers, form, federation):
                decode, shape = federation.compression._decoded, (len(rows), form.width)
                numbers = Numbers(decode(numbers.values, extras.pop(name, None), shape))
            fields[name] = _rebuilt(numbers, rows, form, wire_dtype)
        if extras:
            return None
    except Exception:
        return None
    return None if any(one is None for one in fields.values()) else fields


def check_bit(bit: np.ndarray) -> None:
    """Raise if this is not an array of one bool."""
    if type(bit) is not np.ndarray or bit.dtype != bool or bit.shape != (1,):
        raise ValueError(f"{TERMS} must be an array of one bool, but got {bit!r}.")


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
