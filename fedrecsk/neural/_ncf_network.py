"""Scores and gradients of GMF, MLP and NeuMF, derived by hand.

Equal to those of ``fedrecsk.neural.modules`` in torch, for half the CPU time: all examples of a
row of X have one user, so the user's half of the first layer is computed once for all of them, and
memory is used again from batch to batch.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from fedrecsk import _kernels

Arrays = dict[str, np.ndarray]


class Room:
    """Arrays by name that are used again in every batch: new ones would cost more than the work."""

    def __init__(self, dtype: np.dtype) -> None:
        self._dtype = dtype
        self._arrays: Arrays = {}

    def __call__(self, name: str, *shape: int) -> np.ndarray:
        """An array of this shape with any content, valid until the name is asked for again."""
        n = prod(shape)
        if n > len(self._arrays.get(name, ())):
            self._arrays[name] = np.empty(n, self._dtype)
        return self._arrays[name][:n].reshape(shape)


class Network(NamedTuple):
    """What a network looks like.

    Attributes
    ----------
    n_factors : int
        Length d of a vector of GMF; 0 for the MLP alone.
    layers : tuple of int
        Widths of the MLP, from its input to its last hidden layer; empty for GMF alone.
    """

    n_factors: int
    layers: tuple[int, ...]

    @property
    def user_width(self) -> int:
        """Length of a user's row: a vector of GMF and one of the MLP."""
        return self.n_factors + (self.layers[0] - self.layers[0] // 2 if self.layers else 0)

    @property
    def item_width(self) -> int:
        """Length of an item's row."""
        return self.n_factors + (self.layers[0] // 2 if self.layers else 0)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights, under torch's names."""
        shapes: dict[str, tuple[int, ...]] = {}
        for k, (n_inputs, n_outputs) in enumerate(pairwise(self.layers)):
            shapes[f"hidden.{2 * k}.weight"] = n_outputs, n_inputs
            shapes[f"hidden.{2 * k}.bias"] = (n_outputs,)
        n_inputs = self.n_factors + (self.layers[-1] if self.layers else 0)
        return shapes | {"output.weight": (1, n_inputs), "output.bias": (1,)}

    @property
    def n_weights(self) -> int:
        """Number of weights."""
        return sum(prod(shape) for shape in self.shapes.values())

    def views(self, flat: np.ndarray) -> Arrays:
        """The weights by name, as views into an array of all of them."""
        views, start = {}, 0
        for name, shape in self.shapes.items():
            stop = start + prod(shape)
            views[name], start = flat[start:stop].reshape(shape), stop
        return views

    def forward(
        self, weights: Arrays, P: np.ndarray, Q: np.ndarray, room: Room
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Scores of all examples, and the outputs of the hidden layers.

        Parameters
        ----------
        weights : dict of ndarray
        P : ndarray of shape (n_rows, user_width)
            The user's vectors for each row of X.
        Q : ndarray of shape (n_rows, n_examples, item_width)
            The items' vectors for its examples.
        room : Room

        Returns
        -------
        scores : ndarray of shape (n_rows, n_examples)
        outputs : list of ndarray of shape (n_rows * n_examples, width)
        """
        d, half, h = self.n_factors, self.user_width - self.n_factors, weights["output.weight"][0]
        scores, outputs = room("scores", *Q.shape[:2]), []
        _kernels.ncf.products(P, Q, h[:d], scores)
        scores += weights["output.bias"]
        for k in range(len(self.layers) - 1):
            weight, added = weights[f"hidden.{2 * k}.weight"], weights[f"hidden.{2 * k}.bias"][None]
            inputs = outputs[-1] if k else _flat(Q)[:, d:]
            if k == 0:
                # The first input is p_u, then q_i: each meets its own columns of the weights.
                added = P[:, d:] @ weight[:, :half].T + added
                weight = weight[:, half:]
            output = room(f"output {k}", len(inputs), len(weight))
            np.matmul(inputs, weight.T, out=output)
            _kernels.ncf.activate(output, added)
            outputs.append(output)
        if outputs:
            scores += (outputs[-1] @ h[d:]).reshape(scores.shape)
        return scores, outputs

    def backward(
        self,
        weights: Arrays,
        P: np.ndarray,
        Q: np.ndarray,
        outputs: list[np.ndarray],
        slopes: np.ndarray,
        gradients: Arrays,
        room: Room,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gradients of P and Q; those of the weights are written into `gradients`.

        Parameters
        ----------
        weights, P, Q, outputs, room
            As given to and returned by `forward`.
        slopes : ndarray of shape (n_rows, n_examples)
            Derivatives of the loss by the scores.
        gradients : dict of ndarray
            Arrays of the shapes of `weights`.

        Returns
        -------
        dP, dQ : ndarray
            Of the shapes of P and Q.
        """
        d, half, h = self.n_factors, self.user_width - self.n_factors, weights["output.weight"][0]
        dP, dQ, dh = room("dP", *P.shape), room("dQ", *Q.shape), gradients["output.weight"][0]
        _kernels.ncf.product_gradients(slopes, P, Q, h[:d], dP, dQ, dh[:d])
        gradients["output.bias"][0] = slopes.sum()
        if not outputs:
            return dP, dQ
        np.matmul(slopes.ravel(), outputs[-1], out=dh[d:])
        dZ = room("last hidden gradient", *outputs[-1].shape)
        np.multiply(slopes.reshape(-1, 1), h[d:], out=dZ)
        for k in reversed(range(len(outputs))):
            weight, dW = weights[f"hidden.{2 * k}.weight"], gradients[f"hidden.{2 * k}.weight"]
            sums = room("sums", 1 if k else len(P), len(weight))
            _kernels.ncf.deactivate(dZ, outputs[k], sums)
            sums.sum(axis=0, out=gradients[f"hidden.{2 * k}.bias"])
            if k:
                np.matmul(dZ.T, outputs[k - 1], out=dW)
                dZ = np.matmul(dZ, weight, out=room(f"gradient {k}", *outputs[k - 1].shape))
            else:
                dW[:, :half], dW[:, half:] = sums.T @ P[:, d:], dZ.T @ _flat(Q)[:, d:]
                dP[:, d:] = sums @ weight[:, :half]
                np.matmul(dZ, weight[:, half:], out=_flat(dQ)[:, d:])
        return dP, dQ


def _flat(Q: np.ndarray) -> np.ndarray:
    """A row for each example."""
    return Q.reshape(-1, Q.shape[2])
