"""Measure what an honest but curious server can infer from single uploads."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np
from sklearn.base import clone

from fedrecsk.attacks._found import (
    common_items,
    common_vector,
    found_pairs,
    found_vectors,
    own_items,
)
from fedrecsk.attacks._guesses import Guess, agreed
from fedrecsk.uploads import Update

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from sklearn.base import BaseEstimator

NOTHING = Guess(None, np.empty(0, dtype=np.int64))


@dataclass(frozen=True, repr=False)
class LeakReport:
    """What a server can infer about clients from their uploads, and what guessing reaches.

    Attributes
    ----------
    method : str
        Class of the estimator.
    n_clients : int
        Number of clients attacked.
    n_rounds : int
        Number of consecutive uploads read of each client.
    vectors : float
        Share of the clients whose private user vector was recovered, with an error of at most
        1 % of its length; binary codes exactly.
    directions : float
        Share of the clients whose vector's direction was recovered, with a cosine of at least
        0.99: enough to rank items for them.
    interactions : float
        Of all pairs of client and item that were claimed or true, the share that were both. 1:
        the server knows exactly who has which item.
    values : float
        The same share for triples with the rating, if the method sees ratings; otherwise equal
        to `interactions`.
    chance : dict of {str: float}
        For each of these four shares, what the best guess reaches without reading an upload, if
        it is the same for every client. Pairs: the set of items with the highest share if it is
        claimed for all clients. Triples: likewise, each item with its most common rating.
        Vectors and directions: the vector of the attacked client that fits most others. Such a
        guess uses more knowledge of all clients than a server has, so a share that is not larger
        is no evidence of a leak.
    """

    method: str
    n_clients: int
    n_rounds: int
    vectors: float
    directions: float
    interactions: float
    values: float
    chance: dict[str, float]

    def __repr__(self) -> str:
        shares = ", ".join(
            f"{name} {getattr(self, name):.3f} (by chance {share:.3f})"
            for name, share in self.chance.items()
        )
        return (
            f"LeakReport({self.method}, n_clients={self.n_clients}, n_rounds={self.n_rounds}: "
            f"{shares})"
        )


def measure_leak(
    estimator: BaseEstimator,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    n_rounds: int = 1,
    max_clients: int | None = None,
) -> LeakReport:
    """Measure what a server that follows the protocol can infer from single uploads.

    The estimator is fitted for one or more rounds with all clients in every round, and without
    dropout, compression and aggregator; each client has one user. The server knows its own
    messages and the method's hyperparameters, and inverts each client's uploads. With
    ``local_dp`` the uploads are noisy; with ``secure_aggregation`` the server only receives
    their sum, and uses the mean in place of each client's upload.

    Parameters
    ----------
    estimator : federated estimator
        It is cloned, not changed.
    X, y
        As in `fit`.
    n_rounds : int, default=1
        Number of consecutive uploads to read of each client, from the first round on. Items
        that are not in all of them are taken for sampled negatives.
    max_clients : int or None, default=None
        Largest number of clients to attack, to save time. None: all.

    Returns
    -------
    LeakReport

    Raises
    ------
    ValueError
        If no inversion is known for the method, if it uploads nothing in these rounds, or if
        `n_rounds` or `max_clients` is not a positive whole number.
    TypeError
        If `estimator` is a class.

    Notes
    -----
    How uploads are inverted, method by method:

    - LocALS, LocSGD, GlobSGD: all rows of an upload are multiples of p_u; its length and sign
      are those that explain the rows best.
    - LightFR: gradients are exact integers; one residual per item explains all bits, and the
      rest gives the targets. With ratings, a code and its opposite fit equally well (with
      mirrored ratings); the server takes the one with the higher ratings.
    - FedRec: rows of a user are multiples of (1, p_u). Virtual ratings are all equal or scores of
      some vector, and so linear in the items; real ones are not.
    - FedMF, CoLR, SCoLR: visited items move along p_u (along B p_u): positives in one direction,
      sampled negatives, which are more, in the other.
    - FedFast: the vector itself is uploaded, and separates positives from negatives.
    - RFRec: a client changes the vectors of the items that it has rated, and no others.
    - FedEB: the client's equations have as many known numbers as unknown ones, and are solved
      for the unknown.
    - FCF: rows of items that the user does not have are (p . q) p; the others differ.
    - ExplicitFCF: rows are errors times (1, p), and the user's ridge regression gives its bias
      (without biases, its length).
    - FedEASE, FedSpectral: the entry of an item with itself is the square of the user's entry for
      it; the user's row is the private vector here.

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
    if not isinstance(n_rounds, Integral) or n_rounds < 1:
        raise ValueError(f"n_rounds={n_rounds!r} must be a whole number, at least 1.")
    if max_clients is not None and not (isinstance(max_clients, Integral) and max_clients >= 1):
        raise ValueError(
            f"max_clients={max_clients!r} must be a whole number, at least 1, or None for all."
        )
    if isinstance(estimator, type):
        raise TypeError(
            f"measure_leak takes an estimator, but got a class; pass {estimator.__name__}()."
        )
    if getattr(estimator, "_inversion", None) is None:
        raise ValueError(
            f"No inversion is known for {type(estimator).__name__}; measure_leak takes a federated "
            "estimator with an `_inversion`, as those of fedrecsk have."
        )
    model = _watched(estimator, n_rounds)
    model._validate_params()
    data = model._prepared(X, y)
    n_attacked = min(data.n_clients, max_clients or data.n_clients)
    guesses, truth = _read_along(model, data, n_rounds, n_attacked)
    if not guesses:
        raise ValueError(
            f"{type(estimator).__name__} uploaded nothing in n_rounds={n_rounds}, so there is "
            "nothing to invert; read more rounds."
        )
    guesses = [guesses.get(client, NOTHING) for client in range(n_attacked)]
    rates = bool(data.values.min() != data.values.max()) and model._sees_ratings
    own = [own_items(data, client, rates) for client in range(n_attacked)]
    claims = [(guess.items, guess.values) for guess in guesses]
    found = found_vectors([guess.vector for guess in guesses], truth)
    found |= found_pairs(claims, own, rates)
    return LeakReport(
        method=type(estimator).__name__,
        n_clients=n_attacked,
        n_rounds=n_rounds,
        **found,
        chance=common_vector(truth) | common_items(data, own, rates),
    )


