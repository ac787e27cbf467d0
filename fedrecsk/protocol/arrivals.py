"""Whether uploads belong to the step, and come from clients that were asked and send once."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.protocol.client_message import ClientMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from fedrecsk.updates import ClientUpdates


def checked(
    uploads: Iterable[ClientMessage | ClientUpdates],
    step: tuple[str, int],
    asked: NDArray[np.bool_],
    client_ids: np.ndarray,
) -> list[ClientMessage | ClientUpdates]:
    """List the uploads of a step; raise if one does not belong to it.

    `asked` is a mask of the registered clients, in the order of their codes, as `client_ids` is.
    """
    uploads, seen = list(uploads), np.zeros(len(asked), dtype=bool)
    for one in uploads:
        senders = _senders(one)
        if (one.phase, one.round) != step:
            raise ValueError(
                f"An upload of {one.phase} {one.round} came in {step[0]} {step[1]}; send uploads "
                "in their own step."
            )
        unknown = senders[(senders < 0) | (senders >= len(asked))]
        if len(unknown):
            raise ValueError(
                f"An upload came from the unknown client {unknown[0]}; only the {len(asked)} "
                "registered clients may send."
            )
        # If a client occurs twice, only its last position is kept.
        places = np.empty(len(asked), dtype=np.intp)
        places[senders] = np.arange(len(senders))
        twice = seen[senders] | (places[senders] != np.arange(len(senders)))
        for mask, what in (
            (~asked[senders], "was not selected in"),
            (twice, "has already sent in"),
        ):
            if mask.any():
                name = client_ids[senders[mask][0]]
                raise ValueError(f"Client {name!s} {what} {step[0]} {step[1]}.")
        seen[senders] = True
    return uploads


def _senders(one):
    """Return the codes of the clients that an upload claims to come from."""
    if not isinstance(one, ClientMessage):
        return one.clients[one.sends]
    numbers = (one.round, one.client)
    # A code of another type, or too large for an array, belongs to no client.
    if not isinstance(one.phase, str) or not all(isinstance(n, Integral) for n in numbers):
        raise ValueError(
            "An upload must name its phase (a string), its round and its client's code (integers); "
            "see fedrecsk.protocol.ClientMessage."
        )
    return np.array([min(max(int(one.client), -1), np.iinfo(np.int64).max)])
