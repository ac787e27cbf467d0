"""PFedRec: shared items, and a score function of each user's own (Zhang et al. 2023)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from scipy import sparse
from torch import nn

from fedrecsk._utils.constraints import AtLeast1, Positive
from fedrecsk._utils.docs import documented
from fedrecsk.data.ids import id_array
from fedrecsk.data.interactions import runs
from fedrecsk.neural._averaging import ModuleAlgorithm, ModuleParameters
from fedrecsk.neural._layout import Recipe
from fedrecsk.neural._modules import ModuleScores, OwnItemScores
from fedrecsk.neural.base import NeuralRecommender, Optimizer
from fedrecsk.neural.modules import ScoreFunction

__all__ = ["PFedRec"]

# The authors' learning rate of items is this multiple of the other, times the number of items.
PACE = 80
ITEMS = "item.weight"


@dataclass(eq=False, repr=False)
class PFedRecParameters(ModuleParameters):
    """Parameters of PFedRec and GPFedRec."""

    _: KW_ONLY
    learning_rate: Positive = 0.1
    item_learning_rate: Positive | Literal["auto"] = "auto"
    aggregation: Literal["mean", "visits"] = "mean"
    # Whether users keep the items that they train at the end.
    personal_items: bool = False


@dataclass(kw_only=True, eq=False)
class PFedRecAlgorithm(PFedRecParameters, ModuleAlgorithm):
    """In each batch, clients train their score functions, and then the items."""

    def training_for(self, n_items, round=None):
        rate = self.item_learning_rate
        if rate == "auto":
            rate = self.learning_rate * (PACE * n_items if self.loss == "bce" else 1)
        rates = {"score*": self.learning_rate, "item*": rate}
        return replace(self.training, rates=rates, alternating=True)

    @property
    def frozen_at_the_end(self):
        return () if self.personal_items else super().frozen_at_the_end

    def own_items(self, block, trained):
        """Return a list of users, items and vectors of their clients' rows."""
        if not self.personal_items:
            return []
        clients, places = trained.is_row.nonzero()
        items, vectors = trained.items[clients, places], trained.after[ITEMS][clients, places]
        owners = trained.clients[clients]
        n_users = np.diff(block.client_indptr)[owners]
        rows = np.repeat(np.arange(len(items)), n_users)
        return [(runs(block.client_indptr[owners], n_users), items[rows], vectors[rows])]

    def user_attributes(self, block, clients):
        attributes = super().user_attributes(block, clients)
        if not self.personal_items:
            return attributes
        d = self.layout.parts[ITEMS].width
        none = np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, d), self.layout.dtype)
        users, items, vectors = zip(none, *clients.own_items, strict=True)
        users, items = np.concatenate(users), np.concatenate(items)
        columns = items[:, None] * d + np.arange(d)
        triples = np.concatenate(vectors).ravel(), (np.repeat(users, d), columns.ravel())
        own = sparse.coo_array(triples, (block.n_users, block.n_items * d)).tocsr()
        own.sort_indices()
        return attributes | {"user_items_": own}

    def model(self, fitted):
        return self._scores_by(OwnItemScores if self.personal_items else ModuleScores, fitted)


