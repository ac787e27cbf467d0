"""User-level differential privacy: clipped uploads, and noise on their sums."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from scipy.stats import binom

from fedrecsk._utils.constraints import Between0And1
from fedrecsk._utils.extras import require
from fedrecsk._utils.parameters import PlainParameters
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.privacy._grid import STEPS, rounded, sensitivity, step_of
from fedrecsk.privacy.accounting import CALLER
from fedrecsk.privacy.local_dp import LARGEST, SMALLEST, norms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from fedrecsk.updates import ClientUpdates

# When the server rounds the sum, one standard deviation of the noise has at least 2 to the power of
# this many grid steps.
BITS_OF_NOISE = 24
# Fewer shares of noise than planned arrive with at most this probability per exchange.
RARELY = 1e-3
# Largest mean that NumPy's Poisson draws are used for. From about ten times as much on, its
# variance is too small.
LARGEST_MEAN = 2.0**40
# Largest weight of a field.
_HEAVIEST = 1e6
# Largest noise multiplier of shares.
_MOST_OF_SHARES = 1e3
# Smallest noise multiplier above 0, and smallest epsilon that shares of the noise can promise.
_LEAST_NOISE, _LEAST_EPSILON = 1e-6, 0.05


@dataclass(eq=False, repr=False)
class CentralDP(PlainParameters):
    """Clip every client's whole upload, and add Gaussian noise to the sum of all uploads.

    What the server publishes, the models of all rounds, is then (epsilon, delta)-differentially
    private for whole clients (McMahan, Ramage, Talwar and Zhang, ICLR 2018, algorithm 1). It works
    with most methods whose server needs only sums of real numbers; the others raise an error with
    the reason.

    Give either `noise_multiplier`, or `epsilon`: the noise is then calibrated so that the planned
    rounds and cohorts spend it.

    Parameters
    ----------
    clip : float in [1e-30, 1e30], default=1.0
        Largest L2 norm of a client's upload, over all fields together (C).
    noise_multiplier : float or None, default=None
        Standard deviation of the noise on each number of the sum, divided by `clip` (z).
    epsilon : float or None, default=None
        Total epsilon of a fit. With `noise_multiplier`, a limit: a fit that would spend more raises
        an error before it starts.
    delta : float, default=1e-5
        Probability, roughly, with which the guarantee may fail. It should be well below one
        divided by the number of clients.
    setup_clip : float or None, default=None
        `clip` of the exchanges before the first round, which some methods have. If None, `clip`.
    setup_share : float in (0, 1), default=None
        Share of the budget that these exchanges spend, where the budget of an exchange is 1 / z^2.
        If None, the method's own share, or else the same noise multiplier as in the rounds.
    field_weights : dict of {str: float} or None, default=None
        Factors by which fields of the upload are multiplied before they are clipped and receive
        noise, and divided by afterwards. A large factor means less noise on that field, which takes
        up more of the norm. Fields that are not named have 1.
    quantile : float in (0, 1) or None, default=None
        Adapt the clip of the rounds so that this share of the clients has shorter uploads (Andrew,
        Thakkar, McMahan and Ramaswamy, NeurIPS 2021). `clip` is then where it starts. Counting
        these clients takes a small part of the budget. 0.5 is a good choice.
    noise : {"server", "clients"}, default="server"
        Who adds the noise. "server": the server, which clients must trust with their uploads.
        "clients": every client adds a share of it, integers, so that the sum has the noise
        (Agarwal, Kairouz and Liu, NeurIPS 2021). With `secure_aggregation` the server then never
        sees anything without noise, and need not be trusted. With
        :class:`~fedrecsk.privacy.SecAggPlus` it may even lie, and `max_colluding` of the clients
        may help it; with encryption no client may, because clients hold the key.
    unit : {"client", "user"}, default="client"
        Whose data the guarantee hides. "client": all data of one client. "user": those of one user,
        where clients have many, such as shops or hospitals. A client then runs the method for each
        of its users as for a client of its own, clips each user's upload to `clip`, and sends the
        sum. Its users must trust it, and only it. The model is that of a fit in which each user is
        a client, up to the noise and the order of additions. Where clients have one user each, both
        are the same.

    Raises
    ------
    ImportError
        By fit: if dp-accounting is missing, which the extra ``privacy`` installs.
    ValueError
        By fit: if a parameter is invalid, if neither `epsilon` nor `noise_multiplier` is given, or
        if `noise_multiplier` would spend more than `epsilon`.

    Notes
    -----
    *What is protected* is what clients receive: the server's attributes, such as `item_factors_`.
    The fitted object also holds users' vectors, rated items and losses without noise. Two data sets
    are neighbours if one client's uploads are replaced by nothing; the number of clients and their
    codes are public. With ``unit="user"`` it is one user's uploads, and the number of users of each
    client is public. *Several fits* add up, see :class:`PrivacyBudget`. Fits with the same
    `random_state` draw different noise, unless they are the same fit of the same data.

    *Cohorts.* With ``Federation(sampling="poisson")`` only the server knows who takes part in a
    round, and the guarantee is better (Abadi et al., CCS 2016). Cohorts that take turns cost one
    use per pass. Cohorts of a fixed size at random are counted by how often the most frequent
    client took part. With ``noise="clients"`` sampling does not help, because the server knows the
    cohort. With ``unit="user"`` it does not help, either, because a client brings all of its users
    at once: a round counts for every user of the clients in it.

    *Lost uploads* do not change the server's noise, but take the clients' shares with them. Shares
    are planned for the number of clients that will nearly always answer, and `privacy_` counts
    those that did, without the client's own; a fit that has spent more than `epsilon` warns. Under
    `SecAggPlus` they are planned for the fewest honest clients that a lying server can leave in a
    sum (``SecAggPlus().sure_shares(n_clients)``), and `privacy_` counts no more. The noise of all
    that answer is then larger: with n clients by ``(n / sure_shares) ** 0.5``, 1.9 with the
    defaults and 1.2 with ``SecAggPlus(max_dropout=0.1)``. Cohorts must be of one size.
    *Diverged clients* are left out, and are seen to be, which is not protected.

    *Floating point.* Sums and noise are rounded to a grid before they are added, so that the last
    bits say nothing (Mironov, CCS 2012). With ``unit="user"`` and noise by the server, deployed
    clients round their sums to the federation's `wire_dtype`. With float32 this makes one user's
    part longer by at most some 1e-7 times the number of the client's users.

    Examples
    --------
    >>> import numpy as np
    >>> from fedrecsk import Federation, RFRec
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.privacy import CentralDP
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> private = Federation(central_dp=CentralDP(clip=0.5, epsilon=10, delta=1e-3))
    >>> public = {"items": np.arange(40), "rating_scale": (1, 5), "aggregation": "clients"}
    >>> model = RFRec(n_rounds=5, federation=private, random_state=0, **public).fit(X, y)
    >>> round(model.privacy_.epsilon, 6)
    10.0
    """

    clip: Annotated[float, Interval(Real, SMALLEST, LARGEST, closed="both")] = 1.0
    _: KW_ONLY
    noise_multiplier: Annotated[float, Interval(Real, 0, 1e6, closed="both")] | None = None
    epsilon: Annotated[float, Interval(Real, 0, 1e6, closed="right")] | None = None
    delta: Between0And1 = 1e-5
    setup_clip: Annotated[float, Interval(Real, SMALLEST, LARGEST, closed="both")] | None = None
    setup_share: Between0And1 | None = None
    field_weights: dict[str, float] | None = None
    quantile: Between0And1 | None = None
    noise: Literal["server", "clients"] = "server"
    unit: Literal["client", "user"] = "client"

    def _validate_params(self):
        if self.clip is None or self.clip == 0:
            raise ValueError(
                f"CentralDP(clip={self.clip}): noise hides what a client sends only if that is "
                "bounded; set clip to the largest L2 norm of an upload, such as 1.0."
            )
        super()._validate_params()
        by_clients, z, epsilon = self.noise == "clients", self.noise_multiplier, self.epsilon
        if z is None and epsilon is None:
            raise ValueError(
                "CentralDP has neither epsilon nor noise_multiplier, so there would be no noise; "
                "set epsilon, such as 10, or noise_multiplier."
            )
        if z == 0 and (epsilon is not None or by_clients):
            raise ValueError(
                "CentralDP(noise_multiplier=0) adds no noise, and has no epsilon; leave "
                'noise_multiplier out, or use it without epsilon and with noise="server".'
            )
        if z and z < _LEAST_NOISE:
            raise ValueError(
                f"CentralDP(noise_multiplier={z:g}) is next to nothing; use 0 or at least "
                f"{_LEAST_NOISE:g}."
            )
        if by_clients and (z or 0) > _MOST_OF_SHARES:
            raise ValueError(
                f'CentralDP(noise_multiplier={z:g}, noise="clients") is more than integers hold; '
                f"use at most {_MOST_OF_SHARES:g}."
            )
        if by_clients and epsilon and epsilon < _LEAST_EPSILON:
            raise ValueError(
                f'CentralDP(epsilon={epsilon:g}, noise="clients") is less than can be accounted '
                f'for; use at least {_LEAST_EPSILON}, or noise="server".'
            )
        if by_clients and self.quantile is not None:
            raise ValueError(
                'CentralDP with noise="clients" cannot adapt the clip, because the grid of the '
                'noise depends on it; set quantile=None, or noise="server".'
            )
        if self.unit == "user" and self.quantile is not None:
            raise ValueError(
                'CentralDP(unit="user") cannot adapt the clip, because clients do not report how '
                "many of their users' uploads are shorter; set quantile=None."
            )
        for name, weight in (self.field_weights or {}).items():
            if not isinstance(weight, Real) or not 1 / _HEAVIEST <= weight <= _HEAVIEST:
                raise ValueError(
                    f"CentralDP(field_weights={{{name!r}: {weight!r}}}): a weight must be a "
                    f"positive number, from {1 / _HEAVIEST:g} to {_HEAVIEST:g}; leave the field "
                    "out for 1."
                )
        require("dp_accounting", CALLER)

    @property
    def _bound_of_setup(self):
        return self.clip if self.setup_clip is None else self.setup_clip


def noisy_sum(
    sums: np.ndarray,
    clip: float,
    noise_multiplier: float,
    size: int,
    generator: np.random.Generator,
) -> tuple[np.ndarray, float]:
    """Add Gaussian noise to a sum, both rounded to a grid; return the sum and the noise's std."""
    if noise_multiplier == 0:
        return sums.astype(np.float64), 0.0
    step = step_of(noise_multiplier * clip, BITS_OF_NOISE)
    # Rounding the sum moves every number by half a step at most, with and without a client.
    std = noise_multiplier * (clip + np.sqrt(size) * step)
    noise = rounded(generator.normal(0.0, std, sums.shape), step)
    return rounded(sums.astype(np.float64), step) + noise, std


