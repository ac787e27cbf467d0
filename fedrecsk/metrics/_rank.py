"""Rank held-out rows among the whole catalogue, or among negatives, drawn or given."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils import check_random_state

from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.sklearn_compat import safe_indexing
from fedrecsk._utils.user_warnings import warn
from fedrecsk.data.interactions import as_table, id_array, id_columns
from fedrecsk.metrics._metrics import Ranking

if TYPE_CHECKING:
    from numpy.typing import NDArray

ranking_kernels: LazyModule = LazyModule("fedrecsk.metrics._ranking_kernels")

# Gains above this are scaled down.
LARGE = 1e100
# Published files of negatives contain a few rated items; a larger share is a mistake.
TOLERATED_SHARE_RATED = 0.01
# Items that one call of the kernel looks through, so that it ends within a second.
ITEMS_PER_CALL = 2**27


def rank_catalogue(model, held_out, spec, *, exclude_seen=True):
    """Rank the whole catalogue for each user."""
    n_items = len(model.item_ids)
    under_test = np.zeros(n_items, dtype=bool)
    listed = np.empty((held_out.n_users, spec.n_listed), dtype=np.int32)

    def scored(batch, indptr, rows):
        board = model.board(held_out.users[batch], held_out.user_ids.values[batch])
        if exclude_seen and model.seen is not None:
            users, items = held_out.users[batch], held_out.items[rows]
            ranking_kernels.exclude(board, users, *model.seen, indptr, items, under_test)
        if spec.n_listed:
            best = top_k(board, spec.n_listed)
            found = np.isfinite(np.take_along_axis(board, best, axis=1))
            listed[batch] = np.where(found, best, -1)
        return board.ravel(), np.arange(len(board) + 1) * n_items, held_out.items[rows]

    n_candidates = np.full(held_out.n_users, n_items)
    return _rank(model, held_out, spec, n_candidates, scored, listed if spec.n_listed else None)


def rank_among(model, held_out, negatives, spec):
    """Rank each user's rows among its negatives."""
    negative_indptr, negative_items = negatives
    n_negatives = np.diff(negative_indptr)

    def scored(batch, indptr, rows):
        lengths = np.stack([np.diff(indptr), n_negatives[batch]], axis=1)
        starts = np.concatenate([[0], np.cumsum(lengths.sum(axis=1))])
        # Each user's candidates: the rows under test, then the negatives.
        own = np.repeat(np.tile([True, False], len(lengths)), lengths.ravel())
        items = np.empty(starts[-1], dtype=np.int64)
        items[own] = held_out.items[rows]
        first, last = negative_indptr[batch.start], negative_indptr[batch.stop]
        items[~own] = negative_items[first:last]
        scores = np.full(len(items), -np.inf)
        known = items >= 0
        users = np.repeat(np.arange(len(lengths)), lengths.sum(axis=1))
        scores[known] = model.pairs(
            held_out.users[batch], held_out.user_ids.values[batch], users[known], items[known]
        )
        position = np.arange(indptr[-1]) - np.repeat(indptr[:-1], np.diff(indptr))
        return scores, starts, position

    return _rank(model, held_out, spec, n_negatives + held_out.n_rows, scored)


def _rank(model, held_out, spec, n_candidates, scored, lists=None):
    """Rank batches of users with the candidates that `scored` returns, and join the places."""
    n_ranked = np.empty(held_out.n_users, dtype=np.int64) if spec.whole else None
    ahead, tied = np.empty((2, len(held_out.items)), dtype=np.int64)
    model.serve(held_out.users)
    for batch in _batches(model.n_scored(n_candidates), model.scores_per_batch):
        indptr = held_out.indptr[batch.start : batch.stop + 1]
        rows = slice(indptr[0], indptr[-1])
        indptr = indptr - indptr[0]
        scores, starts, positions = scored(batch, indptr, rows)
        chosen = np.where(held_out.relevant[rows], positions, -1)
        broken = ranking_kernels.places(
            scores, starts, indptr, chosen, spec.depth, ahead[rows], tied[rows]
        )
        if broken >= 0:
            user = held_out.user_ids.values[batch][broken]
            raise ValueError(
                f"The model's scores for user {user!s} contain NaN, so there is no ranking; did "
                "the fit diverge?"
            )
        if n_ranked is not None:
            n_ranked[batch] = np.add.reduceat(scores > -np.inf, starts[:-1], dtype=np.int64)
    relevant = held_out.relevant
    indptr = np.concatenate([[0], np.cumsum(relevant)])[held_out.indptr]
    gains = held_out.weights[relevant]
    if gains.max() > LARGE:
        # NDCG is a ratio, and sums of such gains would be infinite.
        gains = gains / gains.max()
    return Ranking(
        spec=spec,
        indptr=indptr,
        ahead=ahead[relevant],
        tied=tied[relevant],
        gains=gains,
        n_candidates=n_ranked,
        lists=lists,
        seen=model.seen,
        n_items=len(model.item_ids),
    )


def _batches(n_scores, scores_per_batch):
    """Return slices of users with about as many scores each."""
    part = np.cumsum(n_scores) // scores_per_batch
    cuts = [0, *(np.flatnonzero(np.diff(part)) + 1), len(n_scores)]
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(cuts)]


def top_k(scores: np.ndarray, k: int) -> NDArray[np.int64]:
    """Return columns of the k largest scores of each row, ties by order; not finite ones last."""
    if 16 * k > scores.shape[1]:
        finite = np.where(np.isfinite(scores), scores, -np.inf)
        return np.argsort(-finite, axis=1, kind="stable")[:, :k]
    if scores.dtype.kind != "f":
        scores = scores.astype(np.float64)
    columns = np.empty((len(scores), k), dtype=np.int64)
    ranking_kernels.best(np.ascontiguousarray(scores), np.empty(k, scores.dtype), columns)
    return columns


