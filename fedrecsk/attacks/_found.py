"""How much of the clients' data a server has inferred, and how much guessing would."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array

if TYPE_CHECKING:
    from typing import Any

CLOSE, ALIGNED = 1e-2, 0.99


def own_items(data, client, rates):
    """The client's items and ratings; with implicit feedback, the items that it likes."""
    rows = slice(data.indptr[client], data.indptr[client + 1])
    items, values = data.items[rows], data.values[rows]
    return (items, values) if rates else (items[values > 0], None)


def found_vectors(guesses, truth):
    """Shares of the clients whose vector, or its direction, was inferred; None is no guess.

    And the median of the cosines' sizes.
    """
    pairs = list(zip(guesses, truth, strict=True))
    known = [(one, true) for one, true in pairs if one is not None]
    cosines = [0.0 if one is None else _cosines(one, true) for one, true in pairs]
    return {
        "vectors": float(sum(_close(one, true) for one, true in known) / len(truth)),
        "directions": float(sum(_aligned(one, true) for one, true in known) / len(truth)),
        "cosine": float(np.median(np.abs(cosines))),
    }


def found_pairs(claims, own, rates):
    """Share of the pairs (or triples with a rating) claimed or true that are both."""
    both = equal = either = 0
    for (items, values), (true_items, true_values) in zip(claims, own, strict=True):
        _, at, true_at = np.intersect1d(items, true_items, return_indices=True)
        both += len(at)
        either += len(items) + len(true_items) - len(at)
        if rates and values is not None:
            equal += (np.abs(values[at] - true_values[true_at]) < CLOSE).sum()
    either = max(either, 1)
    return {
        "interactions": float(both / either),
        "values": float((equal if rates else both) / either),
    }


def assigned(profiles, own):
    """For each client, the profile that is its own at best, or None if there are fewer profiles.

    A profile of a client is known without whose it is; the assignment with the most items in
    common is taken for right.
    """
    if not profiles:
        return [None] * len(own)
    claimed, true = _incidence([one.items for one in profiles]), _incidence([i for i, _ in own])
    width = max(claimed.shape[1], true.shape[1])
    claimed.resize(len(profiles), width)
    true.resize(len(own), width)
    shared = (true @ claimed.T).toarray()
    either = true.sum(axis=1)[:, None] + claimed.sum(axis=1)[None] - shared
    alike = shared / np.maximum(either, 1)
    whose = dict(zip(*linear_sum_assignment(-alike), strict=True))
    fits = [c in whose and alike[c, whose[c]] > 0 for c in range(len(own))]
    return [profiles[whose[c]] if fit else None for c, fit in enumerate(fits)]


def _incidence(lists) -> Any:
    """A row for each list of items, with ones in their columns."""
    indptr = np.concatenate([[0], np.cumsum([len(one) for one in lists])])
    items = np.concatenate([*lists, np.empty(0)]).astype(np.int64)
    width = int(items.max(initial=0)) + 1
    return csr_array((np.ones(len(items)), items, indptr), shape=(len(lists), width))


def common_vector(truth):
    """Largest share of the other clients whose vector equals that of one client."""
    shares, others = {}, max(len(truth) - 1, 1)
    for name, passes in (("vectors", _close), ("directions", _aligned)):
        hits = [passes(one, truth).sum() - passes(one, one) for one in truth]
        shares[name] = float(max(hits) / others)
    medians = [
        np.median(np.delete(np.abs(_cosines(one, truth)), place)) if len(truth) > 1 else 0.0
        for place, one in enumerate(truth)
    ]
    return shares | {"cosine": float(max(medians))}


def common_items(data, own, rates):
    """Shares that are reached by claiming the same items, and ratings, for every client."""
    everyone = [own_items(data, client, rates) for client in range(data.n_clients)]
    items = np.concatenate([items for items, _ in everyone])
    n_holders = np.bincount(items, minlength=data.n_items)
    best = _best_for_all(n_holders, n_holders, data.n_clients)
    shares = found_pairs([(best, None)] * len(own), own, rates=False)
    if not rates:
        return shares
    values = np.concatenate([values for _, values in everyone if values is not None])
    triples, counts = np.unique(np.column_stack([items, values]), axis=0, return_counts=True)
    # In ascending order, so that the most common rating of an item is written last.
    ascending = np.argsort(counts, kind="stable")
    rated = triples[ascending, 0].astype(np.intp)
    usual, n_usual = np.zeros(data.n_items), np.zeros(data.n_items)
    usual[rated], n_usual[rated] = triples[ascending, 1], counts[ascending]
    best = _best_for_all(n_usual, n_holders, data.n_clients)
    return shares | {
        "values": found_pairs([(best, usual[best])] * len(own), own, rates=True)["values"]
    }


def _best_for_all(n_right, n_holders, n_clients):
    """Items to claim for all clients so that the share of correct claims is largest.

    A ratio of sums is largest for the items whose own ratio exceeds some bound.
    """
    n_wrong = n_clients - n_holders
    order = np.argsort(-n_right / np.maximum(n_wrong, 1e-9), kind="stable")
    shares = np.cumsum(n_right[order]) / (n_holders.sum() + np.cumsum(n_wrong[order]))
    return order[: shares.argmax() + 1]


def _close(guess, truth):
    return np.linalg.norm(guess - truth, axis=-1) <= CLOSE * np.linalg.norm(truth, axis=-1)


def _aligned(guess, truth):
    return _cosines(guess, truth) >= ALIGNED


def _cosines(guess, truth):
    lengths = np.linalg.norm(guess) * np.linalg.norm(truth, axis=-1)
    return truth @ guess / np.maximum(lengths, 1e-300)