def _watched(estimator, n_rounds):
    """A copy of the estimator in which all clients upload in every round."""
    federation = clone(estimator._setting()).set_params(dropout=0.0)
    if federation.secure_aggregation is None:
        federation.set_params(aggregator=None, compression=None)
    return clone(estimator).set_params(
        n_rounds=n_rounds,
        client_fraction=1.0,
        early_stopping=False,
        warm_start=False,
        federation=federation,
    )


def _read_along(model, data, n_rounds, n_attacked):
    """Guesses about the attacked clients whose uploads arrived, and all true vectors."""
    guesses, received, truth = {}, None, np.empty((0, 0))
    for server, clients, seen in model._watch(data, n_rounds):
        # In a round without a message, clients continue with the last one.
        if seen.message is not None:
            received = seen.message
        for client, guess in _guesses(server, received, seen, n_attacked):
            earlier = [guesses[client]] if client in guesses else []
            guesses[client] = agreed([*earlier, guess])
        truth = _vectors(server.method, clients)
    return guesses, truth[:n_attacked]


def _guesses(server, received, seen, n_attacked):
    """Yield each attacked client whose upload the server has seen in a round, with a guess."""
    if seen.upload is None:
        return
    method, n_items, announced = server.method, len(server.item_ids), server.announcement()
    if server.federation.secure_aggregation is not None:
        # The server only has the sum, so its guess is the same for all clients.
        mean = {name: Update(slice(None), total.mean) for name, total in seen.upload.items()}
        guess = method._inversion(method, announced | received, mean, n_items)
        yield from ((client, guess) for client in range(n_attacked))
        return
    for batch in seen.batches:
        for place in np.flatnonzero(batch.accepted & (batch.clients < n_attacked)):
            upload, client = batch.all_fields(place), batch.clients[place]
            own = announced | received.of(np.array([client]))
            yield int(client), method._inversion(method, own, upload, n_items)


def _vectors(method, clients):
    """Private vectors of clients with one user each, in the order of the clients' codes."""
    codes = np.concatenate([one.block.clients for one in clients])
    vectors = [method._private_vectors(one.state) for one in clients]
    return np.concatenate(vectors)[np.argsort(codes)].astype(np.float64)
