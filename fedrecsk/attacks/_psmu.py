"""PSMU: promotion to synthetic users, in competition with their lists (Yuan et al., 2023)."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedrecsk._sklearn import Interval
from fedrecsk.attacks._profiles import of_rows
from fedrecsk.attacks._surrogates import fitted_users, likes_of, raised, rivals
from fedrecsk.attacks._targeted import TargetedAdversary

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class PSMU(TargetedAdversary):
    """Promote an item to synthetic users, who like random items.

    The controlled users' rows are replaced by as many rows of random items, and the promoted item.
    In each round the adversary fits vectors to them, finds the `n_best` items that would be
    recommended to them, and raises the item until it beats the last of these for half of them.

    Parameters
    ----------
    fraction, clients, item
        As in :class:`TargetedAdversary`.
    strength : float, default=1.0
        Factor on the move.
    n_best : int, default=10
        Number of recommended items that the promoted one competes with.

    Notes
    -----
    *What it knows*: the broadcast, and nothing about any user.

    *What differs from the paper* [1]_: only the last of the competing items counts, because an
    item that beats it is on the list. The steps along gradients of its loss become a move in the
    direction in which the synthetic users gain most, and their vectors are found by ridge
    regression. The promoted item is not among the items that their vectors are fitted to.

    References
    ----------
    .. [1] W. Yuan, Q. V. H. Nguyen, T. He, L. Chen and H. Yin, "Manipulating Federated Recommender
       Systems: Poisoning with Synthetic Users and Its Countermeasures", SIGIR 2023.

    Examples
    --------
    >>> from fedrecsk import Federation, LocALS
    >>> from fedrecsk.attacks import PSMU
    >>> from fedrecsk.datasets import make_interactions
    >>> from fedrecsk.metrics import exposure
    >>> X = make_interactions(n_users=90, n_items=80, n_interactions=900, random_state=0)
    >>> honest = LocALS(4, random_state=0).fit(X)
    >>> federation = Federation(adversary=PSMU(0.05, item=37))
    >>> model = LocALS(4, random_state=0, federation=federation).fit(X)
    >>> exposure(model, 37) > exposure(honest, 37) + 0.2
    True
    """

    _parameter_constraints: ClassVar[dict] = TargetedAdversary._parameter_constraints | {
        "n_best": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        fraction: float = 0.1,
        *,
        item: object = None,
        strength: float = 1.0,
        n_best: int = 10,
        clients: ArrayLike | None = None,
    ):
        super().__init__(fraction, item=item, strength=strength, clients=clients)
        self.n_best = n_best

    def _poisoned(self, data, controlled, rates, key):
        poisoned = super()._poisoned(data, controlled, rates, key)
        target = np.flatnonzero(data.item_ids.values == self.item)
        synthetic = controlled[poisoned.clients] & ~np.isin(poisoned.items, target)
        items = poisoned.items.astype(np.int64)
        others = np.setdiff1d(np.arange(data.n_items), target)
        users = poisoned.users
        for user in np.unique(users[synthetic]):
            rows = np.flatnonzero(synthetic & (users == user))
            draws = key.at(-1).hashed("items of synthetic users", user * data.n_items + others)
            items[rows] = others[np.argsort(draws, kind="stable")[: len(rows)]]
        return of_rows(poisoned, users, items, poisoned.values, poisoned.weights)

    def _moves(self, view):
        target, vectors = self._target(view), view.item_vectors
        users = np.unique(view.data.users)
        liked = without(*likes_of(view.data, users, view.method._sees_ratings), target)
        synthetic = fitted_users(vectors, *liked)
        scores = rivals(vectors, synthetic, target, self.n_best, liked)
        return np.array([target]), self.strength * raised(vectors[target], synthetic, scores)[None]


def without(indptr, items, target):
    """The same lists of items without the target; (indptr, items)."""
    kept = items != target
    return np.concatenate([[0], np.cumsum(kept)])[indptr], items[kept]
