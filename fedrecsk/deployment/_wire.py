"""A small head and named arrays as bytes, and back. Nothing else can be sent."""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import Any

MAGIC = b"fedrecsk\x01"
MOST_AXES = 8
# Types of arrays on the wire: numbers and truth values, in little-endian order.
DTYPES = frozenset(
    np.dtype(one).str
    for one in ("?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
)


class MalformedMessage(ValueError):
    """Received bytes that are no message, or not the message that was expected."""


def pack(head: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """Turn a head, which JSON can express, and arrays of numbers into bytes.

    Parameters
    ----------
    head : dict
    arrays : dict of {str: ndarray}

    Returns
    -------
    content : bytes

    Raises
    ------
    TypeError
        If an array has no numbers.
    """
    table, parts = [], []
    for name, array in arrays.items():
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        if little.dtype.str not in DTYPES:
            raise TypeError(f"Field {name!r} has type {array.dtype}, which cannot be sent.")
        table.append([name, little.dtype.str, list(little.shape)])
        parts.append(np.ascontiguousarray(little).tobytes())
    text = json.dumps([head, table], separators=(",", ":")).encode()
    return b"".join([MAGIC, struct.pack("<I", len(text)), text, *parts])


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Turn bytes into the head and the arrays again. The bytes need not come from a friend.

    Parameters
    ----------
    content : bytes

    Returns
    -------
    head : dict
    arrays : dict of {str: ndarray}
        Copies, which can be written to.

    Raises
    ------
    MalformedMessage
        If they are not what `pack` makes.
    """
    start = len(MAGIC) + 4
    if not isinstance(content, bytes) or content[: len(MAGIC)] != MAGIC or len(content) < start:
        raise MalformedMessage("These bytes are not a message of this version of fedrecsk.")
    (length,) = struct.unpack_from("<I", content, len(MAGIC))
    head, table = _read_head(content[start : start + length])
    arrays, place = {}, start + length
    for row in table:
        name, dtype, shape = _read_row(row)
        size = math.prod(shape)
        end = place + size * dtype.itemsize
        if end > len(content) or name in arrays:
            raise MalformedMessage(f"Field {name!r} is cut off, or sent twice.")
        values = np.frombuffer(content, dtype, size, place)
        if dtype.kind == "b" and (values.view(np.uint8) > 1).any():
            raise MalformedMessage(f"Field {name!r} has truth values other than 0 and 1.")
        try:
            arrays[name] = values.reshape(shape).copy()
        except ValueError as error:
            raise MalformedMessage(f"Field {name!r} has an impossible shape.") from error
        place = end
    if place != len(content):
        raise MalformedMessage(f"{len(content) - place} bytes belong to no field.")
    return head, arrays


def _read_head(text):
    try:
        head, table = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedMessage(
            "The head of the message is not valid JSON with a head and fields."
        ) from error
    if not isinstance(head, dict) or not isinstance(table, list):
        raise MalformedMessage("The head of the message must be a dict, and its fields a list.")
    return head, table


def _read_row(row):
    """Name, type and shape of a field."""
    if not (isinstance(row, list) and len(row) == 3 and isinstance(row[0], str)):
        raise MalformedMessage(f"A field must have name, type and shape, got {str(row)[:80]}.")
    name, dtype, shape = row
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise MalformedMessage(f"Field {name!r} has the type {str(dtype)[:20]!r}.")
    if not isinstance(shape, list) or len(shape) > MOST_AXES or not all(map(_is_length, shape)):
        raise MalformedMessage(f"Field {name!r} has the shape {str(shape)[:80]}.")
    return name, np.dtype(dtype), tuple(shape)


def _is_length(n):
    return type(n) is int and 0 <= n < 2**40
