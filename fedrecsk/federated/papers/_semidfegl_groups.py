"""SemiDFEGL's groups: soft clusters of users and items, and the items predicted for each group."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import numpy as np

from fedrecsk.protocol.messages import PerClient

MAX_STEPS = 50


class Groups(NamedTuple):
    """Who and what is in each group.

    Attributes
    ----------
    of_client : ndarray of shape (n_clients,), dtype int32
        -1 for clients whose embedding the server does not know.
    n_devices : ndarray of shape (n_groups,)
        Number of clients in each group, which may be zero.
    items : ndarray of shape (n_groups, n_common)
        Codes of each group's predicted items. An item may be in several groups.
    """

    of_client: np.ndarray
    n_devices: np.ndarray
    items: np.ndarray

    @property
    def scales(self) -> np.ndarray:
        """1 / sqrt(degree) of the items of each group, which its devices are connected to."""
        return 1 / np.sqrt(np.maximum(self.n_devices, 1))

    @classmethod
    def none(cls, n_clients: int) -> Groups:
        """Before anything is known: every client is on its own."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls(np.full(n_clients, -1, dtype=np.int32), nothing, nothing.reshape(0, 0))


def clustered(embeddings, known, items, n_groups, n_common, fuzziness, generator):
    """Cluster the users and items together.

    Parameters
    ----------
    embeddings : ndarray of shape (n_clients, d)
    known : ndarray of shape (n_clients,), dtype bool
        Clients whose embedding the server knows.
    items : ndarray of shape (n_items, d)
    n_groups, n_common : int
        Number of groups, and of items predicted for each.
    fuzziness : float
        See :func:`memberships`.
    generator : Generator
        Draws the clients at which the centres begin.

    Returns
    -------
    groups : Groups
    """
    users = directions(embeddings[known])
    n_groups = min(n_groups, len(np.unique(users, axis=0)))
    if n_groups == 0:
        return Groups.none(len(known))
    points = np.concatenate([users, directions(items)])
    distinct = np.unique(users, axis=0, return_index=True)[1]
    centres = users[generator.permutation(np.sort(distinct))[:n_groups]]
    shares = memberships(points, centres, fuzziness)
    of_client = np.full(len(known), -1, dtype=np.int32)
    of_client[known] = shares[: len(users)].argmax(axis=1)
    of_items = shares[len(users) :]
    predicted = np.argsort(-of_items, axis=0, kind="stable")[:n_common].T
    sizes = np.bincount(of_client[known], minlength=n_groups)
    return Groups(of_client, sizes, predicted)


def memberships(points, centres, fuzziness, max_steps=MAX_STEPS, tol=1e-4):
    """Fuzzy c-means (Bezdek, 1981): each point's share in each cluster, from given centres.

    It lowers ``sum_xk share_xk^fuzziness |x - centre_k|^2``, in turns for the shares (of each
    point, of sum 1) and for the centres.

    Parameters
    ----------
    points : ndarray of shape (n_points, d)
    centres : ndarray of shape (n_clusters, d)
        Where the centres begin.
    fuzziness : float
        Above 1. Towards 1, each point belongs to its nearest centre alone.
    max_steps : int, default=50
    tol : float, default=1e-4
        Stop once no number of a centre moves further.

    Returns
    -------
    shares : ndarray of shape (n_points, n_clusters)
    """
    for _ in range(max_steps):
        shares = _shares(points, centres, fuzziness)
        weights = shares**fuzziness
        # A cluster that has no weight keeps its centre.
        totals = weights.sum(axis=0)[:, None]
        moved = np.where(totals > 0, weights.T @ points / np.where(totals > 0, totals, 1), centres)
        is_still = np.abs(moved - centres).max() <= tol
        centres = moved
        if is_still:
            break
    return _shares(points, centres, fuzziness)


def _shares(points, centres, fuzziness):
    squares = (points**2).sum(axis=1)[:, None] - 2 * points @ centres.T + (centres**2).sum(axis=1)
    # In logarithms, because powers of 1 / (fuzziness - 1) are large.
    logs = -np.log(np.maximum(squares, 1e-12)) / (fuzziness - 1)
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def directions(vectors):
    """Vectors of length 1; zero stays zero."""
    vectors = vectors.astype(np.float64)
    lengths = np.sqrt((vectors**2).sum(axis=1, keepdims=True))
    return vectors / np.where(lengths > 0, lengths, 1)


@dataclass(frozen=True, eq=False)
class Devices(PerClient):
    """The group of each client; what it receives are the ids of the other devices in it.

    Parameters
    ----------
    n_others : ndarray of shape (n_clients,)
        How many these are, for all clients of the fit.
    """

    _: KW_ONLY
    n_others: np.ndarray

    def _n_values(self, n_held):
        return self.n_others
