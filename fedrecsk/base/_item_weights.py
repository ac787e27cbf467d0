"""Ranking by weights between items, and the sums over users of pairs of items it starts from."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg import lapack

from fedrecsk._utils.constraints import AtLeast1, From0To1, NotNegative
from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.user_warnings import warn
from fedrecsk.base._fading import FadingPairs, ages, fading, rates
from fedrecsk.data.interactions import taken
from fedrecsk.portable import History, largest

score_kernels: LazyModule = LazyModule("fedrecsk.models._score_kernels")

# Least number of items at which X'X is kept sparse, where the model can be.
MANY_ITEMS = 5000
# What reg="auto" of EASE is, in means of the squared weights of an item.
REG_OF_MEAN = 5.0
# For each pair of items: what a sparse matrix of them takes while it is made, and an array.
SPARSE_BYTES, DENSE_BYTES = 64, 24
# Operations per second of a core that inverts a matrix (n^3 of them), and the seconds from which a
# fit warns.
OPERATIONS_PER_SECOND, MANY_SECONDS = 2e10, 30


class ItemWeightsMixin(FadingPairs):
    """A recommender that has `item_weights_` and its users' `user_history_`."""

    _has_user_vectors = False

    def _kept_rows(self, user):
        history = self.user_history_
        items, weights = history.indices, history.data
        own = slice(*history.indptr[user : user + 2])
        return History(items[own], np.ones(own.stop - own.start), weights[own].astype(float))

    def _item_likeness(self):
        weights = self.item_weights_

        def partial_correlations(codes):
            there, back = weights[codes], weights[:, codes].T
            return np.sign(there) * np.sqrt(np.maximum(there * back, 0))

        return partial_correlations


@dataclass(eq=False, repr=False)
class NearestParameters:
    """Parameters of ItemKNN and FedItemKNN."""

    n_neighbors: AtLeast1 = 100
    _: KW_ONLY
    power: NotNegative | Literal["auto"] = "auto"
    shrinkage: NotNegative = 5.0
    content_weight: NotNegative = 0.5
    backward_weight: From0To1 | Literal["auto"] = "auto"
    history_power: NotNegative | Literal["auto"] = "auto"


class Direction(NamedTuple):
    """What a fit knows of direction, and what "auto" stands for then.

    `pair_support` is how many users share a pair in one order, 1 or more, a mean over users' pairs;
    None if `backward_weight` is given or 1. The numbers are from validation rows
    (benchmarks.next_item).
    """

    backward_weight: float
    pair_support: float | None = None

    def half_life(self, asked="auto"):
        """Return the half-life of histories: longer where order matters less, or is less known."""
        if asked != "auto":
            return asked
        if self.pair_support is None:
            return 2.0
        return 1 + 6 * self.backward_weight / self.pair_support**0.5

    def powers(self, power, history_power):
        """Return the exponents of the counts of an item to come and of one that users had.

        The more users share a pair, the less popular items are favoured; the more direction
        matters, the more weights are shares of what came after the item that users had.
        """
        support = self.pair_support
        if power == "auto":
            power = 0.25 if support is None else float(np.clip(support / 16, 0.25, 0.5))
        if history_power == "auto":
            history_power = power if support is None else (2 - self.backward_weight) * power
        return power, history_power


@dataclass(eq=False, repr=False)
class NearestItemsMixin(NearestParameters, ItemWeightsMixin):
    """A recommender whose `item_weights_` are sparse: those of the nearest items."""

    def _check_before_fit(self):
        knows_time = self._fades and self.timestamps is not None
        if self.backward_weight not in (1, "auto") and not knows_time:
            cure = "timestamps" if self._fades else "pair_half_life and history_half_life"
            raise ValueError(
                f"backward_weight={self.backward_weight:g} needs to know which item came first, "
                f"but {cure} {'is' if self._fades else 'are'} None; set {cure}, or "
                "backward_weight=1."
            )
        super()._check_before_fit()

    def _auto_life(self, name):
        # From validation rows (benchmarks.next_item choices).
        return 8.0 if name == "pair_half_life" else self._direction.half_life()

    @property
    def _direction(self):
        return Direction(self.backward_weight_, self.pair_support_)

    @property
    def _backward_weight(self):
        """Return the weight, None if the sum of pairs is to say it."""
        if self.backward_weight != "auto":
            return float(self.backward_weight)
        return None if self.pair_half_life == "auto" and self.timestamps is not None else 1.0

    def _item_likeness(self):
        return lambda codes: self.item_weights_[codes].toarray().astype(np.float64)


