"""Local differential privacy: every client adds noise to what it uploads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from sklearn.base import BaseEstimator

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from fedrecsk.uploads import Batch, Form

# Numbers in float32 end at 3.4e38; with this limit, sums over many clients still fit.
LARGEST = 1e30


class LocalMechanism(BaseEstimator, ABC):
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

    @abstractmethod
    def noise_std(self, n_coordinates: int) -> float:
        """Standard deviation of the noise in each number of an upload of `n_coordinates`."""

    def _check_form(self, name: str, form: Form) -> None:
        """Raise if the mechanism would not protect a field of this form."""
        if form.rows != "all" or form.is_integer:
            raise RuntimeError(
                f"Field {name!r} would be sent without noise: it has rows={form.rows!r} and "
                f"dtype={form.dtype!r}. With {type(self).__name__}, every field must have "
                "rows='all' and real numbers; declare them in _upload_forms."
            )

    @abstractmethod
    def _protect(
        self, batch: Batch, seeds: Callable[[str], NDArray[np.uint64]], *, each: bool
    ) -> None:
        """Protect the uploads of a batch, in place.

        Parameters
        ----------
        batch : Batch
            With changes as the method returns them.
        seeds : callable
            Returns every client's seed for a purpose.
        each : bool
            Whether every client must draw its own noise. Otherwise a mechanism that can draw the
            noise of many clients at once (`summed_noise`) may leave it out, and set
            ``batch.lacks_noise``.

        Raises
        ------
        RuntimeError
            If the mechanism would not protect a field.
        """
