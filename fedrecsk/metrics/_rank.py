"""Ranking held-out rows: among the whole catalogue, or among each user's negatives."""

from __future__ import annotations

import itertools

import numpy as np

from fedrecsk import _kernels
from fedrecsk.metrics._lists import Lists
from fedrecsk.metrics._metrics import Ranking
from fedrecsk.metrics._places import Places
from fedrecsk.metrics._top_k import top_k

# Gains above this are scaled down.
LARGE = 1e100


def rank_catalogue(model, held_out, need, *, exclude_seen=True):
    """Rank the whole catalogue for each user."""
    n_items = len(model.item_ids)
    under_test = np.zeros(n_items, dtype=bool)
    listed = np.empty((held_out.n_users, need.listed), dtype=np.int32)

    def scored(batch, indptr, rows):
        board = model.board(held_out.users[batch], held_out.user_ids.values[batch])
        if exclude_seen and model.seen is not None:
            users, items = held_out.users[batch], held_out.items[rows]
            _kernels.ranking.exclude(board, users, *model.seen, indptr, items, under_test)
        if need.listed:
            best = top_k(board, need.listed)
            found = np.isfinite(np.take_along_axis(board, best, axis=1))
            listed[batch] = np.where(found, best, -1)
        return board.ravel(), np.arange(len(board) + 1) * n_items, held_out.items[rows]

    places = _rank(model, held_out, need, np.full(held_out.n_users, n_items), scored)
    return Ranking(places, Lists(listed, model.seen, n_items) if need.listed else None, need)


def rank_among(model, held_out, negatives, need):
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

    return Ranking(_rank(model, held_out, need, n_negatives + held_out.n_rows, scored), None, need)


def _rank(model, held_out, need, n_candidates, scored):
    """Rank batches of users with the candidates that `scored` gives, and join the places."""
    n_ranked = np.empty(held_out.n_users, dtype=np.int64) if need.whole else None
    ahead = np.empty(len(held_out.items), dtype=np.int64)
    tied = np.empty_like(ahead)
    model.serve(held_out.users)
    for batch in _batches(model.n_scored(n_candidates), model.scores_per_batch):
        indptr = held_out.indptr[batch.start : batch.stop + 1]
        rows = slice(indptr[0], indptr[-1])
        indptr = indptr - indptr[0]
        scores, starts, positions = scored(batch, indptr, rows)
        chosen = np.where(held_out.relevant[rows], positions, -1)
        broken = _kernels.ranking.places(
            scores, starts, indptr, chosen, need.depth, ahead[rows], tied[rows]
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
    return Places(indptr, ahead[relevant], tied[relevant], gains, need.depth, n_ranked)


def _batches(n_scores, scores_per_batch):
    """Runs of users, each with about as many scores."""
    part = np.cumsum(n_scores) // scores_per_batch
    cuts = [0, *(np.flatnonzero(np.diff(part)) + 1), len(n_scores)]
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(cuts)]
