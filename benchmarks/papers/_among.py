"""Ranks of single test rows among n negatives, for several n at once."""

from __future__ import annotations

import numpy as np

NEGATIVES = (10, 20, 40, 99, "all")
METRICS = tuple(f"{name}@10, {n} negatives" for n in NEGATIVES for name in ("HR", "NDCG"))
K, USERS_AT_ONCE = 10, 500


def scores_by_negatives(model, X, test, seed):
    """HR@10 and NDCG@10 of test rows, each alone among n negatives.

    Negatives of a row are drawn without replacement from the items that its user has no row of,
    neither for training nor for the test. How many of n such items are ahead of the row is
    hypergeometric, given how many of all are. That number is drawn instead of the items. Ties
    are in random order. An item without a training row is never found.

    Parameters
    ----------
    model : fitted recommender
    X : ndarray of shape (n_rows, 2)
        All rows of all users, the test rows among them.
    test : ndarray of shape (n_test_rows, 2)
    seed : int

    Returns
    -------
    dict of {str: float}
    """
    rng = np.random.default_rng(seed)
    ahead, n_unseen = places(model, X, test, rng)
    found = {}
    for n in NEGATIVES:
        if n == "all":
            rank = ahead
        else:
            drawn = np.minimum(n, n_unseen)
            rank = rng.hypergeometric(np.minimum(ahead, n_unseen), _behind(ahead, n_unseen), drawn)
            rank = np.where(ahead > n_unseen, K, rank)
        hit = rank < K
        found[f"HR@10, {n} negatives"] = float(hit.mean())
        gain = np.where(hit, 1 / np.log2(np.minimum(rank, K) + 2), 0)
        found[f"NDCG@10, {n} negatives"] = float(gain.mean())
    return found


def places(model, X, test, rng):
    """Of each test row, how many of the items without a row are ahead of it, and how many are."""
    items = np.asarray(model.item_ids_)
    order = np.argsort(test[:, 0], kind="stable")
    ahead, n_unseen = np.empty((2, len(test)), dtype=np.int64)
    users = np.unique(test[:, 0])
    rows = X[np.argsort(X[:, 0], kind="stable")]
    for start in range(0, len(users), USERS_AT_ONCE):
        some = users[start : start + USERS_AT_ONCE]
        grid = np.column_stack([np.repeat(some, len(items)), np.tile(items, len(some))])
        scores = model.predict(grid).reshape(len(some), -1).astype(np.float64)
        own = rows[slice(*np.searchsorted(rows[:, 0], [some[0], some[-1] + 1]))]
        own = own[np.isin(own[:, 0], some) & np.isin(own[:, 1], items)]
        seen = np.zeros(scores.shape, dtype=bool)
        seen[np.searchsorted(some, own[:, 0]), np.searchsorted(items, own[:, 1])] = True
        mine = order[slice(*np.searchsorted(test[order, 0], [some[0], some[-1] + 1]))]
        for row in mine:
            user = np.searchsorted(some, test[row, 0])
            others = scores[user, ~seen[user]]
            n_unseen[row] = len(others)
            item = np.searchsorted(items, test[row, 1])
            if item == len(items) or items[item] != test[row, 1]:
                ahead[row] = len(others) + K
                continue
            own_score = scores[user, item]
            tied = np.count_nonzero(others == own_score)
            ahead[row] = np.count_nonzero(others > own_score) + rng.integers(tied + 1)
    return ahead, n_unseen


def _behind(ahead, n_unseen):
    return n_unseen - np.minimum(ahead, n_unseen)
