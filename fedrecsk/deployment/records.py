"""What crosses: a small head in JSON and named arrays of numbers, as npz; and messages as these."""

from __future__ import annotations

import io
import json
import math
import zipfile
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.privacy import Ciphertext
from fedrecsk.protocol import ClientMessage, Dense, Derived, Message, Numbers, Rows
from fedrecsk.protocol.encryption import EncryptedSum, EncryptedSums
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.registration import ClientCodes, Registration

if TYPE_CHECKING:
    from typing import Any

    from fedrecsk.updates import FieldSpec

Arrays = dict[str, np.ndarray]
# Types of arrays that cross: numbers and truth values, in little-endian order.
DTYPES = frozenset(
    np.dtype(one).str
    for one in ("?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
)


class MalformedMessage(ValueError):
    """Received bytes that are no message, or not the message that was expected."""


# ------------------------------------------------------------------------------- bytes


def pack(head: dict[str, Any], arrays: Arrays) -> bytes:
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


def unpack(content: bytes) -> tuple[dict[str, Any], Arrays]:
    """Return the head and arrays of untrusted bytes; raise MalformedMessage if they are none."""
    arrays = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            members = file.infolist()
            # Nothing may be longer inside than outside.
            if sum(one.file_size for one in members) > len(content):
                raise MalformedMessage("The fields are longer than the message.")
            for one in members:
                name = one.filename.removesuffix(".npy")
                if name in arrays:
                    raise MalformedMessage(f"Field {name!r} is sent twice.")
                arrays[name] = _array(name, file.read(one))
    except MalformedMessage:
        raise
    # Any other error in reading unchecked bytes is due to the bytes.
    except Exception as error:
        raise MalformedMessage(
            "These bytes are not a message of this version of fedrecsk."
        ) from error
    try:
        head = json.loads(arrays.pop("head").tobytes())
    except (KeyError, ValueError, RecursionError) as error:
        raise MalformedMessage("The head of the message is not valid JSON.") from error
    if not isinstance(head, dict):
        raise MalformedMessage("The head of the message must be a dict.")
    return head, arrays


def _array(name, content):
    """Return an array from the bytes of an npy file, whose header is checked before it is used."""
    file = io.BytesIO(content)
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("unknown version")
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    except Exception as error:
        raise MalformedMessage(f"Field {name!r} has no header of an array.") from error
    if dtype.str not in DTYPES:
        raise MalformedMessage(f"Field {name!r} has the type {str(dtype)[:20]!r}.")
    if is_fortran or not all(type(n) is int and n >= 0 for n in shape):
        raise MalformedMessage(f"Field {name!r} has the shape {str(shape)[:80]}.")
    n_more = len(content) - file.tell() - math.prod(shape) * dtype.itemsize
    if n_more:
        what = "is cut off" if n_more < 0 else f"has {n_more} bytes too many"
        raise MalformedMessage(f"Field {name!r} {what}.")
    values = np.frombuffer(content, dtype, offset=file.tell())
    if dtype.kind == "b" and (values.view(np.uint8) > 1).any():
        raise MalformedMessage(f"Field {name!r} has truth values other than 0 and 1.")
    try:
        return values.reshape(shape).copy()
    except ValueError as error:
        raise MalformedMessage(f"Field {name!r} has an impossible shape.") from error


# ---------------------------------------------------------------------- from the server


def message_arrays(
    message: Message | EncryptedSums | None,
    held: np.ndarray | None,
    client: int,
    wire_dtype: str,
) -> tuple[dict[str, Any] | None, Arrays]:
    """Return the head and the arrays of a message to one client, which holds the items `held`."""
    if message is None:
        return None, {}
    if isinstance(message, EncryptedSums):
        return _sums_arrays(message)
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
    spec: dict[str, Any] | None, arrays: Arrays, held: np.ndarray, n_items: int
) -> Message | EncryptedSums | None:
    """Return the message as the client has it: rows that it did not receive are zero."""
    if spec is None:
        return None
    if "sums" in spec:
        return _sums_of(spec, arrays)
    fields = {}
    for name, values in arrays.items():
        values = values.astype(spec["computed"].get(name, values.dtype), copy=False)
        if name in spec["rows"]:
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
    """Return values in the type of the wire, unless whole numbers would change."""
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


