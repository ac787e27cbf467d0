"""FedNCF: federated neural collaborative filtering (Perifanis and Efraimidis 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial

from fedrecsk._utils.constraints import AtLeast1, Positive
from fedrecsk._utils.docs import documented
from fedrecsk.neural._layout import Recipe
from fedrecsk.neural.base import NeuralRecommender
from fedrecsk.neural.modules import NeuMF


@documented
@dataclass(eq=False, repr=False)
class FedNCF(NeuralRecommender):
    """Federated neural collaborative filtering: NeuMF whose user vectors stay with the clients.

    The model of :class:`NCF`, generalised matrix factorisation and a multi-layer perceptron side
    by side. In each round, clients receive the item vectors and the layers, train them and
    their own user vectors on their own data, and upload the changes of the items and the layers.
    The server averages the layers over all clients of the round, and an item vector over those that
    trained it [1]_.

    Parameters
    ----------
    n_factors : int, default=12
        Length of the vectors p_u and q_i of generalised matrix factorisation.
    layers : sequence of int, default=(48, 24, 12, 6)
        Widths of the perceptron from its input to its last hidden layer. Of the first, p_u has the
        larger and q_i the smaller half.
    loss : {"bce", "squared"} or callable, default="bce"
        As in :class:`FederatedModule`, as are `n_negatives`, `optimizer`, `batch_size`,
        `aggregation` and `device`.
    learning_rate : float or dict, default=0.01
        Step size of the optimizer, or one for each pattern of parameter names. The paper uses
        0.001, with which 400 rounds are too few for rankings; for ratings, 0.001 is better.
    local_epochs : int, default=2
        Number of passes of a client over its examples per round (E).
    n_rounds : int, default=400
        Number of rounds in total (T).
    {shared parameters}

    Attributes
    ----------
    parameters_ : dict of str to ndarray
        The shared parameters: "item.weight" of shape (n_items, n_factors + layers[0] // 2), and the
        weights and biases of "hidden" and "output".
    item_factors_ : ndarray of shape (n_items, n_factors + layers[0] // 2), dtype float32
        q_i, first that of generalised matrix factorisation: "item.weight" above.
    user_factors_ : ndarray of shape (n_users, n_private), dtype float32
        p_u, first that of generalised matrix factorisation, after `local_epochs` more on the final
        model; private to the client.
    {neural attributes}
    {shared attributes}

    Raises
    ------
    {neural errors}

    See Also
    --------
    NCF : The same model, centralised.
    PFedRec : Keeps the score function private instead of the user vectors.

    Notes
    -----
    *What is sent.* As in :class:`FederatedModule`: the item vectors and the layers, their changes,
    and one byte per item.

    *The paper* trains without a server's knowledge of visits; its average of an item's vector is
    over the clients that have trained it, as ``aggregation="visits"`` is. Its numbers of layers
    and factors are the defaults here. It sums uploads by secure aggregation (MF-SecAvg):
    ``federation=Federation(secure_aggregation=...)``.

    References
    ----------
    .. [1] V. Perifanis, P. S. Efraimidis, "Federated Neural Collaborative Filtering",
       Knowledge-Based Systems 242, 2022, algorithm 1.

    Examples
    --------
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.neural import FedNCF
    >>> X, _ = make_ratings(n_users=50, n_items=30, n_ratings=400, random_state=0)
    >>> model = FedNCF(n_factors=4, layers=(8, 4), n_rounds=3, random_state=0).fit(X)
    >>> model.parameters_["item.weight"].shape, model.user_factors_.shape
    ((30, 8), (50, 8))
    """

    n_factors: AtLeast1 = 12
    _: KW_ONLY
    layers: Sequence[int] = (48, 24, 12, 6)
    learning_rate: Positive | dict[str, float] = 0.01
    n_rounds: AtLeast1 = 400
    local_epochs: AtLeast1 = 2

    def _recipe(self):
        make = partial(NeuMF, n_factors=self.n_factors, layers=self.layers)
        return Recipe(make, "user*", (NeuMF, self.n_factors, self.layers))
