"""Gaussian noise on whole uploads."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.optimize import brentq

from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.privacy._composition import gaussian_delta, gaussian_epsilon
from fedrecsk.privacy._grid import rounded, step_of, towards_zero
from fedrecsk.privacy.local_dp import (
    LARGEST,
    SMALLEST,
    LocalMechanism,
    clip_factors,
    norms,
    own_parts,
    with_default,
)
from fedrecsk.updates import client_generator

if TYPE_CHECKING:
    from typing import Any, Self

    from numpy.typing import NDArray


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
    T uploads are as private as one whose noise is smaller by a factor of sqrt(T). The total
    epsilon comes from the closed form for that one (Balle and Wang, ICML 2018, theorem 8), which
    is exact and equals what privacy loss distributions give.

    The clipped numbers and the noise are both multiples of a power of two before they are added,
    so that the last digits of the sum reveal nothing; see :doc:`/user_guide/privacy`. Clipping
    here needs single uploads, so fits take longer than with Laplace noise; noise is still drawn
    once for the sum of all uploads if only the sum matters.

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
        self.clip = clip
        self.noise_multiplier = noise_multiplier
        self.delta = delta

    @classmethod
    def for_epsilon(
        cls, epsilon: float, n_uploads: int, *, clip: float = 1.0, delta: float = 1e-5
    ) -> Self:
        """Find the least noise with which `n_uploads` uploads cost `epsilon` in total.

        Parameters
        ----------
        epsilon : float in (0, 1e6]
        n_uploads : int
            Number of uploads of a client: the rounds, if all clients take part in each.
        clip : float, default=1.0
        delta : float in (0, 1), default=1e-5

        Returns
        -------
        GaussianMechanism

        Raises
        ------
        ValueError
            If `epsilon`, `n_uploads`, `clip` or `delta` is out of range.
        """
        epsilon, n_uploads = cls._calibration(epsilon, n_uploads)
        mechanism = cls(clip, 1.0, delta=delta)
        mechanism._validate_params()
        delta = mechanism.delta

        def excess(log_mu):
            # A ratio, because values of delta are small.
            return gaussian_delta(np.exp(log_mu), epsilon) / delta - 1

        root: Any = brentq(excess, np.log(1e-9 * epsilon), np.log(10 + 10 * epsilon))
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
        assert self.clip is not None
        assert self.noise_multiplier is not None
        return float(self.noise_multiplier * self.clip)

    def total_epsilon(self, n_uploads: int, n_coordinates: int | None = None) -> float:
        self._validate_params()
        assert self.noise_multiplier is not None
        (n_uploads,) = self._counts(n_uploads=n_uploads)
        if n_uploads == 0:
            return 0.0
        return gaussian_epsilon(2 * float(np.sqrt(n_uploads)) / self.noise_multiplier, self.delta)

    def noise_std(self, n_coordinates: int) -> float:
        """Standard deviation of the noise in each number."""
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
