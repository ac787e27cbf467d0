"""Learning from positives and negatives, or from ratings: FedMF and its kin, and neural methods."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import expit

from fedrecsk._utils.constraints import AtLeast0
from fedrecsk._utils.kernels import LazyModule
from fedrecsk.base import RankingMixin, check_likes
from fedrecsk.federated._ratings import RATINGS, sums_of_ratings
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.models._model import identity
from fedrecsk.protocol.algorithm import Algorithm, C, S
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.messages import Dense, Form, Message
from fedrecsk.updates import Updates

if TYPE_CHECKING:
    from sklearn.utils import Tags

fedmf_kernels: LazyModule = LazyModule("fedrecsk.federated._fedmf_kernels")

# Up to this many negatives are accepted for any catalogue, so that the default always works.
FEW_NEGATIVES = 4
NO_LOCAL_DP = (
    "an upload shows which items a client has visited, and noise that hides them would drown "
    "all that it has learned. Use RFRec for local differential privacy, or central_dp if "
    "clients trust the server."
)


@dataclass(eq=False, repr=False)
class FeedbackParameters:
    """Parameters of FedMF and its kin, and of the neural methods."""

    _: KW_ONLY
    loss: Literal["bce", "squared"] = "bce"
    n_negatives: AtLeast0 = 4


# ------------------------------------------------------------------------------ the algorithm


@dataclass(kw_only=True, eq=False)
class FeedbackAlgorithm(FeedbackParameters, Algorithm[S, C]):
    """The score of a rating's pair has a target, by the loss.

    "bce": whether y > 0; "squared": y less the mean of all ratings, for which clients add theirs up
    in the set-up; any other: y. States of the server have the mean as `mean_rating`.
    """

    @property
    @abstractmethod
    def dtype(self) -> type[np.floating]:
        """Return the type that clients compute in."""

    def downloads(self, n_items):
        return {"global_bias": Form((1,))} if self.loss == "squared" else {}

    def setup_fields(self, n_items):
        return RATINGS if self.loss == "squared" else {}

    def answer(self, block, message, key):
        return Updates({"ratings": sums_of_ratings(block)})

    def mean_rating(self, sums):
        """Return the mean that the server knows after the set-up, None without one."""
        if sums is None:
            return None
        total, weight = sums["ratings"].sum
        return total / weight

    def announce(self, server: Any):
        if server.mean_rating is None:
            return Message()
        return Message(global_bias=Dense(np.array([server.mean_rating])))

    def feedback(self, block, message):
        """Return target and weight of each rating; a client's weights are relative to their mean.

        The message has what was announced.
        """
        n_ratings, targets = np.diff(block.rating_indptr), block.values
        if self.loss == "bce":
            targets = targets > 0
        elif self.loss == "squared":
            targets = targets - message["global_bias"].values[0]
        weights = block.weights / np.repeat(data_sizes(block) / n_ratings, n_ratings)
        return fedmf_kernels.Feedback(targets.astype(self.dtype), weights.astype(self.dtype))

    # ------------------------------------------------------------------------ the model

    def server_attributes(self, message):
        if self.loss != "squared":
            return {}
        return {"global_bias_": float(message["global_bias"].values[0])}

    def user_attributes(self, block, clients: Any):
        return {"user_factors_": clients.users}

    @property
    def response(self):
        """Return the function from scores to predictions."""
        return expit if self.loss == "bce" else identity

    def losses(self, model, held_out, seen):
        if self.loss == "squared":
            return super().losses(model, held_out, seen)
        n_negatives = max(1, self.n_negatives)
        return losses_with_negatives(cross_entropies(model), held_out, seen, n_negatives)


def data_sizes(block):
    """Return each client's number of ratings, by weight."""
    return np.add.reduceat(block.weights, block.rating_indptr[:-1])


def layout_of(block):
    """Return the layout of a block's ratings, for kernels."""
    return fedmf_kernels.Layout(block.client_indptr, block.indptr, block.items)


def cross_entropies(model):
    """Return the loss "bce" of pairs and targets under a model, as a function."""

    def losses(users, items, targets):
        scores = model.score_pairs(users, items)
        return np.logaddexp(0, np.where(targets > 0, -scores, scores))

    return losses


def losses_with_negatives(losses_of, held_out, seen, n):
    """Return loss and weight of held-out rows, of which each positive brings `n` negatives."""
    losses = losses_of(held_out.users, held_out.items, held_out.values)
    rows, negatives = unseen_items(held_out, held_out.values > 0, seen, n)
    if len(rows):
        others = losses_of(held_out.users[rows], negatives, np.zeros(len(rows)))
        losses += np.bincount(rows, others, minlength=len(losses))
    counts = 1 + np.bincount(rows, minlength=len(losses))
    return held_out.weights * losses, held_out.weights * counts


def unseen_items(held_out, positive, seen, n):
    """Return held-out rows, repeated for each of their `n` negatives, and the negatives."""
    indptr, items = seen
    n_unseen = held_out.n_items - np.diff(indptr)
    rows = np.repeat(np.flatnonzero(positive & (n_unseen[held_out.users] > 0)), n)
    users = held_out.users[rows]
    addresses = held_out.ranks[rows] * n + np.arange(len(rows)) % n
    chance = Key(0).uniform("held-out negatives", addresses)
    negatives = np.empty(len(rows), dtype=items.dtype)
    ranks = (chance * n_unseen[users]).astype(np.int64)
    fedmf_kernels.unseen_items(ranks, users, indptr, items, negatives)
    return rows, negatives


# ------------------------------------------------------------------------------ the estimator


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
