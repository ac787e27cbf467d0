"""RFRecF: RFRec with fewer messages (Liu et al., CIKM 2024, algorithm 2)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import numpy as np

from fedrecsk._utils.constraints import AtLeast1, Between0And1, NotNegative, Positive
from fedrecsk._utils.docs import documented
from fedrecsk._utils.parameters import constant
from fedrecsk.federated.rfrec import Common, RFRec, RFRecAlgorithm, RFRecParameters, rfrec_kernels

__all__ = ["RFRecF"]


@dataclass(eq=False, repr=False)
class RFRecFParameters(RFRecParameters):
    """Parameters of RFRecF."""

    _: KW_ONLY
    aggregation_probability: Between0And1 = 0.3
    prox: NotNegative = 5.0
    learning_rate: Positive = 0.084
    aggregation: Literal["clients", "holders"] = "holders"
    BETA_1: float = constant(0.5)
    BETA_2: float = constant(0.999)
    EPSILON: float = constant(0.02)  # also damps steps along tiny gradients


@dataclass(kw_only=True, eq=False)
class RFRecFAlgorithm(RFRecFParameters, RFRecAlgorithm):
    """RFRec's steps and averages, between which a shared coin decides."""

    @property
    def traits(self):
        return replace(super().traits, may_be_silent=True)

    def coins(self, key):
        """Return the coins of the last round and of this one (zeta); `key` is the shared one."""
        return tuple(
            int(t >= 0 and key.at(t).uniform("coin") < self.aggregation_probability)
            for t in (key.round - 1, key.round)
        )

    def broadcast(self, server, key):
        is_sent = key.round == 0 or self.coins(key) == (1, 0)
        return super().broadcast(server, key) if is_sent else None

    def share(self, common, message, key):
        mean = message["item_vectors"].values
        now = mean if common is None else common.items
        if self.coins(key.shared) == (1, 0):
            now = now + self.share_of_way * (mean - now)
        return Common(now, self.clipped(now))

    def update(self, block, clients, message, turn, key):
        mean = message["item_vectors"].values
        self._join(block, clients, turn.active, mean)
        loss = updates = None
        match self.coins(key.shared):
            case 0, 0:
                rate = self.learning_rate / (1 - self.aggregation_probability)
                loss = self._descend(block, clients, mean, turn.active, 0.0, rate)
            case 0, 1:
                totals = self._totals(mean, turn)
                vectors = clients.users.now, clients.held.now
                rfrec_kernels.add_up(block.layout, turn.active, *vectors, self.clip, totals)
                updates = self._sent(block, clients, mean, turn, totals)
            case 1, 0:
                self._move_to_mean(block, clients, turn.active, mean)
        return clients, updates, loss

    @property
    def share_of_way(self):
        """Share of the way to the mean that a client goes (eta)."""
        share = min(1.0, self.learning_rate * self.prox / self.aggregation_probability)
        return self.dtype(share)

    def _move_to_mean(self, block, clients, active, mean):
        rows = np.repeat(active, block.row_counts)
        held = clients.held.now
        # Clients that have diverged are found when their uploads arrive.
        with np.errstate(over="ignore", invalid="ignore"):
            held[rows] += self.share_of_way * (mean[block.row_items[rows]] - held[rows])


@documented
@dataclass(eq=False, repr=False)
class RFRecF(RFRecFParameters, RFRec):
    """RFRec with fewer messages: a shared coin decides between fitting and averaging.

    In each round server and clients flip the same coin, 1 with probability p. At 0, clients
    update: after a 0 they take a gradient step on their ratings alone, after a 1 they move to the
    mean that the server has just sent. At 1, the server averages what the clients upload, unless
    they did so in the round before. Messages are sent only when the coin changes, 2 p (1 - p)
    times per round on average instead of twice.

    Parameters
    ----------
    n_factors : int, default=19
        Length of p_u and q_i (d). With the bias, 20 numbers per item.
    n_rounds : int, default=300
        Number of rounds in total, most of them without messages.
    aggregation_probability : float in (0, 1), default=0.3
        Probability that the coin is 1 (p).
    prox : float, default=5.0
        Weight of the proximal term (lambda). A client moves the share
        ``min(1, learning_rate * prox / p)`` of the way to it; by default, all the way.
    reg_user, reg_item : float, default=0.04
        Weights of the penalties on user vectors (lambda_u) and item vectors.
    reg_bias : float, default=0.07
        Weight of the penalty on every bias.
    learning_rate : float, default=0.084
        alpha; a gradient step is ``learning_rate / (1 - p)``.
    optimizer : {"adam", "gd"}, default="adam"
        Adam's moments see the gradient steps only.
    aggregation : {"clients", "holders"}, default="holders"
        As in :class:`RFRec`; under local differential privacy only "clients" is allowed.
    biases, predict_with, rating_scale
        As in :class:`RFRec`.
    {item_features}
    {shared parameters}

    Attributes
    ----------
    user_factors_, item_factors_, user_bias_, item_bias_, global_bias_, rating_scale_
        As in :class:`RFRec`.
    {shared attributes}

    Raises
    ------
    ValueError
        As :class:`RFRec` does.

    Notes
    -----
    *Algorithm*::

        set-up as in RFRec
        each round: the coins of the last round and of this one    coins
          0 0  clients step on their users and rated items         update: kernel step
          0 1  clients upload clip(V_c), the server averages       update: _sent, step
          1 1  nothing
          1 0  server sends the mean, clients move to it           broadcast, share, update

    Messages are those of RFRec, but between the first broadcast and the last they are sent only
    when the coin changes from 0 to 1 (up) or from 1 to 0 (down). The coin comes from the shared key
    and is never sent. Early stopping measures a model when it is sent, so `n_iter_no_change` counts
    broadcasts. A round without a gradient step has no training loss, and repeats the last one.

    References
    ----------
    .. [1] L. Liu et al., "Efficient and Robust Regularized Federated Recommendation",
       CIKM 2024, section 3.2.2, equations 7 and 8, algorithm 2.

    Examples
    --------
    >>> from fedrecsk import RFRecF
    >>> from fedrecsk.datasets import make_ratings
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = RFRecF(n_rounds=50, random_state=0).fit(X, y)
    >>> silent = [row["round"] for row in model.history_ if row["bytes_up"] == 0]
    >>> len(silent) > 25
    True
    """

    _: KW_ONLY
    n_rounds: AtLeast1 = 300

    _kind = RFRecFAlgorithm
