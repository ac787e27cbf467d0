"""MetaMF's network on the server, and what it makes for each client from the client's code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, relu

# Clients whose item tables are computed at a time, so that memory is bounded.
CLIENTS_AT_A_TIME = 128


class Sizes(NamedTuple):
    """Numbers of rows and columns, named as the parameters of MetaMF."""

    n_items: int
    rank: int
    n_factors: int
    scorer_size: int
    code_size: int
    memory_size: int
    hidden_size: int

    @property
    def basis(self):
        """Return the shape of the matrix that raises a client's table to item vectors."""
        return self.rank, self.n_factors

    @property
    def scorer(self):
        """Return how many numbers each part of a scorer has, in the order of sending."""
        return self.n_factors * self.scorer_size, self.scorer_size, self.scorer_size, 1


class Parts(NamedTuple):
    """What some clients receive."""

    # Rows of the items that were asked for, (n_clients, n_rows, rank).
    table: Tensor
    # (n_clients, rank, n_factors) and (n_clients, sum of Sizes.scorer).
    basis: Tensor
    scorer: Tensor


def layers(sizes):
    """Return outputs and inputs of linear layers; `table` makes the rows of all items."""
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


def n_numbers(sizes, n_clients):
    """Return how many numbers the network has, the clients' codes included."""
    matrices = sum((1 + inputs) * outputs for outputs, inputs in layers(sizes).values())
    return matrices + sizes.code_size * (n_clients + sizes.memory_size)


def first_weights(sizes, generator, dtype):
    """Draw the weights without the codes: Xavier's normal matrices, and biases of zero."""
    shapes = {"memory": (sizes.code_size, sizes.memory_size)} | layers(sizes)
    weights = {}
    for name, (rows, columns) in shapes.items():
        std = np.sqrt(2 / (rows + columns))
        draws = generator.standard_normal((rows, columns), dtype=np.float32)
        weights[name] = (std * draws).astype(dtype)
        if name != "memory":
            weights[f"{name}_bias"] = np.zeros(rows, dtype=dtype)
    return weights


def parts(weights, codes, sizes, items):
    """Return what clients of these codes receive, of the table only the rows of `items`."""
    n, collaborative = len(codes), codes @ weights["memory"]
    units = [relu(_layer(weights, f"hidden_{k}", collaborative)) for k in (1, 2, 3)]
    scorer = [_layer(weights, name, units[0]) for name in ("weight_1", "bias_1")]
    scorer += [_layer(weights, name, units[1]) for name in ("weight_2", "bias_2")]
    matrix, bias = weights["table"], weights["table_bias"]
    if len(items) < sizes.n_items:
        rows = torch.from_numpy(items)
        matrix = matrix.reshape(sizes.n_items, -1).index_select(0, rows)
        matrix = matrix.reshape(-1, sizes.hidden_size)
        bias = bias.reshape(sizes.n_items, -1).index_select(0, rows).reshape(-1)
    table = linear(units[2], matrix, bias).reshape(n, len(items), sizes.rank)
    basis = _layer(weights, "basis", units[2]).reshape(n, *sizes.basis)
    return Parts(table, basis, torch.cat(scorer, dim=1))


def scores(received, sizes):
    """Return each client's scores of the items whose rows it has, (n_clients, n_rows)."""
    table, basis, scorer = received
    weight_1, bias_1, weight_2, bias_2 = scorer.split(sizes.scorer, dim=1)
    # Item vectors are only multiplied by the scorer's first matrix.
    raised = basis @ weight_1.reshape(-1, sizes.n_factors, sizes.scorer_size)
    first = relu(table @ raised + bias_1[:, None])
    return (first @ weight_2[:, :, None])[:, :, 0] + bias_2


def _layer(weights, name, inputs):
    return linear(inputs, weights[name], weights[f"{name}_bias"])


# ------------------------------------------------------------------------ what clients receive


class Made:
    """A part ("table", "basis" or "scorer") of what the server makes for clients, as an array."""

    # A simulated client reads the rows of its own items only, and these alone are computed.
    # `numpy.asarray` computes everything, as a deployed server would.

    def __init__(self, name, weights, codes, sizes):
        self.name, self.weights, self.codes, self.sizes = name, weights, codes, sizes

    @property
    def shape(self):
        sizes = self.sizes
        shapes = {
            "table": (sizes.n_items, sizes.rank),
            "basis": sizes.basis,
            "scorer": (sum(sizes.scorer),),
        }
        return len(self.codes), *shapes[self.name]

    @property
    def size(self):
        return int(np.prod(self.shape))

    @property
    def ndim(self):
        return len(self.shape)

    @property
    def dtype(self):
        return self.codes.dtype

    def __len__(self):
        return len(self.codes)

    def __getitem__(self, clients):
        return Made(self.name, self.weights, self.codes[clients], self.sizes)

    def __array__(self, dtype=None, copy=None):
        items = np.arange(self.sizes.n_items if self.name == "table" else 0)
        array = np.empty(self.shape, dtype=self.dtype if dtype is None else dtype)
        for start in range(0, len(self), CLIENTS_AT_A_TIME):
            chunk = slice(start, start + CLIENTS_AT_A_TIME)
            array[chunk] = getattr(self[chunk].parts(items), self.name).numpy()
        return array

    def parts(self, items):
        """Return all that these clients receive, of the table only the rows of `items`."""
        weights = {name: torch.from_numpy(one) for name, one in self.weights.items()}
        with torch.no_grad():
            return parts(weights, torch.from_numpy(self.codes), self.sizes, items)


def received(message, who, items):
    """Return what clients of a block read of its message: rows of `items`, basis and scorer."""
    table, basis, scorer = (message[name].values[who] for name in ("table", "basis", "scorer"))
    if isinstance(table, Made):
        return table.parts(items)
    return Parts(*map(torch.from_numpy, (table[:, items], basis, scorer)))
