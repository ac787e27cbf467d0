"""What attacks that promote one item share: fabricated rows, and uploads that move the item."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from fedrecsk._sklearn import Interval
from fedrecsk.attacks._adversary import Adversary, are_ragged
from fedrecsk.attacks._target import check_honest_holder, code_of, with_target
from fedrecsk.uploads import as_integers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from fedrecsk.attacks._view import View


class Plan(NamedTuple):
    """What all controlled clients upload in a round.

    Attributes
    ----------
    rows : ndarray of shape (n_rows,)
        Items to move, by code.
    changes : dict of {str: ndarray of shape (n_rows, width)}
        Their rows in each field that moves them.
    """

    rows: NDArray[np.int64]
    changes: dict[str, NDArray[np.float64]]


class TargetedAdversary(Adversary):
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

    _parameter_constraints: ClassVar[dict] = Adversary._parameter_constraints | {
        "item": "no_validation",
        "strength": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self,
        fraction: float = 0.1,
        *,
        item: object = None,
        strength: float = 1.0,
        clients: ArrayLike | None = None,
    ):
        super().__init__(fraction, clients=clients)
        self.item = item
        self.strength = strength

    @abstractmethod
    def _moves(self, view: View) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Which items to move, and how.

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
        """Code of the item to promote."""
        return code_of(self, view.item_ids)

    def _check_method(self, method):
        name = type(method).__name__
        if method._upload_moving is None:
            raise ValueError(
                f"{type(self).__name__} moves item vectors by the rows that clients upload for "
                f"items, and {name} has no such rows; use Promotion(scale=1), which changes only "
                "the data, or attack another method."
            )
        if not any(form.learned for form in method._upload_forms(1).values()):
            raise ValueError(
                f"{type(self).__name__} has nothing to forge, because with these parameters the "
                f"clients of {name} upload nothing that they have learned; let the method train "
                "its items."
            )

    def _poisoned(self, data, controlled, rates, key):
        target = code_of(self, data.item_ids.values)
        check_honest_holder(self, data, controlled, target)
        return with_target(data, controlled, target)

    def _plan(self, view):
        if not view.is_finite:
            # The model has diverged.
            return Plan(np.empty(0, dtype=np.int64), {})
        rows, moves = self._moves(view)
        return Plan(rows, view.method._upload_moving(view, rows, moves))

    def _forged(self, view, upload, generator):
        plan, forms, forged = view.plan, view.forms, {}
        for name, update in upload.items():
            change = update.change if forms[name].bits else np.zeros(update.change.shape)
            rows = np.arange(forms[name].shape[0])[update.rows]
            forged[name] = update._replace(change=_placed(change, rows, plan, name))
        return forged

    def _forged_batch(self, view, batch, seeds, summed):
        if not are_ragged(batch):
            return super()._forged_batch(view, batch, seeds, summed)
        return {name: _ragged(changes, view.plan, name) for name, changes in batch.changes.items()}


def _placed(change, rows, plan, name):
    """The change with the planned rows in their places, where the client sends them."""
    if name not in plan.changes:
        return change
    places = np.minimum(np.searchsorted(plan.rows, rows), len(plan.rows) - 1)
    there = plan.rows[places] == rows
    planned = plan.changes[name][places[there]].reshape(-1, *change.shape[1:])
    change = change.astype(np.float64)
    change[there] = planned
    return change


def _ragged(changes, plan, name):
    """A Ragged with the planned rows of every client, and nothing learned elsewhere."""
    if changes.form.rows == "all":
        if name in plan.changes:
            changes = _of_these_rows(changes, plan.rows)
        else:
            changes = _of_these_rows(changes, plan.rows[:0])
    values = np.zeros(changes.values.shape)
    if changes.form.bits:
        values = changes.values.astype(np.float64)
    values = _placed(values, changes.rows, plan, name)
    if changes.columns is not None:
        values *= np.repeat(changes.columns, changes.n_rows, axis=0)
    if changes.is_integer:
        values = as_integers(values, changes.form)
    return replace(changes, values=values, origin=None, common=None)


def _of_these_rows(changes, rows):
    """The same clients with these own rows, whose values are 0."""
    n_clients, n_rows = changes.n_clients, len(rows)
    return replace(
        changes,
        indptr=np.arange(n_clients + 1) * n_rows,
        rows=np.tile(rows, n_clients).astype(changes.rows.dtype),
        values=np.zeros((n_clients * n_rows, *changes.values.shape[1:])),
    )
