"""Robust aggregators: how a server adds up uploads that it does not trust.

They need each client's upload, so they cannot be combined with secure sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import ClassVar, Literal

import numpy as np
from sklearn.base import BaseEstimator

from fedrecsk._sklearn import Interval, StrOptions
from fedrecsk.uploads import Batch, Form, Listed, Ragged
from fedrecsk.uploads import Update as Update

__all__ = ["Aggregator", "CoordinateMedian", "Krum", "NormClipping", "TrimmedMean"]

# Memory of a dense stack of a few rows of all clients.
TILE_BYTES = 64 * 2**20
# Sums stay below this, so that they fit into 64 bits.
LARGEST_SUM = 2.0**62


def plain_sum(
    uploads: Iterable[dict[str, Update]], shapes: dict[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Add up the changes of all clients, field by field.

    Parameters
    ----------
    uploads : iterable of dict of {str: Update}
    shapes : dict of {str: tuple}
        Shape of each whole field.

    Returns
    -------
    sums : dict of {str: ndarray}
        Sum of each field; dtype int64 if all changes are integers, otherwise float64.
    """
    sums = {name: np.zeros(shape, dtype=np.int64) for name, shape in shapes.items()}
    for upload in uploads:
        for name, total in sums.items():
            rows, change = upload[name]
            total = total.astype(np.result_type(total, change), copy=False)
            total[rows] += change
            sums[name] = total
    return sums


class Aggregator(BaseEstimator, ABC):
    """Base class of robust aggregators: what ``Federation(aggregator=...)`` takes.

    To write your own aggregator, implement one method, `combine`. Each upload is a dict with an
    ``Update(rows, change)`` for each field of what the client has learned. `change` is the
    difference from the upload of a client that has learned nothing, and `rows` are the rows of
    the field that it belongs to.

    Examples
    --------
    An aggregator that leaves out every client whose largest change is 1 or more:

    >>> import numpy as np
    >>> from fedrecsk.aggregation import Aggregator, Update, plain_sum
    >>> class Below1(Aggregator):
    ...     def combine(self, uploads, shapes):
    ...         def largest(upload):
    ...             return max(np.abs(update.change).max() for update in upload.values())
    ...
    ...         return plain_sum([u for u in uploads if largest(u) < 1], shapes)
    >>> uploads = [{"items": Update(slice(None), np.full((2, 1), x))} for x in (0.5, 0.25, 9.0)]
    >>> Below1().combine(uploads, {"items": (2, 1)})
    {'items': array([[0.75],
           [0.75]])}
    """

    _parameter_constraints: ClassVar[dict] = {}

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        # A subclass's own `combine` takes precedence over an inherited `_combine_batches`.
        if "combine" in vars(cls) and "_combine_batches" not in vars(cls):
            cls._combine_batches = Aggregator._combine_batches

    def _check_clients(self, data, n_clients):
        """Raise if the aggregator does not suit `data` with `n_clients` clients per round."""

    @abstractmethod
    def combine(
        self, uploads: Sequence[dict[str, Update]], shapes: dict[str, tuple[int, ...]]
    ) -> dict[str, np.ndarray] | None:
        """Combine the uploads of one round into the sum that the server continues with.

        Parameters
        ----------
        uploads : sequence of dict of {str: Update}
            One upload per client, in the order of the clients. Each is computed when you access
            it. All numbers are finite.
        shapes : dict of {str: tuple}
            Shape of each whole field.

        Returns
        -------
        sums : dict of {str: ndarray} or None
            Sum of the changes of each field. The server takes it for a sum over all
            ``len(uploads)`` clients, so multiply a mean by that number. None if there are too few
            uploads; the round then changes nothing.
        """

    def _combine_batches(self, batches):
        """Total change of each learned field over the accepted clients of all batches.

        Parameters
        ----------
        batches : list of Batch

        Returns
        -------
        totals : dict of {str: ndarray} or None
            One array per field, dtype float64 or, for fields of integers, int64. None: too few
            uploads.
        """
        uploads = _Uploads(batches)
        if len(uploads) == 0:
            return None
        forms = _forms(batches)
        sums = self.combine(uploads, {name: form.shape for name, form in forms.items()})
        return None if sums is None else _checked(type(self).__name__, sums, forms)


class _Uploads(Sequence):
    """The accepted clients' uploads in the order of their codes, each computed on access."""

    def __init__(self, batches):
        self._batches = batches
        where = {}
        for batch, places in zip(batches, _places(batches), strict=True):
            for client in np.flatnonzero(batch.accepted):
                where[places[client]] = batch, client
        self._where = [where[place] for place in range(len(where))]

    def __len__(self):
        return len(self._where)

    def __getitem__(self, number):
        if isinstance(number, slice):
            return [batch.upload(client) for batch, client in self._where[number]]
        batch, client = self._where[number]
        return batch.upload(client)