def upload_arrays(
    uploads: list[ClientMessage], specs: dict[str, FieldSpec], wire_dtype: str
) -> tuple[list[dict[str, Any]], Arrays]:
    """Return the heads and the arrays of a client's messages."""
    heads, arrays = [], {}
    for number, upload in enumerate(uploads):
        fields = {}
        for name, numbers in upload.fields.items():
            fields[name] = _sent(numbers, specs[name], wire_dtype, f"{number}/{name}", arrays)
        head = {
            "phase": upload.phase,
            "round": upload.round,
            "client": upload.client,
            "fields": fields,
        }
        if upload.encrypted is not None:
            head["encrypted"] = _written(upload.encrypted, str(number), arrays)
        # What a compressor sends besides, or central privacy.
        extras = getattr(upload, "extras", {})
        if extras:
            head["extras"] = list(extras)
        for name, values in extras.items():
            arrays[f"{number}:{name}"] = _narrowed(np.asarray(values), wire_dtype)
        heads.append(head)
    return heads, arrays


def _sent(numbers, spec, wire_dtype, label, arrays):
    """Put the parts of one field into `arrays`; return how each is written."""
    written = {}
    for part, value in numbers._asdict().items():
        if value is None:
            continue
        if part != "values":
            value = np.asarray(value)
            kind, array = ("bits", value) if value.dtype.kind == "b" else ("rows", value)
        else:
            kind, array = _kind(value, spec)
        if kind == "same":
            written[part] = [kind, int(array.flat[0]), list(array.shape), array.dtype.str]
            continue
        if kind in ("bits", "signs"):
            shape = list(array.shape)
            array = np.packbits(array > 0, axis=-1)
            written[part] = [kind, shape[-1]]
        else:
            written[part] = [kind]
            dtype = "int32" if kind == "rows" else spec.dtype or wire_dtype
            if array.dtype.kind == "f" and np.dtype(dtype).kind != "f":
                # Whole numbers to which noise was added.
                dtype = wire_dtype
            array = _narrowed(array, dtype)
        arrays[f"{label}/{part}"] = array
    return written


def _kind(values, spec):
    """Return how the values of a field are written, and an array of them."""
    if spec.bits and values.dtype.kind in "iu" and (np.abs(values) == 1).all() and values.ndim:
        return "signs", values
    # The items that a client holds are ones: their rows say all.
    if values.dtype.kind in "iub" and values.size > 1 and (values == values.flat[0]).all():
        return "same", values
    return "plain", values


def uploads_of(heads: Any, arrays: Arrays, specs: dict[str, FieldSpec]) -> list[ClientMessage]:
    """Return untrusted messages; raise MalformedMessage, which names the culprit, if invalid."""
    if not isinstance(heads, list):
        raise MalformedMessage("The messages must be a list.")
    return [_upload(number, head, arrays, specs) for number, head in enumerate(heads)]


def _upload(number, head, arrays, specs):
    try:
        step = head["phase"], head["round"], head["client"]
        fields = dict(head["fields"])
    except (TypeError, KeyError, ValueError) as error:
        raise MalformedMessage("An upload lacks its phase, round, client or fields.") from error
    if "encrypted" in head:
        try:
            content = _ciphertext(head["encrypted"], str(number), arrays)
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise MalformedMessage(f"An encrypted upload cannot be read: {error}") from error
        return ClientMessage(*step, encrypted=content)
    read = {}
    for name, written in fields.items():
        if name not in specs:
            raise MalformedMessage(f"Unexpected field {str(name)[:80]!r}.")
        try:
            parts = {
                part: _read(how, arrays.get(f"{number}/{name}/{part}"), specs[name])
                for part, how in written.items()
            }
            read[name] = Numbers(**parts)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise MalformedMessage(f"Field {name!r} cannot be read: {error}") from error
    if "extras" not in head:
        return ClientMessage(*step, read)
    try:
        extras = {name: arrays[f"{number}:{name}"] for name in head["extras"]}
        return ClientMessage(*step, read, **{"extras": extras})
    except (TypeError, KeyError) as error:
        raise MalformedMessage("The extras of an upload are missing, or unexpected.") from error


