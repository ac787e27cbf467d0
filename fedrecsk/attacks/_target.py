"""The item that an attack promotes: its code, and fabricated data that hold it."""

from __future__ import annotations

import numpy as np

from fedrecsk.attacks._profiles import of_rows


def code_of(adversary, item_ids):
    """Code of the adversary's `item`.

    Parameters
    ----------
    adversary : Adversary
        With a parameter `item`.
    item_ids : ndarray of shape (n_items,)

    Returns
    -------
    code : int

    Raises
    ------
    ValueError
        If it is not among the items.
    """
    name = type(adversary).__name__
    if adversary.item is None:
        raise ValueError(f"{name} needs item=..., the id of the item to promote.")
    matches = _places(adversary.item, item_ids)
    if len(matches) == 0:
        raise ValueError(
            f"{name}(item={adversary.item!r}) is not among the items of X; "
            "name an item that occurs in X."
        )
    return int(matches[0])


def codes_of_popular(adversary, item_ids):
    """Codes of the adversary's `popular` items, an array of int."""
    codes = []
    for one in np.ravel(adversary.popular).tolist():
        matches = _places(one, item_ids)
        if len(matches) == 0:
            raise ValueError(
                f"{type(adversary).__name__}(popular=...) names {one!r}, which is not among the "
                "items of X; name items that occur in X, or set popular=None."
            )
        codes.append(int(matches[0]))
    if not codes:
        raise ValueError(
            f"{type(adversary).__name__}(popular=[]) names no item; name one, or set popular=None."
        )
    return np.array(codes)


def _places(one, item_ids):
    return np.flatnonzero(item_ids == one) if np.isscalar(one) else ()


def check_honest_holder(adversary, data, controlled, target):
    """Raise if no honest client has a row of the target.

    Parameters
    ----------
    adversary : Adversary
    data : Interactions
    controlled : ndarray of shape (n_clients,), dtype bool
    target : int
    """
    if not controlled[data.clients[data.items == target]].all():
        return
    raise ValueError(
        f"{type(adversary).__name__}(item={adversary.item!r}) is an item that no honest client "
        "holds, so that without the attack nobody would learn anything about it, and exposures "
        "could not be compared; name an item with rows of other users, or control other clients."
    )


def with_target(data, controlled, target):
    """Data in which all controlled users give the target the best rating.

    Parameters
    ----------
    data : Interactions
    controlled : ndarray of shape (n_clients,), dtype bool
    target : int

    Returns
    -------
    Interactions
    """
    users = np.repeat(controlled, np.diff(data.client_indptr)).nonzero()[0]
    rows_users, rows_items = data.users, data.items
    kept = ~((rows_items == target) & np.isin(rows_users, users))
    best, weight = np.full(len(users), data.values.max()), np.ones(len(users))
    return of_rows(
        data,
        np.r_[rows_users[kept], users],
        np.r_[rows_items[kept], np.full(len(users), target)],
        np.r_[data.values[kept], best],
        np.r_[data.weights[kept], weight],
    )
