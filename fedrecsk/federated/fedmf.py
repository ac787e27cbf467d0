"""FedMF: federated averaging of an item matrix, the base model of CoLR (Nguyen et al. 2024)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from fedrecsk._utils.constraints import Above0To1, AtLeast1, NotNegative, Positive
from fedrecsk._utils.docs import documented
from fedrecsk._utils.parameters import constant
from fedrecsk.federated._feedback import (
    NO_LOCAL_DP,
    FeedbackAlgorithm,
    FeedbackParameters,
    LearnsFromFeedback,
    data_sizes,
    fedmf_kernels,
    layout_of,
)
from fedrecsk.models import Factors
from fedrecsk.protocol.algorithm import Traits
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.messages import Dense, Form, Message
from fedrecsk.protocol.states import Kept, PerItem, PerUser
from fedrecsk.updates import FieldSpec, SparseRows, Updates

__all__ = ["FedMF"]

# Epochs on the final items of a user whose client was in no round.
EPOCHS_OF_THE_NEW = 20
# The server's step with "reptile". The more items, the fewer clients visit a given one. From HR@10
# on validation rows of MovieLens-1M (benchmarks.private_rankings settings); with few items that all
# visit, the model diverges with steps above 1.
ITEMS_PER_UNIT = 185
LONGEST = 20.0


@dataclass
class FedMFClients:
    """Users of a block: targets and weights of their ratings, and their vectors."""

    feedback: tuple[np.ndarray, ...]
    users: Kept[PerUser]


@dataclass(frozen=True)
class FedMFServer:
    """What the server knows: the items, and what it needs to average them over the rounds."""

    items: Kept[PerItem]
    # With loss="squared".
    mean_rating: float | None
    average: np.ndarray | None
    n_averaged: int = 0


@dataclass(eq=False, repr=False)
class AveragingParameters(FeedbackParameters):
    """Parameters of FedMF and of methods derived from it."""

    _: KW_ONLY
    n_factors: AtLeast1 = 64
    local_epochs: AtLeast1 = 2
    batch_size: AtLeast1 = 64
    learning_rate: Positive = 0.5
    reg: NotNegative = 2e-3
    aggregation: Literal["visits", "data_size"] = "visits"
    # Parameters of FedMF; CoLR has the second and the third, too.
    server_learning_rate: float | Literal["auto"] = constant("auto")
    shrinkage: float = constant(0.0)
    averaging: bool = constant(False)
    INIT_STD: float = constant(0.03)
    # How much more later rounds count: the average is of the last tenth of the rounds, roughly.
    EMPHASIS: float = constant(9.0)
    # By what all vectors are multiplied before an update with new rows. A fit that ends where it
    # has learned the old rows by heart learns little from new ones (Ash and Adams, "On
    # warm-starting neural network training", NeurIPS 2020).
    KEPT: float = constant(0.5)


@dataclass(kw_only=True, eq=False)
class FedMFAlgorithm(AveragingParameters, FeedbackAlgorithm[Any, FedMFClients]):
    """Clients train the items and their own users by SGD; the server averages the changes."""

    # What subclasses have beside "visits" and "data_size".
    aggregation: str
    # Whether the final model is an average.
    averages: bool
    dtype: type[np.floating] = np.float32

    @property
    def traits(self):
        refuses = {"local_dp": NO_LOCAL_DP}
        return Traits(single_uploads=True, goes_on=True, takes_stale=True, refuses=refuses)

    def downloads(self, n_items):
        items = Form((n_items, self.n_factors))
        return super().downloads(n_items) | {"item_factors": items, "average_items": items}

    # --------------------------------------------------------------- before the rounds

    def begin(self, catalogue, sums, key):
        shape = (catalogue.n_items, self.n_factors)
        items = self.INIT_STD * key.generator("item factors").standard_normal(shape)
        items, mean_rating = items.astype(self.dtype), self.mean_rating(sums)
        return FedMFServer(items, mean_rating, items if self.averages else None)

    # ---------------------------------------------------------------------- each round

    def broadcast(self, server, key):
        return Message(item_factors=Dense(server.items))

    def fields(self, n_items):
        specs = {"updates": FieldSpec((n_items, self.n_columns))}
        if self.aggregation == "data_size":
            return specs | {"data_size": FieldSpec((1,), learned=False)}
        if self.aggregation == "reptile":
            return specs
        counts = FieldSpec((n_items, self.n_count_columns), dtype="uint8", learned=False)
        return specs | {"n_visits": counts}

    def enter(self, block, message, key):
        coordinates = block.users[:, None] * self.n_factors + np.arange(self.n_factors)
        users = self.INIT_STD * key.private.at(-1).normal("user factors", coordinates)
        return FedMFClients(self.feedback(block, message), users.astype(self.dtype))

    def update(self, block, clients, message, turn, key):
        items, config = message["item_factors"].values, self.config()
        columns, is_finite = self.columns(block, key), np.ones(block.n_clients, dtype=bool)
        seeds = key.private.hashed("visit", block.clients)
        cohort = fedmf_kernels.Cohort(turn.active, turn.delivers, seeds, is_finite)
        n_own, n_items = 0, block.n_items
        if turn.separate:
            # No client visits more items than it has examples.
            n_examples = np.diff(block.rating_indptr) * (1 + config.n_negatives)
            n_own, n_items = np.minimum(n_examples, block.n_items)[turn.active].sum(), 0
        out = self._empty_upload(block.n_clients, n_own, n_items, items.dtype)
        moving, users = self._moving(block, columns), clients.users
        loss = _visit(layout_of(block), clients.feedback, cohort, config, items, moving, users, out)
        sent = self.sent(block, turn, columns, is_finite, out)
        return clients, Updates(sent, is_finite=is_finite), loss

    def sent(self, block, turn, columns, is_finite, out):
        """Return the fields of an upload, given the coordinates that each client trains."""
        sizes, indptr = data_sizes(block), out.indptr
        if turn.separate:
            counted = columns if self.n_count_columns > 1 else np.ones((block.n_clients, 1))
            visits = np.repeat(counted, np.diff(indptr), axis=0).astype(np.uint8)
            rows, values = out.rows[: indptr[-1]], out.values[: indptr[-1]]
            fields = {
                "updates": SparseRows(indptr, rows, values),
                "data_size": SparseRows.stacked(sizes[:, None]),
                "n_visits": SparseRows(indptr, rows, visits),
            }
        else:
            senders = turn.active & turn.delivers & is_finite
            size = sizes[senders].sum(keepdims=True)
            fields = {"updates": out.sums, "data_size": size, "n_visits": out.n_visits}
        specs = self.fields(block.n_items)
        return {name: fields[name] for name in specs if name in fields}

    def step(self, server, upload, key):
        return server if upload is None else self.moved(server, self.mean_update(upload))

    def moved(self, server, update):
        """Return the server's state after an update of its items, with their new average.

        With polynomial decay (Shamir and Zhang, ICML 2013), which needs no length of a window.
        """
        items = (server.items + update).astype(self.dtype)
        if not self.averages:
            return replace(server, items=items)
        n, average = server.n_averaged + 1, server.average
        weight = self.dtype((self.EMPHASIS + 1) / (n + self.EMPHASIS))
        average = average + weight * (items - average)
        return replace(server, items=items, average=average, n_averaged=n)

    # ------------------------------------------------------------------------- the end

    def final(self, server):
        if self.averages:
            return Message(average_items=Dense(server.average))
        return Message(item_factors=Dense(server.items))

    def personalize(self, block, clients, message, turn, key):
        active, trained = block.users_of(turn.active), np.zeros(block.n_users, dtype=bool)
        users = np.zeros((block.n_users, self.n_factors), dtype=self.dtype)
        if clients is None:
            feedback = self.feedback(block, message)
        else:
            feedback, trained = clients.feedback, active & np.isfinite(clients.users).all(axis=1)
            users[trained] = clients.users[trained]
        new = active & ~trained
        for whom, n_epochs in ((new, EPOCHS_OF_THE_NEW), (trained, self.local_epochs)):
            self.fit_users(block, feedback, message, whom, n_epochs, users)
        return FedMFClients(feedback, users)

    # ------------------------------------------------------------------ with other rows

    def resume(self, now, before, places):
        server = super().resume(now, before, places)
        items = server.items * self.dtype(self.KEPT)
        # Rounds without uploads leave the average as it begins.
        return replace(server, items=items, average=items if self.averages else None)

    def recall(self, clients, remembered):
        known, _ = remembered["users"]
        clients = super().recall(clients, remembered)
        clients.users[known] *= self.KEPT
        return clients

    # ------------------------------------------------------------------- on the clients

    def config(self):
        """Return how clients train, for kernels."""
        return fedmf_kernels.Config(
            n_negatives=self.n_negatives if self.loss == "bce" else 0,
            local_epochs=self.local_epochs,
            batch_size=self.batch_size,
            learning_rate=float(self.learning_rate),
            reg=float(self.reg),
            shrinkage=float(self.shrinkage),
            squared=self.loss == "squared",
            frozen=False,
        )

    def fit_users(self, block, feedback, message, whom, n_epochs, users):
        """Train the vectors of the users in a mask, in place, with the final items fixed."""
        items = final_items(message)
        config = self.config()._replace(local_epochs=n_epochs, frozen=True)
        # Each user is like a client.
        layout = layout_of(block)._replace(client_indptr=np.arange(block.n_users + 1))
        # A user's vector must not depend on which others are computed, or when.
        seeds = np.full(block.n_users, Key(0).hashed("personal"))
        columns, scale = np.ones((0, 0), dtype=bool), np.ones(0, dtype=self.dtype)
        cohort = fedmf_kernels.Cohort(whom, whom, seeds, np.ones(block.n_users, dtype=bool))
        moving = fedmf_kernels.Moving(0.0, columns, scale)
        out = self._empty_upload(block.n_users, 0, 0, items.dtype)
        _visit(layout, feedback, cohort, config, items, moving, users, out)

    @property
    def n_columns(self):
        """Columns of an upload."""
        return self.n_factors

    @property
    def n_count_columns(self):
        """Columns of the visits: one for all of an item's coordinates."""
        return 1

    def columns(self, block, key):
        """Return the coordinates that each client trains, (n_clients, n_columns), dtype bool."""
        return np.ones((block.n_clients, self.n_columns), dtype=bool)

    def rate_and_length(self):
        """Return the items' learning rate, and by what their changes are divided when sent."""
        return float(self.learning_rate), 1.0

    def _moving(self, block, columns):
        rate, length = self.rate_and_length()
        by_size = self.aggregation == "data_size"
        scale = data_sizes(block) if by_size else np.ones(block.n_clients)
        return fedmf_kernels.Moving(rate, columns, (scale / length).astype(self.dtype))

    def _empty_upload(self, n_clients, n_own, n_items, dtype):
        """Return arrays for `n_own` rows that clients send, or for sums of `n_items` rows."""
        return fedmf_kernels.Upload(
            n_items == 0,
            np.zeros(n_clients + 1, np.int64),
            np.empty(n_own, np.int32),
            np.empty((n_own, self.n_columns), dtype),
            np.zeros((n_items, self.n_columns)),
            np.zeros((n_items, self.n_count_columns), dtype=np.int64),
        )

    # -------------------------------------------------------------------- on the server

    def mean_update(self, upload):
        """Return the mean of the clients' updates, by `aggregation`."""
        sums = upload["updates"].sum
        if self.aggregation == "data_size":
            return sums / upload["data_size"].sum
        if self.aggregation == "reptile":
            # Algorithm 2 of Nichol, Achiam and Schulman, arXiv:1803.02999.
            return self.length_of_step(len(sums)) / upload.n_clients * sums
        return sums / np.maximum(upload["n_visits"].sum, 1)

    def length_of_step(self, n_items):
        """Return the length of the server's step, as a multiple of the mean, with "reptile"."""
        if self.server_learning_rate != "auto":
            return self.server_learning_rate
        return min(max(1.0, n_items / ITEMS_PER_UNIT), LONGEST)

    # ------------------------------------------------------------------------ the model

    def server_attributes(self, message):
        return {"item_factors_": final_items(message)} | super().server_attributes(message)

    def model(self, fitted):
        return Factors.of(fitted, response=self.response)


