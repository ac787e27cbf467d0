"""SemiDFEGL (Qu et al., 2023): ego graphs that share predicted items within groups of devices."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral
from typing import Annotated, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist
from scipy.special import softmax

from fedrecsk._utils.constraints import AtLeast0, AtLeast1, Positive
from fedrecsk._utils.docs import documented
from fedrecsk._utils.parameters import constant
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.base import RatingMixin
from fedrecsk.federated._optimizers import adam
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.federated.papers import explicit_fcf
from fedrecsk.federated.papers.explicit_fcf import (
    RatingAlgorithm,
    RatingParameters,
    loss_of,
    rated_by,
)
from fedrecsk.protocol import states
from fedrecsk.protocol.algorithm import MeetsPeers, Traits
from fedrecsk.protocol.messages import Form, GroupMessages, Message, PerClient, Rows
from fedrecsk.updates import FieldSpec, SparseRows, Updates

__all__ = ["SemiDFEGL"]

# Steps of fuzzy c-means, which stops once no number of a centre moves further than this.
MAX_STEPS, TOLERANCE = 50, 1e-4


class EgoGraphs(NamedTuple):
    """The users' surroundings in the last round that their client took part in."""

    # (n_users, 1) each
    n_common: np.ndarray  # number of predicted items that the user is connected to (k)
    own: np.ndarray  # share of own items among its neighbours
    scale: np.ndarray  # 1 / sqrt(degree)
    # (n_users, d) each
    common: np.ndarray  # sum of the predicted items, divided by the root of their degree
    peers: np.ndarray  # mean of what the devices of the group have sent
    first: np.ndarray  # layer 1


class Groups(NamedTuple):
    """The groups of devices, and the items predicted for each."""

    of_client: np.ndarray  # (n_clients,) int32, -1 where the server does not know the embedding
    n_devices: np.ndarray  # (n_groups,), which may be zero
    items: np.ndarray  # (n_groups, n_common), codes; an item may be in several groups

    @property
    def scales(self) -> np.ndarray:
        """1 / sqrt(degree) of the items of each group, which its devices are connected to."""
        return 1 / np.sqrt(np.maximum(self.n_devices, 1))


@dataclass(frozen=True, eq=False)
class Devices(PerClient):
    """The group of each client, which receives the ids of the `n_others` other devices in it."""

    _: KW_ONLY
    n_others: np.ndarray

    def _n_values(self, n_held):
        return self.n_others


NO_LOCAL_DP = (
    "its set-up counts ratings in plaintext, and what devices send to each other is neither "
    "clipped nor noised. Use RFRec for local differential privacy."
)
NO_AGGREGATOR = (
    "its server takes gradients of predicted items and embeddings from single uploads, so the "
    "aggregator would have no effect on them; set aggregator=None."
)


@dataclass(frozen=True)
class SemiDFEGLServer(explicit_fcf.RatingServer):
    """What the server knows: items, and the clients' embeddings and groups."""

    # (n_clients, d), and whether a client has sent its own.
    embeddings: np.ndarray
    known: np.ndarray
    groups: Groups


@dataclass
class SemiDFEGLClients(explicit_fcf.RatingClients):
    """Users of a block, with what they need of their last round."""

    # Adam's moments and steps, of each user.
    moments: np.ndarray
    n_steps: states.PerUser
    graph: EgoGraphs
    # By rating.
    errors: np.ndarray
    # Gradients by (b_u, z_u), and what the other devices add to them.
    gradients: states.PerUser
    pull: states.PerUser
    # z_u of the last round.
    embeddings: states.PerUser
    # The last round with an exchange.
    met: states.PerClient


@dataclass(eq=False, repr=False)
class SemiDFEGLParameters(RatingParameters):
    """Parameters of SemiDFEGL."""

    _: KW_ONLY
    n_layers: Annotated[int, Interval(Integral, 2, 3, closed="both")] = 2
    n_groups: AtLeast1 = 10
    n_common: AtLeast0 = 20
    user_learning_rate: Positive = 0.02
    FUZZINESS: float = constant(1.2)  # exponent of the shares; towards 1, clusters are hard
    CLUSTER_EVERY: int = constant(10)  # rounds, beginning with the first


