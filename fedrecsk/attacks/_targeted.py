"""Attacks that promote one item: by fabricated rows and scaled uploads, or by moving its vector."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.attacks._base import Adversary, send_rows_of, with_numbers, with_rows
from fedrecsk.data._checks import LARGEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedrecsk.attacks._base import View


@dataclass(kw_only=True, eq=False, repr=False)
class _Promoter(Adversary):
    """Base class of attacks whose users all give one item the best rating."""

    item: object = None

    _parameter_constraints: ClassVar[dict] = Adversary._parameter_constraints | {
        "item": "no_validation",
    }

    def _target_code(self, item_ids):
        """Return the code of the item to promote."""
        name = type(self).__name__
        if self.item is None:
            raise ValueError(f"{name} needs item=..., the id of the item to promote.")
        matches = places_of(self.item, item_ids)
        if len(matches) == 0:
            raise ValueError(
                f"{name}(item={self.item!r}) is not among the items of X; "
                "name an item that occurs in X."
            )
        return int(matches[0])

    def _poison(self, data, controlled, rates, key):
        target = self._target_code(data.item_ids.values)
        if controlled[data.clients[data.items == target]].all():
            raise ValueError(
                f"{type(self).__name__}(item={self.item!r}) is an item that no honest client "
                "holds, so that without the attack nobody would learn anything about it, and "
                "exposures could not be compared; name an item with rows of other users, or "
                "control other clients."
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


def places_of(one, item_ids):
    """Return the codes at which an item's id stands: one or none."""
    return np.flatnonzero(item_ids == one) if np.isscalar(one) else ()


@dataclass(kw_only=True, eq=False, repr=False)
class Promotion(_Promoter):
    """Promote one item: all controlled users give it the best rating, and scale its row up.

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.
    item : id
        Item to promote. It must be in X.
    scale : float, default=10.0
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

    scale: float = 10.0

    _parameter_constraints: ClassVar[dict] = _Promoter._parameter_constraints | {
        "scale": [Interval(Real, 0, LARGEST, closed="right")],
    }

    @property
    def forges(self) -> bool:
        return self.scale != 1 or type(self)._forge is not Promotion._forge

    def _check_method(self, method):
        if self.forges and not _has_item_rows(method):
            raise ValueError(
                f"{type(method).__name__} has no rows of items in its uploads for Promotion to "
                "scale up; set scale=1, so that the attack changes only the data."
            )

    def _forge(self, view, updates, seeds):
        target, fields = self._target_code(view.item_ids), {}
        for name, rows in updates.learned.items():
            if rows.spec.rows == "all" and rows.spec.shape[0] != view.n_items:
                continue
            rows = _make_own(rows, target)
            factors = np.where(rows.rows == target, self.scale, 1.0)
            scaled = with_numbers(rows, (rows.values.T * factors).T)
            fields[name] = replace(scaled, default=rows.default, factors=rows.factors)
        return updates.with_fields(**fields)


def _make_own(rows, row):
    """Make one row every client's own where there is a default for it."""
    if rows.default_matrix is None:
        return rows
    lacking = np.bincount(rows.owners[rows.rows == row], minlength=rows.n_clients) == 0
    n_before = np.bincount(rows.owners[rows.rows < row], minlength=rows.n_clients)
    places = (rows.indptr[:-1] + n_before)[lacking]
    values = rows.values.astype(np.float64)
    return replace(
        rows,
        indptr=rows.indptr + np.concatenate([[0], np.cumsum(lacking)]),
        rows=np.insert(rows.rows, places, row),
        values=np.insert(values, places, rows.default[row], axis=0),
    )


def _has_item_rows(method):
    """Whether a field of the clients' uploads has a row for each item."""
    few, many = method._upload_specs(7), method._upload_specs(8)
    learned = [name for name, spec in few.items() if spec.learned]
    return any((few[name].shape[0], many[name].shape[0]) == (7, 8) for name in learned)


class Plan(NamedTuple):
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
        How far to move the item, relative to what the attack aims at. What is strongest depends on
        the method and its defence: search it.

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

    strength: float = 1.0

    _parameter_constraints: ClassVar[dict] = _Promoter._parameter_constraints | {
        "strength": [Interval(Real, 0, LARGEST, closed="right")],
    }

    @abstractmethod
    def _moves(self, view: View) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return which items to move, and how.

        Parameters
        ----------
        view : View

        Returns
        -------
        rows : ndarray of shape (n_rows,)
            Codes of items, ascending.
        moves : ndarray of shape (n_rows, width)
            Wanted changes of ``view.item_vectors[rows]`` in this round, for this `strength`.
        """

    def _target(self, view: View) -> int:
        """Return the code of the item to promote."""
        return self._target_code(view.item_ids)

    def _check_method(self, method):
        name = type(method).__name__
        if method._upload_moving is None:
            raise ValueError(
                f"{type(self).__name__} moves item vectors by the rows that clients upload for "
                f"items, and {name} has no such rows; use Promotion(scale=1), which changes only "
                "the data, or attack another method."
            )
        if not any(spec.learned for spec in method._upload_specs(1).values()):
            raise ValueError(
                f"{type(self).__name__} has nothing to forge, because with these parameters the "
                f"clients of {name} upload nothing that they have learned; let the method train "
                "its items."
            )

    def _plan(self, view):
        if not view.is_finite:
            # The model has diverged.
            return Plan(np.empty(0, dtype=np.int64), {})
        rows, moves = self._moves(view)
        return Plan(rows, view.method._upload_moving(view, rows, moves))

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
