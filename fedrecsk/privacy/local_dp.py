"""Local differential privacy: every client adds noise to what it uploads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy.optimize import brentq

from fedrecsk._utils.parameters import PlainParameters, checked
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.privacy._grid import rounded, step_of, towards_zero
from fedrecsk.privacy.accounting import gaussian_delta, gaussian_epsilon, laplace_epsilon
from fedrecsk.updates import as_integers, client_generator

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from numpy.typing import NDArray

    from fedrecsk.updates import ClientUpdates, FieldSpec, SparseRows

# A client whose uploads cost more is not protected at all.
LARGEST_EPSILON = 1e6
# Numbers in float32 end at 3.4e38; with this limit, sums over many clients still fit.
LARGEST = 1e30
# The step of the grid of smaller noise would be 0.
SMALLEST = 1e-30
# Norms are computed in float64, whose rounding must not make a clipped upload too long.
MARGIN = 1 - 2.0**-24


class LocalMechanism(PlainParameters, ABC):
    """Base class of local mechanisms: what ``Federation(local_dp=...)`` takes.

    Attributes
    ----------
    name : str
        Its name in reports.
    protects_uploads : bool
        Whether the mechanism clips and protects each upload as a whole. Otherwise it protects
        number by number, and methods clip each number to `number_clip`.
    """

    name: ClassVar[str]
    protects_uploads: ClassVar[bool]
    # Probability, roughly, with which the guarantee may fail.
    delta: float

    @property
    def number_clip(self) -> float | None:
        """Bound to which methods must clip each number that they upload; None: no bound."""
        return None

    @property
    def epsilon_per_coordinate(self) -> float:
        """Epsilon of one number of one upload, or of the upload, if it is protected as a whole."""
        return self.total_epsilon(1, 1)

    @abstractmethod
    def total_epsilon(self, n_uploads: int, n_coordinates: int | None = None) -> float:
        """Return the total epsilon of a client that uploads so often, at this mechanism's `delta`.

        Mechanisms that protect number by number need to know how many numbers these uploads have
        together.
        """

    @classmethod
    def _calibration(cls, epsilon, n_uploads):
        """Check the arguments of `for_epsilon` and return them as Python's numbers."""
        constraints = {
            "epsilon": [Interval(Real, 0, LARGEST_EPSILON, closed="right")],
            "n_uploads": [Interval(Integral, 1, None, closed="left")],
        }
        caller = f"{cls.__name__}.for_epsilon"
        return checked(caller, constraints, epsilon=epsilon, n_uploads=n_uploads)

    def _counts(self, **counts):
        """Check numbers of uploads or coordinates and return them as Python's numbers."""
        constraints = {name: [Interval(Integral, 0, None, closed="left")] for name in counts}
        return checked(f"{type(self).__name__}.total_epsilon", constraints, **counts)

    @abstractmethod
    def noise_std(self, n_coordinates: int) -> float:
        """Return the noise's standard deviation in each number of an upload."""

    def _check_spec(self, name: str, spec: FieldSpec) -> None:
        """Raise if the mechanism would not protect a field of this form."""
        by_number = not self.protects_uploads
        if spec.rows != "all" or (spec.clip != self.number_clip if by_number else spec.is_integer):
            needs = f"the clip of local_dp, {self.number_clip}" if by_number else "real numbers"
            raise RuntimeError(
                f"Field {name!r} would be sent without noise: it has rows={spec.rows!r}, "
                f"clip={spec.clip} and dtype={spec.dtype!r}. With {type(self).__name__}, every "
                f"field must have rows='all' and {needs}; declare them in _upload_specs."
            )

    @abstractmethod
    def _protect(
        self, updates: ClientUpdates, seeds: Callable[[str], NDArray[np.uint64]], *, each: bool
    ) -> ClientUpdates:
        """Protect each update; unless `each`, noise may be left out and `lacks_noise` set."""


