"""Send what has changed since a client's last message, instead of whole models.

A client has a message if it has answered the request. It then gets the next one as changes:
fields that are as they were are not sent, compressed changes cross as the compressor encodes
them, and methods with a `_model_delta` send that. The server sends a change only if it gives the
whole message bit for bit. The request names the messages of which it has changes, and a digest of
the result; a node that lacks one of them, or gets another result, asks for the whole message.
Where there are no changes to send, neither side keeps messages.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

from fedrecsk.deployment._agreement import Refused
from fedrecsk.deployment._forms import message_arrays
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.simulation.messages import Dense, Message

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    import numpy as np

    from fedrecsk.deployment._forms import Arrays
    from fedrecsk.deployment._members import Member
    from fedrecsk.simulation.device import Device
    from fedrecsk.simulation.server import Server

log = logging.getLogger("fedrecsk.deployment")
# Under which name the last message of each kind of request is kept.
CHAINS = {"round": "round", "validate": "model", "finish": "model"}
# What a node lacks: the message of which it got a change, the server's arithmetic, or what it was
# told before the first round.
MESSAGE, ARITHMETIC, PLACE = "message", "arithmetic", "place"
# Before the names of a delta's fields; no field is called so.
DELTA = "(delta)/"


def has_changes(method: Any) -> bool:
    """Whether the messages of a fit can be sent as changes.

    Parameters
    ----------
    method : federated estimator
    """
    compression = method._setting().compression
    if compression is not None and compression.down:
        return True
    # Clients that have measured a model get it again for the round.
    has_delta = type(method)._model_delta is not FederatedRecommender._model_delta
    return has_delta or method.early_stopping


class Lacking(Exception):
    """A node cannot do what it is asked to without something that it was sent before.

    Parameters
    ----------
    what : {"message", "arithmetic", "place"}
    why : str
    """

    def __init__(self, what: str, why: str) -> None:
        super().__init__(why)
        self.what = what


# ------------------------------------------------------------------------ at the server


class Changes:
    """What to send to clients in one exchange instead of the whole message.

    Parameters
    ----------
    server : Server
    sent : dict of {str: tuple of int and Message}
        The last messages, by chain; `note` adds this one.
    """

    def __init__(self, server: Server, sent: dict[str, tuple[int, Message]]) -> None:
        self.server = server
        self.sent = sent
        # What is sent as changes of the last round's message, and what clients make of them; the
        # same for all clients.
        self._parts: dict[str, Arrays] = {}
        self._results: dict[str, Any] = {}
        # A delta of the method, and what clients make of it.
        self._delta: tuple[Arrays, Arrays] | None = None

    def instead_of(
        self, form: dict[str, Any], arrays: Arrays, member: Member
    ) -> tuple[dict[str, Any], Arrays]:
        """What to send to a member instead of a whole message.

        Parameters
        ----------
        form, arrays
            From `message_arrays`.
        member : Member

        Returns
        -------
        form, arrays
            For `completed`; as they were, if the member has no earlier message.
        """
        bases = self._bases(member)
        if not bases:
            return form, arrays
        kept, packed, moved, rest = {}, [], [], {}
        for name, values in arrays.items():
            chains = [c for c, base in bases.items() if _equal(base.get(name), values)]
            if chains:
                kept[name] = chains[0]
            elif "round" in bases and _equal(self._decoded(name, bases["round"]), values):
                packed.append(name)
                rest |= self._parts[name]
            elif "round" in bases and _equal(self._moved(member, bases["round"], name), values):
                moved.append(name)
            else:
                rest[name] = values
        names = [*kept, *packed, *moved]
        if not names:
            return form, arrays
        used = {*kept.values()} | ({"round"} if packed or moved else set())
        changes = {
            "since": {chain: self.sent[chain][0] for chain in sorted(used)},
            "kept": kept,
            "packed": packed,
            "moved": moved,
            "digest": _digest(arrays, names),
        }
        if moved:
            delta, _ = self._delta or ({}, {})
            same = [name for name, one in delta.items() if _equal(bases["round"].get(name), one)]
            changes["same"] = same
            rest |= {f"{DELTA}{name}": one for name, one in delta.items() if name not in same}
        return form | {"changes": changes}, rest

    def note(
        self, kind: str, number: int, message: Message | None, members: Iterable[Member]
    ) -> None:
        """Note that a message was sent, and that these members have answered it."""
        chain = CHAINS.get(kind)
        if message is None or chain is None or kind == "finish":
            return
        if not has_changes(self.server.method):
            return
        self.sent[chain] = number, message
        for one in members:
            one.received[chain] = number

    def _bases(self, member):
        """Arrays of the last messages that a member has, by chain."""
        if not member.takes_changes:
            return {}
        held = self.server._held.get(member.code)
        wire = self.server.federation.wire_dtype
        return {
            chain: message_arrays(message, held, member.code, wire)[1]
            for chain, (number, message) in self.sent.items()
            if member.received.get(chain) == number
        }

    def _decoded(self, name, base):
        """What clients make of a compressed change; None if there is none, or it is longer."""
        if name not in self._results:
            encoded = self.server.downlink.encoded(name)
            named = zip((f"{name}/values", f"{name}/extra"), encoded or (), strict=False)
            self._parts[name] = {label: part for label, part in named if part is not None}
            n_bytes = sum(part.nbytes for part in self._parts[name].values())
            self._results[name] = None
            if encoded is not None and name in base and n_bytes < base[name].nbytes:
                compressor = self.server.federation.compression
                self._results[name] = _decoded(compressor, base[name], *encoded)
        return self._results[name]

    def _moved(self, member, base, name):
        """What clients make of a delta of the method; None if it has none for this field."""
        if self._delta is None:
            server, delta = self.server, self.server.downlink.delta
            arrays = message_arrays(delta, None, member.code, server.federation.wire_dtype)[1]
            # What is the same for all clients.
            is_common = all(type(field) is Dense for field in (delta or {}).values())
            moved = _moved(server.method, base, arrays) if arrays and is_common else {}
            self._delta = arrays, moved
        return self._delta[1].get(name)


def needs_whole_messages(member: Member, what: Any) -> None:
    """Send a member whole messages, because it lacks what it was sent before.

    Parameters
    ----------
    member : Member
    what : {"message", "arithmetic", "place"}
        What it lacks. Without the server's arithmetic it gets no changes any more.

    Raises
    ------
    Refused
        If it was just sent what it says that it lacks.
    """
    if what == PLACE:
        if not member.knows_place:
            raise Refused("it says that it lacks its place in the fit, but was sent it")
        member.knows_place, member.received = False, {}
        log.warning("Client %s lacks its place in the fit, and is sent it again", member.name)
        return
    if not member.received or not member.takes_changes:
        raise Refused("it says that it lacks an earlier message, but was sent a whole one")
    member.received = {}
    member.takes_changes = what != ARITHMETIC
    log.warning(
        "Client %s cannot use a change (it lacks the %s), and gets the whole message",
        *(member.name, "server's arithmetic" if what == ARITHMETIC else "message before"),
    )


# ------------------------------------------------------------------------- on a node


def completed(
    form: dict[str, Any],
    arrays: Arrays,
    received: dict[str, tuple[int, Arrays]],
    device: Device,
) -> Arrays:
    """The arrays of the whole message.

    Parameters
    ----------
    form, arrays
        From `Changes.instead_of`.
    received : dict of {str: tuple of int and dict}
        Number and arrays of the last messages, by chain.
    device : Device

    Returns
    -------
    arrays : dict of {str: ndarray}

    Raises
    ------
    Lacking
        If a message is not there of which this has changes, or the result is not the server's.
    """
    changes = form.get("changes")
    if changes is None:
        return arrays
    bases = {}
    for chain, number in changes["since"].items():
        ours, bases[chain] = received.get(chain, (None, {}))
        if ours != number:
            raise Lacking(
                MESSAGE, f"it has changes of message {number} ({chain}), and here is {ours}."
            )
    base, whole = bases.get("round", {}), dict(arrays)
    for name, chain in changes["kept"].items():
        whole[name] = bases[chain][name]
    for name in changes["packed"]:
        parts = whole.pop(f"{name}/values"), whole.pop(f"{name}/extra", None)
        whole[name] = _decoded(device.federation.compression, base[name], *parts)
    if changes["moved"]:
        delta = {name: base[name] for name in changes["same"]}
        for label in [one for one in whole if one.startswith(DELTA)]:
            delta[label.removeprefix(DELTA)] = whole.pop(label)
        moved = _moved(device.method, base, delta)
        whole |= {name: moved[name] for name in changes["moved"]}
    names = [*changes["kept"], *changes["packed"], *changes["moved"]]
    if _digest(whole, names) != changes["digest"]:
        raise Lacking(ARITHMETIC, "what it makes of a change differs from what the server does.")
    return whole


# ------------------------------------------------------------------------- on both sides


def _decoded(compressor, base: np.ndarray, values, extra):
    """A field after a compressed change."""
    return base + compressor._decoded(values, extra, base.shape).astype(base.dtype)


def _moved(method, base: Arrays, delta: Arrays) -> Arrays:
    """The fields of a model after a delta of its method."""
    fields = (Message(**{n: Dense(one) for n, one in arrays.items()}) for arrays in (base, delta))
    return {name: field.values for name, field in method._with_delta(*fields).items()}


def _equal(one, other):
    """Whether two arrays are the same bit for bit."""
    if one is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one is other or one.tobytes() == other.tobytes()


def _digest(arrays, names):
    """A digest of these arrays."""
    digest = hashlib.blake2b(digest_size=8)
    for name in names:
        little = arrays[name].astype(arrays[name].dtype.newbyteorder("<"), copy=False)
        digest.update(little.tobytes())
    return digest.hexdigest()
