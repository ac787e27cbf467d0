"""Min-Max: no farther from honest uploads than these are apart (Shejwalkar, Houmansadr, 2021)."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from fedrecsk import _memory
from fedrecsk._sklearn import StrOptions
from fedrecsk.attacks._adversary import Adversary

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class MinMax(Adversary):
    """Upload the mean plus the largest perturbation that stays within the honest uploads' spread.

    Each controlled client sends ``mean + gamma * perturbation``, with the largest gamma for which
    its greatest distance to an honest upload does not exceed the greatest distance between two
    honest ones. This holds for each field on its own.

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.
    perturbation : {"unit_vector", "std", "sign"}, default="std"
        Direction: the inverse of the mean's unit vector, of the standard deviations, or of the
        mean's signs.

    Notes
    -----
    *What it knows*: its own clients' honest uploads, which stand for all honest ones. With one
    client only, it sends the honest upload.

    *What differs from the paper* [1]_: gamma has a closed form instead of a search. It is found
    for each field, because fields have units of their own, and clipping bounds each of them; one
    gamma for all would be that of the field with the largest numbers. Mean and deviation are over
    the clients that send a row, and rows that a client does not send count as 0 in distances, so
    gamma can differ between clients. Clients for which the mean itself is already too far off send
    the mean.

    References
    ----------
    .. [1] V. Shejwalkar and A. Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning
       Attacks and Defenses for Federated Learning", NDSS 2021.

    Examples
    --------
    >>> from fedrecsk.attacks import MinMax
    >>> MinMax(fraction=0.2)
    MinMax(fraction=0.2)
    """

    _parameter_constraints: ClassVar[dict] = Adversary._parameter_constraints | {
        "perturbation": [StrOptions({"unit_vector", "std", "sign"})],
    }

    def __init__(
        self,
        fraction: float = 0.1,
        *,
        perturbation: Literal["unit_vector", "std", "sign"] = "std",
        clients: ArrayLike | None = None,
    ):
        super().__init__(fraction, clients=clients)
        self.perturbation = perturbation

    def _plan(self, view):
        return {name: _Room.of(view, name, self._direction(view, name)) for name in view.forms}

    def _direction(self, view, name):
        mean = view.mean(name)
        match self.perturbation:
            case "unit_vector":
                return -mean / (np.linalg.norm(mean) or 1.0)
            case "std":
                return -view.std(name)
            case _:
                return -np.sign(mean)

    def _forged(self, view, upload, generator):
        return {
            name: update._replace(change=view.plan[name].farthest(update.rows))
            for name, update in upload.items()
        }


class _Room(NamedTuple):
    """How far one field may move from the mean.

    Attributes
    ----------
    mean, direction : ndarray of the field's shape
    honest : ndarray of shape (n_own, n_rows, width)
        Honest uploads, 0 in rows that are not sent.
    bound : float
        Greatest squared distance between two of them.
    known : dict
        What clients send that send all rows.
    """

    mean: NDArray[np.float64]
    direction: NDArray[np.float64]
    honest: NDArray[np.float64]
    bound: float
    known: dict

    @classmethod
    def of(cls, view, name, direction):
        """The room that the adversary's honest uploads leave."""
        shape = (view.n_own, *view.forms[name].shape)
        _memory.require(
            2 * 8 * prod(shape),
            f"MinMax's {view.n_own} uploads of {name!r} side by side",
            "Let it control fewer clients, or use ALIE.",
        )
        honest = np.zeros(shape)
        for one, upload in zip(honest, view.uploads, strict=True):
            one[upload[name].rows] = upload[name].change
        flat = honest.reshape(len(honest), -1)
        products = flat @ flat.T
        squares = products.diagonal()
        distances = squares[:, None] + squares - 2 * products
        return cls(view.mean(name), direction, honest, max(distances.max(), 0.0), {})

    def farthest(self, rows):
        """What a client sends that sends these rows."""
        if not isinstance(rows, slice):
            return self.mean[rows] + self._gamma(rows) * self.direction[rows]
        if not self.known:
            self.known["all"] = self.mean + self._gamma(rows) * self.direction
        return self.known["all"][rows]

    def _gamma(self, rows):
        """The largest root of |mean + gamma direction - honest|^2 = bound, over the nearest."""
        mean, direction = self.mean[rows].ravel(), self.direction[rows].ravel()
        honest = self.honest[:, rows].reshape(len(self.honest), -1)
        gaps = np.square(self.honest).reshape(len(self.honest), -1).sum(axis=1)
        gaps = gaps - 2 * honest @ mean + mean @ mean - self.bound
        slopes, square = (mean - honest) @ direction, direction @ direction
        if square == 0 or (gaps > 0).any():
            return 0.0
        return float(((np.sqrt(slopes**2 - square * gaps) - slopes) / square).min())
