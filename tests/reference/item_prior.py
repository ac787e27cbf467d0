"""Naive empirical Bayes: each column by generalised least squares, its ratio on a grid."""

import numpy as np

from fedrecsk.base._item_prior import RATIOS


def means(design, weights, vectors, new):
    """Return prior means of `new` rows of the design, given the vectors of those with weights.

    Column by column: ``v = a + X c + e``, ``c ~ N(0, 1 / ratio)``, ``e ~ N(0, 1 / w)``, all times
    one variance. The ratio is the one of greatest likelihood, the variance profiled out, after
    the projection that removes the intercept.
    """
    known = weights > 0
    X, w, result = design[known], weights[known], []
    root = np.sqrt(w)[:, None]
    one = root / np.linalg.norm(root)
    remove = np.eye(len(w)) - one @ one.T
    Z = remove @ (root * X)
    sizes = np.linalg.svd(Z)[1]
    rank = np.sum(sizes > 1e-6 * sizes[0])
    for v in vectors[known].T:
        target, best = remove @ (root[:, 0] * v), None
        for ratio in RATIOS * np.sum(sizes[:rank] ** 2) / rank:
            covariance = np.eye(len(w)) + Z @ Z.T / ratio
            fit = target @ np.linalg.solve(covariance, target)
            loss = len(w) * np.log(fit) + np.linalg.slogdet(covariance)[1]
            if best is None or loss < best[0]:
                best = loss, ratio
        c = np.linalg.solve(Z.T @ Z + best[1] * np.eye(Z.shape[1]), Z.T @ target)
        intercept = np.average(v - X @ c, weights=w)
        result.append(intercept + new @ c)
    return np.column_stack(result)
