"""Attacks that promote one item: by fabricated rows and scaled uploads, or by moving its vector."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fedrecsk._utils.constraints import Above0To1, ArrayLike, AtLeast0, AtLeast1
from fedrecsk.attacks._base import (
    Adversary,
    Factor,
    Strength,
    View,
    random_items,
    send_rows_of,
    with_numbers,
    with_rows,
)
from fedrecsk.attacks._moving import moving_of

# Length of the lists that an item is to be on, where it is not a parameter.
N_BEST = 10
# Share of a whole turn by which AHum turns a user away from the item in each step.
TURN = 0.1
# Weight of the penalty on a user's vector, relative to that of its items.
PENALTY = 0.1


@dataclass(kw_only=True, eq=False, repr=False)
class _Promoter(Adversary):
    """Base class of attacks whose users all give one item the best rating."""

    item: object = None

    def _target_code(self, item_ids):
        """Return the code of the item to promote."""
        if self.item is None:
            name = type(self).__name__
            raise ValueError(f"{name} needs item=..., the id of the item to promote.")
        return self._code(self.item, f"item={self.item!r}", item_ids)

    def _code(self, one, parameter, item_ids):
        """Return the code of an item that a parameter names."""
        matches = np.flatnonzero(item_ids == one) if np.isscalar(one) else ()
        if len(matches) == 0:
            raise ValueError(
                f"{type(self).__name__}({parameter}) names {one!r}, which is not among the items "
                "of X; name items that occur in X."
            )
        return int(matches[0])

    def _poison(self, data, controlled, rates, key):
        target = self._target_code(data.item_ids.values)
        if controlled[data.clients[data.items == target]].all():
            raise ValueError(
                f"{type(self).__name__}(item={self.item!r}) is an item that no honest client "
                "holds, so no client would learn about it without the attack; name an item with "
                "rows of other users, or control other clients."
            )
        users = np.repeat(controlled, np.diff(data.client_indptr)).nonzero()[0]
        kept = ~((data.items == target) & np.isin(data.users, users))
        return with_rows(
            data,
            np.r_[data.users[kept], users],
            np.r_[data.items[kept], np.full(len(users), target)],
            np.r_[data.values[kept], np.full(len(users), data.values.max())],
            np.r_[data.weights[kept], np.ones(len(users))],
        )


@dataclass(kw_only=True, eq=False, repr=False)
class Promotion(_Promoter):
    """Promote one item: all controlled users give it the best rating, and scale its row up.

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.
    item : id
        Item to promote. It must be in X.
    strength : float, default=10.0
        Factor on the change of the item's row, in fields that have a row for each item. 1: only
        the data are poisoned.

    See Also
    --------
    fedrecsk.metrics.exposure : Share of the users that an item is recommended to.

    Examples
    --------
    >>> from fedrecsk import Federation, LocALS
    >>> from fedrecsk.attacks import Promotion
    >>> from fedrecsk.datasets import make_interactions
    >>> from fedrecsk.metrics import exposure
    >>> X = make_interactions(n_users=90, n_items=80, n_interactions=900, random_state=0)
    >>> honest = LocALS(4, random_state=0).fit(X)
    >>> federation = Federation(adversary=Promotion(0.3, item=37))
    >>> model = LocALS(4, random_state=0, federation=federation).fit(X)
    >>> exposure(model, 37) > exposure(honest, 37) + 0.2
    True
    """

    strength: Strength = 10.0

    @property
    def forges(self) -> bool:
        return self.strength != 1 or type(self)._forged is not Adversary._forged

    def _check_method(self, method):
        if not self.forges:
            return
        n_items = 1_000_003  # a number of rows that only items have
        specs = method._algorithm().fields(n_items).values()
        if not any(spec.learned and spec.shape[0] == n_items for spec in specs):
            raise ValueError(
                f"{type(method).__name__} has no rows of items in its uploads for Promotion to "
                "scale up; set strength=1, so that the attack changes only the data."
            )

    def _forge(self, view, updates, seeds):
        target, fields = self._target_code(view.item_ids), {}
        for name, rows in updates.learned.items():
            if rows.spec.rows == "all" and rows.spec.shape[0] != view.n_items:
                continue
            scaled = rows.scaled_rows(lambda k, _: np.where(k == target, self.strength, 1.0))
            scaled = replace(scaled, spec=rows.spec)
            fields[name] = replace(with_numbers(scaled, scaled.values), default=scaled.default)
        return updates.with_fields(**fields)


class ForgedRows(NamedTuple):
    """What all controlled clients upload in a round."""

    rows: NDArray[np.int64]  # codes of the items to move
    changes: dict[str, NDArray[np.float64]]  # of these rows, by field


@dataclass(kw_only=True, eq=False, repr=False)
class TargetedAdversary(_Promoter):
    """Base class of attacks that promote one item by moving its vector.

    A subclass implements ``_moves(self, view)``: how it wants the item vectors of the broadcast
    to move, given its `strength`. The method attacked turns that into uploads, as far as clients
    can know how the server will step. All controlled users give the item the best rating, so that
    their clients may send its row. They upload nothing but the moves: other numbers are those of
    a client that has learned nothing, except that a field of single bits keeps the honest ones.

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.
    item : id
        Item to promote. At least one honest client must hold it.
    strength : float, default=1.0
        How far to move the item, relative to the attack's goal. The most harmful value depends on
        the method and its defence, so search it.

    Examples
    --------
    An attack that moves the item to the mean of all item vectors, or beyond:

    >>> import numpy as np
    >>> from fedrecsk.attacks import TargetedAdversary
    >>> class ToTheMean(TargetedAdversary):
    ...     def _moves(self, view):
    ...         target, vectors = self._target(view), view.item_vectors
    ...         goal = self.strength * vectors.mean(axis=0)
    ...         return np.array([target]), goal - vectors[[target]]
    >>> ToTheMean(item=3).strength
    1.0
    """

    strength: Strength = 1.0

    @abstractmethod
    def _moves(self, view: View) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return codes of the items to move, ascending, and wanted changes of their vectors.

        Shapes (n_rows,) and (n_rows, width): of ``view.item_vectors[rows]`` in this round.
        """

    def _target(self, view: View) -> int:
        """Return the code of the item to promote."""
        return self._target_code(view.item_ids)

    def _move_to(self, view, goal):
        """Return the move of the item to a vector."""
        target = self._target(view)
        return np.array([target]), (goal - view.item_vectors[target])[None]

    def _raise(self, view, users, n_best, barred=None):
        """Return the move that puts the item on the `n_best` of half of the users that lack it."""
        target, vectors = self._target(view), view.item_vectors
        thresholds = top_k_threshold(vectors, users, target, n_best, barred)
        move = self.strength * margin_step(vectors[target], users, thresholds)
        return np.array([target]), move[None]

    def _own_likes(self, view):
        """Find what the adversary's own users like, (indptr, items)."""
        return find_likes(view.data, np.unique(view.data.users), view.method._sees_ratings)

    def _check_method(self, method):
        name = type(method).__name__
        if moving_of(method) is None:
            raise ValueError(
                f"{type(self).__name__} moves item vectors by the rows that clients upload for "
                f"items, and {name} has no such rows; use Promotion(strength=1), which changes "
                "only the data, or attack another method."
            )
        if not any(spec.learned for spec in method._algorithm().fields(1).values()):
            raise ValueError(
                f"{type(self).__name__} has nothing to forge, because with these parameters the "
                f"clients of {name} upload nothing that they have learned; let the method train "
                "its items."
            )

    def _plan(self, view):
        if not view.is_finite:
            # The model has diverged.
            return ForgedRows(np.empty(0, dtype=np.int64), {})
        rows, moves = self._moves(view)
        moving: Any = moving_of(view.method)
        return ForgedRows(rows, moving(view.method, view, rows, moves))

    def _forge(self, view, updates, seeds):
        plan, fields = view.plan, {}
        for name, rows in updates.learned.items():
            whole = np.zeros(rows.spec.shape)
            if name in plan.changes:
                whole[plan.rows] = plan.changes[name].reshape(-1, *rows.spec.shape[1:])
            if not rows.spec.bits:
                fields[name] = send_rows_of(whole, rows)
            elif name in plan.changes:
                numbers = rows.values.astype(np.float64)
                moved = np.isin(rows.rows, plan.rows)
                numbers[moved] = whole[rows.rows[moved]]
                fields[name] = with_numbers(rows, numbers)
        return updates.with_fields(**fields)


