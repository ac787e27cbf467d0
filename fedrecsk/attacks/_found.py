"""How much of what clients hide a server has guessed, and how much anybody could have guessed."""

from __future__ import annotations

import numpy as np

CLOSE, ALIGNED = 1e-2, 0.99


def own_items(data, client, rates):
    """The client's items and ratings; of implicit feedback, the items that it likes."""
    rows = slice(data.indptr[client], data.indptr[client + 1])
    items, values = data.items[rows], data.values[rows]
    return (items, values) if rates else (items[values > 0], None)


def found_vectors(guesses, truth):
    """Shares of the clients whose vector, and its direction, was guessed; None is no guess."""
    known = [(one, true) for one, true in zip(guesses, truth, strict=True) if one is not None]
    return {
        "vectors": float(sum(_close(one, true) for one, true in known) / len(truth)),
        "directions": float(sum(_aligned(one, true) for one, true in known) / len(truth)),
    }


def found_pairs(claims, own, rates):
    """Of the pairs, and triples with the rating, that are claimed or true: those that are both."""
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


def common_vector(truth):
    """How many of the others one client's vector passes for, at the best."""
    shares = {}
    for name, passes in (("vectors", _close), ("directions", _aligned)):
        hits = [passes(one, truth).sum() - passes(one, one) for one in truth]
        shares[name] = float(max(hits) / max(len(truth) - 1, 1))
    return shares


def common_items(data, own, rates):
    """What claiming the same items, and ratings, for everybody reaches."""
    everybody = [own_items(data, client, rates) for client in range(data.n_clients)]
    items = np.concatenate([items for items, _ in everybody])
    n_holders = np.bincount(items, minlength=data.n_items)
    best = _best_for_all(n_holders, n_holders, data.n_clients)
    shares = found_pairs([(best, None)] * len(own), own, rates=False)
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
        "values": found_pairs([(best, usual[best])] * len(own), own, rates=True)["values"]
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
