"""Messages of clients as plain numbers, which a server can check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedrecsk.data._checks import LARGEST
from fedrecsk.protocol.protection import TERMS, as_sent, is_compressed, measured, protected
from fedrecsk.updates import ClientUpdates, Counts, FieldSpec, SparseRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedrecsk.protocol.federation import Federation
    from fedrecsk.protocol.plan import Uploads


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
class ClientMessage:
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
    integers : ndarray of shape (n_values,), dtype int64, or None
        Under masks, all fields as fixed-point integers, one after the other, in the place of
        `fields` and `extras`; they are to be masked before they are sent.
    """

    phase: str
    round: int
    client: int
    fields: dict[str, Numbers] = field(default_factory=dict)
    extras: dict[str, np.ndarray] = field(default_factory=dict)
    integers: np.ndarray | None = None


# ---------------------------------------------------------------------------- on the device


def packed(
    updates: ClientUpdates | None,
    specs: dict[str, FieldSpec],
    federation: Federation,
    *,
    numbered: bool,
) -> list[ClientMessage]:
    """Turn the updates of one client into a list of its upload, empty if it sends nothing.

    `numbered`: with the row numbers of the items that the client holds.
    """
    if updates is None or not updates.sends.any():
        return []
    upload = ClientMessage(updates.phase, updates.round, int(updates.clients[0]))
    fields = updates.fields if updates.held is None else updates.held.sent(0).fields
    compressor, is_broken = _compressor(updates.phase, federation), not updates.accepted[0]
    for name, spec in as_sent(specs, federation).items():
        one, extra = fields.get(name), None
        if isinstance(one, SparseRows) and is_compressed(compressor, spec, one.columns):
            numbers, extra = _compressed(one, compressor, is_broken)
        else:
            numbers = _numbers(one, spec, is_broken)
        unnumbered = spec.rows == "all" or (spec.rows == "held" and not numbered)
        upload.fields[name] = numbers._replace(rows=None) if unnumbered else numbers
        if extra is not None:
            upload.extras[name] = extra
    if _says_short(updates.phase, federation):
        upload.extras[TERMS] = np.array([updates.counts.short_excess > 0])
    return [upload]


def _says_short(phase, federation):
    """Return whether a client says if its upload was shorter than the clip."""
    mechanism = federation.central_dp
    return phase == "round" and mechanism is not None and mechanism.quantile is not None


def _compressor(phase, federation) -> Any:
    """Return what compresses the uploads of a phase, or None."""
    return federation.compression if phase == "round" else None


def _numbers(one, spec, is_broken):
    """Return the numbers to send for one field of one client."""
    if not isinstance(one, SparseRows):
        # A client that has diverged sends NaN, which every field of reals can hold.
        return Numbers(np.full(spec.shape, np.nan) if one is None or is_broken else np.array(one))
    rows, values = one.update(0)
    columns = None if one.columns is None else one.columns[0].astype(bool)
    if spec.rows == "all" and one.center is not None:
        values = values + one.center.astype(np.float64)
    if is_broken:
        values = np.full(values.shape, np.nan)
    elif spec.is_integer:
        short = values.astype("int8" if spec.bits else spec.dtype)
        # Integers that do not fit are sent as they are, and rejected.
        values = short if np.array_equal(short, values) else values
    if columns is not None:
        values = values[:, columns]
    # Copies, because the client keeps training in its own arrays.
    return Numbers(np.array(values), np.array(rows), columns)


def _compressed(one, compressor, is_broken):
    """Return one compressed field of a client: its change, since compressors are for changes."""
    rows, received = one.update(0)
    received = np.zeros(received.shape) if is_broken else received
    step = None if one.steps is None or is_broken else one.steps[0]
    values, extra = compressor._encoded(received, step)
    values, extra = np.array(values), None if extra is None else np.array(extra)
    if is_broken:
        # Codes cannot be NaN, but their scale can.
        (values if extra is None or values.dtype.kind == "f" else extra)[:] = np.nan
    return Numbers(values, np.array(rows)), extra


