"""What uploads give away: an honest but curious server reads along and infers."""

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

NOTHING = Guess(None, np.empty(0, dtype=np.int64))


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
    estimator,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    n_rounds: int = 1,
    max_clients: int | None = None,
) -> LeakReport:
    """Play a server that keeps to the protocol and infers what it can from single uploads.

    The estimator is fitted for one or more rounds, one user per client, with all clients in
    every round, without dropout, compression and aggregator. The server, which knows what it
    has broadcast and the method's hyperparameters, inverts each client's uploads. Under
    ``local_dp`` these are noisy; under ``secure_aggregation`` it gets their sum only, and takes
    the mean for everybody's.

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
    How uploads are inverted, method by method:

    LocALS, LocSGD, GlobSGD: the rows of one upload all lie along p_u, whose length and sign are
    those that explain the rows best. LightFR: gradients are exact integers, of which one
    residual an item explains all bits; what remains are the targets. With ratings a code and its
    opposite fit equally, with the ratings mirrored; the server takes the one that likes more.
    FedRec: rows of one user are multiples of (1, p_u); virtual ratings are all equal, or scores
    of some vector, and so linear in the items, which real ones are not.
    FedMF, CoLR, SCoLR: a visited item moves along p_u (along B p_u), positives one way and the
    sampled negatives, which are more, the other. FedFast: the vector is uploaded as it is, and
    tells positives from negatives. RFRec: a client moves the vectors of the items that it has
    rated and of no others. FedEB: the client's equations have as many numbers sent as unknown,
    and are solved backwards. FCF: rows of items that the user does not have are (p . q) p, the
    others stand out. ExplicitFCF: rows are errors times (1, p), and the user's ridge regression
    gives its bias (its length without biases). FedEASE, FedSpectral: the pair of an item with
    itself is the square of the entry of the user's row, which is the private vector here.

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
            f"No inversion is known for {type(estimator).__name__}; measure_leak reads the "
            "uploads of federated methods that say how a server could invert them."
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
    """A copy of the estimator as the server watches it: all clients upload in every round."""
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
    """Guesses by client, for those attacked whose uploads arrived, and the clients' vectors."""
    guesses, received = {}, None
    for server, clients, seen in model._watch(data, n_rounds):
        # In a round without a message, clients go on with the last one.
        if seen.message is not None:
            received = seen.message
        for client, guess in _guesses(server, received, seen, n_attacked):
            earlier = [guesses[client]] if client in guesses else []
            guesses[client] = agreed([*earlier, guess])
        truth = _vectors(server.method, clients)
    return guesses, truth[:n_attacked]


def _guesses(server, received, seen, n_attacked):
    """The clients attacked whose uploads the server has seen in a round, each with a guess."""
    if seen.upload is None:
        return
    method, n_items, announced = server.method, len(server.item_ids), server.announcement()
    if server.federation.secure_aggregation is not None:
        # All it has is the sum, which says the same of everybody.
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
    """The vectors that one-user clients hide, in the order of their codes."""
    codes = np.concatenate([one.block.clients for one in clients])
    vectors = [method._private_vectors(one.state) for one in clients]
    return np.concatenate(vectors)[np.argsort(codes)].astype(np.float64)
