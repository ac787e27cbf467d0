"""Poisoning: clients that forge their uploads, or the data that they train on."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from sklearn.base import BaseEstimator

from fedrecsk._sklearn import Interval
from fedrecsk.attacks._drawn import Noise, Turned
from fedrecsk.attacks._one_by_one import forged_one_by_one
from fedrecsk.interactions import Ids, id_array
from fedrecsk.uploads import Changes, Ragged, as_integers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from fedrecsk.interactions import Interactions
    from fedrecsk.simulation.keys import Key


@dataclass(frozen=True, eq=False)
class Intrusion:
    """An adversary that takes part in a fit.

    Attributes
    ----------
    controlled : ndarray of shape (n_clients,), dtype bool
        Mask of the clients that it controls.
    data : Interactions
        Data that the clients train on.
    forge : callable
        ``forge(batch, seeds, summed)`` returns a dict of Changes that the clients of a batch send
        instead of their own. It controls all of them. `seeds`, of shape (n_clients,) and dtype
        uint64, seed the clients' draws. `summed`: whether only the sum of the uploads will be
        used.
    """

    controlled: np.ndarray
    data: Interactions
    forge: Callable[..., dict[str, Changes]]


class Adversary(BaseEstimator, ABC):
    """Base class: what ``Federation(adversary=...)`` takes.

    An adversary controls some clients for the whole fit. They register, and report their errors
    on held-out rows, like all other clients; but their uploads, or the data that they train on,
    are forged. ``compromised_clients_`` of the fitted model has their ids.

    To write your own adversary, implement one method, ``_forged(self, data, upload, generator)``.
    It receives what one client would honestly send, and returns what the client sends instead.
    `upload` is a dict with an ``Update(rows, change)`` for each field: `change` is the difference
    from the upload of a client that has learned nothing. Return the same fields with changes of
    the same shapes. Integer fields are rounded for you; where a number takes one bit, it becomes
    its sign. `data` has the interactions of all clients. Use `generator` for your draws.

    Parameters
    ----------
    fraction : float in (0, 1), default=0.1
        Share of the clients to control, at least one client. They are drawn with the fit's
        `random_state`.
    clients : array-like of shape (n_controlled,), default=None
        Ids of the clients to control, instead of a share of all.

    Examples
    --------
    An adversary whose clients send twice what they have learned:

    >>> import numpy as np
    >>> from fedrecsk import Federation
    >>> from fedrecsk.aggregation import Update
    >>> from fedrecsk.attacks import Adversary
    >>> class Double(Adversary):
    ...     def _forged(self, data, upload, generator):
    ...         return {name: u._replace(change=2 * u.change) for name, u in upload.items()}
    >>> upload = {"items": Update(slice(None), np.array([[0.5, -1.0]]))}
    >>> Double()._forged(None, upload, np.random.default_rng(0))["items"].change
    array([[ 1., -2.]])
    >>> federation = Federation(adversary=Double(fraction=0.2))
    """

    _parameter_constraints: ClassVar[dict] = {
        "fraction": [Interval(Real, 0, 1, closed="neither")],
        "clients": ["array-like", None],
    }

    def __init__(self, fraction: float = 0.1, *, clients: ArrayLike | None = None):
        self.fraction = fraction
        self.clients = clients

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        # A subclass's own `_forged` takes precedence over an inherited `_forged_batch`.
        if "_forged" in vars(cls) and "_forged_batch" not in vars(cls):
            cls._forged_batch = Adversary._forged_batch

    @property
    def forges(self) -> bool:
        """Whether it forges uploads, rather than only the data that its clients train on."""
        own = type(self)
        return (
            own._forged is not Adversary._forged or own._forged_batch is not Adversary._forged_batch
        )

    def enter(self, data: Interactions, rates: bool, key: Key) -> Intrusion:
        """Take over some clients of a fit.

        Parameters
        ----------
        data : Interactions
            Data of all clients.
        rates : bool
            Whether the data are ratings, rather than implicit feedback.
        key : Key
            Key of the fit's random draws.

        Returns
        -------
        Intrusion

        Raises
        ------
        ValueError
            If a client is unknown, or if no honest client is left.
        """
        controlled = self._controlled(data.client_ids, key)
        poisoned = self._poisoned(data, controlled, rates, key)
        return Intrusion(controlled, poisoned, partial(self._forged_batch, data))

    def _controlled(self, client_ids, key):
        n_clients = len(client_ids)
        controlled = np.zeros(n_clients, dtype=bool)
        if self.clients is None:
            order = np.argsort(key.at(-1).hashed("adversary", np.arange(n_clients)), kind="stable")
            controlled[order[: max(1, round(self.fraction * n_clients))]] = True
        else:
            theirs = id_array(self.clients, "clients of the adversary")
            codes = Ids(client_ids, "clients").codes(theirs)
            if len(codes) == 0:
                raise ValueError(
                    f"{type(self).__name__}(clients=[]) controls no client; name one, or set "
                    "adversary=None."
                )
            unknown = theirs[codes < 0]
            if len(unknown):
                raise ValueError(
                    f"{type(self).__name__}(clients=...) names {unknown[0]!s}, which is not a "
                    "client of this fit; use ids of the user column, or of fit's `clients` if you "
                    "pass them."
                )
            controlled[codes] = True
        if controlled.all():
            raise ValueError(
                f"{type(self).__name__} would control all {n_clients} clients, so that no honest "
                "one would be left; lower fraction, or name fewer clients."
            )
        return controlled

    def _poisoned(self, data, controlled, rates, key):
        """Data that the clients train on."""
        return data

    def _forged(self, data, upload, generator):
        """What a controlled client sends instead of `upload`.

        Parameters
        ----------
        data : Interactions
            Data of all clients, before poisoning.
        upload : dict of {str: Update}
            What the client would honestly send.
        generator : numpy.random.Generator
            Generator of this client in this round.

        Returns
        -------
        dict of {str: Update}
        """
        return upload

    def _forged_batch(self, data, batch, seeds, summed):
        """What the clients of a batch send instead of their uploads; all are controlled.

        Parameters
        ----------
        data : Interactions
        batch : Batch
        seeds : ndarray of shape (n_clients,), dtype uint64
        summed : bool
            Whether only the sum of the uploads will be used, so that one draw for the sum is
            enough.

        Returns
        -------
        dict of {str: Changes}
        """
        return forged_one_by_one(self, data, batch, seeds)


class RandomUpload(Adversary):
    """Upload noise: every number is drawn from N(0, strength^2).

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.
    strength : float, default=1.0
        Standard deviation, in the units of the uploads.

    Examples
    --------
    >>> from fedrecsk import Federation, LocALS
    >>> from fedrecsk.attacks import RandomUpload
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> federation = Federation(adversary=RandomUpload(clients=[3, 5]))
    >>> LocALS(n_factors=4, federation=federation, random_state=0).fit(X).compromised_clients_
    array([3, 5])
    """

    _parameter_constraints: ClassVar[dict] = Adversary._parameter_constraints | {
        "strength": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self, fraction: float = 0.1, *, strength: float = 1.0, clients: ArrayLike | None = None
    ):
        super().__init__(fraction, clients=clients)
        self.strength = strength

    def _forged(self, data, upload, generator):
        return _changed(
            upload, lambda change: self.strength * generator.standard_normal(change.shape)
        )

    def _forged_batch(self, data, batch, seeds, summed):
        return {name: Noise(batch, name, seeds, self.strength, summed) for name in batch.changes}


class SignFlip(Adversary):
    """Upload ``-scale`` times what the client has honestly learned.

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.
    scale : float, default=5.0
        Factor on the honest change, whose sign is flipped.

    Examples
    --------
    >>> from fedrecsk.attacks import SignFlip
    >>> SignFlip(fraction=0.2, scale=1.0)
    SignFlip(fraction=0.2, scale=1.0)
    """

    _parameter_constraints: ClassVar[dict] = Adversary._parameter_constraints | {
        "scale": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self, fraction: float = 0.1, *, scale: float = 5.0, clients: ArrayLike | None = None
    ):
        super().__init__(fraction, clients=clients)
        self.scale = scale

    def _forged(self, data, upload, generator):
        return _changed(upload, lambda change: -self.scale * change)

    def _forged_batch(self, data, batch, seeds, summed):
        if not _are_ragged(batch):
            return super()._forged_batch(data, batch, seeds, summed)
        return {name: changes.scaled(-self.scale) for name, changes in batch.changes.items()}


class RandomDirection(Adversary):
    """Upload a random direction with the norm of the honest change, which clipping cannot detect.

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.

    Examples
    --------
    >>> from fedrecsk.attacks import RandomDirection
    >>> RandomDirection(fraction=0.2)
    RandomDirection(fraction=0.2)
    """

    def _forged(self, data, upload, generator):
        def turned(change):
            direction = generator.standard_normal(change.shape)
            return direction * (np.linalg.norm(change) / (np.linalg.norm(direction) or 1))

        return _changed(upload, turned)

    def _forged_batch(self, data, batch, seeds, summed):
        return {name: Turned(batch, name, seeds) for name in batch.changes}


class LabelFlip(Adversary):
    """Train honestly, but on the opposite of the users' preferences.

    Ratings are mirrored on their scale. With implicit feedback, a user's items are replaced by as
    many items that it has not interacted with; users with all items keep them.

    Parameters
    ----------
    fraction, clients
        As in :class:`Adversary`.

    Examples
    --------
    >>> from fedrecsk.attacks import LabelFlip
    >>> LabelFlip(fraction=0.3)
    LabelFlip(fraction=0.3)
    """

    def _poisoned(self, data, controlled, rates, key):
        theirs = np.repeat(controlled, np.diff(data.rating_indptr))
        if rates:
            mirrored = data.values.min() + data.values.max() - data.values
            return replace(data, values=np.where(theirs, mirrored, data.values))
        users, items = data.users, data.items.astype(np.int64)
        kept = ~theirs
        for u in np.unique(users[theirs]):
            rows = slice(data.indptr[u], data.indptr[u + 1])
            others = np.setdiff1d(np.arange(data.n_items), data.items[rows])
            if len(others) == 0:
                kept[rows] = True
                continue
            draws = key.at(-1).hashed("flipped labels", u * data.n_items + others)
            new = others[np.argsort(draws, kind="stable")][: rows.stop - rows.start]
            span = slice(rows.start, rows.start + len(new))
            items[span] = new
            kept[span] = True
        return _of_rows(data, users[kept], items[kept], data.values[kept], data.weights[kept])


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

    def _target(self, data):
        matches = (
            np.flatnonzero(data.item_ids.values == self.item) if np.isscalar(self.item) else ()
        )
        if len(matches) == 0:
            raise ValueError(
                f"Promotion(item={self.item!r}) is not among the items of X; name an item that "
                "occurs in X."
            )
        return int(matches[0])

    def _poisoned(self, data, controlled, rates, key):
        target = self._target(data)
        users = np.repeat(controlled, np.diff(data.client_indptr)).nonzero()[0]
        rows_users, rows_items = data.users, data.items
        kept = ~((rows_items == target) & np.isin(rows_users, users))
        best, weight = np.full(len(users), data.values.max()), np.ones(len(users))
        return _of_rows(
            data,
            np.r_[rows_users[kept], users],
            np.r_[rows_items[kept], np.full(len(users), target)],
            np.r_[data.values[kept], best],
            np.r_[data.weights[kept], weight],
        )

    @property
    def forges(self) -> bool:
        return self.scale != 1 or type(self)._forged is not Promotion._forged

    def _forged(self, data, upload, generator):
        target, every_item = self._target(data), np.arange(data.n_items)

        def louder(update):
            if isinstance(update.rows, slice) and len(update.change) != data.n_items:
                return update
            theirs = every_item[update.rows] == target
            factor = np.where(theirs, self.scale, 1.0)
            return update._replace(change=(update.change.T * factor).T)

        return {name: louder(update) for name, update in upload.items()}

    def _forged_batch(self, data, batch, seeds, summed):
        if not _are_ragged(batch):
            return super()._forged_batch(data, batch, seeds, summed)
        target, forged = self._target(data), {}
        for name, changes in batch.changes.items():
            form = batch.forms[name]
            of_items = form.rows != "all" or form.shape[0] == data.n_items
            forged[name] = _louder(changes, target, self.scale) if of_items else changes
        return forged


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


def _are_ragged(batch):
    return all(isinstance(changes, Ragged) for changes in batch.changes.values())


def _changed(upload, change):
    return {name: update._replace(change=change(update.change)) for name, update in upload.items()}


def _of_rows(data, users, items, values, weights):
    """The same users, items and clients with other interactions."""
    order = np.lexsort((items, users))
    counts = np.bincount(users, minlength=data.n_users)
    return replace(
        data,
        indptr=np.concatenate([[0], np.cumsum(counts)]),
        items=items[order].astype(data.items.dtype),
        values=values[order],
        weights=weights[order],
    )