def _checked(rule, sums, forms):
    """Check what a user's `combine` has returned, and raise a ValueError if it is wrong."""
    if not isinstance(sums, dict) or sums.keys() != forms.keys():
        found = sorted(sums) if isinstance(sums, dict) else type(sums).__name__
        raise ValueError(
            f"{rule}.combine returned {found}; return a dict with one array for each of the "
            f"fields {sorted(forms)}, or None if there are too few uploads."
        )
    return {name: _checked_field(rule, name, sums[name], form) for name, form in forms.items()}


def _checked_field(rule, name, values, form):
    values = np.asarray(values)
    if values.dtype.kind not in "iuf" or values.shape != form.shape:
        raise ValueError(
            f"{rule}.combine returned an array of shape {values.shape} and dtype {values.dtype} "
            f"for field {name!r}; return numbers of shape {form.shape}."
        )
    if not np.isfinite(values).all():
        raise ValueError(
            f"{rule}.combine returned NaN or infinite numbers for field {name!r} of shape "
            f"{form.shape}, but all uploads that it received are finite; look for a division by "
            "zero or an overflow."
        )
    return _as_sum(values, form)


def _as_sum(values, form):
    """Convert to the data type of the field's sums."""
    if form.is_integer and values.dtype.kind == "f":
        values = np.rint(np.clip(values, -LARGEST_SUM, LARGEST_SUM))
    return values.astype(form.sum_dtype, copy=False)


class _InBlocks(Aggregator):
    """An aggregator that combines whole batches; a list of uploads becomes a batch first."""

    @abstractmethod
    def _combined(self, batches):
        """Like `_combine_batches`, with at least one accepted client."""

    def _combine_batches(self, batches):
        return self._combined(batches) if any(b.accepted.any() for b in batches) else None

    def combine(
        self, uploads: Sequence[dict[str, Update]], shapes: dict[str, tuple[int, ...]]
    ) -> dict[str, np.ndarray] | None:
        return self._combined([_as_batch(uploads, shapes)]) if len(uploads) else None


def _as_batch(uploads, shapes):
    uploads = list(uploads)
    everyone = np.ones(len(uploads), dtype=bool)
    forms, changes = {}, {}
    for name, shape in shapes.items():
        updates = [upload[name] for upload in uploads]
        exact = all(update.change.dtype.kind in "iub" for update in updates)
        forms[name] = Form(shape, dtype="int64" if exact else None)
        changes[name] = Listed(updates, forms[name])
    clients = np.arange(len(uploads))
    return Batch(clients, everyone, everyone, everyone, forms, changes, {})