@dataclass(kw_only=True, eq=False, repr=False)
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
        Ids of popular items. If None, the `n_popular` items that most users have.
    n_popular : int, default=10
        Number of popular items, if they are not given.
    boost : float, default=1.0
        Weight of the explicit boosting, relative to the alignment. 0: alignment alone.
    distance : float, default=None
        The distance constraint: no field of an upload is longer than `distance` times the median
        length of the honest uploads of the adversary's clients. If None, no bound.

    Notes
    -----
    *What it knows*: the broadcast, its own clients' data, and which items are popular, by counts
    of the data of all users before the attack.

    *What differs from the paper* [1]_: the mean of the popular vectors takes the place of a
    classifier of popularity, whose gradient it follows. `distance` bounds the length, where it
    penalises the distance to normal gradients. Gradients become moves in units of item vectors, so
    that the attack suits methods whose clients send no gradients.

    References
    ----------
    .. [1] S. Zhang, H. Yin, T. Chen, Z. Huang, Q. V. H. Nguyen and L. Cui, "PipAttack: Poisoning
       Federated Recommender Systems for Manipulating Item Promotion", WSDM 2022.

    Examples
    --------
    >>> from fedrecsk.attacks import PipAttack
    >>> PipAttack(0.05, item=37, n_popular=20)
    PipAttack(fraction=0.05, item=37, n_popular=20)
    """

    popular: ArrayLike | None = None
    n_popular: AtLeast1 = 10
    boost: Factor = 1.0
    distance: Strength | None = None

    def _remember(self, data, controlled, rates, key):
        ids = data.item_ids.values
        if self.popular is None:
            ranked = np.argsort(-np.bincount(data.items, minlength=len(ids)), kind="stable")
            return {"popular": ranked[ranked != self._target_code(ids)][: self.n_popular]}
        codes = [self._code(one, "popular=...", ids) for one in np.ravel(self.popular).tolist()]
        if not codes:
            raise ValueError(
                f"{type(self).__name__}(popular=[]) names no item; name one, or set popular=None."
            )
        return {"popular": np.array(codes)}

    def _moves(self, view):
        target, vectors = self._target(view), view.item_vectors
        popular = vectors[view.memory["popular"]].mean(axis=0)
        direction = normalize(popular)
        if self.boost:
            users = fit_users(vectors, *self._own_likes(view))
            push = expit(-users @ vectors[target]) @ users
            direction = normalize(direction + self.boost * normalize(push))
        return self._move_to(view, self.strength * np.linalg.norm(popular) * direction)

    def _plan(self, view):
        plan = super()._plan(view)
        if self.distance is None:
            return plan
        changes = {}
        for name, change in plan.changes.items():
            norms = np.concatenate([one.fields[name].norms() for one in view.updates])
            bound = self.distance * np.median(norms)
            changes[name] = change * min(1.0, bound / (np.linalg.norm(change) or 1.0))
        return plan._replace(changes=changes)


@dataclass(kw_only=True, eq=False, repr=False)
class PIECK(TargetedAdversary):
    """Promote an item with popular items that it finds by how far their vectors move.

    At first the vectors of popular items move most, because many clients train them. The adversary
    adds up the lengths of every item's moves between the first broadcasts that it receives, and
    takes the `n_popular` items with the largest totals. Until the second broadcast its clients send
    no changes. Then:

    - "ipe" (item popularity enhancement) moves the item to the weighted mean direction of the
      popular items' vectors, with `strength` times their mean length; the k-th item of n has the
      weight n + 1 - k.
    - "uea" (user embedding approximation) takes the popular items' vectors for those of users, and
      raises the item until it is among the ten best for half of them. `strength` multiplies the
      move.

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

    Notes
    -----
    *What it knows*: the broadcasts alone.

    *What differs from the paper* [1]_: it follows gradients of a similarity (cosine) to the popular
    items, or of a cross-entropy over them as users; here both become moves in units of item
    vectors. The item's own moves, which the attack causes, do not count.

    *When it fails*: where the length of a move does not show how many clients have caused it, as in
    FedMF, CoLR and FedRec, LightFR, and after the first move where Adam makes all alike (RFRec,
    FCF).

    References
    ----------
    .. [1] J. Zhang, H. Li, D. Rong, Y. Zhao, K. Chen and L. Shou, "Preventing the Popular Item
       Embedding Based Attack in Federated Recommendations", ICDE 2024.

    Examples
    --------
    >>> from fedrecsk.attacks import PIECK
    >>> PIECK(0.05, item=37, strength=2.0)
    PIECK(fraction=0.05, item=37, strength=2.0)
    """

    n_popular: AtLeast1 = 10
    n_moves: AtLeast1 = 1
    variant: Literal["ipe", "uea"] = "ipe"

    def _moves(self, view):
        target, vectors = self._target(view), view.item_vectors
        popular = self._find_popular(view, target)
        if popular is None:
            return self._move_to(view, vectors[target])
        if self.variant == "uea":
            return self._raise(view, vectors[popular], N_BEST)
        lengths = np.linalg.norm(vectors[popular], axis=1)
        weights = np.arange(len(popular), 0, -1) / np.maximum(lengths, np.finfo(float).tiny)
        direction = normalize(weights @ vectors[popular])
        return self._move_to(view, self.strength * lengths.mean() * direction)

    def _find_popular(self, view, target):
        """Find the most popular items so far, best first; None before the second broadcast."""
        vectors, memory = view.item_vectors, view.memory
        before, totals = memory.get("vectors"), memory.get("totals", np.zeros(len(vectors)))
        if before is not None and memory.get("n_moves", 0) < self.n_moves:
            totals = totals + np.linalg.norm(vectors - before, axis=1)
            memory["n_moves"] = memory.get("n_moves", 0) + bool(totals.any())
        memory["vectors"], memory["totals"] = vectors, totals
        if not totals.any():
            return None
        ranked = np.where(np.arange(len(vectors)) == target, -1.0, totals)
        return np.argsort(-ranked, kind="stable")[: min(self.n_popular, len(vectors) - 1)]


@dataclass(kw_only=True, eq=False, repr=False)
class FedRecAttack(TargetedAdversary):
    """Promote an item for honest users whose vectors it approximates from their public rows.

    Some rows of honest users are public: comments, ratings on a profile page. In each round the
    adversary fits a vector to each such user's rows, with the item vectors of the broadcast, and
    raises the item until it is among the `n_best` items recommended to half of these users.

    Parameters
    ----------
    fraction, clients, item, strength
        As in :class:`TargetedAdversary`; `strength` is a factor on the move.
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
    the direction in which most users gain, and the length that half of them need. The paper also
    lowers rivals, but clients of many methods cannot send their rows.

    References
    ----------
    .. [1] D. Rong, S. Ye, R. Zhao, H. N. Yuen, J. Chen and Q. He, "FedRecAttack: Model Poisoning
       Attack to Federated Recommendation", ICDE 2022.

    Examples
    --------
    >>> from fedrecsk.attacks import FedRecAttack
    >>> FedRecAttack(0.05, item=37, strength=2.0)
    FedRecAttack(fraction=0.05, item=37, strength=2.0)
    """

    public_fraction: Above0To1 = 0.05
    n_best: AtLeast1 = 10

    def _remember(self, data, controlled, rates, key):
        honest = np.flatnonzero(~controlled[data.clients])
        draws = key.at(-1).hashed("public rows", honest)
        n_public = max(1, round(self.public_fraction * len(honest)))
        is_public = np.zeros(len(data.items), dtype=bool)
        is_public[honest[np.argsort(draws, kind="stable")[:n_public]]] = True
        public = data.take(is_public)
        return {"public": find_likes(public, np.unique(public.users), rates)}

    def _moves(self, view):
        public = view.memory["public"]
        return self._raise(view, fit_users(view.item_vectors, *public), self.n_best, public)


@dataclass(kw_only=True, eq=False, repr=False)
class AHum(TargetedAdversary):
    """Promote an item to random users, after turning them away from it.

    In each round the adversary draws users' vectors (A-ra), turns each of them away from the item
    step by step (A-hum, hard user mining), and raises the item until it is among the ten best
    for half of them. The vectors are normal, with the mean and deviation of those that it fits to
    its own clients' data.

    Parameters
    ----------
    fraction, clients, item, strength
        As in :class:`TargetedAdversary`; `strength` is a factor on the move.
    n_users : int, default=100
        Number of random users.
    n_steps : int, default=10
        Number of steps that turn a user away from the item, each by a tenth of the user's score
        of the item if it is positive. 0: A-ra.

    Notes
    -----
    *What it knows*: the broadcast and its own clients' data.

    *What differs from the paper* [1]_: it draws users around zero, who agree on no direction in
    which to move the item if scores are inner products; hence the mean of its own clients. Steps
    along gradients become the moves described above.

    References
    ----------
    .. [1] D. Rong, Q. He and J. Chen, "Poisoning Deep Learning Based Recommender Model in Federated
       Learning Scenarios", IJCAI 2022.

    Examples
    --------
    >>> from fedrecsk.attacks import AHum
    >>> AHum(0.05, item=37, strength=2.0)
    AHum(fraction=0.05, item=37, strength=2.0)
    """

    n_users: AtLeast1 = 100
    n_steps: AtLeast0 = 10

    def _remember(self, data, controlled, rates, key):
        return {"seed": int(key.at(-1).hashed("random users", np.zeros(1, int))[0])}

    def _moves(self, view):
        # Random users, distributed like the adversary's own.
        fitted = fit_users(view.item_vectors, *self._own_likes(view))
        generator = np.random.default_rng([view.memory["seed"], view.round])
        normal = generator.standard_normal((self.n_users, fitted.shape[1]))
        users = fitted.mean(axis=0) + fitted.std(axis=0) * normal
        vector = view.item_vectors[self._target(view)]
        return self._raise(view, hard_negatives(users, vector, self.n_steps), N_BEST)


@dataclass(kw_only=True, eq=False, repr=False)
class PSMU(TargetedAdversary):
    """Promote an item to synthetic users, who like random items.

    The controlled users' rows are replaced by as many rows of random items, and the promoted item.
    In each round the adversary fits vectors to them, finds the `n_best` items that would be
    recommended to them, and raises the item until it beats the last of these for half of them.

    Parameters
    ----------
    fraction, clients, item, strength
        As in :class:`TargetedAdversary`; `strength` is a factor on the move.
    n_best : int, default=10
        Number of recommended items that the promoted one competes with.

    Notes
    -----
    *What it knows*: the broadcast, and nothing about any user.

    *What differs from the paper* [1]_: only the last of the competing items counts, because an
    item that beats it is on the list. Vectors are found by ridge regression, without the promoted
    item, and steps along gradients become a move in the direction in which most of them gain.

    References
    ----------
    .. [1] W. Yuan, Q. V. H. Nguyen, T. He, L. Chen and H. Yin, "Manipulating Federated Recommender
       Systems: Poisoning with Synthetic Users and Its Countermeasures", SIGIR 2023.

    Examples
    --------
    >>> from fedrecsk.attacks import PSMU
    >>> PSMU(0.05, item=37, strength=2.0)
    PSMU(fraction=0.05, item=37, strength=2.0)
    """

    n_best: AtLeast1 = 10

    def _poison(self, data, controlled, rates, key):
        poisoned = super()._poison(data, controlled, rates, key)
        target = self._target_code(data.item_ids.values)
        users, items = poisoned.users, poisoned.items.astype(np.int64)
        synthetic = controlled[poisoned.clients] & (items != target)
        others = np.delete(np.arange(data.n_items), target)
        for user in np.unique(users[synthetic]):
            rows = np.flatnonzero(synthetic & (users == user))
            purpose = "items of synthetic users"
            items[rows] = random_items(key, purpose, data.n_items, user, others, len(rows))
        return with_rows(poisoned, users, items, poisoned.values, poisoned.weights)

    def _moves(self, view):
        indptr, items = self._own_likes(view)
        kept = items != self._target(view)
        liked = np.concatenate([[0], np.cumsum(kept)])[indptr], items[kept]
        return self._raise(view, fit_users(view.item_vectors, *liked), self.n_best, liked)


# ------------------------------------------------------------------- what the adversary estimates


def hard_negatives(users, vector, n_steps):
    """Turn users away from an item: each step takes a share of their positive scores of it."""
    taken = (1 - (1 - TURN) ** n_steps) * np.maximum(users @ vector, 0)
    return users - np.outer(taken, vector) / (vector @ vector or 1.0)


def fit_users(vectors, indptr, items):
    """Fit a vector to each user's items, on which they score 1 and an average item 0."""
    # User u likes items[indptr[u] : indptr[u + 1]] = I, and minimises sum_{i of I} (1 - p . q_i)^2
    # + |I| mean_i (p . q_i)^2 + PENALTY |I| mean |q|^2 / d |p|^2.
    n_items, width = vectors.shape
    average = vectors.T @ vectors / n_items
    average += (PENALTY * np.trace(average) / width or 1.0) * np.eye(width)
    users = np.zeros((len(indptr) - 1, width))
    for user in np.flatnonzero(np.diff(indptr)):
        liked = vectors[items[indptr[user] : indptr[user + 1]]]
        users[user] = np.linalg.solve(liked.T @ liked + len(liked) * average, liked.sum(axis=0))
    return users


