"""Uploads forged without knowledge: noise, flipped signs, random directions."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedrecsk._sklearn import Interval
from fedrecsk.attacks._adversary import Adversary, are_ragged, changed
from fedrecsk.attacks._drawn import Noise, Turned

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class RandomUpload(Adversary):
    """Upload noise: every number is drawn from N(0, strength^2).

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.
    strength : float, default=1.0
        Standard deviation, in the units of the uploads.

    Examples
    --------
    >>> from fedrecsk import Federation, LocALS
    >>> from fedrecsk.attacks import RandomUpload
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> federation = Federation(adversary=RandomUpload(clients=[3, 5]))
    >>> LocALS(n_factors=4, federation=federation, random_state=0).fit(X).compromised_clients_
    array([3, 5])
    """

    _parameter_constraints: ClassVar[dict] = Adversary._parameter_constraints | {
        "strength": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self, fraction: float = 0.1, *, strength: float = 1.0, clients: ArrayLike | None = None
    ):
        super().__init__(fraction, clients=clients)
        self.strength = strength

    def _forged(self, view, upload, generator):
        return changed(
            upload, lambda change: self.strength * generator.standard_normal(change.shape)
        )

    def _forged_batch(self, view, batch, seeds, summed):
        return {name: Noise(batch, name, seeds, self.strength, summed) for name in batch.changes}


class SignFlip(Adversary):
    """Upload ``-scale`` times what the client has honestly learned.

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.
    scale : float, default=5.0
        Factor on the honest change, whose sign is flipped.

    Examples
    --------
    >>> from fedrecsk.attacks import SignFlip
    >>> SignFlip(fraction=0.2, scale=1.0)
    SignFlip(fraction=0.2, scale=1.0)
    """

    _parameter_constraints: ClassVar[dict] = Adversary._parameter_constraints | {
        "scale": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self, fraction: float = 0.1, *, scale: float = 5.0, clients: ArrayLike | None = None
    ):
        super().__init__(fraction, clients=clients)
        self.scale = scale

    def _forged(self, view, upload, generator):
        return changed(upload, lambda change: -self.scale * change)

    def _forged_batch(self, view, batch, seeds, summed):
        if not are_ragged(batch):
            return super()._forged_batch(view, batch, seeds, summed)
        return {name: changes.scaled(-self.scale) for name, changes in batch.changes.items()}


class RandomDirection(Adversary):
    """Upload a random direction with the norm of the honest change, which clipping cannot detect.

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.

    Examples
    --------
    >>> from fedrecsk.attacks import RandomDirection
    >>> RandomDirection(fraction=0.2)
    RandomDirection(fraction=0.2)
    """

    def _forged(self, view, upload, generator):
        def turned(change):
            direction = generator.standard_normal(change.shape)
            return direction * (np.linalg.norm(change) / (np.linalg.norm(direction) or 1))

        return changed(upload, turned)

    def _forged_batch(self, view, batch, seeds, summed):
        return {name: Turned(batch, name, seeds) for name in batch.changes}
