"""The masking protocol in one process, for tests."""

import secrets
from collections.abc import Iterable
from typing import NamedTuple

from fedrecsk.privacy import Identity
from fedrecsk.privacy._secagg_protocol import KEY_BYTES, MaskingClient, MaskingServer


class Lost(NamedTuple):
    """Codes of clients that are lost before they send shares, vector, confirmation, answer."""

    shares: Iterable[int] = ()
    vector: Iterable[int] = ()
    confirmation: Iterable[int] = ()
    answer: Iterable[int] = ()


def masked_sum(plan, vectors, ring, lost=Lost()):  # noqa: B008
    """Run the protocol; return the sum and the survivors."""
    session, operator_secret = secrets.token_bytes(16), secrets.token_bytes(KEY_BYTES)
    identities = {code: Identity.new(operator_secret, str(code)) for code in vectors}
    clients = {code: MaskingClient(plan, session, code) for code in vectors}
    server = MaskingServer(plan, session, ring, len(next(iter(vectors.values()))))
    gone = dict(zip(("shares", "vectors", "confirm", "unmask"), map(set, lost), strict=True))

    def ask(stage, messages):
        """Let clients take a step, and return the answers that arrive."""
        sent = {
            code: clients[code].answer(stage, message, identities[code], vectors[code])
            for code, message in messages.items()
        }
        return {code: one for code, one in sent.items() if code not in gone.get(stage, ())}

    return server.run(ask)
