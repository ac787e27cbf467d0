"""What clients of FedMF's kin and of the neural methods learn from: a target for each rating."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrecsk._utils.kernels import LazyModule
from fedrecsk.federated._ratings import RATINGS, sums_of_ratings
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.messages import Dense, Form, Message
from fedrecsk.updates import Updates

fedmf_kernels: LazyModule = LazyModule("fedrecsk.federated._fedmf_kernels")

NO_LOCAL_DP = (
    "an upload shows which items a client has visited, and noise that hides them would drown "
    "all that it has learned. Use RFRec for local differential privacy, or central_dp if "
    "clients trust the server."
)


@dataclass(frozen=True)
class Targets:
    """What the score of each rating's pair should be.

    By the loss: "bce", whether y > 0; "squared", y less the mean of all ratings, for which clients
    add theirs up in the set-up; any other, y.
    """

    loss: str
    dtype: type[np.floating] = np.float32

    def downloads(self):
        """Return the form of what `announce` announces."""
        return {"global_bias": Form((1,))} if self.loss == "squared" else {}

    def setup_fields(self):
        """Return what clients send in the set-up: sums of their ratings and of the weights."""
        return RATINGS if self.loss == "squared" else {}

    def answer(self, block):
        """Return a block's sums."""
        return Updates({"ratings": sums_of_ratings(block)})

    def mean_rating(self, sums):
        """Return the mean that the server knows after the set-up, None without one."""
        if sums is None:
            return None
        total, weight = sums["ratings"].sum
        return total / weight

    def announce(self, mean_rating):
        """Return the announcement of the mean, if there is one."""
        if mean_rating is None:
            return Message()
        return Message(global_bias=Dense(np.array([mean_rating])))

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


def data_sizes(block):
    """Return each client's number of ratings, by weight."""
    return np.add.reduceat(block.weights, block.rating_indptr[:-1])


def layout_of(block):
    """Return the layout of a block's ratings, for kernels."""
    return fedmf_kernels.Layout(block.client_indptr, block.indptr, block.items)


# ------------------------------------------------------------------------ the fitted model


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
