"""What the estimators of weighted matrix factorisation share: parameters, checks, predictions."""

from __future__ import annotations

from dataclasses import dataclass

from fedrecsk.base import RankingMixin, check_likes
from fedrecsk.base._fading import FadingHistory
from fedrecsk.base._item_prior import ItemContent
from fedrecsk.federated._wmf import ImplicitParameters
from fedrecsk.federated.base import FederatedRecommender


@dataclass(eq=False, repr=False)
class ImplicitMF(
    ImplicitParameters, ItemContent, FadingHistory, RankingMixin, FederatedRecommender
):
    """Base class of the estimators whose algorithm is an `ImplicitAlgorithm`."""

    _predicted = ("item_factors",)
    _user_width = "n_factors"

    def _check_setting(self, plan, data, blocks):
        check_likes(data)
