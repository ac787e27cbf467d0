"""Messages, parcels and registrations as arrays, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.deployment._wire import DTYPES, MalformedMessage
from fedrecsk.simulation import Dense, Derived, Message, Numbers, Parcel, Rows
from fedrecsk.simulation.clients import Registration
from fedrecsk.simulation.keys import Key
from fedrecsk.simulation.server import Places

if TYPE_CHECKING:
    from typing import Any

    from fedrecsk.uploads import Form

Arrays = dict[str, np.ndarray]

# ---------------------------------------------------------------------- from the server


def message_arrays(
    message: Message | None, held: np.ndarray | None, client: int, wire_dtype: str
) -> tuple[dict[str, Any] | None, Arrays]:
    """What is sent of a message to one client.

    Parameters
    ----------
    message : Message or None
    held : ndarray of shape (n_held,) or None
        Items that the client holds, whose rows it receives of a :class:`Rows` field. None: all.
    client : int
        Code of the client.
    wire_dtype : str
        Type of real numbers, unless their field has its own.

    Returns
    -------
    form : dict or None
        What the client needs beside the arrays. None: there is no message.
    arrays : dict of {str: ndarray}
    """
    if message is None:
        return None, {}
    rows, computed, arrays = [], {}, {}
    for name, field in message.of(np.array([client])).items():
        if isinstance(field, Derived):
            continue
        values = np.asarray(field.values)
        if isinstance(field, Rows) and held is not None:
            rows.append(name)
            values = values[held]
        arrays[name] = _narrowed(values, field.dtype or wire_dtype)
        if arrays[name].dtype != values.dtype:
            computed[name] = values.dtype.str
    return {"rows": rows, "computed": computed}, arrays


def message_of(
    form: dict[str, Any] | None, arrays: Arrays, held: np.ndarray, n_items: int
) -> Message | None:
    """The message as the client has it: rows that it did not receive are zero.

    Parameters
    ----------
    form, arrays
        From `message_arrays`.
    held : ndarray of shape (n_held,)
    n_items : int
    """
    if form is None:
        return None
    fields = {}
    for name, values in arrays.items():
        values = values.astype(form["computed"].get(name, values.dtype), copy=False)
        if name in form["rows"]:
            if len(values) != len(held):
                raise MalformedMessage(
                    f"Field {name!r} has {len(values)} rows for {len(held)} items."
                )
            whole = np.zeros((n_items, *values.shape[1:]), dtype=values.dtype)
            whole[held] = values
            fields[name] = Rows(whole)
        else:
            fields[name] = Dense(values)
    return Message(**fields)


def _narrowed(values, dtype):
    """Values in the type of the wire, unless they would not be numbers of that kind any more."""
    wire = np.dtype(dtype)
    if values.dtype.kind == "f" and wire.kind == "f":
        if values.dtype.itemsize <= wire.itemsize:
            return values
        with np.errstate(over="ignore"):
            return values.astype(wire)
    if values.dtype.kind in "iub" and wire.kind in "iub":
        short = values.astype(wire)
        return short if np.array_equal(short, values) else values
    return values


# ------------------------------------------------------------------------ from a client


def parcel_arrays(
    parcels: list[Parcel], forms: dict[str, Form], wire_dtype: str
) -> tuple[list[dict[str, Any]], Arrays]:
    """What is sent of a client's parcels.

    Parameters
    ----------
    parcels : list of Parcel
    forms : dict of {str: Form}
        Forms of their fields.
    wire_dtype : str

    Returns
    -------
    heads : list of dict
    arrays : dict of {str: ndarray}
    """
    heads, arrays = [], {}
    for number, parcel in enumerate(parcels):
        fields = {}
        for name, numbers in parcel.fields.items():
            fields[name] = _sent(numbers, forms[name], wire_dtype, f"{number}/{name}", arrays)
        head = {
            "phase": parcel.phase,
            "round": parcel.round,
            "client": parcel.client,
            "fields": fields,
        }
        # What a compressor sends besides, or central privacy.
        extras = getattr(parcel, "extras", {})
        if extras:
            head["extras"] = list(extras)
        for name, values in extras.items():
            arrays[f"{number}:{name}"] = _narrowed(np.asarray(values), wire_dtype)
        heads.append(head)
    return heads, arrays


def _sent(numbers, form, wire_dtype, label, arrays):
    """Put the parts of one field into `arrays`; returns how each is written."""
    written = {}
    for part, value in numbers._asdict().items():
        if value is None:
            continue
        if part != "values":
            value = np.asarray(value)
            kind, array = ("bits", value) if value.dtype.kind == "b" else ("rows", value)
        else:
            kind, array = _kind(value, form)
        if kind == "same":
            written[part] = [kind, int(array.flat[0]), list(array.shape), array.dtype.str]
            continue
        if kind in ("bits", "signs"):
            shape = list(array.shape)
            array = np.packbits(array > 0, axis=-1)
            written[part] = [kind, shape[-1]]
        else:
            written[part] = [kind]
            dtype = "int32" if kind == "rows" else form.dtype or wire_dtype
            if array.dtype.kind == "f" and np.dtype(dtype).kind != "f":
                # Whole numbers to which noise was added.
                dtype = wire_dtype
            array = _narrowed(array, dtype)
        arrays[f"{label}/{part}"] = array
    return written


def _kind(values, form):
    """How the values of a field are written."""
    if form.bits and values.dtype.kind in "iu" and (np.abs(values) == 1).all() and values.ndim:
        return "signs", values
    # The items that a client holds are ones: their rows say all.
    if values.dtype.kind in "iub" and values.size > 1 and (values == values.flat[0]).all():
        return "same", values
    return "plain", values


def parcels_of(heads: Any, arrays: Arrays, forms: dict[str, Form]) -> list[Parcel]:
    """The parcels again. They may come from anybody.

    Parameters
    ----------
    heads, arrays
        From `parcel_arrays`.
    forms : dict of {str: Form}

    Returns
    -------
    parcels : list of Parcel
        Not checked further than needed to read them; the server checks them.

    Raises
    ------
    MalformedMessage
        If they cannot be read. The message names the field.
    """
    if not isinstance(heads, list):
        raise MalformedMessage("Parcels must be a list.")
    return [_parcel(number, head, arrays, forms) for number, head in enumerate(heads)]


def _parcel(number, head, arrays, forms):
    try:
        step = head["phase"], head["round"], head["client"]
        fields = dict(head["fields"])
    except (TypeError, KeyError, ValueError) as error:
        raise MalformedMessage("A parcel lacks its phase, round, client or fields.") from error
    read = {}
    for name, written in fields.items():
        if name not in forms:
            raise MalformedMessage(f"Unexpected field {str(name)[:80]!r}.")
        try:
            parts = {
                part: _read(how, arrays.get(f"{number}/{name}/{part}"), forms[name])
                for part, how in written.items()
            }
            read[name] = Numbers(**parts)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise MalformedMessage(f"Field {name!r} of a parcel cannot be read: {error}") from error
    if "extras" not in head:
        return Parcel(*step, read)
    try:
        extras = {name: arrays[f"{number}:{name}"] for name in head["extras"]}
        return Parcel(*step, read, **{"extras": extras})
    except (TypeError, KeyError) as error:
        raise MalformedMessage("The extras of a parcel are missing, or unexpected.") from error


def _read(how, array, form):
    """One part of a field, as its client had it."""
    kind = how[0]
    if kind == "same":
        _, value, shape, dtype = how
        largest = max(1, int(np.prod(form.shape, dtype=object)))
        if not all(type(n) is int and n >= 0 for n in shape) or _size(shape) > largest:
            raise MalformedMessage(f"it has the shape {shape}")
        if dtype not in DTYPES or np.dtype(dtype).kind not in "iub":
            raise MalformedMessage(f"it has the type {str(dtype)[:20]}")
        return np.full(shape, np.array(value).astype(dtype), dtype=dtype)
    if array is None:
        raise MalformedMessage("its numbers are missing")
    if kind in ("plain", "rows"):
        return array
    if kind not in ("bits", "signs") or array.dtype != np.uint8:
        raise MalformedMessage(f"it is written as {str(kind)[:20]!r}")
    count = how[1]
    if type(count) is not int or -(-count // 8) != array.shape[-1]:
        raise MalformedMessage(f"it has {array.shape[-1]} bytes for {count} bits")
    bits = np.unpackbits(array, axis=-1, count=count)
    return bits.astype(bool) if kind == "bits" else 2 * bits.astype(np.int8) - 1


def _size(shape):
    size = 1
    for n in shape:
        size *= n
    return size


# -------------------------------------------------------------------- before the rounds


def registration_head(registration: Registration) -> dict[str, Any]:
    """What is sent of a registration of one client."""
    return {name: part.tolist() for name, part in registration._asdict().items()}


def registration_of(head: Any, n_items: int) -> Registration:
    """The registration again, of a client that holds at most `n_items` items.

    Raises
    ------
    MalformedMessage
        If it is none of one client.
    """
    try:
        (name,), (n_users,), (n_held,) = (head[part] for part in Registration._fields)
    except (TypeError, KeyError, ValueError) as error:
        raise MalformedMessage("A registration has the id and the counts of one client.") from error
    is_name = type(name) in (str, int, float) and name == name
    if not is_name or (type(name) is int and not -(2**63) <= name < 2**63):
        raise MalformedMessage("A client's id must be a string, or a number below 2**63.")
    counts = type(n_users) is type(n_held) is int
    if not counts or not 1 <= n_users < 2**40 or not 0 <= n_held <= n_items:
        raise MalformedMessage(
            "A registration must have the number of users and that of the items that they hold."
        )
    return Registration(np.array([name]), np.array([n_users]), np.array([n_held]))


def place_head(place: Places) -> dict[str, Any]:
    """What is sent of the place of one client."""
    return {
        "clients": place.clients.tolist(),
        "first_users": place.first_users.tolist(),
        "shared": int(place.shared.seed),
    }


def place_of(head: dict[str, Any]) -> Places:
    """The place again."""
    return Places(
        np.array(head["clients"]), np.array(head["first_users"]), Key(int(head["shared"]))
    )