@documented
@dataclass(eq=False, repr=False)
class PFedRec(PFedRecParameters, NeuralRecommender):
    """Personalised federated recommendation: each user trains a separate score function.

    All clients share the item vectors q_i. Instead of a user vector, a score function is private, a
    linear layer: s_u(q_i) = w_u . q_i + b_u. In each round, clients receive the item vectors, train
    their score functions and then the items on each batch of their own data, and upload the changes
    of the items; the server averages these changes over all clients of the round [1]_.

    Parameters
    ----------
    n_factors : int, default=32
        Length of q_i and w_u (d).
    loss : {"bce", "squared"} or callable, default="bce"
        As in :class:`FederatedModule`, as are `n_negatives`, `batch_size`, `aggregation` and
        `device`.
    optimizer : {"sgd", "adam"} or callable, default="sgd"
        As in :class:`FederatedModule`; the paper's is SGD.
    learning_rate : float, default=0.1
        Learning rate of the score functions (eta_1).
    item_learning_rate : float or "auto", default="auto"
        Learning rate of the items (eta_2). The mean over all clients of a round makes their steps
        small, because few clients have examples of a given item. "auto": with ``loss="bce"`` the
        authors', 80 times the number of items times `learning_rate`. With other losses, whose
        gradients have no bound, `learning_rate`.
    local_epochs : int, default=1
        Number of passes of a client over its examples per round.
    aggregation : {"mean", "visits"}, default="mean"
        As in :class:`FederatedModule`; the paper's is the mean.
    personal_items : bool, default=False
        Whether users also keep the item vectors that they train at the end, and score with them
        (the paper's dual personalisation). See the Notes before you trust such a number.
    n_rounds : int, default=100
        Number of rounds in total (T).
    {shared parameters}

    Attributes
    ----------
    parameters_ : dict of str to ndarray
        "item.weight" of shape (n_items, n_factors), the shared parameter.
    item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        q_i, the same.
    user_factors_ : ndarray of shape (n_users, n_factors + 1), dtype float32
        w_u and b_u, after `local_epochs` more on the final items; private to the client.
    user_items_ : sparse array of shape (n_users, n_items * n_factors)
        With `personal_items`: the item vectors that each user trained at the end.
    {neural attributes}
    {shared attributes}

    Raises
    ------
    {neural errors}

    See Also
    --------
    FedNCF : Keeps user vectors private and shares the layers.
    fedrecsk.FedMF : The same scores with b_u = 0; users' vectors begin at random.

    Notes
    -----
    *What is sent.* The item vectors, and their changes.

    *For ratings* (``loss="squared"``) it is a poor choice: each user fits a linear function to
    vectors that hardly move. Take :class:`FedNCF` or :class:`~fedrecsk.FedEB`.

    *The published numbers rest on a leak*: the authors' code never draws a user's test item as a
    negative of training, and scores with item vectors just trained on these negatives. With it,
    ``personal_items=True`` comes near the published HR@10 on MovieLens-100k, and without it is far
    below; ``personal_items=False`` is the honest model (``python -m benchmarks.peers ours``). To
    reproduce it, add the test pairs to X with y = 0 and a sample weight of 1e-12.

    References
    ----------
    .. [1] C. Zhang, G. Long, T. Zhou, P. Yan, Z. Zhang, C. Zhang, B. Yang, "Dual Personalization on
       Federated Recommendation", IJCAI 2023, algorithm 1.

    Examples
    --------
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.neural import PFedRec
    >>> X, _ = make_ratings(n_users=50, n_items=30, n_ratings=400, random_state=0)
    >>> model = PFedRec(n_factors=4, n_rounds=3, random_state=0).fit(X)
    >>> model.parameters_["item.weight"].shape, model.user_factors_.shape
    ((30, 4), (50, 5))
    """

    n_factors: AtLeast1 = 32
    _: KW_ONLY
    optimizer: Optimizer = "sgd"

    _kind = PFedRecAlgorithm

    def _recipe(self):
        make = partial(ScoreFunction, n_factors=self.n_factors)
        return Recipe(make, "score*", (ScoreFunction, self.n_factors))

    # ------------------------------------------------------------- items of the users' own

    def to_module(self, user: Any = None) -> nn.Module:
        """Return the fitted module, with the user's own items if it has any."""
        module = super().to_module(user)
        if self.personal_items:
            (code,) = self._users.codes(id_array([user], "user"))
            items, vectors = self._model().items_of(code)
            with torch.no_grad():
                table = module.get_parameter(ITEMS)
                table[torch.from_numpy(items)] = torch.from_numpy(vectors)
        return module
