"""FedRec's round on the clients: virtual items, virtual ratings, and gradients.

An example is an item that a user has rated, or one that it only pretends to have rated: a
virtual item. Vectors have `width` columns. With biases, column 0 of an item is its bias (met by a
1 on the user's side) and column 0 of a user is the user's bias (met by a 1 on the item's side).

A user's loss is the mean over its examples, by weight, of

    1/2 (value - score)^2 + reg/2 (|p|^2 + |q|^2).
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._utils.jit import inline, kernel
from fedrecsk._utils.shared_kernels import add_row, copy_row, dot_rows, fill_row, solve_positive

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Ratings(NamedTuple):
    """What users have rated: (n_users + 1,), and (n_ratings,) each; items ascend."""

    indptr: np.ndarray
    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray


class Examples(NamedTuple):
    """Rated and virtual items of each user, ascending: (n_users + 1,), and (n_examples,) each.

    Attributes
    ----------
    indptr, items, values, weights : as in :class:`Ratings`
    is_virtual : bool
    """

    indptr: np.ndarray
    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    is_virtual: np.ndarray


class Model(NamedTuple):
    """The received items, (n_items, width), and how they are met.

    Attributes
    ----------
    items : (n_items, width)
    squares : (n_items,), squared lengths of what users' vectors are multiplied by
    level : float, added to every score
    biases : bool
    """

    items: np.ndarray
    squares: np.ndarray
    level: float
    biases: bool


class Training(NamedTuple):
    """How clients train.

    learning_rate, reg : float
    hybrid_steps : int, steps of the vector that predicts virtual ratings; 0: they stay as they are
    user_steps : int, steps of the users, at the last of which items are differentiated
    """

    learning_rate: float
    reg: float
    hybrid_steps: int
    user_steps: int


class Uploads(NamedTuple):
    """Where the clients' gradients go.

    Attributes
    ----------
    senders : (n_clients,) bool
    slots : (n_examples,), row of `gradients` that an example is added to
    gradients : (n_slots, width)
    masses : (n_slots,), sum of the weights of the examples in each row
    is_finite : (n_clients,) bool, written: whether all that a client sends is finite
    """

    senders: np.ndarray
    slots: np.ndarray
    gradients: np.ndarray
    masses: np.ndarray
    is_finite: np.ndarray


class Scratch(NamedTuple):
    """Room for the largest client; see :func:`scratch`.

    Attributes
    ----------
    changes : (n_users, width), the gradients of its users
    slopes : (n_examples,), those of its examples
    own, gradient : (1, width)
    """

    changes: np.ndarray
    slopes: np.ndarray
    own: np.ndarray
    gradient: np.ndarray


def scratch(client_indptr, examples, active, users):
    """What :func:`local_round` writes in."""
    width, dtype = users.shape[1], users.dtype
    n_users = np.diff(client_indptr)[active].max(initial=0)
    n_examples = np.diff(examples.indptr[client_indptr])[active].max(initial=0)
    return Scratch(
        np.empty((n_users, width), dtype),
        np.empty(n_examples, dtype),
        *np.empty((2, 1, width), dtype),
    )


# -------------------------------------------------------------------------- virtual items


@inline
def chance(stream):
    """The next draw of a splitmix64 stream, uniform in [0, 1)."""
    stream[0] += GOLDEN
    x = stream[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return np.float64(x >> np.uint64(11)) * 2.0**-53


@kernel
def list_examples(ratings, n_items, whom, seeds, stream, examples):
    """Draw virtual items for the users in `whom`.

    Writes all of these users' examples. A user has as many virtual items as ``examples.indptr``
    leaves room for. Every set of items that it has not rated is equally likely. Their ratings are
    its mean, and their weights are those of its ratings, taken in turn, so that weights do not
    say which items are virtual.

    Parameters
    ----------
    ratings : Ratings
    n_items : int
    whom : (n_users,) bool
    seeds : (n_users,) uint64
    stream : (1,) uint64, scratch
    examples : Examples
    """
    for u in range(len(whom)):
        if not whom[u]:
            continue
        stream[0] = seeds[u]
        first, n_rated = ratings.indptr[u], ratings.indptr[u + 1] - ratings.indptr[u]
        n_wanted = examples.indptr[u + 1] - examples.indptr[u] - n_rated
        n_left = n_items - n_rated
        mean = mean_rating(u, ratings)
        at, k, drawn = examples.indptr[u], 0, 0
        for i in range(n_items):
            if k < n_rated and ratings.items[first + k] == i:
                value, source, virtual = ratings.values[first + k], first + k, False
                k += 1
            else:
                # Of n_left items, so many are still to be taken.
                taken = chance(stream) * n_left < n_wanted - drawn
                n_left -= 1
                if not taken:
                    continue
                value, source, virtual = mean, first + drawn % n_rated, True
                drawn += 1
            examples.items[at] = i
            examples.values[at] = value
            examples.weights[at] = ratings.weights[source]
            examples.is_virtual[at] = virtual
            at += 1


@inline
def mean_rating(u, ratings):
    """A user's mean rating, by weight."""
    total, mass = 0.0, 0.0
    for k in range(ratings.indptr[u], ratings.indptr[u + 1]):
        total += np.float64(ratings.weights[k]) * ratings.values[k]
        mass += ratings.weights[k]
    return ratings.values.dtype.type(total / mass)


