"""FedEB's prior of the items: items that are rated by the same users are alike.

The prior mean of the items is ``f ~ N(0, K / psi)``, column by column, where
``K = D (sum_u r_u r_u') D`` counts by how many users two items are both rated: r_u is user u's row
of zeros and ones, and D divides by the square root of each item's number of users. The server
learns K's leading eigenpairs from a sketch, which is a sum over clients.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

# Eigenvalues below this are rounding, and so are those below this share of the largest.
SMALLEST = 1e-8
ROUNDING = 1e-12
# Added to K's diagonal, as a share of the sketch's size, so that K is positive definite.
SHIFT = 1e-6


class ItemPrior(NamedTuple):
    """Leading eigenpairs of K.

    Attributes
    ----------
    vectors : ndarray of shape (n_items, n_pairs)
    values : ndarray of shape (n_pairs,), dtype float64
    """

    vectors: np.ndarray
    values: np.ndarray

    def center(self, items, psi, reg):
        """The items' expected prior mean, and what the server learns from it.

        Parameters
        ----------
        items : ndarray of shape (n_items, width)
        psi, reg : ndarray of shape (width,)
            Precision of f, and of items given f (R).

        Returns
        -------
        center : ndarray of shape (n_items, width)
            F.
        psi : ndarray of shape (width,)
            Re-estimated.
        variance : ndarray of shape (width,)
            Of a column of F, summed over the items.
        """
        precision = psi / self.values[:, None] + reg
        weights = reg * (self.vectors.T @ items) / precision
        center = self.vectors @ weights.astype(self.vectors.dtype)
        spread = ((weights**2 + 1 / precision) / self.values[:, None]).sum(axis=0)
        return center, len(self.values) / spread, (1 / precision).sum(axis=0)


def directions(n_items, size, key):
    """The public random matrix O of shape (n_items, size), which both sides draw alike."""
    return key.generator("sketch").standard_normal((n_items, min(size, n_items)))


def sketch(block, directions):
    """What a block's clients contribute: the sum over users of r_u (r_u' O)."""
    shape = block.n_users, block.n_items
    ones = np.ones(len(block.items))
    rated = csr_array((ones, block.items, block.indptr), shape=shape)
    return rated.T @ (rated @ directions)


def eigenpairs(sketch, directions, n_users):
    """The prior from a sketch of all clients and each item's number of users (Nystroem)."""
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
