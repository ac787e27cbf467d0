"""Clipping of whole uploads, of rows, and of items' totals."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np

from fedrecsk._utils.constraints import Above0To1, Between0And1, NotNegative, Positive
from fedrecsk.aggregation._base import BlockAggregator, as_sum
from fedrecsk.updates import squared_lengths


@dataclass(eq=False, repr=False)
class NormClipping(BlockAggregator):
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

    max_norm: Positive | Literal["median"] = "median"
    _: KW_ONLY
    multiple: Positive = 1.0

    def _total(self, updates, memory):
        return {
            name: clipped_sum(updates, name, self.max_norm, self.multiple) for name in updates.specs
        }


def clipped_sum(updates, name, max_norm, multiple):
    """Add up one field, with each client's whole change clipped."""
    norms, bound = updates.norms(name), max_norm
    if max_norm == "median":
        bound = multiple * np.median(norms)
    return as_sum(updates.sum(name, factors_to(bound, norms)), updates.specs[name])


def factors_to(bound, norms):
    """Return factors that bring each norm down to at most `bound`."""
    return np.divide(bound, norms, out=np.ones(len(norms)), where=norms > bound)


def lengths(matrix):
    """Return the Euclidean length of each row; infinite if its square is too large."""
    return np.sqrt(squared_lengths(matrix))


class RowClipping(NormClipping):
    """Scale down every row of an upload whose norm exceeds a bound, then clip the whole upload.

    An attacker cannot spend the allowance of a whole upload on the row of the one item that it
    promotes: each fake user counts as one user of the item, and no more. Works with every method
    and any kind of clients. Rows are clipped in fields with a row for each item; other fields, such
    as LocALS's d x d matrices, are clipped as wholes.

    Parameters
    ----------
    max_norm : float or "median", default="median"
        Bound on the Euclidean norm of each row. "median": the median over the clients of the norm
        of their largest row, for each field in each round. Every client counts once, so that
        attackers cannot raise it by sending many rows.
    multiple : float, default=1.0
        Factor on all medians: of the largest rows, if ``max_norm="median"``, and of the norms of
        whole uploads, their rows already clipped.

    See Also
    --------
    NormClipping : Clips whole uploads only. PopularityFilter : Also leaves rows out.

    Notes
    -----
    It cannot stop attackers who are at least as many as the honest clients that have the item,
    because they send nothing that a user who likes the item could not send.

    Examples
    --------
    Four clients send two rows. The last one spends its whole allowance on the first row:

    >>> import numpy as np
    >>> from fedrecsk.aggregation import NormClipping, RowClipping, Update
    >>> changes = [[[1.0], [1.0]], [[1.0], [1.0]], [[1.0], [1.0]], [[9.0], [0.0]]]
    >>> uploads = [{"items": Update(slice(None), np.array(change))} for change in changes]
    >>> NormClipping().combine(uploads, {"items": (2, 1)})["items"].round(2).ravel()
    array([4.41, 3.  ])
    >>> RowClipping().combine(uploads, {"items": (2, 1)})["items"].round(2).ravel()
    array([4., 3.])
    """

    def _total(self, updates, memory):
        by_item, totals = item_fields(updates.specs), {}
        for name in updates.specs:
            those = self._accepted_rows(updates, name) if name in by_item else updates
            totals[name] = clipped_sum(those, name, "median", self.multiple)
        return totals

    def _accepted_rows(self, updates, name):
        return row_clipped(updates, name, self.max_norm, self.multiple)


def item_fields(specs):
    """Name the fields with a row for each item: the learned fields with the most rows."""
    most = max(spec.shape[0] for spec in specs.values())
    return [name for name, spec in specs.items() if spec.shape[0] == most]


def row_clipped(updates, name, max_norm, multiple):
    """Return the updates with each row of one field clipped; "median": of the largest rows."""
    bound = max_norm
    if max_norm == "median":
        largest = updates.per_client(name, largest_row)
        changed = largest[largest > 0]
        bound = multiple * np.median(changed) if len(changed) else 0.0
    return scaled_rows(updates, name, lambda _, change: factors_to(bound, lengths(change)))


def largest_row(rows):
    """Return the norm of the largest row of each client, 0 if it has changed nothing."""
    if rows.factors is not None:
        rows = rows.written_out()
    largest, default = np.zeros(rows.n_clients), rows.default_matrix
    np.maximum.at(largest, rows.owners, lengths(rows.matrix))
    if default is None:
        return largest
    # Default rows by size: the first that is not a client's own is the largest; then comes zero.
    sizes = lengths(default)
    order = np.argsort(-sizes, kind="stable")
    places = np.argsort(order)[rows.rows]
    sizes, is_own = np.append(sizes[order], 0.0), np.zeros(len(order) + 1, dtype=bool)
    for client, (first, last) in enumerate(pairwise(rows.indptr)):
        is_own[places[first:last]] = True
        largest[client] = max(largest[client], sizes[is_own.argmin()])
        is_own[places[first:last]] = False
    return largest