# ------------------------------------------------------------------------------- a round


@kernel
def local_round(client_indptr, examples, active, users, model, training, work, out):
    """The round of the active clients, in which also their users take a step.

    All gradients are taken at the same point.

    Parameters
    ----------
    client_indptr : (n_clients + 1,), users of each client
    examples : Examples, whose virtual ratings are replaced where ``training.hybrid_steps`` > 0
    active : (n_clients,) bool
    users : (n_users, width), stepped in place
    model : Model
    training : Training
    work : of :func:`scratch`
    out : Uploads

    Returns
    -------
    loss, mass : sums of w (rating - score)^2 before the step, and of w; of real ratings
    """
    width, rate = users.shape[1], users.dtype.type(training.learning_rate)
    every, loss, mass = np.bool_(False), 0.0, 0.0
    for c in range(len(active)):
        if not active[c]:
            continue
        first_user, end_user = client_indptr[c], client_indptr[c + 1]
        first, is_finite = examples.indptr[first_user], True
        for u in range(first_user, end_user):
            start, end = examples.indptr[u], examples.indptr[u + 1]
            if training.hybrid_steps > 0:
                predict_virtual(start, end, first, examples, users, u, model, training, work)
            n_steps = training.user_steps - 1
            descend(start, end, first, n_steps, every, examples, users, u, model, training, work)
            error, weight, steepest = differentiate(
                start, end, first, every, examples, users, u, model, training, work.slopes,
                work.changes, u - first_user,
            )  # fmt: skip
            loss += error
            mass += weight
            is_finite = is_finite and is_sound(users, u, steepest)
        out.is_finite[c] = is_finite
        for u in range(first_user, end_user):
            if is_finite and out.senders[c]:
                start, end = examples.indptr[u], examples.indptr[u + 1]
                send(start, end, first, examples, users, u, model, training, work, out)
            add_row(users, u, -rate, work.changes, u - first_user, width)
    return loss, mass


@inline
def predict_virtual(start, end, first, examples, users, u, model, training, work):
    """Replace a user's virtual ratings by the scores of a vector trained on the real ones."""
    own, rated_only = work.own, np.bool_(True)
    copy_row(own, 0, users, u, users.shape[1])
    n_steps, zero = training.hybrid_steps, np.int64(0)
    descend(start, end, first, n_steps, rated_only, examples, own, zero, model, training, work)
    for k in range(start, end):
        if examples.is_virtual[k]:
            examples.values[k] = score_of(own, zero, examples.items[k], model)


@inline
def score_of(users, u, i, model):
    """Score of item i for a user's vector."""
    score = users.dtype.type(model.level) + dot_rows(users, u, model.items, i, users.shape[1])
    if model.biases:
        # Column 0 has been multiplied, and is to be added up.
        score += users[u, 0] + model.items[i, 0] - users[u, 0] * model.items[i, 0]
    return score


