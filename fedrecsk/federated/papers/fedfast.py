"""FedFast (Muhammad et al. 2020): cohorts from clusters of users, which also share updates."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal, cast

import numpy as np

from fedrecsk._utils.constraints import AtLeast1, NotNegative
from fedrecsk._utils.docs import documented
from fedrecsk._utils.parameters import constant
from fedrecsk._utils.sklearn_compat import get_threadpool_controller
from fedrecsk.federated import fedmf
from fedrecsk.federated.fedmf import (
    EPOCHS_OF_THE_NEW,
    AveragedItems,
    AveragingParameters,
    FedMFAlgorithm,
    FedMFClients,
)
from fedrecsk.protocol.algorithm import ChoosesCohorts
from fedrecsk.protocol.messages import Form, Message, PerClient
from fedrecsk.updates import FieldSpec, SparseRows

__all__ = ["FedFast"]


NO_AGGREGATOR = (
    "it weights single uploads itself, so the aggregator would have no effect; set "
    "aggregator=None, or aggregation='visits' and discount=None."
)


@dataclass(frozen=True)
class FedFastServer(fedmf.FedMFServer):
    """What the server knows: the items, and each client's vector and cluster."""

    # (n_clients, d), and (n_clients,) or None if nothing depends on clusters.
    vectors: np.ndarray | None = None
    clusters: np.ndarray | None = None


@dataclass(eq=False, repr=False)
class FedFastParameters(AveragingParameters):
    """Parameters of FedFast."""

    n_factors: AtLeast1 = 64
    _: KW_ONLY
    sampling: Literal["clusters", "federation"] = "clusters"
    aggregation: Literal["active", "visits", "data_size"] = "active"
    discount: NotNegative | None = 0.1
    n_clusters: AtLeast1 = 10
    cluster_every: AtLeast1 = 10
    # Epochs of users on the final items; 0: they keep the server's vectors, as in the paper.
    FINAL_EPOCHS: int = constant(0)


