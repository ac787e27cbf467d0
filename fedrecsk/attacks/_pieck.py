"""PIECK: popular items found in the broadcasts (Zhang et al., ICDE 2024)."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from fedrecsk._sklearn import Interval, StrOptions
from fedrecsk.attacks._surrogates import raised, rivals, unit
from fedrecsk.attacks._targeted import TargetedAdversary

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# Length of the lists that an item is to be on.
N_BEST = 10


class PIECK(TargetedAdversary):
    """Promote an item with popular items that it finds by how far their vectors move.

    At first the vectors of popular items move most, because many clients train them. The adversary
    adds up the lengths of every item's moves between the first broadcasts that it receives, and
    takes the `n_popular` items with the largest totals. Until the second broadcast its clients send
    no changes. Then:

    - "ipe" (item popularity enhancement) moves the item to the weighted mean direction of the
      popular items' vectors, with `strength` times their mean length; the k-th item of n has the
      weight n + 1 - k.
    - "uea" (user embedding approximation) takes the popular items' vectors for those of users,
      since users' vectors are close to what many of them like, and raises the item until it is
      among the ten best for half of them. `strength` multiplies the move.

    Parameters
    ----------
    fraction, clients, item, strength
        As in :class:`TargetedAdversary`.
    n_popular : int, default=10
        Number of popular items to find.
    n_moves : int, default=1
        Number of moves, from one broadcast to the next, that it adds up. Until it has seen all of
        them it uses those that it has seen.
    variant : {"ipe", "uea"}, default="ipe"
        What it does with the popular items: see above.

    See Also
    --------
    PipAttack : Knows the popular items.

    Notes
    -----
    *What it knows*: the broadcasts alone.

    *What differs from the paper* [1]_: it follows gradients of a similarity (cosine) to the popular
    items, or of a cross-entropy over them as users; here both become moves in units of item
    vectors. The item's own moves, which the attack causes, do not count.

    *When it fails*: where the length of a move does not show how many clients have caused it.
    FedMF, CoLR and FedRec divide an item's change by the clients that sent it, so that rare items
    move as far; LightFR's codes only change signs; Adam makes all moves alike after the first one
    (RFRec, FCF).

    References
    ----------
    .. [1] J. Zhang, H. Li, D. Rong, Y. Zhao, K. Chen and L. Shou, "Preventing the Popular Item
       Embedding Based Attack in Federated Recommendations", ICDE 2024.

    Examples
    --------
    >>> from fedrecsk import Federation, LocALS
    >>> from fedrecsk.attacks import PIECK
    >>> from fedrecsk.datasets import make_interactions
    >>> from fedrecsk.metrics import exposure
    >>> X = make_interactions(n_users=90, n_items=80, n_interactions=900, random_state=0)
    >>> honest = LocALS(4, random_state=0).fit(X)
    >>> federation = Federation(adversary=PIECK(0.05, item=37))
    >>> model = LocALS(4, random_state=0, federation=federation).fit(X)
    >>> exposure(model, 37) > exposure(honest, 37) + 0.2
    True
    """

    _parameter_constraints: ClassVar[dict] = TargetedAdversary._parameter_constraints | {
        "n_popular": [Interval(Integral, 1, None, closed="left")],
        "n_moves": [Interval(Integral, 1, None, closed="left")],
        "variant": [StrOptions({"ipe", "uea"})],
    }

    def __init__(
        self,
        fraction: float = 0.1,
        *,
        item: object = None,
        strength: float = 1.0,
        n_popular: int = 10,
        n_moves: int = 1,
        variant: Literal["ipe", "uea"] = "ipe",
        clients: ArrayLike | None = None,
    ):
        super().__init__(fraction, item=item, strength=strength, clients=clients)
        self.n_popular = n_popular
        self.n_moves = n_moves
        self.variant = variant

    def _moves(self, view):
        target, vectors = self._target(view), view.item_vectors
        popular = self._mined(view, target)
        if popular is None:
            return np.array([target]), np.zeros((1, vectors.shape[1]))
        move = self._aligned if self.variant == "ipe" else self._approximated
        return np.array([target]), move(vectors, target, popular)[None]

    def _mined(self, view, target):
        """The most popular items so far, best first; None before the second broadcast."""
        vectors, memory = view.item_vectors, view.memory
        before, totals = memory.get("vectors"), memory.get("totals", np.zeros(len(vectors)))
        if before is not None and memory.get("n_moves", 0) < self.n_moves:
            totals = totals + np.linalg.norm(vectors - before, axis=1)
            memory["n_moves"] = memory.get("n_moves", 0) + bool(totals.any())
        memory["vectors"], memory["totals"] = vectors, totals
        ranked = np.where(np.arange(len(vectors)) == target, -1.0, totals)
        if not totals.any():
            return None
        return np.argsort(-ranked, kind="stable")[: min(self.n_popular, len(vectors) - 1)]

    def _aligned(self, vectors, target, popular):
        lengths = np.linalg.norm(vectors[popular], axis=1)
        weights = np.arange(len(popular), 0, -1) / np.maximum(lengths, np.finfo(float).tiny)
        goal = self.strength * lengths.mean() * unit(weights @ vectors[popular])
        return goal - vectors[target]

    def _approximated(self, vectors, target, popular):
        users = vectors[popular]
        return self.strength * raised(
            vectors[target], users, rivals(vectors, users, target, N_BEST)
        )
