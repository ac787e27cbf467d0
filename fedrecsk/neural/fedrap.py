"""FedRAP: to the shared items, each user adds a table of private ones (Li et al. 2024)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from math import tanh
from typing import Literal, NamedTuple

from torch import Tensor

from fedrecsk._utils.constraints import Above0To1, AtLeast1, NotNegative, Positive
from fedrecsk._utils.docs import documented
from fedrecsk.neural._averaging import ModuleAlgorithm, ModuleParameters
from fedrecsk.neural._layout import Recipe
from fedrecsk.neural.base import NeuralRecommender, Optimizer
from fedrecsk.neural.modules import AdditiveScore

__all__ = ["FedRAP"]

# The authors' learning rate of items, 1,000, by the number of items of MovieLens-100k.
PACE = 0.6
# Rounds in which the weights of the penalties reach tanh(1), three quarters of their ends.
WARM_UP = 10


class Penalty(NamedTuple):
    """Keeps the shared items sparse, and the private ones unlike them."""

    independence: float
    sparsity: float

    def __call__(self, parameters: dict[str, Tensor]) -> Tensor:
        """Return the penalty of each example, by the two rows of its item."""
        shared, own = parameters["item.weight"], parameters["item_own.weight"]
        difference = ((own - shared) ** 2).mean(-1)
        return self.sparsity * shared.abs().mean(-1) - self.independence * difference


@dataclass(eq=False, repr=False)
class FedRAPParameters(ModuleParameters):
    """Parameters of FedRAP."""

    _: KW_ONLY
    independence: NotNegative = 0.01
    sparsity: NotNegative = 0.001
    learning_rate: Positive = 0.0001
    item_learning_rate: Positive | Literal["auto"] = "auto"
    decay: Above0To1 = 0.97
    aggregation: Literal["mean", "visits"] = "mean"


@dataclass(kw_only=True, eq=False)
class FedRAPAlgorithm(FedRAPParameters, ModuleAlgorithm):
    """Penalties grow from round to round, and learning rates shrink."""

    def training_for(self, n_items, round=None):
        # Users new to the final model take full steps with full penalties.
        slowness, strength = (1, 1) if round is None else (self.decay**round, tanh(round / WARM_UP))
        rate = self.item_learning_rate
        if rate == "auto":
            rate = PACE * n_items if self.loss == "bce" else self.learning_rate
        rates = {"score*": slowness * self.learning_rate, "item*": slowness * rate}
        penalty = Penalty(self.independence * strength, self.sparsity * strength)
        return replace(self.training, rates=rates, penalty=penalty)

    @property
    def epochs_at_the_end(self):
        return 0


@documented
@dataclass(eq=False, repr=False)
class FedRAP(FedRAPParameters, NeuralRecommender):
    """Additive personalisation: a user's item vectors are the shared ones plus private ones.

    The score is s_u(i) = w_u . (q_i + d_ui) + b_u. All clients share the item vectors q_i; the
    score function w_u, b_u and the item vectors d_ui are private. In each round, clients
    receive q, train all on their own data, and upload the changes of q; the server averages these
    changes over all clients of the round. One penalty keeps q sparse, another keeps d_u unlike q,
    and both grow from zero in the first round [1]_.

    Parameters
    ----------
    n_factors : int, default=32
        Length of q_i, d_ui and w_u (k).
    independence : float, default=0.01
        Weight of the mean squared difference between d_ui and q_i, which is maximised (v_1). In
        round a, from 0, it is multiplied by tanh(a / 10). The authors use 0.1, see the Notes.
    sparsity : float, default=0.001
        Weight of the mean absolute number of q_i, which is minimised (v_2), times the same factor.
    loss : {"bce", "squared"} or callable, default="bce"
        As in :class:`FederatedModule`, as are `n_negatives` and `device`.
    optimizer : {"sgd", "adam"} or callable, default="sgd"
        As in :class:`FederatedModule`; the authors' is SGD.
    learning_rate : float, default=0.0001
        Learning rate of the score functions.
    item_learning_rate : float or "auto", default="auto"
        Learning rate of q and d. "auto": with ``loss="bce"``, 0.6 times the number of items, which
        is the authors' 1,000 on MovieLens-100k. With other losses, whose gradients have no bound,
        `learning_rate`.
    decay : float, default=0.97
        Factor of both learning rates from one round to the next.
    local_epochs : int, default=10
        Number of passes of a client over its examples per round.
    batch_size : int, default=2048
        Number of examples in a mini-batch.
    aggregation : {"mean", "visits"}, default="mean"
        As in :class:`FederatedModule`; the paper's is the mean.
    n_rounds : int, default=100
        Number of rounds in total.
    {shared parameters}

    Attributes
    ----------
    parameters_ : dict of str to ndarray
        "item.weight" of shape (n_items, n_factors), the shared parameter q.
    item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        The same.
    user_factors_ : ndarray of shape (n_users, (n_items + 1) * n_factors + 1), dtype float32
        d_u, w_u and b_u after the last round of the user's client; private to the client.
    {neural attributes}
    {shared attributes}

    Raises
    ------
    {neural errors}

    See Also
    --------
    PFedRec : One table of items, and a score function of each user's own.

    Notes
    -----
    *What is sent.* The item vectors q, and their changes.

    *Penalties* count the items of a client's examples, positives and negatives, as in the authors'
    code; rows of other items neither move nor are sent.

    *The difference* that is maximised has no upper bound. With ``independence=0.1``, the vectors of
    users with few rows outgrow all scores on MovieLens-100k within some 20 rounds.

    *Memory.* Each user stores as many numbers as the shared table: 0.2 MB on MovieLens-100k.

    *Departures from the authors' code*, which never uses its schedule of the penalties, chooses the
    number of rounds on test rows, and also multiplies learning rates by 0.95 in each step of a
    client. Here the schedule is the paper's, and neither of the others is there.

    *A leak*: the authors' code never draws a test item as a negative of training, as
    :class:`PFedRec` explains. Private vectors are trained on a user's own negatives, so that
    without the leak they are worth less than they seem (``python -m benchmarks.peers ours``).

    References
    ----------
    .. [1] Z. Li, G. Long, T. Zhou, "Federated Recommendation with Additive Personalization", ICLR
       2024, algorithm 1.

    Examples
    --------
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.neural import FedRAP
    >>> X, _ = make_ratings(n_users=50, n_items=30, n_ratings=400, random_state=0)
    >>> model = FedRAP(n_factors=4, n_rounds=3, random_state=0).fit(X)
    >>> model.parameters_["item.weight"].shape, model.user_factors_.shape
    ((30, 4), (50, 125))
    """

    n_factors: AtLeast1 = 32
    _: KW_ONLY
    optimizer: Optimizer = "sgd"
    local_epochs: AtLeast1 = 10
    batch_size: AtLeast1 = 2048

    _kind = FedRAPAlgorithm

    def _recipe(self):
        make = partial(AdditiveScore, n_factors=self.n_factors)
        return Recipe(make, ("score*", "item_own*"), (AdditiveScore, self.n_factors))
