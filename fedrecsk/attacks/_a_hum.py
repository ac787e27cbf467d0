"""A-ra and A-hum: promotion for imagined users (Rong, He and Chen, IJCAI 2022)."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedrecsk._sklearn import Interval
from fedrecsk.attacks._surrogates import fitted_users, likes_of, raised, rivals
from fedrecsk.attacks._targeted import TargetedAdversary

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# Length of the lists that the item is to be on, and the share of a whole turn per step.
N_BEST, SHARE = 10, 0.1


class AHum(TargetedAdversary):
    """Promote an item to random users, after turning them away from it.

    In each round the adversary draws users' vectors (A-ra), turns each of them away from the item
    step by step (A-hum, hard user mining), and raises the item until it is among the ten best
    for half of them. The vectors are normal, with the mean and deviation of those that it fits to
    its own clients' data.

    Parameters
    ----------
    fraction, clients, item
        As in :class:`TargetedAdversary`.
    strength : float, default=1.0
        Factor on the move.
    n_users : int, default=100
        Number of random users.
    n_steps : int, default=10
        Number of steps that turn a user away from the item, each by a tenth of what would make
        the user's score of the item 0 if it is positive. 0: A-ra.

    Notes
    -----
    *What it knows*: the broadcast and its own clients' data.

    *What differs from the paper* [1]_: it draws users around zero. If scores are inner products,
    these users agree on no direction in which to move the item; hence the mean of its own clients.
    The steps along gradients of its loss become the moves described above.

    References
    ----------
    .. [1] D. Rong, Q. He and J. Chen, "Poisoning Deep Learning Based Recommender Model in Federated
       Learning Scenarios", IJCAI 2022.

    Examples
    --------
    >>> from fedrecsk import Federation, LocALS
    >>> from fedrecsk.attacks import AHum
    >>> from fedrecsk.datasets import make_interactions
    >>> from fedrecsk.metrics import exposure
    >>> X = make_interactions(n_users=90, n_items=80, n_interactions=900, random_state=0)
    >>> honest = LocALS(4, random_state=0).fit(X)
    >>> federation = Federation(adversary=AHum(0.05, item=37))
    >>> model = LocALS(4, random_state=0, federation=federation).fit(X)
    >>> exposure(model, 37) > exposure(honest, 37) + 0.2
    True
    """

    _parameter_constraints: ClassVar[dict] = TargetedAdversary._parameter_constraints | {
        "n_users": [Interval(Integral, 1, None, closed="left")],
        "n_steps": [Interval(Integral, 0, None, closed="left")],
    }

    def __init__(
        self,
        fraction: float = 0.1,
        *,
        item: object = None,
        strength: float = 1.0,
        n_users: int = 100,
        n_steps: int = 10,
        clients: ArrayLike | None = None,
    ):
        super().__init__(fraction, item=item, strength=strength, clients=clients)
        self.n_users = n_users
        self.n_steps = n_steps

    def _moves(self, view):
        target, vectors = self._target(view), view.item_vectors
        users = hardened(self._drawn(view), vectors[target], self.n_steps)
        scores = rivals(vectors, users, target, N_BEST)
        return np.array([target]), self.strength * raised(vectors[target], users, scores)[None]

    def _drawn(self, view):
        """Random users, distributed like the adversary's own."""
        own = np.unique(view.data.users)
        likes = likes_of(view.data, own, view.method._sees_ratings)
        fitted = fitted_users(view.item_vectors, *likes)
        generator = np.random.default_rng([view.memory["seed"], view.round])
        normal = generator.standard_normal((self.n_users, fitted.shape[1]))
        return fitted.mean(axis=0) + fitted.std(axis=0) * normal

    def enter(self, data, rates, key):
        intrusion = super().enter(data, rates, key)
        intrusion.memory["seed"] = int(key.at(-1).hashed("random users", np.zeros(1, int))[0])
        return intrusion


def hardened(users, vector, n_steps):
    """Users turned away from an item: in each step their positive scores of it shrink.

    Parameters
    ----------
    users : ndarray of shape (n_users, width)
    vector : ndarray of shape (width,)
    n_steps : int

    Returns
    -------
    users : ndarray of shape (n_users, width)
    """
    square = vector @ vector or 1.0
    for _ in range(n_steps):
        scores = np.maximum(users @ vector, 0)
        users = users - SHARE * np.outer(scores, vector) / square
    return users
