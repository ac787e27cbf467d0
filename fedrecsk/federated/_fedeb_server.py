"""FedEB's server: what it learns from sums over clients, beside the items.

The prior mean of the items is ``f ~ N(0, K / psi)``, column by column, where
``K = D (sum_u r_u r_u') D`` counts by how many users two items are both rated: r_u is user u's
row of zeros and ones, and D divides by the square root of each item's number of users. The
precisions of all that is uncertain follow from what clients send in each round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from fedrecsk.base._item_prior import ItemPrior
from fedrecsk.federated._empirical_bayes import Scale
from fedrecsk.federated._features import UserSums
from fedrecsk.protocol.messages import Dense
from fedrecsk.protocol.states import Kept, PerItem

if TYPE_CHECKING:
    from fedrecsk.protocol.blocks import Block
    from fedrecsk.protocol.keys import Key

# Eigenvalues of K below this are rounding, and so are those below this share of the largest.
SMALLEST, ROUNDING = 1e-8, 1e-12
# Added to K's diagonal, as a share of the sketch's size, so that K is positive definite.
SHIFT = 1e-6
# Share of the moving averages that a round replaces, and the rounds before they count.
NEW, BURN_IN = 0.1, 3
# Bounds of learned precisions: where all ratings are equal, nothing else bounds them.
LOWEST, HIGHEST = 1e-4, 1e4
# Shares of the numbers that ratings determine: for their precision to fall freely, at least the
# first, and for the slower rule, at least the second.
DETERMINED, WELL_DETERMINED = 0.02, 0.1


# ------------------------------------------------------------------ items that the same users rate


class SimilarItems(NamedTuple):
    """Leading eigenpairs of K: `vectors` (n_items, n_pairs) and `values` (n_pairs,), float64."""

    vectors: np.ndarray
    values: np.ndarray

    def center(
        self, items: np.ndarray, psi: np.ndarray, reg: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the items' expected prior mean F, psi re-estimated, and F's variance.

        `psi` and `reg`, of shape (width,), are the precisions of f, and of items given f (R). The
        variance is that of a column, summed over the items.
        """
        precision = psi / self.values[:, None] + reg
        weights = reg * (self.vectors.T @ items) / precision
        center = self.vectors @ weights.astype(self.vectors.dtype)
        spread = ((weights**2 + 1 / precision) / self.values[:, None]).sum(axis=0)
        return center, len(self.values) / spread, (1 / precision).sum(axis=0)


def directions(n_items: int, size: int, key: Key) -> np.ndarray:
    """Return the public random matrix O, (n_items, size), which both sides draw alike."""
    return key.generator("sketch").standard_normal((n_items, min(size, n_items)))


def sketch(block: Block, directions: np.ndarray) -> np.ndarray:
    """Return the sum over a block's users of r_u (r_u' O)."""
    matrix = np.ones(len(block.items)), block.items, block.indptr
    rated = csr_array(matrix, shape=(block.n_users, block.n_items))
    return rated.T @ (rated @ directions)


def eigenpairs(sketch: np.ndarray, directions: np.ndarray, n_users: np.ndarray) -> SimilarItems:
    """Return K's from a sketch of all clients and items' numbers of users (Nystroem)."""
    scale = np.sqrt(np.maximum(np.rint(n_users), 0))[:, None]
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    scaled = scale * directions
    # The singular vectors of a tall matrix from its small square, ten times as fast as an SVD.
    squares, turn = np.linalg.eigh(scaled.T @ scaled)
    # Fewer rated items than directions leave some of them out.
    kept = squares > ROUNDING * squares.max(initial=0)
    turn = turn[:, kept] / np.sqrt(squares[kept])
    basis = scaled @ turn
    # K basis. Rounding or encryption of the sums may give impossible eigenvalues: left out.
    image = inverse * (sketch @ turn)
    shift = SHIFT * np.linalg.norm(image)
    image += shift * basis
    square = basis.T @ image
    sizes, turn = np.linalg.eigh((square + square.T) / 2)
    kept = sizes > shift / 2
    left = image @ (turn[:, kept] / np.sqrt(sizes[kept]))
    squares, turn = np.linalg.eigh(left.T @ left)
    # The largest comes first.
    squares, turn = squares[::-1], turn[:, ::-1]
    kept = squares - shift > SMALLEST
    vectors = left @ (turn[:, kept] / np.sqrt(squares[kept]))
    return SimilarItems(vectors, squares[kept] - shift)


# ---------------------------------------------------------------------------------- the precisions


