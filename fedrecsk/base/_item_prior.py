"""From items' features to their vectors: a Bayesian ridge regression of strength learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

# Most directions of the features that are used; all, if there are no more columns.
RANK = 256
# Steps by which they are found, if there are more.
POWER_STEPS = 4
# Directions whose singular value is below this share of the largest are rounding.
ROUNDING = 1e-6
# Ratios of the variance of what features do not explain to that of a coefficient, as shares of the
# mean squared singular value: among these the most likely one is chosen.
RATIOS = np.logspace(-4, 6, 61)
# Numbers of ratings at which an item counts half of one with very many: for the prior of known
# items; and for what new items are like, whose ratings are mostly of popular ones, in mean numbers
# of ratings. See user_guide/content.md.
HALF_OF_KNOWN, HALF_OF_NEW = 20.0, 10.0
# Number of ratings at which a penalty towards 0 halves an item's vector.
SHRINKAGE = 10.0


class ItemPrior:
    """What items' features say about their vectors, of known items and of new ones.

    Parameters
    ----------
    features : ndarray or csr_array of shape (n_items, n_features)
    n_ratings : ndarray of shape (n_items,)
        The items' numbers of ratings, or their total weight; with 0, nothing is known of a vector.
    """

    def __init__(self, features: Any, n_ratings: Any) -> None:
        self.n_ratings: NDArray[np.float64] = np.maximum(np.asarray(n_ratings, dtype=float), 0)
        self.scaling: tuple[Any, Any] = scaling(features)
        design = scaled(features, *self.scaling)
        # Every known item has the prior; new items are met as often as they are popular.
        mean = self.n_ratings.sum() / max(np.count_nonzero(self.n_ratings), 1) or 1.0
        self._of_known, self._of_new = (
            Regression(design, self.n_ratings / (self.n_ratings + half))
            for half in (HALF_OF_KNOWN, HALF_OF_NEW * mean)
        )

    def means(self, vectors: Any) -> NDArray[np.float64]:
        """Return the prior means of all items' vectors, given the vectors."""
        return self._of_known.means(vectors)

    def lost(self, vectors: Any) -> NDArray[np.float64]:
        """Return the share of the prior means that a penalty towards 0 takes from the vectors."""
        return (SHRINKAGE / (self.n_ratings + SHRINKAGE))[:, None] * self.means(vectors)

    def predicted(self, vectors: Any, features: Any) -> NDArray[np.float64]:
        """Return what to expect of vectors of new items with these features."""
        return self._of_new.means(vectors, scaled(features, *self.scaling))

    def directions(self, most: int) -> NDArray[np.float64]:
        """Return items' coordinates in the main directions of the features, of mean square 1."""
        kind = self._of_known
        right = kind._directions[2][:most].T
        found = kind.design @ right - kind._mean @ right
        share = self.n_ratings / (self.n_ratings.sum() or 1)
        return found / np.sqrt(max(share @ (found**2).sum(axis=1), ROUNDING))

    def completed(self, vectors: Any) -> Any:
        """Return vectors that were shrunk to 0 as if to their prior means, and of new items too.

        A penalty that shrinks an item of n ratings to 0 by s / (n + s), would shrink it
        to its prior mean by as much: the sum of both.
        """
        wide = vectors.reshape(len(vectors), -1)
        return self.filled(wide + self.lost(wide)).astype(vectors.dtype).reshape(vectors.shape)

    def filled(self, vectors: Any) -> Any:
        """Return the vectors with those of items without ratings as if these were new."""
        wide, unknown = vectors.reshape(len(vectors), -1), (self.n_ratings == 0)[:, None]
        filled = np.where(unknown, self._of_new.means(wide), wide)
        return filled.astype(vectors.dtype).reshape(vectors.shape)


