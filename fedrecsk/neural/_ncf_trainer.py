"""Steps of Adam on batches of examples."""

from __future__ import annotations

import numpy as np

from fedrecsk import _kernels
from fedrecsk.neural._ncf_examples import Examples
from fedrecsk.neural._ncf_network import Network, Room
from fedrecsk.simulation.keys import Key

# Of which one row holds all weights of the layers.
ALL_WEIGHTS = np.zeros(1, np.int32)


class Trainer:
    """Steps of Adam on batches of examples.

    Parameters
    ----------
    network : Network
    examples : Examples
    state : dict of ndarray of shape (3, n, width)
        "users", "items" and "weights": the vectors, or in one row all weights of the layers, then
        Adam's two moments of them. Those that are not trained need no moments.
    n_most : int
        Largest number of rows of a batch.
    trained : tuple of str, default=("users", "items", "weights")
        What is moved, in place.
    squared : bool
        Whether the loss is half the squared error; otherwise it is cross-entropy.
    reg : float
        Weight of squared vectors in the loss of each example.
    """

    def __init__(
        self,
        network: Network,
        examples: Examples,
        state: dict[str, np.ndarray],
        n_most: int,
        *,
        trained: tuple[str, ...] = ("users", "items", "weights"),
        squared: bool,
        reg: float,
    ) -> None:
        self.network, self.examples, self.squared, self.reg = network, examples, squared, reg
        self.users, self.items = state["users"][0], state["items"][0]
        self.weights = network.views(state["weights"][0, 0])
        self.flat_gradient = np.zeros_like(state["weights"][0])
        self.gradients = network.views(self.flat_gradient[0])
        self.room = Room(self.users.dtype)
        self.tables = {name: _kernels.ncf.Table(*state[name]) for name in trained}
        n_examples = n_most * (1 + examples.n_negatives)
        self.scratch = {n: _kernels.ncf.scratch(t, n_examples) for n, t in self.tables.items()}

    def step(self, rows: np.ndarray, learning_rate: float, n_steps: int, key: Key) -> float:
        """Move what is trained by the examples of some rows; returns the sum of their losses.

        `n_steps` counts the steps from 1, this one included.
        """
        network, room, users = self.network, self.room, self.examples.users[rows]
        items, targets, weights = self.examples.draw(rows, key)
        P, Q = (
            room("P", *users.shape, network.user_width),
            room("Q", *items.shape, network.item_width),
        )
        # With another mode, `take` would write into a copy first.
        self.users.take(users, axis=0, out=P, mode="clip")
        self.items.take(items, axis=0, out=Q, mode="clip")
        scores, outputs = network.forward(self.weights, P, Q, room)
        slopes, weights = room("slopes", *scores.shape), weights / weights.dtype.type(weights.size)
        loss = _kernels.ncf.slopes_of(scores, targets, weights, self.squared, slopes)
        dP, dQ = network.backward(self.weights, P, Q, outputs, slopes, self.gradients, room)
        moves = {
            "users": (users, dP, weights.sum(axis=1), self.reg),
            "items": (items.ravel(), dQ.reshape(-1, dQ.shape[2]), weights.ravel(), self.reg),
            "weights": (ALL_WEIGHTS, self.flat_gradient, weights[0], 0.0),
        }
        for name, table in self.tables.items():
            *gradients, reg = moves[name]
            adam = _kernels.ncf.Adam(float(learning_rate), float(reg), int(n_steps))
            _kernels.ncf.step(table, *gradients, adam, self.scratch[name])
        return loss * weights.size
