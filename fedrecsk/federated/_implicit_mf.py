"""What the estimators of weighted matrix factorisation share: parameters, checks, predictions."""

from __future__ import annotations

from dataclasses import dataclass

from fedrecsk.base import RankingMixin, check_likes
from fedrecsk.base._fading import FadingHistory
from fedrecsk.base._item_prior import ItemFeatures
from fedrecsk.federated._features import FederatedContent
from fedrecsk.federated._wmf import ImplicitParameters, UserProblem
from fedrecsk.federated.base import FederatedRecommender


@dataclass(eq=False, repr=False)
class ImplicitMF(
    ImplicitParameters, FederatedContent, FadingHistory, RankingMixin, FederatedRecommender
):
    """Base class of the estimators whose algorithm is an `ImplicitAlgorithm`."""

    _predicted_fields = ("item_factors",)
    _user_width = "n_factors"

    def _implicit(self, kind, **parts):
        """Return an algorithm of a class, with the users' objective and the items' features."""
        content = ItemFeatures(self.item_features, self.items)
        return self._build(kind, problem=self._build(UserProblem), content=content, **parts)

    def _check_setting(self, plan, data, blocks):
        check_likes(data)