def share_variance(noise_multiplier: float, size: int, n_shares: int) -> float:
    """Return the variance of the noise that each of `n_shares` clients adds, in squared steps."""
    return (noise_multiplier * sensitivity(size)) ** 2 / n_shares


def skellam(variance: float, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Draw Skellam noise, the difference of two Poisson draws; sums of it are Skellam again."""
    # Where Poisson draws are not exact, round normal draws: the total variation distance of their
    # distribution from Skellam's is below 0.1 / variance, here 1e-13.
    if variance > 2 * LARGEST_MEAN:
        return np.rint(generator.normal(0.0, np.sqrt(variance), shape))
    noise = generator.poisson(variance / 2, shape)
    noise -= generator.poisson(variance / 2, shape)
    return noise


def nearly_always(n_clients: int, probability: float) -> int:
    """Return how many clients send in all but a few exchanges, each with this probability."""
    return n_clients if probability >= 1 else int(binom.ppf(RARELY, n_clients, probability))


def steps_of(mechanism: CentralDP, bound: float, names: Iterable[str]) -> dict[str, float]:
    """Return the grid to which clients round each field before they add noise."""
    weights = mechanism.field_weights or {}
    return {name: bound / STEPS / weights.get(name, 1.0) for name in names}


def clip_updates(
    updates: ClientUpdates, clip: float, field_weights: dict[str, float]
) -> tuple[ClientUpdates, NDArray[np.bool_]]:
    """Scale updates down to an L2 norm of at most `clip`; return them, and which were shorter."""
    lengths = norms(updates.fields, field_weights)
    factors = np.where(lengths > clip, clip / np.maximum(lengths, clip), 1.0)
    fields = {
        name: replace(rows.scaled(factors), center=None) for name, rows in updates.fields.items()
    }
    return updates.with_fields(**fields), lengths <= clip


def round_updates(
    updates: ClientUpdates, clip: float, field_weights: dict[str, float], variance: float, key: Any
) -> ClientUpdates:
    """Round clipped updates to the grid and add each client's share of the noise."""
    fields = {}
    for name, rows in updates.fields.items():
        step = clip / STEPS / field_weights.get(name, 1.0)
        if not variance:
            rows = rows.written_out()
            fields[name] = rows.with_values(step * np.rint(rows.values / step))
            continue
        # Rows that the client has not changed are as noisy as the others.
        whole = np.rint(rows.whole() / step)
        seeds = key.hashed(f"share of the noise of {name}", updates.clients)
        for one, seed in zip(whole, seeds, strict=True):
            one += skellam(variance, one.shape, np.random.default_rng(int(seed)))
        fields[name] = rows.with_whole(step * whole)
    return updates.with_fields(**fields)
