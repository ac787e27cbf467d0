"""MetaMF's network on the server, and what it makes for each client from the client's code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, relu

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedrecsk.protocol import Message

# Clients whose item tables are computed at a time, so that memory is bounded.
CLIENTS_AT_A_TIME = 128


class Sizes(NamedTuple):
    """Numbers of rows and columns, with the paper's symbols.

    Attributes
    ----------
    n_items : int
    rank : int
        Columns of a client's low-dimensional item table (s).
    n_factors : int
        Length of an item vector (d_i).
    scorer_size : int
        Hidden units of a client's scorer.
    code_size : int
        Length of a client's code (d_u).
    memory_size : int
        Length of the collaborative vector (k).
    hidden_size : int
        Hidden units of each of the three generators.
    """

    n_items: int
    rank: int
    n_factors: int
    scorer_size: int
    code_size: int
    memory_size: int
    hidden_size: int

    @property
    def basis(self) -> tuple[int, int]:
        """Shape of the matrix that raises a client's table to item vectors."""
        return self.rank, self.n_factors

    @property
    def scorer(self) -> tuple[int, int, int, int]:
        """How many numbers each part of a scorer has, in the order in which they are sent."""
        return self.n_factors * self.scorer_size, self.scorer_size, self.scorer_size, 1


class Parts(NamedTuple):
    """What some clients receive.

    Attributes
    ----------
    table : Tensor of shape (n_clients, n_rows, rank)
        Rows of the items that were asked for.
    basis : Tensor of shape (n_clients, rank, n_factors)
    scorer : Tensor of shape (n_clients, sum of Sizes.scorer)
    """

    table: Tensor
    basis: Tensor
    scorer: Tensor


def layers(sizes: Sizes) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of the linear layers by name; `table` makes the rows of all items."""
    hidden, (weight_1, bias_1, weight_2, bias_2) = sizes.hidden_size, sizes.scorer
    return {
        "hidden_1": (hidden, sizes.memory_size),
        "weight_1": (weight_1, hidden),
        "bias_1": (bias_1, hidden),
        "hidden_2": (hidden, sizes.memory_size),
        "weight_2": (weight_2, hidden),
        "bias_2": (bias_2, hidden),
        "hidden_3": (hidden, sizes.memory_size),
        "table": (sizes.n_items * sizes.rank, hidden),
        "basis": (sizes.rank * sizes.n_factors, hidden),
    }


def n_numbers(sizes: Sizes, n_clients: int) -> int:
    """Numbers that the network has, the clients' codes included."""
    matrices = sum((1 + inputs) * outputs for outputs, inputs in layers(sizes).values())
    return matrices + sizes.code_size * (n_clients + sizes.memory_size)


def first_weights(
    sizes: Sizes, generator: np.random.Generator, dtype: type[np.floating]
) -> dict[str, np.ndarray]:
    """Weights without the codes: Xavier's normal draws, and biases of zero.

    Matrices have the layer's name, biases the name and ``_bias``.
    """
    shapes = {"memory": (sizes.code_size, sizes.memory_size)} | layers(sizes)
    weights = {}
    for name, (rows, columns) in shapes.items():
        std = np.sqrt(2 / (rows + columns))
        draws = generator.standard_normal((rows, columns), dtype=np.float32)
        weights[name] = (std * draws).astype(dtype)
        if name != "memory":
            weights[f"{name}_bias"] = np.zeros(rows, dtype=dtype)
    return weights


