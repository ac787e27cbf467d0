"""Clients' devices and networks: how fast they are, and when they are online."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from fedrecsk._utils.constraints import NotNegative
from fedrecsk._utils.parameters import PlainParameters
from fedrecsk._utils.sklearn_compat import Interval, InvalidParameterError
from fedrecsk._utils.user_warnings import warn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedrecsk.protocol.keys import Key

__all__ = ["PROFILES", "DeviceProfile"]

_MIB = 2.0**20
_MBIT = 1e6 / 8
# Hardly meant as bytes per second.
_SLOW = 100
# Beyond these, nothing is a device's or a network's, and sums of seconds would overflow.
_MOST, _MOST_SPREAD = 1e9, 10.0
DAY, HOUR = 86_400.0, 3_600.0
BytesPerSecond = Annotated[float, Interval(Real, 1, None, closed="left")]
UpToMost = Annotated[float, Interval(Real, 0, _MOST, closed="both")]
Hours = Annotated[float, Interval(Real, 0, 24, closed="right")]


@dataclass(eq=False, repr=False)
class DeviceProfile(PlainParameters):
    """Speeds of the clients' devices and networks, and the hours when they are online.

    In a round, client c takes ``(overhead + slowdown * work_c) / speed_c`` seconds to compute, and
    ``(S_down / download + S_up / upload) / bandwidth_c`` for its bytes. With equal clients this is
    CoLR's model (section 5.2) after [1]_, whose constants are the defaults. Its work is in
    proportion to its rows. Nothing depends on how fast the simulating machine is.

    Parameters
    ----------
    download : float, default=0.75 * 2**20
        Bytes per second from the server to a client (B_down), at least 1.
    upload : float, default=0.25 * 2**20
        Bytes per second from a client to the server (B_up), at least 1.
    slowdown : float, default=7
        Factor by which a device is slower than the machine on which `client_seconds` was measured
        (R_comp).
    overhead : float, default=10
        Seconds per round that a device needs before it computes (C_comp).
    client_seconds : float, default=0.001
        Seconds of one thread that the update of a client with a mean number of rows takes.
        ``communication_.client_seconds`` of a fit is what it took there.
    speed : float or dict, default=0.0
        Standard deviation of the logarithm of the devices' speeds, which are drawn with median 1,
        at most 10; or the speed of each client, by its id: 2 is twice as fast as the others.
    bandwidth : float or dict, default=0.0
        Likewise, of the networks.
    online : float or dict, default=24.0
        Hours of each day when a client is online, from an hour drawn for each; or a tuple of the
        first and the last hour of each client, by its id: ``(22, 6)`` is at night. The fit begins
        at 0. A client that is asked while it is offline begins when it is online, and ends what it
        has begun.

    References
    ----------
    .. [1] J. Wang et al., "A Field Guide to Federated Optimization", arXiv:2107.06917, 2021.

    Examples
    --------
    >>> from fedrecsk.protocol import DeviceProfile
    >>> DeviceProfile().communication_seconds(bytes_down=2**20, bytes_up=2**20)
    5.333333333333333

    The hours of a fit on devices whose speeds differ:

    >>> from fedrecsk import Federation, RFRec
    >>> from fedrecsk.datasets import make_ratings
    >>> X, y = make_ratings(n_users=20, n_items=30, n_ratings=200, random_state=0)
    >>> federation = Federation(devices=DeviceProfile(speed=1.5))
    >>> model = RFRec(4, n_rounds=5, random_state=0, federation=federation).fit(X, y)
    >>> f"{model.history_[-1]['hours']:.2f} hours"
    '0.06 hours'
    """

    download: BytesPerSecond = 0.75 * _MIB
    upload: BytesPerSecond = 0.25 * _MIB
    slowdown: UpToMost = 7.0
    overhead: UpToMost = 10.0
    _: KW_ONLY
    client_seconds: UpToMost = 0.001
    speed: NotNegative | dict[Any, float] = 0.0
    bandwidth: NotNegative | dict[Any, float] = 0.0
    online: Hours | dict[Any, tuple[float, float]] = 24.0

    def communication_seconds(self, bytes_down: Any, bytes_up: Any) -> Any:
        """S_down / B_down + S_up / B_up, for the bytes of one client or of each in an array."""
        return bytes_down / self.download + bytes_up / self.upload

    def computation_seconds(self, work: Any) -> Any:
        """R_comp T_sim + C_comp, for seconds of work on the measuring machine."""
        return self.slowdown * work + self.overhead

    def _validate_params(self):
        super()._validate_params()
        for name in ("download", "upload"):
            if getattr(self, name) < _SLOW:
                warn(
                    f"DeviceProfile({name}={getattr(self, name):g}) is in bytes per second; "
                    "1 Mbit/s is 125,000."
                )
        for name in ("speed", "bandwidth"):
            value = getattr(self, name)
            if isinstance(value, Real) and value > _MOST_SPREAD:
                raise ValueError(
                    f"DeviceProfile({name}={value!r}) is the standard deviation of a logarithm, at "
                    f"most {_MOST_SPREAD:g}. Set bytes per second by download and upload, or give "
                    f"{name} by client, in a dict."
                )
        for name in ("speed", "bandwidth", "online"):
            values = getattr(self, name)
            is_right = _is_window if name == "online" else _is_factor
            for client, value in values.items() if isinstance(values, dict) else ():
                if not is_right(value):
                    speeds = f"a number from {1 / _MOST:g} to {_MOST:g}; 1 is a usual client's"
                    what = "two different hours of a day" if name == "online" else speeds
                    raise ValueError(
                        f"DeviceProfile({name}={{...}}) has {value!r} for client {client!r}; "
                        f"give {what}."
                    )

    def draw(self, client_ids: np.ndarray, key: Key) -> Devices:
        """Return the devices of some clients, whose codes are their places."""
        codes, drawn = np.arange(len(client_ids)), {}
        for name in ("speed", "bandwidth"):
            value = getattr(self, name)
            if isinstance(value, Mapping):
                drawn[name] = np.array(_by_client(value, name, client_ids), dtype=np.float64)
            else:
                drawn[name] = np.exp(value * key.normal(f"{name} of a device", codes))
        if isinstance(self.online, Mapping):
            first, last = np.array(_by_client(self.online, "online", client_ids), float).T
            hours = (last - first) % 24
            # From 0 to 24 is all day.
            return Devices(**drawn, first_hour=first, n_hours=np.where(hours == 0, 24, hours))
        hours = np.full(len(codes), float(self.online))
        return Devices(**drawn, first_hour=24 * key.uniform("hour online", codes), n_hours=hours)


class Devices(NamedTuple):
    """The devices of a fit's clients: arrays of shape (n_clients,)."""

    speed: NDArray[np.float64]
    bandwidth: NDArray[np.float64]
    first_hour: NDArray[np.float64]
    n_hours: NDArray[np.float64]

    def waits(self, now: float) -> NDArray[np.float64]:
        """Return the seconds from `now` until each client is online."""
        since = (now / HOUR - self.first_hour) % 24
        return np.where(since < self.n_hours, 0.0, (24 - since) * HOUR)