def nearest_items(matrix, counts, n_neighbors, *powers, dtype, cosines=None):
    """Return each item's nearest items and weights, filled up by the item itself and 0."""
    items, width = np.arange(len(counts)), min(n_neighbors, len(counts))
    rows = weights_by_row(items, matrix, counts, *powers, cosines)
    return nearest_of(rows, items, width, dtype)


def nearest_of(rows, fill, width, dtype):
    """Return the largest weights of each row of items and weights, filled up by an item and 0."""
    neighbors = np.tile(fill.astype(np.int32)[:, None], (1, width))
    nearness = np.zeros(neighbors.shape, dtype=dtype)
    for i, (others, weights) in enumerate(rows):
        best = largest(weights, min(width, len(weights)))
        neighbors[i, : len(best)] = others[best]
        nearness[i, : len(best)] = weights[best]
    return neighbors, nearness


def weights_by_row(items, matrix, counts, power, history_power, shrinkage, cosines=None):
    """Yield the others of each of these items and their weights; ItemCosines count as users."""
    if cosines is not None:
        counts = np.where(counts > 0, counts, 1)
    # Many items have the same count, and powers take long.
    counts, places = np.unique(counts, return_inverse=True)
    more = np.where(counts > 0, counts, 1) ** (history_power - power)
    for i in items:
        others, values = _entries(matrix, i)
        if cosines is not None:
            others, values = cosines.added_to(i, others, values)
        powers = np.maximum(counts[places[i]] * counts, 0) ** power
        divisors = powers * more[places[i]] + shrinkage
        yield others, values / divisors[places[others]]


def fill_little(n_entries, n_items):
    """Return whether a matrix with so many pairs of items takes less memory if it is sparse."""
    return SPARSE_BYTES * n_entries < DENSE_BYTES * n_pairs(n_items)


def by_row(gram, n_items):
    """Return the symmetric matrix of pairs, sparse or not."""
    if not sparse.issparse(gram):
        return whole(np.ravel(gram), n_items)
    if fill_little(gram.nnz, n_items):
        matrix = symmetric(*pairs_of(gram, n_items), n_items)
        matrix.sort_indices()
        return matrix
    triangle = np.zeros(n_pairs(n_items))
    triangle[gram.indices] = gram.data
    return whole(triangle, n_items)


def _entries(matrix, i):
    """Return the items other than i, ascending, whose entries in row i are not 0, and these."""
    if sparse.issparse(matrix):
        row = slice(*matrix.indptr[i : i + 2])
        items, values = matrix.indices[row], matrix.data[row]
    else:
        items, values = np.arange(len(matrix)), matrix[i]
    kept = (items != i) & (values != 0)
    return items[kept], values[kept]


def sparse_weights(neighbors, nearness, n_items=None):
    """Return the items' weights as a sparse matrix, a row for each item."""
    n_rows, n_neighbors = neighbors.shape
    rows = np.repeat(np.arange(n_rows), n_neighbors)
    entries = nearness.ravel(), (rows, neighbors.ravel())
    weights = sparse.csr_array(entries, shape=(n_rows, n_rows if n_items is None else n_items))
    weights.eliminate_zeros()
    weights.sort_indices()
    return weights


# ------------------------------------------------------------------------- users' histories


def liked(rows):
    """Return interactions or a block with the rows of y > 0 only, and with all users and items."""
    mask = rows.values > 0
    return rows if mask.all() else taken(rows, mask)


def fades_of(rows, half_life):
    """Return what each rating is multiplied by, 1 for rows with y <= 0, (n_ratings,)."""
    fades = np.ones(len(rows.items))
    fades[rows.values > 0] = fading(liked(rows), half_life)
    return fades


