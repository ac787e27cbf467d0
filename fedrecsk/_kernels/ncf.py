"""Neural collaborative filtering: what is not a product of matrices.

Examples of one row of X follow one another: its own item, then its negatives. Example e is of row
``e // n_examples``.
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._kernels._jit import kernel
from fedrecsk._kernels._rows import add_row, copy_row
from fedrecsk._kernels.fedmf import GOLDEN, below, loss_of, slope_of, unseen_item


class Adam(NamedTuple):
    """A step of Adam, the `n_steps`-th from 1; `reg` is the weight of squared norms in the loss."""

    learning_rate: float
    reg: float
    n_steps: int
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8


class Table(NamedTuple):
    """Rows, and Adam's mean gradients and mean squared gradients of them."""

    rows: np.ndarray
    means: np.ndarray
    squares: np.ndarray


class Scratch(NamedTuple):
    """Room for the rows of a batch; see :func:`scratch`. `slot_of` is -1 between uses."""

    slot_of: np.ndarray
    visited: np.ndarray
    gradients: np.ndarray
    masses: np.ndarray


def scratch(table, n_most):
    """What :func:`step` writes in, for batches with up to `n_most` examples."""
    n, width = table.rows.shape
    n_slots = min(n, n_most)
    return Scratch(
        slot_of=np.full(n, -1, np.int32),
        visited=np.empty(n_slots, np.int32),
        gradients=np.empty((n_slots, width), table.rows.dtype),
        masses=np.empty(n_slots, table.rows.dtype),
    )


@kernel
def draw_negatives(rows, users, indptr, items, n_items, seed, examples):
    """Write items that the user of each row has not rated into columns 1 and on of `examples`.

    Each row has a stream of its own, whatever the batch: it begins at a mix of seed and row.
    """
    stream = np.empty(1, np.uint64)
    for k in range(len(rows)):
        stream[0] = seed ^ (np.uint64(rows[k]) * GOLDEN)
        stream[0] = np.uint64(below(2.0**53, stream)) ^ seed
        first, last = indptr[users[k]], indptr[users[k] + 1]
        n_unseen = n_items - (last - first)
        for e in range(1, examples.shape[1]):
            if n_unseen > 0:
                examples[k, e] = unseen_item(below(n_unseen, stream), items, first, last)
            else:
                # Its weight is 0.
                examples[k, e] = examples[k, 0]


@kernel
def step(table, places, gradients, weights, adam, work):
    """Move each row that is among `places` by Adam, by the sum of its gradients.

    `weights` are those of the examples, with which their penalties count.
    """
    rows, means, squares = table
    width, number = rows.shape[1], rows.dtype.type
    n_visited = 0
    for k in range(len(places)):
        i = places[k]
        s = work.slot_of[i]
        if s < 0:
            s = n_visited
            work.slot_of[i], work.visited[s] = s, i
            copy_row(work.gradients, s, gradients, k, width)
            work.masses[s] = weights[k]
            n_visited += 1
        else:
            add_row(work.gradients, s, number(1), gradients, k, width)
            work.masses[s] += weights[k]
    rate = number(adam.learning_rate / (1 - adam.beta1**adam.n_steps))
    scale = number(1 / (1 - adam.beta2**adam.n_steps))
    beta1, beta2, epsilon = number(adam.beta1), number(adam.beta2), number(adam.epsilon)
    one = number(1)
    for s in range(n_visited):
        i = work.visited[s]
        work.slot_of[i] = -1
        penalty = number(2 * adam.reg * work.masses[s])
        row, mean, square, total = rows[i], means[i], squares[i], work.gradients[s]
        for f in range(width):
            gradient = total[f] + penalty * row[f]
            mean[f] = beta1 * mean[f] + (one - beta1) * gradient
            square[f] = beta2 * square[f] + (one - beta2) * gradient * gradient
            row[f] -= rate * mean[f] / (np.sqrt(square[f] * scale) + epsilon)


# ------------------------------------------------------------------- parts of the network


@kernel
def products(P, Q, weights, scores):
    """GMF: scores[r, e] = sum over f of weights[f] P[r, f] Q[r, e, f]."""
    for r in range(scores.shape[0]):
        for e in range(scores.shape[1]):
            total = scores.dtype.type(0)
            for f in range(len(weights)):
                total += weights[f] * P[r, f] * Q[r, e, f]
            scores[r, e] = total


@kernel
def product_gradients(slopes, P, Q, weights, dP, dQ, toward):
    """GMF: the gradients of P, Q and the weights (`toward`) from those of the scores."""
    toward[:] = 0
    for r in range(slopes.shape[0]):
        dP[r, : len(weights)] = 0
        for e in range(slopes.shape[1]):
            for f in range(len(weights)):
                dP[r, f] += slopes[r, e] * Q[r, e, f]
                dQ[r, e, f] = slopes[r, e] * weights[f] * P[r, f]
        for f in range(len(weights)):
            toward[f] += dP[r, f] * P[r, f]
            dP[r, f] *= weights[f]


@kernel
def activate(outputs, added):
    """ReLU of each output after adding its row of `added`."""
    n_examples = len(outputs) // len(added)
    zero = outputs.dtype.type(0)
    for r in range(len(added)):
        for k in range(r * n_examples, (r + 1) * n_examples):
            for f in range(outputs.shape[1]):
                outputs[k, f] = max(outputs[k, f] + added[r, f], zero)


@kernel
def deactivate(gradients, outputs, sums):
    """The gradient before a ReLU, in place, and its sum over the examples of each row of `sums`."""
    n_examples = len(outputs) // len(sums)
    zero = outputs.dtype.type(0)
    sums[:] = 0
    for r in range(len(sums)):
        for k in range(r * n_examples, (r + 1) * n_examples):
            for f in range(outputs.shape[1]):
                gradients[k, f] = gradients[k, f] if outputs[k, f] > zero else zero
                sums[r, f] += gradients[k, f]


@kernel
def slopes_of(scores, targets, weights, squared, slopes):
    """Write the derivatives of the examples' weighted losses; returns the sum of the losses."""
    total = 0.0
    for r in range(scores.shape[0]):
        for e in range(scores.shape[1]):
            score, target = scores[r, e], targets[r, e]
            total += weights[r, e] * loss_of(score, target, squared)
            slopes[r, e] = weights[r, e] * slope_of(score, target, squared)
    return total