PROFILES = {
    # CoLR's constants, for phones in 2021.
    "paper": DeviceProfile(),
    # Presets of sitespeed.io's throttle, with phones that begin at once: "3g" has 1.6 Mbit/s down
    # and 0.768 up, "4g" 9 both ways.
    "3g": DeviceProfile(1.6 * _MBIT, 0.768 * _MBIT, overhead=0.0),
    "4g": DeviceProfile(9 * _MBIT, 9 * _MBIT, overhead=0.0),
    # CoLR's phones with an assumed spread: from the 5th to the 95th percentile, speeds differ by a
    # factor of 140.
    "phones": DeviceProfile(speed=1.5, bandwidth=1.5),
    # Computers with broadband as the FCC defines it since 2024: 100 Mbit/s down, 20 up.
    "broadband": DeviceProfile(100 * _MBIT, 20 * _MBIT, slowdown=1.0, overhead=0.0),
    # 10-gigabit Ethernet between silos' servers.
    "data_center": DeviceProfile(1e4 * _MBIT, 1e4 * _MBIT, slowdown=1.0, overhead=0.0),
}


def profile_of(name: str, profile: DeviceProfile | str) -> DeviceProfile:
    """Return a valid profile, which may be given by its name; `name` is the parameter's."""
    if not isinstance(profile, DeviceProfile):
        if not isinstance(profile, str) or profile not in PROFILES:
            raise ValueError(
                f"{name}={profile!r} is unknown; use a DeviceProfile or one of {sorted(PROFILES)}."
            )
        profile = PROFILES[profile]
    try:
        profile._validate_params()
    except InvalidParameterError as error:
        # scikit-learn would put the name of the calling function in the place of the class's.
        raise ValueError(str(error)) from error
    return profile


def _is_factor(value):
    return isinstance(value, Real) and 1 / _MOST <= value <= _MOST


def _is_window(value):
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    hours = all(isinstance(one, Real) and isfinite(one) and 0 <= one <= 24 for one in value)
    return hours and value[0] != value[1]


def _by_client(table, name, client_ids):
    """Return the entries of a dict for these clients, in their order."""
    ids = client_ids.tolist()
    lacking = [one for one in ids if one not in table]
    if lacking:
        raise ValueError(
            f"DeviceProfile({name}={{...}}) has no entry for {len(lacking)} of {len(ids)} clients, "
            f"such as {lacking[0]!r}; add them, or give one number for all."
        )
    return [table[one] for one in ids]
