"""Local differential privacy: every client adds noise to what it uploads."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache
from numbers import Integral, Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import betainc, betaincinv, betaln

from fedrecsk._utils.constraints import AtLeast1, Between0And1, From0Below1
from fedrecsk._utils.parameters import PlainParameters, checked, limits_of
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.privacy._grid import rounded, step_of, towards_zero
from fedrecsk.privacy.accounting import (
    SAFETY,
    gaussian_delta,
    gaussian_epsilon,
    laplace_epsilon,
    pure_epsilon,
)
from fedrecsk.updates import as_integers, client_generator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from fedrecsk.updates import ClientUpdates, FieldSpec, SparseRows

# A client whose uploads cost more is not protected at all.
Total = Annotated[float, Interval(Real, 0, 1e6, closed="right")]
# Numbers in float32 end at 3.4e38; with this limit, sums over many clients still fit.
LARGEST = 1e30
# The step of the grid of smaller noise would be 0.
SMALLEST = 1e-30
# Norms are computed in float64, whose rounding must not make a clipped upload too long.
MARGIN = 1 - 2.0**-24
# SphereMechanism: from here the probability of the cap differs enough from its share, and up to
# here it is a normal float64.
LEAST, MOST = 1e-9, 500.0
# Likewise: the grid in the typical size of a number is coarser, so that the rounding of the
# computation hardly ever changes the result.
SPHERE_BITS = 10


# -------------------------------------------------------------------------------- mechanisms


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
    def _calibration(cls, epsilon: Total, n_uploads: AtLeast1, clip, delta):
        """Check the arguments of `for_epsilon`; return a mechanism, and two as Python's numbers."""
        caller, limits = f"{cls.__name__}.for_epsilon", limits_of(cls._calibration)
        numbers = checked(caller, limits, epsilon=epsilon, n_uploads=n_uploads)
        mechanism = cls(clip, 1.0, delta=delta)
        mechanism._validate_params()
        return mechanism, *numbers

    def _counts(self, **counts):
        """Check numbers of uploads or coordinates and return them as Python's numbers."""
        limits = {name: [Interval(Integral, 0, None, closed="left")] for name in counts}
        return checked(f"{type(self).__name__}.total_epsilon", limits, **counts)

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
                f"field must have rows='all' and {needs}; declare them in `fields`."
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


def norms(
    fields: dict[str, SparseRows], weights: Mapping[str, float] = MappingProxyType({})
) -> NDArray[np.float64]:
    """Return the L2 norm of each client's whole upload, its fields times weights."""
    return np.sqrt(
        sum((weights.get(name, 1.0) * rows.norms()) ** 2 for name, rows in fields.items())
    )


def with_noise(
    whole: np.ndarray, seeds: NDArray[np.uint64], name: str, draw: Callable[..., Any], scale: float
) -> np.ndarray:
    """Add draws times `scale` to each client's numbers of a field, both on a grid, in place."""
    step = step_of(scale)
    towards_zero(whole, step)
    for one, seed in zip(whole, seeds, strict=True):
        one += rounded(draw(client_generator(seed, name), one.shape) * scale, step)
    return whole


