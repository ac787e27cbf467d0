"""FedMF: federated averaging of an item matrix (McMahan et al. 2017; Chai et al. 2020)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import ClassVar, Literal

import numpy as np

from fedrecsk._utils.docs import documented
from fedrecsk._utils.sklearn_compat import Interval, StrOptions
from fedrecsk.base import linear_scores
from fedrecsk.federated._feedback import LearnsFromFeedback, fedmf_kernels
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.messages import Dense, Message
from fedrecsk.updates import FieldSpec, SparseRows, Updates

# Epochs on the final items of a user whose client was in no round.
EPOCHS_OF_THE_NEW = 20
# The server's step with "reptile". The more items, the fewer clients visit a given one. From HR@10
# on validation rows of MovieLens-1M (benchmarks.private_rankings settings); with few items that all
# visit, steps above 1 explode.
ITEMS_PER_UNIT = 185
LONGEST = 20.0


@dataclass(eq=False, repr=False)
class AveragedItems(LearnsFromFeedback):
    """Base class of FedMF, CoLR and FedFast: an item matrix trained by federated averaging."""

    _: KW_ONLY
    n_factors: int = 64
    n_rounds: int = 200
    local_epochs: int = 2
    batch_size: int = 64
    learning_rate: float = 0.5
    reg: float = 2e-3
    aggregation: Literal["visits", "data_size"] = "visits"
    client_fraction: float = 0.2

    _parameter_constraints: ClassVar[dict] = LearnsFromFeedback._parameter_constraints | {
        "n_factors": [Interval(Integral, 1, None, closed="left")],
        "local_epochs": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "reg": [Interval(Real, 0, None, closed="left")],
        "aggregation": [StrOptions({"visits", "data_size"})],
    }

    INIT_STD = 0.03
    # How much more later rounds count: the average is of the last tenth of the rounds, roughly.
    EMPHASIS = 9
    # By what all vectors are multiplied before an update with new rows. A fit that ends where it
    # has learned the old rows by heart learns little from new ones (Ash and Adams, "On
    # warm-starting neural network training", NeurIPS 2020).
    KEPT = 0.5
    # Parameters of FedMF and CoLR.
    shrinkage: ClassVar[float] = 0.0
    averaging: ClassVar[bool] = False

    _single_uploads = True
    _dtype = np.float32
    _user_width = "n_factors"
    _carried = ("item_factors",)

    # --------------------------------------------------------------- before the rounds

    def _begin(self, catalogue, sums, key):
        shape = (catalogue.n_items, self.n_factors)
        items = self.INIT_STD * key.generator("item factors").standard_normal(shape)
        server = {"item_factors": items.astype(self._dtype), **self._mean_rating(sums)}
        if self._averages:
            server |= {"average_items": server["item_factors"], "n_averaged": 0}
        return server

    @property
    def _averages(self):
        """Whether the final model is an average; clients measure the model that they receive."""
        return self.averaging and not self.early_stopping

    def _resumed(self, server, before, places):
        state = super()._resumed(server, before, places)
        return state | {"item_factors": state["item_factors"] * self._dtype(self.KEPT)}

    def _recalled(self, state, remembered):
        known, _ = remembered["users"]
        state = super()._recalled(state, remembered)
        state["users"][known] *= self.KEPT
        return state

    # ---------------------------------------------------------------------- each round

    def _model(self, server):
        return Message(item_factors=Dense(server["item_factors"]))

    def _init_clients(self, block, message, key):
        coordinates = block.users[:, None] * self.n_factors + np.arange(self.n_factors)
        users = self.INIT_STD * key.private.at(-1).normal("user factors", coordinates)
        return {
            "feedback": self._feedback(block, message),
            "users": users.astype(self._dtype),
        }

    def _least_bytes(self, data):
        # The mean update beside the sum.
        return super()._least_bytes(data) + 8 * data.n_items * self._n_columns

    def _upload_specs(self, n_items):
        specs = {"updates": FieldSpec((n_items, self._n_columns))}
        if self.aggregation == "data_size":
            return specs | {"data_size": FieldSpec((1,), learned=False)}
        if self.aggregation == "reptile":
            return specs
        counts = FieldSpec((n_items, self._n_count_columns), dtype="uint8", learned=False)
        return specs | {"n_visits": counts}

    def _client_update(self, block, state, message, turn, key):
        items, layout, config = message["item_factors"].values, self._layout(block), self._config()
        columns, is_finite = self._columns(block, key), np.ones(block.n_clients, dtype=bool)
        seeds, users = key.private.hashed("visit", block.clients), state["users"]
        cohort = fedmf_kernels.Cohort(turn.active, turn.delivers, seeds, is_finite)
        n_own, n_items = 0, block.n_items
        if turn.separate:
            # No client visits more items than it has examples.
            n_examples = np.diff(block.rating_indptr) * (1 + config.n_negatives)
            n_own, n_items = np.minimum(n_examples, block.n_items)[turn.active].sum(), 0
        out = self._empty_upload(block.n_clients, n_own, n_items, items.dtype)
        work = fedmf_kernels.scratch(layout, turn.active, config, items)
        moving, feedback = self._moving(block, columns), state["feedback"]
        loss = fedmf_kernels.visit(
            layout, feedback, cohort, config, items, moving, users, work, out
        )
        fields = self._fields(block, turn, columns, is_finite, out)
        return state, Updates(fields, is_finite=is_finite), loss

    def _empty_upload(self, n_clients, n_own, n_items, dtype):
        """Return arrays for `n_own` rows that clients send, or for sums of `n_items` rows."""
        return fedmf_kernels.Upload(
            n_items == 0,
            np.zeros(n_clients + 1, np.int64),
            np.empty(n_own, np.int32),
            np.empty((n_own, self._n_columns), dtype),
            np.zeros((n_items, self._n_columns)),
            np.zeros((n_items, self._n_count_columns), dtype=np.int64),
        )

    def _fields(self, block, turn, columns, is_finite, out):
        sizes, indptr = self._data_sizes(block), out.indptr
        if turn.separate:
            rows, values = out.rows[: indptr[-1]], out.values[: indptr[-1]]
            fields = {
                "updates": SparseRows(indptr, rows, values),
                "data_size": SparseRows.stacked(sizes[:, None]),
                "n_visits": SparseRows(indptr, rows, self._visits(indptr, columns)),
            }
        else:
            senders = turn.active & turn.delivers & is_finite
            size = sizes[senders].sum(keepdims=True)
            fields = {"updates": out.sums, "data_size": size, "n_visits": out.n_visits}
        specs = self._upload_specs(block.n_items)
        return {name: fields[name] for name in specs if name in fields}

    def _aggregate(self, server, upload, key):
        if upload is None:
            return server
        return server | self._moved_items(server, self._mean_update(upload))

    def _moved_items(self, server, update):
        """Return the server's item matrix after an update, and its average.

        With polynomial decay (Shamir and Zhang, ICML 2013), which needs no length of a window.
        """
        items = (server["item_factors"] + update).astype(self._dtype)
        if not self._averages:
            return {"item_factors": items}
        n, average = server["n_averaged"] + 1, server["average_items"]
        weight = self._dtype((self.EMPHASIS + 1) / (n + self.EMPHASIS))
        average = average + weight * (items - average)
        return {"item_factors": items, "average_items": average, "n_averaged": n}

    def _final_model(self, server):
        if not self._averages:
            return super()._final_model(server)
        return Message(average_items=Dense(server["average_items"]))

    # ------------------------------------------------------------------------- the end

    def _personalize(self, block, state, message, turn, key):
        active, trained = block.users_of(turn.active), np.zeros(block.n_users, dtype=bool)
        users = np.zeros((block.n_users, self.n_factors), dtype=self._dtype)
        if state is not None:
            trained = active & np.isfinite(state["users"]).all(axis=1)
            users[trained] = state["users"][trained]
        feedback = self._feedback(block, message) if state is None else state["feedback"]
        new = active & ~trained
        for whom, n_epochs in ((new, EPOCHS_OF_THE_NEW), (trained, self.local_epochs)):
            self._fit_users(block, feedback, message, whom, n_epochs, users)
        return {"users": users}

    def _final_items(self, message):
        """Return the item matrix of a final message."""
        averaged = "average_items" in message
        return message["average_items" if averaged else "item_factors"].values

    def _server_attributes(self, message):
        attributes = {"item_factors_": self._final_items(message)}
        if self.loss == "squared":
            attributes["global_bias_"] = float(message["global_bias"].values[0])
        return attributes

    def _user_attributes(self, block, state):
        return {"user_factors_": state["users"]}

    # ------------------------------------------------------------------- on the clients

    def _config(self, **changes):
        config = fedmf_kernels.Config(
            n_negatives=self.n_negatives if self.loss == "bce" else 0,
            local_epochs=self.local_epochs,
            batch_size=self.batch_size,
            learning_rate=float(self.learning_rate),
            reg=float(self.reg),
            shrinkage=float(self.shrinkage),
            squared=self.loss == "squared",
            frozen=False,
        )
        return config._replace(**changes)

    def _fit_users(self, block, feedback, message, whom, n_epochs, users):
        """Train the vectors of the users in a mask, in place, with the items fixed."""
        items, config = self._final_items(message), self._config(local_epochs=n_epochs, frozen=True)
        # Each user is like a client.
        layout = self._layout(block)._replace(client_indptr=np.arange(block.n_users + 1))
        # A user's vector must not depend on which others are computed, or when.
        seeds = np.full(block.n_users, Key(0).hashed("personal"))
        columns, scale = np.ones((0, 0), dtype=bool), np.ones(0, dtype=self._dtype)
        cohort = fedmf_kernels.Cohort(whom, whom, seeds, np.ones(block.n_users, dtype=bool))
        moving = fedmf_kernels.Moving(0.0, columns, scale)
        work = fedmf_kernels.scratch(layout, whom, config, items)
        out = self._empty_upload(block.n_users, 0, 0, items.dtype)
        fedmf_kernels.visit(layout, feedback, cohort, config, items, moving, users, work, out)

    @property
    def _n_columns(self):
        """Columns of an upload."""
        return self.n_factors

    @property
    def _n_count_columns(self):
        """Columns of the visits: one for all of an item's coordinates."""
        return 1

    def _columns(self, block, key):
        """Return the coordinates that each client trains, (n_clients, n_columns), dtype bool."""
        return np.ones((block.n_clients, self._n_columns), dtype=bool)

    def _rate_and_length(self):
        """Return the items' learning rate, and by what their changes are divided when sent."""
        return float(self.learning_rate), 1.0

    def _moving(self, block, columns):
        rate, length = self._rate_and_length()
        by_size = self.aggregation == "data_size"
        scale = self._data_sizes(block) if by_size else np.ones(block.n_clients)
        return fedmf_kernels.Moving(rate, columns, (scale / length).astype(self._dtype))

    def _visits(self, indptr, columns):
        """Return a one for each item that a client has visited, client by client."""
        return np.ones((indptr[-1], 1), dtype=np.uint8)

    # -------------------------------------------------------------------- on the server

    def _mean_update(self, upload):
        """Return the mean of the clients' updates, by `aggregation`."""
        sums = upload["updates"].sum
        if self.aggregation == "data_size":
            return sums / upload["data_size"].sum
        if self.aggregation == "reptile":
            # Algorithm 2 of Nichol, Achiam and Schulman, arXiv:1803.02999.
            return self._length_of_step(len(sums)) / upload.n_clients * sums
        return sums / np.maximum(upload["n_visits"].sum, 1)

    def _upload_moving(self, view, rows, moves):
        if self.aggregation == "data_size":
            own = np.bincount(view.data.clients, view.data.weights)
            divisor = view.n_senders * own[own > 0].mean()
        elif self.aggregation == "reptile":
            divisor = view.n_senders / self._length_of_step(len(view.item_vectors))
        else:
            divisor = view.n_expected("updates")
        return {"updates": divisor / view.n_own * moves}

    def _length_of_step(self, n_items):
        rate = getattr(self, "server_learning_rate", "auto")
        if rate != "auto":
            return rate
        return min(max(1.0, n_items / ITEMS_PER_UNIT), LONGEST)

    # --------------------------------------------------------------------- predictions

    def _raw_scores(self, users, items):
        return linear_scores(users, items, *self._linear_part())


