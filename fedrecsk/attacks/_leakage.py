"""What plaintext uploads give away: an honest but curious server reads along and infers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from sklearn.base import clone

from fedrecsk.aggregation import Aggregator, Update, plain_sum
from fedrecsk.attacks import _inversion
from fedrecsk.interactions import encode

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

CLOSE, ALIGNED = 1e-2, 0.99


@dataclass(frozen=True)
class LeakReport:
    """What the server found out about the clients.

    Attributes
    ----------
    method : str
    n_clients, n_rounds : int
        Clients attacked, and consecutive uploads read of each.
    vectors : float
        Share of the clients whose private user vector was recovered, to 1 % of its length;
        binary codes exactly.
    directions : float
        Share of those whose direction was, to a cosine of 0.99: enough to rank items for them.
    interactions : float
        Of all pairs of client and item that were claimed or true, the share that were both:
        1 if the server knows exactly who has what.
    values : float
        The same of triples with the rating, where the method sees ratings; otherwise equal to
        `interactions`.
    """

    method: str
    n_clients: int
    n_rounds: int
    vectors: float
    directions: float
    interactions: float
    values: float


def measure_leak(
    estimator,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    n_rounds: int = 1,
    max_clients: int | None = None,
) -> LeakReport:
    """Play a server that keeps to the protocol and infers what it can from single uploads.

    The estimator is fitted for one or more rounds, one user a client, all clients in every
    round. After them the server, which knows what it has broadcast and the method's
    hyperparameters, inverts each client's upload. Under ``local_dp`` it reads noisy
    uploads; under ``secure_aggregation`` it has the sum alone, and takes that for everybody's.

    Parameters
    ----------
    estimator : federated estimator, not fitted
    X, y
        As in `fit`.
    n_rounds : int, default=1
        Consecutive uploads to read of each client, from the first round on. Items that are
        not in all of them are taken for sampled negatives.
    max_clients : int or None, default=None
        Attack so many clients only, to save time.

    Returns
    -------
    LeakReport

    Raises
    ------
    ValueError
        If no inversion is known for the method, it uploads nothing in these rounds, or
        `max_clients` is below 1.

    Notes
    -----
    LocALS, LocSGD, GlobSGD: the rows of one upload all lie along p_u, whose length and sign are
    those that explain the rows best. LightFR: gradients are exact integers, of which one
    residual an item explains all bits; what remains are the targets. With ratings a code and its
    opposite fit equally, with the ratings mirrored; the server takes the one that likes more.
    FedMF, CoLR, SCoLR: a visited item moves along p_u (along B p_u), positives one way and the
    sampled negatives, which are more, the other. RFRec: a client moves the vectors of the
    items that it has rated and of no others.

    Examples
    --------
    >>> from fedrecsk import LocALS
    >>> from fedrecsk.attacks import measure_leak
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> report = measure_leak(LocALS(n_factors=4, reg_user=1.0, random_state=0), X)
    >>> report.vectors, report.interactions
    (1.0, 1.0)
    """
    if max_clients is not None and max_clients < 1:
        raise ValueError(f"max_clients={max_clients} must be at least 1, or None for all.")
    name, invert = _inversion.of(estimator)
    model, record = _tapped(estimator, n_rounds)
    model.fit(X, y)
    data = encode(X, y)
    rates = bool(data.values.min() != data.values.max()) and model._sees_ratings
    if not record.broadcasts:
        raise ValueError(
            f"{type(estimator).__name__} uploaded nothing in n_rounds={n_rounds}, so there is "
            "nothing to invert; read more rounds."
        )
    clients = np.arange(data.n_clients)[:max_clients]
    vectors, directions, both, equal, claimed = 0, 0, 0, 0, 0
    for client in clients:
        guesses = [
            invert(model, message, announced, upload, data.n_items)
            for message, announced, upload in record.of(client)
        ]
        guess = _inversion.agreed(guesses)
        truth = record.vectors[n_rounds - 1, int(client)]
        if guess.vector is not None:
            vectors += _close(guess.vector, truth)
            directions += _cosine(guess.vector, truth) >= ALIGNED
        rows = slice(data.indptr[client], data.indptr[client + 1])
        items, values = data.items[rows], data.values[rows]
        if not rates:
            items = items[values > 0]
        found = np.isin(guess.items, items)
        both += found.sum()
        claimed += len(items) + (~found).sum()
        if rates and guess.values is not None:
            true = dict(zip(items.tolist(), values.tolist(), strict=True))
            equal += sum(
                abs(true[i] - value) < CLOSE
                for i, value in zip(
                    guess.items[found].tolist(), guess.values[found].tolist(), strict=True
                )
            )
    return LeakReport(
        method=name,
        n_clients=len(clients),
        n_rounds=n_rounds,
        vectors=float(vectors / len(clients)),
        directions=float(directions / len(clients)),
        interactions=float(both / claimed),
        values=float((equal if rates else both) / claimed),
    )


def _close(guess, truth):
    return np.linalg.norm(guess - truth) <= CLOSE * np.linalg.norm(truth)


def _cosine(guess, truth):
    return guess @ truth / max(np.linalg.norm(guess) * np.linalg.norm(truth), 1e-300)


class _Record:
    """What the server saw, and for the score what the clients hid."""

    def __init__(self):
        self.broadcasts = []
        self.uploads = []
        self.sums = []
        self.vectors = {}

    def of(self, client):
        """Broadcast, announcement and upload of each round that had one."""
        seen = self.uploads if self.uploads else [[total] * (client + 1) for total in self.sums]
        for (message, announced), uploads in zip(self.broadcasts, seen, strict=True):
            yield message, announced, uploads[client]


def _tapped(estimator, n_rounds):
    """A copy of the estimator that records while it runs."""
    record = _Record()

    class Tap(Aggregator):
        _parameter_constraints: dict = {}

        def combine(self, uploads, shapes):
            record.uploads.append(uploads)
            return plain_sum(uploads, shapes)

    class Tapped(type(estimator)):
        def _client_update(self, block, state, message, key):
            state, upload = super()._client_update(block, state, message, key)
            record.vectors[key.round, int(block.clients[0])] = _inversion.private_vector(
                self, state
            )
            return state, upload

        def _aggregate(self, server, message, upload, key):
            if upload is not None:
                record.broadcasts.append((message, self._announce(server)))
                record.sums.append(
                    {name: Update(slice(None), total.mean) for name, total in upload.items()}
                )
            return super()._aggregate(server, message, upload, key)

    model = clone(estimator).set_params(
        n_rounds=n_rounds, client_fraction=1.0, early_stopping=False, warm_start=False
    )
    tapped = Tapped(**model.get_params(deep=False))
    federation = clone(tapped._world()).set_params(dropout=0.0)
    if federation.secure_aggregation is None:
        federation.set_params(aggregator=Tap(), compression=None)
    return tapped.set_params(federation=federation), record