def _visit(layout, feedback, cohort, config, items, moving, users, out):
    """Train a cohort; return sums of losses and of their weights."""
    work = fedmf_kernels.scratch(layout, cohort.active, config, items)
    return fedmf_kernels.visit(layout, feedback, cohort, config, items, moving, users, work, out)


def final_items(message):
    """Return the item matrix of a final message."""
    averaged = "average_items" in message
    return message["average_items" if averaged else "item_factors"].values


@dataclass(eq=False, repr=False)
class AveragedItems(AveragingParameters, LearnsFromFeedback):
    """Base class of the estimators whose algorithm is FedMF's or derived from it."""

    _: KW_ONLY
    n_rounds: AtLeast1 = 200
    client_fraction: Above0To1 = 0.2

    _kind: ClassVar[type[FedMFAlgorithm]] = FedMFAlgorithm
    _user_width = "n_factors"

    @property
    def _averages(self):
        # With early stopping clients measure the model that they receive.
        return self.averaging and not self.early_stopping

    def _least_bytes(self, data):
        # The mean update beside the sum.
        return super()._least_bytes(data) + 8 * data.n_items * self._algorithm().n_columns


@documented
@dataclass(eq=False, repr=False)
class FedMF(AveragedItems):
    """Federated matrix factorisation: averaging of an item matrix, user vectors kept private.

    Each round a few clients receive the item matrix Q, train it and their own users' vectors p_u
    by some epochs of mini-batch SGD on their own data, and upload the change of Q; the server adds
    the mean of these changes. This is FedAvg [1]_ on a matrix factorisation, and the base model
    of CoLR [2]_.

    By default the feedback is implicit: rows of X with y > 0 (all, if y is None) are positives
    with target 1, rows with y <= 0 have target 0, and each positive brings `n_negatives` items
    that its user has not rated, with target 0. The loss is the cross-entropy of the sigmoid of
    p_u . q_i, and `predict` gives that sigmoid, the probability of a positive. With
    ``loss="squared"`` the rows' y are ratings, estimated by ``global_bias_ + p_u . q_i``; it
    remains a ranking model, whose `score` is NDCG@10.

    Parameters
    ----------
    n_factors : int, default=64
        Length of p_u and q_i (d).
    n_rounds : int, default=200
        Number of rounds in total (T).
    loss : {"bce", "squared"}, default="bce"
        Cross-entropy with sampled negatives, or half the squared error of ratings, without.
    n_negatives : int, default=4
        Number of sampled negatives per positive. A client redraws them in each round and keeps
        them over its epochs. They are drawn uniformly, with replacement, from the items without a
        training row of the user; users who have rated everything get none.
    local_epochs : int, default=2
        Number of passes of a client over its examples per round (E).
    batch_size : int, default=64
        Number of examples in a mini-batch; an epoch's last one may be smaller.
    learning_rate : float, default=0.5
        Step of SGD (eta).
    reg : float, default=2e-3
        Weight of ``|p_u|^2 + |q_i|^2`` in the loss of each example.
    aggregation : {"visits", "data_size", "reptile"}, default="visits"
        What the server divides an item's summed updates by. "visits": by the number of
        clients that visited the item, as positive or as sampled negative. "data_size": the mean
        over the round's clients, weighted by their number of ratings; clients that did not visit
        an item slow its change down. "reptile": the plain mean over the round's clients, whose
        number is public, so that clients send their changes only; see :class:`PrivRec`.
    server_learning_rate : float or "auto", default="auto"
        Length of the server's step, as a multiple of that mean; only with "reptile". "auto": 1 for
        each 185 items, at least 1 and at most 20.
    shrinkage : float, default=0.5
        Smallest total weight decay of a user's examples in each epoch. It matters for users with
        fewer than about 50 rows, for which `reg` alone overfits. 0 disables it.
    averaging : bool, default=True
        Whether the final item matrix is the server's average over the rounds, with more weight on
        later ones, instead of the last one. With `early_stopping` it is the best one that clients
        measured. Averaging sends no further bytes and reduces noise on small data.
    {shared parameters}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors), dtype float32
        p_u after `local_epochs` more on the final item matrix; private to the client.
    item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        The server's Q.
    global_bias_ : float
        Mean rating; only with ``loss="squared"``.
    {shared attributes}

    Raises
    ------
    ValueError
        By fit: with local differential privacy, if no y is positive, if `n_negatives` is above
        4 and above what any user has left unseen, or if the clients diverge.

    See Also
    --------
    CoLR : The same with updates of low rank.
    SCoLR : The same with a rank for each client.
    PrivRec : The same with another mean, for differential privacy.

    Notes
    -----
    *Algorithm*::

        set-up, with loss="squared": clients send sums of ratings    answer
        each round
          1  server sends Q                                          broadcast
          2  clients draw negatives                                  kernel draw_examples
          3  in each batch, every q_i of it takes one step,          kernel move_items
          4  ... and every p_u, both on the mean of their gradients  kernel move_users
          5  clients upload the change of Q, and what they visited   kernel visit
          6  server adds the mean over the visitors of each item     step
        at the end
          7  server sends its average of Q                           final
          8  clients fit p_u to it                                   personalize: kernel visit

    *What is sent.* Each round down: Q, ``4 m d`` bytes per client for m items. Up: the change of
    Q, ``4 m d`` bytes, and for each item whether the client visited it, m bytes; with "data_size"
    the client's number of ratings in their place, and with "reptile" nothing. With
    ``loss="squared"`` also once: up, the client's sum of ratings and their number; down, the mean.
    At the end, down: the final Q.

    *What it reveals.* In plaintext the rows that are not zero are the visited items, a fifth of
    them positives, and the size of a row reveals which. Only sums over clients are used.

    *Weights.* `sample_weight` multiplies an example's loss; a negative has the weight of its
    positive. It is divided by its mean on the client, so that its scale does not change step sizes.

    *Final vectors.* A client that took part in a round fits p_u for `local_epochs` more, with the
    final items fixed; one that never did, and every new user, trains 20 epochs from zero. Under
    early stopping the clients of each round do so before they train.

    *The name* is also that of a method of Chai and others [3]_, which fits squared errors of
    ratings and encrypts its gradients: :class:`ExplicitFCF`.

    References
    ----------
    .. [1] B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Aguera y Arcas,
       "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
    .. [2] N.-H. Nguyen, T.-A. Nguyen, T. Nguyen, V. T. Hoang, D. D. Le and K.-S. Wong, "Towards
       Efficient Communication and Secure Federated Recommendation System via Low-rank
       Training", WWW 2024.
    .. [3] D. Chai, L. Wang, K. Chen and Q. Yang, "Secure Federated Matrix Factorization", IEEE
       Intelligent Systems 36(5), 2020.

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

    n_factors: AtLeast1 = 64
    _: KW_ONLY
    aggregation: Literal["visits", "data_size", "reptile"] = "visits"
    server_learning_rate: Positive | Literal["auto"] = "auto"
    shrinkage: NotNegative = 0.5
    averaging: bool = True