def scaled_rows(updates, name, factor):
    """Return the updates with each row of one field times ``factor(rows, changes)``."""

    def scale(tile):
        return tile.with_fields(**{name: tile.fields[name].scaled_rows(factor)})

    return updates.then(scale)


def row_sums(updates, name, number):
    """Add up ``number(changes)`` of each row over the clients, shape (n_rows,)."""
    return updates.added(lambda tile: {name: tile.fields[name].per_row(number)})[name]


def is_changed(change):
    """Return whether each row is not zero."""
    return change.any(axis=1)


def row_totals(updates, name):
    """Add up each row over the clients, a matrix of float64."""
    total = updates.sum(name, np.ones(updates.n_clients))
    return total.reshape(len(total), -1)


@dataclass(kw_only=True, eq=False, repr=False)
class HierarchicalClipping(BlockAggregator):
    """Clip every client's rows, then every item's total (after HiCS: Yuan et al., SIGIR 2023).

    In each round, in fields with a row for each item:

    1. Every row of every client is clipped, as by :class:`RowClipping`.
    2. The rows of each item are added up, together with what was held back in earlier rounds.
    3. The items with the largest totals are updated: a share `share` of all items. The totals of
       the others are held back.
    4. The norm of an item's total, divided by the sum of the norms of its clipped rows, says how
       far its senders agree, from 0 to 1. The bound is `total_multiple` times the median of these
       ratios over the updated items. Totals of items with a larger ratio are scaled down to it.

    Honest clients agree on an item only in part, so that their rows partly cancel; the rows of
    attackers who all push in one direction do not.

    Parameters
    ----------
    multiple : float, default=1.0
        Factor on the median that bounds single rows, and on that which bounds whole changes of
        fields without a row for each item.
    total_multiple : float, default=1.0
        Factor on the median that bounds the items' totals.
    share : float in (0, 1], default=1.0
        Share of the items that are updated in a round. Below 1 it suits methods whose uploads
        are steps, such as FedMF, CoLR and FedFast. It raises an error where the server recomputes
        the item vectors in each round, such as LocALS with ``aggregation="full"``.

    Notes
    -----
    Written from the paper's idea. Known departures: the bounds are medians of the round instead of
    numbers to be tuned; the bound of a total grows with what is sent for the item; what step 4 cuts
    off is dropped; and nothing is held back by default. Where the server divides an item's total by
    its senders, as in FedMF, means are held back. They are kept with the server's state.

    References
    ----------
    .. [1] W. Yuan, Q. V. H. Nguyen, T. He, L. Chen and H. Yin, "Manipulating Federated Recommender
       Systems: Poisoning with Synthetic Users and Its Countermeasures", SIGIR 2023.

    Examples
    --------
    Four honest clients agree in part on the first two items; two attackers promote the last one:

    >>> import numpy as np
    >>> from fedrecsk.aggregation import HierarchicalClipping, Update
    >>> honest = [[[1.0, 0], [0, 1.0], [0, 0]], [[0, 1.0], [1.0, 0], [0, 0]]]
    >>> attack = [[[0.0, 0], [0, 0], [0, 50.0]]] * 2
    >>> uploads = [{"items": Update(slice(None), np.array(c))} for c in 2 * honest + attack]
    >>> HierarchicalClipping().combine(uploads, {"items": (3, 2)})["items"].round(2)
    array([[2.  , 2.  ],
           [2.  , 2.  ],
           [0.  , 1.41]])
    """

    multiple: Positive = 1.0
    total_multiple: Positive = 1.0
    share: Above0To1 = 1.0

    def _check_specs(self, specs):
        if self.share == 1:
            return
        learned = {name: spec for name, spec in specs.items() if spec.learned}
        by_item = item_fields(learned)
        for name, spec in learned.items():
            if spec.is_integer:
                why = f"{name!r} as integers, which means of rows are not"
            elif (len(spec.shape) == 2) != (name in by_item):
                why = f"{name!r}, from which its server computes all items anew in every round"
            else:
                continue
            raise ValueError(
                f"HierarchicalClipping(share={self.share}) holds means of items' rows back, but "
                f"this method uploads {why}; set share=1."
            )

    def _total(self, updates, memory):
        specs, totals = updates.specs, {}
        by_item = item_fields(specs)
        for name, spec in specs.items():
            if name in by_item:
                total = self._item_totals(updates, name, memory)
                totals[name] = as_sum(total.reshape(spec.shape), spec)
            else:
                totals[name] = clipped_sum(updates, name, "median", self.multiple)
        return totals

    def _item_totals(self, updates, name, memory):
        clipped = row_clipped(updates, name, "median", self.multiple)
        total, sent = row_totals(clipped, name), row_sums(clipped, name, lengths)
        if self.share < 1:
            # A server that divides by this round's senders must get the mean of each round.
            divisor = np.ones(len(total))
            counts = [spec for spec in updates.all_specs.values() if not spec.learned]
            if any(spec.shape[0] == len(total) for spec in counts):
                divisor = np.maximum(row_sums(clipped, name, is_changed), 1)
            total, sent = self._chosen(total, sent, divisor, name, memory)
        # How far the senders of an item agree, from 0 to 1.
        agreement = np.divide(lengths(total), sent, out=np.zeros(len(total)), where=sent > 0)
        typical = np.median(agreement[agreement > 0]) if agreement.any() else 0.0
        return total * factors_to(self.total_multiple * typical, agreement)[:, None]

    def _chosen(self, total, sent, divisor, name, memory):
        """Return totals of the updated items and what was sent for them; 0 for the others."""
        if name in memory:
            held_back, sent_before = memory[name]
            total, sent = total + divisor[:, None] * held_back, sent + divisor * sent_before
        n_chosen = int(np.ceil(self.share * len(total)))
        is_chosen = np.zeros(len(total), dtype=bool)
        is_chosen[np.argsort(-lengths(total), kind="stable")[:n_chosen]] = True
        waits = ~is_chosen / divisor
        memory[name] = waits[:, None] * total, waits * sent
        return np.where(is_chosen[:, None], total, 0.0), np.where(is_chosen, sent, 0.0)


