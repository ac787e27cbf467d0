"""The torch modules of the methods, in plain torch.

A module is built for a number of users and items, and ``module(users, items)`` gives the scores of
pairs: `users` and `items` are tensors of codes of one shape, and so is the result. Names of users'
tables begin with "user" and names of items' tables with "item".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class GMF(nn.Module):
    """Generalised matrix factorisation: the score h . (p_u * q_i) + b (He et al., WWW 2017).

    Parameters
    ----------
    n_users, n_items : int
    n_factors : int, default=8
        Length of p_u and q_i.
    std : float, default=0.01
        Standard deviation of the first p_u and q_i.

    Examples
    --------
    >>> import torch
    >>> from fedrecsk.neural.modules import GMF
    >>> GMF(n_users=3, n_items=5)(torch.tensor([0, 2]), torch.tensor([4, 4])).shape
    torch.Size([2])
    """

    def __init__(self, n_users: int, n_items: int, n_factors: int = 8, std: float = 0.01) -> None:
        super().__init__()
        self.user: nn.Embedding = _table(n_users, n_factors, std)
        self.item: nn.Embedding = _table(n_items, n_factors, std)
        self.output: nn.Linear = nn.Linear(n_factors, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the scores of pairs of codes, in the shape of `users`."""
        return self.output(self.user(users) * self.item(items)).squeeze(-1)


