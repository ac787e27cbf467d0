"""Estimators that learn from positives and negatives, or from ratings."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.special import expit

from fedrecsk._utils.constraints import AtLeast0
from fedrecsk._utils.kernels import LazyModule
from fedrecsk.base import RankingMixin, check_likes
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol.keys import Key

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sklearn.utils import Tags

fedmf_kernels: LazyModule = LazyModule("fedrecsk.federated._fedmf_kernels")

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

    @abstractmethod
    def _raw_scores(self, users: np.ndarray, items: np.ndarray) -> NDArray[np.float64]:
        """Return the scores of pairs of codes (-1 for unknown) before `_response`; shape (n,)."""

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.loss == "squared"
        return tags

    @property
    def _needs_positives(self):
        """Whether there must be rows with y > 0."""
        return self.loss != "squared"

    def _response(self, scores):
        return expit(scores) if self.loss == "bce" else scores

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

    def _validation_losses(self, held_out):
        """Return the loss on held-out rows, of which each brings its negatives, at least one."""
        if self.loss == "squared":
            return super()._validation_losses(held_out)
        positive = held_out.values > 0
        rows, negatives = self._held_out_negatives(held_out, positive)
        scores = self._raw_scores(held_out.users, held_out.items)
        others = self._raw_scores(held_out.users[rows], negatives)
        losses = np.logaddexp(0, np.where(positive, -scores, scores))
        losses += np.bincount(rows, np.logaddexp(0, others), minlength=len(losses))
        n_negatives = np.bincount(rows, minlength=len(losses))
        return held_out.weights * losses, held_out.weights * (1 + n_negatives)

    def _held_out_negatives(self, held_out, positive):
        """Return held-out rows, repeated for each of their negatives, and the negatives."""
        indptr, items = self._seen
        n_unseen, n = self.n_items_ - np.diff(indptr), max(1, self.n_negatives)
        rows = np.repeat(np.flatnonzero(positive & (n_unseen[held_out.users] > 0)), n)
        users = held_out.users[rows]
        addresses = held_out.ranks[rows] * n + np.arange(len(rows)) % n
        chance = Key(0).uniform("held-out negatives", addresses)
        negatives = np.empty(len(rows), dtype=items.dtype)
        ranks = (chance * n_unseen[users]).astype(np.int64)
        fedmf_kernels.unseen_items(ranks, users, indptr, items, negatives)
        return rows, negatives