@dataclass(kw_only=True, eq=False)
class FedFastAlgorithm(FedFastParameters, FedMFAlgorithm, ChoosesCohorts[FedFastServer]):
    """FedMF's clients upload their vectors too, which the server clusters and moves."""

    @property
    def traits(self):
        traits, weights = super().traits, self.aggregation == "active" or self.discount is not None
        # The server keeps a vector and a cluster of each client of the fit.
        return replace(
            traits,
            treats_clients_apart=True,
            goes_on=False,
            chooses_cohorts=self.sampling == "clusters",
            admits_late_clients=False,
            refuses=traits.refuses | ({"aggregator": NO_AGGREGATOR} if weights else {}),
        )

    def downloads(self, n_items):
        vector = Form((self.n_factors,), per_client=True)
        return super().downloads(n_items) | {"client_vector": vector}

    # ------------------------------------------------------------------------- on the server

    def begin(self, catalogue, sums, key):
        shape = (catalogue.n_clients, self.n_factors)
        vectors = self.INIT_STD * key.generator("client vectors").standard_normal(shape)
        server = super().begin(catalogue, sums, key)
        return self.with_clusters(
            FedFastServer(**vars(server), vectors=vectors.astype(self.dtype)), key
        )

    def choose(self, server, n_clients, size, key):
        # Clients at even distances in the order of clusters: the same share of each cluster.
        chance = key.hashed("cohort", np.arange(n_clients))
        order = np.lexsort((chance, server.clusters))
        offset = int(n_clients * key.uniform("first of the cohort"))
        cohort = np.zeros(n_clients, dtype=bool)
        cohort[order[(np.arange(size) * n_clients + offset) // size]] = True
        return cohort

    def broadcast(self, server, key):
        return self.final(server)

    def final(self, server):
        return Message(**super().final(server), client_vector=PerClient(server.vectors))

    def step(self, server, upload, key):
        if upload is not None:
            update, codes, changes = self._learned(upload)
            vectors = self._moved_vectors(server, codes, changes, key.round)
            server = replace(self.moved(server, update), vectors=vectors.astype(self.dtype))
        if (key.round + 1) % self.cluster_every == 0:
            server = self.with_clusters(server, key)
        return server

    def _learned(self, upload):
        """Return the items' update, who has sent something, and the changes of their vectors."""
        codes, changes = [], []
        totals = np.zeros(upload["updates"].sum.shape)
        weights = np.zeros(len(totals))
        for code, one in upload.single():
            codes.append(code)
            changes.append(one["client_vector"].change)
            if self.aggregation == "active":
                rows, change = one["updates"]
                size = np.abs(change).sum(axis=1)
                weights[rows] += size
                totals[rows] += size[:, None] * change
        if self.aggregation == "active":
            update = totals / np.where(weights > 0, weights, 1)[:, None]
        else:
            update = self.mean_update(upload)
        return update, np.array(codes), np.stack(changes)

    def _moved_vectors(self, server, codes, changes, round):
        """Move clients' vectors: those of `codes` by their changes, others with their cluster."""
        moves = np.zeros(server.vectors.shape)
        if self.discount is not None:
            clusters = server.clusters
            sums = np.zeros((self.n_clusters, self.n_factors))
            np.add.at(sums, clusters[codes], changes)
            n_drawn = np.bincount(clusters[codes], minlength=self.n_clusters)
            means = sums / np.maximum(n_drawn, 1)[:, None]
            moves = np.exp(-self.discount * round) * means[clusters]
        moves[codes] = changes
        return server.vectors + moves

    def with_clusters(self, server, key):
        """Return the server's state with each client's cluster, if any are needed."""
        if self.sampling == "federation" and self.discount is None:
            return server
        n_clusters = min(self.n_clusters, len(np.unique(server.vectors, axis=0)))
        from sklearn.cluster import KMeans  # slow to load

        k_means = KMeans(n_clusters, random_state=int(key.hashed("clusters") >> np.uint64(32)))
        # Sums over several threads would be added up in any order.
        with get_threadpool_controller().limit(limits=1, user_api="openmp"):
            return replace(server, clusters=k_means.fit_predict(server.vectors))

    # ------------------------------------------------------------------------ on the clients

    def fields(self, n_items):
        specs = super().fields(n_items)
        if self.aggregation == "active":
            # The rows themselves say what was visited.
            specs = {"updates": FieldSpec((n_items, self.n_factors), rows="chosen")}
        return specs | {"client_vector": FieldSpec((self.n_factors,))}

    def enter(self, block, message, key):
        # The server sends the users' initial vectors.
        users = np.zeros((block.n_users, self.n_factors), dtype=self.dtype)
        return FedMFClients(self.feedback(block, message), users)

    def update(self, block, clients, message, turn, key):
        received, n_users = message["client_vector"].values, np.diff(block.client_indptr)
        begun = _placed(block, clients.users, received)
        visits = block.users_of(turn.active)[:, None]
        clients.users = np.where(visits, begun, clients.users)
        clients, updates, loss = super().update(block, clients, message, turn, key)
        # A client that has diverged goes back to its vectors before the update.
        is_finite = np.repeat(cast("np.ndarray", updates.is_finite), n_users)[:, None]
        clients.users = np.where(is_finite, clients.users, begun)
        change = _means(block, clients.users) - received
        return clients, updates.with_fields(client_vector=SparseRows.stacked(change)), loss

    def personalize(self, block, clients, message, turn, key):
        if clients is None:
            clients = self.enter(block, message, key)
        users, n_epochs = clients.users, EPOCHS_OF_THE_NEW
        if not _is_new(block):
            users = _placed(block, users, message["client_vector"].values)
            n_epochs = self.FINAL_EPOCHS
        whom = block.users_of(turn.active)
        self.fit_users(block, clients.feedback, message, whom, n_epochs, users)
        return replace(clients, users=users)

    def as_newcomers(self, block):
        # The server has no vector of theirs.
        return replace(block, clients=np.full_like(block.clients, -1))


@documented
@dataclass(eq=False, repr=False)
class FedFast(FedFastParameters, AveragedItems):
    """Federated averaging whose server stores the user vectors and moves those of absent clients.

    As in :class:`FedMF`, a few clients in each round train the item matrix Q and their users'
    vectors p_u on their own data, and upload their vectors too. The server clusters the vectors,
    draws the next cohorts in equal proportion from all clusters (ActvSAMP), and gives clients that
    moved an item further more weight on it. Clients that did not take part move by the mean change
    of their cluster (ActvAGG), so that users get useful vectors before their first round [1]_. The
    price is privacy: the server stores every user's vector.

    Feedback, negatives and losses are those of :class:`FedMF`. The paper's model, generalised
    matrix factorisation, scores h . (p_u * q_i); h is fixed to ones here, which a rescaling
    of p_u makes up for.

    Parameters
    ----------
    n_factors, n_rounds, loss, n_negatives, local_epochs, batch_size, learning_rate, reg
        As in :class:`FedMF`.
    sampling : {"clusters", "federation"}, default="clusters"
        How the cohort of a round is drawn. "clusters": the server draws the same share of each
        cluster, and the federation's `sampling` has no effect. "federation": by that `sampling`.
    aggregation : {"active", "visits", "data_size"}, default="active"
        How the server weights the clients' versions of an item. "active": by how far each has
        moved it, ``w_c = |change|_1``. "visits" and "data_size": as in :class:`FedMF`.
    discount : float or None, default=0.1
        Clients that did not take part in round t move by ``exp(-discount t)`` times their
        cluster's mean change (gamma_t). If None, they do not move.
    n_clusters : int, default=10
        Clusters of clients, found by k-means (p).
    cluster_every : int, default=10
        Number of rounds after which the clusters are recomputed.
    {shared parameters}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors), dtype float32
        p_u; known to the server.
    item_factors_, global_bias_
        As in :class:`FedMF`.
    {shared attributes}

    Raises
    ------
    ValueError
        By fit: under local differential privacy, secure aggregation or an aggregator (except with
        ``aggregation="visits"`` or "data_size" and ``discount=None``), if no y is positive, if
        `n_negatives` is above 4 and above what any user has left unseen, or if the clients diverge.

    See Also
    --------
    FedMF : The same without the server's knowledge of users.

    Notes
    -----
    *Algorithm*::

        server draws Q and a vector for each client; clusters them     begin
        each round
          1  server draws the same share of each cluster (ActvSAMP)    choose
          2  server sends Q, and to each client its vector             broadcast
          3  clients train Q and their vector on their own data        update: FedMF's
          4  clients upload the changes of both                        update
          5  q_i += sum_c w_c change_ci / sum_c w_c (ActvAGG)          step: _learned
          6  p_c += its change, or gamma_t times the cluster's mean    step: _moved_vectors
          7  every 10 rounds: k-means of all p_c                       step: with_clusters
        at the end
          8  server sends Q, and to each client its vector             final

    ``sampling="federation", aggregation="data_size", discount=None`` is plain federated averaging
    of this model, and ``aggregation="visits"`` in its place is what :class:`FedMF` does.

    *Clients of several users.* The vector of a client is the mean of its users' vectors. The
    differences from it stay on the client, and all move with it. The paper has one user per
    client.

    *What is sent.* Each round down: Q and the client's own vector, ``4 (m + 1) d`` bytes for m
    items. Up: the change of the vector, ``4 d`` bytes, and of the v items that were visited,
    with their indices, ``(4 d + 4) v`` bytes; with "visits" and "data_size" as in :class:`FedMF`.
    At the end, down: Q and the vector.

    *What it reveals.* Everything: the vectors of clients with one user are known to the server, and
    the rows that moved along a vector are the user's positives. So secure sums and ``local_dp``
    raise an error.

    *New users* have no vector on the server. They train for 20 epochs from zero with the final
    items.

    References
    ----------
    .. [1] K. Muhammad, Q. Wang, D. O'Reilly-Morgan, E. Tragos, B. Smyth, N. Hurley, J. Geraci and
       A. Lawlor, "FedFast: Going Beyond Average for Faster Training of Federated Recommender
       Systems", KDD 2020, algorithms 1 to 3.

    Examples
    --------
    >>> from fedrecsk import FedFast
    >>> from fedrecsk.datasets import make_ratings
    >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = FedFast(n_factors=8, n_rounds=50, random_state=0).fit(X)
    >>> items, scores = model.recommend(X[:2, 0], n_recommendations=3)
    >>> items.shape
    (2, 3)
    >>> model.privacy_.server_sees
    'single uploads'
    """

    _kind = FedFastAlgorithm


def _is_new(block):
    """Return whether the users of a block were not there at fit."""
    return bool((block.clients < 0).all())


def _means(block, users):
    """Return the mean of each client's user vectors, in their type."""
    if block.n_users == block.n_clients:
        return users
    n_users = np.diff(block.client_indptr)[:, None]
    sums = np.add.reduceat(users, block.client_indptr[:-1], axis=0)
    return (sums / n_users).astype(users.dtype)


def _placed(block, users, vectors):
    """Users' vectors, moved so that their means over each client are as the server has them."""
    n_users = np.diff(block.client_indptr)
    own = users - np.repeat(_means(block, users), n_users, axis=0)
    return np.repeat(vectors, n_users, axis=0).astype(users.dtype) + own
