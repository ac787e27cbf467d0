"""Registration: what clients tell the server first, and the codes that they get."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fedrecsk.protocol.keys import Key


class Catalogue(NamedTuple):
    """What the server knows before the first upload.

    The simulator takes the lowest and the highest rating from y; in a deployment the estimator
    needs `rating_scale`.
    """

    n_items: int
    n_clients: int
    rating_range: tuple[float, float]


class Registration(NamedTuple):
    """What the server must know about clients before anything else, in arrays (n_clients,).

    How many items each of them holds counts only if clients also say which items these are. 0 under
    local differential privacy.
    """

    client_ids: np.ndarray
    n_users: np.ndarray
    n_held: np.ndarray


class ClientCodes(NamedTuple):
    """Codes that the server assigns to clients and to the first user of each.

    Draws that clients and server share have the key `shared`. `n_clients` have registered so far.
    """

    clients: np.ndarray
    first_users: np.ndarray
    shared: Key
    n_clients: int


def sort_registrations(
    registrations: Sequence[Registration],
) -> tuple[np.ndarray, NDArray[np.intp], NDArray[np.int64], NDArray[np.int64]]:
    """Return ids, their order, and in that order the numbers of users and of items."""
    ids = np.concatenate([one.client_ids for one in registrations])
    order = np.argsort(ids, kind="stable")
    twice = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if len(twice):
        raise ValueError(
            f"Client {ids[order][twice[0]]!s} registers twice; give each client its own id."
        )
    n_users = np.concatenate([one.n_users for one in registrations])
    n_held = np.concatenate([one.n_held for one in registrations])
    return ids, order, n_users[order], n_held[order]


def catalogue_nbytes(item_ids: np.ndarray) -> int:
    """Return the items' ids' bytes. Strings count as UTF-8 with one byte as terminator."""
    if item_ids.dtype.kind in "UO":
        return sum(len(str(one).encode()) + 1 for one in item_ids.tolist())
    return item_ids.nbytes
