"""The clients of a fit as the server knows them, wherever they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedrecsk.deployment._agreement import Refused

if TYPE_CHECKING:
    from fedrecsk.simulation.clients import Registration
    from fedrecsk.simulation.server import Places


@dataclass(eq=False)
class Member:
    """One client.

    Parameters
    ----------
    name : str, int or float
        Its id.
    token : str
        By which its node is known again.
    registration : Registration
    node : int or None
        Address of its node. None: unknown since the server was restarted.
    place : Places or None
        None: it has come after the fit has begun, and joins before the next round.
    is_set_up : bool
        Whether it has answered all exchanges before its first round.
    knows_place : bool
        Whether it has answered a request that had its place and the announcement.
    is_late : bool
        Whether it has not answered the last request in time. It is asked again, but nobody waits
        for it.
    received : dict of {str: int}
        Numbers of the last messages that it has answered; see `Changes`.
    takes_changes : bool
        Whether it gets changes of these messages instead of whole ones. Not if its arithmetic
        differs from the server's.
    """

    name: Any
    token: str
    registration: Registration
    node: int | None
    place: Places | None = None
    is_set_up: bool = False
    knows_place: bool = False
    is_late: bool = False
    received: dict[str, int] = field(default_factory=dict)
    takes_changes: bool = True

    @property
    def code(self) -> int:
        """The number that the server has given to it."""
        assert self.place is not None
        return int(self.place.clients[0])


class Members:
    """All clients of a fit, by id.

    Parameters
    ----------
    most : int or None
        How many there may be. None: any number.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.by_name: dict[Any, Member] = {}

    def __len__(self) -> int:
        return len(self.by_name)

    def __iter__(self) -> Any:
        return iter(self.by_name.values())

    @property
    def by_code(self) -> dict[int, Member]:
        """All clients that have a code, in this order."""
        placed = [one for one in self if one.place is not None]
        return {one.code: one for one in sorted(placed, key=lambda one: one.code)}

    @property
    def newcomers(self) -> list[Member]:
        """Clients without a code."""
        return [one for one in self if one.place is None]

    def remove(self, member: Member) -> None:
        """Forget a client that cannot join."""
        del self.by_name[member.name]

    def admit(self, registration: Registration, token: str, node: int) -> Member:
        """Take in a client, or one that comes back at another address.

        Raises
        ------
        Refused
            If another node has this client's id, if its id is of another type than the others', or
            if there are as many clients as there may be.
        """
        name = registration.client_ids[0].item()
        known = self.by_name.get(name)
        if known is not None:
            if known.token != token:
                raise Refused(
                    f"another node has registered as client {name!s}; give each client its own "
                    "id, and start a client that comes back with its old folder"
                )
            known.node, known.is_late = node, False
            return known
        for other in self:
            if isinstance(other.name, str) != isinstance(name, str):
                raise Refused(
                    f"client {name!r} has a {type(name).__name__} as its id, and client "
                    f"{other.name!r} a {type(other.name).__name__}; use one type for all"
                )
        if self.most is not None and len(self) >= self.most:
            raise Refused(
                f"the keys are for {self.most} clients, who have registered; make keys for more "
                "with write_keys(..., n_clients=), and begin a new fit"
            )
        self.by_name[name] = Member(name, token, registration, node)
        return self.by_name[name]

    def forget_addresses(self) -> None:
        """Wait for all clients to say where they are, as after a restart."""
        for one in self:
            one.node, one.is_late = None, False
