"""Ciphertexts, encrypted uploads and their sums as arrays, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.deployment._wire import MalformedMessage
from fedrecsk.privacy import Ciphertext
from fedrecsk.simulation import SecureUpload
from fedrecsk.simulation.replica import SecureStep

if TYPE_CHECKING:
    from typing import Any

Arrays = dict[str, np.ndarray]


def _written(content: Ciphertext, label: str, arrays: Arrays) -> dict[str, Any]:
    """Put the blocks of a ciphertext into `arrays`; returns what is needed besides."""
    for number, block in enumerate(content.blocks):
        arrays[f"{label}/{number}"] = np.frombuffer(block, dtype=np.uint8)
    return {
        "n_blocks": len(content.blocks),
        "n_values": content.n_values,
        "n_clients": content.n_clients,
        "key_id": content.key_id,
    }


def _read(head: dict[str, Any], label: str, arrays: Arrays) -> Ciphertext:
    names = [f"{label}/{number}" for number in range(min(int(head["n_blocks"]), len(arrays)))]
    blocks = tuple(arrays[name].tobytes() for name in names)
    return Ciphertext(blocks, int(head["n_values"]), int(head["n_clients"]), str(head["key_id"]))


def uploads_arrays(uploads: list[SecureUpload]) -> tuple[list[dict[str, Any]], Arrays]:
    """What is sent of a client's uploads: their heads, and arrays of bytes."""
    arrays: Arrays = {}
    heads = [
        {
            "phase": one.phase,
            "round": one.round,
            "client": one.client,
            "content": _written(one.content, f"upload/{number}", arrays),
        }
        for number, one in enumerate(uploads)
    ]
    return heads, arrays


def uploads_of(heads: Any, arrays: Arrays) -> list[SecureUpload]:
    """The uploads again; they may come from anybody, and the server checks them further.

    Raises
    ------
    MalformedMessage
        If they cannot be read, or if there are several.
    """
    if not isinstance(heads, list) or len(heads) > 1:
        raise MalformedMessage("A client must send a list of one upload, or an empty one.")
    try:
        return [
            SecureUpload(
                str(head["phase"]),
                int(head["round"]),
                int(head["client"]),
                _read(head["content"], f"upload/{number}", arrays),
            )
            for number, head in enumerate(heads)
        ]
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise MalformedMessage("An encrypted upload cannot be read.") from error


def steps_arrays(steps: list[SecureStep]) -> tuple[list[dict[str, Any]], Arrays]:
    """What is sent of exchanges that have ended: their heads, and arrays of bytes."""
    arrays: Arrays = {}
    heads = []
    for number, one in enumerate(steps):
        label = f"step/{number}"
        total = None if one.total is None else _written(one.total, label, arrays)
        heads.append(
            {
                "phase": one.phase,
                "round": one.round,
                "clients": one.clients.tolist(),
                "total": total,
            }
        )
    return heads, arrays


def steps_of(heads: list[dict[str, Any]], arrays: Arrays) -> list[SecureStep]:
    """The exchanges again, on a node."""
    return [
        SecureStep(
            head["phase"],
            int(head["round"]),
            np.array(head["clients"], dtype=np.int64),
            None if head["total"] is None else _read(head["total"], f"step/{number}", arrays),
        )
        for number, head in enumerate(heads)
    ]
