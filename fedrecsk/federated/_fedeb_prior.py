"""FedEB's server: items that the same users rate are alike a priori.

The prior mean of the items is ``f ~ N(0, K / psi)``, column by column, where
``K = D (sum_u r_u r_u') D`` counts by how many users two items are both rated: r_u is user u's
row of zeros and ones, and D divides by the square root of each item's number of users.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

# Eigenvalues of K below this are rounding, and so are those below this share of the largest.
SMALLEST, ROUNDING = 1e-8, 1e-12
# Added to K's diagonal, as a share of the sketch's size, so that K is positive definite.
SHIFT = 1e-6


class ItemPrior(NamedTuple):
    """Leading eigenpairs of K: `vectors` (n_items, n_pairs) and `values` (n_pairs,), float64."""

    vectors: np.ndarray
    values: np.ndarray

    def center(self, items: Any, psi: Any, reg: Any) -> Any:
        """Return the items' expected prior mean F, psi re-estimated, and F's variance.

        `psi` and `reg`, of shape (width,), are the precisions of f, and of items given f (R). The
        variance is that of a column, summed over the items.
        """
        precision = psi / self.values[:, None] + reg
        weights = reg * (self.vectors.T @ items) / precision
        center = self.vectors @ weights.astype(self.vectors.dtype)
        spread = ((weights**2 + 1 / precision) / self.values[:, None]).sum(axis=0)
        return center, len(self.values) / spread, (1 / precision).sum(axis=0)


def directions(n_items: Any, size: Any, key: Any) -> Any:
    """Return the public random matrix O, (n_items, size), which both sides draw alike."""
    return key.generator("sketch").standard_normal((n_items, min(size, n_items)))


def sketch(block: Any, directions: Any) -> Any:
    """Return the sum over a block's users of r_u (r_u' O)."""
    matrix = np.ones(len(block.items)), block.items, block.indptr
    rated = csr_array(matrix, shape=(block.n_users, block.n_items))
    return rated.T @ (rated @ directions)


def eigenpairs(sketch: Any, directions: Any, n_users: Any) -> Any:
    """Return the prior from a sketch of all clients and items' numbers of users (Nystroem)."""
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
    return ItemPrior(vectors, squares[kept] - shift)
