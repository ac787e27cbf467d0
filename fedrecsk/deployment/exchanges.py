"""The clients of a fit and how they are asked; meanwhile others may come or come back."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fedrecsk.deployment import records
from fedrecsk.deployment.checks import Refused
from fedrecsk.deployment.records import Arrays, Head, MalformedMessage
from fedrecsk.protocol.messages import ClientCodes, Registration

# A client's id.
Id = float | str
log: logging.Logger = logging.getLogger("fedrecsk.deployment")
# What a node may lack that it was sent before: its place, or the model that it has measured.
PLACE, MODEL = "place", "model"
# How often clients are asked before the server gives up.
TRIES = 3


# ------------------------------------------------------------------------------ the carrier


class Request(NamedTuple):
    """Bytes for the node of an address, and what it is to do."""

    node: int
    kind: str
    content: bytes


class Reply(NamedTuple):
    """The reply to the request of a ticket, or if `content` is None an error."""

    ticket: Hashable
    content: bytes | None
    error: str = ""


class Carrier(ABC):
    """Carries requests to nodes and their replies back; it does not look into them."""

    @abstractmethod
    def nodes(self) -> set[int]:
        """Return the addresses of the nodes that are connected."""

    @abstractmethod
    def send(self, requests: list[Request]) -> list[Hashable]:
        """Send requests and return a ticket for each, by which its reply is recognised."""

    @abstractmethod
    def receive(self, tickets: Iterable[Hashable]) -> list[Reply]:
        """Return the replies to these requests that have arrived since, without waiting."""

    @abstractmethod
    def pause(self) -> None:
        """Wait a moment before looking again."""


# ------------------------------------------------------------------------------ the clients


@dataclass(eq=False)
class Member:
    """One client."""

    # Its id, and the token by which its node is known again.
    name: Id
    token: str
    registration: Registration
    # Address of its node. None: unknown since the server was restarted.
    node: int | None
    # None: it has come after the fit has begun, and joins before the next round.
    place: ClientCodes | None = None
    # In an update of a sum: whether its rows differ from those of the last fit; None: it was not
    # there.
    has_changed: bool | None = None
    # Whether it has answered all exchanges before its first round.
    is_set_up: bool = False
    # Whether it has answered a request that had its place and the announcement.
    knows_place: bool = False
    # Whether it has not answered the last request in time. It is asked again, but not waited for.
    is_late: bool = False
    # Number of the last model whose validation loss it has sent.
    measured: int | None = None

    @property
    def code(self) -> int:
        """Return the number that the server has given to it."""
        assert self.place is not None
        return int(self.place.clients[0])


class Members:
    """All clients of a fit, by id."""

    def __init__(self, last: Members | None = None) -> None:
        # Of a method of sums: ids of the clients whose upload is in the sum, and of those that
        # were asked for one that has not come.
        self.counted: set[Id] = set(last.counted) if last else set()
        self.lost: set[Id] = set(last.lost) if last else set()
        self.by_name: dict[Id, Member] = {}

    def __len__(self) -> int:
        return len(self.by_name)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.by_name.values())

    @property
    def by_code(self) -> dict[int, Member]:
        """Return all clients that have a code, in this order."""
        placed = [one for one in self if one.place is not None]
        return {one.code: one for one in sorted(placed, key=lambda one: one.code)}

    @property
    def newcomers(self) -> list[Member]:
        """Return clients that have come since the fit began."""
        return [one for one in self if one.place is None]

    def admit(
        self, registration: Registration, token: str, node: int, has_changed: bool | None = None
    ) -> Member:
        """Take in a client, or one that comes back elsewhere; raise Refused if it cannot join."""
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
                    f"the ids of clients {name!r} and {other.name!r} are of two types; use one "
                    "type for all"
                )
        if name in self.counted and has_changed is None:
            raise Refused(
                f"client {name!s} has lost what it has sent to the last fit, and cannot take it "
                "back; restore its folder, or begin a new fit"
            )
        self.by_name[name] = Member(name, token, registration, node, has_changed=has_changed)
        return self.by_name[name]


# ---------------------------------------------------------------------------------- asking


class NotEnough(RuntimeError):
    """Too few clients have answered. The checkpoint is as it was."""


@dataclass(eq=False)
class Exchanges:
    """Asks members of a fit over a carrier."""

    carrier: Carrier
    members: Members
    # The request to register, for every node that appears.
    greeting: bytes
    # Seconds to wait for answers.
    patience: float
    n_items: int
    # One per request to members: what was sent, and how long it took.
    traffic: list[dict[str, float | str]]

    def __post_init__(self) -> None:
        # Members that have answered the last request.
        self.answered: set[Member] = set()
        # Why others have not.
        self.failed: dict[Member, str] = {}
        # When nodes were last asked to register, and nodes by the tickets of these requests.
        self._greeted_at: dict[int, float] = {}
        self._greetings: dict[Hashable, int] = {}
        # Nodes that have registered, and what those have said that cannot take part.
        self._registered: set[int] = set()
        self.refused: dict[int, str] = {}
        self._n_bytes = {"bytes_down": 0, "bytes_up": 0}

    # ------------------------------------------------------------------ who is there

    def gather(self, n_clients: int, patience: float) -> None:
        """Wait until this many clients are connected; raise NotEnough if they are too late."""
        deadline, reported = time.monotonic() + patience, -1
        while (n_here := sum(one.node is not None for one in self.members)) < n_clients:
            if n_here != reported:
                log.info("%d of %d clients have registered", n_here, n_clients)
                reported = n_here
            if time.monotonic() > deadline:
                why = "".join(f"\n  {reason}" for reason in self.refused.values())
                raise NotEnough(
                    f"{n_here} of {n_clients} clients have registered within {patience:g} s; "
                    f"start the other nodes, or lower n_clients.{why}"
                )
            self._welcome()
            self.carrier.pause()

    def _welcome(self):
        """Ask nodes to register, again after `patience` seconds, and take in those that answer."""
        now, connected = time.monotonic(), self.carrier.nodes()
        # A node that has lost its connection may come back, and is then new again.
        self._registered &= connected
        self._greeted_at = {n: at for n, at in self._greeted_at.items() if n in connected}
        self._greetings = {t: n for t, n in self._greetings.items() if n in connected}
        for node in connected - self._registered:
            if now - self._greeted_at.get(node, -math.inf) > self.patience:
                self._greeted_at[node] = now
                (ticket,) = self._send([Request(node, "register", self.greeting)])
                self._greetings[ticket] = node
        replies = self._receive(self._greetings)
        return [self._take_in(self._greetings.pop(reply.ticket), reply) for reply in replies]

    def _take_in(self, node, reply):
        """Return the member of a registration; None if it cannot take part."""
        try:
            head, _ = _read(reply)
            registration = records.registration_of(head.get("registration"), self.n_items)
            token, has_changed = head.get("token"), head.get("has_changed")
            if not isinstance(token, str) or has_changed not in (None, True, False):
                raise MalformedMessage("A registration needs a token.")
            member = self.members.admit(registration, token, node, has_changed)
        except ValueError as error:
            reason = f"node {node}: {error}"
            if self.refused.get(node) != reason:
                self.refused[node] = reason
                log.warning("Node %d cannot take part: %s", node, error)
                if reply.content is not None:
                    self.refuse(node, str(error))
            return None
        self._registered.add(node)
        self.refused.pop(node, None)
        log.info("Client %s has registered", member.name)
        return member

    def refuse(self, node: int, reason: str) -> None:
        """Tell a node that it cannot take part, and why."""
        fit = records.unpack(self.greeting)[0]["fit"]
        refusal = records.pack({"kind": "refuse", "fit": fit, "reason": reason}, {})
        self._send([Request(node, "refuse", refusal)])

    # --------------------------------------------------------------------------- ask

    def ask(
        self,
        kind: str,
        number: int,
        clients: Iterable[Member],
        request: Callable[[Member], bytes],
        quorum: int,
    ) -> dict[Member, tuple[Head, Arrays]]:
        """Ask clients; return heads and arrays, or raise NotEnough for too few answers."""
        # Ends when all have answered that answered the last time, or after `patience` seconds if at
        # least `quorum` have. If fewer have, those that lack are asked again, TRIES times in all.
        asked, began, before = list(clients), time.monotonic(), dict(self._n_bytes)
        answers, failed, tickets = {}, {}, {}
        for trial in range(TRIES):
            silent = [one for one in asked if one not in answers]
            tickets.update(self._post(kind, silent, request))
            deadline = time.monotonic() + self.patience
            while time.monotonic() <= deadline:
                again = []
                for one, reply in [(tickets.pop(r.ticket), r) for r in self._receive(tickets)]:
                    if one not in again and self._note(one, reply, answers, failed):
                        again.append(one)
                # Their answers to earlier requests do not matter any more.
                tickets = {t: one for t, one in tickets.items() if one not in again}
                again += [one for one in self._welcome() if one in asked and one not in answers]
                tickets.update(self._post(kind, again, request))
                waited_for = {one for one in tickets.values() if not one.is_late}
                if not waited_for - answers.keys() - failed.keys() and len(answers) >= quorum:
                    break
                self.carrier.pause()
            if len(answers) >= quorum:
                break
            log.warning(
                "%d of %d clients have answered %r after %g s (attempt %d of %d); %d must.",
                *(len(answers), len(asked), kind, self.patience, trial + 1, TRIES, quorum),
            )
        for one in asked:
            one.is_late = one not in answers
        if len(answers) < quorum:
            why = "".join(f"\n  client {one.name}: {reason}" for one, reason in failed.items())
            silent = [str(one.name) for one in asked if one not in answers | failed]
            raise NotEnough(
                f"{len(answers)} of {len(asked)} clients have answered the request {kind!r}, but "
                f"{quorum} must. Without an answer: {', '.join(silent) or 'none'}. Start the "
                f"missing nodes and run this app again; it resumes from its checkpoint.{why}"
            )
        counts = {"kind": kind, "number": number, "requests": len(asked), "answers": len(answers)}
        n_bytes = {name: n - before[name] for name, n in self._n_bytes.items()}
        self.traffic.append(counts | n_bytes | {"seconds": time.monotonic() - began})
        self.answered, self.failed = set(answers), failed
        return answers

    def _post(self, kind, members, request):
        """Send a request to members that are connected; return them by their tickets."""
        connected = self.carrier.nodes() if members else set()
        members = [one for one in members if one.node in connected]
        tickets = self._send([Request(one.node, kind, request(one)) for one in members])
        return dict(zip(tickets, members, strict=True))

    def _note(self, member, reply, answers, failed):
        """Note a member's answer or failure; return whether it must be asked again."""
        try:
            head, arrays = _read(reply)
            if "lacks" in head:
                _note_lack(member, head["lacks"])
                return True
        except (Refused, MalformedMessage) as error:
            failed[member] = str(error)
            log.warning("Client %s cannot answer: %s", member.name, error)
            return False
        failed.pop(member, None)
        answers.setdefault(member, (head, arrays))
        member.is_late, member.knows_place = False, True
        return False

    def _send(self, requests):
        self._n_bytes["bytes_down"] += sum(len(one.content) for one in requests)
        return self.carrier.send(requests) if requests else []

    def _receive(self, tickets):
        replies = self.carrier.receive(tickets) if tickets else []
        self._n_bytes["bytes_up"] += sum(len(one.content or b"") for one in replies)
        return replies


def _note_lack(member, what):
    """Note what a member must be sent again; raise if it was just sent that."""
    was_sent = member.measured is None if what == MODEL else not member.knows_place
    if was_sent:
        raise Refused("it reports a message as missing that it was just sent")
    if what == MODEL:
        member.measured = None
    else:
        member.knows_place = False
    log.warning("Client %s lacks its %s in the fit, and is sent it again", member.name, what)


def _read(reply: Reply) -> tuple[Head, Arrays]:
    """Return the head and arrays of an answer; raise Refused if the node has failed."""
    if reply.content is None:
        raise Refused(reply.error)
    head, arrays = records.unpack(reply.content)
    if "refused" in head:
        raise Refused(str(head["refused"])[:1000])
    if "failed" in head:
        what = str(head["failed"])[:100]
        raise Refused(f"it has failed with {what}; its own log says why")
    return head, arrays