@dataclass(eq=False, repr=False)
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
    Numbers and noise are multiples of a power of two, at most scale / 2**20, so that last digits
    reveal nothing. With a positive `delta`, the total is a bound by Renyi differential privacy; see
    :doc:`/user_guide/privacy`.

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

    clip: Annotated[Any, Interval(Real, SMALLEST, LARGEST, closed="both")] = None
    scale: Annotated[Any, Interval(Real, SMALLEST, LARGEST, closed="both")] = None
    _: KW_ONLY
    delta: From0Below1 = 0.0

    name = "laplace"
    protects_uploads = False

    def _validate_params(self):
        if self.clip is not None and self.scale is None:
            raise ValueError(
                "LaplaceMechanism has a clip but no scale, so nothing would be private; set "
                "scale=2 * clip / epsilon for the epsilon you want per coordinate and upload."
            )
        super()._validate_params()

    @property
    def number_clip(self) -> float | None:
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
        return float(np.sqrt(2) * self.scale)

    def summed_noise(
        self, n_clients: int, shape: tuple[int, ...], generator: np.random.Generator
    ) -> NDArray[np.float64]:
        """Draw the sum of `n_clients` independent noises: Gamma(n, scale) - Gamma(n, scale)."""
        plus = generator.gamma(n_clients, self.scale, shape)
        return rounded(plus - generator.gamma(n_clients, self.scale, shape), step_of(self.scale))

    def _protect(self, updates, seeds, *, each):
        def draw(generator, shape):
            # The difference of two exponential draws is a Laplace draw, in half the time.
            return generator.standard_exponential(shape) - generator.standard_exponential(shape)

        clip, fields = self.clip, {}
        for name, rows in updates.fields.items():
            self._check_spec(name, updates.specs[name])
            honest = rows.whole()
            center = np.zeros(1) if rows.center is None else rows.center.astype(np.float64)
            # Clipped again, because adding what was subtracted may round up.
            noised = np.clip(honest + center, -clip, clip)
            noised = with_noise(noised, seeds(f"noise of {name}"), name, draw, self.scale)
            noised -= center
            if rows.columns is not None:
                noised = np.where(rows.columns[:, None, :], noised, honest)
            if rows.spec.is_integer:
                noised = as_integers(noised, rows.spec)
            fields[name] = rows.with_whole(noised)
        return updates.with_fields(**fields)


@dataclass(eq=False, repr=False)
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
    closed form is exact (Balle and Wang, ICML 2018, theorem 8). Numbers and noise are multiples of
    a power of two, as those of :class:`LaplaceMechanism`.

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

    clip: Annotated[Any, Interval(Real, SMALLEST, LARGEST, closed="both")] = None
    noise_multiplier: Annotated[Any, Interval(Real, SMALLEST, LARGEST, closed="both")] = None
    _: KW_ONLY
    delta: Between0And1 = 1e-5

    name = "gaussian"
    protects_uploads = True

    @classmethod
    def for_epsilon(
        cls, epsilon: float, n_uploads: int, *, clip: float = 1.0, delta: float = 1e-5
    ) -> Self:
        """Find the least noise with which `n_uploads` uploads cost `epsilon` in total.

        `epsilon` is at most 1e6. `n_uploads` is the number of uploads of a client: the rounds, if
        all clients take part in each. A ValueError names a number that is out of range.
        """
        mechanism, epsilon, n_uploads = cls._calibration(epsilon, n_uploads, clip, delta)
        delta = mechanism.delta

        def excess(log_mu):
            # A ratio, because values of delta are small.
            return gaussian_delta(np.exp(log_mu), epsilon) / delta - 1

        root = brentq(excess, np.log(1e-9 * epsilon), np.log(10 + 10 * epsilon))
        mu = float(np.exp(root))
        multiplier = 2 * float(np.sqrt(n_uploads)) / mu * (1 + SAFETY)
        return mechanism._set(noise_multiplier=multiplier)

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
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = np.minimum(1.0, MARGIN * self.clip / norms(parts))
        own, fields = seeds("noise of the upload") if each else None, {}
        for name, part in parts.items():
            part = part.scaled(factors)
            if own is not None:
                draw = np.random.Generator.standard_normal
                part = part.with_whole(with_noise(part.whole(), own, name, draw, self.std))
            fields[name] = with_default(part, updates.fields[name])
        return replace(updates.with_fields(**fields), lacks_noise=not each)


class Cap(NamedTuple):
    """The directions near an upload's, and how likely an answer is among them."""

    height: float  # least cosine of its directions with the upload's (gamma)
    share: float  # share of the sphere (q)
    chance: float  # probability with which the answer is in the cap (p)
    mean: float  # expected cosine of the answer with the upload's direction (m)


