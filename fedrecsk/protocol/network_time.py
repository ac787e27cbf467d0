"""Estimate of the training time on a real network: a closed form of the simulated clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import gammaln
from sklearn.utils import check_random_state

from fedrecsk._utils.constraints import NotNegative, Seed
from fedrecsk._utils.parameters import check_arguments
from fedrecsk.protocol.devices import DeviceProfile, profile_of
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.ledger import Ledger

__all__ = ["TrainingTime", "estimate_training_time"]


class HasLedger(Protocol):
    """A fitted federated estimator."""

    communication_: Ledger


@dataclass(frozen=True, eq=False)
class TrainingTime:
    """An estimate of how long a training would take.

    Attributes
    ----------
    communication_seconds : float
    computation_seconds : float
    overhead_seconds : float
        Part of the computation that the profile assumes: its `overhead`, on each round's slowest
        device. It is not measured.
    round_seconds : ndarray of shape (n_rounds,)
        Seconds of each round. What happens before the first round and after the last one is in the
        totals only.
    """

    communication_seconds: float
    computation_seconds: float
    overhead_seconds: float
    round_seconds: np.ndarray

    @property
    def seconds(self) -> float:
        """Total time in seconds."""
        return self.communication_seconds + self.computation_seconds

    @property
    def minutes(self) -> float:
        """Total time in minutes."""
        return self.seconds / 60

    def __repr__(self) -> str:
        seconds = self.seconds
        size, unit = (3600, "h") if seconds >= 3600 else (60, "min") if seconds >= 60 else (1, "s")
        network = self.communication_seconds / seconds if seconds else 0.0
        assumed = self.overhead_seconds / max(np.count_nonzero(self.round_seconds), 1)
        return (
            f"TrainingTime({seconds / size:.3g} {unit}: {1 - network:.1%} computing"
            + (f", of which {assumed:.3g} s a round are assumed" if assumed else "")
            + f"; {network:.1%} network; {len(self.round_seconds)} rounds)"
        )


@check_arguments
def estimate_training_time(
    model: HasLedger | Ledger,
    profile: DeviceProfile | str = "4g",
    *,
    client_seconds: NotNegative | None = None,
    server_seconds: NotNegative = 0.0,
    down: str = "bytes_down",
    up: str = "bytes_up",
    rounds_only: bool = False,
    random_state: Seed = 0,
) -> TrainingTime:
    """Estimate how long a fit would have taken on a network.

    Clients work in parallel, so a round takes as long as its slowest client: the most bytes that a
    client received and sent count. Of other columns of the ledger, of messages between devices and
    of work, the mean over the clients counts. Where devices differ, it is the expected time of the
    slowest of a cohort at random. ``Federation(devices=...)`` simulates the same clock round by
    round, with deadlines and asynchronous rounds, which this estimate does not have.

    The repr of the result states what the time is made of: computing, the network, and the seconds
    a round that the profile's `overhead` adds, which are assumed and not measured.

    Parameters
    ----------
    model : fitted federated estimator or Ledger
    profile : DeviceProfile or str, default="4g"
        Or one of "paper", "phones", "3g", "4g", "broadband" and "data_center". "paper" uses CoLR's
        constants, including 10 s a round; "phones" the same with devices and networks of very
        different speeds. Hours online do not count.
    client_seconds : float or None, default=None
        Seconds of work of a client in one round, on the simulating machine. If None, the mean that
        the fit measured, `client_seconds` of the ledger. That of the profile does not count.
    server_seconds : float, default=0.0
        Seconds of work of the server in one round.
    down, up : str, default="bytes_down", "bytes_up"
        Columns of the ledger to use. A paper may count less than all bytes, such as
        "payload_up". By default, what devices send to each other counts both ways, too.
    rounds_only : bool, default=False
        Whether to leave out what happens before the first round and after the last one, as papers
        do.
    random_state : int, default=0
        Seed of a fit that would have the same devices, if they differ.

    Returns
    -------
    TrainingTime

    Raises
    ------
    TypeError
        If the model has no ledger.
    ValueError
        If the profile or a column is unknown, or a number of seconds is negative or infinite.

    Examples
    --------
    >>> from fedrecsk import RFRec
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.protocol.network_time import estimate_training_time
    >>> X, y = make_ratings(n_users=20, n_items=30, n_ratings=200, random_state=0)
    >>> model = RFRec(n_factors=4, n_rounds=5, random_state=0).fit(X, y)
    >>> estimate_training_time(model, "paper", client_seconds=1.2)
    TrainingTime(1.53 min: 100.0% computing, of which 10 s a round are assumed; 0.0% network;
    5 rounds)
    """
    profile = profile_of("profile", profile)
    ledger = getattr(model, "communication_", model)
    if not isinstance(ledger, Ledger):
        raise TypeError(
            f"{getattr(model, '__name__', type(model).__name__)} has no communication_; pass a "
            "fitted federated estimator or its ledger."
        )
    entries = [entry for entry in ledger.entries if entry["phase"] == "round" or not rounds_only]
    for column in (down, up):
        if entries and column not in entries[0]:
            raise ValueError(
                f"The ledger has no column {column!r}; it has "
                f"{sorted(name for name in entries[0] if '_down' in name or '_up' in name)}."
            )
    if client_seconds is None:
        client_seconds = ledger.client_seconds
    # As a fit makes its key.
    key = Key(int(check_random_state(random_state).randint(2**31 - 1)))
    devices = profile.draw(ledger.client_ids, key)
    communication, computation, overhead = np.zeros((3, len(entries)))
    for k, entry in enumerate(entries):
        sizes = _bytes_of_one(entry, len(ledger.client_ids), down, up)
        ours = profile.communication_seconds(*sizes)
        work = profile.computation_seconds(client_seconds) * (entry["participants"] > 0)
        seconds = _slowest(ours / devices.bandwidth + work / devices.speed, _n_clients(entry))
        share = ours / (ours + work) if seconds else 0.0
        communication[k] = share * seconds
        overhead[k] = (1 - share) * seconds * (profile.overhead / work if work else 0.0)
        computation[k] = (1 - share) * seconds + server_seconds * (entry["participants"] > 0)
    rounds = np.array([entry["phase"] == "round" for entry in entries], dtype=bool)
    return TrainingTime(
        communication_seconds=float(communication.sum()),
        computation_seconds=float(computation.sum()),
        overhead_seconds=float(overhead.sum()),
        round_seconds=(communication + computation)[rounds],
    )


def _n_clients(entry):
    """Return how many clients take part in an entry."""
    return max(entry["participants"], entry["messages_down"], entry["messages_up"])


def _slowest(seconds, n):
    """Return the expected largest of `n` of these numbers, drawn without replacement."""
    n_all, places = len(seconds), np.arange(1, len(seconds) + 1)
    n = min(max(n, 1), n_all)
    # C(i - 1, n - 1) / C(N, n): the chance that the i-th smallest is the largest drawn.
    below = places >= n
    i = places[below]
    chances = gammaln(i) - gammaln(n) - gammaln(i - n + 1)
    chances -= gammaln(n_all + 1) - gammaln(n + 1) - gammaln(n_all - n + 1)
    chances = np.exp(chances)
    return float(np.sort(seconds)[below] @ chances / chances.sum())


def _bytes_of_one(entry, n_clients, down, up):
    """Return the bytes down and up of an entry's slowest client, or of the mean one."""
    # Before the rounds all clients send, and in a round those that take part. If no client has
    # trained, those that received the model have sent the losses that ended the fit.
    trained = entry["participants"] or entry["messages_down"]
    senders = trained if entry["phase"] in ("round", "stop") else n_clients
    received, sent = entry[down] / max(entry["messages_down"], 1), entry[up] / max(senders, 1)
    received = entry["largest_down"] if down == "bytes_down" else received
    sent = entry["largest_up"] if up == "bytes_up" else sent
    if (down, up) == ("bytes_down", "bytes_up"):
        direct = entry["bytes_device_to_device"] / max(senders, 1)
        received, sent = received + direct, sent + direct
    return received, sent