class Scales(NamedTuple):
    """The precisions, and the sums that they are learned from."""

    alpha: float  # of a rating of a typical user
    lambda_0: float  # of users' biases
    reg: np.ndarray  # (d + 1,), of items given their prior mean (R)
    reg_implicit: np.ndarray  # (d,), of the implicit part (R_y)
    psi: np.ndarray  # (d + 1,), of the prior mean
    # (4,) or None, moving averages of what clients send for the first two
    sums: np.ndarray | None = None

    def sent(self) -> Dense:
        """Return what clients receive."""
        return Dense(np.r_[self.alpha, self.lambda_0, self.reg])


@dataclass(frozen=True)
class Averaged:
    """Rows of items that the server moves by Adam, whose means it has, and their average."""

    now: Kept[PerItem]
    mean: Kept[PerItem]
    square: Kept[PerItem]
    average: Kept[PerItem]

    @classmethod
    def first(cls, rows: np.ndarray) -> Averaged:
        """Return rows before the first step."""
        return cls(rows, np.zeros_like(rows), np.zeros_like(rows), rows)


@dataclass(frozen=True)
class FedEBServer:
    """What the server knows: sums of the set-up, the items, and the precisions."""

    scale: Scale
    n_clients: int
    # Of each item: its numbers of ratings and of users, and the sum of 1 / n_u over these.
    n_ratings: PerItem
    n_users: PerItem
    shares: PerItem
    # None without a sketch, without item_features, and without user_features.
    similar: SimilarItems | None
    prior: ItemPrior | None
    user_sums: UserSums | None
    n_steps: Kept[int]
    # (b_i, q_i), and y_i, which has no columns without an implicit part.
    items: Kept[Averaged]
    implicit: Kept[Averaged]
    scales: Scales
    # The items' prior mean, and the part of it that is by their features.
    center: Kept[PerItem]
    content_means: Kept[PerItem]


def learn_scales(server: FedEBServer, sums: np.ndarray) -> FedEBServer:
    """Return the server with new precisions and prior means, from what all clients send."""
    scales, center, content = server.scales, server.center, server.content_means
    if scales.sums is not None:
        sums = (1 - NEW) * scales.sums + NEW * sums
    scales = scales._replace(sums=sums)
    if server.n_steps <= BURN_IN:
        return replace(server, scales=scales)
    items, psi, of_center = server.items.now, scales.psi, 0.0
    bias, n_users, errors, n_ratings = np.maximum(sums, np.finfo(float).tiny)
    center = center - content
    if server.similar is not None:
        center, psi, of_center = server.similar.center(items - content, psi, scales.reg)
    if server.prior is not None:
        content = server.prior.means(items - center).astype(items.dtype)
        center = center + content
    squares, variances = spread(items - center, scales.reg, scales.alpha * server.n_ratings)
    reg = precision_of(len(items), scales.reg, squares, variances + of_center)
    # A geometric mean, because precisions of vectors that are not needed grow without bound.
    reg = scales.reg ** (1 - NEW) * np.clip(reg, LOWEST, HIGHEST) ** NEW
    reg_implicit = scales.reg_implicit
    if len(reg_implicit):
        implicit = spread(server.implicit.now, reg_implicit, server.shares)
        reg_implicit = len(items) / sum(implicit)
    alpha, lambda_0 = np.clip([n_ratings / errors, n_users / bias], LOWEST, HIGHEST)
    scales = Scales(float(alpha), float(lambda_0), reg, reg_implicit, psi, sums)
    return replace(server, center=center, content_means=content, scales=scales)


def spread(
    values: np.ndarray, reg: np.ndarray, total_weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of squares, and of the posterior variances, of each column."""
    return (values.astype(float) ** 2).sum(axis=0), (1 / (reg + total_weight[:, None])).sum(axis=0)


def precision_of(n: int, reg: np.ndarray, squares: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Return the precision of n numbers again, from the sums of their squares and variances."""
    # At a precision that explains them, the EM algorithm's estimate and MacKay's (1992) agree. The
    # latter converges in far fewer rounds where ratings determine few of the numbers; if hardly
    # any, it may fall without bound. Where they determine many, it gives up useful factors.
    with_em = n / (squares + variances)
    determined = np.maximum(n - reg * variances, np.finfo(float).tiny)
    with_mackay = determined / np.maximum(squares, determined / HIGHEST)
    with_mackay = np.maximum(np.where(determined > DETERMINED * n, 0, with_em), with_mackay)
    return np.where(determined > WELL_DETERMINED * n, with_em, with_mackay)
