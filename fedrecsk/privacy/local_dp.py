"""Local differential privacy: every client adds noise to what it uploads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedrecsk._utils.parameters import PlainParameters, checked
from fedrecsk._utils.sklearn_compat import Interval

if TYPE_CHECKING:
    from collections.abc import Callable

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
        """Total epsilon of a client, at this mechanism's `delta`.

        Parameters
        ----------
        n_uploads : int
            How often it uploads.
        n_coordinates : int or None, default=None
            How many numbers it uploads, in all its uploads together. Only mechanisms that protect
            number by number need it.

        Returns
        -------
        epsilon : float
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
        """Standard deviation of the noise in each number of an upload of `n_coordinates`."""

    def _check_spec(self, name: str, spec: FieldSpec) -> None:
        """Raise if the mechanism would not protect a field of this form."""
        if spec.rows != "all" or spec.is_integer:
            raise RuntimeError(
                f"Field {name!r} would be sent without noise: it has rows={spec.rows!r} and "
                f"dtype={spec.dtype!r}. With {type(self).__name__}, every field must have "
                "rows='all' and real numbers; declare them in _upload_specs."
            )

    @abstractmethod
    def _protect(
        self, updates: ClientUpdates, seeds: Callable[[str], NDArray[np.uint64]], *, each: bool
    ) -> ClientUpdates:
        """Protect each update; unless `each`, noise may be left out and `lacks_noise` set."""


# ------------------------------------------------------------------- whole uploads as one vector
# Everybody can compute what a client without data would send, so that only the difference from it
# needs protection. For most methods it is zero; for RFRec, it is how vectors of items that a client
# has not rated follow the server's (`SparseRows.default`).


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