@dataclass(kw_only=True, eq=False)
class SemiDFEGLAlgorithm(SemiDFEGLParameters, RatingAlgorithm, MeetsPeers[SemiDFEGLClients]):
    """Devices embed their users on graphs that connect them in groups."""

    @property
    def traits(self):
        return Traits(
            single_uploads=True,
            treats_clients_apart=True,
            # None, if ego graphs stay isolated.
            n_exchanges=2 if self.n_common else 0,
            refuses={"local_dp": NO_LOCAL_DP, "aggregator": NO_AGGREGATOR},
        )

    def downloads(self, n_items):
        common, group = Form((self.n_factors,), per_client=True), Form((), "int", per_client=True)
        return super().downloads(n_items) | {"common": common, "group": group}

    def begin(self, catalogue, sums, key):
        n_clients = catalogue.n_clients
        return SemiDFEGLServer(
            **vars(super().begin(catalogue, sums, key)),
            embeddings=np.zeros((n_clients, self.n_factors), dtype=self.dtype),
            known=np.zeros(n_clients, dtype=bool),
            groups=_no_groups(n_clients),
        )

    # ---------------------------------------------------------------- each round, down

    def broadcast(self, server, key):
        items = Rows(server.items)
        if not self.n_common:
            return Message(item_vectors=items)
        groups, common = server.groups, np.zeros_like(server.embeddings)
        n_others = np.zeros(len(common), dtype=np.int64)
        grouped = groups.of_client >= 0
        if grouped.any():
            of_client = groups.of_client[grouped]
            sums = self.without_bias(server.items)[groups.items].sum(axis=1)
            common[grouped] = (groups.scales[:, None] * sums)[of_client]
            n_others[grouped] = groups.n_devices[of_client] - 1
        return Message(
            item_vectors=items,
            common=PerClient(common),
            group=Devices(groups.of_client, "int32", learned=False, n_others=n_others),
        )

    # -------------------------------------------------- each round, on and among devices

    def fields(self, n_items):
        specs = {
            "gradient": FieldSpec((n_items, self.width), "held"),
            "embedding": FieldSpec((self.n_factors,)),
        }
        return specs | ({"common": FieldSpec((self.n_factors,))} if self.n_common else {})

    def enter(self, block, message, key):
        n, width, d = block.n_users, self.width, self.n_factors
        return SemiDFEGLClients(
            **vars(super().enter(block, message, key)),
            moments=np.zeros((2, n, width)),
            n_steps=np.zeros((n, 1)),
            graph=EgoGraphs(*np.zeros((3, n, 1)), *np.zeros((3, n, d))),
            errors=np.zeros(len(block.items), self.dtype),
            gradients=np.zeros((n, width)),
            pull=np.zeros((n, d)),
            embeddings=np.zeros((n, d)),
            met=np.full(block.n_clients, -1),
        )

    def exchange(self, block, clients, message, turn, step, key):
        groups = np.where(turn.active, message["group"].values, -1)
        users, graph = block.users_of(turn.active), clients.graph
        if step == 0:
            clients.met[turn.active] = key.round
            self._connect(block, graph, message, groups, users)
            sent = self.without_bias(clients.users) + (self.n_layers == 3) * graph.first
            messages = _by_client(block, graph.scale * sent) / _n_users(block)
        else:
            self._measure(block, clients, message, turn.active)
            messages = _by_client(block, graph.scale * self.without_bias(clients.gradients))
        return clients, GroupMessages(groups, messages)

    def after_exchange(self, block, clients, means, turn, step):
        users, graph = block.users_of(turn.active), clients.graph
        if step == 1:
            means = self._share * means / _n_users(block)
        means = np.repeat(means, np.diff(block.client_indptr), axis=0)[users]
        if step == 0:
            graph.peers[users] = means
        else:
            clients.pull[users] = graph.n_common[users] * means
        return clients

    def update(self, block, clients, message, turn, key):
        graph, alone = clients.graph, turn.active & (clients.met != key.round)
        if alone.any():
            # Devices that have no connection are left with their own ego graphs.
            users = block.users_of(alone)
            self._connect(block, graph, message, np.full(block.n_clients, -1), users)
            clients.pull[users] = 0
            self._measure(block, clients, message, alone)
        users, left = block.users_of(turn.active), self._left(clients)
        clients.embeddings[users] = self.without_bias(left)[users]
        # What gradients by z_u are by layer 0, by layer 1, and by the neighbours' layer 0.
        gradient = self.without_bias(clients.gradients)
        by_start = self._share * (1 + graph.own) * gradient + graph.scale * clients.pull
        by_first = by_start if self.n_layers == 3 else self._share * gradient
        through = np.zeros((block.n_users, self.width), self.dtype)
        self.without_bias(through)[:] = graph.scale * by_first
        errors, ones = clients.errors, np.ones(len(block.items), self.dtype)
        loss = loss_of(block, errors, clients.ratings.weights, turn.active)
        gradient, is_finite = self.by_item(block, turn, (errors, left), (ones, through))
        common = self.without_bias(_by_client(block, (graph.n_common > 0) * through))
        embedding = self.without_bias(_by_client(block, left)) / _n_users(block)
        is_finite &= np.isfinite(common).all(axis=1) & np.isfinite(embedding).all(axis=1)
        self._step_users(clients, by_start, users)
        fields = {"gradient": gradient, "embedding": SparseRows.stacked(embedding)}
        if self.n_common:
            fields["common"] = SparseRows.stacked(common)
        return clients, Updates(fields, is_finite=is_finite), loss

    # ------------------------------------------------------------------ the ego graphs

    @property
    def _share(self):
        """Weight of each layer in the embedding (alpha_l = 1 / (L + 1))."""
        return 1 / (self.n_layers + 1)

    def _connect(self, block, graph, message, groups, users):
        """Users' neighbours in this round: own items and, in a group, its predicted items."""
        of_user = np.repeat(np.arange(block.n_clients), np.diff(block.client_indptr))[users]
        n_own = np.diff(block.indptr)[users]
        n_common = np.where(groups[of_user] >= 0, min(self.n_common, block.n_items), 0)
        degree = np.maximum(n_own + n_common, 1)
        graph.n_common[users, 0] = n_common
        graph.own[users, 0] = n_own / degree
        graph.scale[users, 0] = 1 / np.sqrt(degree)
        graph.common[users] = 0
        if (groups >= 0).any():
            common = message["common"].values[of_user]
            graph.common[users] = np.where(n_common[:, None] > 0, common, 0)
        graph.peers[users] = 0
        graph.first[users] = self._first_layer(block, graph, message, users)

    def _first_layer(self, block, graph, message, users):
        """Return layer 1 of the users of a mask: the scaled sum of their neighbours."""
        ones = np.ones(len(block.items), self.dtype), block.items, block.indptr
        rated = csr_array(ones, shape=(block.n_users, block.n_items))[users]
        sums = rated @ self.without_bias(message["item_vectors"].values.astype(self.dtype))
        return graph.scale[users] * (sums + graph.common[users])

    def _embeddings(self, users, graph, first):
        """z_u: the mean of all layers."""
        layers = (1 + graph.own) * self.without_bias(users)
        layers = layers + (1 + (self.n_layers == 3) * graph.own) * first
        return self._share * (layers + graph.n_common * graph.scale * graph.peers)

    def _left(self, clients):
        """Return (1, z_u), the 1 with biases."""
        graph, left = clients.graph, self.with_ones(clients.users)
        self.without_bias(left)[:] = self._embeddings(clients.users, graph, graph.first)
        return left

    def _measure(self, block, clients, message, who):
        """Find the error of each rating of the clients of a mask, and gradients by (b_u, z_u)."""
        items, ratings = message["item_vectors"].values.astype(self.dtype), clients.ratings
        users = block.users_of(who)
        bias = np.zeros(block.n_users, self.dtype)
        if self.biases:
            bias[:] = clients.users[:, 0]
        errors = self.errors(block, ratings, who, self._left(clients), bias, items)
        places = rated_by(block, who)
        clients.errors[places] = errors[places]
        matrix = csr_array((errors, block.items, block.indptr), (block.n_users, block.n_items))
        gradients = matrix @ items
        if self.biases:
            gradients[:, 0] = matrix.sum(axis=1)
        clients.gradients[users] = gradients[users]

    def _step_users(self, clients, by_start, users):
        """Step each user of a mask, by Adam or gradient descent."""
        gradient = clients.gradients + clients.penalties * clients.users
        self.without_bias(gradient)[:] += by_start - self.without_bias(clients.gradients)
        n_ratings = np.maximum(clients.n_ratings[users], np.finfo(np.float64).tiny)
        gradient = gradient[users] / n_ratings[:, None]
        # A user whose numbers have overflowed stays where it is.
        gradient = np.where(np.isfinite(gradient).all(axis=1, keepdims=True), gradient, 0)
        if self.optimizer == "adam":
            clients.n_steps[users] += 1
            n_steps, moments = clients.n_steps[users], clients.moments
            gradient, moments[:, users] = adam(self, moments[:, users], n_steps, gradient)
        clients.users[users] -= self.user_learning_rate * gradient

    # ----------------------------------------------------------------- each round, server

    def step(self, server, upload, key):
        if upload is not None:
            server = self._learned(server, upload)
        if self.n_common and key.round % self.CLUSTER_EVERY == 0:
            given = server.embeddings, server.known, self.without_bias(server.items)
            sizes, generator = (self.n_groups, self.n_common), key.generator("centres")
            groups = _clustered(*given, *sizes, self.FUZZINESS, generator)
            server = replace(server, groups=groups)
        return server

    def _learned(self, server, upload):
        """Return the items after a step, and the embeddings that have come."""
        groups, items = server.groups, server.items
        embeddings, known = server.embeddings.copy(), server.known.copy()
        by_group = np.zeros((len(groups.items), self.n_factors))
        for code, one in upload.single():
            embeddings[code], known[code] = one["embedding"].change, True
            if groups.of_client[code] >= 0:
                by_group[groups.of_client[code]] += one["common"].change
        gradient = upload["gradient"].sum.astype(np.float64)
        for members, row in zip(groups.items, groups.scales[:, None] * by_group, strict=True):
            self.without_bias(gradient)[members] += row
        gradient = gradient / upload.n_clients + server.penalties * items
        return self.stepped(replace(server, embeddings=embeddings, known=known), gradient)

    # ------------------------------------------------------------------------- the end

    def personalize(self, block, clients, message, turn, key):
        if clients is None:
            return self._newcomers(block, message, key)
        everyone = np.ones(block.n_users, dtype=bool)
        first = self._first_layer(block, clients.graph, message, everyone)
        users = clients.users.copy()
        self.without_bias(users)[:] = self._embeddings(users, clients.graph, first)
        return replace(clients, users=users)

    def _newcomers(self, block, message, key):
        """Return users on their own ego graphs, whose p_u and b_u are solved for exactly."""
        clients = self.enter(block, message, key)
        graph, everyone = clients.graph, np.ones(block.n_users, dtype=bool)
        self._connect(block, graph, message, np.full(block.n_clients, -1), everyone)
        # z = slope p + offset.
        slope, offset = self._share * (1 + graph.own), clients.users.copy()
        self.without_bias(offset)[:] = self._embeddings(offset, graph, graph.first)
        items, ratings = message["item_vectors"].values.astype(self.dtype), clients.ratings
        rest = ratings.values - np.einsum("kf,kf->k", offset[ratings.users], items[ratings.items])
        ratings, penalties = ratings._replace(values=rest.astype(self.dtype)), clients.penalties
        self.without_bias(penalties)[:] /= slope**2
        users = np.zeros((block.n_users, self.width), dtype=self.dtype)
        self.fit_users(block, ratings, penalties, items, everyone, users)
        return replace(clients, users=users + offset)

    # ------------------------------------------------------------------------ the model

    def private_vectors(self, clients):
        return clients.embeddings


