"""Gibbs sampling of matrix factorisations: all rows of one side given the other.

A row of a side is x = (bias, vector), and a rating of rows a and b is normal with mean
``x_a[0] + x_b[0] + x_a[1:] . x_b[1:]``. All arrays are float64, apart from those that name
another type.
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._utils.jit import inline, kernel
from fedrecsk._utils.shared_kernels import factor, solve


class Side(NamedTuple):
    """The ratings by row of one side, users or items.

    Attributes
    ----------
    indptr : (n_rows + 1,); row a's ratings are indptr[a]:indptr[a + 1]
    others : (n_ratings,) int32, row of the other side
    values, weights : (n_ratings,)
    """

    indptr: np.ndarray
    others: np.ndarray
    values: np.ndarray
    weights: np.ndarray


class Prior(NamedTuple):
    """Row a is normal with mean[a] and precision diag(precision) before any rating.

    Attributes
    ----------
    mean : (n_rows, 1 + d)
    precision : (1 + d,)
    """

    mean: np.ndarray
    precision: np.ndarray


class Noise(NamedTuple):
    """A rating of rows a and b has the precision weight * rows[a] * others[b].

    Attributes
    ----------
    rows, others : (n_rows,) and (n_others,)
    """

    rows: np.ndarray
    others: np.ndarray


class Drawn(NamedTuple):
    """What `rows` fills in.

    Attributes
    ----------
    rows : (n_rows, 1 + d)
    again : (n_rows, 1 + d), a second draw, or (0, 1 + d) for none
    squares : (n_rows,) sums of weight * error^2 under `rows`
    """

    rows: np.ndarray
    again: np.ndarray
    squares: np.ndarray


@kernel
def rows(first, last, side, factors, prior, noise, normal, normal_again, out):
    """Draw rows first to last of a side given the rows of the other side.

    Row a has the precision A = diag(precision) + sum w x x' over x = (1, vector) of what it
    rates, and the mean A^-1 (diag(precision) mean[a] + sum w x (value - bias)).

    Parameters
    ----------
    factors : (n_others, 1 + d), the other side
    normal, normal_again : (n_rows, 1 + d) standard normal draws, from which rows are computed
    """
    size = normal.shape[1]
    longest = 0
    for a in range(first, last):
        longest = max(longest, side.indptr[a + 1] - side.indptr[a])
    design, targets = np.empty((longest, size)), np.empty(longest)
    matrix, mean = np.empty((size, size)), np.empty((1, size))
    for a in range(first, last):
        start, n = side.indptr[a], side.indptr[a + 1] - side.indptr[a]
        right = mean[0]
        for f in range(size):
            right[f] = prior.precision[f] * prior.mean[a, f]
        for k in range(n):
            b = side.others[start + k]
            root = np.sqrt(side.weights[start + k] * noise.rows[a] * noise.others[b])
            x, v = design[k], factors[b]
            targets[k] = root * (side.values[start + k] - v[0])
            x[0] = root
            for f in range(1, size):
                x[f] = root * v[f]
            for f in range(size):
                right[f] += targets[k] * x[f]
        np.dot(design[:n].T, design[:n], matrix)
        for f in range(size):
            matrix[f, f] += prior.precision[f]
        upper = factor(matrix)
        solve(upper, size, mean, mean, 0)
        add_normal(upper, right, normal[a], out.rows[a])
        if len(out.again) > 0:
            add_normal(upper, right, normal_again[a], out.again[a])
        total = 0.0
        for k in range(n):
            error = targets[k] - dot(design[k], out.rows[a])
            b = side.others[start + k]
            total += error * error / (noise.rows[a] * noise.others[b])
        out.squares[a] = total


@inline
def add_normal(upper, mean, normal, out):
    """out = mean + U^-1 normal with an upper triangular U: covariance (U'U)^-1."""
    size = len(normal)
    for f in range(size - 1, -1, -1):
        left = normal[f]
        for g in range(f + 1, size):
            left -= upper[f, g] * out[g]
        out[f] = left / upper[f, f]
    for f in range(size):
        out[f] += mean[f]


@inline
def dot(x, y):
    """x . y over the length of y."""
    total = 0.0
    for f in range(len(y)):
        total += x[f] * y[f]
    return total


@kernel
def implicit(indptr, users, shares, user_precision, precision, normal, rest, Y):
    """Draw all y_j, one after the other.

    Each is given all others and p_u ~ N(share_u sum_{j in R_u} y_j, .).

    y_j has the prior precision `precision` and, in coordinate f, the precision
    user_precision[f] for each p_u.

    Parameters
    ----------
    indptr, users : users of item j are users[indptr[j]:indptr[j + 1]]
    shares : (n_users,) |R_u|^-1/2
    user_precision : (d,)
    normal : (n_items, d) standard normal draws
    rest : (n_users, d) p_u - share_u sum_j y_j, kept up to date
    Y : (n_items, d), replaced
    """
    size = Y.shape[1]
    move = np.empty(size)
    for j in range(len(Y)):
        squares = 0.0
        for f in range(size):
            move[f] = 0.0
        for k in range(indptr[j], indptr[j + 1]):
            share, left = shares[users[k]], rest[users[k]]
            squares += share * share
            for f in range(size):
                move[f] += share * left[f]
        for f in range(size):
            strength = precision + user_precision[f] * squares
            mean = user_precision[f] * (move[f] + squares * Y[j, f]) / strength
            move[f] = mean + normal[j, f] / np.sqrt(strength) - Y[j, f]
            Y[j, f] += move[f]
        for k in range(indptr[j], indptr[j + 1]):
            share, left = shares[users[k]], rest[users[k]]
            for f in range(size):
                left[f] -= share * move[f]


class Samples(NamedTuple):
    """Samples of one side, side by side.

    Attributes
    ----------
    biases : (n_rows, S) float32
    factors : (n_rows, S d) float32
    unknown : (S, 1 + d) variances of (bias, vector) of a row about which nothing is known
    """

    biases: np.ndarray
    factors: np.ndarray
    unknown: np.ndarray


@kernel
def variances(users, items, left, right, scale, out):
    """Variance over samples of b_u + b_i + scale p_u . q_i for pairs of codes, -1 for unknown.

    An unknown row has mean 0 in each sample, and the variance that `unknown` says.

    Parameters
    ----------
    users, items : (n,) integer codes
    left, right : Samples of the users and of the items
    scale : float
        Of the items' vectors; `unknown` is that of scale q_i.
    out : (n,)
    """
    n_samples = len(left.unknown)
    size = left.unknown.shape[1] - 1
    for k in range(len(users)):
        u, i = users[k], items[k]
        mean, squares, spread = 0.0, 0.0, 0.0
        for s in range(n_samples):
            score = 0.0
            if u >= 0:
                score += left.biases[u, s]
            else:
                spread += left.unknown[s, 0]
            if i >= 0:
                score += right.biases[i, s]
            else:
                spread += right.unknown[s, 0]
            for f in range(size):
                g = s * size + f
                p = float(left.factors[u, g]) if u >= 0 else 0.0
                q = scale * right.factors[i, g] if i >= 0 else 0.0
                score += p * q
                p_square = p * p if u >= 0 else left.unknown[s, 1 + f]
                q_square = q * q if i >= 0 else right.unknown[s, 1 + f]
                if u < 0 or i < 0:
                    spread += p_square * q_square
            # Welford's update, which has no difference of large numbers.
            change = score - mean
            mean += change / (s + 1)
            squares += change * (score - mean)
        out[k] = (squares + spread) / n_samples
