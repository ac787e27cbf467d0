"""What the estimators of weighted matrix factorisation share: parameters, checks, predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrecsk.base import RankingMixin, check_likes
from fedrecsk.base._fading import FadingHistory
from fedrecsk.base._item_prior import ItemFeatures
from fedrecsk.federated._features import FederatedContent
from fedrecsk.federated._wmf import ImplicitParameters, UserParameters, UserProblem
from fedrecsk.federated.base import FederatedRecommender, Mixin
from fedrecsk.portable import Ridge


@dataclass(eq=False, repr=False)
class WMFModel(UserParameters, FadingHistory, Mixin):
    """Mixin of fitted models whose users are found by weighted least squares.

    Their message has `item_factors`.
    """

    _dtype = np.float32
    _user_width = "n_factors"

    def _user_problem(self):
        """Return the objective of each user, given the items."""
        return self._build(UserProblem)

    def _public_half(self):
        items = self.item_factors_.astype(float)
        return Ridge.of(
            self.item_factors_,
            items.T @ items,
            reg=float(self.reg_user),
            reg_exponent=float(self.reg_exponent),
            n_items=len(items),
            rates=False,
            confidence=float(self.alpha),
            is_cautious=True,
        )

    def _scores_of_unknown_users(self):
        # Popular items have long vectors, and much in common: this ranks like popularity.
        scores = self.item_factors_ @ self.item_factors_.mean(axis=0)
        return scores / max(scores.max(), np.finfo(scores.dtype).tiny)

    def _validation_losses(self, held_out):
        """Return the objective on held-out rows, which share the items without a row."""
        problem = self._user_problem()
        confidence = 1.0 + problem.preferences(held_out)[0]
        scores = self._score_pairs(held_out.users, held_out.items)
        users, n_users = held_out.users, held_out.n_users
        gram = problem.gram(self.item_factors_)
        everything = np.einsum("ud,de,ue->u", self.user_factors_, gram, self.user_factors_)
        seen_indptr, seen_items = self._seen
        seen_users = np.repeat(np.arange(n_users), np.diff(seen_indptr))
        seen = np.bincount(seen_users, self._score_pairs(seen_users, seen_items) ** 2, n_users)
        unseen = (everything - seen) / np.maximum(np.bincount(users, minlength=n_users), 1)
        return confidence * ((held_out.values > 0) - scores) ** 2 + unseen[users], confidence


@dataclass(eq=False, repr=False)
class ImplicitMF(
    ImplicitParameters, FederatedContent, WMFModel, RankingMixin, FederatedRecommender
):
    """Base class of the estimators whose algorithm is an `ImplicitAlgorithm`."""

    _predicted_fields = ("item_factors",)

    def _implicit(self, kind, **parts):
        """Return an algorithm of a class, with the users' objective and the items' features."""
        content = ItemFeatures(self.item_features, self.items)
        return self._build(kind, problem=self._user_problem(), content=content, **parts)

    def _check_setting(self, plan, data, blocks):
        check_likes(data)
