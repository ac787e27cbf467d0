"""FedRec's round on the clients: virtual items, virtual ratings, and gradients.

An example is an item that a user has rated, or one that it only pretends to have rated: a
virtual item. Vectors have `width` columns. With biases, column 0 of an item is its bias (met by a
1 on the user's side) and column 0 of a user is the user's bias (met by a 1 on the item's side).

A user's loss is the mean over its examples, by weight, of

    1/2 (value - score)^2 + reg/2 (|p|^2 + |q|^2).
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._utils.integers import GOLDEN
from fedrecsk._utils.jit import inline, kernel
from fedrecsk._utils.shared_kernels import add_row, copy_row, dot_rows, fill_row, uniform


class Ratings(NamedTuple):
    """What users have rated: (n_users + 1,), and (n_ratings,) each; items ascend."""

    indptr: np.ndarray
    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray


class Examples(NamedTuple):
    """Rated and virtual items of each user, ascending, as in :class:`Ratings`; is_virtual: bool."""

    indptr: np.ndarray
    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    is_virtual: np.ndarray


class Model(NamedTuple):
    """The received items, and how they are met."""

    items: np.ndarray  # (n_items, width)
    squares: np.ndarray  # (n_items,), squared lengths of what users' vectors are multiplied by
    level: float  # added to every score
    biases: bool  # bool


class Training(NamedTuple):
    """How clients train."""

    # learning_rate, reg: float
    learning_rate: float
    reg: float
    hybrid_steps: int  # steps of the vector that predicts virtual ratings; 0: they stay as they are
    user_steps: int  # steps of the users, at the last of which items are differentiated


class Uploads(NamedTuple):
    """Where the clients' gradients go."""

    senders: np.ndarray  # (n_clients,) bool
    slots: np.ndarray  # (n_examples,), row of `gradients` that an example is added to
    gradients: np.ndarray  # (n_slots, width)
    masses: np.ndarray  # (n_slots,), sum of the weights of the examples in each row
    is_finite: np.ndarray  # (n_clients,) bool, written: whether all that a client sends is finite


class Scratch(NamedTuple):
    """Room for the largest client."""

    changes: np.ndarray  # (n_users, width), the gradients of its users
    slopes: np.ndarray  # (n_examples,), those of its examples
    # own, gradient: (1, width), one user's vector and gradient
    own: np.ndarray
    gradient: np.ndarray


def scratch(client_indptr, examples, active, users):
    """Return what :func:`local_round` works in."""
    width, dtype = users.shape[1], users.dtype
    n_users = np.diff(client_indptr)[active].max(initial=0)
    n_examples = np.diff(examples.indptr[client_indptr])[active].max(initial=0)
    return Scratch(
        np.empty((n_users, width), dtype),
        np.empty(n_examples, dtype),
        *np.empty((2, 1, width), dtype),
    )


@kernel
def list_examples(ratings, n_items, whom, seeds, examples):
    """Draw virtual items for the users in `whom`, and write all of these users' examples.

    A user has as many virtual items as ``examples.indptr`` leaves room for. Every set of items
    that it has not rated is equally likely. Their ratings are its mean, and their weights are
    those of its ratings, taken in turn, so that weights do not say which items are virtual.
    """
    for u in range(len(whom)):
        if not whom[u]:
            continue
        first, last, state = ratings.indptr[u], ratings.indptr[u + 1], seeds[u]
        total, total_weight = 0.0, 0.0
        for k in range(first, last):
            total += np.float64(ratings.weights[k]) * ratings.values[k]
            total_weight += ratings.weights[k]
        mean = ratings.values.dtype.type(total / total_weight)
        at, k, n_drawn = examples.indptr[u], first, 0
        n_wanted = examples.indptr[u + 1] - at - (last - first)
        n_left = n_items - (last - first)
        for i in range(n_items):
            if k < last and ratings.items[k] == i:
                value, source, is_virtual = ratings.values[k], k, False
                k += 1
            else:
                # Of n_left items, so many are still to be taken.
                state += GOLDEN
                is_taken = uniform(state) * n_left < n_wanted - n_drawn
                n_left -= 1
                if not is_taken:
                    continue
                value, source, is_virtual = mean, first + n_drawn % (last - first), True
                n_drawn += 1
            examples.items[at] = i
            examples.values[at] = value
            examples.weights[at] = ratings.weights[source]
            examples.is_virtual[at] = is_virtual
            at += 1


