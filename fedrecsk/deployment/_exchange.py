"""Ask clients, and take their answers in time; meanwhile others may come or come back."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedrecsk.deployment._agreement import Refused
from fedrecsk.deployment._carrier import Request
from fedrecsk.deployment._changes import needs_whole_messages
from fedrecsk.deployment._forms import registration_of
from fedrecsk.deployment._wire import MalformedMessage, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fedrecsk.deployment._carrier import Carrier, Reply
    from fedrecsk.deployment._members import Member, Members

log = logging.getLogger("fedrecsk.deployment")
# How often clients are asked before the server gives up.
TRIES = 3


class NotEnough(RuntimeError):
    """Too few clients have answered. The checkpoint is as it was."""


class Answer(NamedTuple):
    """What a client has answered: a head and arrays."""

    head: dict[str, Any]
    arrays: dict[str, np.ndarray]


class Exchanges:
    """Asks members of a fit over a carrier.

    Parameters
    ----------
    carrier : Carrier
    members : Members
    greeting : bytes
        The request to register, for every node that appears.
    patience : float
        Seconds to wait for answers.
    n_items : int
        Items of the catalogue.
    repeats : bool
        Whether the server has all that it has sent, and can send it again to a node that has lost
        it.
    """

    def __init__(
        self,
        carrier: Carrier,
        members: Members,
        greeting: bytes,
        patience: float,
        n_items: int,
        *,
        repeats: bool = True,
    ) -> None:
        self.carrier = carrier
        self.members = members
        self.greeting = greeting
        self.patience = patience
        self.n_items = n_items
        self.repeats = repeats
        # When nodes were last asked to register, and nodes by the tickets of these requests.
        self._greeted_at: dict[int, float] = {}
        self._greetings: dict[Any, int] = {}
        # Nodes that have registered.
        self._registered: set[int] = set()
        # What nodes that cannot take part have said.
        self.refused: dict[int, str] = {}
        self.bytes_down = self.bytes_up = 0

    # ------------------------------------------------------------------ who is there

    def gather(self, n_clients: int, patience: float) -> None:
        """Wait until this many clients are connected.

        Raises
        ------
        NotEnough
        """
        deadline = time.monotonic() + patience
        while (n_here := sum(one.node is not None for one in self.members)) < n_clients:
            if time.monotonic() > deadline:
                why = "".join(f"\n  {reason}" for reason in self.refused.values())
                raise NotEnough(
                    f"{n_here} of {n_clients} clients have registered within {patience:g} s; "
                    f"start the other nodes, or lower n_clients.{why}"
                )
            self._welcome()
            self.carrier.pause()

    def _welcome(self):
        """Ask nodes to register, and take in those that have answered.

        A node that has not registered, because its answer was lost or it could not read its data,
        is asked again after `patience` seconds.
        """
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
        """The member of which this is the registration; None if it cannot take part."""
        try:
            head = _read(reply).head
            registration = registration_of(head.get("registration"), self.n_items)
            token = head.get("token")
            if not isinstance(token, str):
                raise MalformedMessage("A registration needs a token.")
            member = self.members.admit(registration, token, node)
        except (Refused, MalformedMessage) as error:
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
        """Tell a node that it cannot take part; its log will say why."""
        fit = unpack(self.greeting)[0]["fit"]
        refusal = pack({"kind": "refuse", "fit": fit, "reason": reason}, {})
        self._send([Request(node, "refuse", refusal)])

    # --------------------------------------------------------------------------- ask

    def ask(
        self,
        kind: str,
        clients: Iterable[Member],
        request: Callable[[Member], bytes],
        quorum: int,
    ) -> dict[Any, Answer]:
        """Ask clients and wait for their answers.

        Ends when all have answered that answered the last time, or, if at least `quorum` have,
        after `patience` seconds.

        Parameters
        ----------
        kind : str
        clients : iterable of Member
        request : callable
            Returns the bytes for a member.
        quorum : int

        Returns
        -------
        answers : dict
            By the client's id.

        Raises
        ------
        NotEnough
            If fewer than `quorum` have answered after `TRIES` times `patience` seconds.
        """
        asked = {one.name: one for one in clients}
        answers, failed, tickets = {}, {}, {}
        for trial in range(TRIES):
            still = [one for name, one in asked.items() if name not in answers]
            tickets.update(self._post(kind, still, request))
            deadline = time.monotonic() + self.patience
            while time.monotonic() <= deadline:
                replies = [(tickets.pop(one.ticket), one) for one in self._receive(tickets)]
                lacking = []
                for one, reply in replies:
                    if one not in lacking and self._note(one, reply, answers, failed):
                        lacking.append(one)
                # Their answers to earlier requests do not matter any more.
                tickets = {t: one for t, one in tickets.items() if one not in lacking}
                back = [one for one in self._welcome() if one is not None and one.name in asked]
                back = [one for one in back if one.name not in answers]
                tickets.update(self._post(kind, [*lacking, *back], request))
                waited_for = {one.name for one in tickets.values() if not one.is_late}
                if not waited_for - answers.keys() - failed.keys() and len(answers) >= quorum:
                    break
                self.carrier.pause()
            if len(answers) >= quorum:
                break
            log.warning(
                "%d of %d clients have answered %r after %g s (attempt %d of %d); %d must.",
                *(len(answers), len(asked), kind, self.patience, trial + 1, TRIES, quorum),
            )
        for name, one in asked.items():
            one.is_late = name not in answers
        if len(answers) < quorum:
            why = "".join(f"\n  client {name}: {reason}" for name, reason in failed.items())
            silent = [str(n) for n in asked if n not in answers and n not in failed]
            raise NotEnough(
                f"{len(answers)} of {len(asked)} clients have answered the request {kind!r}, but "
                f"{quorum} must. Without an answer: {', '.join(silent) or 'none'}. Start the "
                f"missing nodes and run this app again; it resumes from its checkpoint.{why}"
            )
        return answers

    def _post(self, kind, members, request):
        """Send members a request, if they are connected; returns them by their tickets."""
        connected = self.carrier.nodes() if members else set()
        members = [one for one in members if one.node in connected]
        tickets = self._send([Request(one.node, kind, request(one)) for one in members])
        return dict(zip(tickets, members, strict=True))

    def _note(self, member, reply, answers, failed):
        """Put a member's answer to the others, or note why there is none.

        Returns whether it must be asked again, with whole messages.
        """
        try:
            answer = _read(reply)
            if "lacks" in answer.head and self.repeats:
                needs_whole_messages(member, answer.head["lacks"])
                return True
        except (Refused, MalformedMessage) as error:
            failed[member.name] = str(error)
            log.warning("Client %s cannot answer: %s", member.name, error)
            return False
        failed.pop(member.name, None)
        answers.setdefault(member.name, answer)
        member.is_late, member.knows_place = False, True
        return False

    def _send(self, requests):
        self.bytes_down += sum(len(one.content) for one in requests)
        return self.carrier.send(requests) if requests else []

    def _receive(self, tickets):
        replies = self.carrier.receive(tickets) if tickets else []
        self.bytes_up += sum(len(one.content or b"") for one in replies)
        return replies


def _read(reply: Reply) -> Answer:
    """An answer, unless the node has failed."""
    if reply.content is None:
        raise Refused(reply.error)
    answer = Answer(*unpack(reply.content))
    if "refused" in answer.head:
        raise Refused(str(answer.head["refused"])[:1000])
    if "failed" in answer.head:
        what = str(answer.head["failed"])[:100]
        raise Refused(f"it has failed with {what}; its own log says why")
    return answer
