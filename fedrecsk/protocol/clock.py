"""The simulated clock: how long rounds take, and whose uploads arrive when.

Times follow from devices, rows and bytes, and never from the values of a model.
"""

from __future__ import annotations

import heapq
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from fedrecsk._utils.constraints import Above0To1, AtLeast1, Positive
from fedrecsk._utils.parameters import PlainParameters
from fedrecsk.protocol.participation import Participation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedrecsk.protocol.devices import DeviceProfile, Devices
    from fedrecsk.protocol.keys import Key
    from fedrecsk.protocol.participation import Sampling

__all__ = ["Asynchronous", "Synchronous"]


class Schedule(PlainParameters):
    """When the server takes its step."""


@dataclass(eq=False, repr=False)
class Synchronous(Schedule):
    """Rounds that end at a deadline, or when enough uploads have arrived.

    Clients that are late have received the model and trained, but their uploads are lost, as with
    ``dropout_mode="upload"``. The ledger counts them as `late`, with their `bytes_late`.

    Parameters
    ----------
    deadline : float or None, default=None
        Seconds after which a round ends. If None, no deadline.
    quorum : float in (0, 1], default=1.0
        Share of a cohort's uploads with which a round ends. To ask 1.3 times as many clients as are
        needed ("over-selection" [1]_), raise `client_fraction` to 1.3 times its value, and set
        ``quorum=1 / 1.3``.

    References
    ----------
    .. [1] K. Bonawitz et al., "Towards Federated Learning at Scale: System Design", MLSys 2019.

    Examples
    --------
    >>> from fedrecsk import Federation, RFRec
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.protocol import DeviceProfile, Synchronous
    >>> X, y = make_ratings(n_users=20, n_items=30, n_ratings=200, random_state=0)
    >>> federation = Federation(devices=DeviceProfile(speed=1.5), schedule=Synchronous(20))
    >>> model = RFRec(4, n_rounds=5, random_state=0, federation=federation).fit(X, y)
    >>> f"{model.history_[-1]['hours']:.2f} hours"
    '0.03 hours'
    """

    deadline: Positive | None = None
    _: KW_ONLY
    quorum: Above0To1 = 1.0

    def seconds(self, seconds: NDArray[np.float64], delivers: NDArray[np.bool_]) -> float:
        """Return when a round ends, given what each client of its cohort needs."""
        arrivals = np.sort(seconds[delivers])
        n_awaited = int(np.ceil(self.quorum * len(seconds)))
        # The server waits in vain for clients that dropped out.
        last = arrivals[n_awaited - 1] if n_awaited <= len(arrivals) else seconds.max(initial=0)
        return float(last if self.deadline is None else min(last, self.deadline))


@dataclass(eq=False, repr=False)
class Asynchronous(Schedule):
    """Rounds without waiting: FedBuff [1]_.

    At any time a share `client_fraction` of the clients trains, each from the model of when it
    began. When an upload arrives, another client begins, and after `buffer_size` uploads the server
    takes its step; `n_rounds` counts these steps. A client whose upload is in the buffer begins
    again after the step at the earliest. Clients that are online are asked first.

    Parameters
    ----------
    buffer_size : int or float, default=1.0
        Number of uploads in a step of the server, or, as a float in (0, 1], its share of the
        clients that train at a time. With 1.0, a step has as many uploads as a synchronous round,
        and as many steps send as much.
    staleness : {"sqrt", "none"}, default="sqrt"
        How much an upload counts that began s steps ago: as ``1 / sqrt(1 + s)`` clients, or as one.
        Sums and means over clients are weighted by it.

    References
    ----------
    .. [1] J. Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS
       2022.

    Examples
    --------
    >>> from fedrecsk import Federation, FedMF
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.protocol import Asynchronous, DeviceProfile
    >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> federation = Federation(devices=DeviceProfile(speed=1.5), schedule=Asynchronous(0.5))
    >>> model = FedMF(8, n_rounds=20, random_state=0, federation=federation).fit(X)
    >>> [row["participants"] for row in model.history_[:3]]
    [17, 6, 6]
    """

    buffer_size: AtLeast1 | Above0To1 = 1.0
    _: KW_ONLY
    staleness: Literal["sqrt", "none"] = "sqrt"

    def n_awaited(self, concurrency: int) -> int:
        """Return the number of uploads in a step, if `concurrency` clients train at a time."""
        if isinstance(self.buffer_size, Integral):
            return min(int(self.buffer_size), concurrency)
        return max(1, round(self.buffer_size * concurrency))

    def weight(self, n_steps: int) -> float:
        """Return the weight of an upload that began `n_steps` steps ago."""
        return 1.0 if self.staleness == "none" else 1 / float(np.sqrt(1 + n_steps))


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
