"""Several fits side by side: what they ask of a node travels in one message."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fedrecsk.deployment.exchanges import Carrier, Reply, Request
from fedrecsk.deployment.records import TOGETHER, MalformedMessage, bundle, bundled, pack, unpack

T = TypeVar("T")
R = TypeVar("R")


class Together(Carrier):
    """Carries the requests of fits that run in threads; sends when all of them wait for replies.

    Which thread is first makes no difference to what is sent, but for its order.
    """

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self._turn = threading.Condition()
        # Threads that work, and those that wait; how often they have waited.
        self._n_busy, self._n_waiting, self._n_turns = 0, 0, 0
        self._error: BaseException | None = None
        self._numbers = itertools.count()
        # Requests by ticket, until they are sent; tickets by that of their message; replies.
        self._queued: dict[int, Request] = {}
        self._sent: dict[Hashable, list[int]] = {}
        self._replies: dict[int, Reply] = {}
        # Tickets for whose replies fits have looked since the last turn.
        self._wanted: set[Hashable] = set()

    def side_by_side(self, step: Callable[[T], R], fits: Sequence[T]) -> list[R]:
        """Take a step of each fit, in a thread of its own; return what the steps return."""
        self._n_busy, self._n_waiting, self._error = len(fits), 0, None

        def take(one):
            try:
                return step(one)
            finally:
                with self._turn:
                    self._n_busy -= 1
                    self._turn.notify_all()

        with ThreadPoolExecutor(max(len(fits), 1)) as pool:
            try:
                taken = [pool.submit(take, one) for one in fits]
                self._serve(len(fits))
            except BaseException as error:
                # A killed server, Ctrl-C, or no more threads: those there must not wait for ever.
                with self._turn:
                    self._error = error
                    self._turn.notify_all()
                raise
        # Raises the first error that there was.
        return [one.result() for one in taken]

    def _serve(self, n_fits):
        """Exchange messages whenever all threads wait, until none is left."""
        with self._turn:
            while True:
                self._turn.wait_for(lambda: self._n_busy == 0)
                if self._n_waiting == n_fits:
                    self._forget()
                self._wanted = set()
                self._send_queued()
                if not self._n_waiting:
                    return
                self._receive_all()
                self._n_busy, self._n_waiting = self._n_waiting, 0
                self._n_turns += 1
                self._turn.notify_all()

    def _forget(self):
        """Forget replies that no fit has taken, and messages whose replies none has looked for."""
        self._replies = {}
        self._sent = {m: own for m, own in self._sent.items() if self._wanted.intersection(own)}

    def _send_queued(self):
        """Send what is queued, one message to each node."""
        by_node: dict[int, list[int]] = {}
        for ticket, request in sorted(self._queued.items()):
            by_node.setdefault(request.node, []).append(ticket)
        messages = []
        for node, tickets in by_node.items():
            content = bundle([self._queued[ticket].content for ticket in tickets])
            messages.append(Request(node, TOGETHER, content))
        self._queued = {}
        if messages:
            sent = self.carrier.send(messages)
            self._sent.update(zip(sent, by_node.values(), strict=True))

    def _receive_all(self):
        """Take in what has arrived, or wait a moment."""
        arrived = self.carrier.receive(list(self._sent)) if self._sent else []
        for reply in arrived:
            self._open(self._sent.pop(reply.ticket), reply)
        if not arrived:
            self.carrier.pause()

    def _open(self, tickets, reply):
        """Take in the replies of a message."""
        contents = [reply.content] * len(tickets)
        try:
            found = [] if reply.content is None else bundled(*unpack(reply.content))
            # A node that could not read the message answers once.
            contents = [pack(*one) for one in found] if len(found) == len(tickets) else contents
        except (MalformedMessage, RecursionError):
            # Each fit finds this out.
            pass
        for ticket, content in zip(tickets, contents, strict=True):
            self._replies[ticket] = Reply(ticket, content, reply.error)

    # ------------------------------------------------------------- the carrier of each fit

    def nodes(self) -> set[int]:
        with self._turn:
            return set(self.carrier.nodes())

    def send(self, requests: list[Request]) -> list[Hashable]:
        with self._turn:
            tickets = [next(self._numbers) for _ in requests]
            self._queued.update(zip(tickets, requests, strict=True))
        return list(tickets)

    def receive(self, tickets: Iterable[Hashable]) -> list[Reply]:
        with self._turn:
            wanted = list(tickets)
            self._wanted.update(wanted)
            return [self._replies.pop(one) for one in wanted if one in self._replies]

    def pause(self) -> None:
        """Wait until all other fits wait or have ended, and messages have been exchanged."""
        with self._turn:
            now = self._n_turns
            self._n_busy, self._n_waiting = self._n_busy - 1, self._n_waiting + 1
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._n_turns > now or self._error is not None)
            if self._error is not None:
                raise RuntimeError("The server has been stopped.") from self._error