class MLP(nn.Module):
    """A perceptron of several layers on p_u and q_i, with ReLU (He et al., WWW 2017).

    Parameters
    ----------
    n_users, n_items : int
    layers : sequence of int, default=(64, 32, 16, 8)
        Widths from the input to the last hidden layer. p_u has the larger and q_i the smaller half
        of the first.
    std : float, default=0.01
        Standard deviation of the first p_u and q_i.

    Examples
    --------
    >>> import torch
    >>> from fedrecsk.neural.modules import MLP
    >>> MLP(n_users=3, n_items=5)(torch.tensor([0, 2]), torch.tensor([4, 4])).shape
    torch.Size([2])
    """

    def __init__(
        self, n_users: int, n_items: int, layers: Sequence[int] = (64, 32, 16, 8), std: float = 0.01
    ) -> None:
        super().__init__()
        self.user: nn.Embedding = _table(n_users, layers[0] - layers[0] // 2, std)
        self.item: nn.Embedding = _table(n_items, layers[0] // 2, std)
        self.hidden: nn.Sequential = _hidden(layers)
        self.output: nn.Linear = nn.Linear(layers[-1], 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the scores of pairs of codes, in the shape of `users`."""
        hidden = self.hidden(torch.cat([self.user(users), self.item(items)], dim=-1))
        return self.output(hidden).squeeze(-1)


class PersonalMLP(MLP):
    """:class:`MLP` on sums of two vectors of an item, q_i + d_i; d_i begins at zero.

    With all but q_i private it is the model of :class:`~fedrecsk.neural.GPFedRec`.

    Parameters
    ----------
    n_users, n_items, layers, std
        As in :class:`MLP`.

    Examples
    --------
    >>> import torch
    >>> from fedrecsk.neural.modules import PersonalMLP
    >>> PersonalMLP(n_users=3, n_items=5)(torch.tensor([0, 2]), torch.tensor([4, 4])).shape
    torch.Size([2])
    """

    def __init__(
        self, n_users: int, n_items: int, layers: Sequence[int] = (64, 32, 16, 8), std: float = 0.01
    ) -> None:
        super().__init__(n_users, n_items, layers, std)
        self.item_own: nn.Embedding = _table(n_items, layers[0] // 2, 0.0)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the scores of pairs of codes, in the shape of `users`."""
        vectors = self.item(items) + self.item_own(items)
        return self.output(self.hidden(torch.cat([self.user(users), vectors], dim=-1))).squeeze(-1)


class NeuMF(nn.Module):
    """Neural matrix factorisation: :class:`GMF` and :class:`MLP` side by side (the same paper).

    Each part has vectors of its own: of a row of the tables, the first `n_factors` numbers
    belong to GMF and the others to the MLP. The output layer takes both parts.

    Parameters
    ----------
    n_users, n_items : int
    n_factors : int, default=8
        Length of p_u and q_i of GMF.
    layers : sequence of int, default=(64, 32, 16, 8)
        Widths of the MLP from its input to its last hidden layer. Of the first, p_u has the larger
        and q_i the smaller half.
    std : float, default=0.01
        Standard deviation of the first p_u and q_i.

    Examples
    --------
    >>> import torch
    >>> from fedrecsk.neural.modules import NeuMF
    >>> module = NeuMF(n_users=3, n_items=5, n_factors=12, layers=(48, 24, 12, 6))
    >>> module(torch.tensor([0, 2]), torch.tensor([4, 4])).shape
    torch.Size([2])
    >>> [tuple(parameter.shape) for name, parameter in module.named_parameters()][:2]
    [(3, 36), (5, 36)]
    """

    def __init__(
        self,
        n_users: int,
        n_items: int,
        n_factors: int = 8,
        layers: Sequence[int] = (64, 32, 16, 8),
        std: float = 0.01,
    ) -> None:
        super().__init__()
        self.n_factors: int = n_factors
        self.user: nn.Embedding = _table(n_users, n_factors + layers[0] - layers[0] // 2, std)
        self.item: nn.Embedding = _table(n_items, n_factors + layers[0] // 2, std)
        self.hidden: nn.Sequential = _hidden(layers)
        self.output: nn.Linear = nn.Linear(n_factors + layers[-1], 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the scores of pairs of codes, in the shape of `users`."""
        # Not by two slices each: the gradient of a slice fills a whole table with zeros.
        d, rows = self.n_factors, (self.user(users), self.item(items))
        (p, p_mlp), (q, q_mlp) = (one.split([d, one.shape[-1] - d], dim=-1) for one in rows)
        hidden = self.hidden(torch.cat([p_mlp, q_mlp], dim=-1))
        return self.output(torch.cat([p * q, hidden], dim=-1)).squeeze(-1)


class ScoreFunction(nn.Module):
    """A linear layer on items' vectors: the score w . q_i + b.

    With private w and b it is the model of :class:`~fedrecsk.neural.PFedRec`.

    Parameters
    ----------
    n_users, n_items : int
    n_factors : int, default=32
        Length of q_i and w.

    Examples
    --------
    >>> import torch
    >>> from fedrecsk.neural.modules import ScoreFunction
    >>> ScoreFunction(n_users=3, n_items=5)(torch.tensor([0, 2]), torch.tensor([4, 4])).shape
    torch.Size([2])
    """

    def __init__(self, n_users: int, n_items: int, n_factors: int = 32) -> None:
        super().__init__()
        self.item: nn.Embedding = nn.Embedding(n_items, n_factors)
        self.score: nn.Linear = nn.Linear(n_factors, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the scores of pairs of codes, in the shape of `items`."""
        return self.score(self.item(items)).squeeze(-1)


class AdditiveScore(nn.Module):
    """A linear layer on sums of two vectors of an item: the score w . (q_i + d_i) + b.

    With private w, b and d_i it is the model of :class:`~fedrecsk.neural.FedRAP`.

    Parameters
    ----------
    n_users, n_items : int
    n_factors : int, default=32
        Length of q_i, d_i and w.

    Examples
    --------
    >>> import torch
    >>> from fedrecsk.neural.modules import AdditiveScore
    >>> AdditiveScore(n_users=3, n_items=5)(torch.tensor([0, 2]), torch.tensor([4, 4])).shape
    torch.Size([2])
    """

    def __init__(self, n_users: int, n_items: int, n_factors: int = 32) -> None:
        super().__init__()
        self.item: nn.Embedding = nn.Embedding(n_items, n_factors)
        self.item_own: nn.Embedding = nn.Embedding(n_items, n_factors)
        self.score: nn.Linear = nn.Linear(n_factors, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the scores of pairs of codes, in the shape of `items`."""
        return self.score(self.item(items) + self.item_own(items)).squeeze(-1)


def _table(n: int, width: int, std: float) -> nn.Embedding:
    table = nn.Embedding(n, width)
    nn.init.normal_(table.weight, std=std)
    return table


def _hidden(layers: Sequence[int]) -> nn.Sequential:
    """Linear layers from each width to the next, each with a ReLU."""
    stack: list[nn.Module] = []
    for n_inputs, n_outputs in pairwise(layers):
        linear = nn.Linear(n_inputs, n_outputs)
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        stack += [linear, nn.ReLU()]
    return nn.Sequential(*stack)
