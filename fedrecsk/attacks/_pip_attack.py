"""PipAttack: a promoted item that looks like the popular ones (Zhang et al., WSDM 2022)."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.special import expit

from fedrecsk._sklearn import Interval
from fedrecsk.attacks._surrogates import fitted_users, likes_of, unit
from fedrecsk.attacks._target import code_of, codes_of_popular
from fedrecsk.attacks._targeted import TargetedAdversary

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class PipAttack(TargetedAdversary):
    """Promote an item by making its vector like those of popular items.

    In each round the item's vector is to become as long as the mean m of the popular items'
    vectors, times `strength`, in a direction between that of m (alignment) and the one in which
    the adversary's own users who would not yet choose the item gain most (explicit boosting)::

        goal = strength |m| d / |d|,  d = m / |m| + boost a / |a|,  a = sum_u sigmoid(-p_u . q) p_u

    where q is the item's broadcast vector, and p_u the vector of one of the adversary's users,
    fitted to the broadcast.

    Parameters
    ----------
    fraction, clients, item
        As in :class:`TargetedAdversary`.
    strength : float, default=1.0
        Length of the vector that the item is to get, relative to m.
    popular : array-like of shape (n_popular,), default=None
        Ids of popular items. None: the `n_popular` items that most users have.
    n_popular : int, default=10
        Number of popular items, if they are not given.
    boost : float, default=1.0
        Weight of the explicit boosting, relative to the alignment. 0: alignment alone.
    distance : float, default=None
        The distance constraint: no field of an upload is longer than `distance` times the median
        length of what the adversary's clients would honestly send. None: no bound.

    See Also
    --------
    PIECK : Finds the popular items by itself.

    Notes
    -----
    *What it knows*: the broadcast, its own clients' data, and which items are popular, which
    most shops show publicly. The counts are taken from the data of all users before the attacks.

    *What differs from the paper* [1]_: it trains a classifier of popularity from the item vectors
    and follows its gradient; the mean of the popular vectors takes its place. It penalises the
    distance to normal gradients; here `distance` bounds the length. Gradients become moves in
    units of item vectors, so that the attack suits methods whose clients send no gradients.

    References
    ----------
    .. [1] S. Zhang, H. Yin, T. Chen, Z. Huang, Q. V. H. Nguyen and L. Cui, "PipAttack: Poisoning
       Federated Recommender Systems for Manipulating Item Promotion", WSDM 2022.

    Examples
    --------
    >>> from fedrecsk import Federation, LocALS
    >>> from fedrecsk.attacks import PipAttack
    >>> from fedrecsk.datasets import make_interactions
    >>> from fedrecsk.metrics import exposure
    >>> X = make_interactions(n_users=90, n_items=80, n_interactions=900, random_state=0)
    >>> honest = LocALS(4, random_state=0).fit(X)
    >>> federation = Federation(adversary=PipAttack(0.05, item=37))
    >>> model = LocALS(4, random_state=0, federation=federation).fit(X)
    >>> exposure(model, 37) > exposure(honest, 37) + 0.2
    True
    """

    _parameter_constraints: ClassVar[dict] = TargetedAdversary._parameter_constraints | {
        "popular": ["array-like", None],
        "n_popular": [Interval(Integral, 1, None, closed="left")],
        "boost": [Interval(Real, 0, None, closed="left")],
        "distance": [Interval(Real, 0, None, closed="neither"), None],
    }

    def __init__(
        self,
        fraction: float = 0.1,
        *,
        item: object = None,
        strength: float = 1.0,
        popular: ArrayLike | None = None,
        n_popular: int = 10,
        boost: float = 1.0,
        distance: float | None = None,
        clients: ArrayLike | None = None,
    ):
        super().__init__(fraction, item=item, strength=strength, clients=clients)
        self.popular = popular
        self.n_popular = n_popular
        self.boost = boost
        self.distance = distance

    def enter(self, data, rates, key):
        popular = self._popular_codes(data)
        intrusion = super().enter(data, rates, key)
        intrusion.memory["popular"] = popular
        return intrusion

    def _popular_codes(self, data):
        ids = data.item_ids.values
        if self.popular is not None:
            return codes_of_popular(self, ids)
        counts = np.bincount(data.items, minlength=len(ids))
        ranked = np.argsort(-counts, kind="stable")
        return ranked[ranked != code_of(self, ids)][: self.n_popular]

    def _moves(self, view):
        target, vectors = self._target(view), view.item_vectors
        popular = vectors[view.memory["popular"]].mean(axis=0)
        direction = unit(popular)
        if self.boost:
            direction = unit(direction + self.boost * own_push(view, vectors[target]))
        goal = self.strength * np.linalg.norm(popular) * direction
        return np.array([target]), (goal - vectors[target])[None]

    def _plan(self, view):
        plan = super()._plan(view)
        if self.distance is None:
            return plan
        changes = {}
        for name, change in plan.changes.items():
            norms = [batch.changes[name].norms(batch.sends)[batch.sends] for batch in view.batches]
            bound = self.distance * np.median(np.concatenate(norms))
            changes[name] = change * min(1.0, bound / (np.linalg.norm(change) or 1.0))
        return plan._replace(changes=changes)


def own_push(view, vector):
    """The unit direction in which an item gains most with the adversary's own users."""
    users = np.unique(view.data.users)
    likes = likes_of(view.data, users, view.method._sees_ratings)
    theirs = fitted_users(view.item_vectors, *likes)
    return unit(expit(-theirs @ vector) @ theirs)
