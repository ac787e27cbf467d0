"""What methods learn from: ratings on a scale, with biases, or positives and negatives."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy.special import expit

from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.sklearn_compat import Interval, StrOptions
from fedrecsk.base import RankingMixin, check_likes
from fedrecsk.data._checks import check_ratings, check_scale, scale_of
from fedrecsk.federated._implicit_feedback import NO_LOCAL_DP
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.messages import Dense, Message
from fedrecsk.updates import FieldSpec, Updates

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sklearn.utils import Tags

fedmf_kernels: LazyModule = LazyModule("fedrecsk.federated._fedmf_kernels")

# Up to this many negatives are accepted for any catalogue, so that the default always works.
FEW_NEGATIVES = 4


class RatingSums:
    """Mixin of methods whose clients add up their ratings in the set-up, for the mean of all."""

    def _setup_specs(self, n_items):
        return {"ratings": FieldSpec((2,), learned=False)}

    def _setup_update(self, block, message, key):
        ratings = np.array([block.weights @ block.values, block.weights.sum()])
        return Updates({"ratings": ratings})


class RatingScale(RatingSums):
    """Mixin of methods with a parameter `rating_scale`, before FederatedRecommender."""

    def _check_before_fit(self):
        super()._check_before_fit()
        if self.rating_scale is not None:
            check_scale(self.rating_scale)

    def _check_on_devices(self, federation):
        super()._check_on_devices(federation)
        scale_of(self.rating_scale, None)

    def _check_setting(self, federation, data, blocks):
        super()._check_setting(federation, data, blocks)
        if self.rating_scale is not None:
            check_ratings(data.values, self.rating_scale)

    def _new_user_attributes(self, data):
        check_ratings(data.values, self.rating_scale_)
        return super()._new_user_attributes(data)


class BiasColumn(RatingScale):
    """Mixin of methods with a parameter `biases`: column 0 of items and users is then the bias.

    Messages have `item_vectors` and a `scale`: the ends of the rating scale and the mean rating.
    """

    @property
    def _width(self):
        """Length of an item's or a user's vector, with its bias."""
        return self.n_factors + int(self.biases)

    def _first_items(self, catalogue, key):
        """Server: item vectors to begin with; items without ratings become zero later."""
        shape = (catalogue.n_items, self._width)
        vectors = self.INIT_STD * key.generator("item vectors").standard_normal(shape)
        if self.biases:
            vectors[:, 0] = 0
        return vectors.astype(self._dtype)

    def _setup_update(self, block, message, key):
        fields = super()._setup_update(block, message, key).fields | {
            "n_ratings": np.bincount(block.items, block.weights, minlength=block.n_items),
            "held_items": np.bincount(block.row_items, minlength=block.n_items),
        }
        specs = self._setup_specs(block.n_items)
        return Updates({name: fields[name] for name in specs})

    def _server_attributes(self, message):
        items, first = message["item_vectors"].values, int(self.biases)
        low, high, level = (float(number) for number in message["scale"].values)
        attributes = {
            "item_factors_": items[:, first:],
            "global_bias_": level,
            "rating_scale_": (low, high),
        }
        return attributes | ({"item_bias_": items[:, 0]} if self.biases else {})

    def _user_attributes(self, block, state):
        users, first = state["users"], int(self.biases)
        attributes = {"user_factors_": users[:, first:]}
        return attributes | ({"user_bias_": users[:, 0]} if self.biases else {})


@dataclass(eq=False, repr=False)
class LearnsFromFeedback(RatingSums, RankingMixin, FederatedRecommender):
    """Base class of FedMF and its kin, and of the neural methods.

    With ``loss="bce"`` rows with y > 0 are positives, and each brings `n_negatives` items that its
    user has not rated. With ``loss="squared"`` y are ratings, minus their mean, which the server
    adds up before the first round.
    """

    _: KW_ONLY
    # "bce", "squared", or what a subclass accepts beside them.
    loss: Any = "bce"
    n_negatives: int = 4

    _no_local_dp = NO_LOCAL_DP

    _parameter_constraints: ClassVar[dict] = FederatedRecommender._parameter_constraints | {
        "loss": [StrOptions({"bce", "squared"})],
        "n_negatives": [Interval(Integral, 0, None, closed="left")],
    }

    @abstractmethod
    def _raw_scores(self, users: np.ndarray, items: np.ndarray) -> NDArray[np.float64]:
        """Return the scores of pairs of codes (-1 for unknown) before `_response`; shape (n,)."""

    def _setup_specs(self, n_items):
        return super()._setup_specs(n_items) if self.loss == "squared" else {}

    @staticmethod
    def _mean_rating(sums):
        """Return what the server keeps of the set-up's sums."""
        if sums is None:
            return {}
        total, weight = sums["ratings"].sum
        return {"global_bias": total / weight}

    def _initial_broadcast(self, server):
        if self.loss != "squared":
            return Message()
        return Message(global_bias=Dense(np.array([server["global_bias"]])))

    def _feedback(self, block, message):
        """Target and weight of each rating; a client's weights are relative to their mean."""
        targets = self._targets(block, message)
        n_ratings = np.diff(block.rating_indptr)
        weights = block.weights / np.repeat(self._data_sizes(block) / n_ratings, n_ratings)
        return fedmf_kernels.Feedback(targets.astype(self._dtype), weights.astype(self._dtype))

    def _targets(self, block, message):
        """Return what the score of each rating's pair should be."""
        if self.loss == "bce":
            return block.values > 0
        return block.values - message["global_bias"].values[0]

    @staticmethod
    def _data_sizes(block):
        """Return each client's number of ratings, by weight."""
        return np.add.reduceat(block.weights, block.rating_indptr[:-1])

    @staticmethod
    def _layout(block):
        return fedmf_kernels.Layout(block.client_indptr, block.indptr, block.items)

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

    def _check_setting(self, federation, data, blocks):
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
