"""The simulated clock: how long rounds take, and whose uploads arrive when.

Times follow from devices, rows and bytes, and never from the values of a model.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedrecsk.protocol.participation import Participation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedrecsk.protocol.devices import DeviceProfile, Devices
    from fedrecsk.protocol.keys import Key
    from fedrecsk.protocol.participation import Sampling
    from fedrecsk.protocol.schedules import Asynchronous


@dataclass(eq=False)
class Clock:
    """What clients need for bytes and for work; `n_rows` of each client, (n_clients,)."""

    profile: DeviceProfile
    devices: Devices
    n_rows: NDArray[np.int64]

    def seconds(
        self,
        now: float,
        bytes_down: np.ndarray,
        bytes_up: np.ndarray,
        works: NDArray[np.bool_] | bool,
    ) -> NDArray[np.float64]:
        """Return what each client needs, from `now`; 0 for those that do nothing."""
        communication = self.profile.communication_seconds(bytes_down, bytes_up)
        own = self.profile.client_seconds * self.n_rows / self.n_rows.mean()
        computation = works * self.profile.computation_seconds(own) / self.devices.speed
        seconds = communication / self.devices.bandwidth + computation
        return seconds + (seconds > 0) * self.devices.waits(now)


class Begun(NamedTuple):
    """Clients that begin in a step: codes, and the steps in which their uploads arrive."""

    clients: list[int]
    arrivals: list[int]


class Timetable:
    """Who begins in which step of an asynchronous fit, and in which step its upload arrives.

    Events are found ahead, as far as is needed. `bytes_down` and `bytes_up` are those of each
    client in every step.
    """

    def __init__(
        self,
        clock: Clock,
        schedule: Asynchronous,
        sampling: Sampling,
        key: Key,
        start: float,
        bytes_down: np.ndarray,
        bytes_up: np.ndarray,
    ) -> None:
        self._devices = clock.devices
        # Without what a client waits until it is online.
        seconds = clock.seconds(start, bytes_down, bytes_up, works=True)
        self._seconds = (seconds - clock.devices.waits(start)).tolist()
        self._always_online = bool((clock.devices.n_hours == 24).all())
        self._sampling = sampling
        self._key = key
        n_clients = len(self._seconds)
        self._concurrency = sampling.cohort_size(n_clients)
        self.n_awaited: int = schedule.n_awaited(self._concurrency)
        self._start = self._now = start
        # (time of arrival, client, step in which it began, place among those that began then).
        self._training = []
        self._n_begun = np.zeros(n_clients, dtype=np.int64)
        self._steps: list[Begun] = []
        # When each step ends.
        self.ends: list[float] = []

    def _advance(self):
        """Find the events until the next step of the server."""
        step, n_arrived, now = len(self._steps), 0, self._now
        idle, clients, arrivals = self._idle(step), [], []
        training, seconds, loses = self._training, self._seconds, self._sampling.dropout > 0
        self._steps.append(Begun(clients, arrivals))
        while n_arrived < self.n_awaited:
            while idle and len(training) < self._concurrency:
                if self._always_online:
                    client = idle.pop()
                    arrives = now + seconds[client]
                else:
                    client, wait = self._next_online(idle, now)
                    arrives = now + wait + seconds[client]
                heapq.heappush(training, (arrives, client, step, len(clients)))
                clients.append(client)
                arrivals.append(-1)
            if not training:
                break
            now, client, began, place = heapq.heappop(training)
            self._steps[began].arrivals[place] = step
            n_arrived += not (loses and self._is_lost(began, client))
        self._n_begun[clients] += 1
        self._now = now
        self.ends.append(now)

    def _idle(self, step):
        """Return the clients that are not training, in reverse of the order of being asked."""
        order = self._key.at(step).hashed("cohort", np.arange(len(self._seconds)))
        idle = np.ones(len(order), dtype=bool)
        idle[[client for _, client, _, _ in self._training]] = False
        codes = np.flatnonzero(idle)
        # Those that have begun less often come first where clients take turns.
        turns = self._n_begun[codes] if self._sampling.rotates else np.zeros(len(codes))
        return codes[np.lexsort((order[codes], turns))][::-1].tolist()

    def _next_online(self, idle, now):
        """Take the next client that is online, or else the next; return how long it waits, too."""
        waits = self._devices.waits(now)
        online = np.flatnonzero(waits[idle] == 0)
        client = idle.pop(online[-1] if len(online) else -1)
        return client, float(waits[client])

    def _is_lost(self, step, client):
        return bool(self._sampling.loses(self._key.at(step), np.array([client]))[0])

    def begun(self, step: int) -> Begun:
        """Return who begins in a step, and when their uploads arrive."""
        while len(self._steps) <= step or -1 in self._steps[step].arrivals:
            self._advance()
        return self._steps[step]

    def participation(self, step: int) -> Participation:
        """Return the clients that begin in a step."""
        n_clients, begun = len(self._seconds), self.begun(step)
        clients, arrivals = np.array(begun.clients), np.full(n_clients, -1)
        arrivals[clients] = begun.arrivals
        begins, lost = arrivals >= 0, np.zeros(n_clients, dtype=bool)
        lost[clients] = self._sampling.loses(self._key.at(step), clients)
        return Participation(begins, begins, begins & ~lost, lost, arrivals)

    def seconds(self, step: int) -> float:
        """Return how long a step takes."""
        return self.ends[step] - (self.ends[step - 1] if step else self._start)
