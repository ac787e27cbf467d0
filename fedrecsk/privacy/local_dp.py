"""Local differential privacy: every client clips its uploads and adds noise to them."""

from __future__ import annotations

import zlib
from numbers import Real
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from sklearn.base import BaseEstimator

from fedrecsk._sklearn import Interval
from fedrecsk.uploads import Changes, Update, as_integers

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Numbers in float32 end at 3.4e38; with this limit, sums over many clients still fit.
_LARGEST = 1e30


class LaplaceMechanism(BaseEstimator):
    """Clip each uploaded coordinate to [-clip, clip] and add Laplace(0, scale) noise.

    One coordinate of one upload is then epsilon-differentially private with epsilon = 2 clip /
    scale, for any change of the client's data (RFRec, section 3.4, equation 9). A client sends
    many coordinates in many rounds; ``privacy_`` of a fitted model has the total epsilon, which
    bounds what an attacker who sees all uploads can learn.

    Parameters
    ----------
    clip : float in (0, 1e30]
        Bound on the size of each coordinate (delta), in the units of the uploaded parameters.
    scale : float in (0, 1e30]
        Scale of the Laplace noise (s), in the same units.

    Examples
    --------
    >>> from fedrecsk.privacy import LaplaceMechanism
    >>> LaplaceMechanism(clip=0.2, scale=0.04).epsilon
    10.0
    """

    _parameter_constraints: ClassVar[dict] = {
        "clip": [Interval(Real, 0, _LARGEST, closed="right")],
        "scale": [Interval(Real, 0, _LARGEST, closed="right")],
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
        """Epsilon of one coordinate of one upload."""
        self._validate_params()
        assert self.clip is not None
        assert self.scale is not None
        return 2 * self.clip / self.scale

    def summed_noise(
        self, n_clients: int, shape: tuple[int, ...], generator: np.random.Generator
    ) -> NDArray[np.float64]:
        """Draw the sum of `n_clients` independent noises.

        A sum of n Laplace(0, s) draws is distributed like Gamma(n, s) - Gamma(n, s), so two draws
        are enough.

        Parameters
        ----------
        n_clients : int
        shape : tuple of int
        generator : numpy.random.Generator

        Returns
        -------
        noise : ndarray of `shape`, dtype float64
        """
        assert self.scale is not None
        plus = generator.gamma(n_clients, self.scale, shape)
        return plus - generator.gamma(n_clients, self.scale, shape)

    def _check_form(self, name, form):
        """Raise if the noise would not protect a field of this form."""
        if form.rows != "all" or form.clip != self.clip:
            raise RuntimeError(
                f"Field {name!r} would be sent without noise: it has rows={form.rows!r} and "
                f"clip={form.clip}. With local_dp, every field must have rows='all' and the "
                f"clip of local_dp, {self.clip}; declare them in _upload_forms, and clip."
            )

    def _noised(self, changes, form, seeds, name=""):
        """Add each client's own noise to its change of one field, drawn when it is used.

        Parameters
        ----------
        changes : Changes
        form : Form
            Declared form of the field.
        seeds : ndarray of shape (n_clients,), dtype uint64
        name : str, default=""
            Name of the field. Fields with the same seeds need different names, or they would get
            the same noise.

        Returns
        -------
        Changes

        Raises
        ------
        RuntimeError
            If the noise would not protect the field.
        """
        self._check_form(name, form)
        return _Noised(changes, form, seeds, name, self.scale)


class _Noised(Changes):
    """One field of a block's uploads with each client's own Laplace noise."""

    def __init__(self, honest, form, seeds, name, scale):
        self.honest = honest
        self.shape = form.shape
        self.n_clients = len(seeds)
        self.is_integer = form.is_integer
        self.form = form
        self.seeds = seeds
        self.name = name
        self.scale = scale

    def update(self, client):
        rows, change = self.honest.update(client)
        noise, other = np.empty((2, *change.shape))
        self._draw(client, noise, other)
        noise += change
        return Update(rows, as_integers(noise, self.form) if self.is_integer else noise)

    def _draw(self, client, noise, other):
        """Write the client's noise into `noise`; `other` is scratch space."""
        generator = np.random.default_rng([int(self.seeds[client]), zlib.crc32(self.name.encode())])
        # The difference of two exponential draws is a Laplace draw, in half the time.
        generator.standard_exponential(out=noise)
        generator.standard_exponential(out=other)
        noise -= other
        noise *= self.scale
        columns = getattr(self.honest, "columns", None)
        if columns is not None:
            noise *= columns[client]

    def add_to(self, sums, weights):
        if self.is_integer:
            super().add_to(sums, weights)
            return
        self.honest.add_to(sums, weights)
        noise, other = np.empty((2, *self.shape))
        for client in np.flatnonzero(weights):
            self._draw(client, noise, other)
            noise *= weights[client]
            sums += noise

    def finite(self, mask):
        return self.honest.finite(mask)
