"""FedMF: federated averaging of an item matrix (McMahan et al. 2017; Chai et al. 2020)."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.special import expit
from sklearn.utils._param_validation import Interval, StrOptions

from fedrecsk import _kernels
from fedrecsk.base import RankingMixin
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.simulation.keys import Key
from fedrecsk.simulation.messages import Dense, Message

if TYPE_CHECKING:
    from fedrecsk.simulation.federation import Federation

# Epochs on the final items of a user whose client was in no round.
EPOCHS_OF_THE_NEW = 20
# So few negatives are accepted whatever the size of the catalogue: the default must fit.
FEW_NEGATIVES = 4


class FedMF(RankingMixin, FederatedRecommender):
    """Federated matrix factorisation: averaging of an item matrix, user vectors kept private.

    Each round a few clients receive the item matrix Q, train it and their own users' vectors p_u
    by some epochs of mini-batch SGD on their own data, and upload by how much Q has changed;
    the server adds the mean. This is FedAvg [1]_ on a matrix factorisation [2]_, and the base
    model of CoLR [3]_.

    By default the feedback is implicit: rows of X with y > 0 (all, where y is None) are positives
    with target 1, rows with y <= 0 have target 0, and each positive brings `n_negatives` items
    that its user has not rated, with target 0. The loss is the cross-entropy of the sigmoid of
    p_u . q_i, and `predict` gives that sigmoid, the chance of a positive. With
    ``loss="squared"`` the rows' y are ratings, estimated by ``global_bias_ + p_u . q_i``; it
    remains a ranking model, whose `score` is NDCG@10.

    Parameters
    ----------
    n_factors : int, default=64
        Length of p_u and q_i (d).
    n_rounds : int, default=200
        Rounds in total (T).
    loss : {"bce", "squared"}, default="bce"
        Cross-entropy with sampled negatives, or half the squared error of ratings, without.
    n_negatives : int, default=4
        Sampled negatives a positive. They are drawn anew at each visit of a client, kept over
        its epochs, uniformly and with repetition from the items that the user has no training
        row of; users who have rated everything get none.
    local_epochs : int, default=2
        Passes of a client over its examples in a round (E, tau_u).
    batch_size : int, default=64
        Examples in a mini-batch; an epoch's last one may be smaller.
    learning_rate : float, default=0.5
        Step of SGD (eta).
    weight_decay : float, default=2e-3
        Weight of ``|p_u|^2 + |q_i|^2`` in the loss of each example.
    aggregation : {"visits", "data_size"}, default="visits"
        What the server divides an item's summed updates by. "visits": by the number of
        clients that visited the item, as positive or as sampled negative; the authors' code of
        CoLR does this. "data_size": the mean over the round's clients weighted by their number of
        ratings, N_u / N, as its text says; clients that did not visit an item hold it back.
    init_std : float, default=0.03
        Standard deviation of the initial vectors.
    client_fraction : float in (0, 1], default=0.2
        Share of the clients in a round's cohort. The paper's is .01, with 1,000 rounds and
        ``Federation(sampling="rotating")``.
    early_stopping : bool, default=False
        Stop when the loss on what the clients did not train on stops improving, and keep the
        best round's model. All users fit their vectors to every round's model, which costs
        more than the rounds themselves where cohorts are small.
    validation_fraction : float in (0, 1), default=0.1
        Share of its rows that each client holds out under early stopping.
    n_iter_no_change : int, default=10
        Rounds without improvement that end the fit.
    tol : float, default=1e-4
        What counts as an improvement of the mean loss of a held-out example.
    warm_start : bool, default=False
        Go on with the last fit's rounds until `n_rounds` in total; keeps the private state.
    n_jobs : int or None, default=None
        Threads. The fitted model does not depend on it.
    random_state : int, RandomState instance or None, default=None
        Seeds everything: initial vectors, cohorts, negatives, shuffles, dropout.
    federation : Federation or None, default=None
        The world the method runs in. None: a perfect one.

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors), dtype float32
        p_u after `local_epochs` more on the final item matrix; private to the client.
    item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        The server's Q.
    global_bias_ : float
        Mean rating; only with ``loss="squared"``.
    user_ids_, item_ids_ : ndarray of shape (n_users,) and (n_items,)
        Ids in the order of the vectors.
    n_users_, n_items_ : int
    n_rounds_ : int
        Rounds run.
    best_round_ : int
        The round whose model was kept; only with early stopping.
    loss_curve_ : list of float
        Mean loss of an example without the decay, over the round's clients and epochs, each
        before its batch's step. For the researcher: it crosses no wire.
    history_ : list of dict
        A row a round: `round`, `loss`, `participants`, `bytes_down`, `bytes_up`, and
        `validation_loss` under early stopping.
    communication_ : Ledger
        Every byte that crossed.
    privacy_ : PrivacyReport
        No formal promise: plaintext sums.

    Raises
    ------
    ValueError
        By fit: under local differential privacy, if no y is positive, if `n_negatives` is above
        4 and above what any user has left unseen, or if the clients diverge.

    See Also
    --------
    CoLR : The same with updates of low rank.
    SCoLR : The same with a rank for each client.

    Notes
    -----
    *What crosses the wire.* Each round down: Q, ``4 m d`` bytes a client for m items. Up: the
    change of Q, ``4 m d`` bytes, and for each item whether the client visited it, m bytes, so
    that counts can be added up; with "data_size" N_u in its place, and the change times N_u.
    With ``loss="squared"`` also once: up, the client's sum of ratings and their number; down, the
    mean.

    *What it reveals.* In plaintext the rows that are not zero are the visited items, a fifth of
    them positives, and the size of a row tells which. Only sums over clients are used.

    *A step.* In each batch every vector moves once, by the mean of its gradients over the
    batch's examples that it is in, as in the authors' code of CoLR; a mean over the whole batch
    would move an item 1 / `batch_size` as far. `sample_weight` multiplies an example's loss, a
    negative's being that of its positive; it counts relative to its mean on the client,
    so that its scale is no learning rate.

    *Final vectors.* A client that was in a round fits p_u for `local_epochs` more, with the
    final items as they are; one that never was, and every newcomer, does 20 epochs from zero. All
    draw negatives from the same stream, so that a user's vector does not depend on others.

    *Defaults.* Chosen on validation data (``python -m benchmarks.colr choices``). The paper's are
    a batch of 256, ``weight_decay=5e-4`` and its federation above.

    References
    ----------
    .. [1] B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Aguera y Arcas,
       "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
    .. [2] D. Chai, L. Wang, K. Chen and Q. Yang, "Secure Federated Matrix Factorization", IEEE
       Intelligent Systems 36(5), 2020.
    .. [3] N.-H. Nguyen, T.-A. Nguyen, T. Nguyen, V. T. Hoang, D. D. Le and K.-S. Wong, "Towards
       Efficient Communication and Secure Federated Recommendation System via Low-rank
       Training", WWW 2024.

    Examples
    --------
    >>> from fedrecsk import FedMF
    >>> from fedrecsk.datasets import make_ratings
    >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = FedMF(n_factors=8, n_rounds=50, random_state=0).fit(X)
    >>> items, scores = model.recommend(X[:2, 0], n_recommendations=3)
    >>> items.shape
    (2, 3)
    >>> model.communication_.bytes_up == 50 * 12 * (4 * 40 * 8 + 40)
    True
    """

    _parameter_constraints: dict = FederatedRecommender._parameter_constraints | {
        "n_factors": [Interval(Integral, 1, None, closed="left")],
        "loss": [StrOptions({"bce", "squared"})],
        "n_negatives": [Interval(Integral, 0, None, closed="left")],
        "local_epochs": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "aggregation": [StrOptions({"visits", "data_size"})],
        "init_std": [Interval(Real, 0, None, closed="neither")],
    }

    _dtype = np.float32

    def __init__(
        self,
        n_factors: int = 64,
        *,
        n_rounds: int = 200,
        loss: Literal["bce", "squared"] = "bce",
        n_negatives: int = 4,
        local_epochs: int = 2,
        batch_size: int = 64,
        learning_rate: float = 0.5,
        weight_decay: float = 2e-3,
        aggregation: Literal["visits", "data_size"] = "visits",
        init_std: float = 0.03,
        client_fraction: float = 0.2,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        warm_start: bool = False,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        federation: Federation | None = None,
    ):
        self.n_factors = n_factors
        self.n_rounds = n_rounds
        self.loss = loss
        self.n_negatives = n_negatives
        self.local_epochs = local_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.aggregation = aggregation
        self.init_std = init_std
        self.client_fraction = client_fraction
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.federation = federation

    # ---------------------------------------------------------------------- the algorithm

    @property
    def _sees_ratings(self):
        return self.loss == "squared"

    def _enrol(self, block):
        if self.loss == "bce":
            return None
        return Message(ratings=Dense(np.array([block.weights @ block.values, block.weights.sum()])))

    def _init_server(self, catalogue, enrolment, key):
        shape = (catalogue.n_items, self.n_factors)
        items = self.init_std * key.generator("item factors").standard_normal(shape)
        server = {"item_factors": items.astype(self._dtype)}
        if self.loss == "squared":
            total, weight = enrolment["ratings"].sum
            server["global_bias"] = total / weight
        return server

    def _announce(self, server):
        if self.loss == "bce":
            return Message()
        return Message(global_bias=Dense(np.array([server["global_bias"]])))

    def _model(self, server):
        return Message(item_factors=Dense(server["item_factors"]))

    def _init_clients(self, block, message, key):
        coordinates = block.users[:, None] * self.n_factors + np.arange(self.n_factors)
        users = self.init_std * key.at(-1).normal("user factors", coordinates)
        state = self._feedback(block, message)
        state["users"] = users.astype(self._dtype)
        state["trained"] = np.zeros(block.n_users, dtype=bool)
        return state

    def _client_update(self, block, state, message, key):
        scale, columns = self._scales(block), self._columns(block, key)
        sums, n_visits = self._empty_sums(block)
        *loss, sound = _kernels.fedmf.visit(
            self._layout(block),
            (state["targets"], state["weights"]),
            (block.active, block.delivers, key.hashed("visit", block.clients)),
            self._config(),
            message["item_factors"].values,
            (*self._rate_and_length(), *columns),
            state["users"],
            scale,
            sums,
            n_visits,
        )
        state["training_loss"] = np.array(loss)
        state["trained"] |= np.repeat(block.active, np.diff(block.client_indptr))
        return state, self._upload(block, scale, sound, sums, n_visits, columns)

    def _aggregate(self, server, message, upload, key):
        if upload is None:
            return server
        items = server["item_factors"] + self._mean_update(upload)
        return server | {"item_factors": items.astype(self._dtype)}

    def _personalize(self, block, state, message, key):
        state = dict(state or self._init_clients(block, message, key))
        new = ~state["trained"]
        state["users"] = np.where(new[:, None], 0, state["users"]).astype(self._dtype)
        for whom, n_epochs in ((new, EPOCHS_OF_THE_NEW), (~new, self.local_epochs)):
            _kernels.fedmf.fit_users(
                self._layout(block),
                (state["targets"], state["weights"]),
                np.flatnonzero(whom),
                # Nobody's vector may depend on who else is served, or when.
                Key(0).hashed("personal"),
                self._config(n_epochs),
                message["item_factors"].values,
                state["users"],
            )
        return state

    def _attributes(self, server, states):
        attributes = {
            "user_factors_": states.by_user("users"),
            "item_factors_": server["item_factors"],
        }
        if self.loss == "squared":
            attributes["global_bias_"] = float(server["global_bias"])
        return attributes

    def _response(self, scores):
        return expit(scores) if self.loss == "bce" else scores

    # ------------------------------------------------------------------- on the clients

    def _feedback(self, block, message):
        """Target and weight of each rating; a client's weights are relative to their mean."""
        if self.loss == "bce":
            targets = (block.values > 0).astype(self._dtype)
        else:
            targets = (block.values - message["global_bias"].values[0]).astype(self._dtype)
        n_ratings = np.diff(block.rating_indptr)
        means = np.add.reduceat(block.weights, block.rating_indptr[:-1]) / n_ratings
        weights = block.weights / np.repeat(means, n_ratings)
        return {"targets": targets, "weights": weights.astype(self._dtype)}

    @property
    def _n_columns(self):
        """Columns of an upload."""
        return self.n_factors

    def _rate_and_length(self):
        """Learning rate of the items, and by what their changes are divided when sent."""
        return float(self.learning_rate), 1.0

    def _columns(self, block, key):
        """The coordinates of items that each client moves: an indptr over clients, and these."""
        columns = np.tile(np.arange(self._n_columns, dtype=np.int32), block.n_clients)
        return np.arange(block.n_clients + 1) * self._n_columns, columns

    @staticmethod
    def _layout(block):
        return block.client_indptr, block.indptr, block.items

    def _config(self, n_epochs=None):
        return (
            self.n_negatives if self.loss == "bce" else 0,
            self.local_epochs if n_epochs is None else n_epochs,
            self.batch_size,
            float(self.learning_rate),
            float(self.weight_decay),
            self.loss == "squared",
        )

    def _scales(self, block):
        """What each client multiplies its update by: its number of ratings, or 1."""
        if self.aggregation == "data_size":
            scales = np.add.reduceat(block.weights, block.rating_indptr[:-1])
        else:
            scales = np.ones(block.n_clients)
        return scales.astype(self._dtype)

    def _empty_sums(self, block):
        """Where the kernels add up item updates, and visits of each item."""
        sums = np.zeros((block.n_items, self._n_columns), dtype=self._dtype)
        return sums, np.zeros((block.n_items, 1), dtype=np.int32)

    def _upload(self, block, scale, sound, sums, n_visits, columns):
        if self.aggregation == "data_size":
            total = scale[block.delivers & sound].sum(dtype=np.float64)
            weights = {"data_size": Dense(np.array([total]), learned=False)}
        else:
            weights = {"n_visits": Dense(n_visits, dtype="uint8")}
        return Message(sound=sound, updates=Dense(sums), **weights)

    # -------------------------------------------------------------------- on the server

    def _mean_update(self, upload):
        """Mean of the clients' updates: over those that visited the item, or by data size."""
        if self.aggregation == "data_size":
            return upload["updates"].sum / upload["data_size"].sum
        return upload["updates"].sum / np.maximum(upload["n_visits"].sum, 1)

    # ------------------------------------------------------------ checks, early stopping

    def _check_before_fit(self):
        super()._check_before_fit()
        if self._world().local_dp is not None:
            raise ValueError(
                f"{type(self).__name__} has no local_dp: the items that a client has visited would "
                "cross without noise. Use RFRec under local differential privacy."
            )

    def _check_world(self, federation, data, blocks):
        if self.loss == "squared":
            return
        if not (data.values > 0).any():
            raise ValueError(
                "No row of X has y > 0, so nobody likes anything. Pass y=None to count every row, "
                "or shift y so that what is liked is above 0."
            )
        most = data.n_items - np.diff(data.indptr).min()
        if self.n_negatives > max(most, FEW_NEGATIVES):
            raise ValueError(
                f"n_negatives={self.n_negatives} is more than the {most} items that any user has "
                "left unseen; ask for fewer."
            )

    def _validation_losses(self, held_out):
        """The clients' loss on what they did not train on.

        Cross-entropy has no meaning without negatives: each held-out row brings `n_negatives`
        (at least one) items that its user has not rated, the same ones in every round.
        """
        if self.loss == "squared":
            return super()._validation_losses(held_out)
        indptr, items = self._seen
        n_unseen = self.n_items_ - np.diff(indptr)
        positive = held_out.values > 0
        n_negatives = np.where(
            positive & (n_unseen[held_out.users] > 0), max(1, self.n_negatives), 0
        )
        rows = np.repeat(np.arange(len(positive)), n_negatives)
        users = held_out.users[rows]
        chance = Key(0).uniform("held-out negatives", np.arange(len(rows)))
        ranks = (chance * n_unseen[users]).astype(np.int64)
        negatives = _kernels.fedmf.unseen_items(ranks, users, indptr, items)
        scores, others = (
            _kernels.scores.pairs(*pairs, *self._linear_part())
            for pairs in ((held_out.users, held_out.items), (users, negatives))
        )
        losses = np.logaddexp(0, np.where(positive, -scores, scores))
        losses += np.bincount(rows, np.logaddexp(0, others), minlength=len(losses))
        return held_out.weights * losses, held_out.weights * (1 + n_negatives)