class Regression:
    """Bayesian ridge regression of vectors on features: ``v_i ~ N(a + A' x_i, s / w_i)``.

    Each column of the vectors has coefficients ``A_k ~ N(0, t_k)`` of its own, an intercept without
    a prior, and the ratio ``s_k / t_k`` at which the vectors are most likely (empirical Bayes).

    Parameters
    ----------
    design : ndarray or csr_array of shape (n_items, n_features)
    weights : ndarray of shape (n_items,)
        Of the items (w); 0 for vectors that say nothing.
    """

    def __init__(self, design: Any, weights: Any) -> None:
        self.design: Any = design
        self.weights: NDArray[np.float64] = weights
        self._mean: Any = design.T @ weights / (weights.sum() or 1)
        self._directions: Any = decompose(design, self._mean, np.sqrt(weights))

    def means(self, vectors: Any, design: Any = None) -> NDArray[np.float64]:
        """Return the expected vectors of the items, or of others by their rows of the design."""
        intercepts, coefficients = self.coefficients(np.asarray(vectors, dtype=np.float64))
        return intercepts + (self.design if design is None else design) @ coefficients

    def coefficients(self, vectors: Any) -> tuple[Any, Any]:
        """Return the intercepts (width,) and coefficients (n_features, width)."""
        left, sizes, right = self._directions
        mean = self.weights @ vectors / (self.weights.sum() or 1)
        if not len(sizes):
            return mean, np.zeros((len(self._mean), len(mean)))
        targets = np.sqrt(self.weights)[:, None] * (vectors - mean)
        n = np.count_nonzero(self.weights)
        found = shrunk(sizes, left.T @ targets, (targets**2).sum(axis=0), n)
        coefficients = right.T @ found
        return mean - self._mean @ coefficients, coefficients


def shrunk(sizes: Any, projected: Any, squared: Any, n: float) -> Any:
    """Return ridge coefficients along the singular vectors of a design, by empirical Bayes.

    `projected` are the targets along the left singular vectors, and `squared` the sums of `n`
    squared targets of each column.
    """
    squares = sizes[:, None] ** 2
    # Of columns that are 0 everywhere, any ratio will do.
    rest = np.maximum(squared, np.finfo(float).tiny)
    ratios = RATIOS * squares.mean()
    loss = [
        n * np.log(rest - (projected**2 * (squares / (squares + ratio))).sum(axis=0))
        + np.log1p(squares / ratio).sum()
        for ratio in ratios
    ]
    ratio = ratios[np.argmin(loss, axis=0)]
    return sizes[:, None] / (squares + ratio) * projected


def scaling(features: Any) -> tuple[Any, Any]:
    """Return what is subtracted from columns and what they are divided by.

    Columns within [-1, 1], such as indicators, stay; of others 2 standard deviations become 1.
    """
    extremes = abs(features).max(axis=0)
    largest = extremes.toarray().ravel() if sparse.issparse(extremes) else extremes
    wide = np.asarray(largest > 1)
    mean = np.asarray(features.mean(axis=0)).ravel()
    squares = features.multiply(features) if sparse.issparse(features) else features**2
    variance = np.asarray(squares.mean(axis=0)).ravel() - mean**2
    spread = 2 * np.sqrt(np.maximum(variance, 0))
    constant = spread <= ROUNDING * np.maximum(1, largest)
    divisor = np.where(wide & ~constant, spread, np.where(wide, largest, 1))
    return mean * wide, divisor


def scaled(features: Any, mean: Any, divisor: Any) -> Any:
    """Return scaled columns; sparse ones are not shifted."""
    if sparse.issparse(features):
        return features @ sparse.diags_array(1 / divisor)
    return (features - mean) / divisor


def decompose(design: Any, mean: Any, root: Any) -> Any:
    """Return the singular value decomposition of the weighted and centred design, cut off."""

    def times(x):
        return root[:, None] * (design @ x - mean @ x)

    def back(y):
        y = root[:, None] * y
        return design.T @ y - np.outer(mean, y.sum(axis=0))

    if min(design.shape) <= 2 * RANK:
        dense = design.toarray() if sparse.issparse(design) else design
        left, sizes, right = np.linalg.svd(root[:, None] * (dense - mean), full_matrices=False)
    else:
        # Subspace iteration (Halko, Martinsson, Tropp 2011, algorithm 4.4).
        basis = np.random.default_rng(0).standard_normal((design.shape[1], RANK + 10))
        for _ in range(1 + POWER_STEPS):
            image = np.linalg.qr(times(basis))[0]
            basis = np.linalg.qr(back(image))[0]
        turn, sizes, right = np.linalg.svd(back(image).T, full_matrices=False)
        left = image @ turn
    order = np.argsort(-sizes)[:RANK]
    order = order[sizes[order] > ROUNDING * sizes.max(initial=0)]
    return left[:, order], sizes[order], right[order]
