"""Estimators that learn from positives and negatives, or from ratings."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedrecsk._utils.constraints import AtLeast0
from fedrecsk.base import RankingMixin, check_likes
from fedrecsk.federated.base import FederatedRecommender

if TYPE_CHECKING:
    from sklearn.utils import Tags

# Up to this many negatives are accepted for any catalogue, so that the default always works.
FEW_NEGATIVES = 4


@dataclass(eq=False, repr=False)
class FeedbackParameters:
    """Parameters of FedMF and its kin, and of the neural methods."""

    _: KW_ONLY
    loss: Literal["bce", "squared"] = "bce"
    n_negatives: AtLeast0 = 4


@dataclass(eq=False, repr=False)
class LearnsFromFeedback(FeedbackParameters, RankingMixin, FederatedRecommender):
    """Base class of FedMF and its kin, and of the neural methods.

    With ``loss="bce"`` rows with y > 0 are positives, and each brings `n_negatives` items that its
    user has not rated. With ``loss="squared"`` y are ratings, minus their mean, which the server
    adds up before the first round.
    """

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.loss == "squared"
        return tags

    @property
    def _needs_positives(self):
        """Whether there must be rows with y > 0."""
        return self.loss != "squared"

    def _check_setting(self, plan, data, blocks):
        if not self._needs_positives:
            return
        check_likes(data)
        most = data.n_items - np.diff(data.indptr).min()
        if self.n_negatives > max(most, FEW_NEGATIVES):
            raise ValueError(
                f"n_negatives={self.n_negatives} is more than the {most} items that any user has "
                "left unseen; lower n_negatives."
            )