def small_parts(weights: dict[str, Tensor], codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The hidden units from which a client's table comes, its basis and its scorer."""
    collaborative = codes @ weights["memory"]
    units = [relu(_layer(weights, f"hidden_{n}", collaborative)) for n in (1, 2, 3)]
    first = [_layer(weights, name, units[0]) for name in ("weight_1", "bias_1")]
    second = [_layer(weights, name, units[1]) for name in ("weight_2", "bias_2")]
    return units[2], _layer(weights, "basis", units[2]), torch.cat(first + second, dim=1)


def parts(
    weights: dict[str, Tensor], codes: Tensor, sizes: Sizes, items: NDArray[np.integer]
) -> Parts:
    """What clients of these codes receive, of the table only the rows of `items`."""
    units, basis, scorer = small_parts(weights, codes)
    matrix, bias = _of_items(weights, sizes, items)
    table = linear(units, matrix, bias).reshape(len(codes), len(items), sizes.rank)
    return Parts(table, basis.reshape(-1, *sizes.basis), scorer)


def scores(received: Parts, sizes: Sizes) -> Tensor:
    """Each client's scores of the items whose rows it has, shape (n_clients, n_rows)."""
    table, basis, scorer = received
    weight_1, bias_1, weight_2, bias_2 = scorer.split(sizes.scorer, dim=1)
    # Item vectors are only multiplied by the scorer's first matrix.
    raised = basis @ weight_1.reshape(-1, sizes.n_factors, sizes.scorer_size)
    first = relu(table @ raised + bias_1[:, None])
    return (first @ weight_2[:, :, None])[:, :, 0] + bias_2


def add_gradients(
    weights: dict[str, Tensor],
    codes: Tensor,
    sizes: Sizes,
    gradients: Parts,
    items: NDArray[np.integer],
) -> None:
    """Back-propagate gradients of what clients have received; adds to ``.grad``.

    Parameters
    ----------
    weights, codes
        With ``requires_grad``.
    sizes : Sizes
    gradients : Parts
        In the rows of `items`, in the basis and in the scorer of each client.
    items : ndarray of shape (n_rows,)
    """
    table, basis, scorer = gradients
    units, *others = small_parts(weights, codes)
    # The last layer of the table by hand: it is linear, and all but these rows have gradient 0.
    with torch.no_grad():
        matrix, _ = _of_items(weights, sizes, items)
        table = table.reshape(len(codes), -1)
        rows = torch.from_numpy(items)
        _grad(weights["table"], sizes).index_add_(
            0, rows, (table.T @ units).reshape(len(items), -1)
        )
        _grad(weights["table_bias"], sizes).index_add_(
            0, rows, table.sum(dim=0).reshape(len(items), -1)
        )
        units_gradient = table @ matrix
    torch.autograd.backward(
        [units, *others], [units_gradient, basis.reshape(len(codes), -1), scorer]
    )


def _layer(weights, name, inputs):
    return linear(inputs, weights[name], weights[f"{name}_bias"])


def _of_items(weights, sizes, items):
    """Matrix and bias of the table's layer that make the rows of `items`."""
    matrix, bias = weights["table"], weights["table_bias"]
    if len(items) == sizes.n_items:
        return matrix, bias
    rows = torch.from_numpy(items)
    matrix = matrix.reshape(sizes.n_items, -1)[rows].reshape(-1, sizes.hidden_size)
    return matrix, bias.reshape(sizes.n_items, -1)[rows].reshape(-1)


def _grad(weight, sizes):
    """A weight's gradient, with a row for each item."""
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad.reshape(sizes.n_items, -1)


# ------------------------------------------------------------------------ what clients receive


class Made:
    """One part of what the server makes for some clients, which looks like an array.

    A simulated client reads the rows of its own items only, and these alone are computed.
    ``numpy.asarray`` computes everything, as a deployed server would.

    Parameters
    ----------
    name : {"table", "basis", "scorer"}
    weights : dict of {str: ndarray}
    codes : ndarray of shape (n_clients, code_size)
    sizes : Sizes
    """

    def __init__(
        self,
        name: Literal["table", "basis", "scorer"],
        weights: dict[str, np.ndarray],
        codes: np.ndarray,
        sizes: Sizes,
    ) -> None:
        self.name = name
        self.weights = weights
        self.codes = codes
        self.sizes = sizes

    @property
    def shape(self) -> tuple[int, ...]:
        sizes = self.sizes
        shapes = {
            "table": (sizes.n_items, sizes.rank),
            "basis": sizes.basis,
            "scorer": (sum(sizes.scorer),),
        }
        return len(self.codes), *shapes[self.name]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype:
        return self.codes.dtype

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, clients: Any) -> Made:
        return Made(self.name, self.weights, self.codes[clients], self.sizes)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        items = np.arange(self.sizes.n_items if self.name == "table" else 0)
        array = np.empty(self.shape, dtype=self.dtype if dtype is None else dtype)
        for start in range(0, len(self), CLIENTS_AT_A_TIME):
            chunk = slice(start, start + CLIENTS_AT_A_TIME)
            array[chunk] = getattr(self[chunk].parts(items), self.name).numpy()
        return array

    def parts(self, items: NDArray[np.integer]) -> Parts:
        """All that these clients receive, of the table only the rows of `items`."""
        weights = {name: torch.from_numpy(one) for name, one in self.weights.items()}
        with torch.no_grad():
            return parts(weights, torch.from_numpy(self.codes), self.sizes, items)


def received(message: Message, who: Any, items: NDArray[np.integer]) -> Parts:
    """What clients read of a message: rows of `items` of their tables, basis and scorer.

    Parameters
    ----------
    message : Message
        The message as a block of clients receives it.
    who : ndarray or slice
        Clients of the block.
    items : ndarray of shape (n_rows,)
    """
    table, basis, scorer = (message[name].values[who] for name in ("table", "basis", "scorer"))
    if isinstance(table, Made):
        return table.parts(items)
    return Parts(*map(torch.from_numpy, (table[:, items], basis, scorer)))
