"""One masked sum over a carrier: what the server asks of nodes, and what a node answers.

A set-up exchange, a round or a validation is five requests: for keys, for shares, for the masked
numbers (which is the request that a plain fit has), for confirmations, and for shares again. Each
exchange has one sum: a node answers a repeated request with the same bytes, and no other.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrecsk.deployment.records import MalformedMessage, pack
from fedrecsk.privacy._masked_sum import (
    KEY_BYTES,
    MaskingClient,
    MaskingFailed,
    MaskingServer,
    PublicKeys,
)
from fedrecsk.protocol.keys import setup_round
from fedrecsk.protocol.ledger import aligned_size
from fedrecsk.protocol.masking import summed_updates, units_of

if TYPE_CHECKING:
    from fedrecsk.deployment.coordinator import Coordinator
    from fedrecsk.deployment.keys import Identity
    from fedrecsk.privacy import SecAggPlus
    from fedrecsk.updates import ClientUpdates

log: logging.Logger = logging.getLogger("fedrecsk.deployment")
PHASES = {"setup": "setup", "withdraw": "round", "round": "round", "validate": "validation"}


def _session(fit, kind, number):
    return hashlib.sha256(f"{fit} {kind} {number}".encode()).digest()[:16]


def _array(content):
    return np.frombuffer(content, np.uint8)


def _by_code(arrays, name):
    """Return bytes by client of the arrays of these names, such as "share/3"."""
    found = {}
    for label, values in arrays.items():
        first, _, code = label.partition("/")
        if first == name:
            if not code.isdecimal() or values.dtype != np.uint8:
                raise MalformedMessage(f"The field {label[:40]!r} is not for a client.")
            found[int(code)] = values.tobytes()
    return found


# ------------------------------------------------------------------------------ the server


def ask_for_sum(
    coordinator: Coordinator,
    kind: str,
    number: int,
    asked: dict[int, Any],
    message: Any,
    specs: dict[str, Any],
    quorum: float,
) -> list[ClientUpdates]:
    """Ask clients for a masked sum; return it as a list of their updates, empty if it is lost."""
    server, step = coordinator.server, (PHASES[kind], number)
    uplink = server.uplink
    masks: Any = uplink.masks
    key = server.key.at(setup_round(number) if kind == "setup" else number)

    def ask(stage, arrays, n_enough, sent=None):
        """Return the arrays of all answers, by code, to requests with these arrays, by code."""
        members = {code: asked[code] for code in arrays}
        name = f"{kind} {stage}".strip()
        head = {"n_clients": len(asked)}
        answers = coordinator.exchange(
            *(name, number, members, n_enough),
            lambda one: coordinator.request(name, number, one, sent, head, arrays[one.code]),
        )
        return {code: answers[one.name][1] for code, one in members.items() if one.name in answers}

    try:
        plan, ring = masks.ring_of(np.array(sorted(asked)), key)
        sums = MaskingServer(
            plan, _session(coordinator.progress.fit, kind, number), ring, aligned_size(specs)
        )
        n_enough = coordinator.n_enough(len(asked), quorum)
        certificates, keys = {}, {}
        for code, one in ask("keys", {code: {} for code in asked}, n_enough).items():
            try:
                keys[code] = _keys_of(one["keys"].tobytes())
                certificates[code] = one["certificate"]
            except (KeyError, MaskingFailed) as error:
                log.warning("Client %s sends no keys: %s", asked[code].name, error)
        requests = {
            code: {f"keys/{other}": _array(b"".join(one)) for other, one in own.items()}
            | {f"certificate/{other}": certificates[other] for other in own}
            for code, own in sums.route_keys(keys).items()
        }
        shares = {c: _by_code(one, "share") for c, one in ask("shares", requests, n_enough).items()}
        requests = _labelled("share", sums.route_shares(shares))
        masked = ask("", requests, n_enough, message)
        masked = {code: one["masked"].tobytes() for code, one in masked.items() if "masked" in one}
        # If the server is killed now, it goes on with the same survivors.
        known = coordinator.progress.survivors.get((kind, number), masked)
        alive = sums.survivors({code: one for code, one in masked.items() if code in known})
        survivors = np.flatnonzero(alive).tolist()
        coordinator.note_survivors(kind, number, survivors)
        listed = {code: {"survivors": np.packbits(alive)} for code in survivors}
        n_enough = min(len(survivors), plan.threshold + 1)
        confirmed = ask("confirm", listed, n_enough)
        confirmed = {code: _by_code(one, "confirmation") for code, one in confirmed.items()}
        requests = _labelled("confirmation", sums.route(confirmed))
        answers = ask("unmask", requests, n_enough)
        total = sums.total({code: _by_code(one, "share") for code, one in answers.items()})
    except MaskingFailed as error:
        log.warning("The sum of %s %d is lost, and the model stays as it is: %s", *step, error)
        return []
    units = units_of(masks.scheme, specs, uplink.steps(specs, key))
    return [summed_updates(total, step, np.array(survivors), specs, units)]


def _labelled(name, messages):
    """Return messages by receiver and sender as arrays by receiver."""
    return {
        code: {f"{name}/{other}": _array(one) for other, one in own.items()}
        for code, own in messages.items()
    }


def _keys_of(content):
    keys = PublicKeys(
        content[:KEY_BYTES], content[KEY_BYTES : 2 * KEY_BYTES], content[2 * KEY_BYTES :]
    )
    if len(content) != keys.nbytes:
        raise MaskingFailed(f"A client has sent {len(content)} bytes as its keys.")
    return keys


# --------------------------------------------------------------------------------- a node


def masked_client(
    scheme: SecAggPlus, fit: str, kind: str, number: int, code: int, n_clients: int
) -> MaskingClient:
    """Return a client's part in the masked sum of an exchange with `n_clients` clients."""
    return MaskingClient(scheme.plan(n_clients), _session(fit, kind, number), code)


def answer_of(client: MaskingClient, stage: str, arrays: Any, identity: Identity) -> bytes:
    """Return a node's answer to a request about masks."""
    if stage == "keys":
        content = _array(b"".join(client.advertise(identity.sign)))
        return pack({}, {"keys": content, "certificate": _array(identity.certificate)})
    if stage == "shares":
        keys = {code: _keys_of(one) for code, one in _by_code(arrays, "keys").items()}
        name = "share"
        sent = client.share(keys, identity.verifier(_by_code(arrays, "certificate")))
    elif stage == "confirm":
        name = "confirmation"
        sent = client.confirm(np.unpackbits(arrays["survivors"]).astype(bool))
    else:
        name, sent = "share", client.unmask(_by_code(arrays, "confirmation"))
    return pack({}, {f"{name}/{code}": _array(one) for code, one in sent.items()})


def masked_upload(client: MaskingClient, arrays: Any, uploads: list[Any]) -> bytes:
    """Return a node's upload, masked by the neighbours' shares; nothing if there is none."""
    if not uploads:
        return pack({}, {})
    content = client.mask(uploads[0].integers, _by_code(arrays, "share"))
    return pack({}, {"masked": _array(content)})
