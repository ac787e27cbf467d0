"""Clipping of rows, then of each item's total, with sparse updates (after HiCS)."""

from __future__ import annotations

from numbers import Real
from typing import ClassVar

import numpy as np

from fedrecsk._sklearn import Interval
from fedrecsk.aggregation._base import InBlocks, as_sum, forms_of
from fedrecsk.aggregation._norm_clipping import clipped_sum, factors_to
from fedrecsk.aggregation._rows import (
    is_changed,
    item_fields,
    lengths,
    row_bound,
    row_clipped,
    row_sums,
    row_totals,
)


class HierarchicalClipping(InBlocks):
    """Clip every client's rows, then every item's total (after HiCS: Yuan et al., SIGIR 2023).

    In each round, in fields with a row for each item:

    1. Every row of every client is clipped, as by :class:`RowClipping`.
    2. The rows of each item are added up, together with what was held back in earlier rounds.
    3. The items with the largest totals are updated: a share `share` of all items. The totals of
       the others are held back.
    4. The norm of an item's total, divided by the sum of the norms of its clipped rows, says how
       far its senders agree, from 0 to 1. The bound is `total_multiple` times the median of these
       ratios over the updated items. Totals of items with a larger ratio are scaled down to it.

    Step 4 bounds how far an item moves in a round. Honest clients agree on an item only in part,
    so that their rows partly cancel; the rows of attackers who all push in one direction do not.

    Parameters
    ----------
    multiple : float, default=1.0
        Factor on the median that bounds single rows, and on that which bounds whole changes of
        fields without a row for each item.
    total_multiple : float, default=1.0
        Factor on the median that bounds the items' totals.
    share : float in (0, 1], default=1.0
        Share of the items that are updated in a round. Below 1 it suits methods whose uploads
        are steps, such as FedMF, CoLR and FedFast. It is refused for methods that compute the
        item's vector anew in each round, such as LocALS with ``aggregation="full"``: there an
        item that is held back would be forgotten.

    Notes
    -----
    Written from the paper's idea. Known departures: the bounds are medians of the round instead of
    numbers to be tuned; the bound of a total grows with what is sent for the item, because a
    bound that is the same for all items would slow down the popular ones; what step 4 cuts off is
    dropped; and nothing is held back by default.

    Where the server divides the total of an item by how many clients have sent it in this round, as
    in FedMF, what is held back is the mean of each round. It counts later as if the senders of
    the round in which the item is updated had sent it.

    What is held back is kept with the server's state, so that a checkpoint or a warm start
    continues with it.

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

    _parameter_constraints: ClassVar[dict] = {
        "multiple": [Interval(Real, 0, None, closed="neither")],
        "total_multiple": [Interval(Real, 0, None, closed="neither")],
        "share": [Interval(Real, 0, 1, closed="right")],
    }

    def __init__(self, *, multiple: float = 1.0, total_multiple: float = 1.0, share: float = 1.0):
        self.multiple = multiple
        self.total_multiple = total_multiple
        self.share = share

    def _check_forms(self, forms):
        if self.share == 1:
            return
        learned = {name: form for name, form in forms.items() if form.learned}
        by_item = item_fields(learned)
        for name, form in learned.items():
            if form.is_integer:
                raise ValueError(
                    f"HierarchicalClipping(share={self.share}) holds means of rows back, but this "
                    f"method uploads {name!r} as integers, which means are not; set share=1."
                )
            if (len(form.shape) == 2) != (name in by_item):
                raise ValueError(
                    f"HierarchicalClipping(share={self.share}) holds rows of items back, but this "
                    f"method uploads {name!r}, from which its server computes all items anew in "
                    "every round, so that the items held back would be forgotten; set share=1."
                )

    def _combined(self, batches):
        return self._combine_batches(batches)

    def _combine_batches(self, batches, memory=None):
        if not any(batch.accepted.any() for batch in batches):
            return None
        memory = {} if memory is None else memory
        forms, totals = forms_of(batches), {}
        by_item = item_fields(forms)
        for name, form in forms.items():
            if name in by_item:
                total = self._item_totals(batches, name, memory)
                totals[name] = as_sum(total.reshape(form.shape), form)
            else:
                totals[name] = clipped_sum(batches, name, "median", self.multiple)
        return totals

    def _item_totals(self, batches, name, memory):
        clipped = row_clipped(batches, name, row_bound(batches, name, "median", self.multiple))
        total, sent = row_totals(clipped, name), row_sums(clipped, name, lengths)
        if self.share < 1:
            # A server that divides by this round's senders must get the mean of each round.
            divisor = np.ones(len(total))
            if _counts_senders(batches[0], len(total)):
                divisor = np.maximum(row_sums(clipped, name, is_changed), 1)
            total, sent = self._chosen(total, sent, divisor, name, memory)
        # How far the senders of an item agree, from 0 to 1.
        agreement = np.divide(lengths(total), sent, out=np.zeros(len(total)), where=sent > 0)
        typical = np.median(agreement[agreement > 0]) if agreement.any() else 0.0
        return total * factors_to(self.total_multiple * typical, agreement)[:, None]

    def _chosen(self, total, sent, divisor, name, memory):
        """Totals of the items that are updated, and what was sent for them; others get 0."""
        if name in memory:
            held_back, sent_before = memory[name]
            total, sent = total + divisor[:, None] * held_back, sent + divisor * sent_before
        n_chosen = int(np.ceil(self.share * len(total)))
        is_chosen = np.zeros(len(total), dtype=bool)
        is_chosen[np.argsort(-lengths(total), kind="stable")[:n_chosen]] = True
        waits = ~is_chosen / divisor
        memory[name] = waits[:, None] * total, waits * sent
        return np.where(is_chosen[:, None], total, 0.0), np.where(is_chosen, sent, 0.0)


def _counts_senders(batch, n_items):
    """Whether clients also say which items they send, so that the server divides by how many."""
    return any(counts.shape[0] == n_items for counts in batch.counts.values())
