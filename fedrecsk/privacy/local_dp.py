"""Local differential privacy: every client clips and perturbs what it sends."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval


class LaplaceMechanism(BaseEstimator):
    """Clip each uploaded coordinate to [-clip, clip] and add Laplace(0, scale) noise.

    One coordinate of one upload is then 2 clip / scale differentially private with respect
    to anything in the client's data (RFRec, section 3.4, equation 9). A client sends many
    coordinates in many rounds; ``privacy_`` of a fitted model has that total, which is what
    an attacker who sees all uploads is held to.

    Parameters
    ----------
    clip : float
        Bound on each coordinate (delta), in the units of the uploaded parameters.
    scale : float
        Scale of the Laplace noise (s), in the same units.

    Examples
    --------
    >>> from fedrecsk.privacy import LaplaceMechanism
    >>> LaplaceMechanism(clip=0.2, scale=0.04).epsilon
    10.0
    """

    _parameter_constraints: dict = {
        "clip": [Interval(Real, 0, None, closed="neither")],
        "scale": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(self, clip: float | None = None, scale: float | None = None):
        self.clip = clip
        self.scale = scale

    def _validate_params(self):
        if self.clip is not None and self.scale is None:
            raise ValueError(
                "LaplaceMechanism has a clip but no scale, so nothing would be private; set "
                "scale=2 * clip / epsilon for the epsilon you want per coordinate and upload."
            )
        super()._validate_params()

    @property
    def epsilon(self) -> float:
        """Privacy loss of one coordinate of one upload."""
        return 2 * self.clip / self.scale

    def summed_noise(self, n_clients, shape, generator):
        """Draw the sum of `n_clients` independent noises.

        A sum of n Laplace(0, s) draws is distributed as Gamma(n, s) - Gamma(n, s), so the
        simulator draws two arrays instead of n.

        Parameters
        ----------
        n_clients : int
        shape : tuple of int
        generator : numpy.random.Generator

        Returns
        -------
        noise : ndarray of `shape`, dtype float64
        """
        plus = generator.gamma(n_clients, self.scale, shape)
        return plus - generator.gamma(n_clients, self.scale, shape)


@dataclass(frozen=True)
class PrivacyReport:
    """What a fit promises about the data behind the uploads.

    Attributes
    ----------
    mechanism : str
        ``"laplace"``, or ``"none"``: plaintext sums without any formal promise.
    epsilon_per_coordinate : float
        Privacy loss of one coordinate of one upload, the number papers quote.
    n_uploads : int
        Most uploads that any one client sent.
    n_coordinates : int
        Most coordinates that any one client sent, over all uploads.
    epsilon : float
        Total privacy loss of that client by basic composition, over all its coordinates
        and uploads. Pure differential privacy (delta = 0).
    """

    mechanism: str
    epsilon_per_coordinate: float
    n_uploads: int
    n_coordinates: int
    epsilon: float

    @classmethod
    def of(cls, mechanism, n_uploads, n_coordinates):
        """Compose what each client sent, given arrays of shape (n_clients,)."""
        uploads, coordinates = int(np.max(n_uploads)), int(np.max(n_coordinates))
        if mechanism is None:
            unbounded = float("inf") if coordinates else 0.0
            return cls("none", unbounded, uploads, coordinates, unbounded)
        each = mechanism.epsilon
        return cls("laplace", each, uploads, coordinates, each * coordinates)
