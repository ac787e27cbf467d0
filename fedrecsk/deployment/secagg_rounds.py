"""A masked sum over the nodes of a deployed fit, on the server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fedrecsk.deployment.records import MalformedMessage, masking_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from fedrecsk.deployment.exchanges import Member
    from fedrecsk.deployment.records import Arrays, Head
    from fedrecsk.privacy._secagg_protocol import MaskingServer

    Messages = dict[int, bytes] | dict[int, dict[int, bytes]]
    Answers = dict[Member, tuple[Head, Arrays]]

log: logging.Logger = logging.getLogger("fedrecsk.deployment")


def masked_sum(
    server: MaskingServer,
    *,
    send: Callable[[str, Messages, int], Answers],
    quorum: int,
    survivors: list[int] | None,
    save: Callable[[list[int]], None],
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the sum of one exchange, and the mask of who is in it, by code.

    It takes five requests: for keys, for shares, for the masked vectors (the request that a plain
    fit has), for confirmations, and for shares again. Each exchange has one sum: a node answers a
    repeated request with the same bytes, and no other. Raises MaskingFailed if the sum is lost.

    ``send(stage, messages by client code, quorum)`` returns the answers, or raises NotEnough.
    `quorum` clients must send keys, shares and vectors. `survivors` are the codes of the clients in
    this sum, if a server that was killed has named them already; ``save(survivors)`` writes a
    checkpoint, before they are sent to any client.
    """

    def ask(stage: str, messages: Messages) -> dict[int, Any]:
        """Send messages of a stage, and return the answers that arrive and can be read."""
        n_enough = quorum
        if stage == "confirm":
            save(list(messages))
        if stage in ("confirm", "unmask"):
            n_enough = min(len(messages), server.plan.threshold + 1)
        found = {}
        for member, (_, arrays) in send(stage, messages, n_enough).items():
            try:
                answer = masking_of(arrays)
            except MalformedMessage as error:
                log.warning("Client %s: %s", member.name, error)
                continue
            # A client that has diverged sends nothing.
            if isinstance(answer, bytes if stage in ("keys", "vectors") else dict):
                found[member.code] = answer
        if stage == "vectors" and survivors is not None:
            return {code: one for code, one in found.items() if code in survivors}
        return found

    return server.run(ask)
