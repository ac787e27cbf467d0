"""RFRecF: RFRec with fewer messages (Liu et al., CIKM 2024, algorithm 2)."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Literal

import numpy as np
from sklearn.utils._param_validation import Interval

from fedrecsk.federated.rfrec import RFRec

if TYPE_CHECKING:
    from fedrecsk.simulation.federation import Federation


class RFRecF(RFRec):
    """RFRec with fewer messages: a shared coin decides between fitting and averaging.

    In each round all flip the same coin, 1 with probability p. At 0, clients work: after a 0
    they take a gradient step on their ratings alone, after a 1 they move to the mean that the
    server has just sent. At 1, the server averages what the clients upload, unless they did
    so in the round before. Messages cross only when the coin changes, 2 p (1 - p) times a
    round on average instead of twice.

    Parameters
    ----------
    n_factors : int, default=19
        Length of p_u and q_i (d). With the bias, 20 numbers an item.
    n_rounds : int, default=300
        Rounds in total, most of them without messages.
    aggregation_probability : float in (0, 1), default=0.3
        The coin (p).
    coupling : float, default=5.0
        Weight of the tie to the mean (lambda). Moving to it goes the share
        ``min(1, learning_rate * coupling / p)`` of the way; the default goes all of it.
    reg_user, reg_item : float, default=0.04
        Weights of the penalties on user vectors (lambda_u) and item vectors.
    reg_bias : float, default=0.07
        Weight of the penalty on every bias.
    reg_power : float, default=0.5
        How the penalties on vectors grow with the number of ratings.
    learning_rate : float, default=0.084
        alpha; a gradient step is ``learning_rate / (1 - p)``.
    optimizer : {"adam", "gd"}, default="adam"
        Adam's moments see the gradient steps only.
    beta_1 : float in [0, 1), default=0.5
    beta_2 : float in [0, 1), default=0.999
    epsilon : float, default=0.02
        Adam's decays and its term against division by zero, which here also damps steps
        along tiny gradients.
    aggregation : {"all", "holders"}, default="holders"
        As in :class:`RFRec`; under local differential privacy only "all" is allowed.
    link, biases, predict_with, rating_scale, init_std
        As in :class:`RFRec`.
    client_fraction, early_stopping, validation_fraction, n_iter_no_change, tol, warm_start
        As in :class:`RFRec`.
    n_jobs, random_state, federation
        As in :class:`RFRec`.

    Attributes
    ----------
    user_factors_, item_factors_, user_bias_, item_bias_, global_bias_, rating_scale_
        As in :class:`RFRec`.
    user_ids_, item_ids_, n_users_, n_items_, n_rounds_, best_round_
        As in :class:`RFRec`.
    loss_curve_, history_, communication_, privacy_
        As in :class:`RFRec`. A round without a gradient step repeats the last loss.

    Raises
    ------
    ValueError
        As :class:`RFRec` does.

    Notes
    -----
    What crosses the wire is what crosses in RFRec, but in between the first broadcast and the
    last only when the coin changes from 0 to 1 (up) or from 1 to 0 (down). Everybody knows
    the coin's seed, so it crosses no wire. Early stopping judges a model when it is sent, so
    `n_iter_no_change` counts broadcasts.

    Slips in the paper's algorithm 2: it averages before clients upload; they upload first
    here, and the coin before the first round counts as 0. Its plain mean over all clients
    ("all") hardly moves an item that few have rated, so "holders" is the default; the coin,
    Adam's constants and the penalties were chosen on validation data.

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

    _parameter_constraints: dict = RFRec._parameter_constraints | {
        "aggregation_probability": [Interval(Real, 0, 1, closed="neither")],
    }

    def __init__(
        self,
        n_factors: int = 19,
        *,
        n_rounds: int = 300,
        aggregation_probability: float = 0.3,
        coupling: float = 5.0,
        reg_user: float = 0.04,
        reg_item: float = 0.04,
        reg_bias: float = 0.07,
        reg_power: float = 0.5,
        learning_rate: float = 0.084,
        optimizer: Literal["adam", "gd"] = "adam",
        beta_1: float = 0.5,
        beta_2: float = 0.999,
        epsilon: float = 0.02,
        link: Literal["sigmoid", "identity"] = "sigmoid",
        biases: bool = True,
        aggregation: Literal["all", "holders"] = "holders",
        predict_with: Literal["global", "local"] = "global",
        rating_scale: tuple[float, float] | None = None,
        init_std: float = 0.1,
        client_fraction: float = 1.0,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        warm_start: bool = False,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        federation: Federation | None = None,
    ):
        super().__init__(
            n_factors,
            n_rounds=n_rounds,
            coupling=coupling,
            reg_user=reg_user,
            reg_item=reg_item,
            reg_bias=reg_bias,
            reg_power=reg_power,
            learning_rate=learning_rate,
            optimizer=optimizer,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            link=link,
            biases=biases,
            aggregation=aggregation,
            predict_with=predict_with,
            rating_scale=rating_scale,
            init_std=init_std,
            client_fraction=client_fraction,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            tol=tol,
            warm_start=warm_start,
            n_jobs=n_jobs,
            random_state=random_state,
            federation=federation,
        )
        self.aggregation_probability = aggregation_probability

    # ---------------------------------------------------------------------- the algorithm

    def _broadcast(self, server, key):
        before, now = self._coins(key)
        return self._model(server) if key.round == 0 or (before, now) == (1, 0) else None

    def _init_clients(self, block, message, key):
        return super()._init_clients(block, message, key) | {"mean": message["item_vectors"].values}

    def _client_update(self, block, state, message, key):
        match self._coins(key):
            case 0, 0:
                self._main_step(block, state)
            case 1, 0:
                self._move_to_mean(block, state, message["item_vectors"].values)
            case 0, 1:
                return state, self._upload(block, state, state["mean"])
        return state, None

    # ------------------------------------------------------------------- its single lines

    def _coins(self, key):
        """The coin before this round and the coin of this round (zeta)."""
        return tuple(
            int(t >= 0 and key.at(t).uniform("coin") < self.aggregation_probability)
            for t in (key.round - 1, key.round)
        )

    def _main_step(self, block, state):
        rule = self._next_rule(state, self.learning_rate / (1 - self.aggregation_probability))
        nobody = np.zeros(block.n_clients, dtype=bool)
        self._step(block, state, state["mean"], 0.0, rule, nobody)

    def _move_to_mean(self, block, state, mean):
        share = min(1.0, self.learning_rate * self.coupling / self.aggregation_probability)
        share = self._dtype(share)
        state["held"] += share * (mean[block.row_items] - state["held"])
        state["shared"] += share * (mean - state["shared"])
        state["mean"] = mean
