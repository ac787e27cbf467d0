"""Models of vectors and biases of users and items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk._utils.kernels import LazyModule
from fedrecsk.models._model import Model, batches
from fedrecsk.portable import Ridge

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from numpy.typing import NDArray

    from fedrecsk.models._model import Floats, Integers

score_kernels: LazyModule = LazyModule("fedrecsk.models._score_kernels")


@dataclass(frozen=True, eq=False, kw_only=True)
class Factors(Model):
    """Scores ``level + b_u + b_i + p_u . q_i``, without the parts of unknown users and items."""

    level: float
    user_bias: NDArray[np.floating]
    item_bias: NDArray[np.floating]
    users: NDArray[np.floating]
    items: NDArray[np.floating]

    @classmethod
    def of(cls, fitted: Mapping[str, Any], **parts: Any) -> Self:
        """Return the model of fitted attributes, of which any may be missing."""
        n_users, n_items = fitted["n_users_"], fitted["n_items_"]
        own = {
            "level": float(fitted.get("global_bias_", 0.0)),
            "user_bias": fitted.get("user_bias_", np.zeros(n_users)),
            "item_bias": fitted.get("item_bias_", np.zeros(n_items)),
            "users": fitted.get("user_factors_", np.zeros((n_users, 0))),
            "items": fitted.get("item_factors_", np.zeros((n_items, 0))),
        }
        return cls(n_items=n_items, **own | parts)

    def score_pairs(self, users: Integers, items: Integers) -> Floats:
        linear = self.level, self.user_bias, self.item_bias, self.users, self.items
        return self._with_unknown(linear_scores(users, items, *linear), users, items)

    def score_all(self, users: Integers) -> Floats:
        known = users >= 0
        # With the biases as two more columns, one product gives all scores.
        left = np.zeros((len(users), self.users.shape[1] + 2))
        left[known, :-2] = self.users[users[known]]
        left[known, -2] = self.user_bias[users[known]]
        left[:, -2] += self.level
        left[:, -1] = 1
        # C order, in which it is filled fastest.
        right = np.empty((len(self.item_bias), left.shape[1]))
        right[:, :-2], right[:, -2], right[:, -1] = self.items, 1, self.item_bias
        return self._with_unknown(left @ right.T, users)


def linear_scores(users: np.ndarray, items: np.ndarray, *linear: Any) -> NDArray[np.float64]:
    """Return scores (n,) of pairs, given the level, biases and vectors of users and items."""
    scores = np.empty(len(users))
    # In batches, because Ctrl-C is noticed only between two calls of a kernel.
    for batch in batches(len(users), 1):
        score_kernels.pairs_by_factors(users[batch], items[batch], *linear, scores[batch])
    return scores


def weighted_factors(fitted: Mapping[str, Any], problem: Any) -> Factors:
    """Return a model whose users' vectors solve a `UserProblem` of weighted least squares."""
    factors = fitted["item_factors_"]

    def popular_directions():
        # Popular items have long vectors, and much in common: this ranks like popularity.
        scores = factors @ factors.mean(axis=0)
        return scores / max(scores.max(), np.finfo(scores.dtype).tiny)

    def formula():
        items = factors.astype(float)
        return Ridge.of(
            factors,
            items.T @ items,
            reg=float(problem.reg_user),
            reg_exponent=float(problem.reg_exponent),
            n_items=len(items),
            rates=False,
            confidence=float(problem.alpha),
            is_cautious=True,
        )

    return Factors.of(fitted, unknown=popular_directions, formula=formula)
