"""What crosses: a small head in JSON and named arrays of numbers, as npz; and messages as these."""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from fedrecsk.data.ids import id_array
from fedrecsk.deployment.client_message import ClientMessage, Numbers
from fedrecsk.protocol import Dense, Derived, Message, Rows
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.messages import (
    MOST_USERS,
    ClientCodes,
    Form,
    MalformedMessage,
    Registration,
    narrowed,
)
from fedrecsk.updates import FieldSpec

Arrays = dict[str, np.ndarray]
# What JSON expresses.
Head = dict[str, Any]
# Types of arrays that cross: numbers and truth values, in little-endian order.
DTYPES = frozenset(
    np.dtype(one).str
    for one in ("?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
)


# ------------------------------------------------------------------------------- bytes


def pack(head: Head, arrays: Arrays) -> bytes:
    """Return a head, which JSON can express, and arrays of numbers as an npz file."""
    little = {}
    for name, array in arrays.items():
        little[name] = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        if little[name].dtype.str not in DTYPES:
            raise TypeError(f"Field {name!r} has type {array.dtype}, which cannot be sent.")
    text = json.dumps(head, separators=(",", ":")).encode()
    file = io.BytesIO()
    np.savez(file, head=np.frombuffer(text, np.uint8), **little)
    return file.getvalue()


@contextmanager
def _malformed(text):
    """Raise MalformedMessage if unchecked content causes any error in the block."""
    try:
        yield
    except Exception as error:
        raise MalformedMessage(text) from error


def unpack(content: bytes) -> tuple[Head, Arrays]:
    """Return the head and arrays of untrusted bytes; raise MalformedMessage if they are none."""
    with _malformed("These bytes are not a message of this version of fedrecsk."):
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            n_inside = sum(one.file_size for one in file.infolist())
        if n_inside <= len(content):
            arrays = dict(np.load(io.BytesIO(content), allow_pickle=False))
    if n_inside > len(content):
        raise MalformedMessage("The fields are longer than the message.")
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.str not in DTYPES:
            raise MalformedMessage(f"Field {name!r} is not an array of numbers.")
        if array.dtype.kind == "b" and (array.view(np.uint8) > 1).any():
            raise MalformedMessage(f"Field {name!r} has truth values other than 0 and 1.")
    with _malformed("The head of the message is not valid JSON."):
        head = json.loads(arrays.pop("head").tobytes())
    if not isinstance(head, dict):
        raise MalformedMessage("The head of the message must be a dict.")
    return head, arrays


# Kind of a message that holds others.
TOGETHER = "together"


def bundle(contents: list[bytes]) -> bytes:
    """Return one message that holds others; what several of them have alike is in it once."""
    parts, arrays, numbers = [], {}, {}
    for head, own in map(unpack, contents):
        names = {}
        for name, one in own.items():
            alike = name, one.dtype.str, one.shape, one.tobytes()
            names[name] = numbers.setdefault(alike, str(len(numbers)))
            arrays[names[name]] = one
        parts.append([head, names])
    return pack({"kind": TOGETHER, "parts": parts}, arrays)


def bundled(head: Head, arrays: Arrays) -> list[tuple[Head, Arrays]]:
    """Return the messages that one holds, none if it is of another kind; they share arrays."""
    if head.get("kind") != TOGETHER:
        return []
    with _malformed("The messages in a message cannot be told apart."):
        parts = [
            (dict(one), {n: arrays[a] for n, a in names.items()}) for one, names in head["parts"]
        ]
        # A short message must not become a long one.
        is_plain = all(len(set(map(id, own.values()))) == len(own) for _, own in parts)
        if not is_plain or any(own.keys() & {"head", "file"} for _, own in parts):
            raise ValueError
    return parts


# ---------------------------------------------------------------------- from the server


def message_arrays(
    message: Message | None, held: np.ndarray | None, client: int, wire_dtype: str
) -> tuple[Head | None, Arrays]:
    """Return the head and the arrays of a message to one client, which holds the items `held`."""
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
        arrays[name] = narrowed(values, field.dtype or wire_dtype)
        if arrays[name].dtype != values.dtype:
            computed[name] = values.dtype.str
    return {"rows": rows, "computed": computed}, arrays


def message_of(
    spec: Head | None, arrays: Arrays, held: np.ndarray, forms: Mapping[str, Form]
) -> Message | None:
    """Return an untrusted message as the client has it: rows that it did not receive are zero.

    Only rows are compared with the declared forms; `Message.check` compares the rest.
    """
    if spec is None:
        return None
    fields = {}
    for name, values in arrays.items():
        values = np.asarray(values, spec["computed"].get(name, values.dtype), order="C")
        if name in spec["rows"] and name in forms:
            n_items, *width = forms[name].shape
            # Before memory for all items is reserved.
            wrong = Form((len(held), *width), forms[name].kind).mismatch(values)
            if wrong is not None:
                raise MalformedMessage(f"Field {name!r} of the message {wrong}.")
            whole = np.zeros((n_items, *values.shape[1:]), dtype=values.dtype)
            whole[held] = values
            fields[name] = Rows(whole)
        else:
            fields[name] = Dense(values)
    return Message(**fields)


# ------------------------------------------------------------------------ from a client


def upload_arrays(
    upload: ClientMessage, specs: dict[str, FieldSpec], wire_dtype: str
) -> tuple[Head, Arrays]:
    """Return the head and the arrays of a client's message."""
    arrays = {}
    head = {"phase": upload.phase, "round": upload.round, "client": upload.client}
    for name, numbers in upload.fields.items():
        spec = specs[name]
        dtype = spec.dtype or wire_dtype
        if numbers.values.dtype.kind == "f" and np.dtype(dtype).kind != "f":
            # Whole numbers to which noise was added.
            dtype = wire_dtype
        arrays[f"{name}/values"] = narrowed(_shortened(numbers, spec), dtype)
        if numbers.rows is not None:
            arrays[f"{name}/rows"] = narrowed(np.asarray(numbers.rows), "int32")
        if numbers.columns is not None:
            arrays[f"{name}/columns"] = np.asarray(numbers.columns)
    # What a compressor sends besides, or central privacy.
    for name, values in upload.extras.items():
        arrays[f"{name}/extra"] = narrowed(np.asarray(values), wire_dtype)
    return head, arrays


def _shortened(numbers, spec):
    """Return values with signs in one bit each, and of equal integers only one."""
    values = np.asarray(numbers.values)
    if spec.bits and values.dtype.kind in "iu" and (np.abs(values) == 1).all():
        return np.packbits(values > 0, axis=-1)
    is_whole = numbers.rows is not None and values.shape == _shape(numbers, spec)
    if is_whole and values.dtype.kind in "iu" and values.size and np.ptp(values) == 0:
        return values.flat[0]
    return values


def _shape(numbers, spec):
    """Return the shape of the values in the rows that are sent."""
    return len(numbers.rows), *spec.shape[1:]


def upload_of(
    head: object, arrays: Arrays, specs: dict[str, FieldSpec], expected: tuple[str, int, int]
) -> ClientMessage:
    """Return an untrusted message of a phase, number and client; raise MalformedMessage if none."""
    with _malformed("An upload lacks its phase, round or client."):
        step = head["phase"], head["round"], head["client"]
    if step != expected or not type(step[1]) is type(step[2]) is int:
        raise MalformedMessage(f"it sends {str(step)[:80]} instead of {expected}.")
    parts, extras = {}, {}
    for label, array in arrays.items():
        name, _, part = label.rpartition("/")
        if part == "extra":
            extras[name] = array
        elif name in specs and part in Numbers._fields:
            parts.setdefault(name, {})[part] = array
        else:
            raise MalformedMessage(f"Unexpected field {label[:80]!r}.")
    fields = {name: _numbers_of(name, own, specs[name]) for name, own in parts.items()}
    return ClientMessage(*step, fields, extras)


def _numbers_of(name, parts, spec):
    """Return the numbers of one field, as their client had them."""
    if "values" not in parts:
        raise MalformedMessage(f"The values of field {name!r} are missing.")
    numbers = Numbers(**parts)
    values = numbers.values
    if spec.bits and values.dtype == np.uint8:
        if values.ndim != 2 or values.shape[1] != -(-spec.width // 8):
            raise MalformedMessage(f"Field {name!r} has {values.shape} bytes for its signs.")
        bits = np.unpackbits(values, axis=1, count=spec.width)
        return numbers._replace(values=2 * bits.astype(np.int8) - 1)
    rows = numbers.rows
    if values.ndim == 0 and rows is not None and rows.ndim == 1 and len(rows) <= spec.shape[0]:
        return numbers._replace(values=np.full(_shape(numbers, spec), values))
    return numbers


# ------------------------------------------------------------------------ masked sums


def session_of(fit: str, kind: str, number: int, terms: str) -> bytes:
    """Return the name of a masked sum, which no other sum has, nor one on other terms of noise."""
    return hashlib.sha256(f"{fit} {kind} {number} {terms}".encode()).digest()[:16]


def masking_arrays(message: bytes | dict[int, bytes]) -> Arrays:
    """Return what is sent of a step of a masked sum: bytes, or bytes by other clients' codes."""
    parts = message if isinstance(message, dict) else {"": message}
    return {f"masks/{code}": np.frombuffer(one, np.uint8) for code, one in parts.items()}


def masking_of(arrays: Arrays) -> bytes | dict[int, bytes]:
    """Return what was sent of a step of a masked sum; raise MalformedMessage if there is none."""
    parts = {}
    for label, values in arrays.items():
        name, _, code = label.partition("/")
        if name == "masks":
            is_code = code.isdecimal() and len(code) < 20
            if not (code == "" or is_code) or values.dtype != np.uint8:
                raise MalformedMessage(f"The field {label[:40]!r} is not for a client.")
            parts[code] = values.tobytes()
    whole = parts.pop("", None)
    return {int(code): one for code, one in parts.items()} if whole is None else whole


# -------------------------------------------------------------------- before the rounds


def registration_head(registration: Registration) -> Head:
    """Return what is sent of a registration of one client."""
    return {name: part.tolist() for name, part in registration._asdict().items()}


def registration_of(head: object, n_items: int) -> Registration:
    """Return an untrusted registration of one client; raise MalformedMessage if it is none."""
    with _malformed("A registration has the id and the counts of one client."):
        (name,), *counts = (head[part] for part in Registration._fields)
        counts = [np.array(one) for one in counts]
    is_name = type(name) in (str, int, float) and name == name
    if not is_name or (type(name) is int and not -(2**63) <= name < 2**63):
        raise MalformedMessage("A client's id must be a string, or a number below 2**63.")
    registration = Registration(np.array([name]), *counts)
    check_registration(registration, n_items)
    return registration


def check_registration(registration: Registration, n_items: int) -> None:
    """Raise MalformedMessage unless this is a Registration of clients, of this many items."""
    n_clients = len(id_array(registration.client_ids, "client ids"))
    for name, bounds in (("n_users", (1, MOST_USERS)), ("n_held", (0, n_items))):
        numbers = np.asarray(getattr(registration, name))
        wrong = Form((n_clients,), "int", bounds).mismatch(numbers)
        if wrong is not None:
            raise MalformedMessage(f"Field {name!r} of a registration {wrong}.")


def place_head(place: ClientCodes) -> Head:
    """Return what is sent of the place of one client."""
    numbers = place._replace(shared=place.shared.seed)._asdict()
    return {name: np.asarray(one).tolist() for name, one in numbers.items()}


def place_of(head: object) -> ClientCodes:
    """Return an untrusted place of one client; raise MalformedMessage if it is none."""
    with _malformed(f"A place has {', '.join(ClientCodes._fields)} of one client."):
        (client,), (first_user,), *numbers = (head[part] for part in ClientCodes._fields)
    every = client, first_user, *numbers
    if not all(type(one) is int and -(2**63) <= one < 2**63 for one in every):
        raise MalformedMessage("The numbers of a place must be integers below 2**63.")
    shared, *counts = numbers
    return ClientCodes(np.array([client]), np.array([first_user]), Key(shared), *counts)


# ------------------------------------------------------------------ requests to nodes


def _is_whole(value):
    return type(value) is int and 0 <= value < 2**63


def _is_fit(value):
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{16}", value) is not None


def _are_names(value):
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _are_digests(value):
    return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())


def _are_ids(value):
    try:
        return isinstance(value, list) and len(id_array(value, "ids")) > 0
    except (TypeError, ValueError):
        return False


def _is_form(value):
    if not isinstance(value, dict) or not _are_names(value.get("rows")):
        return False
    computed = value.get("computed")
    if not (isinstance(computed, dict) and _are_digests(computed)):
        return False
    return DTYPES.issuperset(computed.values()) and _are_names(value.get("kept", []))


def _is_evaluation(value):
    if not isinstance(value, dict) or not _are_names(value.get("metrics")):
        return False
    return value.get("n_negatives") is None or _is_whole(value["n_negatives"])


# Parts of a request's head: how to check them, and what they should be.
PARTS: dict[str, tuple[Callable[[Any], object], str]] = {
    "kind": (lambda value: isinstance(value, str), "a string"),
    "fit": (_is_fit, "the name of a fit"),
    "after": (_is_fit, "the name of a fit"),
    "parameters": (_are_digests, "digests by name"),
    "search": (lambda value: isinstance(value, bool), "true or false"),
    "reason": (lambda value: isinstance(value, str), "a string"),
    "ids": (_are_ids, "new item ids, all numbers or all strings"),
    "rows": (_is_form, "the rows and types of a message"),
    "number": (_is_whole, "a whole number below 2**63"),
    "best": (_is_whole, "a whole number below 2**63"),
    "n_clients": (_is_whole, "a whole number below 2**63"),
    "n_bits": (_is_whole, "a whole number below 2**63"),
    "place": (place_of, "the place of a client"),
    "message": (_is_form, "the rows and types of a message"),
    "announcement": (_is_form, "the rows and types of a message"),
    "evaluation": (_is_evaluation, "metrics and n_negatives"),
}
# Those that requests of a kind need, besides kind and fit; all other kinds need a number.
NEEDED = {
    "register": {"parameters"},
    "refuse": {"reason"},
    "items": {"ids", "rows"},
    "validate": {"number", "message"},
    "evaluate": {"number", "message", "evaluation"},
    "finish": {"number", "message"},
}


def check_request(head: Head) -> None:
    """Raise MalformedMessage if a part of an untrusted request's head is missing or malformed."""
    kind = head.get("kind")
    needed = {"kind", "fit"} | NEEDED.get(kind if isinstance(kind, str) else "", {"number"})
    for name, (is_right, what) in PARTS.items():
        value = head.get(name)
        if (value is not None or name in needed) and not is_right(value):
            raise MalformedMessage(f"The {name!r} of a request must be {what}.")
