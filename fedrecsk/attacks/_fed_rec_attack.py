"""FedRecAttack: promotion for users whose public rows reveal their vectors (Rong et al., 2022)."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedrecsk._sklearn import Interval
from fedrecsk.attacks._profiles import of_rows
from fedrecsk.attacks._surrogates import fitted_users, likes_of, raised, rivals
from fedrecsk.attacks._targeted import TargetedAdversary

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class FedRecAttack(TargetedAdversary):
    """Promote an item for honest users whose vectors it approximates from their public rows.

    Some rows of honest users are public: comments, ratings on a profile page. In each round the
    adversary fits a vector to each such user's rows, with the item vectors of the broadcast, and
    raises the item until it is among the `n_best` items recommended to half of these users.

    Parameters
    ----------
    fraction, clients, item
        As in :class:`TargetedAdversary`.
    strength : float, default=1.0
        Factor on the move.
    public_fraction : float in (0, 1], default=0.05
        Share of the honest users' rows that are public. They are drawn with the fit's
        `random_state`.
    n_best : int, default=10
        Length of the lists that the item is to be on.

    Notes
    -----
    *What it knows*: the broadcast, and the public rows.

    *What differs from the paper* [1]_: the users' vectors are found by ridge regression instead
    of gradient steps. The loss, each user's distance to the last item on the list, becomes a move:
    the direction in which most users gain, and the length that half of them need. Only the
    promoted item's row moves, because clients of many methods cannot send others; the paper also
    lowers rivals, in as few rows as it is allowed.

    References
    ----------
    .. [1] D. Rong, S. Ye, R. Zhao, H. N. Yuen, J. Chen and Q. He, "FedRecAttack: Model Poisoning
       Attack to Federated Recommendation", ICDE 2022.

    Examples
    --------
    >>> from fedrecsk import Federation, LocALS
    >>> from fedrecsk.attacks import FedRecAttack
    >>> from fedrecsk.datasets import make_interactions
    >>> from fedrecsk.metrics import exposure
    >>> X = make_interactions(n_users=90, n_items=80, n_interactions=900, random_state=0)
    >>> honest = LocALS(4, random_state=0).fit(X)
    >>> federation = Federation(adversary=FedRecAttack(0.05, item=37))
    >>> model = LocALS(4, random_state=0, federation=federation).fit(X)
    >>> exposure(model, 37) > exposure(honest, 37) + 0.2
    True
    """

    _parameter_constraints: ClassVar[dict] = TargetedAdversary._parameter_constraints | {
        "public_fraction": [Interval(Real, 0, 1, closed="right")],
        "n_best": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        fraction: float = 0.1,
        *,
        item: object = None,
        strength: float = 1.0,
        public_fraction: float = 0.05,
        n_best: int = 10,
        clients: ArrayLike | None = None,
    ):
        super().__init__(fraction, item=item, strength=strength, clients=clients)
        self.public_fraction = public_fraction
        self.n_best = n_best

    def enter(self, data, rates, key):
        intrusion = super().enter(data, rates, key)
        public = self._public(data, intrusion.controlled, key)
        users = np.unique(public.users)
        intrusion.memory["public"] = likes_of(public, users, rates)
        return intrusion

    def _public(self, data, controlled, key):
        """The rows of honest users that everybody may read; at least one."""
        honest = np.flatnonzero(~controlled[data.clients])
        draws = key.at(-1).hashed("public rows", honest)
        n_public = max(1, round(self.public_fraction * len(honest)))
        rows = np.sort(honest[np.argsort(draws, kind="stable")[:n_public]])
        columns = data.users, data.items, data.values, data.weights
        return of_rows(data, *(column[rows] for column in columns))

    def _moves(self, view):
        target, vectors, public = self._target(view), view.item_vectors, view.memory["public"]
        users = fitted_users(vectors, *public)
        scores = rivals(vectors, users, target, self.n_best, public)
        return np.array([target]), self.strength * raised(vectors[target], users, scores)[None]
