"""Estimate of the training time on a real network, from the bytes in the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk._utils.parameters import checked
from fedrecsk._utils.sklearn_compat import Interval, validate_params
from fedrecsk.protocol.ledger import Ledger

if TYPE_CHECKING:
    from fedrecsk.federated.base import FederatedRecommender

__all__ = ["PROFILES", "NetworkProfile", "TrainingTime", "estimate_training_time"]

_MIB = 2.0**20
_MBIT = 1e6 / 8


@dataclass(frozen=True)
class NetworkProfile:
    """Speeds of the clients' network and devices.

    A round takes S_down / B_down + S_up / B_up for one client's bytes, and R_comp T_sim +
    C_comp + T_server for the work (CoLR, section 5.2, after Wang et al., "A field guide to
    federated optimization", 2021). The defaults are those papers' constants.

    Parameters
    ----------
    download : float, default=0.75 * 2**20
        Bytes per second from the server to a client (B_down).
    upload : float, default=0.25 * 2**20
        Bytes per second from a client to the server (B_up).
    slowdown : float, default=7
        Factor by which a client's device is slower than the simulating machine (R_comp).
    overhead : float, default=10
        Seconds per round that a client's device needs before it computes (C_comp).

    Examples
    --------
    >>> from fedrecsk.protocol.network_time import NetworkProfile
    >>> NetworkProfile().communication_seconds(bytes_down=2**20, bytes_up=2**20)
    5.333333333333333
    """

    download: float = 0.75 * _MIB
    upload: float = 0.25 * _MIB
    slowdown: float = 7.0
    overhead: float = 10.0

    def __post_init__(self) -> None:
        speed = [Interval(Real, 0, None, closed="right")]
        cost = [Interval(Real, 0, None, closed="left")]
        constraints = {"download": speed, "upload": speed, "slowdown": cost, "overhead": cost}
        checked("NetworkProfile", constraints, **vars(self))

    def communication_seconds(self, bytes_down: float, bytes_up: float) -> float:
        """S_down / B_down + S_up / B_up, for the bytes of one client."""
        return bytes_down / self.download + bytes_up / self.upload

    def computation_seconds(
        self, client_seconds: float = 0.0, server_seconds: float = 0.0
    ) -> float:
        """R_comp T_sim + C_comp + T_server, for seconds measured in a simulation."""
        return self.slowdown * client_seconds + self.overhead + server_seconds


PROFILES = {
    # CoLR's constants, for phones in 2021.
    "paper": NetworkProfile(),
    # Presets of sitespeed.io's throttle, with phones that begin at once: "3g" has 1.6 Mbit/s down
    # and 0.768 up, "4g" 9 both ways.
    "3g": NetworkProfile(1.6 * _MBIT, 0.768 * _MBIT, overhead=0.0),
    "4g": NetworkProfile(9 * _MBIT, 9 * _MBIT, overhead=0.0),
    # Computers with broadband as the FCC defines it since 2024: 100 Mbit/s down, 20 up.
    "broadband": NetworkProfile(100 * _MBIT, 20 * _MBIT, slowdown=1.0, overhead=0.0),
    # 10-gigabit Ethernet between silos' servers.
    "data_center": NetworkProfile(1e4 * _MBIT, 1e4 * _MBIT, slowdown=1.0, overhead=0.0),
}


@dataclass(frozen=True, eq=False)
class TrainingTime:
    """An estimate of how long a training would take.

    Attributes
    ----------
    communication_seconds : float
    computation_seconds : float
    round_seconds : ndarray of shape (n_rounds,)
        Seconds of each round. What happens before the first round and after the last one is in the
        totals only.
    """

    communication_seconds: float
    computation_seconds: float
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
        return (
            f"TrainingTime({self.minutes:.3g} minutes: {self.communication_seconds / 60:.3g} on "
            f"the network and {self.computation_seconds / 60:.3g} of work, "
            f"{len(self.round_seconds)} rounds)"
        )


@validate_params(
    {
        "client_seconds": [Interval(Real, 0, None, closed="left"), None],
        "server_seconds": [Interval(Real, 0, None, closed="left")],
        "down": [str],
        "up": [str],
        "rounds_only": ["boolean"],
    },
    prefer_skip_nested_validation=True,
)
def estimate_training_time(
    model: FederatedRecommender | Ledger,
    profile: NetworkProfile | str = "4g",
    *,
    client_seconds: float | None = None,
    server_seconds: float = 0.0,
    down: str = "bytes_down",
    up: str = "bytes_up",
    rounds_only: bool = False,
) -> TrainingTime:
    """Estimate how long a fit would have taken on a network.

    Clients work in parallel, so a round takes as long as its slowest client: the most bytes that a
    client received and sent count. Of other columns of the ledger, of messages between devices and
    of work, the mean over the clients counts.

    Parameters
    ----------
    model : fitted federated estimator or Ledger
    profile : NetworkProfile or {"paper", "3g", "4g", "broadband", "data_center"}, default="4g"
        "paper" uses CoLR's constants, including 10 s a round.
    client_seconds : float or None, default=None
        Seconds of work of a client in one round, on the simulating machine. If None, the mean that
        the fit measured, `client_seconds` of the ledger.
    server_seconds : float, default=0.0
        Seconds of work of the server in one round.
    down, up : str, default="bytes_down", "bytes_up"
        Columns of the ledger to use. A paper may count less than all bytes, such as
        "payload_up". By default, what devices send to each other counts both ways, too.
    rounds_only : bool, default=False
        Whether to leave out what happens before the first round and after the last one, as papers
        do.

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
    TrainingTime(1.53 minutes: 0.000283 on the network and 1.53 of work, 5 rounds)
    """
    if not isinstance(profile, NetworkProfile):
        if not isinstance(profile, str) or profile not in PROFILES:
            raise ValueError(
                f"profile={profile!r} is unknown; use a NetworkProfile or one of "
                f"{sorted(PROFILES)}."
            )
        profile = PROFILES[profile]
    ledger = getattr(model, "communication_", model)
    if not isinstance(ledger, Ledger):
        raise TypeError(
            f"{type(model).__name__} has no communication_; pass a fitted federated estimator or "
            "its ledger."
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
    communication, computation = np.zeros((2, len(entries)))
    for k, entry in enumerate(entries):
        sizes = _bytes_of_one(entry, len(ledger.client_ids), down, up)
        communication[k] = profile.communication_seconds(*sizes)
        if entry["participants"] > 0:
            computation[k] = profile.computation_seconds(client_seconds, server_seconds)
    rounds = np.array([entry["phase"] == "round" for entry in entries], dtype=bool)
    return TrainingTime(
        communication_seconds=float(communication.sum()),
        computation_seconds=float(computation.sum()),
        round_seconds=(communication + computation)[rounds],
    )


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