def _by_client(block, rows):
    """Return sums of the users' rows over each client."""
    if block.n_users == block.n_clients:
        return rows
    return np.add.reduceat(rows, block.client_indptr[:-1], axis=0)


def _n_users(block):
    """Return the number of users of each client, shape (n_clients, 1)."""
    return np.diff(block.client_indptr)[:, None]


# ---------------------------------------------------------------------------------- the groups


def _no_groups(n_clients):
    """Return the groups before anything is known: every client is on its own."""
    nothing = np.zeros(0, dtype=np.int64)
    return Groups(np.full(n_clients, -1, dtype=np.int32), nothing, nothing.reshape(0, 0))


def _clustered(embeddings, known, items, n_groups, n_common, fuzziness, generator):
    """Return groups, by direction, of the clients of a mask and of the items."""
    users = _directions(embeddings[known])
    distinct = np.unique(users, axis=0, return_index=True)[1]
    n_groups = min(n_groups, len(distinct))
    if n_groups == 0:
        return _no_groups(len(known))
    points = np.concatenate([users, _directions(items)])
    # The centres begin at clients that are drawn.
    centres = users[generator.permutation(np.sort(distinct))[:n_groups]]
    shares = _memberships(points, centres, fuzziness)
    of_client = np.full(len(known), -1, dtype=np.int32)
    of_client[known] = shares[: len(users)].argmax(axis=1)
    predicted = np.argsort(-shares[len(users) :], axis=0, kind="stable")[:n_common].T
    return Groups(of_client, np.bincount(of_client[known], minlength=n_groups), predicted)