@dataclass(eq=False, repr=False)
class PopularityFilter(RowClipping):
    """Clip rows, then leave out those that push an item suspiciously hard towards popular ones.

    A promoted item moves towards the popular items, to where most users' recommendations are. In
    each round, for each field with a row for each item, after the rows are clipped as by
    :class:`RowClipping`:

    1. The popular items are the share `popular` of all items whose rows have the largest sum of
       norms, and u is the direction of the sum of their rows.
    2. The push on an item is the mean of ``row . u`` over the clients that have changed its row.
    3. An item is suspicious if its push is above ``m + tolerance * s / sqrt(n)``. Here m is the
       largest push on a popular item, s is the spread of single rows around the mean of their
       item among the popular ones, and n is how many clients have changed the item.
    4. In suspicious items the rows that push harder than this limit are left out.

    This defence is our own, by the observation behind :class:`~fedrecsk.attacks.PipAttack` and
    :class:`~fedrecsk.attacks.PIECK` that promoted items are aligned with popular ones.

    Parameters
    ----------
    tolerance : float, default=3.0
        Number of standard errors by which the push on an item may exceed that on the popular items.
    popular : float in (0, 1), default=0.1
        Share of the items that count as popular. Attackers should not be able to bring an item
        among them.
    max_norm, multiple
        As in :class:`RowClipping`.

    Notes
    -----
    It detects many clients that push an item with few honest senders as hard as clipping allows. It
    does not detect rows that push no harder than the limit, rows that aim elsewhere than at the
    popular items, such as noise, and attackers so few that their push could be chance. Where all
    clients change all rows, as in RFRec with Adam, popular items are recognised by the size of
    their rows alone. A round that receives fewer than five uploads changes nothing.

    Examples
    --------
    >>> from fedrecsk import Federation, LocALS
    >>> from fedrecsk.aggregation import PopularityFilter
    >>> from fedrecsk.attacks import Promotion
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> attack, defence = Promotion(0.1, item=7), PopularityFilter(tolerance=2.0)
    >>> federation = Federation(adversary=attack, aggregator=defence)
    >>> model = LocALS(n_factors=4, federation=federation, random_state=0).fit(X)
    """

    tolerance: NotNegative = 3.0
    _: KW_ONLY
    popular: Between0And1 = 0.1
    max_norm: Positive | Literal["median"] = "median"

    _n_needed: ClassVar[int] = 5

    def _accepted_rows(self, updates, name):
        clipped = super()._accepted_rows(updates, name)
        direction, pushes, limits = self._judged(clipped, name)
        suspicious = pushes > limits

        def is_accepted(rows, change):
            return ~suspicious[rows] | (change @ direction <= limits[rows])

        return scaled_rows(clipped, name, is_accepted)

    def _judged(self, updates, name):
        """Return the popular items' direction, each item's push, and the limits of the pushes."""
        totals = row_totals(updates, name)
        n_senders = row_sums(updates, name, is_changed)
        sizes = row_sums(updates, name, lengths)
        popular = np.argsort(-sizes, kind="stable")
        popular = popular[: max(1, round(self.popular * np.count_nonzero(n_senders)))]
        direction = totals[popular].sum(axis=0)
        direction /= np.linalg.norm(direction) or 1.0
        n = np.maximum(n_senders, 1)
        pushes = totals @ direction / n
        squares = row_sums(updates, name, lambda change: (change @ direction) ** 2)
        # Squared deviations of the single rows from the mean of their item.
        within = (squares - n * pushes**2)[popular].sum()
        spread = np.sqrt(max(within, 0.0) / n[popular].sum())
        return direction, pushes, pushes[popular].max() + self.tolerance * spread / np.sqrt(n)
