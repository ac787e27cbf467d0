"""Clipping of single rows of uploads."""

from __future__ import annotations

from numbers import Real
from typing import ClassVar, Literal

from fedrecsk._sklearn import Interval, StrOptions
from fedrecsk.aggregation._base import InBlocks, forms_of
from fedrecsk.aggregation._norm_clipping import clipped_sum
from fedrecsk.aggregation._rows import item_fields, row_bound, row_clipped


class RowClipping(InBlocks):
    """Scale down every row of an upload whose norm exceeds a bound, then clip the whole upload.

    :class:`NormClipping` bounds a client's whole upload. An attacker may spend this allowance on
    the row of the one item that it promotes, where an honest client spreads it over all its
    items. Here no client moves an item further than an ordinary client that has the item, so
    that each fake user counts as one user who likes the item, and no more.

    Works with every method and any kind of clients. Rows are clipped in fields with a row for each
    item; other fields, such as LocALS's d x d matrices, are clipped as wholes.

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
    NormClipping : Clips whole uploads only.
    PopularityFilter : Also leaves rows out.

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

    _parameter_constraints: ClassVar[dict] = {
        "max_norm": [Interval(Real, 0, None, closed="neither"), StrOptions({"median"})],
        "multiple": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(self, max_norm: float | Literal["median"] = "median", *, multiple: float = 1.0):
        self.max_norm = max_norm
        self.multiple = multiple

    def _combined(self, batches):
        forms, totals = forms_of(batches), {}
        by_item = item_fields(forms)
        for name in forms:
            those = self._accepted_rows(batches, name) if name in by_item else batches
            totals[name] = clipped_sum(those, name, "median", self.multiple)
        return totals

    def _accepted_rows(self, batches, name):
        """The same batches with nothing but one field, its rows clipped."""
        return row_clipped(batches, name, row_bound(batches, name, self.max_norm, self.multiple))
