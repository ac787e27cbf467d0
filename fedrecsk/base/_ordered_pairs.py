"""Sums over users of pairs of items, by what came first: pairs that have a direction.

Such a sum has several triangles, one after the other, in an array or in a sparse column. The last
two are for the pairs whose lower item came first, and for those whose higher item did. Clients that
send their own pairs have one more before these: pairs at the same time, among them each item's with
itself. In sums of all pairs such a pair counts half in each direction.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from fedrecsk.base._fading import ages, rates
from fedrecsk.base._item_weights import (
    Direction,
    by_row,
    dense_gram,
    fill_little,
    n_pairs,
    numbers_of,
    pair_column,
    pairs_of,
    score_kernels,
    single_grams,
)

# Triangles of a sum of all pairs, and of one of clients' own pairs.
OF_ALL, OF_OWN = 2, 3
# From validation rows (benchmarks.next_item choices): the weight of the other direction is this
# power of how often two users have a pair in opposite order, as a share of the same order.
AGREEMENT_POWER = 2
# Below this ratio to users' own pairs, pairs in common may be rounding, by masks too.
RESOLUTION = 1e-4


def ordered_gram(likes, half_life, senders):
    """Return the sum over the clients of the mask, of all pairs of items."""
    same, *directed = dense_gram(likes, half_life, senders, OF_OWN)
    return np.concatenate([one + same / 2 for one in directed])


def ordered_pairs(likes, half_life, senders, n_orders=OF_OWN):
    """Return each sender's own pairs: where they begin, their numbers, and values.

    A pair takes one number if it has one direction, or none, and two if it has both.
    """
    indptr, numbers, (same, *directed) = single_grams(likes, half_life, senders, OF_OWN)
    halved = np.any(directed, axis=0) if n_orders == OF_OWN else np.ones(len(same), dtype=bool)
    orders = [one + np.where(halved, same / 2, 0) for one in directed]
    if n_orders == OF_OWN:
        orders.insert(0, np.where(halved, 0, same))
    values = np.concatenate(orders)
    owners = np.tile(np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), n_orders)
    numbers = np.concatenate([numbers + k * n_pairs(likes.n_items) for k in range(n_orders)])
    sent = np.flatnonzero(values)
    sent = sent[np.lexsort([numbers[sent], owners[sent]])]
    counts = np.bincount(owners[sent], minlength=len(indptr) - 1)
    return np.concatenate([[0], np.cumsum(counts)]), numbers[sent], values[sent]


def squares_of_pairs(likes, half_life, senders):
    """Return the products of each sender's pairs with themselves: what `agreement` leaves out."""
    out = np.zeros((len(senders), 2))
    arrays = likes.weights, ages(likes), rates(likes, half_life)
    score_kernels.add_squares(likes.client_indptr, likes.indptr, *arrays, senders, out)
    return out


def first_and_later(gram, n_items):
    """Return a matrix: how often item j came after item i, sparse or not; 0 on its diagonal."""
    size = n_pairs(n_items)
    n_orders = gram.shape[0] // size
    # What an entry counts where its lower item comes first, and where its higher item does.
    both = np.full(n_orders - OF_ALL, 0.5)
    from_lower, from_higher = np.append(both, [1, 0]), np.append(both, [0, 1])
    if sparse.issparse(gram) and fill_little(gram.nnz, n_items):
        i, j, values = pairs_of(gram, n_items)
        order = np.where(i == j, -1, numbers_of(gram)[0] // size)
        from_lower, from_higher = np.append(from_lower, 0), np.append(from_higher, 0)
        entries = np.concatenate([values * from_lower[order], values * from_higher[order]])
        places = np.concatenate([j, i]), np.concatenate([i, j])
        matrix = sparse.csr_array((entries, places), shape=(n_items, n_items))
        matrix.eliminate_zeros()
        return matrix
    triangles = np.asarray(gram.todense() if sparse.issparse(gram) else gram)
    triangles = triangles.reshape(n_orders, size)
    above, below = from_lower @ triangles, from_higher @ triangles
    matrix = np.empty((n_items, n_items))
    for i in range(n_items):
        row = slice(n_pairs(i), n_pairs(i + 1))
        matrix[i, : i + 1], matrix[: i + 1, i] = below[row], above[row]
    np.fill_diagonal(matrix, 0)
    return matrix


def direction_of(matrix, squares):
    """Return what a matrix of first and later items says of direction.

    Sums over pairs of users are those of the matrix, less what users have with themselves. They say
    nothing if no upload has arrived, or if hardly any two users share a pair.
    """
    if squares is None:
        return Direction(1.0, 1.0)
    own_same, own_opposite = squares[..., 0].sum(), squares[..., 1].sum()
    same = (matrix * matrix).sum() - own_same
    opposite = (matrix * matrix.T).sum() - own_opposite
    if not same > RESOLUTION * own_same > 0:
        return Direction(1.0, 1.0)
    agreement = float(np.clip(opposite / same, 0, 1))
    return Direction(agreement**AGREEMENT_POWER, float(1 + same / own_same))


def directed(gram, n_items, backward_weight, squares=None):
    """Return a matrix of pairs and its Direction; with the weight None, it is to be found.

    The matrix says how often item j came after i, plus the weight times how often before it.
    """
    if backward_weight == 1:
        return by_row(gram, n_items), Direction(1.0)
    matrix, direction = first_and_later(gram, n_items), Direction(backward_weight)
    if backward_weight is None:
        direction = direction_of(matrix, squares)
    matrix = matrix + direction.backward_weight * matrix.T
    return (sparse.csr_array(matrix) if sparse.issparse(matrix) else matrix), direction


def sparse_ordered_gram(likes, half_life, senders):
    """Return the sum over the clients of the mask, of their own pairs, as a sparse column."""
    _, numbers, values = ordered_pairs(likes, half_life, senders)
    return pair_column(numbers, values, OF_OWN * n_pairs(likes.n_items))
