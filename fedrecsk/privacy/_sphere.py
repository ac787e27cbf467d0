"""Random directions on a sphere instead of noise: PrivUnit, for whole uploads."""

from __future__ import annotations

from functools import lru_cache
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import betainc, betaincinv, betaln

from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.privacy._grid import rounded, step_of
from fedrecsk.privacy.accounting import pure_epsilon
from fedrecsk.privacy.local_dp import (
    LARGEST,
    SMALLEST,
    LocalMechanism,
    norms,
    own_parts,
    with_default,
)

if TYPE_CHECKING:
    from typing import Self

# From here the probability of the cap differs enough from its share, and up to here it is a normal
# float64.
LEAST, MOST = 1e-9, 500.0
# Steps of the grid in the typical size of a number, as a power of two: coarser than for noise that
# is added, so that the rounding of the computation hardly ever changes the result.
BITS = 10


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
    digits; unlike for added noise, this is no proof, see :doc:`/user_guide/privacy`.

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

    name = "sphere"
    protects_uploads = True
    _parameter_constraints: ClassVar[dict] = {
        "clip": [Interval(Real, SMALLEST, LARGEST, closed="both")],
        "epsilon": [Interval(Real, LEAST, MOST, closed="both")],
        "delta": [Interval(Real, 0, 1, closed="left")],
    }

    def __init__(
        self, clip: float | None = None, epsilon: float | None = None, *, delta: float = 0.0
    ):
        self.clip: Any = clip
        self.epsilon: Any = epsilon
        self.delta = delta

    @classmethod
    def for_epsilon(
        cls, epsilon: float, n_uploads: int, *, clip: float = 1.0, delta: float = 0.0
    ) -> Self:
        """Find the epsilon of one upload with which `n_uploads` of them cost `epsilon` in total.

        As :meth:`GaussianMechanism.for_epsilon`. The epsilon of one upload must be from 1e-9 to
        500.
        """
        epsilon, n_uploads = cls._calibration(epsilon, n_uploads)
        mechanism = cls(clip, 1.0, delta=delta)
        mechanism._validate_params()
        delta = mechanism.delta
        each = epsilon / n_uploads
        if delta > 0 and n_uploads > 1:

            def excess(one):
                return pure_epsilon(one, n_uploads, delta) - epsilon

            # The composition is never above the sum.
            above = each
            while above <= MOST and excess(above) <= 0:
                above *= 2
            each = float(brentq(excess, each, above, rtol=1e-9)) * (1 - 1e-8)
        mechanism.set_params(epsilon=each)._validate_params()
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
        return rounded(across, step_of(self.clip / cap.mean / np.sqrt(len(upload)), BITS))


def _cosine(cap, dimension, generator):
    """Draw a cosine with the upload's direction, in the cap or outside it."""
    half = (dimension - 1) / 2
    within = generator.random() < cap.chance
    # Share of the sphere with a larger cosine; never 0.
    above = 1 - generator.random()
    above = cap.share * above if within else cap.share + (1 - cap.share) * above
    size = np.sqrt(1 - betaincinv(half, 0.5, 2 * min(above, 1 - above)))
    return size if above <= 0.5 else -size
