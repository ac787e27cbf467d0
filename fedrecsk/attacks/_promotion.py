"""Promotion of an item by fabricated data and scaled-up uploads."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedrecsk._sklearn import Interval
from fedrecsk.attacks._adversary import Adversary, are_ragged
from fedrecsk.attacks._target import check_honest_holder, code_of, with_target
from fedrecsk.uploads import as_integers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Promotion(Adversary):
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

    _parameter_constraints: ClassVar[dict] = Adversary._parameter_constraints | {
        "item": "no_validation",
        "scale": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self,
        fraction: float = 0.1,
        *,
        item: object = None,
        scale: float = 10.0,
        clients: ArrayLike | None = None,
    ):
        super().__init__(fraction, clients=clients)
        self.item = item
        self.scale = scale

    def _check_method(self, method):
        if self.forges and not has_item_rows(method):
            raise ValueError(
                f"{type(method).__name__} has no rows of items in its uploads for Promotion to "
                "scale up; set scale=1, so that the attack changes only the data."
            )

    def _poisoned(self, data, controlled, rates, key):
        target = code_of(self, data.item_ids.values)
        check_honest_holder(self, data, controlled, target)
        return with_target(data, controlled, target)

    @property
    def forges(self) -> bool:
        return self.scale != 1 or type(self)._forged is not Promotion._forged

    def _forged(self, view, upload, generator):
        target, every_item = code_of(self, view.item_ids), np.arange(view.n_items)

        def louder(update):
            if isinstance(update.rows, slice) and len(update.change) != view.n_items:
                return update
            theirs = every_item[update.rows] == target
            factor = np.where(theirs, self.scale, 1.0)
            return update._replace(change=(update.change.T * factor).T)

        return {name: louder(update) for name, update in upload.items()}

    def _forged_batch(self, view, batch, seeds, summed):
        if not are_ragged(batch):
            return super()._forged_batch(view, batch, seeds, summed)
        target, forged = code_of(self, view.item_ids), {}
        for name, changes in batch.changes.items():
            form = batch.forms[name]
            of_items = form.rows != "all" or form.shape[0] == view.n_items
            forged[name] = _louder(changes, target, self.scale) if of_items else changes
        return forged


def has_item_rows(method):
    """Whether a field of the clients' uploads has a row for each item."""
    few, many = method._upload_forms(7), method._upload_forms(8)
    learned = [name for name, form in few.items() if form.learned]
    return any((few[name].shape[0], many[name].shape[0]) == (7, 8) for name in learned)


def _louder(changes, row, factor):
    """A Ragged in which one row of every client's change is multiplied by `factor`."""
    if changes.form.rows == "all" and changes.common is not None:
        changes = _with_own(changes, row)
    there = changes.rows == row
    origin = 0 if changes.origin is None else changes.origin[row].astype(np.float64)
    change = factor * (changes.values[there] - origin)
    if changes.is_integer:
        change = as_integers(change, changes.form)
        origin = np.asarray(origin).astype(np.int64)
    values = changes.values.astype(change.dtype)
    values[there] = change + origin
    return replace(changes, values=values)


def _with_own(changes, row):
    """The same changes, with `row` among every client's own rows."""
    n_clients = changes.n_clients
    owners = np.repeat(np.arange(n_clients), changes.n_rows)
    lacking = np.bincount(owners[changes.rows == row], minlength=n_clients) == 0
    before = np.bincount(owners[changes.rows < row], minlength=n_clients)
    places = (changes.indptr[:-1] + before)[lacking]
    value = changes.common.change[row].reshape(changes.shape[1:])
    if changes.origin is not None:
        value = value + changes.origin[row]
    return replace(
        changes,
        indptr=changes.indptr + np.concatenate([[0], np.cumsum(lacking)]),
        rows=np.insert(changes.rows, places, row),
        values=np.insert(changes.values.astype(np.float64), places, value, axis=0),
    )
