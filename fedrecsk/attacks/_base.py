"""Active attacks: clients of a federation that do not follow the protocol."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedrecsk._utils.constraints import ArrayLike, Between0And1
from fedrecsk._utils.parameters import PlainParameters
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.data._checks import LARGEST
from fedrecsk.data.ids import Ids, id_array
from fedrecsk.data.interactions import Interactions
from fedrecsk.updates import (
    ClientUpdates,
    FieldSpec,
    SingleUploads,
    SparseRows,
    Update,
    as_integers,
    client_generator,
)

if TYPE_CHECKING:
    from fedrecsk.protocol.keys import Key


# Factors, and those above 0, such as the parameter `strength`.
Factor = Annotated[float, Interval(Real, 0, LARGEST, closed="both")]
Strength = Annotated[float, Interval(Real, 0, LARGEST, closed="right")]


@dataclass(eq=False)
class View:
    """What an adversary sees in a round before its clients upload.

    It sees what a real one would: its own clients' data and honest uploads, and what the server
    sends to everyone.

    Parameters
    ----------
    method : federated estimator
        The method with its hyperparameters, which are public. It is not fitted.
    round : int
        Number of the round, from 0.
    message : Message
        The announcement and the last broadcast, by field:
        ``view.message["item_factors"].values``. Fields of which a client receives only the rows
        of its own items are whole here, as for clients that claim to hold every item.
    n_senders : int
        Number of all clients that upload in this round, honest ones included.
    data : Interactions
        Data of the adversary's own clients, poisoned if it poisons them, with the codes of the
        whole catalogue. Rows that they hold out for validation are included. Other users have no
        rows.
    updates : list of ClientUpdates
        Honest updates of blocks of the adversary's clients that send something in this round.
    memory : dict
        Kept from round to round, and empty at first: for what the adversary wants to remember.

    Attributes
    ----------
    plan : object
        What the adversary's `_plan` has returned for this round.
    uploads : sequence of dict of {str: Update}
        The same updates, one dict per client; each is computed on access.
    """

    method: Any
    round: int
    message: Any
    n_senders: int
    data: Interactions
    updates: list[ClientUpdates]
    memory: dict = field(default_factory=dict)
    plan: Any = None

    def __post_init__(self) -> None:
        self.updates = [one.take(one.sends) for one in self.updates if one.sends.any()]

    @property
    def item_ids(self) -> np.ndarray:
        """Ids of all items, in the order of their codes."""
        return self.data.item_ids.values

    @property
    def n_items(self) -> int:
        """Number of items in the catalogue."""
        return self.data.n_items

    @property
    def uploads(self) -> Sequence[dict[str, Update]]:
        """Honest uploads of the adversary's clients."""
        places = [(one, client) for one in self.updates for client in range(len(one.sends))]
        return SingleUploads(len(places), lambda k: places[k][0].upload(places[k][1]))

    @property
    def n_own(self) -> int:
        """Number of the adversary's clients that upload in this round."""
        return sum(len(one.sends) for one in self.updates)

    def n_expected(self, name: str) -> float:
        """Estimate how many clients send a typical row of a field, the adversary's all included."""
        fields = [one.fields[name] for one in self.updates]
        n_changed = [
            rows.n_rows
            if rows.default is None
            else rows.per_client(lambda changes, _: changes.any(axis=1))
            for rows in fields
        ]
        share = float(np.concatenate(n_changed).mean()) / self.specs[name].shape[0]
        return self.n_own + (self.n_senders - self.n_own) * share

    @property
    def specs(self) -> dict[str, FieldSpec]:
        """FieldSpec of each learned field of an upload."""
        return {name: spec for name, spec in self.updates[0].specs.items() if spec.learned}

    @cached_property
    def item_vectors(self) -> NDArray[np.float64]:
        """Item vectors in the broadcast, shape (n_items, width).

        A user's scores are their product with some vector, up to a constant.
        """
        return np.array(self.method._algorithm().item_vectors(self.message), dtype=np.float64)

    @property
    def is_finite(self) -> bool:
        """Whether the item vectors and the adversary's honest uploads have finite numbers only."""
        return bool(np.isfinite(self.item_vectors).all()) and all(
            rows.finite().all() for one in self.updates for rows in one.learned.values()
        )

    def mean(self, name: str) -> np.ndarray:
        """Return the mean of a whole field over the adversary's clients that send a row; or 0."""
        return self._moments[name][0]

    def std(self, name: str) -> np.ndarray:
        """Return the standard deviation of a whole field over the same clients."""
        return self._moments[name][1]

    @cached_property
    def _moments(self):
        return {name: self._field_moments(name, spec) for name, spec in self.specs.items()}

    def _field_moments(self, name, spec):
        counts = np.zeros(spec.shape[0])
        sums, squares = np.zeros((2, *spec.shape))
        for one in self.updates:
            rows, everyone = one.fields[name], np.ones(len(one.sends))
            if spec.rows == "all":
                counts += len(everyone)
            else:
                counts += np.bincount(rows.rows, minlength=spec.shape[0])
            sums += rows.sum(everyone)
            squared = replace(
                rows,
                values=np.square(rows.values, dtype=np.float64),
                default=None if rows.default is None else np.square(rows.default),
                factors=None if rows.factors is None else np.square(rows.factors),
            )
            squares += squared.sum(everyone)
        counts = np.maximum(counts, 1).reshape(-1, *[1] * (len(spec.shape) - 1))
        mean = sums / counts
        return mean, np.sqrt(np.maximum(squares / counts - mean**2, 0))