# ----------------------------------------------------------------------------- negatives


def draw_negatives(model, held_out, n_negatives, random_state):
    """Draw items per user, neither seen nor under test; return indptr and item codes."""
    generator, n_items = check_random_state(random_state), len(model.item_ids)
    items = np.empty((held_out.n_users, n_negatives), dtype=np.int64)
    uniform = generator.random_sample(items.shape)
    left, taken = np.empty(n_items, dtype=np.int64), np.empty(n_items, dtype=bool)
    n_each = max(1, ITEMS_PER_CALL // n_items)
    for start in range(0, held_out.n_users, n_each):
        batch = slice(start, start + n_each)
        row, n_left = ranking_kernels.draw(
            uniform[batch],
            held_out.users[batch],
            *model.seen,
            held_out.indptr[start : start + n_each + 1],
            held_out.items,
            left,
            taken,
            items[batch],
        )
        if row >= 0:
            user = held_out.user_ids.values[start + row]
            raise ValueError(
                f"n_negatives={n_negatives}, but user {user!s} has only {n_left} items that are "
                "neither seen in fit nor in the test rows; lower n_negatives."
            )
    return np.arange(held_out.n_users + 1) * n_negatives, items.ravel()


def read_negatives(negatives):
    """Return the users and the items of given negatives, one pair each."""
    if isinstance(negatives, Mapping):
        lists = [id_array(items, "negatives") for items in negatives.values()]
        users = np.repeat(id_array(list(negatives), "users of negatives"), list(map(len, lists)))
        items = np.concatenate(lists) if lists else np.array([])
    else:
        table = negatives if hasattr(negatives, "columns") else np.asarray(as_table(negatives))
        if table.ndim != 2 or table.shape[1] < 2:
            raise ValueError(
                "negatives must be a mapping from user to items, or a table whose rows are a user "
                f"and one or more negatives; got shape {table.shape}."
            )
        width = table.shape[1] - 1
        users = np.repeat(id_array(safe_indexing(table, 0, axis=1), "users of negatives"), width)
        columns = safe_indexing(table, list(range(1, width + 1)), axis=1)
        items = id_array(np.asarray(columns).ravel(), "negatives")
    if len(users) == 0:
        raise ValueError("negatives is empty; pass at least one for each user of X.")
    return users, items


def transform_negatives(users, items, X, transformers):
    """Return the pairs as a pipeline's recommender sees them, of users in X only."""
    if not transformers:
        return users, items
    known, first = np.unique(id_columns(X)[0], return_index=True)
    inside = np.isin(users, known)
    users, items = users[inside], items[inside]
    # Each pair goes through the transformers as a row of X of the same user with another item.
    rows = safe_indexing(X, first[np.searchsorted(known, users)], axis=0)
    if hasattr(rows, "columns"):
        table = rows.copy()
        table[table.columns[1]] = items
    else:
        table = rows.astype(np.result_type(rows, items))
        table[:, 1] = items
    for transformer in transformers:
        table = transformer.transform(table)
    return id_columns(table)


def group_negatives(model, held_out, users, items):
    """Group given negatives by test user, each item once; return indptr and item codes."""
    rows = held_out.user_ids.codes(users)
    asked = rows >= 0
    rows, items = rows[asked], items[asked]
    missing = np.bincount(rows, minlength=held_out.n_users) == 0
    if missing.any():
        raise ValueError(
            f"User {held_out.user_ids.values[missing.argmax()]!s} is in X but has no "
            "negatives; add some, or leave the user's rows out."
        )
    tested = _under_test(held_out, rows, items)
    n_codes = len(model.item_ids) + 1
    pairs = np.sort((rows * n_codes + model.item_ids.codes(items) + 1)[~tested])
    rows, codes = np.divmod(pairs[np.diff(pairs, prepend=-1) > 0], n_codes)
    indptr = np.searchsorted(rows, np.arange(held_out.n_users + 1))
    if not codes.any():
        warn(
            "The model knows none of the given negatives, so test items have nothing to be ranked "
            f"among. Give item ids as in fit, such as {model.item_ids.values[0]!s}.",
        )
    n_rated = tested.sum() + _n_seen(model, held_out, rows, codes - 1)
    if n_rated > TOLERATED_SHARE_RATED * len(items):
        warn(
            f"{n_rated} of the {len(items)} given negatives are not negatives: their users have "
            "seen them in fit, or they are in the test rows.",
        )
    return indptr, codes - 1


def _under_test(held_out, rows, items):
    n_items = len(held_out.item_ids)
    codes = held_out.item_ids.codes(items)
    tested = np.repeat(np.arange(held_out.n_users), held_out.n_rows) * n_items + held_out.own_items
    return (codes >= 0) & _among(rows * n_items + codes, tested)


def _n_seen(model, held_out, rows, items):
    if model.seen is None:
        return 0
    indptr, seen_items = model.seen
    users = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    n_items = len(model.item_ids)
    known = (held_out.users[rows] >= 0) & (items >= 0)
    pairs = (held_out.users[rows] * n_items + items)[known]
    return int(_among(pairs, users * n_items + seen_items).sum())


def _among(values, others):
    # np.isin takes a second for a million values, and this none.
    others = np.sort(others)
    position = np.minimum(np.searchsorted(others, values), len(others) - 1)
    return others[position] == values
