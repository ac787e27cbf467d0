"""GPFedRec: item tables of each user's own, averaged over a graph of users (Zhang et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from fedrecsk._utils.constraints import AtLeast1, From0To1
from fedrecsk._utils.docs import documented
from fedrecsk.federated._feedback import NO_LOCAL_DP
from fedrecsk.neural import _averaging
from fedrecsk.neural._layout import Recipe
from fedrecsk.neural._modules import ModuleScores
from fedrecsk.neural.base import NeuralRecommender, Optimizer
from fedrecsk.neural.modules import MLP, PersonalMLP
from fedrecsk.neural.pfedrec import ITEMS, PACE, PFedRecAlgorithm, PFedRecParameters
from fedrecsk.protocol.algorithm import Traits
from fedrecsk.protocol.messages import Form, PerClient
from fedrecsk.updates import FieldSpec

__all__ = ["GPFedRec"]

NO_AGGREGATOR = (
    "the server averages the item tables of similar clients itself, so the aggregator would have "
    "no effect. Use PFedRec."
)


@dataclass(frozen=True)
class GPFedRecServer(_averaging.ModuleServer):
    """What the server knows, with a table of items for each client."""

    # (n_clients, n_items, n_factors): the mean of a client's neighbours, less the shared items.
    offsets: np.ndarray


@dataclass(eq=False, repr=False)
class GPFedRecParameters(PFedRecParameters):
    """Parameters of GPFedRec."""

    _: KW_ONLY
    pull: From0To1 = 0.5
    aggregation: Literal["mean"] = "mean"


@dataclass(kw_only=True, eq=False)
class GPFedRecAlgorithm(GPFedRecParameters, PFedRecAlgorithm):
    """The server links clients with similar item tables, and sends each the mean of its own."""

    @property
    def traits(self):
        refuses = {"local_dp": NO_LOCAL_DP, "aggregator": NO_AGGREGATOR}
        return Traits(single_uploads=True, treats_clients_apart=True, refuses=refuses)

    def downloads(self, n_items):
        offsets = Form(self.layout.matrix_shape(ITEMS, n_items), per_client=True)
        return super().downloads(n_items) | {"offsets": offsets}

    def begin(self, catalogue, sums, key):
        server = super().begin(catalogue, sums, key)
        items = server.parameters[ITEMS]
        offsets = np.zeros((catalogue.n_clients, *items.shape), items.dtype)
        return GPFedRecServer(**vars(server), offsets=offsets)

    def broadcast(self, server, key):
        return super().broadcast(server, key) | {"offsets": PerClient(server.offsets)}

    def fields(self, n_items):
        # Other rows are the neighbours' mean, which the server has.
        return {ITEMS: FieldSpec(self.layout.matrix_shape(ITEMS, n_items), rows="chosen")}

    def training_for(self, n_items, round=None):
        training, fast = super().training_for(n_items), PACE if self.loss == "bce" else 1
        rates = {"user*": fast * self.learning_rate, "item*": training.rate(ITEMS)}
        rates |= {"*": self.learning_rate}
        return replace(training, rates=rates, alternating=False, pull=self.pull)

    def step(self, server, upload, key):
        if upload is None:
            return server
        items, uploads = server.parameters[ITEMS], list(upload.single())
        codes = np.array([code for code, _ in uploads])
        tables = items + server.offsets[codes]
        for table, (_, one) in zip(tables, uploads, strict=True):
            rows, change = one[ITEMS]
            table[rows] = items[rows] + change
        means = neighbours_means(tables.reshape(len(tables), -1)).reshape(tables.shape)
        shared, offsets = means.mean(axis=0), server.offsets.copy()
        offsets[codes] = means - shared
        return replace(server, parameters={ITEMS: shared}, offsets=offsets)

    def personalize(self, block, clients, message, turn, key):
        if (block.clients < 0).all():
            # The server has no table of new users.
            none = np.zeros((block.n_clients, *message[ITEMS].values.shape), self.layout.dtype)
            message = message | {"offsets": PerClient(none)}
        fitted = super().personalize(block, clients, message, turn, key)
        whose = np.repeat(np.arange(block.n_clients), np.diff(block.client_indptr))
        own, shared = message["offsets"].values[whose], message[ITEMS].values
        own = own.astype(self.layout.dtype)
        for users, items, vectors in fitted.own_items:
            own[users, items] = vectors - shared[items]
        return replace(
            fitted, users=np.hstack([fitted.users, own.reshape(block.n_users, shared.size)])
        )

    def _trainer(self, training, block, feedback, message, users):
        trainer = super()._trainer(training, block, feedback, message, users)
        return replace(trainer, offsets=message["offsets"].values.astype(self.layout.dtype))

    # ------------------------------------------------------------------------ the model

    def server_attributes(self, message):
        attributes = super().server_attributes(message)
        own = np.zeros(message[ITEMS].values.size, self.layout.dtype)
        newcomer = np.concatenate([attributes["newcomer_factors_"], own])
        return attributes | {"newcomer_factors_": newcomer}

    def user_attributes(self, block, clients):
        # They have what is the users' own of the items.
        return {"user_factors_": clients.users}

    def model(self, fitted):
        # torch rounds products of private layers by how many users it multiplies.
        return self._scores_by(ModuleScores, fitted, is_double=True)

    def as_newcomers(self, block):
        return replace(block, clients=np.full_like(block.clients, -1))


def neighbours_means(tables):
    """Return the mean of each row's neighbours: the rows of more than the mean cosine with it."""
    lengths = np.linalg.norm(tables, axis=1, keepdims=True)
    cosines = tables @ tables.T / np.maximum(lengths * lengths.T, np.finfo(tables.dtype).tiny)
    linked = cosines > cosines.mean()
    # At least itself.
    np.fill_diagonal(linked, True)
    return (linked / linked.sum(axis=1, keepdims=True)).astype(tables.dtype) @ tables