def history_of(data, code, half_life):
    """Return the History of one user of Interactions."""
    own = slice(*data.indptr[code : code + 2])
    rows = data.items[own], data.values[own], data.weights[own]
    if half_life is None or data.times is None:
        return History(*rows)
    names = ("items", "values", "weights", "times")
    one = replace(
        data,
        indptr=np.array([0, own.stop - own.start]),
        **{name: getattr(data, name)[own] for name in names},
    )
    return History(*rows, fades_of(one, half_life))


def histories(likes, dtype, half_life=None):
    """Return the users' rows of X: the faded weight of each item that they like, a CSR array."""
    weights, n_users = likes.weights * fading(likes, half_life), len(likes.indptr) - 1
    return sparse.csr_array(
        (weights.astype(dtype), likes.items, likes.indptr), shape=(n_users, likes.n_items)
    )


# --------------------------------------------------------------------------------- matrices


def n_pairs(n_items):
    """Return the number of entries of a symmetric matrix, each once."""
    return n_items * (n_items + 1) // 2


def n_items_of(triangle):
    """Return the number of items whose pairs fill a triangle."""
    return (np.sqrt(8 * len(triangle) + 1).astype(int) - 1) // 2


def dense_gram(likes, half_life, senders, n_orders=None):
    """Return X'X, its pairs faded, of the clients of the mask as a triangle of float64.

    With `n_orders`, several triangles, by what came first.
    """
    zeros, sums = np.zeros(len(senders), dtype=np.int64), _zeros(n_pairs(likes.n_items), n_orders)
    _add_pairs(likes, half_life, senders, likes.items, zeros, zeros, sums)
    return sums


def _zeros(size, n_orders):
    return np.zeros(size if n_orders is None else (n_orders, size))


def _add_pairs(likes, half_life, senders, places, first, starts, sums):
    """Call the kernel whose pairs fade by their ages, in one triangle or by what came first."""
    add = score_kernels.add_pairs if sums.ndim == 1 else score_kernels.add_ordered_pairs
    fades = likes.weights, ages(likes), rates(likes, half_life)
    add(likes.client_indptr, likes.indptr, places, first, *fades, senders, starts, sums)


def single_grams(likes, half_life, senders, n_orders=None):
    """Return each sender's own pairs of items: where they begin, their numbers, and values.

    With `n_orders`, several rows of values, by what came first.
    """
    row_counts = np.where(senders, likes.row_counts, 0).astype(np.int64)
    row_indptr = np.concatenate([[0], np.cumsum(row_counts)])
    indptr = np.concatenate([[0], np.cumsum(n_pairs(row_counts))])
    row_items = likes.row_items[np.repeat(senders, likes.row_counts)]
    numbers, values = np.empty(indptr[-1], dtype=np.int64), _zeros(indptr[-1], n_orders)
    score_kernels.pair_numbers(row_indptr, row_items, indptr[:-1], numbers)
    first = likes.row_indptr[:-1]
    _add_pairs(likes, half_life, senders, likes.rows, first, indptr[:-1], values)
    return indptr, numbers, values


def sparse_gram(likes, half_life, senders):
    """Return X'X, its pairs faded, of the clients of the mask as a sparse column of pairs."""
    held = n_pairs(likes.row_counts[senders].astype(np.int64)).sum()
    if not fill_little(held, likes.n_items):
        return sparse.csc_array(dense_gram(likes, half_life, senders)[:, None])
    _, numbers, values = single_grams(likes, half_life, senders)
    return pair_column(numbers, values, n_pairs(likes.n_items))


def pair_column(numbers, values, size):
    """Return X'X as a sparse column of so many pairs, from their numbers and entries."""
    places = numbers, np.zeros(len(numbers), dtype=np.int64)
    return sparse.csc_array((values, places), shape=(size, 1))


def numbers_of(gram):
    """Return the numbers of the pairs of an array or a sparse column, and their entries."""
    if sparse.issparse(gram):
        return gram.indices.astype(np.int64), gram.data
    numbers = np.flatnonzero(gram)
    return numbers, np.ravel(gram)[numbers]