@dataclass(eq=False)
class ActiveAttack:
    """An adversary that takes part in a fit; the clients of the mask `controlled` are its own."""

    adversary: Adversary
    controlled: np.ndarray
    data: Interactions  # of all clients, as they train on them
    memory: dict = field(default_factory=dict)  # kept from round to round

    def __post_init__(self) -> None:
        own = np.repeat(self.controlled, np.diff(self.data.rating_indptr))
        self.own_data: Interactions = self.data.take(own)
        self.message = None
        self._view = None

    def look(self, view: View | None) -> None:
        """Take the view of a round and let the adversary plan; None: the round is over."""
        self._view = view
        if view is not None:
            view.plan = self.adversary._plan(view)

    def forge(self, updates: ClientUpdates, seeds: NDArray[np.uint64]) -> ClientUpdates:
        """Forge the updates of clients that it controls, given one seed for each client."""
        if not updates.sends.any():
            return updates
        return self.adversary._forge_tile(self._view, updates, seeds)


@dataclass(eq=False, repr=False)
class Adversary(PlainParameters, ABC):
    """Base class: what ``Federation(adversary=...)`` takes.

    An adversary controls some clients for the whole fit: their uploads, or the data that they train
    on, are forged. ``compromised_clients_`` of the fitted model has their ids.

    To write your own adversary, implement one method, ``_forged(self, view, upload, generator)``.
    It receives what one client would honestly send, and returns what the client sends instead.
    `upload` is a dict with an ``Update(rows, change)`` for each field: `change` is the difference
    from the upload of a client that has learned nothing. Return the same fields with changes of
    the same shapes. Integer fields are rounded for you; where a number takes one bit, it becomes
    its sign. Use `generator` for your draws. `view` is a :class:`View` of the round. What is the
    same for all clients can be computed once, in ``_plan(self, view)``, as ``view.plan``.

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
    ...     def _forged(self, view, upload, generator):
    ...         return {name: u._replace(change=2 * u.change) for name, u in upload.items()}
    >>> upload = {"items": Update(slice(None), np.array([[0.5, -1.0]]))}
    >>> Double()._forged(None, upload, np.random.default_rng(0))["items"].change
    array([[ 1., -2.]])
    >>> federation = Federation(adversary=Double(fraction=0.2))
    """

    fraction: Between0And1 = 0.1
    _: KW_ONLY
    clients: ArrayLike | None = None

    @property
    def forges(self) -> bool:
        """Whether it forges uploads, rather than only the data that its clients train on."""
        own = type(self)
        return own._forged is not Adversary._forged or own._forge is not Adversary._forge

    def enter(self, data: Interactions, rates: bool, key: Key) -> ActiveAttack:
        """Take over some clients of a fit, by its data and the key of its random draws.

        `rates`: whether the data are ratings, rather than implicit feedback. A ValueError says if a
        client is unknown, no honest client is left, or a subclass implements no attack.
        """
        if not self.forges and type(self)._poison is Adversary._poison:
            raise ValueError(
                f"{type(self).__name__} attacks nothing: it has no `_forged` of its own, which "
                "returns what its clients upload. Implement _forged(self, view, upload, "
                "generator), or use an adversary of fedrecsk.attacks."
            )
        controlled = self._select_clients(data.client_ids, key)
        memory = self._remember(data, controlled, rates, key)
        return ActiveAttack(self, controlled, self._poison(data, controlled, rates, key), memory)

    def _remember(self, data, controlled, rates, key):
        """Return what the attack knows before the first round, by name; it becomes `memory`."""
        return {}

    def _select_clients(self, client_ids, key):
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

    def _poison(self, data, controlled, rates, key):
        """Return the data that the clients train on."""
        return data

    def _check_method(self, method):
        """Raise if the attack does not suit a federated method."""

    def _plan(self, view):
        """Decide what is the same for all controlled clients in a round; it becomes `view.plan`."""

    def _forge_tile(self, view, updates, seeds):
        """Forge by `_forge`, or by the `_forged` of a user's subclass."""
        if type(self)._forged is not Adversary._forged:
            return Adversary._forge(self, view, updates, seeds)
        return self._forge(view, updates, seeds)

    def _forge(self, view, updates, seeds):
        """Return what the clients of a tile send instead, given a seed for each client."""
        uploads = [updates.upload(client) for client in range(len(seeds))]
        for client in np.flatnonzero(updates.sends):
            honest, generator = uploads[client], np.random.default_rng(int(seeds[client]))
            forged = self._forged(view, dict(honest), generator)
            uploads[client] = _checked(f"{type(self).__name__}._forged", forged, honest, updates)
        fields = {}
        for name, rows in updates.learned.items():
            others = {"center": rows.center, "columns": rows.columns}
            forged = SparseRows.listed([one[name] for one in uploads], rows.spec, **others)
            fields[name] = with_numbers(forged, forged.values)
        return updates.with_fields(**fields)

    def _forged(self, view, upload, generator):
        """Return what one controlled client sends instead of `upload`, a dict of Update."""
        if type(self)._forge is not Adversary._forge:
            raise TypeError(
                f"{type(self).__name__} derives from an attack that forges the uploads of many "
                "clients at once, and has no inherited `_forged` to call."
            )
        return upload


