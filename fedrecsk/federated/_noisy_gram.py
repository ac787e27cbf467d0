"""What a server can still tell of a sum X'X to which noise has been added.

Every pair of items has independent Gaussian noise of the same known size (central differential
privacy). The noise alone, a symmetric matrix of n items, has eigenvalues up to 2 std sqrt(n) in
size (Wigner 1958). Only what exceeds them is known to come from clients.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh
from scipy.stats import norm

from fedrecsk._utils.user_warnings import warn

# Items are left out if their own count is below this many standard deviations of the noise.
STANDARD_DEVIATIONS = 3.0


def items_above_noise(matrix: np.ndarray, noise_std: float) -> np.ndarray:
    """The items whose count, on the diagonal, is clearly above the noise.

    Warns if there are none, or no more than noise alone would lift.

    Parameters
    ----------
    matrix : ndarray of shape (n_items, n_items)
    noise_std : float
        Standard deviation of the noise on each entry.

    Returns
    -------
    ndarray of int, ascending
    """
    items = np.flatnonzero(np.diag(matrix) > STANDARD_DEVIATIONS * noise_std)
    by_chance = len(matrix) * norm.sf(STANDARD_DEVIATIONS)
    hint = "Allow a larger epsilon, or train on more clients."
    if not len(items):
        warn(
            "The noise of central_dp is larger than the count of every item, so all scores are 0. "
            + hint
        )
    elif len(items) <= by_chance + STANDARD_DEVIATIONS * np.sqrt(by_chance):
        warn(
            f"Only {len(items)} of {len(matrix)} items have a count above the noise of "
            f"central_dp, no more than noise alone may lift, so the scores say little. {hint}"
        )
    return items


def signal(matrix: np.ndarray, noise_std: float) -> tuple[np.ndarray, np.ndarray]:
    """The eigenpairs of X'X that are visible through the noise, the largest first.

    Noise makes eigenvalues larger, and turns eigenvectors away from the true ones. The smallest
    expected squared error of the whole matrix is reached with sqrt(e^2 - (2 std)^2 n) in place of
    an eigenvalue e, and 0 in place of those within the noise (Gavish and Donoho, "Optimal
    shrinkage of singular values", IEEE Transactions on Information Theory 63(4), 2017).

    Parameters
    ----------
    matrix : ndarray of shape (n, n)
        Symmetric, with noise on each entry on and below the diagonal.
    noise_std : float

    Returns
    -------
    strengths : ndarray of shape (n_visible,)
    vectors : ndarray of shape (n, n_visible)
    """
    if not len(matrix):
        return np.zeros(0), np.zeros((0, 0))
    bound = 2 * noise_std * np.sqrt(len(matrix))
    # No eigenvalue exceeds the largest sum of absolute values in a row.
    most = np.abs(matrix).sum(axis=1).max()
    if most <= bound:
        return np.zeros(0), np.zeros((len(matrix), 0))
    strengths, vectors = eigh(matrix, subset_by_value=(bound, most + 1))
    return np.sqrt(strengths**2 - bound**2)[::-1], vectors[:, ::-1]


def cleaned(matrix: np.ndarray, noise_std: float) -> np.ndarray:
    """X'X without most of the noise: what :func:`signal` finds, and the counts on the diagonal."""
    strengths, vectors = signal(matrix, noise_std)
    result = (vectors * strengths) @ vectors.T
    np.fill_diagonal(result, np.maximum(np.diag(result), np.diag(matrix)))
    return result