@documented
@dataclass(eq=False, repr=False)
class FedMF(AveragedItems):
    """Federated matrix factorisation: averaging of an item matrix, user vectors kept private.

    Each round a few clients receive the item matrix Q, train it and their own users' vectors p_u
    by some epochs of mini-batch SGD on their own data, and upload the change of Q; the server adds
    the mean of these changes. This is FedAvg [1]_ on a matrix factorisation [2]_, and the base
    model of CoLR [3]_.

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
        fewer than about 50 rows, for which `reg` alone overfits. 0: no such limit.
    averaging : bool, default=True
        Whether the final item matrix is the server's average over the rounds, with more weight on
        later ones, instead of the last one. With `early_stopping` it is the best one that clients
        have measured. Averaging sends no further bytes and removes noise if data are few.
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

        set-up, with loss="squared": clients send sums of ratings    _setup_update
        each round
          1  server sends Q                                          _model
          2  clients draw negatives                                  kernel draw_examples
          3  in each batch, every q_i of it takes one step,          kernel move_items
          4  ... and every p_u, both on the mean of their gradients  kernel move_users
          5  clients upload the change of Q, and what they visited   kernel visit
          6  server adds the mean over the visitors of each item     _aggregate
        at the end
          7  server sends its average of Q                           _final_model
          8  clients fit p_u to it                                   _personalize: kernel visit

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

    n_factors: int = 64
    _: KW_ONLY
    aggregation: Literal["visits", "data_size", "reptile"] = "visits"
    server_learning_rate: float | Literal["auto"] = "auto"
    shrinkage: float = 0.5
    averaging: bool = True

    _parameter_constraints: ClassVar[dict] = AveragedItems._parameter_constraints | {
        "aggregation": [StrOptions({"visits", "data_size", "reptile"})],
        "server_learning_rate": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"auto"}),
        ],
        "shrinkage": [Interval(Real, 0, None, closed="left")],
        "averaging": ["boolean"],
    }