def _read(how, array, spec):
    """Return one part of a field, as its client had it."""
    kind = how[0]
    if kind == "same":
        _, value, shape, dtype = how
        largest = max(1, int(np.prod(spec.shape, dtype=object)))
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
    """Return what is sent of a registration of one client."""
    return {name: part.tolist() for name, part in registration._asdict().items()}


def registration_of(head: Any, n_items: int) -> Registration:
    """Return an untrusted registration of one client; raise MalformedMessage if it is none."""
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


def place_head(place: ClientCodes) -> dict[str, Any]:
    """Return what is sent of the place of one client."""
    return {
        "clients": place.clients.tolist(),
        "first_users": place.first_users.tolist(),
        "shared": int(place.shared.seed),
        "n_clients": int(place.n_clients),
    }


def place_of(head: dict[str, Any]) -> ClientCodes:
    """Return the place again."""
    return ClientCodes(
        np.array(head["clients"]),
        np.array(head["first_users"]),
        Key(int(head["shared"])),
        int(head["n_clients"]),
    )


# ------------------------------------------------------------------------ ciphertexts


def _written(content: Ciphertext, label: str, arrays: Arrays) -> dict[str, Any]:
    """Put the blocks of a ciphertext into `arrays`; return what is needed besides."""
    arrays[f"{label}/blocks"] = np.frombuffer(b"".join(content.blocks), dtype=np.uint8)
    arrays[f"{label}/sizes"] = np.array([len(one) for one in content.blocks], dtype=np.int32)
    return {
        "n_values": content.n_values,
        "n_clients": content.n_clients,
        "key_id": content.key_id,
    }


def _ciphertext(head: dict[str, Any], label: str, arrays: Arrays) -> Ciphertext:
    """Return the ciphertext again."""
    content, sizes = arrays[f"{label}/blocks"].tobytes(), arrays[f"{label}/sizes"]
    if sizes.dtype != np.int32 or sizes.ndim != 1 or (sizes < 0).any():
        raise ValueError("The sizes of blocks must be whole numbers.")
    ends = np.cumsum(sizes, dtype=np.int64)
    if (ends[-1] if len(ends) else 0) != len(content):
        raise ValueError(f"The blocks have {len(content)} bytes, which differs from their sizes.")
    starts = ends - sizes
    blocks = tuple(content[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True))
    return Ciphertext(blocks, int(head["n_values"]), int(head["n_clients"]), str(head["key_id"]))


def _sums_arrays(message: EncryptedSums) -> tuple[dict[str, Any], Arrays]:
    """Return what is sent of the sums of exchanges that have ended."""
    heads, arrays = [], {}
    for number, one in enumerate(message.sums):
        total = None if one.total is None else _written(one.total, str(number), arrays)
        step = {"phase": one.phase, "round": one.round, "clients": one.clients.tolist()}
        heads.append(step | {"total": total})
    return {"first": message.first, "sums": heads}, arrays


def _sums_of(spec: dict[str, Any], arrays: Arrays) -> EncryptedSums:
    """Return the sums again, on a node."""
    sums = [
        EncryptedSum(
            head["phase"],
            int(head["round"]),
            np.array(head["clients"], dtype=np.int64),
            None if head["total"] is None else _ciphertext(head["total"], str(number), arrays),
        )
        for number, head in enumerate(spec["sums"])
    ]
    return EncryptedSums(int(spec["first"]), tuple(sums))
