"""Attacks that keep the model from learning, from what the adversary's clients honestly send."""

from __future__ import annotations

from abc import abstractmethod
from numbers import Real
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.stats import norm

from fedrecsk._sklearn import Interval
from fedrecsk.attacks._adversary import Adversary

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from fedrecsk.attacks._view import View


class FromMoments(Adversary):
    """Base class of attacks that plan one array for each field; clients send their rows of it."""

    @abstractmethod
    def _wanted(self, view: View, name: str) -> np.ndarray:
        """What to send in a field, of its whole shape."""

    def _plan(self, view):
        return {name: self._wanted(view, name) for name in view.forms}

    def _forged(self, view, upload, generator):
        return {
            name: update._replace(change=view.plan[name][update.rows])
            for name, update in upload.items()
        }


class ALIE(FromMoments):
    """A Little Is Enough: upload the mean less a few standard deviations, which looks honest.

    Every controlled client sends ``mean - z std``, number by number, over what the adversary's
    clients would honestly send. Many honest uploads lie farther from the mean, so that medians
    and trimmed means keep it, and it always points to the same side.

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.
    z : float, default=None
        Number of standard deviations. None: the largest with which, if numbers are normal, a
        majority can still be made of the controlled clients and honest ones that lie farther out.
        Of n clients that upload, m controlled: the normal quantile of
        ``(n - m - s) / (n - m)`` with ``s = floor(n / 2 + 1) - m``, and at least 0.

    Notes
    -----
    *What it knows*: its own clients' honest uploads, and how many clients upload in the round.

    *What differs from the paper* [1]_: where not all clients send a row, mean and deviation are
    over those of its clients that do, and only these forge it.

    References
    ----------
    .. [1] G. Baruch, M. Baruch and Y. Goldberg, "A Little Is Enough: Circumventing Defenses For
       Distributed Learning", NeurIPS 2019.

    Examples
    --------
    >>> from fedrecsk.attacks import ALIE
    >>> ALIE(fraction=0.2, z=1.5)
    ALIE(fraction=0.2, z=1.5)
    """

    _parameter_constraints: ClassVar[dict] = Adversary._parameter_constraints | {
        "z": [Interval(Real, 0, None, closed="left"), None],
    }

    def __init__(
        self,
        fraction: float = 0.1,
        *,
        z: float | None = None,
        clients: ArrayLike | None = None,
    ):
        super().__init__(fraction, clients=clients)
        self.z = z

    def _wanted(self, view, name):
        z = largest_z(view.n_senders, view.n_own) if self.z is None else self.z
        return view.mean(name) - z * view.std(name)


def largest_z(n_clients: int, n_own: int) -> float:
    """How many standard deviations a value may be off and still find supporters.

    Parameters
    ----------
    n_clients : int
        Number of all clients, n.
    n_own : int
        Number of the adversary's, m.

    Returns
    -------
    z : float
    """
    n_honest = n_clients - n_own
    n_supporters = max(n_clients // 2 + 1 - n_own, 1)
    return float(norm.ppf(max((n_honest - n_supporters) / max(n_honest, 1), 0.5)))


class Fang(FromMoments):
    """Fang et al.'s attack on trimmed means: numbers just beyond the honest ones, the wrong way.

    Where the adversary's clients would raise a number on average, its forged values lie between
    3 and 4 standard deviations below their mean, and above it otherwise, drawn uniformly by each
    client.

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.
    nearest, farthest : float, default=3.0 and 4.0
        Between how many standard deviations from the mean the values lie.

    Notes
    -----
    *What it knows*: its own clients' honest uploads (the paper's partial knowledge).

    *What differs from the paper* [1]_: means and deviations as in :class:`ALIE`. Only the attack
    on trimmed mean and median is here, not the one on Krum.

    References
    ----------
    .. [1] M. Fang, X. Cao, J. Jia and N. Gong, "Local Model Poisoning Attacks to Byzantine-Robust
       Federated Learning", USENIX Security 2020.

    Examples
    --------
    >>> from fedrecsk.attacks import Fang
    >>> Fang(fraction=0.2)
    Fang(fraction=0.2)
    """

    _parameter_constraints: ClassVar[dict] = Adversary._parameter_constraints | {
        "nearest": [Interval(Real, 0, None, closed="left")],
        "farthest": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        fraction: float = 0.1,
        *,
        nearest: float = 3.0,
        farthest: float = 4.0,
        clients: ArrayLike | None = None,
    ):
        super().__init__(fraction, clients=clients)
        self.nearest = nearest
        self.farthest = farthest

    def enter(self, data, rates, key):
        if self.nearest > self.farthest:
            raise ValueError(
                f"Fang(nearest={self.nearest}, farthest={self.farthest}): nearest must not exceed "
                "farthest; lower nearest, or raise farthest."
            )
        return super().enter(data, rates, key)

    def _wanted(self, view, name):
        mean = view.mean(name)
        return np.stack([mean, -np.sign(mean) * view.std(name)])

    def _forged(self, view, upload, generator):
        forged = {}
        for name, update in upload.items():
            mean, off = view.plan[name][:, update.rows]
            drawn = generator.uniform(self.nearest, self.farthest, mean.shape)
            forged[name] = update._replace(change=mean + drawn * off)
        return forged
