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


@dataclass(frozen=True, repr=False)
class LeakReport:
    """What the server found out about the clients, and what it could have guessed without.

    Attributes
    ----------
    method : str
        The estimator's class.
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
    chance : dict of str to float
        By the names of these four shares, what the best guess reaches that reads no upload and
        is the same for every client. Pairs: the items that, claimed for everybody, give the
        highest share, found from how many clients have each. Triples: likewise, each item with
        its most common rating. Vectors and directions: that of one attacked client, taken for
        all the others'; the client for whom it goes best. Such a guess knows more of the
        population than a server does; a share that is no larger is no evidence of a leak.
    """

    method: str
    n_clients: int
    n_rounds: int
    vectors: float
    directions: float
    interactions: float
    values: float
    chance: dict[str, float]

    def __repr__(self):
        shares = ", ".join(
            f"{name} {getattr(self, name):.3f} (by chance {share:.3f})"
            for name, share in self.chance.items()
        )
        return (
            f"LeakReport({self.method}, n_clients={self.n_clients}, n_rounds={self.n_rounds}: "
            f"{shares})"
        )


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
        `n_rounds` or `max_clients` is below 1.

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
    >>> round(report.chance["interactions"], 2)
    0.44
    """
    if n_rounds < 1:
        raise ValueError(f"n_rounds={n_rounds} must be at least 1.")
    if max_clients is not None and max_clients < 1:
        raise ValueError(f"max_clients={max_clients} must be at least 1, or None for all.")
    invert = _inversion.of(estimator)
    model, record = _tapped(estimator, n_rounds)
    model.fit(X, y)
    data = encode(X, y)
    rates = bool(data.values.min() != data.values.max()) and model._sees_ratings
    if not record.broadcasts:
        raise ValueError(
            f"{type(estimator).__name__} uploaded nothing in n_rounds={n_rounds}, so there is "
            "nothing to invert; read more rounds."
        )
    clients = range(data.n_clients)[:max_clients]
    guesses = [
        _inversion.agreed(
            [
                invert(model, message, announced, upload, data.n_items)
                for message, announced, upload in record.of(client)
            ]
        )
        for client in clients
    ]
    truth = np.array([record.vectors[n_rounds - 1, client] for client in clients])
    own = [_own(data, client, rates) for client in clients]
    claims = [(guess.items, guess.values) for guess in guesses]
    found = _found_vectors([guess.vector for guess in guesses], truth)
    found |= _found_pairs(claims, own, rates)
    return LeakReport(
        method=type(estimator).__name__,
        n_clients=len(clients),
        n_rounds=n_rounds,
        **found,
        chance=_common_vector(truth) | _common_items(data, own, rates),
    )


def _own(data, client, rates):
    """The client's items and ratings; of implicit feedback, the items that it likes."""
    rows = slice(data.indptr[client], data.indptr[client + 1])
    items, values = data.items[rows], data.values[rows]
    return (items, values) if rates else (items[values > 0], None)


def _found_vectors(guesses, truth):
    known = [(one, true) for one, true in zip(guesses, truth, strict=True) if one is not None]
    return {
        "vectors": float(sum(_close(one, true) for one, true in known) / len(truth)),
        "directions": float(sum(_aligned(one, true) for one, true in known) / len(truth)),
    }


def _found_pairs(claims, own, rates):
    """Of the pairs, and triples with the rating, that are claimed or true: those that are both."""
    both = equal = either = 0
    for (items, values), (true_items, true_values) in zip(claims, own, strict=True):
        _, at, true_at = np.intersect1d(items, true_items, return_indices=True)
        both += len(at)
        either += len(items) + len(true_items) - len(at)
        if rates and values is not None:
            equal += (np.abs(values[at] - true_values[true_at]) < CLOSE).sum()
    return {
        "interactions": float(both / either),
        "values": float((equal if rates else both) / either),
    }


def _common_vector(truth):
    """How many of the others one client's vector passes for, at the best."""
    shares = {}
    for name, passes in (("vectors", _close), ("directions", _aligned)):
        hits = [passes(one, truth).sum() - passes(one, one) for one in truth]
        shares[name] = float(max(hits) / max(len(truth) - 1, 1))
    return shares


def _common_items(data, own, rates):
    """What claiming the same items, and ratings, for everybody reaches."""
    everybody = [_own(data, client, rates) for client in range(data.n_clients)]
    items = np.concatenate([items for items, _ in everybody])
    n_holders = np.bincount(items, minlength=data.n_items)
    best = _best_for_all(n_holders, n_holders, data.n_clients)
    shares = _found_pairs([(best, None)] * len(own), own, rates=False)
    if not rates:
        return shares
    values = np.concatenate([values for _, values in everybody])
    triples, counts = np.unique(np.column_stack([items, values]), axis=0, return_counts=True)
    # In ascending order, so that the most common rating of an item is written last.
    ascending = np.argsort(counts, kind="stable")
    rated = triples[ascending, 0].astype(np.intp)
    usual, n_usual = np.zeros(data.n_items), np.zeros(data.n_items)
    usual[rated], n_usual[rated] = triples[ascending, 1], counts[ascending]
    best = _best_for_all(n_usual, n_holders, data.n_clients)
    return shares | {
        "values": _found_pairs([(best, usual[best])] * len(own), own, rates=True)["values"]
    }


def _best_for_all(n_right, n_holders, n_clients):
    """Items to claim for everybody, for the most right ones among those claimed or true.

    A ratio of sums is largest for the items whose own ratio is above some bound.
    """
    n_wrong = n_clients - n_holders
    order = np.argsort(-n_right / np.maximum(n_wrong, 1e-9), kind="stable")
    shares = np.cumsum(n_right[order]) / (n_holders.sum() + np.cumsum(n_wrong[order]))
    return order[: shares.argmax() + 1]


def _close(guess, truth):
    return np.linalg.norm(guess - truth, axis=-1) <= CLOSE * np.linalg.norm(truth, axis=-1)


def _aligned(guess, truth):
    lengths = np.linalg.norm(guess) * np.linalg.norm(truth, axis=-1)
    return truth @ guess >= ALIGNED * np.maximum(lengths, 1e-300)


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

    # Messages speak of the user's class.
    Tapped.__name__ = Tapped.__qualname__ = type(estimator).__name__
    model = clone(estimator).set_params(
        n_rounds=n_rounds, client_fraction=1.0, early_stopping=False, warm_start=False
    )
    tapped = Tapped(**model.get_params(deep=False))
    federation = clone(tapped._world()).set_params(dropout=0.0)
    if federation.secure_aggregation is None:
        federation.set_params(aggregator=Tap(), compression=None)
    return tapped.set_params(federation=federation), record