def pairs_of(gram, n_items):
    """Return the pairs (i, j), j <= i, of triangles or a sparse column, and their entries."""
    numbers, values = numbers_of(gram)
    numbers %= n_pairs(n_items)
    i = (np.sqrt(8 * numbers + 1).astype(np.int64) - 1) // 2
    return i, numbers - n_pairs(i), values


def diagonal(gram, n_items):
    """Return the diagonal of X'X, triangles or a sparse column of pairs, (n_items,)."""
    if not sparse.issparse(gram):
        triangles = np.reshape(gram, (-1, n_pairs(n_items)))
        return triangles[:, n_pairs(np.arange(1, n_items + 1)) - 1].sum(axis=0)
    i, j, values = pairs_of(gram, n_items)
    return np.bincount(i[i == j], values[i == j], n_items)


def popularity(counts, prior=None):
    """Return items' counts as shares of the largest; a prior knows those of items without likes."""
    counts = np.maximum(counts, 0)
    if prior is not None:
        counts = np.maximum(prior.filled(counts), 0)
    return counts / max(counts.max(initial=0), np.finfo(float).tiny)


def symmetric(i, j, values, n_items):
    """Return the sparse symmetric matrix of pairs (i, j), each given once; zeros are left out."""
    apart = i != j
    entries = np.concatenate([values, values[apart]])
    places = np.concatenate([i, j[apart]]), np.concatenate([j, i[apart]])
    return sparse.csr_array((entries, places), shape=(n_items, n_items))


def whole(triangle, n_items):
    """Return the symmetric matrix of a triangle."""
    matrix = np.empty((n_items, n_items), dtype=triangle.dtype)
    for i in range(n_items):
        matrix[i, : i + 1] = matrix[: i + 1, i] = triangle[n_pairs(i) : n_pairs(i + 1)]
    return matrix


def lower_part(matrix):
    """Return the triangle of a symmetric matrix."""
    return np.concatenate([matrix[i, : i + 1] for i in range(len(matrix))])


def warn_if_slow(name, n_items, instead):
    """Warn if an inverse will take long."""
    seconds = n_items**3 / OPERATIONS_PER_SECOND
    if seconds >= MANY_SECONDS:
        warn(
            f"{name} inverts a matrix of {n_items} by {n_items} items: roughly {seconds:.2g} s on "
            f"one core. Leave out rare items by preprocessing.filter_min_ratings, or use {instead}."
        )


def regularized_inverse(triangle, n_items, reg):
    """P = (G + reg I)^-1 for the triangle G, as a whole matrix."""
    matrix = whole(triangle, n_items)
    if reg == "auto":
        own = matrix.diagonal()
        reg = REG_OF_MEAN * own.mean(where=own > 0) if (own > 0).any() else 1.0
    matrix[np.diag_indices(n_items)] += reg
    # LAPACK's arrays are by column, and the matrix is symmetric.
    factor, info = lapack.dpotrf(matrix.T, lower=1)
    most = matrix.diagonal().max()
    lost = n_items * np.finfo(float).eps * most
    if (reg if info else factor.diagonal().min() ** 2) < lost:
        raise ValueError(
            f"Sums of pairs of items go up to {most:.2g}, beside which reg={reg:g} is lost in "
            f"rounding, so that their matrix has no inverse; lower sample_weight, or set reg to "
            f"{lost:.1g} or more."
        )
    if info:
        # Not a sum of x x': some clients have sent wrong numbers.
        return np.linalg.inv(matrix)
    inverse, _ = lapack.dpotri(factor, lower=1, overwrite_c=1)
    inverse = inverse.T
    for i in range(n_items):
        inverse[i + 1 :, i] = inverse[i, i + 1 :]
    return inverse


def weights_of(inverse):
    """Return EASE's B = I - P diag(P)^-1, whose diagonal is 0."""
    weights = inverse / -np.diag(inverse)
    np.fill_diagonal(weights, 0)
    return weights