# ---------------------------------------------------------------------------- at the server


def checked(
    uploads: Iterable[ClientMessage | ClientUpdates],
    step: tuple[str, int],
    asked: NDArray[np.bool_],
    client_ids: np.ndarray,
) -> list[ClientMessage | ClientUpdates]:
    """List the uploads of a step; raise if one does not belong to it.

    `asked` is a mask of the registered clients, in the order of their codes, as `client_ids` is.
    """
    uploads, n_sent = list(uploads), np.zeros(len(asked), dtype=np.int64)
    for one in uploads:
        codes = senders(one)
        if (one.phase, one.round) != step:
            raise ValueError(
                f"An upload of {one.phase} {one.round} came in {step[0]} {step[1]}; send uploads "
                "in their own step."
            )
        unknown = codes[(codes < 0) | (codes >= len(asked))]
        if len(unknown):
            raise ValueError(
                f"An upload came from the unknown client {unknown[0]}; only the {len(asked)} "
                "registered clients may send."
            )
        np.add.at(n_sent, codes, 1)
        for mask, what in (
            (~asked[codes], "was not selected in"),
            (n_sent[codes] > 1, "has already sent in"),
        ):
            if mask.any():
                name = client_ids[codes[mask][0]]
                raise ValueError(f"Client {name!s} {what} {step[0]} {step[1]}.")
    return uploads


def senders(one: ClientMessage | ClientUpdates) -> NDArray[np.int64]:
    """Return the codes of the clients that an upload claims to come from."""
    if not isinstance(one, ClientMessage):
        return one.clients[one.sends]
    numbers = (one.round, one.client)
    # A code of another type, or too large for an array, belongs to no client.
    if not isinstance(one.phase, str) or not all(isinstance(n, Integral) for n in numbers):
        raise ValueError(
            "An upload must name its phase (a string), its round and its client's code (integers); "
            "see fedrecsk.deployment.ClientMessage."
        )
    return np.array([min(max(int(one.client), -1), np.iinfo(np.int64).max)])


def unpacked(
    upload: ClientMessage,
    specs: dict[str, FieldSpec],
    federation: Federation,
    n_held: int,
    *,
    held: np.ndarray | None,
    centers: dict[str, np.ndarray],
    uploads: Uploads,
) -> ClientUpdates:
    """Turn an upload into ClientUpdates, which are rejected if anything in it is malformed.

    Its phase, round and client have been checked. The client has registered `n_held` items, and
    `held` are these, if the server knows them; `centers` are what a client without any change would
    send, unless that is zero. With `uploads` "held" the single upload is kept instead of sums.
    """
    compressor = _compressor(upload.phase, federation)
    says_short = _says_short(upload.phase, federation)
    specs = as_sent(specs, federation)
    fields = _fields(upload, specs, int(n_held), held, federation)
    is_valid = fields is not None
    if fields is None:
        # As many bytes as of a sound upload.
        fields = {name: _field(np.zeros((0, *one.shape[1:])), one) for name, one in specs.items()}
    sizes = measured(fields, specs, np.array([n_held]), federation.wire_dtype, compressor)
    # The bit of `_says_short` takes a byte.
    sizes[[0, 2]] += says_short
    step, client = (upload.phase, int(upload.round)), np.array([int(upload.client)])
    updates = ClientUpdates.of_all(fields, step, client, specs, sizes)
    if not is_valid:
        return replace(updates, fields={}, accepted=np.zeros(1, dtype=bool))
    hold = uploads == "held"
    for name, center in centers.items():
        if name not in fields:
            continue
        one = fields[name]
        changed = is_compressed(compressor, specs[name], one.columns)
        if not changed and hold:
            # Absolute numbers become changes from the center.
            one = one.with_values(one.values - np.asarray(center, dtype=np.float64)[one.rows])
        fields[name] = replace(one, center=center) if changed or hold else one
    updates = protected(updates, [], uploads)
    mechanism = federation.central_dp
    if mechanism is not None:
        short = says_short and bool(upload.extras[TERMS][0])
        updates.counts = Counts(int(mechanism.noise == "clients"), 0, short - 0.5)
    return updates