@lru_cache(maxsize=64)
def best_cap(dimension: int, epsilon: float) -> Cap:
    """Return the cap with the largest expected cosine that is `epsilon`-differentially private."""
    # Answers in the cap have the density p / q relative to a uniform direction, all others
    # (1 - p) / (1 - q). Their ratio is exp(epsilon).

    def negative_mean(height):
        return -np.log(_cap(dimension, epsilon, height).mean)

    # A higher cap than this has a share below exp(-epsilon) / 10, and is chosen too seldom.
    highest = float(np.sqrt(-np.expm1(-2 * (epsilon + 4) / max(dimension - 1, 1))))
    found = minimize_scalar(
        negative_mean, bounds=(0.0, highest), method="bounded", options={"xatol": 1e-6 * highest}
    )
    heights = (0.0, float(found.x))
    return max((_cap(dimension, epsilon, height) for height in heights), key=lambda cap: cap.mean)


def _cap(dimension, epsilon, height):
    half = (dimension - 1) / 2
    share = float(betainc(half, 0.5, 1 - height**2) / 2)
    gain = np.expm1(epsilon)
    # Mean of the cosine over the cap, times the cap's share; minus as much over the rest.
    moment = np.exp(half * np.log1p(-(height**2)) - betaln(0.5, half)) / (2 * half)
    chance = (gain + 1) * share / (1 + gain * share)
    return Cap(height, share, float(chance), float(moment * gain / (1 + gain * share)))