# ------------------------------------------------------------------- whole uploads as one vector
# Only the difference from what a client without data would send needs protection. For most methods
# that is zero; in RFRec, unrated items follow the server's (`SparseRows.default`).


def own_parts(updates: ClientUpdates, mechanism: LocalMechanism) -> dict[str, SparseRows]:
    """Subtract the defaults of all fields, or raise if the mechanism would not protect one."""
    parts = {}
    for name, rows in updates.fields.items():
        mechanism._check_spec(name, updates.specs[name])
        if rows.columns is not None:
            raise RuntimeError(
                f"Field {name!r} has columns of each client's own, which "
                f"{type(mechanism).__name__} cannot clip as one vector; use LaplaceMechanism."
            )
        values = rows.values.astype(np.float64)
        if rows.default is not None:
            values -= rows.default[rows.rows]
        parts[name] = replace(rows, values=values, default=None)
    return parts


def with_default(part: SparseRows, rows: SparseRows) -> SparseRows:
    """Add what a client without data would send, which the original `rows` have."""
    if rows.default is None:
        return part
    values = part.values + rows.default[part.rows]
    return replace(part, values=values, default=rows.default)


def norms(parts: dict[str, SparseRows]) -> np.ndarray:
    """Return the Euclidean norm of each client's whole upload, shape (n_clients,)."""
    return np.sqrt(sum(part.norms() ** 2 for part in parts.values()))