class NormClipping(_InBlocks):
    """Scale down every upload whose norm exceeds a bound, then add the uploads up.

    Works with every method and any kind of clients: no client can move the model further than an
    ordinary one. It limits the damage of poisoned uploads, but does not remove them.

    Parameters
    ----------
    max_norm : float or "median", default="median"
        Bound on the Euclidean norm of a client's change of one field. "median": the median norm
        of the round's uploads, for each field. Attackers cannot raise it much while they are
        fewer than half of the clients.
    multiple : float, default=1.0
        Factor on the median, if ``max_norm="median"``.

    Notes
    -----
    A client that holds many items has a longer update than one that holds few, and is
    scaled down more. All uploads of a round are kept in memory until their median is known.

    Examples
    --------
    >>> from fedrecsk import Federation, LocALS
    >>> from fedrecsk.aggregation import NormClipping
    >>> from fedrecsk.attacks import RandomUpload
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> attack, defence = RandomUpload(0.1, strength=100), NormClipping()
    >>> federation = Federation(adversary=attack, aggregator=defence)
    >>> model = LocALS(n_factors=4, federation=federation, random_state=0).fit(X)
    >>> len(model.compromised_clients_)
    6
    """

    _parameter_constraints: ClassVar[dict] = {
        "max_norm": [Interval(Real, 0, None, closed="neither"), StrOptions({"median"})],
        "multiple": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(self, max_norm: float | Literal["median"] = "median", *, multiple: float = 1.0):
        self.max_norm = max_norm
        self.multiple = multiple

    def _combined(self, batches):
        return {name: self._clipped_sum(batches, name) for name in _forms(batches)}

    def _clipped_sum(self, batches, name):
        norms = [batch.changes[name].norms(batch.accepted) for batch in batches]
        accepted = [n[batch.accepted] for n, batch in zip(norms, batches, strict=True)]
        bound = self._bound(np.concatenate(accepted))
        return _weighted_sum(batches, name, [_factors(n, bound) for n in norms])

    def _bound(self, norms):
        return self.multiple * np.median(norms) if self.max_norm == "median" else self.max_norm


def _factors(norms, bound):
    """Factors that bring the norm of each upload down to at most `bound`."""
    return np.divide(bound, norms, out=np.ones(len(norms)), where=norms > bound)


def _weighted_sum(batches, name, weights):
    """Weighted sum over the accepted clients of all batches; one array of weights per batch."""
    sums = [b.sum_of_changes(name, w) for b, w in zip(batches, weights, strict=True)]
    return _as_sum(sum(sums[1:], start=sums[0]), batches[0].forms[name])


class _Comparison(_InBlocks):
    """An aggregator that compares clients number by number; numbers not sent count as 0."""

    def _check_clients(self, data, n_clients):
        pairs = np.unique(data.clients * data.n_items + data.items)
        holders = np.bincount(pairs % data.n_items, minlength=data.n_items)
        if np.median(2 * holders[data.items]) < data.n_clients:
            raise ValueError(
                f"{type(self).__name__} compares clients number by number, but most rows of X have "
                f"items that fewer than half of the {data.n_clients} clients hold, so it would "
                "mostly compare zeros. Group the users into silos by fit(..., clients=...), or "
                "use NormClipping."
            )


class _OrderStatistic(_Comparison):
    """A robust mean of each number over the clients."""

    def _combined(self, batches):
        n_clients = sum(batch.n_accepted for batch in batches)
        totals = {}
        for name, form in _forms(batches).items():
            total = np.empty((form.shape[0], form.width))
            for rows, stack in _tiles(batches, name):
                total[rows] = n_clients * self._mean(stack)
            totals[name] = _as_sum(total.reshape(form.shape), form)
        return totals

    @abstractmethod
    def _mean(self, changes):
        """Mean over the first axis."""


class CoordinateMedian(_OrderStatistic):
    """Take the median of every number over the clients (Yin et al., ICML 2018).

    For silos, where most clients hold most items. It withstands attackers as long as they are
    fewer than half of the clients of a round.

    Examples
    --------
    >>> from fedrecsk import Federation, GlobSGD
    >>> from fedrecsk.aggregation import CoordinateMedian
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=20, n_interactions=500, random_state=0)
    >>> federation = Federation(aggregator=CoordinateMedian())
    >>> model = GlobSGD(4, federation=federation, random_state=0).fit(X, clients=X[:, 0] % 5)
    """

    _parameter_constraints: ClassVar[dict] = {}

    def _mean(self, changes):
        return np.median(changes, axis=0)


class TrimmedMean(_OrderStatistic):
    """Take the mean of every number without its largest and smallest (Yin et al., ICML 2018).

    For silos, where most clients hold most items.

    Parameters
    ----------
    trim : float in [0, 0.5), default=0.2
        Share of the clients to leave out at each end (beta). Choose more than the share of
        attackers that you expect.

    Examples
    --------
    >>> from fedrecsk.aggregation import TrimmedMean
    >>> TrimmedMean(trim=0.3)
    TrimmedMean(trim=0.3)
    """

    _parameter_constraints: ClassVar[dict] = {"trim": [Interval(Real, 0, 0.5, closed="left")]}

    def __init__(self, trim: float = 0.2):
        self.trim = trim

    def _mean(self, changes):
        n_cut = int(np.ceil(self.trim * len(changes)))
        n_cut = min(n_cut, (len(changes) - 1) // 2)
        return np.sort(changes, axis=0)[n_cut : len(changes) - n_cut].mean(axis=0)


class Krum(_Comparison):
    """Keep the uploads that are closest to their neighbours (Blanchard et al., NeurIPS 2017).

    The score of an upload is the sum of the squared distances to its n - f - 2 nearest
    neighbours. The `n_selected` uploads with the lowest scores are averaged. For silos, where
    most clients hold most items.

    Parameters
    ----------
    n_attackers : int, default=1
        Number of attackers per round to withstand (f). A round needs 2 f + 3 uploads. If it
        receives fewer because of dropout, it changes nothing.
    n_selected : int, default=1
        Number of uploads to average. More than 1 is Multi-Krum.

    Examples
    --------
    >>> from fedrecsk.aggregation import Krum
    >>> Krum(n_attackers=2, n_selected=3)
    Krum(n_attackers=2, n_selected=3)
    """

    _parameter_constraints: ClassVar[dict] = {
        "n_attackers": [Interval(Integral, 0, None, closed="left")],
        "n_selected": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(self, n_attackers: int = 1, *, n_selected: int = 1):
        self.n_attackers = n_attackers
        self.n_selected = n_selected

    @property
    def _n_needed(self):
        return max(2 * self.n_attackers + 3, self.n_attackers + 2 + self.n_selected)

    def _check_clients(self, data, n_clients):
        super()._check_clients(data, n_clients)
        if n_clients < self._n_needed:
            raise ValueError(
                f"Krum(n_attackers={self.n_attackers}, n_selected={self.n_selected}) needs "
                f"{self._n_needed} clients per round, but there are {n_clients}; lower n_attackers "
                "or n_selected, or raise client_fraction."
            )

    def _combined(self, batches):
        n_clients = sum(batch.n_accepted for batch in batches)
        if n_clients < self._n_needed:
            return None
        chosen = np.argsort(self._scores(_products(batches)), kind="stable")[: self.n_selected]
        shares = np.zeros(n_clients + 1)
        shares[chosen] = n_clients / self.n_selected
        # Clients that are not accepted have place -1, where the share is 0.
        weights = [shares[places] for places in _places(batches)]
        return {name: _weighted_sum(batches, name, weights) for name in _forms(batches)}

    def _scores(self, products):
        """Sums of the squared distances to the nearest neighbours, from all inner products."""
        squares = products.diagonal()
        # Attackers can send numbers so large that distances to them are infinite or NaN.
        with np.errstate(invalid="ignore", over="ignore"):
            distances = squares[:, None] + squares - 2 * products
        np.fill_diagonal(distances, np.inf)
        nearest = np.sort(distances, axis=1)[:, : len(products) - self.n_attackers - 2]
        return nearest.sum(axis=1)


def _products(batches):
    """Inner products of the accepted clients' uploads over all fields."""
    n_clients = sum(batch.n_accepted for batch in batches)
    products = np.zeros((n_clients, n_clients))
    for name in _forms(batches):
        for _, stack in _tiles(batches, name):
            numbers = stack.reshape(n_clients, -1)
            with np.errstate(invalid="ignore", over="ignore"):
                products += numbers @ numbers.T
    return products


# ------------------------------------------------------------------------------ dense tiles


def _forms(batches):
    """Forms of the learned fields."""
    return {name: batches[0].forms[name] for name in batches[0].changes}


def _places(batches):
    """Each client's rank by code among all accepted clients, batch by batch; -1 for the others."""
    codes = np.concatenate([batch.clients for batch in batches])
    accepted = np.flatnonzero(np.concatenate([batch.accepted for batch in batches]))
    places = np.full(len(codes), -1)
    places[accepted[np.argsort(codes[accepted])]] = np.arange(len(accepted))
    return np.split(places, np.cumsum([len(batch.clients) for batch in batches])[:-1])


def _tiles(batches, name, max_bytes=TILE_BYTES):
    """Yield one field of all accepted clients as dense arrays, a few rows at a time.

    Yields
    ------
    rows : slice
    stack : ndarray of shape (n_clients, n_rows, width), dtype float64
        The clients are in the order of their codes.
    """
    form = batches[0].forms[name]
    n_clients = sum(batch.n_accepted for batch in batches)
    pieces = [
        (_OwnRows if isinstance(batch.changes[name], Ragged) else _OneByOne)(
            batch.changes[name], places
        )
        for batch, places in zip(batches, _places(batches), strict=True)
    ]
    step = max(1, max_bytes // max(1, 8 * n_clients * form.width))
    for first in range(0, form.shape[0], step):
        rows = slice(first, min(first + step, form.shape[0]))
        stack = np.zeros((n_clients, rows.stop - first, form.width))
        for piece in pieces:
            piece.fill(rows, stack)
        yield rows, stack


class _OwnRows:
    """Fills stacks from a Ragged, whose own rows it sorts once."""

    def __init__(self, changes, places):
        self.changes = changes
        self.everyone = places[places >= 0]
        owners = np.repeat(places, changes.n_rows)
        order = np.argsort(changes.rows, kind="stable")
        self.order = order[owners[order] >= 0]
        self.owners = owners[self.order]
        self.rows = changes.rows[self.order]

    def fill(self, rows, stack):
        changes = self.changes
        if changes.common is not None and changes.form.rows == "all":
            stack[self.everyone] = changes.common.change[rows]
        span = slice(*np.searchsorted(self.rows, [rows.start, rows.stop]))
        own = self.rows[span]
        values = (
            changes.values[self.order[span]].reshape(len(own), stack.shape[2]).astype(np.float64)
        )
        if changes.origin is not None:
            values -= changes.origin[own].reshape(values.shape)
        stack[self.owners[span], own - rows.start] = values


class _OneByOne:
    """Fills stacks client by client."""

    def __init__(self, changes, places):
        self.changes = changes
        self.places = places

    def fill(self, rows, stack):
        numbers = np.arange(self.changes.shape[0])
        for client in np.flatnonzero(self.places >= 0):
            theirs, change = self.changes.update(client)
            theirs = numbers[theirs]
            inside = (theirs >= rows.start) & (theirs < rows.stop)
            values = change[inside].reshape(inside.sum(), stack.shape[2])
            stack[self.places[client], theirs[inside] - rows.start] = values