@documented
@dataclass(eq=False, repr=False)
class GPFedRec(GPFedRecParameters, NeuralRecommender):
    """Graph-guided personalisation: the server averages the item tables of similar users.

    The score of user u and item i is an MLP on (p_u, q_ui). The user vector p_u and the MLP are
    private. In each round, clients receive the shared items q and the mean r_u of their neighbours'
    tables, train all on their own data, beginning at q and pulled towards r_u, and upload the
    changes of the items that they trained. The server links two clients if the cosine of their
    whole item tables is above the mean, gives each the mean table of its neighbours, and shares the
    mean of these means [1]_. The price is privacy: the server sees the table of every client.

    Parameters
    ----------
    n_factors : int, default=32
        Length of p_u and q_ui (d).
    layers : sequence of int, default=(32, 16, 8)
        Widths of the hidden layers of the MLP.
    pull : float, default=0.5
        Share of the way from q_u to r_u that items go in each step, beside the step of the
        optimizer. With SGD, 0.5 is a penalty of 1 times the mean squared difference of the tables,
        the authors' lambda: ``pull = 2 * lambda * item_learning_rate / (n_items * n_factors)``.
    personal_items : bool, default=False
        Whether users score with the item vectors that they train at the end, as in the paper.
        By default, they score with r_u. See the Notes before you trust such a number.
    loss : {"bce", "squared"} or callable, default="bce"
        As in :class:`FederatedModule`, as are `n_negatives`, `batch_size` and `device`.
    optimizer : {"sgd", "adam"} or callable, default="sgd"
        As in :class:`FederatedModule`; the authors' is SGD.
    learning_rate : float, default=0.1
        Learning rate of the MLP. With ``loss="bce"``, that of p_u is 80 times as large, as the
        authors' is.
    item_learning_rate : float or "auto", default="auto"
        Learning rate of the items. "auto": with ``loss="bce"`` the authors', 80 times the number of
        items times `learning_rate`. With other losses, whose gradients have no bound,
        `learning_rate`.
    local_epochs : int, default=1
        Number of passes of a client over its examples per round.
    aggregation : {"mean"}, default="mean"
        All clients count the same in the mean of the neighbours.
    n_rounds : int, default=100
        Number of rounds in total.
    {shared parameters}

    Attributes
    ----------
    parameters_ : dict of str to ndarray
        "item.weight" of shape (n_items, n_factors), the shared items q.
    item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        The same.
    user_factors_ : ndarray of shape (n_users, n_private), dtype float32
        p_u and the MLP, after `local_epochs` more on the final items, and then the user's items
        less q: ``n_items * n_factors`` numbers. The server knows these if not `personal_items`.
    {neural attributes}
    {shared attributes}

    Raises
    ------
    {neural errors}

    See Also
    --------
    PFedRec : One table of items, which the server needs sums for only.
    FedRAP : Users keep the differences of their items from the shared ones to themselves.

    Notes
    -----
    *What is sent.* Down, each round: q and r_u - q. Up: the changes of the items of the client's
    examples, with their indices. Of the others, a client's table has r_u, the minimum of the
    penalty, which the server knows.

    *What it reveals.* As with :class:`PFedRec`, an upload reveals which items a client has trained.
    Here the server needs single uploads, so that secure sums, `central_dp`, `local_dp` and
    aggregators raise an error.

    *Cohorts.* The graph is that of a round's clients. Others keep their r_u - q, and clients that
    were in no round, and new users, have r_u = q. The authors' code needs all in each round.

    *Memory.* The server stores a table for each client and, in a simulation, each user another: 0.2
    MB each on MovieLens-100k. A step of the server takes two products of a matrix of all tables.

    *Departures from the authors' code*: its "cosine" is a distance, so that it links the clients
    that are least alike, where the paper links similar ones. Its untrained items go to r_u in steps
    of `pull`. It chooses the number of rounds on validation rows, and all users begin with one p_u.

    *A leak*: the authors' code never draws a test item as a negative of training, as
    :class:`PFedRec` explains (``python -m benchmarks.peers ours``).

    References
    ----------
    .. [1] C. Zhang, G. Long, T. Zhou, Z. Zhang, P. Yan, B. Yang, "GPFedRec: Graph-Guided
       Personalization for Federated Recommendation", KDD 2024 (arXiv:2305.07866).

    Examples
    --------
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.neural import GPFedRec
    >>> X, _ = make_ratings(n_users=50, n_items=30, n_ratings=400, random_state=0)
    >>> model = GPFedRec(n_factors=4, layers=(4,), n_rounds=3, random_state=0).fit(X)
    >>> model.parameters_["item.weight"].shape
    (30, 4)
    >>> model.privacy_.server_sees
    'single uploads'
    """

    n_factors: AtLeast1 = 32
    _: KW_ONLY
    layers: Sequence[int] = (32, 16, 8)
    optimizer: Optimizer = "sgd"

    _kind = GPFedRecAlgorithm

    def _recipe(self, kind=PersonalMLP):
        layers = 2 * self.n_factors, *self.layers
        make = partial(kind, layers=layers, std=1.0)
        private = "user*", "hidden*", "output*", *(["item_own*"] if kind is PersonalMLP else [])
        return Recipe(make, private, (kind, layers))

    def _algorithm(self, **parts):
        # Clients train a table that is theirs for the round; the sum of two is for the end.
        return super()._algorithm(recipe=self._recipe(MLP), **parts)

    def _least_bytes(self, data):
        # The server's tables, before and after a step.
        tables = 2 * data.n_clients * data.n_items * self.n_factors
        return super()._least_bytes(data) + tables * np.dtype(self._dtype).itemsize
