"""Training on the opposite of what users like."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrecsk.attacks._adversary import Adversary
from fedrecsk.attacks._profiles import of_rows


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
        return of_rows(data, users[kept], items[kept], data.values[kept], data.weights[kept])