def _checked(who, forged, honest, updates):
    """Return the forged upload, or raise if it has other fields, rows or shapes."""
    if not isinstance(forged, dict) or forged.keys() != honest.keys():
        found = sorted(forged) if isinstance(forged, dict) else type(forged).__name__
        raise ValueError(
            f"{who} returned {found}; return a dict with an Update for each of the fields "
            f"{sorted(honest)}."
        )
    return {n: _checked_field(who, n, forged[n], honest[n], updates.specs[n]) for n in honest}


def _checked_field(who, name, forged, honest, spec):
    if not isinstance(forged, Update):
        raise ValueError(
            f"{who} returned {type(forged).__name__} for field {name!r}; return "
            f"upload[{name!r}]._replace(change=...)."
        )
    rows, change = forged.rows, np.asarray(forged.change)
    if rows is honest.rows or np.array_equal(rows, honest.rows):
        rows = honest.rows
    else:
        rows, places = np.asarray(rows), np.arange(spec.shape[0])
        distinct = len(np.unique(rows)) == len(rows)
        if spec.rows != "chosen" or not (np.isin(rows, places).all() and distinct):
            raise ValueError(
                f"{who} returned other rows than the client sends for field {name!r} of shape "
                f"{spec.shape}; return upload[{name!r}]._replace(change=...), or, where clients "
                "choose their rows, as many different rows of the field."
            )
    if change.dtype.kind not in "iuf" or change.shape != honest.change.shape:
        raise ValueError(
            f"{who} returned a change of shape {change.shape} and dtype {change.dtype} for field "
            f"{name!r}, in which the client sends numbers of shape {honest.change.shape}; return "
            f"upload[{name!r}]._replace(change=...) with a change of that shape."
        )
    return Update(rows, change)


# ------------------------------------------------------------------- updates of many clients


def with_numbers(rows, numbers):
    """Put numbers into the own rows, rounded if they must be integers, and nothing elsewhere."""
    if rows.spec.is_integer:
        numbers = as_integers(numbers, rows.spec)
    else:
        numbers = numbers.astype(np.float64, copy=False)
    if rows.columns is not None:
        numbers = np.where(rows.columns[rows.owners], numbers, 0)
    return replace(rows, values=numbers, default=None, factors=None)


def send_rows_of(whole, rows):
    """Make each client send its rows of an array of the field's shape."""
    if rows.spec.rows == "all":
        if rows.columns is None and not rows.spec.is_integer:
            nobody = np.zeros(rows.n_clients + 1, dtype=np.int64)
            none = {"indptr": nobody, "rows": rows.rows[:0], "values": whole[:0]}
            return replace(rows, **none, default=whole, factors=None)
        rows = _make_all_own(rows)
    return with_numbers(rows, whole[rows.rows])


def draw(rows, name, seeds, distribution):
    """Make the sent rows own rows, and draw their numbers from each client's generator."""
    if rows.spec.rows == "all":
        rows = _make_all_own(rows)
    numbers = np.zeros(rows.values.shape)
    for seed, (first, last) in zip(seeds, pairwise(rows.indptr), strict=True):
        generator = client_generator(seed, name)
        numbers[first:last] = distribution(generator, numbers[first:last].shape)
    return rows, numbers


def _make_all_own(rows):
    """Make all rows every client's own, with zeros in them."""
    return rows.with_whole(np.zeros((rows.n_clients, *rows.spec.shape)))


# ------------------------------------------------------------------------------- poisoned data


def with_rows(data, users, items, values, weights):
    """Return the same users, items and clients with other interactions."""
    order = np.lexsort((items, users))
    counts = np.bincount(users, minlength=data.n_users)
    return replace(
        data,
        indptr=np.concatenate([[0], np.cumsum(counts)]),
        items=items[order].astype(data.items.dtype),
        values=values[order],
        weights=weights[order],
        times=None if data.times is None else _times(data, users, items)[order],
    )


def random_items(key, purpose, n_items, user, among, n):
    """Draw n of these items for a user, all different."""
    draws = key.at(-1).hashed(purpose, user * n_items + among)
    return among[np.argsort(draws, kind="stable")][:n]


def _times(data, users, items):
    """Return the times of pairs of user and item; those that are not in the data are the latest."""
    known, pairs = data.users * data.n_items + data.items, users * data.n_items + items
    places = np.minimum(np.searchsorted(known, pairs), len(known) - 1)
    return np.where(known[places] == pairs, data.times[places], np.nanmax(data.times))
