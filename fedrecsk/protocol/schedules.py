"""When a round ends by the simulated clock: parameters of a federation."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedrecsk._utils.constraints import Above0To1, AtLeast1, Positive
from fedrecsk._utils.parameters import PlainParameters

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
