"""FedFast (Muhammad et al. 2020): clusters of users give the cohorts, and share what they learn."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from typing import ClassVar, Literal

import numpy as np
from sklearn.cluster import KMeans
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.parallel import _get_threadpool_controller

from fedrecsk._docs import documented
from fedrecsk.attacks._inversion_fedfast import uploaded_vectors
from fedrecsk.federated._fedmf import EPOCHS_OF_THE_NEW, AveragedItems
from fedrecsk.simulation.messages import Message, PerClient
from fedrecsk.uploads import Form, Ragged


@documented
@dataclass(eq=False, repr=False)
class FedFast(AveragedItems):
    """Federated averaging whose server knows the user vectors and moves those of absent clients.

    DOC
    """

    n_factors: int = 64
    _: KW_ONLY
    sampling: Literal["clusters", "federation"] = "clusters"
    aggregation: Literal["active", "visits", "data_size"] = "active"
    discount: float | None = 0.1
    n_clusters: int = 10
    cluster_every: int = 10
    final_epochs: int = 0

    _parameter_constraints: ClassVar[dict] = AveragedItems._parameter_constraints | {
        "sampling": [StrOptions({"clusters", "federation"})],
        "aggregation": [StrOptions({"active", "visits", "data_size"})],
        "discount": [Interval(Real, 0, None, closed="left"), None],
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "cluster_every": [Interval(Integral, 1, None, closed="left")],
        "final_epochs": [Interval(Integral, 0, None, closed="left")],
    }

    _server_sees = "clients"
    _inversion = staticmethod(uploaded_vectors)

    # --------------------------------------------------------------- before the rounds

    def _init_server(self, catalogue, key):
        shape = (catalogue.n_clients, self.n_factors)
        vectors = self.init_std * key.generator("client vectors").standard_normal(shape)
        server = super()._init_server(catalogue, key)
        server["client_vectors"] = vectors.astype(self._dtype)
        return self._with_clusters(server, key)

    # ----------------------------------------------------------- each round: ActvSAMP

    def _choose_cohort(self, server, n_clients, size, key):
        if self.sampling == "federation":
            return None
        # In the order of their clusters, clients at even distances: of each cluster its share.
        chance = key.hashed("cohort", np.arange(n_clients))
        order = np.lexsort((chance, server["clusters"]))
        offset = int(n_clients * key.uniform("first of the cohort"))
        cohort = np.zeros(n_clients, dtype=bool)
        cohort[order[(np.arange(size) * n_clients + offset) // size]] = True
        return cohort

    def _model(self, server):
        own = PerClient(server["client_vectors"])
        return Message(**super()._model(server), client_vector=own)

    # ------------------------------------------------------------- each round: clients

    def _init_clients(self, block, message, key):
        state = super()._init_clients(block, message, key)
        # The server says where users begin.
        return state | {"users": np.zeros_like(state["users"])}

    def _upload_forms(self, n_items):
        forms = super()._upload_forms(n_items)
        if self.aggregation == "active":
            forms = {"updates": Form((n_items, self.n_factors), rows="chosen")}
        return forms | {"client_vector": Form((self.n_factors,))}

    def _client_update(self, block, state, message, turn, key):
        received, n_users = message["client_vector"].values, np.diff(block.client_indptr)
        begun = _placed(block, state["users"], received)
        visits = np.repeat(turn.active, n_users)[:, None]
        state["users"] = np.where(visits, begun, state["users"])
        state, uploads, loss = super()._client_update(block, state, message, turn, key)
        # Whoever has diverged goes back to where it began.
        sound = np.repeat(uploads.sound, n_users)[:, None]
        state["users"] = np.where(sound, state["users"], begun)
        change = _means(block, state["users"]) - received
        uploads["client_vector"] = Ragged.stacked(change)
        if self.aggregation == "active":
            # The rows themselves say what was visited.
            del uploads["n_visits"]
        return state, uploads, loss

    # ------------------------------------------------------------ each round: ActvAGG

    def _aggregate(self, server, message, upload, key):
        server = super()._aggregate(server, message, upload, key)
        if upload is not None:
            codes, changes = zip(
                *((code, one["client_vector"].change) for code, one in upload.single()), strict=True
            )
            vectors = self._moved(server, np.array(codes), np.stack(changes), key.round)
            server = server | {"client_vectors": vectors.astype(self._dtype)}
        if (key.round + 1) % self.cluster_every == 0:
            server = self._with_clusters(server, key)
        return server

    def _mean_update(self, upload):
        if self.aggregation != "active":
            return super()._mean_update(upload)
        shape = upload["updates"].sum.shape
        total, weight = np.zeros(shape), np.zeros((shape[0], 1))
        for _, one in upload.single():
            rows, change = one["updates"]
            size = np.abs(change).sum(axis=1, keepdims=True)
            total[rows] += size * change
            weight[rows] += size
        return total / np.where(weight > 0, weight, 1)

    def _moved(self, server, codes, changes, round):
        """Vectors of all clients: those of `codes` by their changes, others with their cluster."""
        moves = np.zeros(server["client_vectors"].shape)
        if self.discount is not None:
            clusters = server["clusters"]
            sums = np.zeros((self.n_clusters, self.n_factors))
            np.add.at(sums, clusters[codes], changes)
            n_drawn = np.bincount(clusters[codes], minlength=self.n_clusters)
            means = sums / np.maximum(n_drawn, 1)[:, None]
            moves = np.exp(-self.discount * round) * means[clusters]
        moves[codes] = changes
        return server["client_vectors"] + moves

    def _with_clusters(self, server, key):
        """The server's state with each client's cluster, if any are needed."""
        if self.sampling == "federation" and self.discount is None:
            return server
        vectors = server["client_vectors"]
        n_clusters = min(self.n_clusters, len(np.unique(vectors, axis=0)))
        k_means = KMeans(n_clusters, random_state=int(key.hashed("clusters") >> np.uint64(32)))
        # Sums over several threads would be added up in any order.
        with _get_threadpool_controller().limit(limits=1, user_api="openmp"):
            return server | {"clusters": k_means.fit_predict(vectors)}

    # ------------------------------------------------------------------------- the end

    def _personalize(self, block, state, message, key):
        if state is None:
            state = self._init_clients(block, message, key)
        users, n_epochs = state["users"], EPOCHS_OF_THE_NEW
        if not _is_new(block):
            users = _placed(block, users, message["client_vector"].values)
            n_epochs = self.final_epochs
        everybody = np.arange(block.n_users)
        self._fit_users(block, state["feedback"], message, everybody, n_epochs, users)
        return {"users": users}

    def _as_newcomers(self, block):
        # The server has no vector of theirs.
        return replace(block, clients=np.full_like(block.clients, -1))

    # ------------------------------------------------------------------------- checks

    def _check_before_fit(self):
        if self._setting().aggregator is not None and (
            self.aggregation == "active" or self.discount is not None
        ):
            raise ValueError(
                "FedFast weighs single uploads itself, so no aggregator would be asked; set "
                "aggregator=None, or aggregation='visits' and discount=None."
            )
        super()._check_before_fit()


def _is_new(block):
    """Whether the users of a block were not there at fit."""
    return bool((block.clients < 0).all())


def _means(block, users):
    """The mean of each client's user vectors, in their type."""
    n_users = np.diff(block.client_indptr)[:, None]
    sums = np.add.reduceat(users, block.client_indptr[:-1], axis=0)
    return (sums / n_users).astype(users.dtype)


def _placed(block, users, vectors):
    """Users' vectors, moved so that their means over each client are as the server has them."""
    n_users = np.diff(block.client_indptr)
    own = users - np.repeat(_means(block, users), n_users, axis=0)
    return np.repeat(vectors, n_users, axis=0).astype(users.dtype) + own
