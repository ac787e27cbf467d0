"""Local differential privacy: every client clips and perturbs what it sends."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import numpy as np
from sklearn.base import BaseEstimator

from fedrecsk import _html
from fedrecsk._sklearn import Interval
from fedrecsk.uploads import Changes, Update, as_integers


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

    _parameter_constraints: ClassVar[dict] = {
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

    def _check_form(self, name, form):
        """Raise if noise would not protect a field of this form."""
        if form.rows != "all" or form.clip != self.clip:
            raise RuntimeError(
                f"Field {name!r} would be sent without noise: it has rows={form.rows!r} and "
                f"clip={form.clip}. Under local_dp, every field must have rows='all' and the "
                f"clip of local_dp, {self.clip}; declare them in _upload_forms, and clip."
            )

    def _noised(self, changes, form, seeds, name=""):
        """Each client's change of one field with its own noise, drawn when somebody looks at it.

        Parameters
        ----------
        changes : Changes
        form : Form
            Declared form of the field.
        seeds : ndarray of shape (n_clients,), dtype uint64
        name : str, default=""
            The field. Fields with the same seeds must have different names, or they would get
            the same noise.

        Returns
        -------
        Changes

        Raises
        ------
        RuntimeError
            If noise would not protect the field.
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
        """Write the client's noise; `other` is scratch."""
        generator = np.random.default_rng([int(self.seeds[client]), zlib.crc32(self.name.encode())])
        # The difference of two exponential draws is a Laplace draw, and takes half its time.
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

    def finite(self, whom):
        return self.honest.finite(whom)


# From the least to the most.
SERVER_SEES = ("encrypted sums", "sums", "single uploads")


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
    server_sees : {"sums", "encrypted sums", "single uploads"}
        What the protocol shows the server. "sums": it needs no more than sums, which arrive in
        plaintext unless `secure_aggregation` encrypts them. "single uploads": the method, a
        robust aggregator or compression makes it look at every client's upload.
    """

    mechanism: str
    epsilon_per_coordinate: float
    n_uploads: int
    n_coordinates: int
    epsilon: float
    server_sees: str = "sums"

    @classmethod
    def of(cls, mechanism, n_uploads, n_coordinates, server_sees="sums"):
        """Compose what each client sent, given arrays of shape (n_clients,)."""
        uploads, coordinates = int(np.max(n_uploads)), int(np.max(n_coordinates))
        if mechanism is None:
            unbounded = float("inf") if coordinates else 0.0
            return cls("none", unbounded, uploads, coordinates, unbounded, server_sees)
        each = mechanism.epsilon
        return cls("laplace", each, uploads, coordinates, each * coordinates, server_sees)

    @classmethod
    def joined(cls, reports):
        """What several fits to the same data promise together, by basic composition.

        Parameters
        ----------
        reports : list of PrivacyReport

        Returns
        -------
        report : PrivacyReport
        """
        everywhere = all(one.mechanism == "laplace" for one in reports)
        return cls(
            "laplace" if everywhere else "none",
            max(one.epsilon_per_coordinate for one in reports),
            sum(one.n_uploads for one in reports),
            sum(one.n_coordinates for one in reports),
            sum(one.epsilon for one in reports),
            # Whichever of them sees the most.
            max((one.server_sees for one in reports), key=SERVER_SEES.index),
        )

    def _repr_html_(self):
        rows = [
            ["Mechanism on each upload", self.mechanism],
            ["What the server sees", self.server_sees],
            ["Total ε of the client that lost most", _epsilon(self.epsilon)],
            ["ε of one coordinate of one upload", _epsilon(self.epsilon_per_coordinate)],
            ["Most uploads of one client", f"{self.n_uploads:,}"],
            ["Most coordinates of one client", f"{self.n_coordinates:,}"],
        ]
        notes = []
        if np.isinf(self.epsilon):
            notes.append("ε = ∞: no formal guarantee. Set local_dp for differential privacy.")
        return _html.table("Privacy", [], rows, notes=notes)


def _epsilon(value):
    if np.isinf(value):
        return "∞"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