def _fields(upload, specs, n_held, held, federation):
    """Return each field as SparseRows of one client, or None if any is malformed."""
    # Any error in processing an unchecked upload is due to the upload, so it is rejected.
    try:
        if upload.fields.keys() != specs.keys():
            return None
        known = held if upload.phase != "setup" else None
        fields, extras = {}, dict(upload.extras)
        compressor = _compressor(upload.phase, federation)
        if _says_short(upload.phase, federation):
            bit = extras.pop(TERMS)
            if type(bit) is not np.ndarray or bit.dtype != bool or bit.shape != (1,):
                return None
        for name, spec in specs.items():
            numbers = Numbers(*upload.fields[name])
            rows = _rows(numbers.rows, spec, n_held, known)
            if rows is None:
                return None
            if is_compressed(compressor, spec, numbers.columns):
                shape = len(rows), spec.width
                values = compressor._decoded(numbers.values, extras.pop(name, None), shape)
                numbers = Numbers(values)
            fields[name] = _rebuilt(numbers, rows, spec)
        if extras:
            return None
    except Exception:
        return None
    return None if any(one is None for one in fields.values()) else fields


def _rows(rows, spec, n_held, held):
    """Return the numbers of the rows that were sent; None if they are invalid."""
    known = np.arange(spec.shape[0]) if spec.rows == "all" else held
    if spec.rows != "chosen" and known is not None:
        return known if rows is None else None
    if not are_rows(rows, spec) or (spec.rows == "held" and len(rows) != n_held):
        return None
    return rows


def _rebuilt(numbers, rows, spec):
    values, columns = numbers.values, numbers.columns
    shape = (len(rows), *spec.shape[1:])
    if columns is not None:
        is_mask = type(columns) is np.ndarray and columns.dtype == bool
        if len(shape) != 2 or not is_mask or columns.shape != (spec.width,):
            return None
        shape = len(rows), int(columns.sum())
    if not are_numbers(values, spec, shape):
        return None
    values = values.astype(spec.sum_dtype)
    if columns is not None:
        whole = np.zeros((len(rows), spec.width), dtype=spec.sum_dtype)
        whole[:, columns] = values
        values, columns = whole, columns[None]
    return _field(values, spec, rows.astype(np.int64), columns)


def _field(values, spec, rows=None, columns=None):
    rows = np.arange(len(values)) if rows is None else rows
    return SparseRows(np.array([0, len(rows)]), rows, values, columns=columns, spec=spec)


# ------------------------------------------------------------------ checks of the numbers


def are_numbers(values: object, spec: FieldSpec, shape: tuple[int, ...]) -> bool:
    """Return whether a client may send these numbers in a field."""
    kinds = "iub" if spec.is_integer else "iubf"
    if type(values) is not np.ndarray or values.dtype.kind not in kinds:
        return False
    if values.shape != tuple(shape):
        return False
    if values.size == 0:
        return True
    if not spec.is_integer:
        # NaN is not within the bound, either.
        return bool((np.abs(values.astype(np.float64)) <= LARGEST).all())
    low, high = spec.limits
    if int(values.min()) < low or int(values.max()) > high:
        return False
    return not spec.bits or bool((values != 0).all())


def are_rows(rows: object, spec: FieldSpec) -> bool:
    """Return whether these are ascending, distinct row numbers of a field."""
    if type(rows) is not np.ndarray or rows.ndim != 1 or rows.dtype.kind not in "iu":
        return False
    if not len(rows):
        return True
    inside = int(rows.min()) >= 0 and int(rows.max()) < spec.shape[0]
    return inside and bool((np.diff(rows.astype(np.int64)) > 0).all())