@kernel
def local_round(client_indptr, examples, active, users, model, training, work, out):
    """Train the active clients for a round, in which also their users take a step.

    All gradients are taken at the same point. Returns the sums of w (rating - score)^2 before the
    step, and of w, over real ratings.
    """
    width, rate = users.shape[1], users.dtype.type(training.learning_rate)
    n_hybrid, n_steps = training.hybrid_steps, training.hybrid_steps + training.user_steps
    loss, total_weight = 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        first_user, end_user = client_indptr[c], client_indptr[c + 1]
        first, n_broken = examples.indptr[first_user], 0
        for u in range(first_user, end_user):
            start, end = examples.indptr[u], examples.indptr[u + 1]
            error, weight, steepest = 0.0, 0.0, users.dtype.type(0)
            copy_row(work.own, 0, users, u, width)
            for step in range(n_steps):
                if step == n_hybrid and n_hybrid > 0:
                    # Until here the vector has been trained on real ratings alone.
                    for k in range(start, end):
                        if examples.is_virtual[k]:
                            examples.values[k] = score_of(work.own, examples.items[k], model)
                    copy_row(work.own, 0, users, u, width)
                error, weight, steepest = differentiate(
                    start, end, first, step < n_hybrid, examples, model, training, work
                )
                if step < n_steps - 1:
                    add_row(work.own, 0, -rate, work.gradient, 0, width)
            copy_row(users, u, work.own, 0, width)
            copy_row(work.changes, u - first_user, work.gradient, 0, width)
            loss += error
            total_weight += weight
            # Gradients with slopes of this size at most must be finite.
            n_broken += not steepest < np.inf
            for f in range(width):
                n_broken += not abs(users[u, f]) < np.inf
                n_broken += not abs(users[u, f] * steepest) < np.inf
        out.is_finite[c] = n_broken == 0
        for u in range(first_user, end_user):
            if n_broken == 0 and out.senders[c]:
                start, end = examples.indptr[u], examples.indptr[u + 1]
                send(start, end, first, examples, users, u, model, training, work, out)
            add_row(users, u, -rate, work.changes, u - first_user, width)
    return loss, total_weight


@inline
def score_of(own, i, model):
    """Return the score of item i for the vector own[0]."""
    score = own.dtype.type(model.level) + dot_rows(own, 0, model.items, i, own.shape[1])
    if model.biases:
        # Column 0 has been multiplied, and is to be added up.
        score += own[0, 0] + model.items[i, 0] - own[0, 0] * model.items[i, 0]
    return score


@inline
def differentiate(start, end, first, rated_only, examples, model, training, work):
    """Set work.gradient to the damped gradient of a user's loss at work.own, and work.slopes.

    Returns the sums of w (rating - score)^2 and of w over the real ratings, and the largest slope.
    """
    own, gradient, width = work.own, work.gradient, work.own.shape[1]
    real = own.dtype.type
    fill_row(gradient, 0, real(0), width)
    total_weight, slope_sum, steepest, curvature = real(0), real(0), real(0), real(0)
    loss, rated = 0.0, 0.0
    for k in range(start, end):
        if rated_only and examples.is_virtual[k]:
            continue
        i, w = examples.items[k], examples.weights[k]
        error = score_of(own, i, model) - examples.values[k]
        g = w * error
        add_row(gradient, 0, g, model.items, i, width)
        slope_sum += g
        curvature += w * model.squares[i]
        total_weight += w
        work.slopes[k - first] = g
        # A NaN would be lost in a maximum.
        steepest = abs(g) if not abs(g) <= steepest else steepest
        if not examples.is_virtual[k]:
            loss += np.float64(g) * error
            rated += w
    if model.biases:
        gradient[0, 0] = slope_sum
    reg = real(training.reg)
    damp = real(damping(curvature / total_weight + reg, training))
    for f in range(width):
        gradient[0, f] = damp * (gradient[0, f] / total_weight + reg * own[0, f])
    return loss, rated, steepest


@inline
def damping(curvature, training):
    """Return a factor <= 1 that keeps a step along a loss of this curvature from overshooting."""
    return 1.0 / max(1.0, training.learning_rate / 2 * curvature)


@inline
def send(start, end, first, examples, users, u, model, training, work, out):
    """Add the gradients of a user's examples in the items, and their weights, to the upload."""
    real, width, row = users.dtype.type, users.shape[1], work.gradient
    square = dot_rows(users, u, users, u, width)
    if model.biases:
        square += real(1) - users[u, 0] * users[u, 0]
    damp = real(damping(square, training))
    for k in range(start, end):
        i, s = examples.items[k], out.slots[k]
        g, shrink = damp * work.slopes[k - first], real(training.reg) * examples.weights[k]
        # Rounded to the type that is sent before it is added up.
        fill_row(row, 0, real(0), width)
        add_row(row, 0, g, users, u, width)
        add_row(row, 0, shrink, model.items, i, width)
        if model.biases:
            # Column 0 of an item meets a 1 instead of the user's bias.
            row[0, 0] = g + shrink * model.items[i, 0]
        add_row(out.gradients, s, real(1), row, 0, width)
        out.masses[s] += examples.weights[k]