def _memberships(points, centres, fuzziness):
    """Return each point's share in each cluster by fuzzy c-means from given centres (Bezdek 1981).

    It lowers ``sum_xk share_xk^fuzziness |x - centre_k|^2``, in turns for the shares (of each
    point, of sum 1) and for the centres.
    """
    for _ in range(MAX_STEPS):
        weights = _shares(points, centres, fuzziness) ** fuzziness
        # A cluster that has no weight keeps its centre.
        totals = weights.sum(axis=0)[:, None]
        moved = np.where(totals > 0, weights.T @ points / np.where(totals > 0, totals, 1), centres)
        is_still = np.abs(moved - centres).max() <= TOLERANCE
        centres = moved
        if is_still:
            break
    return _shares(points, centres, fuzziness)


def _shares(points, centres, fuzziness):
    squares = np.maximum(cdist(points, centres, "sqeuclidean"), 1e-12)
    # In logarithms, because powers of 1 / (fuzziness - 1) are large.
    return softmax(-np.log(squares) / (fuzziness - 1), axis=1)


def _directions(vectors):
    """Return vectors scaled to length 1; zero stays zero."""
    vectors = vectors.astype(np.float64)
    lengths = np.sqrt((vectors**2).sum(axis=1, keepdims=True))
    return vectors / np.where(lengths > 0, lengths, 1)