def clip_factors(lengths: np.ndarray, clip: float) -> np.ndarray:
    """Return what to multiply uploads of these norms by, so that none is longer than `clip`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.minimum(1.0, MARGIN * clip / lengths)


class LaplaceMechanism(LocalMechanism):
    """Clip each uploaded coordinate to [-clip, clip] and add Laplace(0, scale) noise.

    One coordinate of one upload is then epsilon-differentially private with epsilon = 2 clip /
    scale, for any change of the client's data (RFRec, section 3.4, equation 9). ``privacy_`` of a
    fitted model has the total epsilon of all coordinates in all rounds.

    Parameters
    ----------
    clip : float in [1e-30, 1e30]
        Bound on the size of each coordinate (delta), in the units of the uploaded parameters.
    scale : float in [1e-30, 1e30]
        Scale of the Laplace noise (s), in the same units.
    delta : float in [0, 1), default=0.0
        Probability, roughly, with which the total epsilon may be exceeded. 0: pure differential
        privacy, where the total is the sum over all coordinates.

    Notes
    -----
    A clipped number and its noise are both multiples of a power of two, at most scale / 2**20,
    before they are added, so that the last digits of the sum reveal nothing. With a positive
    `delta`, the total is a bound by Renyi differential privacy; see :doc:`/user_guide/privacy`.

    Examples
    --------
    >>> from fedrecsk.privacy import LaplaceMechanism
    >>> LaplaceMechanism(clip=0.2, scale=0.04).epsilon
    10.0
    >>> weak, pure = (
    ...     LaplaceMechanism(clip=0.2, scale=40.0, delta=delta) for delta in (1e-5, 0.0)
    ... )
    >>> round(weak.total_epsilon(1, 10_000), 2), round(pure.total_epsilon(1, 10_000), 2)
    (4.38, 100.0)
    """

    name = "laplace"
    protects_uploads = False
    _parameter_constraints: ClassVar[dict] = {
        "clip": [Interval(Real, SMALLEST, LARGEST, closed="both")],
        "scale": [Interval(Real, SMALLEST, LARGEST, closed="both")],
        "delta": [Interval(Real, 0, 1, closed="left")],
    }

    def __init__(
        self, clip: float | None = None, scale: float | None = None, *, delta: float = 0.0
    ):
        self.clip: Any = clip
        self.scale: Any = scale
        self.delta = delta

    def _validate_params(self):
        if self.clip is not None and self.scale is None:
            raise ValueError(
                "LaplaceMechanism has a clip but no scale, so nothing would be private; set "
                "scale=2 * clip / epsilon for the epsilon you want per coordinate and upload."
            )
        super()._validate_params()

    @property
    def number_clip(self) -> float | None:
        """Bound to which methods must clip each number."""
        return self.clip

    @property
    def epsilon(self) -> float:
        """Epsilon of one coordinate of one upload."""
        self._validate_params()
        return 2 * self.clip / self.scale

    epsilon_per_coordinate = epsilon

    def total_epsilon(self, n_uploads: int, n_coordinates: int | None = None) -> float:
        if n_coordinates is None:
            raise ValueError(
                "LaplaceMechanism protects number by number: total_epsilon needs n_coordinates, "
                "how many numbers a client uploads in all its uploads together."
            )
        _, n_coordinates = self._counts(n_uploads=n_uploads, n_coordinates=n_coordinates)
        return laplace_epsilon(self.epsilon, n_coordinates, self.delta)

    def noise_std(self, n_coordinates: int) -> float:
        """Return the standard deviation of the noise in each number."""
        return float(np.sqrt(2) * self.scale)

    def summed_noise(
        self, n_clients: int, shape: tuple[int, ...], generator: np.random.Generator
    ) -> NDArray[np.float64]:
        """Draw the sum of `n_clients` independent noises: Gamma(n, scale) - Gamma(n, scale)."""
        plus = generator.gamma(n_clients, self.scale, shape)
        return rounded(plus - generator.gamma(n_clients, self.scale, shape), step_of(self.scale))

    def _protect(self, updates, seeds, *, each):
        clip, fields, step = self.clip, {}, step_of(self.scale)
        for name, rows in updates.fields.items():
            self._check_spec(name, updates.specs[name])
            honest = rows.whole()
            center = np.zeros(1) if rows.center is None else rows.center.astype(np.float64)
            # Clipped again, because adding what was subtracted may round up.
            noised = np.clip(honest + center, -clip, clip)
            noised = towards_zero(noised, step)
            for one, seed in zip(noised, seeds(f"noise of {name}"), strict=True):
                # The difference of two exponential draws is a Laplace draw, in half the time.
                generator = client_generator(seed, name)
                noise = generator.standard_exponential(one.shape)
                noise -= generator.standard_exponential(one.shape)
                one += rounded(noise * self.scale, step)
            noised -= center
            if rows.columns is not None:
                noised = np.where(rows.columns[:, None, :], noised, honest)
            if rows.spec.is_integer:
                noised = as_integers(noised, rows.spec)
            fields[name] = rows.with_whole(noised)
        return updates.with_fields(**fields)


class GaussianMechanism(LocalMechanism):
    """Clip each client's whole upload and add Gaussian noise to every number of it.

    An upload, all its fields together, is scaled down to a Euclidean norm of at most `clip`. Each
    number then receives noise of the standard deviation ``noise_multiplier * clip``. Replacing the
    client's data by any other data moves the upload by at most ``2 * clip``.

    Parameters
    ----------
    clip : float in [1e-30, 1e30]
        Largest norm of an upload, in the units of the uploaded parameters.
    noise_multiplier : float in [1e-30, 1e30]
        Standard deviation of the noise, divided by `clip` (z).
    delta : float in (0, 1), default=1e-5
        Probability, roughly, with which the total epsilon may be exceeded. It should be well below
        one divided by the number of clients.

    Notes
    -----
    T uploads are as private as one whose noise is smaller by a factor of sqrt(T), for which the
    closed form is exact (Balle and Wang, ICML 2018, theorem 8). The clipped numbers and the noise
    are both multiples of a power of two before they are added, so that the last digits of the sum
    reveal nothing; see :doc:`/user_guide/privacy`.

    Examples
    --------
    >>> from fedrecsk.privacy import GaussianMechanism
    >>> mechanism = GaussianMechanism(clip=1.0, noise_multiplier=5.0)
    >>> round(mechanism.total_epsilon(n_uploads=10), 2)
    5.76
    >>> found = GaussianMechanism.for_epsilon(20.0, n_uploads=10)
    >>> round(found.noise_multiplier, 2), round(found.total_epsilon(10), 2)
    (1.83, 20.0)
    """

    name = "gaussian"
    protects_uploads = True
    _parameter_constraints: ClassVar[dict] = {
        "clip": [Interval(Real, SMALLEST, LARGEST, closed="both")],
        "noise_multiplier": [Interval(Real, SMALLEST, LARGEST, closed="both")],
        "delta": [Interval(Real, 0, 1, closed="neither")],
    }

    def __init__(
        self,
        clip: float | None = None,
        noise_multiplier: float | None = None,
        *,
        delta: float = 1e-5,
    ):
        self.clip: Any = clip
        self.noise_multiplier: Any = noise_multiplier
        self.delta = delta

    @classmethod
    def for_epsilon(
        cls, epsilon: float, n_uploads: int, *, clip: float = 1.0, delta: float = 1e-5
    ) -> Self:
        """Find the least noise with which `n_uploads` uploads cost `epsilon` in total.

        `epsilon` is at most 1e6. `n_uploads` is the number of uploads of a client: the rounds, if
        all clients take part in each. A ValueError names a number that is out of range.
        """
        epsilon, n_uploads = cls._calibration(epsilon, n_uploads)
        mechanism = cls(clip, 1.0, delta=delta)
        mechanism._validate_params()
        delta = mechanism.delta

        def excess(log_mu):
            # A ratio, because values of delta are small.
            return gaussian_delta(np.exp(log_mu), epsilon) / delta - 1

        root = brentq(excess, np.log(1e-9 * epsilon), np.log(10 + 10 * epsilon))
        mu = float(np.exp(root))
        multiplier = 2 * float(np.sqrt(n_uploads)) / mu * (1 + 1e-9)
        return mechanism.set_params(noise_multiplier=multiplier)

    def _validate_params(self):
        if self.clip is not None and self.noise_multiplier is None:
            raise ValueError(
                "GaussianMechanism has a clip but no noise_multiplier, so nothing would be "
                "private; GaussianMechanism.for_epsilon(epsilon, n_uploads, clip=...) finds one."
            )
        super()._validate_params()

    @property
    def epsilon(self) -> float:
        """Epsilon of one upload."""
        return self.total_epsilon(1)

    @property
    def std(self) -> float:
        """Standard deviation of the noise."""
        self._validate_params()
        return float(self.noise_multiplier * self.clip)

    def total_epsilon(self, n_uploads: int, n_coordinates: int | None = None) -> float:
        self._validate_params()
        (n_uploads,) = self._counts(n_uploads=n_uploads)
        if n_uploads == 0:
            return 0.0
        return gaussian_epsilon(2 * float(np.sqrt(n_uploads)) / self.noise_multiplier, self.delta)

    def noise_std(self, n_coordinates: int) -> float:
        """Return the standard deviation of the noise in each number."""
        return self.std

    def summed_noise(
        self, n_clients: int, shape: tuple[int, ...], generator: np.random.Generator
    ) -> NDArray[np.float64]:
        """Draw the sum of `n_clients` independent noises: one draw of a larger variance."""
        noise = generator.standard_normal(shape)
        noise *= np.sqrt(n_clients) * self.std
        return rounded(noise, step_of(self.std))

    def _protect(self, updates, seeds, *, each):
        parts = own_parts(updates, self)
        factors, step = clip_factors(norms(parts), self.clip), step_of(self.std)
        own, fields = seeds("noise of the upload") if each else None, {}
        for name, part in parts.items():
            part = part.scaled(factors)
            if own is not None:
                noised = towards_zero(part.whole(), step)
                for one, seed in zip(noised, own, strict=True):
                    noise = client_generator(seed, name).standard_normal(one.shape)
                    one += rounded(noise * self.std, step)
                part = part.with_whole(noised)
            fields[name] = with_default(part, updates.fields[name])
        return replace(updates.with_fields(**fields), lacks_noise=not each)
