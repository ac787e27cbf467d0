"""Exposure of an item, by which promotion attacks are measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedrecsk._warnings import warn
from fedrecsk.interactions import id_array
from fedrecsk.metrics import _checks
from fedrecsk.metrics._recommender import unwrap

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def exposure(
    model: object, item: float | str, users: ArrayLike | None = None, *, k: int = 10
) -> float:
    """Share of users whose first k recommendations include an item.

    Users who have the item already do not count.

    Parameters
    ----------
    model : fitted recommender
    item : int, float or str
        Id of the item.
    users : array-like of shape (n_users,), default=None
        Users to recommend to, for example the honest ones. None: all users of fit.
    k : int, default=10
        Length of the list.

    Returns
    -------
    exposure : float
        In [0, 1].

    Raises
    ------
    ValueError
        If the item is unknown to the model, k is below 1, there are no users, or all of them have
        the item already.

    Warns
    -----
    UserWarning
        If the model knows none of the users.

    Examples
    --------
    >>> from fedrecsk import Popularity
    >>> from fedrecsk.metrics import exposure
    >>> X = [[1, "a"], [2, "a"], [2, "b"], [3, "c"]]
    >>> exposure(Popularity().fit(X), "a", k=1)
    1.0
    """
    (k,) = _checks.cutoffs([k])
    _, model = unwrap(model)
    (code,) = model._items.codes(id_array([item], "item"))
    if code < 0:
        raise ValueError(f"Item {item!r} is unknown to the model; name one of its item_ids_.")
    users = id_array(model.user_ids_ if users is None else users, "users")
    if len(users) == 0:
        raise ValueError("users is empty; give at least one, or None for all users of fit.")
    if (model._users.codes(users) < 0).all():
        warn(
            f"The model knows none of these {len(users)} users, so all of them get the list of an "
            "unknown user.",
        )
    indptr, items = model._seen
    owners = np.searchsorted(indptr, np.flatnonzero(items == code), side="right") - 1
    without = users[~np.isin(model._users.codes(users), owners)]
    if len(without) == 0:
        raise ValueError(f"All {len(users)} users have item {item!r} already; pass other users.")
    items, _ = model.recommend(without, k)
    return float((items == item).any(axis=1).mean())
