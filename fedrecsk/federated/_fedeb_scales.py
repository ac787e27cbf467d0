"""FedEB's server: the precisions of all that is uncertain, learned from sums over clients."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedrecsk.protocol.messages import Dense

# Share of the moving averages that a round replaces, and the rounds before they count.
NEW, BURN_IN = 0.1, 3
# Bounds of learned precisions: where all ratings are equal, nothing else bounds them.
LOWEST, HIGHEST = 1e-4, 1e4
# Shares of the numbers that ratings determine: for their precision to fall freely, at least the
# first, and for the slower rule, at least the second.
DETERMINED, WELL_DETERMINED = 0.02, 0.1


class Scales(NamedTuple):
    """The precisions, and the sums that they are learned from."""

    alpha: float  # of a rating of a typical user
    lambda_0: float  # of users' biases
    reg: np.ndarray  # (d + 1,), of items given their prior mean (R)
    reg_implicit: np.ndarray  # (d,), of the implicit part (R_y)
    psi: np.ndarray  # (d + 1,), of the prior mean
    # (4,) or None, moving averages of what clients send for the first two
    sums: np.ndarray | None = None

    def sent(self) -> Any:
        """Return what clients receive."""
        return Dense(np.r_[self.alpha, self.lambda_0, self.reg])


def learned(server: Any, sums: Any) -> Any:
    """Return the new `scales` and the items' prior mean `center`, from what all clients send."""
    scales, center = server["scales"], server["center"]
    if scales.sums is not None:
        sums = (1 - NEW) * scales.sums + NEW * sums
    scales = scales._replace(sums=sums)
    if server["n_steps"] <= BURN_IN:
        return {"scales": scales}
    items, implicit = server["items"], server["implicit"]
    bias, n_users, errors, n_ratings = np.maximum(sums, np.finfo(float).tiny)
    psi, of_center, content = scales.psi, 0.0, server["content_means"]
    center = center - content
    if server["prior"] is not None:
        center, psi, of_center = server["prior"].center(items - content, psi, scales.reg)
    if server["content"] is not None:
        content = server["content"].means(items - center).astype(items.dtype)
        center = center + content
    squares, variances = spread(items - center, scales.reg, scales.alpha * server["n_ratings"])
    reg = precision_of(len(items), scales.reg, squares, variances + of_center)
    # A geometric mean, because precisions of vectors that are not needed grow without bound.
    reg = scales.reg ** (1 - NEW) * np.clip(reg, LOWEST, HIGHEST) ** NEW
    reg_implicit = scales.reg_implicit
    if len(reg_implicit):
        reg_implicit = len(items) / sum(spread(implicit, reg_implicit, server["shares"]))
    alpha, lambda_0 = np.clip([n_ratings / errors, n_users / bias], LOWEST, HIGHEST)
    scales = Scales(float(alpha), float(lambda_0), reg, reg_implicit, psi, sums)
    return {"center": center, "content_means": content, "scales": scales}


def spread(values: Any, reg: Any, total_weight: Any) -> Any:
    """Return the sums of squares, and of the posterior variances, of each column."""
    return (values.astype(float) ** 2).sum(axis=0), (1 / (reg + total_weight[:, None])).sum(axis=0)


def precision_of(n: Any, reg: Any, squares: Any, variances: Any) -> Any:
    """Return the precision of n numbers again, from the sums of their squares and variances."""
    # At a precision that explains them, the EM algorithm's estimate and MacKay's (1992) agree. The
    # latter converges in far fewer rounds where ratings determine few of the numbers; if hardly
    # any, it may fall without bound. Where they determine many, it gives up useful factors.
    with_em = n / (squares + variances)
    determined = np.maximum(n - reg * variances, np.finfo(float).tiny)
    with_mackay = determined / np.maximum(squares, determined / HIGHEST)
    with_mackay = np.maximum(np.where(determined > DETERMINED * n, 0, with_em), with_mackay)
    return np.where(determined > WELL_DETERMINED * n, with_em, with_mackay)
