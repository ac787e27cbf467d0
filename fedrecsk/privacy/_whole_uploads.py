"""Clients' whole uploads, all fields together, for mechanisms that clip them as one vector.

What a client without data would send can be computed by everybody, so that only the difference
from it needs protection. For most methods it is zero; for RFRec, it is how vectors of items that a
client has not rated follow the server's (`Ragged.common`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedrecsk.uploads import Scaled, Update

if TYPE_CHECKING:
    from fedrecsk.privacy.local_dp import LocalMechanism
    from fedrecsk.uploads import Batch, Changes, Ragged

# Norms are computed in float64, whose rounding must not make a clipped upload too long.
MARGIN = 1 - 2.0**-24


class Own(NamedTuple):
    """One field of a block's uploads.

    Attributes
    ----------
    changes : Ragged
        As the method returns them.
    apart : Ragged
        The same, less what a client without data would send.
    common : ndarray of the field's shape, or None
        Change of a client without data. None: zero.
    """

    changes: Ragged
    apart: Ragged
    common: np.ndarray | None


def own_parts(batch: Batch, mechanism: LocalMechanism) -> dict[str, Own]:
    """All fields of a batch, or a RuntimeError if the mechanism would not protect one."""
    parts = {}
    for name, changes in (batch.changes | batch.counts).items():
        mechanism._check_form(name, batch.forms[name])
        if changes.columns is not None:
            raise RuntimeError(
                f"Field {name!r} has columns of each client's own, which "
                f"{type(mechanism).__name__} cannot clip as one vector; use LaplaceMechanism."
            )
        parts[name] = _parted(changes)
    return parts


def _parted(changes):
    if changes.common is None:
        return Own(changes, changes, None)
    common = changes.common.change.reshape(changes.shape)
    origin = common if changes.origin is None else changes.origin + common
    return Own(changes, replace(changes, origin=origin, common=None), common)


def norms(parts: dict[str, Own], accepted: np.ndarray) -> np.ndarray:
    """Euclidean norm of each client's whole upload, shape (n_clients,)."""
    return np.sqrt(sum(one.apart.norms(accepted) ** 2 for one in parts.values()))


def clip_factors(lengths: np.ndarray, clip: float) -> np.ndarray:
    """What to multiply uploads of these norms with, so that none is longer than `clip`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.minimum(1.0, MARGIN * clip / lengths)


def replace_fields(batch: Batch, fields: dict[str, Changes]) -> None:
    """Put other changes in the place of a batch's fields."""
    for place in (batch.changes, batch.counts):
        place.update({name: fields[name] for name in place})


class Clipped(Scaled):
    """One field of a block's uploads, clipped with all other fields.

    Parameters
    ----------
    own : Own
    factors : ndarray of shape (n_clients,)
    """

    def __init__(self, own: Own, factors: np.ndarray) -> None:
        super().__init__(own.apart, factors)
        self.own = own

    def update(self, client):
        rows, change = super().update(client)
        return Update(rows, self.shifted(change))

    def shifted(self, apart):
        """With what a client without data would send."""
        return apart if self.own.common is None else apart + self.own.common

    def add_to(self, sums, weights):
        super().add_to(sums, weights)
        if self.own.common is not None:
            sums += weights.sum() * self.own.common

    def finite(self, mask):
        return self.own.changes.finite(mask)