@inline
def differentiate(
    start, end, first, rated_only, examples, users, u, model, training, slopes, out, row
):
    """The gradient of a user's loss in its vector, into ``out[row]``; damped, see :func:`damping`.

    Notes w (score - value) of example k as ``slopes[k - first]``. Returns the sum of
    w (rating - score)^2 and of w over the real ratings, and the largest absolute slope.
    """
    real, width = users.dtype.type, users.shape[1]
    fill_row(out, row, real(0), width)
    mass, slope_sum, steepest, curvature = real(0), real(0), real(0), real(0)
    loss, rated = 0.0, 0.0
    for k in range(start, end):
        if rated_only and examples.is_virtual[k]:
            continue
        i, w = examples.items[k], examples.weights[k]
        error = score_of(users, u, i, model) - examples.values[k]
        g = w * error
        add_row(out, row, g, model.items, i, width)
        slope_sum += g
        curvature += w * model.squares[i]
        mass += w
        slopes[k - first] = g
        # A NaN would be lost in a maximum.
        steepest = abs(g) if not abs(g) <= steepest else steepest
        if not examples.is_virtual[k]:
            loss += np.float64(g) * error
            rated += w
    if model.biases:
        out[row, 0] = slope_sum
    reg = real(training.reg)
    damp = real(damping(curvature / mass + reg, training, real(1)))
    for f in range(width):
        out[row, f] = damp * (out[row, f] / mass + reg * users[u, f])
    return loss, rated, steepest


@inline
def damping(curvature, training, one):
    """A factor at most 1 that keeps a step along a gradient of this curvature from overshooting.

    Without it a loss of this curvature grows if the learning rate is above 2 / curvature. `one`
    is 1 in the type to compute in.
    """
    half = one * training.learning_rate / 2
    return one / max(one, half * curvature)


@inline
def descend(start, end, first, n_steps, rated_only, examples, users, u, model, training, work):
    """Gradient steps of a user's vector, in place."""
    rate, zero = users.dtype.type(training.learning_rate), np.int64(0)
    for _ in range(n_steps):
        differentiate(
            start, end, first, rated_only, examples, users, u, model, training, work.slopes,
            work.gradient, zero,
        )  # fmt: skip
        add_row(users, u, -rate, work.gradient, zero, users.shape[1])


@inline
def is_sound(users, u, steepest):
    """Whether gradients with slopes of this size at most are finite."""
    n_broken = int(not steepest < np.inf)
    for f in range(users.shape[1]):
        n_broken += not abs(users[u, f]) < np.inf
        n_broken += not abs(users[u, f] * steepest) < np.inf
    return n_broken == 0


@inline
def send(start, end, first, examples, users, u, model, training, work, out):
    """Add the gradients of a user's examples in the items, and their weights, to the upload."""
    real, width, row = users.dtype.type, users.shape[1], work.gradient
    square = dot_rows(users, u, users, u, width)
    if model.biases:
        square += real(1) - users[u, 0] * users[u, 0]
    damp = real(damping(square, training, real(1)))
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


# ------------------------------------------------------------------------------ at the end


@kernel
def solve_users(ratings, whom, model, reg, users):
    """The vectors of least loss on the real ratings, items fixed, for the users in `whom`.

    Parameters
    ----------
    ratings : Ratings
    whom : (n_users,) bool
    model : Model
    reg : float, weight of 1/2 |p|^2 beside the mean of the errors
    users : (n_users, width), receives the vectors
    """
    width = users.shape[1]
    matrix, right = np.empty((width, width)), np.empty((1, width))
    partner = np.empty(width)
    for u in range(len(whom)):
        if not whom[u]:
            continue
        mass = 0.0
        for f in range(width):
            right[0, f] = 0
            for g in range(width):
                matrix[f, g] = 0
        for k in range(ratings.indptr[u], ratings.indptr[u + 1]):
            i, w = ratings.items[k], np.float64(ratings.weights[k])
            rest = np.float64(ratings.values[k]) - model.level
            for f in range(width):
                partner[f] = model.items[i, f]
            if model.biases:
                rest -= partner[0]
                partner[0] = 1
            mass += w
            for f in range(width):
                right[0, f] += w * rest * partner[f]
                for g in range(width):
                    matrix[f, g] += w * partner[f] * partner[g]
        for f in range(width):
            matrix[f, f] += reg * mass + 1e-9
        solve_positive(matrix, right)
        for f in range(width):
            users[u, f] = right[0, f]