@documented
@dataclass(eq=False, repr=False)
class SemiDFEGL(SemiDFEGLParameters, RatingMixin, FederatedRecommender):
    """Graph convolution on devices, which exchange embeddings and gradients within groups.

    Each client knows its ego graph: its user and the items that the user has rated. It
    embeds the user by LightGCN's propagation [2]_, and uploads the embedding. The server clusters
    users and items, and predicts for each group of users the items closest to it. These common
    items connect the ego graphs of the group into one graph, on which embeddings and gradients
    travel directly from device to device [1]_. Together the clients minimise::

        1/2 sum_r w (r - level - b_u - b_i - z_u . e_i)^2
          + 1/2 sum_u [reg_user n_u^REG_POWER |p_u|^2 + reg_bias b_u^2]
          + 1/2 sum_i [reg_item n_i^REG_POWER |e_i|^2 + reg_bias b_i^2]

    where z_u is the mean of the user's layers, p_u is layer 0, and n_u and n_i count the ratings of
    user u and item i (the sum of their weights).

    Only the paper's abstract and the caption of its overview were available to us. The Notes list
    which equations, exchanges and defaults are ours.

    Parameters
    ----------
    n_factors : int, default=20
        Length of embeddings (d).
    n_layers : {2, 3}, default=2
        Number of propagation steps (L). With fewer than 2, nothing reaches other devices; with
        more than 3, devices would have to exchange embeddings twice.
    n_groups : int, default=10
        Number of clusters of users and items; with fewer clients, as many as there are.
    n_common : int, default=20
        Number of items predicted for each group (k). 0: no groups; ego graphs stay isolated, and
        nothing is sent from device to device.
    n_rounds : int, default=150
        Number of rounds in total.
    reg_user, reg_item, reg_bias, rating_scale
        As in :class:`ExplicitFCF`.
    learning_rate : float, default=0.02
        Size of the server's step on items.
    user_learning_rate : float, default=0.02
        Size of the clients' step on (b_u, p_u). The gradient is divided by n_u, which makes a
        difference only with ``optimizer="gd"``.
    optimizer : {"adam", "gd"}, default="adam"
        Whether server and clients use Adam, with moments of their own, or plain gradient descent.
    biases : bool, default=True
        Whether to model a level (the mean rating) and biases of users and items. LightGCN does
        not.
    {shared parameters}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors), dtype float32
        z_u with the final items and the group's messages of the client's last round.
    item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        The server's e_i.
    user_bias_, item_bias_, global_bias_, rating_scale_
        As in :class:`ExplicitFCF`.
    {shared attributes}

    Raises
    ------
    ValueError
        By fit: if ratings lie outside `rating_scale`; with `local_dp`, `central_dp`,
        `secure_aggregation` or an aggregator; if the clients diverge.

    See Also
    --------
    ExplicitFCF : Ratings without a graph, whose server needs only sums.

    Notes
    -----
    *Algorithm*::

        set-up  clients send sums and counts of ratings, and their items  answer, begin
        each round
          1  server sends e_i of own items, and to each client its group  broadcast
          2  clients embed their users up to layer 1                      _connect
          3  ... and send them to the other devices of the group          exchange, step 0
          4  clients finish z_u, their errors and gradients               after_exchange, _measure
          5  ... and send what the others' embeddings depend on           exchange, step 1
          6  clients step on (b_u, p_u); they upload z_u and gradients    update
          7  server takes a step on the items                             step, _learned
          8  every CLUSTER_EVERY rounds: soft clusters, common items      _clustered
        end
          9  server sends all items; clients propagate once more          personalize

    *Propagation.* In the graph of a group, user u is connected to its n_u own items, of which each
    device has its own copy of degree 1, and to the group's k common items, whose degree is the
    number N of its devices. With D_u = n_u + k, LightGCN's layers ``e^(l+1) = sum of neighbours'
    e^(l) / sqrt(product of the degrees)`` become::

        e_u^1     = (sum_own e_i + sum_common e_c / sqrt(N)) / sqrt(D_u)
        e_u^(l+2) = n_u / D_u e_u^l + k / sqrt(D_u) mean_v (e_v^l / sqrt(D_v))
        z_u       = mean of e_u^0 = p_u, e_u^1, ..., e_u^L

    with the mean over the group's devices. So all that a device needs of the others is the mean of
    ``(e_v^0 + [L = 3] e_v^1) / sqrt(D_v)``, which is one vector, and all that they need back is
    the mean of their derivatives by z, each divided by sqrt(D_v). Gradients are exact: they
    are those of the loss of all devices in the graph.

    *What is assumed.* Ratings, squared errors, biases and the penalties; fuzzy c-means on
    embeddings and items scaled to length 1; the `n_common` items of largest share as those
    predicted, and a user in the cluster of its largest share; messages to every other device of
    the group; Adam on both sides. A client of several users counts as one device, which sends the
    mean over its users. In the first round, and without a connection, ego graphs are isolated. If
    only a cohort takes part, it stands for its group.

    *What is sent.* Once, up: the client's sum and number of ratings, its items and its number of
    ratings of each; once, down: scale and level. Each round, down: (b_i, e_i) of own items, the sum
    of the group's common items, and the ids of its other devices, if there are any. Up: the
    gradients of own items and of the sum, and z_u. To every other device of the group: two
    vectors of d numbers. At the end, down: all items.

    *What it reveals.* To the server, everything: one upload gives z_u and the user's items
    exactly, and the ratings up to a constant (:func:`fedrecsk.audit.measure_leak`). To
    each device of the group, p_u and a weighted sum of the user's own items, up to their length.
    Therefore secure sums, local differential privacy and aggregators are refused.

    *Simulation only.* A :class:`~fedrecsk.deployment.Device` refuses groups, because devices cannot
    reach each other there.

    *New users*, and clients that took part in no round, have isolated ego graphs, for which (b_u,
    p_u) is solved exactly.

    References
    ----------
    .. [1] L. Qu, N. Tang, R. Zheng, Q. V. H. Nguyen, Z. Huang, Y. Shi and H. Yin,
       "Semi-decentralized Federated Ego Graph Learning for Recommendation", WWW 2023
       (arXiv:2302.10900), abstract and figure 2.
    .. [2] X. He, K. Deng, X. Wang, Y. Li, Y. Zhang and M. Wang, "LightGCN: Simplifying and Powering
       Graph Convolution Network for Recommendation", SIGIR 2020, equations 3 and 4.

    Examples
    --------
    >>> from fedrecsk import SemiDFEGL
    >>> from fedrecsk.datasets import make_ratings
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = SemiDFEGL(n_factors=8, n_rounds=20, n_groups=1, random_state=0).fit(X, y)
    >>> items, scores = model.recommend(X[:2, 0], n_recommendations=3)
    >>> items.shape
    (2, 3)
    >>> model.communication_.bytes_device_to_device == 19 * 2 * 60 * 59 * 4 * 8
    True
    """

    _: KW_ONLY
    n_rounds: AtLeast1 = 150
    learning_rate: Positive = 0.02

    _kind = SemiDFEGLAlgorithm
    _user_width = "n_factors"
    BETA_1 = 0.9

    def _least_bytes(self, data):
        # Users' moments, gradients and ego graphs.
        vectors = 8 * data.n_users * self.n_factors if self.client_fraction == 1 else 0
        return super()._least_bytes(data) + 8 * vectors