def find_likes(data, users, rates):
    """Find users' rows, or those rated at least at their mean: (indptr, items)."""
    counts = np.diff(data.indptr)
    kept = data.values > 0
    if rates:
        means = np.bincount(data.users, data.values, data.n_users) / np.maximum(counts, 1)
        kept = data.values >= means[data.users]
    kept &= np.isin(data.users, users)
    number = np.searchsorted(users, data.users[kept])
    n_liked = np.bincount(number, minlength=len(users))
    return np.concatenate([[0], np.cumsum(n_liked)]), data.items[kept]


def top_k_threshold(vectors, users, target, n_best, barred=None):
    """Return the score of the last item on each user's list without the target."""
    # `barred`: (indptr, items) with the items that are not recommended to each user.
    last = np.empty(len(users))
    n_best = min(n_best, len(vectors) - 1)
    for user, vector in enumerate(users):
        scores = vectors @ vector
        scores[target] = -np.inf
        if barred is not None:
            scores[barred[1][barred[0][user] : barred[0][user + 1]]] = -np.inf
        last[user] = np.partition(scores, -n_best)[-n_best]
    finite = np.isfinite(last)
    return np.where(finite, last, last[finite].min(initial=0))


def margin_step(vector, users, thresholds):
    """Return the move of an item that puts it on the lists of half of the users that lack it."""
    # The direction ascends sum_u log sigmoid(margin_u), with margins in units of mean thresholds.
    margins = users @ vector - thresholds
    scale = np.abs(thresholds).mean() or 1.0
    direction = expit(-margins / scale) @ users
    gains = users @ direction
    lacking = (margins < 0) & (gains > 0)
    if not lacking.any():
        return np.zeros_like(vector)
    return np.median(-margins[lacking] / gains[lacking]) * direction


def normalize(vector):
    """Return the vector with length 1; 0 stays 0."""
    return vector / (np.linalg.norm(vector) or 1.0)
