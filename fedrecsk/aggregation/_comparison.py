"""Aggregators that compare clients: number by number, by distance, or by direction."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Annotated, ClassVar

import numpy as np

from fedrecsk._utils.constraints import AtLeast0, AtLeast1
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.aggregation._base import Aggregator, BlockAggregator, as_sum, weighted_sums
from fedrecsk.data.ids import Ids, id_array
from fedrecsk.updates import Update

# Memory of one stack.
STACK_BYTES = 64 * 2**20
# Distances below this share of an ordinary upload's norm count as equal (nu of RFA).
SMOOTHING = 1e-6
# Share of the rows of X that must be of items that the reference holds.
LEAST_SHARE = 0.5


def stacks(updates, name, max_bytes=STACK_BYTES):
    """Yield slices of rows of a field and their changes, (n_clients, n_rows, width)."""
    spec, n_clients = updates.specs[name], updates.n_clients
    step = max(1, max_bytes // max(1, 8 * n_clients * spec.width))
    for first in range(0, spec.shape[0], step):
        rows = slice(first, min(first + step, spec.shape[0]))
        stack = np.zeros((n_clients, rows.stop - first, spec.width))
        whole = updates.each(lambda tile, rows=rows: (tile.clients, tile.fields[name].whole(rows)))
        for codes, changes in whole:
            changes = changes.reshape(len(codes), *stack.shape[1:])
            stack[np.searchsorted(updates.codes, codes)] = changes
        yield rows, stack


class Comparison(BlockAggregator):
    """An aggregator that compares clients number by number; numbers not sent count as 0."""

    def _check_clients(self, data, n_clients):
        super()._check_clients(data, n_clients)
        pairs = np.unique(data.clients * data.n_items + data.items)
        holders = np.bincount(pairs % data.n_items, minlength=data.n_items)
        if np.median(2 * holders[data.items]) < data.n_clients:
            raise ValueError(
                f"{type(self).__name__} compares clients number by number, but most rows of X have "
                f"items that fewer than half of the {data.n_clients} clients hold, so it would "
                "mostly compare zeros. Group the users into silos by fit(..., clients=...), or "
                "use NormClipping."
            )


class OrderStatistic(Comparison):
    """A robust mean of each number over the clients."""

    def _total(self, updates, memory):
        n_clients, totals = updates.n_clients, {}
        for name, spec in updates.specs.items():
            total = np.empty((spec.shape[0], spec.width))
            for rows, stack in stacks(updates, name):
                total[rows] = n_clients * self._mean(stack)
            totals[name] = as_sum(total.reshape(spec.shape), spec)
        return totals

    @abstractmethod
    def _mean(self, changes):
        """Return the mean over the first axis."""


class CoordinateMedian(OrderStatistic):
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

    def _mean(self, changes):
        return np.median(changes, axis=0)


@dataclass(eq=False, repr=False)
class TrimmedMean(OrderStatistic):
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

    trim: Annotated[float, Interval(Real, 0, 0.5, closed="left")] = 0.2

    def _mean(self, changes):
        n_cut = int(np.ceil(self.trim * len(changes)))
        n_cut = min(n_cut, (len(changes) - 1) // 2)
        return np.sort(changes, axis=0)[n_cut : len(changes) - n_cut].mean(axis=0)


@dataclass(eq=False, repr=False)
class Krum(Comparison):
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

    n_attackers: AtLeast0 = 1
    _: KW_ONLY
    n_selected: AtLeast1 = 1

    @property
    def _n_needed(self):
        return max(2 * self.n_attackers + 3, self.n_attackers + 2 + self.n_selected)

    def _total(self, updates, memory):
        n_clients = updates.n_clients
        products, shares = np.zeros((n_clients, n_clients)), np.zeros(n_clients)
        # Attackers can send numbers so large that products and distances are infinite or NaN.
        with np.errstate(invalid="ignore", over="ignore"):
            for name in updates.specs:
                for _, stack in stacks(updates, name):
                    numbers = stack.reshape(n_clients, -1)
                    products += numbers @ numbers.T
            squares = products.diagonal()
            distances = squares[:, None] + squares - 2 * products
        np.fill_diagonal(distances, np.inf)
        nearest = np.sort(distances, axis=1)[:, : n_clients - self.n_attackers - 2]
        chosen = np.argsort(nearest.sum(axis=1), kind="stable")[: self.n_selected]
        shares[chosen] = n_clients / self.n_selected
        return weighted_sums(updates, shares)


@dataclass(eq=False, repr=False)
class GeometricMedian(BlockAggregator):
    """Take the point that is closest to all uploads (RFA: Pillutla et al., IEEE TSP 2022).

    It is found by the smoothed Weiszfeld algorithm (Algorithm 2 of the paper): a weighted mean of
    the uploads, with weights of one over each upload's distance to the last mean. Attackers must be
    more than half of the clients to move it arbitrarily far.

    The distance is that of whole uploads, all fields together, each divided by its median norm in
    the round. Rows that a client does not send count as unchanged.

    Parameters
    ----------
    n_iterations : int, default=10
        Number of steps of Weiszfeld's algorithm. The first begins at the mean of the uploads, in
        which uploads longer than the median are weighted by one over their norm.

    Notes
    -----
    Clients with one user each have few items in common, so that all of them are far from any mean,
    and attackers are not much farther. It then costs more and stops less than clipping by row, and
    is better suited to silos. A round that receives fewer than three uploads changes nothing.

    Departures from the paper: fields are scaled, iterations begin at a weighted mean, and clients
    do not count by the size of their data.

    References
    ----------
    .. [1] K. Pillutla, S. M. Kakade and Z. Harchaoui, "Robust Aggregation for Federated
       Learning", IEEE Transactions on Signal Processing 70, 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from fedrecsk.aggregation import GeometricMedian, Update
    >>> changes = np.array([[0.0, 0], [1, 0], [0, 1], [1, 1], [900, 900]])
    >>> uploads = [{"x": Update(slice(None), change[None])} for change in changes]
    >>> total = GeometricMedian(n_iterations=50).combine(uploads, {"x": (1, 2)})["x"]
    >>> (total / 5).round(2)
    array([[0.79, 0.79]])
    """

    n_iterations: AtLeast1 = 10

    # Every point between two uploads is as close to both together.
    _n_needed: ClassVar[int] = 3

    def _total(self, updates, memory):
        norms = {name: updates.norms(name) for name in updates.specs}
        # Median norm of each field over the clients that have changed it.
        units = {name: np.median(of[of > 0]) for name, of in norms.items() if (of > 0).any()}
        squares = _squares(norms, units)
        # A mean of clipped uploads, far from any single one.
        shares = _shares(np.maximum(squares, np.median(squares)))
        for _ in range(self.n_iterations):
            mean = {name: updates.sum(name, shares) for name in norms}
            square = sum(np.sum((mean[name] / unit) ** 2) for name, unit in units.items())
            with np.errstate(invalid="ignore"):
                distances = squares - 2 * _products_with(updates, mean, units) + square
            shares = _shares(distances)
        return weighted_sums(updates, updates.n_clients * shares)


def _squares(norms, units):
    """Return the squared norms of whole uploads, each field divided by its unit."""
    with np.errstate(over="ignore"):
        return sum((norms[name] / unit) ** 2 for name, unit in units.items())


def _products_with(updates, other, units):
    """Return the inner products of all uploads with another, each field divided by its unit."""
    products = np.zeros(updates.n_clients)
    for name, unit in units.items():
        scaled = np.asarray(other[name], dtype=np.float64) / unit**2
        products += updates.per_client(name, lambda rows, scaled=scaled: rows.products(scaled))
    return products


def _shares(squared_distances):
    """Return shares in the next mean: one over the distances, scaled to a sum of 1."""
    # Distances to uploads that are too large to be squared are infinite or NaN.
    known = np.isfinite(squared_distances)
    distances = np.sqrt(np.maximum(squared_distances, SMOOTHING**2))
    shares = np.divide(1.0, distances, out=np.zeros(len(known)), where=known)
    return shares / (shares.sum() or 1.0)


@dataclass(eq=False, repr=False)
class FLTrust(Aggregator):
    """Weight every upload by its agreement with that of a trusted client (Cao et al., NDSS 2021).

    The server trusts one client, such as its own silo. An upload's trust score is the cosine of its
    angle to the trusted client's upload, or 0 if that is negative. Every upload is rescaled to the
    trusted one's norm, and the rescaled uploads are averaged with their trust scores as weights
    (Algorithm 2 of the paper). For silos, where most clients hold most items.

    Angles and norms are those of whole uploads, all fields together, each field divided by the
    norm of the trusted upload's. Rows that a client does not send count as unchanged.

    Parameters
    ----------
    reference : id
        Id of the client that the server trusts: of the user column, or of fit's `clients` if
        you pass them.

    Raises
    ------
    ValueError
        By fit: if there is no such client, or if the federation's adversary controls it.

    Notes
    -----
    A round that the trusted client's upload does not reach, because of dropout or because it is
    not in the cohort, changes nothing.

    A client that promotes one item and is honest about all others keeps most of its trust: clip
    rows, or use an order statistic, against promotions.

    Departures from the paper: there the server trains on its own data; here the trusted client is
    one of the federation, and its upload is part of the mean, with trust score 1.

    References
    ----------
    .. [1] X. Cao, M. Fang, J. Liu and N. Z. Gong, "FLTrust: Byzantine-robust Federated Learning
       via Trust Bootstrapping", NDSS 2021.

    Examples
    --------
    >>> from fedrecsk import Federation, GlobSGD
    >>> from fedrecsk.aggregation import FLTrust
    >>> from fedrecsk.attacks import SignFlip
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=20, n_interactions=500, random_state=0)
    >>> attack, defence = SignFlip(clients=[3, 4]), FLTrust(reference=0)
    >>> federation = Federation(adversary=attack, aggregator=defence)
    >>> model = GlobSGD(4, federation=federation, random_state=0).fit(X, clients=X[:, 0] % 8)
    >>> model.compromised_clients_
    array([3, 4])
    """

    reference: object

    def _check_clients(self, data, n_clients):
        code = self._code(data.client_ids)
        held = np.zeros(data.n_items, dtype=bool)
        held[data.items[data.clients == code]] = True
        share = held[data.items].mean()
        if share < LEAST_SHARE:
            raise ValueError(
                f"FLTrust compares all uploads with that of client {self.reference!s}, but only "
                f"{100 * share:.0f}% of the rows of X are of its items. Trust a client with more "
                "items, group the users into silos by fit(..., clients=...), or use RowClipping."
            )

    def _check_adversary(self, client_ids):
        if _code_of(self.reference, client_ids) >= 0:
            raise ValueError(
                f"The adversary controls client {self.reference!s}, the reference of FLTrust; "
                "choose another reference, or name the adversary's clients by its parameter "
                "`clients`."
            )

    def _start(self, client_ids):
        return {"reference": self._code(client_ids)}

    def _code(self, client_ids):
        code = _code_of(self.reference, client_ids)
        if code < 0:
            raise ValueError(
                f"FLTrust(reference={self.reference!r}) is not a client of this fit; use an id of "
                "the user column, or of fit's `clients` if you pass them, as it is there: a "
                "number or a string."
            )
        return code

    def combine(
        self, uploads: Sequence[dict[str, Update]], shapes: dict[str, tuple[int, ...]]
    ) -> dict[str, np.ndarray] | None:
        raise ValueError(
            "FLTrust cannot combine a list of uploads, which does not say whose they are; fit a "
            "model with Federation(aggregator=FLTrust(...))."
        )

    def _combine(self, updates, memory):
        places = np.flatnonzero(updates.codes == memory["reference"])
        if len(places) == 0:
            return None
        alone = updates.one(places[0]).learned
        reference = {name: rows.whole()[0].astype(np.float64) for name, rows in alone.items()}
        units = {name: float(np.linalg.norm(change)) for name, change in reference.items()}
        units = {name: unit for name, unit in units.items() if unit > 0}
        norms = {name: updates.norms(name) for name in updates.specs}
        shares = _trust(_squares(norms, units), _products_with(updates, reference, units), units)
        totals = weighted_sums(updates, updates.n_clients * shares)
        # The trusted client has not changed the fields without a unit.
        return {n: total if n in units else np.zeros_like(total) for n, total in totals.items()}


def _trust(squares, products, units):
    """Return what each upload is multiplied by in the mean: its share of all trust, rescaled."""
    norms, length = np.sqrt(squares), np.sqrt(len(units))
    known = (norms > 0) & np.isfinite(norms)
    # Attackers can send numbers so large that their products are infinite or NaN.
    with np.errstate(invalid="ignore", over="ignore"):
        cosines = products / np.where(known, norms * length, 1.0)
    known &= np.isfinite(cosines)
    trust = np.where(known, np.maximum(cosines, 0), 0.0)
    scale = np.divide(length, norms, out=np.zeros(len(norms)), where=known)
    return trust / (trust.sum() or 1.0) * scale


def _code_of(reference, client_ids):
    """Return the code of the client with this id; -1 if there is none, or of another type."""
    try:
        return int(Ids(client_ids, "clients").codes(id_array([reference], "reference"))[0])
    except (TypeError, ValueError):
        return -1
