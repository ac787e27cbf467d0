"""What FedEB's server learns besides the items: the variances of ratings, users and items.

Each round it re-estimates the variances from sums that clients have uploaded and from the items,
by a damped expectation-maximisation algorithm.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedrecsk._utils.kernels import LazyModule

fedeb_kernels: LazyModule = LazyModule("fedrecsk.federated._fedeb_kernels")


# Where precisions start, in units: of ratings, of users' biases, of items' biases and vectors given
# their prior mean (R), and of that mean (psi).
ALPHA, LAMBDA_0, REG_BIAS, REG, PSI = 1.3, 6.0, 5.0, 100.0, 10.0
# Share of the moving averages that a round replaces, and the rounds before they count.
NEW, BURN_IN = 0.1, 3
# Bounds of learned precisions: where all ratings are equal, nothing else bounds them.
LOWEST, HIGHEST = 1e-4, 1e4
# Share of the numbers that ratings must determine for their precision to fall freely.
DETERMINED = 0.02


class Scales(NamedTuple):
    """The precisions, and the sums that they are learned from.

    Attributes
    ----------
    alpha : of a rating of a typical user
    lambda_0 : of users' biases
    reg : (d + 1,), of items given their prior mean (R)
    reg_implicit : (d,), of the implicit part (R_y)
    psi : (d + 1,), of the prior mean
    sums : (4,) or None, moving averages of what clients send for the first two
    """

    alpha: float
    lambda_0: float
    reg: np.ndarray
    reg_implicit: np.ndarray
    psi: np.ndarray
    sums: np.ndarray | None = None

    @classmethod
    def of(cls, n_factors, n_implicit):
        """The initial scales."""
        reg = np.r_[REG_BIAS, np.full(n_factors, REG)]
        return cls(ALPHA, LAMBDA_0, reg, np.full(n_implicit, REG), np.full(n_factors + 1, PSI))


def learned(server, sums):
    """The scales and the items' prior mean, from a round's sums over all clients.

    Parameters
    ----------
    server : dict
        FedEB's state after the round's step.
    sums : ndarray of shape (4,)
        Of ``b_u^2 + S_00``, of users, of ``alpha_u / alpha E``, and of ratings.

    Returns
    -------
    changed : dict
        The new `scales` and `center`.
    """
    scales, center = server["scales"], server["center"]
    if scales.sums is not None:
        sums = (1 - NEW) * scales.sums + NEW * sums
    scales = scales._replace(sums=sums)
    if server["n_steps"] <= BURN_IN:
        return {"scales": scales}
    items, implicit = server["items"], server["implicit"]
    bias, n_users, errors, n_ratings = np.maximum(sums, np.finfo(float).tiny)
    psi, of_center = scales.psi, 0.0
    if server["prior"] is not None:
        center, psi, of_center = server["prior"].center(items, psi, scales.reg)
    mass = scales.alpha * server["n_ratings"]
    away, variance = np.empty((2, len(scales.reg)))
    fedeb_kernels.spread(items, center, scales.reg, mass, away, variance)
    reg = precision_of(len(items), scales.reg, away, variance + of_center)
    reg_implicit = scales.reg_implicit
    if len(reg_implicit):
        away, variance = np.empty((2, len(reg_implicit)))
        zero, shares = np.zeros_like(implicit), server["shares"]
        fedeb_kernels.spread(implicit, zero, reg_implicit, shares, away, variance)
        reg_implicit = len(items) / (away + variance)
    alpha, lambda_0 = np.clip([n_ratings / errors, n_users / bias], LOWEST, HIGHEST)
    # A geometric mean, because precisions of vectors that are not needed grow without bound.
    reg = scales.reg ** (1 - NEW) * np.clip(reg, LOWEST, HIGHEST) ** NEW
    scales = Scales(float(alpha), float(lambda_0), reg, reg_implicit, psi, sums)
    return {"center": center, "scales": scales}


def precision_of(n, reg, squares, variances):
    """Re-estimate the precision of n numbers from the sums of their squares and variances.

    At a precision that explains them, ``n / (squares + variances)`` (the EM algorithm) and
    ``(n - reg variances) / squares`` (MacKay 1992) agree. MacKay's estimate converges in far
    fewer rounds, but if ratings determine hardly any of the numbers it may fall without bound.
    """
    determined = np.maximum(n - reg * variances, np.finfo(float).tiny)
    with_mackay = determined / np.maximum(squares, determined / HIGHEST)
    at_least = np.where(determined > DETERMINED * n, 0, n / (squares + variances))
    return np.maximum(at_least, with_mackay)