@dataclass(eq=False, repr=False)
class SphereMechanism(LocalMechanism):
    """Send a random direction that tends to be that of the client's upload: PrivUnit.

    An upload, all its fields together, is scaled down to a Euclidean norm of at most `clip`. The
    client sends a vector of a fixed length whose direction is random, but in a cap of the sphere
    around the upload's direction with a raised probability. Its expectation is the clipped upload.
    One upload is `epsilon`-differentially private as a whole, for any change of the client's data.

    Parameters
    ----------
    clip : float in [1e-30, 1e30]
        Largest norm of an upload, in the units of the uploaded parameters.
    epsilon : float in [1e-9, 500]
        Epsilon of one whole upload.
    delta : float in [0, 1), default=0.0
        Probability, roughly, with which the total epsilon of several uploads may be exceeded. 0:
        pure differential privacy, where the total is `epsilon` times the number of uploads. With
        1e-5, say, it is smaller if there are many uploads of a small epsilon.

    Notes
    -----
    The mechanism is PrivUnit of [1]_ with the cap that makes the answer's error least ([2]_
    shows that this is the best among all unbiased mechanisms). With a cap of half the sphere it is
    that of [3]_. An upload shorter than `clip` is first turned around with probability
    ``1/2 - norm / (2 clip)``, as in [3]_, which keeps its length on average.

    Every client's random direction is drawn even in a simulation, because the sum of such
    directions is not one draw. The total epsilon is the exact composition of mechanisms of which
    nothing is known but `epsilon` (Kairouz, Oh and Viswanath, ICML 2015). Answers are rounded to
    multiples of a power of two, about a thousandth of the size of a number, which hides their last
    digits; unlike for added noise, this does not prove anything, see :doc:`/user_guide/privacy`.

    References
    ----------
    .. [1] A. Bhowmick, J. Duchi, J. Freudiger, G. Kapoor and R. Rogers, "Protection against
       reconstruction and its applications in private federated learning", 2018, section 4.1.
    .. [2] H. Asi, V. Feldman and K. Talwar, "Optimal algorithms for mean estimation under local
       differential privacy", ICML 2022.
    .. [3] J. Duchi, M. Jordan and M. Wainwright, "Minimax optimal procedures for locally private
       estimation", JASA 2018, section 4.2.3.

    Examples
    --------
    >>> from fedrecsk.privacy import SphereMechanism
    >>> mechanism = SphereMechanism(clip=1.0, epsilon=4.0)
    >>> mechanism.total_epsilon(n_uploads=10)
    40.0
    >>> round(mechanism.noise_std(n_coordinates=1000), 3)  # of each number
    0.659
    """

    clip: Annotated[Any, Interval(Real, SMALLEST, LARGEST, closed="both")] = None
    epsilon: Annotated[Any, Interval(Real, LEAST, MOST, closed="both")] = None
    _: KW_ONLY
    delta: From0Below1 = 0.0

    name = "sphere"
    protects_uploads = True

    @classmethod
    def for_epsilon(
        cls, epsilon: float, n_uploads: int, *, clip: float = 1.0, delta: float = 0.0
    ) -> Self:
        """Find the epsilon of one upload with which `n_uploads` of them cost `epsilon` in total.

        As :meth:`GaussianMechanism.for_epsilon`. The epsilon of one upload must be from 1e-9 to
        500.
        """
        mechanism, epsilon, n_uploads = cls._calibration(epsilon, n_uploads, clip, delta)
        delta = mechanism.delta
        each = epsilon / n_uploads
        if delta > 0 and n_uploads > 1:

            def excess(one):
                return pure_epsilon(one, n_uploads, delta) - epsilon

            # The composition is never above the sum.
            above = each
            while above <= MOST and excess(above) <= 0:
                above *= 2
            each = float(brentq(excess, each, above, xtol=1e-9 * each, rtol=1e-9))
            each *= 1 - SAFETY
        elif n_uploads * each > epsilon:
            # By a rounding error.
            each = math.nextafter(each, 0)
        mechanism._set(epsilon=each)._validate_params()
        return mechanism

    def total_epsilon(self, n_uploads: int, n_coordinates: int | None = None) -> float:
        self._validate_params()
        (n_uploads,) = self._counts(n_uploads=n_uploads)
        return float(pure_epsilon(self.epsilon, n_uploads, self.delta))

    def noise_std(self, n_coordinates: int) -> float:
        """Return the noise's mean standard deviation in each number of a clipped upload."""
        self._validate_params()
        dimension = max(2, n_coordinates)
        length = self.clip / best_cap(dimension, float(self.epsilon)).mean
        return float(np.sqrt((length**2 - self.clip**2) / dimension))

    def _protect(self, updates, seeds, *, each):
        parts = own_parts(updates, self)
        wholes = {name: part.whole() for name, part in parts.items()}
        flat = [whole.reshape(len(whole), -1) for whole in wholes.values()]
        ends, uploads = np.cumsum([one.shape[1] for one in flat]), np.concatenate(flat, axis=1)
        lengths = norms(parts)
        for upload, length, seed in zip(uploads, lengths, seeds("sphere"), strict=True):
            if np.isfinite(length):
                upload[:] = self._draw(upload, length, np.random.default_rng(int(seed)))
        fields = {}
        for name, answers in zip(parts, np.split(uploads, ends[:-1], axis=1), strict=True):
            part = parts[name].with_whole(answers.reshape(wholes[name].shape))
            fields[name] = with_default(part, updates.fields[name])
        return updates.with_fields(**fields)

    def _draw(self, upload, length, generator):
        """Draw a client's answer to its upload, a vector of this norm, which is not changed."""
        if len(upload) == 1:
            # A circle, of which one coordinate is sent.
            return self._draw(np.append(upload, 0.0), length, generator)[:1]
        cap = best_cap(len(upload), float(self.epsilon))
        kept = (1 + min(1.0, length / self.clip)) / 2
        if length > 0:
            direction = upload / length
        else:
            direction = np.zeros(len(upload))
            direction[0] = 1.0
        if generator.random() >= kept:
            direction = -direction
        cosine = _cosine(cap, len(upload), generator)
        across = generator.standard_normal(len(upload))
        across -= (across @ direction) * direction
        across *= np.sqrt(1 - cosine**2) / np.linalg.norm(across)
        across += cosine * direction
        across *= self.clip / cap.mean
        return rounded(across, step_of(self.clip / cap.mean / np.sqrt(len(upload)), SPHERE_BITS))


def _cosine(cap, dimension, generator):
    """Draw a cosine with the upload's direction, in the cap or outside it."""
    half = (dimension - 1) / 2
    within = generator.random() < cap.chance
    # Share of the sphere with a larger cosine; never 0.
    above = 1 - generator.random()
    above = cap.share * above if within else cap.share + (1 - cap.share) * above
    size = np.sqrt(1 - betaincinv(half, 0.5, 2 * min(above, 1 - above)))
    return size if above <= 0.5 else -size
